"""`models.variational.inference` by loops over tasks, bags and draws, with dense algebra.

A likelihood is one function of the latent values of one bag, written in operations that complex
numbers have: its derivatives are complex steps, exact to rounding.
"""

from typing import NamedTuple

import numpy as np

from bagwise.models.variational.blocks import N_NOISE
from bagwise.models.variational.likelihoods import Or, Score

STEP = 1e-30  # of a complex step, which cancels nothing


class Step(NamedTuple):
    """One task: its sums and the posterior that a step makes of them."""

    value: float
    linear: np.ndarray  # [M]
    curvature: np.ndarray  # [M, M]


def probability(likelihood, f):
    """p(T = 1 | f) of one bag."""
    n = len(f)
    if isinstance(likelihood, Or):
        p = 1 - np.exp(-(float(n) ** -likelihood.h) * sum(np.log(1 + np.exp(x)) for x in f))
    else:
        p = 1 / (1 + np.exp(-pooled(f, likelihood.tau, likelihood.size)))
    return likelihood.error + (1 - 2 * likelihood.error) * p


def pooled(f, tau, size):
    """Mean of f, or log(sum exp(tau f) / n_0) / tau."""
    if tau == 0:
        return sum(f) / len(f)
    return np.log(sum(np.exp(tau * x) for x in f) / (len(f) if size is None else size)) / tau


def alone(likelihood, f):
    """Log-odds of a bag of one instance."""
    size = getattr(likelihood, "size", None)
    return f if size is None else f - np.log(size) / likelihood.tau


def log_p(likelihood, f, y, known, weight=1.0):
    """``log p`` of the label of one bag and of those of its instances that are known."""
    if isinstance(likelihood, Score):
        gap = (y - pooled(f, likelihood.tau, None)) / likelihood.link.std
        return weight * (-gap * gap / 2 - np.log(2 * np.pi * likelihood.link.std**2) / 2)
    total = 0.0
    for x, k in zip(f, known, strict=True):
        if k >= 0:
            total += -np.log(1 + np.exp((1 - 2 * k) * alone(likelihood, x)))
    if not isinstance(likelihood, Or):
        p = probability(likelihood, f)
        total += np.log(p if y == 1 else 1 - p)
    elif 1 not in known:  # a known positive instance settles its bag
        left = [x for x, k in zip(f, known, strict=True) if k < 0]
        s = float(len(f)) ** -likelihood.h * sum(np.log(1 + np.exp(x)) for x in left)
        p = likelihood.error + (1 - 2 * likelihood.error) * (1 - np.exp(-s))
        total += np.log(p if y == 1 else 1 - p)
    return weight * total


def gradient(likelihood, f, y, known, weight=1.0):
    """By the latent values of one bag, [n]."""
    f = np.asarray(f, dtype=complex)
    steps = STEP * 1j * np.eye(len(f))
    return np.array([log_p(likelihood, f + d, y, known, weight).imag / STEP for d in steps])


def hessian(likelihood, f, y, known, weight=1.0):
    """Second derivatives [n, n]: central differences of fourth order of the gradient."""
    f, h, columns = np.asarray(f, dtype=float), 2e-3, []
    for d in h * np.eye(len(f)):
        at = [gradient(likelihood, f + k * d, y, known, weight) for k in (-2, -1, 1, 2)]
        columns.append((at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h))
    return np.array(columns)


def factor(P):
    """Lower triangular W with W^T W = P^-1."""
    return np.linalg.solve(np.linalg.cholesky(P), np.eye(len(P)))


def task_sums(block, likelihood, m, P, f0, draws, task):
    """The sums of one task over the bags of a block."""
    A, r, labels = np.asarray(block.A, dtype=float), block.r, block.labels
    M, S = len(A), draws.U.shape[2]
    W, value, linear, curvature = factor(P), 0.0, np.zeros(M), np.zeros((M, M))
    for b, (start, stop) in enumerate(zip(labels.offsets[:-1], labels.offsets[1:], strict=True)):
        own = A[:, start:stop]
        known = [-1] * (stop - start)
        if labels.known is not None:
            known = labels.known[start:stop, task].tolist()
        weight = 1.0 if labels.weight is None else labels.weight[b, task]
        for s in range(S):
            v = m + W.T @ draws.U[labels.deal[b]][:, s]
            noise = draws.E[labels.row[start:stop] % N_NOISE, s]
            f = f0 + own.T @ v + np.sqrt(r[start:stop]) * noise
            case = likelihood, f, labels.y[b, task], known, weight
            value += float(log_p(*case)) / S
            linear += own @ gradient(*case) / S
            curvature -= own @ hessian(*case) @ own.T / S
    return Step(value, linear, curvature)


def step(sums, m, P, rho, least=0.1):
    """Mean and precision after a natural-gradient step of length ``rho``."""
    values, Q = np.linalg.eigh(np.eye(len(P)) + sums.curvature)
    target = Q @ np.diag(np.maximum(values, least)) @ Q.T
    new = (1 - rho) * P + rho * target
    return m + rho * np.linalg.solve(new, sums.linear - m), new


def kl(m, P):
    """Divergence of N(m, P^-1) from N(0, I)."""
    S = np.linalg.solve(P, np.eye(len(P)))
    return (np.trace(S) + m @ m - len(m) + np.linalg.slogdet(P)[1]) / 2
