"""Out-of-fold predictions: the one loop that fits and predicts for an evaluation.

`cross_validate` runs one model under one scheme; `compare`, the command line and the experiments
all use it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from bagwise.bags import Bags, InstanceLabels, check_bags
from bagwise.core.arrays import Column
from bagwise.evaluate.measure import Measure
from bagwise.evaluate.metrics import (
    METRIC_NAMES,
    instance_targets,
    model_outputs,
    score_predictions,
    targets,
)
from bagwise.evaluate.protocols import BagFolds, Scheme, Split, check_model, checked_splits
from bagwise.models.base import Model, squeezed
from bagwise.models.one_vs_rest import for_labels


class HeldOut(NamedTuple):
    """Labels of bags or instances that the model was not fitted to, and its predictions of them.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.evaluate import HeldOut
    >>> made = HeldOut(np.array([0, 1]), None, np.array([-1.0, 2.0]), None)
    >>> made.metrics(["auc", "log_loss"])
    {'auc': 1.0, 'log_loss': nan}
    """

    y: NDArray[np.int64]  # 0/1; with several classes all are matrices, a column per class
    label: NDArray[np.int64] | None
    score: NDArray[np.float64] | None
    proba: NDArray[np.float64] | None  # of the positive class

    def metrics(self, names: Sequence[str] = METRIC_NAMES) -> dict[str, float]:
        """Metrics by name; NaN where the model does not give what a metric reads."""
        return score_predictions(
            self.y, label=self.label, score=self.score, proba=self.proba, metrics=names
        )


class Fold(NamedTuple):
    """One fit and its predictions of the bags it had not seen.

    Examples
    --------
    >>> from bagwise import StatisticsClassifier, datasets, evaluate
    >>> bags, y = datasets.make_gaussian_bags(n_bags=30, random_state=0, return_X_y=True)
    >>> scheme = evaluate.BagFolds(3, seeds=(0,))
    >>> fold = evaluate.cross_validate(StatisticsClassifier(), bags, y, scheme)[0]
    >>> fold.split.fold, len(fold.bags.y), fold.instances
    (0, 10, None)
    """

    split: Split
    bags: HeldOut
    instances: HeldOut | None  # where the bags carry instance labels and the model ranks them
    fit_seconds: float
    predict_seconds: float
    peak_mb: float
    warnings: list[str]


def cross_validate(
    model: Model,
    bags: Bags,
    y: ArrayLike,
    scheme: Scheme | None = None,
    *,
    groups: ArrayLike | None = None,
    published_folds: ArrayLike | None = None,
    instance_labels: InstanceLabels = None,
    fit_params: Mapping[str, object] | None = None,
    n_jobs: int = 1,
    progress: Callable[[Iterable[Fold], int], Iterable[Fold]] | None = None,
) -> list[Fold]:
    """Predict every test bag of a scheme by a model fitted without it.

    Parameters
    ----------
    model : estimator
        Unfitted, with its preprocessing inside. Where its ``random_state`` is None it becomes the
        seed of the repetition.
    bags : Bags, list of 2-d arrays or 3-d array
    y : array of shape (n_bags,) or (n_bags, n_classes)
        A model of two classes is fitted once per class where there are more.
    scheme : cross-validation scheme or None, default=None
        How bags are split: `BagFolds`, `GroupFolds`, `PublishedFolds`, `FixedSplits` or `Nested`.
        None is ``BagFolds()``.
    groups : array of shape (n_bags,) or None, default=None
        Patient or site of every bag, for `GroupFolds`.
    published_folds : array or None, default=None
        For `PublishedFolds`.
    instance_labels : array of shape (n_instances,) or None, default=None
        Instance labels that the model may train on, in the training bags only. The labels that
        ``bags`` carry are never trained on; they are what instances are scored by.
    fit_params : mapping or None, default=None
        Further arguments of every ``fit``, such as ``background`` or ``class_weight``.
    n_jobs : int, default=1
    progress : callable or None, default=None
        ``progress(folds, n_folds)`` passes the folds through, as a progress bar does.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.evaluate import BagFolds, cross_validate
    >>> from bagwise.models.registry import make_model
    >>> bags, y = make_gaussian_bags(n_bags=30, random_state=0, return_X_y=True)
    >>> folds = cross_validate(make_model("single-instance"), bags, y, BagFolds(3, seeds=(0,)))
    >>> len(folds), max(fold.bags.metrics()["auc"] for fold in folds) > 0.8
    (3, True)
    """
    from sklearn.utils.parallel import Parallel, delayed

    scheme = BagFolds() if scheme is None else scheme
    bags = check_bags(bags, accept_sparse=True, allow_nd=True, estimator="cross_validate")
    y = np.asarray(y)
    check_lengths("the data", len(bags), y, groups)
    model = check_model(model)
    splits = checked_splits(scheme, bags, y, groups, published_folds)
    jobs = (
        delayed(fit_fold)(
            model, bags, y, split, scheme, groups, instance_labels, fit_params=fit_params
        )
        for split in splits
    )
    folds = Parallel(n_jobs=n_jobs, return_as="generator")(jobs)
    return list(folds if progress is None else progress(folds, len(splits)))


def fit_fold(
    model: Model,
    bags: Bags,
    y: Column,
    split: Split,
    scheme: Scheme,
    groups: Column | None = None,
    instance_labels: Column | None = None,
    name: str = "model",
    data: str = "data",
    fit_params: Mapping[str, object] | None = None,
) -> Fold:
    """One fit. Nothing of the test bags is touched before the model is fitted."""
    of_train = None if groups is None else np.asarray(groups)[split.train]
    ready = for_labels(seeded(model, split.seed), y)
    model = scheme.prepare(name, ready, split.seed, y[split.train], of_train)
    # Labels of instances in test bags stay unseen.
    known = dict(fit_params or {})
    if instance_labels is not None:
        nested = bags.split(np.asarray(instance_labels))
        known["instance_labels"] = np.concatenate([nested[i] for i in split.train])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            train = bags[split.train]
            with Measure() as fit:
                model.fit(train, y[split.train], **known)
            # A search hides the _instances methods; its winner has them.
            model = getattr(model, "best_estimator_", model)
            with Measure() as predict:
                of_bags, of_instances = _predict(model, bags[split.test], y[split.test])
        except Exception as error:
            error.add_note(f"while fitting {name!r} on {data!r}, {split}")
            raise
    messages = sorted({f"{w.category.__name__}: {w.message}" for w in caught})
    return Fold(split, of_bags, of_instances, fit.seconds, predict.seconds, fit.peak_mb, messages)


def _predict(model: Model, bags: Bags, y: Column) -> tuple[HeldOut, HeldOut | None]:
    """Everything metrics read, for bags and, where labels and methods exist, for instances."""
    of_bags = _held_out(targets(y, model), model_outputs(model, bags))
    if bags.instance_labels is None or not hasattr(model, "predict_instances"):
        return of_bags, None
    truth, known = instance_targets(model, bags)
    outputs = model_outputs(model, bags, "_instances")
    return of_bags, _held_out(
        truth, {k: None if v is None else v[known] for k, v in outputs.items()}
    )


def _held_out(y: Any, outputs: Mapping[str, Any]) -> HeldOut:
    """Labels and outputs [n, F]; this is where two classes, F = 1, lose their class axis."""
    columns: dict[str, Any] = {"y": y, **outputs}
    columns = {name: None if v is None else squeezed(v) for name, v in columns.items()}
    return HeldOut(**columns)


def seeded(model: Model, seed: int) -> Model:
    """A clone whose open seeds are set.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from bagwise.evaluate.cross_validation import seeded
    >>> seeded(LogisticRegression(), 3).random_state
    3
    >>> seeded(LogisticRegression(random_state=7), 3).random_state
    7
    """
    model = clone(model)
    params = model.get_params(deep=True)
    free = [k for k in params if k.split("__")[-1] == "random_state" and params[k] is None]
    return model.set_params(**dict.fromkeys(free, seed))


def check_lengths(what: str, n_bags: int, y: Column, groups: ArrayLike | None = None) -> None:
    """Refuse labels or groups that do not name every bag."""
    if len(y) != n_bags:
        raise ValueError(f"{what}: got {len(y)} labels for {n_bags} bags.")
    n_groups = n_bags if groups is None else len(np.asarray(groups))
    if n_groups != n_bags:
        raise ValueError(f"{what}: got {n_groups} groups for {n_bags} bags.")
