"""Look for what has gone wrong in this field before believing a figure."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from bagwise.bags import Bags, check_bags
from bagwise.core.arrays import Ints
from bagwise.evaluate.audit import features, folds
from bagwise.evaluate.audit.findings import Audit, Finding
from bagwise.evaluate.audit.procedures import (
    Procedure,
    best_epoch_gain,
    chosen_epochs,
    from_estimator,
    permuted_labels,
    sees_test_bags,
    sees_test_labels,
)
from bagwise.evaluate.cross_validation import HeldOut, check_lengths, cross_validate
from bagwise.evaluate.metrics import instance_codes
from bagwise.evaluate.protocols import BagFolds, FixedSplits, GroupFolds, Split
from bagwise.models.base import Model

__all__ = ["Audit", "Finding", "audit", "best_epoch_gain"]

# What bag size and vector length are compared with where no estimator is given.
REFERENCES = ("statistics", "single-instance")


def audit(
    bags: Bags,
    y: ArrayLike,
    *,
    estimator: Model | None = None,
    procedure: Procedure | None = None,
    splitter: Any = None,
    groups: ArrayLike | None = None,
    instance_labels: ArrayLike | None = None,
    epoch_scores: ArrayLike | None = None,
    reported: float | None = None,
    feature_names: Sequence[str] | None = None,
    n_permutations: int = 10,
    random_state: int = 0,
) -> Audit:
    """Look for leaks in data, folds and the way a model is trained and scored.

    Parameters
    ----------
    bags : Bags, list of 2-d arrays or 3-d array
    y : array of shape (n_bags,)
        Two classes.
    estimator : estimator or None, default=None
        Fitted on training folds; what bag size and vector length are compared with.
    procedure : callable or None, default=None
        ``procedure(bags, y, train, test)`` returns a score per test bag; for whatever is trained
        and scored outside an estimator, with its preprocessing. Labels are 0 and 1.
    splitter : scheme, scikit-learn splitter or list of (train, test) or None, default=None
        Your folds. Without it five stratified folds, by group where ``groups`` is given.
    groups : array of shape (n_bags,) or None, default=None
        Patient or site of every bag.
    instance_labels : array of shape (n_instances,) or None, default=None
        Default: those that the bags carry. Anything but the two classes is unknown.
    epoch_scores : array of shape (n_folds, n_epochs) or None, default=None
        Test score after every epoch, and ``reported``, the figure that was reported.
    feature_names : sequence of str or None, default=None
    n_permutations : int, default=10
        Shufflings of the labels; each costs one fit per fold.
    random_state : int, default=0

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.evaluate import audit
    >>> bags, y = make_gaussian_bags(40, 5, separation=2, random_state=0, return_X_y=True)
    >>> leaky = bags.map(lambda x: np.column_stack([x, y[bags.bag_index]]))
    >>> print(audit(leaky, y)[0])
    bag-label: a feature alone determines the bag label; feature 5, one value per bag; AUC 1.000
    """
    bags = check_bags(bags, accept_sparse=True, allow_nd=True, estimator="audit")
    y = np.asarray(y)
    check_lengths("the data", len(bags), y, groups)
    groups = None if groups is None else np.asarray(groups)
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) != 2:
        raise ValueError(f"audit needs two classes; got {len(classes)}.")
    labels = getattr(bags, "instance_labels", None) if instance_labels is None else instance_labels
    truth = None if labels is None else instance_codes(labels, bags, classes)
    splits = _as_splits(splitter, bags, y, groups)
    checks: dict[str, list[Finding]] = {}  # in the order in which they are reported
    if truth is not None:
        checks["instance-label"] = features.instance_label_features(bags, truth, feature_names)
    checks["bag-label"] = features.bag_label_features(bags, codes, feature_names)
    checks["duplicates"] = folds.duplicates(bags, splits)
    if groups is not None:
        checks["groups"] = folds.divided_groups(groups, splits)
    model_auc, instance_auc = _model_aucs(estimator, bags, codes, splits, truth)
    sizes = {"the number of instances": bags.sizes}
    checks["size"] = features.baselines("size", sizes, codes, model_auc)
    checks["length"] = features.length_baseline(bags, codes, truth, model_auc, instance_auc)
    if procedure is not None or estimator is not None:
        run = from_estimator(cast(Model, estimator)) if procedure is None else procedure
        rng = np.random.default_rng(random_state)
        checks["permuted"] = permuted_labels(run, bags, codes, splits, n_permutations, rng)
        checks["test-bags"] = sees_test_bags(run, bags, codes, splits)
    if procedure is not None:  # an estimator never gets the test labels
        checks["test-labels"] = sees_test_labels(procedure, bags, codes, splits)
    if epoch_scores is not None:
        checks["epochs"] = chosen_epochs(epoch_scores, reported)
    return Audit([finding for of_check in checks.values() for finding in of_check], list(checks))


def _as_splits(splitter: Any, bags: Bags, y: Ints, groups: Ints | None) -> list[Split]:
    """Splits as they are, unchecked: finding what is wrong with them is the point."""
    if splitter is None:
        fewest = int(np.unique(y, return_counts=True)[1].min())
        n_splits = min(5, fewest)
        if groups is not None:
            n_splits = min(n_splits, len(np.unique(groups)))
        splitter = (BagFolds if groups is None else GroupFolds)(n_splits, (0,))
    if hasattr(splitter, "splits"):
        return list(splitter.splits(bags, y, groups))
    with warnings.catch_warnings():
        # Folds that pay no heed to groups are what is looked for.
        warnings.filterwarnings("ignore", "The groups parameter is ignored", UserWarning)
        split = getattr(splitter, "split", None)
        pairs = splitter if split is None else list(split(np.zeros(len(y)), y, groups))
    return [
        Split(0, fold, np.asarray(train), np.asarray(test))
        for fold, (train, test) in enumerate(pairs)
    ]


def _model_aucs(
    estimator: Model | None, bags: Bags, y: Ints, splits: list[Split], truth: Ints | None
) -> tuple[float, float]:
    """Mean held-out AUC over bags and over instances, of the estimator or the best reference."""
    from bagwise.models.registry import make_model

    models = [make_model(name) for name in REFERENCES] if estimator is None else [estimator]
    # With labels missing a fold may have none; then bags alone are compared.
    bags = Bags(bags.instances, bags.offsets, bags.ids)
    if truth is not None and (truth >= 0).all():
        bags = bags.with_columns(instance_labels=truth)
    # Bags that stand on both sides of a split are reported by a check of their own.
    disjoint = tuple(s._replace(train=np.setdiff1d(s.train, s.test)) for s in splits)
    best = [np.nan, np.nan]
    for model in models:
        scored = cross_validate(model, bags, y, FixedSplits(disjoint))
        best[0] = np.fmax(best[0], _mean_auc([fold.bags for fold in scored]))
        best[1] = np.fmax(best[1], _mean_auc([fold.instances for fold in scored]))
    return best[0], best[1]


def _mean_auc(held_out: Sequence[HeldOut | None]) -> float:
    values = [part.metrics(["auc"])["auc"] for part in held_out if part is not None]
    return float(np.nanmean(values)) if np.isfinite(values).any() else np.nan
