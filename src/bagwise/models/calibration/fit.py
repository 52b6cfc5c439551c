"""Calibration functions, from a score to log-odds, fitted to bags that the model did not see.

The likelihood of the bag labels given slope and intercept, for bags or through the instances that
make them by noisy-or, is maximised by one optimiser, Newton's method.

Whether an instance is one of those that made its bag positive is calibrated apart. Bag labels do
not identify the share of positive instances, but how much more often a latent value occurs in
positive bags. Let u be the latent value of an instance and T the label of its bag. Where the
background of positive bags looks like a negative bag, the odds of T given u are

    odds(T | u) = floor (1 + e^{a (u - u0)}),

1 for instances of the background, the rest for those that made their bag positive: a logistic
curve with a floor, three parameters. Of an instance with value u in a positive bag,

    share(u) = e^{a (u - u0)} / (1 + e^{a (u - u0)})

is then the probability that it is one of the latter. It is fitted to values u of instances whose
bags were held out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit

from bagwise.core import segments
from bagwise.core.arrays import Array, Bools, Codes, Floats, Ints
from bagwise.core.rules import RULES, log_odds

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
    >>> from bagwise.models.calibration.fit import typical_range
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
    >>> from bagwise.models.calibration.fit import compress_beyond
    >>> compress_beyond(np.array([-99.0, 0.2, 1.0, 2.0]), 0.0, 1.0).round(2).tolist()
    [-0.99, 0.2, 1.0, 1.5]
    """
    width = high - low
    if width == 0 or np.isinf(width):
        return scores
    above, below = np.maximum(scores - high, 0.0), np.maximum(low - scores, 0.0)
    return np.clip(scores, low, high) + above / (1 + above / width) - below / (1 + below / width)


# Smallest calibrated log-odds per standard deviation of the score.
_LEAST_SLOPE = 1e-3
_RIDGE = 1e-10  # keeps the Hessian regular where all scores are equal

# Value, gradient [2] and Hessian [2, 2] in slope and intercept.
Terms: TypeAlias = "tuple[float, Floats, Floats]"
Loss: TypeAlias = "Callable[..., Terms]"  # of theta and, as ``s``, the scores


def fit_calibrator(
    scores: Floats,
    y: Codes | Bools | Floats,
    offsets: Ints | None = None,
    rule: str = "max",
    kind: str = "platt",
) -> Calibrator:
    """The calibration of held-out scores of bags, or of the instances that make them.

    Parameters
    ----------
    scores : array of shape (n_bags,), or (n_instances,) with ``offsets``
    y : array of shape (n_bags,), 0 or 1
    offsets : where the instances of each bag start or None, default=None
    rule : name in `RULES`, default="max"
        How instances make their bag.
    kind : {"platt", "isotonic"}, default="platt"
        A sigmoid, or a rising step function, of the bag's largest score.
    """
    offsets = np.arange(len(y) + 1) if offsets is None else offsets
    # Instances may lie as low as most do, bags as high.
    low, _ = typical_range(scores, segments.spread(y, offsets))
    _, high = typical_range(segments.max(scores, offsets), y)
    scores = compress_beyond(scores, low, high)
    if kind == "platt":
        return Calibrator(fit_instance_platt(scores, offsets, y, rule), low, high)
    if not RULES[rule].takes_scores:
        raise ValueError(f"calibration={kind!r} needs bag_rule='max'; it has no {rule!r}.")
    return Calibrator(fit_isotonic(RULES[rule].log_odds(scores, offsets), y), low, high)


def fit_isotonic(scores: Floats, y: Codes | Bools | Floats) -> Isotonic:
    """Fit the rising function by least squares on scores of bags the model did not see.

    Probabilities stay inside [1 / (n + 2), 1 - 1 / (n + 2)]: n bags cannot show that
    something never happens, and a log-loss must stay finite.
    """
    from sklearn.isotonic import IsotonicRegression

    floor = 1 / (len(y) + 2)
    fitted = IsotonicRegression(y_min=floor, y_max=1 - floor).fit(scores, y)
    return Isotonic(fitted.X_thresholds_, fitted.y_thresholds_)


def fit_instance_platt(scores: Floats, offsets: Ints, y: ArrayLike, rule: str) -> Platt:
    """The shrunk sigmoid of instance scores, such that calibrated instances still make their bag.

    Where a bag's score is one of its instances' it is fitted to the bags, else through the product
    of ``noisy-or``.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.calibration.fit import fit_instance_platt
    >>> scores = np.array([-9.0, 9.0, -7.0, -9.0, 2.0, 8.0, 5.0, -8.0])
    >>> offsets, y = np.array([0, 2, 4, 6, 8]), np.array([1, 0, 1, 0])
    >>> 0 < fit_instance_platt(scores, offsets, y, "max").slope < 1
    True
    """
    if RULES[rule].takes_scores:
        return fit_platt(RULES[rule].log_odds(scores, offsets), y, shrink=True)
    return fit_platt(scores, y, offsets, shrink=True)


def fit_platt(
    scores: ArrayLike,
    y: ArrayLike,
    offsets: Ints | None = None,
    *,
    shrink: bool = False,
    count: float | None = None,
    weight: Floats | None = None,
) -> Platt:
    """Slope and intercept by maximum likelihood with Platt's smoothed targets.

    The slope is >= 0, so that calibration can flatten a ranking but never reverse it.

    Parameters
    ----------
    scores : array of shape (n_bags,), or (n_instances,) with ``offsets``
        Of bags that the model did not see. With ``offsets`` every instance gets the probability
        p = sigmoid(slope * score + intercept), and a bag 1 - prod(1 - p).
    y : array of shape (n_bags,), 0 or 1
    offsets : where the instances of each bag start or None, default=None
    shrink : bool, default=False
        Multiply the slope by ``max(0, 1 - 1 / gain)``, its gain over the base rate being in nats,
        and fit the intercept again. Where nothing is left of the slope, `keep_ranking` gives a
        small one.
    count, weight : arrays or None, default=None
        As in `smoothed`.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.calibration.fit import fit_platt
    >>> scores, y = np.arange(6.0), np.array([0, 1, 1, 0, 0, 1])
    >>> plain, shrunk = fit_platt(scores, y), fit_platt(scores, y, shrink=True)
    >>> bool(plain.slope > 50 * shrunk.slope > 0)
    True
    """
    scores, y = np.asarray(scores, dtype=np.float64), np.asarray(y, dtype=np.float64)
    each = np.ones_like(y) if weight is None else weight
    target = smoothed(y, count, weight)
    share = np.average(target, weights=weight)
    flat = Platt(0.0, float(np.log(share / (1 - share))))  # the base rate
    loss: Loss = partial(_bag_loss, target=target, each=each)
    if offsets is not None:
        # Start where a bag of average size, 1 - (1 - p)^(N / B), has the share of positive bags.
        size = len(scores) / len(y)
        flat = Platt(0.0, float(np.log(np.expm1(-np.log1p(-share) / size))))
        loss = partial(_noisy_or_loss, offsets=offsets, target=target, each=each)
        flat = Platt(0.0, _best_intercept(loss, 0.0, scores, flat.intercept))
    centre, spread = scores.mean(), scores.std() or 1.0
    start = np.zeros(2) if offsets is None else np.array(flat)
    steep, middle = _newton(partial(loss, s=(scores - centre) / spread), start)
    slope = steep / spread
    # A loss whose minimum has a negative slope is least, of all admissible ones, at slope 0.
    best = Platt(float(slope), float(middle - slope * centre)) if slope > 0 else flat
    if not shrink:
        return best
    gain = loss(np.array(flat), s=scores)[0] - loss(np.array(best), s=scores)[0]
    # A slope must gain one nat, Akaike's penalty of a parameter, before it counts at all. Scores
    # without information gain half a nat on average, so that they mostly end at the base rate, and
    # a slope that is certain stays as it is.
    slope = best.slope * max(0.0, 1 - 1 / gain) if gain > 0 else 0.0
    if slope == 0:
        return keep_ranking(flat, scores)
    near = flat.intercept if offsets is None else best.intercept + best.slope * centre
    return keep_ranking(Platt(slope, _best_intercept(loss, slope, scores, near)), scores)


def smoothed(y: Floats, count: float | None = None, weight: Floats | None = None) -> Floats:
    """Platt's targets: short of 0 and 1 by what so few bags cannot show, [B].

    As if each class had ``count`` more bags on either side; ``weight`` [B] is how often each bag
    counts. By default ``count`` is four times the variance of a label, p (1 - p) with p the share
    of positives (by Laplace's rule, so that one class alone has a finite log-odds): 1, which is
    Platt's, where the classes have as many bags, and less where one is rare. A whole bag of the
    rare class among all those of the other would be as much as a tenth of its own bags, and would
    flatten every probability (``experiments/imbalance.py``).

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.calibration.fit import smoothed
    >>> smoothed(np.array([0.0, 1.0])).round(3).tolist()
    [0.333, 0.667]
    >>> smoothed(np.array([1.0] + 9 * [0.0]))[:2].round(3).tolist()
    [0.737, 0.055]
    """
    each = np.ones_like(y) if weight is None else weight
    n_pos, n_neg = float(np.sum(each * y)), float(np.sum(each * (1 - y)))
    if count is None:
        count = 4 * (n_pos + 1) * (n_neg + 1) / (n_pos + n_neg + 2) ** 2
    return np.where(y > 0, (n_pos + count) / (n_pos + 2 * count), count / (n_neg + 2 * count))


def keep_ranking(platt: Platt, scores: Floats) -> Platt:
    """The function, with a small slope about the mean score where it has none.

    What rounding left of equal scores is no ranking: the slope for them is that of scores which
    spread by 1.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.calibration.fit import Platt, keep_ranking
    >>> keep_ranking(Platt(0.0, 0.5), np.array([-1.0, 1.0]))
    Platt(slope=0.001, intercept=0.5)
    """
    spread = float(np.std(scores))
    if spread <= 1e-12 * float(np.max(np.abs(scores), initial=0.0)):
        spread = 1.0
    slope = max(platt.slope, _LEAST_SLOPE / spread)
    return Platt(slope, platt.intercept - (slope - platt.slope) * float(np.mean(scores)))


def _bag_loss(theta: Floats, s: Floats, target: Floats, each: Floats) -> Terms:
    """Cross-entropy of bags with log-odds z = theta_0 s + theta_1.

    It is sum_b w_b [softplus(z_b) - t_b z_b]; its slope in z_b is w_b (p_b - t_b), its curvature
    w_b p_b (1 - p_b).
    """
    z = theta[0] * s + theta[1]
    p = expit(z)
    value = float((each * (np.logaddexp(0.0, z) - target * z)).sum())
    residual, curvature = each * (p - target), each * p * (1 - p)
    gradient = np.array([(residual * s).sum(), residual.sum()])
    return value, gradient, _hessian(curvature, s)


def _noisy_or_loss(theta: Floats, s: Floats, offsets: Ints, target: Floats, each: Floats) -> Terms:
    """The same of bags with probability 1 - exp(-r), where r = sum_i softplus(z_i).

    A bag's loss l(r) = (1 - t) r - t log(1 - e^-r) has l' = 1 - t - t / (e^r - 1) and
    l'' = t e^r / (e^r - 1)^2; of an instance dr / dz_i = p_i and d²r / dz_i² = p_i (1 - p_i).
    """
    z = theta[0] * s + theta[1]
    p = expit(z)
    rate = np.maximum(segments.sum(np.logaddexp(0.0, z), offsets), np.finfo(np.float64).tiny)
    value = float((each * ((1 - target) * rate - target * np.log(-np.expm1(-rate)))).sum())
    with np.errstate(over="ignore"):
        odds_against = 1 / np.expm1(rate)  # [B]
    first, second = 1 - target - target * odds_against, target * odds_against * (1 + odds_against)
    of_rate = segments.sum(np.column_stack([p * s, p]), offsets)  # dr_b / d theta, [B, 2]
    gauss_newton = (of_rate.T * (each * second)) @ of_rate
    rest = segments.spread(each * first, offsets) * p * (1 - p)  # [N]
    hessian = gauss_newton + _hessian(rest, s)
    if np.linalg.eigvalsh(hessian)[0] <= 0:  # far from the minimum: only what is convex counts
        hessian = gauss_newton + _hessian(np.maximum(rest, 0.0), s)
    return value, (each * first) @ of_rate, hessian


def _hessian(curvature: Floats, s: Floats) -> Floats:
    """Of a sum of functions of theta_0 s_i + theta_1 with these second derivatives, [2, 2]."""
    mixed = (curvature * s).sum()
    return np.array([[(curvature * s * s).sum(), mixed], [mixed, curvature.sum()]])


def _newton(loss: Loss, theta: Floats, slope_too: bool = True) -> Floats:
    """Slope and intercept of least loss, or the intercept alone at a slope.

    A step is halved until the loss does not rise.
    """
    value, gradient, hessian = loss(theta)
    for _ in range(100):
        (aa, ab), (_, bb) = hessian + _RIDGE * np.eye(2)
        a, b = gradient
        step = np.array([0.0, b / bb])
        if slope_too:  # the inverse of a 2 x 2 matrix times the gradient
            step = np.array([bb * a - ab * b, aa * b - ab * a]) / (aa * bb - ab**2)
        if gradient @ step <= 1e-13 * value:  # what is left to gain, twice
            break
        for _ in range(40):
            new = loss(theta - step)
            if new[0] <= value * (1 + 1e-13):  # no more than rounding
                break
            step /= 2
        else:
            break
        theta, (value, gradient, hessian) = theta - step, new
    return theta


def _best_intercept(loss: Loss, slope: float, scores: Floats, near: float) -> float:
    """The intercept of least loss at a slope; ``near`` is a guess of the log-odds at the mean."""
    start = np.array([slope, near - slope * float(scores.mean())])
    theta = _newton(partial(loss, s=scores), start, slope_too=False)
    # Losses that are equal to 16 digits differ in the 8th of the intercept: one more step.
    _, gradient, hessian = loss(theta, s=scores)
    return float(theta[1] - gradient[1] / hessian[1, 1])


# How far features learned from the labels stretch the scores of their own bags: networks on bags
# of digits, with few features and many, needed a factor of about 0.65, 15 % of the bags held out.
_OPTIMISM, _OPTIMISM_STD = np.log(0.65) / 0.85, 0.1
# As good as no smoothing, but finite where the classes are apart.
_LITTLE = 0.01


def correct_optimism(platt: Platt, scores: Floats, y: ArrayLike, held_out: Ints) -> Platt:
    """The function with a smaller slope, where features were learned from most of the bags.

    ``held_out`` are the indices of the bags that no feature was learned from. Optimism
    stretches scores, all by about the same factor: one number with a prior, fitted to the few
    bags that are free of it. It is taken off the slope that all bags have without
    smoothing: with few bags, smoothing has already flattened the probabilities, so no further
    shrinking is applied. The intercept suits all bags at the new slope, so that probabilities
    stay right on average.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.calibration.fit import correct_optimism, fit_platt
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=500)
    >>> y = (rng.random(500) < 1 / (1 + np.exp(-2 * scores))).astype(int)
    >>> scores[100:] *= 3  # learned from
    >>> platt = fit_platt(scores, y)
    >>> bool(correct_optimism(platt, scores, y, np.arange(100)).slope < platt.slope)
    True
    """
    if len(held_out) == 0:
        return platt
    y = np.asarray(y, dtype=np.float64)
    free = fit_platt(scores, y, count=_LITTLE).slope
    all_bags = partial(_bag_loss, target=smoothed(y), each=np.ones_like(y))
    target = smoothed(y[held_out], _LITTLE)
    unseen_bags = partial(_bag_loss, target=target, each=np.ones_like(target))
    expected = (1 - len(held_out) / len(y)) * _OPTIMISM  # nothing, if nothing was learned from

    def at(log_factor: float) -> Platt:
        """The smaller slope, and the intercept that suits all bags."""
        slope = float(np.exp(log_factor) * free)
        near = platt.intercept + slope * float(scores.mean())
        return Platt(slope, _best_intercept(all_bags, slope, scores, near))

    def loss(log_factor: float) -> float:
        # Negative log-likelihood of the bags free of optimism, and the normal prior of the factor.
        value = unseen_bags(np.array(at(log_factor)), s=scores[held_out])[0]
        return value + 0.5 * ((log_factor - expected) / _OPTIMISM_STD) ** 2

    corrected = at(minimize_scalar(loss, bounds=(np.log(0.1), 0.0), method="bounded").x)
    return platt if corrected.slope >= platt.slope else corrected


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
    >>> from bagwise.models.calibration.fit import fit_share
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
