"""Reading bags and labels from disk, lazily and with every fault named."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - lazy bags must reach worker processes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bagwise import Bags
from bagwise.bags import check_bags
from bagwise.files import (
    BadFilesError,
    LazyRows,
    Names,
    check_output,
    new_file,
    new_folder,
    read_bags,
    read_instance_labels,
    read_labels,
    read_training,
    scan_bags,
)
from tests.filing import arrays, make_clam, make_folder, make_trident, write_h5, write_labels

TRUE = Bags.from_list([x for _, x, _, _ in arrays()])


def assert_same_bags(bags, suffix=""):
    np.testing.assert_array_equal(np.asarray(bags.instances), TRUE.instances)
    np.testing.assert_array_equal(bags.offsets, TRUE.offsets)


# Layouts.


def test_plain_folder(tmp_path):
    folder, _ = make_folder(tmp_path)
    bags = read_bags(folder)
    assert_same_bags(bags)
    assert bags.ids[3] == "003"
    assert bags.columns["coords"].shape == (bags.n_instances, 2)


def test_clam_folder(tmp_path):
    folder, _ = make_clam(tmp_path)
    bags = read_bags(folder)
    assert_same_bags(bags)
    assert (bags.columns["patch_size"] == 256).all()


def test_clam_downsample_gives_size_at_full_resolution(tmp_path):
    write_h5(
        tmp_path / "a.h5", np.ones((2, 3)), np.zeros((2, 2)), patch_size=256, downsample=[4.0, 4.0]
    )
    assert read_bags(tmp_path).columns["patch_size"].tolist() == [1024, 1024]


def test_trident_folder(tmp_path):
    folder, _ = make_trident(tmp_path)
    bags = read_bags(folder)
    assert_same_bags(bags)
    assert (bags.columns["patch_size"] == 512).all()
    assert_same_bags(read_bags(folder / "20x_256px_0px_overlap"))
    assert_same_bags(read_bags(folder / "20x_256px_0px_overlap" / "features_uni_v1"))


def test_several_encoders_must_be_chosen(tmp_path):
    folder, _ = make_trident(tmp_path, encoders=("uni_v1", "conch"))
    with pytest.raises(BadFilesError, match=r"several feature folders: .*features_conch"):
        read_bags(folder)
    assert_same_bags(read_bags(folder, Names(encoder="conch")))
    with pytest.raises(BadFilesError, match="has no features_virchow"):
        read_bags(folder, Names(encoder="virchow"))


@pytest.mark.parametrize("kind", ["npy", "npz", "pt", "pt-dict"])
@pytest.mark.parametrize("lazy", [True, False])
def test_other_kinds(tmp_path, kind, lazy):
    for name, x, coords, _ in arrays():
        if kind == "npy":
            np.save(tmp_path / f"{name}.npy", x)
        elif kind == "npz":
            np.savez(tmp_path / f"{name}.npz", features=x, coords=coords)
        else:
            torch = pytest.importorskip("torch", reason="reads .pt files")
            tensor = torch.from_numpy(x)
            content = (
                tensor if kind == "pt" else {"features": tensor, "coords": torch.from_numpy(coords)}
            )
            torch.save(content, tmp_path / f"{name}.pt")
    bags = read_bags(tmp_path, lazy=lazy)
    assert isinstance(bags.instances, LazyRows) == lazy
    assert_same_bags(bags)
    assert ("coords" in bags.columns) == (kind in ("npz", "pt-dict"))


def test_half_precision_and_integers(tmp_path):
    write_h5(tmp_path / "a.h5", np.ones((2, 3), dtype=np.float16))
    assert read_bags(tmp_path, lazy=True).instances[:].dtype == np.float32
    write_h5(tmp_path / "b.h5", np.ones((2, 3), dtype=np.uint8))
    assert read_bags(tmp_path).dtype == np.float64


def test_dataset_names(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["feats"] = np.ones((2, 3))
        file["where"] = np.zeros((2, 2))
        file["patches"] = np.zeros((2, 4, 4), dtype=np.uint8)
        file["truth"] = np.array([b"pos", b"neg"])
    names = Names(features="feats", coords="where", images="patches", instance_labels="truth")
    bags = read_bags(tmp_path, names)
    assert set(bags.columns) == {"coords", "images", "instance_labels"}
    assert bags.instance_labels.tolist() == ["pos", "neg"]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_long_tables(tmp_path, kind):
    frame = pd.DataFrame(TRUE.instances, columns=[f"f{j}" for j in range(6)])
    frame.insert(0, "slide_id", np.repeat([name for name, *_ in arrays()], TRUE.sizes))
    frame["x"], frame["y"] = np.arange(len(frame)), 0
    frame["label"] = 1
    shuffled = frame.sample(frac=1, random_state=0)
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        shuffled.to_parquet(path)
    else:
        shuffled.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    found = scan_bags(path)
    assert found.bags.feature_names == tuple(
        f"f{j}" for j in range(6)
    )  # neither label nor coordinates
    bags = found.bags
    assert set(bags.ids) == {name for name, *_ in arrays()}  # zero padding kept
    i = list(bags.ids).index("003")
    order = bags.columns["coords"][bags.offsets[i] : bags.offsets[i + 1], 0].astype(int)
    np.testing.assert_allclose(bags[i], TRUE.instances[order], rtol=1e-6)


def test_tables_of_named_columns(tmp_path):
    frame = pd.DataFrame({"mol": ["a", "a", "b"], "f": [1, 2, 3], "note": ["x", "y", "z"]})
    frame.to_csv(path := tmp_path / "rows.csv", index=False)
    bags = read_bags(path, Names(bag="mol", feature_columns=("f",)))
    assert bags.sizes.tolist() == [2, 1]
    with pytest.raises(BadFilesError, match="column 'note' must hold finite numbers; line 2"):
        read_bags(path, Names(bag="mol"))
    with pytest.raises(BadFilesError, match="has no column 'slide_id'"):
        read_bags(path)
    with pytest.raises(BadFilesError, match="has no feature columns"):
        frame[["mol"]].to_csv(path, index=False)
        read_bags(path, Names(bag="mol"))
    with pytest.raises(BadFilesError, match="has no rows"):
        frame[:0].to_csv(path, index=False)
        read_bags(path, Names(bag="mol", feature_columns=("f",)))


# Lazy rows.


@pytest.fixture(scope="module")
def lazy(tmp_path_factory):
    folder, _ = make_folder(tmp_path_factory.mktemp("lazy"))
    return read_bags(folder, lazy=True)


KEYS = st.one_of(
    st.slices(TRUE.n_instances),
    st.integers(-TRUE.n_instances, TRUE.n_instances - 1),
    st.lists(st.integers(-TRUE.n_instances, TRUE.n_instances - 1)).map(
        lambda v: np.asarray(v, dtype=int)
    ),
    st.lists(st.booleans(), min_size=TRUE.n_instances, max_size=TRUE.n_instances).map(np.asarray),
)


@given(first=KEYS.filter(lambda k: not isinstance(k, int)), second=KEYS)
@settings(max_examples=60)
def test_lazy_rows_index_like_an_array(lazy, first, second):
    X = TRUE.instances
    np.testing.assert_array_equal(lazy.instances[second], X[second])
    np.testing.assert_array_equal(np.asarray(lazy.instances.select_rows(first)), X[first])
    doubled = lazy.instances.map_rows(lambda x: 2 * x)
    np.testing.assert_array_equal(doubled.select_rows(first)[:], 2 * X[first])


def test_slices_of_lazy_bags_stay_on_disk(lazy):
    for key in (slice(2, 9), [5, 1, 1], np.arange(24) % 3 == 0, slice(None, None, -1)):
        part, same = lazy[key], TRUE[key]
        assert isinstance(part.instances, LazyRows)
        np.testing.assert_array_equal(part.instances[:], same.instances)
        np.testing.assert_array_equal(part.offsets, same.offsets)
        np.testing.assert_array_equal(part[1], same[1])
    assert isinstance(lazy.map(lambda x: x + 1).instances, LazyRows)


def test_lazy_bags_pickle_as_names(lazy):
    data = pickle.dumps(lazy)
    assert len(data) < 20_000
    assert_same_bags(pickle.loads(data))


def test_lazy_rows_refuse_what_arrays_refuse(lazy):
    X = lazy.instances
    for key in (
        TRUE.n_instances,
        -TRUE.n_instances - 1,
        [TRUE.n_instances],
        np.ones(3, dtype=bool),
    ):
        with pytest.raises(IndexError):
            X[key]
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(X, copy=False)
    with pytest.raises(ValueError, match="must return 2-d rows"):
        X.map_rows(lambda x: x.sum(axis=1))
    assert X[3, 2] == TRUE.instances[3, 2]
    assert X.nbytes == TRUE.instances.nbytes
    assert "24 sources" in repr(X)


@pytest.fixture
def many(tmp_path):
    """More files than may be open at a time, packed, so that they are read by their library."""
    h5py = pytest.importorskip("h5py")
    X = np.random.default_rng(0).normal(size=(280, 3))
    for i in range(140):
        with h5py.File(tmp_path / f"{i:03d}.h5", "w") as file:
            file.create_dataset("features", data=X[2 * i : 2 * i + 2], compression="gzip")
    return read_bags(tmp_path, lazy=True).instances, X, tmp_path


def test_few_files_are_open_at_a_time(many):
    lazy, X, folder = many
    np.testing.assert_array_equal(lazy[:], X)
    opened = [file.path for file in psutil.Process().open_files()]
    assert 0 < sum(path.startswith(str(folder)) for path in opened) <= 128


def test_threads_read_together(many):
    lazy, X, _ = many
    starts = list(range(0, 270, 5)) * 5
    with ThreadPoolExecutor(8) as pool:
        blocks = pool.map(lambda a: lazy[a : a + 7], starts)
        for start, block in zip(starts, blocks, strict=True):
            np.testing.assert_array_equal(block, X[start : start + 7])


def test_a_file_that_vanishes_is_named(tmp_path):
    folder, _ = make_folder(tmp_path)
    bags = read_bags(folder, lazy=True)
    (folder / "004.h5").unlink()
    with pytest.raises(ValueError, match=r"004\.h5: can no longer be read"):
        bags.instances[:]


def test_lazy_bags_are_validated_and_train_the_same(lazy):
    from bagwise.models.registry import make_model

    y = np.arange(24) % 2
    assert isinstance(check_bags(lazy).instances, LazyRows)
    for name, params in [
        ("vgpmil", {"n_inducing": 10, "random_state": 0}),
        ("single-instance", {}),
    ]:
        model = make_model(name, **params)
        on_disk = model.fit(lazy, y).predict_proba_instances(lazy)
        in_memory = model.fit(TRUE, y).predict_proba_instances(TRUE)
        np.testing.assert_allclose(on_disk, in_memory, rtol=1e-9, atol=1e-12)


# Faults in bag files: each named, and all of them at once.


def truncate(path):
    size = path.stat().st_size
    os.truncate(path, size - size // 3)


def rewrite(**change):
    def spoil(path):
        _, x, coords, _ = arrays()[2]
        x = change.get("x", lambda x: x)(x.copy())
        with h5py.File(path, "w") as file:
            file[change.get("name", "features")] = x
            file["coords"] = change.get("coords", lambda c: c)(coords)

    return spoil


def with_value(value):
    def change(x):
        x[1, 3] = value
        return x

    return rewrite(x=change)


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


def replace_by_text(path):
    path.write_text("slide,label\n")


def dangling(path):
    path.unlink()
    path.symlink_to(path.with_suffix(".gone"))


H5_FAULTS = {
    "truncated": (truncate, "is truncated"),
    "no bytes": (lambda p: p.write_bytes(b""), r"is empty \(0 bytes\)"),
    "not hdf5": (replace_by_text, "is not an HDF5 file"),
    "folder": (replace_by_folder, "is a folder, not a file"),
    "dangling link": (dangling, "cannot be read: .*No such file"),
    "other dataset": (
        rewrite(name="feats"),
        r"has no dataset 'features'; it has \['coords', 'feats'\]",
    ),
    "text": (rewrite(x=lambda x: np.full(x.shape, b"a")), "features must be numbers; got dtype"),
    "complex": (rewrite(x=lambda x: x + 1j), "features must be numbers"),
    "one-dimensional": (rewrite(x=lambda x: x[:, 0]), "must be N x D or 1 x N x D"),
    "two slides in one": (
        rewrite(x=lambda x: np.stack([x, x])),
        r"must be N x D or 1 x N x D; got shape",
    ),
    "no rows": (rewrite(x=lambda x: x[:0], coords=lambda c: c[:0]), "has 0 instances"),
    "no columns": (rewrite(x=lambda x: x[:, :0]), "has 0 features"),
    "nan": (with_value(np.nan), "contains NaN in instance 1, feature 3"),
    "infinity": (with_value(-np.inf), "contains infinity in instance 1, feature 3"),
    "width": (rewrite(x=lambda x: x[:, :4]), "has 4 features but 23 other files have 6"),
    "coords length": (rewrite(coords=lambda c: c[:-1]), "instances but 'coords' has shape"),
    "coords width": (rewrite(coords=lambda c: np.tile(c, 3)), "'coords' must be N, N x 2 or N x 3"),
    "no coords": (lambda p: write_h5(p, arrays()[2][1]), "has no 'coords', which other files have"),
}


@pytest.mark.parametrize("fault", H5_FAULTS)
def test_faults_are_named(tmp_path, fault):
    folder, labels = make_folder(tmp_path)
    spoil, message = H5_FAULTS[fault]
    spoil(folder / "002.h5")
    with pytest.raises(BadFilesError, match=message) as caught:
        read_training(folder, labels)
    (problem,) = caught.value.problems
    assert problem.path.endswith("002.h5")
    assert "\n" not in str(caught.value)
    data = read_training(folder, labels, skip_bad=True)
    assert len(data.bags) == 23
    assert "002" not in data.bags.ids
    assert [p.path for p in data.skipped] == [problem.path]
    np.testing.assert_array_equal(data.y, np.delete(np.arange(24) % 2, 2))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", b"\x93NUMPY", "cannot be read|EOF|magic|header"),
        ("a.npz", b"PK\x03\x04 not a zip", "zip"),
        ("a.npy", None, "must be numbers|Python objects|Object arrays"),
        ("a.pt", b"not a tensor at all", "is not a file of plain tensors"),
        ("a.pt", "pickle", "nothing in it was executed"),
    ],
)
def test_faults_of_other_kinds(tmp_path, name, content, message):
    path = tmp_path / name
    if name.endswith(".pt"):
        pytest.importorskip("torch", reason="reads .pt files")
    if content is None:
        np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    elif content == "pickle":
        path.write_bytes(pickle.dumps(Path("x")))  # torch must not build what a pickle names
    else:
        path.write_bytes(content)
    with pytest.raises(BadFilesError, match=message) as caught:
        read_bags(tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_everything_wrong_is_said_at_once(tmp_path):
    folder, labels = make_folder(tmp_path)
    truncate(folder / "001.h5")
    with_value(np.nan)(folder / "002.h5")
    np.save(folder / "003.npy", np.ones((2, 6)))
    write_h5(folder / "extra.h5", *arrays()[4][1:3])
    (folder / "005.h5").unlink()
    twice = (
        "1 bags are there in several kinds of files; .h5 files are read before others, as 003.h5"
    )
    with pytest.raises(BadFilesError) as caught, pytest.warns(UserWarning, match=twice):
        read_training(folder, labels)
    said = str(caught.value)
    assert said.startswith("4 problems:")
    for text in (
        "001.h5: is truncated",
        "002.h5: contains NaN",
        "bag '005' has a label but no file",
        "'extra'",
    ):
        assert text in said
    with pytest.warns(UserWarning, match=twice):
        data = read_training(folder, labels, skip_bad=True)
    assert len(data.bags) == 21
    assert len(data.skipped) == 4


def test_places_that_hold_no_bags(tmp_path):
    with pytest.raises(BadFilesError, match="does not exist"):
        read_bags(tmp_path / "nowhere")
    with pytest.raises(BadFilesError, match="has no bag files"):
        read_bags(tmp_path)
    (tmp_path / "x.docx").write_text("a")
    with pytest.raises(BadFilesError, match="is neither a folder of bags nor a table"):
        read_bags(tmp_path / "x.docx")


# Labels.


def test_labels_keep_names_as_written(tmp_path):
    path = tmp_path / "l.csv"
    write_labels(path, [("007", "b"), ("NA", "a"), (" 1e5 ", "a")])
    labels = read_labels(path)
    assert labels.ids.tolist() == ["007", "NA", "1e5"]
    assert labels.y.tolist() == ["b", "a", "a"]


def test_labels_as_numbers(tmp_path):
    path = tmp_path / "l.csv"
    for texts, values in [
        (("0", "1"), [0, 1]),
        (("0.0", "1.0"), [0, 1]),
        (("-1", "1"), [-1, 1]),
        (("01", "02"), ["01", "02"]),
        (("1.5", "2"), ["1.5", "2"]),
    ]:
        write_labels(path, [("a", texts[0]), ("b", texts[1])])
        assert read_labels(path).y.tolist() == values


def test_byte_order_mark_and_patients(tmp_path):
    path = tmp_path / "l.csv"
    path.write_bytes("\ufeffslide_id,label,who\na,0,p1\nb,1,p2\n".encode())
    labels = read_labels(path, patient="who")
    assert labels.patients.tolist() == ["p1", "p2"]


LABEL_FAULTS = {
    "no bytes": (b"", r"is empty \(0 bytes\)"),
    "only blank lines": (b"\n\n", "has no columns"),
    "header only": (b"slide_id,label\n", "has no rows"),
    "latin-1": (
        "slide_id,label\nm\u00fcller,1\n".encode("latin-1"),
        r"is not UTF-8 text \(byte 16\)",
    ),
    "other columns": (b"id,y\na,1\n", "has no column 'slide_id'; it has: id, y"),
    "contradicting": (b"slide_id,label\na,1\nb,0\na,0\n", r"bag 'a' has 2 rows \(lines 2, 4\)"),
    "blank label": (b"slide_id,label\na,\nb,0\n", "line 2: column 'label' is empty"),
    "blank id": (b"slide_id,label\na,1\n,0\n", "line 3: column 'slide_id' is empty"),
    "ragged": (b"slide_id,label\na,1\nb,0,7,7\n", "cannot be read: .*line 3"),
}


@pytest.mark.parametrize("fault", LABEL_FAULTS)
def test_label_faults(tmp_path, fault):
    content, message = LABEL_FAULTS[fault]
    path = tmp_path / "labels.csv"
    path.write_bytes(content)
    with pytest.raises(BadFilesError, match=message) as caught:
        read_labels(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_labels_against_bags(tmp_path):
    folder, labels = make_folder(tmp_path)
    rows = [(f"{i:03d}.svs", i % 2) for i in range(24)]
    write_labels(labels, rows)
    with pytest.raises(BadFilesError, match=r"there is '000': drop the extension"):
        read_training(folder, labels)
    with pytest.raises(BadFilesError, match="no label matches a bag"):
        read_training(folder, labels, skip_bad=True)
    write_labels(labels, [(f"{i:03d}", 1) for i in range(24)])
    with pytest.raises(BadFilesError, match="needs two classes of bags; got 1: 1"):
        read_training(folder, labels)
    write_labels(labels, [(f"{i:03d}", i % 3) for i in range(24)])
    with pytest.raises(BadFilesError, match="needs two classes of bags; got 3: 0, 1, 2"):
        read_training(folder, labels)


def test_instance_labels(tmp_path):
    bags = Bags(np.ones((5, 2)), [0, 2, 5], ids=["a", "b"])
    path = tmp_path / "i.csv"
    write_labels(path, [("b", 2, 1), ("a", 0, 0), ("b", 0, "")], "slide_id,index,label")
    assert read_instance_labels(path, bags).tolist() == [0, None, None, None, 1]
    write_labels(path, [("c", 0, 1), ("b", 3, 1), ("a", -1, 1)], "slide_id,index,label")
    with pytest.raises(BadFilesError) as caught:
        read_instance_labels(path, bags)
    assert len(caught.value.problems) == 3
    assert "line 3: bag 'b' has instances 0 to 2; got 3" in str(caught.value)


# Writing.


def test_outputs_appear_whole_or_not_at_all(tmp_path):
    for maker, put in [
        (new_file, lambda d: d.write_text("x")),
        (new_folder, lambda d: (d / "f").write_text("x")),
    ]:
        target = tmp_path / "deep" / maker.__name__
        for error in (KeyboardInterrupt, ValueError):
            with pytest.raises(error), maker(target) as draft:
                put(draft)
                raise error
            assert not target.exists()
        with maker(target) as draft:
            put(draft)
        assert target.exists()
        with pytest.raises(ValueError, match="old stays"), maker(target) as draft:
            raise ValueError("old stays")
        assert target.exists()
        with maker(target) as draft:
            put(draft)
    left = sorted(p.name for p in (tmp_path / "deep").iterdir())
    assert left == ["new_file", "new_folder"]


def test_a_full_disk_is_said_plainly(tmp_path):
    full = r"m\.bagwise: cannot be written: the disk is full"
    with pytest.raises(BadFilesError, match=full), new_file(tmp_path / "m.bagwise"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_outputs_are_checked_first(tmp_path, monkeypatch):
    (tmp_path / "there").write_text("x")
    with pytest.raises(BadFilesError, match="exists already"):
        check_output(tmp_path / "there")
    assert check_output(tmp_path / "there", force=True)
    with pytest.raises(BadFilesError, match="is not a folder"):
        check_output(tmp_path / "there" / "below")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BadFilesError, match="is read-only"):
        check_output(tmp_path / "new")
