"""The Dask driver on a real local cluster of processes."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from bagwise.models.drivers import make_driver
from tests.models.test_drivers import assert_same_fit, fit, musk, serial  # noqa: F401

distributed = pytest.importorskip("distributed", reason="the dask extra is missing")
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Sending large graph:UserWarning"),
    # Two test processes may both be running a cluster.
    pytest.mark.filterwarnings("ignore:Port .* is already in use:UserWarning"),
]


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_same_result_by_the_active_client(client, musk, serial):  # noqa: F811
    assert type(make_driver()).__name__ == "Dask"
    assert_same_fit(fit(musk), serial, musk[0])


@pytest.mark.parametrize("cache", ["disk", "none"])
def test_out_of_core_on_workers(client, musk, serial, cache):  # noqa: F811
    assert_same_fit(fit(musk, driver="dask", cache=cache), serial, musk[0])


def test_checkpoint_on_dask(client, musk, serial, tmp_path):  # noqa: F811
    path = tmp_path / "fit.npz"

    def kill(told):
        if told.n_iter == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_now = {"driver": "dask", "checkpoint": path, "checkpoint_every": 2}
        from bagwise import VGPMIL
        from tests.models.test_drivers import OPTIONS

        VGPMIL(**OPTIONS, **fit_now, callback=kill).fit(*musk)
    assert_same_fit(fit(musk, **fit_now), serial, musk[0])


def test_worker_without_bagwise(client, musk, monkeypatch):  # noqa: F811
    import bagwise.models.dask_driver as module

    monkeypatch.setattr(
        type(client), "run", lambda self, f, name: {"tcp://a:1": True, "tcp://b:2": False}
    )
    with pytest.raises(ValueError, match=r"not installed on 1 Dask worker\(s\).*tcp://b:2"):
        module.Dask(client)


def test_killed_worker_changes_nothing(musk, serial):  # noqa: F811
    """A worker process killed by SIGKILL in mid-fit: the others take over its parts."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = list(client.run(os.getpid).values())
        killed = []

        def kill(told):
            if told.n_iter == 4 and not killed:
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])

        survivor = fit(musk, driver="dask", callback=kill)
        assert killed
        assert_same_fit(survivor, serial, musk[0])


def test_needs_a_client(monkeypatch):
    def none():
        raise ValueError("No global client found")

    monkeypatch.setattr(distributed, "get_client", none)
    with pytest.raises(ValueError, match="needs an active Dask client"):
        make_driver(driver="dask")


def test_map_keeps_order(client):
    driver = make_driver(driver="dask")
    assert list(driver.map(np.add, [1, 2, 3], [4, 5, 6])) == [5, 7, 9]
