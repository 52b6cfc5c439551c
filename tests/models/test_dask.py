"""The Dask driver on a real local cluster of processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

from bagwise import VGPMIL, Bags, PsiVGPMIL
from bagwise.models.drivers import RunningSum, make_driver
from tests.models.test_drivers import (  # noqa: F401
    OPTIONS,
    assert_same_fit,
    fit,
    inference,
    musk,
    serial,
)

distributed = pytest.importorskip("distributed", reason="the dask extra is missing")
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
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


def test_same_result_by_the_active_client(client, musk, serial, inference):  # noqa: F811
    assert type(make_driver()).__name__ == "Dask"
    assert_same_fit(fit(musk, inference=inference), serial, musk[0])


@pytest.mark.parametrize("cache", ["disk", "none"])
def test_out_of_core_on_workers(client, musk, serial, inference, cache):  # noqa: F811
    assert_same_fit(fit(musk, inference=inference, driver="dask", cache=cache), serial, musk[0])


@pytest.mark.parametrize("model", [VGPMIL, PsiVGPMIL])
def test_kernel_learning_on_workers(client, musk, model):  # noqa: F811
    options = {"learn_kernel": True, "max_iter": 4}
    options |= {"inference": "paper"} if model is VGPMIL else {}
    here, there = (fit(musk, model, **options, driver=d) for d in ("serial", "dask"))
    assert_same_fit(there, here, musk[0])


def test_several_classes_on_workers(client, musk, inference):  # noqa: F811
    bags, y = musk
    y = np.where(np.arange(len(y)) % 3 == 0, 2, y)
    few = {"inference": inference, "max_iter": 6}
    here, there = (fit((bags, y), **few, driver=d) for d in ("serial", "dask"))
    assert_same_fit(there, here, bags)


def test_checkpoint_on_dask(client, musk, serial, inference, tmp_path):  # noqa: F811
    path = tmp_path / "fit.npz"

    def kill(told):
        if told.n_iter == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_now = {"driver": "dask", "checkpoint": path, "checkpoint_every": 2}
        fit(musk, inference=inference, **fit_now, callback=kill)
    assert_same_fit(fit(musk, inference=inference, **fit_now), serial, musk[0])


def test_goes_on_elsewhere_from_rows_on_disk(client, musk, serial, inference, tmp_path):  # noqa: F811
    """A checkpoint of a cluster is good for one process: the problem is the same to the bit."""
    bags, y = musk
    np.asarray(bags.instances, dtype=np.float64).tofile(tmp_path / "rows.bin")
    rows = np.memmap(tmp_path / "rows.bin", np.float64, "r", shape=bags.instances.shape)
    on_disk, path = (Bags(rows, bags.offsets), y), tmp_path / "fit.npz"
    again, seen = {"inference": inference, "checkpoint": path, "checkpoint_every": 2}, []

    def kill(told):
        if told.n_iter == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(on_disk, driver="dask", **again, callback=kill)
    here = fit(on_disk, driver="serial", **again, callback=lambda told: seen.append(told.n_iter))
    assert seen[0] == (5 if inference == "marginal" else 4)
    assert_same_fit(here, serial, bags)
    on_workers = fit(on_disk, inference=inference, driver="dask")
    np.testing.assert_allclose(
        on_workers.predict_proba_instances(on_disk[0]),
        serial.predict_proba_instances(bags),
        atol=1e-8,
    )


def test_worker_without_bagwise(client, musk, monkeypatch):  # noqa: F811
    import bagwise.models.dask_driver as module

    monkeypatch.setattr(
        type(client), "run", lambda self, f, name: {"tcp://a:1": True, "tcp://b:2": False}
    )
    with pytest.raises(ValueError, match=r"not installed on 1 Dask worker\(s\).*tcp://b:2"):
        module.Dask(client)


def test_no_workers(client, monkeypatch):
    import bagwise.models.dask_driver as module

    driver = module.Dask(client)
    monkeypatch.setattr(type(client), "nthreads", lambda self: {})
    for ask in (
        lambda: module.Dask(client),
        lambda: list(driver.map(np.square, [1])),
        lambda: driver.sweep(_where, [b"a"], print),
    ):
        with pytest.raises(ValueError, match="has no workers"):
            ask()


def test_killed_worker_changes_nothing(musk, serial, inference):  # noqa: F811
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

        survivor = fit(musk, inference=inference, driver="dask", callback=kill)
        assert killed
        assert_same_fit(survivor, serial, musk[0])


def test_a_lost_scheduler_is_one_line(musk):  # noqa: F811
    """The scheduler's process is killed in mid-fit: what to do is said, not what a future was."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = f"tcp://127.0.0.1:{port}"
    start = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
    join = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = subprocess.Popen([*start, "--port", port, "--no-dashboard"], **quiet)
    worker = subprocess.Popen([*join, "--no-nanny", "--no-dashboard"], **quiet)

    def kill(told):
        if told.n_iter == 2:
            scheduler.kill()

    try:
        with distributed.Client(address, timeout=30) as client:
            client.wait_for_workers(1, timeout=30)
            with pytest.raises(ConnectionError, match="Dask scheduler was lost; start") as error:
                fit(musk, inference="paper", driver="dask", callback=kill)
            assert "\n" not in str(error.value) and "itemgetter" not in str(error.value)
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()


def test_needs_a_client(monkeypatch):
    def none():
        raise ValueError("No global client found")

    monkeypatch.setattr(distributed, "get_client", none)
    with pytest.raises(ValueError, match="needs an active Dask client"):
        make_driver(driver="dask")


def test_map_keeps_order(client):
    driver = make_driver(driver="dask")
    assert list(driver.map(np.add, [1, 2, 3], [4, 5, 6])) == [5, 7, 9]
    assert list(driver.map(np.square, range(20))) == [i * i for i in range(20)]


class Counted(NamedTuple):
    n: Any
    name: str


def _count(part):
    return part, Counted(np.full(2, part), f"{part}.")


@pytest.mark.parametrize("n", [1, 8, 9, 70])
def test_sums_on_the_way(client, n):
    driver, gathered = make_driver(driver="dask"), []

    class Seen(RunningSum):
        def __call__(self, statistics):
            gathered.append(statistics)
            super().__call__(statistics)

    sums = Seen()
    driver.sweep(_count, range(n), sums)
    np.testing.assert_array_equal(sums.value.n, [n * (n - 1) / 2] * 2)
    assert sums.value.name == "".join(f"{i}." for i in range(n))  # neighbours, in order
    assert len(gathered) <= 8


def test_data_do_not_pass_through_the_scheduler():
    """Bags in memory, functions and results go directly; no warning of a large graph."""
    from benchmarks.bench_drivers import scheduler_traffic

    assert scheduler_traffic(quick=True)["value"] <= 0.1


def test_a_client_that_cannot_reach_the_workers(client, monkeypatch):
    """From outside of their network everything goes through the scheduler, to the same result."""
    scatter = type(client).scatter

    def no_way(self, data, direct=None, **settings):
        if direct:
            raise OSError("no route to host")
        return scatter(self, data, direct=direct, **settings)

    monkeypatch.setattr(type(client), "scatter", no_way)
    driver = make_driver(driver="dask")
    assert not driver._direct
    assert list(driver.map(np.add, [1, 2], [3, 4])) == [4, 6]


def _where(part):
    return part, os.getpid()


def test_every_worker_has_its_share(client):
    """The scheduler alone would take every part to the worker that has the function."""
    driver = make_driver(driver="dask")
    workers = sorted(client.run(os.getpid).values())
    parts, first, later = [b"a" * 100, b"b" * 100], [], []
    parts = driver.sweep(_where, parts, first.append)
    for _ in range(3):
        parts = driver.sweep(_where, parts, later.append)
    assert sorted(first) == workers
    assert later == 3 * first  # and keeps it


def test_dpmil_on_every_driver(client, musk, tmp_path, monkeypatch):  # noqa: F811
    from bagwise import DPMIL, Bags, Execution
    from bagwise.models import dpmil as module

    bags, y = musk
    monkeypatch.setattr(module, "_ROWS", 64)
    bags.instances.astype(np.float64).tofile(tmp_path / "rows.bin")
    mapped = np.memmap(tmp_path / "rows.bin", np.float64, "r", shape=bags.instances.shape)
    options = {"n_components": 4, "max_iter": 6, "tol": 0.0, "random_state": 0}
    alone = DPMIL(**options, execution="serial").fit(bags, y)
    others = [
        DPMIL(**options, execution=Execution(n_jobs=2)).fit(bags, y),
        DPMIL(**options, execution="dask").fit(bags, y),
        DPMIL(**options).fit(Bags(mapped, bags.offsets), y),  # the active client
    ]
    for other in others:
        np.testing.assert_allclose(other.bounds_, alone.bounds_, rtol=1e-10)
        np.testing.assert_array_equal(other.instance_labels_, alone.instance_labels_)
        np.testing.assert_allclose(other.means_, alone.means_, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(other.predict_proba(bags), alone.predict_proba(bags), atol=1e-8)


class TestCommand:
    @pytest.fixture
    def files(self, tmp_path):
        from tests.filing import make_folder

        folder, labels = make_folder(tmp_path)
        out = tmp_path / "model.bagwise"
        given = ["fit", "--model", "vgpmil", "--bags", folder, "--labels", labels, "--out", out]
        return [*map(str, given), "--set", "n_inducing=10"], out

    def test_given_scheduler(self, client, files):
        from bagwise import persist
        from bagwise.cli import main

        words, out = files
        assert main([*words, "--dask", client.scheduler.address]) == 0
        on_dask = persist.load(out)
        assert main([*words, "--force", "--set", "execution=serial"]) == 0
        alone = persist.load(out)
        np.testing.assert_allclose(on_dask.posterior_mean_, alone.posterior_mean_, atol=1e-8)

    def test_nobody_answers(self, files, capsys, monkeypatch):
        from bagwise.cli import main

        monkeypatch.setattr("bagwise.cli.fit.DASK_TIMEOUT", 1)
        words, out = files
        assert main([*words, "--dask", "tcp://127.0.0.1:9"]) == 2
        assert "no Dask scheduler answered at 'tcp://127.0.0.1:9'" in capsys.readouterr().err
        assert not out.exists()

    def test_without_dask(self, files, capsys, monkeypatch):
        import sys

        from bagwise.cli import main

        monkeypatch.setitem(sys.modules, "distributed", None)
        words, out = files
        assert main([*words, "--dask", "local"]) == 2
        assert "pip install '.[dask]'" in capsys.readouterr().err
        assert not out.exists()

    def test_model_that_cannot(self, files, capsys):
        from bagwise.cli import main

        words, _ = files
        assert main([*words[:-2], "--model", "single-instance", "--dask", "local"]) == 2
        assert "does not run on a cluster" in capsys.readouterr().err


def test_command_on_a_local_cluster(tmp_path):
    """In a process of its own, as a user types it."""
    import subprocess
    import sys

    from tests.filing import make_folder

    folder, labels = make_folder(tmp_path)
    words = ["fit", "--bags", folder, "--labels", labels, "--out", tmp_path / "m.bagwise"]
    more = ["--set", "n_inducing=10", "--dask", "local"]
    code = "import sys; from bagwise.cli import main\nif __name__ == '__main__': sys.exit(main())"
    (tmp_path / "run.py").write_text(code)
    done = subprocess.run(
        [sys.executable, tmp_path / "run.py", *map(str, words), *more],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "m.bagwise").exists()


def test_the_automatic_model_on_a_cluster(client, musk):  # noqa: F811
    """Search, members and predictions are those of one process."""
    from bagwise import AutoVGPMIL

    bags, y = musk[0][::2], musk[1][::2]
    options = {"n_inducing": 15, "max_iter": 8, "random_state": 0}
    here = AutoVGPMIL(**options, execution="serial").fit(bags, y)
    there = AutoVGPMIL(**options, execution="dask").fit(bags, y)
    np.testing.assert_allclose(there.weights_, here.weights_, atol=1e-8)
    for method in ("predict_proba", "predict_proba_instances"):
        ours, theirs = getattr(there, method)(bags), getattr(here, method)(bags)
        np.testing.assert_allclose(ours, theirs, atol=1e-8)


def test_coupled_instances_on_a_cluster_from_disk(client, tmp_path):
    """The fits of the folds, the fit and the prediction run there; neighbours are bag by bag."""
    from bagwise import VGPMIL, Coupled
    from bagwise.datasets import make_neighbour_bags

    data = make_neighbour_bags(n_bags=16, shape=(20,), separation=3.0, random_state=0)
    lazy = Bags.load(data.bags.save(tmp_path / "rows.bags"), lazy=True)
    settings = {"n_inducing": 15, "random_state": 0, "tol": 1e-2}
    here = Coupled(VGPMIL(**settings, execution="serial"), cv=2).fit(data.bags, data.y)
    there = Coupled(VGPMIL(**settings, execution="dask"), cv=2).fit(lazy, data.y)
    assert there.strength_ == here.strength_ > 0
    np.testing.assert_allclose(
        there.decision_function_instances(lazy),
        here.decision_function_instances(data.bags),
        atol=1e-8,
    )
