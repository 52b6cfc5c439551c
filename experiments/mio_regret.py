"""MIO's Figure 2: regret on the two-dimensional stream, ``python -m experiments.mio_regret``.

For every length T a new learner with alpha and beta scaled by sqrt(T) reads a stream of T bags.
Its losses are compared with the best weights in hindsight: a linear program on the whole
stream over the instances of its first bags, whose features every later bag has. No loss is
below 0, so where that program reaches 0 it is the best of all. Figure 2(b) also shows the share
of the features that MILES selects: its linear program on the whole stream, up to 2000 bags; 8000
bags are 36,000 features, hours of the solver.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from bagwise import MILES, MIO
from bagwise.core import distances, l1_svm
from bagwise.datasets import make_two_concept_bags
from experiments._held_out import main, table_row

TITLE = "Regret of MIO on a stream"
PAPER = "MIO, Figure 2"
NEEDS = ("synthetic",)
LENGTHS = [250, 500, 1000, 2000, 4000, 8000]
SIGMA, ALPHA, BETA, BIAS = 3.0, 0.1, 10.0, 10.0
# Bags whose instances are the features of the comparator: about 130 over a 2-d space.
COMPARATOR_BAGS = 30
# MILES on more bags takes minutes and more per stream.
MILES_BAGS = 2000
METRICS = ("regret/sqrt(T)", "regret/T", "selected", "selected by MILES", "late loss")


def hindsight_loss(bags: Any, y: Any) -> float:
    """Sum of hinge losses of the best fixed weights, their 1-norm hardly penalised."""
    anchors = bags[:COMPARATOR_BAGS].instances
    Z = distances.similarity(distances.bag_distances(bags.instances, bags.offsets, anchors), SIGMA)
    signs, costs = 2.0 * y - 1, np.ones(len(y))
    best = l1_svm.solve_lp(Z, signs, 1e-2, costs)
    return l1_svm.objective(Z, signs, 0.0, costs, best)


def one_stream(T: int, seed: int) -> dict[str, float]:
    """Regret, losses and sparsity of one stream of T bags."""
    bags, y = make_two_concept_bags(T, random_state=seed, return_X_y=True)
    model = MIO(
        sigma=SIGMA, alpha=ALPHA, beta=BETA, bias=BIAS, horizon=T, scale=None, calibrate=False
    )
    losses = []
    for i in range(T):
        model.partial_fit(bags[i : i + 1], y[i : i + 1], classes=[0, 1])
        losses.append(model.cumulative_loss_)
    regret = model.cumulative_loss_ - hindsight_loss(bags, y)
    chosen = np.nan
    if T <= MILES_BAGS:
        miles = MILES(sigma=SIGMA, scale=None, calibrate=False).fit(bags, y)
        chosen = len(miles.selected_instances_) / bags.n_instances
    return {
        "T": T,
        "seed": seed,
        "regret/sqrt(T)": regret / np.sqrt(T),
        "regret/T": regret / T,
        "selected": len(model.selected_instances_) / model.n_kept_,
        "selected by MILES": chosen,
        "late loss": (losses[-1] - losses[T // 2]) / (T - T // 2),
    }


def plot(table: pd.DataFrame, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    panels = {"regret/sqrt(T)": "regret / sqrt(T)", "regret/T": "average regret"}
    panels["selected"] = "share of instances with a weight"
    lines = {"MIO": "", "MILES": " by MILES"}
    for ax, (column, title) in zip(axes, panels.items(), strict=True):
        for name, suffix in lines.items():
            if column + suffix in table:
                part = table.groupby("T")[column + suffix].agg(["mean", "std"]).dropna()
                ax.errorbar(part.index, part["mean"], part["std"], fmt="o-", label=name)
        summary = table.groupby("T")[column].agg(["mean", "std"])
        ax.set(xscale="log", xlabel="bags T", title=title)
        ax.set_xticks(summary.index, [str(T) for T in summary.index])
        ax.minorticks_off()
        if column != "regret/sqrt(T)":
            ax.set_yscale("log")
        if column == "regret/T":
            rate = summary["mean"].iloc[0] * np.sqrt(summary.index[0] / summary.index)
            ax.plot(summary.index, rate, "k--", label="1 / sqrt(T)")
        ax.legend()
    figure.savefig(out / "mio_regret.png", dpi=150)
    plt.close(figure)


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Measure and plot; quick is two seeds up to 1000 bags."""
    lengths, seeds = (LENGTHS[:3], range(2)) if quick else (LENGTHS, range(5))
    results = Parallel(n_jobs=n_jobs)(
        delayed(one_stream)(T, seed) for T in lengths for seed in seeds
    )
    table = pd.DataFrame(results)
    plot(table, out)
    rows = []
    for metric in METRICS:
        name, model = ("selected", "MILES") if metric.endswith("MILES") else (metric, "MIO")
        settings = f"sigma {SIGMA}, alpha {ALPHA} and beta {BETA} x sqrt(T), bias {BIAS}"
        for T, values in table.dropna(subset=[metric]).groupby("T")[metric]:
            note = settings if model == "MIO" else f"sigma {SIGMA}, alpha 0.45"
            data = f"two concepts, T = {T}"
            rows.append(table_row(model, data, name, values, note=note, ddof=0))
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(run)
