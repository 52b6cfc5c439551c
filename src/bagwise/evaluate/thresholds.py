"""Choosing where to cut scores, and what that costs: rates with confidence intervals.

A bag is called positive when its score is greater than the threshold. Thresholds must be chosen
on scores of bags the model has not seen, and the rates of a chosen threshold look better on the
scores it was chosen on than they are: `cross_fitted_rates` chooses and counts on different bags.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from bagwise.core.arrays import Ints
from bagwise.evaluate.metrics import check_binary
from bagwise.models.held_out import folds


class Proportion(NamedTuple):
    """A share of a count, with its confidence interval.

    Examples
    --------
    >>> from bagwise.evaluate import proportion
    >>> share = proportion(9, 10)
    >>> f"{share.value:.2f} ({share.low:.2f} to {share.high:.2f})"
    '0.90 (0.60 to 0.98)'
    """

    value: float
    low: float
    high: float
    successes: int
    total: int


class Rates(NamedTuple):
    """Sensitivity and specificity at a threshold.

    Examples
    --------
    >>> from bagwise.evaluate import rates_at
    >>> rates_at([0, 0, 1, 1], [0.1, 0.6, 0.4, 0.9], 0.5).sensitivity.value
    0.5
    """

    threshold: float
    sensitivity: Proportion
    specificity: Proportion


class Goal(NamedTuple):
    """What a threshold is chosen for; without any of the three, for Youden's index.

    Parameters
    ----------
    sensitivity : float or None, default=None
        The largest threshold that finds at least this share of the positives.
    specificity : float or None, default=None
        The smallest threshold that leaves at least this share of the negatives alone.
    cost : pair of float or None, default=None
        What a missed positive and a false alarm cost; the sum of costs is made smallest.

    Examples
    --------
    >>> from bagwise.evaluate import Goal, choose_threshold
    >>> y, scores = [0, 0, 1, 0, 1, 1], [0.1, 0.2, 0.3, 0.4, 0.8, 0.9]
    >>> choose_threshold(y, scores, Goal(sensitivity=1.0))
    0.25
    >>> round(choose_threshold(y, scores, Goal(specificity=1.0)), 3)
    0.6
    """

    sensitivity: float | None = None
    specificity: float | None = None
    cost: tuple[float, float] | None = None


YOUDEN = Goal()


def proportion(successes: int, total: int) -> Proportion:
    """A share with Wilson's score interval at 95 %, close to its nominal level on average.

    Parameters
    ----------
    successes, total : int

    Examples
    --------
    >>> from bagwise.evaluate import proportion
    >>> share = proportion(9, 10)
    >>> round(share.low, 3), round(share.high, 3)
    (0.596, 0.982)
    """
    if not 0 <= successes <= total:
        raise ValueError(f"successes must lie between 0 and total; got {successes} of {total}.")
    if total == 0:  # nothing is known
        return Proportion(float("nan"), 0.0, 1.0, 0, 0)
    low, high = stats.binomtest(successes, total).proportion_ci(0.95, "wilson")
    return Proportion(successes / total, float(low), float(high), successes, total)


def rates_at(y: ArrayLike, scores: ArrayLike, threshold: float) -> Rates:
    """Sensitivity and specificity of calling positive what scores above a threshold.

    Their intervals are those of `proportion`.

    Examples
    --------
    >>> from bagwise.evaluate import rates_at
    >>> rates = rates_at([0, 0, 1, 1], [0.1, 0.6, 0.7, 0.9], 0.5)
    >>> rates.sensitivity.value, rates.specificity.value
    (1.0, 0.5)
    """
    truth, values = check_binary(y, scores)
    return _rates(truth, values > threshold, float(threshold))


def choose_threshold(y: ArrayLike, scores: ArrayLike, goal: Goal = YOUDEN) -> float:
    """The threshold that serves a goal best on these scores.

    Thresholds lie halfway between neighbouring scores. Where several serve a goal of costs or
    Youden's index equally well, the one in the widest gap is taken.

    Parameters
    ----------
    y : array of 0/1, shape (n,)
        Both classes must occur.
    scores : array, shape (n,)
        Of bags the model has not seen.
    goal : Goal, default=Goal()

    Examples
    --------
    >>> from bagwise.evaluate import Goal, choose_threshold
    >>> y, scores = [0, 0, 1, 1], [0.1, 0.2, 0.6, 0.7]
    >>> round(choose_threshold(y, scores), 3)
    0.4
    >>> round(choose_threshold([0, 1, 0, 1], scores, Goal(cost=(1, 5))), 3)
    0.65
    """
    truth, values = check_binary(y, scores)
    if sum(part is not None for part in goal) > 1:
        raise ValueError("a goal is a sensitivity, a specificity or a pair of costs; got several.")
    for name in ("sensitivity", "specificity"):
        share = getattr(goal, name)
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"a goal of {name} must lie above 0 and up to 1; got {share}.")
    if goal.cost is not None and not all(np.isfinite(c) and c > 0 for c in goal.cost):
        raise ValueError(f"both costs must be positive numbers; got {goal.cost}.")
    n_positive = int(truth.sum())
    n_negative = len(truth) - n_positive
    if n_positive == 0 or n_negative == 0:
        raise ValueError("choosing a threshold needs bags of both classes; got one.")
    levels, level_of = np.unique(values, return_inverse=True)  # distinct scores, rising
    positives = np.bincount(level_of, weights=truth, minlength=len(levels))
    negatives = np.bincount(level_of, minlength=len(levels)) - positives
    # Cut k calls positive the levels k, k + 1, ...: how many of each class that leaves below.
    missed = np.concatenate([[0], np.cumsum(positives)])
    spared = np.concatenate([[0], np.cumsum(negatives)])
    if goal.sensitivity is not None:
        # Rounding must not ask for one positive more than the share does.
        wanted = np.ceil(goal.sensitivity * n_positive - 1e-9)
        cut = int(np.flatnonzero(n_positive - missed >= wanted)[-1])
    elif goal.specificity is not None:
        wanted = np.ceil(goal.specificity * n_negative - 1e-9)
        cut = int(np.flatnonzero(spared >= wanted)[0])
    else:
        # Youden's index is the cost in which either class weighs the same as a whole.
        miss, alarm = goal.cost or (float(n_negative), float(n_positive))
        losses = miss * missed + alarm * (n_negative - spared)
        gaps = np.concatenate([[0], np.diff(levels), [0]])
        best = losses <= losses.min() * (1 + 1e-12)
        cut = int(np.argmax(np.where(best, gaps, -1.0)))
    # The threshold that calls positive exactly the levels from the cut on.
    if cut == 0:
        return float(np.nextafter(levels[0], -np.inf))
    if cut == len(levels):
        return float(levels[-1])
    below, above = float(levels[cut - 1]), float(levels[cut])
    middle = below + (above - below) / 2
    return middle if middle < above else below


def cross_fitted_rates(
    y: ArrayLike,
    scores: ArrayLike,
    goal: Goal = YOUDEN,
    *,
    groups: ArrayLike | None = None,
    random_state: int = 0,
) -> Rates:
    """The threshold for a goal, and out-of-fold rates of choosing one that way.

    The threshold is chosen on all scores. Its rates are counted in ten folds, each with a threshold
    chosen on the other folds: on the scores that chose it they would be too high.

    Parameters
    ----------
    y, scores : arrays of shape (n,)
        As in `choose_threshold`.
    goal : Goal, default=Goal()
        As in `choose_threshold`; the default is the largest Youden index.
    groups : array, shape (n,) or None, default=None
        Patients, for example; those of one group stay in one fold.
    random_state : int, default=0

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.evaluate import cross_fitted_rates
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(100) % 2
    >>> rates = cross_fitted_rates(y, y + rng.normal(size=100))
    >>> rates.sensitivity.total, rates.specificity.total
    (50, 50)
    """
    truth, values = check_binary(y, scores)
    threshold = choose_threshold(truth, values, goal)
    if groups is not None:
        groups = np.unique(groups, return_inverse=True)[1]
    n_splits = 10 if groups is None else min(10, int(np.max(groups)) + 1)
    fold = folds(truth, n_splits, groups, random_state)
    called = np.zeros(len(truth), dtype=bool)
    for k in np.unique(fold):
        others = fold != k
        # A fold may hold every bag of a class; then there is nothing to choose on.
        both = 0 < truth[others].sum() < others.sum()
        cut = choose_threshold(truth[others], values[others], goal) if both else threshold
        called[~others] = values[~others] > cut
    return _rates(truth, called, threshold)


def _rates(truth: Ints, called: NDArray[np.bool_], threshold: float) -> Rates:
    positive, n_positive = truth == 1, int(truth.sum())
    hits, spared = int(called[positive].sum()), int((~called[~positive]).sum())
    return Rates(
        threshold, proportion(hits, n_positive), proportion(spared, len(truth) - n_positive)
    )
