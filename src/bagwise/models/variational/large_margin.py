"""LM-VGPMIL: a gate per instance asks for a margin around the decision surface. V, supplement 2.

The gate ``g_n ~ Ber(sigmoid(C (s_n f_n - V)))``, s = 2y - 1, opens for instances that lie beyond
the margin, and only those take part in the classification. The graph is cyclic, so the objective
is not a proper evidence bound and may fall; the engine stops on the change of q(u).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bagwise.core.arrays import Array, as_float, at_least, expit
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.densities import Sech
from bagwise.models.variational.noisy_max import (
    Expectation,
    Moments,
    NoisyMax,
    Schedule,
    clamp,
    entropy,
)

_SECH = Sech()
# Gates start nearly open: closed ones let no instance pull, and would never open.
_OPEN = 0.9


class GatedTargets(NamedTuple):
    """q(y), q(g) and the two Jaakkola coefficients, from the q(f) they were last updated with."""

    pi: Array  # [n] q(y = 1)
    tail: Array  # [n] q(y = 0)
    tau: Array  # [n] q(g = 1)
    lambda_xi: Array  # [n]
    lambda_phi: Array  # [n]


@dataclass(frozen=True)
class LargeMargin:
    """The gated likelihood as an engine object: `NoisyMax` for q(y) plus the gates.

    Parameters
    ----------
    C : float
        Steepness of the gate.
    V : float
        Width of the margin.
    H, expectation, schedule
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
        for name in ("C", "V"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be finite and > 0; got {value!r}.")
        self._noisy_max()

    def _noisy_max(self) -> NoisyMax:
        return NoisyMax(self.H, self.expectation, self.schedule)

    def start(self, f: Moments, labels: BagLabels, pi: Array) -> GatedTargets:
        """q(y) = pi, gates nearly open."""
        pi, tail = clamp(pi, 1 - pi, labels)
        tau = 0.0 * as_float(pi) + _OPEN
        return GatedTargets(pi, tail, tau, *self._lambdas(f, pi, tail, tau))

    def targets(
        self, f: Moments, log_psi: Array, labels: BagLabels, previous: GatedTargets
    ) -> GatedTargets:
        """tau, then pi, then xi and phi."""
        C, V = self.C, self.V
        Ef, lx, lp = f.mean, previous.lambda_xi, previous.lambda_phi
        s = previous.pi - previous.tail
        tau = expit(C * (s * Ef - V) + Ef * (previous.pi - 0.5) - lp * f.second)
        score = 2 * tau * C * Ef - C * Ef + 4 * lx * C**2 * Ef * V + Ef * tau
        pi, tail = self._noisy_max().update(score, labels, previous.pi, previous.tail)
        return GatedTargets(pi, tail, tau, *self._lambdas(f, pi, tail, tau))

    def _xi(self, f: Moments, pi: Array, tail: Array) -> Array:
        """``xi = C sqrt(E (s f - V)^2)``; rounding may push the square below 0."""
        square = f.second - 2 * (pi - tail) * f.mean * self.V + self.V**2
        return self.C * at_least(square, 0.0) ** 0.5

    def _lambdas(self, f: Moments, pi: Array, tail: Array, tau: Array) -> tuple[Array, Array]:
        """Jaakkola's lambda = theta / 2 at xi and at phi = sqrt(tau E f^2)."""
        phi = (tau * f.second) ** 0.5
        return _SECH.theta(self._xi(f, pi, tail)) / 2, _SECH.theta(phi) / 2

    def weights(self, f: Moments, targets: GatedTargets, theta: Array) -> tuple[Array, Array]:
        """Precision ``2 (lambda_xi C^2 + lambda_phi tau)`` and the right-hand side."""
        C, V = self.C, self.V
        pi, tail, tau = targets.pi, targets.tail, targets.tau
        lx, lp = targets.lambda_xi, targets.lambda_phi
        s = pi - tail
        omega = 2 * (lx * C**2 + lp * tau)
        rho = C * s * (tau - 0.5) + 2 * C**2 * lx * s * V + tau * (pi - 0.5)
        return omega, rho

    def bound(
        self, f: Moments, log_psi: Array, labels: BagLabels, targets: GatedTargets
    ) -> float | Array:
        """The objective; a diagnostic, for it may fall."""
        pi, tail, tau = targets.pi, targets.tail, targets.tau
        s = pi - tail
        gate = (tau - 0.5) * self.C * (s * f.mean - self.V) + _SECH.log_psi(self._xi(f, pi, tail))
        label = tau * (pi - 0.5) * f.mean + _SECH.log_psi((tau * f.second) ** 0.5)
        # NoisyMax's terms without its own Gaussian part.
        still = Moments(0.0 * f.mean, f.var)
        bags = self._noisy_max().bound(still, 0.0 * f.mean, labels, targets)  # type: ignore[arg-type]
        return bags + labels.total(0.0 * as_float(labels.y), gate + label + entropy(tau, 1 - tau))
