"""The kernel and the prior mean that maximise the evidence of the marginal bag likelihood.

At fixed whitened q(v) and fixed draws the bound depends on the kernel through ``A = L^-1 k(Z, X)``
and ``r = k(x, x) - |a|^2``. With D [n, S] the gradient by the draws of f and V = m + W^T U,

    dL/dA = V D^T - 2 A diag(dL/dr),    dL/dr_n = sum_s D_ns e_ns / (2 sqrt(r_n)),

and the chain rule of the Cholesky factor takes them to k(Z, X), k(Z, Z) and the kernel's
parameters. At the optimum of q the bound has no gradient by q, so that these are its derivatives.
Tasks share the kernel, their bounds add up, and each has a prior mean f0 of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from bagwise.core import linalg
from bagwise.core.arrays import (
    Array,
    Floats,
    Ints,
    Rows,
    at_least,
    host_rows,
    is_tensor,
    like,
    namespace,
    tensor_of,
    to_numpy,
)
from bagwise.core.kernels import Kernel
from bagwise.models.drivers import Driver, cut, total
from bagwise.models.scaling import FeatureScaling
from bagwise.models.variational.blocks import N_NOISE, BagLabels, Block, Part, arranged
from bagwise.models.variational.inference import (
    Draws,
    Posteriors,
    Settings,
    State,
    directions,
    fit,
    latent_draws,
    make_draws,
)
from bagwise.models.variational.likelihoods import BagLikelihood
from bagwise.models.variational.projection import Projector, make_projector

# Steps of L-BFGS, and the evaluations that each may take on average.
_STEPS, _EVALUATIONS = 15, 1.6
# Passes that an evaluation may take from the posterior of the one before.
_WARM_PASSES = 4
# Precision of the log-normal prior of a kernel parameter about its start, and how far it may go:
# a factor of e^4. The prior mean f0 has no prior and may move by 10.
_PRIOR, _FARTHEST, _FARTHEST_F0 = 0.1, 4.0, 10.0
_LEAST_RESIDUAL = 1e-10
# Instances whose draws stay in cache; the cut is the same for every driver, and so are the sums.
_PIECE = 8192


class RowPiece(NamedTuple):
    """Neighbouring whole bags, sorted as blocks are arranged, where the work on them is done."""

    X: Array  # [n, D] in the user's units
    labels: BagLabels


@dataclass(frozen=True)
class WholeBags:
    """Bags in memory on which kernels are tried, and who works on them."""

    pieces: tuple[RowPiece, ...]
    Z: Floats  # [M, D] scaled
    scaling: FeatureScaling
    driver: Driver
    device: str | None = None
    dtype: str = "float64"  # of the projection; sums are double

    @property
    def n_bags(self) -> int:
        """Bags of all pieces."""
        return sum(len(piece.labels.y) for piece in self.pieces)

    def of_tasks(self, tasks: Ints) -> WholeBags:
        """The same bags with the labels of some tasks."""
        pieces = (piece._replace(labels=piece.labels.of_tasks(tasks)) for piece in self.pieces)
        return replace(self, pieces=tuple(pieces))

    def projector(self, kernel: Kernel) -> Projector:
        """Onto the inducing points under a kernel, where the work is done."""
        return make_projector(kernel, self.Z, self.scaling, self.dtype).to(self.device)

    def project(self, kernel: Kernel) -> list[Part]:
        """The bags in the coordinates of a kernel, a block for every piece."""
        run = partial(_project, projector=self.projector(kernel))
        return [Part((block,)) for block in self.driver.map(run, self.pieces)]


def whole_bags(
    X: Rows,
    rows: Ints,
    labels: BagLabels,
    Z: Floats,
    scaling: FeatureScaling,
    driver: Driver,
    device: str | None = None,
    dtype: str = "float64",
) -> WholeBags:
    """The numbered rows of X and their labels, cut, arranged and brought to the device."""
    pieces = []
    for span in cut(labels.offsets, len(rows) if device else _PIECE, 1):
        part = labels.slice(span.first_bag, span.last_bag)
        own = rows[span.start : span.stop]
        # In the precision they have: scaling makes doubles of them where they are projected.
        piece = host_rows(X, own) if is_tensor(X) else np.asarray(X[own])
        block = arranged(Block(piece.T, np.zeros(len(piece)), part))
        placed = np.ascontiguousarray(block.A.T)
        placed = placed if device is None else tensor_of(placed).to(device)
        pieces.append(RowPiece(placed, block.labels.beside(placed)))
    return WholeBags(tuple(pieces), Z, scaling, driver, device, dtype)


def _project(piece: RowPiece, projector: Projector) -> Block:
    A, r = projector(piece.X)
    return Block(A, at_least(r, _LEAST_RESIDUAL), piece.labels)


class KernelSlopes(NamedTuple):
    """Derivatives of the summed bounds at fixed q and draws; additive over pieces."""

    theta: Floats  # [P] by the kernel's log-parameters, through k(Z, X) and k(x, x)
    cross: Floats  # [M, M] dL/dk(Z, X) A^T: for the gradient through L
    f0: Floats  # [T] by the prior means


def kernel_gradient(
    data: WholeBags,
    parts: Iterable[Part],
    kernel: Kernel,
    likelihood: BagLikelihood,
    q: Posteriors,
    f0: Floats,
    draws: Draws,
) -> Floats:
    """Gradient of the summed bounds by the kernel's log-parameters and f0, [P + T].

    q and the draws are fixed; ``parts`` are the bags projected under the kernel.
    """
    projector = data.projector(kernel)

    def slopes(piece: RowPiece, block: Block) -> KernelSlopes:
        A, labels = block.A, block.labels
        V, E = like(directions(q, draws.U), A), like(draws.E, A)
        F = latent_draws(block, V, f0, E)
        D = like(likelihood.terms(F, labels).gradient, A) / F.shape[2]  # [n, T, S]
        columns, dA = D.reshape(len(D), -1).T, namespace(A).empty_like(A)  # [T S, n], [M, n]
        for run in labels.runs:
            dA[:, run.rows] = V[run.deal].reshape(len(A), -1) @ columns[:, run.rows]
        assert labels.row is not None
        dr = (D.sum(1) * E[labels.row % N_NOISE]).sum(-1) / (2 * block.r**0.5)
        # The algebra is done in double precision, as that of a projection.
        A, dA, dr = (x.double() if is_tensor(x) else x.astype(np.float64) for x in (A, dA, dr))
        X, Z, L = projector.scaling(piece.X), projector.Z, projector.L
        return KernelSlopes(*pull_back(kernel, X, Z, L, A, dA, dr), to_numpy(D.sum((0, 2))))

    blocks = (part.blocks[0] for part in parts)  # type: ignore[index]
    theta, cross, by_f0 = total(data.driver.map(slopes, data.pieces, blocks))
    L = to_numpy(linalg.cholesky(kernel(data.Z, data.Z)))
    return np.concatenate([theta + through_factor(kernel, data.Z, L, cross), by_f0])


def pull_back(
    kernel: Kernel, X: Array, Z: Array, L: Array, A: Array, dA: Array, dr: Array
) -> tuple[Floats, Floats]:
    """Gradient by the kernel's log-parameters, [P], and ``dL/dk(Z, X) A^T``, [M, M], of instances.

    From those by ``A = L^-1 k(Z, X)`` [M, n] and ``r = k(x, x) - |a|^2`` [n], L being fixed; what
    comes through L is `through_factor` of the second, summed over all instances.
    """
    dKzx = linalg.solve_lower_transposed(L, dA - 2 * dr * A)  # [M, n]
    theta = kernel.vjp(X, Z, dKzx.T) + kernel.vjp_diag(X, dr)
    return theta, to_numpy(dKzx @ A.T)


def through_factor(kernel: Kernel, Z: Floats, L: Floats, cross: Floats) -> Floats:
    """Gradient by the kernel's log-parameters, [P], through L, the Cholesky factor of k(Z, Z)."""
    H = np.tril(-(L.T @ np.tril(cross)))
    H[np.diag_indices_from(H)] /= 2
    B = solve_triangular(L, solve_triangular(L, H, lower=True, trans="T").T, lower=True, trans="T")
    dKzz = (B + B.T) / 2
    # The jitter is a share of the mean variance of the inducing points, so it has a gradient too.
    jitter = np.full(len(Z), linalg.JITTER * np.trace(dKzz) / len(Z))
    return kernel.vjp(Z, Z, dKzz) + kernel.vjp_diag(Z, jitter)


class Learned(NamedTuple):
    """A kernel and prior means, with the posteriors under them."""

    kernel: Kernel
    f0: Floats  # [T]
    fits: State


def learn(
    data: WholeBags,
    kernel: Kernel,
    likelihood: BagLikelihood,
    start: Posteriors,
    f0: Floats,
    settings: Settings,
) -> Learned:
    """Kernel, bias and prior means by L-BFGS on the evidence, from where they are.

    Every evaluation goes on from the posteriors of the one before and converges them, so that the
    gradient is that of the bound.
    """
    centre, P = kernel.theta, len(kernel.theta)
    draws = make_draws(start.m.shape[1], settings.n_draws, settings.seed)
    warm = settings._replace(max_iter=_WARM_PASSES)
    # The first evaluation must be at an optimum of these draws, or its gradient misses a term.
    first = fit(data.project(kernel), data.n_bags, likelihood, start, f0, data.driver, settings)
    state = {"q": first.q}

    def loss(x: Floats) -> tuple[float, Floats]:
        trial = kernel.with_theta(x[:P])
        parts = data.project(trial)
        fits = fit(parts, data.n_bags, likelihood, state["q"], x[P:], data.driver, warm)
        state["q"] = fits.q
        gradient = kernel_gradient(data, parts, trial, likelihood, fits.q, x[P:], draws)
        away = x[:P] - centre
        gradient[:P] -= _PRIOR * away
        return _PRIOR * float(away @ away) / 2 - float(fits.bound.sum()), -gradient

    limits = [(t - _FARTHEST, t + _FARTHEST) for t in centre]
    limits += [(f - _FARTHEST_F0, f + _FARTHEST_F0) for f in f0]
    options = {"maxiter": _STEPS, "maxfun": int(_EVALUATIONS * _STEPS)}
    x = np.concatenate([centre, f0])
    with warnings.catch_warnings():
        # A trial kernel may need more jitter; whoever uses the learnt one is told.
        warnings.filterwarnings("ignore", message="the kernel matrix is nearly singular")
        best = minimize(loss, x, jac=True, method="L-BFGS-B", bounds=limits, options=options).x
    learnt, levels = kernel.with_theta(best[:P]), best[P:]
    parts, q = data.project(learnt), state["q"]
    fits = fit(parts, data.n_bags, likelihood, q, levels, data.driver, settings)
    return Learned(learnt, levels, fits)
