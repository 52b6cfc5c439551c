"""Held-out measurement shared by the VGPMIL experiments: folds by bag, rows of the table."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold


def measure(model: Any, train: Any, y_train: Any, test: Any, y_test: Any) -> dict[str, float]:
    """Fit on training bags, measure on the others; instance metrics where the truth is known."""
    with warnings.catch_warnings():
        # A published number of iterations is meant to end before convergence.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(train, y_train)
    score, guess = model.decision_function(test), model.predict(test)
    found = {
        "bag accuracy": accuracy_score(y_test, guess),
        "bag F1": f1_score(y_test, guess),
        "bag AUC": roc_auc_score(y_test, score),
    }
    truth = test.instance_labels
    if truth is not None:
        score, guess = model.decision_function_instances(test), model.predict_instances(test)
        found["instance accuracy"] = accuracy_score(truth, guess)
        found["instance F1"] = f1_score(truth, guess, zero_division=0)
        found["instance AUC"] = roc_auc_score(truth, score)
        found["instance AP"] = average_precision_score(truth, score)
    return found


def folds(y: Any, seeds: Iterable[int], n_splits: int = 5) -> list[tuple[int, Any, Any]]:
    """Seed, training bags and test bags of repeated stratified folds."""
    return [
        (seed, train, test)
        for seed in seeds
        for train, test in StratifiedKFold(n_splits, shuffle=True, random_state=seed).split(y, y)
    ]


def cross_validate(
    make: Callable[[int], Any], bags: Any, y: Any, seeds: Iterable[int], n_jobs: int = 1
) -> pd.DataFrame:
    """Metrics of every seed, each the mean of its five folds; ``make(seed)`` builds the model."""
    parts = folds(y, seeds)
    found = Parallel(n_jobs)(
        delayed(measure)(make(seed), bags[a], y[a], bags[b], y[b]) for seed, a, b in parts
    )
    frame = pd.DataFrame(found).assign(seed=[seed for seed, _, _ in parts])
    return frame.groupby("seed").mean()


def rows(
    model: str, data: str, per_seed: pd.DataFrame, published: dict[str, float], note: str = ""
) -> list[dict[str, Any]]:
    """Rows of the results table, one for each metric with a published value or all without."""
    metrics = list(published) or list(per_seed.columns)
    return [
        {
            "model": model,
            "data": data,
            "metric": metric,
            "published": published.get(metric, np.nan),
            "mean": per_seed[metric].mean(),
            "spread": per_seed[metric].std(ddof=1) if len(per_seed) > 1 else np.nan,
            "n_seeds": len(per_seed),
            "note": note,
        }
        for metric in metrics
    ]


def main(run: Callable[..., pd.DataFrame]) -> None:
    """Command line of one experiment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("reproduction"))
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = run(arguments.quick, arguments.out, arguments.jobs)
    print(table.round(3).to_string(index=False))
