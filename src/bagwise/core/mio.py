"""The online learner of the MIO paper (Li, Kwok, Lu, 2010): state, exact step, dual and gap.

A bag's features z grow with the stream: one entry per instance seen (an anchor), and a constant
entry first. ``pi`` is the sum of the multipliers (12); the weights are ``grad f*(-pi)`` (6).
Algorithm 1 prints ``grad f*(pi)``, whose sign is wrong. The feature vectors of earlier bags
are not extended (Proposition 3), which is the same as zeros at their ends.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from bagwise.core.arrays import Floats, Ints


class ElasticNet(NamedTuple):
    """f(w) = alpha |w|_1 + beta/2 |w|², equation (8)."""

    alpha: float
    beta: float


class MIOState(NamedTuple):
    """What the learner remembers; entry k of ``anchors`` has feature k + 1, feature 0 is constant.

    The arrays have room to grow: the first ``n_anchors`` entries are in use.
    """

    anchors: Floats  # [capacity, D]
    ids: Ints  # [capacity] number of the instance in the order of its data
    born: Ints  # [capacity] step at which it came
    last_used: Ints  # [capacity] last step at which its weight was not 0
    pi: Floats  # [1 + capacity]
    n_anchors: int
    n_steps: int
    n_seen: int  # instances, dropped ones included
    n_dropped: int


def init(n_features: int) -> MIOState:
    """A learner that has seen nothing."""
    return MIOState(
        anchors=np.empty((0, n_features)),
        ids=np.empty(0, dtype=np.int64),
        born=np.empty(0, dtype=np.int64),
        last_used=np.empty(0, dtype=np.int64),
        pi=np.zeros(1),
        n_anchors=0,
        n_steps=0,
        n_seen=0,
        n_dropped=0,
    )


def add_anchors(state: MIOState, X: Floats, ids: Ints) -> MIOState:
    """Append the instances of a new bag; their features start with weight 0."""
    n, new = state.n_anchors, state.n_anchors + len(X)
    if new > len(state.ids):
        capacity = max(2 * len(state.ids), new, 64)
        state = state._replace(
            anchors=_grown(state.anchors, capacity),
            ids=_grown(state.ids, capacity),
            born=_grown(state.born, capacity),
            last_used=_grown(state.last_used, capacity),
            pi=_grown(state.pi, capacity + 1),
        )
    state.anchors[n:new] = X
    state.ids[n:new] = ids
    state.born[n:new] = state.n_steps
    state.last_used[n:new] = state.n_steps
    state.pi[n + 1 : new + 1] = 0
    return state._replace(n_anchors=new, n_seen=state.n_seen + len(X))


_Number = TypeVar("_Number", np.float64, np.int64)


def _grown(a: NDArray[_Number], capacity: int) -> NDArray[_Number]:
    out = np.zeros((capacity, *a.shape[1:]), dtype=a.dtype)
    out[: len(a)] = a
    return out


def drop_anchors(state: MIOState, net: ElasticNet, most: int) -> MIOState:
    """Keep at most ``most`` anchors: those unused for longest go first, then the lightest."""
    n = state.n_anchors
    if n <= most:
        return state
    size = np.abs(state.pi[1 : n + 1])
    used = size > net.alpha
    # First those without a weight, by when they last had one; then those with one, by its size.
    order = np.lexsort((np.where(used, size, state.last_used[:n]), used))
    keep = np.sort(order[n - most :])
    for column in (state.anchors, state.ids, state.born, state.last_used):
        column[:most] = column[keep]
    state.pi[1 : most + 1] = state.pi[keep + 1]
    return state._replace(n_anchors=most, n_dropped=state.n_dropped + n - most)


def weights(pi: Floats, net: ElasticNet) -> Floats:
    """The weights grad f*(-pi), by Proposition 1: soft-thresholded, so many are 0."""
    return -np.sign(pi) * np.maximum(np.abs(pi) - net.alpha, 0) / net.beta


def step(
    state: MIOState, z: Floats, sign: float, cost: float, net: ElasticNet
) -> tuple[float, float]:
    """Predict, then learn from one bag: its new multiplier theta and the margin y w'z before.

    ``pi`` is updated in place; ``cost`` is C1 or C2.
    """
    pi = state.pi[: len(z)]
    theta, margin = exact_step(pi, z, sign, cost, net.alpha, net.beta)
    # Weights that are not 0, by the soft threshold of Proposition 1.
    state.last_used[: len(z) - 1][np.abs(pi[1:]) > net.alpha] = state.n_steps
    return theta, margin


def revise(
    state: MIOState, z: Floats, sign: float, cost: float, net: ElasticNet, theta: float
) -> float:
    """Re-optimise the multiplier of a bag seen before: one step of dual coordinate ascent."""
    pi = state.pi[: len(z)]
    # Without its old multiplier the bag is as new.
    pi -= theta * sign * z
    return exact_step(pi, z, sign, cost, net.alpha, net.beta)[0]


@numba.njit(cache=True)
def _slope(
    theta: float, pi: Floats, z: Floats, sign: float, alpha: float, beta: float
) -> tuple[float, float, float]:
    """Q'(theta) of (16), its slope Q'', and the sum of sizes that were added up."""
    first, second, size = beta, 0.0, beta
    for i in range(len(z)):
        a = sign * z[i]
        v = pi[i] + theta * a
        # Only entries beyond the soft threshold contribute: (|v| - alpha)+ with the sign of v.
        if v > alpha:
            part = a * (v - alpha)
        elif v < -alpha:
            part = a * (v + alpha)
        else:
            continue
        first += part
        size += abs(part)
        second += a * a
    return first, second, size


@numba.njit(cache=True)
def best_theta(
    pi: Floats, z: Floats, sign: float, alpha: float, beta: float, eta: float
) -> tuple[float, float]:
    """The minimiser of Q over [eta, 0], equation (15), and Q'(0).

    Q' is piecewise linear and does not fall (Lemma 1). Newton's method inside a bracket lands
    on the root once it is on the root's piece, so a few linear scans do what sorting all
    breakpoints does; the interpolation printed after Lemma 1 is wrong.
    """
    at_zero, bend, size = _slope(0.0, pi, z, sign, alpha, beta)
    if at_zero <= 0:  # the margin is at least 1: no loss, no step
        return 0.0, at_zero
    q, _, _ = _slope(eta, pi, z, sign, alpha, beta)
    if q >= 0:  # the multiplier ends at its bound, the cost of the bag
        return eta, at_zero
    lo, hi, theta, q = eta, 0.0, 0.0, at_zero
    for _ in range(200):
        previous = theta
        theta = theta - q / bend if bend > 0 else lo
        if not lo < theta < hi:
            theta = 0.5 * (lo + hi)
        if theta in (previous, lo, hi):
            break
        q, bend, size = _slope(theta, pi, z, sign, alpha, beta)
        if abs(q) <= 1e-15 * size:
            break
        if q > 0:
            hi = theta
        else:
            lo = theta
    return theta, at_zero


@numba.njit(cache=True)
def exact_step(
    pi: Floats, z: Floats, sign: float, cost: float, alpha: float, beta: float
) -> tuple[float, float]:
    """The best multiplier of one bag (15), added to ``pi`` in place; and the margin before."""
    theta, at_zero = best_theta(pi, z, sign, alpha, beta, -cost)
    if theta != 0:
        for i in range(len(z)):
            pi[i] += theta * sign * z[i]
    return theta, 1 - at_zero / beta  # Q'(0) = beta (1 - y w'z)


def dual_objective(pi: Floats, thetas: Floats, net: ElasticNet) -> float:
    """Equation (4) with c = 1: -f*(-pi) - sum of theta."""
    shrunk = np.maximum(np.abs(pi) - net.alpha, 0)
    return float(-(shrunk @ shrunk) / (2 * net.beta) - np.sum(thetas))


def primal_objective(pi: Floats, hinges: Floats, net: ElasticNet) -> float:
    """Equation (3): f(w) plus the weighted hinge losses, at w = grad f*(-pi)."""
    w = weights(pi, net)
    return float(net.alpha * np.abs(w).sum() + 0.5 * net.beta * w @ w + np.sum(hinges))
