"""Probabilities for models that give scores: calibration on held-out bags.

An SVM's score is not a log-odds, and its sigmoid is not a probability. With
``probability=True`` a model is fitted once more per fold of an inner cross-validation, and the
scores of the bags that were left out give the map from score to probability.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from scipy.special import expit
from sklearn.base import clone
from sklearn.model_selection import BaseCrossValidator, StratifiedKFold, check_cv
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if

from bagwise.core import segments
from bagwise.core.isotonic import Isotonic, fit_isotonic
from bagwise.core.platt import Platt, fit_platt, keep_ranking
from bagwise.models.base import (
    BagClassifier,
    Constraints,
    InstanceClassifier,
    TrainingData,
    two_columns,
)

if TYPE_CHECKING:
    from bagwise.bags import Bags, BagsLike
    from bagwise.core.arrays import Bools, Codes, Floats, Ints


# Folds of an inner cross-validation: their number, a splitter, or the splits themselves.
CV: TypeAlias = "int | BaseCrossValidator | Iterable[tuple[Ints, Ints]]"


def _wants_probability(model: CalibratedClassifier) -> bool:
    return bool(model.probability)


class CalibratedClassifier(BagClassifier):
    """A bag classifier whose subclass gives raw scores, and probabilities where asked for.

    A subclass has the parameters ``probability``, ``calibration`` and ``cv``, implements
    ``_raw_scores(bags)`` on validated bags, and calls ``_calibrate(data)`` at the end of
    ``fit``. With ``probability=True`` the decision function is the calibrated log-odds, so that
    it, ``predict`` and ``predict_proba`` tell one story.
    """

    _calibration_constraints: ClassVar[Constraints] = {
        "probability": ["boolean"],
        "calibration": [StrOptions({"platt", "isotonic"})],
        "cv": ["cv_object"],
    }
    probability: bool
    calibration: str
    cv: CV

    def _raw_scores(self, bags: Bags) -> Any:
        """Uncalibrated score of each bag; > 0 means positive."""
        raise AttributeError(f"{type(self).__name__} has no raw scores")

    def _calibrate(self, data: TrainingData) -> None:
        """Set ``calibration_`` from scores of bags left out by the inner cross-validation."""
        if self.probability:
            self._set_calibration(self._held_out_scores(data), data.y)

    def _set_calibration(self, scores: Floats, y: Codes | Bools | Floats) -> None:
        if self.calibration == "isotonic":
            self.calibration_: Isotonic | Platt = fit_isotonic(scores, y)
        else:
            # Where the held-out scores say nothing the best slope is 0; a hint keeps the ranking.
            self.calibration_ = keep_ranking(fit_platt(scores, y), scores)

    def _held_out_scores(self, data: TrainingData) -> Floats:
        bags, y, known = data
        labels = bags.split(self._label_names(known))
        scores = np.full(len(bags), np.nan)
        for train, test in self._inner_splits(y):
            # The bags of ``data`` are scaled already, where the model scales.
            scaled = {"scale": None} if "scale" in self.get_params() else {}
            model = clone(self).set_params(probability=False, **scaled)
            given = [labels[i] for i in train] if (known >= 0).any() else None
            model.fit(bags[train], self.classes_[y[train]], instance_labels=given)
            scores[test] = model.decision_function(bags[test])
        return self._complete(scores)

    def _complete(self, scores: Floats) -> Floats:
        """The held-out scores, or an error where a bag has none."""
        if np.isnan(scores).any():
            raise ValueError(
                "cv must put every bag into one test fold, so that each has a held-out score; "
                f"{int(np.isnan(scores).sum())} of {len(scores)} bags were in none."
            )
        return scores

    def _inner_splits(self, y: Ints) -> Any:
        rarest = int(np.bincount(y).min())
        if rarest < 2:
            raise ValueError(
                "probability=True needs at least 2 bags of each class to cross-validate; "
                f"got {np.bincount(y).tolist()}."
            )
        if self.cv is None or isinstance(self.cv, int):
            n_splits = min(5 if self.cv is None else self.cv, rarest)
            # A fixed shuffle: bags often come sorted, and a fit must repeat itself.
            return StratifiedKFold(n_splits, shuffle=True, random_state=0).split(y, y)
        return check_cv(self.cv, y, classifier=True).split(y, y)

    def _calibrated(self, scores: Floats) -> Floats:
        return self.calibration_.log_odds(scores) if self.probability else scores

    def decision_function(self, bags: BagsLike) -> Floats:
        """Score of each bag, > 0 means ``classes_[1]``; log-odds with ``probability=True``."""
        return self._calibrated(self._raw_scores(self._validate_predict(bags)))

    @available_if(_wants_probability)
    def predict_proba(self, bags: BagsLike) -> Floats:
        """Class probabilities of each bag, shape (n_bags, 2); needs ``probability=True``."""
        return two_columns(expit(self.decision_function(bags)))


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
        """Score of each instance; the bag's score is the largest of its instances'."""
        return self._calibrated(self._raw_instance_scores(self._validate_predict(bags)))

    @available_if(_wants_probability)
    def predict_proba_instances(self, bags: BagsLike) -> Floats:
        """Class probabilities of each instance, by the calibration of the bags."""
        return two_columns(expit(self.decision_function_instances(bags)))
