"""Rows sink down trees to their leaves, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit


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
