"""Whether an instance is one of those that made its bag positive.

Bag labels do not identify the share of positive instances, but how much more often a
latent value occurs in positive bags. Let u be the latent value of an instance and T the label of
its bag. Where the background of positive bags looks like a negative bag, the odds of T given u are

    odds(T | u) = floor (1 + e^{a (u - u0)}),

1 for instances of the background, the rest for those that made their bag positive: a logistic
curve with a floor, three parameters. Of an instance with value u in a positive bag,

    share(u) = e^{a (u - u0)} / (1 + e^{a (u - u0)})

is then the probability that it is one of the latter. It is fitted to values u of instances whose
bags were held out.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from bagwise.core import segments
from bagwise.core.arrays import Bools, Floats, Ints, expit
from bagwise.models.calibration.functions import Platt

# Normal priors, mean and standard deviation, with u in units of its own mean and deviation: the
# log-odds of the base rate for the floor, u0 where few instances are, and a rise that is steep
# there. Most instances are background, and what differs among them by chance must not be a rise.
_CROSSING, _LOG_SLOPE, _FLOOR_STD = (2.0, 1.0), (float(np.log(4.0)), 0.5), 1.0
# Instances that the function is fitted to, some of every bag.
_MOST = 20_000


def fit_share(u: Floats, offsets: Ints, y: Bools, weight: Floats | None = None) -> Platt:
    """The log-odds of the share, from latent values [n] of instances of held-out bags, labels [b].

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.calibration.share import fit_share
    >>> rng = np.random.default_rng(0)
    >>> u = rng.normal(size=(200, 10)) - 3
    >>> y = np.arange(200) % 2 == 1
    >>> u[y, 0] += 6  # one of ten instances of a positive bag
    >>> share = fit_share(u.ravel(), np.arange(201) * 10, y)
    >>> bool(share.log_odds(3.0) > 2), bool(share.log_odds(-3.0) < -2)
    (True, True)
    """
    y = np.asarray(y, dtype=np.float64)
    bag = segments.spread(np.arange(len(y)), offsets)
    rows = np.arange(0, len(u), -(-len(u) // _MOST))
    u, T = np.asarray(u, dtype=np.float64)[rows], y[bag[rows]]
    w = np.ones(len(u)) if weight is None else weight[bag[rows]]
    positive, negative = float(w @ T), float(w @ (1 - T))
    base = float(np.log(max(positive, 0.5)) - np.log(max(negative, 0.5)))
    center = float(np.average(u, weights=w))
    width = float(np.sqrt(np.average((u - center) ** 2, weights=w)))
    if width <= 1e-9 * max(1.0, abs(center)):  # all values are one
        width = 1.0
    z = (u - center) / width
    start = np.array([base, _LOG_SLOPE[0], _CROSSING[0]])
    std = np.array([_FLOOR_STD, _LOG_SLOPE[1], _CROSSING[1]])

    def loss(x: Floats) -> tuple[float, Floats]:
        """-sum w [T log odds - log(1 + odds)] plus the priors, and its gradient."""
        slope = np.exp(x[1])
        rise = slope * (z - x[2])
        log_odds = x[0] + np.logaddexp(0.0, rise)
        value = w @ (np.logaddexp(0.0, log_odds) - T * log_odds)
        residual = w * (expit(log_odds) - T)
        of_rise = residual * expit(rise)
        gradient = np.array([residual.sum(), of_rise @ rise, -slope * of_rise.sum()])
        away = (x - start) / std
        return float(value + away @ away / 2), gradient + away / std

    x = minimize(loss, start, jac=True, method="L-BFGS-B").x
    slope = float(np.exp(x[1])) / width
    return Platt(slope, -slope * (center + width * float(x[2])))
