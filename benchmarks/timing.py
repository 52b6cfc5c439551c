"""Timing that several benchmarks share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np


def best_of(
    jobs: list[Callable[[], Any]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Best seconds of each job by the clock, its runs interleaved with the others'."""
    best = [np.inf] * len(jobs)
    for _ in range(repeats):
        for i, job in enumerate(jobs):
            began = clock()
            job()
            best[i] = min(best[i], clock() - began)
    return best
