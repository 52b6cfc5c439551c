"""Is the marginal posterior worth its time? ``python -m experiments.posterior_choice [--jobs N]``.

`VGPMIL` with the factorised and with the marginal posterior, under the papers' noisy-max and under
the exact or, two folds by bag, on MUSK1, Elephant, digits and a newsgroup.
Held-out log-loss and AUC of the bags, AUC of the instances where their labels are known, and the
processor time of a fit over that of the default's (both on one core, the same folds).

To become the default, the marginal posterior would have to be better at no more than half again the
time.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from bagwise import VGPMIL, datasets
from experiments._held_out import main

TITLE = "Factorised and marginal posterior: held-out quality and time"
PAPER = "none: the posterior of this library"
NEEDS = ("bundled", "newsgroups")
SETS = ("musk1", "elephant", "digits", "sci_med")
DESIGNS = {
    "noisy-max, factorised": {},
    "noisy-max, marginal": {"posterior": "marginal"},
    "or, factorised": {"likelihood": "or"},
    "or, marginal": {"likelihood": "or", "posterior": "marginal"},
}


def load(name: str) -> Any:
    """A set by name."""
    if name in datasets.NEWSGROUPS:
        return datasets.fetch_newsgroups(name)
    return datasets.load_digit_bags() if name == "digits" else getattr(datasets, f"load_{name}")()


def one_fold(data: str, seed: int, fold: int, n_folds: int) -> list[dict[str, Any]]:
    """All designs on one fold, one after the other, so that their times compare."""
    bunch = load(data)
    bags, y = bunch.bags, bunch.y
    splits = StratifiedKFold(n_folds, shuffle=True, random_state=seed).split(y, y)
    train, test = list(splits)[fold]
    rows = []
    for name, design in DESIGNS.items():
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = VGPMIL(random_state=seed, **design).fit(bags[train], y[train])
        seconds = time.process_time() - begin
        p = model.predict_proba(bags[test])[:, 1]
        row = {"model": name, "data": data, "seed": seed, "fold": fold, "seconds": seconds}
        row |= {"log loss": log_loss(y[test], p), "AUC": roc_auc_score(y[test], p)}
        truth = bags[test].instance_labels
        row["instance AUC"] = np.nan
        if truth is not None:
            row["instance AUC"] = roc_auc_score(
                truth, model.decision_function_instances(bags[test])
            )
        rows.append(row)
    return rows


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Two folds, one seed; quick: one fold of two of MUSK1."""
    sets, seeds, n_folds = (("musk1",), (0,), 2) if quick else (SETS, (0,), 2)
    folds = range(1) if quick else range(n_folds)
    tasks = [(d, s, f, n_folds) for s in seeds for d in sets for f in folds]
    parts = Parallel(n_jobs=n_jobs)(delayed(one_fold)(*task) for task in tasks)
    fits = pd.DataFrame([row for part in parts for row in part])
    fits.to_csv(out / "fits.csv", index=False)
    base = fits[fits["model"] == next(iter(DESIGNS))].groupby("data")["seconds"].mean()
    rows = []
    for (model, data), own in fits.groupby(["model", "data"], sort=False):
        per_seed = own.groupby("seed").mean(numeric_only=True)
        per_seed["time ratio"] = per_seed["seconds"] / base[data]
        for metric in ("log loss", "AUC", "instance AUC", "time ratio"):
            values = per_seed[metric].dropna()
            if len(values) == 0:
                continue
            row = {"model": model, "data": data, "metric": metric, "published": np.nan}
            spread = values.std(ddof=1) if len(values) > 1 else np.nan
            row |= {"mean": values.mean(), "spread": spread, "n_seeds": len(values), "note": ""}
            rows.append(row)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(run)
