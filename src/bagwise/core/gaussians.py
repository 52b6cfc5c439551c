"""Gaussians: projections onto inducing points, divergences, expectations of the sigmoid."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from bagwise.core import linalg
from bagwise.core.arrays import Array, Doubles, Floats, at_least, is_tensor, namespace

if TYPE_CHECKING:
    import torch

    from bagwise.core.kernels import Kernel


# E sigmoid(f) to 1e-5 for a standard deviation of 4, 2e-4 for 6, 4e-3 for 10.
N_NODES = 64
# Expectations are taken over blocks of this many entries, to bound the N x nodes workspace.
_BLOCK = 1024
_TINY = float(np.finfo(np.float64).tiny)


class SigmoidMoments(NamedTuple):
    """Expectations of a sigmoid under Gaussians; logs keep both tails exact."""

    log_positive: Doubles  # [n] log E sigmoid(f)
    log_negative: Doubles  # [n] log E sigmoid(-f)
    log_negative_squared: Doubles  # [n] log E sigmoid(-f)^2

    @property
    def log_odds(self) -> Doubles:
        """Log-odds of the expected sigmoid."""
        return self.log_positive - self.log_negative

    @property
    def mean(self) -> Doubles:
        """Expected sigmoid."""
        return namespace(self.log_positive).exp(self.log_positive)

    @property
    def std(self) -> Doubles:
        """Standard deviation of sigmoid(f)."""
        xp = namespace(self.log_negative)
        variance = xp.exp(self.log_negative_squared) - xp.exp(2 * self.log_negative)
        return at_least(variance, 0.0) ** 0.5


def project(
    kernel: Kernel, X: Array, Z: Array, L: Array, dtype: DTypeLike | torch.dtype = np.float64
) -> tuple[Array, Array]:
    """Whitened projection of instances onto the inducing points.

    Returns ``A = L^{-1} k(Z, X)`` [M, n] in ``dtype`` and the residual prior variance
    ``r = k(x, x) - |a|^2`` [n]; ``L L^T = k(Z, Z)``. The algebra is done in float64.
    """
    if is_tensor(X):
        on_device: torch.Tensor = linalg.solve_lower(L, kernel(X, Z).T)
        residual: torch.Tensor = kernel.diag(X) - linalg.column_squares(on_device)
        return on_device.to(dtype), residual.clamp(min=0.0).to(dtype)
    X = np.asarray(X, dtype=np.float64)
    A = linalg.solve_lower(L, np.asarray(kernel(X, Z), dtype=np.float64).T)  # [M, n]
    r = np.maximum(kernel.diag(X) - linalg.column_squares(A), 0.0)
    return A.astype(dtype, copy=False), r


def kl_to_standard(m: Array, W: Array) -> Array:
    """KL(N(m, W^T W) || N(0, I)) for lower-triangular ``W``; a number where these are."""
    return 0.5 * ((W * W).sum() + m @ m - m.shape[0]) - namespace(W).log(W.diagonal()).sum()


@lru_cache(maxsize=8)
def hermite(n: int) -> tuple[Floats, Floats]:
    """Nodes and weights for expectations under N(0, 1).

    Examples
    --------
    >>> from bagwise.core.gaussians import hermite
    >>> nodes, weights = hermite(5)
    >>> round(float(weights @ nodes**2), 10)
    1.0
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / np.sqrt(2 * np.pi)


def sigmoid_moments(mean: Array, var: Array, n_nodes: int = N_NODES) -> SigmoidMoments:
    """Gauss-Hermite expectations of sigmoid(f), f ~ N(mean, var), elementwise.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.gaussians import sigmoid_moments
    >>> moments = sigmoid_moments(np.array([0.0, 2.0]), np.array([1.0, 4.0]))
    >>> np.round(np.exp(moments.log_positive), 4).tolist()
    [0.5, 0.7752]
    """
    mean, var = np.asarray(mean, dtype=np.float64), np.asarray(var, dtype=np.float64)
    nodes, weights = hermite(n_nodes)
    out = SigmoidMoments(*(np.empty(mean.shape) for _ in SigmoidMoments._fields))
    for start in range(0, mean.shape[0], _BLOCK):
        rows = slice(start, start + _BLOCK)
        f = mean[rows, None] + np.sqrt(var[rows, None]) * nodes  # [n, Q]
        # All terms are positive: no cancellation, and the tails underflow only beyond |f| = 350.
        # One exponential makes both of them.
        small = np.exp(-np.abs(f))
        large = 1 / (1 + small)
        small *= large
        out.log_positive[rows] = np.where(f > 0, large, small) @ weights
        negative = np.where(f > 0, small, large)
        out.log_negative[rows] = negative @ weights
        out.log_negative_squared[rows] = np.square(negative, out=negative) @ weights
    for values in out:
        np.log(np.maximum(values, _TINY, out=values), out=values)
    return out
