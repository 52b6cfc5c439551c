"""Valid files made invalid: at random bytes, and by rules that know the format."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle  # noqa: TID251 - written, never loaded
import random
import zipfile
import zlib
from collections.abc import Callable
from datetime import datetime
from typing import Any

import cv2
import h5py
import numcodecs
import numpy as np
import openpyxl
import pandas as pd
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image

from tests.filing import sign

EXTREMES = [0, 1, -1, 127, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, -(2**63)]
WORDS = [
    "", " ", "nan", "NaN", "None", "inf", "-inf", "1e999", "0x10", "-1", "1.5", "１", "true",
    "null", "=1+1", "@x", "[/x]", "[bold]", ":smile:", "<script>alert(1)</script>", "a" * 20_000,
    "\x00",
    "\u202e", "ü", "\ud7ff", '"', "'", ",", "\n", "\t", "../../x", "/etc/passwd", "%s",
    "{0}", "9" * 400,
]  # fmt: skip
ODD_JSON: list[Any] = [
    None, True, -1, 0, 2**70, 1e308, -1e308, float("nan"), float("inf"), 10**400, "",
    "x" * 10_000, [], {}, [[]], {"a": None}, [None],
    "<img src=x>",
]  # fmt: skip


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, overwrite, cut, repeat, insert or shorten."""
    content = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        n = len(content)
        at, size = rng.randrange(n + 1), min(n, rng.choice([1, 2, 4, 8, 64, 512]))
        action = rng.randrange(8)
        if action == 0 and n:
            content[at % n] ^= 1 << rng.randrange(8)
        elif action == 1:
            content[at : at + size] = rng.choice([b"\x00", b"\xff", b"\x7f"]) * size
        elif action == 2:
            del content[at : at + size]
        elif action == 3:
            content[at:at] = content[at : at + size] * rng.choice([1, 2, 50])
        elif action == 4:
            content[at:at] = rng.randbytes(size)
        elif action == 5:
            del content[at:]
        elif action == 6:
            value, width = rng.choice(EXTREMES), rng.choice([2, 4, 8])
            order = rng.choice(["little", "big"])
            content[at : at + width] = (value % 256**width).to_bytes(width, order)
        else:
            content[at : at + size] = rng.randbytes(size)
    return bytes(content)


def spoil_text(data: bytes, rng: random.Random) -> bytes:
    """Odd words in cells, lost and repeated lines, other separators and encodings."""
    lines = [line.split(",") for line in data.decode("utf-8").splitlines()]
    separator, end, encoding = ",", "\n", "utf-8"
    for _ in range(rng.choice([1, 1, 2, 3])):
        row = rng.randrange(len(lines))
        action = rng.randrange(11)
        if action <= 3 and lines[row]:
            lines[row][rng.randrange(len(lines[row]))] = rng.choice(WORDS)
        elif action == 4 and len(lines) > 1:
            del lines[row]
        elif action == 5:
            lines.insert(rng.randrange(len(lines)), list(lines[row]))
        elif action == 6:
            separator = rng.choice([";", "\t", " ", "|", ",,"])
        elif action == 7:
            encoding = rng.choice(
                ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "latin-1", "utf-32", "utf-7"]
            )
        elif action == 8 and lines[row]:  # a quote that is never closed
            lines[row][0] = rng.choice(['"', 'a"', '"a""']) + lines[row][0]
        elif action == 9:
            lines.insert(row, ["\x00" * rng.choice([1, 5, 70_000])])
        else:
            end = rng.choice(["\r\n", "\r", "\n\n", "\x0b"])
    text = end.join(separator.join(line) for line in lines) + rng.choice(["", end])
    return text.encode(encoding, "replace")


def spoil_json(value: Any, rng: random.Random) -> Any:
    """The same with one part replaced, removed or nested deep."""
    if rng.random() < 0.25 or not isinstance(value, (dict, list)) or not value:
        odd = rng.choice([*ODD_JSON, "deep"])
        if odd == "deep":
            for _ in range(rng.choice([50, 900])):
                odd = [odd]
        return odd
    if isinstance(value, dict):
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: spoil_json(value[key], rng)}
    at = rng.randrange(len(value))
    return [*value[:at], spoil_json(value[at], rng), *value[at + 1 :]]


def spoil_json_text(data: bytes, rng: random.Random) -> bytes:
    """JSON as above, as text; one time in ten nested too deep to be written by a library."""
    if rng.random() < 0.1:
        depth, opening = rng.choice([900, 8000, 100_000]), rng.choice([b"[", b'{"a":'])
        return opening * depth + b"0" + (b"]" if opening == b"[" else b"}") * depth
    return json.dumps(spoil_json(json.loads(data), rng)).encode()


def spoil_zip(data: bytes, rng: random.Random) -> bytes:
    """One member spoiled, the archive itself whole."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = rng.choice(sorted(members))
    if name.endswith(".json"):
        members[name] = spoil_json_text(members[name], rng)
    elif name.endswith((".skops", ".zip")):
        members[name] = rng.choice([spoil_zip, spoil_bytes])(members[name], rng)
    else:
        members[name] = spoil_bytes(members[name], rng)
    return _zip(members)


def spoil_model(data: bytes, rng: random.Random) -> bytes:
    """A model with an odd description or odd parameters, and checksums that match."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        about, payload = json.loads(archive.read("bagwise.json")), archive.read("model.zip")
    spoiled = rng.choice(["description", "member", "array"])
    if spoiled == "description":
        about = spoil_json(about, rng)
    elif spoiled == "member":
        payload = spoil_zip(payload, rng)
    else:
        payload = swap_arrays(payload, rng)
    if isinstance(about, dict):
        about["sha256"] = hashlib.sha256(payload).hexdigest()
        sign(about)
    return _zip({"bagwise.json": json.dumps(about).encode(), "model.zip": payload})


def swap_arrays(payload: bytes, rng: random.Random) -> bytes:
    """A model with one array replaced by another of its own, or by one of odd numbers or shape."""
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    names = [name for name in members if name.endswith(".npy")]
    chosen = rng.choice(names)
    array, buffer = np.load(io.BytesIO(members[chosen])), io.BytesIO()
    how = rng.choice(["another", "turned", "flat", "number", "scaled"])
    if how == "another":
        array = np.load(io.BytesIO(members[rng.choice(names)]))
    elif how == "turned":
        array = array.T if array.ndim > 1 else array[None]
    elif how == "flat":
        array = array.reshape(-1)
    elif how == "number" or array.dtype.kind != "f":
        array = np.full_like(array, rng.choice([0, 1, 100]))
    else:
        with np.errstate(all="ignore"):
            array = array * rng.choice([np.nan, np.inf, 1e300, 1e-300, -1])
    np.save(buffer, array)
    return _zip({**members, chosen: buffer.getvalue()})


def make_picture(data: bytes, rng: random.Random) -> bytes:
    """A picture of a kind that few cameras write, sometimes cut off."""
    mode = rng.choice(["CMYK", "I;16", "P", "LA", "1", "F", "YCbCr", "RGBA"])
    suffix = {"CMYK": "JPEG", "YCbCr": "JPEG", "F": "TIFF"}.get(mode, "PNG")
    picture = Image.new(mode, rng.choice([(48, 48), (1, 1), (700, 3)]))
    more = {}
    if mode == "RGBA" and rng.random() < 0.5:  # an animation
        suffix, more = "GIF", {"save_all": True, "append_images": [picture.convert("P")] * 3}
    buffer = io.BytesIO()
    picture.save(buffer, suffix, **more)
    content = buffer.getvalue()
    return content[: rng.choice([len(content), len(content) // 2, 12])]


def _zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def odd_array(rng: random.Random) -> Any:
    """An array of a shape, type or content that features may not have."""
    shape = rng.choice([(), (0,), (5,), (5, 0), (0, 6), (5, 6), (1, 5, 6), (2, 5, 6), (1,) * 8])
    kind = rng.choice(
        ["f2", "f4", "f8", "i1", "u8", "?", "c8", "S3", "U2", "M8[s]", ">f4", "f4,i2"]
    )
    array = np.ones(shape, dtype=kind)
    if array.dtype.kind == "f" and array.size and rng.random() < 0.6:
        array.flat[rng.randrange(array.size)] = rng.choice([np.nan, np.inf, -np.inf, 1e4, 6e-8])
    return array


def make_h5(data: bytes, rng: random.Random) -> bytes:
    """An HDF5 file with odd datasets, types, attributes and links."""
    buffer = io.BytesIO(data)
    with h5py.File(buffer, "r+") as file:
        name = rng.choice(["features", "coords", "instance_labels"])
        if name in file and rng.random() < 0.9:
            del file[name]
        action = rng.randrange(11)
        if name in file:
            file[name].attrs["patch_size"] = rng.choice([[1, 2], "big", -1, np.nan, b"\xff"])
        elif action == 0:
            file[name] = h5py.ExternalLink("/etc/passwd", "/x")
        elif action == 1:
            file[name] = h5py.SoftLink(rng.choice(["/nowhere", "/" + name, "features", "."]))
        elif action == 2:
            file.create_group(name)
        elif action == 3:
            size = rng.choice([10**3, 10**7, 10**11])
            file.create_dataset(name, (size, 6), "f4", chunks=(100, 6))
        elif action == 4:
            file.create_dataset(name, data=["a", "ü", ""], dtype=h5py.string_dtype())
        elif action == 5:
            file.create_dataset(name, (3,), dtype=h5py.vlen_dtype(np.float32))
        elif action == 6:
            file.create_dataset(name, data=h5py.Empty("f4"))
        elif action == 7:
            chunks = rng.choice([(1, 1), (7, 5), (2**16, 6), (2**18, 900), (2**10, 2**18)])
            more = {"chunks": chunks, "maxshape": (None, None), "compression": "gzip"}
            file.create_dataset(name, (5, 6), "f4", **more)[:] = 1
        elif action == 8:
            more = {"chunks": (5, 2**20), "maxshape": (None, None), "compression": "gzip"}
            stream = zlib.compress(bytes(rng.choice([10, 10**7, 4 * 10**8])), 1)
            file.create_dataset(name, (5, 6), "f4", **more).id.write_direct_chunk((0, 0), stream)
        elif action == 9:
            big = np.zeros((20_000, 6), "f4")
            file.create_dataset(name, data=big, compression="gzip")
        else:
            array = odd_array(rng)
            # HDF5 stores neither text of fixed width in UTF-32 nor dates.
            kind = array.dtype.kind
            file[name] = array.astype("S3" if kind == "U" else "i8") if kind in "UM" else array
    return buffer.getvalue()


def make_npz(data: bytes, rng: random.Random) -> bytes:
    """A zip of odd arrays."""
    buffer = io.BytesIO()
    names = rng.choice([["features"], ["features", "coords"], ["x"], [], ["features/x"]])
    np.savez_compressed(buffer, **{name: odd_array(rng) for name in names})
    return buffer.getvalue()


def make_pt(data: bytes, rng: random.Random) -> bytes:
    """A torch file of odd tensors and containers."""
    x = torch.ones(5, 6)
    odd = [
        x, x.to_sparse(), x.bfloat16(), x.half(), x.bool(), x.to(torch.complex64),
        x.requires_grad_(), x[:, :0], x[0, 0], torch.zeros(1, 1).expand(10**9, 6), x.to(torch.int8),
        torch.full((5, 6), torch.nan), 3, "text", None, [1, 2], {"a": {"b": 1}},
        torch.empty(5, 6, device="meta"),
    ]  # fmt: skip
    value = rng.choice(odd)
    content = rng.choice([value, {"features": value}, {"features": x, "coords": value}, [value]])
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=rng.random() < 0.8)
    return buffer.getvalue()


def make_parquet(data: bytes, rng: random.Random) -> bytes:
    """A table with odd columns."""
    frame = pd.read_parquet(io.BytesIO(data))
    column = rng.choice(sorted(frame.columns))
    odd: list[Any] = [
        None,
        np.nan,
        "x",
        True,
        [1.0, 2.0],
        {"a": 1},
        b"\x00",
        pd.Timestamp(0),
        2**60,
    ]
    value = rng.choice(odd)
    action = rng.randrange(6)
    if action >= 4:
        return _nested_parquet(frame, column, rng)
    if action == 0:
        frame = frame.drop(columns=column)
    elif action == 1:
        frame = frame.iloc[:0]
    else:
        frame[column] = pd.Series([value] * len(frame), dtype=object)
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _nested_parquet(frame: pd.DataFrame, column: str, rng: random.Random) -> bytes:
    """A column of lists, groups or repeated text, of little size on disk."""
    n = len(frame)
    ends = pyarrow.array([0] * n + [rng.choice([0, 6, 10**4, 3 * 10**7])], pyarrow.int32())
    zeros = pyarrow.nulls(ends[-1].as_py(), pyarrow.float32()).fill_null(0)
    lists = pyarrow.ListArray.from_arrays(ends, zeros)
    texts = pyarrow.array(["x" * rng.choice([0, 10, 10**6])])
    codes = pyarrow.array([0] * n, pyarrow.int32())
    odd = [
        lists,
        pyarrow.array([[[1.0]]] * n),
        pyarrow.array([[1.0] * 6] * n, pyarrow.list_(pyarrow.float32(), 6)),
        pyarrow.array([{"a": 1, "b": "x"}] * n),
        pyarrow.array([["a", None]] * n),
        pyarrow.array([[("a", 1)]] * n, pyarrow.map_(pyarrow.string(), pyarrow.int8())),
        pyarrow.DictionaryArray.from_arrays(codes, texts),
        pyarrow.DictionaryArray.from_arrays(codes, texts).cast(pyarrow.string()),
    ]
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    at = table.column_names.index(column)
    name = rng.choice([column, "features", "label"])
    buffer = io.BytesIO()
    table = table.set_column(at, name, rng.choice(odd))
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def make_xlsx(data: bytes, rng: random.Random) -> bytes:
    """A sheet with an odd value in an odd place, or with a second sheet."""
    book = openpyxl.load_workbook(io.BytesIO(data))
    place = rng.choice(["A1", "A2", "C3", "XFD1", "A1048576", "XFD1048576", "ZZ50000", "AB2000"])
    value = rng.choice(["", "x" * 30_000, "=1/0", "#N/A", 1e308, True, None, datetime(1900, 1, 1)])
    book.active[place] = value
    if rng.random() < 0.2:
        book.create_sheet("more", rng.choice([0, 1]))
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


_CODECS = [
    None, "pickle", "zlib", "gzip", "zstd", "blosc", "lz4", "bz2", "lzma", "shuffle", "delta",
    "bytes", "crc32c", "vlen-utf8", "json2", "msgpack2", "numcodecs.pickle", "numcodecs.zlib",
    "sharding_indexed", "transpose", "no-such-codec", "", 3,
]  # fmt: skip
_TYPES = ["<f4", ">f8", "|O", "<U2", "|S3", "<M8[s]", "|b1", "<c8", "<f4,<i2", "float32", "bool",
          "string", "r16", "complex64", "x", None, 7]  # fmt: skip


def make_zarr(data: bytes, rng: random.Random) -> bytes:
    """Metadata of a .zarr array with odd codecs, types or shapes."""
    metadata = json.loads(data)
    newer = metadata["zarr_format"] == 3
    codec = [rng.choice(_CODECS) for _ in range(rng.choice([1, 1, 2]))]
    sizes = rng.choice([[5, 6], [], [0, 6], [10**9, 6], [2**20, 900], [-1, 6], [5, 6, 1], ["a"]])
    action = rng.randrange(6)
    if action < 3 and newer:
        metadata["codecs"] = [{"name": name} for name in codec]
    elif action < 3:
        metadata["compressor"] = None if codec[0] is None else {"id": codec[0]}
        metadata["filters"] = [{"id": name} for name in codec[1:]] or None
    elif action == 3:
        metadata["data_type" if newer else "dtype"] = rng.choice(_TYPES)
    elif action == 4:
        metadata["shape"] = sizes
    elif newer:
        metadata["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": sizes}}
    else:
        metadata["chunks"] = sizes
    return json.dumps(metadata).encode()


def make_chunk(data: bytes, rng: random.Random) -> bytes:
    """A chunk that is a pickle, is cut, or decodes to more than it should."""
    zeros = bytes(rng.choice([0, 10, 10**6, 4 * 10**8]))
    write = rng.choice(
        [lambda z: zlib.compress(z, 1), lambda z: gzip.compress(z, 1), numcodecs.Zstd().encode,
         numcodecs.LZ4().encode, numcodecs.Blosc().encode]
    )  # fmt: skip
    whole = bytes(write(zeros))
    return rng.choice([whole, whole[: len(whole) // 2], whole + b"x", pickle.dumps([1]), b""])


def make_png(data: bytes, rng: random.Random) -> bytes:
    """A picture of an odd size or kind."""
    shape = rng.choice([(1, 1), (1, 3000, 3), (3000, 1), (48, 48, 4), (2, 2, 3), (700, 900, 3)])
    kind = rng.choice([np.uint8, np.uint16])
    image = np.full(shape, rng.choice([0, 7, 255]), dtype=kind)
    suffix = rng.choice(
        [".png", ".tiff", ".jpg", ".webp"] if kind == np.uint8 else [".png", ".tiff"]
    )
    return bytes(cv2.imencode(suffix, image)[1].tobytes())


Mutator = Callable[[bytes, random.Random], bytes]
BY_SUFFIX: dict[str, dict[str, Mutator]] = {
    "h5": {"bytes": spoil_bytes, "h5": make_h5},
    "npz": {"bytes": spoil_bytes, "zip": spoil_zip, "npz": make_npz},
    "pt": {"bytes": spoil_bytes, "zip": spoil_zip, "pt": make_pt},
    "csv": {"bytes": spoil_bytes, "text": spoil_text},
    "parquet": {"bytes": spoil_bytes, "parquet": make_parquet},
    "xlsx": {"bytes": spoil_bytes, "zip": spoil_zip, "xlsx": make_xlsx},
    "zarray": {"bytes": spoil_bytes, "json": spoil_json_text, "zarr": make_zarr},
    "zarr": {"bytes": spoil_bytes, "json": spoil_json_text, "zarr": make_zarr},
    "chunk": {"bytes": spoil_bytes, "chunk": make_chunk},
    "geojson": {"bytes": spoil_bytes, "json": spoil_json_text},
    "png": {"bytes": spoil_bytes, "png": make_png, "kind": make_picture},
    "json": {"bytes": spoil_bytes, "json": spoil_json_text},
    "bagwise": {"bytes": spoil_bytes, "zip": spoil_zip, "model": spoil_model},
}


def mutators(file: str) -> tuple[str, dict[str, Mutator]]:
    """The kind of a file by its name, and what can spoil it."""
    if file.endswith("/zarr.json"):
        return "zarr", BY_SUFFIX["zarr"]
    suffix = file.rpartition(".")[2]
    return (suffix, BY_SUFFIX[suffix]) if suffix in BY_SUFFIX else ("chunk", BY_SUFFIX["chunk"])
