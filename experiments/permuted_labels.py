"""Labels without meaning: ``python -m experiments.permuted_labels [--quick] [--jobs N]``.

The labels of the bags of MUSK1, Fox, Elephant and digits are permuted twenty times, and every
registered model with probabilities is fitted to three quarters of the bags. There is nothing to
learn: a calibrated model predicts about the base rate for the others, a log-loss of 0.693. Per
model and set:

- ``log loss``: mean over the permutations of the log-loss on the bags not fitted to; at most 0.70,
- ``level``: mean probability less the share of positives among the training bags; within 0.02,
- ``held-out AUC``: of the scores that the calibration was fitted to, where a model keeps them,
  which must not know the labels: 0.5 within 0.02. One permutation of MUSK1 has a standard deviation
  of 0.085, so that twenty may miss this by chance; the note then says by how many standard errors.
  `MANY` further permutations settle it where they did (``held-out AUC, many permutations``).

The table is of permutations 0 to 19.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedShuffleSplit

from bagwise import datasets
from bagwise.models.registry import MODELS, make_model
from experiments._held_out import gather, main, quiet_fits

TITLE = "Permuted labels: what models say where there is nothing to learn"
PAPER = "none: the calibration of this library"
NEEDS = ("bundled",)
SETS = ("musk1", "fox", "elephant", "digits")
QUICK_MODELS = ("single-instance", "vgpmil")
# Further permutations, numbered from 1000 on, of the models that keep their held-out scores.
MANY = {
    ("vgpmil", "musk1"): 200,
    ("vgpmil", "elephant"): 100,
    **dict.fromkeys([("g-vgpmil", name) for name in ("musk1", "elephant", "digits")], 100),
    **dict.fromkeys([("lm-vgpmil", "musk1"), ("lm-vgpmil", "elephant")], 100),
    **dict.fromkeys([("auto", "elephant"), ("auto", "digits")], 80),
}


@functools.cache
def load(name: str) -> Any:
    """Bags and labels of a set."""
    if name == "digits":
        return datasets.load_digit_bags(return_X_y=True)
    return getattr(datasets, f"load_{name}")(return_X_y=True)


def one_fit(model_name: str, data: str, permutation: int) -> dict[str, Any]:
    """One model on one permutation of the labels of one set."""
    bags, y = load(data)
    y = np.random.default_rng(permutation).permutation(y)
    splitter = StratifiedShuffleSplit(1, test_size=1 / 4, random_state=permutation)
    ((train, test),) = splitter.split(y, y)
    row: dict[str, Any] = {"model": model_name, "data": data, "permutation": permutation}
    model = make_model(model_name, random_state=permutation)
    with quiet_fits():
        model.fit(bags[train], y[train])
    p = model.predict_proba(bags[test])[:, 1]
    held_out = getattr(model, "held_out_decision_", None)
    row["log loss"] = log_loss(y[test], p, labels=[0, 1])
    row["level"] = float(p.mean() - y[train].mean())
    row["held-out AUC"] = np.nan
    if held_out is not None and len(held_out) == len(train):
        kept = np.isfinite(held_out)
        row["held-out AUC"] = roc_auc_score(y[train][kept], held_out[kept])
    return row


def names() -> list[str]:
    """The registered models with probabilities."""
    return [name for name in MODELS if hasattr(make_model(name), "predict_proba")]


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Twenty permutations of four sets, all models; quick: two of MUSK1, two models."""
    models, sets, n = (QUICK_MODELS, SETS[:1], 2) if quick else (names(), SETS, 20)
    tasks = [(m, d, k) for k in range(n) for d in sets for m in models]
    many = [] if quick else [(m, d, 1000 + k) for (m, d), n in MANY.items() for k in range(n)]
    fits = gather(one_fit, tasks + many, out, n_jobs)
    fits.to_csv(out / "fits.csv", index=False)
    few, rest = fits[: len(tasks)], fits[len(tasks) :]
    plot(few, out)
    return table(few) if quick else pd.concat([table(few), table_of_many(rest)], ignore_index=True)


def table_of_many(fits: pd.DataFrame) -> pd.DataFrame:
    """The scores that calibrations were fitted to, over many permutations."""
    rows = []
    for (model, data), own in fits.groupby(["model", "data"], sort=False):
        values = own["held-out AUC"]
        fine = abs(values.mean() - 0.5) <= 0.02
        rows.append(_row(model, data, "held-out AUC, many permutations", values, fine))
    return pd.DataFrame(rows)


def plot(fits: pd.DataFrame, out: Path) -> None:
    """Mean log-loss of every model on every set, beside that of a coin."""
    import matplotlib.pyplot as plt

    means = fits.pivot_table("log loss", "model", "data", sort=False)
    figure, axis = plt.subplots(figsize=(7, 1 + 0.22 * len(means)), layout="constrained")
    axis.axvline(np.log(2), color="0.7", linewidth=1)
    axis.axvline(0.70, color="0.7", linewidth=1, linestyle="--")
    for data in means:
        axis.plot(means[data], np.arange(len(means)), "o", alpha=0.6, markersize=4, label=data)
    axis.set_yticks(range(len(means)), list(means.index))
    axis.invert_yaxis()
    axis.set(xlabel="held-out log-loss with permuted labels; 0.693 is a coin, dashed 0.70")
    axis.legend()
    figure.savefig(out / "permuted_labels.png", dpi=120)
    plt.close(figure)


def table(fits: pd.DataFrame) -> pd.DataFrame:
    """Means over the permutations, with what they must be."""
    rows = []
    for (model, data), own in fits.groupby(["model", "data"], sort=False):
        for metric, fine in (
            ("log loss", lambda mean: mean <= 0.70),
            ("level", lambda mean: abs(mean) <= 0.02),
            ("held-out AUC", lambda mean: abs(mean - 0.5) <= 0.02),
        ):
            values = own[metric].dropna()
            if len(values) == 0:
                continue
            rows.append(_row(model, data, metric, values, fine(values.mean())))
    return pd.DataFrame(rows)


def _row(model: str, data: str, metric: str, values: pd.Series, fine: bool) -> dict[str, Any]:
    note = "" if fine else "outside"
    if metric.startswith("held-out AUC") and not fine and len(values) > 1:
        errors = abs(values.mean() - 0.5) / (values.std(ddof=1) / np.sqrt(len(values)))
        note = f"outside, {errors:.1f} standard errors"
    spread = values.std(ddof=1) if len(values) > 1 else np.nan
    row = {"model": model, "data": data, "metric": metric, "published": np.nan}
    return row | {"mean": values.mean(), "spread": spread, "n_seeds": len(values), "note": note}


if __name__ == "__main__":
    main(run)
