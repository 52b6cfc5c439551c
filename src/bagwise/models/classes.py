"""More than two classes: from one-vs-rest log-odds to the probabilities of the classes.

A model of several classes fits, for each of them, whether a bag contains at least one instance of
it, the bags of the other classes being negative. `ClassRule` turns these answers into the
probabilities of the classes. A background class has no answer of its own: it is what a bag, or an
instance, is when it is of no other class.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp

from bagwise.core.arrays import Floats, Ints

# Log-odds are uncertain by no more than this; beyond it the probability is 0 or 1 anyway.
_LARGEST_STD = 10.0
# Logarithm of the largest number whose square does not overflow, for ratios to small means.
_LOG_LARGEST = 300.0
# Where the temperature is sought.
_COLDEST, _HOTTEST = 0.1, 10.0
# And the shift of the background.
_FARTHEST = 10.0


class ClassScores(NamedTuple):
    """Log-odds of every class's probability, and the standard deviation of that probability."""

    log_odds: Floats  # [n, C]
    std: Floats  # [n, C]


class ClassRule(NamedTuple):
    """From one-vs-rest log-odds of the positive classes to the probabilities of all classes.

    Where a bag may have several classes, each has the probability that its fit gives it. Where a
    bag has one, the F fits are independent indicators of which exactly one holds: with o their
    odds, class c has probability ``o_c / sum o``; with a background, when none of them holds,
    ``o_c / (1 + sum o)``. The odds are raised to the power ``temperature`` first, and the
    background's 1 is multiplied by ``exp(shift)``; both numbers are fitted to held-out bags (1
    and 0 without any).

    An instance of a bag of class c is of class c or of none. The calibrated probability of its
    class, given that the bag has it, is multiplied by the probability that the bag has it
    (`inside_bags`). Without calibration nothing is known of the bag, and an instance is shared
    out by its own odds, ``o_c / (1 + sum o)`` (`of_instances`).
    """

    n_classes: int
    background: int | None = None
    multilabel: bool = False
    temperature: float = 1.0
    shift: float = 0.0

    @property
    def findings(self) -> Ints:
        """Positions of the classes with an answer of their own: all but the background, [F]."""
        positions = np.arange(self.n_classes)
        return positions if self.background is None else np.delete(positions, self.background)

    @property
    def binary(self) -> bool:
        """Whether there are two classes, of which a bag has one: a column is all to be said."""
        return self.n_classes == 2 and not self.multilabel

    def of_bags(self, log_odds: Floats, std: Floats) -> ClassScores:
        """Classes of bags [B, C] from the log-odds of the positive classes [B, F]."""
        if self.multilabel:
            return ClassScores(log_odds, std)
        none = None if self.background is None else np.full(len(log_odds), self.shift)
        spread = self.temperature * _latent_std(log_odds, std)
        return self._shared_out(self.temperature * log_odds, none, spread)

    def of_instances(self, log_odds: Floats, std: Floats) -> ClassScores:
        """Classes of instances [N, C] from the log-odds of the positive classes [N, F]."""
        if self.multilabel:
            return ClassScores(log_odds, std)
        return self._shared_out(log_odds, np.zeros(len(log_odds)), _latent_std(log_odds, std))

    def inside_bags(
        self, instance: ClassScores, bag: ClassScores, classes: ClassScores
    ) -> ClassScores:
        """Classes of instances [N, C] from one-vs-rest log-odds of them and of their bags.

        ``instance`` and ``bag`` [N, F] are those of an instance and of its bag, which is at least
        as probable; ``classes`` [N, C] is `of_bags` of the latter. The probability of the class
        among all replaces that of its own fit.
        """
        if self.multilabel:
            return instance
        of_bag = ClassScores(*(column[:, self.findings] for column in classes))
        log_given = log_expit(instance.log_odds) - log_expit(bag.log_odds)
        log_given = np.minimum(log_given, 0.0)  # beyond rounding, no instance exceeds its bag
        log_p = log_expit(of_bag.log_odds) + log_given
        # The bag has the class and the instance has not, or the bag has none: both in the log
        # domain, where neither rounds to 0.
        with np.errstate(divide="ignore"):
            log_other = log_expit(of_bag.log_odds) + np.log(-np.expm1(log_given))
        rest = logsumexp(log_other, axis=1)
        if self.background is not None:
            rest = np.logaddexp(rest, log_expit(classes.log_odds[:, self.background]))
        # Independent factors: 1 + (std / mean)^2 of a product is the product of the factors'.
        rise = _relative(instance) * _relative(of_bag) / _relative(bag)
        own = np.exp(log_p) * np.sqrt(np.maximum(rise - 1, 0.0))
        return self._with_background(log_p, rest, own, np.sqrt(np.sum(own**2, axis=1)))

    def _with_background(
        self, log_p: Floats, log_rest: Floats, std: Floats, rest_std: Floats
    ) -> ClassScores:
        """Positive classes [N, F] and the rest [N], the background's where there is one."""
        columns = np.column_stack([log_p, log_rest])
        out_log, out_std = np.empty((2, len(log_p), self.n_classes))
        for f, c in enumerate(self.findings):
            others = logsumexp(np.delete(columns, f, axis=1), axis=1)
            out_log[:, c], out_std[:, c] = log_p[:, f] - others, std[:, f]
        if self.background is not None:
            out_log[:, self.background] = log_rest - logsumexp(log_p, axis=1)
            out_std[:, self.background] = rest_std
        # To first order only: no probability spreads more than a coin of the same mean.
        most = np.exp((log_expit(out_log) + log_expit(-out_log)) / 2)
        return ClassScores(out_log, np.minimum(out_std, most))

    def _shared_out(self, score: Floats, none: Floats | None, spread: Floats) -> ClassScores:
        """One unit of probability shared out by ``exp(score)`` [n, F] and ``exp(none)`` [n].

        ``spread`` is the standard deviation of the scores; the probabilities' is that to first
        order: dp_c = p_c (ds_c - sum p ds).
        """
        none = np.full(len(score), -np.inf) if none is None else none
        p = np.exp(score - np.logaddexp(logsumexp(score, axis=1), none)[:, None])
        moved = (p * spread) ** 2
        others = moved.sum(axis=1, keepdims=True) - moved
        std = p * np.sqrt(np.maximum(((1 - p) * spread) ** 2 + others, 0.0))
        p_none = expit(none - logsumexp(score, axis=1))
        return self._with_background(score, none, std, p_none * np.sqrt(moved.sum(axis=1)))


TWO_CLASSES = ClassRule(2, background=0)


def _relative(scores: ClassScores) -> Floats:
    """``1 + (std / mean)^2`` of probabilities, at most that of a coin: 1 / mean."""
    inverse = np.exp(np.minimum(-log_expit(scores.log_odds), _LOG_LARGEST))
    return np.minimum(1 + np.square(scores.std * inverse), inverse)


def _latent_std(log_odds: Floats, std: Floats) -> Floats:
    """Standard deviation of log-odds from that of a probability: d log-odds = dp / p (1 - p)."""
    log_slope = -log_expit(log_odds) - log_expit(-log_odds)
    return np.minimum(std * np.exp(np.minimum(log_slope, _LOG_LARGEST)), _LARGEST_STD)


def fit_temperature(rule: ClassRule, log_odds: Floats, codes: ArrayLike) -> ClassRule:
    """The rule whose temperature, and shift, make the classes of held-out bags most likely.

    ``log_odds`` [B, F] come from fits that did not see the bag; rows with a NaN are left out. Where
    a bag has one class only, one-vs-rest fits are not calibrated jointly. Standard normal priors on
    the logarithm of the temperature and on the shift keep them near 0 where there are few bags.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.classes import ClassRule, fit_temperature
    >>> codes = np.arange(60) % 3
    >>> small = 2.0 * (codes[:, None] == np.arange(3)) - 1.0
    >>> fit_temperature(ClassRule(3), small, codes).temperature > 1
    True
    """
    if rule.multilabel:
        return rule
    held_out = np.isfinite(log_odds).all(axis=1)
    z, codes = log_odds[held_out], np.asarray(codes)[held_out]
    if len(codes) == 0:
        return rule
    no_std = np.zeros_like(z)

    def tried(x: Floats) -> ClassRule:
        return rule._replace(temperature=float(np.exp(x[0])), shift=float(sum(x[1:])))

    def loss(x: Floats) -> float:
        scores = tried(x).of_bags(z, no_std)
        own = np.take_along_axis(scores.log_odds, codes[:, None], axis=1)
        return float(np.logaddexp(0.0, -own).sum() + np.sum(np.square(x)) / 2)

    # Without a background there is nothing to shift. One or two numbers: a simplex is safe.
    start = np.zeros(1 if rule.background is None else 2)
    bounds = [(np.log(_COLDEST), np.log(_HOTTEST)), (-_FARTHEST, _FARTHEST)][: len(start)]
    options = {"xatol": 1e-4, "fatol": 1e-6}
    best = minimize(loss, start, method="Nelder-Mead", bounds=bounds, options=options)
    return tried(best.x)
