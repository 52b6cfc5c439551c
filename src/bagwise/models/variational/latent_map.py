"""Calibration on bags whose labels the model never saw, as a map of the latent function.

Leaving a bag out at fixed sites is not enough: its label still sits in the sites of the others.
Here the model is fitted again without each fold of bags, from the start (`refits`). The left-out
bags' latent values f ~ N(mean, var) are then mapped to

f' whose log-odds are ``slope * log-odds of f + intercept``, slope > 0,

so that the bags they make under the model's own rule have the likelihood of their labels as
large as possible. Where a bag is read off its largest instance, log-odds far outside of where bags
mostly lie are first pulled towards there: no line through the others says how sure they are.
Everything that is reported follows from the one distribution of f': a probability is the mean of
sigmoid(f'), a standard deviation that of sigmoid(f'), an interval has its quantiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import OptimizeResult, brentq, minimize, minimize_scalar
from scipy.special import betaincinv, expit, ndtri
from sklearn.model_selection import StratifiedKFold

from bagwise.core import segments
from bagwise.core.arrays import (
    Array,
    ArrayT,
    Bools,
    Doubles,
    Floats,
    Ints,
    at_least,
    at_most,
    beside,
    is_tensor,
    namespace,
    softplus,
    to_numpy,
)
from bagwise.core.gaussians import SigmoidMoments, sigmoid_moments
from bagwise.core.platt import (
    Platt,
    calibration_folds,
    compress_beyond,
    cool,
    shrinkage,
    smoothed,
    typical_range,
)
from bagwise.core.rules import bag_log_odds
from bagwise.models.drivers import one_blas_thread
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.marginal import draw_functions
from bagwise.models.variational.updates import InducingPosterior, moments

BagRule = Literal["noisy-or", "max", "joint"]

# Nodes for expectations while the map is fitted; 1e-3 is plenty there.
_NODES = 20
# Two numbers are fitted to bags of at most this many instances in all.
_MOST_INSTANCES = 100_000
# However large bags are, so many are looked at, and so many held out where there are more.
_ENOUGH_BAGS, _MANY_BAGS = 50, 1_000
# Bags of each class that are held out, at least, if there are as many.
ENOUGH_OF_CLASS = 25
# Scores, and groups of neighbouring ones, that stand for those of many times as many instances.
_GROUPS = 5_000
# Smallest mapped spread of the scores, so that a ranking is kept where the best slope is 0.
_LEAST_SPREAD = 1e-3
# Where the map is sought: log-odds of an average bag, and log of the mapped spread of the scores.
# Deviations of log-odds are sought within as many powers of e.
_WIDEST = 20.0
_STEEPEST = 4.0
# How far the slope of instances may lie from that of bags: standard deviation of its logarithm.
_SLOPE_STD = 0.25
# Where the level of the instances, the log-odds of the share of negatives and the tilt are sought.
_LEVELS_LOGITS_TILTS = ((-20.0, 20.0), (-8.0, 8.0), (-5.0, 5.0))
# Standard deviation of a tilt, at most: a steeper one could not be told from positives.
_MOST_TILT = 0.1
# From MacKay's approximation three steps of Newton's method reach 1e-6 and better.
_NEWTON_STEPS = 3
# Log-odds beyond which differences of expectations lose their digits.
_FAR_OUT = 12.0
# How soon log-odds of bags bend beyond their range. Chosen on seeds 100 and 101 of the sets of the
# leaderboard; 1 costs a little of what MUSK1 and MUSK2 are sure of.
_BEND = 2
# Training instances that are read to find their usual deviation.
_READ = 5_000
# By which power of a map's slope the deviations of bags and of instances grow; see `stretch`.
BAGS_FOLLOW, INSTANCES_FOLLOW = 1 / 3, 0.6


def bent(log_odds: ArrayT, low: float, high: float) -> ArrayT:
    """Log-odds with those outside a range compressed, as `core.platt.compress_beyond` does."""
    return compress_beyond(log_odds, low, high, _BEND)


class HeldOut(NamedTuple):
    """Latent values of bags under models that were fitted without them."""

    mean: Floats  # [n]
    var: Floats  # [n]
    offsets: Ints  # [b + 1]
    functions: Floats | None = None  # [n, C] drawn from q, for the joint rule
    shrink: Floats | None = None  # [n] by which the noise r shrinks their values
    top: Floats | None = None  # [b] largest log-odds in each bag, where they were needed before

    def take(self, bags: Ints) -> HeldOut:
        """Only some bags, in the order given."""
        rows, offsets = segments.take(self.offsets, bags)
        functions, shrink = (x if x is None else x[rows] for x in (self.functions, self.shrink))
        top = None if self.top is None else self.top[bags]
        return HeldOut(self.mean[rows], self.var[rows], offsets, functions, shrink, top)

    def largest(self) -> Floats:
        """The largest log-odds in each bag, [b]."""
        if self.top is not None:
            return self.top
        log_odds = sigmoid_moments(self.mean, self.var).log_odds
        return segments.max(to_numpy(log_odds), self.offsets)

    def with_top(self) -> HeldOut:
        """The same with the largest log-odds of each bag worked out, once for every map."""
        return self._replace(top=self.largest())


class Mapped(NamedTuple):
    """The mapped function f' at instances, and the moments of its sigmoid."""

    mean: Doubles  # [n]
    var: Doubles  # [n]
    probabilities: SigmoidMoments


class LatentMap(NamedTuple):
    """From f ~ N(mean, var) to f', whose log-odds are ``slope * log-odds + intercept``.

    The log-odds of E sigmoid(f) are ``mean / sqrt(1 + pi var / 8)``, nearly (MacKay, 1992). They
    are what is calibrated, so that the order of the probabilities stays. How far the deviations
    of f from its mean follow is told by `stretch`. Log-odds below ``low`` and above ``high`` are
    compressed first (`bent`). The default is the identity.
    """

    slope: float = 1.0
    intercept: float = 0.0
    low: float = -np.inf
    high: float = np.inf
    power: float = BAGS_FOLLOW

    @property
    def spread(self) -> float:
        """By what the standard deviation of f is multiplied."""
        return stretch(self.slope, self.power)

    def log_odds(self, log_odds: ArrayT) -> ArrayT:
        """Those of f' from those of f."""
        return cast("ArrayT", self.slope * bent(log_odds, self.low, self.high) + self.intercept)

    def after(self, first: Platt) -> LatentMap:
        """One map that does what ``first``, of a positive slope, and then this one do.

        Examples
        --------
        >>> from bagwise.core.platt import Platt
        >>> from bagwise.models.variational.latent_map import LatentMap
        >>> LatentMap(2.0, 1.0, -4.0, 5.0, power=0.5).after(Platt(3.0, -1.0))
        LatentMap(slope=6.0, intercept=-1.0, low=-1.0, high=2.0, power=0.5)
        """
        slope, intercept = Platt(self.slope, self.intercept).after(first)
        low, high = ((end - first.intercept) / first.slope for end in (self.low, self.high))
        return LatentMap(slope, intercept, low, high, self.power)

    def moments(self, mean: Floats, var: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of f' from those of f."""
        new_var = self.spread**2 * var
        return self.log_odds(mean / _widening(var)) * _widening(new_var), new_var

    def read(self, mean: Array, var: Array) -> Mapped:
        """F' with exactly the log-odds that are asked for, so that the order stays.

        `moments` is near and quick, for the fit of the map; `with_log_odds` does the rest.
        """
        mean, var = (x.double() if is_tensor(x) else to_numpy(x) for x in (mean, var))
        log_odds = self.log_odds(sigmoid_moments(mean, var).log_odds)
        return with_log_odds(log_odds, self.spread**2 * var)

    def functions(self, held_out: HeldOut) -> Floats:
        """Functions drawn from q, mapped, [n, C]."""
        drawn = held_out.functions
        if drawn is None or held_out.shrink is None:
            raise ValueError("the joint rule needs functions drawn from q(f); got None.")
        mean, _ = self.moments(held_out.mean, held_out.var)
        deviation = drawn - drawn.mean(1, keepdims=True)
        return (held_out.shrink * mean)[:, None] + self.spread * deviation


def stretch(slope: float, power: float = BAGS_FOLLOW) -> float:
    """By what to multiply the deviations of a function whose log-odds have a map of this slope.

    A slope below 1 says that the function is too sure, and shrinks its deviations as it does its
    values. One above 1 says that its values are too timid. Their deviations then grow by a power
    of it, the third root for bags and more for instances, whose refits differ more than those of
    the largest of a bag. Refits to bootstrapped bags spread more than deviations left as they are,
    and less than deviations that grow in step (``experiments/bootstrap_std.py``).

    Examples
    --------
    >>> from bagwise.models.variational.latent_map import stretch
    >>> stretch(0.5), stretch(8.0), stretch(9.0, power=0.5)
    (0.5, 2.0, 3.0)
    """
    return min(slope, float(slope**power))


def _widening(var: ArrayT) -> ArrayT:
    return cast("ArrayT", (1 + np.pi / 8 * var) ** 0.5)


def with_log_odds(log_odds: Doubles, var: Doubles) -> Mapped:
    """The f of this variance whose expected sigmoid has these log-odds, by Newton's method.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import with_log_odds
    >>> f = with_log_odds(np.array([-2.0]), np.array([4.0]))
    >>> f.probabilities.log_odds.round(6).tolist(), f.mean.round(2).tolist()
    ([-2.0], [-3.14])
    """
    xp = namespace(log_odds)
    mean = log_odds * _widening(var)
    for _ in range(_NEWTON_STEPS):
        p = sigmoid_moments(mean, var)
        # d log-odds / d mean = E sigmoid' / (p (1 - p)), at most 1, and 1 far out.
        slope = -xp.expm1(p.log_negative_squared - p.log_negative) / xp.exp(p.log_positive)
        slope = xp.where(abs(log_odds) > _FAR_OUT, 1.0, at_most(at_least(slope, 0.05), 1.0))
        mean = mean + (log_odds - p.log_odds) / slope
    square = sigmoid_moments(mean, var).log_negative_squared
    log_negative = -softplus(log_odds)
    return Mapped(mean, var, SigmoidMoments(log_negative + log_odds, log_negative, square))


class Interval(NamedTuple):
    """Lower and upper end of a central interval of a probability."""

    low: Floats
    high: Floats


def instance_interval(mean: Floats, var: Floats, level: float) -> Interval:
    """Central interval of sigmoid(f), f ~ N(mean, var): quantiles pass through the sigmoid.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import instance_interval
    >>> low, high = instance_interval(np.zeros(1), np.ones(1), 0.9)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.162], [0.838])
    """
    mean, half = np.asarray(mean), ndtri((1 + _level(level)) / 2) * np.sqrt(var)
    return Interval(expit(mean - half), expit(mean + half))


def beta_interval(p: Floats, std: Floats, level: float) -> Interval:
    """Central interval of the Beta distribution with this mean and standard deviation.

    For bags under noisy-or and joint, and for the share of positives in a bag, whose
    distributions have known moments but no simple quantiles.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import beta_interval
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

    mean: Floats  # [b]
    std: Floats  # [b]


def positive_fraction(mean: Array, var: Array, functions: Array, offsets: Ints) -> Fraction:
    """The share of positives in each bag, from latent moments and functions drawn from q [n, C].

    Its variance is that of the mean probability over functions, which instances share, plus that
    of the labels given the probabilities. Arguments are mapped already.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import positive_fraction
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


def bag_folds(y: ArrayLike, n_folds: int | None = None, random_state: int = 0) -> Ints:
    """Fold of every bag, stratified by label; as many as the rarer class has bags, at least 2.

    By default as many as `core.platt.calibration_folds` says.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import bag_folds
    >>> sorted(bag_folds(np.array([0, 0, 0, 1, 1, 1]), n_folds=3).tolist())
    [0, 0, 1, 1, 2, 2]
    """
    y = np.asarray(y)
    fewest = int(np.bincount(y, minlength=2).min())
    if n_folds is None:
        n_folds = calibration_folds(y)
    if fewest < 2:
        raise ValueError(f"calibration needs at least 2 bags of each class; got {fewest}.")
    splitter = StratifiedKFold(min(n_folds, fewest), shuffle=True, random_state=random_state)
    fold = np.empty(len(y), dtype=np.int64)
    for k, (_, left_out) in enumerate(splitter.split(y, y)):
        fold[left_out] = k
    return fold


def held_out_draw(y: ArrayLike, sizes: Ints, random_state: int = 0) -> Bools:
    """Which bags of a large set to hold out: the same share of each class, [b] booleans.

    At most a fifth of the bags, `_MANY_BAGS` or as many as have `_MOST_INSTANCES` instances in
    all: two numbers are fitted to them, and more would not move these.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import held_out_draw
    >>> y = np.arange(1000) % 2
    >>> drawn = held_out_draw(y, np.full(1000, 500))
    >>> int(drawn[y == 0].sum()), int(drawn[y == 1].sum())
    (100, 100)
    """
    y, rng = np.asarray(y), np.random.default_rng(random_state)
    share = min(0.2, max(_MOST_INSTANCES / float(np.sum(sizes)), _MANY_BAGS / len(y)))
    drawn = np.zeros(len(y), dtype=bool)
    for label in (0, 1):
        bags = np.flatnonzero(y == label)
        drawn[rng.choice(bags, max(1, round(share * len(bags))), replace=False)] = True
    return drawn


def folds_of_large(y: ArrayLike, sizes: Ints) -> Ints:
    """Folds of the bags of a large set, of which `enough_folds` are held out, [b].

    The first has the bags of `held_out_draw`, the second the others. Where that would be too few
    of a class, because bags are few and large, they are the `bag_folds` of a small set.
    """
    y = np.asarray(y)
    drawn = held_out_draw(y, sizes)
    enough = np.bincount(y[drawn], minlength=2).min() >= ENOUGH_OF_CLASS
    return np.where(drawn, 0, 1) if enough else bag_folds(y)


def enough_folds(folds: Ints, y: ArrayLike) -> int:
    """How many folds, from the first on, have `ENOUGH_OF_CLASS` bags of each class; or all.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import enough_folds, folds_of_large
    >>> labels = [np.arange(n) % 2 for n in (400, 200, 60)]
    >>> [enough_folds(folds_of_large(y, np.full(len(y), 5000)), y) for y in labels]
    [1, 2, 5]
    """
    y, n_folds = np.asarray(y), int(np.max(folds)) + 1
    of_class = [np.bincount(folds[y == label], minlength=n_folds) for label in (0, 1)]
    short = np.cumsum(of_class, axis=1).min(axis=0) < ENOUGH_OF_CLASS
    return min(int(short.sum()) + 1, n_folds)


def select_bags(blocks: Iterable[Block], chosen: Array | Bools) -> Iterator[Block]:
    """The chosen bags (a mask over all bags, in order) of each block; blocks left empty go.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import select_bags
    >>> from bagwise.models.variational.blocks import BagLabels
    >>> from bagwise.models.variational.updates import make_blocks
    >>> labels = BagLabels(np.array([0, 2, 3]), np.array([0, 1]), np.full(3, -1))
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


def _selected(block: Block, offsets: Ints, bags: Ints) -> Block:
    rows, new = segments.take(offsets, bags)
    owner = np.searchsorted(np.cumsum([a.shape[1] for a in block.A]), rows, side="right")
    starts = np.cumsum([0] + [a.shape[1] for a in block.A])
    chunks = []
    for i, chunk in enumerate(block.A):
        columns = rows[owner == i] - starts[i]
        if len(columns):
            chunks.append(_columns(chunk, columns))
    at, rows_there, weight = beside(bags, block.r), beside(rows, block.r), block.labels.weight
    labels = BagLabels(
        beside(new, block.r),
        block.labels.y[at],
        block.labels.known[rows_there],
        None if weight is None else weight[at],
    )
    return Block(tuple(chunks), block.r[rows_there], labels)


def _columns(A: ArrayT, columns: Ints) -> ArrayT:
    if is_tensor(A):
        import torch

        return A[:, torch.as_tensor(columns, device=A.device)]
    # Rows of the transpose are contiguous: a gather of instances, not of strided columns.
    return cast("ArrayT", A.T.take(columns, axis=0).T)


def rule_log_odds(held_out: HeldOut, rule: BagRule, latent_map: LatentMap) -> Floats:
    """Log-odds of the bags under a rule, with the map put in, [b]."""
    if rule == "max":
        # The map keeps the order of the instances: the largest stays the largest.
        return latent_map.log_odds(held_out.largest())
    if rule != "joint":
        p = sigmoid_moments(*latent_map.moments(held_out.mean, held_out.var), n_nodes=_NODES)
        return bag_log_odds(p.log_odds, held_out.offsets, rule)
    f = latent_map.functions(held_out)
    log_none = -segments.sum(np.logaddexp(0.0, f), held_out.offsets)
    none, some = np.exp(log_none).mean(1), -np.expm1(log_none).mean(1)
    tiny = np.finfo(np.float64).tiny
    return np.log(np.maximum(some, tiny)) - np.log(np.maximum(none, tiny))


class MapFit:
    """Slope and level of the map under which held-out bags have their labels most likely.

    Two numbers are fitted by maximum likelihood with Platt's smoothed targets; `shrunk` then takes
    off what chance may have brought.

    Parameters
    ----------
    held_out : HeldOut
    y : array of shape (b,)
    rule : BagRule
    known : array of shape (n,), optional
        Instance labels, 0 or 1, and -1 where unknown; they join as bags of one.
    random_state : int
        Of the bags that are looked at where there are very many.
    weight : array of shape (b,), optional
        How often each bag counts; once where it is None.
    count : float, optional
        That of `core.platt.smoothed`.
    compress : bool
        Pull the largest log-odds of bags outside their `core.platt.typical_range` towards it,
        where that makes the labels likelier; for the rule "max", and where instances have a map
        of their own, most of whose log-odds are far below those of bags.

    Attributes
    ----------
    slope : float
        The most likely slope, before any shrinking.
    gain : float
        Rise in log-likelihood that it has brought over the base rate.
    labels : array of shape (b,)
        Of all bags given.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import HeldOut, MapFit
    >>> rng = np.random.default_rng(0)
    >>> f = 3 * rng.normal(size=400)  # three times too sure
    >>> y = (rng.random(400) < 1 / (1 + np.exp(-f / 3))).astype(int)
    >>> held_out = HeldOut(f, np.zeros(400), np.arange(401))
    >>> 0.2 < MapFit(held_out, y, "max").shrunk().slope < 0.45
    True
    """

    def __init__(
        self,
        held_out: HeldOut,
        y: ArrayLike,
        rule: BagRule,
        known: ArrayLike | None = None,
        *,
        random_state: int = 0,
        weight: Floats | None = None,
        count: float | None = None,
        compress: bool = False,
    ) -> None:
        self.labels, self._rule = y, rule
        target = np.asarray(y, dtype=np.float64)
        # The largest log-odds are worked out once; nothing else costs more for larger bags.
        if rule != "max" or (known is not None and np.any(np.asarray(known) >= 0)):
            held_out, target, known, weight = _thinned(
                held_out, target, known, random_state, weight
            )
        held_out = held_out.with_top() if rule == "max" else held_out
        self._held_out, self._weight = held_out, weight
        self._target = smoothed(target, count, weight)
        self._rows = np.arange(0) if known is None else np.flatnonzero(np.asarray(known) >= 0)
        self._given = None if known is None else np.asarray(known, dtype=np.float64)[self._rows]
        each = None if weight is None else segments.spread(np.asarray(weight), held_out.offsets)
        self._given_weight = None if each is None else each[self._rows]
        self._fit(-np.inf, np.inf)
        self._line: MapFit | None = None
        if compress and rule == "max":
            line = copy(self)
            self._fit(*typical_range(held_out.largest(), target))
            # The ends cost no parameter, so the likelier of the two fits is the better guess.
            if line._least_loss <= self._least_loss:
                self._fit(*line._range)
            self._line = line

    def _fit(self, low: float, high: float) -> None:
        """Fit the map that compresses log-odds outside a range."""
        self._range, held_out = (low, high), self._held_out
        # Bags are decided near their largest values: about these slope and intercept hardly
        # interact.
        top = segments.max(held_out.mean / _widening(held_out.var), held_out.offsets)
        top = bent(top, *self._range)
        self._centre, self._spread = float(np.mean(top)), float(np.std(top)) or 1.0
        flat, start = self._best_level(0.0), self._best_level(1.0)
        # Two numbers, and a loss that is flat far away: a simplex from a sensible start is safe.
        best = minimize(
            lambda x: self._loss(float(np.exp(x[0])), float(x[1])),
            np.array([0.0, float(start.x)]),
            method="Nelder-Mead",
            bounds=[(-_STEEPEST, _STEEPEST), (-_WIDEST, _WIDEST)],
            options={"xatol": 1e-3, "fatol": 1e-3, "maxfev": 200},
        )
        self._least_loss = float(best.fun)
        self.gain = float(flat.fun - best.fun)
        self._steep = float(np.exp(best.x[0]))  # per standard deviation of the bags' values

    def without_ends(self) -> MapFit:
        """The same fit of a line to all bags, however far out."""
        return self if self._line is None else self._line

    @property
    def slope(self) -> float:
        """The most likely slope, before any shrinking."""
        return self._steep / self._spread

    @property
    def _factor(self) -> float:
        return shrinkage(self.gain)

    def shrunk(self, towards: float = 0.0) -> LatentMap:
        """The map whose slope is shrunk to another, as far as its own is not sure.

        By what chance may have brought of its gain over the base rate (`core.platt.shrinkage`).
        """
        slope = self._factor * self._steep
        if towards:
            slope += (1 - self._factor) * towards * self._spread
        slope = max(slope, _LEAST_SPREAD)
        return self._about_centre(slope, float(self._best_level(slope).x))

    def _about_centre(self, slope: float, level: float) -> LatentMap:
        slope /= self._spread
        return LatentMap(slope, level - slope * self._centre, *self._range)

    def _loss(self, slope: float, level: float) -> float:
        latent_map, held_out = self._about_centre(slope, level), self._held_out
        z = rule_log_odds(held_out, self._rule, latent_map)
        value = _counted(np.logaddexp(0.0, z) - self._target * z, self._weight)
        if self._given is not None and len(self._rows):
            rows = self._rows
            own = latent_map.moments(held_out.mean[rows], held_out.var[rows])
            log_odds = sigmoid_moments(*own, n_nodes=_NODES).log_odds
            terms = np.logaddexp(0.0, log_odds) - self._given * log_odds
            value += _counted(terms, self._given_weight)
        return value

    def _best_level(self, slope: float) -> Any:
        return minimize_scalar(
            lambda level: self._loss(slope, level), bounds=(-_WIDEST, _WIDEST), method="bounded"
        )


def shared_slope(fits: Sequence[MapFit]) -> float:
    """The slope that classes of one model have in common, themselves shrunk to 0 where unsure.

    Classes share the kernel and the likelihood, so that their latent functions have about one
    scale. Each slope counts by its gain, the squared ratio of the slope to its error; the mean is
    shrunk as one slope with the gain of all. A class whose few bags say little of its own is so
    calibrated like the others, where the base rate alone would forget how it ranks instances.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import HeldOut, MapFit, shared_slope
    >>> f = np.linspace(-3, 3, 60)
    >>> y = (np.sin(5 * f) + f > 0).astype(int)
    >>> fit = MapFit(HeldOut(f, np.zeros(60), np.arange(61)), y, "max")
    >>> round(shared_slope([fit, fit]) / fit.slope, 2)
    0.98
    """
    gains = np.array([max(fit.gain, 0.0) for fit in fits])
    if gains.sum() == 0:
        return 0.0
    mean = float(np.average([fit.slope for fit in fits], weights=gains))
    return mean * shrinkage(float(gains.sum()))


def cooled(
    latent_map: LatentMap, held_out: HeldOut, y: ArrayLike, rule: BagRule, unlearned: Ints
) -> LatentMap:
    """The map with a gentler slope, where features were learned from the labels of the bags.

    ``unlearned`` are the indices of the bags whose labels the features did not see; see
    `bagwise.core.platt.cool`. The joint rule is cooled as noisy-or.
    """
    if len(unlearned) == 0:
        return latent_map
    scores, units = held_out.mean / _widening(held_out.var), held_out.offsets
    if rule == "max":
        scores, units = segments.max(scores, units), np.arange(len(units))
    scores = bent(scores, latent_map.low, latent_map.high)
    platt = Platt(latent_map.slope, latent_map.intercept)
    platt = cool(platt, scores, units, np.asarray(y), unlearned)
    return latent_map._replace(slope=platt.slope, intercept=platt.intercept)


def _counted(terms: Floats, weight: Floats | None) -> float:
    """Sum of terms, each as often as its weight says."""
    return float(np.sum(terms if weight is None else weight * terms))


def _thinned(
    held_out: HeldOut,
    y: Floats,
    known: ArrayLike | None,
    random_state: int,
    weight: Floats | None,
) -> tuple[HeldOut, Floats, ArrayLike | None, Floats | None]:
    """Bags chosen at random, of at most `_MOST_INSTANCES` instances, but `_ENOUGH_BAGS`."""
    n = int(held_out.offsets[-1])
    if n <= _MOST_INSTANCES:
        return held_out, y, known, weight
    order = np.random.default_rng(random_state).permutation(len(y))
    sizes = segments.lengths(held_out.offsets)[order]
    n_bags = max(_ENOUGH_BAGS, int(np.searchsorted(np.cumsum(sizes), _MOST_INSTANCES)))
    chosen = np.sort(order[:n_bags])
    rows, _ = segments.take(held_out.offsets, chosen)
    known = None if known is None else np.asarray(known)[rows]
    weight = None if weight is None else np.asarray(weight)[chosen]
    return held_out.take(chosen), y[chosen], known, weight


class ProbabilityMoments(NamedTuple):
    """Log-odds of a mean probability, and its standard deviation."""

    log_odds: Doubles
    std: Doubles


class Deviations(NamedTuple):
    """How far the log-odds of instances deviate: alike, unless f is less certain than ever before.

    At one probability the posterior calls some instances more certain than others. Refits to
    bootstrapped bags agree with that only in part, bag labels cannot tell who is right, and where
    probabilities are right any difference puts the labels to check in a worse order than the
    probabilities do. So instances share the ``usual`` deviation. It grows in proportion where f
    deviates more than ``far``, as a rule its largest deviation at held-out instances: the new one
    is then like none of them.

    A deviation s of the log-odds makes the standard deviation ``v s / sqrt(1 + v s^2)`` of the
    probability, v = p (1 - p): ``v s`` where s is small, and never more than a coin's, sqrt(v).
    """

    usual: float  # of log-odds
    far: float  # of f

    def shared(self, v: Doubles, latent_std: Doubles) -> Doubles:
        """Standard deviations of probabilities, from p (1 - p) and the deviations of f.

        Examples
        --------
        >>> import numpy as np
        >>> from bagwise.models.variational.latent_map import Deviations
        >>> v, latent_std = np.array([0.25, 0.09, 0.25]), np.array([0.5, 1.9, 4.0])
        >>> Deviations(1.0, far=2.0).shared(v, latent_std).round(3).tolist()
        [0.224, 0.086, 0.354]
        """
        s = self.usual * at_least(latent_std / self.far, 1.0)
        return v * s / (1 + v * s**2) ** 0.5


def usual_deviations(
    log_odds: Floats, std: Floats, latent_std: Floats, *, far: float | None = None
) -> Deviations:
    """What the deviations of training instances have in common, [n] each.

    ``log_odds`` and ``std`` are those of their probabilities, whose mean standard deviation stays
    what it is. Without ``far`` it is the largest deviation of f among them.
    """
    v = np.exp(-np.logaddexp(0.0, log_odds) - np.logaddexp(0.0, -log_odds))
    # Infinite where nothing is in doubt: then nothing is beyond the usual.
    far = float(np.max(latent_std) if far is None else far) or np.inf
    wanted = float(np.mean(std))

    def gap(log_usual: float) -> float:
        deviations = Deviations(float(np.exp(log_usual)), far)
        return float(np.mean(deviations.shared(v, latent_std))) - wanted

    if gap(-_WIDEST) >= 0:
        return Deviations(0.0, far)
    # No probability deviates more than a coin, which no deviation of log-odds reaches.
    usual = brentq(gap, -_WIDEST, _WIDEST) if gap(_WIDEST) > 0 else _WIDEST
    return Deviations(float(np.exp(usual)), far)


def bags_to_read(sizes: Ints) -> Ints:
    """Bags drawn at random that have about `_READ` instances in all, at least one bag.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import bags_to_read
    >>> [len(bags_to_read(np.full(100, n))) for n in (10, 100, 10_000)]
    [100, 50, 1]
    """
    order = np.random.default_rng(0).permutation(len(sizes))
    n_bags = int(np.searchsorted(np.cumsum(sizes[order]), _READ)) + 1
    return np.sort(order[:n_bags])


class InstanceMap(NamedTuple):
    """What bag labels say about instances, by contrast between positive and negative bags.

    ``own`` maps f to the chance that an instance of a *positive* bag is positive.
    """

    own: LatentMap
    positive_rate: float  # mean probability of the held-out instances in positive bags
    deviations: Deviations | None = None  # None leaves the posterior's own

    def probabilities(
        self, mean: Array, var: Array, bag: Array, bag_std: Array
    ) -> ProbabilityMoments:
        """Moments of p(y = 1), given log-odds and standard deviation of each instance's bag, [n].

        An instance is positive if its bag is and if it is one of its positives: the product of
        two probabilities, which never exceeds that of the bag. Both read one latent function, so
        they are wrong together: their relative deviations add up, as far as a probability can
        deviate at all. ``deviations`` make them alike and have the same mean over the training
        instances.
        """
        p = self.own.read(mean, var).probabilities
        xp = namespace(p.log_positive)
        log_bag, log_no_bag = -softplus(-bag), -softplus(bag)
        log_positive = log_bag + p.log_positive
        log_negative = xp.logaddexp(log_no_bag, log_bag + p.log_negative)
        v = xp.exp(log_positive + log_negative)
        if self.deviations is None:
            together = xp.exp(log_bag) * p.std + xp.exp(p.log_positive) * bag_std
            std = at_most(together, v**0.5)
        else:
            std = self.deviations.shared(v, var**0.5)
        return ProbabilityMoments(log_positive - log_negative, std)

    def fraction(self, share: Fraction, bag: Floats) -> Fraction:
        """Share of positives in bags with log-odds ``bag``, from that in positive bags, [b].

        A bag is positive, with a share of positives, or it is not and has none.
        """
        p = expit(bag)
        mean = p * share.mean
        square = p * (share.mean**2 + share.std**2)
        return Fraction(mean, np.sqrt(np.maximum(square - mean**2, 0.0)))

    def after(self, slope: float, shift: float) -> InstanceMap:
        """The map for scores that become those it was made for by ``slope * score + shift``."""
        deviations = self.deviations
        if deviations is not None:
            deviations = deviations._replace(far=deviations.far / slope)
        return self._replace(own=self.own.after(Platt(slope, shift)), deviations=deviations)


def fit_instance_map(
    held_out: HeldOut,
    y: ArrayLike,
    slope: float,
    known: ArrayLike | None = None,
    *,
    gain: float = np.inf,
) -> InstanceMap:
    """Level and slope of the instances' probabilities, from the labels of the bags they lie in.

    With p(z) the chance that an instance with log-odds z is positive and q the chance that a
    negative one lies in a positive bag, an instance of a negative bag has likelihood
    ``(1 - p)(1 - q)`` and one of a positive bag ``p + (1 - p) q``. Both p(z) = sigmoid(a z + d)
    and q are identified as soon as some values of z belong to negatives alone; how many positives
    a bag holds, and whether they come together, does not matter. The negatives of the two kinds of
    bags may differ as well: the log-odds of q rise with z by a tilt, which has a normal prior as
    wide as chance makes such differences (`background_tilt`). Where the values of z say
    nothing, any share of positives fits equally well; a prior worth one bag that holds one
    positive then decides. Known instance labels (0 or 1; -1 where unknown) enter as they are.

    ``slope`` is the most likely one of the bags and ``gain`` the log-likelihood that it brought
    them. The logarithm of a has a normal prior there, as wide as that slope is uncertain and a
    little wider. At the end a is shrunk by what chance may have brought of both gains, the bags'
    and the instances' (`core.platt.shrinkage`). Values must be held out.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import HeldOut, fit_instance_map
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 50)
    >>> truth = np.repeat(y, 20) * (rng.random(2000) < 0.3)  # 30 % in positive bags
    >>> f = 3 * truth - 1.5 + rng.normal(size=2000)
    >>> held_out = HeldOut(f, np.zeros(2000), np.arange(0, 2001, 20))
    >>> round(fit_instance_map(held_out, y, slope=3.0).positive_rate, 1)
    0.3
    """
    held_out, positive, known, _ = _thinned(
        held_out, np.asarray(y, dtype=np.float64), known, 0, None
    )
    contrast = _Contrast(held_out, positive, slope, known)
    best, loss = contrast.best_slope(_slope_std(gain))
    own_gain = contrast.fitted(0.0).loss - loss
    total = max(own_gain, 0.0) + max(gain, 0.0)
    return contrast.instance_map(max(best * shrinkage(total), _LEAST_SPREAD))


def level_with_bags(
    instance_map: InstanceMap, held_out: HeldOut, y: ArrayLike, bag: Floats
) -> InstanceMap:
    """The map shifted so that, times the probability of their bag, instances keep their level.

    ``bag`` [b] are the held-out log-odds of the bags. Those of positive bags are less than sure,
    so that the product has fewer positives than the labels say: ``positive_rate`` of the
    instances in positive bags, none of the others.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.latent_map import HeldOut, InstanceMap, LatentMap
    >>> from bagwise.models.variational.latent_map import level_with_bags
    >>> held_out = HeldOut(np.zeros(4), np.zeros(4), np.array([0, 2, 4]))
    >>> half = InstanceMap(LatentMap(1.0, 0.0), 0.5)
    >>> unsure = np.array([-20.0, np.log(4)])  # the positive bag has a probability of 0.8
    >>> round(level_with_bags(half, held_out, [0, 1], unsure).own.intercept, 3)  # 5 of 8
    0.511
    """
    own, offsets = instance_map.own, held_out.offsets
    log_odds = own.slope * held_out.mean / _widening(held_out.var) + own.intercept
    of_bag = expit(segments.spread(np.asarray(bag), offsets))
    in_positive = segments.spread(np.asarray(y) == 1, offsets)
    wanted = instance_map.positive_rate * float(in_positive.mean())

    def gap(shift: float) -> float:
        return float(np.mean(of_bag * expit(log_odds + shift))) - wanted

    # Bags that say nothing may have less to share out than is wanted.
    ends = (-_WIDEST, _WIDEST)
    shift = brentq(gap, *ends) if gap(ends[0]) < 0 < gap(ends[1]) else 0.0
    return instance_map._replace(own=own._replace(intercept=float(own.intercept + shift)))


def _slope_std(gain: float) -> float:
    """Standard deviation of a log-slope that brought so much: a gain is (slope / error)^2 / 2."""
    return float(np.sqrt(_SLOPE_STD**2 + 1 / (2 * max(gain, 1e-3))))


class _Level(NamedTuple):
    """What is most likely at a slope."""

    loss: float
    level: float  # of the log-odds of positives against negatives of any bag
    logit: float  # of q, the chance that a negative instance lies in a positive bag, over its most
    tilt: float  # by which the log-odds of q rise with the score, in units of `_Contrast.rise`


class _Grouped(NamedTuple):
    """Scores that stand for several of their neighbours each."""

    scores: Floats  # [k] their means
    counts: Floats  # [k] of how many


def _grouped(scores: Floats) -> _Grouped:
    """Many scores in groups of neighbours, but for the highest, where positives are few."""
    n = len(scores) - _GROUPS // 2
    size = max(1, 2 * n // _GROUPS)
    if size == 1:
        return _Grouped(scores, np.ones(len(scores)))
    starts = np.concatenate([np.arange(0, n, size), np.arange(n, len(scores))])
    counts = np.diff(starts, append=len(scores)).astype(np.float64)
    return _Grouped(np.add.reduceat(np.sort(scores), starts) / counts, counts)


def _log_sigmoids(z: Floats, counts: Floats) -> tuple[float, Floats]:
    """Sum of ``log sigmoid(z)``, and its slopes ``sigmoid(-z)``: one exponential makes both."""
    e = np.exp(-np.abs(z))
    whole = 1 + e
    total = float(counts @ (np.minimum(z, 0) - np.log(whole)))
    return total, counts * np.where(z > 0, e, 1.0) / whole


class _Contrast:
    """Likelihood of the bags that instances lie in, by their scores; see `fit_instance_map`."""

    def __init__(
        self, held_out: HeldOut, positive: Floats, unit: float, known: ArrayLike | None
    ) -> None:
        scores = unit * held_out.mean / _widening(held_out.var)  # [n]
        self._unit, self._centre = unit, float(np.quantile(scores, 0.9))
        self._middle = float(scores.mean()) - self._centre
        self.rise = min(background_tilt(scores, held_out.offsets, positive == 1), _MOST_TILT)
        in_positive = segments.spread(positive == 1, held_out.offsets)
        self._share = float(in_positive.mean())
        self._size = in_positive.sum() / np.sum(positive == 1)  # of a positive bag
        labels = np.full(len(scores), -1) if known is None else np.asarray(known)
        free = labels < 0
        kinds = (free & in_positive, free & ~in_positive, labels == 1, labels == 0)
        self._by_kind = tuple(_grouped(scores[kind] - self._centre) for kind in kinds)
        self._of_positive_bags = scores[in_positive] - self._centre

    def negative_share(self, q: float) -> float:
        """Of the instances in positive bags, as q has it."""
        return float(q / (1 - q) * (1 - self._share) / self._share)

    def loss(self, slope: float, level: float, logit: float, tilt: float) -> tuple[float, Floats]:
        """Negative log-likelihood with the priors on positives and tilt; its gradient, [4]."""
        of_positive, of_negative, known_positive, known_negative = self._by_kind
        inside = float(expit(logit))
        middle = self._share * inside  # q of an average score
        negatives = self.negative_share(middle)
        few = (self._size - 1) * np.log(negatives) + np.log1p(-negatives)
        by_middle = ((self._size - 1) - negatives / (1 - negatives)) / (middle * (1 - middle))
        log_odds = np.log(middle / (1 - middle))
        x, counts = of_positive
        p = expit(slope * x + level)
        q = expit(log_odds + self.rise * tilt * (x - self._middle))
        mixed = q + (1 - q) * p
        total = few + float(counts @ np.log(mixed))
        by_score = [counts * (1 - q) * p * (1 - p) / mixed]
        by_odds = [counts * (1 - p) * q * (1 - q) / mixed]  # of q
        x, counts = of_negative
        own, slopes = _log_sigmoids(-log_odds - self.rise * tilt * (x - self._middle), counts)
        total += own
        by_odds.append(-slopes)
        for (x, counts), sign in ((of_negative, -1), (known_positive, 1), (known_negative, -1)):
            own, slopes = _log_sigmoids(sign * (slope * x + level), counts)
            total += own
            by_score.append(sign * slopes)
        total -= 0.5 * tilt**2
        free = (of_positive, of_negative)
        above = sum(float(d @ (x - self._middle)) for d, (x, _) in zip(by_odds, free, strict=True))
        by_tilt = self.rise * above - tilt
        by_slope = sum(float(d @ x) for d, (x, _) in zip(by_score, self._by_kind, strict=True))
        by_level = sum(float(d.sum()) for d in by_score)
        by_odds_of_middle = sum(float(d.sum()) for d in by_odds)
        by_logit = (by_middle * middle + by_odds_of_middle / (1 - middle)) * (1 - inside)
        return -float(total), -np.array([by_slope, by_level, by_logit, by_tilt])

    def best_slope(self, std: float) -> tuple[float, float]:
        """The most probable slope, in units of the bags', under a prior of this width; its loss."""

        def loss(x: Floats) -> tuple[float, Floats]:
            slope = float(np.exp(x[0]))
            value, gradient = self.loss(slope, *x[1:])
            prior = np.array([x[0] / std**2, 0.0, 0.0, 0.0])
            return value + 0.5 * float(x[0] / std) ** 2, gradient * [slope, 1, 1, 1] + prior

        start = np.array([0.0, *self.fitted(1.0)[1:]])
        end = _least(loss, start, [(-_STEEPEST, _STEEPEST), *_LEVELS_LOGITS_TILTS])
        return float(np.exp(end.x[0])), float(end.fun) - 0.5 * float(end.x[0] / std) ** 2

    def fitted(self, slope: float) -> _Level:
        """The most likely level at a slope."""

        def loss(x: Floats) -> tuple[float, Floats]:
            value, gradient = self.loss(slope, *x)
            return value, gradient[1:]

        # Few or many positives: the likelihood of a mixture may have several maxima, and is flat
        # where there are no positives at all, so that starts lie where the shares put them.
        ends = [_least(loss, self._start(slope, s), _LEVELS_LOGITS_TILTS) for s in self._shares]
        end = min(ends, key=lambda end: float(end.fun))
        return _Level(float(end.fun), *end.x)

    @property
    def _shares(self) -> tuple[float, ...]:
        """Shares of positives in positive bags to start from: one instance, a tenth, half."""
        return (1 / max(float(self._size), 2.0), 0.1, 0.5)

    def _start(self, slope: float, share: float) -> Floats:
        """Level, logit and tilt at which the highest scores of positive bags are the positives."""
        edge = float(np.quantile(self._of_positive_bags, 1 - share))
        inside = (1 - share) / (1 - self._share * share)
        return np.array([-slope * edge, np.log(inside / (1 - inside)), 0.0])

    def instance_map(self, slope: float) -> InstanceMap:
        """The chance that an instance of a positive bag is positive, at a slope.

        Its log-odds are those of p less log q, which is bent a little where q has a tilt: the
        tangent at the centre, where positives begin, stands for it.
        """
        _, level, logit, tilt = self.fitted(slope)
        middle, rise = self._share * float(expit(logit)), self.rise * tilt
        q = float(expit(np.log(middle / (1 - middle)) - rise * self._middle))
        own_slope = max(float(slope - rise * (1 - q)), _LEAST_SPREAD)
        intercept = level - np.log(q)
        own = LatentMap(
            own_slope * self._unit,
            float(intercept - own_slope * self._centre),
            power=INSTANCES_FOLLOW,
        )
        # The mean of the probabilities; 1 - `negative_share` rests on the lowest scores alone.
        p = expit(own_slope * self._of_positive_bags + intercept)
        return InstanceMap(own, float(p.mean()))


def background_tilt(scores: Floats, offsets: Ints, positive: Bools) -> float:
    """How far the scores of negatives may differ between the bags of two classes by chance.

    Instances of a bag resemble each other, so that the two backgrounds differ by as much as means
    of bags do. Normal scores of one variance whose means differ by d have odds that rise by d over
    that variance with the score. The upper quarter is cut off, for positives are there.
    """
    low = np.minimum(scores, np.quantile(scores, 0.75))
    means = segments.sum(low, offsets) / np.maximum(np.diff(offsets), 1)
    counts = np.array([np.sum(~positive), np.sum(positive)])
    off = np.concatenate([part - part.mean() for part in (means[positive], means[~positive])])
    between = float(off @ off) / max(len(off) - 2, 1)
    spread = max(float(np.var(low)), float(np.finfo(np.float64).tiny))
    return float(np.sqrt(between * np.sum(1 / counts)) / spread)


def _least(
    loss: Callable[[Floats], tuple[float, Floats]],
    start: Floats,
    bounds: Sequence[tuple[float, float]],
) -> OptimizeResult:
    # Steps over a few numbers: threads of BLAS would wait for each other longer than they work.
    with one_blas_thread():
        return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)


def held_out_values(
    blocks: Iterable[Block],
    q: InducingPosterior,
    joint: bool = False,
    top: bool = False,
    n_functions: int = 64,
) -> HeldOut:
    """Latent moments of the bags of some blocks under q, and what a rule needs of them.

    That are functions for the joint rule, and the ``top`` of each bag for the rule "max".
    """
    columns: list[list[Floats]] = [[], [], [], []]
    sizes, tops = [], []
    for block in blocks:
        f = moments(block.A, block.r, q)
        offsets = to_numpy(block.labels.offsets).astype(np.int64)
        if top:
            log_odds = sigmoid_moments(f.mean, f.var).log_odds
            tops.append(segments.max(to_numpy(log_odds), offsets))
        own = [f.mean, f.var]
        if joint:
            own += draw_functions(block, q, n_functions)
        for column, values in zip(columns, own, strict=False):
            column.append(to_numpy(values))
        sizes.append(segments.lengths(offsets))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    mean, var, *drawn = (np.concatenate(c) for c in columns if c)
    values = HeldOut(mean, var, offsets, *drawn)
    return values._replace(top=np.concatenate(tops)) if top else values


def joined(parts: Sequence[HeldOut], folds: Ints) -> HeldOut:
    """Held-out values of all folds (bags of fold k in ``parts[k]``) in the order of the bags."""
    order = np.argsort(np.concatenate([np.flatnonzero(folds == k) for k in range(len(parts))]))
    sizes = np.concatenate([segments.lengths(part.offsets) for part in parts])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    columns = zip(
        *((part.mean, part.var, part.functions, part.shrink) for part in parts), strict=True
    )
    mean, var, *drawn = (np.concatenate(column) for column in columns if column[0] is not None)
    values = HeldOut(mean, var, offsets, *drawn)
    if parts[0].top is not None:
        values = values._replace(top=np.concatenate([part.largest() for part in parts]))
    return values.take(order)
