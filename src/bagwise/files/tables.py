"""Tables of labels, and long ones with a row per instance."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bagwise.bags import Bags
from bagwise.bags.frames import is_number, role_of, stack_lists
from bagwise.bags.layout import grouped
from bagwise.core.arrays import Column, Floats, Reals
from bagwise.files.addresses import AnyPath, as_path, reachable
from bagwise.files.formats import TableFormat, format_of
from bagwise.files.problems import UNREADABLE, bad_file, check_file, one_line
from bagwise.files.table_files import bare_name, matching, read_text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Names:
    r"""What things are called in the files.

    ``features``, ``coords``, ``instance_labels`` and ``images`` are names of datasets in ``.h5``,
    ``.zarr``, ``.npz`` and ``.pt`` files. Coordinates are read where a file has ``coords``; a name
    that is given, and that of ``images``, must be there. The others are columns of tables, but for
    ``encoder``, which picks ``features_{encoder}`` where there are several folders. In a table
    ``features`` may be a column of lists, and ``coords`` names columns, separated by commas.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from bagwise.files import Names, read_bags
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.csv"
    >>> _ = path.write_text("molecule,mass\na,1.5\na,2.5\nb,3.5\n")
    >>> read_bags(path, Names(bag="molecule"))
    Bags(2 bags, 3 instances, 1 features)
    """

    features: str = "features"
    coords: str | None = None
    instance_labels: str = "instance_labels"
    images: str | None = None
    bag: str = "slide_id"
    label: str = "label"
    patient: str | None = None
    feature_columns: tuple[str, ...] | None = None
    encoder: str | None = None


def read_frame(path: str | AnyPath, text: Sequence[str] | None = None) -> pd.DataFrame:
    """A table as a frame whose index holds the lines; ``text`` columns (None: all) stay as written.

    What has no suffix of a table is read as text. Headers lose the blanks around them.
    """
    import pandas as pd

    path = as_path(path)
    with reachable(path):
        check_file(path)
        kind = format_of(path)
        try:
            frame = (kind.read if isinstance(kind, TableFormat) else read_text)(path, text)
        except UnicodeDecodeError as error:
            what = f"is not UTF-8 text (byte {error.start}); save it as UTF-8"
            raise bad_file(path, what) from error
        except pd.errors.EmptyDataError as error:
            raise bad_file(path, "has no columns") from error
        except UNREADABLE as error:  # pandas' and pyarrow's own errors derive from these
            raise bad_file(path, f"cannot be read: {one_line(error)}") from error
    frame.columns = [str(c).strip() for c in frame.columns]
    return frame


def named_columns(frame: pd.DataFrame, where: str, names: Sequence[str]) -> pd.DataFrame:
    """The frame with its columns called by these names; raises where one is missing.

    ``Slide ID`` is meant by ``slide_id`` where no column is called exactly that.
    """
    renamed = {}
    for name in names:
        meant = matching(frame.columns, [name])
        if not meant:
            alike = [c for c in frame.columns if bare_name(c) == bare_name(name)]
            if alike:
                raise bad_file(where, f"has several columns like {name!r}: {', '.join(alike)}")
            shown = ", ".join(map(str, frame.columns[:8]))
            more = ", ..." if len(frame.columns) > 8 else ""
            raise bad_file(where, f"has no column {name!r}; it has: {shown}{more}")
        renamed[meant[0]] = name
    if any(old != new for old, new in renamed.items()):
        frame = frame.rename(columns=renamed)
    twice = [name for name in names if list(frame.columns).count(name) > 1]
    if twice:
        raise bad_file(where, f"has several columns called {twice[0]!r}")
    return frame


def read_table(path: AnyPath, names: Names) -> Bags:
    """Bags from a table with one row per instance, rows of a bag in order of appearance.

    A column called ``names.features`` may hold the features of a row as a list; else every column
    is a feature that is not named as something else and does not look like a label, an id, a
    coordinate or a group.
    """
    where, frame = str(path), read_frame(path, text=[names.bag])
    coords = ["x", "y"] if names.coords is None else names.coords.split(",")
    needed = [names.bag, *(names.feature_columns or ()), *(coords if names.coords else ())]
    frame = named_columns(frame, where, needed)
    if len(frame) == 0:
        raise bad_file(where, "has no rows")
    features: list[str] | None = None
    columns: dict[str, Column] = {}
    if all(c in frame.columns for c in coords):
        columns["coords"] = _numbers(frame, coords, where)
    known = names.instance_labels
    if known in frame.columns:
        columns["instance_labels"] = frame[known].to_numpy()
    lists = names.features
    if names.feature_columns is None and lists in frame and frame[lists].dtype == object:
        X: Reals = _lists(frame, lists, where)
    else:
        others = {
            names.bag,
            known,
            names.label,
            names.patient,
            *(coords if "coords" in columns else ()),
        }
        features = list(names.feature_columns or _feature_columns(frame, where, names.bag, others))
        X = _numbers(frame, features, where)
    ids = frame[names.bag]
    missing = np.asarray(ids.isna() | (ids.astype(object) == ""))
    if missing.any():
        row = frame.index[np.flatnonzero(missing)[0]]
        raise bad_file(where, f"has no {names.bag!r} in line {row}")
    groups = np.asarray([str(v).strip() for v in ids], dtype=object)
    order, offsets, bags = grouped(groups)
    if order is not None:
        X = X[order]
        columns = {name: column[order] for name, column in columns.items()}
    return Bags(X, offsets, bags, columns=columns, feature_names=features)


def _feature_columns(
    frame: pd.DataFrame, where: str, bag: str, others: set[str | None]
) -> list[str]:
    """Columns that are features; those left out for their name are said."""
    left = {c: why for c in frame.columns if c not in others and (why := role_of(c))}
    features = [c for c in frame.columns if c not in others and c not in left]
    if not features:
        reasons = "".join(f"; {c!r} looks like {why}" for c, why in left.items())
        raise bad_file(where, f"has no feature columns beside {bag!r}{reasons}")
    if left:
        reasons = ", ".join(f"{c!r} ({why})" for c, why in left.items())
        warnings.warn(
            f"{where}: columns left out of the features: {reasons}. Name the feature columns to "
            "choose them yourself.",
            UserWarning,
            stacklevel=4,
        )
    return features


def _lists(frame: pd.DataFrame, column: str, where: str) -> Floats:
    try:
        X = stack_lists(frame[column], column)
    except ValueError as error:
        raise bad_file(where, str(error).rstrip(".")) from error
    bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
    if len(bad):
        raise bad_file(where, f"column {column!r} must hold finite numbers; row {bad[0]} does not")
    return X if X.dtype.kind == "f" else X.astype(np.float64)


def _numbers(frame: pd.DataFrame, columns: list[str], where: str) -> Reals:
    """Columns as one array; text and gaps are named with their line."""
    import pandas as pd

    for column in columns:
        values = frame[column]
        if is_number(values):
            bad = ~np.isfinite(values.to_numpy(dtype=np.float64, na_value=np.nan))
        else:
            bad = pd.to_numeric(values, errors="coerce").isna().to_numpy()
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            value = values.iloc[row]
            shown = value.item() if isinstance(value, np.generic) else value
            raise bad_file(
                where,
                f"column {column!r} must hold finite numbers; line {frame.index[row]} has "
                f"{shown!r}. Name the feature columns if this is not one",
            )
    X = frame[columns].apply(pd.to_numeric).to_numpy()
    return X if X.dtype.kind == "f" else X.astype(np.float64)
