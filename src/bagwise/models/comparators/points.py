"""Scaled distances of many rows to one point, and what their derivatives sum, compiled.

One pass over the rows and nothing as large as they are in between: searches compute this
thousands of times.
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
