"""The Gaussian posterior under the marginal likelihood of the bags, their hidden labels summed out.

The updates of `updates` treat the labels of the instances as if each had been observed to the
extent it is believed in, so that their S is far too narrow. Here q(v) = N(m, S) maximises

``E_q[sum_b log p(T_b | f_b)] - KL(q || N(0, I))``

with the labels summed out inside the logarithm (Opper and Archambeau, 2009). At the optimum

``S^{-1} = I - A E_q[Hessian of log p(T | f)] A^T`` and ``m = A E_q[gradient of log p(T | f)]``:

Louis' identity, averaged over the same q that it defines. With P0 the probability that no
instance of a bag is positive, Z = p(T | f) and ``alpha = d log Z / d log P0``,

``gradient = -alpha p``,  ``-Hessian = alpha diag(p (1 - p)) + (alpha^2 - alpha) p p^T``.

So every bag gives a diagonal and one direction, which are additive over blocks. Expectations are
taken over a few quasi-random functions drawn from q, the same in every pass. The noise ``r`` is
integrated out by shrinking an instance's column (MacKay's approximation of E sigmoid).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from bagwise.core import gaussians, linalg, segments
from bagwise.core.arrays import (
    Array,
    Floats,
    as_float,
    at_least,
    concatenate,
    expit,
    is_tensor,
    namespace,
    softplus,
    to_numpy,
)
from bagwise.models.drivers import total
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.likelihoods import (
    BagLikelihood,
    ExactOr,
    Inherited,
    NoisyMax,
    SoftWitness,
)
from bagwise.models.variational.parts import Part
from bagwise.models.variational.updates import InducingPosterior, Statistics

# Functions drawn from q: 64 leave an error of 0.01 in instance probabilities at variance 16.
N_FUNCTIONS = 64
# The natural step. Full steps diverge at variance 16, where the curvature changes quickly.
_STEP = 0.6
# No direction may have more than this many times its prior variance.
_WIDEST = 4.0


class BagCurvature(NamedTuple):
    """``log p(T | f)`` of whole bags, averaged over functions, and its first two derivatives.

    The negative Hessian of a bag is ``diag(diagonal) + weight * direction direction^T``.
    """

    evidence: Array  # [b]
    gradient: Array  # [n]
    diagonal: Array  # [n]
    weight: Array  # [b]
    direction: Array  # [n]
    probability: Array  # [n] E sigmoid(f)


class _Terms(NamedTuple):
    """The same for each function, before the average."""

    evidence: Array  # [b, C]
    gradient: Array  # [n, C]
    diagonal: Array  # [n, C]
    weight: Array  # [b, C]
    direction: Array  # [n, C]


def has_marginal(likelihood: BagLikelihood) -> bool:
    """Whether the hidden labels of a likelihood can be summed out here.

    Examples
    --------
    >>> from bagwise.models.variational import ExactOr
    >>> from bagwise.models.variational.marginal import has_marginal
    >>> has_marginal(ExactOr()), has_marginal(object())
    (True, False)
    """
    return isinstance(likelihood, ExactOr | NoisyMax | SoftWitness | Inherited)


def bag_curvature(f: Array, labels: BagLabels, likelihood: BagLikelihood) -> BagCurvature:
    """Evidence and derivatives at latent values ``f`` [n, C], averaged over the C functions.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational import ExactOr
    >>> from bagwise.models.variational.blocks import BagLabels
    >>> from bagwise.models.variational.marginal import bag_curvature
    >>> labels = BagLabels(np.array([0, 2]), np.array([1]), np.full(2, -1))
    >>> curvature = bag_curvature(np.zeros((2, 1)), labels, ExactOr(1e12))
    >>> np.exp(curvature.evidence).round(3).tolist()  # 1 - 1/2 * 1/2
    [0.75]
    """
    if isinstance(likelihood, ExactOr | NoisyMax):
        terms = _or_terms(f, labels, likelihood.H)
    elif isinstance(likelihood, SoftWitness):
        terms = _witness_terms(f, labels, likelihood)
    elif isinstance(likelihood, Inherited):
        terms = _certain_terms(f, labels, labels.of_bag, 1.0)
    else:
        raise ValueError(
            f"the hidden labels of {type(likelihood).__name__} cannot be summed out; its posterior "
            "stays as the updates left it."
        )
    evidence, gradient, diagonal, weight, direction = terms
    offsets, xp = labels.offsets, namespace(f)
    # Over the functions one direction per bag is kept; what it leaves out goes to the diagonal.
    spread_weight = segments.spread(weight, offsets)
    mean_weight = weight.mean(1)
    of_bag = segments.spread(mean_weight, offsets)
    mean_direction = (spread_weight * direction).mean(1) / xp.where(of_bag == 0, 1.0, of_bag)
    rest = (spread_weight * direction**2).mean(1) - of_bag * mean_direction**2
    return BagCurvature(
        evidence.mean(1),
        gradient.mean(1),
        diagonal.mean(1) + rest,
        mean_weight,
        mean_direction,
        expit(f).mean(1),
    )


def _certain_terms(
    f: Array, labels: BagLabels, inherited: float | Array, weight: float | Array
) -> _Terms:
    """Instances that each have a label: their own where known, else ``inherited`` [n].

    ``weight`` [n] says how much an instance counts, 0 where its label is not certain.
    """
    y = namespace(f).where(labels.known >= 0, as_float(labels.known), inherited)[:, None]
    weight = (weight + 0.0 * f[:, 0])[:, None]
    p = expit(f)
    evidence = segments.sum(weight * (y * f - softplus(f)), labels.offsets)
    return _Terms(evidence, weight * (y - p), weight * p * (1 - p), 0.0 * evidence, 0.0 * f)


def _added(a: _Terms, b: _Terms) -> _Terms:
    """Terms of which at most one has a direction."""
    return _Terms(*(x + y for x, y in zip(a, b, strict=True)))


def _or_terms(f: Array, labels: BagLabels, H: float) -> _Terms:
    """Z = 1 - P0 + P0/H for positive bags and P0 + (1 - P0)/H for negative ones."""
    xp, offsets = namespace(f), labels.offsets
    unknown = (labels.known < 0)[:, None]
    log_none = -segments.sum(xp.where(unknown, softplus(f), 0.0), offsets)
    # One known positive settles the bag: its other instances are free.
    log_none = xp.where(labels.has_positive[:, None], -np.inf, log_none) + math.log1p(-1 / H)
    none = xp.exp(log_none)
    positive = (labels.y == 1)[:, None]
    Z = xp.where(positive, -xp.expm1(log_none), none + 1 / H)
    alpha = xp.where(positive, -none, none) / Z
    evidence = xp.log(Z) - math.log1p(1 / H)
    p = xp.where(unknown, expit(f), 0.0)
    of_bag = segments.spread(alpha, offsets)
    hidden = _Terms(evidence, -of_bag * p, of_bag * p * (1 - p), alpha**2 - alpha, p)
    return _added(hidden, _certain_terms(f, labels, 0.0, as_float(labels.known >= 0)))


def _witness_terms(f: Array, labels: BagLabels, likelihood: SoftWitness) -> _Terms:
    """The mean p of a positive bag to the power n^g; s is the share of each candidate."""
    xp, offsets = namespace(f), labels.offsets
    n = labels.n_candidates
    power = xp.where(n > 0, at_least(n, 1.0) ** likelihood.strength, 0.0)[:, None]
    log_p = xp.where(labels.candidates[:, None], -softplus(-f), -np.inf)
    top = segments.logsumexp(log_p, offsets)
    top = xp.where(xp.isfinite(top), top, 0.0)
    s = xp.exp(log_p - segments.spread(top, offsets))
    p, of_bag = expit(f), segments.spread(power, offsets)
    evidence = power * (top - xp.log(at_least(n, 1.0))[:, None])
    u = s * (1 - p)
    hidden = _Terms(evidence, of_bag * u, of_bag * u * (2 * p - 1), power + 0.0 * evidence, u)
    certain = as_float((labels.of_bag == 0) | (labels.known >= 0))
    sizes = as_float(segments.lengths(offsets))
    share = xp.where(labels.y == 1, 1.0, sizes**-likelihood.redundancy)
    return _added(hidden, _certain_terms(f, labels, 0.0, certain * segments.spread(share, offsets)))


@lru_cache(maxsize=16)
def _normal_points(M: int, n: int) -> Floats:
    """Standard normal points [M, n] in pairs of opposite sign: a scrambled Sobol sequence."""
    from scipy.stats import qmc

    points = qmc.Sobol(M, scramble=True, rng=np.random.default_rng(0)).random(n // 2)
    z = ndtri(np.clip(points, 1e-12, 1 - 1e-12)).T
    return np.concatenate([z, -z], axis=1)


def draw_functions(block: Block, q: InducingPosterior, n_functions: int) -> tuple[Array, Array]:
    """Latent values of functions drawn from q [n, C], and by what they are shrunk [n].

    The noise r of the sparse approximation is integrated out by that factor: sigmoid of the
    value is the expected sigmoid given the function. The spread of every instance is made
    exact, so that the draws only stand for correlations.
    """
    shrink = 1 / (1 + math.pi / 8 * block.r) ** 0.5
    z = _normal_points(block.A[0].shape[0], n_functions)
    values, start = [], 0
    for chunk in block.A:
        k = shrink[start : start + chunk.shape[1]]
        start += chunk.shape[1]
        if is_tensor(chunk):
            m, W, points = (linalg.like(x, chunk) for x in (q.m, q.W, z))
        else:
            m, W, points = (np.asarray(x, dtype=chunk.dtype) for x in (q.m, q.W, z))
        R = linalg.lower_times(W, chunk)  # [M, n]
        deviation = _double(R.T @ points)
        exact, drawn = linalg.column_squares(R), (deviation**2).mean(1)
        scale = (exact / at_least(drawn, 1e-300)) ** 0.5
        values.append(k[:, None] * (_double(chunk.T @ m)[:, None] + scale[:, None] * deviation))
    return concatenate(values), shrink


def _double(x: Array) -> Array:
    return x.double() if is_tensor(x) else x.astype(np.float64, copy=False)


def marginal_statistics(
    block: Block, q: InducingPosterior, likelihood: BagLikelihood, n_functions: int = N_FUNCTIONS
) -> Statistics:
    """One pass over a block, additive: ``-A E[Hessian] A^T``, ``A E[gradient]``, E log p(T | f).

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational import ExactOr
    >>> from bagwise.models.variational.blocks import BagLabels
    >>> from bagwise.models.variational.marginal import marginal_statistics
    >>> from bagwise.models.variational.updates import make_blocks, prior
    >>> labels = BagLabels(np.array([0, 2]), np.array([1]), np.full(2, -1))
    >>> (block,) = make_blocks(np.eye(2), np.zeros(2), labels)
    >>> marginal_statistics(block, prior(2), ExactOr()).linear.round(2).tolist()
    [0.15, 0.15]
    """
    f, shrink = draw_functions(block, q, n_functions)
    curvature = _weighed(bag_curvature(f, block.labels, likelihood), block.labels)
    gradient, diagonal = shrink * curvature.gradient, shrink**2 * curvature.diagonal
    weighted = shrink * curvature.direction
    precision, linear = linalg.no_statistics(block.A[0])
    directions: Any = 0.0
    start = 0
    for chunk in block.A:
        rows = slice(start, start + chunk.shape[1])
        own = block.labels.offsets if len(block.A) == 1 else _clipped(block.labels, rows)
        start = rows.stop
        scaled = chunk * _as(diagonal[rows], chunk)
        precision = precision + _double(scaled @ chunk.T)
        linear = linear + _double(chunk @ _as(gradient[rows], chunk))
        directions = directions + segments.sum(
            _double((chunk * _as(weighted[rows], chunk)).T), own
        )  # [b, M]
    precision = precision + (directions.T * curvature.weight) @ directions
    return Statistics(precision, linear, float(curvature.evidence.sum()))


def _weighed(curvature: BagCurvature, labels: BagLabels) -> BagCurvature:
    """The curvature with each bag counted by its weight."""
    if labels.weight is None:
        return curvature
    each = segments.spread(labels.weight, labels.offsets)
    return curvature._replace(
        evidence=labels.weight * curvature.evidence,
        gradient=each * curvature.gradient,
        diagonal=each * curvature.diagonal,
        weight=labels.weight * curvature.weight,
    )


def _as(x: Array, A: Array) -> Array:
    return linalg.like(x, A) if is_tensor(A) else x.astype(A.dtype, copy=False)


def _clipped(labels: BagLabels, rows: slice) -> Array:
    """Offsets of the bags within some rows of their block."""
    offsets = labels.offsets - rows.start
    if is_tensor(offsets):
        return offsets.clamp(0, rows.stop - rows.start)
    return np.clip(offsets, 0, rows.stop - rows.start)


def label_posterior(
    block: Block, q: InducingPosterior, likelihood: BagLikelihood, n_functions: int = N_FUNCTIONS
) -> Array:
    """``E_q[p(y = 1 | f, T)]`` of every instance of a training block, [n].

    The gradient of log p(T | f) is the difference that the label makes to an instance.
    """
    curvature = bag_curvature(draw_functions(block, q, n_functions)[0], block.labels, likelihood)
    return to_numpy(curvature.probability + curvature.gradient).clip(0.0, 1.0)


@dataclass(frozen=True)
class MarginalStep:
    """`marginal_statistics` over the blocks of a part; picklable, for any driver."""

    likelihood: BagLikelihood
    q: InducingPosterior
    n_functions: int = N_FUNCTIONS

    def __call__(self, part: Part) -> tuple[Part, Statistics]:
        """The part as it was, and its statistics."""
        sums = None
        for block in part.blocks:
            own = marginal_statistics(block, self.q, self.likelihood, self.n_functions)
            sums = own if sums is None else total([sums, own])
        assert sums is not None  # a part is never empty
        return part, sums


class Refined(NamedTuple):
    """The posterior after refinement."""

    posterior: InducingPosterior
    bound_history: Floats  # [n_passes] E_q log p(T | f) - KL, at the start of each pass
    converged: bool


def refine(
    statistics: Callable[[InducingPosterior], Statistics],
    q: InducingPosterior,
    *,
    max_passes: int = 12,
    tol: float = 1e-2,
    move_mean: bool = True,
) -> Refined:
    """Natural-gradient steps on q(v) under the marginal likelihood; a step that fails is halved.

    Parameters
    ----------
    statistics : function of a InducingPosterior
        The sum of `marginal_statistics` over all blocks, however they are kept.
    q : InducingPosterior
        Where to start: the q(v) of a fit.
    max_passes : int
        Passes over the blocks; about six suffice.
    tol : float
        Ends when a pass raises the bound by less than this many nats.
    move_mean : bool
        With False the mean stays and the covariance becomes that of the curvature around it, for
        models whose mean is not that of a likelihood (other densities, the large margin).

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational import ExactOr
    >>> from bagwise.models.variational.blocks import BagLabels
    >>> from bagwise.models.variational.marginal import marginal_statistics, refine
    >>> from bagwise.models.variational.updates import make_blocks, prior
    >>> labels = BagLabels(np.array([0, 1]), np.array([1]), np.full(1, -1))
    >>> (block,) = make_blocks(np.eye(1), np.zeros(1), labels)
    >>> refined = refine(lambda q: marginal_statistics(block, q, ExactOr()), prior(1))
    >>> round(float(refined.posterior.m[0]), 1), round(float(refined.posterior.S[0, 0]), 1)
    (0.4, 0.8)
    """
    at = _Standing(q, _inverse(q.W), statistics(q))
    history, step = [at.bound], _STEP
    for _ in range(max_passes - 1):
        q, precision = _moved(at, step, move_mean)
        trial = _Standing(q, precision, statistics(q))
        rise = trial.bound - at.bound
        if not rise >= -tol:
            step /= 2  # too far: once more from the last good q
            continue
        at = trial
        history.append(at.bound)
        if rise < tol:
            return Refined(at.q, np.array(history), True)
    return Refined(at.q, np.array(history), False)


class _Standing(NamedTuple):
    """A posterior, its precision, and what a pass over the blocks said about it."""

    q: InducingPosterior
    precision: Array  # [M, M]
    sums: Statistics

    @property
    def bound(self) -> float:
        return float(self.sums.bound) - float(gaussians.kl_to_standard(self.q.m, self.q.W))


def _moved(at: _Standing, step: float, move_mean: bool) -> tuple[InducingPosterior, Array]:
    """``Lambda <- (1 - s) Lambda + s (I + P)`` and ``m <- m + s S (b - m)``.

    Eigenvalues of I + P that would make a direction wider than admitted are raised.
    """
    q, sums = at.q, at.sums
    P = to_numpy(sums.precision)
    values, U = np.linalg.eigh(np.eye(len(P)) + (P + P.T) / 2)
    target = (U * np.maximum(values, 1 / _WIDEST)) @ U.T
    precision = (1 - step) * at.precision + step * target
    W = linalg.inverse_factor(np.asfortranarray(precision))
    pull = to_numpy(sums.linear) - q.m
    return InducingPosterior(q.m + step * (W.T @ (W @ pull)) if move_mean else q.m, W), precision


def _inverse(W: Array) -> Array:
    """``(W^T W)^{-1}``, symmetric."""
    L = linalg.solve_lower(np.asfortranarray(W), np.asfortranarray(np.eye(len(W))))
    return L @ L.T
