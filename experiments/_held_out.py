"""What experiments share: held-out metrics by the names of the tables, and rows of the table."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning

from bagwise import VGPMIL, evaluate
from bagwise.core.kernels import RBF, Constant
from bagwise.evaluate import BagFolds, Fold, bag_metrics, instance_metrics
from experiments._source import package_digest

# What the tables call the metrics of `evaluate`.
BAG_METRICS = {"bag accuracy": "accuracy", "bag F1": "f1", "bag AUC": "auc"}
INSTANCE_METRICS = {
    "instance accuracy": "accuracy",
    "instance F1": "f1",
    "instance AUC": "auc",
    "instance AP": "auc_pr",
}


@contextmanager
def quiet_fits() -> Iterator[None]:
    """Without warnings of fits that stop early and of labels that bags do not tell.

    Both are expected in some experiments, which measure what follows from them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", ".* found nothing in these bags", UserWarning)
        yield


def paper_vgpmil(**settings: Any) -> VGPMIL:
    """VGPMIL by the paper's updates, with a kernel of variance 4 and a bias."""
    kernel = RBF("sqrt_dim", 4.0) + Constant(4.0)
    return VGPMIL(inference="paper", kernel=kernel, **settings)


def table_metrics(fold: Fold) -> dict[str, float]:
    """Metrics of one fold under the names of the tables."""
    made = fold.bags.metrics(list(BAG_METRICS.values()))
    values = {name: made[metric] for name, metric in BAG_METRICS.items()}
    if fold.instances is not None:
        made = fold.instances.metrics(list(INSTANCE_METRICS.values()))
        values |= {name: made[metric] for name, metric in INSTANCE_METRICS.items()}
    return values


def measure(
    model: Any, train: Any, y_train: Any, test: Any, y_test: Any, **options: Any
) -> dict[str, float]:
    """Fit on training bags, measure on the others; instance metrics where the truth is known."""
    start = time.process_time()
    with warnings.catch_warnings():
        # A published number of iterations is meant to end before convergence.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(train, y_train, **options)
    seconds = time.process_time() - start
    made = bag_metrics(model, test, y_test, list(BAG_METRICS.values()))
    values = {name: made[metric] for name, metric in BAG_METRICS.items()}
    if test.instance_labels is not None:
        made = instance_metrics(model, test, metrics=list(INSTANCE_METRICS.values()))
        values |= {name: made[metric] for name, metric in INSTANCE_METRICS.items()}
    return values | {"fit seconds": seconds}


def folds(y: Any, seeds: Iterable[int], n_splits: int = 5) -> list[tuple[int, Any, Any]]:
    """Seed, training bags and test bags of repeated stratified folds."""
    protocol = BagFolds(n_splits, tuple(seeds))
    return [(split.seed, split.train, split.test) for split in protocol.splits(y, y)]


def cross_validate(
    make: Callable[[int], Any], bags: Any, y: Any, seeds: Iterable[int], n_jobs: int = 1
) -> pd.DataFrame:
    """Metrics of every seed, each the mean of its five folds; ``make(seed)`` builds the model."""
    per_seed = {}
    for seed in seeds:
        made = evaluate.cross_validate(make(seed), bags, y, BagFolds(5, (seed,)), n_jobs=n_jobs)
        per_seed[seed] = pd.DataFrame([table_metrics(fold) for fold in made]).mean()
    return pd.DataFrame(per_seed).T.rename_axis("seed")


def present(
    names: Iterable[str], load: Callable[[str], Any]
) -> tuple[list[str], list[dict[str, Any]]]:
    """The sets whose data can be had, and a row of the table that says why for each other one."""
    usable, absent = [], []
    for name in names:
        try:
            load(name)
        except FileNotFoundError as error:
            empty = dict.fromkeys(("published", "mean", "spread", "n_seeds"), np.nan)
            note = f"its data is missing: {error}"
            absent.append({"model": "all", "data": name, "metric": "all", **empty, "note": note})
        else:
            usable.append(name)
    if not usable:
        raise FileNotFoundError(absent[0]["note"])
    return usable, absent


def table_row(
    model: str,
    data: str,
    metric: str,
    values: Any,
    *,
    published: float = np.nan,
    note: str = "",
    ddof: int = 1,
) -> dict[str, Any]:
    """A row of the results table from one value per seed; one seed alone has no spread."""
    values = np.asarray(values, dtype=np.float64)
    return {
        "model": model,
        "data": data,
        "metric": metric,
        "published": published,
        "mean": float(values.mean()),
        "spread": float(values.std(ddof=ddof)) if len(values) > 1 else np.nan,
        "n_seeds": len(values),
        "note": note,
    }


def rows(
    model: str, data: str, per_seed: pd.DataFrame, published: dict[str, float], note: str = ""
) -> list[dict[str, Any]]:
    """Rows of the results table, one for each metric with a published value or all without."""
    return [
        table_row(
            model,
            data,
            metric,
            per_seed[metric],
            published=published.get(metric, np.nan),
            note=note,
        )
        for metric in list(published) or list(per_seed.columns)
    ]


def gather(
    function: Callable[..., dict[str, Any]],
    tasks: Sequence[tuple[Any, ...]],
    out: Path,
    n_jobs: int,
    journal: str = "rows.jsonl",
) -> pd.DataFrame:
    """Rows that a function makes of tasks, in their order; those in the journal are kept.

    Every row is written as soon as it is made, so that a run that was stopped goes on from there,
    as long as the library is the same; the file is removed at the end.
    """
    path, package = out / journal, package_digest()
    rows: dict[str, dict[str, Any]] = {}
    if path.exists():
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        rows = {line["task"]: line["row"] for line in lines if line["package"] == package}
    missing = [task for task in tasks if json.dumps(task) not in rows]
    work = Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    with path.open("a", encoding="utf-8") as stream:
        for task, row in work(delayed(_with_task)(function, task) for task in missing):
            rows[json.dumps(task)] = row
            line = {"task": json.dumps(task), "package": package, "row": row}
            stream.write(json.dumps(line) + "\n")
            stream.flush()
    path.unlink()
    return pd.DataFrame([rows[json.dumps(task)] for task in tasks])


def _with_task(
    function: Callable[..., dict[str, Any]], task: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    row = function(*task)
    return task, {k: float(v) if isinstance(v, np.floating) else v for k, v in row.items()}


def main(run: Callable[..., pd.DataFrame]) -> None:
    """Command line of one experiment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("reproduction"))
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = importable(run)(arguments.quick, arguments.out, arguments.jobs)
    print(table.round(3).to_string(index=False))


def importable(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the module that is being run, as other processes import it.

    Those that work for it know ``python -m experiments.NAME`` by its name alone: what it keeps in a
    cache cannot be sent to them.
    """
    spec = sys.modules["__main__"].__spec__
    if function.__module__ != "__main__" or spec is None:
        return function
    return getattr(importlib.import_module(spec.name), function.__name__)  # type: ignore[no-any-return]
