"""APR by iterated discrimination: a box that one instance of every positive bag fits into.

Dietterich, Lathrop and Lozano-Pérez, "Solving the multiple instance problem with axis-parallel
rectangles" (1997): grow a tight box, choose the features that tell negatives apart, repeat with
these features only, and finally widen the box.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import norm
from sklearn.utils._param_validation import Interval

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints
from bagwise.core.distances import bag_distances
from bagwise.models.comparators.common import InstanceComparator
from bagwise.models.parameters import AT_LEAST_1, NOT_NEGATIVE, POSITIVE, parameter

if TYPE_CHECKING:
    from bagwise.models.held_out import CV


def box_size(X: Floats) -> float:
    """Sum of the sides of the smallest box around rows: the size that growing keeps small."""
    return float((X.max(axis=0) - X.min(axis=0)).sum())


def grow(bags: Bags, start: int) -> Ints:
    """One row per bag, chosen greedily so that the box around them stays small, [B].

    From row ``start`` the bag that enlarges the box least is added, by its best instance;
    after each addition all earlier choices but the first are repeated (backfitting).
    """
    X, owner = bags.instances, bags.bag_index
    chosen = {int(owner[start]): int(start)}
    left = np.flatnonzero(owner != owner[start])
    while len(left):
        low, high = _box(X, list(chosen.values()))
        row = int(left[np.argmin(_growth(X[left], low, high))])
        chosen[int(owner[row])] = row
        left = left[owner[left] != owner[row]]
        # Backfitting: each earlier bag's instance again, given all the others.
        for b in list(chosen)[1:-1]:
            others = [row for other, row in chosen.items() if other != b]
            first, last = int(bags.offsets[b]), int(bags.offsets[b + 1])
            chosen[b] = first + int(np.argmin(_growth(X[first:last], *_box(X, others))))
    return np.array([chosen[b] for b in range(len(bags))])


def _box(X: Floats, rows: Ints | list[int]) -> tuple[Floats, Floats]:
    return X[rows].min(axis=0), X[rows].max(axis=0)


def _growth(X: Floats, low: Floats, high: Floats) -> Floats:
    """By how much each row would enlarge the box, [N]."""
    outside = np.maximum(low - X, X - high)  # at most one of them is positive
    growth: Floats = np.maximum(outside, 0, out=outside).sum(axis=1)
    return growth


def discriminating(negatives: Floats, low: Floats, high: Floats, margin: Floats) -> Ints:
    """Features chosen greedily until every negative instance is excluded, sorted.

    A feature excludes a negative instance when it lies more than ``margin`` outside the
    box there, or when no other feature has it farther out.
    """
    outside = np.maximum(low - negatives, negatives - high) / margin  # [n, D]
    farthest = outside >= outside.max(axis=1, keepdims=True)
    excludes = (outside >= 1) | (farthest & (outside > 0))
    left = excludes.any(axis=1)  # an instance inside the box cannot be excluded
    kept: list[int] = []
    while left.any():
        counts = excludes[left].sum(axis=0)
        best = int(np.argmax(counts))
        kept.append(best)
        left &= ~excludes[:, best]
    return np.array(sorted(kept), dtype=np.int64)


def widen(values: Floats, miss: float, width: float) -> tuple[Floats, Floats]:
    """Bounds that a new positive passes below or above with probability ``miss / 2`` each.

    The outermost chosen instances carry Gaussians whose width is ``width`` times the spread of
    the values, and the bounds lie where these have fallen to that probability.
    """
    spread = values.std(axis=0)
    reach = norm.ppf(1 - miss / 2) * width * np.where(spread > 0, spread, 1.0)
    return values.min(axis=0) - reach, values.max(axis=0) + reach


@dataclass(kw_only=True, eq=False, repr=False)
class APR(InstanceComparator, name="apr"):
    """Axis-parallel rectangle by iterated discrimination.

    A bag is positive when one of its instances lies inside a box over a few features. The score
    of an instance is how far inside (> 0) or outside (< 0) it lies at its worst feature, in
    units of half the box.

    Parameters
    ----------
    margin : float, default=1.0
        How far outside the box a feature must put a negative to count as excluding it, in
        standard deviations of the feature.
    miss : float, default=0.01
        ε: probability with which a new positive may fall outside the widened box at a feature.
    width : float, default=0.3
        Width of the Gaussians with which the box is widened, in spreads of the chosen instances.
    max_iter : int, default=10
        Most rounds of growing and choosing features.
    scale : {"feature", "global", None}, default="feature"
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", 10
        As in `CitationKNN`, with ten folds: the box grows with every positive bag, so that a bag
        left out lies farther outside than a new one does.

    Attributes
    ----------
    n_iter_ : int
    features_ : array of int
        Features of the box.
    low_, high_ : arrays
        Its bounds, in scaled features.
    key_instances_ : array of int
        The training row chosen from each positive bag.

    See Also
    --------
    DiverseDensity

    References
    ----------
    [Dietterich1997]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> model = comparators.APR(cv=3).fit(bags[::2], y[::2])
    >>> len(model.features_) < 100
    True
    """

    margin: float = parameter(1.0, POSITIVE)
    miss: float = parameter(0.01, Interval(Real, 0, 1, closed="neither"))
    width: float = parameter(0.3, NOT_NEGATIVE)
    max_iter: int = parameter(10, AT_LEAST_1)
    cv: CV = parameter(10, "cv_object")

    def _learn(self, bags: Bags, y: Ints) -> None:
        spread = bags.instances.std(axis=0)
        margin = self.margin * np.where(spread > 0, spread, 1.0)
        positive = bags[y == 1]
        negatives = bags[y == 0].instances
        features = np.arange(bags.n_features)
        for turn in range(self.max_iter):
            # Grow a tight box on the features, then keep those that exclude the negatives.
            on_features = Bags(positive.instances[:, features], positive.offsets)
            rows = grow(on_features, central(on_features))
            low, high = _box(on_features.instances, rows)
            kept = discriminating(negatives[:, features], low, high, margin[features])
            self.n_iter_ = turn + 1
            if len(kept) == len(features) or len(kept) == 0:
                break
            features = features[kept]
        self.features_ = features
        self.key_instances_ = np.flatnonzero(segments.spread(y, bags.offsets) == 1)[rows]
        chosen = positive.instances[rows][:, features]
        self.low_, self.high_ = widen(chosen, self.miss, self.width)

    def _instance_scores(self, X: Floats) -> Floats:
        x = X[:, self.features_]
        half = (self.high_ - self.low_) / 2
        # The distance to the nearer side, in halves of the box; negative outside.
        inside = np.minimum(x - self.low_, self.high_ - x) / np.where(half > 0, half, 1.0)
        score: Floats = inside.min(axis=1)
        return score


def central(bags: Bags) -> int:
    """The row with the smallest sum of distances to its nearest neighbour in each bag."""
    nearest = np.sqrt(bag_distances(bags.instances, bags.offsets, bags.instances))  # [B, N]
    return int(np.argmin(nearest.sum(axis=0)))
