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
from array_api_compat import is_torch_array

from bagwise.core import gaussians, linalg
from bagwise.core.arrays import (
    Array,
    Codes,
    Column,
    Floats,
    Ints,
    beside,
    concatenate,
    is_tensor,
    to_numpy,
)
from bagwise.models.drivers import Driver, RunningSum, Serial, cut, one_blas_thread, total
from bagwise.models.execution import CHUNK_SIZE
from bagwise.models.variational.blocks import BagLabels, Block, InducingPosterior
from bagwise.models.variational.densities import Density, Sech
from bagwise.models.variational.inference import Iteration
from bagwise.models.variational.noisy_max import BagLikelihood, Moments
from bagwise.models.variational.parts import Part, Sites


class Statistics(NamedTuple):
    """Additive over blocks: all that the update of q(v) and the bound need."""

    precision: Array  # [M, M] A diag(omega) A^T, lower triangle
    linear: Array  # [M] A rho
    bound: float | Array  # the likelihood's part


class Expected(NamedTuple):
    """What one pass over a block leaves behind."""

    targets: Any
    sites: Sites
    statistics: Statistics


class Fit(NamedTuple):
    """A fitted q(v), with what made it."""

    posterior: InducingPosterior
    pi: Floats  # [N] q(y = 1)
    bound_history: Floats  # [n_iter]
    n_iter: int
    converged: bool
    omega: Any = None  # [N] sites of the last Gaussian update, where they were asked for
    rho: Any = None  # [N]


def prior(M: int) -> InducingPosterior:
    """q(v) before the first update: m = 0, S = I."""
    return InducingPosterior(np.zeros(M), np.asfortranarray(np.eye(M)))


def make_blocks(A: Array, r: Array, labels: BagLabels, chunk_size: int = CHUNK_SIZE) -> list[Block]:
    """Blocks as views of a whole ``A`` [M, N]; contiguous columns (Fortran order) cost no copy."""
    if isinstance(A, np.ndarray):
        A = np.asfortranarray(A)
    blocks = []
    for span in cut(to_numpy(labels.offsets).astype(np.int64), chunk_size):
        rows = slice(span.start, span.stop)
        part = labels.slice(span.first_bag, span.last_bag)
        blocks.append(Block(A[:, rows], r[rows], part))
    return blocks


def moments(A: Array, r: Array, q: InducingPosterior) -> Moments:
    """``E f = a^T m`` and ``var f = |W a|^2 + r`` for the instances of a block."""
    mean, square = linalg.first_two_moments(q.m, q.W, A)
    return Moments(mean, square + r)


def prior_moments(A: Array, r: Array) -> Moments:
    """Moments under the prior, without the product with S = I."""
    var = linalg.column_squares(A) + r
    return Moments(0.0 * var, var)


def statistics(A: Array, sites: Sites, bound: float | Array) -> Statistics:
    """``A diag(omega) A^T`` and ``A rho`` of a block, summed in float64."""
    precision, linear = linalg.no_statistics(A)
    precision, linear = linalg.add_statistics(precision, linear, A, sites.omega, sites.rho)
    return Statistics(precision, linear, bound)


def expect(
    block: Block,
    previous: Any,
    pi: Array,
    *,
    q: InducingPosterior | None,
    likelihood: BagLikelihood,
    density: Density,
    last: bool = False,
) -> Expected:
    """One pass over a block: moments, beliefs, theta, statistics.

    ``q`` None means the prior, where the beliefs start from ``pi``. The ``last`` pass only
    brings the beliefs and the bound up to date. The bound is 0 unless it is asked for.
    """
    labels = block.labels
    f = prior_moments(block.A, block.r) if q is None else moments(block.A, block.r, q)
    c = f.second**0.5
    log_psi = density.log_psi(c)
    if is_torch_array(block.A):
        # What came from the host: a start, or the beliefs of a checkpoint.
        pi = linalg.like(pi, block.A) if q is None else None
        previous = previous and type(previous)(*(linalg.like(x, block.A) for x in previous))
    if q is None:
        targets = likelihood.start(f, labels, pi)
    else:
        targets = likelihood.targets(f, log_psi, labels, previous)
    bound = likelihood.bound(f, log_psi, labels, targets)
    if last:
        return Expected(targets, Sites(0.0, 0.0), Statistics(0.0, 0.0, bound))
    sites = Sites(*likelihood.weights(f, targets, density.theta(c)))
    if labels.each is not None:
        each = beside(labels.each, sites.omega)
        sites = Sites(each * sites.omega, each * sites.rho)
    return Expected(targets, sites, statistics(block.A, sites, bound))


def update_posterior(precision: Array, linear: Array) -> InducingPosterior:
    """``S = (I + A diag(omega) A^T)^{-1}``, ``m = S A rho``. P(26, 27), V(11, 12).

    In float64, where the sums are: a device would wait for the host.
    """
    W = linalg.inverse_factor(linalg.plus_identity(precision))
    return InducingPosterior(W.T @ (W @ linear), W)


def relative_change(new: InducingPosterior, old: InducingPosterior) -> float:
    """How far m moved, relative to its length where that exceeds 1."""
    m = to_numpy(new.m)
    return float(np.linalg.norm(m - to_numpy(old.m))) / max(1.0, float(np.linalg.norm(m)))


def _evidence(bound: float | Array, q: InducingPosterior) -> float:
    """The whole bound; the host waits once where its parts are on a device."""
    divergence = gaussians.kl_to_standard(q.m, q.W)
    return float(bound.double() - divergence) if is_tensor(bound) else float(bound - divergence)


@dataclass(frozen=True)
class Step:
    """`expect` over the blocks of a part; picklable, for processes and clusters."""

    likelihood: BagLikelihood
    density: Density
    q: InducingPosterior | None
    last: bool

    def __call__(self, part: Part) -> tuple[Part, Statistics]:
        """The part with new beliefs, and its statistics."""
        previous, q = part.beliefs or itertools.repeat(None), None
        beliefs, sites, sums = [], [], None
        for block, before, pi in zip(part.blocks, previous, part.pis, strict=False):
            q = q or self._where(block)
            found = expect(
                block,
                before,
                pi,
                q=q,
                likelihood=self.likelihood,
                density=self.density,
                last=self.last,
            )
            beliefs.append(found.targets)
            sites.append(found.sites)
            sums = found.statistics if sums is None else total([sums, found.statistics])
        assert sums is not None  # a part is never empty
        new = part._replace(beliefs=tuple(beliefs), sites=part.new_sites, new_sites=tuple(sites))
        return new, sums

    def _where(self, block: Block) -> InducingPosterior | None:
        """Bring ``q`` to the blocks' device and precision, once per part."""
        if self.q is None:
            return None
        if is_torch_array(block.A):
            return InducingPosterior(*(linalg.like(x, block.A) for x in self.q))
        return InducingPosterior(*(x.astype(block.A.dtype, copy=False) for x in self.q))


@dataclass(frozen=True)
class _Read:
    """What every instance of a part ended with: pi, and omega and rho where asked for."""

    sites: bool

    def __call__(self, part: Part) -> tuple[Part, tuple[Floats, ...]]:
        assert part.sites is not None and part.beliefs is not None
        pi = to_numpy(concatenate(b.pi for b in part.beliefs))
        if not self.sites:
            return part, (pi,)
        omega, rho = (to_numpy(concatenate(column)) for column in zip(*part.sites, strict=True))
        return part, (pi, omega, rho)


class FitState(NamedTuple):
    """Where a fit stands between two iterations."""

    n_iter: int
    q: InducingPosterior
    history: list[float]
    change: float
    converged: bool


def iterate(
    parts: list[Any],
    M: int,
    likelihood: BagLikelihood,
    density: Density,
    *,
    max_iter: int = 200,
    tol: float = 1e-3,
    driver: Driver,
    on_iteration: Callable[[Iteration], bool] | None = None,
    state: FitState | None = None,
    on_state: Callable[[FitState, list[Any]], None] | None = None,
) -> tuple[FitState, list[Any]]:
    """Iterate on parts, wherever the driver keeps them; returns where it ended, and the parts.

    ``state`` goes on from where an earlier fit stood; ``on_state`` is told, before every
    iteration but the first, where this one stands.
    """
    n_iter, q, history, change, converged = state or FitState(0, prior(M), [], np.inf, False)
    # The work is shared out by chunks; BLAS's own threads would only get in the way of it.
    with one_blas_thread():
        while True:
            last = converged or n_iter == max_iter
            if n_iter and on_state is not None:
                on_state(FitState(n_iter, q.on_host(), history, change, converged), parts)
            step = Step(likelihood, density, q if n_iter else None, last)
            sums = RunningSum()
            parts = driver.sweep(step, parts, sums)
            if n_iter:
                history = [*history, _evidence(sums.value.bound, q)]
                if on_iteration is not None or last:
                    q = q.on_host()
                    told = Iteration(n_iter, history[-1], change, q)
                    if (on_iteration is not None and on_iteration(told)) or last:
                        break
            old, q = q, update_posterior(sums.value.precision, sums.value.linear)
            change = relative_change(q, old)
            converged = n_iter > 0 and change < tol
            n_iter += 1
    return FitState(n_iter, q, history, change, converged), parts


def fit_parts(
    parts: list[Any],
    M: int,
    likelihood: BagLikelihood,
    density: Density,
    *,
    sites: bool = True,
    **options: Any,
) -> tuple[Fit, list[Any]]:
    """Fit q(v) to parts by `iterate`; returns the fit, and the parts as they ended.

    ``sites`` says whether to bring omega and rho of every instance to the host.
    """
    state, parts = iterate(parts, M, likelihood, density, **options)
    ends: list[Any] = []
    parts = options["driver"].sweep(_Read(sites), parts, ends.append)
    pi, *rest = (concatenate(column) for column in zip(*ends, strict=True))
    history = np.array(state.history)
    return Fit(state.q, pi, history, len(history), state.converged, *rest), parts


def fit_blocks(
    blocks: Sequence[Block],
    pi: Floats,
    likelihood: BagLikelihood,
    density: Density | None = None,
    *,
    driver: Driver | None = None,
    **options: Any,
) -> Fit:
    """`fit_parts` on blocks in memory, starting the instances' probabilities at ``pi`` [N]."""
    part, M = _one_part(blocks, pi)
    return fit_parts(
        [part], M, likelihood, density or Sech(), driver=driver or Serial(), **options
    )[0]


def _one_part(blocks: Sequence[Block], pi: Floats) -> tuple[Part, int]:
    """Blocks in memory as a part, and the number of inducing points."""
    starts = np.cumsum([0] + [len(block.r) for block in blocks])
    pis = tuple(pi[a:b] for a, b in itertools.pairwise(starts))
    return Part(tuple(blocks), pis), blocks[0].A.shape[0]


def fit_whitened(
    A: Floats,
    r: Floats,
    offsets: Ints,
    y: Column,
    known: Codes,
    pi: Floats,
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
    >>> from bagwise.models.variational import NoisyMax
    >>> from bagwise.models.variational.updates import fit_whitened
    >>> A = np.random.default_rng(0).normal(size=(3, 8))
    >>> fit = fit_whitened(A, np.ones(8), np.array([0, 4, 8]), np.array([0, 1]),
    ...                    np.full(8, -1), np.full(8, 0.5), NoisyMax(), tol=1e-6)
    >>> fit.posterior.m.shape
    (3,)
    """
    labels = BagLabels(np.asarray(offsets), np.asarray(y), np.asarray(known))
    blocks = make_blocks(A, r, labels, chunk_size)
    return fit_blocks(blocks, np.asarray(pi, np.float64), likelihood, density, **options)
