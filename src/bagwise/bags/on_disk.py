"""Rows that are not in memory: one virtual array over files and arrays, read when sliced."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bagwise.core.arrays import Ints, Reals, RowFunction, RowKey, Rows


class LazyRows:
    """A virtual (N, D) array over several sources, one below the other.

    Slicing with a slice, an int array or a mask reads just those rows into an ndarray;
    `select_rows` keeps the choice on disk, so that slicing `Bags` costs no memory. It pickles as
    file names, and each process opens the files for itself.

    Parameters
    ----------
    sources : sequence of arrays of shape (n, D)
        Files, arrays in memory or other virtual rows, in order; they are sliced by runs and by
        row numbers. Rows have the type that holds all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.bags.on_disk import LazyRows
    >>> rows = LazyRows([np.zeros((3, 2)), np.ones((3, 2))])
    >>> rows.shape, rows[2:5, :].tolist()
    ((6, 2), [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    """

    ndim = 2
    shape: tuple[int, int]

    def __init__(self, sources: Sequence[Rows]) -> None:
        self._sources = tuple(sources)
        self._starts = np.concatenate([[0], np.cumsum([x.shape[0] for x in self._sources])])
        self._selected: Ints | None = None  # row numbers in the sources, None for all
        self._functions: tuple[RowFunction, ...] = ()  # what rows go through when they are read
        self._stored = np.result_type(*(x.dtype for x in self._sources))
        self.shape = (int(self._starts[-1]), int(self._sources[0].shape[1]))
        self.dtype: np.dtype[Any] = self._stored

    def select_rows(self, key: RowKey) -> LazyRows:
        """The chosen rows, still on disk."""
        new = copy.copy(self)
        if self._selected is None and isinstance(key, slice) and key.step in (None, 1):
            # A run needs only the sources that it touches, cut to it: little to pickle.
            start, stop, _ = key.indices(len(self))
            ends = zip(self._sources, self._starts[:-1], self._starts[1:], strict=True)
            cut = [
                _cut(x, max(start - int(a), 0), min(stop, int(b)) - int(a))
                for x, a, b in ends
                if max(start, a) < min(stop, b)
            ]
            new._sources = tuple(cut) or (_cut(self._sources[0], 0, 0),)
            new._starts = np.concatenate([[0], np.cumsum([x.shape[0] for x in new._sources])])
            new.shape = (int(new._starts[-1]), self.shape[1])
        else:
            rows = self._numbers(key)
            new._selected = rows if self._selected is None else self._selected[rows]
            new.shape = (len(rows), self.shape[1])
        return new

    def map_rows(self, function: RowFunction) -> LazyRows:
        """Rows that go through ``function`` whenever they are read."""
        sample = np.asarray(function(self[:1]))
        if sample.ndim != 2:
            raise ValueError(f"the function must return 2-d rows; got shape {sample.shape}.")
        new = copy.copy(self)
        new._functions = (*self._functions, function)
        new.shape, new.dtype = (len(self), sample.shape[1]), sample.dtype
        return new

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes it would take in memory."""
        return self.size * self.dtype.itemsize

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Reals:
        if copy is False:
            raise ValueError("rows on disk cannot become an array without a copy.")
        rows = self[:]
        return rows if dtype is None else rows.astype(dtype, copy=False)

    def __getitem__(self, key: RowKey | int | tuple[RowKey | int, ...]) -> Reals:
        rows, *places = key if isinstance(key, tuple) else (key,)
        if isinstance(rows, (int, np.integer)):
            block = self._read(self._numbers([int(rows)]))[0]
            return block[tuple(places)] if places else block
        block = self._read(self._numbers(rows))
        return block[(slice(None), *places)] if places else block

    def _numbers(self, key: RowKey) -> Ints:
        """Row numbers meant by a slice, a mask or numbers."""
        n = len(self)
        if isinstance(key, slice):
            return np.arange(*key.indices(n))
        rows = np.asarray(key)
        if rows.dtype == bool:
            if rows.shape != (n,):
                raise IndexError(f"a mask must have shape ({n},); got {rows.shape}.")
            return np.flatnonzero(rows)
        rows = rows.astype(np.int64).reshape(-1)
        if len(rows) and not (-n <= rows.min() and rows.max() < n):
            raise IndexError(f"row numbers must be below {n}.")
        return np.where(rows < 0, rows + n, rows)

    def _read(self, rows: Ints) -> Reals:
        """Rows by their numbers in this selection: each source is read once."""
        rows = rows if self._selected is None else self._selected[rows]
        out = np.empty((0, self._sources[0].shape[1]), self._stored)
        if len(rows):
            owner = np.searchsorted(self._starts, rows, side="right") - 1
            order = np.argsort(owner, kind="stable")
            cuts = np.flatnonzero(np.diff(owner[order])) + 1
            pieces = []
            for at in np.split(order, cuts):
                i = int(owner[at[0]])
                some = rows[at] - self._starts[i]
                run = some[-1] - some[0] == len(some) - 1 and bool(np.all(np.diff(some) == 1))
                key = slice(int(some[0]), int(some[-1]) + 1) if run else some
                pieces.append(np.asarray(self._sources[i][key], self._stored))
            out = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            if len(pieces) > 1 and np.any(np.diff(order) != 1):
                out = out[np.argsort(order)]
        for function in self._functions:
            out = function(out)
        return np.asarray(out).astype(self.dtype, copy=False)

    def __repr__(self) -> str:
        return (
            f"LazyRows({self.shape[0]} x {self.shape[1]} {self.dtype}, "
            f"{len(self._sources)} sources)"
        )


def _cut(source: Any, start: int, stop: int) -> Rows:
    """A run of rows of a source, still where they are."""
    if hasattr(source, "select_rows"):
        return source.select_rows(slice(start, stop))
    return source[start:stop]


@dataclass(frozen=True)
class PlainFile:
    """Rows that lie one after the other in one file, read by plain reads.

    Stands in for a memory map where the rows are read again and again: it pickles as a file
    name, and the pages it reads never count as memory of the process.
    """

    path: str
    dtype: np.dtype[np.floating]
    shape: tuple[int, int]
    offset: int  # bytes before the first row

    def select_rows(self, key: slice) -> PlainFile:
        """A run of rows, still on disk."""
        start, stop, _ = key.indices(self.shape[0])
        return replace(
            self,
            shape=(max(stop - start, 0), self.shape[1]),
            offset=self.offset + start * self._row_bytes,
        )

    def __getitem__(self, key: slice | Ints) -> Reals:
        if isinstance(key, slice):
            start, stop, _ = key.indices(self.shape[0])
            return self._read([(start, max(start, stop))])
        # Each row is read once, neighbours together.
        distinct, back = np.unique(key, return_inverse=True)
        breaks = np.flatnonzero(np.diff(distinct) != 1) + 1
        runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(distinct, breaks)]
        return self._read(runs)[back]

    @property
    def _row_bytes(self) -> int:
        return self.shape[1] * self.dtype.itemsize

    def _read(self, runs: list[tuple[int, int]]) -> Reals:
        """Runs of rows one below the other."""
        out = np.empty((sum(b - a for a, b in runs), self.shape[1]), self.dtype)
        flat: NDArray[np.uint8] = out.reshape(-1).view(np.uint8)
        into, filled = flat.data, 0
        # Opened for every read: threads share no position, and no file stays open.
        with Path(self.path).open("rb", buffering=0) as file:
            for a, b in runs:
                end = filled + (b - a) * self._row_bytes
                file.seek(self.offset + a * self._row_bytes)
                while filled < end:
                    n = file.readinto(into[filled:end])
                    if not n:
                        raise ValueError(f"{self.path} ends before row {b}; it was cut short.")
                    filled += n
        return out


def map_rows_of(instances: Rows) -> Rows:
    """A row-major memory map as `LazyRows` of its file; anything else as it is.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from bagwise.files import map_rows_of
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.npy"
    >>> np.save(path, np.arange(6.0).reshape(3, 2))
    >>> rows = map_rows_of(np.load(path, mmap_mode="r"))
    >>> type(rows).__name__, rows[[2, 0]].tolist()
    ('LazyRows', [[4.0, 5.0], [0.0, 1.0]])
    """
    file = plain_file(instances)
    return instances if file is None else LazyRows([file])


def plain_file(array: Rows) -> PlainFile | None:
    """Where the rows of a row-major memory map are; None for anything else."""
    if not isinstance(array, np.memmap) or not array.flags.c_contiguous:
        return None
    if array.filename is None or array.ndim != 2:
        return None
    base: Any = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    # A slice of a memory map keeps its parent's offset; the addresses tell the difference.
    moved = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    offset = int(base.offset) + int(moved)
    return PlainFile(str(array.filename), array.dtype, array.shape, offset)
