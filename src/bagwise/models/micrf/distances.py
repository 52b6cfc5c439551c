"""L1, L2 and chi-square dissimilarities between instances (eq. 7), compiled.

Each is divided by its mean over training pairs, so that their weights are comparable. chi-square
of signed features is sum (x - y)^2 / (|x| + |y|), with 0 where both are 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from bagwise.core.arrays import Floats, Ints, Reals, Rows
from bagwise.core.interrupts import interruptible

# Keeps 0 / 0 at 0 without a branch, which would stop vectorisation.
_TINY = 1e-300
# Instances whose pairs estimate the means.
_MEAN_ROWS = 512


@njit(cache=True, fastmath={"nnan", "nsz", "reassoc", "contract"}, inline="always")
def _three(x, y):  # type: ignore[no-untyped-def]
    l1 = 0.0
    squared = 0.0
    chi = 0.0
    for d in range(len(x)):
        gap = abs(x[d] - y[d])
        l1 += gap
        squared += gap * gap
        chi += gap * gap / (abs(x[d]) + abs(y[d]) + _TINY)
    return l1, np.sqrt(squared), chi


@njit(cache=True)
def _cross(X, Y, scale, out):  # type: ignore[no-untyped-def]
    for i in range(len(X)):
        for j in range(len(Y)):
            l1, l2, chi = _three(X[i], Y[j])
            out[0, i, j] = l1 * scale[0]
            out[1, i, j] = l2 * scale[1]
            out[2, i, j] = chi * scale[2]


@njit(cache=True)
def measure(near, row, others):  # type: ignore[no-untyped-def]
    """Fill in what is missing in the table between one of its rows and others."""
    table, ids, X, scale = near
    for other in others:
        if np.isnan(table[0, row, other]):
            l1, l2, chi = _three(X[ids[row]], X[ids[other]])
            table[0, row, other] = table[0, other, row] = l1 * scale[0]
            table[1, row, other] = table[1, other, row] = l2 * scale[1]
            table[2, row, other] = table[2, other, row] = chi * scale[2]


@njit(cache=True)
def _measure_all(near, rows):  # type: ignore[no-untyped-def]
    for n in range(len(rows)):
        measure(near, rows[n], rows[: n + 1])


@njit(cache=True)
def _to_clamped(X, Z, weights, out):  # type: ignore[no-untyped-def]
    for i in range(len(X)):
        total = 0.0
        for j in range(len(Z)):
            l1, l2, chi = _three(X[i], Z[j])
            total += weights[0] * l1 + weights[1] * l2 + weights[2] * chi
        out[i] = total


@njit(cache=True, nogil=True)
def _sums(Z, owner):  # type: ignore[no-untyped-def]
    sums = np.zeros(3)
    n_pairs = 0
    for i in range(len(Z)):
        for j in range(i):
            if owner[i] != owner[j]:
                l1, l2, chi = _three(Z[i], Z[j])
                sums[0] += l1
                sums[1] += l2
                sums[2] += chi
                n_pairs += 1
    return sums, n_pairs


def inverse_means(X: Floats, bag_index: Ints) -> Floats:
    """1 / mean of each dissimilarity between instances of different bags, shape (3,)."""
    rows = np.unique(np.linspace(0, len(X) - 1, min(len(X), _MEAN_ROWS)).astype(np.int64))
    sums, n_pairs = _sums(X[rows], bag_index[rows])
    # All instances identical: every dissimilarity is 0, whatever the factor.
    return np.where(sums > 0, n_pairs / np.where(sums > 0, sums, 1.0), 1.0)


def pair_sums(Z: Floats, factors: Floats) -> Floats:
    """Each dissimilarity summed over all pairs of rows once, shape (3,)."""
    sums, _ = interruptible(_sums, Z, np.arange(len(Z)))  # compiled where it is first needed
    return sums * factors


def cross(X: Floats, Y: Floats, factors: Floats) -> Floats:
    """All three dissimilarities between two sets, shape (3, len(X), len(Y))."""
    out = np.empty((3, len(X), len(Y)))
    _cross(X, Y, factors, out)
    return out


def to_clamped(X: Floats, Z: Rows, weights: Floats) -> Floats:
    """Weighted dissimilarities of each row of X summed over the rows of Z, shape (len(X),)."""
    out = np.zeros(len(X))
    if len(Z) and np.any(weights > 0):
        _to_clamped(X, Z, weights, out)
    return out


class Near(NamedTuple):
    """Dissimilarities as compiled code sees them: a table, and the instances it is made from."""

    table: Reals  # [3, n, n] float32; NaN where no one has asked yet
    ids: Ints  # [n] the instance of each row
    X: Floats  # [N, D]
    scale: Floats  # [3]


class Dissimilarities:
    """Dissimilarities between the instances that inference asks for, computed once each.

    Memory is O(``max_rows``^2): when more instances than that have been asked for, those not
    needed now give up their rows, the one that was not needed for the longest time first.
    """

    def __init__(self, X: Floats, factors: Floats, max_rows: int) -> None:
        self.max_rows = max_rows
        self._place = np.full(len(X), -1, dtype=np.int64)  # row of each instance in the table
        self._last_use = np.empty(0, dtype=np.int64)  # number of the request, of each row
        self._n_requests = 0
        table, ids = np.empty((3, 0, 0), dtype=np.float32), np.empty(0, dtype=np.int64)
        self._near = Near(table, ids, np.ascontiguousarray(X), factors)

    def table(self, ids: Ints) -> tuple[Reals, Ints]:
        """A table [3, n, n] that covers all pairs of ``ids``, and the row of each in it."""
        near, place = self.lookup(ids)
        _measure_all(near, place[ids])
        return near.table, place[ids]

    def lookup(self, ids: Ints) -> tuple[Near, Ints]:
        """A table with room for ``ids``, and the row in it of every instance (-1: none).

        Its entries are there once `measure` was asked for them.
        """
        self._n_requests += 1
        rows = self._place[ids]
        self._last_use[rows[rows >= 0]] = self._n_requests
        new = ids[rows < 0]
        if len(new):
            self._add(new)
        return self._near, self._place

    def _add(self, new: Ints) -> None:
        old, ids = self._near.table, self._near.ids
        n_old = len(ids)
        # The table may have outgrown its limit before, by one large request: never more than asked.
        n_reused = min(len(new), max(0, n_old + len(new) - self.max_rows))
        idle = np.flatnonzero(self._last_use < self._n_requests)
        idle = idle[np.argsort(self._last_use[idle], kind="stable")][:n_reused]
        n = n_old + len(new) - len(idle)
        rows = np.concatenate([idle, np.arange(n_old, n)])
        self._place[ids[idle]] = -1
        if n > n_old:
            table = np.full((3, n, n), np.nan, dtype=np.float32)
            table[:, :n_old, :n_old] = old
            ids = np.concatenate([ids, np.empty(n - n_old, dtype=np.int64)])
            self._near = self._near._replace(table=table, ids=ids)
            self._last_use = np.concatenate([self._last_use, np.empty(n - n_old, dtype=np.int64)])
        ids[rows] = new
        self._place[new] = rows
        self._last_use[rows] = self._n_requests
        self._near.table[:, idle] = np.nan
        self._near.table[:, :, idle] = np.nan


@njit(cache=True, inline="always")
def _psi(table, weights, i, j):  # type: ignore[no-untyped-def]
    return weights[0] * table[0, i, j] + weights[1] * table[1, i, j] + weights[2] * table[2, i, j]


@njit(cache=True)
def fill_blocks(table, weights, place, offsets, edges, starts, out):  # type: ignore[no-untyped-def]
    """Blocks of eq. (7) for every edge; ``place`` is -1 at a non-instance state, which costs 0."""
    for e in range(len(edges)):
        s, t = edges[e]
        at = starts[e]
        for a in range(offsets[s], offsets[s + 1]):
            for b in range(offsets[t], offsets[t + 1]):
                i, j = place[a], place[b]
                if i < 0 or j < 0:
                    out[at] = 0.0
                else:
                    out[at] = _psi(table, weights, i, j)
                at += 1


@njit(cache=True)
def descend(  # type: ignore[no-untyped-def]
    near, weights, place, inst, non, allowed, offsets, bags, L
):
    """Let each bag in turn take its cheapest state given the others, until none moves.

    Changes ``L`` in place. ``non`` is infinite where a bag must select an instance; only
    ``allowed`` instances are selected. ICM without blocks: the cost of every instance against
    the selected ones is kept up to date as bags move. Only dissimilarities to instances that
    were selected are asked for, and none where ``weights`` are 0.
    """
    table, tied = near[0], np.any(weights > 0)
    ids = np.flatnonzero(allowed)
    cost = np.zeros(len(inst))
    for b in range(len(L)):
        if tied and L[b] >= 0:
            measure(near, place[L[b]], place[ids])
            for k in ids:
                cost[k] += _psi(table, weights, place[L[b]], place[k])  # along a row of the table
    moved = True
    while moved:
        moved = False
        for b in bags:
            old, best, lowest = L[b], -1, non[b]
            here = np.inf if old >= 0 else non[b]
            for i in range(offsets[b], offsets[b + 1]):
                if not allowed[i]:
                    continue
                value = inst[i] + cost[i]
                if tied and old >= 0:
                    value -= _psi(table, weights, place[i], place[old])
                if i == old:
                    here = value
                if value < lowest:
                    best, lowest = i, value
            # A strict gain beyond rounding, so that ties cannot cycle.
            if best == old or not lowest < here - 1e-9 * (1.0 + abs(lowest)):
                continue
            L[b] = best
            moved = True
            if not tied:
                continue
            if best >= 0:
                measure(near, place[best], place[ids])
            for k in ids:
                if best >= 0:
                    cost[k] += _psi(table, weights, place[best], place[k])
                if old >= 0:
                    cost[k] -= _psi(table, weights, place[old], place[k])


@njit(cache=True, fastmath={"nnan", "nsz", "reassoc", "contract"})
def _intersection(X, size, out):  # type: ignore[no-untyped-def]
    for i in range(len(X)):
        for j in range(i + 1):
            l1 = 0.0
            for d in range(X.shape[1]):
                l1 += abs(X[i, d] - X[j, d])
            out[i, j] = out[j, i] = 0.5 * (size[i] + size[j] - l1)


def intersection_gram(X: Floats) -> Floats:
    """Histogram intersection of signed features, (|x| + |y| - L1(x, y)) / 2, shape (n, n)."""
    out = np.empty((len(X), len(X)))
    _intersection(X, np.abs(X).sum(axis=1), out)
    return out
