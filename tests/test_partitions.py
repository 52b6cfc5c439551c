"""Rows in one file and in several partitions: the same as the array they stand for."""

from __future__ import annotations

import pickle  # noqa: TID251 - what Dask does to rows
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from bagwise import VGPMIL, Bags, Execution
from bagwise.datasets import load_musk1
from bagwise.files import LazyRows, map_rows_of, read_bags, read_plainly


@pytest.fixture
def rows():
    return np.random.default_rng(0).normal(size=(20, 3))


def mapped(rows, path):
    rows.tofile(path)
    return np.memmap(path, rows.dtype, "r", shape=rows.shape)


def virtual(kind, rows, folder):
    if kind == "mapped":
        return map_rows_of(mapped(rows, folder / "all.bin"))
    pieces = [rows[:7], rows[7:8], rows[8:]]
    parts = [
        Bags(piece if i == 1 else mapped(piece, folder / f"{i}.bin"), [0, len(piece)])
        for i, piece in enumerate(pieces)
    ]
    return Bags.concat(parts).instances


MASK = np.arange(20) % 3 == 0
KEYS = [
    slice(None), slice(3, 9), slice(9, 3), slice(-4, None), slice(0, 20, 3), slice(None, None, -1),
    0, -1, np.int64(7), [5, 2, 2, -1], np.array([], dtype=int), MASK, (slice(2, 10), 1),
    (4, slice(None)), ([1, 8], slice(0, 2)),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["mapped", "stacked"])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_reads_as_the_array(kind, key, rows, tmp_path):
    there = virtual(kind, rows, tmp_path)
    assert not isinstance(there, np.ndarray)
    np.testing.assert_array_equal(there[key], rows[key])


@pytest.mark.parametrize("kind", ["mapped", "stacked"])
def test_behaves_as_an_array(kind, rows, tmp_path):
    there = virtual(kind, rows, tmp_path)
    assert (there.shape, there.ndim, there.size, len(there)) == (rows.shape, 2, 60, 20)
    assert there.nbytes == rows.nbytes and there.dtype == rows.dtype
    assert "20 x 3" in repr(there)
    np.testing.assert_array_equal(np.asarray(there), rows)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(there))[5:9], rows[5:9])
    run = there.select_rows(slice(5, 12))
    assert not isinstance(run, np.ndarray)
    np.testing.assert_array_equal(run[1:3], rows[6:8])
    assert there.select_rows(slice(4, 4)).shape == (0, 3)
    double = there.map_rows(lambda x: np.column_stack([2 * x, x[:, :1]]).astype(np.float32))
    assert double.shape == (20, 4) and double.dtype == np.float32
    np.testing.assert_array_equal(double[[9, 1]][:, :3], (2 * rows[[9, 1]]).astype(np.float32))
    bags = Bags(there, np.arange(0, 21, 5))
    np.testing.assert_array_equal(bags[[3, 0]].instances, rows[[*range(15, 20), *range(5)]])
    np.testing.assert_array_equal(bags[1:3].map(lambda x: x + 1).instances[:], rows[5:15] + 1)
    for wrong in (20, [0, 20], np.ones(3, dtype=bool)):
        with pytest.raises(IndexError):
            there[wrong]
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(there, copy=False)


def test_only_memory_maps_of_floats_are_read_plainly(rows, tmp_path):
    on_disk = Bags(mapped(rows, tmp_path / "a.bin"), [0, 20])
    assert isinstance(read_plainly(on_disk).instances, LazyRows)
    whole = Bags(mapped(rows.astype(int), tmp_path / "b.bin"), [0, 20])
    in_memory = Bags(rows, [0, 20])
    for same in (whole, in_memory, [rows]):
        assert read_plainly(same) is same


def test_concat_keeps_names_and_columns(rows):
    a = Bags(rows[:5], [0, 2, 5], ["x", "y"], columns={"coords": np.arange(5)})
    b = Bags(rows[5:], [0, 15], columns={"coords": np.arange(15)})
    both = Bags.concat([a, b])
    assert both.ids.tolist() == ["x", "y", "0"]
    assert both.columns["coords"].tolist() == [*range(5), *range(15)]
    np.testing.assert_array_equal(both.instances, rows)
    assert Bags.concat([Bags(sp.csr_matrix(rows), [0, 20])] * 2).instances.shape == (40, 3)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least one partition"),
        ([Bags(np.ones((2, 3)), [0, 2]), Bags(np.ones((2, 4)), [0, 2])],
         "partition 1 has 4 features but partition 0 has 3"),
        ([Bags(np.ones((2, 3)), [0, 2]), Bags(np.ones((0, 3)), [0])],
         "partition 1 is empty: it has 0 bags"),
        ([Bags(np.ones((0, 3)), [0, 0]), Bags(np.ones((2, 3)), [0, 2])],
         "partition 0 is empty: it has 0 instances"),
        ([Bags(np.ones((2, 3)), [0, 2]), np.ones((2, 3))], "partition 1 must be Bags; got ndarray"),
        ([Bags(np.ones((2, 3)), [0, 2]), Bags(sp.csr_matrix(np.ones((2, 3))), [0, 2])],
         "partition 1 has sparse instances but partition 0 has dense"),
        ([Bags(np.ones((2, 3)), [0, 2]),
          Bags(np.ones((2, 3)), [0, 2], columns={"coords": np.ones(2)})],
         r"partition 1 has the columns \['coords'\]"),
    ],
)  # fmt: skip
def test_bad_partitions_are_named(parts, message):
    with pytest.raises(ValueError, match=message):
        Bags.concat(parts)


@pytest.mark.parametrize("inference", ["marginal", "paper"])
def test_fit_on_partitions_of_every_kind(tmp_path, inference):
    bags, y = load_musk1(return_X_y=True)
    edges = [0, 20, 50, len(bags)]
    first, second, third = (bags[a:b] for a, b in pairwise(edges))
    for name, x in zip(second.ids, second, strict=True):
        np.save(tmp_path / f"{int(name) if name.isdigit() else name}.npy", x)
    order = [f"{name}.npy" for name in second.ids]
    lazy = read_bags(tmp_path, lazy=True)
    lazy = lazy[[lazy.ids.tolist().index(name.removesuffix(".npy")) for name in order]]
    on_disk = Bags(mapped(np.asarray(third.instances), tmp_path / "t.bin"), third.offsets)
    joined = Bags.concat([first, lazy, on_disk])
    options = {
        "inference": inference, "n_inducing": 20, "random_state": 0, "max_iter": 5, "tol": 0.0
    }  # fmt: skip
    a = VGPMIL(**options, execution=Execution(cache="none", driver="serial")).fit(joined, y)
    b = VGPMIL(**options).fit(bags, y)
    np.testing.assert_allclose(a.posterior_mean_, b.posterior_mean_, atol=1e-8)
    np.testing.assert_allclose(a.predict_proba(joined), b.predict_proba(bags), atol=1e-8)
