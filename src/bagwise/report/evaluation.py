"""Predictions of bags whose labels are known: by cross-validation, or on held-out bags."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from bagwise.bags import Bags
from bagwise.evaluate import BagFolds, GroupFolds, score_predictions

METRICS = ("accuracy", "auc", "log_loss", "brier", "ece")


class Evaluation(NamedTuple):
    """True classes and predicted probabilities of bags the model had not seen.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.report import Evaluation
    >>> held_out = Evaluation("my test set", np.array([0, 1, 1]), np.array([0.2, 0.9, 0.6]))
    >>> held_out.metrics()["accuracy"]
    1.0
    """

    source: str
    y: Any  # [B] 0/1
    probability: Any  # [B]

    def metrics(self) -> dict[str, float]:
        """Accuracy, AUC, log-loss, Brier score and calibration error."""
        label = (self.probability > 0.5).astype(int)
        return score_predictions(
            self.y,
            label=label,
            score=self.probability,
            proba=self.probability,
            metrics=METRICS,
        )

    def as_json(self) -> dict[str, Any]:
        """For storing beside a model."""
        return {"source": self.source, "y": self.y.tolist(), "p": self.probability.tolist()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Evaluation:
        """What `as_json` stored."""
        return cls(stored["source"], np.asarray(stored["y"]), np.asarray(stored["p"], dtype=float))


def cross_validate(
    model: Any,
    bags: Bags,
    y: Any,
    *,
    n_splits: int = 5,
    patients: Any = None,
    instance_labels: Any = None,
    seed: int = 0,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] | None = None,
) -> Evaluation:
    """Predict every bag by a model trained without it (and without its patient's other bags).

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report.evaluation import cross_validate
    >>> bags, y = make_gaussian_bags(n_bags=30, random_state=0, return_X_y=True)
    >>> made = cross_validate(make_model("single-instance"), bags, y, n_splits=3)
    >>> made.source, sorted(made.metrics())
    ('3-fold cross-validation', ['accuracy', 'auc', 'brier', 'ece', 'log_loss'])
    """
    classes, codes = np.unique(y, return_inverse=True)
    fewest = int(np.bincount(codes).min())
    if not 2 <= n_splits <= fewest:
        rarest = classes[int(np.argmin(np.bincount(codes)))]
        raise ValueError(
            f"{n_splits}-fold cross-validation needs at least 2 folds and {n_splits} bags of "
            f"each class; class {rarest.item()!r} has {fewest}."
        )
    protocol = (BagFolds if patients is None else GroupFolds)(n_splits=n_splits, seeds=(seed,))
    splits = list(protocol.splits(bags, y, groups=patients))
    p = np.full(len(bags), np.nan)
    nested = None if instance_labels is None else bags.split(np.asarray(instance_labels))
    for split in progress(splits, len(splits)) if progress else splits:
        known = None if nested is None else np.concatenate([nested[i] for i in split.train])
        fitted = clone(model)
        fitted.fit(bags[split.train], y[split.train], **_labels(known))
        p[split.test] = _bag_probability(fitted, bags[split.test])
    kind = "cross-validation" if patients is None else "cross-validation by patient"
    return Evaluation(f"{n_splits}-fold {kind}", codes, p)


def _bag_probability(model: Any, bags: Bags) -> Any:
    """Probability of each bag; a model without probabilities cannot be evaluated this way."""
    if not hasattr(model, "predict_proba"):
        raise ValueError("the model gives no probabilities; set probability=True where it can.")
    return model.predict_proba(bags)[:, 1]


def evaluate_held_out(
    model: Any,
    bags: Bags,
    y: Any,
    source: str,
    class_names: Any = None,
    probability: Any = None,
) -> Evaluation:
    """Evaluate a fitted model on bags with labels; ``probability`` saves predicting them again."""
    classes = np.asarray(model.classes_ if class_names is None else class_names)
    unknown = [label for label in np.unique(y).tolist() if label not in classes.tolist()]
    if unknown:
        raise ValueError(
            f"the model knows the classes {classes.tolist()}; the labels have {unknown[0]!r}."
        )
    codes = (np.asarray(y) == classes[1]).astype(int)
    p = _bag_probability(model, bags) if probability is None else np.asarray(probability)
    return Evaluation(source, codes, p)


def _labels(known: Any) -> dict[str, Any]:
    return {} if known is None else {"instance_labels": known}
