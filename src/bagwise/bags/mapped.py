"""Rows of one uncompressed file, such as a memory map's, read by plain reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bagwise.bags.virtual import VirtualRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bagwise.core.arrays import Ints, Reals, RowFunction, RowKey, Rows


class MappedRows(VirtualRows):
    """Rows of one uncompressed file on disk, read by plain reads.

    Stands in for a memory map where the rows are swept again and again: it pickles as a file
    name, and the pages it reads never count as memory of the process.

    Parameters
    ----------
    path : str
    dtype : dtype
        Of the file.
    shape : (int, int)
        Rows and features in the file.
    offset : int
        Bytes before the first row.
    functions : tuple of callables
        What rows go through when they are read; see `map_rows`.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from bagwise.files import map_rows_of
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mapped = np.memmap(f"{folder}/rows.bin", np.float32, "w+", shape=(6, 2))
    ...     mapped[:, 0] = range(6)
    ...     rows = map_rows_of(mapped)
    ...     rows[1:3].tolist(), rows[[4, 0]].tolist()
    ([[1.0, 0.0], [2.0, 0.0]], [[4.0, 0.0], [0.0, 0.0]])
    """

    def __init__(
        self,
        path: str,
        dtype: np.dtype[np.floating],
        shape: tuple[int, int],
        offset: int,
        functions: tuple[RowFunction, ...] = (),
    ) -> None:
        self.path, self.offset, self._stored = path, offset, (shape[0], shape[1])
        self._raw_dtype, self._functions = np.dtype(dtype), functions
        sample = self._changed(np.zeros((0, shape[1]), dtype)) if functions else None
        self.dtype = self._raw_dtype if sample is None else sample.dtype
        self.shape = self._stored if sample is None else (shape[0], sample.shape[1])

    @property
    def _row_bytes(self) -> int:
        return self._stored[1] * self._raw_dtype.itemsize

    def select_rows(self, key: RowKey) -> Rows:
        """A run of rows, still on disk; any other choice is read."""
        if not isinstance(key, slice) or key.step not in (None, 1):
            return self[key]
        start, stop, _ = key.indices(len(self))
        shape = (max(stop - start, 0), self._stored[1])
        offset = self.offset + start * self._row_bytes
        return MappedRows(self.path, self._raw_dtype, shape, offset, self._functions)

    def map_rows(self, function: RowFunction) -> MappedRows:
        """Rows that go through ``function`` whenever they are read."""
        functions = (*self._functions, function)
        return MappedRows(self.path, self._raw_dtype, self._stored, self.offset, functions)

    def _run(self, start: int, stop: int) -> Reals:
        return self._changed(self._read([(start, stop)]))

    def _chosen(self, rows: Ints) -> Reals:
        """Rows by number: each read once, neighbours together."""
        distinct, back = np.unique(rows, return_inverse=True)
        breaks = np.flatnonzero(np.diff(distinct) != 1) + 1
        runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(distinct, breaks) if len(run)]
        return self._changed(self._read(runs)[back])

    def _read(self, runs: list[tuple[int, int]]) -> Reals:
        """Runs of rows one below the other, as the file has them."""
        out = np.empty((sum(b - a for a, b in runs), self._stored[1]), self._raw_dtype)
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

    def _changed(self, rows: Reals) -> Reals:
        for function in self._functions:
            rows = np.asarray(function(rows))
        return rows

    def __repr__(self) -> str:
        return f"MappedRows({self.shape[0]} x {self.shape[1]} {self.dtype}, {self.path})"


def map_rows_of(instances: Rows) -> Rows:
    """A row-major memory map as `MappedRows`; anything else as it is.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from bagwise.files import map_rows_of
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.npy"
    >>> np.save(path, np.ones((3, 2)))
    >>> type(map_rows_of(np.load(path, mmap_mode="r"))).__name__
    'MappedRows'
    """
    if not isinstance(instances, np.memmap) or not instances.flags.c_contiguous:
        return instances
    if instances.filename is None or instances.ndim != 2:
        return instances
    base: Any = instances
    while isinstance(base.base, np.ndarray):
        base = base.base
    # A slice of a memory map keeps its parent's offset; the addresses tell the difference.
    moved = instances.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return MappedRows(
        str(instances.filename), instances.dtype, instances.shape, int(base.offset) + int(moved)
    )
