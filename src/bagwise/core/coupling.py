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
"""

from __future__ import annotations

import itertools
from typing import Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree

from bagwise.core.arrays import Floats, Ints

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
