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
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from bagwise.core import gaussians, linalg
from bagwise.core.arrays import Floats, to_numpy
from bagwise.core.kernels import Kernel
from bagwise.models.drivers import Serial
from bagwise.models.variational.blocks import N_NOISE, BagLabels, Block, Part, arranged, host
from bagwise.models.variational.inference import (
    Draws,
    Fits,
    Posteriors,
    Settings,
    directions,
    fit,
    latent_draws,
    make_draws,
)
from bagwise.models.variational.likelihoods import BagLikelihood

# Steps of L-BFGS, and the evaluations that each may take on average.
_STEPS, _EVALUATIONS = 15, 1.6
# Passes that an evaluation may take from the posterior of the one before.
_WARM_PASSES = 4
# Precision of the log-normal prior of a kernel parameter about its start, and how far it may go:
# a factor of e^4. The prior mean f0 has no prior and may move by 10.
_PRIOR, _FARTHEST, _FARTHEST_F0 = 0.1, 4.0, 10.0
_LEAST_RESIDUAL = 1e-10


class TrainingRows(NamedTuple):
    """Whole bags in memory: scaled rows, sorted as blocks are arranged, and their labels."""

    X: Floats  # [n, D]
    labels: BagLabels
    Z: Floats  # [M, D]


class Learned(NamedTuple):
    """A kernel and prior means, with the posteriors under them."""

    kernel: Kernel
    f0: Floats  # [T]
    fits: Fits


def arranged_rows(X: Floats, labels: BagLabels, Z: Floats) -> TrainingRows:
    """The rows in the order in which blocks are arranged, so that every projection is."""
    block = arranged(Block(X.T, np.zeros(len(X)), labels))
    return TrainingRows(np.ascontiguousarray(block.A.T), block.labels, Z)


def project(data: TrainingRows, kernel: Kernel, dtype: str = "float64") -> Block:
    """The bags in the coordinates of a kernel, as one block."""
    L = linalg.cholesky(kernel(data.Z, data.Z))
    A, r = gaussians.project(kernel, data.X, data.Z, L, np.dtype(dtype))
    return Block(A, np.maximum(r, _LEAST_RESIDUAL), data.labels)


def fit_block(
    block: Block, likelihood: BagLikelihood, start: Posteriors, f0: Floats, settings: Settings
) -> Fits:
    """`inference.fit` of one block in memory."""
    n_bags = len(block.labels.y)
    return fit([Part((block,))], n_bags, likelihood, start, f0, Serial(), settings)


def kernel_gradient(
    data: TrainingRows,
    kernel: Kernel,
    likelihood: BagLikelihood,
    q: Posteriors,
    f0: Floats,
    draws: Draws,
) -> Floats:
    """Gradient of the summed bounds by the kernel's log-parameters and f0, [P + T].

    q and the draws are fixed.
    """
    X, Z = data.X, data.Z
    block = project(data, kernel)
    A, rows = to_numpy(block.A), host(data.labels.row)
    L = to_numpy(linalg.cholesky(kernel(Z, Z)))
    V = directions(q, draws.U)
    F = latent_draws(block, V, f0, draws.E)
    D = likelihood.terms(F, data.labels).gradient / F.shape[2]  # [n, T, S]
    dA = np.empty_like(A)
    for run in data.labels.runs:
        dA[:, run.rows] = V[run.deal].reshape(len(A), -1) @ D[run.rows].reshape(-1, D[0].size).T
    dr = np.einsum("nts,ns->n", D, draws.E[rows % N_NOISE]) / (2 * np.sqrt(to_numpy(block.r)))
    gradient = pull_back(kernel, X, Z, L, A, dA, dr)
    return np.concatenate([gradient, D.sum(axis=(0, 2))])


def pull_back(
    kernel: Kernel, X: Floats, Z: Floats, L: Floats, A: Floats, dA: Floats, dr: Floats
) -> Floats:
    """Gradient by the kernel's log-parameters, [P], from those by ``A`` [M, n] and ``r`` [n].

    ``A = L^-1 k(Z, X)`` and ``r = k(x, x) - |a|^2`` with L the Cholesky factor of k(Z, Z).
    """
    dA = dA - 2 * dr * A
    dKzx = solve_triangular(L, dA, lower=True, trans="T")  # [M, n]
    H = np.tril(-(L.T @ np.tril(dKzx @ A.T)))
    H[np.diag_indices_from(H)] /= 2
    B = solve_triangular(L, solve_triangular(L, H, lower=True, trans="T").T, lower=True, trans="T")
    dKzz = (B + B.T) / 2
    # The jitter is a share of the mean variance of the inducing points, so it has a gradient too.
    jitter = np.full(len(Z), linalg.JITTER * np.trace(dKzz) / len(Z))
    gradient = kernel.vjp(X, Z, dKzx.T) + kernel.vjp_diag(X, dr)
    return gradient + kernel.vjp(Z, Z, dKzz) + kernel.vjp_diag(Z, jitter)


def learn(
    data: TrainingRows,
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
    first = fit_block(project(data, kernel), likelihood, start, f0, settings)
    state = {"q": first.q}

    def loss(x: Floats) -> tuple[float, Floats]:
        trial = kernel.with_theta(x[:P])
        fits = fit_block(project(data, trial), likelihood, state["q"], x[P:], warm)
        state["q"] = fits.q
        gradient = kernel_gradient(data, trial, likelihood, fits.q, x[P:], draws)
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
    block = project(data, learnt)
    return Learned(learnt, levels, fit_block(block, likelihood, state["q"], levels, settings))
