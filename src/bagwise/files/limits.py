"""How much memory a file may ask for, checked before it is allocated.

A few kilobytes on disk can unpack to hundreds of gigabytes: a zip of zeros, an HDF5 dataset that
was never written, a chunk of zeros, one long text in every row of a Parquet table, a sheet with a
cell in its last corner, a blank picture. The rule is the same for all of them: a file may unpack to
20 times its size, or 256 MB where that is more. Where no header tells how much that will be, the
file is read through in pieces first.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bagwise.files.addresses import AnyPath


# Real features and pictures shrink less than this when they are compressed.
_RATIO = 20
# Below this many bytes a file may compress as well as it likes.
_ALWAYS_ALLOWED = 256 * 2**20
# Zips inside zips inside a model: its archive, its arrays, its sparse matrices.
_DEPTH = 3
# A cell of a sheet: a Python object and what points to it.
_CELL_BYTES = 32
# Rows that are decoded at a time.
_BATCH_ROWS = 65_536
# Deflate packs no more than this many bytes into one.
_DEFLATE_RATIO = 1032
# A table with more columns than this takes minutes to read, and is no table of features.
_MAX_COLUMNS = 100_000
_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

_raised: ContextVar[int | None] = ContextVar("unpacked limit", default=None)


@contextmanager
def allow_unpacked(n_bytes: int | None) -> Iterator[None]:
    """Let every file that is read inside the block unpack to ``n_bytes``; None keeps the rule.

    Examples
    --------
    >>> from bagwise.files.limits import allow_unpacked, check_unpacked
    >>> with allow_unpacked(10**12):
    ...     check_unpacked(200 * 10**9, size_on_disk=4096)
    """
    token = _raised.set(n_bytes)
    try:
        yield
    finally:
        _raised.reset(token)


def _allowed_bytes(size_on_disk: int) -> int:
    """How many bytes a file of this size may unpack to."""
    return _raised.get() or max(_ALWAYS_ALLOWED, _RATIO * size_on_disk)


def check_unpacked(n_bytes: int, size_on_disk: int) -> None:
    """Refuse a file that claims far more than it can hold.

    Examples
    --------
    >>> from bagwise.files.limits import check_unpacked
    >>> check_unpacked(200 * 10**9, size_on_disk=4096)
    Traceback (most recent call last):
    ValueError: has 0.0 MB on disk but claims 200000 MB of content; ...
    """
    allowed = _allowed_bytes(size_on_disk)
    if n_bytes > allowed:
        raise ValueError(
            f"has {size_on_disk / 1e6:.1f} MB on disk but claims {n_bytes / 1e6:.0f} MB of "
            f"content; at most {allowed / 1e6:.0f} MB are read. If you trust the file, raise the "
            "limit with --max-unpacked"
        )


def check_zip(source: IO[bytes] | str | Path, size_on_disk: int, depth: int = _DEPTH) -> None:
    """Refuse a zip that unpacks to too much, also where it holds other zips or arrays."""
    with zipfile.ZipFile(source) as archive:
        members = archive.infolist()
        check_unpacked(sum(member.file_size for member in members), size_on_disk)
        for member in members:
            name = member.filename.lower()
            if name.endswith(".npy"):
                with archive.open(member) as file:
                    _check_npy(file, member)
            elif name.endswith((".npz", ".zip", ".skops")) and depth > 0:
                content = io.BytesIO(archive.read(member))
                if zipfile.is_zipfile(content):
                    check_zip(content, size_on_disk, depth - 1)


def _check_npy(file: IO[bytes], member: zipfile.ZipInfo) -> None:
    """An array must not claim more than its member has bytes for, nor characters there are not.

    NumPy makes strings of any 32-bit number, and writes them to files that nobody can read.
    """
    version = np.lib.format.read_magic(file)
    if version not in _NPY_HEADERS:
        raise ValueError(f"holds an array {member.filename!r} of unknown format {version}")
    shape, _, dtype = _NPY_HEADERS[version](file)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(
            f"holds an array {member.filename!r} that claims the shape {shape} but has only "
            f"{member.file_size} bytes"
        )
    if dtype.kind == "U":
        codes = np.frombuffer(file.read(), dtype=np.dtype("u4").newbyteorder(dtype.byteorder))
        if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any():
            raise ValueError(f"holds text {member.filename!r} with characters that do not exist")


def check_array(array: Any, size_on_disk: int) -> None:
    """Refuse an array that claims too many bytes as a whole, or in one of its chunks.

    A chunk is decoded whole, however few of its rows the array has.
    """
    shapes = [array.shape, getattr(array, "chunks", None) or ()]
    check_unpacked(max(math.prod(shape) for shape in shapes) * array.dtype.itemsize, size_on_disk)
    if not hasattr(getattr(array, "id", None), "get_create_plist"):
        return
    # A deflated chunk of HDF5 may decode to more than its shape says.
    import h5py

    plan = array.id.get_create_plist()
    filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
    if filters.count(h5py.h5z.FILTER_DEFLATE) > 1:
        raise ValueError("holds a dataset that is compressed more than once, which is not read")
    if h5py.h5z.FILTER_DEFLATE not in filters:
        return
    large: list[Any] = []
    most = _allowed_bytes(size_on_disk) // _DEFLATE_RATIO
    array.id.chunk_iter(lambda c: large.append(c.chunk_offset) if c.size > most else None)
    for offset in large:
        content = array.id.read_direct_chunk(offset)[1]
        _check_stream(io.BytesIO(content), "gzip", size_on_disk)


def check_chunk(path: AnyPath, compressor: str, size_on_disk: int) -> None:
    """Refuse a compressed chunk of a .zarr folder that would decode to too much."""
    with path.open("rb") as file:
        if compressor in ("lz4", "blosc", "zstd"):
            said = _announced(compressor, file.read(32))
            if said is not None:
                check_unpacked(said, size_on_disk)
                return
        elif compressor in ("zlib", "gzip"):
            if path.stat().st_size * _DEFLATE_RATIO <= _allowed_bytes(size_on_disk):
                return
            compressor = "gzip"  # either is told from its first bytes
        file.seek(0)
        _check_stream(file, compressor, size_on_disk)


def _check_stream(file: IO[bytes], compressor: str, size_on_disk: int) -> None:
    """Decode in pieces, keeping none, until the end or until it is too much."""
    import pyarrow

    total = 0
    with pyarrow.CompressedInputStream(file, compressor) as stream:
        try:
            while piece := stream.read(2**20):
                total += len(piece)
                check_unpacked(total, size_on_disk)
        except OSError:
            return  # damaged, or a checksum after the last byte: its reader will tell


def _announced(compressor: str, head: bytes) -> int | None:
    """How many bytes a chunk says it decodes to, which its decoder allocates; None where silent."""
    head = head.ljust(32, b"\0")
    if compressor == "lz4":
        return int.from_bytes(head[:4], "little")
    if compressor == "blosc":
        return int.from_bytes(head[4:8], "little")
    # Zstandard (RFC 8878): magic number, descriptor, window, dictionary, content size.
    flag, one_segment, dictionary = head[4] >> 6, head[4] >> 5 & 1, head[4] & 3
    start = 5 + (not one_segment) + (0, 1, 2, 4)[dictionary]
    width = (one_segment, 2, 4, 8)[flag]
    said = int.from_bytes(head[start : start + width], "little") + 256 * (flag == 1)
    return said if width and head[:4] == b"\x28\xb5\x2f\xfd" else None


def read_text(dataset: Any, size_on_disk: int) -> NDArray[np.object_]:
    """Texts of any length from HDF5, a few rows at a time: many rows may point to one long text."""
    import h5py

    if len(dataset.shape) != 1 or not h5py.check_string_dtype(dataset.dtype):
        raise ValueError(f"{dataset.name!r} must be a column of numbers or of text")
    # A text is at most as long as its file; while a batch is decoded it is in memory twice.
    rows = max(1, min(_BATCH_ROWS, _allowed_bytes(size_on_disk) // (4 * size_on_disk)))
    pieces, total = [np.empty(0, dtype=object)], 0
    for start in range(0, len(dataset), rows):
        pieces.append(np.asarray(dataset[start : start + rows]))
        total += sum(len(text) for text in pieces[-1])
        check_unpacked(total, size_on_disk)
    return np.concatenate(pieces)


def check_columns(file: IO[bytes]) -> None:
    """Refuse a text table of more columns than can be read in reasonable time."""
    header = file.read(64 * _MAX_COLUMNS).partition(b"\n")[0]
    columns = max(header.count(separator) for separator in (b",", b";", b"\t")) + 1
    if columns > _MAX_COLUMNS:
        raise ValueError(f"has {columns} columns; at most {_MAX_COLUMNS} are read")


def check_parquet(raw: IO[bytes], size: int) -> None:
    """Count the values of every leaf, repeated or not, and decode texts in small batches."""
    import pyarrow.compute
    import pyarrow.parquet

    from bagwise.files.parquet_pages import count_pages

    with pyarrow.parquet.ParquetFile(raw) as file:
        about = file.metadata
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        counted = stored = 0
        texts = []
        for i in range(about.num_columns):
            leaf = about.schema.column(i)
            pages = count_pages(raw, [group.column(i) for group in groups])
            # Eight bytes a value: repeated values take no room on disk.
            counted += max(8, leaf.length or 0) * max(pages.values, about.num_rows)
            stored += pages.n_bytes
            if leaf.physical_type == "BYTE_ARRAY":
                texts.append((leaf, pages))
        check_unpacked(max(counted, stored), size)
        for leaf, pages in texts:
            if leaf.max_repetition_level or leaf.path not in file.schema_arrow.names:
                raise ValueError(
                    f"column {leaf.path!r} holds lists or groups of text, which are not read; "
                    "leave it out"
                )
            # No text is longer than its pages.
            rows = max(1, min(_BATCH_ROWS, _allowed_bytes(size) // max(pages.n_bytes, 1)))
            for batch in file.iter_batches(rows, columns=[leaf.path], use_threads=False):
                column = batch.column(0)
                if pyarrow.types.is_dictionary(column.type):  # a text counts each time it is used
                    lengths = pyarrow.compute.binary_length(column.dictionary).take(column.indices)
                    counted += pyarrow.compute.sum(lengths).as_py() or 0
                else:
                    counted += int(column.nbytes)
                check_unpacked(counted, size)


def check_rows(rows: Iterable[Sequence[object]], size_on_disk: int) -> None:
    """Refuse a sheet of too many cells, empty ones too: its last row times its last column."""
    widest = text = 0
    for count, row in enumerate(rows, start=1):
        widest = max(widest, len(row))
        text += sum(len(value) for value in row if isinstance(value, str))
        check_unpacked(_CELL_BYTES * count * widest + text, size_on_disk)


def check_image(content: bytes) -> None:
    """Refuse a picture whose header claims too many pixels; four bytes each, as RGBA has."""
    import warnings

    from PIL import Image, UnidentifiedImageError

    own_limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None  # the rule here is the one a user can raise
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content)) as image:
                width, height = image.size
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        return  # not a format Pillow knows; OpenCV decides whether it is an image at all
    finally:
        Image.MAX_IMAGE_PIXELS = own_limit
    check_unpacked(4 * width * height, len(content))
