"""Predictions of bags whose labels are known: by cross-validation, or on held-out bags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.evaluate import (
    Fold,
    Goal,
    Rates,
    choose_threshold,
    cross_fitted_rates,
    rates_at,
    score_predictions,
)

if TYPE_CHECKING:
    from bagwise.core.arrays import Column, Floats, Ints
    from bagwise.models.base import Model


METRICS = ("accuracy", "auc", "log_loss", "brier", "ece")
_NO_PROBABILITIES = "the model gives no probabilities; set calibrate=True where it can."


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
    y: Ints  # [B] 0/1
    probability: Floats  # [B]
    groups: Column | None = None  # [B] codes of patients, whose bags are not independent

    @property
    def has_both_classes(self) -> bool:
        """Whether rates, curves and thresholds exist."""
        return len(np.unique(self.y)) == 2

    def rates(self, threshold: float) -> Rates:
        """Sensitivity and specificity at a threshold that was not chosen on these bags."""
        return rates_at(self.y, self.probability, threshold)

    def recommended(self, goal: Goal | None = None) -> Rates:
        """The threshold these bags recommend for a goal, with rates counted honestly."""
        return cross_fitted_rates(self.y, self.probability, goal or Goal(), groups=self.groups)

    def threshold(self, goal: Goal) -> float:
        """The threshold these bags recommend for a goal."""
        return choose_threshold(self.y, self.probability, goal)

    def by_patient(self) -> Evaluation:
        """The same with patients in place of bags: the most probable bag speaks for its patient.

        A patient is positive when any of the bags is.
        """
        codes = self.groups
        assert codes is not None  # asked only where patients are known
        probability = np.zeros(int(codes.max()) + 1)
        np.maximum.at(probability, codes, self.probability)
        truth = (np.bincount(codes, weights=self.y) > 0).astype(int)
        return Evaluation(f"{self.source}, by patient", truth, probability)

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

    def as_json(self) -> dict[str, object]:
        """For storing beside a model."""
        stored = {"source": self.source, "y": self.y.tolist(), "p": self.probability.tolist()}
        return stored if self.groups is None else {**stored, "groups": self.groups.tolist()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Evaluation:
        """What `as_json` stored."""
        groups = stored.get("groups")
        return cls(
            stored["source"],
            np.asarray(stored["y"]),
            np.asarray(stored["p"], dtype=float),
            None if groups is None else np.asarray(groups),
        )

    @classmethod
    def from_folds(
        cls, folds: Sequence[Fold], source: str, patients: Column | None = None
    ) -> Evaluation:
        """The held-out predictions of one repetition of `evaluate.cross_validate`, in bag order.

        Examples
        --------
        >>> from bagwise.datasets import make_gaussian_bags
        >>> from bagwise.evaluate import BagFolds, cross_validate
        >>> from bagwise.models.registry import make_model
        >>> from bagwise.report import Evaluation
        >>> bags, y = make_gaussian_bags(n_bags=30, random_state=0, return_X_y=True)
        >>> folds = cross_validate(make_model("single-instance"), bags, y, BagFolds(3, (0,)))
        >>> made = Evaluation.from_folds(folds, "3-fold cross-validation")
        >>> made.y.tolist() == y.tolist(), sorted(made.metrics())
        (True, ['accuracy', 'auc', 'brier', 'ece', 'log_loss'])
        """
        if any(fold.bags.proba is None for fold in folds):
            raise ValueError(_NO_PROBABILITIES)
        order = np.argsort(np.concatenate([fold.split.test for fold in folds]))
        y = np.concatenate([fold.bags.y for fold in folds])[order]
        p = np.concatenate([np.asarray(fold.bags.proba) for fold in folds])[order]
        return cls(source, y, p, patient_codes(patients))


def patient_codes(patients: Column | None) -> Ints | None:
    """Patients as numbers: a model file must not carry their names."""
    return None if patients is None else np.unique(np.asarray(patients), return_inverse=True)[1]


def _bag_probability(model: Model, bags: Bags) -> Floats:
    """Probability of each bag; a model without probabilities cannot be evaluated this way."""
    if not hasattr(model, "predict_proba"):
        raise ValueError(_NO_PROBABILITIES)
    return model.predict_proba(bags)[:, 1]


def evaluate_held_out(
    model: Model,
    bags: Bags,
    y: Column,
    source: str,
    class_names: Sequence[object] | None = None,
    probability: Floats | None = None,
    patients: Column | None = None,
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
    return Evaluation(source, codes, p, patient_codes(patients))
