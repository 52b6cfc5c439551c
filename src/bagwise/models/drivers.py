"""Statistics per block of whole bags -> sum -> update: how work over instances is run.

A fit never loops over data itself. It hands a driver a pure function of a block, or of a part
(blocks and what is believed about them); the driver calls it serially, in threads or on a Dask
cluster, and the results come back in order, so that sums do not depend on how the work was run.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from bagwise.core.blocks import even_runs

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

# Chunks per span: vector work over whole bags is done on this many chunks at once, so that its
# overhead is small, while they are still in the last-level cache.
CHUNKS_PER_SPAN = 4
# Of chunks of so many instances a span has one.
LONG_CHUNK = 4096


# Parts per thread: more of them would meet at the interpreter's lock more often.
_PARTS_PER_THREAD = 4


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


def cut(offsets: Any, chunk_size: int, n_chunks: int | None = None) -> list[Span]:
    """Cut bags into spans of at most ``n_chunks`` chunks of at most ``chunk_size`` rows.

    By default a span has four short chunks, or one that is long.

    A span never splits a bag, a chunk may; spans, and the chunks of one, are of about equal
    length. A bag larger than a span has one to itself, of as many chunks as it takes.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.drivers import cut
    >>> [span.rows for span in cut(np.array([0, 2, 3, 10]), chunk_size=3, n_chunks=1)]
    [((0, 3),), ((3, 5), (5, 7), (7, 10))]
    """
    if n_chunks is None:
        n_chunks = 1 if chunk_size >= LONG_CHUNK else CHUNKS_PER_SPAN
    offsets, most = np.asarray(offsets), n_chunks * chunk_size
    n = _shareable(-(-int(offsets[-1] - offsets[0]) // most))
    while any(
        last - first > 1 and offsets[last] - offsets[first] > most
        for first, last in even_runs(offsets, n)
    ):
        n = _shareable(n + 1)
    spans = []
    for first, last in even_runs(offsets, n):
        start, stop = int(offsets[first]), int(offsets[last])
        k = max(1, -(-(stop - start) // chunk_size))
        edges = [start + (stop - start) * i // k for i in range(k + 1)]
        spans.append(Span(first, last, tuple(itertools.pairwise(edges))))
    return spans


def _shareable(n: int) -> int:
    """At least ``n`` spans, which 2, 4, 8 or 16 threads share evenly: all wait for the last."""
    return 1 << (max(n, 1) - 1).bit_length() if n <= 16 else -(-n // 16) * 16


Part = TypeVar("Part")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
# What a sweep does with a part: the part anew, and a result that travels to who receives it.
PartWork = Callable[[Any], tuple[object, Result]]
Receiver = Callable[[Result], object]


class Task(Protocol[Result_co]):
    """Work under way: a future of a pool of threads, or of Dask."""

    def result(self) -> Result_co:
        """Wait for it."""
        ...


class Driver(Protocol):
    """Runs pure functions over blocks, or over parts that stay where the work is done."""

    n_parts: int

    def map(self, function: Callable[..., Result], *blocks: Iterable[object]) -> Iterator[Result]:
        """Results of ``function`` on every block, in order, a few in memory at a time."""
        ...

    def sweep(
        self, function: PartWork[Result], parts: Sequence[object], receive: Receiver[Result]
    ) -> list[Any]:
        """Replace every part by ``function(part)[0]``; hand the results on, in order.

        Only the results travel; what a part holds stays with whoever works on it. Where
        ``receive`` is a `RunningSum`, neighbouring results may be added on the way.
        """
        ...


class _InProcess(ABC):
    """What the back-ends of one process share: parts are handed out like blocks."""

    @abstractmethod
    def map(self, function: Callable[..., Result], *blocks: Iterable[object]) -> Iterator[Result]:
        """Results in order."""

    def sweep(
        self, function: PartWork[Result], parts: Sequence[object], receive: Receiver[Result]
    ) -> list[Any]:
        """New parts, and their results handed on, in order."""
        new = []
        for part, result in self.map(function, parts):
            new.append(part)
            receive(result)
        return new


class Serial(_InProcess):
    """One block after the other."""

    n_parts = 1

    def map(self, function: Callable[..., Result], *blocks: Iterable[object]) -> Iterator[Result]:
        """Results in order."""
        with one_blas_thread():
            yield from map(function, *blocks)


class Threads(_InProcess):
    """Blocks in parallel; BLAS and NumPy release the interpreter lock where the work is."""

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs
        # Cores are not equally fast: whoever is done takes the next part.
        self.n_parts = _PARTS_PER_THREAD * n_jobs

    def map(self, function: Callable[..., Result], *blocks: Iterable[object]) -> Iterator[Result]:
        """Results in order, with at most two blocks per thread under way."""
        pool = _pool(self.n_jobs, os.getpid())
        with one_blas_thread():
            tasks = (pool.submit(function, *block) for block in zip(*blocks, strict=True))
            yield from in_order(tasks, 2 * self.n_jobs)


@lru_cache(maxsize=4)
def _pool(n_jobs: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay, with the workspace of each, from one iteration to the next.

    A forked process inherits the pool but not its threads, so that each has one of its own.
    """
    return ThreadPoolExecutor(n_jobs, thread_name_prefix="bagwise")


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    """The BLAS libraries of this process; finding them takes longer than a small sweep."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def one_blas_thread() -> AbstractContextManager[object]:
    """One thread per product: blocks are too small for more, which would wait for each other."""
    # Asking is quick, setting is not; within a fit, sweep after sweep finds the limit set.
    return nullcontext() if usable_threads() == 1 else _blas().limit(limits=1)


def usable_threads() -> int:
    """As many threads as BLAS would take by itself.

    This heeds ``OMP_NUM_THREADS`` and its like, and what joblib leaves to each of its workers.
    """
    return max((library.num_threads for library in _blas().lib_controllers), default=1)


def product_rate(driver: Driver) -> float:
    """Operations per second of a driver's workers in products in single precision, measured.

    Examples
    --------
    >>> from bagwise.models.drivers import Serial, product_rate
    >>> product_rate(Serial()) > 1e6
    True
    """
    X, seconds = np.ones((1024, 256), dtype=np.float32), []
    with one_blas_thread():
        for _ in range(4):
            start = time.perf_counter()
            X.T @ X
            seconds.append(time.perf_counter() - start)
    # A pool of threads has more parts than threads.
    return 2 * X.size * X.shape[1] / min(seconds) * getattr(driver, "n_jobs", driver.n_parts)


def in_order(tasks: Iterable[Task[Result]], most: int) -> Iterator[Result]:
    """Results of tasks in order; each is started when it is drawn, ``most`` are under way."""
    waiting: deque[Task[Result]] = deque()
    for task in tasks:
        waiting.append(task)
        if len(waiting) > most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


DRIVERS = ("serial", "threads", "dask")


# Work over fewer numbers than this is done before threads have been started for it.
_WORTH_THREADS = 4_000_000


def make_driver(
    n_jobs: int | None = None, driver: Driver | str | None = None, size: int = 0
) -> Driver:
    """The driver meant by a name, an active Dask client, or a number of threads.

    Without a name: `Dask` where a Dask client is active in this process, else `Serial` for
    ``n_jobs`` 1, else `Threads`; -1 means every core. ``n_jobs`` None takes the threads that
    BLAS may use where ``size`` numbers, those of the projected instances, are worth them.

    Examples
    --------
    >>> from bagwise.models.drivers import make_driver
    >>> type(make_driver()).__name__, type(make_driver(2)).__name__
    ('Serial', 'Threads')
    """
    if driver is not None and not isinstance(driver, str):
        return driver
    if driver == "dask" or (driver is None and _dask_is_active()):
        from bagwise.models.dask_driver import Dask

        return Dask()
    if n_jobs is not None:
        threads = n_jobs if n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + n_jobs)
    elif driver == "threads":
        threads = os.cpu_count() or 1
    else:
        threads = usable_threads() if driver is None and size >= _WORTH_THREADS else 1
    if driver == "threads" or (driver is None and threads > 1):
        return Threads(threads)
    return Serial()


def _dask_is_active() -> bool:
    """Whether the user made a Dask client; never imports Dask to find out."""
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker
    from distributed.client import _get_global_client

    try:
        get_worker()
    except ValueError:
        return _get_global_client() is not None
    return False  # the client is the worker's own: the fit is already one of its tasks


def total(parts: Any) -> Any:
    """Sum of NamedTuples of statistics, field by field, in place on the first."""
    parts = iter(parts)
    sums = list(first := next(parts))
    for part in parts:
        for i, value in enumerate(part):
            sums[i] += value
    return type(first)(*sums)


class RunningSum:
    """Adds statistics as they arrive.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> from bagwise.models.drivers import RunningSum, Serial
    >>> class Count(NamedTuple):
    ...     n: int
    >>> sums = RunningSum()
    >>> parts = Serial().sweep(lambda part: (part, Count(len(part))), ["ab", "cde"], sums)
    >>> sums.value
    Count(n=5)
    """

    def __init__(self) -> None:
        self.value: Any = None

    def __call__(self, statistics: Any) -> None:
        """Take in one more."""
        self.value = statistics if self.value is None else total([self.value, statistics])
