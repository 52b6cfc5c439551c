"""What the pages of a Parquet file decode to, read from their headers.

The summary at the end of a file says how many values it has, and readers do not compare it with the
pages. Their headers are written in the compact protocol of Thrift:
https://github.com/apache/parquet-format and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import IO, Any, NamedTuple

# Fields of a page's header; the three last are the headers of its kind, with the count first.
_UNPACKED, _PACKED, _DATA, _DICTIONARY, _DATA_V2 = 2, 3, 5, 7, 8


class _PageCounts(NamedTuple):
    """Over all pages of a column: values that rows have, and bytes once decompressed."""

    values: int
    n_bytes: int


def count_pages(file: IO[bytes], columns: list[Any]) -> _PageCounts:
    """Go from header to header through the chunks of one column."""
    values = n_bytes = 0
    for column in columns:
        starts = [column.data_page_offset, column.dictionary_page_offset]
        start = min(at for at in starts if at)
        file.seek(start)
        while file.tell() < start + column.total_compressed_size:
            header = _read_struct(file)
            kind = header.get(_DATA) or header.get(_DATA_V2) or {}
            sizes = [kind.get(1, 0), header[_UNPACKED], header[_PACKED]]
            if min(sizes) < 0:
                raise ValueError("has a page of a negative size")
            values, n_bytes = values + sizes[0], n_bytes + sizes[1]
            file.seek(sizes[2], 1)
    return _PageCounts(values, n_bytes)


def _read_struct(file: IO[bytes]) -> dict[int, Any]:
    """Fields by number; of those that are no integers only the place is kept."""
    fields: dict[int, Any] = {}
    number = 0
    while head := _byte(file):
        number = number + (head >> 4) if head >> 4 else _integer(file)
        fields[number] = _read_value(file, head & 15) if head & 15 > 2 else bool(head & 1)
    return fields


def _read_value(file: IO[bytes], kind: int) -> Any:
    if kind in (1, 2, 3):
        return _byte(file)
    if kind in (4, 5, 6):
        return _integer(file)
    if kind in (7, 8):  # a double, or bytes of any length
        return file.seek(8 if kind == 7 else _unsigned(file), 1)
    if kind in (9, 10):  # a list, a set
        head = _byte(file)
        size = head >> 4 if head >> 4 < 15 else _unsigned(file)
        return [_read_value(file, head & 15) for _ in range(size)]
    if kind == 12:
        return _read_struct(file)
    raise ValueError(f"has a page with a header of unknown kind {kind}")


def _byte(file: IO[bytes]) -> int:
    return file.read(1)[0]


def _unsigned(file: IO[bytes]) -> int:
    """Seven bits a byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = _byte(file)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("has a page with a number that does not end")


def _integer(file: IO[bytes]) -> int:
    """Signed numbers are stored as 0, -1, 1, -2, 2 ..."""
    value = _unsigned(file)
    return value >> 1 ^ -(value & 1)
