"""Statistics per block of whole bags -> sum -> update: how work over instances is run.

A fit never loops over data itself. It hands a driver a pure function of a block; the driver
calls it on every block, serially or in threads, and the results come back in order, so that
sums do not depend on how the work was run.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np

# Instances per chunk: [M, 1024] stays in cache between the two products of an iteration.
CHUNK_SIZE = 1024
# Chunks per span: vector work over whole bags is done on this many chunks at once, so that its
# overhead is small, while they are still in the last-level cache.
CHUNKS_PER_SPAN = 4


class Span(NamedTuple):
    """Neighbouring whole bags, and the rows they own cut into chunks."""

    first_bag: int
    last_bag: int  # one past
    rows: tuple[tuple[int, int], ...]  # (start, stop) of each chunk

    @property
    def start(self) -> int:
        """First row."""
        return self.rows[0][0]

    @property
    def stop(self) -> int:
        """One past the last row."""
        return self.rows[-1][1]


def cut(offsets: Any, chunk_size: int = CHUNK_SIZE, n_chunks: int = CHUNKS_PER_SPAN) -> list[Span]:
    """Cut bags into spans of at most ``n_chunks`` chunks of ``chunk_size`` rows.

    A span never splits a bag, a chunk may. A bag larger than a span has one to itself, of as
    many chunks as it takes.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.drivers import cut
    >>> [span.rows for span in cut(np.array([0, 2, 3, 10]), chunk_size=3, n_chunks=1)]
    [((0, 3),), ((3, 6), (6, 9), (9, 10))]
    """
    offsets = np.asarray(offsets)
    spans, first, n_bags = [], 0, len(offsets) - 1
    while first < n_bags:
        limit = offsets[first] + n_chunks * chunk_size
        last = max(int(np.searchsorted(offsets, limit, side="right")) - 1, first + 1)
        start, stop = int(offsets[first]), int(offsets[last])
        edges = [*range(start, stop, chunk_size), stop]
        spans.append(Span(first, last, tuple(itertools.pairwise(edges))))
        first = last
    return spans


class Driver(Protocol):
    """Runs a pure function over blocks."""

    def map(self, function: Callable[..., Any], *blocks: Sequence[Any]) -> Iterator[Any]:
        """Results of ``function`` on every block, in order, a few in memory at a time."""
        ...


class Serial:
    """One block after the other."""

    def map(self, function: Callable[..., Any], *blocks: Sequence[Any]) -> Iterator[Any]:
        """Results in order."""
        return map(function, *blocks)


class Threads:
    """Blocks in parallel; BLAS and NumPy release the interpreter lock where the work is."""

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs

    def map(self, function: Callable[..., Any], *blocks: Sequence[Any]) -> Iterator[Any]:
        """Results in order, with at most two blocks per thread under way."""
        from threadpoolctl import threadpool_limits

        waiting: deque[Future[Any]] = deque()
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(self.n_jobs) as pool:
            for block in zip(*blocks, strict=True):
                waiting.append(pool.submit(function, *block))
                if len(waiting) > 2 * self.n_jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


def make_driver(n_jobs: int | None = None) -> Driver:
    """`Serial` for None or 1, else `Threads`; -1 means every core."""
    if n_jobs is None or n_jobs == 1:
        return Serial()
    return Threads(n_jobs if n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + n_jobs))


def total(parts: Any) -> Any:
    """Sum of NamedTuples of statistics, field by field, in place on the first."""
    parts = iter(parts)
    sums = list(first := next(parts))
    for part in parts:
        for i, value in enumerate(part):
            sums[i] += value
    return type(first)(*sums)
