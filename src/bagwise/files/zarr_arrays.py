"""The arrays of a .zarr folder that hold plain numbers, and no other.

Zarr lets the metadata of an array name any codec, among them one that unpickles what it reads and
so runs code. The metadata are therefore read here first, as JSON; zarr opens only what passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bagwise.core.lazy import optional
from bagwise.files.limits import check_chunk

if TYPE_CHECKING:
    from bagwise.files.addresses import AnyPath


_COMPRESSORS = frozenset({"zlib", "gzip", "zstd", "blosc", "lz4", "bz2"})
_CODECS = _COMPRESSORS | {"shuffle", "delta", "bytes", "crc32c"}
_METADATA = {3: "zarr.json", 2: ".zarray"}


class ZarrArrays(Mapping[str, Any]):
    """Arrays of a .zarr folder by name, opened for reading; a folder that is one has ``""``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from bagwise.files.zarr_arrays import ZarrArrays
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "slide.zarr" / "features"
    >>> place.mkdir(parents=True)
    >>> _ = (place / ".zarray").write_text('{"dtype": "|O", "filters": [{"id": "pickle"}]}')
    >>> ZarrArrays(place.parent)["features"]
    Traceback (most recent call last):
    ValueError: dataset 'features' is of type '|O'; only numbers are read from .zarr
    """

    def __init__(self, path: AnyPath) -> None:
        optional("zarr", extra="zarr")
        self._path = path
        self._opened: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._metadata(name) is not None

    def __iter__(self) -> Iterator[str]:
        if "" in self:
            yield ""
        for place in sorted(self._path.iterdir(), key=str):
            if place.name in self:
                yield place.name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _open(self, name: str) -> Any:
        import zarr

        found = self._metadata(name)
        if found is None:
            raise KeyError(name)
        version, metadata = found
        compressor = _check(name, version, metadata)
        place = self._path / name if name else self._path
        if compressor is not None:
            for chunk in place.rglob("*"):
                if chunk.is_file() and chunk.name not in (".zattrs", *_METADATA.values()):
                    check_chunk(chunk, compressor, self._size)
        return zarr.open_array(str(place), mode="r", zarr_format=version)

    @cached_property
    def _size(self) -> int:
        return sum(int(p.stat().st_size) for p in self._path.rglob("*") if p.is_file())

    def _metadata(self, name: str) -> tuple[int, dict[str, Any]] | None:
        """The format of an array and its metadata; None where there is no array of that name."""
        place = self._path / name if name else self._path
        for version, member in _METADATA.items():
            if (place / member).is_file():
                metadata = json.loads((place / member).read_text(encoding="utf-8"))
                if not isinstance(metadata, dict):
                    raise ValueError(f"the metadata of dataset {name!r} are not a JSON object")
                if version == 2 or metadata.get("node_type") == "array":
                    return version, metadata
        return None


def _check(name: str, version: int, metadata: Mapping[str, Any]) -> str | None:
    """Refuse all but plain numbers; returns the one codec that compresses them, if any."""
    if version == 3:
        if metadata.get("storage_transformers"):
            raise ValueError("has storage transformers, which are not read")
        if dict(metadata.get("chunk_grid") or {}).get("name") != "regular":
            raise ValueError("has chunks of different shapes, which are not read")
        dtype, chain = metadata.get("data_type"), metadata.get("codecs") or []
        codecs = [codec.get("name") if isinstance(codec, dict) else codec for codec in chain]
        codecs = [str(codec).removeprefix("numcodecs.") for codec in codecs]
    else:
        dtype = metadata.get("dtype")
        chain = [*(metadata.get("filters") or []), metadata.get("compressor")]
        codecs = [codec["id"] for codec in chain if codec is not None]
    try:
        kind = np.dtype(dtype).kind if isinstance(dtype, str) else "O"
    except TypeError:
        kind = "O"
    if kind not in "biuf":
        raise ValueError(
            f"dataset {name!r} is of type {str(dtype)[:40]!r}; only numbers are read from .zarr"
        )
    for codec in codecs:
        if codec not in _CODECS:
            raise ValueError(
                f"dataset {name!r} is stored by the codec {str(codec)[:40]!r}; arrays of numbers "
                f"are read that need none but {', '.join(sorted(_CODECS))}"
            )
    # A chunk that is compressed twice, or shuffled afterwards, decodes to more than it says.
    compressors = [codec for codec in codecs if codec in _COMPRESSORS]
    last = [codec for codec in codecs if codec != "crc32c"][-1:]
    if len(compressors) > 1 or compressors != [c for c in last if c in _COMPRESSORS]:
        raise ValueError(f"dataset {name!r} must be compressed once and last to be read")
    return compressors[0] if compressors else None
