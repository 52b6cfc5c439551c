"""Packages whose names are imported when first used, so that importing them stays quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, from its public names and their modules.

    Examples
    --------
    >>> from bagwise.core.lazy import lazy_names
    >>> lookup, names = lazy_names("bagwise.core", {"log_odds": "rules"})
    >>> lookup("log_odds").__module__, names()
    ('bagwise.core.rules', ['log_odds'])
    """

    def lookup(name: str) -> Any:
        if name in modules:
            return getattr(import_module(f"{package}.{modules[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return lookup, lambda: sorted(modules)
