"""Which instances to ask about next.

Every strategy gives each open instance a value under q(v); a batch is chosen greedily, and after
each choice the posterior covariance shrinks as if the answer had come, so that ten patches of one
spot are not worth ten times the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, xlogy
from sklearn.utils import check_random_state

from bagwise.bags import Bags, check_bags, encode_instance_labels
from bagwise.label.learner import Floats, Integers, Learner, View, project

STRATEGIES = ("information", "uncertainty", "disagreement", "random")
# Instances that are compared; a random part of a larger pool is as good.
MAX_CANDIDATES = 20_000
# One question in this many goes to an instance drawn at random from a bag that was asked least:
# what the model is sure about, and wrong, is found by nothing else.
_EXPLORE_EVERY = 6


class _Sight(NamedTuple):
    """A member's view of the candidates."""

    mean: Floats  # [n] E f
    var: Floats  # [n] var f
    C: Floats  # [M, n] W a, so that cov(f_i, f_j) = c_i . c_j
    H: Floats  # [M, M] mean of c c^T over the pool, per bag
    weight: float
    slope: float
    intercept: float


def suggest(
    model: Any,
    bags: Any,
    n: int = 10,
    strategy: str = "information",
    *,
    y: Any = None,
    instance_labels: Any = None,
    random_state: Any = None,
) -> Integers:
    """Choose the instances whose labels would teach the model most.

    Parameters
    ----------
    model : fitted VGPMIL, one of its relatives, AutoVGPMIL, a pipeline that ends in one
    bags : Bags
        Where to choose from.
    n : int
        How many; fewer are returned where fewer are open.
    strategy : {"information", "uncertainty", "disagreement", "random"}
        ``information``: how far the answer is expected to move the latent function over all
        instances, every bag counting the same, in closed form under q(v), with every sixth
        question drawn at random from the bags that were asked least. ``uncertainty``: entropy
        of the label. ``disagreement``: what the members of AutoVGPMIL would tell each other, or,
        for a single model, what q(f) leaves open, as mutual information. ``random``.
    y : array of shape (n_bags,), optional
        Labels of the bags. Instances of negative bags are negative and are not asked about.
    instance_labels : array of shape (n_instances,), optional
        Known labels; those instances are not asked about again.
    random_state : int, RandomState or None

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
    codes = None if y is None else (np.asarray(y) == classes[1]).astype(np.int64)
    if codes is not None and codes.shape != (len(bags),):
        raise ValueError(f"y needs one label per bag: {len(bags)}; got shape {codes.shape}.")
    known = np.full(bags.n_instances, -1, dtype=np.int8)
    if instance_labels is not None:
        flat = np.asarray(instance_labels, dtype=object)
        holds = np.array([(part == classes[1]).any() for part in bags.split(flat)], dtype=np.int64)
        known = encode_instance_labels(flat, bags, classes, holds if codes is None else codes)
    return choose(
        project(model, bags), bags, n, strategy, known=known, y=codes, random_state=random_state
    )


def suggest_for(
    learner: Learner,
    n: int,
    strategy: str = "information",
    *,
    closed: Any = (),
    random_state: Any = None,
) -> Integers:
    """As `suggest`, from a learner's cache; ``closed`` are rows that shall not be asked now."""
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
    views: Sequence[View],
    bags: Bags,
    n: int,
    strategy: str,
    *,
    known: Any,
    y: Any = None,
    closed: Any = (),
    random_state: Any = None,
) -> Integers:
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
    sights = [_look(view, bags, candidates, rng) for view in views]
    return candidates[_greedy(sights, bags, candidates, n, strategy, known, rng)]


def _look(view: View, bags: Bags, candidates: Integers, rng: Any) -> _Sight:
    """Moments and covariances of the candidates, and of the pool they stand in."""
    W = view.W.astype(view.A.dtype)
    A = view.A[:, candidates]
    C = np.asarray(W @ A, dtype=np.float64)
    pool = np.arange(bags.n_instances)
    if len(pool) > MAX_CANDIDATES:
        pool = np.sort(rng.choice(pool, MAX_CANDIDATES, replace=False))
    share = 1.0 / np.asarray(bags.sizes)[np.asarray(bags.bag_index)[pool]]  # a bag counts once
    P = np.asarray(W @ view.A[:, pool], dtype=np.float64)
    H = (P * (share / share.sum())) @ P.T
    mean = np.asarray(view.m @ A, dtype=np.float64)
    return _Sight(mean, _squares(C) + view.r[candidates], C, H, view.weight, view.slope, view.intercept)


def _greedy(
    sights: list[_Sight],
    bags: Bags,
    candidates: Integers,
    n: int,
    strategy: str,
    known: Any,
    rng: Any,
) -> Integers:
    owner = np.asarray(bags.bag_index)[candidates]
    asked = np.bincount(np.asarray(bags.bag_index)[known >= 0], minlength=len(bags))
    n_known = int((known >= 0).sum())
    free = np.ones(len(candidates), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < min(n, len(candidates)):
        if strategy == "information" and (n_known + len(chosen) + 1) % _EXPLORE_EVERY == 0:
            fewest = free & (asked[owner] == asked[owner[free]].min())
            best = int(rng.choice(np.flatnonzero(fewest)))
        else:
            best = int(np.argmax(np.where(free, _value(sights, strategy), -np.inf)))
        chosen.append(best)
        free[best] = False
        asked[owner[best]] += 1
        sights = [_as_if_answered(sight, best) for sight in sights]
    return np.array(chosen, dtype=np.int64)


def _value(sights: Sequence[_Sight], strategy: str) -> Floats:
    """What a label is worth, [n]."""
    if strategy == "information":
        return _mixed(sights, [expected_movement(sight) for sight in sights])
    p = [expit(_damped(sight)) for sight in sights]
    entropy = binary_entropy(_mixed(sights, p))
    if strategy == "uncertainty":
        return entropy * _mixed(sights, [_left(sight) for sight in sights])
    if len(sights) > 1:
        return entropy - _mixed(sights, [binary_entropy(part) for part in p])
    # Houlsby et al. 2011: the entropy of the label less what is left of it when f is known.
    (sight,) = sights
    scale = np.pi * np.log(2) / 2
    mean, var = sight.slope * sight.mean, sight.slope**2 * sight.var
    known_f = np.sqrt(scale / (var + scale)) * np.exp(-(mean**2) / (2 * (var + scale)))
    return entropy - np.log(2) * known_f


def expected_movement(sight: _Sight) -> Floats:
    """Expected squared movement of f over the pool when the label comes, in closed form.

    A label y at x adds a site of precision ``t = theta(c)`` and linear part ``y - 1/2``. The mean
    of v moves by ``S a k``, ``k = (y - 1/2 - t E f) / (1 + t a^T S a)``, hence f by
    ``a_j^T S a k`` at the instances j of the pool, and the variance falls by
    ``(a_j^T S a)^2 t / (1 + t a^T S a)``. Averaged over y and the pool both share the factor
    ``a^T S (mean of a_j a_j^T) S a``.
    """
    reach = np.einsum("mn,mn->n", sight.C, sight.H @ sight.C)
    c = np.sqrt(sight.mean**2 + sight.var)
    t = np.tanh(c / 2) / (2 * np.maximum(c, 1e-12))
    down = 1 + t * _squares(sight.C)
    p = expit(_damped(sight))
    up, low = ((s - t * sight.mean) / down for s in (0.5, -0.5))
    return sight.slope**2 * reach * (p * up**2 + (1 - p) * low**2 + t / down)


def binary_entropy(p: Any) -> Floats:
    """Entropy of Bernoulli(p), in nats."""
    return np.asarray(-xlogy(p, p) - xlogy(1 - p, 1 - p))


def _as_if_answered(sight: _Sight, i: int) -> _Sight:
    """Covariances after an observation of f_i with the precision of a label at f = 0, 1/4.

    ``cov' = cov - cov_i cov_i^T / (cov_ii + 4)``; C and H are kept as factors of it.
    """
    c = sight.C[:, i]
    v = float(c @ c)
    if v < 1e-12:
        return sight
    shrink = (1 - np.sqrt(4 / (v + 4))) / v
    along = c @ sight.C
    C = sight.C - shrink * np.outer(c, along)
    Hc = sight.H @ c
    H = sight.H - shrink * (np.outer(c, Hc) + np.outer(Hc, c))
    H += shrink**2 * float(c @ Hc) * np.outer(c, c)
    var = sight.var - along**2 / (v + 4)
    return sight._replace(C=C, H=H, var=np.maximum(var, 1e-12))


def _left(sight: _Sight) -> Floats:
    """Share of an instance's variance that is still open; falls near what was chosen."""
    return np.sqrt(sight.var)


def _damped(sight: _Sight) -> Floats:
    """Log-odds of the expected label: the probit approximation of E sigmoid(f)."""
    return sight.mean / np.sqrt(1 + np.pi / 8 * sight.var)


def _mixed(sights: Sequence[_Sight], values: Sequence[Floats]) -> Floats:
    total = sum(sight.weight for sight in sights)
    return np.asarray(
        sum(sight.weight / total * value for sight, value in zip(sights, values, strict=True))
    )


def _squares(C: Floats) -> Floats:
    return np.einsum("mn,mn->n", C, C)
