from __future__ import annotations

import pickle  # noqa: TID251 - joblib and Dask pickle bags
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from bagwise import MISVM, VGPMIL, Bags
from bagwise.bags import check_bags, encode_instance_labels
from bagwise.datasets import make_gaussian_bags


@pytest.fixture
def bags(rng):
    return Bags(rng.normal(size=(10, 3)), [0, 4, 5, 10], ids=["a", "b", "c"])


def test_attributes(bags):
    assert len(bags) == 3
    assert bags.shape == (3,)
    assert bags.ndim == 1
    assert bags.sizes.tolist() == [4, 1, 5]
    assert bags.bag_index.tolist() == [0] * 4 + [1] + [2] * 5
    assert (bags.n_instances, bags.n_features) == (10, 3)
    assert list(bags.ids) == ["a", "b", "c"]
    assert repr(bags) == "Bags(3 bags, 10 instances, 3 features)"
    assert [len(x) for x in bags] == [4, 1, 5]


def test_one_bag_and_runs_of_bags_are_views(bags):
    assert np.shares_memory(bags[0], bags.instances)
    assert np.shares_memory(bags[1:].instances, bags.instances)
    np.testing.assert_array_equal(bags[-1], bags.instances[5:])


@given(st.data())
def test_indexing_equals_a_list_of_arrays(data):
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(n, 2)) for n in sizes]
    bags = Bags.from_list(arrays).with_columns(row=np.arange(sum(sizes)))
    n = len(arrays)
    key = data.draw(
        st.one_of(
            st.slices(n),
            st.lists(st.integers(-n, n - 1), max_size=6),
            st.lists(st.booleans(), min_size=n, max_size=n).map(np.array),
        )
    )
    expected = np.empty(n, dtype=object)
    expected[:] = arrays
    expected = expected[key] if not isinstance(key, list) else expected[np.array(key, dtype=int)]
    for got in (bags[key], bags[key, ...]):
        assert len(got) == len(expected)
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_array_equal(g, e)
        rows = got.columns["row"]
        np.testing.assert_array_equal(bags.instances[rows], got.instances)
        assert list(got.ids) == list(bags.ids[np.arange(n)[key]])


def test_immutable(bags):
    with pytest.raises(AttributeError, match="immutable"):
        bags.instances = None
    with pytest.raises(ValueError, match="read-only"):
        bags.offsets[0] = 1


def test_split_and_map(bags):
    assert [len(p) for p in bags.split(np.arange(10))] == [4, 1, 5]
    doubled = bags.map(lambda X: 2 * X)
    np.testing.assert_array_equal(doubled[2], 2 * bags[2])
    with pytest.raises(ValueError, match="keep all 10 rows"):
        bags.map(lambda X: X[1:])
    with pytest.raises(ValueError, match="one entry per instance: got 3 for 10"):
        bags.split([1, 2, 3])


def test_from_groups_keeps_first_appearance():
    X = np.arange(10.0).reshape(5, 2)
    bags = Bags.from_groups(X, ["b", "a", "b", "c", "a"])
    assert list(bags.ids) == ["b", "a", "c"]
    np.testing.assert_array_equal(bags[0], X[[0, 2]])
    np.testing.assert_array_equal(bags[1], X[[1, 4]])
    grouped = Bags.from_groups(X, [7, 7, 3, 3, 3])
    assert np.shares_memory(grouped.instances, X)
    assert list(grouped.ids) == ["7", "3"]


def test_from_frame():
    frame = pd.DataFrame(
        {"slide_id": ["x", "x", "y"], "a": [1.0, 2, 3], "b": [4, 5, 6], "t": list("pqr")}
    )
    bags = Bags.from_frame(frame)
    assert bags.n_features == 2
    assert Bags.from_frame(frame, features=["b"])[1].tolist() == [[6]]
    with pytest.raises(ValueError, match="no column 'slide'"):
        Bags.from_frame(frame, bag="slide")
    with pytest.raises(ValueError, match="no such feature columns"):
        Bags.from_frame(frame, features=["zz"])


def test_memmap_stays_a_memmap(tmp_path, rng):
    X = rng.normal(size=(6, 2)).astype(np.float32)
    X.tofile(tmp_path / "x.bin")
    mapped = np.memmap(tmp_path / "x.bin", dtype=np.float32, mode="r", shape=(6, 2))
    bags = check_bags(Bags(mapped, [0, 2, 6]))
    assert isinstance(bags.instances, np.memmap)
    assert isinstance(bags[1:].instances, np.memmap)
    np.testing.assert_array_equal(bags[[1, 0]].instances, X[[2, 3, 4, 5, 0, 1]])


def test_csr(rng):
    X = sp.random(8, 5, density=0.5, format="coo", random_state=0)
    bags = Bags(X, [0, 3, 8])
    assert bags.instances.format == "csr"
    np.testing.assert_array_equal(bags[[1, 0]][0].toarray(), X.toarray()[3:])
    assert sp.issparse(check_bags(bags, accept_sparse=True).instances)
    np.testing.assert_array_equal(check_bags(bags).instances, X.toarray())
    two = Bags.from_list([X.tocsr()[:3], X.tocsr()[3:]])
    assert (two.instances != bags.instances).nnz == 0


def test_torch():
    torch = pytest.importorskip("torch", reason="the torch extra is missing")
    X = torch.arange(12.0).reshape(6, 2)
    bags = check_bags(Bags(X, [0, 2, 6]))
    assert bags[0].data_ptr() == X.data_ptr()
    assert torch.equal(bags[[1]].instances, X[2:])
    assert torch.equal(Bags.from_list([X[:2], X[2:]]).instances, X)
    with pytest.raises(ValueError, match="bag 1 contains NaN in instance 0, feature 1"):
        check_bags(Bags(torch.tensor([[1.0, 1.0], [1.0, float("nan")]]), [0, 1, 2]))


def test_pickle(bags):
    again = pickle.loads(pickle.dumps(bags))
    np.testing.assert_array_equal(again.instances, bags.instances)
    assert list(again.ids) == list(bags.ids)
    with pytest.raises(ValueError, match="read-only"):
        again.offsets[0] = 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bags(np.ones((3, 2)), [0, 2]), "offsets end at 2 but there are 3 instances"),
        (lambda: Bags(np.ones((3, 2)), [1, 3]), "starts at 0"),
        (lambda: Bags(np.ones((3, 2)), [0, 3, 2, 3]), "do after bag 1"),
        (lambda: Bags(np.ones(3), [0, 3]), "must be 2-d"),
        (lambda: Bags(np.ones((3, 2)), [0, 3], ids=["a", "b"]), "2 ids for 1 bags"),
        (lambda: Bags(np.ones((3, 2)), [0, 3], columns={"c": [1]}), "column 'c'"),
        (lambda: Bags.from_list([]), "empty list"),
        (
            lambda: Bags.from_list([np.ones((2, 3)), np.ones((2, 4))], ids=["u", "v"]),
            r"bag 1 \('v'\) has 4 features but bag 0 has 3",
        ),
        (lambda: Bags.from_list([np.ones(3)]), r"bag 0 has shape \(3,\)"),
        (lambda: Bags.from_list([[[1, 2], [3]]]), "bag 0 is not a rectangular array"),
        (lambda: Bags.from_groups(np.ones((3, 1)), [0, 1]), "got 2 groups for 3 rows"),
        (lambda: Bags.from_groups(np.ones((0, 1)), []), "at least one row"),
        (lambda: check_bags(np.ones((3, 2))), "one 2-d array of shape"),
        (lambda: check_bags("slides"), "got str"),
        (lambda: check_bags(Bags(np.ones((2, 0)), [0, 2])), r"0 feature\(s\)"),
        (lambda: check_bags(Bags(np.ones((0, 2)), [0])), "got 0 bags"),
        (
            lambda: check_bags(Bags(np.ones((3, 2)), [0, 0, 3, 3], ids=["p", "q", "r"])),
            r"bag 0 \('p'\) has 0 instances \(and 1 more\); every bag needs at least one. Drop it",
        ),
        (lambda: check_bags([np.array([["a", "b"]])]), "features must be numbers"),
        (lambda: check_bags([np.array([[1j]])]), "Complex data"),
        (lambda: check_bags(Bags(np.ones((2, 3)), [0, 2]), n_features=2), "expecting 2 features"),
        (
            lambda: check_bags(Bags(sp.csr_matrix([[1, np.inf]]), [0, 1]), accept_sparse=True),
            "bag 0 contains infinity in instance 0, feature 1",
        ),
    ],
)
def test_errors_say_what_and_where(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("key", [3, -4, [0, 9], (0, 1), np.array([True, False]), 1.5])
def test_bad_keys(bags, key):
    with pytest.raises(IndexError):
        bags[key]


def test_huge_finite_values_are_accepted():
    X = np.full((4, 2), np.finfo(np.float64).max)
    assert check_bags(Bags(X, [0, 4])).n_instances == 4


class TestInstanceLabels:
    def encode(self, bags, labels, y=(0, 1, 1), classes=(0, 1)):
        return encode_instance_labels(labels, bags, np.array(classes), np.array(y))

    def test_missing_in_every_spelling(self, bags):
        labels = [None, np.nan, -1, 0, 1, None, 1, 0, -1, np.nan]
        expected = [-1, -1, -1, 0, 1, -1, 1, 0, -1, -1]
        assert self.encode(bags, labels).tolist() == expected
        assert self.encode(bags, bags.split(labels)).tolist() == expected
        assert self.encode(bags, None).tolist() == [-1] * 10

    def test_minus_one_can_be_a_class(self, bags):
        labels = [-1] * 4 + [1] + [-1, 1, None, None, None]
        got = self.encode(bags, labels, classes=(-1, 1))
        assert got.tolist() == [0] * 4 + [1, 0, 1, -1, -1, -1]

    def test_words(self, bags):
        labels = [None] * 4 + ["tumour"] + [None] * 4 + ["healthy"]
        assert self.encode(bags, labels, classes=("healthy", "tumour"))[[4, 9]].tolist() == [1, 0]

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            ([1] + [None] * 9, r"bag 0 \('a'\) is labelled negative but has a positive"),
            ([None] * 4 + [0] + [None] * 5, r"bag 1 \('b'\) is labelled positive but every"),
            ([7] + [None] * 9, r"instance 0 of bag 0 \('a'\) has label 7"),
            ([1, 0], "one entry per instance"),
            ([[None] * 4, [None], [None] * 3], r"bag 2 \('c'\) has 5 instances but 3"),
        ],
    )
    def test_contradictions_name_the_bag(self, bags, labels, message):
        with pytest.raises(ValueError, match=message):
            self.encode(bags, labels)


# Frames: what is a feature and what is not.


def noise_frame(n_bags=40, size=8, seed=0):
    """Pure noise, with a label, a patient and coordinates as numbers beside it."""
    rng = np.random.default_rng(seed)
    slide = np.repeat(np.arange(n_bags), size)
    return pd.DataFrame(
        {
            "slide_id": [f"s{i}" for i in slide],
            "label": slide % 2,
            "patient": slide // 2,
            "x": rng.integers(0, 100, len(slide)),
            "y": rng.integers(0, 100, len(slide)),
            "f1": rng.normal(size=len(slide)),
            "f2": rng.normal(size=len(slide)),
        }
    )


def test_labels_ids_and_coordinates_never_become_features():
    frame = noise_frame()
    with pytest.warns(UserWarning, match="left out of the features") as caught:
        bags = Bags.from_frame(frame)
    assert bags.feature_names == ("f1", "f2")
    for name in ("'label'", "'patient'", "'x'", "'y'"):
        assert name in str(caught[0].message)
    assert Bags.from_frame(frame, features=["f1", "label"]).feature_names == ("f1", "label")
    with pytest.raises(ValueError, match="no numeric feature columns"):
        Bags.from_frame(frame[["slide_id", "label", "x"]])


def test_a_value_of_the_bag_is_no_feature_whatever_its_name():
    frame = noise_frame().rename(columns={"label": "malignant", "patient": "grp"})
    with pytest.warns(UserWarning, match="'malignant' .one value for all rows of a bag."):
        bags = Bags.from_frame(frame, coords=["x", "y"])
    assert bags.feature_names == ("f1", "f2")
    # A rare mark that happens to be alone in its bag is a feature.
    frame = noise_frame()[["slide_id", "f1"]].iloc[::8].assign(rare=0.0)
    frame.iloc[3, 2] = 1.0
    assert Bags.from_frame(frame).feature_names == ("f1", "rare")


def test_clean_frames_pass_in_silence():
    frame = noise_frame()[["slide_id", "f1", "f2"]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Bags.from_frame(frame).feature_names == ("f1", "f2")


@pytest.mark.parametrize("lazy", [False, True])
def test_polars_frames_give_the_same_bags(lazy):
    polars = pytest.importorskip("polars")
    frame = noise_frame()
    other = polars.DataFrame(frame.to_dict("list"))
    ours = Bags.from_frame(frame, features=["f1", "f2"])
    theirs = Bags.from_frame(other.lazy() if lazy else other, features=["f1", "f2"])
    assert theirs.feature_names == ours.feature_names
    np.testing.assert_array_equal(theirs.instances, ours.instances)
    assert theirs.ids.tolist() == ours.ids.tolist()
    with pytest.warns(UserWarning, match="'label'"):
        assert Bags.from_frame(other).feature_names == ("f1", "f2")


def test_missing_numbers_of_any_frame_are_nan_and_missing_bags_are_named():
    polars = pytest.importorskip("polars")
    content = {"slide_id": ["a", "a", "b"], "f": [1, None, 3], "g": [0.5, 1.5, 2.5]}
    for frame in (pd.DataFrame(content, dtype=object).convert_dtypes(), polars.DataFrame(content)):
        X = Bags.from_frame(frame).instances
        np.testing.assert_array_equal(np.isnan(X), [[False, False], [True, False], [False, False]])
    content["slide_id"][1] = None
    for frame in (pd.DataFrame(content), polars.DataFrame(content)):
        with pytest.raises(ValueError, match="row 1 has no 'slide_id'"):
            Bags.from_frame(frame)


def test_a_column_of_lists_is_the_features():
    polars = pytest.importorskip("polars")
    content = {"slide_id": ["a", "b", "a"], "embedding": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}
    for frame in (pd.DataFrame(content), polars.DataFrame(content)):
        bags = Bags.from_frame(frame, features="embedding")
        assert bags["a"].tolist() == [[1.0, 2.0], [5.0, 6.0]]
    content["embedding"][2] = [5.0]
    with pytest.raises(ValueError, match="row 2 has 1 numbers and row 0 has 2"):
        Bags.from_frame(pd.DataFrame(content), features="embedding")


def test_levels_are_patients_and_their_slides():
    frame = pd.DataFrame(
        {
            "patient": ["p", "q", "p", "p"],
            "slide": ["s1", "s2", "s3", "s1"],
            "f": [1.0, 2.0, 3.0, 4.0],
        }
    )
    bags = Bags.from_frame(frame, levels=["patient", "slide"])
    assert bags.ids.tolist() == ["p", "q"]
    assert bags.groups.tolist() == ["s1", "s1", "s3", "s2"]
    assert bags["p"][:, 0].tolist() == [1.0, 4.0, 3.0]
    frame.loc[1, "slide"] = "s1"
    with pytest.raises(ValueError, match=r"group 's1' is in bag 0 \('p'\) and in bag 1 \('q'\)"):
        Bags.from_frame(frame, levels=["patient", "slide"])
    with pytest.raises(ValueError, match="levels names two columns"):
        Bags.from_frame(frame, levels=["patient"])


def test_to_frame_and_back():
    rng = np.random.default_rng(0)
    bags = Bags(
        rng.normal(size=(9, 2)),
        [0, 4, 9],
        ["s1", "s2"],
        coords=rng.normal(size=(9, 3)),
        groups=list("aabbcccdd"),
        feature_names=["u", "v"],
    )
    frame = bags.to_frame()
    assert list(frame.columns) == ["slide_id", "u", "v", "x", "y", "z", "group"]
    back = Bags.from_frame(frame, features=["u", "v"], coords=["x", "y", "z"], groups="group")
    assert_same(back, bags)


# What travels with bags.


def rich_bags():
    rng = np.random.default_rng(1)
    return Bags(
        rng.normal(size=(10, 3)).astype(np.float32),
        [0, 3, 4, 10],
        ["s1", "s2", "s3"],
        columns={"instance_labels": np.array([0, 1, None] * 3 + [1], dtype=object)},
        coords=np.arange(20).reshape(10, 2),
        groups=[f"g{i}" for i in (0, 0, 1, 2, 3, 3, 3, 4, 4, 4)],
        feature_names=["u", "v", "w"],
    )


def assert_same(a, b):
    np.testing.assert_array_equal(np.asarray(a.instances), np.asarray(b.instances))
    np.testing.assert_array_equal(a.offsets, b.offsets)
    assert a.ids.tolist() == b.ids.tolist()
    assert a.feature_names == b.feature_names
    assert set(a.columns) == set(b.columns)
    for name in a.columns:
        assert a.columns[name].tolist() == b.columns[name].tolist()


def test_metadata_follows_slices_joins_maps_and_pickles():
    bags = rich_bags()
    chosen = bags[[2, 0]]
    assert chosen.coords.tolist() == [*bags.coords[4:].tolist(), *bags.coords[:3].tolist()]
    assert chosen.groups.tolist() == [*bags.groups[4:].tolist(), *bags.groups[:3].tolist()]
    assert chosen.feature_names == bags.feature_names
    assert_same(Bags.concat([bags[:1], bags[1:]]), bags)
    doubled = bags.map(lambda X: 2 * X, feature_names=["a", "b", "c"])
    assert doubled.groups.tolist() == bags.groups.tolist()
    assert doubled.feature_names == ("a", "b", "c")
    assert bags.map(lambda X: 2 * X).feature_names is None
    assert_same(pickle.loads(pickle.dumps(bags)), bags)
    # A bag drawn twice is still one bag.
    assert bags[[0, 0]].with_columns(note=np.zeros(6)).groups.tolist()[:3] == ["g0", "g0", "g1"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"coords": np.zeros((3, 2))}, "column 'coords' must have one row per instance"),
        ({"coords": np.zeros((4, 4))}, "one number per instance, or N x 2 or N x 3"),
        ({"coords": [0, 1, np.nan, 2]}, r"instance 0 of bag 1 has none"),
        ({"coords": list("abcd")}, "coords must be numbers"),
        ({"groups": ["a", "a"]}, "column 'groups' must have one row per instance"),
        ({"groups": ["a", "b", "b", "c"]}, "group 'b' is in bag 0 and in bag 1"),
        ({"groups": ["a", "b", None, "c"]}, "instance 0 of bag 1 has no group"),
        ({"feature_names": ["u"]}, "got 1 names for 2 features"),
        ({"feature_names": ["u", "u"]}, "'u' is there twice"),
    ],
)
def test_metadata_that_does_not_fit(extra, message):
    with pytest.raises(ValueError, match=message):
        Bags(np.zeros((4, 2)), [0, 2, 4], **extra)


def test_concat_refuses_other_features_and_shared_groups():
    bags = rich_bags()
    other = bags.with_instances(bags.instances, feature_names=["u", "w", "v"])
    with pytest.raises(ValueError, match="all partitions need the same features"):
        Bags.concat([bags, other])
    renamed = Bags(
        bags.instances,
        bags.offsets,
        list("abc"),
        columns=bags.columns,
        feature_names=bags.feature_names,
    )
    with pytest.raises(ValueError, match="group 'g0' is in"):
        Bags.concat([bags, renamed])


# Lookup, filter, summaries.


def test_lookup_by_id():
    bags = rich_bags()
    np.testing.assert_array_equal(bags["s3"], bags[2])
    assert bags[["s3", "s1"]].ids.tolist() == ["s3", "s1"]
    assert bags[np.array(["s2"])].sizes.tolist() == [1]
    assert "s2" in bags
    assert "s9" not in bags
    with pytest.raises(KeyError, match="no bag is called 's9'; there are 's1', 's2', 's3'"):
        bags["s9"]
    with pytest.raises(KeyError, match="2 bags are called 's1'"):
        bags[[0, 0]]["s1"]


def test_filter_keeps_bags_and_aligns_everything():
    bags = rich_bags()
    keep = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1, 1], dtype=bool)
    left = bags.filter(keep)
    assert left.sizes.tolist() == [2, 0, 4]
    np.testing.assert_array_equal(left.instances, bags.instances[keep])
    assert left.groups.tolist() == bags.groups[keep].tolist()
    assert left.ids.tolist() == bags.ids.tolist()
    assert_same(bags.filter(lambda X: keep), left)
    for bad in (keep[:3], keep.astype(int)):
        with pytest.raises(ValueError, match="a mask of 10 booleans"):
            bags.filter(bad)


def test_describe_and_html():
    bags = rich_bags()
    about = bags.describe()
    assert about["bags"] == 3
    assert (about["smallest bag"], about["median bag"], about["largest bag"]) == (1, 3.0, 6)
    assert about["groups"] == 5
    html = Bags(np.ones((20, 1)), np.arange(21), ["<script>", *map(str, range(19))])._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "12 more bags" in html


# One file.


@pytest.mark.parametrize("kind", ["dense", "sparse", "torch", "integers", "images"])
def test_save_and_load(kind, tmp_path):
    bags = rich_bags()
    if kind == "sparse":
        bags = bags.with_instances(sp.csr_matrix(bags.instances), bags.feature_names)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        bags = bags.with_instances(torch.from_numpy(bags.instances.copy()), bags.feature_names)
    if kind == "integers":
        bags = Bags(np.arange(8).reshape(4, 2), [0, 1, 4])
    if kind == "images":
        bags = Bags(np.arange(36, dtype=np.uint8).reshape(4, 3, 3), [0, 1, 4])
    path = bags.save(tmp_path / "all.bags")
    back = Bags.load(path)
    assert type(back.instances) is type(bags.instances)
    assert back.dtype == bags.dtype
    if kind == "sparse":
        assert (back.instances != bags.instances).nnz == 0
        back, bags = (b.with_instances(b.instances.toarray()) for b in (back, bags))
    assert_same(back, bags)
    assert [p.name for p in tmp_path.iterdir()] == ["all.bags"]


def test_load_can_leave_rows_on_disk(tmp_path):
    bags = rich_bags()
    mapped = Bags.load(bags.save(tmp_path / "a.bags"), lazy=True)
    assert isinstance(mapped.instances, np.memmap)
    assert_same(mapped, bags)
    assert_same(Bags.load(mapped.save(tmp_path / "b.bags")), bags)


def test_save_reads_rows_in_blocks(tmp_path):
    X = np.random.default_rng(0).normal(size=(6_000, 1_000))
    reads = []

    class Watched:
        shape, ndim, dtype = X.shape, 2, X.dtype

        def __getitem__(self, key):
            reads.append(X[key].nbytes)
            return X[key]

    path = Bags(Watched(), [0, 1, len(X)]).save(tmp_path / "a.bags")
    assert sum(reads) == X.nbytes
    assert max(reads) <= 16 * 2**20
    np.testing.assert_array_equal(Bags.load(path).instances, X)


def test_files_that_hold_no_bags(tmp_path):
    import zipfile

    bags = rich_bags()
    path = bags.save(tmp_path / "a.bags")
    with pytest.raises(ValueError, match="column 'odd' holds a tuple"):
        odd = np.empty(10, dtype=object)
        odd[:] = [(1, 2)] * 10
        bags.with_columns(odd=odd).save(tmp_path / "b.bags")
    assert not (tmp_path / "b.bags").exists()
    (tmp_path / "text.bags").write_text("no")
    with pytest.raises(ValueError, match=r"text.bags: is not a file of bags"):
        Bags.load(tmp_path / "text.bags")
    np.savez(tmp_path / "c.npz", instances=bags.instances)
    with pytest.raises(ValueError, match=r"c.npz: is not a file of bags"):
        Bags.load(tmp_path / "c.npz")
    # An array that claims more than the file holds is refused before it is allocated.
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "d.bags", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "instances.npy":
                content = content.replace(b"(10, 3)", b"(99, 3)")
            new.writestr(name, content)
    with pytest.raises(ValueError, match="instances has 120 bytes; its shape needs 1188"):
        Bags.load(tmp_path / "d.bags")


# Read-only inside, and never trusted from an earlier look.


@pytest.mark.parametrize("kind", ["dense", "sparse", "slice", "chosen", "pickled", "loaded"])
def test_arrays_inside_refuse_to_be_written(kind, tmp_path):
    bags = rich_bags()
    if kind == "sparse":
        bags = bags.with_instances(sp.csr_matrix(bags.instances))
    if kind in ("slice", "chosen"):
        bags = bags[1:] if kind == "slice" else bags[[2, 0]]
    if kind == "pickled":
        bags = pickle.loads(pickle.dumps(bags))
    if kind == "loaded":
        bags = Bags.load(bags.save(tmp_path / "a.bags"))
    rows = bags.instances.data if kind == "sparse" else bags.instances
    for array in (rows, bags.offsets, bags.coords, bags.groups):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[-1]
    with pytest.raises(TypeError, match="does not support item assignment"):
        bags.columns["coords"] = 0


def test_the_arrays_of_the_user_stay_writable():
    X, offsets, coords = np.ones((3, 2)), np.array([0, 1, 3]), np.zeros(3)
    bags = Bags(X, offsets, coords=coords)
    X[0], offsets[1], coords[2] = 2.0, 2, 5.0
    assert np.shares_memory(bags.instances, X)
    # Entries that are not in order are brought into order in a copy.
    S = sp.csr_matrix((np.ones(2), np.array([1, 0]), np.array([0, 2])), shape=(1, 2))
    assert Bags(S, [0, 1]).instances.has_sorted_indices
    assert S.indices.tolist() == [1, 0]


@pytest.mark.parametrize("kind", ["view", "own array", "torch"])
def test_nan_written_after_fit_is_never_the_probability_of_another_bag(kind):
    data = make_gaussian_bags(30, random_state=0)
    X, y = np.array(data.bags.instances), data.y
    if kind == "torch":
        X = pytest.importorskip("torch").from_numpy(X)
    bags = Bags(X, data.bags.offsets)
    models = [VGPMIL(n_inducing=10, max_iter=5, tol=0, random_state=0), MISVM()]
    for model in models[: 1 if kind == "torch" else 2]:
        model.fit(bags, y)
        row = int(bags.offsets[4])
        if kind == "view":
            with pytest.raises(ValueError, match="read-only"):
                bags.instances[row, 1] = np.nan
            continue
        before = float(X[row, 1])
        X[row, 1] = np.nan
        with pytest.raises(ValueError, match="bag 4 contains NaN in instance 0, feature 1"):
            model.predict_proba(bags)
        X[row, 1] = before


def test_bags_that_failed_the_gate_fail_again():
    bags = Bags(np.array([[1.0], [np.nan]]), [0, 1, 2])
    for _ in range(2):
        with pytest.raises(ValueError, match="bag 1 contains NaN"):
            check_bags(bags)
    assert check_bags(bags, finite="allow-nan") is bags
    with pytest.raises(ValueError, match="bag 1 contains infinity in instance 0"):
        check_bags(Bags(np.array([[np.nan], [-np.inf]]), [0, 1, 2]), finite="allow-nan")
