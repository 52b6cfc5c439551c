"""AutoVGPMIL, fixed settings and MI-SVM, held out: ``python -m experiments.auto [--quick]``.

Five stratified folds of bags, several fold seeds; scaling, choice and calibration happen inside
the training bags of each fold. Every model sees the same folds. AUC is averaged over folds;
log-loss and expected calibration error (``ece``, ten bins) are of all held-out probabilities of a
seed. A hundred bags in ten bins leave an error even to a perfectly calibrated model: ``ece, if
calibrated`` is what is expected where labels are drawn from the probabilities themselves, and
``ece, all seeds`` pools the held-out probabilities of every seed first. Held-out
predictions are kept as ``auto_<data>_<seed>_<fold>.csv`` in the output folder, so a run that was
stopped goes on where it was.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from bagwise import MISVM, VGPMIL, AutoVGPMIL, datasets
from bagwise.evaluate import expected_calibration_error
from bagwise.models.variational import Or, SoftMax
from experiments._held_out import importable, present

TITLE = "AutoVGPMIL: one estimator, no tuning"
PAPER = "none: this library's own model"
NEEDS = ("bundled", "newsgroups")
BENCHMARKS = ("musk1", "musk2", "elephant", "tiger", "fox")
TEXT = ("rec_sport_hockey", "sci_med")
SEEDS = (0, 1, 2)
N_FOLDS = 5
# Settings a user might have fixed beforehand.
FIXED: dict[str, dict[str, Any]] = {
    "soft maximum, feature": {},
    "soft maximum, global": {"scale": "global"},
    "mean, feature": {"likelihood": SoftMax(0.0)},
    "mean, global": {"likelihood": SoftMax(0.0), "scale": "global"},
    "or, feature": {"likelihood": Or()},
    "or, global": {"likelihood": Or(), "scale": "global"},
}


def load(name: str) -> Any:
    if name in TEXT:
        return datasets.fetch_newsgroups(name, return_X_y=True)
    return getattr(datasets, f"load_{name}")(return_X_y=True)


def make_models() -> dict[str, Any]:
    """Unfitted models by name."""
    models: dict[str, Any] = {"AutoVGPMIL": AutoVGPMIL(random_state=0)}
    models |= {name: VGPMIL(random_state=0, **settings) for name, settings in FIXED.items()}
    models["MI-SVM, Platt"] = MISVM()
    return models


def one_fold(
    data: str, seed: int, fold: int, out: Path, names: tuple[str, ...] = ()
) -> pd.DataFrame:
    """Held-out predictions of the named models, or of all, on one fold of one seed."""
    path = out / f"auto_{data}_{seed}_{fold}.csv"
    if path.exists():
        return pd.read_csv(path)
    bags, y = load(data)
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed)
    train, test = list(folds.split(y, y))[fold]
    frames = []
    for name, model in make_models().items():
        if names and name not in names:
            continue
        model.fit(bags[train], y[train])
        predictions = {
            "model": name,
            "data": data,
            "seed": seed,
            "fold": fold,
            "bag": test,
            "y": y[test],
            "score": model.decision_function(bags[test]),
            "p": model.predict_proba(bags[test])[:, 1],
        }
        frames.append(pd.DataFrame(predictions))
    frame = pd.concat(frames, ignore_index=True)
    out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False)
    return frame


def expected_ece(p: Any, n_draws: int = 200) -> float:
    """The mean calibration error of a model whose probabilities ``p`` are right."""
    y = np.random.default_rng(0).random((n_draws, len(p))) < p
    return float(np.mean([expected_calibration_error(draw, p) for draw in y]))


def measure(found: pd.DataFrame) -> list[dict[str, Any]]:
    """One row per metric and seed, from the held-out predictions of one model on one data set."""
    rows: list[dict[str, Any]] = []
    for seed, part in found.groupby("seed"):
        aucs = [roc_auc_score(fold["y"], fold["score"]) for _, fold in part.groupby("fold")]
        values = {
            "auc": np.mean(aucs),
            "accuracy": accuracy_score(part["y"], part["p"] > 0.5),
            "log-loss": log_loss(part["y"], part["p"]),
            "ece": expected_calibration_error(part["y"], part["p"]),
            "ece, if calibrated": expected_ece(part["p"].to_numpy()),
        }
        rows += [{"seed": seed, "metric": name, "value": value} for name, value in values.items()]
    pooled = expected_calibration_error(found["y"], found["p"])
    return [*rows, {"seed": -1, "metric": "ece, all seeds", "value": pooled}]


def plot(table: pd.DataFrame, path: Path) -> None:
    """Held-out AUC per data set: fixed settings in grey, AutoVGPMIL on top."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    auc = table[table["metric"] == "auc"].pivot_table(index="data", columns="model", values="mean")
    auc = auc.loc[[d for d in (*BENCHMARKS, *TEXT) if d in auc.index]]
    x = np.arange(len(auc))
    for name in (name for name in FIXED if name in auc.columns):
        axes.plot(
            x,
            auc[name],
            "o",
            color="0.6",
            label="fixed settings" if name in list(FIXED)[:1] else None,
        )
    axes.plot(x, auc["MI-SVM, Platt"], "x", color="tab:orange", label="MI-SVM")
    axes.plot(x, auc["AutoVGPMIL"], "D", color="tab:blue", label="AutoVGPMIL")
    axes.set_xticks(x, auc.index)
    axes.set_ylabel("held-out AUC")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def run(
    quick: bool,
    out: Path,
    n_jobs: int = 1,
    data: tuple[str, ...] = (),
    models: tuple[str, ...] = (),
) -> pd.DataFrame:
    """Measure; quick is one seed of MUSK1. ``models`` limits it to some."""
    sets, absent = present(data or (("musk1",) if quick else (*BENCHMARKS, *TEXT)), load)
    seeds = SEEDS[:1] if quick else SEEDS
    # The largest sets first, so that no worker is left with one at the end.
    order = sorted(sets, key=lambda name: name not in ("musk2", *TEXT))
    jobs = [(name, seed, fold) for name in order for seed in seeds for fold in range(N_FOLDS)]
    frames = Parallel(n_jobs=n_jobs)(delayed(one_fold)(*job, out, models) for job in jobs)
    rows = pd.DataFrame(
        [
            {"model": model, "data": name, **row}
            for (name, model), found in pd.concat(frames).groupby(["data", "model"], sort=False)
            for row in measure(found)
        ]
    )
    table = (
        rows.groupby(["model", "data", "metric"], sort=False)["value"]
        .agg(mean="mean", spread=lambda v: float(np.std(v)), n_seeds="size")
        .reset_index()
    )
    table["published"] = np.nan
    table["note"] = "5 folds by bag; candidates were chosen on other folds of the same bags"
    plot(table, out / "auto.png")
    columns = ["model", "data", "metric", "published", "mean", "spread", "n_seeds", "note"]
    return pd.DataFrame([*table[columns].to_dict("records"), *absent])


def main() -> None:
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/experiments"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--data", nargs="*", default=())
    parser.add_argument("--models", nargs="*", default=(), choices=list(make_models()))
    given = parser.parse_args()
    table = importable(run)(
        given.quick, given.out, given.jobs, tuple(given.data), tuple(given.models)
    )
    wide = table.pivot_table(index=["metric", "model"], columns="data", values="mean", sort=False)
    five = [name for name in BENCHMARKS if name in wide.columns]
    wide["mean of benchmarks"] = wide[five].mean(axis=1)
    print(wide.round(3).to_string())


if __name__ == "__main__":
    main()
