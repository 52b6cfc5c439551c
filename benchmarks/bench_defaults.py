"""What default fits cost: calibration, the search of AutoVGPMIL, and growth with the data.

Processor seconds, runs of a pair interleaved, the best of each: other work on the machine disturbs
them little.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import numpy as np

from bagwise import VGPMIL, AutoVGPMIL, Bags, datasets
from bagwise.core import inducing
from benchmarks.timing import best_of

QUOTED = {
    "AutoVGPMIL / VGPMIL": "AutoVGPMIL, calibrated fits on MUSK1",
    "AutoVGPMIL / VGPMIL without calibration": "AutoVGPMIL, plain fits on MUSK1",
}


def made(n: int, size: int, n_features: int = 38) -> tuple[Bags, Any]:
    """Bags of one size, every other one with a tenth of moved instances."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, n_features))
    offsets = np.arange(0, n + 1, size)
    y = np.arange(len(offsets) - 1) % 2
    for start in offsets[:-1][y == 1]:
        X[start : start + max(1, size // 10)] += 1
    return Bags(X, offsets), y


def fit(make: Callable[..., Any], data: tuple[Bags, Any], **settings: Any) -> Callable[[], Any]:
    """A fit to time."""
    return lambda: make(random_state=0, **settings).fit(*data)


def ratios(repeats: int) -> list[dict[str, Any]]:
    """Calibration and the search, on two bundled sets."""
    rows = []
    for name, load in (("MUSK1", datasets.load_musk1), ("Elephant", datasets.load_elephant)):
        data = load(return_X_y=True)
        plain = fit(VGPMIL, data, calibrate=False)
        times = best_of([plain, fit(VGPMIL, data), fit(AutoVGPMIL, data)], repeats, process_time)
        rows += [
            row(f"calibrated / uncalibrated VGPMIL, {name}", times[1] / times[0], 2.5),
            row(f"AutoVGPMIL / VGPMIL, {name}", times[2] / times[1], 5),
            row(f"k-means, share of a VGPMIL fit, {name}", kmeans_share(data), 0.1),
        ]
        if name == "MUSK1":
            with_, without = QUOTED.values()
            rows[-2]["quoted"] = {with_: times[2] / times[1], without: times[2] / times[0]}
    return rows


def kmeans_share(data: tuple[Bags, Any]) -> float:
    """Processor time inside the choice of inducing points, of the whole fit."""
    spent, choose = [], inducing.choose

    def watched(*args: Any, **kwargs: Any) -> Any:
        start = process_time()
        Z = choose(*args, **kwargs)
        spent.append(process_time() - start)
        return Z

    inducing.choose = watched
    try:
        start = process_time()
        fit(VGPMIL, data)()
        return sum(spent) / (process_time() - start)
    finally:
        inducing.choose = choose


def growth(quick: bool) -> list[dict[str, Any]]:
    """With inducing points, size of the bags and number of instances, same number of passes."""
    N, M = (2_000, 200) if quick else (20_000, 1_000)
    fixed: dict[str, Any] = {"learn_kernel": False, "max_iter": 5, "tol": 0.0}
    few = partial(fit, VGPMIL, n_inducing=50, **fixed)
    many = fit(VGPMIL, made(N, 10), n_inducing=M, **fixed)
    a, b = best_of([few(made(N, 10)), many], 2, process_time)
    # A fit looks at 128 bags at least to choose its kernel, which are more instances where bags are
    # large: passes of a fit that has its kernel are compared.
    begun = VGPMIL(random_state=0, **fixed).fit(*made(2_000, 10))
    sizes = (10, 5 * N // 100, 5 * N // 10)
    by_size = best_of([partial(begun.update, *made(5 * N, n)) for n in sizes], 5, process_time)
    steps = (N, 2 * N, 4 * N)
    by_n = best_of([few(made(n, 10)) for n in steps], 2, process_time)
    exponent = float(np.polyfit(np.log(steps), np.log(by_n), 1)[0])
    return [
        row(f"M = {M} / M = 50", b / a, 25),
        row(f"passes over bags of {sizes}, slowest / fastest", max(by_size) / min(by_size), 1.2),
        row("exponent of N", exponent, 1.05),
        *memory(N, fixed),
    ]


def memory(N: int, fixed: dict[str, Any]) -> list[dict[str, Any]]:
    """Peak memory of fits beyond their data, and how it grows; none more than linearly."""

    def peak(n: int, M: int, D: int) -> int:
        job = fit(VGPMIL, made(n, 10, D), n_inducing=M, **fixed)
        tracemalloc.start()
        try:
            job()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    base = peak(N, 50, 38)
    rows = [row(f"peak MB, N = {N}, M = 50, D = 38", base / 1e6, np.inf)]
    for what, size in (("N", (4 * N, 50, 38)), ("M", (N, 200, 38)), ("D", (N, 50, 152))):
        rows.append(row(f"peak memory, 4 {what} / {what}", peak(*size) / base, 4))
    return rows


def row(what: str, value: float, most: float) -> dict[str, Any]:
    return {"what": what, "value": value, "must": f"<= {most:g}", "ok": value <= most}


def run(quick: bool) -> list[dict[str, Any]]:
    """All rows."""
    fit(VGPMIL, made(200, 10))()  # imports and caches
    return ratios(1 if quick else 3) + growth(quick)
