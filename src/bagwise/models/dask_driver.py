"""The Dask driver: parts live on the workers, statistics travel. Needs the ``dask`` extra.

Every part is a chain of tasks, each made from the one before, so that a part lost with its
worker is computed again by another, to the same result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from importlib.util import find_spec
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from bagwise.models.drivers import (
    PartWork,
    Receiver,
    Result,
    RunningSum,
    in_order,
    one_blas_thread,
)

if TYPE_CHECKING:
    from distributed import Client, Future


# Statistics added by one task, and gathered by the client at most.
_FAN_IN = 8


class Held(NamedTuple):
    """A part on a worker, with the result that was made of it."""

    pair: Future  # of (part, result)
    home: str  # address of the worker that works on it


class Dask:
    """Parts on the workers of a Dask client.

    Parameters
    ----------
    client : distributed.Client or None, default=None
        Defaults to the active one; none is an error.
    """

    def __init__(self, client: Client | None = None) -> None:
        from distributed import get_client

        try:
            self.client = get_client() if client is None else client
        except ValueError as error:
            raise ValueError(
                "driver='dask' needs an active Dask client; make one first, for example "
                "distributed.Client(n_workers=2)."
            ) from error
        # A lambda is pickled by value: a worker without bagwise can still answer.
        with self._connected():
            here = self.client.run(lambda name: find_spec(name) is not None, "bagwise")
        without = sorted(address for address, installed in here.items() if not installed)
        if without:
            raise ValueError(
                f"bagwise is not installed on {len(without)} Dask worker(s), the first is "
                f"{without[0]}; install the same version on every worker."
            )
        # One part per thread: every worker does its share in one task and sends one result.
        self.n_parts = len(self._threads())

    def map(self, function: Callable[..., Result], *blocks: Iterable[object]) -> Iterator[Result]:
        """Results in order, with at most two blocks per thread under way."""
        with self._connected():
            shared = self.client.submit(_same, function, pure=False)
            homes = self._homes()
            tasks = (
                self.client.submit(_call, shared, *block, **_at(next(homes)))
                for block in zip(*blocks, strict=True)
            )
            yield from in_order(tasks, 2 * self.n_parts)

    def sweep(
        self, function: PartWork[Result], parts: Sequence[object], receive: Receiver[Result]
    ) -> list[Any]:
        """New parts stay on the workers, as futures; results are gathered in order."""
        with self._connected():
            # One task carries the function, with q in it, for all parts and for recomputation.
            shared = self.client.submit(_same, function, pure=False)
            homes, held = self._homes(), []
            work: tuple[object, ...]
            for part in parts:
                if isinstance(part, Held):
                    home, work = part.home, (_call_on_first, shared, part.pair)
                else:  # seen for the first time: dealt out in turn
                    home, work = next(homes), (_call, shared, part)
                held.append(Held(self.client.submit(*work, **_at(home)), home))
            results = self.client.map(itemgetter(1), [pair for pair, _ in held], pure=False)
            # Sums of neighbours, and sums of those, until few are left for the client to gather.
            while isinstance(receive, RunningSum) and len(results) > _FAN_IN:
                groups = [results[i : i + _FAN_IN] for i in range(0, len(results), _FAN_IN)]
                results = [self.client.submit(_add, *group, pure=False) for group in groups]
            for result in results:
                receive(result.result())
            return held

    def _homes(self) -> Iterator[str]:
        """The worker of each thread there is now, in turn without end; asked for at first use."""
        yield from itertools.cycle(self._threads())

    def _threads(self) -> list[str]:
        with self._connected():
            threads = [home for home, n in self.client.nthreads().items() for _ in range(n)]
        if not threads:
            raise ValueError("the Dask client has no workers; start some, or use driver='serial'.")
        return threads

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Whatever Dask raises when its scheduler is lost, as one line that says what to do."""
        from distributed.comm import CommClosedError

        try:
            yield
        except Exception as error:
            if self.client.status == "running" and not isinstance(error, CommClosedError):
                raise
            raise ConnectionError(
                "the connection to the Dask scheduler was lost; start the cluster and a client "
                "again, then repeat this. A fit with checkpoint=... goes on where it stood."
            ) from error


def _at(home: str) -> dict[str, object]:
    """Options of a task that is to run on one worker.

    Left to itself the scheduler takes tasks to where their data are. All depend on the one that
    holds the function, so all would go to one worker. Others are allowed for when it is lost.
    """
    return {"workers": [home], "allow_other_workers": True, "pure": False}


def _add(first: Any, *others: object) -> Any:
    """Not in place: what a worker holds may be asked for again."""
    return type(first)(*(reduce(add, column) for column in zip(first, *others, strict=True)))


def _same(value: Result) -> Result:
    return value


def _call(function: Callable[..., Result], *arguments: object) -> Result:
    """Run on a worker with one BLAS thread: its processes share the cores already."""
    with one_blas_thread():
        return function(*arguments)


def _call_on_first(function: Callable[..., Result], pair: tuple[object, object]) -> Result:
    return _call(function, pair[0])
