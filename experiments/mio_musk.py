"""MIO's Table 1 and Figure 3: MIO and MILES on MUSK1 and MUSK2, ``python -m experiments.mio_musk``.

Ten folds drawn at random, as the paper does, on raw features: fifteen runs with settings fixed
beforehand (there also with stratified folds, which move a figure by a point), and five runs with
settings chosen by cross-validation inside each training fold. A seed draws the folds and the order
in which MIO sees the bags. MIO and MILES run on the same folds: the paired rows are differences of
the fifteen runs with the paper's paired t-test, whose runs share bags and are not independent.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from scipy.stats import ttest_rel
from sklearn.base import clone
from sklearn.model_selection import KFold, StratifiedKFold

from bagwise import MILES, MIO, datasets
from bagwise.models.embedded import search_grid
from experiments._held_out import table_row

TITLE = "MIO and MILES on the musk sets"
PAPER = "MIO, Table 1 and Figure 3"
NEEDS = ("bundled",)
LOADERS = {"musk1": datasets.load_musk1, "musk2": datasets.load_musk2}
PUBLISHED = {
    ("MIO", "musk1"): 0.883,
    ("MIO", "musk2"): 0.877,
    ("MILES", "musk1"): 0.855,
    ("MILES", "musk2"): 0.871,
}


# As published: raw features, and labels rather than probabilities.
_RAW: dict[str, Any] = {"scale": None, "calibrate": False}


def _mio(sigma2: float, alpha: float, beta: float, bias: float, **more: Any) -> MIO:
    return MIO(sigma=np.sqrt(sigma2), alpha=alpha, beta=beta, bias=bias, **{**_RAW, **more})


FIXED = {
    ("MIO", "musk1"): _mio(5e5, 0.1, 1, 1),
    ("MIO", "musk2"): _mio(3e5, 0.1, 1, 2),
    ("MIO, refine", "musk1"): _mio(2e5, 0.03, 3, 1, passes="refine"),
    ("MIO, refine", "musk2"): _mio(2e5, 0.03, 3, 1, passes="refine"),
    ("MILES", "musk1"): MILES(sigma=np.sqrt(5e5), alpha=0.45, **_RAW),
    ("MILES", "musk2"): MILES(sigma=np.sqrt(5e5), alpha=0.45, **_RAW),
    ("MILES, liblinear", "musk1"): MILES(
        sigma=np.sqrt(5e5), alpha=0.45, solver="liblinear", **_RAW
    ),
    ("MILES, liblinear", "musk2"): MILES(
        sigma=np.sqrt(5e5), alpha=0.45, solver="liblinear", **_RAW
    ),
}
WIDTHS = [float(np.sqrt(s2)) for s2 in (1e5, 2e5, 5e5, 1e6)]
# The linear program takes a second on MUSK2, so MILES is chosen and fitted by liblinear there.
GRIDS: dict[str, Any] = {
    "MIO": {"sigma": WIDTHS, "alpha": [0.03, 0.1], "beta": [1.0, 3.0]},
    "MILES, liblinear": {"sigma": WIDTHS, "alpha": [0.2, 0.45, 1.0]},
}


def _seeded(model: Any, seed: int) -> Any:
    model = clone(model)
    return model.set_params(random_state=seed) if isinstance(model, MIO) else model


def accuracy(model: Any, data: str, seed: int, folds: Any = KFold) -> float:
    """Held-out accuracy over ten folds with the model's own settings."""
    bags, y = LOADERS[data](return_X_y=True)
    splits = folds(10, shuffle=True, random_state=seed)
    return float(search_grid(_seeded(model, seed), bags, y, {}, splits).accuracy.mean())


def nested_accuracy(model: Any, data: str, seed: int, grid: Any) -> float:
    """The same with the grid's best setting of an inner cross-validation in each fold."""
    bags, y = LOADERS[data](return_X_y=True)
    model = _seeded(model, seed)
    inner = StratifiedKFold(5, shuffle=True, random_state=seed)
    scores = []
    for train, test in KFold(10, shuffle=True, random_state=seed).split(y):
        best = search_grid(model, bags[train], y[train], grid, inner).best_params
        fitted = clone(model).set_params(**best).fit(bags[train], y[train])
        scores.append(fitted.score(bags[test], y[test]))
    return float(np.mean(scores))


def accuracy_by_passes(data: str, seeds: range, passes: list[int], n_jobs: int) -> pd.DataFrame:
    """Figure 3: accuracy and time of a fit against the number of passes."""
    rows = []
    bags, y = LOADERS[data](return_X_y=True)
    for n in passes:
        model = clone(FIXED["MIO", data]).set_params(n_passes=n)
        values = Parallel(n_jobs=n_jobs)(delayed(accuracy)(model, data, seed) for seed in seeds)
        start = time.perf_counter()
        model.fit(bags, y)
        rows.append((data, n, np.mean(values), np.std(values), time.perf_counter() - start))
    return pd.DataFrame(rows, columns=["data", "passes", "mean", "spread", "seconds"])


def plot_passes(curves: pd.DataFrame, table: pd.DataFrame, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for (data, curve), colour in zip(curves.groupby("data"), ("C0", "C1"), strict=False):
        axes[0].errorbar(
            curve.passes, curve["mean"], curve.spread, fmt="o-", color=colour, label=f"MIO, {data}"
        )
        axes[1].plot(curve.passes, curve.seconds, "o-", color=colour, label=data)
        miles = table[(table.model == "MILES") & (table.data == data)]["mean"]
        if len(miles):
            axes[0].axhline(miles.iloc[0], ls="--", color=colour, label=f"MILES, {data}")
    axes[0].set(xlabel="passes", ylabel="held-out accuracy")
    axes[1].set(xlabel="passes", ylabel="seconds per fit, distances included")
    for ax in axes:
        ax.legend()
    figure.savefig(out / "mio_passes.png", dpi=150)
    plt.close(figure)


def _row(name: str, data: str, values: list[float], note: str) -> dict[str, Any]:
    row = table_row(
        name,
        data,
        "accuracy",
        values,
        published=PUBLISHED.get((name.split(",", maxsplit=1)[0], data), np.nan),
        note=note,
        ddof=0,
    )
    print(row, flush=True)
    return row


def _paired(values: dict[tuple[str, str, Any], list[float]], data: str, folds: Any) -> Any:
    """Difference of MIO and MILES on the same folds, run by run."""
    mio, miles = (np.asarray(values[name, data, folds]) for name in ("MIO", "MILES"))
    p = ttest_rel(mio, miles).pvalue
    note = f"same folds, {folds.__name__}; paired t-test, p = {p:.2g}"
    return table_row("MIO less MILES", data, "accuracy, difference", mio - miles, note=note)


def run(quick: bool, out: Path, n_jobs: int = 1, data: Any = None) -> pd.DataFrame:
    """Measure and plot; quick is two runs on MUSK1. ``data`` names the sets, all by default."""
    seeds, runs = (range(1), range(2)) if quick else (range(5), range(15))
    sets = ["musk1"] if quick else list(data or LOADERS)
    parallel = Parallel(n_jobs=n_jobs)
    cases = [(name, where, model) for (name, where), model in FIXED.items() if where in sets]
    rows = []
    values: dict[tuple[str, str, Any], list[float]] = {}
    for name, where, model in cases:
        for folds in (KFold, StratifiedKFold):
            of_runs = parallel(delayed(accuracy)(model, where, seed, folds) for seed in runs)
            values[name, where, folds] = of_runs
            rows.append(_row(name, where, of_runs, f"settings fixed, {folds.__name__}"))
    rows += [_paired(values, where, folds) for where in sets for folds in (KFold, StratifiedKFold)]
    curves = [accuracy_by_passes(where, seeds, [1, 2, 5, 10, 20], n_jobs) for where in sets]
    plot_passes(pd.concat(curves), pd.DataFrame(rows), out)
    print(pd.concat(curves).to_string(index=False), flush=True)
    for name, where, model in [case for case in cases if case[0] in GRIDS]:
        jobs = (delayed(nested_accuracy)(model, where, seed, GRIDS[name]) for seed in seeds)
        rows.append(_row(name, where, parallel(jobs), "settings by inner cross-validation, KFold"))
    return pd.DataFrame(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    parser.add_argument("--data", nargs="*", choices=list(LOADERS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    run(arguments.quick, arguments.out, data=arguments.data)
