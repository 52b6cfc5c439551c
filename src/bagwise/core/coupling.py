"""Neighbours inside a bag: labels that prefer to agree with those next to them.

The labels of the instances of one stretch (a scan, a slide) have the joint distribution

    p(y) prop. to exp(sum_i y_i (a_i + b) - J sum_(i, j) w_ij [y_i != y_j]),

where ``a`` are the log-odds that a model gives each instance by itself, ``J`` is the strength of
the coupling and ``w`` says how near two neighbours are, at most 1. The field ``b`` is chosen so
that the mean probability of the stretch stays what it was: neighbours move probability about, they
do not make more of it.

The marginals follow from messages between neighbours. On a chain (slices along an axis) forward
and backward messages are exact; on a graph with cycles (patches in a plane) the same messages,
passed until they stand still, are loopy belief propagation, the stationary points of the Bethe free
energy. Compiled with numba at first use, so import this module where it is needed.

How strong the coupling should be needs no labels of instances: they are held out with their bags,
and what a model says about one of them is compared with what its neighbours say. Where positives
lie together, the neighbours of an instance predict the evidence for it, and where they are
scattered they mislead. Bags without positives show how much of that is not due to positives at all.
(The log-loss of held-out bags does not tell: on simulated grids and chains the maximum over coupled
instances is as good at a strength that ruins the instances as at the best one.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from bagwise.core import segments
from bagwise.core.arrays import Codes, Floats, Ints

GraphKind = Literal["chain", "neighbours"]
# Sweeps over a graph with cycles, and how still the messages must stand to end them.
_MAX_SWEEPS, _STILL = 100, 1e-6
# Halvings of the bracket of the field: to rounding.
_HALVINGS = 60


class Graph(NamedTuple):
    """Who is whose neighbour, within every stretch of rows.

    Rows are visited in ``order``, so that the answer does not depend on how instances happen to be
    numbered. Row ``order[k]`` has the neighbours ``order[ends[starts[k]:starts[k + 1]]]``.
    """

    kind: GraphKind
    offsets: Ints  # [S + 1] stretches, in places of ``order``
    order: Ints  # [N] rows
    starts: Ints  # [N + 1]
    ends: Ints  # [2 E] places in ``order``
    weights: Floats  # [2 E] in (0, 1]
    back: Ints  # [2 E] the same pair seen from its other end


def chain_graph(positions: ArrayLike, stretch: ArrayLike) -> Graph:
    """Each row coupled to the one before and the one after it, by position.

    The weight is 1 at the usual step of the stretch (the median) and below, and falls as one over
    the step beyond it: where slices are missing, neighbours say less.

    Parameters
    ----------
    positions : array of shape (n_rows,)
    stretch : int array of shape (n_rows,)
        Which stretch a row belongs to, counted from 0.

    Examples
    --------
    >>> from bagwise.core.coupling import chain_graph
    >>> chain_graph([0.0, 20.0, 5.0, 10.0], [0, 0, 0, 0]).order.tolist()
    [0, 2, 3, 1]
    """
    positions, owner = np.asarray(positions, dtype=np.float64), np.asarray(stretch)
    order, offsets = np.lexsort((positions, owner)), _offsets(owner)
    first, weights = [np.empty(0, dtype=np.int64)], [np.empty(0)]
    for a, b in itertools.pairwise(offsets.tolist()):
        first.append(np.arange(a, max(b - 1, a)))
        steps = np.diff(positions[order[a:b]])
        apart = steps[steps > 0]
        usual = float(np.median(apart)) if len(apart) else 0.0
        # Rows at one place are as near as can be.
        far = usual / np.maximum(steps, np.finfo(np.float64).tiny)
        weights.append(np.where(steps <= usual, 1.0, far))
    left = np.concatenate(first)
    return _graph("chain", offsets, order, left, left + 1, np.concatenate(weights))


def neighbour_graph(points: ArrayLike, stretch: ArrayLike, n_neighbors: int) -> Graph:
    """Each row coupled to its nearest rows of the same stretch, and to those it is nearest to.

    The weight is 1 up to the usual distance to the nearest row (the median of the stretch) and
    falls as the square of one over the distance beyond it: an island of tissue far from the rest is
    on its own.

    Parameters
    ----------
    points : array of shape (n_rows, 1 to 3)
    stretch : int array of shape (n_rows,)
        Which stretch a row belongs to, counted from 0.
    n_neighbors : int
        Neighbours that each row asks for.

    Examples
    --------
    >>> from bagwise.core.coupling import neighbour_graph
    >>> neighbour_graph([[0, 0], [0, 1], [0, 5]], [0, 0, 0], 1).weights.round(4).tolist()
    [1.0, 1.0, 0.0625, 0.0625]
    """
    points, owner = np.asarray(points, dtype=np.float64), np.asarray(stretch)
    order, offsets = np.lexsort((*points.T[::-1], owner)), _offsets(owner)
    pairs, weights = [np.empty((0, 2), dtype=np.int64)], [np.empty(0)]
    for a, b in itertools.pairwise(offsets.tolist()):
        if b - a < 2:
            continue
        nearest, nearness = _nearest_pairs(points[order[a:b]], min(n_neighbors, b - a - 1))
        pairs.append(nearest + a)
        weights.append(nearness)
    first, second = np.concatenate(pairs).T
    return _graph("neighbours", offsets, order, first, second, np.concatenate(weights))


def _offsets(owner: Ints) -> Ints:
    counts = np.bincount(owner)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _nearest_pairs(points: Floats, k: int) -> tuple[Ints, Floats]:
    """Pairs i < j of which one is among the other's ``k`` nearest, and their weights."""
    distance, index = cKDTree(points).query(points, k=k + 1)
    i = np.repeat(np.arange(len(points)), k + 1)
    j, d = index.ravel(), distance.ravel()
    usual = float(np.median(np.sort(distance, axis=1)[:, 1]))
    keep = i != j
    i, j, d = i[keep], j[keep], d[keep]
    low, high = np.minimum(i, j), np.maximum(i, j)
    _, once = np.unique(low * len(points) + high, return_index=True)
    weights = np.ones(len(once))
    far = d[once] > usual
    weights[far] = (usual / d[once][far]) ** 2
    near = weights > 0
    return np.column_stack([low, high])[once][near], weights[near]


def _graph(
    kind: GraphKind, offsets: Ints, order: Ints, first: Ints, second: Ints, weights: Floats
) -> Graph:
    """Pairs, each once, as lists of neighbours."""
    n_pairs = len(first)
    source, target = np.concatenate([first, second]), np.concatenate([second, first])
    by_source = np.lexsort((target, source))
    place = np.empty(2 * n_pairs, dtype=np.int64)
    place[by_source] = np.arange(2 * n_pairs)
    other_end = np.concatenate([np.arange(n_pairs) + n_pairs, np.arange(n_pairs)])
    starts = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(np.bincount(source, minlength=len(order)), out=starts[1:])
    return Graph(
        kind,
        np.asarray(offsets, dtype=np.int64),
        order.astype(np.int64),
        starts,
        target[by_source],
        np.concatenate([weights, weights])[by_source],
        place[other_end[by_source]],
    )


def couple(log_odds: ArrayLike, graph: Graph, strength: float) -> Floats:
    """Log-odds of the coupled marginals, with the mean probability of every stretch kept.

    Parameters
    ----------
    log_odds : array of shape (n_rows,)
        What a model says about each row by itself.
    graph : Graph
    strength : float
        J, at least 0. With 0 the log-odds are returned as they are.

    Returns
    -------
    array of shape (n_rows,)

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.coupling import chain_graph, couple
    >>> slices = np.array([-3.0, 1.0, -0.5, 1.0, -3.0])  # the middle one lies between two positives
    >>> couple(slices, chain_graph(np.arange(5), np.zeros(5, int)), 1.5).round(1).tolist()
    [-1.8, 0.2, 0.2, 0.2, -1.8]
    """
    alone = np.asarray(log_odds, dtype=np.float64)
    if strength == 0:
        return alone
    coupled = np.empty(len(alone))
    K = strength * graph.weights
    places = np.ascontiguousarray(alone[graph.order])
    if graph.kind == "chain":
        step = _chain_steps(graph, K)
        coupled[graph.order] = _couple_chains(places, step, graph.offsets)
    else:
        coupled[graph.order] = _couple_graphs(
            places, graph.offsets, graph.starts, graph.ends, K, graph.back
        )
    return coupled


def chain_marginals(log_odds: ArrayLike, graph: Graph, strength: float) -> Floats:
    """Log-odds of the marginals on chains without a field, exactly."""
    alone = np.asarray(log_odds, dtype=np.float64)
    step = _chain_steps(graph, strength * graph.weights)
    marginals = np.empty(len(alone))
    marginals[graph.order] = _forward_backward(np.ascontiguousarray(alone[graph.order]), step, 0.0)
    return marginals


def _chain_steps(graph: Graph, K: Floats) -> Floats:
    """Coupling of each place with the place before it, 0 where a chain starts, [N]."""
    step = np.zeros(len(graph.order))
    source = np.repeat(np.arange(len(graph.order)), np.diff(graph.starts))
    backward = graph.ends < source
    step[source[backward]] = K[backward]
    return step


@njit(cache=True)
def _message(h: float, K: float) -> float:
    """What a neighbour with log-odds ``h`` says: log((e^h + e^-K) / (1 + e^(h - K)))."""
    up = max(h, -K) + np.log1p(np.exp(-abs(h + K)))
    down = max(0.0, h - K) + np.log1p(np.exp(-abs(h - K)))
    return up - down


@njit(cache=True)
def _mean_rate(log_odds: Floats, field: float) -> float:
    total = 0.0
    for x in log_odds:
        e = np.exp(-abs(x + field))  # never overflows
        total += (1.0 if x + field >= 0 else e) / (1.0 + e)
    return total / len(log_odds)


@njit(cache=True)
def _forward_backward(a: Floats, step: Floats, field: float) -> Floats:
    """Log-odds of the marginals of chains; ``step`` is 0 where one starts."""
    n = len(a)
    out = np.empty(n)
    from_left = 0.0
    for i in range(n):
        if i > 0:
            from_left = _message(a[i - 1] + field + from_left, step[i])
        out[i] = a[i] + field + from_left
    from_right = 0.0
    for i in range(n - 2, -1, -1):
        from_right = _message(a[i + 1] + field + from_right, step[i + 1])
        out[i] += from_right
    return out


@njit(cache=True)
def _couple_chains(a: Floats, step: Floats, offsets: Ints) -> Floats:
    out = np.empty(len(a))
    for s in range(len(offsets) - 1):
        rows, steps = a[offsets[s] : offsets[s + 1]], step[offsets[s] : offsets[s + 1]]
        if len(rows) == 0:
            continue
        rate = _mean_rate(rows, 0.0)
        # Two messages, each within the largest coupling: the field that undoes them lies here.
        high = 2 * steps.max()
        low = -high
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            if _mean_rate(_forward_backward(rows, steps, middle), 0.0) < rate:
                low = middle
            else:
                high = middle
        out[offsets[s] : offsets[s + 1]] = _forward_backward(rows, steps, 0.5 * (low + high))
    return out


@njit(cache=True)
def _field(log_odds: Floats, rate: float, reach: float) -> float:
    """The shift that gives log-odds a mean probability; it lies within ``reach`` of 0."""
    low, high = -reach, reach
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if _mean_rate(log_odds, middle) < rate:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


@njit(cache=True)
def _couple_graphs(
    a: Floats, offsets: Ints, starts: Ints, ends: Ints, K: Floats, back: Ints
) -> Floats:
    """Loopy belief propagation; the field is set anew after every sweep."""
    out = a.copy()
    says = np.zeros(len(ends))  # says[e]: message along e, from the end that lists it
    for s in range(len(offsets) - 1):
        first, last = offsets[s], offsets[s + 1]
        if last - first < 2:
            continue
        rate = _mean_rate(a[first:last], 0.0)
        reach = 0.0
        for i in range(first, last):
            reach = max(reach, K[starts[i] : starts[i + 1]].sum())
        field = 0.0
        for sweep in range(_MAX_SWEEPS):
            moved = 0.0
            for k in range(last - first):
                i = first + k if sweep % 2 == 0 else last - 1 - k
                h = a[i] + field
                for e in range(starts[i], starts[i + 1]):
                    h += says[back[e]]
                for e in range(starts[i], starts[i + 1]):
                    new = _message(h - says[back[e]], K[e])
                    moved = max(moved, abs(new - says[e]))
                    says[e] = new
            for i in range(first, last):
                out[i] = a[i]
                for e in range(starts[i], starts[i + 1]):
                    out[i] += says[back[e]]
            before = field
            field = _field(out[first:last], rate, reach)
            if max(moved, abs(field - before)) < _STILL:
                break
        for i in range(first, last):
            out[i] += field
    return out


STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
# One-sided at 5 %: a strength whose gain, or whose gain over the one before, could be chance is not
# taken.
_LEAST_Z = 1.645
# On a graph with cycles, strengths whose pull on an instance by all neighbours is larger are left
# out: messages then settle on one side or the other whatever the scores say.
_MOST_PULL = 5.0
# Positive bags with known instances from which their labels decide.
_LABELLED_BAGS = 5


class StrengthSearch(NamedTuple):
    """What each strength gains on held-out bags, and the one to take."""

    strength: float
    strengths: Floats  # [S]
    gains: Floats  # [S] mean log-likelihood per bag, over no coupling
    z: Floats  # [S] the same in standard errors
    correlation: float  # of the scores of neighbours in negative bags
    by_labels: bool  # whether known labels of instances decided


def choose_strength(
    log_odds: Floats,
    graph: Graph,
    offsets: Ints,
    y: Ints,
    known: Codes,
    strengths: Sequence[float] = STRENGTHS,
) -> StrengthSearch:
    """The strength that fits held-out instances best; 0 where none gains significantly.

    Where at least five positive bags have known instances of both kinds, the gain is the
    log-likelihood of their labels. Otherwise it is that of the evidence for each instance, given
    its neighbours, in positive bags beyond that in negative ones; and since neighbours whose
    scores err together are not independent evidence, the strength is reduced by the correlation
    of neighbours in negative bags, where every difference is an error. Strengths are tried in
    rising order, and the first one beyond which the gain does not surely rise is taken: too strong
    a coupling does more harm than one that is a little weak.

    Parameters
    ----------
    log_odds : array of shape (n_instances,)
        From models that did not see the instance's bag.
    graph : Graph
    offsets : array of shape (n_bags + 1,)
    y : array of shape (n_bags,)
        1 for positive bags, else 0.
    known : array of shape (n_instances,)
        Labels of instances, -1 where unknown.
    strengths : sequence of float, default=(0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
    """
    positive = y == 1
    labelled = positive & (segments.max(known, offsets) >= 0)
    shown = known[segments.spread(labelled, offsets) & (known >= 0)]
    by_labels = bool(labelled.sum() >= _LABELLED_BAGS and 0 < shown.mean() < 1)
    correlation = neighbour_correlation(log_odds, graph, offsets, ~positive)
    most = np.inf
    if graph.kind != "chain" and len(graph.weights):
        source = np.repeat(np.arange(len(graph.order)), np.diff(graph.starts))
        pull = np.bincount(source, weights=graph.weights, minlength=len(graph.order))
        # Messages on a graph with cycles can be trusted up to here.
        most = _MOST_PULL / max(float(np.median(pull)), 1.0) + 1e-9
    strengths = [J for J in strengths if most >= J]
    sign = np.where(known == 1, -1.0, 1.0)
    gains, z, step_z = np.empty((3, len(strengths)))
    before = np.zeros(len(y))
    for k, strength in enumerate(strengths):
        coupled = couple(log_odds, graph, strength)
        if by_labels:
            # log p(label) is -log(1 + e^(sign z)).
            each = np.logaddexp(0, sign * log_odds) - np.logaddexp(0, sign * coupled)
            gain = segments.sum(np.where(known >= 0, each, 0.0), offsets)
            compared = labelled, np.zeros(len(y), dtype=bool)
        else:
            gain = segments.sum(evidence_gain(log_odds, coupled, graph), offsets)
            compared = positive, ~positive
        gains[k], z[k] = _standardised(gain, *compared)
        step_z[k] = _standardised(gain - before, *compared)[1]
        before = gain
    flat = np.append(step_z[1:] < _LEAST_Z, True)  # the first such step ends the rise
    rising = 1 + int(np.argmax(flat))
    sure = np.flatnonzero((z[:rising] >= _LEAST_Z) & (gains[:rising] > 0))
    chosen = 0.0
    if len(sure):
        chosen = float(strengths[sure[-1]])
        chosen *= 1.0 if by_labels else 1.0 - max(correlation, 0.0)
    return StrengthSearch(chosen, np.asarray(strengths), gains, z, correlation, by_labels)


def evidence_gain(log_odds: Floats, coupled: Floats, graph: Graph) -> Floats:
    """Log-likelihood of the evidence for each instance given its neighbours, over without, [N].

    The evidence is the likelihood ratio ``e^l``, ``l`` the log-odds beyond those of the mean rate
    of the stretch. An instance whose probability is ``c`` by its neighbours alone has the
    likelihood ``1 - c + c e^l``; ``c`` has the coupled log-odds less ``l``.
    """
    places = log_odds[graph.order]
    log_yes, log_no = -np.logaddexp(0, -places), -np.logaddexp(0, places)
    rate = segments.logsumexp(log_yes, graph.offsets) - segments.logsumexp(log_no, graph.offsets)
    prior = np.empty(len(log_odds))  # log-odds of the mean rate of each instance's stretch
    prior[graph.order] = segments.spread(rate, graph.offsets)
    evidence = log_odds - prior
    alone = np.logaddexp(0, log_odds) - np.logaddexp(0, log_odds - evidence)
    return np.logaddexp(0, coupled) - np.logaddexp(0, coupled - evidence) - alone


def _standardised(
    gain: Floats, some: NDArray[np.bool_], others: NDArray[np.bool_]
) -> tuple[float, float]:
    """Mean gain of some bags over that of others, or over 0 without; also in standard errors."""
    difference, variance = 0.0, 0.0
    for sign, bags in ((1, some), (-1, others)):
        own = gain[bags]
        if len(own):
            difference += sign * float(own.mean())
            variance += float(own.var(ddof=1)) / len(own)
    return difference, difference / float(np.sqrt(variance)) if variance > 0 else 0.0


def neighbour_correlation(
    log_odds: Floats, graph: Graph, offsets: Ints, bags: NDArray[np.bool_]
) -> float:
    """Weighted correlation of the scores of neighbours in some bags, each about its bag's mean."""
    centred = log_odds - segments.spread(segments.mean(log_odds, offsets), offsets)
    rows = segments.spread(bags, offsets)
    source = graph.order[np.repeat(np.arange(len(graph.order)), np.diff(graph.starts))]
    target = graph.order[graph.ends]
    used = rows[source]
    total, variance = graph.weights[used].sum(), np.mean(centred[rows] ** 2)
    if total == 0 or variance == 0:
        return 0.0
    products = graph.weights[used] * centred[source[used]] * centred[target[used]]
    return float(products.sum() / total / variance)
