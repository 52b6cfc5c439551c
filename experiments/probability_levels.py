"""Are probabilities right on average? ``python -m experiments.probability_levels [--jobs N]``.

Every registered model with probabilities, five folds by bag (three seeds; ten for the VGPMIL
family, one for the models that take longest), on MUSK1, Elephant and digits, and on a version of
each in which one bag in ten is positive (all negative bags, and positive ones drawn by the seed).
Per model and set:

- ``level``: mean held-out probability less the share of positive bags; within 0.03,
- ``log loss``, ``AUC``: of the held-out bags; the constant base rate has the log-loss ``base``,
- ``distinct``: share of distinct probabilities among the held-out bags of a fold; a model whose
  scores differ must not answer with a constant.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from bagwise.models.registry import make_model
from experiments import permuted_labels
from experiments._held_out import gather, main, quiet_fits, table_row

TITLE = "Mean held-out probability of every model, common and rare positives"
PAPER = "none: the calibration of this library"
NEEDS = ("bundled",)
SETS = ("musk1", "elephant", "digits")
RARE = ", one in ten positive"
QUICK_MODELS = ("single-instance", "mio", "misvm")
N_SEEDS = {
    # Models that take longest.
    **dict.fromkeys(("micrf", "dd-svm", "mi-forest"), 1),
    # With three seeds the mean of a dozen positive bags is known to about 0.01, a third of what
    # it may be off.
    **dict.fromkeys(("vgpmil", "lm-vgpmil", "g-vgpmil"), 10),
}


@functools.cache
def load(name: str, seed: int) -> tuple[Any, Any]:
    """Bags and labels of a set, or of its version with few positive bags."""
    bags, y = permuted_labels.load(name.removesuffix(RARE))
    if not name.endswith(RARE):
        return bags, y
    negative, positive = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
    some = np.random.default_rng(seed).permutation(positive)[: round(len(negative) / 9)]
    chosen = np.sort(np.concatenate([negative, some]))
    return bags[chosen], y[chosen]


def one_run(model_name: str, data: str, seed: int) -> dict[str, Any]:
    """Held-out probabilities of one model on five folds of one set."""
    bags, y = load(data, seed)
    n_folds = min(5, int(y.sum()))
    p, distinct = np.empty(len(y)), []
    for train, test in StratifiedKFold(n_folds, shuffle=True, random_state=seed).split(y, y):
        model = make_model(model_name, random_state=seed)
        with quiet_fits():
            model.fit(bags[train], y[train])
        p[test] = model.predict_proba(bags[test])[:, 1]
        distinct.append(len(np.unique(p[test])) / len(test))
    share = y.mean()
    return {
        "model": model_name,
        "data": data,
        "seed": seed,
        "level": float(p.mean() - share),
        "log loss": log_loss(y, p, labels=[0, 1]),
        "base": log_loss(y, np.full(len(y), share)),
        "AUC": roc_auc_score(y, p),
        "distinct": float(np.mean(distinct)),
    }


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """All models, three seeds unless `N_SEEDS` has others; quick: three models, one set, one."""
    models = QUICK_MODELS if quick else permuted_labels.names()
    sets = ("musk1" + RARE,) if quick else (*SETS, *(name + RARE for name in SETS))
    seeds = {model: 1 if quick else N_SEEDS.get(model, 3) for model in models}
    tasks = [
        (m, d, k) for k in range(max(seeds.values())) for d in sets for m in models if k < seeds[m]
    ]
    runs = gather(one_run, tasks, out, n_jobs)
    runs.to_csv(out / "runs.csv", index=False)
    return table(runs)


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds, with what they must be."""
    rows = []
    for (model, data), own in runs.groupby(["model", "data"], sort=False):
        base = own["base"].mean()
        notes = {
            "level": "" if abs(own["level"].mean()) <= 0.03 else "outside",
            "log loss": f"a constant has {base:.3f}",
            "AUC": "",
            "distinct": "" if own["distinct"].min() > 1 / 3 else "few values",
        }
        for metric, note in notes.items():
            rows.append(table_row(model, data, metric, own[metric], note=note))
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(run)
