"""An array of rows that is not in memory: what every kind of it shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

if TYPE_CHECKING:
    from bagwise.core.arrays import Ints, Reals, RowKey


class VirtualRows(ABC):
    """An (N, D) array that is not in memory: what slices, numbers and masks mean.

    A subclass has ``shape`` and ``dtype``, and reads runs of rows and chosen rows.
    """

    ndim = 2
    shape: tuple[int, int]
    dtype: np.dtype[np.floating]

    @abstractmethod
    def _run(self, start: int, stop: int) -> Reals:
        """Rows ``start`` to ``stop``."""

    @abstractmethod
    def _chosen(self, rows: Ints) -> Reals:
        """Rows by number, all within range."""

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

    def read_all(self) -> Reals:
        """All rows as an ndarray."""
        return self[:]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Reals:
        if copy is False:
            raise ValueError("rows on disk cannot become an array without a copy.")
        rows = self[:]
        return rows if dtype is None else rows.astype(dtype, copy=False)

    def __getitem__(self, key: RowKey | int | tuple[RowKey | int, ...]) -> Reals:
        if isinstance(key, tuple):
            rows = key[0]
            if isinstance(rows, (int, np.integer)):
                return self[int(rows)][key[1:]]
            return self[rows][(slice(None), *key[1:])]
        if isinstance(key, slice) and key.step in (None, 1):
            start, stop, _ = key.indices(len(self))
            return self._run(start, max(start, stop))
        if isinstance(key, (int, np.integer)):
            return self[self._numbers([int(key)])][0]
        return self._chosen(self._numbers(key))

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
