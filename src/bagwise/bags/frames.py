"""Bags as tables: from frames with one row per instance, back to them, and a summary."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bagwise.bags.layout import Content, grouped
from bagwise.core.arrays import Column, Floats, Ints
from bagwise.core.leaks import bag_level_features

if TYPE_CHECKING:
    import pandas as pd

    from bagwise.bags.container import Bags

# Bags that a notebook shows.
_SHOWN = 8
# Words in the names of columns that are no features.
_LABEL = {"label", "labels", "target", "targets", "outcome", "diagnosis", "truth"}
_THING = {
    *("bag", "patient", "case", "subject", "participant", "donor", "slide", "sample", "specimen"),
    *("block", "image", "scan", "file", "filename", "molecule", "instance", "patch", "tile"),
    *("group", "groups", "fold", "split", "site", "center", "centre", "hospital", "scanner"),
    *("batch", "cohort"),
}
_COUNTED = {"id", "ids", "no", "nr", "number", "num", "index", "idx", "name", "code"}
_AXIS = {"x", "y", "z"}
_PLACE = {
    *("coord", "coords", "coordinate", "coordinates", "centroid", "center", "centre", "pos"),
    *("position", "location", "min", "max", "start", "end", "px", "um"),
}


def role_of(name: str) -> str | None:
    """What a column other than a feature is by its name, or None for a feature.

    Examples
    --------
    >>> from bagwise.bags.frames import role_of
    >>> [role_of(name) for name in ("Label", "patient_id", "coord_x", "mitotic_index", "x0")]
    ['a label', 'an id', 'a coordinate', None, None]
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", str(name))
    words = [word.lower() for word in words]
    if not words:
        return None
    first, last, every = words[0], words[-1], set(words)
    if first in _LABEL or last in _LABEL or words in (["class"], ["y", "true"], ["status"]):
        return "a label"
    if last in {"id", "ids", "uuid", "barcode"} or words in (["index"], ["idx"], ["unnamed", "0"]):
        return "an id"
    if words[0] in _THING and (len(words) == 1 or (len(words) == 2 and last in _COUNTED)):
        return "a group"
    if every <= _AXIS | _PLACE and (every & _AXIS or every & {"coord", "coords"}):
        return "a coordinate"
    if words in (["row"], ["col"], ["column"]):
        return "a coordinate"
    return None


def _listed(columns: dict[str, str]) -> str:
    shown = [f"{name!r} ({why})" for name, why in list(columns.items())[:8]]
    more = len(columns) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def read(
    frame: Any,
    bag: str,
    features: str | Sequence[str] | None,
    coords: str | Sequence[str] | None,
    groups: str | None,
    levels: Sequence[str] | None,
) -> Content:
    """The rows of a frame and what its columns are."""
    if levels is not None:
        if isinstance(levels, str) or len(levels) != 2 or groups is not None:
            raise ValueError(
                "levels names two columns, the bag and the group within it, such as "
                f"['patient', 'slide'], instead of groups; got {levels!r}."
            )
        bag, groups = levels
    frame = as_pandas(frame)
    columns = list(frame.columns)
    for c in columns:
        if columns.count(c) > 1:
            raise ValueError(f"the frame has {columns.count(c)} columns called {c!r}.")
    places = [coords] if isinstance(coords, str) else list(coords or [])
    wanted = [bag, *([groups] if groups else []), *places]
    for name in wanted:
        if name not in columns:
            raise ValueError(f"the frame has no column {name!r}; it has {columns}.")
    X, names, left_out = _features(frame, set(wanted), features)
    if len(X) == 0:
        raise ValueError("the frame has no rows; at least one is needed.")
    columns_kept: dict[str, Column] = {}
    if places:
        place = _matrix(frame, places)
        columns_kept["coords"] = place[:, 0] if len(places) == 1 else place
    if groups:
        columns_kept["groups"] = _names(frame, groups)
    order, offsets, ids = grouped(_names(frame, bag), columns_kept.get("groups"))
    if order is not None:
        X = X[order]
        columns_kept = {name: column[order] for name, column in columns_kept.items()}
    if features is None and names is not None:
        keep = _instance_level(X, offsets, names, left_out)
        if len(keep) < len(names):
            X, names = X[:, keep], tuple(names[j] for j in keep)
    return Content(X, offsets, ids, columns_kept, names)


def _instance_level(
    X: NDArray[np.number], offsets: Ints, names: tuple[str, ...], left_out: dict[str, str]
) -> Ints:
    """Numbers of the features that differ within bags; warns of all that was left out."""
    bag_level = bag_level_features(X, offsets)
    left_out = left_out | {names[j]: "one value for all rows of a bag" for j in bag_level}
    keep = np.setdiff1d(np.arange(X.shape[1]), bag_level)
    if len(keep) == 0:
        raise ValueError(
            f"no feature columns are left in the frame: {_listed(left_out)}. Pass features=[...] "
            "to choose them yourself."
        )
    if left_out:
        warnings.warn(
            f"columns left out of the features: {_listed(left_out)}. Pass features=[...] to "
            "choose them yourself.",
            UserWarning,
            stacklevel=4,
        )
    return keep


def _features(
    frame: pd.DataFrame, taken: set[str], features: str | Sequence[str] | None
) -> tuple[NDArray[np.number], tuple[str, ...] | None, dict[str, str]]:
    """Features of the rows, their names, and the columns that were left out with the reason."""
    columns, left_out = list(frame.columns), {}
    if isinstance(features, str):
        if features not in columns:
            raise ValueError(f"the frame has no column {features!r}; it has {columns}.")
        if not is_number(frame[features]):
            return stack_lists(frame[features], features), None, {}
        features = [features]
    if features is None:
        numeric = [c for c in columns if c not in taken and is_number(frame[c])]
        left_out = {c: why for c in numeric if (why := role_of(c))}
        features = [c for c in numeric if c not in left_out]
        if not features:
            raise ValueError(
                "the frame has no numeric feature columns"
                + (f": {_listed(left_out)}" if left_out else "")
                + ". Pass features=[...] to choose them yourself."
            )
    features = list(features)
    unknown = [c for c in features if c not in columns]
    if unknown or not features:
        raise ValueError(f"no such feature columns in the frame: {unknown or 'none were named'}.")
    text = [c for c in features if not is_number(frame[c])]
    if text:
        raise ValueError(f"feature column {text[0]!r} does not hold numbers.")
    return _matrix(frame, features), tuple(features), left_out


def as_pandas(frame: Any) -> pd.DataFrame:
    """A frame of pandas or polars as one of pandas, its columns named by text."""
    frame = frame.collect() if hasattr(frame, "collect") else frame  # polars.LazyFrame
    frame = frame.to_pandas() if hasattr(frame, "to_pandas") else frame  # polars.DataFrame
    return frame.set_axis([str(c) for c in frame.columns], axis="columns")


def is_number(column: pd.Series[Any]) -> bool:
    """Whether a column holds numbers; truth values are none."""
    import pandas as pd

    numeric = pd.api.types.is_numeric_dtype(column)
    return bool(numeric and not pd.api.types.is_bool_dtype(column))


def _matrix(frame: pd.DataFrame, names: list[str]) -> NDArray[np.number]:
    """Numeric columns side by side; missing values are NaN."""
    part = frame[names]
    plain = all(isinstance(dtype, np.dtype) for dtype in part.dtypes)
    X = part.to_numpy() if plain else part.to_numpy(dtype=np.float64, na_value=np.nan)
    return X.astype(np.float64) if X.dtype == object else X


def stack_lists(series: Any, name: str) -> Floats:
    """A column of lists, all of one length, as rows."""
    rows = [None if row is None else np.asarray(row) for row in series.to_list()]
    for i, row in enumerate(rows):
        if row is None or row.ndim != 1 or row.dtype.kind not in "iuf":
            raise ValueError(f"column {name!r} must hold lists of numbers; row {i} does not.")
        if row.shape != rows[0].shape:  # type: ignore[union-attr]
            raise ValueError(
                f"column {name!r} must hold lists of one length; row {i} has {len(row)} numbers "
                f"and row 0 has {len(rows[0])}."  # type: ignore[arg-type]
            )
    return np.stack(rows) if rows else np.empty((0, 0))  # type: ignore[arg-type]


def _names(frame: pd.DataFrame, column: str) -> Column:
    """The bags or groups of the rows; none may be missing."""
    missing = np.flatnonzero(frame[column].isna())
    if len(missing):
        raise ValueError(f"row {int(missing[0])} has no {column!r}.")
    values = frame[column].to_numpy()
    if values.dtype.kind in "iub":
        return values
    return np.asarray([str(value) for value in values], dtype=object)


def write(bags: Bags, bag: str) -> pd.DataFrame:
    """One row per instance: the bag, the features, then what travels along."""
    import pandas as pd

    X = bags.instances
    if X.ndim != 2:
        raise ValueError(f"only rows of features become a frame; instances have shape {X.shape}.")
    X = X.toarray() if hasattr(X, "toarray") else np.asarray(X[:])
    names = bags.feature_names or [f"x{j}" for j in range(bags.n_features)]
    columns: dict[str, Column] = {bag: bags.ids[bags.bag_index]}
    columns.update({str(name): X[:, j] for j, name in enumerate(names)})
    for name, column in bags.columns.items():
        if name == "coords":
            places = column.reshape(len(column), -1)
            axes = ["order"] if places.shape[1] == 1 else ["x", "y", "z"][: places.shape[1]]
            columns.update({axis: places[:, k] for k, axis in enumerate(axes)})
        elif column.ndim == 1:
            columns["group" if name == "groups" else name] = column
        else:
            raise ValueError(f"column {name!r} has shape {column.shape} and does not fit a frame.")
    if len(columns) < 1 + bags.n_features + len(bags.columns):
        raise ValueError(f"columns and features must have different names: {sorted(columns)}.")
    return pd.DataFrame(columns)


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
    import pandas as pd

    summary = describe(bags).to_frame().to_html(header=False)  # pandas escapes names
    first = pd.DataFrame({"bag": bags.ids[:_SHOWN], "instances": bags.sizes[:_SHOWN]})
    more = f"<p>... and {len(bags) - _SHOWN} more bags</p>" if len(bags) > _SHOWN else ""
    title = f"<p><strong>{escape(repr(bags))}</strong></p>"
    return f"<div>{title}{summary}{first.to_html(index=False)}{more}</div>"


def some(names: Sequence[object] | Column, shown: int = 5) -> str:
    """The first names and how many more there are."""
    listed = ", ".join(repr(str(name)) for name in names[:shown])
    return listed + (f" and {len(names) - shown} more" if len(names) > shown else "")
