"""Calibration functions: from a score to log-odds, the ranking kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bagwise.core.arrays import Array
from bagwise.core.rules import log_odds

if TYPE_CHECKING:
    from bagwise.core.arrays import Floats

# Share of the scores of a class that lies beyond its `typical_range`, at either end. Chosen on seed
# 100 of Tiger, Elephant, Fox, MUSK1 and digits.
_TAIL = 0.25


class Platt(NamedTuple):
    """Probability = sigmoid(slope * score + intercept)."""

    slope: float
    intercept: float

    def log_odds(self, scores: Array) -> Array:
        """Calibrated log-odds of raw scores."""
        return self.slope * scores + self.intercept


class Isotonic(NamedTuple):
    """Probability = linear interpolation between ``knots``, constant beyond them."""

    knots: Floats  # [K] scores, rising
    probabilities: Floats  # [K] in (0, 1), not falling

    def log_odds(self, scores: Floats) -> Floats:
        """Calibrated log-odds of raw scores."""
        return log_odds(np.interp(scores, self.knots, self.probabilities))


class Calibrator(NamedTuple):
    """A calibration function of scores whose tails are compressed."""

    function: Platt | Isotonic
    low: float  # the range in which held-out scores mostly lay
    high: float

    def log_odds(self, scores: Floats) -> Floats:
        """Calibrated log-odds of raw scores."""
        return self.function.log_odds(compress_beyond(scores, self.low, self.high))  # type: ignore[return-value]


def typical_range(scores: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """Where the scores of both classes mostly lie: from the lowest quartile to the highest.

    A class that has few bags counts as much as the other, and outliers, whose bags may be unlike
    all others, do not count. All scores, where most are equal.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.calibration.functions import typical_range
    >>> typical_range([0.0, 1.0, 2.0, 3.0, -900.0, 4.0, 5.0, 6.0, 7.0], [0, 0, 0, 0, 0, 1, 1, 1, 1])
    (0.0, 6.25)
    """
    scores, y = np.asarray(scores, dtype=np.float64), np.asarray(y)
    ends = [np.quantile(scores[y == label], (_TAIL, 1 - _TAIL)) for label in np.unique(y)]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    if low == high:
        low, high = scores.min(), scores.max()
    return float(low), float(high)


def compress_beyond(scores: Floats, low: float, high: float) -> Floats:
    """Scores with those outside a range pulled to within its width of it; their order stays.

    A line through scores between ``low`` and ``high`` means nothing far outside: a bag a thousand
    times as far out is not a thousand times as certain. A score x beyond the range becomes
    x / (1 + x / width) beyond it, which rises ever more slowly, by one width in all. An infinite
    range has nothing outside.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.calibration.functions import compress_beyond
    >>> compress_beyond(np.array([-99.0, 0.2, 1.0, 2.0]), 0.0, 1.0).round(2).tolist()
    [-0.99, 0.2, 1.0, 1.5]
    """
    width = high - low
    if width == 0 or np.isinf(width):
        return scores
    above, below = np.maximum(scores - high, 0.0), np.maximum(low - scores, 0.0)
    return np.clip(scores, low, high) + above / (1 + above / width) - below / (1 + below / width)
