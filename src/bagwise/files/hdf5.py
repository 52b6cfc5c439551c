"""The datasets of an HDF5 file, and nothing outside it.

HDF5 can point to other files on the machine: by external links, by external raw storage and by
virtual datasets. A file of features has no need to, so all three are refused before they are
followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import h5py


# Soft links are followed this many times; more is a circle.
_HOPS = 16


class H5Arrays(Mapping[str, Any]):
    """Datasets of an HDF5 file by name, opened for reading.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import h5py
    >>> from bagwise.files.hdf5 import H5Arrays
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "slide.h5"
    >>> with h5py.File(path, "w") as file:
    ...     file["features"] = h5py.ExternalLink("/etc/secret.h5", "/features")
    >>> "features" in H5Arrays(path)
    Traceback (most recent call last):
    ValueError: dataset 'features' is a link out of the file, which is not followed
    """

    def __init__(self, source: IO[bytes] | Path) -> None:
        import h5py

        # Locks are for writers; on network drives they fail even for readers.
        self._file = h5py.File(source, "r", locking=False)

    def __getitem__(self, name: str) -> h5py.Dataset:
        import h5py

        found = self._find(name)
        if found is None:
            raise KeyError(name)
        if not isinstance(found, h5py.Dataset):
            raise ValueError(f"{name!r} is a group of datasets, not a dataset")
        if found.external:
            raise ValueError(f"dataset {name!r} keeps its numbers in another file; nothing is read")
        if found.is_virtual:
            raise ValueError(f"dataset {name!r} is virtual, made of others; nothing is read")
        return found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(name) and self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _find(self, name: str, hops: int = _HOPS) -> h5py.Dataset | None:
        """The object of that name, or None; no link out of the file is followed on the way."""
        import h5py

        at: Any = self._file
        parts = [part for part in name.split("/") if part not in ("", ".")]
        for depth, part in enumerate(parts):
            key = part.encode("utf-8", "surrogateescape")
            if not isinstance(at, h5py.Group) or not at.id.links.exists(key):
                return None
            kind = at.id.links.get_info(key).type
            if kind == h5py.h5l.TYPE_SOFT:
                if hops == 0:
                    raise ValueError(f"dataset {name!r} is a link that leads in circles")
                target = at.id.links.get_val(key).decode("utf-8", "surrogateescape")
                base = "" if target.startswith("/") else at.name
                return self._find("/".join([base, target, *parts[depth + 1 :]]), hops - 1)
            if kind != h5py.h5l.TYPE_HARD:
                raise ValueError(
                    f"dataset {name!r} is a link out of the file, which is not followed"
                )
            at = at[part]
        return at


def is_contiguous(array: Any) -> bool:
    """Whether an array is a dataset whose floats lie in the file as they are, in one piece."""
    import h5py

    if not isinstance(array, h5py.Dataset) or array.dtype.kind != "f":
        return False
    in_one_piece = array.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
    return bool(in_one_piece and array.file.userblock_size == 0 and array.id.get_offset())
