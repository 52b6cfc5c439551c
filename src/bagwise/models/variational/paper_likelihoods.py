"""What the papers' closed-form updates are made of: densities, and how a bag's label speaks.

``sigmoid(±f)`` is proportional to ``exp(±f/2) psi(f)`` with psi the hyperbolic secant (15). Any
differentiable Gaussian scale mixture may take its place (`Density`).

A `PaperLikelihood` is known to `paper` by four pure methods over whole bags. They turn moments of
q(f) into beliefs about the instances, and these into the precision and linear weights, ``omega``
and ``rho``, of the Gaussian update ``S = (I + A diag(omega) A^T)^{-1}``, ``m = S A rho``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from bagwise.core import segments
from bagwise.core.arrays import (
    Array,
    as_float,
    at_least,
    both_tails,
    expit,
    is_tensor,
    namespace,
)
from bagwise.models.variational.blocks import BagLabels

Expectation = Literal["plug-in", "exact"]
Schedule = Literal["damped", "paper", "sequential"]
# Gates start nearly open: closed ones let no instance pull, and would never open.
_OPEN = 0.9


@runtime_checkable
class Density(Protocol):
    """What the updates ask of a density: two methods, elementwise over ``c >= 0``.

    Examples
    --------
    A Gaussian in place of the hyperbolic secant:

    >>> import numpy as np
    >>> from bagwise import PsiVGPMIL
    >>> class Normal:
    ...     def theta(self, c):
    ...         return np.full_like(c, 0.25)
    ...     def log_psi(self, c):
    ...         return -np.log(2) - c**2 / 8
    >>> model = PsiVGPMIL(density=Normal())
    """

    def theta(self, c: Array) -> Array:
        """``-psi'(c) / (c psi(c))`` (28), finite and >= 0 also at c = 0."""
        ...

    def log_psi(self, c: Array) -> Array:
        """``log psi(c)`` with ``psi(0) = 1/2``: then ``exp(±f/2) psi(f)`` is 1/2 at f = 0."""
        ...


@dataclass(frozen=True)
class Sech:
    """Hyperbolic secant: the logistic model, VGPMIL = PG-VGPMIL.

    Examples
    --------
    >>> from bagwise.models.variational import Sech
    >>> Sech().theta([0.0, 2000.0]).tolist()
    [0.25, 0.00025]
    """

    # `exp(±f/2) psi(f)` are the probabilities of the two labels.
    normalised: ClassVar[bool] = True

    def theta(self, c: Array) -> Array:
        """``tanh(c/2) / (2c)``, 1/4 at 0; twice Jaakkola's lambda, the mean of a Pólya-Gamma."""
        c, xp = as_float(c), namespace(c)
        small = c < 1e-4
        safe = xp.where(small, 1.0, c)
        # Series at 0: the quotient loses its digits there.
        return xp.where(small, 0.25 - c * c / 48, xp.tanh(safe / 2) / (2 * safe))

    def log_psi(self, c: Array) -> Array:
        """``-log(2 cosh(c/2))``."""
        c, xp = as_float(c), namespace(c)
        return -c / 2 - xp.log1p(xp.exp(-c))


@dataclass(frozen=True)
class Gamma:
    """Gamma-mixed Gaussians, a Student-t shape: G-VGPMIL.

    Equation 37 of [CastroMacias2024]_.

    Examples
    --------
    >>> from bagwise.models.variational import Gamma
    >>> Gamma(alpha=1.0, beta=1.0).theta([0.0, 2.0]).round(3).tolist()
    [1.0, 0.333]
    """

    alpha: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "alpha", "beta")

    def theta(self, c: Array) -> Array:
        """``alpha / (beta + c^2/2)``."""
        c = as_float(c)
        return self.alpha / (self.beta + c * c / 2)

    def log_psi(self, c: Array) -> Array:
        """``-alpha log(1 + c^2 / (2 beta)) - log 2``."""
        c, xp = as_float(c), namespace(c)
        return -self.alpha * xp.log1p(c * c / (2 * self.beta)) - math.log(2.0)


def _check_positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not (np.isfinite(value) and value > 0):
            kind = type(owner).__name__
            raise ValueError(f"{kind} needs a finite {name} > 0; got {value!r}.")


def check_density(density: Density) -> Density:
    """A density with both methods, or an error that says which is missing."""
    kind = type(density).__name__
    missing = [name for name in ("theta", "log_psi") if not callable(getattr(density, name, None))]
    if missing:
        raise ValueError(
            f"a density needs the methods theta(c) and log_psi(c); {kind} has no "
            f"{' and no '.join(missing)}."
        )
    probe = np.asarray(density.theta(np.array([0.0, 1.0, 2000.0])), dtype=np.float64)
    if probe.shape != (3,) or not np.isfinite(probe).all() or (probe < 0).any():
        raise ValueError(
            "a density's theta(c) must be elementwise, finite and >= 0 for every c >= 0 "
            f"including 0; {kind} gave {probe} at 0, 1, 2000."
        )
    return density


class LatentMoments(NamedTuple):
    """First two moments of q(f) for every instance."""

    mean: Array  # [n] E f
    var: Array  # [n]

    @property
    def second(self) -> Array:
        """``E f^2``."""
        return self.mean * self.mean + self.var


class Beliefs(NamedTuple):
    """q(y) of the instances; both tails, so that neither rounds to 0."""

    pi: Array  # [n] q(y = 1)
    tail: Array  # [n] q(y = 0)


class GatedBeliefs(NamedTuple):
    """q(y), q(g) and the two Jaakkola coefficients, from the q(f) they were last updated with."""

    pi: Array  # [n] q(y = 1)
    tail: Array  # [n] q(y = 0)
    tau: Array  # [n] q(g = 1)
    lambda_xi: Array  # [n]
    lambda_phi: Array  # [n]


@runtime_checkable
class PaperLikelihood(Protocol):
    """What the updates ask of a bag likelihood."""

    def start(self, f: LatentMoments, labels: BagLabels, pi: Array) -> Any:
        """Beliefs before the first update, from instance probabilities ``pi``."""
        ...

    def targets(self, f: LatentMoments, log_psi: Array, labels: BagLabels, previous: Any) -> Any:
        """Beliefs given the moments of q(f)."""
        ...

    def weights(self, f: LatentMoments, targets: Any, theta: Array) -> tuple[Array, Array]:
        """``omega`` and ``rho`` of the Gaussian update; `paper` counts each bag by its weight."""
        ...

    def bound(
        self, f: LatentMoments, log_psi: Array, labels: BagLabels, targets: Any
    ) -> float | Array:
        """The part of the evidence bound that is not the KL divergence, by ``labels.total``."""
        ...


def clamp(pi: Array, tail: Array, labels: BagLabels) -> Beliefs:
    """q(y) with the known instance labels put in; section 3.1 of [Haussmann2017]."""
    if labels.nothing_known:
        return Beliefs(pi, tail)
    assert labels.known is not None
    unknown, xp = labels.known < 0, namespace(pi)
    known = as_float(labels.known == 1)
    return Beliefs(xp.where(unknown, pi, known), xp.where(unknown, tail, 1 - known))


def entropy(pi: Array, tail: Array) -> Array:
    """Entropy of Bernoulli(pi), 0 log 0 = 0."""
    return -pi * _safe_log(pi) - tail * _safe_log(tail)


def _safe_log(x: Array) -> Array:
    """Logarithm that is finite at 0."""
    kind = np.float64 if x.dtype == np.float64 else np.float32
    return namespace(x).log(at_least(x, float(np.finfo(kind).tiny)))


def none_of_others(tail: Array, offsets: segments.Offsets, expectation: Expectation) -> Array:
    r"""``1 - E_{b\n}`` for every instance: how likely no *other* instance of its bag is positive.

    ``plug-in`` is 1 - (largest other pi), the papers'; ``exact`` the product of the others' tails.
    """
    if expectation == "plug-in":
        return -segments.max_of_others(-tail, offsets, alone=-1.0)
    log_tail = _safe_log(tail)
    total = segments.spread(segments.sum(log_tail, offsets), offsets)
    return namespace(tail).exp(total - log_tail)


@dataclass(frozen=True)
class NoisyMax:
    """The papers' likelihood ``H^G / (H + 1)``, G = 1 iff the label is the max.

    Equation 3 of [Haussmann2017]_ and 4 of [CastroMacias2024]_.

    Parameters
    ----------
    H : float, default=100.0
        Odds that a bag's label agrees with the maximum of its instances. Both papers print 100;
        both released programs use 1e12.
    expectation : {"plug-in", "exact"}, default="plug-in"
        Expected maximum of the other instances: the largest of their probabilities as in the
        papers, or the exact ``1 - prod(1 - pi)``.
    schedule : {"damped", "paper", "sequential"}, default="damped"
        ``paper`` updates every pi at once from the old ones. That is not coordinate ascent: it
        oscillates between even and odd iterations, and the parity of ``max_iter`` decides the
        accuracy. It is kept to reproduce published figures. ``damped`` goes half the way each
        time and settles. ``sequential`` updates one instance after the other, (25) as
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

    def start(self, f: LatentMoments, labels: BagLabels, pi: Array) -> Beliefs:
        """q(y) = pi where nothing is known."""
        return clamp(as_float(pi), as_float(1 - pi), labels)

    def targets(
        self, f: LatentMoments, log_psi: Array, labels: BagLabels, previous: Beliefs
    ) -> Beliefs:
        """``pi = sigmoid(E f + log H (2 T - 1)(1 - E_others))``, (25); (14) of [Haussmann2017]_."""
        return self.update(f.mean, labels, previous.pi, previous.tail)

    def update(self, score: Array, labels: BagLabels, pi: Array, tail: Array) -> Beliefs:
        """One update of q(y) whose log-odds are ``score`` plus the pull of the bag's label."""
        pull = math.log(self.H) * (2 * labels.of_bag - 1)  # [n]
        if self.schedule == "sequential":
            if is_tensor(score):
                raise ValueError(
                    "schedule='sequential' updates one instance after the other, which a device "
                    "cannot; use schedule='damped', or inference='marginal'."
                )
            from bagwise.models.variational.sequential import one_by_one

            none = np.full(len(score), -1, dtype=np.int8)
            known = none if labels.known is None else labels.known
            exact = self.expectation == "exact"
            return Beliefs(*one_by_one(score, pull, labels.offsets, known, tail, exact))
        z = score + pull * none_of_others(tail, labels.offsets, self.expectation)
        new = clamp(*both_tails(z), labels)
        if self.schedule == "damped":
            return Beliefs((pi + new.pi) / 2, (tail + new.tail) / 2)
        return new

    def weights(self, f: LatentMoments, targets: Beliefs, theta: Array) -> tuple[Array, Array]:
        """``omega = theta``, ``rho = pi - 1/2`` (26, 27)."""
        return theta, targets.pi - 0.5

    def bound(
        self, f: LatentMoments, log_psi: Array, labels: BagLabels, targets: Beliefs
    ) -> float | Array:
        """``sum_b [log H E G_b - log(H+1)] + sum_n [(pi - 1/2) E f + log psi(c) + H(pi)]``.

        E G_b, how likely the label is the maximum, is exact under q(y) also where the updates
        plug the largest pi in, as the papers do: the sum would exceed log p(T) otherwise.
        """
        pi, tail = targets.pi, targets.tail
        none = namespace(tail).exp(segments.sum(_safe_log(tail), labels.offsets))  # [b]
        agree = namespace(tail).where(labels.y == 1, 1 - none, none)
        per_instance = (pi - 0.5) * f.mean + log_psi + entropy(pi, tail)
        return labels.total(math.log(self.H) * agree - math.log1p(self.H), per_instance)


@dataclass(frozen=True)
class LargeMargin:
    """LM-VGPMIL: a gate per instance asks for a margin.

    Section 3.2 and section 2 of the supplement of [Haussmann2017]_.

    The gate ``g_n ~ Ber(sigmoid(C (s_n f_n - V)))``, s = 2y - 1, opens for instances that lie
    beyond the margin, and only those take part in the classification. The graph is cyclic, so the
    objective is not a proper evidence bound and may fall; a fit stops on the change of q(u).

    Parameters
    ----------
    C : float, default=2.0
        Steepness of the gate.
    V : float, default=2.0
        Width of the margin.
    H, expectation, schedule : float, str, str, default=100.0, "plug-in", "damped"
        As for `NoisyMax`.

    Examples
    --------
    >>> from bagwise.models.variational import LargeMargin
    >>> LargeMargin(C=2.0, V=2.0).V
    2.0
    """

    C: float = 2.0
    V: float = 2.0
    H: float = 100.0
    expectation: Expectation = "plug-in"
    schedule: Schedule = "damped"

    def __post_init__(self) -> None:
        _check_positive(self, "C", "V")
        _ = self._noisy_max

    @property
    def _noisy_max(self) -> NoisyMax:
        return NoisyMax(self.H, self.expectation, self.schedule)

    def start(self, f: LatentMoments, labels: BagLabels, pi: Array) -> GatedBeliefs:
        """q(y) = pi, gates nearly open."""
        pi, tail = clamp(pi, 1 - pi, labels)
        return self._gated(f, pi, tail, 0.0 * as_float(pi) + _OPEN)

    def targets(
        self, f: LatentMoments, log_psi: Array, labels: BagLabels, previous: GatedBeliefs
    ) -> GatedBeliefs:
        """tau, then pi, then xi and phi."""
        C, V = self.C, self.V
        Ef, lx, lp = f.mean, previous.lambda_xi, previous.lambda_phi
        s = previous.pi - previous.tail
        tau = expit(C * (s * Ef - V) + Ef * (previous.pi - 0.5) - lp * f.second)
        score = 2 * tau * C * Ef - C * Ef + 4 * lx * C**2 * Ef * V + Ef * tau
        pi, tail = self._noisy_max.update(score, labels, previous.pi, previous.tail)
        return self._gated(f, pi, tail, tau)

    def _gated(self, f: LatentMoments, pi: Array, tail: Array, tau: Array) -> GatedBeliefs:
        """Jaakkola's lambda = theta / 2 at xi and at phi = sqrt(tau E f^2)."""
        phi, theta = (tau * f.second) ** 0.5, Sech().theta
        return GatedBeliefs(pi, tail, tau, theta(self._xi(f, pi, tail)) / 2, theta(phi) / 2)

    def _xi(self, f: LatentMoments, pi: Array, tail: Array) -> Array:
        """``xi = C sqrt(E (s f - V)^2)``; rounding may push the square below 0."""
        square = f.second - 2 * (pi - tail) * f.mean * self.V + self.V**2
        return self.C * at_least(square, 0.0) ** 0.5

    def weights(self, f: LatentMoments, targets: GatedBeliefs, theta: Array) -> tuple[Array, Array]:
        """Precision ``2 (lambda_xi C^2 + lambda_phi tau)`` and the right-hand side."""
        C, V = self.C, self.V
        pi, tail, tau, lx, lp = targets
        s = pi - tail
        omega = 2 * (lx * C**2 + lp * tau)
        rho = C * s * (tau - 0.5) + 2 * C**2 * lx * s * V + tau * (pi - 0.5)
        return omega, rho

    def bound(
        self, f: LatentMoments, log_psi: Array, labels: BagLabels, targets: GatedBeliefs
    ) -> float | Array:
        """The objective; a diagnostic, for it may fall."""
        pi, tail, tau = targets.pi, targets.tail, targets.tau
        s, log_sech = pi - tail, Sech().log_psi
        gate = (tau - 0.5) * self.C * (s * f.mean - self.V) + log_sech(self._xi(f, pi, tail))
        label = tau * (pi - 0.5) * f.mean + log_sech((tau * f.second) ** 0.5)
        # NoisyMax's terms without its own Gaussian part.
        still = LatentMoments(0.0 * f.mean, f.var)
        bags = self._noisy_max.bound(still, 0.0 * f.mean, labels, Beliefs(pi, tail))
        return bags + labels.total(0.0 * as_float(labels.y), gate + label + entropy(tau, 1 - tau))
