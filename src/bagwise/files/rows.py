"""Rows of a file that is opened when they are asked for; files stay open for a while."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bagwise.bags import Bags
from bagwise.bags.on_disk import PlainFile, map_rows_of, plain_file
from bagwise.core.arrays import Ints, Reals
from bagwise.files.addresses import as_path, is_remote
from bagwise.files.formats import ArrayFormat, format_of
from bagwise.files.hdf5 import is_contiguous
from bagwise.files.problems import UNREADABLE, one_line

if TYPE_CHECKING:
    from bagwise.files.formats import Arrays


# Runs of rows that are read apart, such as the first and the last row of a bag.
_MOST_RUNS = 8
# Files kept open at a time; well under the usual limit of 1,024 descriptors.
_MAX_OPEN = 128


@dataclass(frozen=True)
class FileRows:
    """The rows of one bag: an array in a file."""

    path: str
    array: str  # name inside the file, "" where the file is one array
    shape: tuple[int, int]
    dtype: np.dtype[np.floating]
    nested: bool = False  # stored as 1 x N x D
    start: int = 0  # row of the array that is the first here

    @property
    def nbytes(self) -> int:
        """Bytes the rows would take in memory."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def select_rows(self, key: slice) -> FileRows:
        """A run of rows, still on disk."""
        start, stop, _ = key.indices(self.shape[0])
        shape = (max(stop - start, 0), self.shape[1])
        return replace(self, shape=shape, start=self.start + start)

    def __getitem__(self, key: slice | Ints) -> Reals:
        plain = _FILES.plain(self)
        if not isinstance(key, slice):
            rows = np.asarray(key) + self.start
            if plain is not None:
                return plain[rows]
            distinct, back = np.unique(rows, return_inverse=True)
            runs = np.split(distinct, np.flatnonzero(np.diff(distinct) != 1) + 1)
            if len(runs) > _MOST_RUNS:  # one read of all between costs less than so many
                low = int(distinct[0])
                return _FILES.read(self, low, int(distinct[-1]) + 1)[rows - low]
            read = [_FILES.read(self, int(run[0]), int(run[-1]) + 1) for run in runs]
            return np.concatenate(read)[back]
        first, last, _ = key.indices(self.shape[0])
        run = self.start + first, self.start + max(first, last)
        return _FILES.read(self, *run) if plain is None else plain[slice(*run)]


class _OpenFiles:
    """The files read most recently, kept open; one per process, closed when pushed out."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: OrderedDict[tuple[int, str], Arrays] = OrderedDict()
        self._plain: dict[tuple[str, str], tuple[tuple[int, ...], PlainFile | None]] = {}

    def read(self, source: FileRows, start: int, stop: int) -> Reals:
        """Rows of a source as an ndarray."""
        with self._lock:
            array = self._arrays(source.path)[source.array]
            return np.asarray(array[0, start:stop] if source.nested else array[start:stop])

    def plain(self, source: FileRows) -> PlainFile | None:
        """All rows of the array where they lie in its file one after the other, else None.

        Such rows are read without the library of the format, which lets only one thread in.
        """
        if is_remote(source.path):
            return None
        with self._lock:
            try:
                status = Path(source.path).stat()
            except OSError as error:
                raise _unreadable(source.path, error) from error
            # A file that was written anew may keep its numbers elsewhere.
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
            known, rows = self._plain.get((source.path, source.array), ((), None))
            if known != stamp:
                if known:
                    close(self._open.pop((os.getpid(), source.path), None))
                array = self._arrays(source.path)[source.array]
                if isinstance(array, np.memmap):
                    rows = plain_file(array[0] if source.nested else array)
                elif is_contiguous(array) and array.dtype.isnative:
                    start = array.id.get_offset()
                    rows = PlainFile(source.path, array.dtype, array.shape[-2:], start)
                else:
                    rows = None
                self._plain[source.path, source.array] = stamp, rows
            return rows

    def _arrays(self, path: str) -> Arrays:
        key = (os.getpid(), path)  # a forked child must not share the parent's handles
        if key not in self._open:
            kind = format_of(path)
            assert isinstance(kind, ArrayFormat)  # it was when the bags were read
            try:
                arrays = kind.open(as_path(path))
                self._open[key] = arrays if kind.slices else dict(arrays)
            except UNREADABLE as error:
                raise _unreadable(path, error) from error
            while len(self._open) > _MAX_OPEN:
                close(self._open.popitem(last=False)[1])
        self._open.move_to_end(key)
        return self._open[key]


def _unreadable(path: str, error: BaseException) -> ValueError:
    return ValueError(f"{path}: can no longer be read: {one_line(error)}")


_FILES = _OpenFiles()


def close(arrays: Any) -> None:
    """Close the arrays of a file, where they are a file that is open."""
    if hasattr(arrays, "close"):
        arrays.close()


def read_plainly(bags: Any) -> Any:
    """Bags whose rows, if they are a memory map of floats, are read by plain reads.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.files import read_plainly
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.npy"
    >>> np.save(path, np.ones((3, 2)))
    >>> bags = Bags(np.load(path, mmap_mode="r"), [0, 1, 3])
    >>> type(read_plainly(bags).instances).__name__
    'LazyRows'
    """
    if not isinstance(bags, Bags) or not isinstance(bags.instances, np.memmap):
        return bags
    if bags.instances.dtype.kind != "f":
        return bags
    return bags.with_instances(map_rows_of(bags.instances), bags.feature_names)
