"""The search behind `AutoVGPMIL`: designs, held-out scores, and how much each design counts.

A design is a scaling, a kernel and a bag likelihood; a rule reads a bag's score off its instances.
Designs that share scaling and kernel share the projected instances, and folds are columns of them:
the inducing points and the scaling are chosen once, from all training bags, which makes the
search several times cheaper. They must then not know the labels: centroids of one class (V section
4.2) pull the held-out instances of that class towards the training instances of the same class,
and held-out scores come out far too good. Here k-means sees instances only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedKFold

from bagwise.bags import Bags
from bagwise.core import inducing, segments
from bagwise.core.arrays import Array, Floats, Ints, host_rows, is_tensor, to_numpy
from bagwise.core.kernels import RBF, Constant, Kernel, Matern32, MultiScale, OfMedian
from bagwise.core.platt import WHOLE_BAG, Platt, fit_platts, keep_ranking
from bagwise.core.squared import median_sq_distance
from bagwise.models.drivers import Driver
from bagwise.models.execution import CHUNK_SIZE, DEVICE_CHUNK_SIZE
from bagwise.models.scaling import FeatureScaling, Scale, feature_moments, scaling_of
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.latent_map import (
    BAGS_FOLLOW,
    INSTANCES_FOLLOW,
    Fraction,
    InstanceMap,
    LatentMap,
    bent,
    stretch,
    with_log_odds,
)
from bagwise.models.variational.likelihoods import (
    BagLikelihood,
    ExactOr,
    Inherited,
    SoftWitness,
)
from bagwise.models.variational.projection import Projector, make_projector
from bagwise.models.variational.score import BagRule, Readout, Scores, read_rules
from bagwise.models.variational.updates import make_blocks, posterior_of_blocks
from bagwise.models.variational.whole_bags import fit_points, pooled, read_points, take_points

# Squared length scales are shares of the median squared distance; all but the first and the last
# have a bias. Matern-3/2 is never far behind RBF, and ahead where neighbours say much.
_BIAS = Constant(25.0)
KERNELS: dict[str, Kernel] = {
    "multi-scale": MultiScale("median", 16.0),
    "narrow, v=4": RBF(OfMedian(8**-0.5), 4.0) + _BIAS,
    "narrow, v=16": RBF(OfMedian(8**-0.5), 16.0) + _BIAS,
    "narrow, rough": Matern32(OfMedian(8**-0.5), 16.0) + _BIAS,
    "medium, rough": Matern32(OfMedian(2**-0.5), 16.0) + _BIAS,
    "medium, v=64": RBF(OfMedian(2**0.5), 64.0) + _BIAS,
    "wide, rough": Matern32(OfMedian(2**0.5), 64.0) + _BIAS,
    "wide, v=4": RBF(OfMedian(8**0.5), 4.0),
}
# From one witness per positive bag to all of its instances positive; h for large, redundant bags.
LIKELIHOODS: dict[str, BagLikelihood] = {
    "witness, g=0": SoftWitness(0.0),
    "witness, h=0.5": SoftWitness(0.0, redundancy=0.5),
    "witness, g=0.5": SoftWitness(0.5),
    "witness, g=1": SoftWitness(1.0),
    "or": ExactOr(),
    "inherited": Inherited(),
}
# Whole bags: kernels of variance 1 between instances, and variances of the process on their sets.
SET_KERNELS: dict[str, Kernel] = {
    "set, narrow": RBF(OfMedian(8**-0.5), 1.0),
    "set, medium": RBF(OfMedian(2**-0.5), 1.0),
    "set, wide": RBF(OfMedian(2**0.5), 1.0),
}
WHOLE_BAGS: dict[str, float] = {"whole bags, v=16": 16.0, "whole bags, v=256": 256.0}
SCALES: tuple[Scale, ...] = ("global", "feature")
RULES: tuple[BagRule, ...] = ("max", "noisy-or", "joint")

# Fits stop when q changes less: rankings have settled long before.
TOL = 0.01
# Held-out log-likelihood that a departure from the plain choice, witnesses read by max, must
# gain: among a hundred designs on a hundred bags some win by chance.
PRICE = 2.0
# What an odd design must gain besides where a class has next to no bags, and from how many of them
# on it need not: chosen on sets with 4 and 8 positive bags (seeds 100 and 101).
FEW_PRICE, FEW = 8.0, 20
_TIMID_KERNELS, _REDUNDANT = ("narrow, v=4", "wide, v=4"), "witness, h=0.5"
# A bag's log-odds are uncertain by no more than this; beyond it the probability is 0 or 1 anyway.
_LARGEST_STD = 10.0
# Correlation of the errors of two members: between none and all, as refits to bootstrapped bags
# have it (`experiments/bootstrap_std.py`).
_ALIKE = 1 / 3
# Rows that k-means sees, and rows whose distances make the median.
_KMEANS_ROWS, _MEDIAN_ROWS = 20_000, 1000


class Design(NamedTuple):
    """One point of the grid."""

    scale: Scale
    kernel: str
    likelihood: str

    def price(self, n_rarest: int) -> float:
        """Log-likelihood it must gain to be worth choosing, given the bags of the rarer class.

        Few bags cannot show that a design is odd for a good reason: kernels of little variance
        hardly leave the base rate, and redundancy was made for bags that repeat themselves.
        """
        price = 0.0 if self.likelihood.startswith("witness") else PRICE
        odd = self.kernel in _TIMID_KERNELS or self.likelihood == _REDUNDANT
        return price + odd * FEW_PRICE * max(0.0, 1 - n_rarest / FEW)


class Space(NamedTuple):
    """One scaling of the features, and what every kernel on it needs."""

    scaling: FeatureScaling
    kernels: dict[str, Kernel]  # those of the grid, with the data's scales
    Z: Floats  # [M, D] scaled

    def projector(self, kernel: str, dtype: str, Z: Floats | None = None) -> Projector:
        """Onto the inducing points under a kernel of the grid, or onto some of them."""
        return make_projector(self.kernels[kernel], self.Z if Z is None else Z, self.scaling, dtype)


class Candidate(NamedTuple):
    """A design with its best rule, and its part in the ensemble."""

    design: int  # position in the list of designs
    rule: int  # position in the list of rules
    weight: float
    platt: Platt  # of its bags, by its rule
    top: Platt  # of the largest instance of a bag, and so of instances


def grid() -> list[Design]:
    """Every design, those that share scaling and kernel next to each other.

    Examples
    --------
    >>> from bagwise.models.variational.search import grid
    >>> len(grid()), grid()[0]
    (96, Design(scale='global', kernel='multi-scale', likelihood='witness, g=0'))
    """
    return [Design(s, k, name) for s in SCALES for k in KERNELS for name in LIKELIHOODS]


def whole_grid() -> list[Design]:
    """Every design of a member that looks at whole bags.

    Examples
    --------
    >>> from bagwise.models.variational.search import whole_grid
    >>> len(whole_grid()), whole_grid()[0]
    (12, Design(scale='global', kernel='set, narrow', likelihood='whole bags, v=16'))
    """
    return [Design(s, k, name) for s in SCALES for k in SET_KERNELS for name in WHOLE_BAGS]


def make_spaces(
    bags: Bags, n_inducing: int, rng: np.random.RandomState, driver: Driver
) -> dict[Scale, Space]:
    """Every scaling with its typical distances and inducing points; rows are read once."""
    X = bags.instances
    moments = feature_moments(X, driver)
    rows = _spread_rows(bags, n_inducing, rng)
    limit = max(_KMEANS_ROWS, 10 * n_inducing)
    if len(rows) > limit:
        rows = np.sort(rng.choice(rows, limit, replace=False))
    some = host_rows(X, rows)
    few = np.arange(bags.n_instances)
    if len(few) > _MEDIAN_ROWS:
        few = np.sort(rng.choice(len(few), _MEDIAN_ROWS, replace=False))
    sample = host_rows(X, few)
    one_class = np.zeros(len(some), dtype=bool)
    spaces: dict[Scale, Space] = {}
    for scale in SCALES:
        scaling = scaling_of(moments, scale)
        Z = inducing.choose(some, one_class, n_inducing, "kmeans", rng, scaling)
        few_scaled = scaling(sample)
        median_sq = median_sq_distance(few_scaled)  # once for all kernels
        grid = {**KERNELS, **SET_KERNELS}
        kernels = {name: kernel.resolve(few_scaled, median_sq) for name, kernel in grid.items()}
        spaces[scale] = Space(scaling, kernels, Z)
    return spaces


def _spread_rows(bags: Bags, n_inducing: int, rng: np.random.RandomState) -> Ints:
    """Rows for k-means; no bag gives more than twice a typical bag, or large ones would rule."""
    limit = max(2 * int(np.median(bags.sizes)), -(-2 * n_inducing // len(bags)))
    order = rng.permutation(bags.n_instances)
    order = order[np.argsort(bags.bag_index[order], kind="stable")]  # shuffled within each bag
    rank = np.arange(bags.n_instances) - segments.spread(bags.offsets[:-1], bags.offsets)
    return np.sort(order[rank < limit])


Folds = Sequence[tuple[Ints, Ints]]


def make_folds(y: Ints, n_splits: int, seed: int) -> Folds:
    """Stratified folds of bags, as many as the rarer class allows."""
    n_splits = min(n_splits, int(np.bincount(y, minlength=2).min()))
    folds = StratifiedKFold(n_splits, shuffle=True, random_state=seed)
    return list(folds.split(np.zeros(len(y)), y))


class HeldOutScores(NamedTuple):
    """Log-odds from models that did not see the bag, of bags by every rule and of instances."""

    bags: Floats  # [designs, rules, B]
    instances: Floats  # [designs, N]

    def take(self, bags: Ints, offsets: Ints) -> HeldOutScores:
        """Only some of the bags, in the order given."""
        rows, _ = segments.take(offsets, bags)
        return HeldOutScores(self.bags[:, :, bags], self.instances[:, rows])

    def beside(self, whole: Floats) -> HeldOutScores:
        """With the scores [designs, B] of designs that look at whole bags, after the others.

        They have no instances, and every rule reads them alike.
        """
        alike = np.repeat(whole[:, None], self.bags.shape[1], axis=1)
        return self._replace(bags=np.concatenate([self.bags, alike]))


class Task(NamedTuple):
    """Designs that share a projection: a projector, and the names of their likelihoods."""

    projector: Projector
    likelihoods: tuple[str, ...]


@dataclass(frozen=True)
class HeldOut:
    """Held-out scores of the designs of a task; picklable, for any driver."""

    bags: Bags
    labels: BagLabels
    rules: tuple[BagRule, ...]
    folds: Folds
    max_iter: int

    def __call__(self, task: Task) -> HeldOutScores:
        """Scores of every bag and instance from models that did not see the bag."""
        whole = project_whole(task.projector, self.bags, self.labels)
        scores = HeldOutScores(
            np.empty((len(task.likelihoods), len(self.rules), len(self.bags))),
            np.empty((len(task.likelihoods), self.bags.n_instances)),
        )
        for train, test in self.folds:
            seen, unseen = (take_bags(whole, self.labels, chosen) for chosen in (train, test))
            chunk = DEVICE_CHUNK_SIZE if task.projector.on_device else CHUNK_SIZE
            blocks = make_blocks(seen.A[0], seen.r, seen.labels, chunk)
            pi = self.labels._replace(
                offsets=segments.take(self.labels.offsets, train)[1], y=self.labels.y[train]
            ).of_bag
            rows, _ = segments.take(self.labels.offsets, test)
            for i, name in enumerate(task.likelihoods):
                q = posterior_of_blocks(
                    blocks, pi, LIKELIHOODS[name], max_iter=self.max_iter, tol=TOL
                )
                readouts = read_rules(unseen, q, self.rules)
                scores.bags[i][:, test] = [readout.bag for readout in readouts]
                scores.instances[i, rows] = readouts[0].instance
        return scores


@dataclass(frozen=True)
class HeldOutWhole:
    """Held-out scores of designs that look at whole bags; picklable, for any driver."""

    bags: Bags
    labels: BagLabels
    folds: Folds
    max_iter: int

    def __call__(self, task: Task) -> Floats:
        """Scores of every bag from models that did not see it, [likelihoods, B]."""
        whole = project_whole(task.projector, self.bags, self.labels)
        scores = np.empty((len(task.likelihoods), len(self.bags)))
        for i, name in enumerate(task.likelihoods):
            points = pooled(whole, WHOLE_BAGS[name])
            for train, test in self.folds:
                q = fit_points(take_points(points, train), self.max_iter, TOL)
                scores[i, test] = read_points(take_points(points, test), q).bag
        return scores


def project_whole(projector: Projector, bags: Bags, labels: BagLabels) -> Block:
    """All bags as one block with one chunk, where the projector works."""
    if projector.on_device:
        A, r = projector(bags.instances)
        return Block((A,), r, projector.place(labels))
    n, step = bags.n_instances, 8192
    A = np.empty((len(projector.Z), n), dtype=projector.dtype, order="F")
    r = np.empty(n)
    for start in range(0, n, step):
        rows = slice(start, start + step)
        A[:, rows], r[rows] = projector(bags.instances[rows])
    return Block((A,), r, labels)


def take_bags(whole: Block, labels: BagLabels, chosen: Ints) -> Block:
    """The block of some bags of a whole one, whose labels on the host are ``labels``."""
    rows, offsets = segments.take(labels.offsets, chosen)
    weight = None if labels.weight is None else labels.weight[chosen]
    own = BagLabels(offsets, labels.y[chosen], labels.known[rows], weight)
    A = whole.A[0]
    if is_tensor(A):
        import torch

        index = torch.as_tensor(rows, device=A.device)
        placed = own.map(lambda x: torch.as_tensor(np.array(x)).to(A.device))
        return Block((A.index_select(1, index),), whole.r[index], placed)
    # Rows of the transpose are contiguous: a gather of instances, not of strided columns.
    return Block((A.T.take(rows, axis=0).T,), whole.r[rows], own)


def calibrated_losses(scores: Floats, y: Ints) -> tuple[list[Platt], Floats]:
    """Platt's map of each candidate's held-out scores [C, B], and its log-loss after it, [C]."""
    maps = fit_platts(scores, y, WHOLE_BAG)  # of many, chance favours the steep
    losses = [log_loss(p.log_odds(s), y) for p, s in zip(maps, scores, strict=True)]
    return maps, np.array(losses)


def log_loss(log_odds: Floats, y: Ints) -> float:
    """Mean negative log-likelihood of labels, in the log domain."""
    return float(np.mean(np.logaddexp(0.0, log_odds) - y * log_odds))


def size_gain(sizes: Ints, y: Ints) -> float:
    """Log-likelihood that the sizes of the bags alone gain over the base rate, larger for positive.

    Rules that add up over the instances of a bag can count them. What counting would gain is no
    merit of a rule: the next bags may be large for another reason.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.search import size_gain
    >>> y = np.arange(40) % 2
    >>> size_gain(np.full(40, 7), y) < 0.1 < 10 < size_gain(np.where(y == 1, 30, 5), y)
    True
    """
    share = y.mean()
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    _, losses = calibrated_losses(np.log(sizes)[None], y)
    return max(0.0, len(y) * float(entropy - losses[0]))


def weigh(
    scores: Floats,
    y: Ints,
    prices: Sequence[float],
    temperature: float,
    rule_price: float = PRICE,
    n_scoring: int | None = None,
) -> list[Candidate]:
    """An ensemble from held-out scores [designs, rules, B] of designs with their prices.

    Each design takes its best rule; any but the first costs ``rule_price``. Designs count in
    proportion to ``exp(-B (loss - least loss) / temperature)``: their likelihood on held-out
    bags, tempered, because B bags cannot tell close designs apart. The best of the first
    ``n_scoring`` designs, those that score instances, stays even if it has no weight. Where
    held-out bags say nothing for a design its map keeps a hint of its ranking, so that an ensemble
    of such designs is not constant.
    """
    n_rules = scores.shape[1]
    maps, losses = calibrated_losses(scores.reshape(-1, scores.shape[2]), y)
    losses = len(y) * losses.reshape(-1, n_rules) + np.asarray(prices)[:, None]
    losses[:, 1:] += rule_price
    best_rule, loss = losses.argmin(axis=1), losses.min(axis=1)
    weights = np.exp((loss.min() - loss) / temperature)
    weights = np.where(weights < 0.01, 0.0, weights)
    weights /= weights.sum()
    kept = [
        int(i)
        for i in np.argsort(loss, kind="stable")
        if weights[i] > 0 or i == np.argmin(loss[:n_scoring])
    ]
    return [
        Candidate(
            i,
            j,
            float(weights[i]),
            *(keep_ranking(maps[i * n_rules + rule], scores[i, rule]) for rule in (j, 0)),
        )
        for i, j in zip(kept, best_rule[kept].tolist(), strict=True)
    ]


def combine(candidates: Sequence[Candidate], scores: HeldOutScores) -> tuple[Floats, Floats]:
    """The ensemble's log-odds of bags and of instances from those of the designs.

    Instances pass through the map of the largest one of a bag, whatever rule the bags have: another
    rule adds its instances up, and a map of sums shifts each of them.
    """
    of_bags, of_instances = np.zeros(scores.bags.shape[2]), np.zeros(scores.instances.shape[1])
    inside = inside_weights(candidates, len(scores.instances))
    for c, weight in zip(candidates, inside, strict=True):
        of_bags += c.weight * c.platt.log_odds(scores.bags[c.design, c.rule])
        if weight > 0:
            of_instances += weight * c.top.log_odds(scores.instances[c.design])
    return of_bags, of_instances


def inside_weights(candidates: Sequence[Candidate], n_designs: int) -> Floats:
    """Weights among the candidates that score instances: those of the first ``n_designs``.

    Where whole bags have all the weight, the ones that score instances share it evenly.
    """
    scoring = np.array([c.design < n_designs for c in candidates])
    weights = scoring * np.array([c.weight for c in candidates])
    weights = weights if weights.sum() > 0 else scoring.astype(np.float64)
    return weights / weights.sum()


def held_out_ensemble(
    scores: HeldOutScores,
    y: Ints,
    offsets: Ints,
    prices: Sequence[float],
    temperature: float,
    folds: Folds,
    rule_price: float = PRICE,
) -> tuple[Floats, Floats]:
    """Log-odds of every bag and instance from an ensemble that was weighed without the bag.

    Choosing the best of many looks better than it is; these log-odds have paid for the choice,
    so the final calibration is fitted to them.
    """
    of_bags, of_instances = np.empty(len(y)), np.empty(scores.instances.shape[1])
    n_scoring = len(scores.instances)
    for train, test in folds:
        own = scores.bags[:, :, train], y[train]
        candidates = weigh(*own, prices, temperature, rule_price, n_scoring)
        rows, _ = segments.take(offsets, test)
        of_bags[test], of_instances[rows] = combine(candidates, scores.take(test, offsets))
    return of_bags, of_instances


def auc(scores: Floats, y: Ints) -> Floats:
    """Area under the ROC curve of many candidates' scores [..., B] at once."""
    n_pos = int(y.sum())
    ranks = rankdata(scores, axis=-1)[..., y == 1].sum(axis=-1)
    return (ranks - n_pos * (n_pos + 1) / 2) / (n_pos * (len(y) - n_pos))


class Voice(NamedTuple):
    """How a member's log-odds enter the ensemble: their weight, and the map they go through."""

    weight: float
    platt: Platt
    # Weight among the members that score instances; the same one where all of them do.
    inside: float | None = None
    top: Platt | None = None  # map of its instances; that of its bags where they have none

    @property
    def of_instances(self) -> float:
        """Weight of its instances."""
        return self.weight if self.inside is None else self.inside

    @property
    def instance_platt(self) -> Platt:
        """Map of its instances."""
        return self.platt if self.top is None else self.top


def pooled_latent(readouts: Sequence[Readout], voices: Sequence[Voice]) -> Scores:
    """Mean and standard deviation of the ensemble's log-odds, of bags and instances.

    The mean of members whose errors are correlated by `_ALIKE`, and their disagreement. A member's
    map stretches its deviations as that of a single model does.
    """
    columns = []
    for which in ("bag", "instance"):
        first, second = np.zeros(()), np.zeros(())
        together, apart = np.zeros(()), np.zeros(())
        for readout, voice in zip(readouts, voices, strict=True):
            weight, platt, power = voice.weight, voice.platt, BAGS_FOLLOW
            if which == "instance":
                weight, platt, power = voice.of_instances, voice.instance_platt, INSTANCES_FOLLOW
            if weight == 0:
                continue
            log_odds, std = _latent_moments(readout, which)
            z = platt.log_odds(log_odds)
            first = first + weight * z
            second = second + weight * z * z
            own = weight * stretch(platt.slope, power) * std
            together, apart = together + own, apart + own * own
        disagreement = np.maximum(second - first * first, 0.0)
        variance = _ALIKE * together**2 + (1 - _ALIKE) * apart + disagreement
        columns += [first, np.sqrt(variance)]
    return Scores(*columns)


def _latent_moments(readout: Readout, which: str) -> tuple[Array, Array]:
    """Finite log-odds, and their standard deviation."""
    if which == "instance":
        return readout.instance, np.sqrt(readout.latent_var)
    log_odds = np.minimum(readout.bag, -np.log(np.finfo(np.float64).tiny))
    # d log-odds / d p = 1 / (p (1 - p))
    slope = np.exp(np.logaddexp(0.0, log_odds) + np.logaddexp(0.0, -log_odds))
    return log_odds, np.minimum(readout.bag_std * slope, _LARGEST_STD)


def pooled_scores(
    readouts: Sequence[Readout],
    offsets: Ints,
    voices: Sequence[Voice],
    instance_map: InstanceMap | None = None,
    bag_range: tuple[float, float] = (-np.inf, np.inf),
) -> Scores:
    """The ensemble's scores of the bags of a span, from the readouts of its members.

    Bags outside of ``bag_range`` are pulled towards it. Instances are read on the scale of the bags
    unless they have a map of their own.
    """
    latent = pooled_latent(readouts, voices)
    latent = latent._replace(bag=bent(latent.bag, *bag_range))
    bag_std = _probability_std(latent.bag, latent.bag_std)
    if instance_map is None:
        instance_std = _probability_std(latent.instance, latent.instance_std)
        return Scores(latent.bag, bag_std, latent.instance, instance_std)
    f = with_log_odds(latent.instance, latent.instance_std**2)
    of_bag = (segments.spread(x, offsets) for x in (latent.bag, bag_std))
    p = instance_map.probabilities(f.mean, f.var, *of_bag)
    return Scores(latent.bag, bag_std, to_numpy(p.log_odds), to_numpy(p.std))


def _probability_std(log_odds: Floats, std: Floats) -> Floats:
    """Standard deviation of the probability whose mean has these log-odds.

    Probability and deviation belong to one distribution: that of sigmoid(f), f of this deviation
    and centred so that the mean is the reported one.
    """
    return to_numpy(with_log_odds(log_odds, std**2).probabilities.std)


def pooled_instances(
    readouts: Sequence[Readout],
    offsets: Ints,
    voices: Sequence[Voice],
    instance_map: InstanceMap | None = None,
    bag_range: tuple[float, float] = (-np.inf, np.inf),
) -> tuple[Floats, Floats]:
    """Mean and variance of the ensemble's latent function at every instance."""
    latent = pooled_latent(readouts, voices)
    return latent.instance, latent.instance_std**2


def pooled_deviations(
    readouts: Sequence[Readout],
    offsets: Ints,
    voices: Sequence[Voice],
    instance_map: InstanceMap | None = None,
    bag_range: tuple[float, float] = (-np.inf, np.inf),
) -> tuple[Floats, ...]:
    """Log-odds and standard deviations of the instances, and the deviations of the function."""
    scores = pooled_scores(readouts, offsets, voices, instance_map, bag_range)
    return scores.instance, scores.instance_std, pooled_latent(readouts, voices).instance_std


def pooled_fractions(
    readouts: Sequence[Readout],
    offsets: Ints,
    voices: Sequence[Voice],
    instance_map: InstanceMap | None = None,
    bag_range: tuple[float, float] = (-np.inf, np.inf),
) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the share of positives in every bag.

    The mean is that of the ensemble's instance probabilities. A member's share varies on its own
    scale; its map stretches that as it stretches the log-odds.
    """
    scores = pooled_scores(readouts, offsets, voices, instance_map, bag_range)
    first, second = np.zeros_like(scores.bag), np.zeros_like(scores.bag)
    own_map = LatentMap() if instance_map is None else instance_map.own
    for readout, voice in zip(readouts, voices, strict=True):
        weight = voice.of_instances
        if weight == 0:
            continue
        assert readout.fraction is not None  # the readers asked for it
        platt = voice.instance_platt
        own = segments.mean(expit(own_map.log_odds(platt.log_odds(readout.instance))), offsets)
        widened = stretch(platt.slope, INSTANCES_FOLLOW) * own_map.spread
        std = np.minimum(widened * readout.fraction.std, 0.5)
        first += weight * own
        second += weight * (own * own + std * std)
    share = Fraction(first, np.sqrt(np.maximum(second - first * first, 0.0)))
    if instance_map is not None:
        share = instance_map.fraction(share, scores.bag)
    return segments.mean(expit(scores.instance), offsets), share.std
