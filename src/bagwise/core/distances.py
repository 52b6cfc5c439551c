"""Distances and similarities between bags and single instances (anchors).

A bag is as near to an anchor as its nearest instance. Everything is computed in blocks: a
result has bags x anchors entries, a temporary never more than a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from bagwise.core import segments
from bagwise.core.arrays import Floats, Reals
from bagwise.core.blocks import BLOCK_ENTRIES, whole_segments
from bagwise.core.squared import sq_distances

if TYPE_CHECKING:
    from bagwise.core.arrays import Ints


Distance = Callable[[Reals, Reals], Floats]


def squared_distances(X: Reals, anchors: Reals) -> Floats:
    """Squared Euclidean distances in float64, whatever the rows are stored in, shape (n, K)."""
    return sq_distances(np.asarray(X, np.float64), np.asarray(anchors, np.float64))


def bag_distances(
    X: Reals,
    offsets: Ints,
    anchors: Floats,
    distance: Distance = squared_distances,
    block_entries: int = BLOCK_ENTRIES,
) -> Floats:
    """Smallest distance from each bag to each anchor, shape (B, K)."""
    offsets = np.asarray(offsets)
    K = len(anchors)
    nearest = np.empty((len(offsets) - 1, K))
    for first, last in whole_segments(offsets, max(1, block_entries // max(1, K))):
        start, stop = int(offsets[first]), int(offsets[last])
        x, local = X[start:stop], offsets[first : last + 1] - start
        # A bag too large for one block meets the anchors a few at a time.
        columns = max(1, block_entries // (stop - start))
        for left in range(0, K, columns):
            d = distance(x, anchors[left : left + columns])  # [n, columns]
            nearest[first:last, left : left + columns] = segments.min(d, local)
    return nearest


def similarity(distances: Floats, sigma: float) -> Floats:
    """exp(-d / sigma²), equation (1) of the MIO paper for d = squared distance."""
    exponents = distances / -(sigma**2)
    return np.exp(exponents, out=exponents)


def contributions(
    X: Floats,
    offsets: Ints,
    anchors: Floats,
    weights: Floats,
    intercept: float,
    sigma: float,
    distance: Distance = squared_distances,
) -> Floats:
    """What each instance brings to the score ``z @ weights + intercept`` of its bag, shape (N,).

    The instance nearest to an anchor makes that entry of z and gets its term; equally near
    ones share it. The intercept is split among the instances that make at least one entry, so
    that these sum to the bag's score.
    """
    offsets = np.asarray(offsets)
    out = np.empty(int(offsets[-1]))
    for first, last in whole_segments(offsets, max(1, BLOCK_ENTRIES // max(1, len(anchors)))):
        start, stop = int(offsets[first]), int(offsets[last])
        local = offsets[first : last + 1] - start
        s = similarity(distance(X[start:stop], anchors), sigma)  # [n, K], equation (1)
        z = segments.spread(segments.max(s, local), local)
        # Rounding differs between equal rows, so near-equal counts as equal.
        makes = ((s >= z * (1 - 1e-9)) & (z > 0)).astype(np.float64)
        many = np.maximum(segments.spread(segments.sum(makes, local), local), 1)
        term = (makes / many * s) @ weights  # [n]
        makers = segments.sum(makes.max(axis=1, initial=0), local)
        # Where no anchor is in reach, or none was selected, all share the intercept.
        makers = np.where(makers > 0, makers, segments.lengths(local))
        out[start:stop] = term + intercept / segments.spread(makers, local)
    return out
