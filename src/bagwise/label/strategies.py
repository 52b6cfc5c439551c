"""Which instances to ask about next.

Every strategy gives each open instance a value under q(v); a batch is chosen greedily, and after
each choice the posterior covariance shrinks as if the answer had come, so that ten patches of one
spot are not worth ten times the first.

Where is an instance uncertain? Not at probability one half: negative instances are many, so the
latent function of a typical positive one is near 0, and questions at one half go to positives
almost only. The default strategy therefore reads the latent function on a scale of its own, from
instances that are known to be negative (those of negative bags) and the strongest instance of each
positive bag: its zero lies between the two groups.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import entr, expit
from sklearn.utils import check_random_state

from bagwise.bags import Bags, check_bags, encode_instance_labels
from bagwise.core import segments
from bagwise.core.arrays import Codes, Column, Floats, Ints, RandomState
from bagwise.label.learner import Learner
from bagwise.label.members import ProcessView, coded, project

if TYPE_CHECKING:
    from bagwise.models.base import Model


STRATEGIES = ("information", "uncertainty", "disagreement", "random")
# Instances that are compared; a random part of a larger pool is as good.
MAX_CANDIDATES = 20_000
# One question in this many goes to an instance drawn at random from a bag that was asked least:
# what the model is sure about, and wrong, is found by nothing else.
EXPLORE_EVERY = 10
_LEAST_SPREAD = 1e-6


class _Moments(NamedTuple):
    """Of the log-odds z of the candidates under one member; a label is a draw of sigmoid(z)."""

    mean: Floats  # [n] E z
    var: Floats  # [n] var z
    C: Floats  # [M, n] so that cov(z_i, z_j) = c_i . c_j
    H: Floats  # [M, M] mean of c c^T over the pool, every bag counting the same
    weight: float

    @property
    def p(self) -> Floats:
        """Expected label, [n]: the probit approximation of E sigmoid(z)."""
        return expit(self.mean / np.sqrt(1 + np.pi / 8 * self.var))

    def expected_movement(self) -> Floats:
        """Expected squared movement of z over the pool when the label of an instance comes, [n].

        The label y adds ``y - p`` to the linear part of the Gaussian update, so that the mean of v
        moves by ``S a (y - p)`` and z at an instance j of the pool by ``cov(z_j, z) (y - p)``. Its
        square, averaged over y and over the pool, is ``p (1 - p) c^T H c``.
        """
        p = self.p
        return p * (1 - p) * np.einsum("mn,mn->n", self.C, self.H @ self.C)

    def answered(self, i: int) -> _Moments:
        """After an observation of z_i with the precision of a label at z = 0, 1/4.

        ``cov' = cov - cov_i cov_i^T / (cov_ii + 4)``; C and H are kept as factors of it.
        """
        c = self.C[:, i]
        v = float(c @ c)
        if v < 1e-12:  # nothing is left to learn about z_i
            return self
        shrink = (1 - np.sqrt(4 / (v + 4))) / v  # (I - shrink c c^T)^2 takes c c^T / (v + 4) away
        along, Hc = c @ self.C, self.H @ c
        H = self.H - shrink * (np.outer(c, Hc) + np.outer(Hc, c))
        H += shrink**2 * float(c @ Hc) * np.outer(c, c)
        var = np.maximum(self.var - along**2 / (v + 4), 1e-12)
        return self._replace(C=self.C - shrink * np.outer(c, along), H=H, var=var)


class InstanceScale(NamedTuple):
    """Log-odds of an instance from its latent function: ``slope (f - center)``."""

    slope: float
    center: float


def suggest(
    model: Model,
    bags: Bags,
    n: int = 10,
    strategy: str = "information",
    *,
    y: Column | None = None,
    instance_labels: Ints | None = None,
    random_state: RandomState = None,
) -> Ints:
    """Choose the instances whose labels would teach the model most.

    Parameters
    ----------
    model : fitted model of the VGPMIL family, AutoVGPMIL, a pipeline that ends in one
    bags : Bags
        Where to choose from.
    n : int, default=10
        How many; fewer are returned where fewer are open.
    strategy : {"information", "uncertainty", "disagreement", "random"}, default="information"
        ``information``: how far the answer is expected to move the latent function over all
        instances, in closed form under q(v), on the scale that ``instance_scale`` finds; every
        tenth question is drawn at random from the bags that were asked least. ``uncertainty``:
        entropy of the label at the model's own probability. ``disagreement``: how much the
        members of AutoVGPMIL differ. ``random``.
    y : array of shape (n_bags,) or None, default=None
        Labels of the bags. Instances of negative bags are negative and are not asked about.
    instance_labels : array of shape (n_instances,) or None, default=None
        Known labels; those instances are not asked about again.
    random_state : int, RandomState or None, default=None

    Returns
    -------
    array of int
        Rows of ``bags.instances``, the best first.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.label import suggest
    >>> data = make_gaussian_bags(n_bags=30, random_state=0)
    >>> model = VGPMIL(n_inducing=20, random_state=0).fit(data.bags, data.y)
    >>> len(suggest(model, data.bags, 5, y=data.y, random_state=0))
    5
    """
    bags = check_bags(bags, estimator="suggest", n_features=model.n_features_in_)
    classes = np.asarray(model.classes_)
    codes = None if y is None else coded(y, bags, classes)
    known = encode_instance_labels(instance_labels, bags, classes, codes)
    return choose(
        project(model, bags), bags, n, strategy, known=known, y=codes, random_state=random_state
    )


def suggest_for(
    learner: Learner,
    n: int,
    strategy: str = "information",
    *,
    closed: Collection[int] = (),
    random_state: Any = None,
) -> Ints:
    """As `suggest`, from a learner's cache; ``closed`` are rows that shall not be asked now.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.label import Learner, suggest_for
    >>> data = make_gaussian_bags(n_bags=30, random_state=0)
    >>> model = VGPMIL(n_inducing=20, random_state=0).fit(data.bags, data.y)
    >>> learner = Learner(model, data.bags, data.y)
    >>> first = suggest_for(learner, 3, random_state=0)
    >>> bool(set(first) & set(suggest_for(learner, 3, closed=first, random_state=0)))
    False
    """
    return choose(
        learner.views(),
        learner.bags,
        n,
        strategy,
        known=learner.known,
        y=learner.y,
        closed=closed,
        random_state=random_state,
    )


def choose(
    views: Sequence[ProcessView],
    bags: Bags,
    n: int,
    strategy: str,
    *,
    known: Codes,
    y: Column | None = None,
    closed: Collection[int] = (),
    random_state: Any = None,
) -> Ints:
    """The strategies on views of the members; see `suggest`."""
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {list(STRATEGIES)}; got {strategy!r}.")
    if n < 1:
        raise ValueError(f"n must be at least 1; got {n}.")
    rng = check_random_state(random_state)
    open_rows = known < 0
    open_rows[np.asarray(closed, dtype=np.int64)] = False
    if y is not None:
        open_rows &= np.repeat(y == 1, bags.sizes)
    candidates = np.flatnonzero(open_rows)
    if len(candidates) > MAX_CANDIDATES:
        candidates = np.sort(rng.choice(candidates, MAX_CANDIDATES, replace=False))
    if strategy == "random":
        return rng.permutation(candidates)[:n]
    if strategy == "disagreement" and len(views) < 2:
        raise ValueError("disagreement needs several members; use AutoVGPMIL, or information.")
    informed = strategy == "information"
    scales = [instance_scale(v, bags, known, y) if informed else _model_scale(v) for v in views]
    pool = np.arange(bags.n_instances)
    if len(pool) > MAX_CANDIDATES:
        pool = np.sort(rng.choice(pool, MAX_CANDIDATES, replace=False))
    share = 1.0 / bags.sizes[bags.bag_index[pool]]  # every bag counts the same
    share /= share.sum()
    pairs = zip(views, scales, strict=True)
    members = [moments(view, scale, candidates, pool, share) for view, scale in pairs]
    return candidates[_greedy(members, bags, candidates, n, strategy, known, rng)]


def _model_scale(view: ProcessView) -> InstanceScale:
    """The model's own map to log-odds."""
    return InstanceScale(view.slope, -view.intercept / view.slope)


def instance_scale(view: ProcessView, bags: Bags, known: Codes, y: Column | None) -> InstanceScale:
    """Log-odds that an instance is positive, both classes counting the same.

    A linear discriminant on the mean of the latent function between instances known to be
    negative (answered, or in negative bags) and those taken for positive (answered, or the
    strongest of a positive bag without a known one). Where either group has fewer than two, the
    model's own map serves.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.label.members import ProcessView
    >>> from bagwise.label.strategies import instance_scale
    >>> f = np.array([-3.0, -2.0, -2.5, 0.5, -2.0, -0.5])
    >>> view = ProcessView(f[None], np.zeros(6), np.ones(1), np.eye(1), 1.0, 1.0, 0.0)
    >>> bags = Bags(np.ones((6, 1)), [0, 2, 4, 6])
    >>> scale = instance_scale(view, bags, np.full(6, -1), np.array([0, 1, 1]))
    >>> -2.5 < scale.center < -0.5, scale.slope > 0
    (True, True)
    """
    f = np.asarray(view.m @ view.A, dtype=np.float64)
    is_negative, is_positive = known == 0, known == 1
    if y is not None:
        is_negative = is_negative | np.repeat(y == 0, bags.sizes)
        explained = segments.max(is_positive.astype(np.float64), bags.offsets) > 0
        top = segments.argmax(np.where(known < 0, f, -np.inf), bags.offsets)
        is_positive = is_positive.copy()
        is_positive[top[(y == 1) & ~explained & (known[top] < 0)]] = True
    negative, positive = f[is_negative], f[is_positive]
    if min(len(negative), len(positive)) < 2:
        return _model_scale(view)
    spread = np.array([negative.std(), positive.std()]) + _LEAST_SPREAD
    gap = max(float(positive.mean() - negative.mean()), _LEAST_SPREAD)
    # As many standard deviations from one group as from the other.
    center = negative.mean() + gap * spread[0] / spread.sum()
    return InstanceScale(gap / float(np.mean(spread**2)), float(center))


def moments(
    view: ProcessView, scale: InstanceScale, candidates: Ints, pool: Ints, share: Floats
) -> _Moments:
    """_Moments of the candidates on a scale of log-odds; ``share`` are weights of the pool."""
    W = scale.slope * view.W.astype(view.A.dtype)
    A = view.A[:, candidates]
    C, P = (np.asarray(W @ part, dtype=np.float64) for part in (A, view.A[:, pool]))
    mean = scale.slope * (np.asarray(view.m @ A, dtype=np.float64) - scale.center)
    var = np.einsum("mn,mn->n", C, C) + scale.slope**2 * view.r[candidates]
    return _Moments(mean, var, C, (P * share) @ P.T, view.weight)


def _greedy(
    members: list[_Moments],
    bags: Bags,
    candidates: Ints,
    n: int,
    strategy: str,
    known: Codes,
    rng: np.random.RandomState,
) -> Ints:
    """Numbers of the chosen candidates, each chosen as if those before it had been answered."""
    owner = bags.bag_index[candidates]
    asked = np.bincount(bags.bag_index[known >= 0], minlength=len(bags))
    n_known = int((known >= 0).sum())
    free = np.ones(len(candidates), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < min(n, len(candidates)):
        if strategy == "information" and (n_known + len(chosen) + 1) % EXPLORE_EVERY == 0:
            fewest = free & (asked[owner] == asked[owner[free]].min())
            best = int(rng.choice(np.flatnonzero(fewest)))
        else:
            best = int(np.argmax(np.where(free, _value(members, strategy), -np.inf)))
        chosen.append(best)
        free[best] = False
        asked[owner[best]] += 1
        members = [member.answered(best) for member in members]
    return np.array(chosen, dtype=np.int64)


def _value(members: Sequence[_Moments], strategy: str) -> Floats:
    """What a label is worth, [n]."""
    weights = np.array([member.weight for member in members])
    weights /= weights.sum()
    if strategy == "information":
        return weights @ [member.expected_movement() for member in members]
    p = np.stack([member.p for member in members])
    mean = weights @ p
    entropy = entr(mean) + entr(1 - mean)  # of a label, in nats
    if strategy == "disagreement":
        return entropy - weights @ (entr(p) + entr(1 - p))
    # The entropy does not fall when a neighbour was chosen; the deviation of z does.
    return entropy * (weights @ [np.sqrt(member.var) for member in members])
