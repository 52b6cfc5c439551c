"""VGPMIL by the paper's updates: against BLAS alone, float32 and float64, memory, growth with N.

The bound of a fit of n iterations is one kernel product plus n times (syrk + a product of a chunk
that is in cache) over all instances, run in full on this machine with one thread. Repeats are
interleaved, and the best of each counts. Times are processor seconds, so that other work on the
machine disturbs them little.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import blas
from threadpoolctl import threadpool_limits

from bagwise import VGPMIL, Bags, Execution

CHUNK = 1024


def problem(n: int, d: int, dtype: str, seed: int = 0) -> tuple[Bags, Any, Any]:
    """Bags of ten, the second half positive, and inducing points."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d), dtype=np.float32).astype(dtype, copy=False)
    y = (np.arange(n // 10) % 2).astype(int)
    X[::10][y == 1] += 1
    return Bags(X, np.arange(0, n + 1, 10)), y, rng


def model(Z: Any, dtype: str, n_iter: int) -> VGPMIL:
    """A fit of exactly ``n_iter`` iterations with given inducing points."""
    return VGPMIL(
        inference="paper",
        inducing=Z,
        max_iter=n_iter,
        tol=0.0,
        calibrate=False,  # which would fit once more
        random_state=0,
        execution=Execution(dtype=dtype),
    )


def seconds(function: Any) -> float:
    """Processor seconds: with one thread they equal wall time on a quiet machine."""
    start = time.process_time()
    function()
    return time.process_time() - start


def blas_bound(n: int, d: int, m: int, n_iter: int, dtype: str) -> float:
    """Seconds of one kernel GEMM and ``n_iter`` syrk and in-cache GEMM over all instances."""
    rng = np.random.default_rng(0)
    gemm = blas.sgemm if dtype == "float32" else blas.dgemm
    syrk = blas.ssyrk if dtype == "float32" else blas.dsyrk
    A = np.asfortranarray(rng.standard_normal((m, CHUNK)), dtype=dtype)
    S = np.asfortranarray(rng.standard_normal((m, m)), dtype=dtype)
    X = np.asfortranarray(rng.standard_normal((CHUNK, d)), dtype=dtype)
    Z = np.asfortranarray(rng.standard_normal((d, m)), dtype=dtype)

    def work() -> None:
        for _ in range(n // CHUNK):
            gemm(1.0, X, Z)
            for _ in range(n_iter):
                gemm(1.0, S, A)
                syrk(1.0, A, lower=1)

    return seconds(work)


def peak_megabytes(n: int, d: int, m: int, n_iter: int, dtype: str) -> float:
    """Peak memory of a fit beyond the data, in a process of its own."""
    code = f"""
import numpy as np
from benchmarks.bench_vgpmil import model, peak, problem, resident
bags, y, rng = problem({n}, {d}, {dtype!r})
small, y_small, _ = problem(20_000, {d}, {dtype!r})  # as long as loads the compiler
Z = bags.instances[:{m}].astype(float)
model(Z, {dtype!r}, 2).fit(small, y_small)
before = resident()
model(Z, {dtype!r}, {n_iter}).fit(bags, y)
print(peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(run.stdout.split()[-1])


def peak() -> float:
    """Peak resident memory of this process so far, in megabytes."""
    import resource

    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would count what the parent held when it started this process.
        line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS


def resident() -> float:
    """Resident memory of this process now, in megabytes."""
    import psutil

    return float(psutil.Process().memory_info().rss) / 2**20


def run(quick: bool) -> list[dict[str, Any]]:
    n, d, m, n_iter, repeats = (20_000, 30, 100, 5, 1) if quick else (250_000, 30, 200, 20, 2)
    best = {"float64": np.inf, "float32": np.inf}
    bound = dict(best)
    with threadpool_limits(1):
        data = {dtype: problem(n, d, dtype) for dtype in best}
        for _ in range(repeats):
            for dtype, (bags, y, _) in data.items():
                bound[dtype] = min(bound[dtype], blas_bound(n, d, m, n_iter, dtype))
                fit = model(bags.instances[:m].astype(float), dtype, n_iter)
                best[dtype] = min(best[dtype], seconds(lambda: fit.fit(bags, y)))  # noqa: B023
    share, gain = bound["float64"] / best["float64"], best["float64"] / best["float32"]
    size = f"N={n}, D={d}, M={m}, {n_iter} iterations"
    memory = peak_megabytes(n, d, m, n_iter, "float32")
    rows = [
        {"what": f"share of the BLAS bound, {size}", "value": share, "must": ">= 0.75"},
        {"what": "float32 over float64, times faster", "value": gain, "must": ">= 1.6"},
        {"what": "memory beyond the data in float32, MB", "value": memory, "must": "< 300"},
    ]
    for row, ok in zip(rows, (share >= 0.75, gain >= 1.6, memory < 300), strict=True):
        row["ok"] = ok
    return [*rows, growth(quick)]


def growth(quick: bool) -> dict[str, Any]:
    """Seconds per instance from 25k to 1M instances, largest over smallest."""
    sizes = [5_000, 20_000] if quick else [25_000, 100_000, 1_000_000]
    d, m, n_iter = 10, 50, 10
    per_instance = []
    with threadpool_limits(1):
        for n in sizes:
            bags, y, _ = problem(n, d, "float32")
            Z = bags.instances[:m].astype(float)
            repeats = max(2, min(5, 200_000 // n))
            times = [
                seconds(lambda: model(Z, "float32", n_iter).fit(bags, y))  # noqa: B023
                for _ in range(repeats)
            ]
            per_instance.append(min(times) / n)
    ratio = max(per_instance) / min(per_instance)
    return {
        "what": f"time per instance, N from {sizes[0]} to {sizes[-1]}, largest / smallest",
        "value": ratio,
        "must": "<= 1.3",
        "ok": ratio <= 1.3,
    }
