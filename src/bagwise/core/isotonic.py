"""Isotonic calibration: a rising step function from held-out scores to probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.isotonic import IsotonicRegression

from bagwise.core.rules import log_odds

if TYPE_CHECKING:
    from bagwise.core.arrays import Bools, Codes, Floats


class Isotonic(NamedTuple):
    """Probability = linear interpolation between ``knots``, constant beyond them."""

    knots: Floats  # [K] scores, rising
    probabilities: Floats  # [K] in (0, 1), not falling

    def log_odds(self, scores: ArrayLike) -> Floats:
        """Calibrated log-odds of raw scores."""
        return log_odds(
            np.interp(np.asarray(scores, dtype=np.float64), self.knots, self.probabilities)
        )


def fit_isotonic(scores: Floats, y: Codes | Bools | Floats) -> Isotonic:
    """Fit the rising function by least squares on scores of bags the model did not see.

    Probabilities stay inside [1 / (n + 2), 1 - 1 / (n + 2)]: n bags cannot show that
    something never happens, and a log-loss must stay finite.
    """
    floor = 1 / (len(y) + 2)
    fitted = IsotonicRegression(y_min=floor, y_max=1 - floor).fit(scores, y)
    return Isotonic(fitted.X_thresholds_, fitted.y_thresholds_)
