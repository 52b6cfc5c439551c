from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.utils import Bunch

from bagwise import datasets
from bagwise.core import segments
from bagwise.datasets import download as module
from bagwise.datasets.layouts import read_sequence

COUNTS = {  # bags +, bags -, instances, features
    "musk1": (47, 45, 476, 166),
    "musk2": (39, 63, 6598, 166),
    "elephant": (100, 100, 1391, 230),
    "fox": (100, 100, 1320, 230),
    "tiger": (100, 100, 1220, 230),
}


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts(name):
    load = getattr(datasets, f"load_{name}")
    data = load()
    positive, negative, instances, features = COUNTS[name]
    assert (data.y == 1).sum() == positive
    assert (data.y == 0).sum() == negative
    assert (data.bags.n_instances, data.bags.n_features) == (instances, features)
    bags, y = load(return_X_y=True)
    np.testing.assert_array_equal(bags.instances, data.bags.instances)
    np.testing.assert_array_equal(y, data.y)
    if data.published_folds is not None:
        assert data.published_folds.shape == (5, len(bags))
        assert set(np.unique(data.published_folds)) == set(range(10))


@pytest.mark.parametrize("name", COUNTS)
def test_bundled_equal_the_published_files(name, data_home):
    with np.load(data_home / f"{name}.npz", allow_pickle=False) as stored:
        bags = getattr(datasets, f"load_{name}")().bags
        np.testing.assert_array_equal(bags.instances, stored["X"])
        np.testing.assert_array_equal(bags.bag_index, stored["bag"])


def test_bundled_files_are_small():
    from importlib import resources

    folder = resources.files("bagwise.datasets") / "data"
    assert sum(len(f.read_bytes()) for f in folder.iterdir()) < 3e6


def assert_mil(data):
    np.testing.assert_array_equal(segments.max(data.instance_labels, data.bags.offsets), data.y)
    np.testing.assert_array_equal(data.bags.instance_labels, data.instance_labels)


def test_digit_bags_hold_the_truth_and_no_image_twice():
    data = datasets.load_digit_bags()
    assert_mil(data)
    np.testing.assert_array_equal(data.instance_labels, data.digits == 9)
    np.testing.assert_array_equal(data.images.reshape(-1, 64), data.bags.instances)
    from sklearn.datasets import load_digits

    available = len(np.unique(load_digits().data, axis=0))
    assert available == len(load_digits().data)  # so rows identify images
    assert len(np.unique(data.bags.instances, axis=0)) == data.bags.n_instances
    again = datasets.load_digit_bags()
    np.testing.assert_array_equal(again.bags.instances, data.bags.instances)
    with pytest.raises(ValueError, match="only 180 exist"):
        datasets.load_digit_bags(n_bags=1000)


def test_gaussian_bags():
    data = datasets.make_gaussian_bags(31, 4, random_state=3)
    assert_mil(data)
    assert data.y.sum() == 15
    assert data.bags.n_features == 4
    assert data.bags.sizes.min() >= 4
    other = datasets.make_gaussian_bags(31, 4, random_state=4)
    assert other.bags.n_instances != data.bags.n_instances or not np.allclose(
        other.bags.instances, data.bags.instances
    )


def test_two_concept_bags_follow_the_rule():
    data = datasets.make_two_concept_bags(200, random_state=0)
    assert data.bags.sizes.max() <= 8
    for components, label in zip(data.bags.split(data.components), data.y, strict=True):
        assert label == (len({c for c in components if c < 3}) >= 2)
    centres = np.array([data.bags.instances[data.components == c].mean(0) for c in range(5)])
    np.testing.assert_allclose(centres, [[5, 5], [5, -5], [0, 0], [-5, 5], [-5, -5]], atol=0.5)


class TestDataHome:
    def test_order_of_precedence(self, monkeypatch, tmp_path):
        monkeypatch.setenv("BAGWISE_DATA", str(tmp_path))
        assert datasets.data_home() == tmp_path
        assert datasets.data_home("elsewhere").name == "elsewhere"
        monkeypatch.delenv("BAGWISE_DATA")
        assert "bagwise" in str(datasets.data_home())

    def test_corrupt_file_is_refused(self, tmp_path):
        (tmp_path / "tracking").mkdir()
        (tmp_path / "tracking" / "girl.npz").write_bytes(b"not a zip")
        with pytest.raises(ValueError, match=r"girl.npz is corrupt: its sha256"):
            datasets.fetch_tracking("girl", data_home=tmp_path)

    @pytest.mark.parametrize("fetch", [datasets.fetch_tracking, datasets.fetch_detection])
    def test_absent_and_unknown(self, fetch, tmp_path, monkeypatch):
        def offline(*args, **kwargs):
            raise OSError("no route to host")

        monkeypatch.setattr("pooch.retrieve", offline)
        known = "girl" if fetch is datasets.fetch_tracking else "bccd"
        said = r"could not be downloaded \(no route to host\)\. Put the file there"
        with pytest.raises(FileNotFoundError, match=said):
            fetch(known, data_home=tmp_path)
        with pytest.raises(ValueError, match="unknown set 'nope'; choose one of"):
            fetch("nope")

    def test_offline_is_said(self, monkeypatch, tmp_path):
        def offline(*args, **kwargs):
            raise OSError("no route to host")

        monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", offline)
        monkeypatch.setattr("sklearn.datasets.fetch_openml", offline)
        with pytest.raises(FileNotFoundError, match="could not be downloaded"):
            datasets.fetch_newsgroups("sci_med", data_home=tmp_path)
        with pytest.raises(FileNotFoundError, match="could not be downloaded"):
            datasets.fetch_mnist_bags(data_home=tmp_path)


def test_newsgroups_are_rebuilt_where_absent(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    names = [n.replace("_", ".") for n in datasets.NEWSGROUPS]
    target = np.arange(6000) % 20
    words = [f"word{i}" for i in range(300)]
    posts = [" ".join(rng.choice(words, size=8)) for _ in target]
    monkeypatch.setattr(
        "sklearn.datasets.fetch_20newsgroups",
        lambda **_: Bunch(data=posts, target=target, target_names=names),
    )
    data = datasets.fetch_newsgroups("sci_med", data_home=tmp_path)
    assert data.rebuilt
    assert_mil(data)
    assert (len(data.bags), data.bags.n_features, data.y.sum()) == (100, 200, 50)
    share = data.instance_labels.sum() / data.bags.sizes[data.y == 1].sum()
    assert 0.01 < share < 0.06
    again = datasets.fetch_newsgroups("sci_med", data_home=tmp_path)
    np.testing.assert_array_equal(again.bags.instances, data.bags.instances)


def test_published_newsgroups(data_home):
    total = 0
    for name in datasets.NEWSGROUPS:
        data = datasets.fetch_newsgroups(name, data_home=data_home)
        assert not data.rebuilt
        assert (len(data.bags), data.bags.n_features, data.y.sum()) == (100, 200, 50)
        total += data.bags.n_instances
    assert total == 80137
    electronics = datasets.fetch_newsgroups("sci_electronics", bag_labels="instances")
    assert electronics.y.sum() == 47
    with pytest.raises(ValueError, match="bag_labels must be"):
        datasets.fetch_newsgroups("sci_med", bag_labels="max")


def test_mnist_bags(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(70_000, 784), dtype=np.uint8)
    digits = rng.integers(0, 10, size=70_000)
    served = Bunch(data=images, target=digits.astype(str))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda *args, **options: served)
    data = datasets.fetch_mnist_bags(n_bags=60, data_home=tmp_path)
    assert_mil(data)
    assert (data.bags.sizes == 10).all()
    assert data.bags.n_features == 784
    np.testing.assert_array_equal(data.instance_labels, np.isin(data.digits, (2, 9)))
    positives = segments.sum(data.instance_labels, data.bags.offsets)[data.y == 1]
    assert (positives.min(), positives.max()) == (1, 4)
    for bad in ({"features": "hog"}, {"subset": "val"}):
        with pytest.raises(ValueError, match="must be"):
            datasets.fetch_mnist_bags(**bad)


def test_published_mnist_bags(data_home):
    train = datasets.fetch_mnist_bags(n_bags=50, subset="train", data_home=data_home)
    test = datasets.fetch_mnist_bags(n_bags=50, subset="test", features="pca", data_home=data_home)
    assert train.bags.n_features == 784
    assert test.bags.n_features == 30
    assert 0 <= train.bags.instances.min() <= train.bags.instances.max() <= 1


def test_published_tracking_and_detection(data_home):
    david = datasets.fetch_tracking("david", data_home=data_home)
    assert david.frames.shape == (462, 240, 320)
    assert david.gt_valid.sum() == 93
    bccd = datasets.fetch_detection("bccd", data_home=data_home)
    assert len(bccd.jpeg) == len(bccd.boxes) == 364
    platelets = list(bccd.class_names).index("Platelets")
    assert bccd.image_label[:, platelets].sum() == 201
    assert all((b[:, 2:] > 0).all() for b in bccd.boxes)
    assert {s: int((bccd.split == s).sum()) for s in ("train", "val", "test")} == {
        "train": 205,
        "val": 87,
        "test": 72,
    }


class TestDownload:
    """A set comes from its public home, is checked by what it holds, and stays."""

    @pytest.fixture
    def served(self, tmp_path, monkeypatch):
        """An archive of a small sequence under a file address, as the host packs them."""
        cv2 = pytest.importorskip("cv2", reason="pictures need the extra vision")
        source = tmp_path / "repository-abc" / "Girl"
        (source / "img").mkdir(parents=True)
        rng = np.random.default_rng(0)
        for i in range(3):
            frame = rng.integers(0, 255, size=(8, 9), dtype=np.uint8)
            cv2.imwrite(str(source / "img" / f"{i:04d}.png"), frame)
        (source / "groundtruth_rect.txt").write_text("1,2,3,4\n" * 3, encoding="utf-8")
        archive = shutil.make_archive(str(tmp_path / "set"), "zip", tmp_path, "repository-abc")
        arrays = read_sequence(source)

        def retrieve(url, known_hash, fname, path, processor):
            Path(path).mkdir(parents=True)
            shutil.copyfile(url, Path(path) / fname)
            return processor(str(Path(path) / fname), "download", None)

        monkeypatch.setattr("pooch.retrieve", retrieve)
        return archive, arrays

    def test_is_kept_and_read_again(self, served, tmp_path, monkeypatch):
        archive, arrays = served
        source = module.Source(archive, "Girl", module.content_digest(arrays))
        monkeypatch.setitem(module.SOURCES, "tracking/girl", source)
        home = tmp_path / "home"
        for _ in range(2):
            sequence = datasets.fetch_tracking("girl", data_home=home)
            assert np.array_equal(sequence.frames, arrays["frames"])
            monkeypatch.setitem(module.SOURCES, "tracking/girl", None)  # not asked again
        assert not list((home / ".downloads").glob("*"))

    def test_another_content_is_refused_and_removed(self, served, tmp_path, monkeypatch):
        archive, _ = served
        monkeypatch.setitem(module.SOURCES, "tracking/girl", module.Source(archive, "Girl", "0"))
        home = tmp_path / "home"
        with pytest.raises(ValueError, match="the digest of its arrays is"):
            datasets.fetch_tracking("girl", data_home=home)
        assert not (home / "tracking").exists()
        assert not list((home / ".downloads").glob("*"))

    @pytest.mark.parametrize("name", list(module.SOURCES))
    def test_the_published_files_have_the_digest(self, name, data_home):
        with np.load(data_home / f"{name}.npz", allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        assert module.content_digest(arrays) == module.SOURCES[name].digest
