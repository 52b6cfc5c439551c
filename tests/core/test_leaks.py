"""Features that know the label: found where planted, never in data as people have it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from bagwise.core.leaks import bag_level_features, determining_features
from bagwise.datasets import load_fox, load_musk1, make_gaussian_bags


def noise(n_bags=40, size=6, n_features=30, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n_bags) % 2
    offsets = np.arange(0, n_bags * size + 1, size)
    return rng.normal(size=(n_bags * size, n_features)), offsets, y, rng


def naive(X, offsets, y):
    """By the definition: constant in bags with pure values, or apart between two classes."""
    suspects = []
    for j in range(X.shape[1]):
        parts = [X[a:b, j] for a, b in pairwise(offsets)]
        rows = [
            np.concatenate([p for p, c in zip(parts, y, strict=True) if c == k]) for k in (0, 1)
        ]
        apart = rows[0].max() < rows[1].min() or rows[1].max() < rows[0].min()
        constant = all(len(set(p)) == 1 for p in parts)
        values = [{p[0] for p, c in zip(parts, y, strict=True) if c == k} for k in (0, 1)]
        pure = constant and not values[0] & values[1] and len(values[0] | values[1]) < len(y) / 2
        if apart or pure:
            suspects.append(j)
    return suspects


@pytest.mark.parametrize("kind", ["dense", "sparse", "torch", "sorted by class"])
def test_planted_leaks_are_found(kind):
    X, offsets, y, rng = noise()
    if kind == "sorted by class":
        y = np.sort(y)
    per_row = np.repeat(y, 6)
    X[:, 3] = per_row  # the label itself
    X[:, 7] = np.repeat(2 * rng.integers(0, 3, 40) + y, 6)  # sites that sent one class each
    X[:, 11] = per_row + 0.3 * rng.random(240)  # every patch of one class is brighter
    expected = [3, 7, 11]
    assert naive(X, offsets, y) == expected
    if kind == "sparse":
        X = sp.csr_matrix(X)
    if kind == "torch":
        X = pytest.importorskip("torch").from_numpy(X)
    assert determining_features(X, offsets, y).tolist() == expected


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_silent_however_wide(seed):
    X, offsets, y, _ = noise(n_bags=12, size=2, n_features=2000, seed=seed)
    assert determining_features(X, offsets, y).tolist() == []
    X, offsets, y, _ = noise(n_bags=30, size=1, n_features=500, seed=seed)
    assert determining_features(X, offsets, y).tolist() == []


def test_values_of_bags_that_say_nothing_are_silent():
    X, offsets, y, rng = noise()
    X[:, 0] = np.repeat(rng.normal(size=40), 6)  # an age: one value per bag
    X[:, 1] = np.repeat(rng.integers(0, 4, 40), 6)  # a site with both classes
    X[:, 2] = 5.0  # constant
    assert determining_features(X, offsets, y).tolist() == []


def test_chance_decides_for_few_bags():
    # Six bags of one class each side sort by luck once in 10; forty never.
    for n_bags, expected in ((6, []), (40, [0])):
        X, offsets, y, _ = noise(n_bags=n_bags, n_features=1)
        X[:, 0] = np.repeat(y, 6)
        assert determining_features(X, offsets, y).tolist() == expected


def test_bags_of_one_may_have_an_honest_feature():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    honest = y * 5 + rng.normal(size=60) * 0.2
    X = np.column_stack([honest, np.round(honest, 1), y])
    assert determining_features(X, np.arange(61), y).tolist() == [2]


@pytest.mark.parametrize("load", [load_musk1, load_fox, lambda **o: make_gaussian_bags(50, **o)])
def test_known_data_are_silent(load):
    bags, y = load(return_X_y=True)
    assert determining_features(bags.instances, bags.offsets, y).tolist() == []
    assert bag_level_features(bags.instances, bags.offsets).tolist() == []


def test_clean_rows_are_read_only_as_far_as_needed():
    X, offsets, y, _ = noise(n_bags=2000)

    class Counting:
        shape, ndim, read = X.shape, 2, 0

        def __getitem__(self, key):
            self.read += key.stop - key.start
            return X[key]

    rows = Counting()
    assert determining_features(rows, offsets, y).tolist() == []
    assert rows.read < 1000


def test_several_classes_and_nothing_to_tell():
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3
    X = np.column_stack([rng.normal(size=120), np.repeat(y, 4)])
    offsets = np.arange(0, 121, 4)
    assert determining_features(X, offsets, y).tolist() == [1]
    assert determining_features(X, offsets, np.zeros(30)).tolist() == []


def test_bag_level_features_need_more_than_luck():
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 41, 2)
    X = np.column_stack([rng.normal(size=40), np.repeat(rng.normal(size=20), 2), np.zeros(40)])
    X[3, 2] = 0.0
    assert bag_level_features(X, offsets).tolist() == [1]
    X[1, 1] += 1
    assert bag_level_features(X, offsets).tolist() == []
