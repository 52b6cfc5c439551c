"""Platt scaling: a sigmoid from held-out scores to probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize, minimize_scalar
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
    return fit_platts(np.asarray(scores, dtype=np.float64)[None], y)[0]


def fit_platts(scores: Any, y: Any) -> list[Platt]:
    """`fit_platt` for each row of ``scores`` [C, B] at once, by Newton's method.

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
    target = _smoothed(y)
    centre, spread = scores.mean(axis=1), scores.std(axis=1)
    spread = np.where(spread > 0, spread, 1.0)
    slope, intercept = _newton((scores - centre[:, None]) / spread[:, None], target)
    # The loss is convex: where its minimum has a negative slope, the best admissible one is 0.
    flat = slope <= 0
    slope = np.where(flat, 0.0, slope / spread)
    share = target.mean()
    intercept = np.where(flat, np.log(share / (1 - share)), intercept - slope * centre)
    return [Platt(float(a), float(b)) for a, b in zip(slope, intercept, strict=True)]


def _smoothed(y: Any) -> Any:
    """Platt's targets: short of 0 and 1 by what so few bags cannot show, [B]."""
    n_pos, n_neg = y.sum(), (1 - y).sum()
    return np.where(y > 0, (n_pos + 1) / (n_pos + 2), 1 / (n_neg + 2))


_RIDGE = 1e-10  # keeps the Hessian regular where all scores are equal


def _newton(s: Any, target: Any) -> tuple[Any, Any]:
    """Slope and intercept of logistic regressions of ``target`` [B] on each row of ``s`` [C, B]."""
    theta = np.zeros((len(s), 2))
    loss = _cross_entropy(s, target, theta)
    for _ in range(100):
        p = expit(theta[:, :1] * s + theta[:, 1:])
        residual, weight = p - target, p * (1 - p)
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
        theta, loss = _descend(s, target, theta, loss, step)
    return theta[:, 0], theta[:, 1]


def _descend(s: Any, target: Any, theta: Any, loss: Any, step: Any) -> tuple[Any, Any]:
    """Take each row's Newton step, halved until its loss does not rise."""
    size = np.ones(len(s))
    for _ in range(40):
        new = theta - size[:, None] * step
        value = _cross_entropy(s, target, new)
        worse = value > loss * (1 + 1e-13)  # more than rounding
        if not worse.any():
            return new, value
        size = np.where(worse, size / 2, size)
    return np.where(worse[:, None], theta, new), np.where(worse, loss, value)


def _cross_entropy(s: Any, target: Any, theta: Any) -> Any:
    z = theta[:, :1] * s + theta[:, 1:]
    return (np.logaddexp(0.0, z) - target * z).sum(axis=1)


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
    target = _smoothed(y)
    centre, spread = scores.mean(), scores.std() or 1.0
    s = (scores - centre) / spread

    def loss(theta: Any) -> tuple[float, Any]:
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


def _rate(z: Any, offsets: Any) -> Any:
    """-log prod(1 - p) of bags from the log-odds of their instances."""
    return np.maximum(segments.sum(np.logaddexp(0.0, z), offsets), np.finfo(np.float64).tiny)


def _noisy_or_loss(rate: Any, target: Any) -> float:
    """Cross-entropy of bags with probability 1 - exp(-rate)."""
    return float(np.sum((1 - target) * rate - target * np.log(-np.expm1(-rate))))


def cool(platt: Platt, scores: Any, offsets: Any, y: Any, held_out: Any) -> Platt:
    """The map with a gentler slope, as far as bags that nothing was learned from ask.

    ``scores`` [N] are those of all bags, which instances make by noisy-or (a bag score is a bag
    of one), and ``held_out`` the indices of such bags. Optimism stretches scores, all by about
    the same factor: one number, at most 1, is fitted to the few bags that are free of it, with
    Platt's smoothed targets. For each factor the intercept suits all bags, so that
    probabilities stay right on average.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.platt import Platt, cool
    >>> scores, y = np.array([-2.0, 2.0, -2.0, 1.0, -1.0, 2.0]), np.array([0, 1, 0, 0, 1, 1])
    >>> cooled = cool(Platt(3.0, 0.0), scores, np.arange(7), y, np.array([2, 3, 4, 5]))
    >>> bool(0 < cooled.slope < 3)
    True
    """
    if len(held_out) == 0:
        return platt
    y = np.asarray(y, dtype=np.float64)
    rows, own = segments.take(offsets, held_out)
    target, own_target = _smoothed(y), _smoothed(y[held_out])

    def intercept(slope: float) -> float:
        z = slope * scores
        bracket = (platt.intercept - 0.5, platt.intercept + 0.5)
        return float(
            minimize_scalar(
                lambda b: _noisy_or_loss(_rate(z + b, offsets), target), bracket, tol=1e-4
            ).x
        )

    def loss(factor: float) -> float:
        slope = factor * platt.slope
        return _noisy_or_loss(_rate(slope * scores[rows] + intercept(slope), own), own_target)

    factor = float(minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded").x)
    if loss(1.0) <= loss(factor):
        return platt
    return Platt(factor * platt.slope, intercept(factor * platt.slope))


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
    return keep_ranking(platt, scores)


def keep_ranking(platt: Platt, scores: Any) -> Platt:
    """The map, with a hint of slope about the mean score where it has none.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.platt import Platt, keep_ranking
    >>> keep_ranking(Platt(0.0, 0.5), np.array([-1.0, 1.0]))
    Platt(slope=0.001, intercept=0.5)
    """
    slope = max(platt.slope, _LEAST_SLOPE / (float(np.std(scores)) or 1.0))
    return Platt(slope, platt.intercept - (slope - platt.slope) * float(np.mean(scores)))
