"""Platt scaling: a sigmoid from held-out scores to probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit

from bagwise.core import segments
from bagwise.core.arrays import at_least, at_most

if TYPE_CHECKING:
    from bagwise.core.arrays import ArrayT, Floats, Ints


# Bags that Platt adds to each class on the other's side, however rare it is; see `smoothed`.
WHOLE_BAG = 1.0
# Share of the scores of a class that lies beyond its `typical_range`, at either end. Chosen on seed
# 100 of Tiger, Elephant, Fox, MUSK1 and digits.
_TAIL = 0.25
# Smallest calibrated log-odds per standard deviation of the score.
_LEAST_SLOPE = 1e-3


# Below so many bags of a class each is missed by the fits without a fold, which are then more.
_FEW = 20


def calibration_folds(y: ArrayLike) -> int:
    """Folds whose bags are left out in turn: 5, and 10 where a class has fewer than twenty bags.

    A fit without one or two of eight positive bags says much less than the fit to all, and is no
    guide to it. A class must still have a bag for each fold; that is the caller's to see to.

    Examples
    --------
    >>> from bagwise.core.platt import calibration_folds
    >>> calibration_folds(20 * [0] + 20 * [1]), calibration_folds(200 * [0] + 19 * [1])
    (5, 10)
    """
    fewest = int(np.bincount(np.asarray(y, dtype=np.int64), minlength=2).min())
    return 10 if fewest < _FEW else 5


class Platt(NamedTuple):
    """Probability = sigmoid(slope * score + intercept)."""

    slope: float
    intercept: float

    def log_odds(self, scores: ArrayLike) -> Floats:
        """Calibrated log-odds of raw scores."""
        return self.slope * np.asarray(scores, dtype=np.float64) + self.intercept

    def after(self, first: Platt) -> Platt:
        """One map that does what ``first`` and then this one do.

        Examples
        --------
        >>> from bagwise.core.platt import Platt
        >>> Platt(2.0, 1.0).after(Platt(3.0, -1.0))
        Platt(slope=6.0, intercept=-1.0)
        """
        return Platt(self.slope * first.slope, self.slope * first.intercept + self.intercept)


def fit_platt(scores: ArrayLike, y: ArrayLike) -> Platt:
    """Fit the sigmoid by maximum likelihood with Platt's smoothed targets.

    The slope is constrained to be >= 0, so calibration can flatten a ranking but never
    reverse it. ``scores`` must come from bags that the model did not see.
    """
    return fit_platts(np.asarray(scores, dtype=np.float64)[None], y)[0]


def fit_platts(
    scores: ArrayLike, y: ArrayLike, count: float | None = None, weight: Floats | None = None
) -> list[Platt]:
    """`fit_platt` for each row of ``scores`` [C, B] at once, by Newton's method.

    ``count`` and ``weight`` are those of `smoothed`.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.platt import fit_platts
    >>> scores = np.array([[-2.0, -1.0, 1.0, 2.0], [2.0, 1.0, -1.0, -2.0]])
    >>> [platt.slope > 0 for platt in fit_platts(scores, np.array([0, 1, 0, 1]))]
    [True, False]
    """
    scores = np.asarray(scores, dtype=np.float64)
    y = np.asarray(y, dtype=np.float64)
    each = np.ones_like(y) if weight is None else weight
    target = smoothed(y, count, weight)
    centre, spread = scores.mean(axis=1), scores.std(axis=1)
    spread = np.where(spread > 0, spread, 1.0)
    slope, intercept = _newton((scores - centre[:, None]) / spread[:, None], target, each)
    # The loss is convex: where its minimum has a negative slope, the best admissible one is 0.
    flat = slope <= 0
    slope = np.where(flat, 0.0, slope / spread)
    share = np.average(target, weights=weight)
    intercept = np.where(flat, np.log(share / (1 - share)), intercept - slope * centre)
    return [Platt(float(a), float(b)) for a, b in zip(slope, intercept, strict=True)]


def shrinkage(gain: float) -> float:
    """By what to multiply a slope whose maximum likelihood brought ``gain`` nats over none.

    ``max(0, 1 - 1 / gain)``: a slope must gain one nat, Akaike's price of a parameter, before it
    counts at all. Scores that say nothing gain half a nat on average, so that they mostly end at
    the base rate, and a slope that is sure stays as it is.

    Examples
    --------
    >>> from bagwise.core.platt import shrinkage
    >>> shrinkage(0.5), shrinkage(2.0), shrinkage(100.0)
    (0.0, 0.5, 0.99)
    """
    return max(0.0, 1 - 1 / gain) if gain > 0 else 0.0


def fit_shrunk_platt(
    scores: ArrayLike, y: ArrayLike, count: float | None = None, weight: Floats | None = None
) -> Platt:
    """`fit_platt` with its slope shrunk by what chance may have brought; the ranking is kept.

    The gain is that over the base rate, the intercept suits the bags at the smaller slope, and
    where nothing is left of the slope a hint of one keeps the ranking (`keep_ranking`). ``count``
    and ``weight`` are those of `smoothed`.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.platt import fit_platt, fit_shrunk_platt
    >>> scores = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    >>> hint = fit_shrunk_platt(scores, np.array([0, 1, 1, 0, 0, 1]))
    >>> bool(fit_platt(scores, np.array([0, 1, 1, 0, 0, 1])).slope > 50 * hint.slope > 0)
    True
    """
    scores, y = np.asarray(scores, dtype=np.float64), np.asarray(y, dtype=np.float64)
    each = np.ones_like(y) if weight is None else weight
    target = smoothed(y, count, weight)
    share = np.average(target, weights=weight)
    base = Platt(0.0, float(np.log(share / (1 - share))))
    (best,) = fit_platts(scores[None], y, count, weight)

    def loss(platt: Platt) -> float:
        return float(_cross_entropy(scores[None], target, np.array([platt]), each)[0])

    slope = best.slope * shrinkage(loss(base) - loss(best))
    if slope == 0:
        return keep_ranking(base, scores)
    level = minimize_scalar(
        lambda b: loss(Platt(slope, b - slope * scores.mean())),
        bracket=(base.intercept - 0.5, base.intercept + 0.5),
        tol=1e-8,
    )
    return keep_ranking(Platt(slope, float(level.x) - slope * float(scores.mean())), scores)


def smoothed(y: Floats, count: float | None = None, weight: Floats | None = None) -> Floats:
    """Platt's targets: short of 0 and 1 by what so few bags cannot show, [B].

    As if each class had ``count`` more bags on either side; ``weight`` [B] says how often each bag
    counts. By default ``count`` is four times the variance of a label, p (1 - p) with p the share
    of positives (by Laplace's rule, so that one class alone has a finite log-odds): 1, which is
    Platt's, where the classes have as many bags, and less where one is rare. A whole bag of the
    rare class among all those of the other would be as much as a tenth of its own bags, and would
    flatten every probability (``experiments/imbalance.py``). `WHOLE_BAG` suits maps of many
    candidates or classes that are compared on the same bags, where the steepest ones owe most to
    chance.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.platt import smoothed
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


_RIDGE = 1e-10  # keeps the Hessian regular where all scores are equal


def _newton(s: Floats, target: Floats, each: Floats) -> tuple[Floats, Floats]:
    """Slope and intercept of logistic regressions of ``target`` [B] on each row of ``s`` [C, B].

    Bag b counts ``each[b]`` times.
    """
    theta = np.zeros((len(s), 2))
    loss = _cross_entropy(s, target, theta, each)
    for _ in range(100):
        p = expit(theta[:, :1] * s + theta[:, 1:])
        residual, weight = each * (p - target), each * p * (1 - p)
        gradient = np.stack([(residual * s).sum(1), residual.sum(1)], axis=1)
        aa, ab, bb = (weight * s * s).sum(1), (weight * s).sum(1), weight.sum(1)
        aa, bb = aa + _RIDGE, bb + _RIDGE
        step = (
            np.stack(
                [
                    bb * gradient[:, 0] - ab * gradient[:, 1],
                    aa * gradient[:, 1] - ab * gradient[:, 0],
                ],
                axis=1,
            )
            / (aa * bb - ab**2)[:, None]
        )
        if np.all((gradient * step).sum(axis=1) <= 1e-13 * loss):  # what is left to gain, twice
            break
        theta, loss = _descend(s, target, theta, loss, step, each)
    return theta[:, 0], theta[:, 1]


def _descend(
    s: Floats, target: Floats, theta: Floats, loss: Floats, step: Floats, each: Floats
) -> tuple[Floats, Floats]:
    """Take each row's Newton step, halved until its loss does not rise."""
    size = np.ones(len(s))
    for _ in range(40):
        new = theta - size[:, None] * step
        value = _cross_entropy(s, target, new, each)
        worse = value > loss * (1 + 1e-13)  # more than rounding
        if not worse.any():
            return new, value
        size = np.where(worse, size / 2, size)
    return np.where(worse[:, None], theta, new), np.where(worse, loss, value)


def _cross_entropy(s: Floats, target: Floats, theta: Floats, each: Floats) -> Floats:
    z = theta[:, :1] * s + theta[:, 1:]
    return (each * (np.logaddexp(0.0, z) - target * z)).sum(axis=1)


def fit_noisy_or_platt(
    scores: ArrayLike, offsets: Ints, y: ArrayLike, count: float | None = None
) -> Platt:
    """Platt's sigmoid for instances, fitted through the bags they make by noisy-or.

    Every instance gets probability sigmoid(slope * score + intercept), a bag
    1 - prod(1 - p); slope >= 0 and intercept maximise the likelihood of the bag labels, with
    Platt's smoothed targets (``count`` is that of `smoothed`). Calibrated instances so still
    multiply up to their bag. ``scores`` [N] must come from bags that the
    model did not see.

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
    target = smoothed(y, count)
    centre, spread = scores.mean(), scores.std() or 1.0
    s = (scores - centre) / spread

    def loss(theta: Floats) -> tuple[float, Floats]:
        z = theta[0] * s + theta[1]
        rate = _rate(z, offsets)
        with np.errstate(over="ignore"):
            slope = 1 - target - target / np.expm1(rate)  # d loss / d rate
        weight = expit(z) * segments.spread(slope, offsets)
        return _noisy_or_loss(rate, target), np.array([weight @ s, weight.sum()])

    # Start where a bag of average size has the share of positive bags.
    rate = np.log(len(y) + 2) - np.log((1 - y).sum() + 1)
    start = np.array([1.0, np.log(np.expm1(rate * len(y) / len(s)))])
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)]).x
    slope = best[0] / spread
    return Platt(float(slope), float(best[1] - slope * centre))


def _rate(z: Floats, offsets: Ints) -> Floats:
    """-log prod(1 - p) of bags from the log-odds of their instances."""
    return np.maximum(segments.sum(np.logaddexp(0.0, z), offsets), np.finfo(np.float64).tiny)


def _noisy_or_loss(rate: Floats, target: Floats) -> float:
    """Cross-entropy of bags with probability 1 - exp(-rate)."""
    return float(np.sum((1 - target) * rate - target * np.log(-np.expm1(-rate))))


# How far features learned from the labels stretch the scores of their own bags: networks on bags
# of digits, with few features and many, needed a factor of about 0.65, 15 % of the bags held out.
_OPTIMISM, _OPTIMISM_STD = np.log(0.65) / 0.85, 0.1
# As good as no smoothing, but finite where the classes are apart.
_LITTLE = 0.01


def cool(platt: Platt, scores: Floats, offsets: Ints, y: ArrayLike, held_out: Ints) -> Platt:
    """The map with a gentler slope, where scores are optimistic.

    ``scores`` [N] are those of all bags, which instances make by noisy-or (a bag score is a bag
    of one), and ``held_out`` the indices of the bags that nothing was learned from. Optimism
    stretches scores, all by about the same factor: one number with a prior, fitted to the few
    bags that are free of it. It is taken off the slope that all bags ask for without
    smoothing: with few bags, smoothing has already flattened the probabilities, so no further
    shrinking is applied. The intercept
    suits all bags at the new slope, so that probabilities stay right on average.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.platt import cool, fit_platt
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=500)
    >>> y = (rng.random(500) < 1 / (1 + np.exp(-2 * scores))).astype(int)
    >>> scores[100:] *= 3  # learned from
    >>> platt = fit_platt(scores, y)
    >>> bool(cool(platt, scores, np.arange(501), y, np.arange(100)).slope < platt.slope)
    True
    """
    if len(held_out) == 0:
        return platt
    y = np.asarray(y, dtype=np.float64)
    free = fit_noisy_or_platt(scores, offsets, y, _LITTLE).slope
    rows, own = segments.take(offsets, held_out)
    target, own_target = smoothed(y), smoothed(y[held_out], _LITTLE)
    expected = (1 - len(held_out) / len(y)) * _OPTIMISM  # nothing, if nothing was learned from

    def intercept(slope: float) -> float:
        z = slope * scores
        bracket = (platt.intercept - 0.5, platt.intercept + 0.5)
        return float(
            minimize_scalar(
                lambda b: _noisy_or_loss(_rate(z + b, offsets), target), bracket, tol=1e-4
            ).x
        )

    def loss(log_factor: float) -> float:
        slope = np.exp(log_factor) * free
        likelihood = _noisy_or_loss(_rate(slope * scores[rows] + intercept(slope), own), own_target)
        return likelihood + 0.5 * ((log_factor - expected) / _OPTIMISM_STD) ** 2

    factor = np.exp(minimize_scalar(loss, bounds=(np.log(0.1), 0.0), method="bounded").x)
    slope = float(factor * free)
    return platt if slope >= platt.slope else Platt(slope, intercept(slope))


def fit_instance_platt(scores: ArrayLike, offsets: Ints, y: ArrayLike, rule: str) -> Platt:
    """Platt's map for instance scores, such that calibrated instances still make their bag.

    Under ``max`` it is the map of the bag's largest score, under ``noisy-or`` it is fitted
    through the product (`fit_noisy_or_platt`). The slope is shrunk by what chance may have brought
    (`shrinkage`); where nothing is left a hint of one keeps the ranking. ``scores`` [N] must come
    from bags that the model did not see.

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
    if rule != "noisy-or":
        return fit_shrunk_platt(segments.max(scores, offsets), y)
    platt = fit_noisy_or_platt(scores, offsets, y)
    target, centre = smoothed(np.asarray(y, dtype=np.float64)), float(scores.mean())

    def loss(slope: float, level: float) -> float:
        return _noisy_or_loss(_rate(slope * (scores - centre) + level, offsets), target)

    def best_level(slope: float) -> float:
        level = platt.intercept + platt.slope * centre
        bracket = (level - 0.5, level + 0.5)
        return float(minimize_scalar(lambda b: loss(slope, b), bracket, tol=1e-6).x)

    flat = loss(0.0, best_level(0.0))
    slope = platt.slope * shrinkage(
        flat - loss(platt.slope, platt.intercept + platt.slope * centre)
    )
    return keep_ranking(Platt(slope, best_level(slope) - slope * centre), scores)


def typical_range(scores: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """Where the scores of both classes mostly lie: from the lowest quartile to the highest.

    A class that has few bags counts as much as the other, and outliers, whose bags may be unlike
    all others, do not count. All scores, where most are equal.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.platt import typical_range
    >>> typical_range([0.0, 1.0, 2.0, 3.0, -900.0, 4.0, 5.0, 6.0, 7.0], [0, 0, 0, 0, 0, 1, 1, 1, 1])
    (0.0, 6.25)
    """
    scores, y = np.asarray(scores, dtype=np.float64), np.asarray(y)
    ends = [np.quantile(scores[y == label], (_TAIL, 1 - _TAIL)) for label in np.unique(y)]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    if low == high:
        low, high = scores.min(), scores.max()
    return float(low), float(high)


def compress_beyond(scores: ArrayT, low: float, high: float, order: int = 1) -> ArrayT:
    """Scores with those outside a range pulled to within its width of it; their order stays.

    A line through scores between ``low`` and ``high`` says nothing far outside: a bag a thousand
    times as far out is not a thousand times as sure. Beyond the range scores rise ever more
    slowly, by one width of the range in all. ``order`` says how soon the line bends: at once (1),
    for distances and votes, which have no scale; later (2) for log-odds, which a model means as
    such. An infinite range has nothing outside.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.platt import compress_beyond
    >>> compress_beyond(np.array([-99.0, 0.2, 1.0, 2.0]), 0.0, 1.0).round(2).tolist()
    [-0.99, 0.2, 1.0, 1.5]
    >>> compress_beyond(np.array([-99.0, 0.2, 1.0, 2.0]), 0.0, 1.0, order=2).round(2).tolist()
    [-1.0, 0.2, 1.0, 1.71]
    """
    width = high - low
    if width == 0 or np.isinf(width):
        return scores
    above, below = at_least(scores - high, 0.0), at_least(low - scores, 0.0)
    above, below = (x / (1 + (x / width) ** order) ** (1 / order) for x in (above, below))
    return cast("ArrayT", at_most(at_least(scores, low), high) + above - below)


def keep_ranking(platt: Platt, scores: Floats) -> Platt:
    """The map, with a hint of slope about the mean score where it has none.

    What rounding left of equal scores is no ranking: the hint for them is that of scores which
    spread by 1.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.platt import Platt, keep_ranking
    >>> keep_ranking(Platt(0.0, 0.5), np.array([-1.0, 1.0]))
    Platt(slope=0.001, intercept=0.5)
    """
    spread = float(np.std(scores))
    if spread <= 1e-12 * float(np.max(np.abs(scores), initial=0.0)):
        spread = 1.0
    slope = max(platt.slope, _LEAST_SLOPE / spread)
    return Platt(slope, platt.intercept - (slope - platt.slope) * float(np.mean(scores)))
