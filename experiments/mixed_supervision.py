"""A few fully labelled bags among many weakly labelled ones (VGPMIL paper, Figure 4).

The paper shows PASCAL VOC detection; here it is bags of 8 x 8 digits, whose instance labels are
known: for a growing share of the training bags all instance labels are given, and the instances of
held-out bags are ranked.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import average_precision_score

from bagwise import LMVGPMIL, VGPMIL
from bagwise.datasets import load_digit_bags
from experiments._held_out import folds, main, paper_vgpmil, table_row

TITLE = "Mixed supervision on digit bags (VGPMIL paper, Figure 4)"
PAPER = "VGPMIL, Figure 4"
NEEDS = ("bundled",)

SHARES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)


def models() -> dict[str, Any]:
    """Model makers by name."""
    return {
        "VGPMIL": lambda seed: VGPMIL(random_state=seed),
        "VGPMIL, paper's updates": lambda seed: paper_vgpmil(random_state=seed),
        "LM-VGPMIL": lambda seed: LMVGPMIL(random_state=seed),
    }


def told_labels(bags: Any, share: float, rng: Any) -> Any:
    """Instance labels of a random share of the bags, -1 elsewhere."""
    told = np.repeat(rng.permutation(len(bags)) < round(share * len(bags)), bags.sizes)
    return np.where(told, bags.instance_labels, -1)


def one_fold(make: Any, data: Any, seed: int, a: Any, b: Any) -> list[float]:
    """Instance AP on held-out bags for each share; larger shares contain the smaller ones."""
    # LM-VGPMIL's objective is cyclic; where it circles, the last iteration is taken.
    warnings.simplefilter("ignore", ConvergenceWarning)
    train, test = data.bags[a], data.bags[b]
    found = []
    for share in SHARES:
        labels = told_labels(train, share, np.random.default_rng(seed))
        model = make(seed).fit(train, data.y[a], instance_labels=labels)
        score = model.decision_function_instances(test)
        found.append(float(average_precision_score(test.instance_labels, score)))
    return found


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Five folds by bag, three seeds; quick: one seed."""
    data = load_digit_bags()
    seeds = range(1 if quick else 3)
    table = []
    for name, make in models().items():
        parts = folds(data.y, seeds)
        found = Parallel(n_jobs)(delayed(one_fold)(make, data, *part) for part in parts)
        frame = pd.DataFrame(found, columns=list(SHARES)).assign(seed=[p[0] for p in parts])
        per_seed = frame.groupby("seed").mean()
        table += [
            table_row(
                name,
                f"digits, {share:.0%} of the bags fully labelled",
                "instance AP",
                per_seed[share],
            )
            | {"share": share}
            for share in SHARES
        ]
    result = pd.DataFrame(table)
    plot(result, out / "mixed_supervision.png")
    return result.drop(columns="share")


def plot(result: pd.DataFrame, path: Path) -> None:
    """Instance AP against the share of fully labelled bags."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for name, part in result.groupby("model", sort=False):
        axes.errorbar(100 * part["share"], part["mean"], part["spread"], label=name, marker="o")
    axes.set(xlabel="fully labelled bags, %", ylabel="instance AP, held out")
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main(run)
