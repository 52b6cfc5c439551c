"""Models around one of scikit-learn's classifiers: on instances, and on the statistics of bags."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils._param_validation import HasMethods

from bagwise.bags import Bags, BagsLike, InstanceLabels
from bagwise.core import rules, segments
from bagwise.core.arrays import Floats, Rows
from bagwise.models.base import TrainingData, check_scores
from bagwise.models.calibration.calibrated import BestInstanceClassifier, CalibratedClassifier
from bagwise.models.calibration.fit import Calibrator, fit_calibrator
from bagwise.models.feature_checks import check_bag_weights
from bagwise.models.held_out import fitted_without, splits
from bagwise.models.parameters import BAG_RULES, parameter
from bagwise.models.pipeline import BagStatistics
from bagwise.models.scaling import ScalesFeatures


@dataclass(kw_only=True, eq=False, repr=False)
class WrappingClassifier(CalibratedClassifier):
    """A bag classifier around one of scikit-learn's, whose own probabilities may do.

    A subclass has ``_default_estimator``, and sets ``estimator_``.
    """

    estimator: BaseEstimator | None = parameter(
        None, HasMethods(["fit", "predict"]), None, kw_only=False
    )

    def _default_estimator(self) -> BaseEstimator:
        raise AttributeError(f"{type(self).__name__} has no default estimator")

    def _unfitted(self) -> BaseEstimator:
        """The classifier to train: the user's, or the default."""
        return clone(self._default_estimator() if self.estimator is None else self.estimator)

    def _gives_probabilities(self) -> bool:
        wrapped = getattr(self, "estimator_", None) or self._unfitted()
        return self.calibrate or hasattr(wrapped, "predict_proba")

    def _calibrate(self, data: TrainingData, bag_weights: Floats | None = None) -> None:
        self.calibrator_ = None
        if self.calibrate and np.bincount(data.y).min() < 2:
            warnings.warn(
                "calibration needs 2 bags of each class, one to hold out and one to learn from; "
                "the probabilities are left uncalibrated. pass calibrate=False to have them so.",
                stacklevel=3,
            )
        else:
            super()._calibrate(data, bag_weights)

    def _scores_of_rows(self, rows: Rows) -> Floats:
        """The classifier's log-odds of rows, or its own score where it has no probabilities."""
        if hasattr(self.estimator_, "predict_proba"):
            return rules.log_odds(self.estimator_.predict_proba(rows)[:, 1])
        return self.estimator_.decision_function(rows)


@dataclass(kw_only=True, eq=False, repr=False)
class SingleInstance(WrappingClassifier, ScalesFeatures, BestInstanceClassifier):
    """Any scikit-learn classifier trained on instances with inherited bag labels.

    The simplest baseline, and a strong one where most instances of a positive bag are positive.

    Parameters
    ----------
    estimator : scikit-learn classifier or None, default=None
        Needs ``predict_proba`` or ``decision_function``. Default: a logistic regression with
        balanced classes, because large positive bags flood the inherited labels.
    bag_rule : {"max", "noisy-or"}, default="max"
        How instance scores become a bag score. "noisy-or" needs probabilities.
    scale : {"feature", "global", None}, default="feature"
        Standardise each feature, or divide all by one number; learned from the training bags.
    calibrate : bool, default=True
        Calibrate the scores of the instances such that the labels of held-out bags, made by
        ``bag_rule``, are most likely: a classifier that took every instance of a positive bag for
        positive is far from a probability of its own. Costs five more fits. False gives the
        classifier's own probabilities, where it has them.
    calibration : {"platt", "isotonic"}, default="platt"
        The calibration function; "isotonic" needs ``bag_rule="max"``.
    cv : int, splitter or None, default=None
        As in `MISVM`.

    Attributes
    ----------
    estimator_ : the fitted classifier
    calibrator_ : Calibrator or None
        The calibration function of the scores.
    classes_ : the two bag classes

    See Also
    --------
    StatisticsClassifier, AutoVGPMIL

    Examples
    --------
    >>> from sklearn.svm import SVC
    >>> from bagwise import SingleInstance
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> model = SingleInstance(SVC()).fit(bags, y)
    >>> model.predict(bags).shape, model.predict_instances(bags).shape == (bags.n_instances,)
    ((40,), True)
    """

    _accept_sparse = True
    bag_rule: str = parameter("max", *BAG_RULES)

    def _default_estimator(self) -> BaseEstimator:
        return LogisticRegression(C=0.1, class_weight="balanced", max_iter=5000)

    def fit(
        self,
        bags: BagsLike,
        y: ArrayLike,
        instance_labels: InstanceLabels = None,
        sample_weight: Floats | None = None,
    ) -> SingleInstance:
        """Fit the classifier on instances; known instance labels replace inherited ones.

        ``sample_weight`` is per bag; each instance counts with the weight of its bag. The
        calibration counts every bag with a weight once.
        """
        data = self._validate_fit(bags, y, instance_labels)
        bags, y, known = data
        estimator = self._unfitted()
        takes_scores = rules.RULES[self.bag_rule].takes_scores
        if not (takes_scores or hasattr(estimator, "predict_proba")):
            raise ValueError(
                f"bag_rule={self.bag_rule!r} needs instance probabilities, but "
                f"{type(estimator).__name__} has no predict_proba; use bag_rule='max'."
            )
        weights, of_rows = None, {}
        if sample_weight is not None:
            weights = check_bag_weights(sample_weight, bags, estimator)
            of_rows["sample_weight"] = segments.spread(weights, bags.offsets)
        labels = rules.inherited_labels(y, known, bags.offsets)
        self.estimator_ = estimator.fit(bags.instances, labels, **of_rows)
        if weights is not None:  # bags without a weight calibrate nothing
            chosen = np.flatnonzero(weights > 0)
            rows, _ = segments.take(bags.offsets, chosen)
            data, weights = TrainingData(bags[chosen], y[chosen], known[rows]), weights[chosen]
        self._calibrate(data, weights)
        return self

    def _fit_calibrator(self, scores: Floats, data: TrainingData) -> Calibrator:
        return fit_calibrator(scores, data.y, data.bags.offsets, self.bag_rule, self.calibration)

    def _held_out_scores(self, data: TrainingData, bag_weights: Floats | None = None) -> Floats:
        """Scores of all instances by fits without their bags, [N]."""
        bags, scores = data.bags, np.empty(data.bags.n_instances)
        plain = clone(self).set_params(calibrate=False)
        folds = splits(data.y, self.cv)
        for model, _, test in fitted_without(plain, data, self.classes_, folds, bag_weights):
            rows, _ = segments.take(bags.offsets, test)
            scores[rows] = model.decision_function_instances(bags[test])
        return scores

    def _raw_instance_scores(self, bags: Bags) -> Floats:
        return self._scores_of_rows(bags.instances)

    def decision_function(self, bags: BagsLike) -> Floats:
        """Score of each bag by the bag rule.

        Returns
        -------
        scores : array of shape (n_bags,), or (n_bags, n_classes)
        """
        bags = self._validate_predict(bags)
        scores = check_scores(self._calibrated(self._raw_instance_scores(bags)), bags)
        return rules.bag_log_odds(scores, bags.offsets, self.bag_rule)


class StatisticsClassifier(WrappingClassifier):
    """A scikit-learn classifier on the mean, minimum and maximum of each feature in a bag.

    The baseline that every multiple-instance model must beat: it sees the bag as one row and
    does not rank instances.

    Parameters
    ----------
    estimator : scikit-learn classifier or None, default=None
        Trained on the standardised statistics. Default: a logistic regression with C = 0.1.
    calibrate : bool, default=True
        Calibrate the scores on held-out bags: a hundred bags with hundreds of statistics can be
        separated by chance, and the classifier's own probabilities are then over-confident. False
        gives these, where the classifier has them.
    calibration, cv : as in `CitationKNN`, default="platt", None
        As in `MISVM`.

    Attributes
    ----------
    estimator_ : the fitted pipeline of scaling and classifier
    calibrator_ : Calibrator or None
        The calibration function of the scores.
    classes_ : the two bag classes

    See Also
    --------
    BagStatistics, SingleInstance

    References
    ----------
    [Gaertner2002]_

    Notes
    -----
    ``instance_labels`` are checked but carry nothing for this model.

    Examples
    --------
    >>> from bagwise import StatisticsClassifier
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> StatisticsClassifier().fit(bags, y).predict_proba(bags).shape
    (40, 2)
    """

    def _default_estimator(self) -> BaseEstimator:
        return LogisticRegression(C=0.1, max_iter=5000)

    def _fit(self, data: TrainingData) -> None:
        self.statistics_ = BagStatistics().fit(data.bags)
        self.estimator_ = make_pipeline(StandardScaler(), self._unfitted())
        self.estimator_.fit(self.statistics_.transform(data.bags), data.y)

    def _raw_scores(self, bags: Bags) -> Floats:
        return self._scores_of_rows(self.statistics_.transform(bags))
