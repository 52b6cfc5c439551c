"""Bag likelihoods: how the label of a bag speaks about its instances.

The engine knows a likelihood by four pure methods over whole bags:

- ``start(f, labels, pi)``: what is believed about the instances before the first update,
- ``targets(f, log_psi, labels, previous)``: what is believed given the moments of q(f),
- ``weights(f, targets, theta)``: ``omega`` and ``rho`` of the Gaussian update
  ``S = (I + A diag(omega) A^T)^{-1}``, ``m = S A rho``,
- ``bound(f, log_psi, labels, targets)``: its part of the evidence bound, summed over the bags by
  ``labels.total``, which counts each bag by its weight; the engine weighs the update itself.

For all four likelihoods here ``omega = w theta`` and ``rho = w (t - 1/2)``. One may say all of them
``at_once`` where a compiled loop knows it; the answers are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from array_api_compat import is_torch_array

from bagwise.core import linalg, segments
from bagwise.core.arrays import (
    Array,
    as_float,
    at_least,
    at_most,
    both_tails,
    compiled_from,
    expit,
    namespace,
    softplus,
)
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.densities import Density, Sech

_TINY = float(np.finfo(np.float64).tiny)
_TINY32 = float(np.finfo(np.float32).tiny)
Expectation = Literal["plug-in", "exact"]
Schedule = Literal["damped", "paper", "sequential"]


class Moments(NamedTuple):
    """First two moments of q(f) for every instance."""

    mean: Array  # [n] E f
    var: Array  # [n]

    @property
    def second(self) -> Array:
        """``E f^2``."""
        return self.mean * self.mean + self.var


class Targets(NamedTuple):
    """What is believed about the instances: weight, target, and q(y = 1) with its other tail."""

    w: Array  # [n]
    t: Array  # [n]
    pi: Array  # [n] q(y = 1)
    tail: Array  # [n] q(y = 0), kept apart so that neither rounds to 0


@runtime_checkable
class BagLikelihood(Protocol):
    """What the engine asks of a bag likelihood.

    Examples
    --------
    >>> from bagwise.models.variational import BagLikelihood, NoisyMax
    >>> isinstance(NoisyMax(), BagLikelihood)
    True
    """

    def start(self, f: Moments, labels: BagLabels, pi: Array) -> Any:
        """Beliefs before the first update, from instance probabilities ``pi``."""
        ...

    def targets(self, f: Moments, log_psi: Array, labels: BagLabels, previous: Any) -> Any:
        """Beliefs given q(f)."""
        ...

    def weights(self, f: Moments, targets: Any, theta: Array) -> tuple[Array, Array]:
        """``omega`` and ``rho`` of the Gaussian update."""
        ...

    def bound(self, f: Moments, log_psi: Array, labels: BagLabels, targets: Any) -> float | Array:
        """The part of the evidence bound that is not the KL divergence."""
        ...


class _WeightedTargets:
    """The Gaussian update shared by every likelihood made of weights and targets."""

    def weights(self, f: Moments, targets: Targets, theta: Array) -> tuple[Array, Array]:
        """``omega = w theta``, ``rho = w (t - 1/2)``, P(26, 27)."""
        return targets.w * theta, targets.w * (targets.t - 0.5)


def _compiled(score: Array) -> ModuleType | None:
    """The loops over bags compiled for where these instances are; None where calls must do."""
    if is_torch_array(score):
        if score.dtype != namespace(score).float32 or not linalg.has_fused(score):
            return None
        from bagwise.models.variational import fused_sweeps

        return fused_sweeps
    if not compiled_from(score):
        return None
    from bagwise.models.variational import sweeps

    return sweeps


def clamp(pi: Array, tail: Array, labels: BagLabels) -> tuple[Array, Array]:
    """q(y) with the known instance labels put in, V section 3.1."""
    if labels.nothing_known:
        return pi, tail
    unknown, xp = labels.known < 0, namespace(pi)
    given = as_float(labels.known == 1)
    return xp.where(unknown, pi, given), xp.where(unknown, tail, 1 - given)


def entropy(pi: Array, tail: Array) -> Array:
    """Entropy of Bernoulli(pi), 0 log 0 = 0."""
    return -pi * _safe_log(pi) - tail * _safe_log(tail)


def _safe_log(x: Array) -> Array:
    """Logarithm that is finite at 0."""
    tiny = _TINY if x.dtype == np.float64 else _TINY32
    return namespace(x).log(at_least(x, tiny))


def none_of_others(tail: Array, offsets: segments.Offsets, expectation: Expectation) -> Array:
    r"""``1 - E_{b\n}`` for every instance: how likely no *other* instance of its bag is positive.

    ``plug-in`` is 1 - (largest other pi), the papers'; ``exact`` the product of the others' tails.
    """
    if expectation == "plug-in":
        return -segments.max_of_others(-tail, offsets, alone=-1.0)
    log_tail = _safe_log(tail)
    total = segments.spread(segments.sum(log_tail, offsets), offsets)
    return namespace(tail).exp(total - log_tail)


def expected_agreement(tail: Array, labels: BagLabels) -> Array:
    """``E[G_b]``: how likely the bag's label is the maximum of its instances', [b]."""
    none = namespace(tail).exp(segments.sum(_safe_log(tail), labels.offsets))
    return namespace(tail).where(labels.y == 1, 1 - none, none)


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

    def start(self, f: Moments, labels: BagLabels, pi: Array) -> Targets:
        """q(y) = pi where nothing is known."""
        return _unit_weights(*clamp(pi, 1 - pi, labels))

    def targets(self, f: Moments, log_psi: Array, labels: BagLabels, previous: Targets) -> Targets:
        """``pi = sigmoid(E f + log H (2 T - 1)(1 - E_others))``, P(25), V(14)."""
        return _unit_weights(*self.update(f.mean, labels, previous.pi, previous.tail))

    def update(
        self, score: Array, labels: BagLabels, pi: Array, tail: Array
    ) -> tuple[Array, Array]:
        """One update of q(y) whose log-odds are ``score`` plus the pull of the bag's label."""
        if self.schedule == "sequential":
            if is_torch_array(score):
                raise ValueError(
                    "schedule='sequential' updates one instance after the other, which a device "
                    "cannot; use schedule='damped', or likelihood='or' or 'witness'."
                )
            from bagwise.models.variational.sweeps import sweep

            pull = math.log(self.H) * (2 * labels.of_bag - 1)  # [n]
            return sweep(
                score, pull, labels.offsets, labels.known, tail, self.expectation == "exact"
            )
        if (loops := _compiled(score)) is not None:
            exact, damped = self.expectation == "exact", self.schedule == "damped"
            own = labels.y, labels.offsets, labels.known
            return loops.noisy_max(score, math.log(self.H), *own, pi, tail, exact, damped)
        pull = math.log(self.H) * (2 * labels.of_bag - 1)  # [n]
        z = score + pull * none_of_others(tail, labels.offsets, self.expectation)
        new, new_tail = clamp(*both_tails(z), labels)
        if self.schedule == "damped":
            return (pi + new) / 2, (tail + new_tail) / 2
        return new, new_tail

    def at_once(
        self,
        block: Block,
        q: tuple[Array, Array],
        previous: Targets,
        density: Density,
        bounded: bool,
    ) -> tuple[Targets, tuple[Array, Array], tuple[Array, Array, float]] | None:
        """Targets, ``omega`` and ``rho``, and the statistics of a block, in one compiled call.

        None where there is no such call: on a device, for few instances, for chunks that cut a
        bag, or for another density.
        """
        (A, *more), labels, (m, W) = block.A, block.labels, q
        if more or self.schedule == "sequential" or not isinstance(density, Sech):
            return None
        if not linalg.is_long(A):
            return None
        from bagwise.core import passes
        from bagwise.models.variational.sweeps import noisy_max_pass

        weight = np.ones(len(labels.y)) if labels.weight is None else labels.weight
        sums = linalg.no_statistics(A)
        pi, tail, omega, rho, bound = noisy_max_pass(
            passes.routines(A),
            passes.constants(A),
            passes.workspace(A),
            A,
            block.r,
            m,
            np.asfortranarray(W),
            math.log(self.H),
            labels.y,
            labels.offsets,
            labels.known,
            weight,
            previous.pi,
            previous.tail,
            self.expectation == "exact",
            self.schedule == "damped",
            bounded,
            *sums,
        )
        return _unit_weights(pi, tail), (omega, rho), (*sums, bound)

    def bound(
        self, f: Moments, log_psi: Array, labels: BagLabels, targets: Targets
    ) -> float | Array:
        """``sum_b [log H E G_b - log(H+1)] + sum_n [(pi - 1/2) E f + log psi(c) + H(pi)]``.

        E G_b is exact under q(y) also where the updates plug the largest pi in, as the papers do:
        with that in its place the sum would exceed log p(T).
        """
        if (loops := _compiled(f.mean)) is not None:
            weight = labels.weight
            if weight is None:
                weight = namespace(f.mean).ones_like(labels.y, dtype=f.mean.dtype)
            own = math.log(self.H), labels.y, labels.offsets, weight
            return loops.noisy_max_bound(f.mean, log_psi, *own, targets.pi, targets.tail)
        agree = expected_agreement(targets.tail, labels)
        per_instance = (targets.pi - 0.5) * f.mean + log_psi + entropy(targets.pi, targets.tail)
        return labels.total(math.log(self.H) * agree - math.log1p(self.H), per_instance)


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

    def start(self, f: Moments, labels: BagLabels, pi: Array) -> Targets:
        """Targets are pi where nothing is known."""
        return _unit_weights(*clamp(pi, 1 - pi, labels))

    def _evidence(self, mean: Array, labels: BagLabels) -> Array:
        """``log Z_b``, Z = 1 - P0 + P0/H for positive bags, P0 + (1 - P0)/H for negative."""
        xp = namespace(mean)
        log_negative = xp.where(labels.known < 0, -softplus(mean), 0.0)
        log_none = segments.sum(log_negative, labels.offsets)  # [b] log P0 of the unknown ones
        # One known positive settles the bag.
        log_none = xp.where(labels.has_positive, -np.inf, log_none)
        with np.errstate(divide="ignore"):
            log_some = xp.log(-xp.expm1(log_none))
        agree = xp.where(labels.y == 1, log_some, log_none)
        differ = xp.where(labels.y == 1, log_none, log_some)
        return xp.logaddexp(agree, differ - math.log(self.H))

    def targets(self, f: Moments, log_psi: Array, labels: BagLabels, previous: Targets) -> Targets:
        """``t = p / Z`` in positive bags, ``t = p / (H Z)`` in negative ones."""
        settled = segments.spread(labels.has_positive, labels.offsets)
        log_t = -softplus(-f.mean) - segments.spread(self._evidence(f.mean, labels), labels.offsets)
        xp = namespace(log_t)
        log_t = xp.where((labels.of_bag == 1) | settled, log_t, log_t - math.log(self.H))
        pi = xp.exp(at_most(log_t, 0.0))
        return _unit_weights(*clamp(pi, 1 - pi, labels))

    def bound(
        self, f: Moments, log_psi: Array, labels: BagLabels, targets: Targets
    ) -> float | Array:
        """``sum_b log(Z_b / (1 + 1/H)) + sum_n [log(1 + exp E f) - E f / 2 + log psi(c)]``."""
        free = softplus(f.mean) - f.mean / 2
        given = (labels.known - 0.5) * f.mean
        per_instance = namespace(free).where(labels.known < 0, free, given) + log_psi
        evidence = self._evidence(f.mean, labels) - math.log1p(1 / self.H)
        return labels.total(evidence, per_instance)


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
    redundancy : float
        h weighs each instance of a negative bag of n by n^-h. 0 takes its instances for
        independent evidence, 1 counts the bag once; between them, for large bags of instances
        that resemble each other, which would drown the others.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.models.variational import SoftWitness
    >>> model = VGPMIL(likelihood=SoftWitness(strength=0.5))
    """

    strength: float = 0.0
    redundancy: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.strength) and self.strength >= 0):
            raise ValueError(f"strength must be finite and >= 0; got {self.strength!r}.")
        if not 0 <= self.redundancy <= 1:
            raise ValueError(f"redundancy must be in [0, 1]; got {self.redundancy!r}.")

    def start(self, f: Moments, labels: BagLabels, pi: Array) -> Targets:
        """Weights in proportion to pi within each positive bag."""
        return self._from_log_odds(_safe_log(pi), labels, expit(0.0 * pi))

    def targets(self, f: Moments, log_psi: Array, labels: BagLabels, previous: Targets) -> Targets:
        """``w = n^g softmax_b(E f / 2 + log psi(c))``, t = 1 in positive bags, else n^-h and 0."""
        return self._from_log_odds(f.mean / 2 + log_psi, labels, expit(f.mean))

    def _power(self, labels: BagLabels) -> Array:
        """``n^g`` of the bags that look for a witness, else 0, [b]."""
        n = labels.n_candidates
        return namespace(n).where(n > 0, at_least(n, 1.0) ** self.strength, 0.0)

    def _evidence(self, labels: BagLabels) -> float | Array:
        """Weight of an instance whose label is certain, [n] or one number."""
        if self.redundancy == 0:
            return 1.0
        n = as_float(segments.lengths(labels.offsets))  # [b]
        shared = namespace(n).where(labels.y == 1, 1.0, n**-self.redundancy)
        return segments.spread(shared, labels.offsets)

    def _from_log_odds(self, score: Array, labels: BagLabels, p: Array) -> Targets:
        xp, offsets = namespace(score), labels.offsets
        score = xp.where(labels.candidates, score, -np.inf)
        top = segments.max(score, offsets)
        odds = xp.exp(score - segments.spread(xp.where(labels.n_candidates > 0, top, 0.0), offsets))
        total = segments.sum(odds, offsets)
        share = odds / segments.spread(xp.where(total > 0, total, 1.0), offsets)
        certain = labels.negative | (labels.known == 1)
        sought = share * segments.spread(self._power(labels), offsets)
        w = xp.where(certain, self._evidence(labels), sought)
        t = 1 - as_float(labels.negative)
        # The witness is positive; the others in its bag are as q(f) has them.
        pi = xp.where(certain, t, share + (1 - share) * p)
        return Targets(w, t, pi, 1 - pi)

    def bound(
        self, f: Moments, log_psi: Array, labels: BagLabels, targets: Targets
    ) -> float | Array:
        """``sum_pos n^g [logsumexp_b(E f / 2 + l) - log n] + sum_known w [l ± E f / 2]``."""
        xp, n, power = namespace(f.mean), labels.n_candidates, self._power(labels)
        score = xp.where(labels.candidates, f.mean / 2 + log_psi, -np.inf)
        top = segments.logsumexp(score, labels.offsets)
        one = xp.where(n > 0, top, 0.0) - xp.log(at_least(n, 1.0))
        certain = (labels.of_bag == 0) | (labels.known >= 0)
        given = targets.w * ((targets.t - 0.5) * f.mean + log_psi)
        return labels.total(power * one, xp.where(certain, given, 0.0))


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

    def start(self, f: Moments, labels: BagLabels, pi: Array) -> Targets:
        """Targets are the bags' labels; ``pi`` is not used."""
        label = 1.0 * labels.of_bag  # the labels keep theirs
        return _unit_weights(*clamp(label, 1 - label, labels))

    def targets(self, f: Moments, log_psi: Array, labels: BagLabels, previous: Targets) -> Targets:
        """As at the start."""
        return previous

    def bound(
        self, f: Moments, log_psi: Array, labels: BagLabels, targets: Targets
    ) -> float | Array:
        """``sum_n [(t - 1/2) E f + log psi(c)]``."""
        per_instance = (targets.t - 0.5) * f.mean + log_psi
        return labels.total(0.0 * as_float(labels.y), per_instance)


def _unit_weights(pi: Array, tail: Array) -> Targets:
    return Targets(namespace(pi).ones_like(as_float(pi)), pi, pi, tail)


# The one place where a likelihood gets a name.
LIKELIHOODS: dict[str, Callable[[], BagLikelihood]] = {
    "noisy-max": NoisyMax,
    "or": ExactOr,
    "witness": SoftWitness,
    "inherited": Inherited,
}


def make_likelihood(likelihood: BagLikelihood | str) -> BagLikelihood:
    """The likelihood object meant by a name, or the user's own, checked.

    Examples
    --------
    >>> from bagwise.models.variational.likelihoods import make_likelihood
    >>> make_likelihood("or")
    ExactOr(H=100.0)
    """
    if isinstance(likelihood, str) and likelihood in LIKELIHOODS:
        return LIKELIHOODS[likelihood]()
    if isinstance(likelihood, BagLikelihood) and not isinstance(likelihood, type):
        return likelihood
    if likelihood == "softmax" or type(likelihood).__name__ == "Softmax":
        raise ValueError(
            "likelihood='softmax' is for three classes or more, of which a bag has one; use 'or', "
            "which asks one question per class."
        )
    raise ValueError(
        f"likelihood must be one of {list(LIKELIHOODS)} or an object with the methods start, "
        f"targets, weights and bound; got {likelihood!r}."
    )
