"""From q(v) to scores: instances, bags by a rule, and bags left out. P(30-36).

`read_block` is the one way from a block to numbers: latent moments of the instances, and the
log-odds of their bags under a rule. Everything a model predicts is a view of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol

import numpy as np
from scipy.special import expit, logsumexp, ndtri

from bagwise.core import linalg, segments
from bagwise.core.arrays import (
    Array,
    Doubles,
    Floats,
    Ints,
    Reals,
    Rows,
    at_least,
    at_most,
    beside,
    concatenate,
    is_tensor,
    namespace,
    to_numpy,
)
from bagwise.core.blocks import whole_segments
from bagwise.core.finite import all_finite
from bagwise.core.gaussians import SigmoidMoments, hermite, sigmoid_moments
from bagwise.core.rules import bag_log_odds
from bagwise.models.drivers import Span
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.latent_map import (
    Fraction,
    InstanceMap,
    LatentMap,
    held_out_values,
    positive_fraction,
)
from bagwise.models.variational.likelihoods import Moments
from bagwise.models.variational.parts import Sites, rows_of, share_out
from bagwise.models.variational.projection import Projector, project_span
from bagwise.models.variational.updates import InducingPosterior, moments

BagRule = Literal["noisy-or", "max", "joint"]
# What is asked of a model: its bags, its instances too, or the latent function below as well.
Wants = Literal["bags", "probabilities", "all"]

# Joint bag posterior: quasi-random points over the leading directions of a bag's covariance.
N_SAMPLES = 256
# The residual noise is small, so that few nodes integrate it out.
_NOISE_NODES = 9
# Left-out scores serve calibration; 1e-3 is plenty.
_LEFT_OUT_NODES = 32
_ROWS = 1024
_TINY = float(np.finfo(np.float64).tiny)


class BagScores(NamedTuple):
    """Log-odds and standard deviation of the probability of every bag."""

    log_odds: Floats  # [b]
    std: Floats  # [b]


def bag_scores(
    p: SigmoidMoments, offsets: segments.Offsets, rule: Literal["noisy-or", "max"]
) -> BagScores:
    """Bags from the moments of their instances, independent given q. P(34-36).

    The standard deviation of ``1 - prod sigmoid(-f)`` is closed form for independent f:
    no sampling is needed.
    """
    log_odds = bag_log_odds(p.log_odds, offsets, rule)
    if rule == "max":
        return BagScores(log_odds, p.std[segments.argmax(p.log_odds, offsets)])
    none = segments.sum(p.log_negative, offsets)
    square = segments.sum(p.log_negative_squared, offsets)
    return BagScores(log_odds, _std_from_logs(none, square))


def _std_from_logs(log_mean: Doubles, log_square: Doubles) -> Doubles:
    xp = namespace(log_mean)
    return at_least(xp.exp(log_square) - xp.exp(2 * log_mean), 0.0) ** 0.5


def joint_bag_scores(
    A: Sequence[Array],
    r: Floats,
    offsets: Ints,
    q: InducingPosterior,
    n_samples: int = N_SAMPLES,
    latent_map: LatentMap | None = None,
    device: object = None,
) -> BagScores:
    """Bags whose instances are correlated through u: ``E_v [1 - prod_n E sigmoid(-f_n | v)]``.

    The samples are worked through on a torch ``device`` where one is named.
    """
    mean = np.concatenate([chunk.T @ q.m.astype(chunk.dtype, copy=False) for chunk in A])
    V = np.concatenate([linalg.lower_times(q.W.astype(a.dtype, copy=False), a) for a in A], axis=1)
    if latent_map is not None:
        mean = latent_map.read(mean, linalg.column_squares(V) + r).mean
        V, r = latent_map.spread * V, latent_map.spread**2 * r
    bags = []
    # A device wants more at a time than a processor's cache.
    for first, last in whole_segments(offsets, _ROWS if device is None else 16 * _ROWS):
        rows = slice(int(offsets[first]), int(offsets[last]))
        own = offsets[first : last + 1] - rows.start
        bags.append(_joint(mean[rows], V[:, rows], r[rows], own, n_samples, device))
    return BagScores(*np.concatenate(bags, axis=1))


def _joint(
    mean: Floats, V: Reals, r: Floats, offsets: Ints, n_samples: int, device: object = None
) -> Floats:
    """Log-odds and std of ``1 - prod sigmoid(-f)`` for neighbouring bags, [2, b].

    f = mean + V^T z + noise of variance r; all bags see the same z, each on its own axes.
    """
    n = segments.lengths(offsets)
    log_none, log_square = np.zeros((2, len(n), n_samples))
    for size in np.unique(n):
        bags = np.flatnonzero(n == size)
        rows = offsets[bags, None] + np.arange(size)  # [bags, size]
        F = _principal(V.T[rows])
        z = _normal_points(n_samples, F.shape[2])
        # A large bag alone is worked through in steps.
        for start in range(0, int(size), _ROWS):
            some = slice(start, start + _ROWS)
            f = mean[rows[:, some], None] + F[:, some] @ z  # [bags, size, samples]
            none = _negative_moments(*(_placed(x, device) for x in (f, r[rows[:, some], None])))
            log_none[bags] += to_numpy(none[0].sum(1))
            log_square[bags] += to_numpy(none[1].sum(1))
    log_mean = logsumexp(log_none, axis=1) - np.log(n_samples)
    log_mean_square = logsumexp(log_square, axis=1) - np.log(n_samples)
    # log(1 - prod) averaged in the log domain too, so that a tiny bag probability keeps its digits.
    with np.errstate(divide="ignore"):
        log_some = logsumexp(np.log(-np.expm1(log_none)), axis=1) - np.log(n_samples)
    return np.stack([log_some - log_mean, _std_from_logs(log_mean, log_mean_square)])


def _principal(V: Reals) -> Floats:
    """``F`` with ``F F^T = V V^T`` for bags of one size, columns by falling variance, signs fixed.

    ``V`` [bags, n, M]; F [bags, n, d] with d the smaller of n and M.
    """
    V = np.asarray(V, dtype=np.float64)
    turned = V.transpose(0, 2, 1)
    if V.shape[1] <= V.shape[2]:
        values, U = np.linalg.eigh(V @ turned)
        F = U * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    else:
        F = V @ np.linalg.eigh(turned @ V)[1]
    F = F[:, :, ::-1]
    # The sign of an eigenvector is arbitrary; fix it, so that the order of instances is too.
    top = np.take_along_axis(F, np.abs(F).argmax(axis=1)[:, None, :], axis=1)
    return F * np.where(top < 0, -1.0, 1.0)


def _placed(x: Floats, device: object) -> Doubles:
    if device is None:
        return x
    import torch

    return torch.as_tensor(x).to(device)


def _negative_moments(f: Doubles, r: Doubles) -> tuple[Doubles, Doubles]:
    """Logarithms of ``E sigmoid(-g)`` and of ``E sigmoid(-g)^2``, g ~ N(f, r)."""
    nodes, weights = hermite(_NOISE_NODES)
    xp, std, mean, square = namespace(f), r**0.5, 0.0 * f, 0.0 * f
    # exp(f + s z) = exp(f) exp(s z): one exponential per value, however many nodes. What overflows
    # has a sigmoid of 0.
    with np.errstate(over="ignore"):
        odds = _finite_exp(f)
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            negative = odds * _finite_exp(std * node)
            negative += 1
            negative = 1 / negative
            square += weight * negative * negative
            negative *= weight
            mean += negative
    return xp.log(at_least(mean, _TINY)), xp.log(at_least(square, _TINY))


def _finite_exp(x: Doubles) -> Doubles:
    """``exp(x)``, neither 0 nor infinite."""
    return namespace(x).exp(at_most(at_least(x, -709.0), 709.0))


@lru_cache(maxsize=32)
def _normal_points(n: int, d: int) -> Array:
    """Standard normal points [d, n]: a Sobol sequence, shifted off the origin by a fixed amount."""
    from scipy.stats import qmc

    points = qmc.Sobol(d, scramble=False).random(n)  # [n, d]
    shift = np.random.default_rng(0).random(d)
    return ndtri(np.clip((points + shift) % 1.0, 1e-12, 1 - 1e-12)).T


class Readout(NamedTuple):
    """What q(v) says about the bags of a block, through a map where there is one.

    What was not asked for is left empty.
    """

    bag: Floats  # [b] log-odds by a rule
    bag_std: Floats  # [b] standard deviation of the bag's probability
    instance: Floats  # [n] log-odds of the expected probability
    instance_std: Floats  # [n] standard deviation of the instance's probability
    latent_mean: Floats  # [n] E f, before the map
    latent_var: Floats  # [n]
    fraction: Fraction | None = None  # of positives in each bag, where asked for


def read_block(
    block: Block,
    q: InducingPosterior,
    rule: BagRule,
    latent_map: LatentMap | None = None,
    fractions: bool = False,
    wants: Wants = "all",
    instance_map: InstanceMap | None = None,
) -> Readout:
    """Bags and instances of one block under a rule; worked out where the block lives.

    ``latent_map`` is that of the bags; instances have it too unless they have their own.
    """
    if wants == "bags" and rule == "max" and not fractions:
        return _read_top(block, moments(block.A, block.r, q), latent_map)
    if instance_map is None:
        readout = read_rules(block, q, (rule,), latent_map, latent=wants == "all")[0]
    else:
        readout = _read_own(block, q, rule, latent_map, instance_map, latent=wants == "all")
    if not fractions:
        return readout
    if instance_map is None:
        share = _read_fractions(block, q, latent_map or LatentMap())
    else:
        share = _read_fractions(block, q, instance_map.own)
        share = instance_map.fraction(share, readout.bag)
        # The mean of the instances' own probabilities, to the last digit.
        offsets = np.asarray(to_numpy(block.labels.offsets), dtype=np.int64)
        share = share._replace(mean=segments.mean(expit(readout.instance), offsets))
    return readout._replace(fraction=share)


def _read_fractions(block: Block, q: InducingPosterior, latent_map: LatentMap) -> Fraction:
    """Share of positives in each bag of a block, under the mapped function."""
    f = held_out_values([block], q, joint=True)
    mapped = latent_map.read(f.mean, f.var)
    return positive_fraction(mapped.mean, mapped.var, latent_map.functions(f), f.offsets)


def _read_own(
    block: Block,
    q: InducingPosterior,
    rule: BagRule,
    latent_map: LatentMap | None,
    instance_map: InstanceMap,
    latent: bool,
) -> Readout:
    """Bags by their map, instances by their own."""
    f = moments(block.A, block.r, q)
    if rule == "max":
        bags = BagScores(*_read_top(block, f, latent_map)[:2])
    else:
        bags = _read_bags(block, _mapped(f.mean, f.var, latent_map), q, rule, latent_map)
    of_bag = (segments.spread(beside(x, f.mean), block.labels.offsets) for x in bags)
    p = instance_map.probabilities(f.mean, f.var, *of_bag)
    below = (to_numpy(f.mean), to_numpy(f.var)) if latent else (np.empty(0), np.empty(0))
    return Readout(*bags, to_numpy(p.log_odds), to_numpy(p.std), *below)


def _read_top(block: Block, f: Moments, latent_map: LatentMap | None) -> Readout:
    """The bags by their largest instance; a map keeps the order, so it need see no other."""
    top = segments.argmax(sigmoid_moments(f.mean, f.var).log_odds, block.labels.offsets)
    p = _mapped(f.mean[top], f.var[top], latent_map)
    nothing = np.empty(0)
    return Readout(to_numpy(p.log_odds), to_numpy(p.std), nothing, nothing, nothing, nothing)


def _mapped(mean: Array, var: Array, latent_map: LatentMap | None) -> SigmoidMoments:
    if latent_map is None:
        return sigmoid_moments(mean, var)
    return latent_map.read(mean, var).probabilities


def read_rules(
    block: Block,
    q: InducingPosterior,
    rules: Sequence[BagRule],
    latent_map: LatentMap | None = None,
    latent: bool = True,
) -> list[Readout]:
    """`read_block` for several rules at once, which share the moments of the instances."""
    f = moments(block.A, block.r, q)
    p = _mapped(f.mean, f.var, latent_map)
    instances = to_numpy(p.log_odds), to_numpy(p.std)
    below = (to_numpy(f.mean), to_numpy(f.var)) if latent else (np.empty(0), np.empty(0))
    bags = [_read_bags(block, p, q, rule, latent_map) for rule in rules]
    return [Readout(*own, *instances, *below) for own in bags]


def _read_bags(
    block: Block,
    p: SigmoidMoments,
    q: InducingPosterior,
    rule: BagRule,
    latent_map: LatentMap | None,
) -> BagScores:
    offsets = block.labels.offsets
    if rule != "joint":
        return BagScores(*(to_numpy(x) for x in bag_scores(p, offsets, rule)))
    A = [_host(a) for a in block.A]
    host = np.asarray(to_numpy(offsets), dtype=np.int64)
    device = block.r.device if is_tensor(block.r) else None
    bags = joint_bag_scores(A, to_numpy(block.r), host, q, latent_map=latent_map, device=device)
    # A bag is at least as positive as each of its instances, also with few samples.
    largest = to_numpy(segments.max(p.log_odds, offsets))
    return bags._replace(log_odds=np.maximum(bags.log_odds, largest))


class Scores(NamedTuple):
    """All that a model says about bags: log-odds, and the probabilities' standard deviations."""

    bag: Floats  # [B]
    bag_std: Floats  # [B]
    instance: Floats  # [N]
    instance_std: Floats  # [N]


class Reader(NamedTuple):
    """A posterior on the projections of one projector, and the rule that reads bags off it."""

    projector: int  # position in the list of projectors
    q: InducingPosterior
    rule: BagRule
    latent_map: LatentMap | None = None
    fractions: bool = False  # whether to read the share of positives in each bag, too
    wants: Wants = "all"  # what will be looked at
    instance_map: InstanceMap | None = None

    def read(self, block: Block) -> Readout:
        """The bags and instances of a block."""
        return read_block(block, *self[1:])


class ReadsBlocks(Protocol):
    """What reads the projections of one projector."""

    @property
    def projector(self) -> int:
        """Position in the list of projectors."""

    def read(self, block: Block) -> Readout:
        """What it says about the bags of a block."""


class RowPart(NamedTuple):
    """Neighbouring bags to predict: their rows, read on demand."""

    X: Rows
    spans: tuple[Span, ...]
    offsets: Ints  # of all bags

    @property
    def start(self) -> int:
        """Number of the first row in the whole."""
        return self.spans[0].start


def make_row_parts(X: Rows, offsets: Ints, spans: list[Span], n_parts: int) -> list[RowPart]:
    """Bags to predict, cut into at most ``n_parts`` parts of about as many rows."""
    return [RowPart(rows_of(X, g), g, offsets) for g in share_out(spans, n_parts)]


class NotFiniteError(ValueError):
    """Rows that were read for the first time hold NaN or infinity."""


@dataclass(frozen=True)
class ReadRows:
    """Columns made of the readouts of every bag of a part; picklable, for any driver.

    Rows are read once, whatever the number of projectors and readers.
    """

    projectors: tuple[Projector, ...]
    readers: tuple[ReadsBlocks, ...]
    finish: Callable[[Sequence[Readout], Ints], tuple[Floats, ...]]  # and the bags' offsets
    check: bool  # whether the rows have not been looked at for NaN and infinity

    def __call__(self, part: RowPart) -> tuple[Floats, ...]:
        """One array per column, on the host."""
        spans = [self._columns(part, span) for span in part.spans]
        return tuple(concatenate(column) for column in zip(*spans, strict=True))

    def _columns(self, part: RowPart, span: Span) -> tuple[Floats, ...]:
        rows = part.X[span.start - part.start : span.stop - part.start]
        if self.check and not all_finite(rows):
            raise NotFiniteError
        offsets = part.offsets[span.first_bag : span.last_bag + 1] - span.start
        n_bags = span.last_bag - span.first_bag
        unknown = np.full(span.stop - span.start, -1, dtype=np.int8)
        labels = BagLabels(offsets, np.zeros(n_bags, dtype=int), unknown)
        readouts: dict[int, Readout] = {}
        for number, projector in enumerate(self.projectors):
            block = project_span(rows, labels, span, projector, span.first_bag, span.start)
            for i, reader in enumerate(self.readers):
                if reader.projector == number:
                    readouts[i] = reader.read(block)
        return self.finish([readouts[i] for i in range(len(self.readers))], offsets)


def _own_type(x: Array) -> Array:
    """On the host, in its own type of numbers."""
    return x.cpu().numpy() if is_tensor(x) else x


def on_host(block: Block) -> Block:
    """The block as NumPy arrays in float64, wherever it lives."""
    if not is_tensor(block.A[0]):
        return block
    labels = block.labels.map(_own_type)
    return Block(tuple(_host(a) for a in block.A), to_numpy(block.r), labels)


def _host(A: Array) -> Array:
    return np.asfortranarray(to_numpy(A)) if is_tensor(A) else A


class LeftOut(NamedTuple):
    """Latent moments of every instance when its bag is left out."""

    mean: Array  # [n]
    var: Array  # [n]
    factors: dict[int, Array]  # bag -> V [d, n_b], V^T V its covariance without r; joint rule only


def leave_bags_out(
    block: Block, q: InducingPosterior, sites: Sites, joint: bool = False
) -> LeftOut:
    """Latent moments of each bag from the q(v) fitted without it, at fixed weights and theta.

    With ``C = A_b^T S A_b``, ``Theta = diag(omega)``: ``m = (I - C Theta)^{-1} (E f - C rho)``,
    ``V = (I - C Theta)^{-1} C``, solved in the symmetric form ``I - Theta^{1/2} C Theta^{1/2}``.
    Bags of one size are solved together; bags larger than M in the M-space.
    """
    block, sites = on_host(block), Sites(to_numpy(sites.omega), to_numpy(sites.rho))
    dtype = block.A[0].dtype
    m, W = q.m.astype(dtype, copy=False), q.W.astype(dtype, copy=False)
    V = np.concatenate([linalg.lower_times(W, chunk).T for chunk in block.A]).T  # [M, n]
    mean = np.concatenate([chunk.T @ m for chunk in block.A]).astype(np.float64, copy=False)
    var = np.empty_like(mean)
    offsets = np.asarray(block.labels.offsets)
    sizes, factors = np.diff(offsets), {}
    for size in np.unique(sizes):
        chosen = np.flatnonzero(sizes == size)
        if size > len(V):
            for b in chosen:
                rows = slice(int(offsets[b]), int(offsets[b + 1]))
                mean[rows], factor = _left_out_large(V[:, rows], q, sites, rows)
                var[rows] = linalg.column_squares(factor)
                if joint:
                    factors[int(b)] = factor
            continue
        index = offsets[chosen, None] + np.arange(size)  # [g, size]
        mean[index], C = _left_out_small(V, mean, sites, index)
        var[index] = np.diagonal(C, axis1=1, axis2=2)
        if joint:
            factors.update(zip(chosen.tolist(), map(_square_root, C), strict=True))
    return LeftOut(mean, np.maximum(var, 0.0) + block.r, factors)


def _left_out_small(V: Array, mean: Array, sites: Sites, rows: Array) -> tuple[Array, Array]:
    Vb = V.T[rows]  # [g, size, M]
    C = (Vb @ Vb.transpose(0, 2, 1)).astype(np.float64, copy=False)
    D = np.sqrt(sites.omega[rows])[:, :, None]  # [g, size, 1]
    G = np.eye(rows.shape[1]) - D * C * D.transpose(0, 2, 1)
    base = mean[rows][:, :, None] - C @ sites.rho[rows][:, :, None]
    CD = C * D.transpose(0, 2, 1)
    solved = np.linalg.solve(G, D * np.concatenate([base, C], axis=2))
    left = np.concatenate([base, C], axis=2) + CD @ solved
    return left[:, :, 0], left[:, :, 1:]


def _left_out_large(
    V: Array, q: InducingPosterior, sites: Sites, rows: slice
) -> tuple[Array, Array]:
    """In coordinates where S = I: precision ``I - V Theta V^T``, linear part less ``V rho``."""
    V = np.asfortranarray(V, dtype=np.float64)
    gram = linalg.weighted_gram(V, to_numpy(sites.omega[rows]))
    inverse = linalg.inverse_factor(np.asfortranarray(np.eye(V.shape[0]) - gram))
    whole = linalg.solve_upper(q.W.T, q.m)
    factor = linalg.lower_times(inverse, V)  # [M, n]
    return factor.T @ (inverse @ (whole - V @ sites.rho[rows])), factor


def _square_root(C: Array) -> Array:
    values, U = np.linalg.eigh((C + C.T) / 2)
    return (U * np.sqrt(np.maximum(values, 0.0))).T


class LeftOutScores(NamedTuple):
    """Log-odds of bags, and of their instances, predicted without the bag."""

    bags: Floats  # [b]
    instances: Floats  # [n]


def loo_scores(block: Block, q: InducingPosterior, sites: Sites, rule: BagRule) -> LeftOutScores:
    """Log-odds predicted without the bag, at fixed weights and theta."""
    block = on_host(block)
    left = leave_bags_out(block, q, sites, joint=rule == "joint")
    offsets = np.asarray(block.labels.offsets)
    p = sigmoid_moments(left.mean, left.var, n_nodes=_LEFT_OUT_NODES)
    if rule != "joint":
        return LeftOutScores(bag_scores(p, offsets, rule).log_odds, p.log_odds)
    mean, r = to_numpy(left.mean), to_numpy(block.r)
    joint = [
        _joint(mean[a:b], left.factors[i], r[a:b], np.array([0, b - a]), N_SAMPLES)[0, 0]
        for i, (a, b) in enumerate(itertools.pairwise(offsets))
    ]
    # As in `read_rules`: a bag is at least as positive as each of its instances.
    return LeftOutScores(np.maximum(joint, segments.max(p.log_odds, offsets)), p.log_odds)
