"""The search for the best stump over sorted columns, compiled."""

from __future__ import annotations

from numba import njit


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
