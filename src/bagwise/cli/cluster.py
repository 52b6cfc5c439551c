"""A Dask cluster for as long as a command runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bagwise.models.base import Model


# Seconds until a scheduler that does not answer counts as absent.
_TIMEOUT = 10


@contextmanager
def dask_client(address: str | None, model: Model, name: str) -> Iterator[None]:
    """Make the Dask client that ``--dask`` asks for the active one; None asks for none."""
    if address is None:
        yield
        return
    if not any(key.rpartition("__")[2] == "execution" for key in model.get_params()):
        raise ValueError(f"--dask: the model {name!r} does not run on a cluster; leave it out.")
    try:
        import distributed
    except ImportError as error:
        raise ValueError("--dask needs Dask: pip install 'bagwise[dask]'") from error
    with ExitStack() as stack:
        where: Any = address
        if address == "local":
            where = stack.enter_context(
                distributed.LocalCluster(threads_per_worker=1, dashboard_address=None)
            )
        try:
            client = distributed.Client(where, timeout=_TIMEOUT)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"--dask: no Dask scheduler answered at {address!r} within {_TIMEOUT} s; give "
                "its address, such as tcp://10.0.0.1:8786, or 'local'."
            ) from error
        stack.enter_context(client)
        yield
