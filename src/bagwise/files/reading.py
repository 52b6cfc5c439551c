"""From a folder with one file per bag, or a long table, to `Bags`.

Folders may be laid out as CLAM does (``h5_files/`` and ``pt_files/`` beside each other) or as
TRIDENT does (``features_{encoder}/{slide}.h5``, possibly one level further down).
"""

from __future__ import annotations

import math
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bagwise.bags import Bags
from bagwise.files.limits import check_unpacked, check_zip
from bagwise.files.problems import UNREADABLE, BadFilesError, Problem, bad_file, one_line
from bagwise.files.rows import LazyRows, Source, close, open_arrays
from bagwise.files.tables import read_table

SUFFIXES = (".h5", ".hdf5", ".npy", ".npz", ".pt")
TABLES = (".csv", ".tsv", ".parquet")
# Features beyond this many bytes stay on disk.
_IN_MEMORY = 512 * 2**20
_SCAN_ROWS = 16_384
# Instance-aligned arrays that become columns of the bags.
_COLUMNS = ("coords", "instance_labels", "images")

Progress = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass(frozen=True)
class Names:
    """What things are called in the files.

    ``features``, ``coords``, ``instance_labels`` and ``images`` (read only when named) are dataset
    names in ``.h5``, ``.npz`` and ``.pt`` files; the others are columns of tables, but for
    ``encoder``, which picks ``features_{encoder}`` where there are several folders.

    Examples
    --------
    >>> import pandas as pd
    >>> from bagwise.files import Names, read_bags
    >>> rows = pd.DataFrame({"molecule": ["a", "a", "b"], "mass": [1.0, 2.0, 3.0]})
    >>> read_bags(rows, Names(bag="molecule"))
    Bags(2 bags, 3 instances, 1 features)
    """

    features: str = "features"
    coords: str = "coords"
    instance_labels: str = "instance_labels"
    images: str | None = None
    bag: str = "slide_id"
    label: str = "label"
    patient: str | None = None
    coord_columns: tuple[str, ...] = ("x", "y")
    feature_columns: tuple[str, ...] | None = None
    encoder: str | None = None


@dataclass
class Found:
    """Bags read from disk, and what was wrong with the files that were left out.

    Examples
    --------
    >>> from bagwise.files import scan_bags
    >>> found = scan_bags("no/such/folder")
    >>> found.bags is None, str(found.problems[0])
    (True, 'no/such/folder: does not exist')
    """

    bags: Bags | None
    problems: list[Problem] = field(default_factory=list)
    feature_names: list[str] | None = None


def read_bags(
    path: Any,
    names: Names | None = None,
    *,
    lazy: bool | Literal["auto"] = "auto",
    skip_bad: bool = False,
) -> Bags:
    """Bags from a folder with one file per bag, a long CSV or Parquet table, or a frame.

    Parameters
    ----------
    path : path or pandas.DataFrame
        A folder of ``.h5``, ``.npy``, ``.npz`` or ``.pt`` files, each named after its bag; the
        folder above it in a CLAM or TRIDENT layout; or a table with one row per instance.
    names : Names, optional
        What datasets and columns are called.
    lazy : bool or "auto", default="auto"
        Leave the features on disk and read them when they are needed; "auto" does so beyond
        512 MB. Tables are always read whole.
    skip_bad : bool, default=False
        Leave out files that cannot be used instead of raising.

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
    found = scan_bags(path, names, lazy=lazy)
    if found.bags is None or (found.problems and not skip_bad):
        raise BadFilesError(found.problems)
    return found.bags


def scan_bags(
    path: Any,
    names: Names | None = None,
    *,
    lazy: bool | Literal["auto"] = "auto",
    progress: Progress | None = None,
) -> Found:
    """Like `read_bags`, but returns the problems beside the bags that can be used.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from bagwise.files import scan_bags
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "good.npy", np.ones((3, 2)))
    >>> np.save(folder / "bad.npy", np.full((3, 2), np.nan))
    >>> found = scan_bags(folder)
    >>> found.bags.ids.tolist(), len(found.problems)
    (['good'], 1)
    """
    names = names or Names()
    if hasattr(path, "columns"):
        return _from_table(path, "the frame", names)
    path = Path(path)
    if not path.exists():
        return Found(None, [Problem(str(path), "does not exist")])
    if path.is_dir():
        return _from_folder(path, names, lazy, progress)
    if path.suffix.lower() in TABLES:
        return _from_table(path, str(path), names)
    kinds = ", ".join(TABLES)
    return Found(None, [Problem(str(path), f"is neither a folder of bags nor a table ({kinds})")])


def _from_table(source: Any, where: str, names: Names) -> Found:
    try:
        table = read_table(
            source,
            where,
            bag=names.bag,
            features=names.feature_columns,
            coords=names.coord_columns,
            instance_labels=names.instance_labels,
            others=(names.label, *([names.patient] if names.patient else [])),
        )
    except BadFilesError as error:
        return Found(None, list(error.problems))
    return Found(table.bags, [], table.feature_names)


def _from_folder(
    path: Path, names: Names, lazy: bool | Literal["auto"], progress: Progress | None
) -> Found:
    try:
        files = find_bag_files(path, names.encoder)
    except BadFilesError as error:
        return Found(None, list(error.problems))
    problems = _duplicates(files)
    twice = {problem.path for problem in problems}
    scanned: list[_Scanned] = []
    for file in (progress or _silent)(files, len(files)):
        if str(file) in twice:
            continue
        try:
            scanned.append(_scan(file, names))
        except UNREADABLE as error:
            problems.append(Problem(str(file), _explain(error)))
    scanned, odd = _agree(scanned)
    problems += odd
    if not scanned:
        return Found(None, problems)
    return Found(_assemble(scanned, lazy), problems)


def find_bag_files(path: Path, encoder: str | None = None) -> list[Path]:
    """The bag files of a folder, sorted by name, in any of the known layouts."""
    files = _bag_files(path)
    if files:
        return files
    if (path / "h5_files").is_dir() or (path / "pt_files").is_dir():  # CLAM
        # The .h5 files hold the same features as the .pt files, and the coordinates.
        files = _bag_files(path / "h5_files") or _bag_files(path / "pt_files")
        if files:
            return files
    folders = [p for p in [*path.glob("features_*"), *path.glob("*/features_*")] if p.is_dir()]
    if encoder is not None:
        folders = [p for p in folders if p.name == f"features_{encoder}"]
    if len(folders) > 1:
        choices = ", ".join(sorted(str(p.relative_to(path)) for p in folders))
        raise bad_file(path, f"has several feature folders: {choices}; name one")
    if len(folders) == 1 and _bag_files(folders[0]):
        return _bag_files(folders[0])
    wanted = f"features_{encoder} with " if encoder else ""
    kinds = ", ".join(SUFFIXES)
    raise bad_file(path, f"has no {wanted}bag files ({kinds})")


def _bag_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")
    )


def _duplicates(files: list[Path]) -> list[Problem]:
    """Every file whose bag another file also claims."""
    by_id: dict[str, list[Path]] = {}
    for file in files:
        by_id.setdefault(file.stem, []).append(file)
    return [
        Problem(str(file), f"bag {name!r} is also in {same[1 - min(i, 1)].name}")
        for name, same in by_id.items()
        if len(same) > 1
        for i, file in enumerate(same)
    ]


@dataclass(frozen=True)
class _Scanned:
    """One good file: where its rows are, and its small columns, already read."""

    source: Source
    name: str
    width: int
    dtype: Any
    coords: Any = None
    patch_size: float | None = None
    instance_labels: Any = None
    images: Any = None


def _scan(file: Path, names: Names) -> _Scanned:
    """Check one file through and through; raises with the reason when it cannot be used."""
    if file.is_dir():
        raise ValueError("is a folder, not a file")
    size = file.stat().st_size
    if not file.is_file():
        raise ValueError("is a pipe, a device or another special file, not a file of numbers")
    if size == 0:
        raise ValueError("is empty (0 bytes)")
    if zipfile.is_zipfile(file):
        check_zip(file, size)
    arrays = open_arrays(file)
    try:
        key = "" if "" in arrays else names.features
        if key not in arrays:
            raise ValueError(f"has no dataset {key!r}; it has {sorted(map(str, arrays)) or 'none'}")
        features = arrays[key]
        nested = _check_shape(features)
        _check_claim(features, size)
        rows, width = features.shape[-2:]
        _check_finite(features, nested)
        coords = _column(arrays, names.coords, rows, size)
        if coords is not None and (coords.ndim != 2 or coords.shape[1] not in (2, 3)):
            raise ValueError(f"{names.coords!r} must be N x 2; got shape {coords.shape}")
        return _Scanned(
            Source(str(file), key, rows, nested),
            file.stem,
            width,
            _float_dtype(features.dtype),
            coords,
            _patch_size(arrays[names.coords]) if coords is not None else None,
            _column(arrays, names.instance_labels, rows, size),
            _column(arrays, names.images, rows, size) if names.images else None,
        )
    finally:
        close(arrays)


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


def _check_finite(features: Any, nested: bool) -> None:
    rows = features.shape[-2]
    for start in range(0, rows, _SCAN_ROWS):
        stop = min(start + _SCAN_ROWS, rows)
        block = features[0, start:stop] if nested else features[start:stop]
        bad = ~np.isfinite(block)
        if bad.any():
            row, col = np.argwhere(bad)[0]
            what = "NaN" if np.isnan(block[row, col]) else "infinity"
            raise ValueError(
                f"contains {what} in instance {start + row}, feature {col}; features must be finite"
            )


def _check_claim(array: Any, size_on_disk: int) -> None:
    """Refuse an array that claims more bytes than its file can honestly hold."""
    check_unpacked(math.prod(array.shape) * array.dtype.itemsize, size_on_disk)


def _column(arrays: Any, name: str, rows: int, size_on_disk: int) -> Any:
    """An optional instance-aligned array of a file, without a leading axis of one."""
    if name not in arrays:
        return None
    stored = arrays[name]
    if not hasattr(stored, "shape") or not hasattr(stored, "dtype"):
        raise ValueError(f"{name!r} is not an array")
    _check_claim(stored, size_on_disk)
    column = np.asarray(stored)
    if column.ndim >= 2 and column.shape[0] == 1 and column.shape[1] == rows:
        column = column[0]
    if column.shape[:1] != (rows,):
        raise ValueError(f"has {rows} instances but {name!r} has shape {column.shape}")
    if column.dtype.kind == "S":
        column = column.astype(str)
    return column


def _patch_size(coords: Any) -> float | None:
    """Side of a patch at full resolution, from the attributes the extractors write."""
    attributes = getattr(coords, "attrs", {})
    if "patch_size_level0" in attributes:
        return float(attributes["patch_size_level0"])
    if "patch_size" in attributes:
        return float(attributes["patch_size"]) * float(np.mean(attributes.get("downsample", 1.0)))
    return None


def _float_dtype(dtype: Any) -> Any:
    """Half precision is storage, not arithmetic; integers become what `check_bags` makes them."""
    if dtype.kind == "f":
        return np.dtype(np.float32) if dtype.itemsize < 4 else np.dtype(dtype.newbyteorder("="))
    return np.dtype(np.float64)


def _agree(scanned: list[_Scanned]) -> tuple[list[_Scanned], list[Problem]]:
    """Files that differ from most others in width or in the columns they carry are problems."""
    problems = []
    if len({s.width for s in scanned}) > 1:
        width, n = Counter(s.width for s in scanned).most_common(1)[0]
        problems += [
            Problem(s.source.path, f"has {s.width} features but {n} other files have {width}")
            for s in scanned
            if s.width != width
        ]
        scanned = [s for s in scanned if s.width == width]
    for column in _COLUMNS:
        has = [getattr(s, column) is not None for s in scanned]
        if any(has) and not all(has):
            lacking = [s for s, good in zip(scanned, has, strict=True) if not good]
            problems += [
                Problem(s.source.path, f"has no {column!r}, which other files have")
                for s in lacking
            ]
            scanned = [s for s, good in zip(scanned, has, strict=True) if good]
    return scanned, problems


def _assemble(scanned: list[_Scanned], lazy: bool | Literal["auto"]) -> Bags:
    sources = [s.source for s in scanned]
    dtype = np.result_type(*(s.dtype for s in scanned))
    rows: Any = LazyRows(sources, scanned[0].width, dtype)
    if lazy is False or (lazy == "auto" and rows.nbytes <= _IN_MEMORY):
        rows = rows.read_all()
    sizes = [s.n_rows for s in sources]
    columns = {}
    for name in _COLUMNS:
        if getattr(scanned[0], name) is not None:
            columns[name] = np.concatenate([getattr(s, name) for s in scanned])
    if "coords" in columns and all(s.patch_size is not None for s in scanned):
        sides = np.asarray([s.patch_size for s in scanned], dtype=np.float32)
        columns["patch_size"] = np.repeat(sides, sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Bags(rows, offsets, [s.name for s in scanned], columns=columns)


def _explain(error: BaseException) -> str:
    said = one_line(error)
    if "truncated file" in said:
        return "is truncated: the file ends before its data does"
    if "file signature not found" in said:
        return "is not an HDF5 file, whatever its name says"
    if isinstance(error, ValueError) and not said.startswith("["):
        return said
    return f"cannot be read: {said}"


def _silent(files: Iterable[Any], total: int) -> Iterable[Any]:
    del total
    return files
