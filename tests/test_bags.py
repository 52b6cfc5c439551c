from __future__ import annotations

import pickle  # noqa: TID251 - joblib and Dask pickle bags

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from bagwise import Bags
from bagwise.bags import check_bags, encode_instance_labels


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


@pytest.mark.parametrize("key", [3, -4, [0, 9], "a", (0, 1), np.array([True, False]), 1.5])
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
