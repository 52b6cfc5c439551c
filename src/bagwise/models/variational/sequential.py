"""The sequential update of q(y), one instance after the other, compiled at first use."""

from __future__ import annotations

import numpy as np
from numba import njit

from bagwise.core.arrays import Codes, Floats, Ints


@njit(cache=True, nogil=True)
def one_by_one(
    score: Floats, pull: Floats, offsets: Ints, known: Codes, tail: Floats, exact: bool
) -> tuple[Floats, Floats]:
    r"""Coordinate ascent on q(y) through every bag, in the order of its instances.

    Before instance i is updated, those before it are new and those after it old: a running
    value over the former and a suffix over the latter give ``1 - E_{b\n}`` without cancellation.
    """
    n = score.shape[0]
    pi_new, tail_new = np.empty(n), np.empty(n)
    for b in range(offsets.shape[0] - 1):
        start, stop = offsets[b], offsets[b + 1]
        after = np.ones(stop - start)
        for i in range(stop - 2, start - 1, -1):
            last = after[i + 1 - start]
            after[i - start] = last * tail[i + 1] if exact else min(last, tail[i + 1])
        before = 1.0
        for i in range(start, stop):
            if known[i] < 0:
                rest = after[i - start]
                none = before * rest if exact else min(before, rest)
                z = score[i] + pull[i] * none
                pi_new[i] = 1.0 / (1.0 + np.exp(-z))
                tail_new[i] = 1.0 / (1.0 + np.exp(z))
            else:
                pi_new[i], tail_new[i] = float(known[i]), 1.0 - known[i]
            before = before * tail_new[i] if exact else min(before, tail_new[i])
    return pi_new, tail_new
