"""Bag-level randomised trees: a split compares the share of a bag that exceeds a value.

After Komárek and Somol, "Multiple instance learning with bag-level randomized trees" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.utils import check_random_state

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.models.comparators.common import Comparator
from bagwise.models.comparators.trees import forest_log_odds, keep
from bagwise.models.parameters import AT_LEAST_1, SCALES, parameter
from bagwise.models.scaling import Scale


def shares_above(X: Floats, offsets: Ints, thresholds: Floats) -> Floats:
    """Share of each bag's instances above each feature's thresholds [T, D], shape (B, T * D)."""
    return np.hstack([segments.mean((row < X).astype(np.float64), offsets) for row in thresholds])


@dataclass(kw_only=True, eq=False, repr=False)
class BLRT(Comparator, name="blrt"):
    """Extremely randomised trees on "which share of the bag lies above this value?".

    A split has a feature, a value and a share. Values are drawn uniformly between the smallest
    and the largest of each feature, shares by the trees; the paper draws the values anew in each
    node, here they are drawn once for the forest.

    Parameters
    ----------
    n_estimators : int, default=200
        Trees.
    n_thresholds : int, default=16
        Values drawn per feature.
    random_state : int, RandomState or None, default=None
    scale : as in `CitationKNN`, default=None
        Trees need no scaling.
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", None

    Attributes
    ----------
    thresholds_ : array of shape (n_thresholds, n_features)
    trees_ : the extremely randomised trees, as arrays

    See Also
    --------
    StatisticsForest, MIForest

    References
    ----------
    [Komarek2018]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> comparators.BLRT(n_estimators=50, cv=3, random_state=0).fit(bags, y).predict(bags).shape
    (92,)
    """

    n_estimators: int = parameter(200, AT_LEAST_1)
    n_thresholds: int = parameter(16, AT_LEAST_1)
    scale: Scale = parameter(None, *SCALES)
    random_state: RandomState = parameter(None, "random_state")

    def _learn(self, bags: Bags, y: Ints) -> None:
        rng = check_random_state(self.random_state)
        # A split of the paper is "share of the bag with x_d > v exceeds r": v is drawn here, and
        # r by the trees, whose features are the shares.
        low, high = bags.instances.min(axis=0), bags.instances.max(axis=0)
        draws = rng.uniform(size=(self.n_thresholds, bags.n_features))
        self.thresholds_ = low + draws * (high - low)
        seed = int(rng.randint(2**31 - 1))
        forest = ExtraTreesClassifier(self.n_estimators, random_state=seed)
        shares = shares_above(bags.instances, bags.offsets, self.thresholds_)
        self.trees_ = keep(forest.fit(shares, y).estimators_)

    def _raw_scores(self, bags: Bags) -> Floats:
        shares = shares_above(bags.instances, bags.offsets, self.thresholds_)
        return forest_log_odds(self.trees_, shares)
