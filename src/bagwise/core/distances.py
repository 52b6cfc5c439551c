"""Distances and similarities between bags and single instances (anchors), and kernels between bags.

A bag is as near to an anchor as its nearest instance; a kernel between bags is the sum of an
instance kernel over all pairs. Everything is computed in blocks: a result has bags x anchors, or
bags x bags, entries, a temporary never more than a block.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, Reals
from bagwise.core.blocks import BLOCK_ENTRIES, whole_segments
from bagwise.core.squared import sq_distances

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


InstanceKernel = Callable[[Floats, Floats], Floats]


def set_kernel(
    X: Floats,
    x_offsets: Ints,
    Z: Floats,
    z_offsets: Ints,
    kernel: InstanceKernel,
    weights: tuple[Floats, Floats] | None = None,
    block_entries: int = BLOCK_ENTRIES,
) -> Floats:
    """K[a, b] = sum of w_x w_z kernel(x, z) over x in set a and z in set b, shape (A, B).

    Without ``weights`` of the rows of X and of Z every pair counts once. Rows of ``X`` are taken
    a block at a time; a block may end inside a set.
    """
    rows = max(1, block_entries // max(1, Z.shape[0]))
    K = np.zeros((len(x_offsets) - 1, len(z_offsets) - 1))  # [A, B]
    owner = segments.index(x_offsets)
    for start in range(0, X.shape[0], rows):
        block = kernel(X[start : start + rows], Z)  # [rows, N_z]
        if weights is not None:
            block = weights[0][start : start + rows, None] * block * weights[1]
        summed = segments.sum(block.T, z_offsets).T  # [rows, B]
        np.add.at(K, owner[start : start + rows], summed)
    return K


def set_self_kernel(X: Floats, offsets: Ints, kernel: InstanceKernel) -> Floats:
    """The diagonal of `set_kernel` of the sets with themselves, shape (B,)."""
    out = np.empty(len(offsets) - 1)
    for b, (start, stop) in enumerate(pairwise(offsets)):
        one = np.array([0, stop - start])
        out[b] = set_kernel(X[start:stop], one, X[start:stop], one, kernel)[0, 0]
    return out
