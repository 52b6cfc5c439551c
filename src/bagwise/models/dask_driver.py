"""The Dask driver: parts live on the workers, statistics travel. Needs the ``dask`` extra.

Every part is a chain of tasks, each made from the one before, so that a part lost with its
worker is computed again by another, to the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

# Parts per worker: a lost worker's share is spread over the others, and lengths even out.
_PARTS_PER_WORKER = 2


class Dask:
    """Parts on the workers of a Dask client.

    Parameters
    ----------
    client : distributed.Client, optional
        Defaults to the active one; none is an error.
    """

    def __init__(self, client: Any = None) -> None:
        self.client = _active_client() if client is None else client
        self.n_parts = max(1, _PARTS_PER_WORKER * self._check_workers())

    def _check_workers(self) -> int:
        """Number of worker threads; every worker must have bagwise."""
        # A lambda is pickled by value: a worker without bagwise can still answer.
        here = self.client.run(lambda name: find_spec(name) is not None, "bagwise")
        without = sorted(address for address, found in here.items() if not found)
        if without:
            raise ValueError(
                f"bagwise is not installed on {len(without)} Dask worker(s), the first is "
                f"{without[0]}; install the same version on every worker."
            )
        if not here:
            raise ValueError("the Dask client has no workers; start some, or use driver='serial'.")
        return sum(self.client.nthreads().values())

    def map(self, function: Callable[..., Any], *blocks: Sequence[Any]) -> Iterator[Any]:
        """Results in order."""
        shared = self.client.submit(_same, function, pure=False)
        futures = [
            self.client.submit(_call, shared, *block, pure=False)
            for block in zip(*blocks, strict=True)
        ]
        for future in futures:
            yield future.result()

    def sweep(
        self,
        function: Callable[[Any], tuple[Any, Any]],
        parts: Sequence[Any],
        receive: Callable[[Any], None],
    ) -> list[Any]:
        """New parts stay on the workers, as futures; results are gathered in order."""
        # One task carries the function, with q in it, for all parts and for recomputation.
        shared = self.client.submit(_same, function, pure=False)
        pairs = [self.client.submit(_call, shared, part, pure=False) for part in parts]
        new = [self.client.submit(itemgetter(0), pair, pure=False) for pair in pairs]
        results = [self.client.submit(itemgetter(1), pair, pure=False) for pair in pairs]
        for result in results:
            receive(result.result())
        return new


def _active_client() -> Any:
    from distributed import get_client

    try:
        return get_client()
    except ValueError as error:
        raise ValueError(
            "driver='dask' needs an active Dask client; make one first, for example "
            "distributed.Client(n_workers=2)."
        ) from error


def _same(value: Any) -> Any:
    return value


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run on a worker with one BLAS thread: its processes share the cores already."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        return function(*arguments)
