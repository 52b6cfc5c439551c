"""Kernels between sets: sums of an instance kernel over all pairs, without an N x N array."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from bagwise.core import segments
from bagwise.core.arrays import Floats
from bagwise.core.blocks import BLOCK_ENTRIES

if TYPE_CHECKING:
    from bagwise.core.arrays import Ints


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
