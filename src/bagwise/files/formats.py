"""The kinds of files that bags and labels are read from, in one table: `FORMATS`.

A kind is an `ArrayFormat`, where a file is one bag and holds arrays by name, or a `TableFormat`,
where a file has rows of many bags. A new kind is one more entry: folders are searched for it,
messages name it, and its arrays are checked, sliced and left on disk as those of all others.
"""

from __future__ import annotations

import pickle  # noqa: TID251 - only for the name of the error torch raises on foreign content
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bagwise.core.lazy import optional
from bagwise.files.addresses import as_path, is_remote
from bagwise.files.hdf5 import H5Arrays
from bagwise.files.problems import UNREADABLE
from bagwise.files.table_files import read_excel, read_parquet, read_text
from bagwise.files.zarr_arrays import ZarrArrays

if TYPE_CHECKING:
    import pandas as pd

    from bagwise.files.addresses import AnyPath

Arrays: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class ArrayFormat:
    """Files that are one bag each and hold arrays by name.

    Parameters
    ----------
    suffixes : tuple of str
        In lower case, with the dot.
    open : callable
        Takes the path and returns a mapping of names to arrays; a file that is a single array
        has the name ``""``. Raises `ValueError` with what is wrong, and runs nothing that a file
        holds. Where the result has a method ``close``, that is called when the file is done with.
    is_folder : bool, default=False
        Whether a folder with such a suffix is one bag.
    slices : bool, default=True
        Whether a slice of an array reads only its rows; where not, arrays are read once and kept.
    """

    suffixes: tuple[str, ...]
    open: Callable[[AnyPath], Arrays]
    is_folder: bool = False
    slices: bool = True


@dataclass(frozen=True)
class TableFormat:
    """Files that are tables: a row per instance, or a row per label.

    Parameters
    ----------
    suffixes : tuple of str
        In lower case, with the dot.
    read : callable
        Takes the path and the names of the columns to keep as text (None: all); returns a frame
        whose index is the line of each row.
    """

    suffixes: tuple[str, ...]
    read: Callable[[AnyPath, Sequence[str] | None], pd.DataFrame]


def _source(path: AnyPath) -> IO[bytes] | Path:
    """A file on another machine is read through its handle, which the arrays keep open."""
    return path.open("rb") if is_remote(path) else path


def _open_npy(path: AnyPath) -> Arrays:
    mode: Any = None if is_remote(path) else "r"
    return {"": np.load(_source(path), mmap_mode=mode, allow_pickle=False)}


def _open_torch(path: AnyPath) -> Arrays:
    """Tensors of a .pt file. Such a file is a pickle: nothing but plain tensors is read."""
    torch = optional("torch", extra="torch")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols, before it refuses them
            content = torch.load(_source(path), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, *UNREADABLE) as error:
        raise ValueError("is not a file of plain tensors; nothing in it was executed") from error
    if isinstance(content, torch.Tensor):
        content = {"": content}
    if not isinstance(content, dict):
        raise ValueError(f"holds a {type(content).__name__}; a tensor or a dict is needed")
    arrays = {}
    for name, value in content.items():
        if isinstance(value, torch.Tensor):
            value = value.detach()
            value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        arrays[str(name)] = value
    return arrays


# In order of preference where a bag is there twice: the first kinds hold coordinates beside.
FORMATS: dict[str, ArrayFormat | TableFormat] = {
    "HDF5": ArrayFormat((".h5", ".hdf5"), lambda path: H5Arrays(_source(path))),
    "Zarr": ArrayFormat((".zarr",), ZarrArrays, is_folder=True),
    # A zip is unpacked anew at every slice.
    "NumPy archive": ArrayFormat(
        (".npz",), lambda path: np.load(_source(path), allow_pickle=False), slices=False
    ),
    "PyTorch": ArrayFormat((".pt",), _open_torch),
    "NumPy array": ArrayFormat((".npy",), _open_npy),
    "text": TableFormat((".csv", ".tsv", ".txt"), read_text),
    "Parquet": TableFormat((".parquet",), read_parquet),
    "Excel": TableFormat((".xlsx", ".xlsm"), read_excel),
}


def format_of(path: str | AnyPath) -> ArrayFormat | TableFormat | None:
    """The kind of a file by its suffix, or None.

    Examples
    --------
    >>> from bagwise.files.formats import format_of
    >>> format_of("slide.HDF5").suffixes, format_of("notes.md")
    (('.h5', '.hdf5'), None)
    """
    suffix = as_path(path).suffix.lower()
    return next((kind for kind in FORMATS.values() if suffix in kind.suffixes), None)


def suffixes(kind: type[ArrayFormat] | type[TableFormat]) -> list[str]:
    """Suffixes of all files of arrays, or of all tables, in order of preference."""
    return [s for entry in FORMATS.values() if isinstance(entry, kind) for s in entry.suffixes]
