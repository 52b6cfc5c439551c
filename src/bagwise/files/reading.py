"""From a folder with one file per bag, or a long table, to `Bags`."""

from __future__ import annotations

import mmap
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from bagwise.bags import Bags
from bagwise.bags.on_disk import LazyRows
from bagwise.core.arrays import Column, Reals, Rows
from bagwise.core.finite import first_not_finite
from bagwise.files.addresses import AnyPath, as_path, reachable
from bagwise.files.finding import find_bag_files, is_bag_folder, one_file_per_bag
from bagwise.files.formats import ArrayFormat, TableFormat, format_of, suffixes
from bagwise.files.limits import check_array, check_zip, read_text
from bagwise.files.problems import UNREADABLE, BadFilesError, FileProblem, bad_file, one_line
from bagwise.files.rows import FileRows, close
from bagwise.files.tables import Names, read_table

# Features beyond this many bytes stay on disk.
_IN_MEMORY = 512 * 2**20
_SCAN_ROWS = 16_384
# Arrays of more bytes than this are memory maps of their own.
_MAPPED = 2**20
# Instance-aligned arrays that become columns of the bags.
_COLUMNS = ("coords", "instance_labels", "images")

Progress = Callable[[Iterable[AnyPath], int], Iterable[AnyPath]]


@dataclass
class ScannedBags:
    """Bags read from disk, and what was wrong with the files that were left out.

    Examples
    --------
    >>> from bagwise.files import scan_bags
    >>> found = scan_bags("no/such/folder")
    >>> found.bags is None, str(found.problems[0])
    (True, 'no/such/folder: does not exist')
    """

    bags: Bags | None
    problems: list[FileProblem] = field(default_factory=list)


def read_bags(
    path: str | AnyPath,
    names: Names | None = None,
    *,
    lazy: bool | Literal["auto"] = "auto",
    skip_bad: bool = False,
    recursive: bool = False,
) -> Bags:
    """Bags from a folder with one file per bag, or a long CSV or Parquet table.

    Parameters
    ----------
    path : path or address
        A folder of ``.h5``, ``.zarr``, ``.npy``, ``.npz`` or ``.pt`` files, each named after its
        bag; the folder above it in a CLAM or TRIDENT layout; or a table with one row per instance.
        Addresses such as ``s3://bucket/features`` are read through fsspec. `Bags.from_frame`
        takes frames.
    names : Names or None, default=None
        What datasets and columns are called.
    lazy : bool or "auto", default="auto"
        Leave the features on disk and read them when they are needed; "auto" does so beyond
        512 MB. Tables are always read whole.
    skip_bad : bool, default=False
        Leave out files that cannot be used instead of raising.
    recursive : bool, default=False
        Read the files in folders below, too.

    Returns
    -------
    Bags
        With ``coords``, ``patch_size`` and ``instance_labels`` as columns where the files have
        them.

    Raises
    ------
    BadFilesError
        Naming every file that is empty, truncated, of the wrong width or type, not finite...

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np
    >>> from bagwise.files import read_bags
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name, n in [("slide_01", 3), ("slide_02", 5)]:
    ...     np.save(folder / f"{name}.npy", np.ones((n, 4)))
    >>> bags = read_bags(folder)
    >>> bags, list(bags.ids)
    (Bags(2 bags, 8 instances, 4 features), ['slide_01', 'slide_02'])
    """
    scan = scan_bags(path, names, lazy=lazy, recursive=recursive)
    if scan.bags is None or (scan.problems and not skip_bad):
        raise BadFilesError(scan.problems)
    return scan.bags


def scan_bags(
    path: str | AnyPath,
    names: Names | None = None,
    *,
    lazy: bool | Literal["auto"] = "auto",
    recursive: bool = False,
    progress: Progress | None = None,
) -> ScannedBags:
    """Like `read_bags`, but returns the problems beside the bags that can be used.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np
    >>> from bagwise.files import scan_bags
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "good.npy", np.ones((3, 2)))
    >>> np.save(folder / "bad.npy", np.full((3, 2), np.nan))
    >>> found = scan_bags(folder)
    >>> found.bags.ids.tolist(), len(found.problems)
    (['good'], 1)
    """
    names = names or Names()
    try:
        path = as_path(path)
        with reachable(path):
            if not path.exists():
                raise bad_file(path, "does not exist")
            if path.is_dir() and not is_bag_folder(path):
                files, problems = one_file_per_bag(find_bag_files(path, names.encoder, recursive))
                watched = files if progress is None else progress(files, len(files))
                return _scan_files(watched, names, lazy, problems)
        if isinstance(format_of(path), TableFormat):
            return ScannedBags(read_table(path, names))
        kinds = ", ".join(suffixes(TableFormat))
        raise bad_file(path, f"is neither a folder of bags nor a table ({kinds})")
    except BadFilesError as error:
        return ScannedBags(None, list(error.problems))


def _scan_files(
    files: Iterable[AnyPath],
    names: Names,
    lazy: bool | Literal["auto"],
    problems: list[FileProblem],
) -> ScannedBags:
    scanned: list[_Scanned] = []
    keep = lazy is not True
    for file in files:
        try:
            with reachable(file):
                scanned.append(_scan(file, names, keep))
            if keep and lazy == "auto" and sum(s.rows.nbytes for s in scanned) > _IN_MEMORY:
                keep = False
                scanned = [replace(s, content=None) for s in scanned]
        except BadFilesError as error:
            problems += error.problems
        except UNREADABLE as error:
            said = one_line(error)
            if "truncated file" in said:
                said = "is truncated: the file ends before its data does"
            elif "file signature not found" in said:
                said = "is not an HDF5 file, whatever its name says"
            elif not isinstance(error, ValueError) or said.startswith("["):
                said = f"cannot be read: {said}"
            problems.append(FileProblem(str(file), said))
    return _assemble(scanned, problems)


@dataclass
class _Scanned:
    """One good file: where its rows are, and what was read of it."""

    rows: FileRows
    name: str
    content: Reals | None = None  # the rows, where they fit memory
    coords: Column | None = None
    patch_size: float | None = None
    instance_labels: Column | None = None
    images: Column | None = None


def _scan(file: AnyPath, names: Names, keep: bool) -> _Scanned:
    """Check one file through and through; raises with the reason when it cannot be used.

    The check reads all rows; ``keep`` says whether they stay in memory, so that nobody has to read
    them again.
    """
    kind = format_of(file)
    assert isinstance(kind, ArrayFormat)  # as all files that `find_bag_files` lists
    size = _size_on_disk(file, kind.is_folder)
    arrays = kind.open(file)
    try:
        key = "" if "" in arrays else names.features
        features = _dataset(arrays, key)
        nested = _check_shape(features)
        check_array(features, size)
        n_rows, width = features.shape[-2:]
        place = names.coords or "coords"
        for name in (names.coords, names.images):  # a name that was given must be there
            if name is not None:
                _dataset(arrays, name)
        coords = _column(arrays, place, n_rows, size)
        if coords is not None and (coords.ndim > 2 or coords.shape[1:] not in ((), (2,), (3,))):
            raise ValueError(f"{place!r} must be N, N x 2 or N x 3; got shape {coords.shape}")
        # Side of a patch at full resolution, from the attributes that the extractors write.
        attributes = getattr(arrays[place], "attrs", {}) if coords is not None else {}
        patch_size = attributes.get("patch_size_level0")
        if patch_size is None and "patch_size" in attributes:
            shrunk = float(np.mean(attributes.get("downsample", 1.0)))
            patch_size = float(attributes["patch_size"]) * shrunk
        # Half precision is storage, not arithmetic; integers become what `check_bags` makes them.
        dtype = np.promote_types(features.dtype, np.float32).newbyteorder("=")
        dtype = dtype if features.dtype.kind == "f" else np.dtype(np.float64)
        return _Scanned(
            FileRows(str(file), key, (n_rows, width), dtype, nested),
            file.stem,
            _read_finite(features, nested, dtype if keep else None),
            coords,
            None if patch_size is None else float(patch_size),
            _column(arrays, names.instance_labels, n_rows, size),
            _column(arrays, names.images, n_rows, size) if names.images else None,
        )
    finally:
        close(arrays)


def _size_on_disk(file: AnyPath, is_folder: bool) -> int:
    """Bytes of a file or a folder; raises where there is nothing to read numbers from."""
    if is_folder:
        if not file.is_dir():
            raise ValueError(f"is a file; a {file.suffix.lower()} is a folder")
        return sum(int(p.stat().st_size) for p in file.rglob("*") if p.is_file())
    if file.is_dir():
        raise ValueError("is a folder, not a file")
    size = int(file.stat().st_size)
    if not file.is_file():
        raise ValueError("is a pipe, a device or another special file, not a file of numbers")
    if size == 0:
        raise ValueError("is empty (0 bytes)")
    with file.open("rb") as raw:
        if zipfile.is_zipfile(raw):
            check_zip(raw, size)
    return size


def _dataset(arrays: Any, name: str) -> Any:
    if name not in arrays:
        has = sorted(str(n) or "one unnamed array" for n in arrays)
        raise ValueError(f"has no dataset {name!r}; it has {has or 'none'}")
    return arrays[name]


def _check_shape(features: Any) -> bool:
    """Whether features are nested as 1 x N x D; raises where they are neither that nor N x D."""
    if not hasattr(features, "shape") or not hasattr(features, "dtype"):
        raise ValueError("the features are not an array")
    if features.dtype.kind not in "fiu":
        raise ValueError(f"features must be numbers; got dtype {features.dtype}")
    nested = len(features.shape) == 3 and features.shape[0] == 1
    if not nested and len(features.shape) != 2:
        raise ValueError(f"features must be N x D or 1 x N x D; got shape {features.shape}")
    rows, width = features.shape[-2:]
    if rows == 0:
        raise ValueError("has 0 instances; every bag needs at least one")
    if width == 0:
        raise ValueError("has 0 features")
    return nested


def _read_finite(features: Any, nested: bool, dtype: np.dtype[Any] | None) -> Reals | None:
    """The rows in this type, or None where they are only looked at; all must be finite."""
    rows, shape = None, features.shape[-2:]
    if dtype is not None:
        # What an allocator has back it may keep, and the rows would be in memory twice: a large
        # array has memory of its own, which the system has back as soon as the array is gone.
        n_bytes = shape[0] * shape[1] * dtype.itemsize
        rows = np.ndarray(shape, dtype, mmap.mmap(-1, n_bytes) if n_bytes > _MAPPED else None)
    for start in range(0, shape[0], _SCAN_ROWS):
        run = slice(start, start + _SCAN_ROWS)
        block = features[0, run] if nested else features[run]
        found = first_not_finite(block)
        if found is not None:
            (row, col), what = found
            raise ValueError(
                f"contains {what} in instance {start + row}, feature {col}; features must be finite"
            )
        if rows is not None:
            rows[run] = block
    return rows


def _column(arrays: Any, name: str, rows: int, size_on_disk: int) -> Column | None:
    """An optional instance-aligned array of a file, without a leading axis of one."""
    if name not in arrays:
        return None
    stored = arrays[name]
    if not hasattr(stored, "shape") or not hasattr(stored, "dtype"):
        raise ValueError(f"{name!r} is not an array")
    check_array(stored, size_on_disk)
    column = read_text(stored, size_on_disk) if stored.dtype.kind == "O" else np.asarray(stored)
    if column.ndim >= 2 and column.shape[0] == 1 and column.shape[1] == rows:
        column = column[0]
    if column.shape[:1] != (rows,):
        raise ValueError(f"has {rows} instances but {name!r} has shape {column.shape}")
    if column.dtype.kind == "S":
        column = column.astype(str)
    return column


def _assemble(scanned: list[_Scanned], problems: list[FileProblem]) -> ScannedBags:
    """Bags of files; those that differ from most in width, or in their columns, are problems."""
    if not scanned:
        return ScannedBags(None, problems)
    width, n = Counter(s.rows.shape[1] for s in scanned).most_common(1)[0]
    for s in scanned:
        if s.rows.shape[1] != width:
            what = f"has {s.rows.shape[1]} features but {n} other files have {width}"
            problems.append(FileProblem(s.rows.path, what))
    good = [s for s in scanned if s.rows.shape[1] == width]
    for name in _COLUMNS:
        lacking = [s for s in good if getattr(s, name) is None]
        if len(lacking) < len(good):
            what = f"has no {name!r}, which other files have"
            problems += [FileProblem(s.rows.path, what) for s in lacking]
            good = [s for s in good if getattr(s, name) is not None]
    columns = {
        name: np.concatenate([getattr(s, name) for s in good])
        for name in _COLUMNS
        if getattr(good[0], name) is not None
    }
    sizes = [s.rows.shape[0] for s in good]
    if "coords" in columns and all(s.patch_size is not None for s in good):
        sides = np.asarray([s.patch_size for s in good], dtype=np.float32)
        columns["patch_size"] = np.repeat(sides, sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rows: Rows = LazyRows([s.rows for s in good])
    if good[0].content is not None:
        rows = np.empty(rows.shape, rows.dtype)
        for s, start, stop in zip(good, offsets[:-1], offsets[1:], strict=True):
            rows[start:stop] = s.content
            s.content = None  # nothing is in memory twice
    return ScannedBags(Bags(rows, offsets, [s.name for s in good], columns=columns), problems)
