"""Learning the kernel of the papers' updates: the collapsed bound and L-BFGS-B.

Equation 29 of [CastroMacias2024].

For fixed sites (``omega``, ``rho``) the best q(u) has a closed form. Put in, the part of the bound
that depends on the kernel is, with ``B = I + A diag(omega) A^T`` and ``b = A rho``,

``J = 1/2 b^T B^{-1} b - 1/2 log|B| - 1/2 sum_n omega_n r_n``.

Unlike the released program of P, which divides the likelihood by N and the KL by M and so
over-weights the KL, nothing is rescaled here: a step in J is a step in the bound.

For the density ``Sech`` the normaliser log Z (Eq. 19) is 0. For any other density it depends on
the kernel; the released program drops it, here it is estimated (`log_normaliser`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.utils import check_random_state

from bagwise.core import linalg
from bagwise.core.arrays import Floats, RandomState, to_numpy
from bagwise.core.gaussians import project
from bagwise.core.kernels import RBF, Kernel, make_kernel
from bagwise.models.drivers import RunningSum, total
from bagwise.models.execution import CHUNK_SIZE
from bagwise.models.variational.blocks import Part
from bagwise.models.variational.engine import Problem, ready_parts
from bagwise.models.variational.evidence import pull_back, through_factor
from bagwise.models.variational.paper import (
    FitState,
    PaperSettings,
    begin,
    initial,
    iterate,
    read_beliefs,
    restored,
    statistics,
    update_posterior,
)
from bagwise.models.variational.paper_likelihoods import Density

# One call may change a parameter by this factor, and never take it outside this range: the sites
# were made by the old kernel and are trusted near it only.
_STEP = float(np.log(20.0))
_RANGE = float(np.log(1e6))
# Steps of L-BFGS-B at fixed sites.
_STEPS = 30
# Of the draws of `log_normaliser` while a kernel is learned.
_SEED = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
# How often a kernel update that lowers the bound is halved before it is given up.
_HALVINGS = 4
# This many short fits at most, until no log-parameter moves by more than the tolerance.
_ROUNDS, _ITERATIONS, _TOL = 10, 10, 0.01


class Objective(NamedTuple):
    """A value and its gradient with respect to the kernel's log-parameters."""

    value: float
    gradient: Floats  # [P]


def _chunks(n: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, n, size)]


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
    chunk_size : int, default=1024
        Instances per chunk.
    """
    L = to_numpy(linalg.cholesky(kernel(Z, Z)))
    B, b, residual = np.eye(len(Z)), np.zeros(len(Z)), 0.0
    for rows in _chunks(len(X), chunk_size):
        A, r = project(kernel, X[rows], Z, L)  # [M, n], [n]
        B += linalg.weighted_gram(A, omega[rows])
        b += A @ rho[rows]
        residual += float(omega[rows] @ r)
    B = np.tril(B) + np.tril(B, -1).T  # the Gram matrix comes as its lower triangle
    W = linalg.inverse_factor(np.asfortranarray(B))
    S = W.T @ W
    m = S @ b
    value = 0.5 * (b @ m) + np.log(np.diagonal(W)).sum() - 0.5 * residual
    gradient, cross = np.zeros(len(kernel.theta)), np.zeros_like(L)
    for rows in _chunks(len(X), chunk_size):
        A, w = to_numpy(project(kernel, X[rows], Z, L)[0]), omega[rows]
        dA = np.outer(m, rho[rows] - w * (m @ A)) - (S @ A) * w
        direct, through = pull_back(kernel, X[rows], Z, L, A, dA, -0.5 * w)
        gradient += direct
        cross += through
    return Objective(float(value), gradient + through_factor(kernel, Z, L, cross))


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
    """Monte Carlo estimate of log Z (Eq. 20) by random Fourier features, and its gradient.

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
    n_features, n_samples : int, default=256, 64
        R, and the number of functions drawn.
    """
    if not isinstance(kernel, RBF):
        raise ValueError(f"log Z by random Fourier features needs an RBF kernel; got {kernel!r}.")
    rng = check_random_state(random_state)
    frequencies = rng.normal(size=(n_features, X.shape[1]))  # [R, D]
    phases = rng.uniform(0, 2 * np.pi, size=n_features)
    weights = rng.normal(size=(n_features, n_samples))
    weights *= np.sqrt(2 * kernel.variance / n_features)
    scale: Any = np.asarray(kernel.length_scale)
    log_weights = np.zeros(n_samples)
    for rows in _chunks(len(X), chunk_size):
        f = np.cos(X[rows] / scale @ frequencies.T + phases) @ weights  # [n, samples]
        log_weights += (density.log_psi(np.abs(f)) + np.logaddexp(f / 2, -f / 2)).sum(0)
    value = logsumexp(log_weights) - np.log(n_samples)
    share = np.exp(log_weights - logsumexp(log_weights))

    d_scale, d_variance = np.zeros(X.shape[1]), 0.0
    for rows in _chunks(len(X), chunk_size):
        scaled = X[rows] / scale
        phase = scaled @ frequencies.T + phases  # [n, R]
        f = np.cos(phase) @ weights
        # psi'/psi = -f theta(f)
        slope = (np.tanh(f / 2) / 2 - f * density.theta(np.abs(f))) * share
        d_variance += 0.5 * float((slope * f).sum())
        turn = np.sin(phase) * (slope @ weights.T)  # [n, R]
        d_scale += (scaled * (turn @ frequencies)).sum(0)
    if scale.ndim == 0:
        d_scale = d_scale.sum(keepdims=True)
    return Objective(float(value), np.append(d_scale, d_variance))


def learn_kernel(
    kernel: Kernel, X: Floats, Z: Floats, omega: Floats, rho: Floats, density: Density | None = None
) -> Kernel:
    """The kernel whose parameters maximise the collapsed bound, at fixed sites.

    L-BFGS-B on log-parameters with analytic gradients. Never returns a kernel with a lower
    objective than the one it was given. ``density``: one whose log Z is taken off.
    """

    def loss(theta: Floats) -> tuple[float, Floats]:
        trial = kernel.with_theta(theta)
        J = collapsed_bound(trial, X, Z, omega, rho)
        if density is not None:
            log_z = log_normaliser(trial, X, density, random_state=_SEED)
            J = Objective(J.value - log_z.value, J.gradient - log_z.gradient)
        return -J.value, -J.gradient

    start = kernel.theta
    # A step from where a parameter is, which is always allowed.
    bounds = [
        (min(t, max(t - _STEP, -_RANGE)), max(t, min(t + _STEP, _RANGE))) for t in start.tolist()
    ]
    with warnings.catch_warnings():
        # A trial kernel may need more jitter; whoever uses the learnt one is told.
        warnings.filterwarnings("ignore", message="the kernel matrix is nearly singular")
        first, options = loss(start)[0], {"maxiter": _STEPS}
        best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    better = np.isfinite(best.fun) and best.fun <= first
    return kernel.with_theta(best.x) if better else kernel


class KernelFit(NamedTuple):
    """What a fit under one kernel has to tell the next round."""

    omega: Floats  # [N] sites that the next kernel is learnt at
    rho: Floats  # [N]
    bound: float  # the full bound of the fit
    carry: Any = None  # beliefs that the next fit starts from


class Alternation(NamedTuple):
    """Where the alternation of fits and kernel updates ended."""

    kernel: Kernel
    fit: KernelFit
    bound_history: Floats  # [n_rounds + 1] full bound after each kernel update's fit


def learn(
    kernel: Kernel,
    X: Floats,
    Z: Floats,
    advance: Callable[[Kernel, KernelFit | None], KernelFit],
    *,
    n_rounds: int = _ROUNDS,
    tol: float = _TOL,
    density: Density | None = None,
) -> Alternation:
    """Fits and kernel updates in turn, such that the full bound never falls.

    Each round starts from what the one before believed, never from the prior: restarts let the
    variance run to the end of its range, and the bound with it to ruin. A kernel whose fit ends
    below the bound reached so far is refused: a step half as long is tried, in log-parameters,
    and after four such halvings the alternation ends with the last good kernel.

    Parameters
    ----------
    kernel, X, Z
        As for `collapsed_bound`; X and Z in the units the kernel acts on.
    advance : function of a kernel and of the last `KernelFit` (None at first)
        Fits q(v) under the kernel from those beliefs and says what came of it. With the
        same kernel it must not lower the bound.
    n_rounds, tol : int, float, default=10, 0.01
        At most so many kernel updates; ends when log-parameters change by less than ``tol``.
    density : Density or None, default=None
        As for `learn_kernel`; the bound that must not fall has log Z taken off too.
    """

    def value(trial: Kernel, fit: KernelFit) -> float:
        if density is None:
            return fit.bound
        return fit.bound - log_normaliser(trial, X, density).value

    start, fit = kernel.theta, advance(kernel, None)
    history = [value(kernel, fit)]
    for _ in range(n_rounds):
        step = learn_kernel(kernel, X, Z, fit.omega, fit.rho, density).theta - kernel.theta
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
    # Say which parameters ended where the search has to stop, far from where they began.
    theta = kernel.theta
    ended = np.flatnonzero((np.abs(theta) >= _RANGE - 1e-6) & (np.abs(start) < _RANGE))
    if len(ended):
        values = ", ".join(f"parameter {i} = {np.exp(theta[i]):.3g}" for i in ended)
        warnings.warn(
            f"kernel learning ended at the edge of its range: {values} of {kernel!r}. The labels "
            "do not determine it; fix it, or start elsewhere.",
            stacklevel=2,
        )
    return Alternation(kernel, fit, np.array(history))


def learned(
    problem: Problem, kernel: Kernel | str, settings: PaperSettings, rng: np.random.RandomState
) -> tuple[Kernel, PaperSettings]:
    """The kernel by short fits and updates in turn, and where q(y) then starts."""
    if problem.tasks.n_classes > 1:
        raise ValueError(
            "learn_kernel=True with inference='paper' learns the kernel of two classes; with "
            "several classes use inference='marginal', or wrap the model in OneVsRest."
        )
    kernel = make_kernel(kernel).resolve(problem.sample)
    pi = initial(settings.init, problem.labels.of_tasks(0), rng)
    X = to_numpy(problem.scaling(to_numpy(problem.bags.instances[:])))
    driver, likelihood, density = problem.driver, settings.likelihood, settings.density

    def advance(kernel: Kernel, last: KernelFit | None) -> KernelFit:
        parts, _ = ready_parts(problem, problem.projector(kernel))
        parts = driver.sweep(partial(begin, task=0, start=pi), parts, lambda _: None)
        state, n_done = None, 0
        if last is not None:
            # Sites and beliefs carry over: the sites make the first q under the new projection.
            parts = restored(parts, last.carry, likelihood, driver)
            sums = RunningSum()
            driver.sweep(_site_statistics, parts, sums)
            q = update_posterior(sums.value.precision, sums.value.linear)
            state, n_done = FitState(1, q, [], np.inf, False), 1
        run = partial(iterate, max_iter=n_done + _ITERATIONS, tol=settings.tol, driver=driver)
        ended, parts = run(parts, len(problem.Z), likelihood, density, state=state)
        carry = read_beliefs(parts, driver)
        return KernelFit(carry["omega"], carry["rho"], ended.history[-1], carry)

    known = settings.normalised or isinstance(kernel, RBF)
    if not known:
        warnings.warn(
            f"log Z of {type(density).__name__} is known for the RBF kernel alone; this kernel is "
            "learnt without it.",
            stacklevel=4,
        )
    takes_off = None if settings.normalised or not known else density
    ended = learn(kernel, X, problem.Z, advance, density=takes_off)
    return ended.kernel, settings._replace(init=ended.fit.carry["belief_pi"])


def _site_statistics(part: Part) -> tuple[Part, Any]:
    """The statistics that the sites of a part make under its projection."""
    pairs = zip(part.blocks, part.sites, strict=True)
    return part, total(statistics(block.A, sites, 0.0) for block, sites in pairs)
