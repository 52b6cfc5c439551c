"""From q(v) to probabilities: instances, bags, and bags left out. P(30-36)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from array_api_compat import is_torch_array
from scipy.linalg import eigh
from scipy.special import logsumexp, ndtri

from bagwise.core import linalg, segments
from bagwise.core.arrays import to_numpy
from bagwise.core.gaussians import SigmoidMoments, sigmoid_moments
from bagwise.core.platt import Platt, cool, fit_noisy_or_platt, fit_platt, keep_ranking
from bagwise.core.rules import bag_log_odds
from bagwise.models.variational.likelihoods import Labels
from bagwise.models.variational.updates import Block, Posterior, Sites, moments

BagRule = Literal["noisy-or", "max", "joint"]

# Joint bag posterior: quasi-random points over the leading directions of a bag's covariance.
N_SAMPLES = 256
# The residual noise is small, so that few nodes integrate it out.
_NOISE_NODES = 9
# Left-out scores serve calibration; 1e-3 is plenty.
_LEFT_OUT_NODES = 32
_ROWS = 1024


class BagScores(NamedTuple):
    """Log-odds and standard deviation of the probability of every bag."""

    log_odds: Any  # [b]
    std: Any  # [b]


def bag_scores(p: SigmoidMoments, offsets: Any, rule: Literal["noisy-or", "max"]) -> BagScores:
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


def _std_from_logs(log_mean: Any, log_square: Any) -> Any:
    return np.sqrt(np.maximum(np.exp(log_square) - np.exp(2 * log_mean), 0.0))


def joint_bag_scores(
    A: Sequence[Any], r: Any, offsets: Any, q: Posterior, n_samples: int = N_SAMPLES
) -> BagScores:
    """Bags whose instances are correlated through u: ``E_v [1 - prod_n E sigmoid(-f_n | v)]``."""
    mean = np.concatenate([chunk.T @ q.m.astype(chunk.dtype, copy=False) for chunk in A])
    V = np.concatenate([linalg.lower_times(q.W.astype(a.dtype, copy=False), a) for a in A], axis=1)
    found = []
    for a, b in itertools.pairwise(offsets):
        rows = slice(int(a), int(b))
        found.append(_joint(mean[rows], _principal(V[:, rows]), r[rows], n_samples))
    return BagScores(*np.array(found).T)


def _principal(V: Any) -> Any:
    """``F`` [n, d] with ``F F^T = V^T V``, columns by falling variance, signs fixed."""
    V = np.asarray(V, dtype=np.float64)
    if V.shape[1] <= V.shape[0]:
        values, U = eigh(V.T @ V, check_finite=False)
        F = U * np.sqrt(np.maximum(values, 0.0))
    else:
        _, U = eigh(V @ V.T, check_finite=False)
        F = V.T @ U
    F = F[:, ::-1]
    # The sign of an eigenvector is arbitrary; fix it, so that the order of instances is too.
    top = F[np.abs(F).argmax(axis=0), np.arange(F.shape[1])]
    return F * np.where(top < 0, -1.0, 1.0)


@lru_cache(maxsize=32)
def _normal_points(n: int, d: int) -> Any:
    """Standard normal points [d, n]: a Sobol sequence, shifted off the origin by a fixed amount."""
    from scipy.stats import qmc

    points = qmc.Sobol(d, scramble=False).random(n)  # [n, d]
    shift = np.random.default_rng(0).random(d)
    return ndtri(np.clip((points + shift) % 1.0, 1e-12, 1 - 1e-12)).T


def _joint(mean: Any, F: Any, r: Any, n_samples: int) -> tuple[float, float]:
    """Log-odds and std of ``1 - prod sigmoid(-f)``, f = mean + F z + noise of variance r."""
    z = _normal_points(n_samples, F.shape[1])
    log_none, log_square = np.zeros(n_samples), np.zeros(n_samples)
    for start in range(0, len(mean), _ROWS):
        rows = slice(start, start + _ROWS)
        f = mean[rows, None] + F[rows] @ z  # [n, samples]
        noise = np.broadcast_to(r[rows, None], f.shape)
        p = sigmoid_moments(f.ravel(), noise.ravel(), n_nodes=_NOISE_NODES)
        log_none += p.log_negative.reshape(f.shape).sum(0)
        log_square += p.log_negative_squared.reshape(f.shape).sum(0)
    log_mean = logsumexp(log_none) - np.log(n_samples)
    log_mean_square = logsumexp(log_square) - np.log(n_samples)
    # log(1 - prod) averaged in the log domain too, so that a tiny bag probability keeps its digits.
    with np.errstate(divide="ignore"):
        log_some = logsumexp(np.log(-np.expm1(log_none))) - np.log(n_samples)
    return log_some - log_mean, float(_std_from_logs(log_mean, log_mean_square))


def block_scores(
    A: Sequence[Any], r: Any, offsets: Any, q: Posterior, rule: BagRule, platt: Platt | None = None
) -> BagScores:
    """Scores of the bags of one block under any rule, calibrated if a map is given."""
    offsets = to_numpy(offsets).astype(np.int64)
    if rule == "joint":
        raw = joint_bag_scores([_host(a) for a in A], to_numpy(r), offsets, q)
        return raw if platt is None else BagScores(*_mapped(raw.log_odds, raw.std, platt))
    f = moments(A, r, q)
    p = recalibrate(sigmoid_moments(f.mean, f.var), platt)
    return bag_scores(p, offsets, rule)


def recalibrate(p: SigmoidMoments, platt: Platt | None) -> SigmoidMoments:
    """Moments of the instances after Platt's map; the spread is carried through its slope."""
    if platt is None:
        return p
    log_odds, std = _mapped(p.log_odds, p.std, platt)
    log_negative = -np.logaddexp(0.0, log_odds)
    with np.errstate(divide="ignore"):
        square = np.logaddexp(2 * log_negative, 2 * np.log(std))
    return SigmoidMoments(log_negative + log_odds, log_negative, square)


def _mapped(log_odds: Any, std: Any, platt: Platt) -> tuple[Any, Any]:
    """Mapped log-odds, and std times d p' / d p = slope p'(1 - p') / (p (1 - p)), in logs."""
    mapped = platt.log_odds(log_odds)
    gain = np.minimum(_log_variance(mapped) - _log_variance(log_odds), 50.0)
    # A probability spreads by at most sqrt(p (1 - p)).
    return mapped, np.minimum(std * platt.slope * np.exp(gain), np.exp(_log_variance(mapped) / 2))


def _log_variance(log_odds: Any) -> Any:
    """``log(p (1 - p))``."""
    return -np.logaddexp(0.0, log_odds) - np.logaddexp(0.0, -np.asarray(log_odds))


def on_host(block: Block) -> Block:
    """The block as NumPy arrays in float64, wherever it lives."""
    if not is_torch_array(block.A[0]):
        return block
    labels = Labels(*(x.cpu().numpy() for x in block.labels))
    return Block(tuple(_host(a) for a in block.A), to_numpy(block.r), labels)


def _host(A: Any) -> Any:
    return np.asfortranarray(to_numpy(A)) if is_torch_array(A) else A


class LeftOut(NamedTuple):
    """Latent moments of every instance when its bag is left out."""

    mean: Any  # [n]
    var: Any  # [n]
    factors: dict[int, Any]  # bag -> V [d, n_b], V^T V its covariance without r; joint rule only


def leave_bags_out(block: Block, q: Posterior, sites: Sites, joint: bool = False) -> LeftOut:
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


def _left_out_small(V: Any, mean: Any, sites: Sites, rows: Any) -> tuple[Any, Any]:
    Vb = V.T[rows]  # [g, size, M]
    C = (Vb @ Vb.transpose(0, 2, 1)).astype(np.float64, copy=False)
    D = np.sqrt(sites.omega[rows])[:, :, None]  # [g, size, 1]
    G = np.eye(rows.shape[1]) - D * C * D.transpose(0, 2, 1)
    base = mean[rows][:, :, None] - C @ sites.rho[rows][:, :, None]
    CD = C * D.transpose(0, 2, 1)
    solved = np.linalg.solve(G, D * np.concatenate([base, C], axis=2))
    left = np.concatenate([base, C], axis=2) + CD @ solved
    return left[:, :, 0], left[:, :, 1:]


def _left_out_large(V: Any, q: Posterior, sites: Sites, rows: slice) -> tuple[Any, Any]:
    """In coordinates where S = I: precision ``I - V Theta V^T``, linear part less ``V rho``."""
    V = np.asfortranarray(V, dtype=np.float64)
    gram = linalg.weighted_gram(V, sites.omega[rows])
    inverse = linalg.inverse_factor(np.asfortranarray(np.eye(V.shape[0]) - gram))
    whole = linalg.solve_upper(q.W.T, q.m)
    factor = linalg.lower_times(inverse, V)  # [M, n]
    return factor.T @ (inverse @ (whole - V @ sites.rho[rows])), factor


def _square_root(C: Any) -> Any:
    values, U = eigh((C + C.T) / 2, check_finite=False)
    return (U * np.sqrt(np.maximum(values, 0.0))).T


class LeftOutScores(NamedTuple):
    """Log-odds of bags, and of their instances, predicted without the bag."""

    bags: Any  # [b]
    instances: Any  # [n]


def loo_scores(block: Block, q: Posterior, sites: Sites, rule: BagRule) -> LeftOutScores:
    """Log-odds predicted without the bag, at fixed weights and theta."""
    block = on_host(block)
    left = leave_bags_out(block, q, sites, joint=rule == "joint")
    offsets = np.asarray(block.labels.offsets)
    p = sigmoid_moments(left.mean, left.var, n_nodes=_LEFT_OUT_NODES)
    if rule != "joint":
        return LeftOutScores(bag_scores(p, offsets, rule).log_odds, p.log_odds)
    joint = [
        _joint(left.mean[a:b], _principal(left.factors[i]), block.r[a:b], N_SAMPLES)[0]
        for i, (a, b) in enumerate(itertools.pairwise(offsets))
    ]
    return LeftOutScores(np.array(joint), p.log_odds)


def calibrate(
    left_out: LeftOutScores, offsets: Any, y: Any, rule: BagRule, held_out: Any = ()
) -> Platt:
    """Platt's map for instance scores, such that calibrated instances still make their bag.

    Under ``max`` it is the map of the bag score. Under ``noisy-or`` it is fitted through the
    product. Under ``joint`` it is that of the bag score, an instance counting as a bag of one.
    Where the left-out scores say nothing the best slope is 0; a hint of one keeps the ranking.
    Features that were learned from the labels make left-out scores optimistic; bags whose labels
    they did not see (``held_out``, indices) say how much.
    """
    if rule == "noisy-or":
        scores, platt = left_out.instances, fit_noisy_or_platt(left_out.instances, offsets, y)
    else:
        scores, platt = left_out.bags, fit_platt(left_out.bags, y)
    platt = keep_ranking(platt, scores)
    units = offsets if rule == "noisy-or" else np.arange(len(y) + 1)
    return cool(platt, scores, units, y, held_out)
