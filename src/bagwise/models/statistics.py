"""Any classifier on the statistics of each bag: the baseline that ignores instances."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.metaestimators import available_if

from bagwise.bags import BagsLike, InstanceLabels
from bagwise.core.arrays import Floats
from bagwise.core.rules import log_odds
from bagwise.models.base import two_probabilities
from bagwise.models.calibrated import CalibratesWrapped
from bagwise.models.parameters import parameter
from bagwise.models.pipeline import BagStatistics


@dataclass(kw_only=True, eq=False, repr=False)
class StatisticsClassifier(CalibratesWrapped):
    """A scikit-learn classifier on the mean, minimum and maximum of each feature in a bag.

    The baseline that every multiple-instance model must beat: it sees the bag as one row and
    cannot say which instances made the label.

    Parameters
    ----------
    estimator : scikit-learn classifier, optional
        Trained on the standardised statistics. Default: a logistic regression with C = 0.1.
    calibrate : bool
        Map the scores to the log-odds that five folds of held-out bags ask for: a hundred bags
        with hundreds of statistics can be separated by chance, and the classifier's own
        probabilities then say too much. False gives these, where the classifier has them.

    Attributes
    ----------
    estimator_ : the fitted pipeline of scaling and classifier
    calibration_ : Platt or None
        The map of the scores.
    classes_ : the two bag classes

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

    estimator: BaseEstimator | None = parameter(
        None, HasMethods(["fit", "predict"]), None, kw_only=False
    )

    def _estimator(self) -> BaseEstimator:
        if self.estimator is not None:
            return self.estimator
        return LogisticRegression(C=0.1, max_iter=5000)

    def fit(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None
    ) -> StatisticsClassifier:
        """Fit the classifier to one row of statistics per bag."""
        data = self._validate_fit(bags, y, instance_labels)
        self.statistics_ = BagStatistics().fit(data.bags)
        self.estimator_ = make_pipeline(StandardScaler(), clone(self._estimator()))
        self.estimator_.fit(self.statistics_.transform(data.bags), data.y)
        self._calibrate_wrapped(data, "bag")
        return self

    def decision_function(self, bags: BagsLike) -> Floats:
        """Score of each bag; calibrated log-odds, or the classifier's own score."""
        rows = self.statistics_.transform(self._validate_predict(bags))
        if hasattr(self.estimator_, "decision_function"):
            scores = self.estimator_.decision_function(rows)
        else:
            scores = log_odds(self.estimator_.predict_proba(rows)[:, 1])
        return self._calibrated(scores)

    @available_if(lambda model: model.calibrate or hasattr(model._estimator(), "predict_proba"))
    def predict_proba(self, bags: BagsLike) -> Floats:
        """Class probabilities of each bag, shape (n_bags, 2)."""
        if self.calibration_ is not None:
            return two_probabilities(self.decision_function(bags))
        return self.estimator_.predict_proba(
            self.statistics_.transform(self._validate_predict(bags))
        )
