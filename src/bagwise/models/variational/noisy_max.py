"""Bag likelihoods: how the label of a bag speaks about its instances.

The engine knows a likelihood by four pure methods over whole bags:

- ``start(f, labels, pi)``: what is believed about the instances before the first update,
- ``targets(f, log_psi, labels, previous)``: what is believed given the moments of q(f),
- ``weights(f, targets, theta)``: ``omega`` and ``rho`` of the Gaussian update
  ``S = (I + A diag(omega) A^T)^{-1}``, ``m = S A rho``,
- ``bound(f, log_psi, labels, targets)``: its part of the evidence bound, summed over the bags by
  ``labels.total``, which counts each bag by its weight; the engine weighs the update itself.

For `NoisyMax` ``omega = theta`` and ``rho = pi - 1/2``; `large_margin` has others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from array_api_compat import is_torch_array

from bagwise.core import segments
from bagwise.core.arrays import (
    Array,
    as_float,
    at_least,
    both_tails,
    namespace,
)
from bagwise.models.variational.blocks import BagLabels

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
    >>> from bagwise.models.variational import NoisyMax
    >>> from bagwise.models.variational.noisy_max import BagLikelihood
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


def clamp(pi: Array, tail: Array, labels: BagLabels) -> tuple[Array, Array]:
    """q(y) with the known instance labels put in, V section 3.1."""
    if labels.nothing_known:
        return pi, tail
    assert labels.known is not None
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
    >>> model = VGPMIL(
    ...     inference="paper",
    ...     likelihood=NoisyMax(H=100, expectation="exact", schedule="sequential"),
    ... )
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
                    "cannot; use schedule='damped', or inference='marginal'."
                )
            from bagwise.models.variational.sweeps import sweep

            pull = math.log(self.H) * (2 * labels.of_bag - 1)  # [n]
            known = labels.known
            if known is None:
                known = np.full(len(score), -1, dtype=np.int8)
            return sweep(score, pull, labels.offsets, known, tail, self.expectation == "exact")
        pull = math.log(self.H) * (2 * labels.of_bag - 1)  # [n]
        z = score + pull * none_of_others(tail, labels.offsets, self.expectation)
        new, new_tail = clamp(*both_tails(z), labels)
        if self.schedule == "damped":
            return (pi + new) / 2, (tail + new_tail) / 2
        return new, new_tail

    def bound(
        self, f: Moments, log_psi: Array, labels: BagLabels, targets: Targets
    ) -> float | Array:
        """``sum_b [log H E G_b - log(H+1)] + sum_n [(pi - 1/2) E f + log psi(c) + H(pi)]``.

        E G_b is exact under q(y) also where the updates plug the largest pi in, as the papers do:
        with that in its place the sum would exceed log p(T).
        """
        agree = expected_agreement(targets.tail, labels)
        per_instance = (targets.pi - 0.5) * f.mean + log_psi + entropy(targets.pi, targets.tail)
        return labels.total(math.log(self.H) * agree - math.log1p(self.H), per_instance)


def _unit_weights(pi: Array, tail: Array) -> Targets:
    return Targets(namespace(pi).ones_like(as_float(pi)), pi, pi, tail)
