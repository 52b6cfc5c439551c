"""How much is computed at a time, so that memory does not grow with the data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from bagwise.core.arrays import Ints

# Entries of a temporary matrix: 32 MiB in float64.
BLOCK_ENTRIES = 1 << 22


def whole_segments(offsets: Ints, rows: int) -> Iterator[tuple[int, int]]:
    """Runs of whole segments ``[first, last)`` with at most ``rows`` rows, or one segment."""
    first, n = 0, len(offsets) - 1
    while first < n:
        last = int(np.searchsorted(offsets, offsets[first] + rows, side="right")) - 1
        last = min(max(last, first + 1), n)
        yield first, last
        first = last


def even_runs(offsets: Ints, n: int) -> Iterator[tuple[int, int]]:
    """At most ``n`` runs of whole segments ``[first, last)``, with about as many rows each.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.blocks import even_runs
    >>> list(even_runs(np.array([0, 1, 2, 10, 19, 20]), 2))
    [(0, 3), (3, 5)]
    """
    offsets = np.asarray(offsets)
    goals = offsets[0] + np.arange(1, n) * ((offsets[-1] - offsets[0]) / n)
    after = np.searchsorted(offsets, goals)
    edges = after - (goals - offsets[after - 1] < offsets[after] - goals)
    yield from pairwise(np.unique([0, *edges, len(offsets) - 1]).tolist())
