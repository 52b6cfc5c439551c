"""Compiled loops of the baseline methods: distances to a point, the best stump, walks down trees.

Searches compute the first two thousands of times; nothing as large as the rows is made in between.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, fastmath={"nsz", "reassoc", "contract"})
def distances(X, point, scales):  # type: ignore[no-untyped-def]
    """``sum_d s_d² (x_d - h_d)²`` of each row, [N]."""
    weights = scales * scales
    out = np.empty(len(X))
    for i in range(len(X)):
        total = 0.0
        for d in range(X.shape[1]):
            gap = X[i, d] - point[d]
            total += weights[d] * gap * gap
        out[i] = total
    return out


@njit(cache=True, fastmath={"nsz", "reassoc", "contract"})
def moments(g, X):  # type: ignore[no-untyped-def]
    """``g @ X`` and ``g @ X**2``, [D] each."""
    first, second = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for i in range(len(X)):
        for d in range(X.shape[1]):
            weighted = g[i] * X[i, d]
            first[d] += weighted
            second[d] += weighted * X[i, d]
    return first, second


@njit(cache=True)
def largest_gain(order, is_tied, w, total):  # type: ignore[no-untyped-def]
    """Column, position and signed gain of the best split of weights ``w`` that sum to ``total``.

    Of equals it is the one of lowest position in its column, and then of the first column.
    """
    best_d, best_k, best, size = 0, 0, 0.0, 0.0
    for d in range(len(order)):
        below = 0.0  # weight at or below the k-th value
        for k in range(order.shape[1]):
            below += w[order[d, k]]
            if is_tied[d, k]:
                continue
            gain = below * -2.0 + total
            if abs(gain) > size or (abs(gain) == size and k < best_k):
                best_d, best_k, best, size = d, k, gain, abs(gain)
    return best_d, best_k, best


@njit(cache=True)
def walk(X, roots, left, right, feature, threshold, value, out):  # type: ignore[no-untyped-def]
    """Value of the leaf that each row reaches in each tree; a leaf is its own child.

    All rows of a node are split at once: one row after the other would wait at every step for the
    node it comes from. ``X`` is read a column at a time.
    """
    n = len(X)
    rows, others = np.empty(n, np.int64), np.empty(n, np.int64)
    waiting = np.empty((len(left), 3), np.int64)  # node, first row and one past the last
    for t in range(len(roots)):
        rows[:] = np.arange(n)
        waiting[0] = roots[t], 0, n
        n_waiting = 1
        while n_waiting > 0:
            n_waiting -= 1
            node, start, stop = waiting[n_waiting]
            if left[node] == node:
                for i in rows[start:stop]:
                    out[i, t] = value[node]
                continue
            middle, n_right = start, 0
            for k in range(start, stop):
                # Written to both sides; the side it does not belong to writes over it.
                i = rows[k]
                rows[middle] = others[n_right] = i
                goes_left = X[i, feature[node]] <= threshold[node]
                middle += goes_left
                n_right += not goes_left
            rows[middle:stop] = others[:n_right]
            if middle < stop:
                waiting[n_waiting] = right[node], middle, stop
                n_waiting += 1
            if middle > start:
                waiting[n_waiting] = left[node], start, middle
                n_waiting += 1
