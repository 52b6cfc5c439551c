"""Constrained variational inference: hard instance labels under the multiple-instance rules.

Class 0 is the background: its bags hold nothing else. A bag of class c > 0 holds at least one
instance of class c, and its other instances are of class c or background. With two classes
these are the constraints of Kandemir and Hamprecht (UAI 2014); one mixture per class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from bagwise.core import dirichlet, segments
from bagwise.core.arrays import Bools, Codes, Doubles, Floats, Ints, beside
from bagwise.core.dirichlet import ClusterPosterior, ClusterStatistics, Prior


class BagBlock(NamedTuple):
    """Whole bags, as much of the data as inference sees at a time."""

    Z: Doubles  # [n, D] instances in the prior's coordinates, here or on a device
    offsets: Ints  # [b + 1]
    y: Ints  # [b] class of each bag
    known: Codes  # [n] class of each instance, -1 where unknown


class ClassSums(NamedTuple):
    """What blocks contribute to an update: additive over bags, class by class."""

    evidence: float  # sum over instances of logsumexp_k log rho_nk
    N: Floats  # [C, K] the `ClusterStatistics` of every class
    first: Floats  # [C, K, D]
    second: Floats  # [C, K, D, D], or [C, K, D] where diagonal


# Applies a function to all blocks and adds up what it says they contribute.
Run = Callable[[Callable[[BagBlock], "tuple[Ints, ClassSums]"]], ClassSums]


class MixtureState(NamedTuple):
    """The result of inference."""

    mixtures: tuple[ClusterPosterior, ...]  # one per class
    bounds: tuple[float, ...]  # after every iteration
    converged: bool


def key_instance_labels(blocks: Callable[[], Iterator[BagBlock]], prior: Prior) -> Ints:
    """One instance per bag of class c > 0 takes its class: the least like the background. [N].

    Another place to start from. Where few instances of a bag are of its class, the bags' labels
    can lead to mixtures that have changed places; the bound tells.
    """
    D = len(prior.mean)
    statistics = dirichlet.empty_statistics(1, D, prior.diagonal)
    for Z, offsets, y, _ in blocks():
        rows, _ = segments.take(offsets, np.flatnonzero(y == 0))
        part = dirichlet.accumulate(_take(Z, rows), np.ones((len(rows), 1)), prior.diagonal)
        statistics = dirichlet.add(statistics, part)
    background = dirichlet.update(statistics, prior)
    labels = []
    for Z, offsets, y, known in blocks():
        surprise = -dirichlet.log_joint(Z, background, prior)[:, 0]
        # Below zero everywhere, so that a bag keeps exactly the instance it must.
        chosen = choose_labels(surprise - surprise.max() - 1, offsets, np.minimum(known, 1))
        labels.append(np.where(chosen, segments.spread(y, offsets), 0))
    return np.concatenate(labels)


def choose_labels(gain: Floats, offsets: Ints, known: Codes) -> Bools:
    """Whether each instance of bags of class c > 0 is of class c, Eq. (3). [n] bool.

    ``gain`` is how much more it adds to the bound there than in the background; ``known`` is 1,
    0 or -1 (unknown). A bag left with no instance of its class keeps the one that costs least.
    """
    positive = np.where(known >= 0, known == 1, gain > 0)
    bare = segments.max(positive.astype(np.float64), offsets) == 0
    if bare.any():
        free = np.where(known == 0, -np.inf, gain)
        positive[segments.argmax(free, offsets)[bare]] = True
    return positive


def assign(
    block: BagBlock, mixtures: tuple[ClusterPosterior, ...], prior: Prior
) -> tuple[Ints, ClassSums]:
    """Update q(z) and the labels of a block: the class of each instance [n], and its sums."""
    Z, offsets, y, known = block
    # An instance meets only the mixtures it can belong to.
    open_rows = np.flatnonzero(known <= 0)
    Z0 = _take(Z, open_rows)
    resp, total = dirichlet.responsibilities(Z0, mixtures[0], prior)
    best = np.full(len(Z), -np.inf)
    best[open_rows] = total
    labels = np.zeros(len(Z), dtype=np.int64)
    parts = []
    for c in range(1, len(mixtures)):
        rows, its_offsets = segments.take(offsets, np.flatnonzero(y == c))
        can = known[rows] != 0
        Zc = _take(Z, rows[can])
        resp_c, total_c = dirichlet.responsibilities(Zc, mixtures[c], prior)
        gain = np.full(len(rows), -np.inf)
        gain[can] = total_c - best[rows[can]]
        chosen = choose_labels(gain, its_offsets, np.minimum(known[rows], 1))
        labels[rows[chosen]] = c
        best[rows[chosen]] = total_c[chosen[can]]
        # What an instance does not belong to gets nothing of it.
        resp_c[beside(~chosen[can], resp_c)] = 0.0
        parts.append(dirichlet.accumulate(Zc, resp_c, prior.diagonal))
    resp[beside(labels[open_rows] > 0, resp)] = 0.0
    parts.insert(0, dirichlet.accumulate(Z0, resp, prior.diagonal))
    return labels, _sums(float(np.sum(best)), parts)


def _sums(evidence: float, of_classes: Iterable[ClusterStatistics]) -> ClassSums:
    return ClassSums(evidence, *(np.stack(column) for column in zip(*of_classes, strict=True)))


def _take(Z: Doubles, rows: Ints) -> Doubles:
    if len(rows) == len(Z):
        return Z
    return Z[beside(rows, Z)]


def sums_of_clusters(
    Z: Doubles, labels: Ints, clusters: Ints, n_classes: int, n_components: int, diagonal: bool
) -> ClassSums:
    """Sums of rows that belong wholly to one cluster of their class."""
    resp = np.zeros((len(Z), n_components))
    resp[np.arange(len(Z)), clusters] = 1.0
    own = (np.flatnonzero(labels == c) for c in range(n_classes))
    parts = (dirichlet.accumulate(_take(Z, rows), resp[rows], diagonal) for rows in own)
    return _sums(0.0, parts)


def update(sums: ClassSums, prior: Prior) -> tuple[ClusterPosterior, ...]:
    """Posteriors of all mixtures."""
    of_classes = zip(sums.N, sums.first, sums.second, strict=True)
    return tuple(dirichlet.update(ClusterStatistics(*columns), prior) for columns in of_classes)


def log_predictive(Z: Doubles, mixtures: tuple[ClusterPosterior, ...], prior: Prior) -> Floats:
    """Log predictive density of new rows under each class, [n, C]."""
    return np.stack([dirichlet.log_predictive(Z, q, prior) for q in mixtures], axis=1)


def bound(evidence: float, mixtures: tuple[ClusterPosterior, ...], prior: Prior) -> float:
    """The full lower bound on log p(X, y | r), right after q(z) and the labels were updated.

    With q(z) at its optimum, the expected log-likelihood and the entropy of q(z) together are
    ``evidence``; the divergence of the parameters from their prior is subtracted.
    """
    return evidence - sum(dirichlet.kl(mixture, prior) for mixture in mixtures)


def infer(
    run: Run,
    start: ClassSums,
    prior: Prior,
    *,
    max_iter: int,
    tol: float,
    report: Callable[[int, float], None] | None = None,
) -> MixtureState:
    """Coordinate ascent (Algorithm 1 of the paper) from starting sums.

    The printed algorithm resets the labels inside the loop, which would undo every update of
    them; here they start once. Stops when the bound's relative change is below ``tol``; the
    mixtures returned match the labels that ``run`` kept last.
    """
    bounds: list[float] = []
    mixtures = update(start, prior)
    converged = False
    while not converged and len(bounds) < max_iter:
        sums = run(partial(assign, mixtures=mixtures, prior=prior))
        bounds.append(bound(sums.evidence, mixtures, prior))
        mixtures = update(sums, prior)
        if report is not None:
            report(len(bounds), bounds[-1])
        if len(bounds) > 1:
            converged = bounds[-1] - bounds[-2] <= tol * abs(bounds[-1])
    return MixtureState(mixtures, tuple(bounds), converged)
