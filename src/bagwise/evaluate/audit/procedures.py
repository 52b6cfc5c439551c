"""Whether a way of training and scoring uses what it must not see.

A procedure gets all bags, all labels and the numbers of training and test bags, and returns a score
per test bag. A leakage-free one does not change when test labels are exchanged or other test bags
replaced, and learns nothing from shuffled labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Floats, Ints
from bagwise.evaluate.audit.features import aucs
from bagwise.evaluate.audit.findings import Finding
from bagwise.evaluate.metrics import model_outputs
from bagwise.evaluate.protocols import Split
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
    """Scores that are too good where labels are shuffled: they leak from outside the fold."""
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
    # Test folds of one shuffling are disjoint, so that their AUCs count as independent.
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

    def scores(split: Split) -> list[Floats]:
        exchanged = y.copy()
        exchanged[split.test] = 1 - y[split.test]
        return [_scores(procedure, bags, labels, split) for labels in (y, y, exchanged)]

    what = "scores change when only the labels of test bags are exchanged"
    return _report_change("test-labels", what, splits, scores)


def sees_test_bags(
    procedure: Procedure, bags: Bags, y: Column, splits: list[Split]
) -> list[Finding]:
    """Scores that change with other test bags: preprocessing was fitted on all bags."""

    def scores(split: Split) -> list[Floats]:
        # Every other test bag stays as it was, and so must its score.
        replaced = _replace(bags, split.test[1::2])
        return [_scores(procedure, data, y, split)[::2] for data in (bags, bags, replaced)]

    what = "scores of a test bag change when other test bags are replaced"
    return _report_change("test-bags", what, splits, scores)


def _replace(bags: Bags, which: Ints) -> Bags:
    """Bags with the instances of these moved and stretched, so that every statistic changes."""
    X = bags.instances
    X = np.array(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)
    flat = X.reshape(len(X), -1)
    rows = np.isin(np.asarray(bags.bag_index), which)
    flat[rows] = 3 * flat[rows] + 2 * np.abs(flat).max(axis=0) + 1
    return Bags(X, bags.offsets, bags.ids)


def _report_change(
    check: str, what: str, splits: list[Split], scores: Callable[[Split], list[Floats]]
) -> list[Finding]:
    """A finding where scores before and after a change differ by more than a repetition does."""
    changes = []
    for split in splits:
        before, again, after = scores(split)
        # In units of the spread of the scores.
        spread = float(np.std(before)) or 1.0
        noise = float(np.abs(again - before).max()) / spread
        change = float(np.abs(after - before).max()) / spread
        changes.append(0.0 if change <= NOISE * noise else change)
    if max(changes, default=0.0) <= CHANGED:
        return []
    worst, count = int(np.argmax(changes)), int((np.array(changes) > CHANGED).sum())
    where = f"{count} of {len(splits)} splits, worst in {splits[worst]}"
    return [Finding(check, what, where, f"by {changes[worst]:.2g} of their spread")]


def _scores(procedure: Procedure, bags: Bags, y: Ints, split: Split) -> NDArray[np.float64]:
    scores = np.asarray(procedure(bags, y.copy(), split.train, split.test), dtype=np.float64)
    if scores.shape != (len(split.test),) or not np.isfinite(scores).all():
        raise ValueError(
            f"a procedure must return one finite score per test bag: {split} has "
            f"{len(split.test)}; got shape {scores.shape}."
        )
    return scores


def best_epoch_gain(epoch_scores: ArrayLike) -> tuple[float, float]:
    """The last epoch's mean score, and what choosing each fold's best test epoch would add.

    Parameters
    ----------
    epoch_scores : array of shape (n_folds, n_epochs)
        Test score after every epoch.

    Examples
    --------
    >>> from bagwise.evaluate import best_epoch_gain
    >>> last, gain = best_epoch_gain([[0.7, 0.9, 0.8], [0.6, 0.7, 0.8]])
    >>> round(last, 3), round(gain, 3)
    (0.8, 0.05)
    """
    history = np.atleast_2d(np.asarray(epoch_scores, dtype=np.float64))
    if history.ndim != 2 or history.shape[1] < 2 or not np.isfinite(history).all():
        raise ValueError(
            "epoch_scores needs a finite test score for every fold and at least 2 epochs, shape "
            f"(folds, epochs); got shape {history.shape}."
        )
    last = float(history[:, -1].mean())
    return last, float(history.max(axis=1).mean()) - last


def chosen_epochs(epoch_scores: ArrayLike, reported: float | None) -> list[Finding]:
    """Whether the reported figure is that of the best test epoch rather than of the last one.

    Nothing is compared, and no finding returned, without ``reported``.
    """
    last, gain = best_epoch_gain(epoch_scores)
    if reported is None or gain < EPOCH_GAIN or reported < last + gain / 2:
        return []
    strength = f"reported {reported:.3f}; best test epoch {last + gain:.3f}, last epoch {last:.3f}"
    n_folds, n_epochs = np.atleast_2d(epoch_scores).shape
    where = f"{n_folds} folds, {n_epochs} epochs"
    return [Finding("epochs", "the epoch was chosen on test bags", where, strength)]
