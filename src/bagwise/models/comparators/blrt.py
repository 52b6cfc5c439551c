"""Bag-level randomised trees: a split asks which share of a bag exceeds a value.

After Komárek and Somol, "Multiple instance learning with bag-level randomized trees" (2018).
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.models.comparators.common import Comparator
from bagwise.models.comparators.trees import forest_log_odds, keep
from bagwise.models.scaling import Scale

if TYPE_CHECKING:
    from bagwise.models.base import Constraints
    from bagwise.models.calibrated import CV


def shares_above(X: Floats, offsets: Ints, thresholds: Floats) -> Floats:
    """Share of each bag's instances above each feature's thresholds [T, D], shape (B, T * D)."""
    return np.hstack([segments.mean((row < X).astype(np.float64), offsets) for row in thresholds])


class BLRT(Comparator):
    """Extremely randomised trees on "which share of the bag lies above this value?".

    A split has a feature, a value and a share. Values are drawn uniformly between the smallest
    and the largest of each feature, shares by the trees; the paper draws the values anew in each
    node, here they are drawn once for the forest.

    Parameters
    ----------
    n_estimators : int
        Trees.
    n_thresholds : int
        Values drawn per feature.
    scale : {"feature", "global", None}
        Trees do not care; it is there for the common contract.
    random_state : int, RandomState or None
    probability, calibration, cv
        As in `CitationKNN`.

    Attributes
    ----------
    thresholds_ : array of shape (n_thresholds, n_features)
    trees_ : the extremely randomised trees, as arrays
    classes_ : the two bag classes

    Examples
    --------
    >>> from bagwise.comparators import BLRT
    >>> from bagwise.datasets import load_musk1
    >>> bags, y = load_musk1(return_X_y=True)
    >>> BLRT(50, cv=3, random_state=0).fit(bags, y).predict(bags).shape
    (92,)
    """

    _parameter_constraints: ClassVar[Constraints] = {
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "n_thresholds": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        **Comparator._common_constraints,
    }

    def __init__(
        self,
        n_estimators: int = 200,
        n_thresholds: int = 16,
        *,
        scale: Scale = None,
        probability: bool = True,
        calibration: str = "platt",
        cv: CV = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.n_thresholds = n_thresholds
        self.scale = scale
        self.probability = probability
        self.calibration = calibration
        self.cv = cv
        self.random_state = random_state

    def _learn(self, bags: Bags, y: Ints) -> None:
        rng = check_random_state(self.random_state)
        low, high = bags.instances.min(axis=0), bags.instances.max(axis=0)
        draws = rng.uniform(size=(self.n_thresholds, bags.n_features))
        self.thresholds_ = low + draws * (high - low)
        seed = int(rng.randint(2**31 - 1))
        forest = ExtraTreesClassifier(self.n_estimators, random_state=seed)
        self.trees_ = keep(forest.fit(self._embed(bags), y).estimators_)

    def _embed(self, bags: Bags) -> Floats:
        return shares_above(bags.instances, bags.offsets, self.thresholds_)

    def _raw_scores(self, bags: Bags) -> Floats:
        return forest_log_odds(self.trees_, self._embed(bags))
