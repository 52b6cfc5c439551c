"""Gaussian-scale-mixture densities psi: what makes psi-VGPMIL one model or another.

``sigmoid(±f)`` is proportional to ``exp(±f/2) psi(f)`` with psi the hyperbolic secant, P(15).
Any differentiable Gaussian scale mixture may take its place; inference only needs

- ``theta(c) = -psi'(c) / (c psi(c))``, P(28), and
- ``log_psi(c)``, scaled so that ``psi(0) = 1/2``: then ``exp(±f/2) psi(f)`` is 1/2 at f = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from bagwise.core import arrays

if TYPE_CHECKING:
    from bagwise.core.arrays import Array


_LOG2 = float(np.log(2.0))


@runtime_checkable
class Density(Protocol):
    """What the engine asks of a density: two methods, elementwise over ``c >= 0``.

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
        """``-psi'(c) / (c psi(c))``, finite and >= 0 also at c = 0."""
        ...

    def log_psi(self, c: Array) -> Array:
        """``log psi(c)`` with ``psi(0) = 1/2``."""
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

    def theta(self, c: Array) -> Array:
        """``tanh(c/2) / (2c)``, 1/4 at 0; twice Jaakkola's lambda, the mean of a Pólya-Gamma."""
        c, xp = arrays.as_float(c), arrays.namespace(c)
        small = c < 1e-4
        safe = xp.where(small, 1.0, c)
        # Series at 0: the quotient loses its digits there.
        return xp.where(small, 0.25 - c * c / 48, xp.tanh(safe / 2) / (2 * safe))

    def log_psi(self, c: Array) -> Array:
        """``-log(2 cosh(c/2))``."""
        c, xp = arrays.as_float(c), arrays.namespace(c)
        return -c / 2 - xp.log1p(xp.exp(-c))


@dataclass(frozen=True)
class Gamma:
    """Gamma-mixed Gaussians, a Student-t shape: G-VGPMIL, P(37).

    Examples
    --------
    >>> from bagwise.models.variational import Gamma
    >>> Gamma(alpha=1.0, beta=1.0).theta([0.0, 2.0]).round(3).tolist()
    [1.0, 0.333]
    """

    alpha: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"Gamma needs a finite {name} > 0; got {value!r}.")

    def theta(self, c: Array) -> Array:
        """``alpha / (beta + c^2/2)``."""
        c = arrays.as_float(c)
        return self.alpha / (self.beta + c * c / 2)

    def log_psi(self, c: Array) -> Array:
        """``-alpha log(1 + c^2 / (2 beta)) - log 2``."""
        c, xp = arrays.as_float(c), arrays.namespace(c)
        return -self.alpha * xp.log1p(c * c / (2 * self.beta)) - _LOG2


def check_density(density: Density) -> Density:
    """A density with both methods, or an error that says which is missing."""
    missing = [name for name in ("theta", "log_psi") if not callable(getattr(density, name, None))]
    if missing:
        raise ValueError(
            f"a density needs the methods theta(c) and log_psi(c); {type(density).__name__} "
            f"has no {' and no '.join(missing)}."
        )
    probe = np.asarray(density.theta(np.array([0.0, 1.0, 2000.0])), dtype=np.float64)
    if probe.shape != (3,) or not np.isfinite(probe).all() or (probe < 0).any():
        raise ValueError(
            "a density's theta(c) must be elementwise, finite and >= 0 for every c >= 0 "
            f"including 0; {type(density).__name__} gave {probe} at 0, 1, 2000."
        )
    return density
