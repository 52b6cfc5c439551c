"""C and V of LM-VGPMIL, and its instances in two dimensions (VGPMIL paper, supplement).

The paper shows both for a histology set that is not public; here it is bags of 8 x 8 digits. C says
how steep the sigmoid is and how hard a margin violation is punished, V how far the margin lies from
the decision surface. The model is fitted on half of the bags and judges the instances of the other
half, then the other way round; three draws of the bags. Nothing is chosen by this table: the
defaults C = V = 2 are the paper's settings for PASCAL VOC (section 4.3 of [Haussmann2017]).
Probabilities are the model's own, without calibration, so that the effect of C and V on them is
seen.

The picture of the instances is a t-SNE embedding of all digits: the truth on the left, and what the
model says of them while their bag is held out on the right. The embedding sees no label.
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.manifold import TSNE
from sklearn.metrics import average_precision_score

from bagwise import LMVGPMIL
from bagwise.datasets import load_digit_bags
from experiments._held_out import main, table_row

TITLE = "LM-VGPMIL: the sweep of C and V, and t-SNE of the instances (VGPMIL paper, supplement)"
PAPER = "VGPMIL, supplement Figures 1 and 4"
NEEDS = ("bundled",)

CS = (0.5, 1.0, 2.0, 4.0, 8.0)
VS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
METRICS = ("instance AP", "instance accuracy")


def held_out(seed: int, C: float, V: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Truth about all instances, and their probability while their bag is held out."""
    # The objective is cyclic; where it circles, the last iteration is taken.
    warnings.simplefilter("ignore", ConvergenceWarning)
    data = load_digit_bags(random_state=seed)
    p = np.empty(data.bags.n_instances)
    half = np.random.default_rng(seed).permutation(len(data.y)) % 2 == 0
    for train in (half, ~half):
        model = LMVGPMIL(C=C, V=V, calibrate=False, random_state=seed)
        model.fit(data.bags[train], data.y[train])
        rows = np.repeat(~train, data.bags.sizes)
        p[rows] = model.predict_proba_instances(data.bags[~train])[:, 1]
    return np.asarray(data.instance_labels), p


def one_setting(seed: int, C: float, V: float) -> tuple[float, float]:
    """Average precision and accuracy of the held-out instances."""
    truth, p = held_out(seed, C, V)
    return float(average_precision_score(truth, p)), float(np.mean((p > 0.5) == (truth == 1)))


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Five values of C, six of V, three draws; quick: two of each, one draw."""
    cs, vs = ((0.5, 2.0), (0.5, 2.0)) if quick else (CS, VS)
    seeds = range(1 if quick else 3)
    grid = list(itertools.product(cs, vs))
    jobs = (delayed(one_setting)(seed, C, V) for C, V in grid for seed in seeds)
    values = np.array(Parallel(n_jobs=n_jobs)(jobs)).reshape(len(grid), len(seeds), len(METRICS))
    table = [
        table_row(
            f"LM-VGPMIL, C = {C:g}, V = {V:g}",
            "digits",
            metric,
            per_seed,
            note="the paper's C and V" if (C, V) == (2.0, 2.0) else "",
        )
        for (C, V), by_metric in zip(grid, values, strict=True)
        for metric, per_seed in zip(METRICS, by_metric.T, strict=True)
    ]
    means = values.mean(axis=1).reshape(len(cs), len(vs), len(METRICS))
    plot_sweep(means, cs, vs, out / "margin_sweep.png")
    plot_instances(out / "instances_tsne.png", 20 if quick else None)
    return pd.DataFrame(table)


def plot_sweep(
    means: NDArray[np.float64], cs: tuple[float, ...], vs: tuple[float, ...], path: Path
) -> None:
    """Each metric over C and V."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(METRICS), figsize=(9, 3.4), layout="constrained")
    for k, (ax, metric) in enumerate(zip(axes, METRICS, strict=True)):
        image = ax.imshow(means[:, :, k], origin="lower", aspect="auto", cmap="viridis")
        for i, j in np.ndindex(means.shape[:2]):
            value = means[i, j, k]
            light = value < (means[:, :, k].min() + means[:, :, k].max()) / 2
            colour = "white" if light else "black"
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
        ax.set(title=f"held-out {metric}", xlabel="V", ylabel="C")
        ax.set_xticks(range(len(vs)), [f"{v:g}" for v in vs])
        ax.set_yticks(range(len(cs)), [f"{c:g}" for c in cs])
        figure.colorbar(image, ax=ax)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def plot_instances(path: Path, n_bags: int | None = None) -> None:
    """The digits of all or the first bags in two dimensions: truth and held-out probability."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    data = load_digit_bags(random_state=0)
    X = data.bags[:n_bags].instances
    place = TSNE(2, init="pca", random_state=0).fit_transform(X)
    truth, p = (values[: len(X)] for values in held_out(0, 2.0, 2.0))
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    for ax, values, title in zip(
        axes, (truth, p), ("truth", "LM-VGPMIL, bag held out"), strict=True
    ):
        order = np.argsort(values, kind="stable")  # the few positives on top
        points = ax.scatter(*place[order].T, c=values[order], s=8, cmap="coolwarm", vmin=0, vmax=1)
        ax.set(title=title, xticks=[], yticks=[])
    figure.colorbar(points, ax=axes, label="positive instance")
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main(run)
