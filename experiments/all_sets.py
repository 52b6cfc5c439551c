"""The command's default beside every model: ``python -m experiments.all_sets [--jobs N]``.

Bag AUC of every registered model with its defaults, held out: five folds by bag, three seeds (of
folds and models), on all sets of the leaderboard. Models but ``auto``, which chooses by its
calibrated folds, are fitted without calibration: it maps their scores without changing an order,
so it cannot change an AUC, and costs most of the time (``tests/models/test_calibrated_order.py``
checks that for every model). The table has the mean over the sets, its spread over the seeds, and
how far each model is from ``auto``. The defaults were chosen on these sets, with other folds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bagwise.evaluate import BagFolds, cross_validate
from bagwise.models.registry import MODELS, make_model
from experiments._held_out import gather, main, present
from experiments.leaderboard import SETS, load

TITLE = "The default beside every model: mean AUC over all sets"
PAPER = "none: all models under one protocol"
NEEDS = ("bundled", "newsgroups", "mnist")
DEFAULT = "auto"
SEEDS, QUICK_SETS, QUICK_MODELS = (0, 1, 2), ("musk1",), ("statistics", "g-vgpmil")


def without_calibration(name: str) -> Any:
    """A registered model that ranks bags as it does by default, without the cost of calibrating."""
    model = make_model(name, random_state=None)
    return model.set_params(calibrate=False) if "calibrate" in model.get_params() else model


def one_run(model: str, data: str, seed: int) -> dict[str, Any]:
    """Held-out AUC of one model, the mean of five folds of one set."""
    made = load(data)
    folds = cross_validate(
        without_calibration(model), made.bags, np.asarray(made.y), BagFolds(5, (seed,))
    )
    auc = np.mean([fold.bags.metrics(["auc"])["auc"] for fold in folds])
    return {"model": model, "data": data, "seed": seed, "auc": float(auc)}


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """All models on all sets; quick: two beside each other on one set, one seed."""
    sets, absent = present(QUICK_SETS if quick else SETS, load)
    models = QUICK_MODELS if quick else list(MODELS)
    seeds = SEEDS[:1] if quick else SEEDS
    tasks = [(model, data, seed) for seed in seeds for model in models for data in sets]
    runs = gather(one_run, tasks, out, n_jobs)
    runs.to_csv(out / "runs.csv", index=False, float_format="%.5f")
    return pd.DataFrame([*table(runs).to_dict("records"), *absent])


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean over the sets of each model, best first, and its distance from the default."""
    per_seed = runs.pivot_table(index="model", columns="seed", values="auc")
    means = per_seed.mean(axis=1).sort_values(ascending=False)
    wide = runs.pivot_table(index="data", columns="model", values="auc")
    best = wide.idxmax(axis=1).value_counts()
    rows = []
    for model, mean in means.items():
        note = f"best on {best.get(model, 0)} of {wide.shape[0]} sets"
        if DEFAULT in means and model != DEFAULT:
            note += f"; {mean - means[DEFAULT]:+.3f} from {DEFAULT}"
        rows.append(
            {
                "model": model,
                "data": f"{wide.shape[0]} sets",
                "metric": "bag AUC",
                "published": np.nan,
                "mean": mean,
                "spread": per_seed.loc[model].std(ddof=1),
                "n_seeds": per_seed.shape[1],
                "note": note,
            }
        )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(run)
