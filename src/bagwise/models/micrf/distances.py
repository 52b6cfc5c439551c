"""L1, L2 and chi-square dissimilarities between instances (eq. 7), compiled.

Each is divided by its mean over training pairs, so that their weights are comparable. chi-square
of signed features is sum (x - y)^2 / (|x| + |y|), with 0 where both are 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from bagwise.core.arrays import Floats, Ints, Reals, Rows


# Keeps 0 / 0 at 0 without a branch, which would stop vectorisation.
_TINY = 1e-300
# Instances whose pairs estimate the means.
_MEAN_ROWS = 512
# Up to this share of nonzero features, walking along those of two rows beats a dense loop.
_SPARSE_SHARE = 0.1


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
def _fill(X, is_new, scale, table):  # type: ignore[no-untyped-def]
    """Rows and columns of the new instances, each pair computed once."""
    for i in np.flatnonzero(is_new):
        for j in range(len(X)):
            if is_new[j] and j > i:
                continue
            l1, l2, chi = _three(X[i], X[j])
            table[0, i, j] = table[0, j, i] = l1 * scale[0]
            table[1, i, j] = table[1, j, i] = l2 * scale[1]
            table[2, i, j] = table[2, j, i] = chi * scale[2]


@njit(cache=True, inline="always")
def _three_sparse(indptr, indices, values, i, j):  # type: ignore[no-untyped-def]
    """As `_three`, along the nonzero features of two rows."""
    l1 = 0.0
    squared = 0.0
    chi = 0.0
    a, b = indptr[i], indptr[j]
    while a < indptr[i + 1] or b < indptr[j + 1]:
        x, y = 0.0, 0.0
        in_x = a < indptr[i + 1] and (b >= indptr[j + 1] or indices[a] <= indices[b])
        in_y = b < indptr[j + 1] and (a >= indptr[i + 1] or indices[b] <= indices[a])
        if in_x:
            x = values[a]
            a += 1
        if in_y:
            y = values[b]
            b += 1
        gap = abs(x - y)
        l1 += gap
        squared += gap * gap
        chi += gap * gap / (abs(x) + abs(y) + _TINY)
    return l1, np.sqrt(squared), chi


@njit(cache=True)
def _fill_sparse(indptr, indices, values, is_new, scale, table):  # type: ignore[no-untyped-def]
    """As `_fill`, of the rows of a sparse matrix."""
    for i in np.flatnonzero(is_new):
        for j in range(len(is_new)):
            if is_new[j] and j > i:
                continue
            l1, l2, chi = _three_sparse(indptr, indices, values, i, j)
            table[0, i, j] = table[0, j, i] = l1 * scale[0]
            table[1, i, j] = table[1, j, i] = l2 * scale[1]
            table[2, i, j] = table[2, j, i] = chi * scale[2]


@njit(cache=True)
def _to_clamped(X, Z, weights, out):  # type: ignore[no-untyped-def]
    for i in range(len(X)):
        total = 0.0
        for j in range(len(Z)):
            l1, l2, chi = _three(X[i], Z[j])
            total += weights[0] * l1 + weights[1] * l2 + weights[2] * chi
        out[i] = total


@njit(cache=True)
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
    sums, _ = _sums(Z, np.arange(len(Z)))
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


def compressed(X: Floats) -> csr_array | None:
    """The rows as a sparse matrix where few features differ from 0, else None."""
    if np.count_nonzero(X) > _SPARSE_SHARE * X.size:
        return None
    from scipy.sparse import csr_array

    return csr_array(X)


class Dissimilarities:
    """Dissimilarities between the instances that inference asks for, computed once each.

    Memory is O(``max_rows``^2): when more instances than that have been asked for, those not
    needed now give up their rows, the one that was not needed for the longest time first.
    """

    def __init__(self, X: Floats, factors: Floats, max_rows: int) -> None:
        self._X, self._factors, self._max_rows = X, factors, max_rows
        self._sparse = compressed(X)
        self._place = np.full(len(X), -1, dtype=np.int64)  # row of each instance in the table
        self._ids = np.empty(0, dtype=np.int64)
        self._last_use = np.empty(0, dtype=np.int64)  # number of the request, of each row
        self._n_requests = 0
        self._table = np.empty((3, 0, 0), dtype=np.float32)

    def table(self, ids: Ints) -> tuple[Reals, Ints]:
        """A table [3, n, n] that covers ``ids``, and the row of each of them in it."""
        self._n_requests += 1
        rows = self._place[ids]
        self._last_use[rows[rows >= 0]] = self._n_requests
        new = ids[rows < 0]
        if len(new):
            self._add(new)
        return self._table, self._place[ids]

    def lookup(self, ids: Ints) -> tuple[Reals, Ints]:
        """The same table, and the row in it of every instance there is (-1 where unknown)."""
        table, _ = self.table(ids)
        return table, self._place

    def _add(self, new: Ints) -> None:
        n_old = len(self._ids)
        # The table may have outgrown its limit before, by one large request: never more than asked.
        n_reused = min(len(new), max(0, n_old + len(new) - self._max_rows))
        idle = np.flatnonzero(self._last_use < self._n_requests)
        idle = idle[np.argsort(self._last_use[idle], kind="stable")][:n_reused]
        n = n_old + len(new) - len(idle)
        rows = np.concatenate([idle, np.arange(n_old, n)])
        self._place[self._ids[idle]] = -1
        if n > n_old:
            table = np.empty((3, n, n), dtype=np.float32)
            table[:, :n_old, :n_old] = self._table
            self._table = table
            self._ids = np.concatenate([self._ids, np.empty(n - n_old, dtype=np.int64)])
            self._last_use = np.concatenate([self._last_use, np.empty(n - n_old, dtype=np.int64)])
        self._ids[rows] = new
        self._place[new] = rows
        self._last_use[rows] = self._n_requests
        is_new = np.zeros(n, dtype=np.bool_)
        is_new[rows] = True
        if self._sparse is None:
            X = np.ascontiguousarray(self._X[self._ids])
            _fill(X, is_new, self._factors, self._table)
        else:
            S = self._sparse[self._ids]
            _fill_sparse(S.indptr, S.indices, S.data, is_new, self._factors, self._table)


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
    table, weights, place, inst, non, allowed, offsets, bags, L
):
    """Let each bag in turn take its cheapest state given the others, until none moves.

    Changes ``L`` in place. ``non`` is infinite where a bag must select an instance; only
    ``allowed`` instances are selected. ICM without blocks: the cost of every instance against
    the selected ones is kept up to date as bags move.
    """
    ids = np.flatnonzero(allowed)
    cost = np.zeros(len(inst))
    for b in range(len(L)):
        if L[b] >= 0:
            for k in ids:
                cost[k] += _psi(table, weights, place[k], place[L[b]])
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
                if old >= 0:
                    value -= _psi(table, weights, place[i], place[old])
                if i == old:
                    here = value
                if value < lowest:
                    best, lowest = i, value
            # A strict gain beyond rounding, so that ties cannot cycle.
            if best == old or not lowest < here - 1e-9 * (1.0 + abs(lowest)):
                continue
            for k in ids:
                if best >= 0:
                    cost[k] += _psi(table, weights, place[k], place[best])
                if old >= 0:
                    cost[k] -= _psi(table, weights, place[k], place[old])
            L[b] = best
            moved = True


@njit(cache=True, fastmath={"nnan", "nsz", "reassoc", "contract"})
def _intersection(X, size, out):  # type: ignore[no-untyped-def]
    for i in range(len(X)):
        for j in range(i + 1):
            l1 = 0.0
            for d in range(X.shape[1]):
                l1 += abs(X[i, d] - X[j, d])
            out[i, j] = out[j, i] = 0.5 * (size[i] + size[j] - l1)


@njit(cache=True)
def _add_intersections(indptr, rows, values, out):  # type: ignore[no-untyped-def]
    """Add up the smaller of two values of one sign, column by column of a sparse matrix."""
    for d in range(len(indptr) - 1):
        for a in range(indptr[d], indptr[d + 1]):
            for b in range(indptr[d], indptr[d + 1]):
                if values[a] * values[b] > 0:
                    out[rows[a], rows[b]] += min(abs(values[a]), abs(values[b]))


def intersection_gram(X: Floats) -> Floats:
    """Histogram intersection of signed features, (|x| + |y| - L1(x, y)) / 2, shape (n, n)."""
    S = compressed(X)
    if S is None:
        out = np.empty((len(X), len(X)))
        _intersection(X, np.abs(X).sum(axis=1), out)
    else:
        out = np.zeros((len(X), len(X)))
        columns = S.tocsc()
        _add_intersections(columns.indptr, columns.indices, columns.data, out)
    return out
