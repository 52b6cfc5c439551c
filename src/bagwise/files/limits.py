"""How much memory a file may ask for, checked from its headers before anything is allocated.

A few kilobytes on disk can claim hundreds of gigabytes: a zip of zeros, an HDF5 dataset that was
never written, a constant Parquet column, a blank picture. The rule is the same for all of them.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from bagwise.files.addresses import AnyPath


# Real features and pictures shrink less than this when they are compressed.
_RATIO = 20
# Below this many bytes a file may compress as well as it likes.
_ALWAYS_ALLOWED = 256 * 2**20
# Zips inside zips inside a model: its archive, its arrays, its sparse matrices.
_DEPTH = 3
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


def check_unpacked(n_bytes: int, size_on_disk: int) -> None:
    """Refuse a file that claims far more than it can honestly hold.

    Examples
    --------
    >>> from bagwise.files.limits import check_unpacked
    >>> check_unpacked(200 * 10**9, size_on_disk=4096)
    Traceback (most recent call last):
    ValueError: has 0.0 MB on disk but claims 200000 MB of content; ...
    """
    allowed = _raised.get() or max(_ALWAYS_ALLOWED, _RATIO * size_on_disk)
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
            elif name.endswith((".npz", ".skops")) and depth > 0:
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


def check_table(path: AnyPath) -> None:
    """Refuse a table whose header already says that it is far too large."""
    size = path.stat().st_size
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet

        with path.open("rb") as raw, pyarrow.parquet.ParquetFile(raw) as file:
            about = file.metadata
            # Counted at eight bytes a value: repeated values take no room on disk.
            check_unpacked(8 * about.num_rows * about.num_columns, size)
        return
    with path.open("rb") as file:
        if path.suffix.lower() in (".xlsx", ".xlsm"):
            check_zip(file, size)
            return
        head = file.read(64 * _MAX_COLUMNS).partition(b"\n")[0]
    columns = max(head.count(separator) for separator in (b",", b";", b"\t")) + 1
    if columns > _MAX_COLUMNS:
        raise ValueError(f"has {columns} columns; at most {_MAX_COLUMNS} are read")


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
