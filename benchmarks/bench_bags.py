"""Slicing bags against the bare numpy take of the same rows; import time."""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter

import numpy as np

from bagwise import Bags


def best_of(function, repeats=7):
    times = []
    for _ in range(repeats):
        start = perf_counter()
        function()
        times.append(perf_counter() - start)
    return min(times)


def run(quick: bool = False) -> list[dict]:
    scale = 20 if quick else 1
    n_bags, chosen_bags, size, width = 1_000_000 // scale, 100_000 // scale, 10, 16
    rng = np.random.default_rng(0)
    X = rng.random((n_bags * size, width), dtype=np.float32)
    bags = Bags(X, np.arange(n_bags + 1) * size)
    chosen = rng.permutation(n_bags)[:chosen_bags]
    rows = (chosen[:, None] * size + np.arange(size)).ravel()
    ratio = best_of(lambda: bags[chosen]) / best_of(lambda: X.take(rows, axis=0))
    extra = import_seconds("bagwise; bagwise.Bags; bagwise.SingleInstance") - import_seconds(
        "sklearn"
    )
    return [
        {
            "what": f"slice {chosen_bags} bags of {size} out of {n_bags} / numpy take",
            "value": ratio,
            "must": "< 3",
            "ok": ratio < 3,
        },
        {
            "what": "import bagwise, seconds more than import sklearn",
            "value": extra,
            "must": "< 1.0",
            "ok": extra < 1.0,
        },
    ]


def import_seconds(what: str) -> float:
    code = f"import time; t = time.perf_counter(); import {what}; print(time.perf_counter() - t)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    return min(float(r.stdout) for r in runs)
