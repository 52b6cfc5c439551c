"""Files made to harm: .zarr folders that name a pickle codec, small files that unpack to a lot."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import pickle  # noqa: TID251 - what is written here must never be loaded
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

FEATURES = np.arange(24, dtype="<f4").reshape(4, 6)
GIGABYTE = 2**30


def write_zarr2(
    place: Path,
    chunk: bytes,
    *,
    dtype: str = "<f4",
    shape: tuple[int, ...] = (4, 6),
    chunks: tuple[int, ...] | None = None,
    compressor: dict[str, Any] | None = None,
    filters: list[dict[str, Any]] | None = None,
) -> None:
    """An array of format 2 whose only chunk holds these bytes, whatever its metadata say."""
    place.mkdir(parents=True)
    metadata = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks or shape,
        "dtype": dtype,
        "compressor": compressor,
        "filters": filters,
        "fill_value": None,
        "order": "C",
    }
    (place / ".zarray").write_text(json.dumps(metadata), encoding="utf-8")
    (place / ".".join("0" * len(shape))).write_bytes(chunk)


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def _labels(**codecs: Any) -> tuple[str, dict[str, Any]]:
    return "instance_labels", {"dtype": "|O", "shape": (4,), **codecs}


PICKLE, TEXT = {"id": "pickle", "protocol": 4}, {"id": "vlen-utf8"}
# Which array of the folder is pickled, and how its metadata say so.
PICKLED = {
    "a compressor": _labels(compressor=PICKLE),
    "a filter": ("coords", {"dtype": "|O", "shape": (4,), "filters": [PICKLE]}),
    "second in a chain": _labels(compressor=PICKLE, filters=[TEXT]),
    "numbers, it says": ("instance_labels", {"shape": (4,), "compressor": PICKLE}),
    "the features": ("features", {"compressor": PICKLE}),
}


def write_pickled(folder: Path, kind: str, mark: Path) -> None:
    """A .zarr folder that runs code where its codecs are trusted."""
    name, metadata = PICKLED[kind]
    if name != "features":
        write_zarr2(folder / "features", FEATURES.tobytes())
    write_zarr2(folder / name, pickle.dumps(Payload(mark)), **metadata)
    (folder / ".zgroup").write_text('{"zarr_format": 2}', encoding="utf-8")


# Bombs: each takes a folder and returns what to read.


def parquet_lists(place: Path) -> Path:
    """One row with a list of sixty million zeros."""
    import pyarrow
    import pyarrow.parquet

    zeros = pyarrow.array(np.zeros(60_000_000, dtype=np.float32))
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, len(zeros)], pyarrow.int32()), zeros)
    table = pyarrow.table({"slide_id": ["a"], "features": lists})
    pyarrow.parquet.write_table(table, place / "lists.parquet")
    return place / "lists.parquet"


def parquet_footer(place: Path) -> Path:
    """The same list, in a file whose summary says that it has six values."""
    path = parquet_lists(place)
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    many, few = b"\x80\x9c\x9c\x39", b"\x8c\x80\x80\x00"  # both of four bytes
    assert many in content[start:]
    path.write_bytes(content[:start] + content[start:].replace(many, few))
    return path


def _parquet_text(name: str, **options: Any) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        import pyarrow
        import pyarrow.parquet

        codes = pyarrow.array(np.zeros(3000, dtype=np.int32))
        text = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(["a" * 2**20]))
        if name != "codes":
            text = text.slice(0, 400).cast(pyarrow.string())
        table = pyarrow.table({"slide_id": text, "f": np.zeros(len(text))})
        pyarrow.parquet.write_table(table, place / f"{name}.parquet", **options)
        return place / f"{name}.parquet"

    return write


def xlsx_corner(place: Path) -> Path:
    """One cell in the first corner of a sheet, one in the last."""
    import openpyxl

    book = openpyxl.Workbook()
    book.active["A1"], book.active["XFD1048576"] = "slide_id", 1
    book.save(place / "corner.xlsx")
    return place / "corner.xlsx"


def h5_chunk(place: Path) -> Path:
    """Four rows in a chunk of almost a gigabyte of zeros."""
    with h5py.File(place / "chunk.h5", "w") as file:
        shape = {"shape": (4, 6), "chunks": (2**18, 900), "maxshape": (None, None)}
        data = file.create_dataset("features", dtype="f4", compression="gzip", **shape)
        data.id.write_direct_chunk((0, 0), _deflated(2**18 * 900 * 4))
    return place


def h5_stream(place: Path) -> Path:
    """A chunk of 16 MB whose compressed stream goes on for a gigabyte."""
    with h5py.File(place / "stream.h5", "w") as file:
        shape = {"shape": (4, 6), "chunks": (4, 2**20), "maxshape": (None, None)}
        data = file.create_dataset("features", dtype="f4", compression="gzip", **shape)
        data.id.write_direct_chunk((0, 0), _deflated(GIGABYTE))
    return place


def h5_text(place: Path) -> Path:
    """Four thousand labels that are all the same megabyte of text."""
    with h5py.File(place / "text.h5", "w") as file:
        file["features"] = np.ones((4000, 6), dtype=np.float32)
        labels = file.create_dataset("instance_labels", (4000,), dtype=h5py.string_dtype())
        labels[0] = "y" * 2**20
        at = labels.id.get_offset()
    content = (place / "text.h5").read_bytes()
    pointers = content[at : at + 16] * 4000
    (place / "text.h5").write_bytes(content[:at] + pointers + content[at + len(pointers) :])
    return place


def _deflated(size: int) -> bytes:
    packer = zlib.compressobj(1)
    zeros = bytes(2**24)
    pieces = [packer.compress(zeros[: min(2**24, size - at)]) for at in range(0, size, 2**24)]
    return b"".join([*pieces, packer.flush()])


def _zarr(compressor: str, encode: Callable[[], bytes], **more: Any) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        how = {"compressor": {"id": compressor}, **more}
        write_zarr2(place / "slide.zarr" / "features", encode(), **how)
        (place / "slide.zarr" / ".zgroup").write_text('{"zarr_format": 2}', encoding="utf-8")
        return place

    return write


def _zstd() -> bytes:
    import numcodecs

    return bytes(numcodecs.Zstd().encode(bytes(GIGABYTE // 2)))


def _blosc() -> bytes:
    import numcodecs

    return bytes(numcodecs.Blosc(cname="zstd").encode(np.zeros(GIGABYTE // 2, dtype="u1")))


BOMBS: dict[str, Callable[[Path], Path]] = {
    "parquet, a list of zeros": parquet_lists,
    "parquet, a summary that lies": parquet_footer,
    "parquet, one text in every row": _parquet_text("codes", compression="zstd"),
    "parquet, text without a dictionary": _parquet_text(
        "delta", use_dictionary=False, column_encoding={"slide_id": "DELTA_BYTE_ARRAY"}
    ),
    "xlsx, a cell in the last corner": xlsx_corner,
    "h5, a chunk that is too large": h5_chunk,
    "h5, a chunk that goes on": h5_stream,
    "h5, one text for every label": h5_text,
    "zarr, a chunk that is too large": _zarr("zstd", _zstd, chunks=(2**20, 128)),
    "zarr, gzip that goes on": _zarr("gzip", lambda: gzip.compress(bytes(GIGABYTE // 2), 1)),
    "zarr, bz2 that goes on": _zarr("bz2", lambda: bz2.compress(bytes(GIGABYTE // 2))),
    "zarr, zstd that goes on": _zarr("zstd", _zstd),
    "zarr, blosc that goes on": _zarr("blosc", _blosc),
}
