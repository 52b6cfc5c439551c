"""Probabilities for models that give scores: calibration on held-out bags.

An SVM's score is not a log-odds, and its sigmoid is not a probability. With ``calibrate=True`` a
model is fitted once more per fold of an inner cross-validation, and the scores of the bags that
were left out give the calibration function from score to probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if

from bagwise.core import segments
from bagwise.core.arrays import Floats
from bagwise.models.base import (
    BagClassifier,
    InstanceClassifier,
    TrainingData,
    check_scores,
    two_probabilities,
)
from bagwise.models.calibration.fit import Calibrator, fit_calibrator
from bagwise.models.held_out import CV, fitted_without, splits
from bagwise.models.parameters import parameter

if TYPE_CHECKING:
    from bagwise.bags import Bags, BagsLike, InstanceLabels


def gives_probabilities(model: CalibratedClassifier) -> bool:
    """Whether a model, fitted or not, has ``predict_proba``."""
    return model._gives_probabilities()


@dataclass(kw_only=True, eq=False, repr=False)
class CalibratedClassifier(BagClassifier):
    """A bag classifier whose subclass gives raw scores, and probabilities where asked for.

    A subclass implements ``_fit(data)`` and ``_raw_scores(bags)``, both on validated bags. With
    ``calibrate=True`` the decision function is the calibrated log-odds, so that it, ``predict`` and
    ``predict_proba`` agree.
    """

    calibrate: bool = parameter(True, "boolean")
    calibration: str = parameter("platt", StrOptions({"platt", "isotonic"}))
    cv: CV = parameter(None, "cv_object")
    # Whether fits to nearly the same bags differ by a constant, so that held-out scores must first
    # be shifted to the model itself, by the mean scores of the training bags of each.
    _level_drifts: ClassVar[bool] = False

    def fit(self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None) -> Self:
        """Fit on labelled bags.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays or 3-d array
        y : array of shape (n_bags,)
        instance_labels : optional, one per instance; missing means unknown or None, default=None
            A model that ranks instances learns from a labelled instance of a positive bag as
            from a bag of one; the others check the labels and do not use them.
        """
        data = self._validate_fit(bags, y, instance_labels)
        self._fit(data)
        self._calibrate(data)
        return self

    def _fit(self, data: TrainingData) -> None:
        """Learn from validated bags, without calibration."""
        raise AttributeError(f"{type(self).__name__} does not learn")

    def _raw_scores(self, bags: Bags) -> Any:
        """Uncalibrated score of each bag; > 0 means positive."""
        raise AttributeError(f"{type(self).__name__} has no raw scores")

    def _gives_probabilities(self) -> bool:
        return bool(self.calibrate)

    def _calibrate(self, data: TrainingData, bag_weights: Floats | None = None) -> None:
        """Set ``calibrator_`` from scores of bags left out by the inner cross-validation."""
        self.calibrator_: Calibrator | None = None
        if not self.calibrate:
            return
        counts = np.bincount(data.y)
        if counts.min() < 2:
            raise ValueError(
                "calibrate=True needs at least 2 bags of each class to cross-validate; "
                f"got {counts.tolist()}."
            )
        self.calibrator_ = self._fit_calibrator(self._held_out_scores(data, bag_weights), data)

    def _fit_calibrator(self, scores: Floats, data: TrainingData) -> Calibrator:
        return fit_calibrator(scores, data.y, kind=self.calibration)

    def _held_out_scores(self, data: TrainingData, bag_weights: Floats | None = None) -> Floats:
        """Score of each bag by a fit without it, [B]."""
        bags, scores = data.bags, np.empty(len(data.y))
        plain = clone(self).set_params(calibrate=False)
        folds = splits(data.y, self.cv)
        for model, train, test in fitted_without(plain, data, self.classes_, folds, bag_weights):
            scores[test] = model.decision_function(bags[test])
            if self._level_drifts:
                scores[test] -= model.decision_function(bags[train]).mean()
        return scores + self._raw_scores(bags).mean() if self._level_drifts else scores

    def _calibrated(self, scores: Floats) -> Floats:
        return scores if self.calibrator_ is None else self.calibrator_.log_odds(scores)

    def decision_function(self, bags: BagsLike) -> Floats:
        """Score of each bag, > 0 means ``classes_[1]``; log-odds with ``calibrate=True``.

        Returns
        -------
        scores : array of shape (n_bags,), or (n_bags, n_classes)
        """
        bags = self._validate_predict(bags)
        return check_scores(self._calibrated(self._raw_scores(bags)), bags)

    @available_if(gives_probabilities)
    def predict_proba(self, bags: BagsLike) -> Floats:
        """Class probabilities of each bag, shape (n_bags, 2); needs ``calibrate=True``.

        Returns
        -------
        p : array of shape (n_bags, n_classes)
        """
        return two_probabilities(self.decision_function(bags))


class BestInstanceClassifier(CalibratedClassifier, InstanceClassifier):
    """A calibrated classifier whose bags score as their best instance does.

    A subclass implements ``_raw_instance_scores(bags)`` on validated bags; the calibration of
    the bags then serves the instances too.
    """

    def _raw_instance_scores(self, bags: Bags) -> Any:
        """Uncalibrated score of each instance; > 0 means positive."""
        raise AttributeError(f"{type(self).__name__} has no raw scores of instances")

    def _raw_scores(self, bags: Bags) -> Floats:
        return segments.max(self._raw_instance_scores(bags), bags.offsets)

    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """Score of each instance; the bag's score is the largest of its instances'.

        Returns
        -------
        scores : array of shape (n_instances,), or (n_instances, n_classes)
        """
        bags = self._validate_predict(bags)
        return check_scores(self._calibrated(self._raw_instance_scores(bags)), bags)

    @available_if(gives_probabilities)
    def predict_proba_instances(self, bags: BagsLike) -> Floats:
        """Class probabilities of each instance, by the calibration of the bags.

        Returns
        -------
        p : array of shape (n_instances, n_classes)
        """
        return two_probabilities(self.decision_function_instances(bags))
