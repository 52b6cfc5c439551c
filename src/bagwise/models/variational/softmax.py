"""Several classes by a softmax over one latent function per class, fitted together.

An instance is of class k with probability ``exp f_k / sum exp f``, ``f_0 = 0`` being that of no
finding. In a bag of class c every instance is of class c or of none, and one at least is of class
c; in a bag of the background all are of none. Given the means of q(f) the labels of a bag's
instances have an exact posterior. The softmax is bounded as V's footnote 9 has it, by Bouchard
(2007):

``log sum exp f <= a + sum_k [(f_k - a)/2 - log psi(xi_k) + theta(xi_k)/2 ((f_k - a)^2 - xi_k^2)]``

with psi the hyperbolic secant. Each step, of the labels, of a and xi, and of q(f), maximises the
one bound, which never falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from bagwise.core import gaussians, segments
from bagwise.core.arrays import Floats, Ints, to_numpy
from bagwise.models.drivers import Driver, RunningSum, one_blas_thread, total
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.densities import Sech
from bagwise.models.variational.parts import Part, Sites
from bagwise.models.variational.updates import (
    InducingPosterior,
    moments,
    prior,
    prior_moments,
    relative_change,
    statistics,
    update_posterior,
)

# Rounds of a and xi per update of q; each raises the bound, and more hardly do.
_ROUNDS = 3


@dataclass(frozen=True)
class Softmax:
    """One class per instance, by a softmax over the latent functions of all classes.

    For three classes or more, of which a bag has one; in place of one question per class. On the
    data of `experiments.multiclass` one question per class is better.

    Parameters
    ----------
    H : float
        Odds that a bag's label agrees with the classes of its instances.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.models.variational import Softmax
    >>> model = VGPMIL(likelihood=Softmax(H=100), bag_rule="noisy-or")
    """

    H: float = 100.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.H) and self.H > 1):
            raise ValueError(f"H must be finite and > 1; got {self.H!r}.")


class Shares(NamedTuple):
    """What a bag's label says about the classes of its instances."""

    log_evidence: Floats  # [b] log Z
    r: Floats  # [n, C + 1] q(class), none first


def class_shares(score: Floats, labels: BagLabels, H: float) -> Shares:
    """Exact posterior of the classes of instances with scores [n, C], those of none being 0.

    ``labels.y`` holds the classes of the bags, 0 for the background, and ``labels.known`` those of
    instances, -1 where unknown. With e = exp(score), a = e_0 + e_c and eps = 1/H a bag of class c
    has ``Z = (1 - eps) (prod a - prod e_0) + eps prod sum e``.
    """
    offsets = np.asarray(labels.offsets)
    s = np.column_stack([np.zeros(len(score)), score])  # [n, C + 1]
    known = np.asarray(labels.known)
    given = known >= 0
    s[given] = np.where(np.arange(s.shape[1]) == known[given, None], s[given], -np.inf)
    c = segments.spread(np.asarray(labels.y), offsets)  # [n]
    positive = c > 0
    rows = np.arange(len(s))
    own = np.where(positive, s[rows, c], -np.inf)  # the class of the bag; none in the background
    either = np.logaddexp(s[:, 0], own)
    everything = logsumexp(s, axis=1)
    log_a, log_none, log_all = (
        segments.sum(x, offsets) for x in (either, s[:, 0], everything)
    )  # [b]
    of_class = np.asarray(labels.y) > 0
    agree = np.where(of_class, _log_less(log_a, log_none), log_none)
    strict, loose = np.log1p(-1 / H), -np.log(H)
    evidence = np.logaddexp(strict + agree, loose + log_all)

    def of_bag(x: Floats) -> Floats:
        return segments.spread(x, offsets)

    # Without the instance itself: prod of the others' a, and of their e_0.
    others_a = of_bag(log_a) - either
    with np.errstate(invalid="ignore"):  # an instance that cannot be of none
        others_none = np.where(np.isfinite(s[:, 0]), of_bag(log_none) - s[:, 0], -np.inf)
    log_r = loose + of_bag(log_all) - everything  # [n], before the own score
    log_r = s + log_r[:, None]
    none = np.where(positive, _log_less(others_a, others_none), others_none)
    log_r[:, 0] = np.logaddexp(log_r[:, 0], strict + s[:, 0] + none)
    log_r[rows, c] = np.where(
        positive, np.logaddexp(log_r[rows, c], strict + own + others_a), log_r[rows, c]
    )
    r = np.exp(log_r - of_bag(evidence)[:, None])
    return Shares(evidence, r / r.sum(axis=1, keepdims=True))


def _log_less(log_x: Floats, log_y: Floats) -> Floats:
    """``log(x - y)`` for x >= y."""
    with np.errstate(divide="ignore", invalid="ignore"):
        less = log_x + np.log(-np.expm1(np.minimum(log_y - log_x, 0.0)))
    return np.where(np.isfinite(log_y), less, log_x)


class Softened(NamedTuple):
    """The bound of the softmax at every instance."""

    a: Floats  # [n]
    theta: Floats  # [n, C + 1], none first
    value: Floats  # [n] bound of -E log sum exp f


def soften(mean: Floats, var: Floats, a: Floats) -> Softened:
    """The best a and xi for moments [n, C] of q(f), from where a stood.

    ``xi_k^2 = E (f_k - a)^2``, ``a = ((C + 1) / 2 - 1 + sum theta_k E f_k) / sum theta_k``.
    """
    nothing = np.zeros((len(mean), 1))
    mean, var = np.hstack([nothing, mean]), np.hstack([nothing, var])
    density, K = Sech(), mean.shape[1]
    for _ in range(_ROUNDS):
        theta = density.theta(np.sqrt(var + (mean - a[:, None]) ** 2))
        a = (K / 2 - 1 + (theta * mean).sum(axis=1)) / theta.sum(axis=1)
    xi = np.sqrt(var + (mean - a[:, None]) ** 2)
    value = -a - (mean - a[:, None]).sum(axis=1) / 2 + density.log_psi(xi).sum(axis=1)
    return Softened(a, to_numpy(density.theta(xi)), value)


class SoftmaxStatistics(NamedTuple):
    """What the next posteriors need: sums over the instances, and the bound's part."""

    precision: Floats  # [C, M, M]
    linear: Floats  # [C, M]
    bound: float


class Belief(NamedTuple):
    """What is believed of the instances of a block."""

    r: Floats  # [n, C + 1]
    a: Floats  # [n]


@dataclass(frozen=True)
class SoftmaxStep:
    """One pass over the blocks of a part; picklable, for threads and clusters."""

    H: float
    q: tuple[InducingPosterior, ...] | None  # of every finding; None means the prior
    n_findings: int

    def __call__(self, part: Part) -> tuple[Part, SoftmaxStatistics]:
        """The part with new beliefs, and its statistics."""
        before = part.beliefs or tuple(None for _ in part.pis)
        steps = [self._expect(block, b) for block, b in zip(part.blocks, before, strict=False)]
        beliefs, sums = zip(*steps, strict=True)
        return part._replace(beliefs=beliefs), total(sums)

    def _expect(self, block: Block, before: Belief | None) -> tuple[Belief, SoftmaxStatistics]:
        labels = block.labels
        if self.q is None:
            f = [prior_moments(block.A, block.r)] * self.n_findings
        else:
            f = [moments(block.A, block.r, q) for q in self.q]
        mean, var = (np.column_stack([one[i] for one in f]) for i in (0, 1))
        shares = class_shares(mean, labels, self.H)
        soft = soften(mean, var, np.zeros(len(mean)) if before is None else before.a)
        bound = float(labels.total(shares.log_evidence, soft.value))
        weight = np.ones(len(mean))
        if labels.weight is not None:
            weight = to_numpy(segments.spread(labels.weight, labels.offsets))
        precision, linear = [], []
        for k in range(1, self.n_findings + 1):
            theta = soft.theta[:, k]
            rho = shares.r[:, k] - 0.5 + theta * soft.a
            own = statistics(block.A, Sites(weight * theta, weight * rho), 0.0)
            precision.append(own.precision)
            linear.append(own.linear)
        sums = SoftmaxStatistics(np.array(precision), np.array(linear), bound)
        return Belief(shares.r, soft.a), sums


class SoftmaxFit(NamedTuple):
    """Posteriors of all findings."""

    posteriors: tuple[InducingPosterior, ...]
    r: Floats  # [N, C + 1] q(class) of every training instance, none first
    bound_history: Floats  # [n_iter]
    n_iter: int
    converged: bool


def fit_softmax(
    parts: list[Part],
    M: int,
    n_findings: int,
    H: float,
    *,
    max_iter: int,
    tol: float,
    driver: Driver,
) -> SoftmaxFit:
    """Coordinate ascent on parts, wherever the driver keeps them.

    Ends when no posterior mean moves by more than ``tol``, relative to its length.
    """
    q: tuple[InducingPosterior, ...] | None = None
    history: list[float] = []
    converged = False
    with one_blas_thread():
        while True:
            sums = RunningSum()
            parts = driver.sweep(SoftmaxStep(H, q, n_findings), parts, sums)
            found = sums.value
            if q is not None:
                divergence = sum(float(gaussians.kl_to_standard(one.m, one.W)) for one in q)
                history.append(float(found.bound) - divergence)
            if q is not None and (converged or len(history) == max_iter):
                break
            old = q or (prior(M),) * n_findings
            pairs = zip(found.precision, found.linear, strict=True)
            new = tuple(update_posterior(*pair).on_host() for pair in pairs)
            change = max(relative_change(a, b) for a, b in zip(new, old, strict=True))
            converged, q = q is not None and change < tol, new
    ends: list[Floats] = []
    driver.sweep(_read_shares, parts, ends.append)
    return SoftmaxFit(q, np.concatenate(ends), np.array(history), len(history), converged)


def _read_shares(part: Part) -> tuple[Part, Floats]:
    assert part.beliefs is not None
    return part, np.concatenate([belief.r for belief in part.beliefs])


def class_codes(present: Ints) -> Ints:
    """Number of each bag's finding, from 1; 0 where it has none, [B]."""
    return present @ np.arange(1, present.shape[1] + 1)
