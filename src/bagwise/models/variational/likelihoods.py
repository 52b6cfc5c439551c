"""Bag likelihoods: how the label of a bag speaks about its instances.

The engine knows a likelihood by four pure methods over whole bags:

- ``start(f, labels, pi)``: what is believed about the instances before the first update,
- ``targets(f, log_psi, labels, previous)``: what is believed given the moments of q(f),
- ``weights(f, targets, theta)``: ``omega`` and ``rho`` of the Gaussian update
  ``S = (I + A diag(omega) A^T)^{-1}``, ``m = S A rho``,
- ``bound(f, log_psi, labels, targets)``: its part of the evidence bound, summed over the bags.

For all four likelihoods here ``omega = w theta`` and ``rho = w (t - 1/2)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from scipy.special import expit

from bagwise.core import segments

_TINY = float(np.finfo(np.float64).tiny)
Expectation = Literal["plug-in", "exact"]
Schedule = Literal["damped", "paper", "sequential"]


class Labels(NamedTuple):
    """Labels of whole bags and what is known of their instances."""

    offsets: Any  # [b + 1]
    y: Any  # [b] 0 or 1
    known: Any  # [n] int8, -1 where unknown

    @property
    def of_bag(self) -> Any:
        """Label of its bag for every instance, float, [n]."""
        return segments.spread(self.y.astype(np.float64), self.offsets)

    @property
    def has_positive(self) -> Any:
        """Whether a bag holds an instance known to be positive, [b]."""
        return segments.max((self.known == 1).astype(np.float64), self.offsets) > 0


class Moments(NamedTuple):
    """First two moments of q(f) for every instance."""

    mean: Any  # [n] E f
    var: Any  # [n]

    @property
    def second(self) -> Any:
        """``E f^2``."""
        return self.mean * self.mean + self.var


class Targets(NamedTuple):
    """What is believed about the instances: weight, target, and q(y = 1) with its other tail."""

    w: Any  # [n]
    t: Any  # [n]
    pi: Any  # [n] q(y = 1)
    tail: Any  # [n] q(y = 0), kept apart so that neither rounds to 0


@runtime_checkable
class BagLikelihood(Protocol):
    """What the engine asks of a bag likelihood."""

    def start(self, f: Moments, labels: Labels, pi: Any) -> Any:
        """Beliefs before the first update, from instance probabilities ``pi``."""
        ...

    def targets(self, f: Moments, log_psi: Any, labels: Labels, previous: Any) -> Any:
        """Beliefs given q(f)."""
        ...

    def weights(self, f: Moments, targets: Any, theta: Any) -> tuple[Any, Any]:
        """``omega`` and ``rho`` of the Gaussian update."""
        ...

    def bound(self, f: Moments, log_psi: Any, labels: Labels, targets: Any) -> float:
        """The part of the evidence bound that is not the KL divergence."""
        ...


class _WeightedTargets:
    """The Gaussian update shared by every likelihood made of weights and targets."""

    def weights(self, f: Moments, targets: Targets, theta: Any) -> tuple[Any, Any]:
        """``omega = w theta``, ``rho = w (t - 1/2)``, P(26, 27)."""
        return targets.w * theta, targets.w * (targets.t - 0.5)


def clamp(pi: Any, tail: Any, known: Any) -> tuple[Any, Any]:
    """q(y) with the known instance labels put in, V section 3.1."""
    unknown = known < 0
    return np.where(unknown, pi, known == 1), np.where(unknown, tail, known == 0)


def entropy(pi: Any, tail: Any) -> Any:
    """Entropy of Bernoulli(pi), 0 log 0 = 0."""
    return -pi * np.log(np.maximum(pi, _TINY)) - tail * np.log(np.maximum(tail, _TINY))


def none_of_others(tail: Any, offsets: Any, expectation: Expectation) -> Any:
    r"""``1 - E_{b\n}`` for every instance: how likely no *other* instance of its bag is positive.

    ``plug-in`` is 1 - (largest other pi), the papers'; ``exact`` the product of the others' tails.
    """
    if expectation == "plug-in":
        return -segments.max_of_others(-tail, offsets, alone=-1.0)
    log_tail = np.log(np.maximum(tail, _TINY))
    return np.exp(segments.spread(segments.sum(log_tail, offsets), offsets) - log_tail)


def expected_agreement(tail: Any, labels: Labels, expectation: Expectation) -> Any:
    """``E[G_b]``: how likely the bag's label is the maximum of its instances', [b]."""
    if expectation == "plug-in":
        none = segments.min(tail, labels.offsets)
    else:
        none = np.exp(segments.sum(np.log(np.maximum(tail, _TINY)), labels.offsets))
    return np.where(labels.y == 1, 1 - none, none)


@dataclass(frozen=True)
class NoisyMax(_WeightedTargets):
    """The papers' likelihood ``H^G / (H + 1)``, G = 1 iff the label is the max. V(3), P(4).

    Parameters
    ----------
    H : float
        Odds that a bag's label agrees with the maximum of its instances. Both papers print 100;
        both released programs use 1e12.
    expectation : {"plug-in", "exact"}
        Expected maximum of the other instances: the largest of their probabilities as in the
        papers, or the exact ``1 - prod(1 - pi)``.
    schedule : {"damped", "paper", "sequential"}
        ``paper`` updates every pi at once from the old ones. That is not coordinate ascent: it
        oscillates between even and odd iterations, and the parity of ``max_iter`` decides the
        accuracy. It is kept to reproduce published figures. ``damped`` goes half the way each
        time and settles. ``sequential`` updates one instance after the other, P(25) as
        written; with ``exact`` the bound then never falls.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.models.variational import NoisyMax
    >>> model = VGPMIL(likelihood=NoisyMax(H=100, expectation="exact", schedule="sequential"))
    """

    H: float = 100.0
    expectation: Expectation = "plug-in"
    schedule: Schedule = "damped"

    def __post_init__(self) -> None:
        if not (np.isfinite(self.H) and self.H > 1):
            raise ValueError(f"H must be finite and > 1; got {self.H!r}.")
        if self.expectation not in ("plug-in", "exact"):
            raise ValueError(f"expectation must be 'plug-in' or 'exact'; got {self.expectation!r}.")
        if self.schedule not in ("damped", "paper", "sequential"):
            raise ValueError(
                f"schedule must be 'damped', 'paper' or 'sequential'; got {self.schedule!r}."
            )

    def start(self, f: Moments, labels: Labels, pi: Any) -> Targets:
        """q(y) = pi where nothing is known."""
        return _unit_weights(*clamp(pi, 1 - pi, labels.known))

    def targets(self, f: Moments, log_psi: Any, labels: Labels, previous: Targets) -> Targets:
        """``pi = sigmoid(E f + log H (2 T - 1)(1 - E_others))``, P(25), V(14)."""
        return _unit_weights(*self.update(f.mean, labels, previous.pi, previous.tail))

    def update(self, score: Any, labels: Labels, pi: Any, tail: Any) -> tuple[Any, Any]:
        """One update of q(y) whose log-odds are ``score`` plus the pull of the bag's label."""
        pull = np.log(self.H) * (2 * labels.of_bag - 1)  # [n]
        if self.schedule == "sequential":
            from bagwise.models.variational.sweeps import sweep

            return sweep(
                score, pull, labels.offsets, labels.known, tail, self.expectation == "exact"
            )
        z = score + pull * none_of_others(tail, labels.offsets, self.expectation)
        new, new_tail = clamp(expit(z), expit(-z), labels.known)
        if self.schedule == "damped":
            return (pi + new) / 2, (tail + new_tail) / 2
        return new, new_tail

    def bound(self, f: Moments, log_psi: Any, labels: Labels, targets: Targets) -> float:
        """``sum_b [log H E G_b - log(H+1)] + sum_n [(pi - 1/2) E f + log psi(c) + H(pi)]``."""
        agree = expected_agreement(targets.tail, labels, self.expectation)
        return float(
            np.sum(np.log(self.H) * agree - np.log1p(self.H))
            + np.sum((targets.pi - 0.5) * f.mean + log_psi + entropy(targets.pi, targets.tail))
        )


@dataclass(frozen=True)
class ExactOr(_WeightedTargets):
    """The exact posterior of "at least one positive" under independent instances.

    Given E f the instances of a bag are coupled only through its label, so their marginals have
    a closed form: no order of updates, no oscillation, and a bound that never falls.

    Parameters
    ----------
    H : float
        Odds that a bag's label is right; 1e12 means it never errs.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.models.variational import ExactOr
    >>> model = VGPMIL(likelihood=ExactOr(H=100))
    """

    H: float = 100.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.H) and self.H > 1):
            raise ValueError(f"H must be finite and > 1; got {self.H!r}.")

    def start(self, f: Moments, labels: Labels, pi: Any) -> Targets:
        """Targets are pi where nothing is known."""
        return _unit_weights(*clamp(pi, 1 - pi, labels.known))

    def _evidence(self, mean: Any, labels: Labels) -> Any:
        """``log Z_b``, Z = 1 - P0 + P0/H for positive bags, P0 + (1 - P0)/H for negative."""
        log_negative = np.where(labels.known < 0, -np.logaddexp(0.0, mean), 0.0)
        log_none = segments.sum(log_negative, labels.offsets)  # [b] log P0 of the unknown ones
        # One known positive settles the bag.
        log_none = np.where(labels.has_positive, -np.inf, log_none)
        with np.errstate(divide="ignore"):
            log_some = np.log(-np.expm1(log_none))
        agree = np.where(labels.y == 1, log_some, log_none)
        differ = np.where(labels.y == 1, log_none, log_some)
        return np.logaddexp(agree, differ - np.log(self.H))

    def targets(self, f: Moments, log_psi: Any, labels: Labels, previous: Targets) -> Targets:
        """``t = p / Z`` in positive bags, ``t = p / (H Z)`` in negative ones."""
        settled = segments.spread(labels.has_positive, labels.offsets)
        log_t = -np.logaddexp(0.0, -f.mean) - segments.spread(
            self._evidence(f.mean, labels), labels.offsets
        )
        log_t = np.where((labels.of_bag == 1) | settled, log_t, log_t - np.log(self.H))
        pi = np.exp(np.minimum(log_t, 0.0))
        return _unit_weights(*clamp(pi, 1 - pi, labels.known))

    def bound(self, f: Moments, log_psi: Any, labels: Labels, targets: Targets) -> float:
        """``sum_b log(Z_b / (1 + 1/H)) + sum_n [log(1 + exp E f) - E f / 2 + log psi(c)]``."""
        free = np.logaddexp(0.0, f.mean) - f.mean / 2
        given = (labels.known - 0.5) * f.mean
        return float(
            np.sum(self._evidence(f.mean, labels) - np.log1p(1 / self.H))
            + np.sum(np.where(labels.known < 0, free, given) + log_psi)
        )


@dataclass(frozen=True)
class SoftWitness(_WeightedTargets):
    """Each positive bag is explained by one unknown witness among its instances.

    A lower bound on the likelihood "at least one positive", since 1 - prod(1 - p) >= mean p.
    The weights of a positive bag are a softmax over its instances; the bound never falls.
    Instances known to be positive explain their bag, the unknown ones in it are then free.

    Parameters
    ----------
    strength : float
        g multiplies a positive bag of n unknown instances by n^g. 0 is one witness per bag, for
        sparse positives; 1 is close to single-instance learning, for dense ones.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.models.variational import SoftWitness
    >>> model = VGPMIL(likelihood=SoftWitness(strength=0.5))
    """

    strength: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.strength) and self.strength >= 0):
            raise ValueError(f"strength must be finite and >= 0; got {self.strength!r}.")

    def start(self, f: Moments, labels: Labels, pi: Any) -> Targets:
        """Weights in proportion to pi within each positive bag."""
        return self._from_log_odds(np.log(np.maximum(pi, _TINY)), labels, expit(0.0 * pi))

    def targets(self, f: Moments, log_psi: Any, labels: Labels, previous: Targets) -> Targets:
        """``w = n^g softmax_b(E f / 2 + log psi(c))``, t = 1 in positive bags, else 1 and 0."""
        return self._from_log_odds(f.mean / 2 + log_psi, labels, expit(f.mean))

    def _candidates(self, labels: Labels) -> tuple[Any, Any, Any]:
        """Who may be the witness [n], how many there are per bag [b], and n^g [b]."""
        searching = (labels.y == 1) & ~labels.has_positive
        candidate = segments.spread(searching, labels.offsets) & (labels.known < 0)
        n = segments.sum(candidate.astype(np.float64), labels.offsets)
        return candidate, n, np.where(n > 0, np.maximum(n, 1.0) ** self.strength, 0.0)

    def _from_log_odds(self, score: Any, labels: Labels, p: Any) -> Targets:
        candidate, _, power = self._candidates(labels)
        score = np.where(candidate, score, -np.inf)
        top = segments.logsumexp(score, labels.offsets)
        share = np.exp(
            score - segments.spread(np.where(np.isfinite(top), top, 0.0), labels.offsets)
        )
        negative = (labels.of_bag == 0) | (labels.known == 0)
        certain = negative | (labels.known == 1)
        w = np.where(certain, 1.0, share * segments.spread(power, labels.offsets))
        t = np.where(negative, 0.0, 1.0)
        # The witness is positive; the others in its bag are as q(f) has them.
        pi = np.where(certain, t, share + (1 - share) * p)
        return Targets(w, t, pi, 1 - pi)

    def bound(self, f: Moments, log_psi: Any, labels: Labels, targets: Targets) -> float:
        """``sum_pos n^g [logsumexp_b(E f / 2 + l) - log n] + sum_known [l ± E f / 2]``."""
        candidate, n, power = self._candidates(labels)
        score = np.where(candidate, f.mean / 2 + log_psi, -np.inf)
        searching = n > 0
        one = segments.logsumexp(score, labels.offsets)[searching] - np.log(n[searching])
        certain = (labels.of_bag == 0) | (labels.known >= 0)
        given = (targets.t - 0.5) * f.mean + log_psi
        return float(np.sum(power[searching] * one) + np.sum(given[certain]))


@dataclass(frozen=True)
class Inherited(_WeightedTargets):
    """Every instance inherits the label of its bag: single-instance learning inside the GP.

    The right choice where most instances of a positive bag are positive.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.models.variational import Inherited
    >>> model = VGPMIL(likelihood=Inherited())
    """

    def start(self, f: Moments, labels: Labels, pi: Any) -> Targets:
        """Targets are the bags' labels; ``pi`` is not used."""
        label = labels.of_bag
        return _unit_weights(*clamp(label, 1 - label, labels.known))

    def targets(self, f: Moments, log_psi: Any, labels: Labels, previous: Targets) -> Targets:
        """As at the start."""
        return previous

    def bound(self, f: Moments, log_psi: Any, labels: Labels, targets: Targets) -> float:
        """``sum_n [(t - 1/2) E f + log psi(c)]``."""
        return float(np.sum((targets.t - 0.5) * f.mean + log_psi))


def _unit_weights(pi: Any, tail: Any) -> Targets:
    return Targets(np.ones_like(pi, dtype=np.float64), pi, pi, tail)


NAMES = ("noisy-max", "or", "witness", "inherited")


def make_likelihood(
    likelihood: Any, *, H: float, expectation: Expectation, schedule: Schedule
) -> BagLikelihood:
    """The likelihood object meant by a name, or the user's own, checked."""
    if likelihood == "noisy-max":
        return NoisyMax(H, expectation, schedule)
    if likelihood == "or":
        return ExactOr(H)
    if likelihood == "witness":
        return SoftWitness()
    if likelihood == "inherited":
        return Inherited()
    if isinstance(likelihood, BagLikelihood) and not isinstance(likelihood, type):
        return likelihood
    raise ValueError(
        f"likelihood must be one of {list(NAMES)} or an object with the methods start, targets, "
        f"weights and bound; got {likelihood!r}."
    )
