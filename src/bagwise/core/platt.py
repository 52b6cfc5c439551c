"""Platt scaling: a sigmoid from held-out scores to probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit


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
