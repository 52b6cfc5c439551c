"""The auditor: planted leaks that it must find, and clean draws on which it must stay silent.

Eight leaks known from this field are planted one at a time in drawn bags. Clean draws are of four
kinds: labels without any relation, with an estimator and patients kept together; Gaussian
witnesses with known instance labels; an honest procedure that selects, scales and stops inside the
training fold; and sparse counts. Each of the 100 draws goes through all checks that its inputs
allow. Thresholds were set on seeds 1000 and above; the table is of seeds 0 to 99. Below stand three
worked examples on real data, of which the first needs newsgroups.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import StandardScaler

from bagwise import Bags, BagStatistics, datasets, make_pipeline
from bagwise.core import segments
from bagwise.datasets import make_gaussian_bags
from bagwise.evaluate import BagFolds, GroupFolds, audit
from bagwise.evaluate.audit.features import aucs
from experiments._held_out import main, present

TITLE = "The auditor: leaks it finds, and how often it cries wolf"
PAPER = "none: this library's own tool"
NEEDS = ("synthetic", "bundled", "newsgroups")


def noise(seed: int, n_bags: int = 60, n_features: int = 10) -> tuple[Bags, Any]:
    """Bags whose labels have no relation to their instances."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(4, 11, size=n_bags)
    X = rng.normal(size=(sizes.sum(), n_features))
    return Bags(X, np.concatenate([[0], np.cumsum(sizes)])), rng.permutation(n_bags) % 2


def add_feature(bags: Bags, values: Any) -> Bags:
    """Bags with one more feature."""
    columns = {"instance_labels": bags.instance_labels} if bags.instance_labels is not None else {}
    return Bags(np.column_stack([bags.instances, values]), bags.offsets, columns=columns)


def means(bags: Bags) -> Any:
    return segments.mean(bags.instances, bags.offsets)


def epochs(Z: Any, y: Any, n_epochs: int = 10) -> list[Any]:
    """Weights of logistic regression after every epoch of stochastic gradient descent."""
    rng, w, after = np.random.default_rng(0), np.zeros(Z.shape[1]), []
    for _ in range(n_epochs):
        for i in rng.permutation(len(Z)):
            w = w + 0.3 * (y[i] - 1 / (1 + np.exp(-np.clip(Z[i] @ w, -30, 30)))) * Z[i]
        after.append(w)
    return after


def instance_label(seed: int) -> dict[str, Any]:
    """The instance label is left among the features, slightly blurred."""
    data = make_gaussian_bags(60, 10, separation=1.0, random_state=seed)
    rng = np.random.default_rng(seed)
    label = data.instance_labels + 0.05 * rng.normal(size=data.bags.n_instances)
    return {"bags": add_feature(data.bags, label), "y": data.y}


def bag_label(seed: int) -> dict[str, Any]:
    """A column of the table of bags tells the label, wrong for one bag in twenty."""
    bags, y = noise(seed)
    wrong = np.arange(60) < 3
    return {"bags": add_feature(bags, np.where(wrong, 1 - y, y)[bags.bag_index]), "y": y}


def copied_bags(seed: int) -> dict[str, Any]:
    """Six bags were exported twice."""
    bags, y = noise(seed)
    twice = np.concatenate([np.arange(60), np.arange(6)])
    return {"bags": bags[twice], "y": y[twice]}


def divided_patients(seed: int) -> dict[str, Any]:
    """Three bags per patient, folds by bag."""
    bags, y = noise(seed)
    folds = [(s.train, s.test) for s in BagFolds(5, (0,)).splits(bags, y)]
    return {"bags": bags, "y": y, "groups": np.arange(60) // 3, "splitter": folds}


def scaled_outside(seed: int) -> dict[str, Any]:
    """The scaler is fitted on all bags, those of the test fold too."""

    def procedure(bags: Bags, y: Any, train: Any, test: Any) -> Any:
        Z = StandardScaler().fit_transform(means(bags))
        return Z[test] @ epochs(Z[train], y[train])[-1]

    bags, y = make_gaussian_bags(60, 10, separation=2, random_state=seed, return_X_y=True)
    return {"bags": bags, "y": y, "procedure": procedure}


def selected_outside(seed: int) -> dict[str, Any]:
    """Ten of three hundred features are selected by the labels of all bags."""

    def procedure(bags: Bags, y: Any, train: Any, test: Any) -> Any:
        Z = SelectKBest(k=10).fit_transform(means(bags), y)
        return Z[test] @ epochs(Z[train], y[train])[-1]

    bags, y = noise(seed, n_features=300)
    return {"bags": bags, "y": y, "procedure": procedure}


def epoch_on_test(seed: int) -> dict[str, Any]:
    """Of ten epochs the one with the best test AUC is kept."""

    def procedure(bags: Bags, y: Any, train: Any, test: Any) -> Any:
        Z = means(bags)
        weights = epochs(Z[train], y[train])
        return Z[test] @ max(weights, key=lambda w: float(aucs(y[test], Z[test] @ w)))

    bags, y = noise(seed)
    return {"bags": bags, "y": y, "procedure": procedure}


def size_and_length(seed: int) -> dict[str, Any]:
    """Positive bags were cut into more and longer instances."""
    y = np.random.default_rng(seed).permutation(60) % 2
    sizes = np.where(y == 1, 9, 5) + np.random.default_rng(seed).integers(-2, 3, size=60)
    X = np.random.default_rng(seed).normal(size=(sizes.sum(), 10))
    X[np.repeat(y == 1, sizes)] *= 1.1
    return {"bags": Bags(X, np.concatenate([[0], np.cumsum(sizes)])), "y": y}


# The leak, and the check that must name it.
PLANTED: dict[Callable[[int], dict[str, Any]], str] = {
    instance_label: "instance-label",
    bag_label: "bag-label",
    copied_bags: "duplicates",
    divided_patients: "groups",
    scaled_outside: "test-bags",
    selected_outside: "permuted",
    epoch_on_test: "test-labels",
    size_and_length: "size",
}


def clean_noise(seed: int) -> dict[str, Any]:
    """No relation at all, an estimator, and patients kept together."""
    bags, y = noise(seed)
    together = {"groups": np.arange(60) // 2, "splitter": GroupFolds(4, (seed,))}
    return {"bags": bags, "y": y, "estimator": linear(), **together}


def clean_witnesses(seed: int) -> dict[str, Any]:
    """Gaussian witnesses, known instance labels, the references of the audit."""
    data = make_gaussian_bags(80, 10, separation=2.5, random_state=seed)
    return {"bags": data.bags, "y": data.y}


def clean_procedure(seed: int) -> dict[str, Any]:
    """Scaling, selection and the number of epochs are learned inside the training fold."""

    def procedure(bags: Bags, y: Any, train: Any, test: Any) -> Any:
        Z, fit, stop = means(bags), train[::2], train[1::2]
        Z = StandardScaler().fit(Z[fit]).transform(Z)
        Z = SelectKBest(k=10).fit(Z[fit], y[fit]).transform(Z)
        weights = epochs(Z[fit], y[fit])
        return Z[test] @ max(weights, key=lambda w: float(aucs(y[stop], Z[stop] @ w)))

    bags, y = make_gaussian_bags(80, 60, separation=3, random_state=seed, return_X_y=True)
    return {"bags": bags, "y": y, "procedure": procedure}


def clean_counts(seed: int) -> dict[str, Any]:
    """Sparse counts: words of posts, a topic word in the witnesses, folds by bag."""
    rng = np.random.default_rng(seed)
    sizes, y = rng.integers(5, 15, size=80), rng.permutation(80) % 2
    rates = rng.gamma(0.5, 1.0, size=60)
    X = rng.poisson(rates, size=(sizes.sum(), 60)).astype(float)
    first = np.concatenate([[0], np.cumsum(sizes)])
    X[first[:-1][y == 1], 0] += rng.poisson(2.0, size=int(y.sum()))
    return {"bags": Bags(X, first), "y": y, "estimator": linear()}


def linear() -> Any:
    """A cheap estimator with its preprocessing inside."""
    return make_pipeline(BagStatistics(), StandardScaler(), RidgeClassifier(alpha=10.0))


CLEAN = (clean_noise, clean_witnesses, clean_procedure, clean_counts)


def found(plant: Callable[[int], dict[str, Any]], seed: int) -> set[str]:
    """The checks that spoke up."""
    return {finding.check for finding in audit(**plant(seed))}


def real_example(name: str) -> list[str]:
    """Findings on real data: `newsgroups`, `labelled` (a label among MUSK1's features)."""
    if name == "newsgroups/sci_med":
        data = datasets.fetch_newsgroups("sci_med")
        return [str(finding) for finding in audit(data.bags, data.y)]
    bags, y = datasets.load_musk1(return_X_y=True)
    if name == "musk1 with a label column":
        bags = add_feature(bags, y[bags.bag_index])
    return [str(finding) for finding in audit(bags, y)]


EXAMPLES = ("newsgroups/sci_med", "musk1", "musk1 with a label column")


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Every leak with ten seeds, 100 clean draws, and the examples; quick: one seed, 8 draws."""
    n_seeds, n_draws = (1, 8) if quick else (10, 100)
    parallel = Parallel(n_jobs=n_jobs)
    table = []
    for plant, check in PLANTED.items():
        said = parallel(delayed(found)(plant, seed) for seed in range(n_seeds))
        share = float(np.mean([check in names for names in said]))
        note = " ".join((plant.__doc__ or "").split())
        table.append(_row(plant.__name__, "planted leak", "share found", share, n_seeds, note))
    plan = [(CLEAN[seed % len(CLEAN)], seed) for seed in range(n_draws)]
    said = parallel(delayed(found)(clean, seed) for clean, seed in plan)
    silent = sum(not names for names in said)
    alarms = "; ".join(
        f"{clean.__name__} {seed}: {', '.join(sorted(names))}"
        for (clean, seed), names in zip(plan, said, strict=True)
        if names
    )
    metric = f"silent, of {n_draws} draws"
    table.append(_row("all checks", "clean draws", metric, silent, np.nan, alarms or "none spoke"))
    usable, absent = present(EXAMPLES, _load_example)
    for name in usable:
        lines = real_example(name)
        table.append(
            _row("all checks", name, "findings", len(lines), np.nan, " | ".join(lines) or "none")
        )
    return pd.DataFrame([*table, *absent])


def _load_example(name: str) -> None:
    if name.startswith("newsgroups/"):
        datasets.fetch_newsgroups(name.partition("/")[2])


def _row(model: str, data: str, metric: str, mean: float, n: float, note: str) -> dict[str, Any]:
    row = {"model": model, "data": data, "metric": metric, "published": np.nan, "mean": mean}
    return {**row, "spread": np.nan, "n_seeds": n, "note": note}


if __name__ == "__main__":
    main(run)
