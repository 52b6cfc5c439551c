"""Exact posterior of the sparse Gaussian process with the bag likelihoods of the package.

The model, in whitened coordinates: ``v ~ N(0, I)``, ``f_n = a_n^T v + N(0, r_n)``,
``y_n ~ Bernoulli(sigmoid(f_n))``, and the bag's label given its y. Three exact conditionals:
``omega_n | f_n ~ PG(1, f_n)``; ``v, f | omega, y`` Gaussian (v with f integrated out, then f);
``y_b | f_b, T_b`` in one draw per bag. A bag label says far less than the labels of its instances
would, so that a chain that carries those moves slowly where the prior is wide. Between two Gibbs
sweeps the chain therefore takes elliptical slice steps (Murray, Adams and MacKay, 2010) with y
summed out. Both kinds of step leave the posterior unchanged; nothing is approximated but the
number of draws.
"""

from typing import NamedTuple

import numpy as np
from polyagamma import random_polyagamma
from scipy.linalg import cholesky, solve_triangular
from scipy.special import expit

from bagwise.core import segments
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.likelihoods import (
    ExactOr,
    Inherited,
    NoisyMax,
    SoftWitness,
)


class Draws(NamedTuple):
    """What a chain leaves behind after its burn-in."""

    v: np.ndarray  # [S, M]
    f: np.ndarray  # [S, N]
    y: np.ndarray  # [N] share of draws with y = 1


def draw_or_labels(f, labels, H, rng):
    """``y | f, T`` of "at least one is positive", whose label errs with odds 1 : H.

    First whether the bag has a positive at all, then where its first positive sits (by inverting
    the distribution of its place), then the instances behind that, which are free.
    """
    rate = np.where(labels.known < 0, np.logaddexp(0.0, f), 0.0)  # -log(1 - p)
    total = segments.sum(rate, labels.offsets)
    some, none = -np.expm1(-total), np.exp(-total)
    odds = np.where(labels.y == 1, some * H, some / H)
    has = (rng.random(len(total)) * (none + odds) < odds) & ~labels.has_positive
    target = -np.log1p(-rng.random(len(total)) * some)
    upto = np.cumsum(rate) - segments.spread(
        np.concatenate([[0.0], np.cumsum(rate)])[labels.offsets[:-1]], labels.offsets
    )
    reached = upto >= segments.spread(target, labels.offsets)
    # Rounding must not leave a bag without its positive: the last unknown one closes the sum.
    reached |= upto >= segments.spread(total, labels.offsets) * (1 - 1e-12)
    reached &= labels.known < 0
    first = segments.argmax(reached.astype(float), labels.offsets)
    behind = np.arange(len(f)) > segments.spread(first, labels.offsets)
    free = rng.random(len(f)) < expit(f)
    with_first = np.where(behind, free, False)
    with_first[first] = True
    settled = segments.spread(labels.has_positive, labels.offsets)
    y = np.where(settled, free, segments.spread(has, labels.offsets) & with_first)
    return np.where(labels.known < 0, y, labels.known == 1), np.ones(len(f))


def draw_witness_labels(f, labels, rng):
    """Which instance is the witness; only it and the certain ones bear on the latent function."""
    free = rng.random(len(f)) < expit(f)
    certain = (labels.of_bag == 0) | (labels.known >= 0)
    searching = segments.spread((labels.y == 1) & ~labels.has_positive, labels.offsets) & ~certain
    # The largest of log p + Gumbel noise is a draw in proportion to p.
    score = np.where(searching, -np.logaddexp(0.0, -f) + rng.gumbel(size=len(f)), -np.inf)
    witness = np.zeros(len(f), dtype=bool)
    bags = np.unique(segments.index(labels.offsets)[searching])
    witness[segments.argmax(score, labels.offsets)[bags]] = True
    y = np.where(certain, (labels.known == 1), free) | witness
    return y, (certain | witness).astype(float)


def draw_labels(f, labels, likelihood, rng):
    """y and the weight of each instance (1 where its y bears on f) under any likelihood."""
    if isinstance(likelihood, ExactOr | NoisyMax):
        return draw_or_labels(f, labels, likelihood.H, rng)
    if isinstance(likelihood, SoftWitness) and likelihood.strength == likelihood.redundancy == 0:
        return draw_witness_labels(f, labels, rng)
    if isinstance(likelihood, Inherited):
        y = np.where(labels.known < 0, labels.of_bag, labels.known)
        return y == 1, np.ones(len(f))
    raise ValueError(f"{likelihood!r} is not the likelihood of a generative model.")


def log_likelihood(f, labels, likelihood):
    """``log p(T, known y | f)`` with the unknown y summed out."""
    log_p, log_q = -np.logaddexp(0.0, -f), -np.logaddexp(0.0, f)
    given = np.where(labels.known == 1, log_p, np.where(labels.known == 0, log_q, 0.0)).sum()
    if isinstance(likelihood, Inherited):
        inherited = np.where(labels.of_bag == 1, log_p, log_q)
        return given + inherited[labels.known < 0].sum()
    if isinstance(likelihood, SoftWitness):
        searching = (labels.y == 1) & ~labels.has_positive
        score = np.where(labels.known < 0, log_p, -np.inf)
        negatives = log_q[(labels.of_bag == 0) & (labels.known < 0)].sum()
        return given + segments.logsumexp(score, labels.offsets)[searching].sum() + negatives
    none = np.exp(segments.sum(np.where(labels.known < 0, log_q, 0.0), labels.offsets))
    none = np.where(labels.has_positive, 0.0, none)
    agree = np.where(labels.y == 1, 1 - none, none)
    return given + np.log(agree + (1 - agree) / likelihood.H).sum()


def elliptical_slice(v, f, A, r, labels, likelihood, rng):
    """One step on the ellipse through (v, f) and a draw from their prior."""
    other_v = rng.normal(size=len(v))
    other_f = A.T @ other_v + np.sqrt(r) * rng.normal(size=len(f))
    level = log_likelihood(f, labels, likelihood) + np.log(rng.random())
    angle = rng.uniform(0, 2 * np.pi)
    low, high = angle - 2 * np.pi, angle
    while True:
        new_f = f * np.cos(angle) + other_f * np.sin(angle)
        if log_likelihood(new_f, labels, likelihood) > level:
            return v * np.cos(angle) + other_v * np.sin(angle), new_f
        low, high = (angle, high) if angle < 0 else (low, angle)
        angle = rng.uniform(low, high)


def gibbs_sweep(f, A, r, labels, likelihood, rng):
    """New v and f: labels, then Pólya-Gamma variables, then the Gaussian."""
    y, w = draw_labels(f, labels, likelihood, rng)
    omega = w * random_polyagamma(1.0, f, random_state=rng)
    kappa = w * (y - 0.5)
    shrink = 1 + omega * r  # f integrated out: its noise adds to that of the pseudo-label
    B = np.eye(len(A)) + (A * (omega / shrink)) @ A.T
    L = cholesky(B, lower=True)
    mean = solve_triangular(L, A @ (kappa / shrink), lower=True)
    v = solve_triangular(L, mean + rng.normal(size=len(A)), lower=True, trans="T")
    f = (A.T @ v + r * kappa) / shrink + np.sqrt(r / shrink) * rng.normal(size=len(f))
    return v, f


def sample(A, r, labels, likelihood, rng, n_draws=1000, burn_in=200, slices=5):
    """A chain of ``n_draws`` after ``burn_in`` sweeps, ``slices`` slice steps after each sweep.

    >>> import numpy as np
    >>> from bagwise.models.variational.blocks import BagLabels
    >>> from bagwise.models.variational.likelihoods import ExactOr
    >>> from tests.reference.gibbs import sample
    >>> labels = BagLabels(np.array([0, 2]), np.array([1]), np.full(2, -1))
    >>> draws = sample(np.eye(2), np.zeros(2), labels, ExactOr(), np.random.default_rng(0), 50)
    >>> draws.f.shape
    (50, 2)
    """
    M, N = A.shape
    f = A.T @ rng.normal(size=M) + np.sqrt(r) * rng.normal(size=N)
    kept_v, kept_f, share = np.empty((n_draws, M)), np.empty((n_draws, N)), np.zeros(N)
    for sweep in range(-burn_in, n_draws):
        v, f = gibbs_sweep(f, A, r, labels, likelihood, rng)
        for _ in range(slices):
            v, f = elliptical_slice(v, f, A, r, labels, likelihood, rng)
            if sweep >= 0:
                share += draw_labels(f, labels, likelihood, rng)[0] / slices
        if sweep >= 0:
            kept_v[sweep], kept_f[sweep] = v, f
            share += 0 if slices else draw_labels(f, labels, likelihood, rng)[0]
    return Draws(kept_v, kept_f, share / n_draws)


class Drawn(NamedTuple):
    """A data set drawn from the model, with its truth."""

    A: np.ndarray  # [M, N]
    r: np.ndarray  # [N]
    labels: BagLabels
    f: np.ndarray  # [N]
    y: np.ndarray  # [N]


def draw_problem(rng, variance, sizes, *, n_inducing=30, n_features=2, H=100.0, spread=0.5):
    """Bags whose latent values and labels come from the model with an RBF kernel, l = 1.

    The instances of a bag scatter by ``spread`` about a centre of variance 1 - spread^2.
    """
    from bagwise.core.gaussians import project
    from bagwise.core.kernels import RBF
    from bagwise.core.linalg import cholesky as jittered

    kernel = RBF(1.0, variance)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    centres = np.sqrt(1 - spread**2) * rng.normal(size=(len(sizes), n_features))
    X = segments.spread(centres, offsets) + spread * rng.normal(size=(offsets[-1], n_features))
    Z = X[rng.choice(len(X), min(n_inducing, len(X)), replace=False)]
    A, r = project(kernel, X, Z, jittered(kernel(Z, Z)))
    f = A.T @ rng.normal(size=len(Z)) + np.sqrt(r) * rng.normal(size=len(X))
    y = rng.random(len(f)) < expit(f)
    errs = rng.random(len(sizes)) < 1 / (H + 1)
    top = segments.max(y.astype(float), offsets) > 0
    labels = BagLabels(offsets, (top ^ errs).astype(int), np.full(len(f), -1, dtype=np.int8))
    return Drawn(A, r, labels, f, y)
