"""Probabilities for models that give scores: calibration on held-out bags.

An SVM's score is not a log-odds, and its sigmoid is not a probability. With
``calibrate=True`` a model is fitted once more per fold of an inner cross-validation, and the
scores of the bags that were left out give the map from score to probability.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import BaseCrossValidator, StratifiedKFold, check_cv
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if

from bagwise.core import segments
from bagwise.core.isotonic import Isotonic, fit_isotonic
from bagwise.core.platt import (
    Platt,
    calibration_folds,
    compress_beyond,
    fit_instance_platt,
    fit_shrunk_platt,
    typical_range,
)
from bagwise.models.base import (
    BagClassifier,
    InstanceClassifier,
    TrainingData,
    two_probabilities,
)
from bagwise.models.parameters import parameter

if TYPE_CHECKING:
    from bagwise.bags import Bags, BagsLike
    from bagwise.core.arrays import Bools, Codes, Floats, Ints


# Folds of an inner cross-validation: their number, a splitter, or the splits themselves; None is
# as many as `core.platt.calibration_folds` says.
CV: TypeAlias = "int | BaseCrossValidator | Iterable[tuple[Ints, Ints]] | None"


def _is_calibrated(model: CalibratedClassifier) -> bool:
    return bool(model.calibrate)


@dataclass(kw_only=True, eq=False, repr=False)
class CalibratedClassifier(BagClassifier):
    """A bag classifier whose subclass gives raw scores, and probabilities where asked for.

    A subclass has the parameters ``calibrate``, ``calibration`` and ``cv``, implements
    ``_raw_scores(bags)`` on validated bags, and calls ``_calibrate(data)`` at the end of
    ``fit``. With ``calibrate=True`` the decision function is the calibrated log-odds, so that
    it, ``predict`` and ``predict_proba`` tell one story.
    """

    calibrate: bool = parameter(True, "boolean")
    calibration: str = parameter("platt", StrOptions({"platt", "isotonic"}))
    cv: CV = parameter(None, "cv_object")
    # Whether fits to nearly the same bags differ in level, so that held-out scores must first be
    # moved to the level of the model itself, by the mean scores of the training bags of each.
    _level_drifts: ClassVar[bool] = False

    def _raw_scores(self, bags: Bags) -> Any:
        """Uncalibrated score of each bag; > 0 means positive."""
        raise AttributeError(f"{type(self).__name__} has no raw scores")

    def _calibrate(self, data: TrainingData) -> None:
        """Set ``calibration_`` from scores of bags left out by the inner cross-validation."""
        if self.calibrate:
            self._set_calibration(self._held_out_scores(data), data.y)

    def _set_calibration(self, scores: Floats, y: Codes | Bools | Floats) -> None:
        self.score_range_ = typical_range(scores, y)
        scores = compress_beyond(scores, *self.score_range_)
        if self.calibration == "isotonic":
            self.calibration_: Isotonic | Platt = fit_isotonic(scores, y)
        else:
            self.calibration_ = fit_shrunk_platt(scores, y)

    def _held_out_scores(self, data: TrainingData) -> Floats:
        bags, scores = data.bags, np.full(len(data.y), np.nan)
        unfitted = clone(self).set_params(calibrate=False)
        splits = self._inner_splits(data.y)
        for model, train, test in fitted_without(unfitted, data, splits, self.classes_):
            scores[test] = model.decision_function(bags[test])
            if self._level_drifts:
                scores[test] -= model.decision_function(bags[train]).mean()
        if self._level_drifts:
            scores += self._raw_scores(bags).mean()
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
                "calibrate=True needs at least 2 bags of each class to cross-validate; "
                f"got {np.bincount(y).tolist()}."
            )
        if self.cv is None or isinstance(self.cv, int):
            return shuffled_folds(y, self.cv)
        return check_cv(self.cv, y, classifier=True).split(y, y)

    def _calibrated(self, scores: Floats) -> Floats:
        if not self.calibrate:
            return scores
        return self.calibration_.log_odds(compress_beyond(scores, *self.score_range_))

    def decision_function(self, bags: BagsLike) -> Floats:
        """Score of each bag, > 0 means ``classes_[1]``; log-odds with ``calibrate=True``."""
        return self._calibrated(self._raw_scores(self._validate_predict(bags)))

    @available_if(_is_calibrated)
    def predict_proba(self, bags: BagsLike) -> Floats:
        """Class probabilities of each bag, shape (n_bags, 2); needs ``calibrate=True``."""
        return two_probabilities(self.decision_function(bags))


def shuffled_folds(y: Any, n_splits: int | None = None) -> Any:
    """Stratified folds, as many as the rarer class allows; by default `calibration_folds`.

    A fixed shuffle: bags often come sorted, and a fit must repeat itself.
    """
    n_splits = calibration_folds(y) if n_splits is None else n_splits
    n_splits = min(n_splits, int(np.bincount(y).min()))
    return StratifiedKFold(n_splits, shuffle=True, random_state=0).split(y, y)


def fitted_without(
    model: Any, data: TrainingData, splits: Any, classes: Any, bag_weights: Any = None
) -> Iterator[tuple[Any, Any, Any]]:
    """Clones of a model fitted to the training bags of each split, its training and test bags.

    Each clone scales the features by its own training bags. A scaling that had seen the bags left
    out would keep them from being outliers, which new bags can be.
    """
    bags, y, known = data
    names = np.array([*classes, None], dtype=object)[known]  # code -1 is the last
    labels = bags.split(names) if (known >= 0).any() else None
    for train, test in splits:
        given = {} if labels is None else {"instance_labels": [labels[i] for i in train]}
        if bag_weights is not None:
            given["sample_weight"] = bag_weights[train]
        fitted = clone(model)
        with warnings.catch_warnings():
            # Said once, of all bags.
            warnings.filterwarnings("ignore", "feature.* alone .*the label of every bag")
            fitted.fit(bags[train], classes[y[train]], **given)
        yield fitted, train, test


@dataclass(kw_only=True, eq=False, repr=False)
class CalibratesWrapped(BagClassifier):
    """A classifier around one of scikit-learn's, whose scores it maps to log-odds."""

    calibrate: bool = parameter(True, "boolean")

    def _calibrate_wrapped(self, data: TrainingData, rule: str, bag_weights: Any = None) -> None:
        """Set the map and where it was learned, or neither where it is not asked for."""
        self.calibration_: Platt | None = None
        self.score_range_: tuple[float, float] | None = None
        if not self.calibrate:
            return
        unfitted = clone(self).set_params(calibrate=False)
        found = calibrate_wrapped(unfitted, data, rule, bag_weights)
        if found is not None:
            self.calibration_, self.score_range_ = found

    def _calibrated(self, scores: Floats) -> Floats:
        """Log-odds of scores; one far outside those that were held out is not as far sure."""
        if self.calibration_ is None:
            return scores
        if self.score_range_ is not None:
            scores = compress_beyond(scores, *self.score_range_)
        return self.calibration_.log_odds(scores)


def calibrate_wrapped(
    model: Any, data: TrainingData, rule: str, bag_weights: Any = None
) -> tuple[Platt, tuple[float, float]] | None:
    """The map of the scores that a wrapped classifier gives bags of folds left out in turn.

    With it comes the range in which these scores mostly lie.

    ``model`` is unfitted and uncalibrated. Where it scores instances, the map is that of the
    instances, such that calibrated instances still make their bag by ``rule``; under "bag" it is
    that of the bags. None, and a warning, where a class has one bag only.
    """
    if np.bincount(data.y).min() < 2:
        warnings.warn(
            "calibration needs 2 bags of each class, one to hold out and one to learn from; the "
            "probabilities are left uncalibrated. calibrate=False asks for that.",
            stacklevel=3,
        )
        return None
    bags, of_bags = data.bags, rule == "bag"
    scores = np.empty(len(bags) if of_bags else bags.n_instances)
    classes = np.array([0, 1])
    folds = shuffled_folds(data.y)
    for fitted, _, test in fitted_without(model, data, folds, classes, bag_weights):
        if of_bags:
            scores[test] = fitted.decision_function(bags[test])
        else:
            rows, _ = segments.take(bags.offsets, test)
            scores[rows] = fitted.decision_function_instances(bags[test])
    offsets = np.arange(len(bags) + 1) if of_bags else bags.offsets
    low, _ = typical_range(scores, segments.spread(data.y, offsets))
    _, high = typical_range(segments.max(scores, offsets), data.y)
    scores = compress_beyond(scores, low, high)
    if of_bags:
        return fit_shrunk_platt(scores, data.y), (low, high)
    return fit_instance_platt(scores, offsets, data.y, rule), (low, high)


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

    @available_if(_is_calibrated)
    def predict_proba_instances(self, bags: BagsLike) -> Floats:
        """Class probabilities of each instance, by the calibration of the bags."""
        return two_probabilities(self.decision_function_instances(bags))
