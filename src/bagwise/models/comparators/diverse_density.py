"""Diverse density, EM-DD and DD-SVM: a point near to instances of all positive bags.

Maron and Lozano-Pérez, "A framework for multiple-instance learning" (1998). A concept is a point
h with scales s; an instance x is positive with probability ``exp(-q)``, where
``q = sum_d s_d² (x_d - h_d)²``. EM-DD (Zhang and Goldman, "EM-DD: an improved multiple-instance
learning technique", 2001) guesses, in turn, which instance is responsible for each bag. DD-SVM
(Chen and Wang, "Image categorization by learning and reasoning with regions", 2004) describes
bags by their distances to several concepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from bagwise.bags import Bags
from bagwise.core import rules, segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.core.squared import median_sq_distance
from bagwise.models.comparators.common import Comparator, InstanceComparator, minimised
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter

# Least q: an instance at the concept itself is positive with a little less than certainty.
_LEAST = 1e-9


class Concept(NamedTuple):
    """A point and its scales, with the negative log-likelihood of the bags it was fitted to."""

    point: Floats  # [D]
    scales: Floats  # [D]
    loss: float


def scaled_distances(X: Floats, point: Floats, scales: Floats) -> Floats:
    """Q of each instance, [N]."""
    from bagwise.core.baseline_passes import distances

    q: Floats = distances(X, point, scales)
    return np.maximum(q, _LEAST)


def log_odds(q: Floats) -> Floats:
    """Log-odds of the probability exp(-q)."""
    odds: Floats = -q - np.log(-np.expm1(-q))
    return odds


def _noisy_or(q: Floats, offsets: Ints, y: Ints) -> tuple[float, Floats]:
    """Negative log of the diverse density, and the log of prod(1 - p) of each bag, [B].

    A positive bag has the probability 1 - prod(1 - p), a negative one prod(1 - p).
    """
    none = segments.sum(np.log(-np.expm1(-q)), offsets)  # 1 - p = 1 - e^-q
    none = np.minimum(none, -1e-300)
    loss = np.where(y == 1, -np.log(-np.expm1(none)), -none).sum()
    return float(loss), none


def noisy_or_loss(theta: Floats, X: Floats, offsets: Ints, y: Ints) -> tuple[float, Floats]:
    """Negative log of the diverse density and its gradient in (point, scales), stacked in theta."""
    from bagwise.core.baseline_passes import moments

    D = X.shape[1]
    h, s = theta[:D], theta[D:]
    q = scaled_distances(X, h, s)
    loss, none = _noisy_or(q, offsets, y)
    with np.errstate(over="ignore"):
        slope = np.where(y == 1, 1 / np.expm1(-none), -1.0)  # in log prod, [B]
        g = segments.spread(slope, offsets) / np.expm1(q)  # in q, [N]
    gX, gX2 = moments(g, X)
    return loss, _chain(g.sum(), gX, gX2, h, s)


class NearestLoss:
    """The same where one chosen instance [B, D] stands for each bag, as EM-DD has it.

    The sums are NumPy's: turns of EM make another concept of a difference in the last digit.
    """

    def __init__(self, chosen: Floats, y: Ints) -> None:
        self._chosen, self._positive = chosen, y == 1
        self._squares, self._gaps = chosen**2, np.empty_like(chosen)

    def __call__(self, theta: Floats) -> tuple[float, Floats]:
        """Loss and gradient in (point, scales)."""
        D = self._chosen.shape[1]
        h, s = theta[:D], theta[D:]
        gaps = np.subtract(self._chosen, h, out=self._gaps)
        q = np.maximum(np.square(gaps, out=gaps) @ s**2, _LEAST)
        loss = np.where(self._positive, q, -np.log(-np.expm1(-q))).sum()
        with np.errstate(over="ignore"):
            g = np.where(self._positive, 1.0, -1 / np.expm1(q))
        return float(loss), _chain(g.sum(), g @ self._chosen, g @ self._squares, h, s)


def _chain(total: float, gX: Floats, gX2: Floats, h: Floats, s: Floats) -> Floats:
    """Gradient in h and s from that in q, g: its sum, ``g @ X`` and ``g @ X**2``.

    ``dq_i / dh_d = -2 s_d² (x_id - h_d)`` and ``dq_i / ds_d = 2 s_d (x_id - h_d)²``.
    """
    to_point = -2 * s**2 * (gX - total * h)
    squares = gX2 - 2 * h * gX + total * h**2
    return np.concatenate([to_point, 2 * s * squares])


def first_scale(bags: Bags) -> float:
    """A scale at which instances at the median distance are positive with p = exp(-1)."""
    return float(1 / np.sqrt(median_sq_distance(bags.instances, random_state=0)))


def draw_starts(bags: Bags, y: Ints, n: int, rng: np.random.RandomState) -> Ints:
    """Rows of positive bags to start from: one of each bag in a random order, then again."""
    rows = rng.permutation(np.flatnonzero(segments.spread(y, bags.offsets) == 1))
    owner = bags.bag_index[rows]
    # The k-th row of every bag comes before the (k + 1)-th of any.
    turn = np.empty(len(rows), dtype=np.int64)
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], owner[order])
    turn[order] = np.arange(len(rows)) - first
    return rows[np.argsort(turn, kind="stable")][:n]


@dataclass(kw_only=True, eq=False, repr=False)
class DiverseDensity(InstanceComparator, name="diverse-density"):
    """The point of highest diverse density, searched from several starts.

    An instance is positive with a probability that falls with its scaled distance from the
    concept, and a bag by noisy-or. Both the point and one scale per feature are learned, so
    features that do not matter are switched off.

    Parameters
    ----------
    n_starts : int, default=5
        Instances of positive bags from which the search starts: the most promising under the
        first scales. The paper starts from all.
    max_iter : int, default=50
        Most steps of L-BFGS per start.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    n_iter_ : int
        Steps of the best start.
    point_, scales_ : arrays of shape (n_features,)
        The concept, in scaled features.
    loss_ : float
        Negative log-likelihood of the training bags.

    See Also
    --------
    EMDD, APR

    References
    ----------
    [Maron1998]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> comparators.DiverseDensity(cv=3).fit(bags, y).predict_proba_instances(bags).shape[1]
    2
    """

    n_starts: int = parameter(5, AT_LEAST_1)
    max_iter: int = parameter(50, AT_LEAST_1)

    def _learn(self, bags: Bags, y: Ints) -> None:
        X, offsets = bags.instances, bags.offsets
        first = np.full(bags.n_features, first_scale(bags))
        # Candidate starts of lowest loss, from at most 200 instances of positive bags.
        starts = draw_starts(bags, y, 200, check_random_state(0))
        losses = [_noisy_or(scaled_distances(X, X[row], first), offsets, y)[0] for row in starts]
        ends = [
            minimised(noisy_or_loss, np.append(X[row], first), self.max_iter, X, offsets, y)
            for row in starts[np.argsort(losses, kind="stable")[: self.n_starts]]
        ]
        best, self.loss_, self.n_iter_ = min(ends, key=itemgetter(1))
        self.point_, self.scales_ = best[: bags.n_features], np.abs(best[bags.n_features :])

    def _instance_scores(self, X: Floats) -> Floats:
        return log_odds(scaled_distances(X, self.point_, self.scales_))

    def _raw_scores(self, bags: Bags) -> Floats:
        return rules.bag_log_odds(self._raw_instance_scores(bags), bags.offsets, "noisy-or")


def most_likely(bags: Bags, point: Floats, scales: Floats) -> Ints:
    """E-step: the row of each bag that is nearest to the concept, [B]."""
    rows: Ints = segments.argmax(-scaled_distances(bags.instances, point, scales), bags.offsets)
    return rows


def em(bags: Bags, y: Ints, start: int, scale: float, max_iter: int) -> tuple[Concept, list[float]]:
    """Alternate from one instance until the likelihood no longer rises; also all losses."""
    D = bags.n_features
    point, scales = bags.instances[start], np.full(D, scale)
    loss = NearestLoss(bags.instances[most_likely(bags, point, scales)], y)
    losses = [loss(np.concatenate([point, scales]))[0]]
    for _ in range(max_iter):
        # M-step: point and scales by L-BFGS, given these instances.
        moved, _, _ = minimised(loss, np.append(point, scales), 30)
        # E-step: the nearest instance of every bag stands for it.
        loss = NearestLoss(bags.instances[most_likely(bags, moved[:D], moved[D:])], y)
        value = loss(moved)[0]
        # Negative bags may come nearer to the moved concept: a step that costs is not taken.
        if value >= losses[-1] * (1 - 1e-6):
            break
        point, scales = moved[:D], np.abs(moved[D:])
        losses.append(value)
    return Concept(point, scales, losses[-1]), losses


@dataclass(kw_only=True, eq=False, repr=False)
class EMDD(InstanceComparator, name="em-dd"):
    """Diverse density with one responsible instance per bag, from several starts.

    Given the concept, the instance of a bag nearest to it is held responsible for the label;
    given these instances, point and scales are improved by L-BFGS. A step that would lower the
    likelihood ends the search. Of all starts the best on the training bags is kept.

    Parameters
    ----------
    n_starts : int, default=10
        Instances of positive bags to start from, spread over the bags.
    max_iter : int, default=20
        Most turns of each start.
    random_state : int, RandomState or None, default=None
        Draws the starts.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    n_iter_ : int
        Turns of the best start.
    point_, scales_ : as in `DiverseDensity`
    losses_ : list of float
        Negative log-likelihood after each turn of the best start; it only falls.

    See Also
    --------
    DiverseDensity

    References
    ----------
    [Zhang2001]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> model = comparators.EMDD(cv=3, random_state=0).fit(bags, y)
    >>> model.losses_ == sorted(model.losses_, reverse=True)
    True
    """

    n_starts: int = parameter(10, AT_LEAST_1)
    max_iter: int = parameter(20, AT_LEAST_1)
    random_state: RandomState = parameter(None, "random_state")

    def _learn(self, bags: Bags, y: Ints) -> None:
        starts = draw_starts(bags, y, self.n_starts, check_random_state(self.random_state))
        scale = first_scale(bags)
        ends = [em(bags, y, int(start), scale, self.max_iter) for start in starts]
        best, self.losses_ = min(ends, key=lambda end: end[0].loss)
        self.point_, self.scales_ = best.point, best.scales
        self.n_iter_ = len(self.losses_)

    def _instance_scores(self, X: Floats) -> Floats:
        return log_odds(scaled_distances(X, self.point_, self.scales_))


def select_prototypes(concepts: list[Concept]) -> list[Concept]:
    """Concepts better than midway between the best and the worst, none twice."""
    # The paper's threshold on diverse density: the mean of its largest and smallest value.
    losses = np.array([c.loss for c in concepts])
    good = [c for c in concepts if c.loss <= (losses.min() + losses.max()) / 2]
    kept: list[Concept] = []
    for concept in sorted(good, key=lambda c: c.loss):
        if all(not _same(concept, other) for other in kept):
            kept.append(concept)
    return kept


def _same(a: Concept, b: Concept) -> bool:
    """Whether two searches ended at one place, to a hundredth of its extent."""
    gap = np.abs(a.point * a.scales - b.point * b.scales).max()
    return bool(gap < 0.01 * max(1.0, float(np.abs(a.point * a.scales).max())))


@dataclass(kw_only=True, eq=False, repr=False)
class DDSVM(Comparator, name="dd-svm"):
    """SVM on the distances of a bag to learned instance prototypes.

    Searches for high diverse density end in different local maxima; the good ones are kept as
    prototypes, for the positive class and, with labels exchanged, for the negative one. A bag's
    features are its smallest scaled distances to each. The searches are those of `EMDD`; the
    paper's are plain diverse density from every instance.

    Parameters
    ----------
    n_starts : int, default=20
        Searches per class.
    max_iter : int, default=10
        Most turns of a search.
    C, gamma : float, default=1.0, "scale"
        Of the RBF SVM on standardised distances; see scikit-learn's SVC.
    random_state : int, RandomState or None, default=None
        Draws the starts.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    points_, scales_ : arrays of shape (n_prototypes, n_features)
    distance_scaler_ : StandardScaler of the distances
    svc_ : SVC

    See Also
    --------
    DiverseDensity, EMDD

    References
    ----------
    [Chen2004]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> comparators.DDSVM(n_starts=5, cv=3, random_state=0).fit(bags, y).predict_proba(bags).shape
    (40, 2)
    """

    # Another draw of starting points gives other features.
    _level_drifts = True
    n_starts: int = parameter(20, AT_LEAST_1)
    max_iter: int = parameter(10, AT_LEAST_1)
    C: float = parameter(1.0, POSITIVE)
    gamma: float | str = parameter("scale", StrOptions({"scale", "auto"}), POSITIVE)
    random_state: RandomState = parameter(None, "random_state")

    def _learn(self, bags: Bags, y: Ints) -> None:
        rng = check_random_state(self.random_state)
        scale = first_scale(bags)
        prototypes: list[Concept] = []
        for labels in (y, 1 - y):  # concepts of the positive class, then of the negative one
            starts = draw_starts(bags, labels, self.n_starts, rng)
            ends = [em(bags, labels, int(s), scale, self.max_iter)[0] for s in starts]
            prototypes += select_prototypes(ends)
        self.points_ = np.array([p.point for p in prototypes])
        self.scales_ = np.array([p.scales for p in prototypes])
        Z = self._distances(bags)
        self.distance_scaler_ = StandardScaler().fit(Z)
        self.svc_ = SVC(C=self.C, gamma=self.gamma).fit(self.distance_scaler_.transform(Z), y)

    def _distances(self, bags: Bags) -> Floats:
        """Smallest scaled distance of each bag to each prototype, [B, P]."""
        return np.column_stack(
            [
                np.sqrt(segments.min(scaled_distances(bags.instances, h, s), bags.offsets))
                for h, s in zip(self.points_, self.scales_, strict=True)
            ]
        )

    def _raw_scores(self, bags: Bags) -> Floats:
        return self.svc_.decision_function(self.distance_scaler_.transform(self._distances(bags)))
