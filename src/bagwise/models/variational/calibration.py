"""Calibration on bags whose labels the model never saw, as a map of the latent function.

Leaving a bag out at fixed sites is not enough: its label still sits in the sites of the others.
Here the model is fitted again without each fold of bags, from the start, on the projection that
all fits share. The left-out bags' latent values f ~ N(mean, var) are then mapped to

``f' = slope * f + intercept``,  slope >= 0,

so that the bags they make under the model's own rule have the likelihood of their labels as
large as possible. Everything that is reported follows from the one distribution of f':
a probability is the mean of sigmoid(f'), a standard deviation that of sigmoid(f'), an interval
has its quantiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from array_api_compat import is_torch_array
from scipy.optimize import minimize, minimize_scalar
from scipy.special import betaincinv, expit, ndtri
from sklearn.model_selection import StratifiedKFold

from bagwise.core import segments
from bagwise.core.arrays import to_numpy
from bagwise.core.gaussians import SigmoidMoments, sigmoid_moments
from bagwise.core.rules import bag_log_odds
from bagwise.models.variational.likelihoods import Labels
from bagwise.models.variational.marginal import draw_functions
from bagwise.models.variational.updates import Block, Posterior, moments

BagRule = Literal["noisy-or", "max", "joint"]

# Nodes for expectations while the map is fitted; 1e-3 is plenty there.
_NODES = 20
# Bags are thinned so that the fit of two numbers sees at most this many instances.
_MOST_INSTANCES = 100_000
# Smallest mapped spread of the scores, so that a ranking is kept where the best slope is 0.
_LEAST_SPREAD = 1e-3


class LatentMap(NamedTuple):
    """``f' = slope f + intercept``; the identity by default."""

    slope: float = 1.0
    intercept: float = 0.0

    def moments(self, mean: Any, var: Any) -> tuple[Any, Any]:
        """Mean and variance of f' from those of f."""
        return self.slope * mean + self.intercept, self.slope**2 * var

    def probabilities(self, mean: Any, var: Any) -> SigmoidMoments:
        """Moments of sigmoid(f') for every instance."""
        return sigmoid_moments(*self.moments(mean, var))


class Interval(NamedTuple):
    """Lower and upper end of a central interval of a probability."""

    low: Any
    high: Any


def instance_interval(mean: Any, var: Any, level: float) -> Interval:
    """Central interval of sigmoid(f), f ~ N(mean, var): quantiles pass through the sigmoid.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.calibration import instance_interval
    >>> low, high = instance_interval(np.zeros(1), np.ones(1), 0.9)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.162], [0.838])
    """
    mean, half = np.asarray(mean), ndtri((1 + _level(level)) / 2) * np.sqrt(var)
    return Interval(expit(mean - half), expit(mean + half))


def beta_interval(p: Any, std: Any, level: float) -> Interval:
    """Central interval of the Beta distribution with this mean and standard deviation.

    For bags under noisy-or and joint, and for the share of positives in a bag, whose
    distributions have known moments but no simple quantiles.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.calibration import beta_interval
    >>> low, high = beta_interval(np.array([0.5]), np.array([12**-0.5]), 0.9)  # uniform
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.05], [0.95])
    """
    p, std = np.asarray(p, dtype=np.float64), np.asarray(std, dtype=np.float64)
    tail = (1 - _level(level)) / 2
    variance = p * (1 - p)
    sure = std**2 <= 1e-12 * variance + 1e-300
    # No distribution on [0, 1] spreads more than two points at its ends.
    size = np.maximum(variance / np.where(sure, 1.0, std**2) - 1, 1e-6)
    a, b = np.maximum(p * size, 1e-12), np.maximum((1 - p) * size, 1e-12)
    low, high = betaincinv(a, b, tail), betaincinv(a, b, 1 - tail)
    return Interval(np.where(sure, p, low), np.where(sure, p, high))


def _level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"an interval needs a level strictly between 0 and 1; got {level!r}.")
    return level


class Fraction(NamedTuple):
    """Share of positive instances in every bag: mean and standard deviation."""

    mean: Any  # [b]
    std: Any  # [b]


def positive_fraction(mean: Any, var: Any, functions: Any, offsets: Any) -> Fraction:
    """The share of positives in each bag, from latent moments and functions drawn from q [n, C].

    Its variance is that of the mean probability over functions, which instances share, plus that
    of the labels given the probabilities. Arguments are mapped already.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.calibration import positive_fraction
    >>> share = positive_fraction(np.zeros(4), np.zeros(4), np.zeros((4, 2)), np.array([0, 4]))
    >>> share.mean.tolist(), share.std.tolist()  # four tosses of a coin
    ([0.5], [0.25])
    """
    n = segments.lengths(np.asarray(offsets))
    centre = segments.mean(np.exp(sigmoid_moments(mean, var).log_positive), offsets)
    p = expit(to_numpy(functions))
    between = segments.mean(p, offsets).var(axis=1)
    within = segments.mean((p * (1 - p)).mean(axis=1), offsets) / n
    return Fraction(centre, np.sqrt(between + within))


class HeldOut(NamedTuple):
    """Latent values of bags under models that were fitted without them."""

    mean: Any  # [n]
    var: Any  # [n]
    offsets: Any  # [b + 1]
    functions: Any = None  # [n, C] drawn from q, for the joint rule

    def take(self, bags: Any) -> HeldOut:
        """Only some bags, in the order given."""
        rows, offsets = segments.take(self.offsets, bags)
        functions = None if self.functions is None else self.functions[rows]
        return HeldOut(self.mean[rows], self.var[rows], offsets, functions)


def bag_folds(y: Any, n_folds: int = 5, random_state: Any = 0) -> Any:
    """Fold of every bag, stratified by label; as many as the rarer class has bags, at least 2.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.calibration import bag_folds
    >>> sorted(bag_folds(np.array([0, 0, 0, 1, 1, 1]), n_folds=3).tolist())
    [0, 0, 1, 1, 2, 2]
    """
    y = np.asarray(y)
    fewest = int(np.bincount(y, minlength=2).min())
    if fewest < 2:
        raise ValueError(f"calibration needs at least 2 bags of each class; got {fewest}.")
    splitter = StratifiedKFold(min(n_folds, fewest), shuffle=True, random_state=random_state)
    fold = np.empty(len(y), dtype=np.int64)
    for k, (_, left_out) in enumerate(splitter.split(y, y)):
        fold[left_out] = k
    return fold


def select_bags(blocks: Iterable[Block], chosen: Any) -> Iterator[Block]:
    """The chosen bags (a mask over all bags, in order) of each block; blocks left empty go.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.calibration import select_bags
    >>> from bagwise.models.variational.likelihoods import Labels
    >>> from bagwise.models.variational.updates import make_blocks
    >>> labels = Labels(np.array([0, 2, 3]), np.array([0, 1]), np.full(3, -1))
    >>> blocks = make_blocks(np.ones((1, 3)), np.ones(3), labels)
    >>> [block.A[0].shape for block in select_bags(blocks, np.array([True, False]))]
    [(1, 2)]
    """
    start = 0
    for block in blocks:
        offsets = to_numpy(block.labels.offsets).astype(np.int64)
        own = np.asarray(chosen[start : start + len(offsets) - 1])
        start += len(own)
        if own.all():
            yield block
        elif own.any():
            yield _selected(block, offsets, np.flatnonzero(own))


def _selected(block: Block, offsets: Any, bags: Any) -> Block:
    rows, new = segments.take(offsets, bags)
    owner = np.searchsorted(np.cumsum([a.shape[1] for a in block.A]), rows, side="right")
    starts = np.cumsum([0] + [a.shape[1] for a in block.A])
    chunks = []
    for i, chunk in enumerate(block.A):
        columns = rows[owner == i] - starts[i]
        if len(columns):
            chunks.append(_columns(chunk, columns))
    labels = Labels(_place(new, block), block.labels.y[_place(bags, block)], None)
    known = block.labels.known[_place(rows, block)]
    return Block(tuple(chunks), block.r[_place(rows, block)], labels._replace(known=known))


def _columns(A: Any, columns: Any) -> Any:
    if not is_torch_array(A):
        return np.asfortranarray(A[:, columns])
    import torch

    return A[:, torch.as_tensor(columns, device=A.device)]


def _place(x: Any, block: Block) -> Any:
    """Whole numbers where the block lives."""
    if not is_torch_array(block.r):
        return x
    import torch

    return torch.as_tensor(x, device=block.r.device)


def rule_log_odds(held_out: HeldOut, rule: BagRule, latent_map: LatentMap) -> Any:
    """Log-odds of the bags under a rule, with the map put in, [b]."""
    if rule != "joint":
        p = sigmoid_moments(*latent_map.moments(held_out.mean, held_out.var), n_nodes=_NODES)
        return bag_log_odds(p.log_odds, held_out.offsets, rule)
    if held_out.functions is None:
        raise ValueError("the joint rule needs functions drawn from q(f); got None.")
    f = latent_map.slope * held_out.functions + latent_map.intercept  # [n, C]
    log_none = -segments.sum(np.logaddexp(0.0, f), held_out.offsets)
    none, some = np.exp(log_none).mean(1), -np.expm1(log_none).mean(1)
    tiny = np.finfo(np.float64).tiny
    return np.log(np.maximum(some, tiny)) - np.log(np.maximum(none, tiny))


def fit_map(
    held_out: HeldOut,
    y: Any,
    rule: BagRule,
    known: Any = None,
    *,
    random_state: Any = 0,
) -> LatentMap:
    """The map under which held-out bags have their labels most likely, shrunk where that is noise.

    Two numbers are fitted by maximum likelihood with Platt's smoothed targets; known instance
    labels (0 or 1; -1 where unknown) join as bags of one. The slope is then multiplied by
    ``max(0, 1 - 1 / (2 gain))``, the gain being the rise in log-likelihood that the slope has
    brought over the base rate: the positive-part estimate of James and Stein, for which
    ``2 gain`` is the squared ratio of the slope to its error. Scores that say nothing about the
    labels so give the base rate, and a slope that is sure stays as it is.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.calibration import HeldOut, fit_map
    >>> rng = np.random.default_rng(0)
    >>> f = 3 * rng.normal(size=400)  # three times too sure
    >>> y = (rng.random(400) < 1 / (1 + np.exp(-f / 3))).astype(int)
    >>> held_out = HeldOut(f, np.zeros(400), np.arange(401))
    >>> 0.2 < fit_map(held_out, y, "max").slope < 0.45
    True
    """
    y = np.asarray(y, dtype=np.float64)
    held_out, y, known = _thinned(held_out, y, known, random_state)
    target = _smoothed(y)
    rows = np.arange(0) if known is None else np.flatnonzero(np.asarray(known) >= 0)
    given = None if known is None else np.asarray(known, dtype=np.float64)[rows]
    spread = float(np.std(held_out.mean)) or 1.0

    def loss(slope: float, intercept: float) -> float:
        latent_map = LatentMap(slope, intercept)
        z = rule_log_odds(held_out, rule, latent_map)
        value = float(np.sum(np.logaddexp(0.0, z) - target * z))
        if given is not None and len(rows):
            own = latent_map.moments(held_out.mean[rows], held_out.var[rows])
            log_odds = sigmoid_moments(*own, n_nodes=_NODES).log_odds
            value += float(np.sum(np.logaddexp(0.0, log_odds) - given * log_odds))
        return value

    def best_intercept(slope: float) -> tuple[float, float]:
        centre = slope * float(np.mean(held_out.mean))
        found = minimize_scalar(
            lambda b: loss(slope, b - centre), bounds=(-30.0, 30.0), method="bounded"
        )
        return float(found.x) - centre, float(found.fun)

    flat = best_intercept(0.0)[1]
    found = minimize(
        lambda x: loss(x[0] / spread, x[1]),
        np.array([min(spread, 1.0), 0.0]),
        method="L-BFGS-B",
        bounds=[(0.0, None), (None, None)],
    )
    gain = flat - float(found.fun)
    factor = max(0.0, 1 - 1 / (2 * gain)) if gain > 0 else 0.0
    slope = max(factor * float(found.x[0]), _LEAST_SPREAD) / spread
    return LatentMap(slope, best_intercept(slope)[0])


def _smoothed(y: Any) -> Any:
    """Platt's targets: short of 0 and 1 by what so few bags cannot show."""
    n_pos, n_neg = y.sum(), (1 - y).sum()
    return np.where(y > 0, (n_pos + 1) / (n_pos + 2), 1 / (n_neg + 2))


def _thinned(held_out: HeldOut, y: Any, known: Any, random_state: Any) -> tuple[HeldOut, Any, Any]:
    """At most `_MOST_INSTANCES` instances, of bags chosen at random."""
    n = int(held_out.offsets[-1])
    if n <= _MOST_INSTANCES:
        return held_out, y, known
    order = np.random.default_rng(random_state).permutation(len(y))
    sizes = segments.lengths(held_out.offsets)[order]
    chosen = np.sort(order[: max(2, int(np.searchsorted(np.cumsum(sizes), _MOST_INSTANCES)))])
    rows, _ = segments.take(held_out.offsets, chosen)
    return held_out.take(chosen), y[chosen], None if known is None else np.asarray(known)[rows]


def held_out_values(
    blocks: Sequence[Block], q: Posterior, joint: bool = False, n_functions: int = 64
) -> HeldOut:
    """Latent moments of the bags of some blocks under q, and functions where a rule needs them."""
    means, variances, sizes, functions = [], [], [], []
    for block in blocks:
        f = moments(block.A, block.r, q)
        means.append(to_numpy(f.mean))
        variances.append(to_numpy(f.var))
        sizes.append(to_numpy(segments.lengths(block.labels.offsets)).astype(np.int64))
        if joint:
            functions.append(to_numpy(draw_functions(block, q, n_functions)))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    drawn = np.concatenate(functions) if joint else None
    return HeldOut(np.concatenate(means), np.concatenate(variances), offsets, drawn)


def joined(parts: Sequence[HeldOut], folds: Any) -> HeldOut:
    """Held-out values of all folds (bags of fold k in ``parts[k]``) in the order of the bags."""
    order = np.argsort(np.concatenate([np.flatnonzero(folds == k) for k in range(len(parts))]))
    sizes = np.concatenate([segments.lengths(part.offsets) for part in parts])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    drawn = (
        None if parts[0].functions is None else np.concatenate([part.functions for part in parts])
    )
    whole = HeldOut(
        np.concatenate([part.mean for part in parts]),
        np.concatenate([part.var for part in parts]),
        offsets,
        drawn,
    )
    return whole.take(order)


def refit_folds(
    blocks: Sequence[Block],
    folds: Any,
    fit: Callable[[list[Block]], Posterior],
    joint: bool = False,
) -> HeldOut:
    """Held-out latent values of every bag, from one fit for each fold without its bags.

    ``fit`` must start afresh: started from the fit to all bags, or from its beliefs, it would
    know the labels it is meant to do without. It is given no more than the other bags' blocks.
    """
    folds = np.asarray(folds)
    parts = []
    for k in range(int(folds.max()) + 1):
        q = fit(list(select_bags(blocks, folds != k)))
        parts.append(held_out_values(list(select_bags(blocks, folds == k)), q, joint))
    return joined(parts, folds)
