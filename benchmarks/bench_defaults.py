"""What default fits cost: calibration, the search of AutoVGPMIL, and growth with the data.

Processor seconds, runs of a pair interleaved, the best of each: other work on the machine disturbs
them little.
"""

from __future__ import annotations

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
    N = 2_000 if quick else 20_000
    one_kernel: dict[str, Any] = {"learn_kernel": False, "max_iter": 5, "tol": 0.0}
    few = partial(fit, VGPMIL, n_inducing=50, **one_kernel)
    M = 200 if quick else 1_000
    many = fit(VGPMIL, made(N, 10), n_inducing=M, **one_kernel)
    a, b = best_of([few(made(N, 10)), many], 2, process_time)
    most = 5 * N
    sizes = (10, most // 100, most // 10)
    by_size = best_of([few(made(most, size)) for size in sizes], 2, process_time)
    steps = (N, 2 * N, 4 * N)
    by_n = best_of([few(made(n, 10)) for n in steps], 2, process_time)
    exponent = float(np.polyfit(np.log(steps), np.log(by_n), 1)[0])
    return [
        row(f"M = {M} / M = 50", b / a, 25),
        row(f"bags of {sizes} instances, slowest / fastest", max(by_size) / min(by_size), 1.2),
        row("exponent of N", exponent, 1.05),
    ]


def row(what: str, value: float, most: float) -> dict[str, Any]:
    return {"what": what, "value": value, "must": f"<= {most:g}", "ok": value <= most}


def run(quick: bool) -> list[dict[str, Any]]:
    """All rows."""
    fit(VGPMIL, made(200, 10))()  # imports and caches
    return ratios(1 if quick else 3) + growth(quick)
