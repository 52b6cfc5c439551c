"""Algorithm 1 of [CastroMacias2024] with its step 8: the kernel of the papers' updates is learned.

After every update of q(u) and q(y) the kernel's parameters lambda maximise Eq. 29 at fixed q(u) and
q(y). With ``mu`` and ``s^2`` the moments of q(f) under the kernel of lambda,

``J = -KL(q(u) || p(u)) + (pi - 1/2)^T mu + sum_n E log psi(f_n) - log Z``.

q(u) = N(m, S) is fixed as a distribution of u, so its whitened moments ``L^-1 m`` and
``L^-1 S L^-T`` change with the kernel. Expectations by Gauss-Hermite quadrature, where the paper
draws samples.

For the density ``Sech`` the normaliser log Z of Eq. 19 is 0. For any other density it depends on
the kernel; it is estimated by random Fourier features as in the paper (`log_normaliser`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from bagwise.core import linalg
from bagwise.core.arrays import Floats, RandomState, to_numpy
from bagwise.core.gaussians import hermite, project
from bagwise.core.kernels import RBF, Kernel, make_kernel
from bagwise.core.rules import RULES
from bagwise.models.execution import CHUNK_SIZE
from bagwise.models.variational.blocks import InducingPosterior
from bagwise.models.variational.checkpoint import Checkpoint
from bagwise.models.variational.engine import Fitted, Problem, ready_parts
from bagwise.models.variational.evidence import pull_back, through_factor
from bagwise.models.variational.inference import Iteration
from bagwise.models.variational.paper import (
    FitState,
    PaperSettings,
    begin,
    escaped,
    initial,
    iterate,
    read_beliefs,
)
from bagwise.models.variational.paper_likelihoods import Density, NoisyMax
from bagwise.models.variational.readout import Process

# Nodes of an expectation of log psi: exact to 1e-6 for standard deviations up to 10.
_NODES = 32
# One step may change a parameter by this factor, and never take it outside this range.
_STEP = float(np.log(20.0))
_RANGE = float(np.log(1e6))
# A loss must fall by this much to count, in the released program.
_PROGRAM_TOL = 1e-4
# Of the draws of `log_normaliser` while a kernel is learned.
_SEED = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))


class Objective(NamedTuple):
    """Terms of Eq. 29 and their gradients with respect to the kernel's log-parameters."""

    likelihood: float  # (pi - 1/2)^T mu + sum_n E log psi(f_n)
    divergence: float  # KL(q(u) || p(u))
    d_likelihood: Floats  # [P]
    d_divergence: Floats  # [P]


class LogNormaliser(NamedTuple):
    """log Z and its gradient with respect to the kernel's log-parameters."""

    value: float
    gradient: Floats  # [P]


class InducingMoments(NamedTuple):
    """q(u), not whitened."""

    mean: Floats  # [M]
    root: Floats  # [M, M] S = root root^T

    @classmethod
    def of(cls, q: InducingPosterior, L: Floats) -> InducingMoments:
        """From the whitened q(v), u = L v."""
        return cls(L @ q.m, L @ q.W.T)

    def whitened(self, L: Floats) -> InducingPosterior:
        """q(v) under the kernel whose Kzz = L L^T."""
        root = linalg.solve_lower(L, self.root)
        # W is lower triangular with W^T W = root root^T: a QL decomposition of root^T.
        _, upper = np.linalg.qr(root.T[:, ::-1])
        W = upper[::-1, ::-1]
        W = W * np.sign(np.diagonal(W))[:, None]
        return InducingPosterior(linalg.solve_lower(L, self.mean), np.asfortranarray(W))


def printed_objective(
    kernel: Kernel,
    X: Floats,
    Z: Floats,
    u: InducingMoments,
    pi: Floats,
    density: Density,
    chunk_size: int = CHUNK_SIZE,
) -> Objective:
    """Eq. 29 of [CastroMacias2024] less log Z, at fixed q(u) and q(y), and its gradient.

    Parameters
    ----------
    kernel : kernel object
    X, Z : arrays of shape (N, D), (M, D)
        Instances and inducing points, in the units the kernel acts on.
    u : InducingMoments
    pi : array of shape (N,)
    density : density object
    chunk_size : int
        Instances per chunk; O(N M^2) work, O(chunk x M) memory.
    """
    L = to_numpy(linalg.cholesky(kernel(Z, Z)))
    m = linalg.solve_lower(L, u.mean)
    R = linalg.solve_lower(L, u.root)  # S = R R^T, whitened
    nodes, weights = hermite(_NODES)
    value, gradient, cross = 0.0, np.zeros(len(kernel.theta)), np.zeros_like(L)
    dm, dR = np.zeros_like(m), np.zeros_like(R)
    for start in range(0, len(X), chunk_size):
        rows = slice(start, start + chunk_size)
        A, r = (to_numpy(x) for x in project(kernel, X[rows], Z, L))  # [M, n], [n]
        RA = R.T @ A
        mu, s = m @ A, np.sqrt(np.maximum(linalg.column_squares(RA) + r, 1e-300))
        f = mu + np.outer(nodes, s)  # [nodes, n]
        value += float((pi[rows] - 0.5) @ mu + (weights @ density.log_psi(np.abs(f))).sum())
        slope = -f * density.theta(np.abs(f))  # psi'/psi
        dmu = pi[rows] - 0.5 + weights @ slope
        dvar = (weights * nodes) @ slope / (2 * s)
        dm += A @ dmu
        dR += 2 * (A * dvar) @ RA.T
        dA = np.outer(m, dmu) + 2 * (R @ RA) * dvar
        direct, through = pull_back(kernel, X[rows], Z, L, A, dA, dvar)
        gradient += direct
        cross += through
    # m = L^-1 mean and R = L^-1 root depend on L, too.
    cross += linalg.solve_lower_transposed(L, np.outer(dm, m) + dR @ R.T)
    gradient += through_factor(kernel, Z, L, cross)
    log_det = np.log(np.diagonal(L)).sum() - np.linalg.slogdet(u.root)[1]
    divergence = 0.5 * float((R * R).sum() + m @ m - len(m)) + log_det
    cross = linalg.solve_lower_transposed(L, np.outer(m, m) + R @ R.T) - np.diag(1 / np.diagonal(L))
    return Objective(value, divergence, gradient, through_factor(kernel, Z, L, cross))


def log_normaliser(
    kernel: Kernel,
    X: Floats,
    density: Density,
    *,
    n_features: int = 256,
    n_samples: int = 64,
    random_state: RandomState = 0,
    chunk_size: int = CHUNK_SIZE,
) -> LogNormaliser:
    """Monte Carlo estimate of log Z by random Fourier features, and its gradient.

    Eq. 20 of [CastroMacias2024].

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
    for start in range(0, len(X), chunk_size):
        rows = slice(start, start + chunk_size)
        f = np.cos(X[rows] / scale @ frequencies.T + phases) @ weights  # [n, samples]
        log_weights += (density.log_psi(np.abs(f)) + np.logaddexp(f / 2, -f / 2)).sum(0)
    value = logsumexp(log_weights) - np.log(n_samples)
    share = np.exp(log_weights - logsumexp(log_weights))

    d_scale, d_variance = np.zeros(X.shape[1]), 0.0
    for start in range(0, len(X), chunk_size):
        rows = slice(start, start + chunk_size)
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
    return LogNormaliser(float(value), np.append(d_scale, d_variance))


class KernelProblem(NamedTuple):
    """What a step of the kernel maximises, at fixed q(u) and q(y)."""

    kernel: Kernel  # where it starts
    objective: Callable[[Kernel], Objective]
    log_z: Callable[[Kernel], LogNormaliser] | None  # None where it is constant, or not known
    n_instances: int
    n_inducing: int


@dataclass(frozen=True)
class KernelStep:
    """Step 8 of Algorithm 1 of [CastroMacias2024]: the kernel that maximises Eq. 29.

    The paper takes a fixed number of gradient steps that it does not print; here L-BFGS-B.

    Parameters
    ----------
    warmup : int, default=0
        Iterations before the first step of the kernel.
    n_steps : int, default=10
        Most steps of the optimiser in one iteration.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.models.variational import KernelStep
    >>> model = VGPMIL(inference="paper", learn_kernel=KernelStep(warmup=5))
    """

    warmup: int = 0
    n_steps: int = 10

    def __call__(self, problem: KernelProblem) -> Kernel:
        """A kernel with an objective that is not lower."""
        kernel, start = problem.kernel, problem.kernel.theta

        def loss(theta: Floats) -> tuple[float, Floats]:
            trial = kernel.with_theta(theta)
            J = problem.objective(trial)
            value, gradient = J.likelihood - J.divergence, J.d_likelihood - J.d_divergence
            if problem.log_z is not None:
                log_z = problem.log_z(trial)
                value, gradient = value - log_z.value, gradient - log_z.gradient
            return -value, -gradient

        # A step from where a parameter is, which is always allowed.
        limits = [(min(t, max(t - _STEP, -_RANGE)), max(t, min(t + _STEP, _RANGE))) for t in start]
        options = {"maxiter": self.n_steps}
        best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=limits, options=options)
        better = np.isfinite(best.fun) and best.fun <= loss(start)[0]
        return kernel.with_theta(best.x) if better else kernel


@dataclass(frozen=True)
class ProgramKernelStep:
    """The step of the kernel in the released program of [CastroMacias2024] (variational.py).

    Gradient descent at a fixed rate on an objective that is not the bound: the likelihood is
    divided by the number of instances, the KL divergence by the number of inducing points and
    multiplied by a weight that grows from 1/2 to 1, and log Z is left out. The program draws one
    sample of f for the expectation of log psi, where this uses quadrature.

    Parameters
    ----------
    warmup : int, default=10
        Iterations before the first step of the kernel.
    n_steps : int, default=200
        Steps of gradient descent in one iteration.
    rate : float, default=0.01
        Length of a step, in units of the gradient by the log-parameters.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.models.variational import ProgramKernelStep
    >>> model = VGPMIL(inference="paper", learn_kernel=ProgramKernelStep(n_steps=50))
    """

    warmup: int = 10
    n_steps: int = 200
    rate: float = 0.01

    def __call__(self, problem: KernelProblem) -> Kernel:
        """The kernel of lowest loss on the way."""
        theta = best = problem.kernel.theta
        # A step in log l^2, the program's parameter, is a fourth of the same in log l.
        rates = np.full(len(theta), self.rate)
        if isinstance(problem.kernel, RBF):
            rates[:-1] /= 4
        lowest = np.inf
        for i in range(self.n_steps):
            J = problem.objective(problem.kernel.with_theta(theta))
            weight = max(i / self.n_steps, 0.5) / problem.n_inducing
            loss = weight * J.divergence - J.likelihood / problem.n_instances
            if loss < lowest - _PROGRAM_TOL:
                lowest, best = loss, theta
            slope = weight * J.d_divergence - J.d_likelihood / problem.n_instances
            theta = np.clip(theta - rates * slope, -_RANGE, _RANGE)
        return problem.kernel.with_theta(best)


def fit_learning(
    problem: Problem,
    kernel: Kernel | str,
    settings: PaperSettings,
    rng: np.random.RandomState,
    on_iteration: Callable[[Iteration], bool],
) -> Fitted:
    """Algorithm 1 of [CastroMacias2024]; goes on from a checkpoint where there is one."""
    _check(problem, settings)
    now = make_kernel(kernel).resolve(problem.sample)
    first, step, density = now.theta, settings.learn_kernel, settings.density
    X = to_numpy(problem.scaling(to_numpy(problem.bags.instances[:])))
    log_z = _log_z(now, X, density)
    labels, rule = problem.labels.of_tasks(0), cast(Any, RULES[settings.rule])
    pi, state = initial(settings.init, labels, rng), FitState()
    arrays = (*labels, pi, problem.Z, *problem.scaling)
    asked = (now, settings._replace(max_iter=0, init="half"), problem.dtype)
    keeper = Checkpoint(problem.execution, arrays, asked)
    if keeper.stored:
        state, pi = FitState.of(keeper.stored), keeper.stored["pi"]
        now = now.with_theta(keeper.stored["theta"])
    projected = None
    while True:
        if projected is None or now != projected.kernel:
            projected = problem.projector(now)
            parts, cache = ready_parts(problem, projected)
        # Steps 4 to 7: q(u) from theta and pi, then pi; also the bound of both.
        start = partial(begin, task=0, start=pi)
        ended, its_parts = iterate(
            problem.driver.sweep(start, parts, lambda _: None),
            settings.likelihood,
            density,
            max_iter=1,
            driver=problem.driver,
            state=FitState(q=state.q),
        )
        pi = read_beliefs(its_parts, problem.driver)["pi"]
        change = np.inf if state.q is None else ended.change
        history = (*state.history, *ended.history)
        state = FitState(len(history), ended.q, history, change)
        if state.n_iter > step.warmup:
            u = InducingMoments.of(state.q, to_numpy(projected.L))
            objective = partial(printed_objective, X=X, Z=problem.Z, u=u, pi=pi, density=density)
            learned = step(KernelProblem(now, objective, log_z, len(X), len(problem.Z)))
            # The same q(u) under another kernel.
            moved = float(np.abs(learned.theta - now.theta).max())
            q = u.whitened(to_numpy(problem.projector(learned).L))
            now, state = learned, state._replace(q=q, change=max(change, moved))
        state = state._replace(converged=state.change < settings.tol)
        m, W = state.q
        process = Process(problem.projector(now), m[None], W[None], np.zeros(1), rule)
        stopped = on_iteration(Iteration(state.n_iter, history[-1], state.change, process))
        done = state.converged or state.n_iter >= settings.max_iter
        if stopped or done or _edges(now, first):
            break
        if state.n_iter % keeper.every == 0:
            keeper.save(theta=now.theta, pi=pi, **state.columns())
    keeper.done()
    left = escaped(problem, its_parts, state._replace(q=ended.q), settings, projected.kernel)
    converged = state.converged and not (_warn_of_edges(now, first) or left)
    return Fitted(process, None, np.array(history), len(history), converged, cache, pi[:, None])


def _check(problem: Problem, settings: PaperSettings) -> None:
    if problem.tasks.n_classes > 1:
        raise ValueError(
            "learn_kernel=True with inference='paper' learns the kernel of two classes; with "
            "several classes use inference='marginal', or wrap the model in OneVsRest."
        )
    if not isinstance(settings.likelihood, NoisyMax):
        raise ValueError(
            "the kernel of the papers' updates is learned for NoisyMax alone; "
            f"{type(settings.likelihood).__name__} needs learn_kernel=False."
        )


def _log_z(kernel: Kernel, X: Floats, density: Density) -> Callable[[Kernel], LogNormaliser] | None:
    """Log Z as a function of the kernel; None where it is 0, or where it is not known."""
    if getattr(density, "normalised", False):
        return None
    if not isinstance(kernel, RBF):
        warnings.warn(
            f"log Z of {type(density).__name__} is known for the RBF kernel alone; this kernel is "
            "learned without it.",
            stacklevel=5,
        )
        return None
    return partial(log_normaliser, X=X, density=density, random_state=_SEED)


def _edges(kernel: Kernel, first: Floats) -> list[int]:
    """Parameters that ended where the search has to stop, far from where they began."""
    ended = (np.abs(kernel.theta) >= _RANGE - 1e-6) & (np.abs(first) < _RANGE)
    return np.flatnonzero(ended).tolist()


def _warn_of_edges(kernel: Kernel, first: Floats) -> bool:
    """Whether, and then say that, a parameter ended at the edge of its range."""
    ended = _edges(kernel, first)
    if ended:
        values = ", ".join(f"parameter {i} = {np.exp(kernel.theta[i]):.3g}" for i in ended)
        warnings.warn(
            f"kernel learning ended at the edge of its range: {values} of {kernel!r}. The labels "
            "do not determine it, and neither does an estimate of log Z; do not trust this fit. "
            "Keep the kernel (learn_kernel=False), or lower beta or raise alpha of a Gamma.",
            ConvergenceWarning,
            stacklevel=5,
        )
    return bool(ended)
