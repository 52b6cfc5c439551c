"""Choosing inducing points: class-wise k-means, a random subset, or the user's own."""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple, Protocol

import numpy as np
from sklearn.utils.random import sample_without_replacement
from threadpoolctl import threadpool_limits

from bagwise.core.arrays import Bools, Doubles, Floats, Ints, Rows, host_rows, to_numpy

# Rows k-means sees per class; more do not move the centroids noticeably.
_MAX_ROWS = 10_000
# From here on mini-batches are quicker and as good.
_MINI_BATCH_FROM = 5_000
# After so many passes of mini-batches the inertia is within 2 % of that of full k-means.
_PASSES = 5
# Digits, of the largest value, that points are put in order by.
_DIGITS = 9
# Features that rows are told apart by before all of them are compared.
_TELLING = 8


class Scale(Protocol):
    """Maps rows to other units."""

    def __call__(self, X: Floats, /) -> Doubles:
        """The rows in those units."""


class _Pool(NamedTuple):
    rows: Floats  # [n, D] distinct
    counts: Ints  # [n]


def choose(
    X: Rows,
    group: Ints | Bools | None,
    n: int,
    method: str,
    rng: np.random.RandomState,
    scaling: Scale | None = None,
) -> Floats:
    """At most ``n`` inducing points [M, D] for instances ``X`` [N, D].

    ``kmeans`` clusters instances, ``subset`` draws some; as many from each ``group`` [N], such as
    the positive and the negative bags. Never more points than distinct rows. ``scaling`` maps rows
    to the units in which the points are wanted.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.inducing import choose
    >>> X = np.repeat(np.arange(6.0)[:, None], 10, axis=0)
    >>> Z = choose(X, np.arange(60) < 30, 4, "kmeans", np.random.RandomState(0))
    >>> Z.shape, choose(X, np.arange(60) // 20, 7, "kmeans", np.random.RandomState(0)).shape
    ((4, 1), (6, 1))
    """
    pick, largest = _centroids if method == "kmeans" else _draw, 0
    if group is not None:
        largest = int(np.max(group, initial=0))
    if group is not None and largest > 1:
        groups, seed = np.unique(group), int(rng.randint(np.iinfo(np.int32).max))
        points = []
        for name in groups:
            # One seed serves all groups: points do not depend on how these are numbered.
            own = np.random.RandomState(seed)
            pool = _distinct(X, np.flatnonzero(group == name), n, own, scaling)
            points.append(pick(pool, max(1, n // len(groups)), own))
        return _in_order(np.concatenate(points))
    # Where all instances are on one side, nobody need list them.
    sides: tuple[Ints | int, Ints | int] = (0, X.shape[0])
    if group is not None and largest:
        sides = np.flatnonzero(group), np.flatnonzero(group == 0)
    pools = [_distinct(X, rows, n, rng, scaling) for rows in sides]
    want = [(n + 1) // 2, n // 2]
    # A class with few distinct rows leaves its share to the other.
    for i in (0, 1):
        short = want[i] - len(pools[i].rows)
        if short > 0:
            want[i] -= short
            want[1 - i] = min(want[1 - i] + short, len(pools[1 - i].rows))
    points = [pick(pool, k, rng) for pool, k in zip(pools, want, strict=True) if k > 0]
    return _in_order(np.concatenate(points))


def _distinct(
    X: Rows, rows: Ints | int, n: int, rng: np.random.RandomState, scaling: Scale | None
) -> _Pool:
    """Distinct rows of a subsample of some rows, or of the first so many, in float64, counted."""
    limit, many = max(_MAX_ROWS, 10 * n), rows if isinstance(rows, int) else len(rows)
    if many > limit:
        # Unlike rng.choice, this does not shuffle millions of rows to draw thousands.
        drawn = np.sort(sample_without_replacement(many, limit, random_state=rng))
        rows = drawn if isinstance(rows, int) else rows[drawn]
    elif isinstance(rows, int):
        rows = np.arange(rows)
    chosen = host_rows(X, rows)
    scaled = chosen if scaling is None else to_numpy(scaling(chosen))
    # Rows that differ in their first features are distinct: sorting by those is all there is to do.
    first = scaled[:, :_TELLING]
    order = np.lexsort(first.T[::-1])
    if np.all(np.any(np.diff(first[order], axis=0) != 0, axis=1)):
        return _Pool(scaled[order], np.ones(len(scaled), dtype=np.int64))
    return _Pool(*np.unique(scaled, axis=0, return_counts=True))


def _centroids(pool: _Pool, k: int, rng: np.random.RandomState) -> Floats:
    from sklearn.cluster import KMeans, MiniBatchKMeans

    if k >= len(pool.rows):
        return pool.rows
    many = len(pool.rows) > _MINI_BATCH_FROM
    seed = int(rng.randint(np.iinfo(np.int32).max))
    kmeans = (
        MiniBatchKMeans(k, n_init=1, max_iter=_PASSES, random_state=seed)
        if many
        else KMeans(k, n_init=1, random_state=seed)
    )
    # Batches are small: many threads would wait for each other longer than they work.
    with threadpool_limits(1) if many else nullcontext():
        return kmeans.fit(pool.rows, sample_weight=pool.counts).cluster_centers_


def _in_order(points: Floats) -> Floats:
    """Distinct points, for both classes may hold the same row, in an order that rounding leaves.

    Sums of k-means differ in their last digits with the number of threads; who draws some of the
    points by number must get the same ones.
    """
    points = np.unique(points, axis=0)
    largest = np.abs(points).max(initial=0.0) or 1.0
    return points[np.lexsort(np.round(points / largest, _DIGITS).T[::-1])]


def _draw(pool: _Pool, k: int, rng: np.random.RandomState) -> Floats:
    k = min(k, len(pool.rows))
    return pool.rows[np.sort(rng.choice(len(pool.rows), k, replace=False))]
