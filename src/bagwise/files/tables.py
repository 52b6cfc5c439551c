"""Tables as people and Excel write them, and long ones with a row per instance."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.bags.frames import role_of, stack_lists
from bagwise.files.addresses import AnyPath, as_path, reachable
from bagwise.files.limits import check_rows, check_table
from bagwise.files.problems import UNREADABLE, bad_file, check_file, one_line

if TYPE_CHECKING:
    import pandas as pd

    from bagwise.core.arrays import Column, Floats, Reals


EXCEL = (".xlsx", ".xlsm")
_DELIMITERS = (",", ";", "\t", "|")
_HEAD_BYTES = 65_536
# How a missing number may be written; in a column of names these are names.
_NO_NUMBER = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "-"]
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class _Dialect(NamedTuple):
    """How a text file writes its table."""

    encoding: str
    delimiter: str
    decimal: str
    header: list[str]
    skip: int  # lines before the header


def read_frame(path: str | AnyPath, text: Sequence[str] | None = None) -> pd.DataFrame:
    """A table as a frame whose index holds the lines; ``text`` columns (None: all) stay as written.

    Text files may be separated by comma, semicolon, tab or bar, and may write decimal commas; the
    file itself says which. Blank lines and blank columns at the end, as Excel leaves them, are
    dropped. Headers lose the blanks around them.
    """
    import pandas as pd

    path = as_path(path)
    with reachable(path):
        check_file(path)
        try:
            check_table(path)
            suffix = path.suffix.lower()
            if suffix == ".parquet":
                frame, first_line = _read_parquet(path, text), 1
            elif suffix in EXCEL:
                frame, first_line = _read_excel(path, text), 2
            else:
                frame, first_line = _read_text(path, text)
        except UnicodeDecodeError as error:
            what = f"is not UTF-8 text (byte {error.start}); save it as UTF-8"
            raise bad_file(path, what) from error
        except pd.errors.EmptyDataError as error:
            raise bad_file(path, "has no columns") from error
        except UNREADABLE as error:  # pandas' and pyarrow's own errors derive from these
            raise bad_file(path, f"cannot be read: {one_line(error)}") from error
    frame.index = np.arange(len(frame)) + first_line
    frame.columns = [str(c).strip() for c in frame.columns]
    return frame if path.suffix.lower() == ".parquet" else _without_blanks(frame)


def _without_blanks(frame: pd.DataFrame) -> pd.DataFrame:
    """Without lines that hold nothing and unnamed columns that hold nothing."""
    blank = frame.isna() | (frame == "")
    unnamed = [bool(re.fullmatch(r"Unnamed: \d+|", c)) for c in frame.columns]
    columns = ~(np.asarray(unnamed, dtype=bool) & blank.to_numpy().all(axis=0))
    lines = ~blank.to_numpy().all(axis=1)
    return frame if columns.all() and lines.all() else frame.loc[np.asarray(lines)].loc[:, columns]


def _read_parquet(path: AnyPath, text: Sequence[str] | None) -> pd.DataFrame:
    import pandas as pd

    with path.open("rb") as file:
        frame = pd.read_parquet(file)
    for column in frame.columns if text is None else _matching(frame.columns, text):
        # A missing value is blank; the words "None" and "nan" are names.
        frame[column] = frame[column].astype(object).where(frame[column].notna(), "").astype(str)
    return frame


def _read_excel(path: AnyPath, text: Sequence[str] | None) -> pd.DataFrame:
    import pandas as pd

    try:
        import openpyxl  # noqa: F401 - pandas reads through it
    except ImportError as error:
        raise ValueError("needs openpyxl: pip install 'bagwise[excel]'") from error
    with path.open("rb") as file, pd.ExcelFile(file, engine="openpyxl") as book:
        if len(book.sheet_names) > 1:
            others = ", ".join(repr(str(name)) for name in book.sheet_names[1:4])
            warnings.warn(
                f"{path}: the first sheet, {str(book.sheet_names[0])!r}, is read; not {others}.",
                UserWarning,
                stacklevel=4,
            )
        sheet = book.book[book.sheet_names[0]]
        sheet.reset_dimensions()  # what it claims itself is not what is read
        check_rows(sheet.iter_rows(values_only=True), path.stat().st_size)
        if text is None:
            return pd.read_excel(book, dtype=str, keep_default_na=False, na_filter=False)
        header = pd.read_excel(book, nrows=0).columns
        return pd.read_excel(book, converters=dict.fromkeys(_matching(header, text), str))


def _read_text(path: AnyPath, text: Sequence[str] | None) -> tuple[pd.DataFrame, int]:
    import pandas as pd

    dialect = _dialect(path)
    options: dict[str, Any] = {"sep": dialect.delimiter, "skiprows": dialect.skip}
    if text is None:  # "007" keeps its zeros and "NA" is a name like any other
        options.update(dtype=str, keep_default_na=False, skip_blank_lines=False)
    else:
        columns = _matching([name.strip() for name in dialect.header], text)
        raw = {name.strip(): name for name in dialect.header}
        kept = {raw[c] for c in columns}
        options.update(
            dtype=dict.fromkeys(kept, str),
            decimal=dialect.decimal,
            keep_default_na=False,
            na_values={name: _NO_NUMBER for name in dialect.header if name not in kept},
        )
    with path.open("rb") as file:
        frame = pd.read_csv(file, encoding=dialect.encoding, **options)
    if text is not None and isinstance(frame.index, pd.MultiIndex):
        raise ValueError("rows have more fields than the header")
    return frame, dialect.skip + 2


def _dialect(path: AnyPath) -> _Dialect:
    """What the first lines tell about the encoding, the delimiter and the decimal sign."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    encoding = "utf-16" if head.startswith(_UTF16) else "utf-8-sig"
    # A cut may split a character at the end, which is no fault of the file.
    cut = len(head) == _HEAD_BYTES
    lines = head.decode(encoding, errors="ignore" if cut else "strict").splitlines()
    skip = next((i for i, line in enumerate(lines) if line.strip(",;\t| \r")), 0)
    announced = re.fullmatch(r"sep=(.)", lines[skip].strip()) if lines else None
    if announced:  # Excel's own way to say it
        delimiter, skip = announced.group(1), skip + 1
    header_line = lines[skip] if skip < len(lines) else ""
    if not announced:
        delimiter = _delimiter(header_line)
    if path.suffix.lower() == ".tsv":
        delimiter = "\t"
    header = next(csv.reader(io.StringIO(header_line), delimiter=delimiter), [])
    body = [field for line in lines[skip + 1 : skip + 50] for field in line.split(delimiter)]
    comma = any(re.fullmatch(r'\s*"?-?\d+,\d+"?\s*', field) for field in body)
    point = any(re.fullmatch(r'\s*"?-?\d+\.\d+"?\s*', field) for field in body)
    decimal = "," if delimiter != "," and comma and not point else "."
    return _Dialect(encoding, delimiter, decimal, header, skip)


def _delimiter(header: str) -> str:
    """The delimiter that makes most columns of the header; names in quotes may hold others."""
    bare = re.sub(r'"[^"]*"', "", header)
    return max(_DELIMITERS, key=bare.count)


def _bare(name: str) -> str:
    return re.sub(r"[\s_.\-]+", "", str(name)).casefold()


def _matching(columns: Iterable[str], names: Sequence[str]) -> list[str]:
    """The columns meant by names: as written, else whatever the case, blanks and underscores."""
    columns = [str(c) for c in columns]
    meant: list[str] = []
    for name in names:
        alike = [c for c in columns if _bare(c) == _bare(name)]
        meant += [name] if name in columns else alike if len(alike) == 1 else []
    return meant


def named_columns(frame: pd.DataFrame, where: str, names: Sequence[str]) -> pd.DataFrame:
    """The frame with its columns called by these names; raises where one is missing.

    ``Slide ID`` is meant by ``slide_id`` where no column is called exactly that.
    """
    renamed = {}
    for name in names:
        meant = _matching(frame.columns, [name])
        if not meant:
            alike = [c for c in frame.columns if _bare(c) == _bare(name)]
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


def read_table(
    source: Any,
    where: str,
    *,
    bag: str,
    features: Sequence[str] | None,
    lists: str,
    coords: Sequence[str],
    coords_needed: bool,
    instance_labels: str,
    others: Sequence[str] = (),
) -> Bags:
    """Bags from a table with one row per instance, rows of a bag in order of appearance.

    A column called ``lists`` may hold the features of a row as a list; else every column is a
    feature that is not named as something else and does not look like a label, an id, a
    coordinate or a group.
    """
    frame = _as_pandas(source) if hasattr(source, "columns") else read_frame(source, text=[bag])
    needed = [bag, *(features or []), *(coords if coords_needed else [])]
    frame = named_columns(frame, where, needed)
    if len(frame) == 0:
        raise bad_file(where, "has no rows")
    has_coords = bool(coords) and all(c in frame.columns for c in coords)
    extras = {bag, instance_labels, *others, *(coords if has_coords else ())}
    names: list[str] | None = None
    if features is None and lists in frame.columns and frame[lists].dtype == object:
        X: Reals = _lists(frame, lists, where)
    else:
        names = list(features) if features else _feature_columns(frame, where, bag, extras)
        X = _numbers(frame, names, where)
    ids = frame[bag]
    missing = np.asarray(ids.isna() | (ids.astype(object) == ""))
    if missing.any():
        row = frame.index[np.flatnonzero(missing)[0]]
        raise bad_file(where, f"has no {bag!r} in line {row}")
    groups = np.asarray([str(v).strip() for v in ids], dtype=object)
    columns: dict[str, Column] = {}
    if has_coords:
        columns["coords"] = _numbers(frame, list(coords), where)
    if instance_labels in frame.columns:
        columns["instance_labels"] = frame[instance_labels].to_numpy()
    # Rows first, so that columns follow the same order as the instances.
    rows = Bags.from_groups(np.arange(len(groups))[:, None], groups)
    order = np.asarray(rows.instances)[:, 0]
    return Bags(
        X[order],
        rows.offsets,
        rows.ids,
        columns={name: column[order] for name, column in columns.items()},
        feature_names=names,
    )


def _as_pandas(frame: Any) -> pd.DataFrame:
    frame = frame.collect() if hasattr(frame, "collect") else frame
    if hasattr(frame, "to_pandas"):  # polars
        frame = frame.to_pandas()
    frame = frame.set_axis([str(c) for c in frame.columns], axis="columns")
    return frame.set_axis(np.arange(len(frame)) + 2)  # the line it would have in a file


def _feature_columns(frame: pd.DataFrame, where: str, bag: str, extras: set[str]) -> list[str]:
    """Columns that are features; those left out for their name are said."""
    left = {c: why for c in frame.columns if c not in extras and (why := role_of(c))}
    features = [c for c in frame.columns if c not in extras and c not in left]
    if not features:
        reasons = "".join(f"; {c!r} looks like {why}" for c, why in left.items())
        raise bad_file(where, f"has no feature columns beside {bag!r}{reasons}")
    if left:
        reasons = ", ".join(f"{c!r} ({why})" for c, why in left.items())
        warnings.warn(
            f"{where}: columns left out of the features: {reasons}. Name the feature columns to "
            "choose them yourself.",
            UserWarning,
            stacklevel=5,
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
        if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
            bad = ~np.isfinite(values.to_numpy(dtype=np.float64, na_value=np.nan))
        else:
            bad = pd.to_numeric(values, errors="coerce").isna().to_numpy()
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise bad_file(
                where,
                f"column {column!r} must hold finite numbers; line {frame.index[row]} has "
                f"{_plain(values.iloc[row])!r}. Name the feature columns if this is not one",
            )
    X = frame[columns].apply(pd.to_numeric).to_numpy()
    return X if X.dtype.kind == "f" else X.astype(np.float64)


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value
