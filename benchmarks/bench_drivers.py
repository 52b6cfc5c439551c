"""Two Dask workers against one, what a driver costs, and the memory of a fit from disk."""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from bagwise import VGPMIL, Bags, Execution
from bagwise.core.gaussians import project
from bagwise.core.kernels import RBF
from bagwise.core.linalg import cholesky
from bagwise.models.drivers import Threads, cut, total
from bagwise.models.execution import CHUNK_SIZE
from bagwise.models.variational import NoisyMax, Sech
from bagwise.models.variational.blocks import BagLabels, Block, Part
from bagwise.models.variational.paper import expect, iterate, statistics, update_posterior
from benchmarks.timing import best_of

BAG = 100
WIDE = 128
# What every process of a benchmark is told: one BLAS thread.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def write_rows(path: Path, n: int, width: int) -> None:
    """Float32 rows in bags of 100; a tenth of each positive bag is shifted."""
    rng = np.random.default_rng(0)
    with path.open("wb") as stream:
        for start in range(0, n, 200_000):
            rows = np.arange(start, min(start + 200_000, n))
            X = rng.standard_normal((len(rows), width), dtype=np.float32)
            X[(rows % BAG < BAG // 10) & (rows // BAG % 2 == 1), :8] += 1.5
            X.tofile(stream)


def open_rows(path: Path, n: int, width: int) -> tuple[Bags, Any]:
    X = np.memmap(path, np.float32, "r", shape=(n, width))
    return Bags(X, np.arange(n // BAG + 1) * BAG), np.arange(n // BAG) % 2


class Problem(NamedTuple):
    """The fit that workers share, from a file they all see."""

    path: Path
    n: int
    M: int
    n_iter: int

    def bags(self) -> tuple[Bags, Any]:
        """Bags on disk, and their labels."""
        return open_rows(self.path, self.n, 32)

    def model(self, driver: Any) -> VGPMIL:
        """The model to be fitted, on a driver."""
        # Given points: k-means is no part of what the workers share.
        Z = np.asarray(self.bags()[0].instances[:: self.n // self.M][: self.M], dtype=np.float64)
        return VGPMIL(
            inducing=Z,
            max_iter=self.n_iter,
            tol=0.0,
            calibrate=False,
            inference="paper",
            execution=Execution(driver=driver),
        )

    def fit(self, driver: Any, share: int = 0, of: int = 1) -> None:
        """The whole fit, or that of one of ``of`` equal shares of the bags."""
        bags, y = self.bags()
        edges = np.linspace(0, len(bags), of + 1).astype(int)
        mine = slice(int(edges[share]), int(edges[share + 1]))
        self.model(driver).fit(bags[mine], y[mine])

    def warm_up(self, driver: Any) -> None:
        """Imports are no part of a fit."""
        bags, y = self.bags()
        execution = Execution(driver=driver)
        model = VGPMIL(inference="paper", n_inducing=5, max_iter=1, tol=0.0, execution=execution)
        model.fit(bags[:40], y[:40])


def make_problem(quick: bool, folder: Path) -> Problem:
    n, M, n_iter = (20_000, 50, 3) if quick else (400_000, 200, 15)
    write_rows(folder / "dask.bin", n, 32)
    return Problem(folder / "dask.bin", n, M, n_iter)


def two_workers(quick: bool, folder: Path, repeats: int = 2) -> dict[str, Any]:
    """The same fit on clusters of one and of two processes, both of them up all the time.

    One thread per worker; the client and the scheduler share the cores with the workers.
    """
    import distributed

    from bagwise.models.dask_driver import Dask

    problem = make_problem(quick, folder)
    clusters = [
        distributed.LocalCluster(n_workers=k, threads_per_worker=1, dashboard_address=None)
        for k in (1, 2)
    ]
    clients = [distributed.Client(cluster, set_as_default=False) for cluster in clusters]
    try:
        for client in clients:
            problem.warm_up(Dask(client))
        jobs = [functools.partial(problem.fit, Dask(client)) for client in clients]
        one, two = best_of(jobs, 1 if quick else repeats)
    finally:
        for closing in (*clients, *clusters):
            closing.close()
    print(f"one worker {one:.2f} s, two {two:.2f} s")
    return {
        "what": f"two Dask workers against one, N={problem.n}, M={problem.M}, "
        f"{problem.n_iter} iterations",
        "value": one / two,
        "must": "runs" if quick else ">= 1.6",
        "ok": quick or one / two >= 1.6,
        "quoted": {"Dask, one worker, seconds": one, "Dask, two workers, seconds": two},
    }


@contextlib.contextmanager
def counted_scheduler(n_workers: int) -> Iterator[tuple[Any, list[int]]]:
    """A client of a cluster whose scheduler is reached through a relay that counts the bytes."""
    import distributed

    n_bytes = [0]
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None, host="127.0.0.1") as cluster,
        socket.create_server(("127.0.0.1", 0)) as relay,
    ):
        host, port = cluster.scheduler_address.removeprefix("tcp://").split(":")

        def forward(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    n_bytes[0] += len(data)
                    target.sendall(data)
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        def listen() -> None:
            with contextlib.suppress(OSError):
                while True:
                    here, _ = relay.accept()
                    there = socket.create_connection((host, int(port)))
                    for ends in ((here, there), (there, here)):
                        threading.Thread(target=forward, args=ends, daemon=True).start()

        threading.Thread(target=listen, daemon=True).start()
        address = f"tcp://127.0.0.1:{relay.getsockname()[1]}"
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1"]
        workers = [
            subprocess.Popen([*command, "--no-nanny", "--no-dashboard"], stderr=subprocess.DEVNULL)
            for _ in range(n_workers)
        ]
        try:
            with distributed.Client(address, timeout=60) as client:
                client.wait_for_workers(n_workers, timeout=60)
                yield client, n_bytes
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def scheduler_traffic(quick: bool) -> dict[str, Any]:
    """Bytes through the scheduler during a fit and a prediction of bags in memory."""
    n = 40_000 if quick else 100_000
    X, y = np.random.default_rng(0).standard_normal((n, 32)), np.arange(n // BAG) % 2
    X.reshape(-1, BAG, 32)[y == 1, : BAG // 10, :8] += 1.5
    bags = Bags(X, np.arange(n // BAG + 1) * BAG)
    with counted_scheduler(2) as (_, n_bytes):
        before = n_bytes[0]
        VGPMIL(n_inducing=50, random_state=0, execution="dask").fit(bags, y).predict_proba(bags)
        share = (n_bytes[0] - before) / X.nbytes
    return {
        "what": f"bytes through the Dask scheduler / bytes of the bags, N={n}, fit and predict",
        "value": share,
        "must": "<= 0.1",
        "ok": share <= 0.1,
        "quoted": {"Dask, bytes through the scheduler over those of the data": share},
    }


def ceiling(quick: bool, folder: Path, repeats: int = 2) -> dict[str, Any]:
    """What two processes gain that never speak: each fits half of the bags by itself.

    They share caches and memory, so this may be less than 2; no driver can do better.
    """
    problem = make_problem(quick, folder)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as first, ProcessPoolExecutor(1, spawn) as second:
        for pool in (first, second):
            pool.submit(problem.warm_up, "serial").result()

        def whole() -> None:
            first.submit(problem.fit, "serial").result()

        def halves() -> None:
            running = [p.submit(problem.fit, "serial", i, 2) for i, p in enumerate((first, second))]
            for future in running:
                future.result()

        one, two = best_of([whole, halves], 1 if quick else repeats)
    print(f"one process {one:.2f} s, two with half each {two:.2f} s")
    return {
        "what": "ceiling: two processes with half of the bags each against one with all",
        "value": one / two,
        "must": "is reported",
        "ok": True,
    }


def overhead(quick: bool) -> dict[str, Any]:
    """A fit of many parts on a driver beside a bare loop over the same blocks."""
    n, M, n_iter = (20_000, 20, 3) if quick else (1_000_000, 50, 5)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 8))
    offsets = np.arange(n // BAG + 1) * BAG
    labels = BagLabels(offsets, np.arange(n // BAG) % 2, np.full(n, -1, dtype=np.int8))
    kernel, Z = RBF(np.sqrt(8.0), 1.0), X[:M]
    A, r = project(kernel, X, Z, cholesky(kernel(Z, Z)), np.dtype(np.float64))
    blocks = [
        Block(A[:, s.start : s.stop], r[s.start : s.stop], labels.slice(s.first_bag, s.last_bag))
        for s in cut(offsets, CHUNK_SIZE)
    ]
    pis = [np.full(len(block.r), 0.5) for block in blocks]
    likelihood, density, driver = NoisyMax(), Sech(), Threads(1)

    def bare() -> None:
        q, beliefs = None, list(pis)
        for i in range(n_iter + 1):
            last, sums = i == n_iter, None
            for j, block in enumerate(blocks):
                beliefs[j], sites, bound = expect(block, beliefs[j], q, likelihood, density)
                if not last:
                    found = statistics(block.A, sites, bound)
                    sums = found if sums is None else total([sums, found])
            if not last and sums is not None:
                q = update_posterior(sums.precision, sums.linear)

    def driven() -> None:
        edges = np.linspace(0, len(blocks), driver.n_parts + 1).astype(int)
        parts = [Part(tuple(blocks[a:b]), tuple(pis[a:b])) for a, b in itertools.pairwise(edges)]
        iterate(parts, likelihood, density, max_iter=n_iter, tol=0.0, driver=driver)

    with threadpool_limits(1):
        alone, with_driver = best_of([bare, driven], 1 if quick else 3)
    percent = 100 * (with_driver / alone - 1)
    return {
        "what": f"cost of a driver over a bare loop, N={n}, M={M}, in %",
        "value": percent,
        "must": "runs" if quick else "< 15",
        "ok": quick or percent < 15,
    }


def fit_from_disk(path: Path, n: int) -> None:
    """What the child process does: fit, then print the most memory it ever had, in bytes."""
    bags, y = open_rows(path, n, WIDE)
    VGPMIL(
        n_inducing=100,
        max_iter=3,
        tol=0.0,
        calibrate=False,
        inference="paper",
        random_state=0,
        execution=Execution(dtype="float32", cache="disk", driver="serial"),
    ).fit(bags, y)
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    print(1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM")))


def memory(quick: bool, folder: Path) -> dict[str, Any]:
    n = 50_000 if quick else 20_000_000
    path = folder / "wide.bin"
    write_rows(path, n, WIDE)
    code = (
        "from pathlib import Path; from benchmarks.bench_drivers import fit_from_disk; "
        f"fit_from_disk(Path({str(path)!r}), {n})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **ONE_THREAD, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    gigabytes = int(done.stdout.split()[-1]) / 1e9
    return {
        "what": f"memory of a fit to {n * WIDE * 4 / 1e9:.3g} GB on disk, M=100, in GB",
        "value": gigabytes,
        "must": "runs" if quick else "< 4",
        "ok": quick or gigabytes < 4,
    }


def run(quick: bool) -> list[dict[str, Any]]:
    os.environ.update(ONE_THREAD)  # for the workers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [
            two_workers(quick, folder),
            scheduler_traffic(quick),
            ceiling(quick, folder),
            overhead(quick),
            memory(quick, folder),
        ]
