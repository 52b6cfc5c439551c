"""Files that are tables, as people and Excel write them: text, Parquet, sheets."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bagwise.core.lazy import optional
from bagwise.files.limits import check_columns, check_parquet, check_rows, check_zip

if TYPE_CHECKING:
    import pandas as pd

    from bagwise.files.addresses import AnyPath


_DELIMITERS = (",", ";", "\t", "|")
_HEAD_BYTES = 65_536
# How a missing number may be written; in a column of names these are names.
_NO_NUMBER = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "-"]
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def bare_name(name: str) -> str:
    """A name of a column without case, blanks and underscores."""
    return re.sub(r"[\s_.\-]+", "", str(name)).casefold()


def matching(columns: Iterable[str], names: Sequence[str]) -> list[str]:
    """The columns meant by names: as written, else whatever the case, blanks and underscores."""
    columns = [str(c) for c in columns]
    meant: list[str] = []
    for name in names:
        alike = [c for c in columns if bare_name(c) == bare_name(name)]
        meant += [name] if name in columns else alike if len(alike) == 1 else []
    return meant


def read_parquet(path: AnyPath, text: Sequence[str] | None) -> pd.DataFrame:
    """A Parquet table; the first row is line 1."""
    import pandas as pd

    with path.open("rb") as file:
        check_parquet(file, path.stat().st_size)
        frame = pd.read_parquet(file)
    for column in frame.columns if text is None else matching(frame.columns, text):
        # A missing value is blank; the words "None" and "nan" are names.
        frame[column] = frame[column].astype(object).where(frame[column].notna(), "").astype(str)
    return frame.set_axis(np.arange(len(frame)) + 1)


def read_excel(path: AnyPath, text: Sequence[str] | None) -> pd.DataFrame:
    """The first sheet of a workbook; the first row below the header is line 2."""
    import pandas as pd

    optional("openpyxl", extra="excel")  # pandas reads through it
    with path.open("rb") as file:
        check_zip(file, path.stat().st_size)
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
            frame = pd.read_excel(book, dtype=str, keep_default_na=False, na_filter=False)
        else:
            header = pd.read_excel(book, nrows=0).columns
            frame = pd.read_excel(book, converters=dict.fromkeys(matching(header, text), str))
    return _without_blanks(frame, first_line=2)


def read_text(path: AnyPath, text: Sequence[str] | None) -> pd.DataFrame:
    """A text file; its first lines tell the encoding, the delimiter and the decimal sign.

    Lines are counted from 1, the header and what is above it included.
    """
    import pandas as pd

    with path.open("rb") as file:
        check_columns(file)
        file.seek(0)
        head = file.read(_HEAD_BYTES)
    encoding = "utf-16" if head.startswith(_UTF16) else "utf-8-sig"
    # A cut may split a character at the end, which is no fault of the file.
    cut = len(head) == _HEAD_BYTES
    lines = head.decode(encoding, errors="ignore" if cut else "strict").splitlines()
    skip = next((i for i, line in enumerate(lines) if line.strip(",;\t| \r")), 0)
    announced = re.fullmatch(r"sep=(.)", lines[skip].strip()) if lines else None
    skip += announced is not None  # Excel's own way to say it
    header_line = lines[skip] if skip < len(lines) else ""
    # The delimiter that makes most columns of the header; names in quotes may hold others.
    unquoted = re.sub(r'"[^"]*"', "", header_line)
    delimiter = announced.group(1) if announced else max(_DELIMITERS, key=unquoted.count)
    if path.suffix.lower() == ".tsv":
        delimiter = "\t"
    options: dict[str, Any] = {"sep": delimiter, "skiprows": skip, "encoding": encoding}
    options["keep_default_na"] = False
    if text is None:  # "007" keeps its zeros and "NA" is a name like any other
        options.update(dtype=str, skip_blank_lines=False)
    else:
        header = next(csv.reader(io.StringIO(header_line), delimiter=delimiter), [])
        raw = {name.strip(): name for name in header}
        kept = {raw[c] for c in matching(raw, text)}
        fields = [
            f.strip(' "') for line in lines[skip + 1 : skip + 50] for f in line.split(delimiter)
        ]
        comma = any(re.fullmatch(r"-?\d+,\d+", field) for field in fields)
        point = any(re.fullmatch(r"-?\d+\.\d+", field) for field in fields)
        options.update(
            dtype=dict.fromkeys(kept, str),
            decimal="," if delimiter != "," and comma and not point else ".",
            na_values={name: _NO_NUMBER for name in header if name not in kept},
        )
    with path.open("rb") as file:
        frame = pd.read_csv(file, **options)
    if text is not None and isinstance(frame.index, pd.MultiIndex):
        raise ValueError("rows have more fields than the header")
    return _without_blanks(frame, first_line=skip + 2)


def _without_blanks(frame: pd.DataFrame, first_line: int) -> pd.DataFrame:
    """Without the blank lines and the unnamed blank columns that Excel leaves at the end."""
    frame = frame.set_axis(np.arange(len(frame)) + first_line)
    blank = (frame.isna() | (frame == "")).to_numpy()
    unnamed = [bool(re.fullmatch(r"Unnamed: \d+|", str(c).strip())) for c in frame.columns]
    columns = ~(np.asarray(unnamed, dtype=bool) & blank.all(axis=0))
    lines = np.asarray(~blank.all(axis=1))
    return frame if columns.all() and lines.all() else frame.loc[lines].loc[:, columns]
