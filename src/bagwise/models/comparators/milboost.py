"""MILBoost: boosting whose instances share the blame for their bag by noisy-or.

Viola, Platt and Zhang, "Multiple instance boosting for object detection" (2005), in the
gradient view of AnyBoost.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.utils._param_validation import Interval

from bagwise.bags import Bags
from bagwise.core import rules, segments
from bagwise.core.arrays import Bools, Floats, Ints
from bagwise.models.comparators.common import InstanceComparator
from bagwise.models.parameters import AT_LEAST_1, parameter


class _Stump(NamedTuple):
    """Says ``side`` where the feature is above the threshold, else ``-side``."""

    feature: int
    threshold: float
    side: float

    def __call__(self, X: Floats) -> Floats:
        """+1 or -1 for each row."""
        return np.where(X[:, self.feature] > self.threshold, self.side, -self.side)


class _SortedColumns(NamedTuple):
    """The features of all instances in rising order, sorted once for all rounds."""

    order: Ints  # [D, N] row of each value
    values: Floats  # [D, N]
    is_tied: Bools  # [D, N] the next value is the same: no threshold fits between them


def sort_columns(X: Floats) -> _SortedColumns:
    """Sort every feature."""
    columns = np.ascontiguousarray(X.T)
    order = np.argsort(columns, axis=1, kind="stable")
    values = np.take_along_axis(columns, order, axis=1)
    is_tied = np.zeros(values.shape, dtype=np.bool_)
    is_tied[:, :-1] = values[:, :-1] == values[:, 1:]
    return _SortedColumns(order, values, is_tied)


def best_stump(columns: _SortedColumns, w: Floats) -> _Stump:
    """The stump h of largest ``sum w_i h(x_i)``, by one cumulative sum over sorted columns.

    Of equals it is the one of lowest position in its column, and then of the first column.
    """
    from bagwise.core.baseline_passes import largest_gain

    d, k, gain = largest_gain(columns.order, columns.is_tied, w, w.sum())
    here = columns.values[d]
    threshold = here[k] if k + 1 == len(here) else (here[k] + here[k + 1]) / 2
    return _Stump(int(d), float(threshold), 1.0 if gain >= 0 else -1.0)


def bag_loss(scores: Floats, offsets: Ints, y: Ints) -> float:
    """Negative log-likelihood of the bags under noisy-or of the instances' sigmoids."""
    odds = rules.bag_log_odds(scores, offsets, "noisy-or")
    return float(np.logaddexp(0.0, np.where(y == 1, -odds, odds)).sum())


def instance_weights(scores: Floats, offsets: Ints, y: Ints) -> Floats:
    """Derivative of the log-likelihood in each instance's score, [N].

    With p = 1 - prod_j (1 - p_j) of a bag of label t it is w_j = (t - p) / p p_j.
    """
    p = 1 / (1 + np.exp(-np.clip(scores, -500, 500)))
    odds = rules.bag_log_odds(scores, offsets, "noisy-or")
    with np.errstate(over="ignore"):
        share = np.where(y == 1, np.exp(-odds), -1.0)  # (1 - p) / p for a positive bag
    return segments.spread(share, offsets) * p


@dataclass(kw_only=True, eq=False, repr=False)
class MILBoost(InstanceComparator, name="milboost"):
    """Boosted stumps on instances, with the noisy-or likelihood of bags.

    In each round every instance is weighted by the derivative of the bag likelihood, the best
    stump under these weights is added, and its coefficient is fitted by a line search.

    Parameters
    ----------
    n_estimators : int, default=100
        Rounds of boosting.
    learning_rate : float, default=0.5
        Share of each coefficient that is added.
    scale : as in `CitationKNN`, default="feature"
        Stumps need no scaling.
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", None

    Attributes
    ----------
    n_iter_ : int
    features_, thresholds_, coefs_ : arrays of shape (n_rounds,)
        The stumps; a coefficient's sign says on which side of the threshold it votes.
    intercept_ : float
        Score at the start, which makes an average bag undecided.
    losses_ : list of float
        Negative log-likelihood of the training bags after each round.

    See Also
    --------
    MIForest

    References
    ----------
    [Viola2005]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> model = comparators.MILBoost(n_estimators=50, cv=3).fit(bags[::2], y[::2])
    >>> model.losses_[-1] < model.losses_[0]
    True
    """

    n_estimators: int = parameter(100, AT_LEAST_1)
    learning_rate: float = parameter(0.5, Interval(Real, 0, 1, closed="right"))

    def _learn(self, bags: Bags, y: Ints) -> None:
        X, offsets = bags.instances, bags.offsets
        columns = sort_columns(X)
        # Noisy-or of a bag of average size is a half: 1 - (1 - p)^n = 1/2.
        none = 0.5 ** (1 / bags.sizes.mean())
        self.intercept_ = float(np.log((1 - none) / none))
        scores = np.full(bags.n_instances, self.intercept_)
        self.losses_ = [bag_loss(scores, offsets, y)]
        stumps: list[tuple[int, float, float]] = []
        for _ in range(self.n_estimators):
            stump = best_stump(columns, instance_weights(scores, offsets, y))
            votes = stump(X)
            # The line search for the stump's coefficient.
            end = minimize_scalar(
                lambda a: bag_loss(scores + a * votes, offsets, y),  # noqa: B023
                bounds=(0.0, 4.0),
                method="bounded",
                options={"maxiter": 15},
            )
            if end.fun >= self.losses_[-1] * (1 - 1e-9):
                break  # no stump raises the likelihood
            step = self.learning_rate * float(end.x)
            scores = scores + step * votes
            self.losses_.append(bag_loss(scores, offsets, y))
            stumps.append((stump.feature, stump.threshold, step * stump.side))
        self.features_ = np.array([s[0] for s in stumps], dtype=np.int64)
        self.thresholds_ = np.array([s[1] for s in stumps], dtype=np.float64)
        self.coefs_ = np.array([s[2] for s in stumps], dtype=np.float64)
        self.n_iter_ = max(1, len(stumps))

    def _instance_scores(self, X: Floats) -> Floats:
        above = np.where(X[:, self.features_] > self.thresholds_, 1.0, -1.0)  # [N, rounds]
        return above @ self.coefs_ + self.intercept_

    def _raw_scores(self, bags: Bags) -> Floats:
        return rules.bag_log_odds(self._raw_instance_scores(bags), bags.offsets, "noisy-or")
