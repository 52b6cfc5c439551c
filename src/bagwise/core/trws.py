"""Minimising a pairwise energy over discrete states: TRW-S, and ICM.

Sequential tree-reweighted message passing (Kolmogorov, "Convergent tree-reweighted message
passing for energy minimization", PAMI 2006) on a given graph whose nodes may have different
numbers of states. The energy of a labelling ``x`` is

    E(x) = sum_s unary_s(x_s) + sum_{(s, t) in edges} block_st(x_s, x_t).

Every sweep raises a lower bound on the minimum; where the bound meets the energy of the decoded
labelling, that labelling is a global optimum.
Compiled with numba at first use, so import this module where it is needed.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from bagwise.core.arrays import Floats, Ints

# The bound must gain this much (relative) within _PATIENCE sweeps, or the sweeps end.
_PATIENCE = 5


class PairwiseEnergy(NamedTuple):
    """An energy over nodes with ragged states, all of them finite."""

    unary: Floats  # [S] energies of all states, node after node
    offsets: Ints  # [B + 1] node s owns states offsets[s]:offsets[s + 1]
    edges: Ints  # [E, 2] pairs s < t, in lexicographic order
    starts: Ints  # [E + 1] block e is blocks[starts[e]:starts[e + 1]], row-major [k_s, k_t]
    blocks: Floats  # [sum k_s k_t]


class Labelling(NamedTuple):
    """What inference found."""

    labels: Ints  # [B] state of each node, counted from 0 within the node
    energy: float
    lower_bound: float  # -inf where the method gives none
    n_iter: int


def complete_graph(n_nodes: int) -> Ints:
    """All pairs s < t in lexicographic order, shape (E, 2)."""
    return np.column_stack(np.triu_indices(n_nodes, 1)).astype(np.int64)


def block_starts(offsets: Ints, edges: Ints) -> Ints:
    """Where the block of every edge starts in the flat array of blocks, shape (E + 1,)."""
    k = np.diff(offsets)
    starts = np.zeros(len(edges) + 1, dtype=np.int64)
    np.cumsum(k[edges[:, 0]] * k[edges[:, 1]], out=starts[1:])
    return starts


def energy_of(problem: PairwiseEnergy, labels: ArrayLike) -> float:
    """Energy of a labelling."""
    return float(_energy(tuple(problem), np.asarray(labels, dtype=np.int64)))


def trws(problem: PairwiseEnergy, max_iter: int = 100, tol: float = 1e-6) -> Labelling:
    """Minimise by TRW-S, then polish the best decoded labelling by ICM.

    Sweeps end when the gap between energy and bound is below ``tol`` (relative), when the bound
    has stopped rising, or after ``max_iter`` sweeps.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.trws import PairwiseEnergy, block_starts, complete_graph, trws
    >>> offsets, edges = np.array([0, 2, 4]), complete_graph(2)
    >>> starts, unary = block_starts(offsets, edges), np.array([0.0, 1.0, 0.0, 0.5])
    >>> found = trws(PairwiseEnergy(unary, offsets, edges, starts, np.eye(2).ravel()))
    >>> found.labels.tolist(), found.energy, found.lower_bound
    ([0, 1], 0.5, 0.5)
    """
    adjacency = _adjacency(problem)
    packed = tuple(problem)  # numba compiles once for plain tuples
    labels, energy, bound, n_iter = _trws(packed, adjacency, max_iter, tol)
    polished = _icm(packed, adjacency, labels)
    if polished > 0:
        energy = energy_of(problem, labels)
    return Labelling(labels, float(energy), float(min(bound, energy)), int(n_iter))


def icm(problem: PairwiseEnergy, labels: ArrayLike | None = None) -> Labelling:
    """Iterated conditional modes: each node in turn takes its best state, until none changes.

    Starts from ``labels``, or from each node's lowest unary. A local minimum, with no bound.
    """
    if labels is None:
        offsets = problem.offsets
        pairs = itertools.pairwise(offsets)
        labels = [int(np.argmin(problem.unary[a:b])) for a, b in pairs]
    labels = np.array(labels, dtype=np.int64)
    n_iter = _icm(tuple(problem), _adjacency(problem), labels)
    return Labelling(labels, energy_of(problem, labels), -np.inf, int(n_iter))


def _adjacency(problem: PairwiseEnergy) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Edges by node, and where their messages start.

    That is later, earlier_start, earlier, to_first, to_second: edges to later nodes are a range,
    those to earlier ones a list.
    """
    first, second = problem.edges[:, 0], problem.edges[:, 1]
    n, k = len(problem.offsets) - 1, np.diff(problem.offsets)

    def running(counts: Ints) -> Ints:
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    return (
        running(np.bincount(first, minlength=n)),
        running(np.bincount(second, minlength=n)),
        np.argsort(second, kind="stable").astype(np.int64),
        running(k[first]),
        running(k[second]),
    )


@njit(cache=True)
def _energy(problem, labels):  # type: ignore[no-untyped-def]
    unary, offsets, edges, starts, blocks = problem
    total = 0.0
    for s in range(len(offsets) - 1):
        total += unary[offsets[s] + labels[s]]
    for e in range(len(edges)):
        s, t = edges[e]
        width = offsets[t + 1] - offsets[t]
        total += blocks[starts[e] + labels[s] * width + labels[t]]
    return total


# min over floats vectorises only when NaN is ruled out: energies are finite.
@njit(cache=True, fastmath={"nnan", "nsz"})
def _send(  # type: ignore[no-untyped-def]
    gamma, belief, sender, edge, receiver, buffer
):
    """Set out = min over the sender's states of gamma belief - back + block, less its minimum.

    Arrays come whole, with where to start in them: slicing costs more than the work on a small
    block.
    """
    back, back_at, n = sender
    block, block_at, transposed = edge
    out, out_at, m = receiver
    for i in range(n):
        buffer[i] = gamma * belief[i] - back[back_at + i]
    lowest = np.inf
    if transposed:  # block is [m, n]
        for j in range(m):
            best = np.inf
            row = block_at + j * n
            for i in range(n):
                best = min(best, buffer[i] + block[row + i])
            out[out_at + j] = best
            lowest = min(lowest, best)
    else:  # block is [n, m]
        for j in range(m):
            out[out_at + j] = buffer[0] + block[block_at + j]
        for i in range(1, n):
            b = buffer[i]
            row = block_at + i * m
            for j in range(m):
                out[out_at + j] = min(out[out_at + j], b + block[row + j])
        for j in range(m):
            lowest = min(lowest, out[out_at + j])
    for j in range(m):
        out[out_at + j] -= lowest
    return lowest


@njit(cache=True)
def _forward(problem, adjacency, first, second, labels, belief, buffer):  # type: ignore[no-untyped-def]
    """One sweep up the nodes: messages to later neighbours, and a labelling on the way."""
    unary, offsets, edges, starts, blocks = problem
    later, earlier_start, earlier, to_first, to_second = adjacency
    given = np.empty_like(belief)
    for s in range(len(offsets) - 1):
        a, k = offsets[s], offsets[s + 1] - offsets[s]
        belief[:k] = unary[a : a + k]
        for e in range(later[s], later[s + 1]):
            for i in range(k):
                belief[i] += first[to_first[e] + i]
        given[:k] = belief[:k]
        for at in range(earlier_start[s], earlier_start[s + 1]):
            e = earlier[at]
            row = starts[e] + labels[edges[e, 0]] * k
            for i in range(k):
                belief[i] += second[to_second[e] + i]
                given[i] += blocks[row + i]
        labels[s] = np.argmin(given[:k])
        n_later, n_earlier = later[s + 1] - later[s], earlier_start[s + 1] - earlier_start[s]
        gamma = 1.0 / max(n_later, n_earlier, 1)
        for e in range(later[s], later[s + 1]):
            at, m = to_second[e], to_second[e + 1] - to_second[e]
            sender, receiver = (first, to_first[e], k), (second, at, m)
            _send(gamma, belief, sender, (blocks, starts[e], False), receiver, buffer)


@njit(cache=True)
def _backward(problem, adjacency, first, second, belief, buffer):  # type: ignore[no-untyped-def]
    """One sweep down the nodes; returns the lower bound of the reparametrised energy."""
    unary, offsets, _, starts, blocks = problem
    later, earlier_start, earlier, to_first, to_second = adjacency
    bound = 0.0
    for s in range(len(offsets) - 2, -1, -1):
        a, k = offsets[s], offsets[s + 1] - offsets[s]
        belief[:k] = unary[a : a + k]
        for e in range(later[s], later[s + 1]):
            for i in range(k):
                belief[i] += first[to_first[e] + i]
        for at in range(earlier_start[s], earlier_start[s + 1]):
            e = earlier[at]
            for i in range(k):
                belief[i] += second[to_second[e] + i]
        lowest = belief[:k].min()
        bound += lowest
        belief[:k] -= lowest
        n_later, n_earlier = later[s + 1] - later[s], earlier_start[s + 1] - earlier_start[s]
        gamma = 1.0 / max(n_later, n_earlier, 1)
        for at in range(earlier_start[s], earlier_start[s + 1]):
            e = earlier[at]
            to, m = to_first[e], to_first[e + 1] - to_first[e]
            sender, receiver = (second, to_second[e], k), (first, to, m)
            bound += _send(gamma, belief, sender, (blocks, starts[e], True), receiver, buffer)
    return bound


@njit(cache=True)
def _trws(problem, adjacency, max_iter, tol):  # type: ignore[no-untyped-def]
    offsets = problem[1]
    n_nodes = len(offsets) - 1
    first = np.zeros(adjacency[3][-1])  # messages to the first node of each edge
    second = np.zeros(adjacency[4][-1])
    belief, buffer = np.empty(np.diff(offsets).max()), np.empty(np.diff(offsets).max())
    labels = np.zeros(n_nodes, dtype=np.int64)
    best = np.zeros(n_nodes, dtype=np.int64)
    best_energy, bound, waited, n_iter = np.inf, -np.inf, 0, 0
    while n_iter < max_iter:
        n_iter += 1
        _forward(problem, adjacency, first, second, labels, belief, buffer)
        energy = _energy(problem, labels)
        if energy < best_energy:
            best_energy = energy
            best[:] = labels
        new_bound = _backward(problem, adjacency, first, second, belief, buffer)
        scale = 1.0 + abs(best_energy)
        waited = 0 if new_bound > bound + tol * scale else waited + 1
        bound = max(bound, new_bound)
        if best_energy - bound <= tol * scale or waited >= _PATIENCE:
            break
    return best, best_energy, bound, n_iter


@njit(cache=True)
def _icm(problem, adjacency, labels):  # type: ignore[no-untyped-def]
    """Change labels in place until no node can do better alone; returns the sweeps that did."""
    unary, offsets, edges, starts, blocks = problem
    later, earlier_start, earlier, _, _ = adjacency
    n_nodes = len(offsets) - 1
    sweeps = 0
    changed = True
    while changed:
        changed = False
        for s in range(n_nodes):
            a, b = offsets[s], offsets[s + 1]
            k = b - a
            given = unary[a:b].copy()
            for e in range(later[s], later[s + 1]):
                t = edges[e, 1]
                width = offsets[t + 1] - offsets[t]
                for i in range(k):
                    given[i] += blocks[starts[e] + i * width + labels[t]]
            for i in range(earlier_start[s], earlier_start[s + 1]):
                e = earlier[i]
                row = starts[e] + labels[edges[e, 0]] * k
                given += blocks[row : row + k]
            x = np.argmin(given)
            # A strict gain beyond rounding, so that ties cannot cycle.
            if given[x] < given[labels[s]] - 1e-12 * (1.0 + abs(given[x])):
                labels[s] = x
                changed = True
        sweeps += changed
    return sweeps
