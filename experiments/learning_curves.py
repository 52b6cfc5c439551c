"""Evidence bound and held-out score after every iteration of the VGPMIL family.

As Figure 2 of the VGPMIL paper's supplement. The paper's schedule updates all instance
probabilities at once: its bound is not monotone and its score may jump between even and odd
iterations, while the damped schedule settles. With the hidden labels summed out the bound never
falls. Score: bag AUC of the held-out folds, for newsgroups the instance AUC-PR, mean over folds.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.parallel import Parallel, delayed

from bagwise import GVGPMIL, LMVGPMIL, VGPMIL
from bagwise.evaluate import BagFolds, bag_metrics, instance_metrics
from bagwise.evaluate.run import load_dataset
from bagwise.models.presets import preset
from bagwise.models.variational import NoisyMax
from experiments._held_out import main, paper_vgpmil, present, table_row

TITLE = "Learning curves: bound and score per iteration"
PAPER = "VGPMIL, supplement Figure 2"
NEEDS = ("bundled", "newsgroups")
MODELS = {
    "VGPMIL, released program": preset("vgpmil-program"),
    "VGPMIL, paper's schedule": paper_vgpmil(likelihood=NoisyMax(schedule="paper")),
    "VGPMIL, damped": paper_vgpmil(likelihood=NoisyMax(schedule="damped")),
    "VGPMIL, labels summed out": VGPMIL(),
    "LM-VGPMIL": LMVGPMIL(),
    "G-VGPMIL": GVGPMIL(),
}
# Newsgroup features are sparse counts of the same unit: scaling each would drown the key instances.
DATA: dict[str, dict[str, Any]] = {
    "musk1": {"scale": "feature"},
    "digits": {"scale": "feature"},
    "newsgroups/rec_sport_hockey": {"scale": None},
}
N_ITERATIONS = 20
REPORTED = (1, 3, 19, 20)


def curve(model: Any, data: str, split: Any) -> tuple[Any, Any]:
    """Score on the test bags and bound after 1, 2, ... iterations of one fit.

    The last values are repeated where a fit has converged before.
    """
    bunch = load_dataset(data)
    train, test = bunch.bags[split.train], bunch.bags[split.test]
    states: list[Any] = []
    model = clone(model).set_params(
        max_iter=N_ITERATIONS,
        tol=0.0,
        calibrate=False,
        random_state=split.seed,
        callback=lambda iteration: states.append(iteration.posterior),
    )
    with warnings.catch_warnings():
        # Stopping after a given number of iterations is the point here.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(train, bunch.y[split.train])
    scores = []
    for process in states:
        # Put the model back to where it was after this iteration.
        model.predictor_ = replace(model.predictor_, processes=(process,))
        if data.startswith("newsgroups"):
            scores.append(instance_metrics(model, test, metrics=["auc_pr"])["auc_pr"])
        else:
            scores.append(bag_metrics(model, test, bunch.y[split.test], ["auc"])["auc"])
    return _padded(scores), _padded(model.bound_history_)


def _padded(values: Any) -> Any:
    return np.pad(values, (0, N_ITERATIONS - len(values)), mode="edge")


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Measure; quick is MUSK1 with one fold seed and three folds."""
    sets, absent = present(list(DATA)[:1] if quick else list(DATA), load_dataset)
    protocol = BagFolds(3, (0,)) if quick else BagFolds(5, (0, 1, 2))
    rows, curves = [], {}
    for data in sets:
        bunch = load_dataset(data)
        splits = list(protocol.splits(bunch.bags, bunch.y))
        for name, model in MODELS.items():
            model = clone(model).set_params(n_inducing=50, **DATA[data])
            made = Parallel(n_jobs=n_jobs)(delayed(curve)(model, data, split) for split in splits)
            curves[data, name] = made
            rows += _rows(data, name, made, [split.seed for split in splits])
    _plot(curves, sets, out)
    return pd.DataFrame([*rows, *absent])


def _rows(data: str, name: str, made: list[Any], seeds: list[int]) -> list[dict[str, Any]]:
    scores = np.array([score for score, _ in made])  # [splits, iterations]
    per_seed = np.array([scores[np.array(seeds) == s].mean(axis=0) for s in dict.fromkeys(seeds)])
    falls = [max(0.0, float(-np.diff(bound).min())) for _, bound in made]
    note = f"largest fall of the bound {max(falls):.2g}"
    metric = "instance AUC-PR" if data.startswith("newsgroups") else "bag AUC"
    return [
        table_row(
            name,
            data,
            f"{metric} after {n} iteration{'s' if n > 1 else ''}",
            per_seed[:, n - 1],
            note=note if n == REPORTED[-1] else "",
        )
        for n in REPORTED
    ]


def _plot(curves: dict[Any, Any], sets: list[str], out: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        2, len(sets), figsize=(4 * len(sets), 5.5), sharex=True, squeeze=False, layout="constrained"
    )
    for column, data in zip(axes.T, sets, strict=True):
        for name in MODELS:
            scores, bounds = (np.mean(v, axis=0) for v in zip(*curves[data, name], strict=True))
            steps = np.arange(1, N_ITERATIONS + 1)
            column[0].plot(steps, scores, marker=".", label=name)
            # Bounds of different likelihoods have different constants: show the rise.
            column[1].plot(steps, bounds - bounds[-1], marker=".")
        column[0].set_title(data)
        column[1].set(xlabel="iteration", yscale="symlog")
    axes[0, 0].set_ylabel("held-out score")
    axes[1, 0].set_ylabel("bound - its last value")
    axes[0, 0].legend(fontsize="small")
    figure.savefig(out / "learning_curves.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main(run)
