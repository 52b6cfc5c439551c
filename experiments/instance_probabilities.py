"""Instances in their own right: ``python -m experiments.instance_probabilities [--jobs N]``.

Bags whose instance labels are known and never shown: digits (nine, six, three), made bags of
twenty with 1, 3 and 10 positives, and six newsgroups; 70 % of the bags are fitted to, the
instances of the others are predicted. Two questions are asked of an instance: is it one of those
that made its bag positive (*share*), and would a bag of this instance alone be positive (*alone*)?
Per model and set:

- ``AUC, share`` and ``AUC, alone``; the same within positive bags, where the probability of the bag
  cannot help,
- ``log-loss, share`` and ``log-loss, alone``, beside those of the probability of the bag, copied to
  its instances, and of the constant true rate,
- ``std by p(1-p)``: rank correlation of the standard deviation with p (1 - p), question *share*. At
  1 the deviation says nothing that the probability has not said.

The rows of "12 sets" are means over all sets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedShuffleSplit

from bagwise import GVGPMIL, VGPMIL, AutoVGPMIL, datasets
from experiments._held_out import gather, main, quiet_fits, rows

TITLE = "Instance probabilities from bag labels, against known instance labels"
PAPER = "none: the instances of this library's models"
NEEDS = ("bundled", "synthetic", "newsgroups")
NEWSGROUPS = (
    *("sci_med", "rec_sport_hockey", "alt_atheism"),
    *("comp_graphics", "misc_forsale", "talk_politics_guns"),
)
SETS = ("digits 9", "digits 6", "digits 3", "made 1", "made 3", "made 10", *NEWSGROUPS)
MODELS: dict[str, Any] = {
    "VGPMIL": VGPMIL,
    "GVGPMIL": GVGPMIL,
    "AutoVGPMIL": AutoVGPMIL,
}
QUESTIONS: tuple[Literal["share", "alone"], ...] = ("share", "alone")


def load(name: str, seed: int) -> tuple[Any, Any, Any]:
    """Bags, their labels, and the labels of their instances."""
    kind, _, number = name.partition(" ")
    if kind == "digits":
        data = datasets.load_digit_bags(positive=(int(number),), random_state=seed)
        return data.bags, data.y, data.instance_labels
    if kind == "made":
        n = int(number)
        data = datasets.make_gaussian_bags(
            120, 5, bag_size=(20, 20), n_positive=(n, n), separation=3.0, random_state=seed
        )
        return data.bags, data.y, data.instance_labels
    data = datasets.fetch_newsgroups(name)
    return data.bags, data.y, data.bags.instance_labels


def auc_inside(truth: Any, p: Any, inside: Any) -> float:
    """AUC of the instances of positive bags; NaN where they are all alike."""
    if truth[inside].min() == truth[inside].max():
        return np.nan
    return float(roc_auc_score(truth[inside], p[inside]))


def one_fit(model_name: str, data: str, seed: int) -> dict[str, Any]:
    """One model on one split of one set."""
    bags, y, truth = load(data, seed)
    ((train, test),) = StratifiedShuffleSplit(1, test_size=0.3, random_state=seed).split(y, y)
    train, test = np.sort(train), np.sort(test)
    model = MODELS[model_name](random_state=seed)
    with quiet_fits():
        model.fit(bags[train], y[train])
    unseen = np.isin(bags.bag_index, test)
    truth = np.asarray(truth)[unseen]
    inside = np.repeat(y[test], bags.sizes[test]) == 1
    copied = np.repeat(model.predict_proba(bags[test])[:, 1], bags.sizes[test])
    row: dict[str, Any] = {"model": model_name, "data": data, "seed": seed}
    for question in QUESTIONS:
        p = model.predict_proba_instances(bags[test], question=question)[:, 1]
        row[f"AUC, {question}"] = roc_auc_score(truth, p)
        row[f"AUC in positive bags, {question}"] = auc_inside(truth, p, inside)
        row[f"log-loss, {question}"] = log_loss(truth, p)
    p, std = model.predict_proba_instances(bags[test], return_std=True, question="share")
    return row | {
        "AUC, copied bag": roc_auc_score(truth, copied),
        "log-loss, copied bag": log_loss(truth, copied),
        "log-loss, constant": log_loss(truth, np.full(len(truth), truth.mean())),
        "std by p(1-p)": float(spearmanr(std, p[:, 1] * p[:, 0])[0]),
    }


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """All models and sets, ten seeds; quick: one model, one made set, one seed."""
    models = ("GVGPMIL",) if quick else tuple(MODELS)
    sets, seeds = (("made 3",), range(1)) if quick else (SETS, range(10))
    # The large sets last, so that a run that is stopped has all seeds of the others.
    tasks = [
        (m, d, s)
        for large in (False, True)
        for s in seeds
        for d in sets
        for m in models
        if (d in NEWSGROUPS) == large
    ]
    fits = gather(one_fit, tasks, out, n_jobs)
    fits.to_csv(out / "fits.csv", index=False)
    return table(fits)


def table(fits: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds, of every set and of all."""
    n_sets = len(fits["data"].unique())
    if n_sets > 1:
        means = fits.groupby(["model", "seed"], sort=False).mean(numeric_only=True).reset_index()
        fits = pd.concat([fits, means.assign(data=f"{n_sets} sets")])
    table: list[dict[str, Any]] = []
    for (model, data), own in fits.groupby(["model", "data"], sort=False):
        table += rows(str(model), str(data), own.drop(columns=["model", "data", "seed"]), {})
    return pd.DataFrame(table)


if __name__ == "__main__":
    main(run)
