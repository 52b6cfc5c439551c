"""Rows that stay on disk in one file per bag: one virtual array, read when sliced."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - only for the name of the error torch raises on foreign content
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bagwise.bags.mapped import MappedRows, map_rows_of
from bagwise.bags.virtual import VirtualRows
from bagwise.files.addresses import as_path, is_remote
from bagwise.files.hdf5 import H5Arrays, is_contiguous
from bagwise.files.problems import UNREADABLE, one_line
from bagwise.files.zarr_arrays import ZarrArrays

if TYPE_CHECKING:
    import torch

    from bagwise.core.arrays import Ints, Reals, RowFunction, RowKey


# Files kept open at a time; well under the usual limit of 1,024 descriptors.
_MAX_OPEN = 128

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """Where the rows of one bag are: an array in a file."""

    path: str
    array: str  # name inside the file, "" where the file is one array
    n_rows: int
    nested: bool = False  # stored as 1 x N x D


def open_arrays(path: str | Path) -> Arrays:
    """The arrays of a file by name; a file that is a single array has the name ``""``."""
    place = as_path(path)
    suffix = place.suffix.lower()
    if suffix == ".zarr":
        return ZarrArrays(place)
    # A file on another machine is read through its handle, which the arrays keep open.
    source = place.open("rb") if is_remote(path) else place
    if suffix in (".h5", ".hdf5"):
        return H5Arrays(source)
    if suffix == ".npz":
        return np.load(source, allow_pickle=False)
    if suffix == ".npy":
        mode: Any = None if is_remote(path) else "r"
        return {"": np.load(source, mmap_mode=mode, allow_pickle=False)}
    return _open_torch(source)


def _open_torch(source: IO[bytes] | Path) -> Arrays:
    try:
        import torch
    except ImportError as error:
        raise ValueError("needs torch: pip install 'bagwise[torch]'") from error
    # weights_only: a .pt file is a pickle, and this reads tensors without running any code.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols, before it refuses them
            content = torch.load(source, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, *UNREADABLE) as error:
        raise ValueError("is not a file of plain tensors; nothing in it was executed") from error
    if isinstance(content, torch.Tensor):
        content = {"": content}
    if not isinstance(content, dict):
        raise ValueError(f"holds a {type(content).__name__}; a tensor or a dict is needed")
    return {str(name): _torch_to_numpy(value) for name, value in content.items()}


def _torch_to_numpy(value: torch.Tensor) -> NDArray[np.number]:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


class _OpenFiles:
    """The files read most recently, kept open; one per process, closed when pushed out."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: OrderedDict[tuple[int, str], Arrays] = OrderedDict()
        self._plain: dict[Source, tuple[tuple[int, ...], MappedRows | None]] = {}

    def read(self, source: Source, start: int, stop: int) -> Reals:
        """Rows of a source as an ndarray."""
        with self._lock:
            array = self._arrays(source.path)[source.array]
            return np.asarray(array[0, start:stop] if source.nested else array[start:stop])

    def plain(self, source: Source) -> MappedRows | None:
        """The rows of a source where they lie in its file one after the other, else None.

        Such rows are read without the library of the format, which lets only one thread in.
        """
        if is_remote(source.path) or not source.path.lower().endswith((".h5", ".hdf5", ".npy")):
            return None
        with self._lock:
            # A file that was written anew may keep its numbers elsewhere.
            stamp = _stamp(source.path)
            known, rows = self._plain.get(source, ((), None))
            if known != stamp:
                if known:
                    self._drop(source.path)
                rows = _plain_rows(self._arrays(source.path)[source.array], source)
                self._plain[source] = stamp, rows
            return rows

    def release(self, paths: Iterable[str]) -> None:
        """Close files that are not needed any more, so that others may write them."""
        with self._lock:
            for path in paths:
                self._drop(path)

    def _drop(self, path: str) -> None:
        arrays = self._open.pop((os.getpid(), path), None)
        if arrays is not None:
            close(arrays)

    def _arrays(self, path: str) -> Arrays:
        key = (os.getpid(), path)  # a forked child must not share the parent's handles
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        try:
            arrays = open_arrays(path)
            if path.lower().endswith(".npz"):  # would be unpacked anew at every slice
                arrays = dict(arrays)
        except UNREADABLE as error:
            raise ValueError(f"{path}: can no longer be read: {one_line(error)}") from error
        self._open[key] = arrays
        while len(self._open) > _MAX_OPEN:
            _, old = self._open.popitem(last=False)
            close(old)
        return arrays


def _stamp(path: str) -> tuple[int, ...]:
    """What tells one version of a file from another."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise ValueError(f"{path}: can no longer be read: {one_line(error)}") from error
    return status.st_mtime_ns, status.st_size, status.st_ino


def _plain_rows(array: Any, source: Source) -> MappedRows | None:
    """Where the numbers of an array begin in its file, if they are all there is to read."""
    if isinstance(array, np.memmap):
        rows = map_rows_of(array[0] if source.nested else array)
        return rows if isinstance(rows, MappedRows) else None
    if not is_contiguous(array) or not array.dtype.isnative:
        return None
    return MappedRows(source.path, array.dtype, array.shape[-2:], array.id.get_offset())


_FILES = _OpenFiles()


def close(arrays: Arrays) -> None:
    """Close what `open_arrays` opened."""
    if hasattr(arrays, "close"):
        arrays.close()


class LazyRows(VirtualRows):
    """A virtual (N, D) array over the files of many bags.

    Slicing with a slice, an int array or a mask reads just those rows into an ndarray;
    `select_rows` keeps the choice on disk, so that slicing `Bags` costs no memory. It pickles as
    file names, and each process opens the files for itself.

    Parameters
    ----------
    sources : sequence of Source
        One per bag, in order.
    width : int
        Features of a row.
    dtype : dtype
        Type of the rows that are read.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np
    >>> from bagwise.files import read_bags
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in "ab":
    ...     np.save(folder / f"{name}.npy", np.ones((3, 2), dtype=np.float32))
    >>> rows = read_bags(folder, lazy=True).instances
    >>> rows.shape, rows[2:5].shape
    ((6, 2), (3, 2))
    """

    def __init__(
        self,
        sources: Sequence[Source],
        width: int,
        dtype: np.dtype[np.floating],
        *,
        selected: Ints | None = None,
        functions: tuple[RowFunction, ...] = (),
        raw_dtype: np.dtype[np.floating] | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._starts = np.concatenate([[0], np.cumsum([s.n_rows for s in self._sources])])
        self._selected = selected  # row numbers in the files, None for all
        self._functions = functions
        self.shape = (int(self._starts[-1]) if selected is None else len(selected), width)
        self.dtype = np.dtype(dtype)
        self._raw_dtype = self.dtype if raw_dtype is None else raw_dtype  # before the functions

    def select_rows(self, key: RowKey) -> LazyRows:
        """The chosen rows, still on disk."""
        return LazyRows(
            self._sources,
            self.shape[1],
            self.dtype,
            selected=self._in_files(self._numbers(key)),
            functions=self._functions,
            raw_dtype=self._raw_dtype,
        )

    def read_all(self) -> Reals:
        """All rows as an ndarray; the files are closed again."""
        rows = self[:]
        _FILES.release(source.path for source in self._sources)
        return rows

    def map_rows(self, function: RowFunction) -> LazyRows:
        """Rows that go through ``function`` whenever they are read."""
        sample = np.asarray(function(self[:1]))
        if sample.ndim != 2:
            raise ValueError(f"the function must return 2-d rows; got shape {sample.shape}.")
        return LazyRows(
            self._sources,
            sample.shape[1],
            sample.dtype,
            selected=self._selected,
            functions=(*self._functions, function),
            raw_dtype=self._raw_dtype,
        )

    def _run(self, start: int, stop: int) -> Reals:
        return self._chosen(np.arange(start, stop))

    def _chosen(self, rows: Ints) -> Reals:
        return self._read(self._in_files(rows))

    def _in_files(self, rows: Ints) -> Ints:
        """Row numbers in the files, from those in this selection."""
        return rows if self._selected is None else self._selected[rows]

    def _read(self, rows: Ints) -> Reals:
        """Read rows by number, file by file."""
        if len(rows) == 0:
            return np.empty((0, self.shape[1]), dtype=self.dtype)
        owner = np.searchsorted(self._starts, rows, side="right") - 1
        order = None if np.all(np.diff(owner) >= 0) else np.argsort(owner, kind="stable")
        if order is not None:
            rows, owner = rows[order], owner[order]
        cuts = np.flatnonzero(np.diff(owner)) + 1
        pieces = [
            self._read_file(int(owner[a]), rows[a:b])
            for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)
        ]
        out = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if order is not None:
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            out = out[back]
        for function in self._functions:
            out = function(out)
        return out.astype(self.dtype, copy=False)

    def _read_file(self, i: int, rows: Ints) -> Reals:
        rows = rows - self._starts[i]
        low, high = int(rows.min()), int(rows.max()) + 1
        in_order = len(rows) == high - low and np.all(np.diff(rows) == 1)
        plain = _FILES.plain(self._sources[i])
        if plain is not None:
            block = plain[low:high] if in_order else plain[rows]
            return block.astype(self._raw_dtype, copy=False)
        block = _FILES.read(self._sources[i], low, high).astype(self._raw_dtype, copy=False)
        return block if in_order else block[rows - low]

    def __repr__(self) -> str:
        return (
            f"LazyRows({self.shape[0]} x {self.shape[1]} {self.dtype}, {len(self._sources)} files)"
        )
