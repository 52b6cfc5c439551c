"""Packages whose names are imported when first used, so that importing them stays quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package : str
    names : mapping of str to sequence of str
        Module of the package -> the public names that it defines.

    Examples
    --------
    >>> from bagwise.core.lazy import lazy_names
    >>> public, lookup, _ = lazy_names("bagwise.core", {"rules": ("log_odds",)})
    >>> public, lookup("log_odds").__module__
    (['log_odds'], 'bagwise.core.rules')
    """
    home = {name: module for module, defined in names.items() for name in defined}

    def lookup(name: str) -> Any:
        if name in home:
            return getattr(import_module(f"{package}.{home[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return list(home), lookup, lambda: sorted(home)
