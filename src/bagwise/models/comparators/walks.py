"""Rows walk down trees to their leaves, compiled."""

from __future__ import annotations

from numba import njit


@njit(cache=True)
def walk(X, roots, left, right, feature, threshold, value, out):  # type: ignore[no-untyped-def]
    """Value of the leaf that each row reaches in each tree; a leaf is its own child."""
    for t in range(len(roots)):
        for i in range(len(X)):
            node = roots[t]
            while left[node] != node:
                node = left[node] if X[i, feature[node]] <= threshold[node] else right[node]
            out[i, t] = value[node]
