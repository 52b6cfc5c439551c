"""The search behind `AutoVGPMIL`: designs, held-out scores, and how much each design counts.

A design is a scaling, a kernel and a bag likelihood; a rule reads a bag's score off its instances.
Designs that share scaling and kernel share the projected instances, and folds are columns of them:
the inducing points and the scaling are chosen once, from all training bags, which makes the
search several times cheaper. They must then not know the labels: centroids of one class (V section
4.2) pull the held-out instances of that class towards the training instances of the same class,
and held-out scores come out far too good. Here k-means sees instances only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedKFold

from bagwise.bags import Bags
from bagwise.core import inducing, segments
from bagwise.core.gaussians import sigmoid_moments
from bagwise.core.kernels import RBF, Constant, Kernel, Matern32, MultiScale, median_sq_distance
from bagwise.core.platt import Platt, fit_platts
from bagwise.models.variational import training
from bagwise.models.variational.likelihoods import (
    BagLikelihood,
    ExactOr,
    Inherited,
    Labels,
    SoftWitness,
)
from bagwise.models.variational.predict import BagScores, bag_scores
from bagwise.models.variational.updates import Posterior, fit_whitened, moments

# Squared length scales are shares of the median squared distance; all but the first and the last
# have a bias. Matern-3/2 is never far behind RBF, and ahead where neighbours say much.
KERNELS: dict[str, Callable[[float], Kernel]] = {
    "multi-scale": lambda sq: MultiScale(sq, 16.0),
    "narrow, v=4": lambda sq: RBF(np.sqrt(sq / 8), 4.0) + Constant(25.0),
    "narrow, v=16": lambda sq: RBF(np.sqrt(sq / 8), 16.0) + Constant(25.0),
    "narrow, rough": lambda sq: Matern32(np.sqrt(sq / 8), 16.0) + Constant(25.0),
    "medium, rough": lambda sq: Matern32(np.sqrt(sq / 2), 16.0) + Constant(25.0),
    "medium, v=64": lambda sq: RBF(np.sqrt(2 * sq), 64.0) + Constant(25.0),
    "wide, rough": lambda sq: Matern32(np.sqrt(2 * sq), 64.0) + Constant(25.0),
    "wide, v=4": lambda sq: RBF(np.sqrt(8 * sq), 4.0),
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
SCALES = ("global", "feature")
RULES = ("max", "noisy-or", "joint")

# Fits stop when q changes less: rankings have settled long before.
TOL = 0.01
# Draws of u for the joint rule; the search reads thousands of bags, and a ranking needs few.
_JOINT_DRAWS = 64
# Held-out log-likelihood that a departure from the plain choice, witnesses read by max, must
# gain: among a hundred designs on a hundred bags some win by chance.
PRICE = 2.0
# A bag's log-odds are uncertain by no more than this; beyond it the probability is 0 or 1 anyway.
_LARGEST_STD = 10.0


class Design(NamedTuple):
    """One point of the grid."""

    scale: str
    kernel: str
    likelihood: str

    @property
    def price(self) -> float:
        """Log-likelihood that its likelihood must gain to be worth choosing."""
        return 0.0 if self.likelihood.startswith("witness") else PRICE


class Space(NamedTuple):
    """One scaling of the features, and what every kernel on it needs."""

    scaling: training.Scaling
    median_sq: float
    Z: Any  # [M, D] scaled

    def projector(self, kernel: str, Z: Any = None) -> training.Projector:
        """Onto the inducing points under a kernel of the grid, or onto some of them."""
        Z = self.Z if Z is None else Z
        return training.make_projector(KERNELS[kernel](self.median_sq), Z, self.scaling, "float32")


class Member(NamedTuple):
    """A candidate's part in the ensemble."""

    design: int  # position in the list of designs
    rule: int  # position in the list of rules
    weight: float
    platt: Platt


class Readout(NamedTuple):
    """Log-odds and their standard deviation, of bags and of instances."""

    bag: Any  # [b]
    bag_std: Any  # [b]
    instance: Any  # [n]
    instance_std: Any  # [n]


def grid() -> list[Design]:
    """Every design, those that share scaling and kernel next to each other.

    Examples
    --------
    >>> from bagwise.models.variational.search import grid
    >>> len(grid()), grid()[0]
    (96, Design(scale='global', kernel='multi-scale', likelihood='witness, g=0'))
    """
    return [Design(s, k, name) for s in SCALES for k in KERNELS for name in LIKELIHOODS]


def make_space(bags: Bags, scale: str, n_inducing: int, rng: Any) -> Space:
    """Scaling, typical distance and inducing points from training bags."""
    X = bags.instances
    scaling = training.learn_scaling(X, scale)
    rows = _spread_rows(bags, n_inducing, rng)
    one_class = np.zeros(len(rows), dtype=bool)
    Z = inducing.choose(X[rows], one_class, n_inducing, "kmeans", rng, scaling)
    rows = np.arange(bags.n_instances)
    if len(rows) > 1000:
        rows = np.sort(rng.choice(len(rows), 1000, replace=False))
    return Space(scaling, median_sq_distance(scaling(X[rows])), Z)


def _spread_rows(bags: Bags, n_inducing: int, rng: Any) -> Any:
    """Rows for k-means; no bag gives more than twice a typical bag, or large ones would rule."""
    limit = max(2 * int(np.median(bags.sizes)), -(-2 * n_inducing // len(bags)))
    order = rng.permutation(bags.n_instances)
    order = order[np.argsort(bags.bag_index[order], kind="stable")]  # shuffled within each bag
    rank = np.arange(bags.n_instances) - segments.spread(bags.offsets[:-1], bags.offsets)
    return np.sort(order[rank < limit])


def make_folds(y: Any, n_splits: int, seed: int) -> list[tuple[Any, Any]]:
    """Stratified folds of bags, as many as the rarer class allows."""
    n_splits = min(n_splits, int(np.bincount(y, minlength=2).min()))
    folds = StratifiedKFold(n_splits, shuffle=True, random_state=seed)
    return list(folds.split(np.zeros(len(y)), y))


def read(
    A: Sequence[Any], r: Any, offsets: Any, q: Posterior, rules: Sequence[str]
) -> list[Readout]:
    """Scores of bags and of their instances under each rule.

    ``max`` compares posterior means, without averaging the sigmoid over q(f): far from the data
    the average says "unknown", which is honest for an instance but hides which one stands out.
    """
    f = moments(A, r, q)
    std = np.sqrt(f.var)
    p = None if set(rules) == {"max"} else sigmoid_moments(f.mean, f.var)
    found = []
    for rule in rules:
        if rule == "max" or p is None:
            top = segments.argmax(f.mean, offsets)
            found.append(Readout(f.mean[top], std[top], f.mean, std))
        else:
            joint = rule == "joint"
            bag = _joint(A, r, offsets, q) if joint else bag_scores(p, offsets, "noisy-or")
            found.append(Readout(*_as_log_odds(bag, p.log_odds, offsets), p.log_odds, std))
    return found


def _as_log_odds(bag: BagScores, instances: Any, offsets: Any) -> tuple[Any, Any]:
    """Finite log-odds of bags and their standard deviation."""
    # A bag is at least as positive as each of its instances, also with few samples.
    log_odds = np.maximum(bag.log_odds, segments.max(instances, offsets))
    log_odds = np.minimum(log_odds, -np.log(np.finfo(np.float64).tiny))
    # d log-odds / d p = 1 / (p (1 - p))
    slope = np.exp(np.logaddexp(0.0, log_odds) + np.logaddexp(0.0, -log_odds))
    return log_odds, np.minimum(bag.std * slope, _LARGEST_STD)


def _joint(A: Sequence[Any], r: Any, offsets: Any, q: Posterior) -> BagScores:
    """Noisy-or of instances correlated through u, from draws of u shared by all bags.

    One product serves every bag, where `predict.joint_bag_scores` works bag by bag; the noise of
    variance r is averaged out by the probit approximation of the sigmoid.
    """
    z = _draws(len(q.m))  # [M, draws]
    u = q.m[:, None] + q.W.T @ z
    log_none = np.empty((len(r), z.shape[1]))
    start = 0
    for chunk in A:
        rows = slice(start, start + chunk.shape[1])
        f = chunk.T @ u.astype(chunk.dtype, copy=False)  # [n, draws]
        log_none[rows] = -np.logaddexp(0.0, f / np.sqrt(1 + np.pi / 8 * r[rows, None]))
        start = rows.stop
    log_none = segments.sum(log_none, offsets)  # [b, draws]
    some = -np.expm1(log_none)
    with np.errstate(divide="ignore"):
        log_odds = logsumexp(np.log(some), axis=1) - logsumexp(log_none, axis=1)
    return BagScores(log_odds, some.std(axis=1))


@lru_cache(maxsize=8)
def _draws(M: int) -> Any:
    """Standard normal draws in antithetic pairs, [M, draws]."""
    half = np.random.default_rng(0).normal(size=(M, _JOINT_DRAWS // 2))
    return np.concatenate([half, -half], axis=1)


def held_out_scores(
    projector: training.Projector,
    bags: Bags,
    labels: Labels,
    likelihoods: Sequence[str],
    rules: Sequence[str],
    folds: Sequence[tuple[Any, Any]],
    max_iter: int,
) -> Any:
    """Score of every bag from models that did not see it, [likelihoods, rules, B]."""
    A, r = _project(projector, bags)
    scores = np.empty((len(likelihoods), len(rules), len(bags)))
    for train, test in folds:
        A_train, r_train, seen = _bags_of(A, r, labels, train)
        A_test, r_test, unseen = _bags_of(A, r, labels, test)
        for i, name in enumerate(likelihoods):
            fit = fit_whitened(
                A_train,
                r_train,
                *seen,
                training.start("label", seen, None),
                LIKELIHOODS[name],
                max_iter=max_iter,
                tol=TOL,
            )
            found = read([A_test], r_test, unseen.offsets, fit.posterior, rules)
            scores[i][:, test] = [one.bag for one in found]
    return scores


def _project(projector: training.Projector, bags: Bags, chunk: int = 8192) -> tuple[Any, Any]:
    X = bags.instances
    A = np.empty((len(projector.Z), bags.n_instances), dtype=projector.dtype, order="F")
    r = np.empty(bags.n_instances)
    for start in range(0, bags.n_instances, chunk):
        rows = slice(start, start + chunk)
        A[:, rows], r[rows] = projector(X[rows])
    return A, r


def _bags_of(A: Any, r: Any, labels: Labels, chosen: Any) -> tuple[Any, Any, Labels]:
    rows, offsets = segments.take(labels.offsets, chosen)
    # Rows of the transpose are contiguous: a gather of instances, not of strided columns.
    part = A.T.take(rows, axis=0).T
    return part, r[rows], Labels(offsets, labels.y[chosen], labels.known[rows])


def calibrated_losses(scores: Any, y: Any) -> tuple[list[Platt], Any]:
    """Platt's map of each candidate's held-out scores [C, B], and its log-loss after it, [C]."""
    maps = fit_platts(scores, y)
    losses = [log_loss(p.log_odds(s), y) for p, s in zip(maps, scores, strict=True)]
    return maps, np.array(losses)


def log_loss(log_odds: Any, y: Any) -> float:
    """Mean negative log-likelihood of labels, in the log domain."""
    return float(np.mean(np.logaddexp(0.0, log_odds) - y * log_odds))


def weigh(scores: Any, y: Any, prices: Any, temperature: float) -> list[Member]:
    """An ensemble from held-out scores [designs, rules, B] of designs with their prices.

    Each design takes its best rule; any but the first has a price, too. Designs count in
    proportion to ``exp(-B (loss - least loss) / temperature)``: their likelihood on held-out
    bags, tempered, because B bags cannot tell close designs apart.
    """
    n_rules = scores.shape[1]
    maps, losses = calibrated_losses(scores.reshape(-1, scores.shape[2]), y)
    losses = len(y) * losses.reshape(-1, n_rules) + np.asarray(prices)[:, None]
    losses[:, 1:] += PRICE
    best_rule, loss = losses.argmin(axis=1), losses.min(axis=1)
    weights = np.exp((loss.min() - loss) / temperature)
    weights = np.where(weights < 0.01, 0.0, weights)
    weights /= weights.sum()
    return [
        Member(int(i), int(best_rule[i]), float(weights[i]), maps[i * n_rules + best_rule[i]])
        for i in np.argsort(loss, kind="stable")
        if weights[i] > 0
    ]


def combine(members: Sequence[Member], scores: Any) -> Any:
    """The ensemble's log-odds of bags from scores [designs, rules, B]."""
    return sum(m.weight * m.platt.log_odds(scores[m.design, m.rule]) for m in members)


def held_out_ensemble(
    scores: Any, y: Any, prices: Any, temperature: float, folds: Sequence[tuple[Any, Any]]
) -> Any:
    """Log-odds of every bag from an ensemble that was weighed without it, [B].

    Choosing the best of many looks better than it is; these log-odds have paid for the choice,
    so the final calibration is fitted to them.
    """
    log_odds = np.empty(len(y))
    for train, test in folds:
        members = weigh(scores[:, :, train], y[train], prices, temperature)
        log_odds[test] = combine(members, scores[:, :, test])
    return log_odds


def auc(scores: Any, y: Any) -> Any:
    """Area under the ROC curve of many candidates' scores [..., B] at once."""
    n_pos = int(y.sum())
    ranks = rankdata(scores, axis=-1)[..., y == 1].sum(axis=-1)
    return (ranks - n_pos * (n_pos + 1) / 2) / (n_pos * (len(y) - n_pos))
