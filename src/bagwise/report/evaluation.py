"""Predictions of bags whose labels are known: by cross-validation, or on held-out bags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Floats, Ints
from bagwise.evaluate import (
    Fold,
    Goal,
    Rates,
    choose_threshold,
    cross_fitted_rates,
    rates_at,
    score_predictions,
)
from bagwise.evaluate.metrics import (
    SHOWN_METRICS,
    as_columns,
    call_classes,
    class_columns,
    targets,
)
from bagwise.models.base import Model
from bagwise.report.predictions import NO_PROBABILITIES, ClassColumn, class_axis


@dataclass(eq=False)
class Evaluation:
    """True classes and predicted probabilities of bags the model had not seen.

    Parameters
    ----------
    source : str
        Where the predictions are from, such as "3-fold cross-validation".
    y, probability : arrays of shape (n_bags,) or (n_bags, n_classes)
        0 or 1, and the probability of 1; kept with a class axis, [B, F]. Two classes have one
        column, that of the positive class.
    classes : sequence, default=(0, 1)
        Names of all classes.
    groups : array of int, shape (n_bags,) or None, default=None
        Numbers of the patients, whose bags are not independent.

    Examples
    --------
    >>> from bagwise.report import Evaluation
    >>> held_out = Evaluation("my test set", [0, 1, 1], [0.2, 0.9, 0.6])
    >>> held_out.metrics()["accuracy"], held_out.y.shape
    (1.0, (3, 1))
    """

    source: str
    y: Any
    probability: Any
    classes: Sequence[Any] = (0, 1)
    groups: Any = None

    def __post_init__(self) -> None:
        self.y = as_columns(self.y)
        self.probability = as_columns(self.probability).astype(np.float64)

    @property
    def axis(self) -> list[ClassColumn]:
        """What the columns of the class axis stand for, [F]."""
        return class_axis(self.classes, multilabel=self.y.shape[1] == len(self.classes))

    @property
    def exclusive(self) -> bool:
        """Whether every bag has one of several classes."""
        return self.y.shape[1] > 1 and bool((self.y.sum(axis=1) == 1).all())

    @property
    def has_both_classes(self) -> bool:
        """Whether there are bags with and without a class: rates, curves and thresholds exist."""
        return any(self.has_both(number) for number in range(self.y.shape[1]))

    def has_both(self, number: int) -> bool:
        """Whether there are bags with and without one class."""
        return len(np.unique(self.y[:, number])) == 2

    def rates(self, threshold: float, number: int = 0) -> Rates:
        """Sensitivity and specificity of a class at a threshold not chosen on these bags."""
        return rates_at(self.y[:, number], self.probability[:, number], threshold)

    def recommended(self, goal: Goal | None = None, number: int = 0) -> Rates:
        """The threshold these bags recommend for a class, with its out-of-fold rates."""
        y, p = self.y[:, number], self.probability[:, number]
        return cross_fitted_rates(y, p, goal or Goal(), groups=self.groups)

    def threshold(self, goal: Goal, number: int = 0) -> float:
        """The threshold these bags recommend for a class and a goal."""
        return choose_threshold(self.y[:, number], self.probability[:, number], goal)

    def by_patient(self) -> Evaluation:
        """The same with patients in place of bags, each with its most probable bag.

        A patient is positive when any of the bags is.
        """
        codes = self.groups
        assert codes is not None  # asked only where patients are known
        shape = (int(codes.max()) + 1, self.y.shape[1])
        truth, probability = np.zeros(shape, dtype=int), np.zeros(shape)  # [P, F]
        np.maximum.at(truth, codes, self.y)
        np.maximum.at(probability, codes, self.probability)
        return Evaluation(f"{self.source}, by patient", truth, probability, self.classes)

    def metrics(self) -> dict[str, float]:
        """Accuracy, AUC, log-loss, Brier score and calibration error; see `score_predictions`."""
        p = self.probability  # [B, F], also the scores that rank
        called = call_classes(p, self.exclusive)
        return score_predictions(self.y, label=called, score=p, proba=p, metrics=SHOWN_METRICS)

    def per_class(self, goal: Goal | None = None) -> pd.DataFrame:
        """A row per class: bags, AUC, and the threshold these bags recommend, with its rates."""
        rows = []
        for number, column in enumerate(self.axis):
            y, p = self.y[:, number], self.probability[:, number]
            row: dict[str, Any] = {"class": column.positive, "bags": int(y.sum())}
            if self.has_both(number):
                best = self.recommended(goal, number)
                row |= {
                    "auc": score_predictions(y, score=p, metrics=["auc"])["auc"],
                    "threshold": best.threshold,
                    "sensitivity": best.sensitivity.value,
                    "specificity": best.specificity.value,
                }
            rows.append(row)
        columns = ["class", "bags", "auc", "threshold", "sensitivity", "specificity"]
        return pd.DataFrame(rows, columns=columns)

    def confusion(self) -> Ints | None:
        """How many bags of each class (rows) were called which; None unless exclusive, [F, F]."""
        return self.y.T @ call_classes(self.probability, True) if self.exclusive else None

    def as_json(self) -> dict[str, object]:
        """For storing beside a model."""
        stored = {
            "source": self.source,
            "classes": np.asarray(self.classes).tolist(),
            "y": self.y.tolist(),
            "p": self.probability.tolist(),
        }
        return stored if self.groups is None else {**stored, "groups": self.groups.tolist()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Evaluation:
        """What `as_json` stored."""
        groups = stored.get("groups")
        groups = None if groups is None else np.asarray(groups)
        return cls(stored["source"], stored["y"], stored["p"], stored["classes"], groups)

    @classmethod
    def from_folds(
        cls,
        folds: Sequence[Fold],
        source: str,
        patients: Column | None = None,
        classes: Sequence[Any] = (0, 1),
    ) -> Evaluation:
        """The out-of-fold predictions of one repetition of `cross_validate`, in bag order.

        Examples
        --------
        >>> from bagwise.datasets import make_gaussian_bags
        >>> from bagwise.evaluate import BagFolds, cross_validate
        >>> from bagwise.models.registry import make_model
        >>> from bagwise.report import Evaluation
        >>> bags, y = make_gaussian_bags(n_bags=30, random_state=0, return_X_y=True)
        >>> folds = cross_validate(make_model("single-instance"), bags, y, BagFolds(3, (0,)))
        >>> evaluation = Evaluation.from_folds(folds, "3-fold cross-validation")
        >>> evaluation.y[:, 0].tolist() == y.tolist(), sorted(evaluation.metrics())
        (True, ['accuracy', 'auc', 'brier', 'ece', 'log_loss'])
        """
        if any(fold.bags.proba is None for fold in folds):
            raise ValueError(NO_PROBABILITIES)
        # Every bag is tested once: sorted by number, predictions are in bag order.
        order = np.argsort(np.concatenate([fold.split.test for fold in folds]))
        y = np.concatenate([fold.bags.y for fold in folds])[order]
        p = np.concatenate([np.asarray(fold.bags.proba) for fold in folds])[order]
        return cls(source, y, p, classes, _patient_codes(patients))


def _patient_codes(patients: Column | None) -> Ints | None:
    """Patients as numbers: a model file must not carry their names."""
    return None if patients is None else np.unique(np.asarray(patients), return_inverse=True)[1]


def evaluate_held_out(
    model: Model,
    bags: Bags,
    y: Column,
    source: str,
    class_names: Sequence[object] | None = None,
    probability: Floats | None = None,
    patients: Column | None = None,
) -> Evaluation:
    """Evaluate a fitted model on bags with labels.

    Parameters
    ----------
    model : fitted bag classifier
        With probabilities.
    bags : Bags
    y : array of shape (n_bags,) or (n_bags, n_classes)
        Classes of the model, or an indicator matrix of them.
    source : str
        As in `Evaluation`.
    class_names : sequence or None, default=None
        Names of the model's classes in ``y``, where they differ.
    probability : array of shape (n_bags, F) or None, default=None
        Saves predicting the bags again.
    patients : array of shape (n_bags,) or None, default=None

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report import evaluate_held_out
    >>> bags, y = make_gaussian_bags(n_bags=30, random_state=0, return_X_y=True)
    >>> model = make_model("single-instance").fit(bags[:20], y[:20])
    >>> evaluate_held_out(model, bags[20:], y[20:], "my test set").y.shape
    (10, 1)
    """
    truth = targets(y, model, class_names)
    if probability is None:
        if not hasattr(model, "predict_proba"):
            raise ValueError(NO_PROBABILITIES)
        probability = model.predict_proba(bags)[:, class_columns(model)]
    classes = np.asarray(model.classes_ if class_names is None else class_names).tolist()
    return Evaluation(source, truth, probability, classes, _patient_codes(patients))
