"""Platt scaling: a sigmoid from held-out scores to probabilities, of bags or through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from bagwise.core import segments


class Platt(NamedTuple):
    """Probability = sigmoid(slope * score + intercept)."""

    slope: float
    intercept: float

    def log_odds(self, scores: Any) -> Any:
        """Calibrated log-odds of raw scores."""
        return self.slope * np.asarray(scores, dtype=np.float64) + self.intercept


def fit_platt(scores: Any, y: Any) -> Platt:
    """Fit the sigmoid by maximum likelihood with Platt's smoothed targets.

    The slope is constrained to be >= 0, so calibration can flatten a ranking but never
    reverse it. ``scores`` must come from bags that the model did not see.
    """
    y = np.asarray(y, dtype=np.float64)
    target = _smoothed(y)

    def loss(z: Any) -> tuple[float, Any]:
        return float(np.sum(np.logaddexp(0.0, z) - target * z)), expit(z) - target

    return _fit(scores, loss, np.log((y.sum() + 1) / ((1 - y).sum() + 1)))


def fit_noisy_or_platt(scores: Any, offsets: Any, y: Any) -> Platt:
    """Platt's sigmoid for instances, fitted through the bags they make by noisy-or.

    Every instance gets probability sigmoid(slope * score + intercept), a bag
    1 - prod(1 - p); slope >= 0 and intercept maximise the likelihood of the bag labels, with
    Platt's smoothed targets. Calibrated instances so still multiply up to their bag.
    ``scores`` [N] must come from bags that the model did not see.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.platt import fit_noisy_or_platt
    >>> scores = np.array([-2.0, 1.0, -1.0, -2.0, 0.0, 2.0, -1.0, -2.0])
    >>> platt = fit_noisy_or_platt(scores, np.array([0, 2, 4, 6, 8]), np.array([1, 0, 1, 0]))
    >>> platt.slope > 0
    True
    """
    y = np.asarray(y, dtype=np.float64)
    target = _smoothed(y)
    floor = np.finfo(np.float64).tiny

    def loss(z: Any) -> tuple[float, Any]:
        rate = np.maximum(segments.sum(np.logaddexp(0.0, z), offsets), floor)  # -log prod(1 - p)
        value = np.sum((1 - target) * rate - target * np.log(-np.expm1(-rate)))
        with np.errstate(over="ignore"):
            slope = 1 - target - target / np.expm1(rate)  # d value / d rate
        return float(value), expit(z) * segments.spread(slope, offsets)

    # Start where a bag of average size has the share of positive bags.
    rate = np.log(len(y) + 2) - np.log((1 - y).sum() + 1)
    return _fit(scores, loss, np.log(np.expm1(rate * len(y) / len(scores))))


def _smoothed(y: Any) -> Any:
    """Platt's targets: short of 0 and 1 by what so few bags cannot show, [B]."""
    n_pos, n_neg = y.sum(), (1 - y).sum()
    return np.where(y > 0, (n_pos + 1) / (n_pos + 2), 1 / (n_neg + 2))


def _fit(scores: Any, loss: Callable[[Any], tuple[float, Any]], intercept: float) -> Platt:
    """The map whose log-odds z [n] have the least ``loss(z)``, which also gives d loss / dz."""
    scores = np.asarray(scores, dtype=np.float64)
    centre, spread = scores.mean(), scores.std() or 1.0
    s = (scores - centre) / spread

    def objective(theta: Any) -> tuple[float, Any]:
        value, slope = loss(theta[0] * s + theta[1])
        return value, np.array([slope @ s, slope.sum()])

    bounds = [(0, None), (None, None)]
    best = minimize(objective, [1.0, intercept], jac=True, method="L-BFGS-B", bounds=bounds).x
    slope = best[0] / spread
    return Platt(float(slope), float(best[1] - slope * centre))
