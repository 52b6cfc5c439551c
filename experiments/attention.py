"""Attention networks on the folds of ``auto``, and who ranks the instances of digit bags.

The networks (``bagwise.deep``, library defaults, features standardised inside the fold, early
stopping on a part of the training bags) see the same five stratified folds by bag and the same
fold seeds as ``experiments/auto.py``, so the two tables can be read side by side. *Five attention
networks* is the mean probability of five networks that differ in their random start alone. Bags of
8 x 8 digits come with the truth about every digit: there each model also ranks the instances of
all held-out bags of a fold, an attention network by its attention weights.

All models run with this library's defaults. Those of the Gaussian processes were chosen on other
folds of the same bags; the networks' were not chosen on these sets at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from bagwise import MISVM, VGPMIL, AutoVGPMIL, InstanceTransformer, datasets, make_pipeline
from bagwise.deep import DSMIL, AttentionMIL
from experiments import _held_out, auto

TITLE = "Attention networks on the same folds, and who ranks instances"
PAPER = "Ilse, Tomczak, Welling (ICML 2018), Table 1"
NEEDS = ("bundled",)
DIGITS = "digits"
N_NETWORKS = 5

# Accuracy of gated attention in Ilse et al., ten folds, five repetitions.
PUBLISHED = {"musk1": 0.900, "musk2": 0.863, "fox": 0.603, "tiger": 0.845, "elephant": 0.857}


def network(cls: Any, seed: int) -> Any:
    """A network with its defaults on features standardised inside the fold."""
    return make_pipeline(InstanceTransformer(StandardScaler()), cls(random_state=seed))


def predictions(model: Any, test: Any) -> dict[str, NDArray[np.float64]]:
    """Bag probabilities and, where the truth is known, instance scores of a fitted model."""
    values = {"p": model.predict_proba(test)[:, 1]}
    if test.instance_labels is None:
        return values
    if hasattr(model, "decision_function_instances"):
        values["instances"] = model.decision_function_instances(test)
    elif isinstance(model[-1], AttentionMIL):
        values["instances"] = model[-1].attention_weights(model[:-1].transform(test))
    return values


def one_fold(data: str, seed: int, fold: int) -> list[pd.DataFrame]:
    """Held-out predictions of every model on one fold."""
    load = getattr(datasets, "load_digit_bags" if data == DIGITS else f"load_{data}")
    bags, y = load(return_X_y=True)
    splitter = StratifiedKFold(5, shuffle=True, random_state=seed)
    train, test = list(splitter.split(y, y))[fold]
    models = {f"network {i}": network(AttentionMIL, i) for i in range(N_NETWORKS)}
    models["DSMIL"] = network(DSMIL, 0)
    if data == DIGITS:
        models |= {"AutoVGPMIL": AutoVGPMIL(random_state=0), "VGPMIL": VGPMIL(random_state=0)}
        models["MI-SVM, Platt"] = MISVM()
    values = {
        name: predictions(model.fit(bags[train], y[train]), bags[test])
        for name, model in models.items()
    }
    networks = [values.pop(f"network {i}") for i in range(N_NETWORKS)]
    values["attention network"] = networks[0]
    values["five attention networks"] = {
        key: np.mean([one[key] for one in networks], axis=0) for key in networks[0]
    }
    frames = []
    for name, value in values.items():
        about = {"model": name, "data": data, "seed": seed, "fold": fold}
        frame = pd.DataFrame({**about, "y": y[test], "score": value["p"], "p": value["p"]})
        if "instances" in value:
            truth = np.asarray(bags[test].instance_labels)
            frame["instance_auc"] = roc_auc_score(truth, value["instances"])
        frames.append(frame)
    return frames


def table_rows(predicted: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of the table: mean and standard deviation over seeds of every metric."""
    rows = []
    for (data, model), part in predicted.groupby(["data", "model"], sort=False):
        measured = pd.DataFrame(auto.measure(part))
        per_seed = measured[measured["seed"] >= 0].pivot_table(
            index="seed", columns="metric", values="value", sort=False
        )[["auc", "accuracy", "log-loss", "ece"]]
        if "instance_auc" in part and part["instance_auc"].notna().all():
            per_fold = part.drop_duplicates(["seed", "fold"])
            per_seed["instance auc"] = per_fold.groupby("seed")["instance_auc"].mean()
        measures = _held_out.rows(str(model), str(data), per_seed, {}, "5 folds by bag, defaults")
        for row in measures:
            if model == "attention network" and row["metric"] == "accuracy" and data in PUBLISHED:
                row["published"] = PUBLISHED[str(data)]
                row["note"] += "; published: gated attention, ten folds"
        rows += measures
    return rows


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Measure; quick is two folds of one seed of MUSK1."""
    sets = ("musk1",) if quick else (*auto.BENCHMARKS, DIGITS)
    seeds = auto.SEEDS[:1] if quick else auto.SEEDS
    jobs = [(d, s, f) for d in sets for s in seeds for f in range(2 if quick else 5)]
    frames = Parallel(n_jobs=n_jobs)(delayed(one_fold)(*job) for job in jobs)
    return pd.DataFrame(table_rows(pd.concat([f for part in frames for f in part])))


if __name__ == "__main__":
    _held_out.main(run)
