"""Any classifier on the statistics of each bag: the baseline that ignores instances."""

from __future__ import annotations

from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bagwise.bags import Bags
from bagwise.core.arrays import Floats
from bagwise.models.base import TrainingData
from bagwise.models.calibration.calibrated import WrappingClassifier
from bagwise.models.pipeline import BagStatistics


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
