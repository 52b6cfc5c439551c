"""What every loader returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.utils import Bunch


def as_result(bunch: Bunch, return_X_y: bool) -> Any:
    """The Bunch itself, or its bags and labels."""
    return (bunch.bags, bunch.y) if return_X_y else bunch


def first_line(maker: Callable[..., object]) -> str:
    """The first line of a generator's docstring, which describes what it makes."""
    return (maker.__doc__ or "").strip().splitlines()[0]
