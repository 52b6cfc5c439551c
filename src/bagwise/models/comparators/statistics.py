"""Trees on statistics of bags: a random forest and gradient boosting, scikit-learn's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from bagwise.bags import Bags
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.models.comparators.common import Comparator
from bagwise.models.comparators.trees import forest_log_odds, keep
from bagwise.models.parameters import AT_LEAST_1, SCALES, parameter
from bagwise.models.pipeline import BagStatistics
from bagwise.models.scaling import Scale


@dataclass(kw_only=True, eq=False, repr=False)
class _OnStatistics(Comparator):
    """Trees on the statistics of bags."""

    n_estimators: int = parameter(200, AT_LEAST_1)
    statistics: Sequence[str | float] = parameter(("mean", "max", "min", "std"), tuple, list)
    scale: Scale = parameter(None, *SCALES)
    random_state: RandomState = parameter(None, "random_state")

    def _new_trees(self, seed: int) -> Any:
        """An unfitted ensemble of scikit-learn."""
        raise AttributeError(f"{type(self).__name__} has no trees")

    def _learn(self, bags: Bags, y: Ints) -> None:
        self.statistics_ = BagStatistics(tuple(self.statistics)).fit(bags)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        ensemble = self._new_trees(seed).fit(self.statistics_.transform(bags), y)
        self.trees_ = keep(list(np.ravel(ensemble.estimators_)))


class StatisticsForest(_OnStatistics, name="forest"):
    """Random forest on mean, minimum, maximum and deviation of each feature over the bag.

    A strong baseline without instances: where it is as good as a model of instances, these
    need not be found.

    Parameters
    ----------
    n_estimators : int, default=200
        Trees.
    statistics : sequence, default=("mean", "max", "min", "std")
        As in `BagStatistics`.
    random_state : int, RandomState or None, default=None
    scale : as in `CitationKNN`, default=None
        Trees need no scaling.
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", None

    Attributes
    ----------
    trees_ : the trees, as arrays
    statistics_ : BagStatistics

    See Also
    --------
    StatisticsBoosting, bagwise.BagStatistics

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> model = comparators.StatisticsForest(n_estimators=50, cv=3, random_state=0)
    >>> model.fit(bags, y).predict(bags).shape
    (92,)
    """

    def _new_trees(self, seed: int) -> RandomForestClassifier:
        return RandomForestClassifier(self.n_estimators, random_state=seed)

    def _raw_scores(self, bags: Bags) -> Floats:
        return forest_log_odds(self.trees_, self.statistics_.transform(bags))


@dataclass(kw_only=True, eq=False, repr=False)
class StatisticsBoosting(_OnStatistics, name="boosting"):
    """Gradient boosting on mean, minimum, maximum and deviation of each feature over the bag.

    Parameters
    ----------
    n_estimators : int, default=200
        Trees.
    learning_rate : float, default=0.1
    max_depth : int, default=3
        Of each tree.
    statistics : as in `StatisticsForest`, default=("mean", "max", "min", "std")
    random_state : int, RandomState or None, default=None
        Of the features that each split may choose from, and of the bags each tree sees.
    scale : as in `CitationKNN`, default=None
        Trees need no scaling.
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", None

    Attributes
    ----------
    intercept_ : float, log-odds of the classes
    trees_, statistics_ : as in `StatisticsForest`

    See Also
    --------
    StatisticsForest, bagwise.BagStatistics

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> model = comparators.StatisticsBoosting(n_estimators=50, cv=3, random_state=0).fit(bags, y)
    >>> model.predict_proba(bags).shape
    (92, 2)
    """

    learning_rate: float = parameter(0.1, Interval(Real, 0, 1, closed="right"))
    max_depth: int = parameter(3, AT_LEAST_1)

    def _new_trees(self, seed: int) -> GradientBoostingClassifier:
        return GradientBoostingClassifier(
            n_estimators=self.n_estimators,
            learning_rate=self.learning_rate,
            max_depth=self.max_depth,
            subsample=0.7,
            max_features="sqrt",
            random_state=seed,
        )

    def _learn(self, bags: Bags, y: Ints) -> None:
        super()._learn(bags, y)
        # Boosting starts from the log-odds of the classes.
        share = float(y.mean())
        self.intercept_ = float(np.log(share / (1 - share)))

    def _raw_scores(self, bags: Bags) -> Floats:
        total: Floats = self.trees_.leaves(self.statistics_.transform(bags)).sum(axis=1)
        return self.intercept_ + self.learning_rate * total
