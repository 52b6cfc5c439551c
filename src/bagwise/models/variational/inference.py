"""Gaussian variational inference with the hidden labels summed out, by natural gradient.

Model: ``f = f0 + A^T v + sqrt(r) e``, ``v ~ N(0, I)`` (whitened inducing values), and one
likelihood per bag, log p(T_b | f_b). The posterior is ``q(v) = N(m, P^-1)``, and the objective,
over fixed standard normals and so deterministic,

    L(m, P) = sum_b mean_s log p(T_b | f_b^s) - KL(N(m, P^-1) || N(0, I)),

is a lower bound on the log-probability of the bags' labels, up to the error of the draws. The
labels are the same for every kernel and likelihood, so that it compares both.

One pass makes draws ``F = f0 + A^T (m + W^T U) + sqrt(r) E``, W^T W = P^-1, and sums over the bags

    linear     A g,                         g the gradient by f, mean over the draws
    curvature  A diag(d) A^T + mean_s sum_b c_bs (A_b w_bs)(A_b w_bs)^T.

The natural-gradient step is ``P <- (1 - rho) P + rho (I + curvature)``,
``m <- m + rho P^-1 (linear - m)`` (Khan and Lin, 2017); rho is halved until L does not fall. All
three sums are additive over bags: serial, in threads, on disk, on Dask, on a GPU.

T tasks are fitted side by side: the classes of several, and the folds of a cross-validation, whose
held-out bags weigh 0. They share the bags, the draws and every pass; each has its own q and rho.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from bagwise.core import gaussians, linalg
from bagwise.core.arrays import Array, Floats, Ints, as_float, is_tensor, like, namespace, to_numpy
from bagwise.models.drivers import Driver, RunningSum, one_blas_thread, total
from bagwise.models.variational.blocks import N_DEALS, N_NOISE, Block, Part
from bagwise.models.variational.likelihoods import BagLikelihood, Terms

# The precision of q(v) keeps its eigenvalues at least so large: the negative Hessian of a draw
# need not be positive, while that of the prior is 1. Values of 1, .5 and .1 fit the same.
_LEAST_PRECISION = 0.1
# A step of this length that still lowers the bound ends the fit.
_SHORTEST = 1e-6
_GROWTH = 1.5
# Steps that gain less than ``tol`` per bag before a fit has converged.
_PATIENCE = 2


class Posteriors(NamedTuple):
    """``q(v) = N(m, P^-1)`` of every task, ``W^T W = P^-1`` with W lower triangular."""

    m: Floats  # [T, M]
    P: Floats  # [T, M, M]
    W: Floats  # [T, M, M]

    def take(self, tasks: Ints) -> Posteriors:
        """Those of some tasks."""
        return Posteriors(*(x[tasks] for x in self))

    def widened(self, M: int) -> Posteriors:
        """The same q(f) with M inducing points, of which these are the first: the others add I.

        Whitening is by a lower triangular factor: later points do not change the values of these.
        """
        T, first = self.m.shape
        eye = np.broadcast_to(np.eye(M), (T, M, M))
        wide = Posteriors(np.zeros((T, M)), eye.copy(), eye.copy())
        wide.m[:, :first], wide.P[:, :first, :first], wide.W[:, :first, :first] = self
        return wide

    def kl(self) -> Floats:
        """Divergence from the prior, [T]."""
        pairs = zip(self.m, self.W, strict=True)
        return np.array([float(gaussians.kl_to_standard(m, W)) for m, W in pairs])


def posteriors(m: Floats, P: Floats) -> Posteriors:
    """The posteriors of means and precisions."""
    return Posteriors(m, P, np.stack([linalg.inverse_factor(np.asfortranarray(p)) for p in P]))


def prior(T: int, M: int) -> Posteriors:
    """q(v) before the first step."""
    eye = np.broadcast_to(np.eye(M), (T, M, M)).copy()
    return Posteriors(np.zeros((T, M)), eye, eye)


class Draws(NamedTuple):
    """Standard normals in antithetic pairs, the same in every pass."""

    U: Floats  # [N_DEALS, M, S]
    E: Floats  # [N_NOISE, S]


@lru_cache(maxsize=8)
def make_draws(M: int, n_draws: int, seed: int) -> Draws:
    """The draws of a fit; directions of M of them are orthogonal, which lowers the error."""
    rng, sets = np.random.default_rng(seed), []
    for _ in range(N_DEALS):
        columns: list[Floats] = []
        for start in range(0, n_draws // 2, M):
            k = min(M, n_draws // 2 - start)
            directions = np.linalg.qr(rng.standard_normal((M, k)))[0]
            columns.append(directions * np.sqrt(rng.chisquare(M, k)))
        half = np.concatenate(columns, axis=1)
        sets.append(np.concatenate([half, -half], axis=1))
    half = rng.standard_normal((N_NOISE, n_draws // 2))
    return Draws(np.stack(sets), np.concatenate([half, -half], axis=1))


class Sums(NamedTuple):
    """Additive over blocks: all that a step and the bound need."""

    value: Array  # [T]
    linear: Array  # [T, M]
    curvature: Array  # [T, M, M]


def directions(q: Posteriors, U: Floats) -> Floats:
    """``m + W^T U`` for every set of draws, [N_DEALS, M, T, S]."""
    WU = np.matmul(q.W.transpose(0, 2, 1), U[:, None])  # [deals, T, M, S]
    return np.ascontiguousarray((q.m[:, :, None] + WU).transpose(0, 2, 1, 3))


def latent_draws(block: Block, V: Array, f0: Array, E: Array) -> Array:
    """``F = f0 + A^T V + sqrt(r) E`` for the instances of a block, [n, T, S]."""
    A, labels = block.A, block.labels
    V, f0, E = (like(x, A) for x in (V, f0, E))
    deals, M, T, S = V.shape
    V, xp = V.reshape(deals, M, T * S), namespace(A)
    F = _empty((A.shape[1], T * S), A)
    if deals == 1:  # a prediction, where all bags see the same draws
        xp.matmul(A.T, V[0], out=F)
    else:
        for run in labels.runs:
            xp.matmul(A[:, run.rows].T, V[run.deal], out=F[run.rows])
    F = F.reshape(-1, T, S)
    assert labels.row is not None
    F += (E[labels.row % N_NOISE] * like(block.r, A)[:, None] ** 0.5)[:, None, :]
    F += f0[:, None]
    return F


def block_sums(block: Block, F: Array, likelihood: BagLikelihood) -> Sums:
    """The sums of a block at draws ``F`` [n, T, S]."""
    A, terms = block.A, likelihood.terms(F, block.labels)
    linear = (A @ like(terms.gradient.mean(-1), A)).T  # [T, M]
    value = as_float(terms.value).sum(0).mean(-1)  # [T]
    curvature = curvature_sums(block, terms, F.shape[1], F.shape[2])
    if is_tensor(linear) and is_tensor(curvature):
        return Sums(value, linear.double(), curvature.double())
    return Sums(*(np.asarray(x, dtype=np.float64) for x in (value, linear, curvature)))


def curvature_sums(block: Block, terms: Terms, T: int, S: int) -> Array:
    """``A diag(d) A^T + sum_bs c_bs (A_b w_bs)(A_b w_bs)^T / S`` of every task, [T, M, M].

    A bag of no more instances than draws is cheaper as ``A_b (sum_s c_bs w_bs w_bs^T) A_b^T``,
    which joins the diagonal: all such bags are one product ``A H`` a task.
    """
    A, M, xp = block.A, block.A.shape[0], namespace(block.A)
    w, c, At = like(terms.direction, A), like(terms.strength, A) / S, A.T
    if w.shape[-1] == 1:  # the same for all draws
        c = c.sum(-1)[..., None]
    total, H = _empty((T, M, M), A), _empty((T, len(At), M), A)
    total[:], H[:] = 0.0, 0.0
    if terms.diagonal is not None:
        H += like(terms.diagonal, A).T[:, :, None] * At
    alive = np.any(to_numpy(c), axis=(1, 2))  # the negative bags of an or are not
    sums, strengths = [], []
    for run in block.labels.long_runs:  # all of one size: a product for all of them
        if not alive[run.bags].any():
            continue
        rows = At[run.rows].reshape(-1, run.size, M)  # [b, size, M]
        own = w[run.rows].reshape(len(rows), run.size, *w.shape[1:])  # [b, size, T, S]
        if run.size <= own.shape[-1]:
            own = own.swapaxes(0, 2).swapaxes(1, 2)  # [T, b, size, S]
            strength = c[run.bags].swapaxes(0, 1)[:, :, None]  # [T, b, 1, S]
            G = xp.matmul(own * strength, own.swapaxes(2, 3))  # [T, b, size, size]
            H[:, run.rows] += xp.matmul(G, rows).reshape(T, -1, M)
            continue
        own = own.reshape(len(rows), run.size, -1).swapaxes(1, 2)  # [b, T S, size]
        sums.append(xp.matmul(own, rows).reshape(len(rows), *w.shape[1:], M))
        strengths.append(c[run.bags])
    if sums:  # of the bags of all such runs: [b, T, S, M] and [b, T, S]
        V, c = xp.concatenate(sums), xp.concatenate(strengths)
    for t in range(T):
        if sums:
            Vt = V[:, min(t, V.shape[1] - 1)].reshape(-1, M)
            total[t] += Vt.T @ (Vt * c[:, t].reshape(-1, 1))
        total[t] += A @ H[t]
    return total


def _empty(shape: tuple[int, ...], A: Array) -> Array:
    return A.new_empty(shape) if is_tensor(A) else np.empty(shape, dtype=A.dtype)


class Settings(NamedTuple):
    """How a fit is run, whatever its data."""

    n_draws: int = 32
    seed: int = 0
    max_iter: int = 200
    tol: float = 1e-3  # nats per bag


def sums_of(
    part: Part,
    likelihood: BagLikelihood,
    q: Posteriors,
    f0: Floats,  # [T]
    tasks: Ints,
    settings: Settings,
) -> tuple[Part, Sums]:
    """The part as it is, and the sums over its blocks."""
    draws = make_draws(q.m.shape[1], settings.n_draws, settings.seed)
    V, sums = directions(q, draws.U), None
    for block in part.blocks:
        here = block._replace(labels=block.labels.of_tasks(tasks))
        F = latent_draws(here, V, f0, draws.E)
        block_sum = block_sums(here, F, likelihood)
        sums = block_sum if sums is None else total([sums, block_sum])
    assert sums is not None  # a part is never empty
    return part, sums


class Iteration(NamedTuple):
    """What a callback is told after every iteration."""

    n_iter: int
    bound: float
    change: float  # of m, relative
    posterior: Any


class State(NamedTuple):
    """Where the fits of all tasks stand: the best q so far and what the next step is made of."""

    q: Posteriors
    sums: Sums
    bound: Floats  # [T]
    rho: Floats  # [T]
    still: Ints  # [T] steps in a row that gained little; `_PATIENCE` of them end a fit
    history: Floats  # [passes, T] bounds

    @property
    def n_iter(self) -> int:
        """Passes over the data."""
        return len(self.history)

    @property
    def converged(self) -> bool:
        """Whether no task has a step to take."""
        return bool((self.still >= _PATIENCE).all())


def fit(
    parts: list[Any],
    n_bags: int,
    likelihood: BagLikelihood,
    start: Posteriors,
    f0: Floats,
    driver: Driver,
    settings: Settings,
    on_iteration: Callable[[Iteration], bool] | None = None,
    state: State | None = None,
    on_state: Callable[[State], None] | None = None,
) -> State:
    """Natural-gradient ascent from ``start``; the bound over the fixed draws never falls.

    Each pass tries one step of every task that goes on. A step that lowers the bound is tried
    again at half its length in the next pass. A task has converged after two steps that gain less
    than ``tol`` per bag, or where a step that should gain less than that fails: the curvature is
    an expectation, and the optimum of finitely many draws lies a little aside. ``state`` goes on
    from where an earlier fit stood; ``on_state`` is told where this one stands after every pass.
    """

    def evaluate(q: Posteriors, tasks: Ints) -> tuple[Sums, Floats]:
        run = partial(sums_of, likelihood=likelihood, q=q, f0=f0[tasks], tasks=tasks)
        sums = RunningSum()
        driver.sweep(partial(run, settings=settings), parts, sums)
        total_sums = Sums(*(to_numpy(x) for x in sums.value))
        return total_sums, total_sums.value - q.kl()

    with one_blas_thread():
        if state is None:
            sums, bound = evaluate(start, np.arange(len(f0)))
            rho, still = np.ones(len(f0)), np.zeros(len(f0), dtype=np.int64)
            state = State(start, sums, bound, rho, still, bound[None])
        enough = settings.tol * (1 + n_bags)
        while state.n_iter < settings.max_iter and not state.converged:
            tasks = np.flatnonzero(state.still < _PATIENCE)
            new, promised = propose(state, tasks)
            evaluated = evaluate(new, tasks)
            before, state = state, accept(state, tasks, new, *evaluated, promised, enough)
            if on_state is not None:
                on_state(state)
            if on_iteration is not None:
                m, old = state.q.m[0], before.q.m[0]  # relative where m is longer than 1
                change = float(np.linalg.norm(m - old)) / max(1.0, float(np.linalg.norm(m)))
                n, reached = len(state.history), float(state.bound[0])
                if on_iteration(Iteration(n, reached, change, state.q)):
                    break
    return state


def propose(state: State, tasks: Ints) -> tuple[Posteriors, Floats]:
    """A step of every task, and by how much a linear bound would rise with a whole one, [T].

    That gain is the squared length of the natural gradient,
    ``(A g - m)^T S (A g - m) + tr[(S (P' - P))^2] / 2``, P' the precision that is stepped towards.
    """
    q, Ps, promised = state.q.take(tasks), [], []
    gap = state.sums.linear[tasks] - q.m  # [T, M]
    for i, t in enumerate(tasks):
        rho, W = state.rho[t], q.W[i]
        target = positive(np.eye(len(W)) + state.sums.curvature[t])
        m, C = W @ gap[i], W @ (target - q.P[i]) @ W.T
        promised.append(float(m @ m + (C * C).sum() / 2))
        Ps.append((1 - rho) * q.P[i] + rho * target)
    new = posteriors(q.m, np.stack(Ps))
    # m + rho P^-1 (A g - m), with P^-1 = W^T W of the new precision
    steps = [W.T @ (W @ (state.rho[t] * s)) for W, t, s in zip(new.W, tasks, gap, strict=True)]
    return new._replace(m=q.m + np.stack(steps)), np.array(promised)


def accept(
    state: State,
    tasks: Ints,
    new: Posteriors,
    sums: Sums,
    bound: Floats,
    promised: Floats,
    enough: float,
) -> State:
    """Take the steps that did not lower their bound; halve the others."""
    q, old = Posteriors(*(x.copy() for x in state.q)), state.sums
    old = Sums(*(np.array(x) for x in old))
    best, rho, still = state.bound.copy(), state.rho.copy(), state.still.copy()
    for i, t in enumerate(tasks):
        if bound[i] >= best[t]:
            still[t] = still[t] + 1 if bound[i] - best[t] < enough else 0
            for mine, theirs in zip((*q, *old), (*new, *sums), strict=True):
                mine[t] = theirs[i]
            best[t] = bound[i]
            rho[t] = min(1.0, _GROWTH * rho[t])
        elif rho[t] * promised[i] < enough or rho[t] < _SHORTEST:
            still[t] = _PATIENCE
        else:
            rho[t] /= 2
    return State(q, old, best, rho, still, np.vstack([state.history, best]))


def positive(P: Floats) -> Floats:
    """A symmetric matrix with its eigenvalues raised to the least precision."""
    P = (P + P.T) / 2
    try:
        np.linalg.cholesky(P - _LEAST_PRECISION * np.eye(len(P)))
    except np.linalg.LinAlgError:
        values, Q = np.linalg.eigh(P)
        return (Q * np.maximum(values, _LEAST_PRECISION)) @ Q.T
    return P
