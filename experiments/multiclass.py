"""Several classes: VGPMIL's shared projection against one model per class, and against DPMIL.

Bags of digits with three findings (2, 5, 8, and bags with none of them), with ten classes (filler
is digits whose pixels are shuffled), and with ten labels (a bag has every digit that is in it);
and bags of newsgroup posts with five topics. The sets of newsgroup posts have words of their own,
so each has its own block of features, and filler posts come from all five sets alike: only the
topic itself tells the classes apart.

Per seed new bags are drawn, two thirds of them for training. Macro AUC is the mean over the
classes, for instances over the findings. scikit-learn's OneVsRestClassifier has no methods for
instances; those of its members are asked. The scaling of each set holds for all models but
AutoVGPMIL, which chooses its own; text has the linear kernel in both ways to use VGPMIL, because
posts of a thousand words are all about as far from each other. With ``--jobs 2`` or more AutoVGPMIL
is measured, too; it takes some twenty times as long. Rules and settings were chosen on seeds 100 to
107; the table is of others. The fit-time ratio divides the processor time of a fit by
that of as many two-class fits as there are findings.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.multiclass import OneVsRestClassifier

from bagwise import DPMIL, VGPMIL, AutoVGPMIL, Bags
from bagwise.datasets import fetch_newsgroups
from bagwise.evaluate import score_predictions
from experiments._held_out import main, present, quiet_fits, rows

TITLE = "Several classes: one projection for all against one model per class"
PAPER = "this package"
NEEDS = ("bundled", "newsgroups")
FINDINGS = (2, 5, 8)
TOPICS = (
    "alt_atheism",
    "comp_graphics",
    "rec_sport_hockey",
    "sci_med",
    "talk_politics_mideast",
)
SEEDS = (200, 201, 202, 203, 204)
NONE = -1  # of an instance that is of no class


class Problem(NamedTuple):
    """Bags of several classes whose instances are all known."""

    bags: Bags
    y: Any  # [B] classes, or [B, C] indicators
    instances: Any  # [N] class of each instance, NONE where it has none
    findings: tuple[int, ...]  # classes that instances have
    background: int | None
    scale: Any  # of the features, for every model
    kernel: str = "rbf"


def _deal(pools: dict[int, list[Any]], kind: int) -> Any:
    """The next row of a kind, never used before."""
    return pools[kind].pop()


def _pools(X: Any, kinds: Any, rng: Any) -> dict[int, list[Any]]:
    return {k: list(rng.permutation(np.flatnonzero(kinds == k))) for k in np.unique(kinds)}


def three_findings(seed: int, n_bags: int = 150) -> Problem:
    """Bags with one to three digits of one finding, or with none; no image is used twice."""
    rng, digits = np.random.RandomState(seed), load_digits()
    pools = _pools(digits.data, digits.target, rng)
    others = [row for k in range(10) if k not in FINDINGS for row in pools[k]]
    others = list(rng.permutation(others))
    arrays, labels, y = [], [], np.arange(n_bags) % 4
    for c in y.tolist():
        own = [_deal(pools, FINDINGS[c - 1]) for _ in range(rng.randint(1, 4))] if c else []
        filler = [others.pop() for _ in range(rng.randint(4, 8))]
        arrays.append(digits.data[own + filler] / 16)
        labels += [c] * len(own) + [NONE] * len(filler)
    bags = Bags.from_list(arrays)
    return Problem(bags, y, np.array(labels), (1, 2, 3), 0, "feature")


def ten_classes(seed: int, n_bags: int = 200) -> Problem:
    """Bags with one or two digits of their class among digits whose pixels are shuffled."""
    rng, digits = np.random.RandomState(seed), load_digits()
    pools = _pools(digits.data, digits.target, rng)
    arrays, labels, y = [], [], np.arange(n_bags) % 10
    for c in y.tolist():
        own = [_deal(pools, c) for _ in range(rng.randint(1, 3))]
        filler = digits.data[[_deal(pools, rng.randint(10)) for _ in range(rng.randint(3, 6))]]
        shuffled = [row[rng.permutation(64)] for row in filler]
        images = np.vstack([digits.data[own], shuffled]) / 16
        arrays.append(images + 0.2 * rng.randn(*images.shape))
        labels += [c] * len(own) + [NONE] * len(filler)
    return Problem(Bags.from_list(arrays), y, np.array(labels), tuple(range(10)), None, "feature")


def ten_labels(seed: int, n_bags: int = 200) -> Problem:
    """Bags of two to six digits, labelled with every digit that is in them."""
    rng, digits = np.random.RandomState(seed), load_digits()
    order = iter(rng.permutation(len(digits.data)))
    arrays, labels, Y = [], [], np.zeros((n_bags, 10), dtype=int)
    for b in range(n_bags):
        rows = [next(order) for _ in range(rng.randint(2, 7))]
        arrays.append(digits.data[rows] / 16)
        labels += digits.target[rows].tolist()
        Y[b, digits.target[rows]] = 1
    return Problem(Bags.from_list(arrays), Y, np.array(labels), tuple(range(10)), None, "feature")


def five_topics(seed: int, n_bags: int = 150) -> Problem:
    """Bags with one to three posts on one of five topics, or with none, among posts of all sets."""
    rng = np.random.RandomState(seed)
    on_topic: dict[int, list[Any]] = {}
    off_topic: list[Any] = []
    for k, name in enumerate(TOPICS):
        data = fetch_newsgroups(name)
        X = np.zeros((data.bags.n_instances, 200 * len(TOPICS)))
        X[:, 200 * k : 200 * (k + 1)] = data.bags.instances
        truth = np.asarray(data.bags.instance_labels) == 1
        on_topic[k + 1] = list(X[truth][rng.permutation(int(truth.sum()))])
        off_topic += list(X[~truth][rng.permutation(int((~truth).sum()))[:1000]])
    off_topic = [off_topic[i] for i in rng.permutation(len(off_topic))]
    arrays, labels, y = [], [], np.arange(n_bags) % 6
    for c in y.tolist():
        own = [on_topic[c].pop() for _ in range(rng.randint(1, 4))] if c else []
        filler = [off_topic.pop() for _ in range(rng.randint(8, 16))]
        arrays.append(np.array(own + filler))
        labels += [c] * len(own) + [NONE] * len(filler)
    bags = Bags.from_list(arrays)
    return Problem(bags, y, np.array(labels), (1, 2, 3, 4, 5), 0, "global", "linear")


DATA = {
    "digits, three findings": three_findings,
    "digits, ten classes": ten_classes,
    "digits, ten labels": ten_labels,
    "newsgroups, five topics": five_topics,
}


def models(problem: Problem, seed: int, slow: bool) -> dict[str, Any]:
    """The ways to learn several classes, with the settings of the data."""
    gp = VGPMIL(kernel=problem.kernel, scale=problem.scale, random_state=seed)
    chosen = {
        "VGPMIL, all classes": gp,
        "OneVsRestClassifier(VGPMIL)": OneVsRestClassifier(clone(gp)),
        "DPMIL": DPMIL(scale=problem.scale, random_state=seed),
    }
    return chosen | ({"AutoVGPMIL": AutoVGPMIL(random_state=seed)} if slow else {})


def instance_probabilities(model: Any, bags: Bags) -> Any:
    """Probability of every class for each instance."""
    if not isinstance(model, OneVsRestClassifier):
        return model.predict_proba_instances(bags)
    each = [member.predict_proba_instances(bags)[:, 1] for member in model.estimators_]
    return np.column_stack(each)


def measure(model: Any, problem: Problem, train: Any, test: Any) -> dict[str, float]:
    """Fit on the training bags, measure on the others."""
    bags, y = problem.bags, problem.y
    given: dict[str, Any] = {}
    if problem.background is not None and not isinstance(model, OneVsRestClassifier):
        given = {"background": problem.background}
    with quiet_fits():
        start = time.process_time()
        model.fit(bags[train], y[train], **given)
        seconds = time.process_time() - start
    unseen = bags[test]
    p = model.predict_proba(unseen)
    truth = y[test] if y.ndim == 2 else (y[test][:, None] == np.arange(p.shape[1])).astype(int)
    label = p > 0.5 if y.ndim == 2 else p.argmax(axis=1)[:, None] == np.arange(p.shape[1])
    made = score_predictions(truth, label=label.astype(int), score=p, proba=p)
    of_test = np.isin(bags.bag_index, test)
    q, labels = instance_probabilities(model, unseen), problem.instances[of_test]
    instance = [roc_auc_score(labels == c, q[:, c]) for c in problem.findings]
    return {
        "bag macro AUC": made["auc"],
        "instance macro AUC": float(np.mean(instance)),
        "log-loss": made["log_loss"],
        "bag accuracy": made["accuracy"],
        "fit seconds": seconds,
    }


def one_seed(name: str, seed: int, quick: bool, slow: bool) -> dict[str, dict[str, float]]:
    """What every model reaches on the bags of one seed."""
    problem = DATA[name](seed, 60) if quick else DATA[name](seed)
    order = np.random.RandomState(seed).permutation(len(problem.bags))
    cut = len(order) * 2 // 3
    train, test = np.sort(order[:cut]), np.sort(order[cut:])
    chosen = models(problem, seed, slow)
    per_model = {label: measure(model, problem, train, test) for label, model in chosen.items()}
    ours, theirs = (per_model[label]["fit seconds"] for label in list(per_model)[:2])
    # The wrapper fits the background, too; a two-class fit is its mean.
    n_fits = problem.y.shape[1] if problem.y.ndim == 2 else len(np.unique(problem.y))
    one = theirs / n_fits
    per_model["VGPMIL, all classes"]["fit-time ratio"] = ours / (one * len(problem.findings))
    return per_model


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Measure; quick is small bags of three findings and one seed, one job leaves Auto out."""
    names, absent = present(list(DATA)[:1] if quick else list(DATA), lambda name: DATA[name](0))
    seeds = SEEDS[:1] if quick else SEEDS
    jobs = [(name, seed) for name in names for seed in seeds]
    results = Parallel(n_jobs)(delayed(one_seed)(*job, quick, n_jobs > 1) for job in jobs)
    table = []
    note = f"seeds {SEEDS[0]}-{SEEDS[-1]}, held-out third of the bags"
    for name in names:
        of_set = [result for job, result in zip(jobs, results, strict=True) if job[0] == name]
        for label in of_set[0]:
            frame = pd.DataFrame([per_model[label] for per_model in of_set])
            table += rows(label, name, frame.drop(columns="fit seconds"), {}, note)
    return pd.DataFrame([*table, *absent])


if __name__ == "__main__":
    main(run)
