"""Bags in one file: a zip of plain arrays and a description, without pickle."""

from __future__ import annotations

import json
import math
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy.sparse as sp

from bagwise.bags.layout import Content
from bagwise.core.arrays import Reals, Rows, is_tensor

if TYPE_CHECKING:
    from bagwise.bags.container import Bags

FORMAT, VERSION = "bagwise-bags", 1
# Rows beyond this many bytes stay on disk when they are loaded.
_IN_MEMORY = 512 * 2**20
_BLOCK_BYTES = 16 * 2**20
_PLAIN = (str, int, float, bool, type(None))


def write(bags: Bags, path: Path) -> Path:
    """Write beside the target and rename, so that the file appears whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    X = bags.instances
    kind = "sparse" if sp.issparse(X) else "torch" if is_tensor(X) else "dense"
    arrays = {"instances": X.detach().cpu().numpy() if kind == "torch" else X}
    if kind == "sparse":
        arrays = {name: getattr(X, name) for name in ("data", "indices", "indptr")}
    arrays["offsets"] = np.asarray(bags.offsets)
    columns: list[dict[str, object]] = []
    for i, (name, column) in enumerate(bags.columns.items()):
        columns.append({"name": name})
        if column.dtype == object:
            columns[i]["values"] = [_plain(value, name) for value in column.tolist()]
        else:
            arrays[f"column_{i}"] = column
    about = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "n_features": bags.n_features,
        "ids": None if bags._content.ids is None else [str(name) for name in bags.ids],
        "columns": columns,
        "feature_names": None if bags.feature_names is None else list(bags.feature_names),
    }
    try:
        # Stored, not packed: arrays in the file can be mapped, and cannot outgrow it.
        with draft.open("xb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                _write_array(archive, name, array)
            archive.writestr("about.json", json.dumps(about))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _plain(value: object, column: str) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, _PLAIN):
        raise ValueError(
            f"column {column!r} holds a {type(value).__name__}; numbers, texts and None are saved."
        )
    return value


def _write_array(archive: zipfile.ZipFile, name: str, X: Rows) -> None:
    """An array as .npy, a block of rows at a time: rows on disk are never read whole."""
    dtype = np.dtype(X.dtype)
    if dtype.hasobject:
        raise ValueError(f"{name} must be numbers; got dtype {dtype}.")
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": tuple(int(n) for n in X.shape),
    }
    row_bytes = max(1, dtype.itemsize * math.prod(X.shape[1:]))
    step = max(1, _BLOCK_BYTES // row_bytes)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_2_0(member, header)
        for start in range(0, X.shape[0], step):
            member.write(np.ascontiguousarray(X[start : start + step], dtype=dtype).tobytes())


def read(path: Path, lazy: bool | Literal["auto"]) -> Content:
    """What `write` wrote, or one line about what is wrong with the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(path, archive, lazy)
    except (zipfile.BadZipFile, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: is not a file of bags: {error}") from error
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: cannot be read as bags: {error}") from error


def _read(path: Path, archive: zipfile.ZipFile, lazy: bool | Literal["auto"]) -> Content:
    about = json.loads(archive.read("about.json"))
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError("it does not say that it holds bags")
    if about["version"] != VERSION:
        raise ValueError(f"it has format version {about['version']}; this bagwise reads {VERSION}")
    if about["kind"] == "sparse":
        parts = [np.array(_map(path, archive, name)) for name in ("data", "indices", "indptr")]
        shape = (len(parts[2]) - 1, int(about["n_features"]))
        instances: Rows = sp.csr_matrix(tuple(parts), shape=shape)
    else:
        mapped = _map(path, archive, "instances")
        on_disk = mapped.nbytes > _IN_MEMORY if lazy == "auto" else lazy
        instances = mapped if on_disk else np.array(mapped)
        if about["kind"] == "torch":
            import torch

            instances = torch.from_numpy(np.array(mapped))
    columns = {}
    for i, column in enumerate(about["columns"]):
        if "values" in column:
            values = np.empty(len(column["values"]), dtype=object)
            values[:] = column["values"]
        else:
            values = np.array(_map(path, archive, f"column_{i}"))
        columns[str(column["name"])] = values
    offsets = np.array(_map(path, archive, "offsets"), dtype=np.int64)
    return Content(instances, offsets, about["ids"], columns, about["feature_names"])


def _map(path: Path, archive: zipfile.ZipFile, name: str) -> Reals:
    """A member as a memory map of the file; its size is checked before anything is allocated."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version != (2, 0):
            raise ValueError(f"an array has version {version}; 2.0 is expected")
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(member)
        if dtype.hasobject:
            raise ValueError("an array holds Python objects, which are not read")
        start = member.tell()
    size = math.prod(shape) * dtype.itemsize
    if fortran or start + size != info.file_size:
        raise ValueError(f"{name} has {info.file_size - start} bytes; its shape needs {size}")
    if size == 0:
        return np.empty(shape, dtype)
    # The bytes of a member begin after its local header: 30 bytes, its name, and extra fields.
    with path.open("rb") as file:
        file.seek(info.header_offset)
        local = file.read(30)
    skipped = 30 + sum(int.from_bytes(local[i : i + 2], "little") for i in (26, 28))
    return np.memmap(path, dtype, "r", info.header_offset + skipped + start, shape)
