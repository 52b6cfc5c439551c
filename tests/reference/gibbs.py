"""Exact posterior of the sparse Gaussian process under "at least one instance is positive".

The model, in whitened coordinates: ``v ~ N(0, I)``, ``f_n = a_n^T v + N(0, r_n)``,
``y_n ~ Bernoulli(sigmoid(f_n))``, and a bag is positive where one of its y is, but for labels that
are wrong with probability ``error``: the likelihood `Or`. Three exact conditionals:
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
from bagwise.core.gaussians import project
from bagwise.core.kernels import RBF
from bagwise.models.scaling import FeatureScaling
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.projection import Projector, make_projector


class Draws(NamedTuple):
    """What a chain leaves behind after its burn-in."""

    v: np.ndarray  # [S, M]
    f: np.ndarray  # [S, N]
    y: np.ndarray  # [N] share of draws with y = 1


def draw_labels(f, labels, error, rng):
    """``y | f, T``.

    First whether the bag has a positive at all, then where its first positive sits (by inverting
    the distribution of its place), then the instances behind that, which are free.
    """
    rate = np.where(labels.known < 0, np.logaddexp(0.0, f), 0.0)  # -log(1 - p)
    total = segments.sum(rate, labels.offsets)
    some, none = -np.expm1(-total), np.exp(-total)
    some = some * np.where(labels.y == 1, 1 - error, error)
    none = none * np.where(labels.y == 1, error, 1 - error)
    has = (rng.random(len(total)) * (none + some) < some) & ~labels.has_positive
    target = -np.log1p(rng.random(len(total)) * np.expm1(-total))
    before = segments.spread(
        np.concatenate([[0.0], np.cumsum(rate)])[labels.offsets[:-1]], labels.offsets
    )
    upto = np.cumsum(rate) - before
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
    return np.where(labels.known < 0, y, labels.known == 1)


def log_likelihood(f, labels, error):
    """``log p(T, known y | f)`` with the unknown y summed out."""
    log_p, log_q = -np.logaddexp(0.0, -f), -np.logaddexp(0.0, f)
    given = np.where(labels.known == 1, log_p, np.where(labels.known == 0, log_q, 0.0)).sum()
    none = np.exp(segments.sum(np.where(labels.known < 0, log_q, 0.0), labels.offsets))
    none = np.where(labels.has_positive, 0.0, none)
    agree = np.where(labels.y == 1, 1 - none, none)
    with np.errstate(divide="ignore"):  # a label that cannot be has probability 0
        return given + np.log(error + (1 - 2 * error) * agree).sum()


def elliptical_slice(v, f, A, r, labels, error, rng):
    """One step on the ellipse through (v, f) and a draw from their prior."""
    other_v = rng.normal(size=len(v))
    other_f = A.T @ other_v + np.sqrt(r) * rng.normal(size=len(f))
    level = log_likelihood(f, labels, error) + np.log(rng.random())
    angle = rng.uniform(0, 2 * np.pi)
    low, high = angle - 2 * np.pi, angle
    while True:
        new_f = f * np.cos(angle) + other_f * np.sin(angle)
        if log_likelihood(new_f, labels, error) > level:
            return v * np.cos(angle) + other_v * np.sin(angle), new_f
        low, high = (angle, high) if angle < 0 else (low, angle)
        angle = rng.uniform(low, high)


def gibbs_sweep(f, A, r, labels, error, rng):
    """New v and f: labels, then Pólya-Gamma variables, then the Gaussian."""
    y = draw_labels(f, labels, error, rng)
    omega = random_polyagamma(1.0, f, random_state=rng)
    kappa = y - 0.5
    shrink = 1 + omega * r  # f integrated out: its noise adds to that of the pseudo-label
    B = np.eye(len(A)) + (A * (omega / shrink)) @ A.T
    L = cholesky(B, lower=True)
    mean = solve_triangular(L, A @ (kappa / shrink), lower=True)
    v = solve_triangular(L, mean + rng.normal(size=len(A)), lower=True, trans="T")
    f = (A.T @ v + r * kappa) / shrink + np.sqrt(r / shrink) * rng.normal(size=len(f))
    return v, f


def sample(A, r, labels, error, rng, n_draws=1000, burn_in=200, slices=5):
    """A chain of ``n_draws`` after ``burn_in`` sweeps, ``slices`` slice steps after each sweep.

    >>> import numpy as np
    >>> from bagwise.models.variational.blocks import BagLabels
    >>> from tests.reference.gibbs import sample
    >>> labels = BagLabels(np.array([0, 2]), np.array([1]), np.full(2, -1))
    >>> draws = sample(np.eye(2), np.zeros(2), labels, 0.01, np.random.default_rng(0), 50)
    >>> draws.f.shape
    (50, 2)
    """
    M, N = A.shape
    f = A.T @ rng.normal(size=M) + np.sqrt(r) * rng.normal(size=N)
    kept_v, kept_f, share = np.empty((n_draws, M)), np.empty((n_draws, N)), np.zeros(N)
    for sweep in range(-burn_in, n_draws):
        v, f = gibbs_sweep(f, A, r, labels, error, rng)
        for _ in range(slices):
            v, f = elliptical_slice(v, f, A, r, labels, error, rng)
            if sweep >= 0:
                share += draw_labels(f, labels, error, rng) / slices
        if sweep >= 0:
            kept_v[sweep], kept_f[sweep] = v, f
            share += 0 if slices else draw_labels(f, labels, error, rng)
    return Draws(kept_v, kept_f, share / n_draws)


class Drawn(NamedTuple):
    """A data set drawn from the model, with its truth."""

    X: np.ndarray  # [N, D]
    projector: Projector
    A: np.ndarray  # [M, N]
    r: np.ndarray  # [N]
    labels: BagLabels
    f: np.ndarray  # [N]
    y: np.ndarray  # [N]


def draw_problem(rng, variance, sizes, *, n_inducing=30, n_features=2, error=0.01, spread=0.5):
    """Bags whose latent values and labels come from the model with an RBF kernel, l = 1.

    The instances of a bag scatter by ``spread`` about a centre of variance 1 - spread^2.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    centres = np.sqrt(1 - spread**2) * rng.normal(size=(len(sizes), n_features))
    X = segments.spread(centres, offsets) + spread * rng.normal(size=(offsets[-1], n_features))
    Z = X[rng.choice(len(X), min(n_inducing, len(X)), replace=False)]
    plain = FeatureScaling(np.zeros(n_features), np.ones(n_features))
    projector = make_projector(RBF(1.0, variance), Z, plain, "float64")
    A, r = project(projector.kernel, X, Z, projector.L)
    f = A.T @ rng.normal(size=len(Z)) + np.sqrt(r) * rng.normal(size=len(X))
    y = rng.random(len(f)) < expit(f)
    errs = rng.random(len(sizes)) < error
    top = segments.max(y.astype(float), offsets) > 0
    labels = BagLabels(offsets, (top ^ errs).astype(int), np.full(len(f), -1, dtype=np.int8))
    return Drawn(X, projector, A, r, labels, f, y)
