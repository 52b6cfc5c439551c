"""MI-CRF: inference, the whole Musk1 experiment, memory on Musk2.

Times are CPU seconds, best of several, so that a busy machine does not count. The paper reports
0.03 s for TRW-S on Musk1 and 200 s for the cross-validation, 120 s of them distances.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold

from bagwise import MICRF, datasets
from bagwise.core import segments
from bagwise.models.micrf import energy as crf
from bagwise.models.micrf import unaries
from bagwise.models.micrf.distances import Dissimilarities

_MEMORY = "import benchmarks.bench_micrf as b; print(b.peak_of_musk2())"


def cpu(function: Callable[[], Any], repeats: int) -> float:
    best = np.inf
    for _ in range(repeats):
        start = time.process_time()
        function()
        best = min(best, time.process_time() - start)
    return best


def peak_of_musk2() -> float:
    """Peak memory of this process in GB after one fit on Musk2, everything included."""
    bags, y = datasets.load_musk2(return_X_y=True)
    MICRF(calibrate=False).fit(bags, y)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


class SVMClock:
    """CPU seconds spent training and scoring instance SVMs, while it is open."""

    def __enter__(self) -> SVMClock:
        self.seconds = 0.0
        self._originals = (unaries.train, unaries.score)
        unaries.train = self._timed(unaries.train)
        unaries.score = self._timed(unaries.score)
        return self

    def __exit__(self, *_: object) -> None:
        unaries.train, unaries.score = self._originals

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start, inside = time.process_time(), self.seconds
            result = function(*arguments)
            self.seconds = inside + time.process_time() - start  # train calls score
            return result

        return timed


def inference(model: MICRF, bags: Any, pruned: bool) -> tuple[Callable[[], Any], Any]:
    """TRW-S on the energy of the training bags, dissimilarities at hand; and its solution."""
    from bagwise.core.trws import trws

    scaled = bags.map(model.scaling_.apply)
    inst, non = model.unary_energies(bags)
    gamma = crf.unpack(model.alpha_, len(model.machines_)).gamma
    keep = np.ones(len(inst), dtype=bool)
    if pruned:
        keep, _ = crf.prune(inst, non, bags.offsets, model.max_states)
    ids, owner = np.flatnonzero(keep), segments.index(bags.offsets)
    near = Dissimilarities(scaled.instances, model.factors_, len(ids))
    live = np.unique(owner[ids])

    def solve() -> Any:
        problem, _ = crf.build(inst, non, ids, owner, live, gamma, near)
        return trws(problem)

    return solve, solve()


def row(
    what: str, value: float, must: str, ok: bool, quoted: str = "", factor: float = 1.0
) -> dict[str, Any]:
    """A row; ``quoted`` is what guides call it, ``factor`` turns it into their unit."""
    names = {quoted: factor * value} if quoted else {}
    return {"what": what, "value": value, "must": must, "ok": bool(ok), "quoted": names}


def run(quick: bool) -> list[dict[str, Any]]:
    bags, y = datasets.load_musk1(return_X_y=True)
    model = MICRF(calibrate=False).fit(bags, y)
    solve, found = inference(model, bags, pruned=False)
    seconds = cpu(solve, 3 if quick else 20)
    gap = (found.energy - found.lower_bound) / (1 + abs(found.energy))
    rows = [
        row(
            "TRW-S on the full Musk1 graph, s",
            seconds,
            "<= 0.03 (paper)",
            seconds <= 0.03,
            "MI-CRF, TRW-S on the full Musk1 graph, ms",
            1000.0,
        ),
        row("... its gap to the lower bound", gap, "<= 0.05 (paper)", gap <= 0.05),
    ]
    n_folds = 3 if quick else 10
    with SVMClock() as svm:
        seconds = cpu(lambda: cross_validate(bags, y, n_folds), 1)
    rows += [
        row(
            f"Musk1 {n_folds}-fold with distances, s",
            seconds,
            "< 5",
            seconds < 5,
            "MI-CRF, ten folds of Musk1, seconds",
        ),
        row(
            "... share of SVM time",
            svm.seconds / seconds,
            "reported",
            True,
            "MI-CRF, ten folds of Musk1, SVM time in %",
            100.0,
        ),
    ]
    if quick:
        return rows
    bags, y = datasets.load_musk2(return_X_y=True)
    with SVMClock() as svm:
        start = time.process_time()
        model = MICRF(calibrate=False).fit(bags, y)
        seconds = time.process_time() - start
    solve, _ = inference(model, bags, pruned=True)
    pruned = cpu(solve, 10)
    command = [sys.executable, "-c", _MEMORY]
    peak = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return [
        *rows,
        row(
            "Musk2 inference after pruning, s",
            pruned,
            "< 0.2",
            pruned < 0.2,
            "MI-CRF, inference on Musk2 after pruning, ms",
            1000.0,
        ),
        row("Musk2 fit, s", seconds, "reported", True, "MI-CRF, one fit on Musk2, seconds"),
        row(
            "... share of SVM time",
            svm.seconds / seconds,
            "reported",
            True,
            "MI-CRF, one fit on Musk2, SVM time in %",
            100.0,
        ),
        row(
            "Musk2 peak memory, GB",
            peak,
            "< 1.5",
            peak < 1.5,
            "MI-CRF, peak memory of a fit on Musk2, GB",
        ),
    ]


def cross_validate(bags: Any, y: Any, n_folds: int) -> None:
    for train, test in StratifiedKFold(n_folds, shuffle=True, random_state=0).split(y, y):
        MICRF(calibrate=False).fit(bags[train], y[train]).predict(bags[test])
