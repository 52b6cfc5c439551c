"""How much is computed at a time, so that memory does not grow with the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
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
