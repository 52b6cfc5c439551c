"""Probabilities where bags are few and large, such as slides of thousands of patches.

Made bags: 60 of 4,000 instances, half of them positive, and 400 of 1,000, a fifth positive. About
a hundredth of the instances of a positive bag is moved; what share it is differs from bag to bag,
and bags have a shift of their own. Log-loss and AUC are those of 150 new bags of the same size,
beside the log-loss of always saying the base rate. A fit of so many instances holds bags out once
or a few times; it must hold out enough of them. The default settings of the models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score

from bagwise import Bags
from bagwise.models.registry import make_model
from experiments._held_out import gather, main, quiet_fits, rows

TITLE = "Few large bags: probabilities of new ones"
PAPER = "none"
NEEDS = ("synthetic",)
SETS = {"60 bags of 4,000": (60, 4000, 0.5), "400 bags of 1,000": (400, 1000, 0.2)}
METRICS = ["log-loss", "log-loss of the base rate", "bag AUC"]
MODELS = {"60 bags of 4,000": ("vgpmil", "g-vgpmil", "auto"), "400 bags of 1,000": ("vgpmil",)}


def make_bags(n_bags: int, size: int, rate: float, seed: int) -> tuple[Bags, Any]:
    """Bags with a shift of their own; a hundredth of a positive one, more or less, is moved."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n_bags) < rate).astype(int)
    of_bag = np.repeat(np.arange(n_bags), size)
    X = rng.normal(size=(n_bags * size, 5)) + 0.3 * rng.normal(size=(n_bags, 5))[of_bag]
    share = 0.01 * np.exp(rng.normal(size=n_bags)) * y
    X[rng.random(len(X)) < share[of_bag], :3] += 2.0
    return Bags(X.astype(np.float32), np.arange(0, len(X) + 1, size)), y


def one_run(model: str, data: str, seed: int, quick: bool) -> dict[str, Any]:
    """One model on one draw; training and new bags have different seeds."""
    n_bags, size, rate = (30, 100, 0.5) if quick else SETS[data]
    bags, y = make_bags(n_bags, size, rate, seed)
    new, truth = make_bags(40 if quick else 150, size, rate, 1000 + seed)
    fitted = make_model(model, random_state=0)
    with quiet_fits():
        fitted.fit(bags, y)
    p = fitted.predict_proba(new)[:, 1]
    return {
        "model": model,
        "data": data,
        "seed": seed,
        "log-loss": log_loss(truth, p, labels=[0, 1]),
        "bag AUC": roc_auc_score(truth, p),
        "log-loss of the base rate": log_loss(truth, np.full(len(truth), y.mean()), labels=[0, 1]),
    }


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Three seeds; quick: one of a few small bags."""
    names = ("400 bags of 1,000",) if quick else tuple(SETS)
    cells = [(m, d, s, quick) for s in range(1 if quick else 3) for d in names for m in MODELS[d]]
    kept = gather(one_run, cells, out, n_jobs)
    table: list[dict[str, Any]] = []
    for (data, model), part in kept.groupby(["data", "model"], sort=False):
        table += rows(model, data, part[METRICS], {})
    return pd.DataFrame(table)


if __name__ == "__main__":
    main(run)
