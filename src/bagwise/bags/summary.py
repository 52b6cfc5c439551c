"""What bags look like: a few lines for people, and a table for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from bagwise.bags.container import Bags
    from bagwise.core.arrays import Column

# Bags that a notebook shows.
_SHOWN = 8


def describe(bags: Bags) -> pd.Series:
    """Counts, sizes, kinds and what travels along, as a pandas Series."""
    import pandas as pd

    sizes = bags.sizes
    about: dict[str, object] = {
        "bags": len(bags),
        "instances": bags.n_instances,
        "features": " x ".join(str(n) for n in bags.instances.shape[1:]),
        "smallest bag": int(sizes.min(initial=np.iinfo(np.int64).max)) if len(bags) else 0,
        "median bag": float(np.median(sizes)) if len(bags) else 0.0,
        "largest bag": int(sizes.max(initial=0)),
        "kind": f"{type(bags.instances).__name__} of {bags.dtype}",
        "checked finite": bags.known_finite,
    }
    if bags.feature_names is not None:
        about["feature names"] = some(bags.feature_names)
    if bags.groups is not None:
        about["groups"] = len(np.unique(bags.groups.astype(str)))
    if bags.columns:
        about["columns"] = ", ".join(bags.columns)
    return pd.Series(about, dtype=object, name="bags")


def html(bags: Bags) -> str:
    """A summary and the first bags, for notebooks."""
    lines = "".join(
        f"<tr><th style='text-align:left'>{escape(str(name))}</th>"
        f"<td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in describe(bags).items()
    )
    rows = "".join(
        f"<tr><td style='text-align:left'>{escape(str(name))}</td><td>{size}</td></tr>"
        for name, size in zip(bags.ids[:_SHOWN], bags.sizes[:_SHOWN], strict=True)
    )
    more = len(bags) - _SHOWN
    if more > 0:
        rows += f"<tr><td colspan='2' style='text-align:left'>... and {more} more bags</td></tr>"
    head = "<tr><th style='text-align:left'>bag</th><th>instances</th></tr>"
    return (
        f"<div><p><strong>{escape(repr(bags))}</strong></p><table>{lines}</table>"
        f"<table>{head}{rows}</table></div>"
    )


def some(names: Sequence[object] | Column, shown: int = 5) -> str:
    """The first names and how many more there are."""
    listed = ", ".join(repr(str(name)) for name in names[:shown])
    return listed + (f" and {len(names) - shown} more" if len(names) > shown else "")
