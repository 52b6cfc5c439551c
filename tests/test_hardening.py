"""Crafted files, odd outputs, signals and odd names: refused or survived in one line."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from bagwise import Bags, persist
from bagwise.cli import main
from bagwise.datasets import make_gaussian_bags
from bagwise.files import (
    BadFilesError,
    FileProblem,
    new_file,
    new_folder,
    read_bags,
    read_geojson,
    read_label_studio,
)
from bagwise.files.limits import allow_unpacked, check_unpacked, check_zip
from bagwise.models.registry import make_model
from bagwise.vision.images import read_image
from tests.crafted import BOMBS, FEATURES, PICKLED, write_pickled
from tests.filing import make_folder, write_labels
from tests.test_persist import rewrite

QUICK = ["--model", "single-instance"]


def run(*words):
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("trained")
    folder, labels = make_folder(root)
    model = root / "m.bagwise"
    assert run("fit", "--bags", folder, "--labels", labels, *QUICK, "--cv", 3, "--out", model) == 0
    return folder, labels, model


def one_line(capsys, code, *words):
    """Run a command that must end with ``code`` and say one line on stderr."""
    capsys.readouterr()
    assert run(*words) == code
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    assert "np.str_" not in said
    return said


# Files that claim more than they hold.


def test_the_limit_is_a_multiple_of_the_size_with_a_floor():
    check_unpacked(256 * 2**20, 10)
    check_unpacked(20 * 10**9, 10**9)
    with pytest.raises(ValueError, match=r"claims 269 MB.*--max-unpacked"):
        check_unpacked(256 * 2**20 + 10**6, 10)
    with pytest.raises(ValueError, match="claims 20001 MB"):
        check_unpacked(20 * 10**9 + 10**6, 10**9)
    with allow_unpacked(10**10):
        check_unpacked(10**10, 10)
    with pytest.raises(ValueError, match="claims"):
        check_unpacked(10**10, 10)


def zip_of_zeros(path, name, megabytes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as f:
        for _ in range(megabytes):
            f.write(bytes(2**20))


def test_an_npz_bomb(tmp_path):
    folder = tmp_path / "bags"
    folder.mkdir()
    zip_of_zeros(folder / "a.npz", "features.npy", 300)
    with pytest.raises(BadFilesError, match=r"a\.npz: has 0\.\d MB on disk but claims 315 MB"):
        read_bags(folder)


def test_an_array_in_a_zip_cannot_claim_more_than_its_bytes(tmp_path):
    header = io.BytesIO()
    claim = {"descr": "<f8", "fortran_order": False, "shape": (10**9, 1000)}
    np.lib.format.write_array_header_1_0(header, claim)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("features.npy", header.getvalue() + bytes(800))
    with pytest.raises(ValueError, match=r"claims the shape \(1000000000, 1000\) but has only"):
        check_zip(tmp_path / "a.npz", 1000)


def test_text_of_characters_that_do_not_exist(tmp_path):
    names = np.array(["cell"])
    names.view("u4")[2] = 0x113_7BC
    np.savez(tmp_path / "a.npz", features=names)
    with pytest.raises(BadFilesError, match="characters that do not exist"):
        read_bags(tmp_path)


def test_hdf5_that_claims_two_hundred_gigabytes(tmp_path, capsys, trained):
    folder, labels = make_folder(tmp_path)
    with h5py.File(folder / "000.h5", "w") as file:
        file.create_dataset("features", (25 * 10**9, 1), "f8", chunks=(10**6, 1))
    start = time.perf_counter()
    words = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--out", tmp_path / "m"]
    said = one_line(capsys, 2, *words)
    assert "claims 200000 MB of content" in said
    assert time.perf_counter() - start < 20
    with h5py.File(folder / "000.h5", "w") as file:
        file["features"] = np.ones((4, 6))
        file.create_dataset("coords", (4, 10**10), "f8", chunks=(4, 10**6))
    assert "claims 320000 MB" in one_line(capsys, 2, *words)


def test_a_torch_file_whose_tensor_repeats_one_number(tmp_path):
    torch = pytest.importorskip("torch", reason="reads .pt files")
    torch.save(torch.zeros(1, 1).expand(10**8, 1000), tmp_path / "a.pt")
    with pytest.raises(BadFilesError, match="claims 400000 MB"):
        read_bags(tmp_path)


def test_a_parquet_table_of_one_repeated_value(tmp_path):
    zeros = np.zeros(2_000_000)
    frame = pd.DataFrame({f"x{i}": zeros for i in range(20)}, copy=False)
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(BadFilesError, match="claims 320 MB"):
        read_bags(tmp_path / "t.parquet")


def test_a_table_of_endless_columns(tmp_path):
    (tmp_path / "t.csv").write_text("slide_id" + "," * 200_000 + "\n")
    with pytest.raises(BadFilesError, match="has 200001 columns"):
        read_bags(tmp_path / "t.csv")


def png_claiming(side):
    """A valid header of a PNG, whatever follows."""
    import struct
    import zlib

    def chunk(kind, body):
        crc = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


def test_a_picture_of_too_many_pixels(tmp_path):
    (tmp_path / "a.png").write_bytes(png_claiming(30_000))
    with pytest.raises(ValueError, match=r"a\.png' has .* but claims 3600 MB"):
        read_image(tmp_path / "a.png")


def test_a_model_that_unpacks_to_gigabytes(tmp_path, capsys, trained):
    path = tmp_path / "m.bagwise"
    zip_of_zeros(path, "model.zip", 300)
    assert "claims 315 MB" in one_line(capsys, 2, "info", path)


def test_a_bomb_inside_the_parameters(tmp_path, trained):
    path = tmp_path / "m.bagwise"
    path.write_bytes(trained[2].read_bytes())
    payload = io.BytesIO(zipfile.ZipFile(path).read("model.zip"))
    with zipfile.ZipFile(payload, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.bin", bytes(300 * 2**20))
    rewrite(path, payload=payload.getvalue())
    with pytest.raises(ValueError, match=r"claims 31\d MB"):
        persist.load(path)


# HDF5 that points elsewhere on the machine.


WATCHED = """
import json, resource, sys, time
from pathlib import Path
from bagwise.cli import main

for name, bags in json.loads(sys.argv[1]):
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    start = time.process_time()
    code = main(["fit", "--bags", bags, "--labels", sys.argv[2], "--out", "m.bagwise"])
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1e6
    print(json.dumps([name, code, peak, time.process_time() - start]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads peaks from /proc")
def test_bombs_are_refused_before_they_unpack(tmp_path):
    for library in ("zarr", "openpyxl"):
        pytest.importorskip(library)
    sources = []
    for number, (name, write) in enumerate(BOMBS.items()):
        place = tmp_path / str(number)
        place.mkdir()
        sources.append((name, str(write(place))))
    write_labels(tmp_path / "labels.csv", [("a", 0), ("b", 1)])
    words = [sys.executable, "-c", WATCHED, json.dumps(sources), str(tmp_path / "labels.csv")]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in ended.stdout.splitlines() if line[:1] == "["]
    assert [name for name, *_ in rows] == list(BOMBS)
    for name, code, gigabytes, seconds in rows:
        assert code == 2, name
        assert gigabytes < 1, (name, gigabytes)
        assert seconds < 15, (name, seconds)
    said = [line for line in ended.stderr.splitlines() if line.startswith("bagwise: error")]
    assert len(said) == len(BOMBS)
    for line in said:
        assert re.search(r"at most \d+ MB are read.*--max-unpacked", line), line
    assert not (tmp_path / "m.bagwise").exists()


def test_the_limit_is_raised_for_what_is_decoded(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        shape = {"shape": (4, 6), "chunks": (2**20, 100), "maxshape": (None, None)}
        file.create_dataset("features", dtype="f4", **shape)
    with pytest.raises(BadFilesError, match="claims 419 MB"):
        read_bags(tmp_path)
    with allow_unpacked(10**9):
        assert read_bags(tmp_path).n_instances == 4


def test_long_text_that_is_really_there_is_read(tmp_path):
    pytest.importorskip("openpyxl", reason="writes .xlsx")
    frame = pd.DataFrame({"slide_id": [f"{i % 7}" + "x" * 2000 for i in range(300)]})
    frame["f"] = np.arange(300.0)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    for name in ("t.parquet", "t.xlsx"):
        assert len(read_bags(tmp_path / name)) == 7
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = FEATURES
        file.create_dataset("instance_labels", data=["a" * 5000] * 4, dtype=h5py.string_dtype())
    assert read_bags(tmp_path).columns["instance_labels"].shape == (4,)


def test_pages_are_counted_as_they_are(tmp_path):
    import pyarrow.parquet

    from bagwise.files.parquet_pages import count_pages

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"name": [f"s{i}" for i in range(5000)], "x": rng.normal(size=5000)})
    frame["lists"], frame["gaps"] = [[1.0, 2.0]] * 5000, [True, None, False, None, None] * 1000
    for number, options in enumerate([{}, {"row_group_size": 999}, {"use_dictionary": False}]):
        path = tmp_path / f"{number}.parquet"
        frame.to_parquet(path, data_page_version=f"{1 + number % 2}.0", **options)
        about = pyarrow.parquet.ParquetFile(path).metadata
        groups = [about.row_group(g) for g in range(about.num_row_groups)]
        for i in range(4):
            columns = [group.column(i) for group in groups]
            with path.open("rb") as file:
                pages = count_pages(file, columns)
            assert pages.values == sum(column.num_values for column in columns)
            assert 0 < pages.n_bytes < sum(column.total_uncompressed_size for column in columns)


def test_an_empty_first_sheet(tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="writes .xlsx")
    openpyxl.Workbook().save(tmp_path / "t.xlsx")
    with pytest.raises(BadFilesError, match=r"t\.xlsx: has no column 'slide_id'"):
        read_bags(tmp_path / "t.xlsx")


CORNERS = [[0, 0], [256, 0], [256, 256], [0, 256], [0, 0]]


@pytest.mark.parametrize(
    "coordinates",
    [
        3,
        [3],
        [[3]],
        [[]],
        [[[]]],
        [[CORNERS[:3]]],
        [[[[0, 1e308], *CORNERS]]],
        [[[[0, float("nan")], *CORNERS]]],
        [[[[0, 10**400], *CORNERS]]],
        [[[[1, [2]], *CORNERS]]],
    ],
)
def test_shapes_that_are_no_polygons(coordinates, tmp_path):
    geometry = {"type": "MultiPolygon", "coordinates": coordinates}
    properties = {"classification": {"name": "b"}}
    feature = {"type": "Feature", "geometry": geometry, "properties": properties}
    (tmp_path / "a.geojson").write_text(json.dumps([feature]))
    bags = Bags(np.ones((1, 2)), [0, 1], ["a"], columns={"coords": np.zeros((1, 2))})
    with pytest.raises(BadFilesError, match=r"a\.geojson: feature 0: .*points"):
        read_geojson(tmp_path / "a.geojson", bags, ["a", "b"])


def test_json_too_deep_to_read(tmp_path):
    (tmp_path / "a.geojson").write_text("[" * 100_000 + "]" * 100_000)
    bags = Bags(np.ones((1, 2)), [0, 1], ["a"], columns={"coords": np.zeros((1, 2))})
    for read in (read_geojson, read_label_studio):
        with pytest.raises(BadFilesError, match="is not JSON"):
            read(tmp_path / "a.geojson", bags, ["a", "b"])


# Files that name code.


@pytest.mark.parametrize("kind", PICKLED)
def test_no_codec_of_a_zarr_folder_runs_code(kind, tmp_path, capsys):
    pytest.importorskip("zarr", reason="reads .zarr folders")
    write_pickled(tmp_path / "bags" / "a.zarr", kind, tmp_path / "mark")
    write_labels(tmp_path / "labels.csv", [("a", 0), ("b", 1)])
    words = ["fit", "--bags", tmp_path / "bags", "--labels", tmp_path / "labels.csv"]
    said = one_line(capsys, 2, *words, "--out", tmp_path / "m")
    assert re.search("only numbers are read|stored by the codec 'pickle'", said)
    assert not re.search("allow|enable|ALLOW|trust", said)
    assert not (tmp_path / "mark").exists()


V2_CODECS = [
    ([], None),
    *(([], name) for name in ("Zlib", "GZip", "Zstd", "Blosc", "LZ4", "BZ2")),
    (["Delta"], "Zlib"),
    (["Shuffle"], "Zstd"),
]
V3_CODECS = [(), ("GzipCodec",), ("ZstdCodec",), ("BloscCodec",), ("ZstdCodec", "Crc32cCodec")]


@pytest.mark.parametrize(("filters", "compressor"), V2_CODECS)
def test_codecs_of_numbers_are_read(filters, compressor, tmp_path):
    zarr = pytest.importorskip("zarr", reason="writes .zarr folders")
    numcodecs = pytest.importorskip("numcodecs")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    options = {"Delta": {"dtype": "f4"}, "Shuffle": {"elementsize": 4}}
    group.create_array(
        "features",
        data=FEATURES,
        filters=[getattr(numcodecs, name)(**options[name]) for name in filters],
        compressors=None if compressor is None else getattr(numcodecs, compressor)(),
    )
    assert np.array_equal(read_bags(tmp_path, lazy=True).instances[:], FEATURES)


@pytest.mark.parametrize("names", V3_CODECS)
def test_codecs_of_the_newer_format_are_read(names, tmp_path):
    zarr = pytest.importorskip("zarr", reason="writes .zarr folders")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3)
    compressors = [getattr(zarr.codecs, name)() for name in names] or None
    group.create_array("features", data=FEATURES, compressors=compressors)
    assert np.array_equal(read_bags(tmp_path).instances, FEATURES)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data_type": "string"}, "is of type 'string'"),
        ({"data_type": {"name": "numpy.datetime64"}}, "only numbers are read"),
        ({"codecs": [{"name": "bytes"}, {"name": "numcodecs.pickle"}]}, "codec 'pickle'"),
        ({"codecs": [{"name": "vlen-utf8"}]}, "codec 'vlen-utf8'"),
        ({"codecs": [{"name": "sharding_indexed"}]}, "codec 'sharding_indexed'"),
        ({"codecs": [{"name": "gzip"}, {"name": "zstd"}]}, "compressed once and last"),
        ({"codecs": [{"name": "gzip"}, {"name": "numcodecs.shuffle"}]}, "once and last"),
        ({"storage_transformers": [{"name": "x"}]}, "storage transformers"),
        ({"chunk_grid": {"name": "rectilinear"}}, "chunks of different shapes"),
    ],
)
def test_metadata_are_read_before_the_array(change, says, tmp_path):
    zarr = pytest.importorskip("zarr", reason="writes .zarr folders")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3)
    group.create_array("features", data=FEATURES)
    place = tmp_path / "a.zarr" / "features" / "zarr.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **change}))
    with pytest.raises(BadFilesError, match=says):
        read_bags(tmp_path)


def test_metadata_gathered_in_the_group_are_not_believed(tmp_path):
    zarr = pytest.importorskip("zarr", reason="writes .zarr folders")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    group.create_array("features", data=FEATURES)
    metadata = {".zgroup": {"zarr_format": 2}, "features/.zarray": {"dtype": "|O"}}
    content = {"zarr_consolidated_format": 1, "metadata": metadata}
    (tmp_path / "a.zarr" / ".zmetadata").write_text(json.dumps(content))
    assert np.array_equal(read_bags(tmp_path).instances, FEATURES)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_advice_to_unpickle_is_not_repeated(suffix, tmp_path):
    objects = np.array([{"a": 1}], dtype=object)
    if suffix == ".npy":
        np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    else:
        np.savez(tmp_path / "a.npz", features=objects)
    with pytest.raises(BadFilesError) as caught:
        read_bags(tmp_path)
    assert "Python objects" in str(caught.value)
    assert "allow_pickle" not in str(caught.value)


@pytest.fixture
def secret(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    with h5py.File(tmp_path / "elsewhere" / "secret.h5", "w") as file:
        file["features"] = np.full((4, 6), 42.0)
    (tmp_path / "elsewhere" / "raw.bin").write_bytes(np.full((4, 6), 42.0).tobytes())
    (tmp_path / "bags").mkdir()
    return tmp_path / "elsewhere"


def link_out(file, secret):
    file["features"] = h5py.ExternalLink(str(secret / "secret.h5"), "/features")


def link_out_by_a_detour(file, secret):
    file["there"] = h5py.ExternalLink(str(secret / "secret.h5"), "/")
    file["features"] = h5py.SoftLink("/there/features")


def raw_storage(file, secret):
    where = [(str(secret / "raw.bin"), 0, h5py.h5f.UNLIMITED)]
    file.create_dataset("features", (4, 6), "f8", external=where)


def virtual(file, secret):
    layout = h5py.VirtualLayout((4, 6), "f8")
    layout[:] = h5py.VirtualSource(str(secret / "secret.h5"), "features", (4, 6))
    file.create_virtual_dataset("features", layout)


def linked_coords(file, secret):
    file["features"] = np.ones((4, 6))
    file["coords"] = h5py.ExternalLink(str(secret / "secret.h5"), "/features")


def circle(file, secret):
    file["features"] = h5py.SoftLink("/features")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (link_out, "link out of the file"),
        (link_out_by_a_detour, "link out of the file"),
        (raw_storage, "keeps its numbers in another file"),
        (virtual, "is virtual"),
        (linked_coords, "'coords' is a link out of the file"),
        (circle, "leads in circles"),
    ],
)
def test_hdf5_is_not_followed_out_of_its_file(make, says, secret, tmp_path):
    with h5py.File(tmp_path / "bags" / "a.h5", "w") as file:
        make(file, secret)
    with pytest.raises(BadFilesError, match=says):
        read_bags(tmp_path / "bags")


def test_links_inside_a_file_are_followed(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["group/deep"] = np.full((4, 6), 3.0)
        file["group/near"] = h5py.SoftLink("deep")
        file["features"] = h5py.SoftLink("/group/near")
    bags = read_bags(tmp_path)
    np.testing.assert_array_equal(bags.instances, np.full((4, 6), 3.0))


def test_a_pipe_among_the_bags_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "a.h5")
    with pytest.raises(BadFilesError, match="special file"):
        read_bags(tmp_path)


# Outputs that are not plain.


@pytest.mark.parametrize("kind", ["link", "dangling link", "device", "pipe"])
def test_special_outputs_are_refused_even_with_force(kind, tmp_path, capsys, trained):
    folder, labels, model = trained
    target = tmp_path / "target"
    out = Path(os.devnull) if kind == "device" else tmp_path / "out"
    if kind == "link":
        target.write_text("precious")
    if "link" in kind:
        out.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(out)
    says = "symbolic link" if "link" in kind else "device or another special file"
    for words in (
        ["fit", "--bags", folder, "--labels", labels, *QUICK],
        ["predict", model, "--bags", folder],
    ):
        assert says in one_line(capsys, 2, *words, "--out", out, "--force")
    with pytest.raises(ValueError, match=says), new_file(out):
        pass
    with pytest.raises(ValueError, match=says), new_folder(out):
        pass
    assert not target.exists() or target.read_text() == "precious"
    assert Path(os.devnull).is_char_device()


# Descriptions of models.

ODD_DESCRIPTIONS = {
    "no parameters": lambda about: about.pop("parameters"),
    "parameters of numbers": lambda about: about.update(parameters={"a": 1}),
    "steps of numbers": lambda about: about.update(steps=[1, 2]),
    "training of text": lambda about: about.update(training="much"),
    "counts of text": lambda about: about["training"].update(n_bags="<b>many</b>"),
    "classes with markup": lambda about: about["training"].update(classes={"a": "<img src=x>"}),
    "extra of nothing": lambda about: about.update(extra=None),
    "remarks of one text": lambda about: about["extra"].update(remarks="beware"),
    "an audit of text": lambda about: about["extra"].update(audit="fine"),
    "a finding without strength": lambda about: about["extra"].update(
        audit={"checks": ["size"], "findings": [{"check": "size", "what": "a", "where": "b"}]}
    ),
    "class names of one": lambda about: about["extra"].update(class_names=["a"]),
    "an evaluation of other lengths": lambda about: about["extra"]["evaluation"].update(y=[0]),
    "an evaluation of text": lambda about: about["extra"].update(evaluation="good"),
    "no features": lambda about: about.pop("n_features"),
    "no feature names": lambda about: about.pop("feature_names"),
    "features of text": lambda about: about.update(n_features="six"),
    "a version of nothing": lambda about: about.update(bagwise=None),
}


@pytest.mark.parametrize("odd", ODD_DESCRIPTIONS)
def test_descriptions_are_of_the_right_type(odd, trained, tmp_path, capsys):
    folder, _, model = trained
    path = tmp_path / "m.bagwise"
    path.write_bytes(model.read_bytes())
    rewrite(path, ODD_DESCRIPTIONS[odd])
    assert "its description has a wrong" in one_line(capsys, 2, "info", path)
    words = ["predict", path, "--bags", folder, "--out", tmp_path / "o"]
    assert str(path) in one_line(capsys, 2, *words)
    assert not (tmp_path / "o").exists()


ODD_ARRAYS = {
    "cut off": lambda x: x[:-1],
    "on its side": lambda x: x.T if x.ndim > 1 else x[None],
    "NaN": lambda x: np.full_like(x, np.nan) if x.dtype.kind == "f" else x,
    "zero": np.zeros_like,
}


@pytest.mark.parametrize("name", ["vgpmil", "dpmil", "misvm", "mio", "single-instance"])
def test_odd_arrays_of_a_model_are_a_value_error_or_finite(name, tmp_path):
    """One array at a time, with checksums that match."""
    bags, y = make_gaussian_bags(24, 3, random_state=0, return_X_y=True)
    quick = {"vgpmil": {"n_inducing": 8, "max_iter": 20, "tol": 0.0}}
    good = persist.save(make_model(name, **quick.get(name, {})).fit(bags, y), tmp_path / "good")
    with zipfile.ZipFile(io.BytesIO(zipfile.ZipFile(good).read("model.zip"))) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    refused = 0
    for member in [m for m in members if m.endswith(".npy")]:
        array = np.load(io.BytesIO(members[member]))
        for change in ODD_ARRAYS.values() if array.ndim and array.size else ():
            changed, payload = io.BytesIO(), io.BytesIO()
            np.save(changed, change(array))
            with zipfile.ZipFile(payload, "w") as archive:
                for other, content in members.items():
                    archive.writestr(other, changed.getvalue() if other == member else content)
            path = tmp_path / "odd.bagwise"
            path.write_bytes(good.read_bytes())
            rewrite(path, payload=payload.getvalue())
            try:
                with np.errstate(all="ignore"):
                    p = persist.load(path).predict_proba(bags)
            except ValueError:
                refused += 1
            else:
                assert ((p >= 0) & (p <= 1)).all(), (member, array.shape)
    assert refused > 2


def test_an_edited_description_does_not_match_its_checksum(trained, tmp_path, capsys):
    path = tmp_path / "m.bagwise"
    with zipfile.ZipFile(trained[2]) as old, zipfile.ZipFile(path, "w") as new:
        about = json.loads(old.read("bagwise.json"))
        about["training"]["n_bags"] = 7
        new.writestr("bagwise.json", json.dumps(about))
        new.writestr("model.zip", old.read("model.zip"))
    assert "does not match its checksum" in one_line(capsys, 2, "info", path)


def test_deep_nesting(trained, tmp_path, capsys):
    path = tmp_path / "m.bagwise"
    deep = "[" * 200_000 + "]" * 200_000
    with zipfile.ZipFile(path, "w") as new:
        new.writestr("bagwise.json", '{"format": "bagwise-model", "x": ' + deep + "}")
    assert "not JSON" in one_line(capsys, 2, "info", path)
    path.write_bytes(trained[2].read_bytes())

    payload = io.BytesIO()
    with zipfile.ZipFile(payload, "w") as new:
        new.writestr("tree.json", '{"object": "a", "state": ' + deep + "}")
    rewrite(path, payload=payload.getvalue())
    folder = trained[0]
    words = ["predict", path, "--bags", folder, "--out", tmp_path / "o"]
    assert "cannot be read" in one_line(capsys, 2, *words)


# Names and arguments.


@pytest.mark.parametrize("content", [b"", b"other content", b"PK\x03\x04 cut off"])
def test_a_damaged_checkpoint_is_named(content, trained, tmp_path, capsys):
    folder, labels, _ = trained
    checkpoint = tmp_path / "fit.npz"
    checkpoint.write_bytes(content)
    words = ["--model", "vgpmil", "--set", f"execution.checkpoint={checkpoint}"]
    out = tmp_path / "m.bagwise"
    said = one_line(capsys, 2, "fit", "--bags", folder, "--labels", labels, *words, "--out", out)
    assert f"{checkpoint} is not a checkpoint" in said
    assert not out.exists()


def test_square_brackets_and_emoji_in_class_names(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    names = ["[/x] none", "[bold]:smile: np"]
    write_labels(labels, [(f"{i:03d}", names[i % 2]) for i in range(24)])
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--cv", 2, "--positive", names[1]]
    assert run(*fit, "--out", tmp_path / "m") == 0
    assert run("predict", tmp_path / "m", "--bags", folder, "--out", tmp_path / "o") == 0
    assert f"bags are {names[1]}" in capsys.readouterr().out
    assert run("info", tmp_path / "m") == 0
    assert names[0] in capsys.readouterr().out


def test_messages_have_the_users_names(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    write_labels(labels, [(f"{i:03d}", ["normal", "tumor"][i % 2]) for i in range(24)])
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--out", tmp_path / "m"]
    said = one_line(capsys, 2, *fit, "--cv", 13, "--positive", "tumor")
    assert "class normal has 12" in said
    patches = tmp_path / "patches.csv"
    patches.write_text("slide_id,index,label\n001,0,maybe\n")
    said = one_line(capsys, 2, *fit, "--instance-labels", patches, "--positive", "tumor")
    assert "has label 'maybe'; instance labels must be one of ['normal', 'tumor']" in said


def test_seeds_and_random_states(tmp_path, capsys, trained):
    folder, labels, _ = trained
    fit = ["fit", "--bags", folder, "--labels", labels, "--model", "vgpmil", "--seed", 3]
    fit += ["--set", "random_state=7", "--set", "n_inducing=10"]
    assert run(*fit, "--out", tmp_path / "m") == 0
    assert persist.about(tmp_path / "m")["parameters"]["random_state"] == "7"
    compare = ["compare", "--bags", folder, "--labels", labels, "--models", "single-instance"]
    assert "--seeds" in one_line(capsys, 2, *compare, "--seeds", 0)
    assert "--cv" in one_line(capsys, 2, *compare, "--cv", 1)
    assert "--jobs" in one_line(capsys, 2, *compare, "--jobs", 0)


def test_six_hundred_bad_files_are_summarised(tmp_path, capsys):
    folder = tmp_path / "bags"
    folder.mkdir()
    for i in range(600):
        (folder / f"{i:03d}.npy").write_bytes(b"" if i % 2 else b"nonsense %d" % i)
    write_labels(tmp_path / "l.csv", [(f"{i:03d}", i % 2) for i in range(600)])
    words = ["fit", "--bags", folder, "--labels", tmp_path / "l.csv", "--out", tmp_path / "m"]
    assert run(*words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[0] == "bagwise: error: 600 problems:"
    assert len(lines) == 3
    assert all(line.strip().startswith("300 like this: ") for line in lines[1:])
    few = BadFilesError([FileProblem(f"{i}", "is empty") for i in range(20)])
    assert len(str(few).splitlines()) == 21


def test_coco_without_file_names(tmp_path, capsys):
    content = {"images": [{"id": 1}], "annotations": [], "categories": []}
    (tmp_path / "c.json").write_text(json.dumps(content))
    words = ["detect", "fit", "--images", tmp_path, "--coco", tmp_path / "c.json"]
    assert "file_name" in one_line(capsys, 2, *words, "--out", tmp_path / "m")
    (tmp_path / "c.json").write_text("[" * 100_000)
    assert "json" in one_line(capsys, 2, *words, "--out", tmp_path / "m")


@pytest.mark.parametrize("box", [[8, 11, 16] + [16] * 101, [1, 2, 3], [1, 2, 3, float("nan")]])
def test_coco_with_boxes_that_are_none(box, tmp_path, capsys):
    (tmp_path / "a.png").touch()
    content = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": [{"id": 5, "image_id": 1, "category_id": 1, "bbox": box}],
        "categories": [{"id": 1, "name": "cell"}],
    }
    (tmp_path / "c.json").write_text(json.dumps(content))
    words = ["detect", "fit", "--images", tmp_path, "--coco", tmp_path / "c.json"]
    said = one_line(capsys, 2, *words, "--out", tmp_path / "m")
    assert "annotation 5 of" in said and "a box is x, y, width and height" in said


# Errors nobody expected, and signals.


def test_an_unexpected_error_is_one_line_with_advice(tmp_path, capsys, trained, monkeypatch):
    def broken(*_arguments, **_more):
        raise ZeroDivisionError("no\nluck")

    monkeypatch.setattr("bagwise.cli.evaluate.read_labelled", broken)
    folder, labels, model = trained
    words = ["evaluate", model, "--bags", folder, "--labels", labels]
    said = one_line(capsys, 1, *words)
    assert said.startswith("bagwise: error: unexpected ZeroDivisionError: no luck")
    assert "--traceback" in said
    with pytest.raises(ZeroDivisionError):
        run(*words, "--traceback")


def test_too_little_memory_is_said(tmp_path, capsys, trained, monkeypatch):
    def hungry(*_arguments, **_more):
        raise MemoryError

    monkeypatch.setattr("bagwise.cli.evaluate.read_labelled", hungry)
    folder, labels, model = trained
    said = one_line(capsys, 2, "evaluate", model, "--bags", folder, "--labels", labels)
    assert "not enough memory" in said


def children(pid):
    """Processes below one, by id."""
    found, below = [], [pid]
    while below:
        parent = below.pop()
        task = Path(f"/proc/{parent}/task")
        if task.exists():
            for kid in [
                int(k) for t in task.iterdir() for k in (t / "children").read_text().split()
            ]:
                found.append(kid)
                below.append(kid)
    return found


def wait_until_gone(pids, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for workers in /proc")
def test_sigterm_removes_drafts_and_workers(tmp_path, trained):
    folder, _, model = trained
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = (
        "import subprocess, sys, time\n"
        "from joblib import Parallel, delayed\n"
        "import bagwise.report.html as html\n"
        "from bagwise.cli import main\n"
        "def slow(*_):\n"
        "    Parallel(n_jobs=2)(delayed(abs)(i) for i in range(4))\n"
        "    print('writing', flush=True)\n"
        "    Parallel(n_jobs=2)(delayed(time.sleep)(60) for _ in range(2))\n"
        "html.render_report = slow\n"
        "sys.exit(main())"
    )
    words = ["predict", model, "--bags", folder, "--out", tmp_path / "o", "--json"]
    environment = {**os.environ, "TMPDIR": str(scratch), "JOBLIB_TEMP_FOLDER": str(scratch)}
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout.readline() == "writing\n"
        workers = children(process.pid)
        assert workers
        assert any(p.name.startswith(".o.") for p in tmp_path.iterdir())
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert "stopped; nothing was written" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scratch"]
    assert list(scratch.iterdir()) == []
    assert wait_until_gone(workers)


def test_help_names_the_limit_and_every_exit_code(capsys):
    with pytest.raises(SystemExit):
        run("predict", "--help")
    said = capsys.readouterr().out
    assert "--max-unpacked" in said
    assert re.search(r"^  143 ", said, re.M)
    with pytest.raises(SystemExit) as caught:
        run("info", "m", "--max-unpacked", "-1")
    assert caught.value.code == 2
