"""Platt scaling: a sigmoid from held-out scores to probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from bagwise.core import segments

# Smallest calibrated log-odds per standard deviation of the score.
_LEAST_SLOPE = 1e-3


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
    scores = np.asarray(scores, dtype=np.float64)
    y = np.asarray(y, dtype=np.float64)
    n_pos, n_neg = y.sum(), (1 - y).sum()
    target = np.where(y > 0, (n_pos + 1) / (n_pos + 2), 1 / (n_neg + 2))
    centre = scores.mean()
    spread = scores.std() or 1.0
    s = (scores - centre) / spread

    def loss(theta: Any) -> tuple[float, Any]:
        z = theta[0] * s + theta[1]
        residual = expit(z) - target
        value = np.sum(np.logaddexp(0.0, z) - target * z)
        return float(value), np.array([residual @ s, residual.sum()])

    start = np.array([1.0, np.log((n_pos + 1) / (n_neg + 1))])
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)]).x
    slope = best[0] / spread
    return Platt(float(slope), float(best[1] - slope * centre))


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
    scores, y = np.asarray(scores, dtype=np.float64), np.asarray(y, dtype=np.float64)
    n_pos, n_neg = y.sum(), (1 - y).sum()
    target = np.where(y > 0, (n_pos + 1) / (n_pos + 2), 1 / (n_neg + 2))
    centre, spread = scores.mean(), scores.std() or 1.0
    s = (scores - centre) / spread
    floor = np.finfo(np.float64).tiny

    def loss(theta: Any) -> tuple[float, Any]:
        z = theta[0] * s + theta[1]
        rate = np.maximum(segments.sum(np.logaddexp(0.0, z), offsets), floor)  # -log prod(1 - p)
        value = np.sum((1 - target) * rate - target * np.log(-np.expm1(-rate)))
        with np.errstate(over="ignore"):
            slope = 1 - target - target / np.expm1(rate)  # d value / d rate
        weight = expit(z) * segments.spread(slope, offsets)
        return float(value), np.array([weight @ s, weight.sum()])

    # Start where a bag of average size has the share of positive bags.
    rate = -np.log(n_neg + 1) + np.log(n_pos + n_neg + 2)
    start = np.array([1.0, np.log(np.expm1(rate * len(y) / len(s)))])
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)]).x
    slope = best[0] / spread
    return Platt(float(slope), float(best[1] - slope * centre))


def fit_instance_platt(scores: Any, offsets: Any, y: Any, rule: str) -> Platt:
    """Platt's map for instance scores, such that calibrated instances still make their bag.

    Under ``max`` it is the map of the bag's largest score, under ``noisy-or`` it is fitted
    through the product (`fit_noisy_or_platt`). Where the scores say nothing the best slope is 0;
    a hint of one keeps the ranking. ``scores`` [N] must come from bags that the model did not see.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.platt import fit_instance_platt
    >>> scores = np.array([-9.0, 9.0, -7.0, -9.0, 2.0, 8.0, 5.0, -8.0])
    >>> offsets, y = np.array([0, 2, 4, 6, 8]), np.array([1, 0, 1, 0])
    >>> 0 < fit_instance_platt(scores, offsets, y, "max").slope < 1
    True
    """
    scores = np.asarray(scores, dtype=np.float64)
    if rule == "noisy-or":
        platt = fit_noisy_or_platt(scores, offsets, y)
    else:
        scores = segments.max(scores, offsets)
        platt = fit_platt(scores, y)
    slope = max(platt.slope, _LEAST_SLOPE / (float(np.std(scores)) or 1.0))
    return Platt(slope, platt.intercept - (slope - platt.slope) * float(np.mean(scores)))
