"""One version of the library beside another: ``python -m experiments.golden [--sets NAME ...]``.

Fits every model of the VGPMIL family with the registry's defaults on the bundled sets, ten folds by
bag of the first repetition of the leaderboard, and adds to ``results/golden/golden.csv`` per fold:
bag AUC, log-loss, instance AUC where it is known, processor seconds of the fit, and the version of
the library. A cell that is there is not fitted again; ``--fresh`` replaces those of this version.
``--take FOLDER --version V`` takes the rows of a stored run of the leaderboard instead, whose
seconds are those of the clock on one thread. ``--compare OLD NEW`` prints, for every model, mean
differences over the sets with their standard errors, and the geometric mean of the time ratios.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score

import bagwise
from bagwise.files.writing import new_file
from bagwise.models.registry import make_model
from experiments import leaderboard
from experiments._held_out import quiet_fits

GOLDEN = Path(__file__).parent / "results" / "golden" / "golden.csv"
MODELS = ("vgpmil", "g-vgpmil", "lm-vgpmil", "auto")
SETS = (*leaderboard.CLASSICAL, "digits")
CELL = ["version", "model", "data", "fold"]
METRICS = ["auc", "log_loss", "instance_auc"]
COLUMNS = [*CELL, *METRICS, "seconds"]


def measure(model: str, data: str, fold: int) -> dict[str, Any]:
    """One fit, and what it predicts for the bags of its fold."""
    bunch, split = leaderboard.load(data), leaderboard.splits(data)[0, fold]
    y = np.unique(bunch.y, return_inverse=True)[1]
    fitted = make_model(model, random_state=0)
    start = time.process_time()
    with quiet_fits():
        fitted.fit(bunch.bags[split.train], y[split.train])
    seconds = time.process_time() - start
    test, p = bunch.bags[split.test], fitted.predict_proba(bunch.bags[split.test])[:, 1]
    row = {"model": model, "data": data, "fold": fold, "seconds": seconds}
    row |= {"auc": roc_auc_score(y[split.test], p), "log_loss": log_loss(y[split.test], p)}
    if test.instance_labels is not None:
        scores = fitted.decision_function_instances(test)
        row["instance_auc"] = roc_auc_score(test.instance_labels, scores)
    return row


def read(path: Path = GOLDEN) -> pd.DataFrame:
    """All rows that were recorded."""
    return (
        pd.read_csv(path, dtype={"version": str})
        if path.exists()
        else pd.DataFrame(columns=COLUMNS)
    )


def store(rows: pd.DataFrame, path: Path = GOLDEN) -> None:
    """Add rows; those of the same cell are replaced."""
    every = pd.concat([read(path), rows]) if path.exists() else rows
    every = every.drop_duplicates(CELL, keep="last").sort_values(CELL, kind="stable")
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as draft:
        every[COLUMNS].to_csv(draft, index=False, float_format="%.6g")


def taken(folder: Path, number: str) -> pd.DataFrame:
    """Rows of the first repetition of a stored run of the leaderboard."""
    rows = leaderboard.Fits(folder).rows.rename(columns={"fit_seconds": "seconds"})
    kept = rows["model"].isin(MODELS) & (rows["repetition"] == 0) & rows["error"].isna()
    return rows[kept].assign(version=number)[COLUMNS]


def record(
    models: tuple[str, ...],
    sets: tuple[str, ...],
    number: str,
    fresh: bool = False,
    n_folds: int = leaderboard.N_FOLDS,
    path: Path = GOLDEN,
) -> None:
    """Fit what has no row of this version yet, fold by fold."""
    rows = read(path)
    done = set() if fresh else set(rows[CELL].itertuples(index=False, name=None))
    for data in sets:
        for model in models:
            for fold in range(n_folds):
                if (number, model, data, fold) not in done:
                    row = pd.DataFrame([measure(model, data, fold)], columns=COLUMNS)
                    store(row.assign(version=number), path)
            print(f"{model} on {data}: done", flush=True)


def compare(rows: pd.DataFrame, old: str, new: str) -> pd.DataFrame:
    """Mean differences over the sets, new less old, and time ratios, new over old."""
    cells = rows.set_index(CELL)
    both = cells.loc[new].join(cells.loc[old].add_suffix(" old"), how="inner")
    table = []
    for model, own in both.groupby("model", sort=False):
        row: dict[str, Any] = {"model": model}
        for metric in METRICS:
            gaps = (own[metric] - own[f"{metric} old"]).groupby("data").mean().dropna()
            row |= {metric: gaps.mean(), f"{metric} ±": gaps.sem(), f"{metric} sets": len(gaps)}
        times = np.log(own["seconds"] / own["seconds old"]).groupby("data").median()
        table.append(row | {"time ratio": np.exp(times.mean())})
    return pd.DataFrame(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="One version of the library beside another.")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=leaderboard.SETS)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--folds", type=int, default=leaderboard.N_FOLDS, help="the first so many")
    parser.add_argument("--take", type=Path, help="folder of a run of the leaderboard")
    parser.add_argument("--version", default=bagwise.__version__, help="that rows are of")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"))
    given = parser.parse_args()
    if given.compare:
        print(compare(read(), *given.compare).round(4).to_string(index=False))
    elif given.take:
        store(taken(given.take, given.version))
    else:
        record(tuple(given.models), tuple(given.sets), given.version, given.fresh, given.folds)


if __name__ == "__main__":
    main()
