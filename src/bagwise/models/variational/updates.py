"""The engine of every VGPMIL model: blocks of bags -> statistics -> q(u), in whitened coordinates.

``u = L v`` with ``L L^T = Kzz``, so that ``v ~ N(0, I)``, ``q(v) = N(m, S)`` and ``f = a^T v``
plus independent noise of variance ``r``. Nothing but `expect` and `statistics` sees data.
One iteration, in the papers' order: theta P(28); S and m P(26, 27); the beliefs about the
instances P(25). The first theta uses m = 0, S = I, so E f^2 = k(x, x).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bagwise.core import gaussians, linalg
from bagwise.models.drivers import CHUNK_SIZE, Driver, Serial, cut, total
from bagwise.models.variational.densities import Density, Sech
from bagwise.models.variational.likelihoods import BagLikelihood, Labels, Moments


class Block(NamedTuple):
    """Whole bags in whitened coordinates. More than one chunk only for a bag larger than one."""

    A: tuple[Any, ...]  # chunks [M, n_i]
    r: Any  # [n] k(x, x) - |a|^2
    labels: Labels


class Posterior(NamedTuple):
    """``q(v) = N(m, W^T W)``, W lower triangular."""

    m: Any  # [M]
    W: Any  # [M, M]

    @property
    def S(self) -> Any:
        """Covariance, [M, M]."""
        return self.W.T @ self.W


class Sites(NamedTuple):
    """Each instance's part in the Gaussian update that made q(v)."""

    omega: Any  # [n] precision weight
    rho: Any  # [n] linear weight


class Statistics(NamedTuple):
    """Additive over blocks: all that the update of q(v) and the bound need."""

    precision: Any  # [M, M] A diag(omega) A^T, lower triangle
    linear: Any  # [M] A rho
    bound: float  # the likelihood's part


class Expected(NamedTuple):
    """What one pass over a block leaves behind."""

    targets: Any
    sites: Sites
    statistics: Statistics


class Iteration(NamedTuple):
    """What a callback is told after every iteration."""

    n_iter: int
    bound: float
    change: float  # of m, relative
    posterior: Posterior


class Fit(NamedTuple):
    """A fitted q(v), with what made it."""

    posterior: Posterior
    omega: Any  # [N] sites of the last Gaussian update
    rho: Any  # [N]
    pi: Any  # [N] q(y = 1)
    bound_history: Any  # [n_iter]
    n_iter: int
    converged: bool


def prior(M: int) -> Posterior:
    """q(v) before the first update: m = 0, S = I."""
    return Posterior(np.zeros(M), np.asfortranarray(np.eye(M)))


def make_blocks(A: Any, r: Any, labels: Labels, chunk_size: int = CHUNK_SIZE) -> list[Block]:
    """Blocks as views of a whole ``A`` [M, N]; contiguous columns (Fortran order) cost no copy."""
    if isinstance(A, np.ndarray):
        A = np.asfortranarray(A)
    blocks = []
    for span in cut(labels.offsets, chunk_size):
        rows = slice(span.start, span.stop)
        local = labels.offsets[span.first_bag : span.last_bag + 1] - span.start
        part = Labels(local, labels.y[span.first_bag : span.last_bag], labels.known[rows])
        blocks.append(Block(tuple(A[:, a:b] for a, b in span.rows), r[rows], part))
    return blocks


def moments(A: Sequence[Any], r: Any, q: Posterior) -> Moments:
    """``E f = a^T m`` and ``var f = |W a|^2 + r`` for the instances of a block."""
    means, variances = [], []
    m, W = q.m.astype(A[0].dtype, copy=False), q.W.astype(A[0].dtype, copy=False)
    for chunk in A:
        means.append(chunk.T @ m)
        variances.append(linalg.column_squares(linalg.lower_times(W, chunk)))
    mean = np.concatenate(means).astype(np.float64, copy=False)
    return Moments(mean, np.concatenate(variances) + r)


def prior_moments(A: Sequence[Any], r: Any) -> Moments:
    """Moments under the prior, without the product with S = I."""
    var = np.concatenate([linalg.column_squares(chunk) for chunk in A]) + r
    return Moments(np.zeros_like(var), var)


def statistics(A: Sequence[Any], sites: Sites, bound: float) -> Statistics:
    """``A diag(omega) A^T`` and ``A rho`` of a block, summed in float64."""
    M, start = A[0].shape[0], 0
    precision, linear = np.zeros((M, M), order="F"), np.zeros(M)
    for chunk in A:
        rows = slice(start, start + chunk.shape[1])
        precision += linalg.weighted_gram(chunk, sites.omega[rows])
        linear += chunk @ sites.rho[rows].astype(chunk.dtype, copy=False)
        start = rows.stop
    return Statistics(precision, linear, bound)


def expect(
    block: Block,
    previous: Any,
    pi: Any,
    *,
    q: Posterior | None,
    likelihood: BagLikelihood,
    density: Density,
    last: bool = False,
) -> Expected:
    """One pass over a block: moments, beliefs, theta, statistics.

    ``q`` None means the prior, where the beliefs start from ``pi``. The ``last`` pass only
    brings the beliefs and the bound up to date.
    """
    labels = block.labels
    f = prior_moments(block.A, block.r) if q is None else moments(block.A, block.r, q)
    c = np.sqrt(f.second)
    log_psi = density.log_psi(c)
    if q is None:
        targets = likelihood.start(f, labels, pi)
    else:
        targets = likelihood.targets(f, log_psi, labels, previous)
    bound = likelihood.bound(f, log_psi, labels, targets)
    if last:
        M = block.A[0].shape[0]
        nothing = Statistics(np.zeros((M, M)), np.zeros(M), bound)
        return Expected(targets, Sites(0.0, 0.0), nothing)
    sites = Sites(*likelihood.weights(f, targets, density.theta(c)))
    return Expected(targets, sites, statistics(block.A, sites, bound))


def update_posterior(precision: Any, linear: Any) -> Posterior:
    """``S = (I + A diag(omega) A^T)^{-1}``, ``m = S A rho``. P(26, 27), V(11, 12)."""
    B = precision + np.eye(precision.shape[0])
    W = linalg.inverse_factor(np.asfortranarray(B))
    return Posterior(W.T @ (W @ linear), W)


def relative_change(new: Posterior, old: Posterior) -> float:
    """How far m moved, relative to its length where that exceeds 1."""
    return float(np.linalg.norm(new.m - old.m)) / max(1.0, float(np.linalg.norm(new.m)))


def fit_blocks(
    blocks: Sequence[Block],
    pi: Any,
    likelihood: BagLikelihood,
    density: Density | None = None,
    *,
    max_iter: int = 200,
    tol: float = 1e-3,
    driver: Driver | None = None,
    on_iteration: Callable[[Iteration], bool] | None = None,
) -> Fit:
    """Fit q(v) to blocks of bags, starting the instances' probabilities at ``pi`` [N].

    ``on_iteration`` is called after every iteration with its bound and may return True to stop.
    """
    density, driver = density or Sech(), driver or Serial()
    M = blocks[0].A[0].shape[0]
    starts = np.cumsum([0] + [len(block.r) for block in blocks])
    pis = [pi[a:b] for a, b in itertools.pairwise(starts)]
    beliefs: list[Any] = [None] * len(blocks)
    q, old, sites = prior(M), prior(M), []
    history: list[float] = []
    converged, change = False, np.inf
    for n_iter in range(max_iter + 1):
        last = converged or n_iter == max_iter
        step = _Step(likelihood, density, q if n_iter else None, last)
        new_sites: list[Sites] = []
        sums = total(_collect(driver.map(step, blocks, beliefs, pis), beliefs, new_sites))
        if n_iter:
            history.append(sums.bound - gaussians.kl_to_standard(q.m, q.W))
            told = Iteration(n_iter, history[-1], change, q)
            if (on_iteration is not None and on_iteration(told)) or last:
                break
        sites = new_sites
        old, q = q, update_posterior(sums.precision, sums.linear)
        change = relative_change(q, old)
        converged = n_iter > 0 and change < tol
    omega, rho = (np.concatenate(parts) for parts in zip(*sites, strict=True))
    pi = np.concatenate([belief.pi for belief in beliefs])
    return Fit(q, omega, rho, pi, np.array(history), len(history), converged)


@dataclass(frozen=True)
class _Step:
    """`expect` with all but the block filled in; picklable, for processes and clusters."""

    likelihood: Any
    density: Any
    q: Posterior | None
    last: bool

    def __call__(self, block: Block, previous: Any, pi: Any) -> Expected:
        return expect(
            block,
            previous,
            pi,
            q=self.q,
            likelihood=self.likelihood,
            density=self.density,
            last=self.last,
        )


def _collect(results: Any, beliefs: list[Any], sites: list[Sites]) -> Any:
    """Yield the statistics to be summed; keep what stays with the block."""
    for i, result in enumerate(results):
        beliefs[i] = result.targets
        sites.append(result.sites)
        yield result.statistics


def fit_whitened(
    A: Any,
    r: Any,
    offsets: Any,
    y: Any,
    known: Any,
    pi: Any,
    likelihood: BagLikelihood,
    density: Density | None = None,
    *,
    chunk_size: int = CHUNK_SIZE,
    **options: Any,
) -> Fit:
    """`fit_blocks` on a precomputed ``A`` [M, N] and ``r`` [N], so that models can share them.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational import SoftWitness
    >>> from bagwise.models.variational.updates import fit_whitened
    >>> A = np.random.default_rng(0).normal(size=(3, 8))
    >>> fit = fit_whitened(A, np.ones(8), np.array([0, 4, 8]), np.array([0, 1]),
    ...                    np.full(8, -1), np.full(8, 0.5), SoftWitness(), tol=1e-6)
    >>> fit.posterior.m.shape, fit.converged
    ((3,), True)
    """
    labels = Labels(np.asarray(offsets), np.asarray(y), np.asarray(known))
    blocks = make_blocks(A, r, labels, chunk_size)
    return fit_blocks(blocks, np.asarray(pi, np.float64), likelihood, density, **options)
