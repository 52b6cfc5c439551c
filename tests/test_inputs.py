"""More places to read bags from: nested folders, two kinds of files, Parquet lists, Zarr, S3."""

from __future__ import annotations

import json
import os
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest

from bagwise import Bags
from bagwise.cli import main
from bagwise.files import BadFilesError, Names, read_bags
from tests.filing import arrays, make_folder, write_h5, write_labels
from tests.test_files import assert_same_bags


def run(*words):
    return main([str(word) for word in words])


# Nested folders, and bags in two kinds of files.


def nested(tmp_path):
    """Bags 0 and 1 in the folder, the others in folders below it."""
    folder, labels = make_folder(tmp_path)
    for i, path in enumerate(sorted(folder.iterdir())):
        if i > 1:
            place = folder / f"site_{i % 2}" / "slides"
            place.mkdir(parents=True, exist_ok=True)
            path.rename(place / path.name)
    return folder, labels


def test_nested_folders_are_read_by_choice_and_never_ignored_in_silence(tmp_path):
    folder, _ = nested(tmp_path)
    with pytest.warns(UserWarning, match="2 files here are read; 22 in folders below are not"):
        assert len(read_bags(folder)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_bags(read_bags(folder, recursive=True))
    for path in folder.glob("*.h5"):
        path.unlink()
    with pytest.raises(BadFilesError, match="22 lie in folders below it, read with --recursive"):
        read_bags(folder)
    shutil.copy(folder / "site_0" / "slides" / "002.h5", folder / "site_1" / "002.h5")
    with pytest.raises(BadFilesError, match="bag '002' is also in"):
        read_bags(folder, recursive=True)


def test_one_bag_in_two_kinds_of_files_is_read_once(tmp_path):
    folder, _ = make_folder(tmp_path)
    for name, x, _, _ in arrays():
        np.save(folder / f"{name}.npy", x)
    with pytest.warns(UserWarning, match="24 bags are there in several kinds of files; .h5 files"):
        bags = read_bags(folder)
    assert_same_bags(bags)
    assert bags.coords is not None


# Names that are not there.


def test_names_that_were_given_must_be_there(tmp_path):
    folder, _ = make_folder(tmp_path)
    for names in (Names(coords="nope"), Names(images="nope")):
        with pytest.raises(BadFilesError, match=r"has no dataset 'nope'; it has \['coords', 'feat"):
            read_bags(folder, names)
    table = tmp_path / "rows.csv"
    table.write_text("slide_id,u,v,f\na,1,2,0.5\nb,3,4,0.25\n")
    with pytest.raises(BadFilesError, match="has no column 'nope'"):
        read_bags(table, Names(coords="nope"))
    bags = read_bags(table, Names(coords="u,v"))
    assert bags.coords.tolist() == [[1, 2], [3, 4]]
    assert bags.feature_names == ("f",)


def test_tables_leave_out_what_is_no_feature_and_say_so(tmp_path):
    rng = np.random.default_rng(0)
    table = tmp_path / "rows.csv"
    frame = pd.DataFrame({"slide_id": np.repeat(list("abcd"), 5), "patient_id": range(20)})
    frame.assign(f=rng.normal(size=20), x=1, y=2).to_csv(table)  # with pandas' own index
    with pytest.warns(UserWarning, match="'Unnamed: 0' .an id., 'patient_id' .an id."):
        bags = read_bags(table)
    assert bags.feature_names == ("f",)
    assert bags.coords.tolist() == [[1, 2]] * 20


# Lists in Parquet, frames of polars.


@pytest.mark.parametrize("kind", ["parquet", "polars", "pandas"])
def test_a_list_column(tmp_path, kind):
    content = {
        "slide_id": [name for name, x, _, _ in arrays() for _ in x],
        "features": [row.tolist() for _, x, _, _ in arrays() for row in x],
    }
    frame = pd.DataFrame(content)
    if kind == "parquet":
        frame.to_parquet(tmp_path / "rows.parquet")
        bags = read_bags(tmp_path / "rows.parquet")
    else:
        rows = frame if kind == "pandas" else pytest.importorskip("polars").DataFrame(content)
        bags = Bags.from_frame(rows, features="features")
    assert bags.feature_names is None
    for i, (name, x, _, _) in enumerate(arrays()):
        assert bags.ids[i] == name
        np.testing.assert_allclose(bags[i], x)


def test_list_columns_that_do_not_fit(tmp_path):
    path = tmp_path / "rows.parquet"
    for rows, message in [
        ([[1.0, 2.0], [3.0]], "row 1 has 1 numbers and row 0 has 2"),
        ([[1.0, 2.0], None], "must hold lists of numbers; row 1 does not"),
        ([[1.0, 2.0], [3.0, np.nan]], "must hold finite numbers; row 1 does not"),
    ]:
        pd.DataFrame({"slide_id": ["a", "b"], "features": rows}).to_parquet(path)
        with pytest.raises(BadFilesError, match=message):
            read_bags(path)


# Zarr.


def write_zarr(folder, version=3, n_bags=8):
    zarr = pytest.importorskip("zarr", reason="reads .zarr folders")
    folder.mkdir()
    for name, x, coords, _ in arrays(n_bags=n_bags):
        group = zarr.open_group(folder / f"{name}.zarr", mode="w", zarr_format=version)
        group.create_array("features", data=x)
        group.create_array("coords", data=coords).attrs["patch_size_level0"] = 512
    return folder


@pytest.mark.parametrize(("version", "lazy"), [(2, True), (3, False)])
def test_zarr_folders(tmp_path, version, lazy):
    folder = write_zarr(tmp_path / "slides", version)
    bags = read_bags(folder, lazy=lazy)
    for i, (_, x, coords, _) in enumerate(arrays(n_bags=8)):
        np.testing.assert_array_equal(bags[i], x)
        np.testing.assert_array_equal(bags.split(bags.coords)[i], coords)
    assert bags.columns["patch_size"].tolist() == [512.0] * bags.n_instances
    assert read_bags(tmp_path, recursive=True).ids.tolist() == bags.ids.tolist()
    shutil.rmtree(folder / "003.zarr" / "features")
    shutil.rmtree(folder / "005.zarr")
    (folder / "005.zarr").write_text("a file")
    with pytest.raises(BadFilesError) as caught:
        read_bags(folder)
    assert "003.zarr: has no dataset 'features'" in str(caught.value)
    assert "005.zarr: is a file; a .zarr is a folder" in str(caught.value)
    assert len(caught.value.problems) == 2


# Addresses: a server that speaks S3, and the command against it.


@pytest.fixture(scope="module")
def bucket():
    pytest.importorskip("s3fs", reason="reads s3:// addresses")
    pytest.importorskip("upath", reason="reads addresses")
    server = pytest.importorskip("moto.server", reason="runs an S3-speaking server")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the server's own libraries
        running = server.ThreadedMotoServer(port=0)
        running.start()
        host, port = running.get_host_and_port()
        settings = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        import boto3

        client = boto3.client("s3")
        client.create_bucket(Bucket="slides")
    yield client
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    running.stop()


def upload(client, folder, prefix):
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "slides", f"{prefix}/{path.relative_to(folder)}")


@pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("kind", "lazy"), [("h5", False), ("h5", True), ("npz", True), ("zarr", True)]
)
def test_folders_in_a_bucket(bucket, tmp_path, kind, lazy):
    folder, three = tmp_path / "bags", arrays(n_bags=3)
    if kind == "h5":
        make_folder(tmp_path, n_bags=3)
    elif kind == "zarr":
        write_zarr(folder, n_bags=3)
    else:
        folder.mkdir()
        for name, x, _, _ in three:
            np.savez(folder / f"{name}.npz", features=x)
    upload(bucket, folder, f"{kind}_{lazy}")
    bags = read_bags(f"s3://slides/{kind}_{lazy}", lazy=lazy)
    assert len(bags) == 3
    for i, (name, x, coords, _) in enumerate(three):
        assert bags.ids[i] == name
        np.testing.assert_array_equal(bags[i], x)
        if kind in ("h5", "zarr"):
            np.testing.assert_array_equal(bags.split(bags.coords)[i], coords)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore", "ignore::ResourceWarning")
def test_the_command_reads_a_bucket(bucket, tmp_path, capsys):
    folder, labels = make_folder(tmp_path, n_bags=6)
    upload(bucket, folder, "train")
    bucket.upload_file(str(labels), "slides", "labels.csv")
    words = ["fit", "--bags", "s3://slides/train", "--labels", "s3://slides/labels.csv"]
    words += ["--model", "single-instance", "--out", tmp_path / "m.bagwise", "--json"]
    assert run(*words) == 0
    assert json.loads(capsys.readouterr().out)["training"]["n_bags"] == 6
    pd.DataFrame({"slide_id": ["a", "b"], "f": [1.0, 2.0]}).to_parquet(tmp_path / "t.parquet")
    bucket.upload_file(str(tmp_path / "t.parquet"), "slides", "t.parquet")
    assert len(read_bags("s3://slides/t.parquet")) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore", "ignore::ResourceWarning")
def test_addresses_that_lead_nowhere_are_one_line(bucket, tmp_path, capsys, monkeypatch):
    for address, message in [
        ("s3://slides/nowhere", "does not exist"),
        ("s3://no-such-bucket/x", "does not exist|cannot be reached"),
        ("nonsense://a/b", "cannot be opened"),
    ]:
        with pytest.raises(BadFilesError, match=message) as caught:
            read_bags(address)
        assert "\n" not in str(caught.value)
    words = ["fit", "--bags", "nonsense://a/b", "--labels", "nonsense://l.csv"]
    assert run(*words, "--out", tmp_path / "m") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) <= 4


# What the commands do with doubtful data.


QUICK = ["--model", "single-instance"]


@pytest.fixture
def trained(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    model = tmp_path / "m.bagwise"
    assert run("fit", "--bags", folder, "--labels", labels, *QUICK, "--out", model) == 0
    capsys.readouterr()
    return folder, labels, model


def said(capsys):
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


def test_tumor_beside_normal_is_the_positive_class(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    names = ["normal", "Tumor"]
    write_labels(labels, [(name, names[y]) for name, _, _, y in arrays()])
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--cv", 3, "--json"]
    assert run(*fit, "--out", tmp_path / "m.bagwise") == 0
    captured = capsys.readouterr()
    assert "positive class: Tumor" in captured.err
    assert json.loads(captured.out)["metrics"]["auc"] > 0.9
    compare = ["compare", "--bags", folder, "--labels", labels, "--models", "single-instance"]
    assert run(*compare, "--cv", 3) == 0
    assert "positive class: Tumor" in said(capsys)


def test_compare_asks_for_the_positive_class(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    write_labels(labels, [(name, "ab"[y]) for name, _, _, y in arrays()])
    words = ["compare", "--bags", folder, "--labels", labels, "--models", "single-instance"]
    assert run(*words) == 2
    assert "pass --positive a or --positive b." in said(capsys)
    assert run(*words, "--cv", 3, "--positive", "a") == 0


def test_predict_covers_bags_without_a_label(trained, tmp_path, capsys):
    folder, labels, model = trained
    lines = labels.read_text().splitlines()
    labels.write_text("\n".join([*lines[:11], "ghost,1"]))
    words = ["predict", model, "--bags", folder, "--labels", labels, "--out", tmp_path / "o"]
    assert run(*words) == 0
    text = said(capsys)
    assert "14 of 24 bags have no label" in text
    assert "1 labels have no bag in" in text
    assert "10 labelled bags" in text
    table = pd.read_csv(tmp_path / "o" / "bags.csv", dtype={"bag": str})
    assert len(table) == 24
    assert table["probability"].notna().all()
    assert (tmp_path / "o" / "report.html").stat().st_size > 10_000
    labels.write_text("slide_id,label\nghost,1\n")
    assert run(*words, "--force") == 2
    assert "no label matches a bag" in said(capsys)


def test_measuring_on_training_bags_is_said(trained, tmp_path, capsys):
    folder, labels, model = trained
    assert run("evaluate", model, "--bags", folder, "--labels", labels) == 0
    assert "trained on 24 of these 24 bags" in said(capsys)
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    for path in folder.iterdir():
        shutil.copy(path, renamed / f"x{path.name}")
    rows = [(f"x{name}", y) for name, _, _, y in arrays()]
    write_labels(tmp_path / "x.csv", rows)
    words = ["predict", model, "--bags", renamed, "--labels", tmp_path / "x.csv"]
    assert run(*words, "--out", tmp_path / "o") == 0
    assert "trained on 24 of these 24 bags" in said(capsys)
    other, fresh = make_folder(tmp_path / "new", seed=5)
    assert run("evaluate", model, "--bags", other, "--labels", fresh) == 0
    assert "trained on" not in said(capsys)


def test_patients_with_both_labels_and_too_many_folds_are_said(tmp_path, capsys):
    folder, labels = make_folder(tmp_path)
    header = "slide_id,label,who"
    write_labels(labels, [(n, y, f"p{i // 2}") for i, (n, _, _, y) in enumerate(arrays())], header)
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--patient-column", "who"]
    assert run(*fit, "--cv", 3, "--out", tmp_path / "a.bagwise") == 0
    assert "12 of 12 patients have bags of different labels (first: p0)" in said(capsys)
    # Eight bags of the positive class, but of three patients only.
    rows = [(n, y, f"q{i % 3}" if y else f"p{i}") for i, (n, _, _, y) in enumerate(arrays())]
    rows = [(n, y, f"q{i % 6 // 2}" if y else who) for i, (n, y, who) in enumerate(rows)]
    write_labels(labels, rows, header)
    assert run(*fit, "--cv", 5, "--out", tmp_path / "b.bagwise") == 2
    assert "5 folds need at least 5 groups (patients) with bags of class 1; there are 3" in said(
        capsys
    )
    assert not (tmp_path / "b.bagwise").exists()


def test_options_that_name_nothing_are_errors(trained, tmp_path, capsys):
    folder, labels, model = trained
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--out", tmp_path / "n.bagwise"]
    for words, message in [
        ([*fit, "--coords", "nope"], "has no dataset 'nope'"),
        ([*fit, "--patient-column", "nope"], "has no column 'nope'"),
        (
            ["predict", model, "--bags", folder, "--out", tmp_path / "o", "--images", "nope"],
            "has no dataset 'nope'",
        ),
        (
            ["predict", model, "--bags", folder, "--out", tmp_path / "o", "--patient-column", "p"],
            "--patient-column is a column of the labels",
        ),
    ]:
        assert run(*words) == 2
        assert message in said(capsys)


def test_fit_reads_nested_folders_and_says_what_it_skips(tmp_path, capsys):
    folder, labels = nested(tmp_path)
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK]
    assert run(*fit, "--recursive", "--out", tmp_path / "a.bagwise") == 0
    assert "24 bags" in said(capsys)
    lines = labels.read_text().splitlines()
    name, _, label = lines[5].partition(",")
    other = f"{name},{1 - int(label)}"  # disagrees with the line above
    labels.write_text("\n".join([*lines[:3], "002,", *lines[4:], other]))
    assert run(*fit, "--recursive", "--skip-bad", "--out", tmp_path / "b.bagwise") == 0
    text = said(capsys)
    assert "skipped 2:" in text
    assert "column 'label' is empty (bag '002')" in text


def test_a_label_among_the_features_is_said_by_the_command(tmp_path, capsys):
    folder, labels = tmp_path / "bags", tmp_path / "labels.csv"
    folder.mkdir()
    for name, x, coords, y in arrays():
        write_h5(folder / f"{name}.h5", np.column_stack([x, np.full(len(x), y)]), coords)
    write_labels(labels, [(name, y) for name, _, _, y in arrays()])
    fit = ["fit", "--bags", folder, "--labels", labels, *QUICK, "--out", tmp_path / "m.bagwise"]
    assert run(*fit) == 0
    assert "feature 6 alone determines the label of every bag" in said(capsys)


def test_bags_from_a_polars_frame():
    polars = pytest.importorskip("polars")
    rows = [(name, *row) for name, x, _, _ in arrays() for row in x.tolist()]
    frame = polars.DataFrame(rows, schema=["slide_id", *"abcdef"], orient="row")
    bags = Bags.from_frame(frame)
    assert bags.feature_names == tuple("abcdef")
    assert len(bags) == 24


def fail(*_):
    pytest.fail("read through the library of the format")


@pytest.mark.parametrize("suffix", ["h5", "npy"])
def test_plain_rows_are_read_where_they_lie(tmp_path, suffix, monkeypatch):
    """Rows of an uncompressed file, past its library; a file written anew is noticed."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / f"slide.{suffix}"

    def write(values, pad):
        if suffix == "npy":
            np.save(path, values)
            return
        with h5py.File(tmp_path / "new", "w") as file:
            file["note"] = np.zeros(pad)  # moves the features within the file
            file["features"] = values
        (tmp_path / "new").replace(path)

    first = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    write(first, 1)
    lazy = read_bags(tmp_path, lazy=True).instances
    monkeypatch.setattr(h5py.Dataset, "__getitem__", fail)
    monkeypatch.setattr(np.memmap, "__getitem__", fail)
    np.testing.assert_array_equal(lazy[4:9], first[4:9])
    np.testing.assert_array_equal(lazy[[7, 2, 2]], first[[7, 2, 2]])
    write(first + 1, 500)
    np.testing.assert_array_equal(lazy[4:9], first[4:9] + 1)
    path.unlink()
    with pytest.raises(ValueError, match=r"slide.*can no longer be read"):
        lazy[0:2]


def test_compressed_and_foreign_rows_go_through_their_library(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    values = np.random.default_rng(0).normal(size=(20, 3))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("features", data=values, compression="gzip")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["features"] = values.astype(">f8")
    with h5py.File(tmp_path / "c.h5", "w", userblock_size=512) as file:
        file["features"] = values
    lazy = read_bags(tmp_path, lazy=True).instances
    np.testing.assert_array_equal(lazy[:], np.concatenate([values] * 3))
    monkeypatch.setattr(h5py.Dataset, "__getitem__", fail)
    for start in (0, 20, 40):
        with pytest.raises(pytest.fail.Exception):
            lazy[start : start + 2]
