"""Tables: long ones with a row per instance, and careful CSV reading for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.files.limits import check_table
from bagwise.files.problems import UNREADABLE, bad_file, check_file, one_line


class Table(NamedTuple):
    """Bags of a long table and the names of its feature columns."""

    bags: Bags
    feature_names: list[str]


def read_frame(path: str | Path, text: Sequence[str] | None = None) -> Any:
    """A CSV, TSV or Parquet file as a frame; columns in ``text`` (None: all) stay as written."""
    import pandas as pd

    path = Path(path)
    check_file(path)
    try:
        check_table(path)
        if path.suffix.lower() == ".parquet":
            frame = pd.read_parquet(path)
            for column in frame.columns if text is None else set(text) & set(frame.columns):
                frame[column] = frame[column].astype(str)
            return frame
        options: dict[str, Any] = {"sep": "\t" if path.suffix.lower() == ".tsv" else ","}
        # As text, "007" keeps its zeros and "NA" is a name like any other.
        if text is None:
            options.update(dtype=str, keep_default_na=False)
        else:
            options.update(dtype=dict.fromkeys(text, str))
        return pd.read_csv(path, encoding="utf-8-sig", **options)
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 text (byte {error.start}); save it as UTF-8"
        raise bad_file(path, what) from error
    except pd.errors.EmptyDataError as error:
        raise bad_file(path, "has no columns") from error
    except UNREADABLE as error:  # pandas' and pyarrow's own errors derive from these
        raise bad_file(path, f"cannot be read: {one_line(error)}") from error


def require_columns(frame: Any, where: str, names: Sequence[str]) -> None:
    """Raise where a table lacks a column, saying which it has."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        has = ", ".join(map(str, frame.columns[:8])) + (", ..." if len(frame.columns) > 8 else "")
        raise bad_file(where, f"has no column {missing[0]!r}; it has: {has}")


def read_table(
    source: Any,
    where: str,
    *,
    bag: str,
    features: Sequence[str] | None,
    coords: Sequence[str],
    instance_labels: str,
    others: Sequence[str] = (),
) -> Table:
    """Bags from a table with one row per instance, rows of a bag in order of appearance."""
    frame = source if hasattr(source, "columns") else read_frame(source, text=[bag])
    require_columns(frame, where, [bag, *(features or [])])
    if len(frame) == 0:
        raise bad_file(where, "has no rows")
    has_coords = bool(coords) and all(c in frame.columns for c in coords)
    extras = {bag, instance_labels, *others, *(coords if has_coords else ())}
    if features is None:
        features = [str(c) for c in frame.columns if c not in extras]
    if not features:
        raise bad_file(where, f"has no feature columns beside {bag!r}")
    X = _numbers(frame, list(features), where)
    ids = frame[bag].to_numpy()
    if frame[bag].isna().any():
        row = int(np.flatnonzero(frame[bag].isna())[0])
        raise bad_file(where, f"has no {bag!r} in line {row + 2}")
    groups = np.asarray([str(v) for v in ids], dtype=object)
    columns: dict[str, Any] = {}
    if has_coords:
        columns["coords"] = _numbers(frame, list(coords), where)
    if instance_labels in frame.columns:
        columns["instance_labels"] = frame[instance_labels].to_numpy()
    # Rows first, so that columns follow the same order as the instances.
    order = np.asarray(Bags.from_groups(np.arange(len(groups))[:, None], groups).instances)[:, 0]
    bags = Bags.from_groups(X, groups)
    if columns:
        bags = bags.with_columns(**{name: column[order] for name, column in columns.items()})
    return Table(bags, [str(f) for f in features])


def _numbers(frame: Any, columns: list[str], where: str) -> Any:
    """Columns as one array; text and gaps are named with their line."""
    import pandas as pd

    for column in columns:
        values = frame[column]
        if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
            bad = ~np.isfinite(values.to_numpy(dtype=np.float64, na_value=np.nan))
        else:
            bad = pd.to_numeric(values, errors="coerce").isna().to_numpy()
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise bad_file(
                where,
                f"column {column!r} must hold finite numbers; line {row + 2} has "
                f"{values.iloc[row]!r}. Name the feature columns if this is not one",
            )
    X = frame[columns].apply(pd.to_numeric).to_numpy()
    return X if X.dtype.kind == "f" else X.astype(np.float64)
