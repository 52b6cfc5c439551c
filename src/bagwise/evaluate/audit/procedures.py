"""Whether a way of training and scoring looks at what it must not see.

A procedure gets all bags, all labels and the numbers of training and test bags, and returns a score
per test bag. An honest one cannot tell when test labels are exchanged or other test bags replaced,
and learns nothing from shuffled labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from bagwise.bags import Bags
from bagwise.evaluate.audit.features import aucs
from bagwise.evaluate.audit.findings import Finding
from bagwise.evaluate.metrics import model_outputs
from bagwise.evaluate.protocols import Split

if TYPE_CHECKING:
    from bagwise.core.arrays import Column, Floats, Ints
    from bagwise.models.base import Model


Procedure = Callable[[Bags, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], Any]

# Shuffled labels: so many standard errors above one half, and at least this AUC.
PERMUTED_SIGMAS = 4.0
PERMUTED_AUC = 0.55
# Scores that differ by more than this share of their spread have changed.
CHANGED = 1e-3
# A run that differs from its repetition is judged by how much more it differs.
NOISE = 5.0
# Choosing the epoch on test bags is reported from this gain on.
EPOCH_GAIN = 0.005


def from_estimator(model: Model) -> Procedure:
    """Fit a clone on the training bags, score the test bags."""

    def procedure(bags: Bags, y: Column, train: Ints, test: Ints) -> Floats:
        fitted = clone(model).fit(bags[train], y[train])
        return np.asarray(model_outputs(fitted, bags[test], wanted=("score",))["score"][:, 0])

    return procedure


def permuted_labels(
    procedure: Procedure,
    bags: Bags,
    y: Column,
    splits: list[Split],
    n_permutations: int,
    rng: np.random.Generator,
) -> list[Finding]:
    """Scores that are too good where labels are shuffled: something outside the fold knows them."""
    values = []
    for _ in range(n_permutations):
        shuffled = rng.permutation(y)
        for split in splits:
            truth = shuffled[split.test]
            if 0 < truth.sum() < len(truth):
                score = _scores(procedure, bags, shuffled, split)
                values.append((float(aucs(truth == 1, score[:, None])[0]), truth))
    if not values:
        return []
    mean = float(np.mean([auc for auc, _ in values]))
    # Of a mean of AUCs of no skill; a pair of classes of n1 and n0 has variance (n+1)/(12 n1 n0).
    variance = [(len(t) + 1) / (12 * t.sum() * (len(t) - t.sum())) for _, t in values]
    error = float(np.sqrt(np.sum(variance)) / len(values))
    if mean < max(PERMUTED_AUC, 0.5 + PERMUTED_SIGMAS * error):
        return []
    strength = f"AUC {mean:.3f} where 0.5 is expected ({(mean - 0.5) / error:.0f} standard errors)"
    where = f"{n_permutations} shufflings, {len(splits)} splits each"
    return [Finding("permuted", "the procedure predicts shuffled labels", where, strength)]


def sees_test_labels(
    procedure: Procedure, bags: Bags, y: Column, splits: list[Split]
) -> list[Finding]:
    """Scores that change with the labels of test bags: an epoch or threshold is chosen on them."""
    changed = []
    for split in splits:
        exchanged = y.copy()
        exchanged[split.test] = 1 - y[split.test]
        before, again, after = (
            _scores(procedure, bags, labels, split) for labels in (y, y, exchanged)
        )
        changed.append((_change(before, again, after), split))
    what = "scores change when only the labels of test bags are exchanged"
    return _report("test-labels", what, changed)


def sees_test_bags(
    procedure: Procedure, bags: Bags, y: Column, splits: list[Split]
) -> list[Finding]:
    """Scores that change with other test bags: preprocessing was fitted on all bags."""
    changed = []
    for split in splits:
        replaced = _replace(bags, split.test[1::2])
        # Every other test bag stays as it was, and so must its score.
        before, again, after = (
            _scores(procedure, data, y, split)[::2] for data in (bags, bags, replaced)
        )
        changed.append((_change(before, again, after), split))
    what = "scores of a test bag change when other test bags are replaced"
    return _report("test-bags", what, changed)


def _replace(bags: Bags, which: Ints) -> Bags:
    """Bags in which the instances of some are moved and stretched: no statistic stays as it was."""
    X = bags.instances
    X = np.array(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)
    flat = X.reshape(len(X), -1)
    rows = np.isin(np.asarray(bags.bag_index), which)
    flat[rows] = 3 * flat[rows] + 2 * np.abs(flat).max(axis=0) + 1
    return Bags(X, bags.offsets, bags.ids)


def _report(check: str, what: str, changed: list[tuple[float, Split]]) -> list[Finding]:
    worst = max(changed, key=lambda pair: pair[0], default=(0.0, None))
    if worst[1] is None or worst[0] <= CHANGED:
        return []
    count = sum(change > CHANGED for change, _ in changed)
    where = f"{count} of {len(changed)} splits, worst in {worst[1]}"
    return [Finding(check, what, where, f"by {worst[0]:.2g} of their spread")]


def _change(before: Floats, again: Floats, after: Floats) -> float:
    """How far scores moved, in units of their spread, beyond what a repetition moves them."""
    spread = float(np.std(before)) or 1.0
    noise = float(np.abs(again - before).max()) / spread
    change = float(np.abs(after - before).max()) / spread
    return 0.0 if change <= NOISE * noise else change


def _scores(procedure: Procedure, bags: Bags, y: Ints, split: Split) -> NDArray[np.float64]:
    scores = np.asarray(procedure(bags, y.copy(), split.train, split.test), dtype=np.float64)
    if scores.shape != (len(split.test),) or not np.isfinite(scores).all():
        raise ValueError(
            f"a procedure must return one finite score per test bag: {split} has "
            f"{len(split.test)}; got shape {scores.shape}."
        )
    return scores


def chosen_epochs(history: ArrayLike, reported: float | None) -> list[Finding]:
    """Whether the reported figure is the best test epoch rather than the last one.

    ``history`` holds a test score per fold and epoch; without ``reported``, what choosing the best
    epoch of each fold would add is compared with nothing and no finding is made.
    """
    history = check_history(history)
    last, best = float(history[:, -1].mean()), float(history.max(axis=1).mean())
    if reported is None or best - last < EPOCH_GAIN or reported < last + (best - last) / 2:
        return []
    strength = f"reported {reported:.3f}; best test epoch {best:.3f}, last epoch {last:.3f}"
    where = f"{history.shape[0]} folds, {history.shape[1]} epochs"
    return [Finding("epochs", "the epoch was chosen on test bags", where, strength)]


def check_history(history: ArrayLike) -> NDArray[np.float64]:
    """Test scores as (folds, epochs)."""
    history = np.atleast_2d(np.asarray(history, dtype=np.float64))
    if history.ndim != 2 or history.shape[1] < 2 or not np.isfinite(history).all():
        raise ValueError(
            "epoch_scores needs a finite test score for every fold and at least 2 epochs, shape "
            f"(folds, epochs); got shape {history.shape}."
        )
    return history
