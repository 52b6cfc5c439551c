"""Single-instance learning: every instance inherits the label of its bag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils._param_validation import HasMethods, StrOptions
from sklearn.utils.metaestimators import available_if

from bagwise.bags import Bags, BagsLike, InstanceLabels
from bagwise.core import rules, segments
from bagwise.models.base import InstanceClassifier, TrainingData, two_probabilities
from bagwise.models.calibrated import CalibratesWrapped
from bagwise.models.feature_checks import check_bag_weights
from bagwise.models.parameters import parameter
from bagwise.models.scaled import ScalesFeatures

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from bagwise.core.arrays import Floats


def _has_probabilities(model: Any) -> bool:
    return model.calibrate or hasattr(
        getattr(model, "estimator_", None) or model._estimator(), "predict_proba"
    )


def _weighed(data: TrainingData, weights: Any) -> tuple[TrainingData, Any]:
    """The bags that have a weight, and their weights."""
    chosen = np.flatnonzero(weights > 0)
    rows, _ = segments.take(data.bags.offsets, chosen)
    kept = TrainingData(data.bags[chosen], data.y[chosen], data.instance_labels[rows])
    return kept, weights[chosen]


@dataclass(kw_only=True, eq=False, repr=False)
class SingleInstance(CalibratesWrapped, ScalesFeatures, InstanceClassifier):
    """Any scikit-learn classifier trained on instances with inherited bag labels.

    The simplest baseline, and a strong one where most instances of a positive bag are positive.

    Parameters
    ----------
    estimator : scikit-learn classifier, optional
        Needs ``predict_proba`` or ``decision_function``. Default: a logistic regression with
        balanced classes, because large positive bags flood the inherited labels.
    bag_rule : {"max", "noisy-or"}
        How instance scores become a bag score. "noisy-or" needs probabilities.
    scale : {"feature", "global", None}
        Standardise each feature, or divide all by one number; learnt from the training bags.
    calibrate : bool
        Map the scores of the instances to log-odds such that held-out bags, made by ``bag_rule``,
        have their labels most likely: a classifier that took every instance of a positive bag for
        positive is far from a probability of its own. Costs five more fits. False gives the
        classifier's own probabilities, where it has them.

    Attributes
    ----------
    estimator_ : the fitted classifier
    calibration_ : Platt or None
        The map of the scores.
    classes_ : the two bag classes

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
    estimator: BaseEstimator | None = parameter(
        None, HasMethods(["fit", "predict"]), None, kw_only=False
    )
    bag_rule: str = parameter("max", StrOptions({"max", "noisy-or"}))

    def _estimator(self) -> BaseEstimator:
        """The classifier to train: the user's, or the default."""
        if self.estimator is not None:
            return self.estimator
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=0.1, class_weight="balanced", max_iter=5000)

    def fit(
        self,
        bags: BagsLike,
        y: ArrayLike,
        instance_labels: InstanceLabels = None,
        sample_weight: Floats | None = None,
    ) -> SingleInstance:
        """Fit the classifier on instances; known instance labels replace inherited ones.

        ``sample_weight`` weighs bags; each instance counts with the weight of its bag. The map of
        the calibration counts every bag with a weight once.
        """
        data = self._validate_fit(bags, y, instance_labels)
        bags, y, known = data
        estimator = self._estimator()
        if self.bag_rule == "noisy-or" and not hasattr(estimator, "predict_proba"):
            raise ValueError(
                f"bag_rule='noisy-or' needs instance probabilities, but "
                f"{type(estimator).__name__} has no predict_proba; use bag_rule='max'."
            )
        self.estimator_ = clone(estimator)
        labels = rules.inherited_labels(y, known, bags.offsets)
        weights = None
        if sample_weight is None:
            self.estimator_.fit(bags.instances, labels)
        else:
            weights = check_bag_weights(sample_weight, bags, estimator)
            self.estimator_.fit(
                bags.instances, labels, sample_weight=segments.spread(weights, bags.offsets)
            )
        if weights is not None:
            data, weights = _weighed(data, weights)
        self._calibrate_wrapped(data, self.bag_rule, weights)
        return self

    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """Score of each instance: calibrated log-odds, or the classifier's own score."""
        return self._scores(self._validate_predict(bags))

    def decision_function(self, bags: BagsLike) -> Floats:
        """Score of each bag by the bag rule."""
        bags = self._validate_predict(bags)
        return rules.bag_log_odds(self._scores(bags), bags.offsets, self.bag_rule)

    @available_if(_has_probabilities)
    def predict_proba_instances(self, bags: BagsLike) -> Floats:
        """Class probabilities of each instance."""
        return two_probabilities(self.decision_function_instances(bags))

    @available_if(_has_probabilities)
    def predict_proba(self, bags: BagsLike) -> Floats:
        """Class probabilities of each bag by the bag rule."""
        return two_probabilities(self.decision_function(bags))

    def _scores(self, bags: Bags) -> Floats:
        if hasattr(self.estimator_, "predict_proba"):
            scores = rules.log_odds(self.estimator_.predict_proba(bags.instances)[:, 1])
        else:
            scores = self.estimator_.decision_function(bags.instances)
        return self._calibrated(scores)
