"""Trees on statistics of bags: a random forest and gradient boosting, scikit-learn's own."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from bagwise.bags import Bags
from bagwise.core import rules
from bagwise.models.comparators.common import Comparator, Floats, Ints
from bagwise.models.pipeline import BagStatistics


class _OnStatistics(Comparator):
    """A classifier of rows on the statistics of bags."""

    statistics: Sequence[Any]
    random_state: Any

    def _new_classifier(self, seed: int) -> Any:
        raise AttributeError(f"{type(self).__name__} has no classifier")

    def _learn(self, bags: Bags, y: Ints) -> None:
        self.statistics_ = BagStatistics(tuple(self.statistics)).fit(bags)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.classifier_ = self._new_classifier(seed).fit(self.statistics_.transform(bags), y)

    def _bag_scores(self, bags: Bags) -> Floats:
        p = self.classifier_.predict_proba(self.statistics_.transform(bags))[:, 1]
        # A forest may be unanimous; its log-odds would then dwarf all others.
        odds: Floats = rules.log_odds(np.clip(p, 1e-3, 1 - 1e-3))
        return odds


class StatisticsForest(_OnStatistics):
    """Random forest on mean, minimum, maximum and deviation of each feature over the bag.

    A strong baseline that knows nothing of instances: where it is as good as a model of
    instances, the bags hold no riddle.

    Parameters
    ----------
    n_estimators : int
        Trees.
    statistics : sequence
        As in `BagStatistics`.
    scale : {"standard", "range"} or None
        Trees do not care; it is there for the common contract.
    random_state : int, RandomState or None
    probability, calibration, cv
        As in `CitationKNN`.

    Attributes
    ----------
    classifier_ : RandomForestClassifier
    statistics_ : BagStatistics
    classes_ : the two bag classes

    Examples
    --------
    >>> from bagwise.comparators import StatisticsForest
    >>> from bagwise.datasets import load_musk1
    >>> bags, y = load_musk1(return_X_y=True)
    >>> StatisticsForest(50, cv=3, random_state=0).fit(bags, y).predict(bags).shape
    (92,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "statistics": [tuple, list],
        "random_state": ["random_state"],
        **Comparator._common_constraints,
    }

    def __init__(
        self,
        n_estimators: int = 200,
        statistics: Sequence[Any] = ("mean", "max", "min", "std"),
        *,
        scale: str | None = None,
        probability: bool = True,
        calibration: str = "platt",
        cv: Any = 3,
        random_state: Any = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.statistics = statistics
        self.scale = scale
        self.probability = probability
        self.calibration = calibration
        self.cv = cv
        self.random_state = random_state

    def _new_classifier(self, seed: int) -> RandomForestClassifier:
        return RandomForestClassifier(self.n_estimators, random_state=seed)


class StatisticsBoosting(_OnStatistics):
    """Gradient boosting on mean, minimum, maximum and deviation of each feature over the bag.

    Parameters
    ----------
    n_estimators : int
        Trees.
    learning_rate : float
    max_depth : int
        Of each tree.
    statistics : sequence
        As in `BagStatistics`.
    scale : {"standard", "range"} or None
        Trees do not care; it is there for the common contract.
    random_state : int, RandomState or None
        Of the features that each split may choose from, and of the bags each tree sees.
    probability, calibration, cv
        As in `CitationKNN`.

    Attributes
    ----------
    classifier_ : GradientBoostingClassifier
    statistics_ : BagStatistics
    classes_ : the two bag classes

    Examples
    --------
    >>> from bagwise.comparators import StatisticsBoosting
    >>> from bagwise.datasets import load_musk1
    >>> bags, y = load_musk1(return_X_y=True)
    >>> StatisticsBoosting(50, cv=3, random_state=0).fit(bags, y).predict(bags).shape
    (92,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, 1, closed="right")],
        "max_depth": [Interval(Integral, 1, None, closed="left")],
        "statistics": [tuple, list],
        "random_state": ["random_state"],
        **Comparator._common_constraints,
    }

    def __init__(
        self,
        n_estimators: int = 200,
        learning_rate: float = 0.1,
        max_depth: int = 3,
        statistics: Sequence[Any] = ("mean", "max", "min", "std"),
        *,
        scale: str | None = None,
        probability: bool = True,
        calibration: str = "platt",
        cv: Any = 3,
        random_state: Any = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.max_depth = max_depth
        self.statistics = statistics
        self.scale = scale
        self.probability = probability
        self.calibration = calibration
        self.cv = cv
        self.random_state = random_state

    def _new_classifier(self, seed: int) -> GradientBoostingClassifier:
        return GradientBoostingClassifier(
            n_estimators=self.n_estimators,
            learning_rate=self.learning_rate,
            max_depth=self.max_depth,
            subsample=0.7,
            max_features="sqrt",
            random_state=seed,
        )
