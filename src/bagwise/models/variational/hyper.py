"""Learning the kernel: the collapsed bound, its analytic gradient, and L-BFGS-B. P(29).

For fixed sites (``omega``, ``rho``) the best q(u) has a closed form. Put in, the part of the bound
that depends on the kernel is, with ``B = I + A diag(omega) A^T`` and ``b = A rho``,

``J = 1/2 b^T B^{-1} b - 1/2 log|B| - 1/2 sum_n omega_n r_n``.

Unlike the released program of P, which divides the likelihood by N and the KL by M and so
over-weights the KL, nothing is rescaled here: a step in J is a step in the bound.

For the density ``Sech`` the normaliser log Z of P(19) is 0. For any other density it depends on the
kernel; the released program drops it, and so does `learn_kernel` unless asked for it
(``normaliser=True``: `log_normaliser`, by random Fourier features).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.utils import check_random_state

from bagwise.core import linalg
from bagwise.core.arrays import to_numpy
from bagwise.core.gaussians import project
from bagwise.core.kernels import RBF, Kernel
from bagwise.models.execution import CHUNK_SIZE
from bagwise.models.variational.evidence import pull_back

if TYPE_CHECKING:
    from bagwise.core.arrays import Floats, RandomState
    from bagwise.models.variational.densities import Density


# One call may change a parameter by this factor, and never take it outside this range: the sites
# were made by the old kernel and are trusted near it only.
_STEP = float(np.log(20.0))
_RANGE = float(np.log(1e6))


class Objective(NamedTuple):
    """A value and its gradient with respect to the kernel's log-parameters."""

    value: float
    gradient: Floats  # [P]


def collapsed_bound(
    kernel: Kernel, X: Floats, Z: Floats, omega: Floats, rho: Floats, chunk_size: int = CHUNK_SIZE
) -> Objective:
    """The collapsed bound J and its gradient, at fixed sites.

    Two passes over chunks of instances, O(N M^2) work, O(chunk x M) memory. With ``S = B^{-1}``
    and ``m = S b`` the derivatives are ``dJ/dA = m (rho - omega E f)^T - S A diag(omega)`` and
    ``dJ/dr = -omega / 2``; `evidence.pull_back` takes them to the kernel's parameters.

    Parameters
    ----------
    kernel : kernel object
    X, Z : arrays of shape (N, D), (M, D)
        Instances and inducing points, in the units the kernel acts on.
    omega, rho : arrays of shape (N,)
        Sites: precision and linear weights; for VGPMIL theta and pi - 1/2.
    chunk_size : int
        Instances per chunk.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.kernels import RBF
    >>> from bagwise.models.variational.hyper import collapsed_bound
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> rho = np.where(X[:, 0] > 0.5, 0.5, -0.5)
    >>> J = collapsed_bound(RBF(0.3), X, X[::4], np.full(20, 0.25), rho)
    >>> round(J.value, 2), J.gradient.shape
    (3.73, (2,))
    """
    L = to_numpy(linalg.cholesky(kernel(Z, Z)))
    chunks = [slice(start, start + chunk_size) for start in range(0, len(X), chunk_size)]
    B, b, residual = np.eye(len(Z)), np.zeros(len(Z)), 0.0
    for rows in chunks:
        A, r = project(kernel, X[rows], Z, L)
        B += linalg.weighted_gram(A, omega[rows])
        b += A @ rho[rows]
        residual += float(omega[rows] @ r)
    B = np.tril(B) + np.tril(B, -1).T  # the Gram matrix comes as its lower triangle
    W = linalg.inverse_factor(np.asfortranarray(B))
    S = W.T @ W
    m = S @ b
    value = 0.5 * (b @ m) + np.log(np.diagonal(W)).sum() - 0.5 * residual
    gradient = np.zeros(len(kernel.theta))
    for rows in chunks:
        A, w = to_numpy(project(kernel, X[rows], Z, L)[0]), omega[rows]
        dA = np.outer(m, rho[rows] - w * (m @ A)) - (S @ A) * w
        gradient += pull_back(kernel, X[rows], Z, L, A, dA, -0.5 * w)
    return Objective(float(value), gradient)


def log_normaliser(
    kernel: Kernel,
    X: Floats,
    density: Density,
    *,
    n_features: int = 256,
    n_samples: int = 64,
    random_state: RandomState = 0,
    chunk_size: int = CHUNK_SIZE,
) -> Objective:
    """Monte Carlo estimate of log Z, P(20), by random Fourier features, and its gradient.

    ``Z = E_{f ~ GP} prod_n 2 cosh(f_n / 2) psi(f_n)``, 1 for `Sech`. Functions are drawn as
    ``f(x) = sqrt(2 v / R) sum_r w_r cos(x.omega_r / l + phase_r)``; the draws are made once, from
    ``random_state``, so that the estimate is a smooth function of the kernel's parameters. It is
    biased downwards, as every logarithm of a Monte Carlo mean, the more so for large N and v.

    Parameters
    ----------
    kernel : RBF
        The features are those of the squared exponential, with one or many length scales.
    X : array of shape (N, D)
    density : density object
        With ``theta`` and ``log_psi``.
    n_features, n_samples : int
        R, and the number of functions drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.kernels import RBF
    >>> from bagwise.models.variational.densities import Sech
    >>> from bagwise.models.variational.hyper import log_normaliser
    >>> abs(log_normaliser(RBF(), np.ones((5, 2)), Sech()).value) < 1e-12
    True
    """
    draws = _draw_functions(kernel, X.shape[1], n_features, n_samples, random_state)
    chunks = [slice(start, start + chunk_size) for start in range(0, len(X), chunk_size)]
    log_weights = np.zeros(n_samples)
    for rows in chunks:
        f = np.cos(draws.angles(X[rows])[1]) @ draws.amplitudes  # [n, samples]
        log_weights += (density.log_psi(np.abs(f)) + np.logaddexp(f / 2, -f / 2)).sum(0)
    value = logsumexp(log_weights) - np.log(n_samples)
    share = np.exp(log_weights - logsumexp(log_weights))

    d_scale, d_variance = np.zeros(X.shape[1]), 0.0
    for rows in chunks:
        scaled, phase = draws.angles(X[rows])
        f = np.cos(phase) @ draws.amplitudes
        # psi'/psi = -f theta(f)
        slope = (np.tanh(f / 2) / 2 - f * density.theta(np.abs(f))) * share
        d_variance += 0.5 * float((slope * f).sum())
        turn = np.sin(phase) * (slope @ draws.amplitudes.T)  # [n, R]
        d_scale += (scaled * (turn @ draws.frequencies)).sum(0)
    if not isinstance(draws.length_scale, tuple):
        d_scale = d_scale.sum(keepdims=True)
    return Objective(float(value), np.append(d_scale, d_variance))


class _Functions(NamedTuple):
    """Functions drawn from the prior, as weights of random Fourier features."""

    length_scale: object
    frequencies: Floats  # [R, D]
    phases: Floats  # [R]
    amplitudes: Floats  # [R, samples]

    def angles(self, X: Floats) -> tuple[Floats, Floats]:
        """The scaled rows, and what the features are cosines of."""
        scaled = X / np.asarray(self.length_scale)  # [n, D]
        return scaled, scaled @ self.frequencies.T + self.phases  # [n, R]


def _draw_functions(
    kernel: Kernel, n_dimensions: int, n_features: int, n_samples: int, random_state: RandomState
) -> _Functions:
    if not isinstance(kernel, RBF):
        raise ValueError(
            "log Z by random Fourier features needs an RBF kernel; got "
            f"{kernel!r}. Learn this kernel with normaliser=False."
        )
    rng = check_random_state(random_state)
    frequencies = rng.normal(size=(n_features, n_dimensions))
    phases = rng.uniform(0, 2 * np.pi, size=n_features)
    weights = rng.normal(size=(n_features, n_samples))
    amplitudes = np.sqrt(2 * kernel.variance / n_features) * weights
    return _Functions(kernel.length_scale, frequencies, phases, amplitudes)


def learn_kernel(
    kernel: Kernel,
    X: Floats,
    Z: Floats,
    omega: Floats,
    rho: Floats,
    *,
    density: Density | None = None,
    normaliser: bool = False,
    max_iter: int = 30,
    random_state: RandomState = 0,
    chunk_size: int = CHUNK_SIZE,
) -> Kernel:
    """The kernel whose parameters maximise the collapsed bound, at fixed sites.

    L-BFGS-B on log-parameters with analytic gradients. Never returns a kernel with a lower
    objective than the one it was given.

    Parameters
    ----------
    kernel, X, Z, omega, rho, chunk_size
        As for `collapsed_bound`.
    density, normaliser : density object, bool
        Subtract the estimate of log Z of this density, see `log_normaliser`.
    max_iter, random_state
        Iterations of L-BFGS-B; seed of the normaliser's draws.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.kernels import RBF
    >>> from bagwise.models.variational.hyper import learn_kernel
    >>> X = np.linspace(0, 4, 60)[:, None]
    >>> rho = np.where(np.sin(3 * X[:, 0]) > 0, 0.5, -0.5)
    >>> learnt = learn_kernel(RBF(5.0), X, X[::3], np.full(60, 0.2), rho)
    >>> 0.2 < learnt.length_scale < 1.0
    True
    """
    X = np.asarray(X, dtype=np.float64)
    if normaliser and density is None:
        raise ValueError("normaliser=True needs the density whose log Z is meant; got None.")
    seed = check_random_state(random_state).randint(np.iinfo(np.int32).max)

    def loss(theta: Floats) -> tuple[float, Floats]:
        trial = kernel.with_theta(theta)
        J = collapsed_bound(trial, X, Z, omega, rho, chunk_size)
        if normaliser:
            log_z = log_normaliser(
                trial, X, cast("Density", density), random_state=seed, chunk_size=chunk_size
            )
            J = Objective(J.value - log_z.value, J.gradient - log_z.gradient)
        return -J.value, -J.gradient

    start, bounds = kernel.theta, _trusted(kernel.theta)
    with warnings.catch_warnings():
        # A trial kernel may need more jitter; whoever uses the learnt one is told.
        warnings.filterwarnings("ignore", message="the kernel matrix is nearly singular")
        first = loss(start)[0]
        options = {"maxiter": max_iter}
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    better = np.isfinite(found.fun) and found.fun <= first
    return kernel.with_theta(found.x) if better else kernel


def _trusted(theta: Floats) -> list[tuple[float, float]]:
    """Where each log-parameter may go: a step from where it is, which is always allowed."""
    return [
        (min(t, max(t - _STEP, -_RANGE)), max(t, min(t + _STEP, _RANGE))) for t in theta.tolist()
    ]


class Alternation(NamedTuple):
    """Where the alternation of fits and kernel updates ended."""

    kernel: Kernel
    fit: Any  # what the last call of ``advance`` returned, under the kernel
    bound_history: Floats  # [n_rounds + 1] full bound after each kernel update's fit


class KernelFit(NamedTuple):
    """What a fit under one kernel has to tell the next round."""

    omega: Floats  # [N] sites that the next kernel is learnt at
    rho: Floats  # [N]
    bound: float  # the full bound of the fit
    carry: Any = None  # what the next fit starts from: beliefs, or q(y)


def learn(
    kernel: Kernel,
    X: Floats,
    Z: Floats,
    advance: Callable[[Kernel, KernelFit | None], KernelFit],
    *,
    n_rounds: int = 10,
    tol: float = 1e-3,
    density: Density | None = None,
    normaliser: bool = False,
    random_state: RandomState = 0,
    chunk_size: int = CHUNK_SIZE,
) -> Alternation:
    """Fits and kernel updates in turn, such that the full bound never falls.

    Each round starts from what the one before believed, never from the prior: restarts let the
    variance run to the end of its range, and the bound with it to ruin. A kernel whose fit ends
    below the bound reached so far is refused: a step half as long is tried, in log-parameters,
    and after four such halvings the alternation ends with the last good kernel.

    Parameters
    ----------
    kernel, X, Z, chunk_size
        As for `collapsed_bound`; X and Z in the units the kernel acts on.
    advance : function of a kernel and of the last `KernelFit` (None at first)
        Fits q(v) under the kernel from those beliefs and says what came of it. With the
        same kernel it must not lower the bound.
    n_rounds, tol
        At most so many kernel updates; ends when log-parameters change by less than ``tol``.
    density, normaliser, random_state
        As for `learn_kernel`. With ``normaliser`` the bound that must not fall has log Z taken
        off too.
    """
    X = np.asarray(X, dtype=np.float64)

    def value(trial: Kernel, fit: KernelFit) -> float:
        if not normaliser:
            return fit.bound
        log_z = log_normaliser(
            trial, X, cast("Density", density), random_state=random_state, chunk_size=chunk_size
        ).value
        return fit.bound - log_z

    start = kernel.theta
    fit = advance(kernel, None)
    history = [value(kernel, fit)]
    for _ in range(n_rounds):
        learnt = learn_kernel(
            kernel,
            X,
            Z,
            fit.omega,
            fit.rho,
            density=density,
            normaliser=normaliser,
            random_state=random_state,
            chunk_size=chunk_size,
        )
        step = learnt.theta - kernel.theta
        for _ in range(_HALVINGS + 1):
            trial = kernel.with_theta(kernel.theta + step)
            new = advance(trial, fit)
            reached = value(trial, new)
            if np.isfinite(reached) and reached >= history[-1]:
                break
            step = step / 2
        else:
            break
        kernel, fit = trial, new
        history.append(reached)
        if np.abs(step).max() < tol:
            break
    _warn_at_bounds(kernel, start)
    return Alternation(kernel, fit, np.array(history))


# How often a kernel update that lowers the bound is halved before it is given up.
_HALVINGS = 4


def _warn_at_bounds(kernel: Kernel, start: Floats) -> None:
    """Say which parameters ended where the search has to stop, or far from where they began."""
    theta = kernel.theta
    ended = np.flatnonzero((np.abs(theta) >= _RANGE - 1e-6) & (np.abs(start) < _RANGE))
    if len(ended):
        values = ", ".join(f"parameter {i} = {np.exp(theta[i]):.3g}" for i in ended)
        warnings.warn(
            f"kernel learning ended at the edge of its range: {values} of {kernel!r}. The labels "
            "do not determine it; fix it, or start elsewhere.",
            stacklevel=3,
        )
