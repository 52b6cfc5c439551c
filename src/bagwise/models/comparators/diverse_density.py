"""Diverse Density: a point near to instances of all positive bags and far from negative ones.

Maron and Lozano-Pérez, "A framework for multiple-instance learning" (1998). A concept is a point
h with scales s; an instance x is positive with probability ``exp(-q)``, where
``q = sum_d s_d² (x_d - h_d)²``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.utils import check_random_state

from bagwise.bags import Bags
from bagwise.core import rules, segments
from bagwise.core.arrays import Floats, Ints
from bagwise.core.squared import median_sq_distance
from bagwise.models.comparators.common import InstanceComparator
from bagwise.models.parameters import AT_LEAST_1, parameter

# Least q: an instance at the concept itself is positive with a little less than certainty.
_LEAST = 1e-9


class Concept(NamedTuple):
    """A point and its scales, with the negative log-likelihood of the bags it was fitted to."""

    point: Floats  # [D]
    scales: Floats  # [D]
    loss: float


def scaled_distances(X: Floats, point: Floats, scales: Floats) -> Floats:
    """Q of each instance, [N]."""
    from bagwise.core.baseline_passes import distances

    q: Floats = distances(X, point, scales)
    return np.maximum(q, _LEAST)


def log_odds(q: Floats) -> Floats:
    """Log-odds of the probability exp(-q)."""
    odds: Floats = -q - np.log(-np.expm1(-q))
    return odds


def _noisy_or(q: Floats, offsets: Ints, y: Ints) -> tuple[float, Floats]:
    """Negative log of the diverse density, and the log of prod(1 - p) of each bag, [B].

    A positive bag has the probability 1 - prod(1 - p), a negative one prod(1 - p).
    """
    none = segments.sum(np.log(-np.expm1(-q)), offsets)  # 1 - p = 1 - e^-q
    none = np.minimum(none, -1e-300)
    loss = np.where(y == 1, -np.log(-np.expm1(none)), -none).sum()
    return float(loss), none


def noisy_or_loss(theta: Floats, X: Floats, offsets: Ints, y: Ints) -> tuple[float, Floats]:
    """Negative log of the diverse density and its gradient in (point, scales), stacked in theta."""
    from bagwise.core.baseline_passes import moments

    D = X.shape[1]
    h, s = theta[:D], theta[D:]
    q = scaled_distances(X, h, s)
    loss, none = _noisy_or(q, offsets, y)
    with np.errstate(over="ignore"):
        slope = np.where(y == 1, 1 / np.expm1(-none), -1.0)  # in log prod, [B]
        g = segments.spread(slope, offsets) / np.expm1(q)  # in q, [N]
    gX, gX2 = moments(g, X)
    return loss, _chain(g.sum(), gX, gX2, h, s)


class NearestLoss:
    """The same where one chosen instance [B, D] stands for each bag, as EM-DD has it.

    The sums are NumPy's: turns of EM make another concept of a difference in the last digit.
    """

    def __init__(self, chosen: Floats, y: Ints) -> None:
        self._chosen, self._positive = chosen, y == 1
        self._squares, self._gaps = chosen**2, np.empty_like(chosen)

    def __call__(self, theta: Floats) -> tuple[float, Floats]:
        """Loss and gradient in (point, scales)."""
        D = self._chosen.shape[1]
        h, s = theta[:D], theta[D:]
        gaps = np.subtract(self._chosen, h, out=self._gaps)
        q = np.maximum(np.square(gaps, out=gaps) @ s**2, _LEAST)
        loss = np.where(self._positive, q, -np.log(-np.expm1(-q))).sum()
        with np.errstate(over="ignore"):
            g = np.where(self._positive, 1.0, -1 / np.expm1(q))
        return float(loss), _chain(g.sum(), g @ self._chosen, g @ self._squares, h, s)


def _chain(total: float, gX: Floats, gX2: Floats, h: Floats, s: Floats) -> Floats:
    """Gradient in h and s from that in q, g: its sum, ``g @ X`` and ``g @ X**2``.

    ``dq_i / dh_d = -2 s_d² (x_id - h_d)`` and ``dq_i / ds_d = 2 s_d (x_id - h_d)²``.
    """
    to_point = -2 * s**2 * (gX - total * h)
    squares = gX2 - 2 * h * gX + total * h**2
    return np.concatenate([to_point, 2 * s * squares])


def first_scale(bags: Bags) -> float:
    """A scale at which instances at the median distance are positive with p = exp(-1)."""
    return float(1 / np.sqrt(median_sq_distance(bags.instances, random_state=0)))


def draw_starts(bags: Bags, y: Ints, n: int, rng: np.random.RandomState) -> Ints:
    """Rows of positive bags to start from: one of each bag in a random order, then again."""
    rows = rng.permutation(np.flatnonzero(segments.spread(y, bags.offsets) == 1))
    owner = bags.bag_index[rows]
    # The k-th row of every bag comes before the (k + 1)-th of any.
    turn = np.empty(len(rows), dtype=np.int64)
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], owner[order])
    turn[order] = np.arange(len(rows)) - first
    return rows[np.argsort(turn, kind="stable")][:n]


@dataclass(kw_only=True, eq=False, repr=False)
class DiverseDensity(InstanceComparator, name="diverse-density"):
    """The point of highest diverse density, searched from several starts.

    An instance is positive with a probability that falls with its scaled distance from the
    concept, and a bag by noisy-or. Both the point and one scale per feature are learned, so
    features that do not matter are switched off.

    Parameters
    ----------
    n_starts : int, default=5
        Instances of positive bags from which the search starts: the most promising under the
        first scales. The paper starts from all.
    max_iter : int, default=50
        Most steps of L-BFGS per start.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    n_iter_ : int
        Steps of the best start.
    point_, scales_ : arrays of shape (n_features,)
        The concept, in scaled features.
    loss_ : float
        Negative log-likelihood of the training bags.

    See Also
    --------
    EMDD, APR

    References
    ----------
    [Maron1998]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> comparators.DiverseDensity(cv=3).fit(bags, y).predict_proba_instances(bags).shape[1]
    2
    """

    n_starts: int = parameter(5, AT_LEAST_1)
    max_iter: int = parameter(50, AT_LEAST_1)

    def _learn(self, bags: Bags, y: Ints) -> None:
        X, offsets = bags.instances, bags.offsets
        first = np.full(bags.n_features, first_scale(bags))
        best, self.loss_ = None, np.inf
        # Candidate starts of lowest loss, from at most 200 instances of positive bags.
        starts = draw_starts(bags, y, 200, check_random_state(0))
        losses = [_noisy_or(scaled_distances(X, X[row], first), offsets, y)[0] for row in starts]
        for row in starts[np.argsort(losses, kind="stable")[: self.n_starts]]:
            end = minimize(
                noisy_or_loss,
                np.concatenate([X[row], first]),
                args=(X, offsets, y),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": self.max_iter},
            )
            if best is None or end.fun < self.loss_:
                best, self.loss_, self.n_iter_ = end.x, float(end.fun), max(1, int(end.nit))
        assert best is not None
        self.point_, self.scales_ = best[: bags.n_features], np.abs(best[bags.n_features :])

    def _instance_scores(self, X: Floats) -> Floats:
        return log_odds(scaled_distances(X, self.point_, self.scales_))

    def _raw_scores(self, bags: Bags) -> Floats:
        return rules.bag_log_odds(self._raw_instance_scores(bags), bags.offsets, "noisy-or")
