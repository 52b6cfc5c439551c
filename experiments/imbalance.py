"""Rare positives: how well the model ranks, and how far its probabilities hold, at 3 in 100 bags.

Bags of digits: one to three of them, of which twelve of 400 training bags hold a nine; and two to
four, of which eight of 260 hold an eight. As many test bags are dealt, no image twice. By default
the rarer class counts as a fifth of the bags; `class_weight={}` makes every bag count once. The
calibration slope is that of a logistic regression of the labels on the held-out log-odds, pooled
over the seeds because one test set has few positive bags only: 1 is right, below 1 the model is too
sure, above 1 too timid. The least share of the rarer class, how far its few labels are smoothed and
the number of calibration folds were chosen on seeds 100 to 119 of these and other digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score

from bagwise import VGPMIL, Bags
from experiments._held_out import main, rows

TITLE = "Rare positives: ranking and calibration with 3 % positive bags"
PAPER = "this package"
NEEDS = ("bundled",)
SEEDS = tuple(range(200, 210))
MODELS: dict[str, dict[str, Any]] = {
    "VGPMIL": {},
    "VGPMIL, class_weight={}": {"class_weight": {}},
    "VGPMIL, class_weight='balanced'": {"class_weight": "balanced"},
}


class Rare(NamedTuple):
    """Bags of digits with a rare one among them."""

    digit: int
    sizes: tuple[int, ...]  # of the bags, in equal shares
    n_bags: int  # training and test bags together


DATA = {
    "digits, 3 % with a nine": Rare(9, (1, 2, 3), 800),
    "digits, 3 % with an eight": Rare(8, (2, 3, 4), 520),
}


def rare_digits(rare: Rare, seed: int, n_bags: int) -> tuple[Bags, Any]:
    """Bags of which 3 % hold the digit; training and test bags alternate."""
    rng, digits = np.random.RandomState(seed), load_digits()
    own = list(rng.permutation(np.flatnonzero(digits.target == rare.digit)))
    others = list(rng.permutation(np.flatnonzero(digits.target != rare.digit)))
    y = np.zeros(n_bags, dtype=int)
    n_positive = round(0.015 * n_bags)
    for half in (0, 1):  # as many in either half
        y[half::2][rng.choice(n_bags // 2, n_positive, replace=False)] = 1
    sizes = rng.permutation(np.resize(rare.sizes, n_bags))  # drawn freely, images may not suffice
    arrays = []
    for positive, n in zip(y, sizes, strict=True):
        chosen = [own.pop() if positive and i == 0 else others.pop() for i in range(n)]
        arrays.append(digits.data[chosen] / 16)
    return Bags.from_list(arrays), y


def calibration_slope(log_odds: Any, y: Any) -> float:
    """Slope of a logistic regression of labels on log-odds, hardly penalised."""
    fitted = LogisticRegression(C=1e6, max_iter=1000).fit(np.reshape(log_odds, (-1, 1)), y)
    return float(fitted.coef_[0, 0])


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Measure; quick is one seed of the first set with half of the bags."""
    seeds = SEEDS[:1] if quick else SEEDS
    table = []
    for name, rare in list(DATA.items())[: 1 if quick else None]:
        n_bags = rare.n_bags // 2 if quick else rare.n_bags
        for label, given in MODELS.items():
            per_seed, log_odds, labels = {}, [], []
            for seed in seeds:
                bags, y = rare_digits(rare, seed, n_bags)
                train, test = np.arange(0, n_bags, 2), np.arange(1, n_bags, 2)
                model = VGPMIL(random_state=seed).fit(bags[train], y[train], **given)
                z = model.decision_function(bags[test])
                per_seed[seed] = {
                    "bag AUC": roc_auc_score(y[test], z),
                    "bag AP": average_precision_score(y[test], z),
                    "mean probability": float(expit(z).mean()),
                }
                log_odds.append(z)
                labels.append(y[test])
            frame = pd.DataFrame(per_seed).T
            frame["calibration slope"] = calibration_slope(
                np.concatenate(log_odds), np.concatenate(labels)
            )
            note = "3 % of the bags are positive; slope pooled over the seeds"
            table += rows(label, name, frame, {}, note)
    return pd.DataFrame(table)


if __name__ == "__main__":
    main(run)
