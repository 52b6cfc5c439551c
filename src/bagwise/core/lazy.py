"""What is imported when it is first used, what packages list as public, and optional modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
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


def public_names(module: Mapping[str, Any]) -> list[str]:
    """``__all__`` of a package that imports its public names and has no other.

    Examples
    --------
    >>> from bagwise.core.lazy import public_names
    >>> public_names({"METRICS": (), "_cache": {}, "public_names": public_names})
    ['METRICS']
    """
    named = {name: value for name, value in module.items() if not name.startswith("_")}
    named.pop("public_names", None)
    return [name for name, value in named.items() if not isinstance(value, ModuleType)]


def optional(module: str, extra: str, what: str = "") -> Any:
    """A module that an extra of the package brings, or what to install and what for.

    Examples
    --------
    >>> from bagwise.core.lazy import optional
    >>> optional("numpy", extra="numbers").__name__
    'numpy'
    >>> optional("no_such_module", extra="numbers")
    Traceback (most recent call last):
    ValueError: needs no_such_module: pip install '.[numbers]' in a checkout
    """
    try:
        return import_module(module)
    except ImportError as error:
        needs = what or f"needs {module}"
        raise ValueError(f"{needs}: pip install '.[{extra}]' in a checkout") from error
