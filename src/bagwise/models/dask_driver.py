"""The Dask driver: parts live on the workers, statistics travel. Needs the ``dask`` extra.

Data, functions and results go between the client and the workers directly; through the scheduler
only where the client cannot reach them. The client remembers what was done to every part, so that
one lost with its worker is sent and computed again elsewhere, to the same result.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
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
# How often work is sent again after a worker was lost, and seconds until the next time.
_ATTEMPTS = 20
_PAUSE = 0.2


class Held(NamedTuple):
    """A part on a worker, with the result that was made of it."""

    pair: Future  # of (part, result)
    home: str  # address of the worker that works on it
    first: object  # the part as the client sent it
    steps: tuple[PartWork[Any], ...]  # what was done to it since


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
        self._direct = True
        try:
            self._scatter(b"", self._threads()[0])
        except OSError:  # the workers are in a network of their own
            self._direct = False

    def map(self, function: Callable[..., Result], *blocks: Iterable[object]) -> Iterator[Result]:
        """Results in order, with at most two blocks per thread under way."""
        with self._connected():
            homes = self._homes()

            def start(block: tuple[object, ...]) -> Future:
                home = next(homes)
                return self.client.submit(_call, self._put((function, *block), home), **_at(home))

            tasks = (
                _Sent(self.client, self._direct, partial(start, b))
                for b in zip(*blocks, strict=True)
            )
            yield from in_order(tasks, 2 * self.n_parts)

    def sweep(
        self, function: PartWork[Result], parts: Sequence[object], receive: Receiver[Result]
    ) -> list[Any]:
        """New parts stay on the workers, as futures; results are gathered in order."""
        from concurrent.futures import CancelledError

        with self._connected():
            homes = self._homes()
            held = [p if isinstance(p, Held) else self._send(p, next(homes)) for p in parts]
            for attempt in range(_ATTEMPTS):
                try:
                    new = self._advance(held, function)
                    results = self._results([pair for pair, *_ in new], receive)
                    values = self.client.gather(results, direct=self._direct)
                    break
                except CancelledError:  # a worker was lost, with what was sent to it
                    if attempt == _ATTEMPTS - 1 or self.client.status != "running":
                        raise
                    time.sleep(_PAUSE)
                    held = [self._again(part, next(homes)) for part in held]
            for value in values:
                receive(value)
            return new

    def _put(self, value: object, home: str) -> Future:
        """A value on a worker, or on another where that one is lost; others copy it from there."""
        for _ in range(_ATTEMPTS):
            try:
                return self._scatter(value, home)
            except OSError:
                if self.client.status != "running":
                    break
                time.sleep(_PAUSE)  # until the scheduler knows as well
                home = next((name for name in self._threads() if name != home), home)
        return self._scatter(value, home)

    def _scatter(self, value: object, home: str) -> Future:
        (future,) = self.client.scatter([value], workers=[home], direct=self._direct, hash=False)
        return future

    def _send(self, part: object, home: str) -> Held:
        return Held(self._put((part, None), home), home, part, ())

    def _advance(self, held: list[Held], function: PartWork[Result]) -> list[Held]:
        """All parts after one more step."""
        shared = self._put(function, self._threads()[0])
        new = []
        for part in held:
            pair = self.client.submit(_call_on_first, shared, part.pair, **_at(part.home))
            new.append(part._replace(pair=pair, steps=(*part.steps, function)))
        return new

    def _again(self, part: Held, home: str) -> Held:
        """A part that was lost, from the start; any other as it is."""
        if part.pair.status in ("finished", "pending"):
            return part
        fresh = self._send(part.first, home)
        for step in part.steps:
            (fresh,) = self._advance([fresh], step)
        return fresh

    def _results(self, pairs: list[Future], receive: Receiver[Result]) -> list[Future]:
        """The results of parts, neighbours added up until few are left where that is asked for."""
        results = self.client.map(itemgetter(1), pairs, pure=False)
        while isinstance(receive, RunningSum) and len(results) > _FAN_IN:
            groups = [results[i : i + _FAN_IN] for i in range(0, len(results), _FAN_IN)]
            results = [self.client.submit(_add, *group, pure=False) for group in groups]
        return results

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


class _Sent:
    """A task that is sent again where a worker is lost with what the task needs."""

    def __init__(self, client: Client, direct: bool, start: Callable[..., Future]) -> None:
        self._client, self._direct = client, direct
        self._start, self._future = start, start()

    def result(self) -> Any:
        """Wait for it."""
        from concurrent.futures import CancelledError

        for _ in range(_ATTEMPTS):
            try:
                return self._client.gather(self._future, direct=self._direct)
            except CancelledError:
                if self._client.status != "running":
                    break
                time.sleep(_PAUSE)
                self._future = self._start()
        return self._future.result()


def _call(work: tuple[Any, ...]) -> Any:
    """Run on a worker with one BLAS thread: its processes share the cores already."""
    function, *arguments = work
    with one_blas_thread():
        return function(*arguments)


def _call_on_first(function: PartWork[Result], pair: tuple[object, object]) -> Any:
    return _call((function, pair[0]))
