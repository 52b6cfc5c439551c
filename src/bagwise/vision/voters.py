"""The voters of a tracker: each scores patches by MIO over its own draw of features, and learns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numba import njit

from bagwise.core.arrays import Floats, Ints
from bagwise.core.mio import ElasticNet, exact_step, weights
from bagwise.vision.haar import Features, Grey
from bagwise.vision.tracker_state import (
    Memory,
    Pose,
    TrackerState,
    View,
    Voter,
)


def see(state: TrackerState, grey: Grey, pose: Pose, reach: float | None = None) -> View:
    """Cut out what the search and the negative patches can reach, so that cost is bounded.

    The frame is continued beyond its border by half a target, so that one that leaves it can be
    followed until its middle is outside.
    """
    import cv2

    settings = state.settings
    factor = state.factor / pose.scale
    if reach is None:
        reach = settings.search_radius + settings.negative_radius[1] + 8
    far = (state.size / 2 + reach) / factor
    pad = state.size / 2 / factor
    shape = np.array(grey.shape[::-1])
    low = np.floor(np.maximum(pose.centre - far, -pad)).astype(int)
    high = np.ceil(np.minimum(pose.centre + far, shape + pad)).astype(int)
    inner_low, inner_high = np.maximum(low, 0), np.minimum(high, shape)
    part = grey[inner_low[1] : inner_high[1], inner_low[0] : inner_high[0]]
    before, after = inner_low - low, high - inner_high
    if before.any() or after.any():
        part = cv2.copyMakeBorder(
            part, before[1], after[1], before[0], after[0], cv2.BORDER_REPLICATE
        )
    if factor != 1:
        size = np.maximum(np.rint((high - low) * factor), state.size).astype(int)
        part = cv2.resize(part, size.tolist(), interpolation=cv2.INTER_AREA)
    part = np.ascontiguousarray(part)
    maps = state.features.maps(part, int(min(state.size)))
    return View(part, maps, low.astype(float), factor)


def corner(state: TrackerState, view: View, pose: Pose) -> Ints:
    """The target's top left corner in a view, where a patch lies in the view."""
    place = (pose.centre - view.origin) * view.factor - state.size / 2
    return np.clip(np.rint(place).astype(int), 0, np.array(view.grey.shape[::-1]) - state.size)


def inside(state: TrackerState, view: View, positions: Ints) -> Ints:
    """The positions at which a patch lies in the view."""
    limit = np.array(view.grey.shape[::-1]) - state.size
    return positions[np.all((positions >= 0) & (positions <= limit), axis=1)]


def scores(state: TrackerState, voters: Sequence[Voter], view: View, positions: Ints) -> Floats:
    """Decision values of patches by every voter, [V, P]."""
    regulariser = ElasticNet(state.settings.alpha, state.settings.beta)
    values = []
    for voter in voters:
        w = weights(voter.memory.pi, regulariser)  # [1 + K], sparse by the elastic net
        active = np.flatnonzero(w[1:])
        X = state.features.describe(view.maps, positions, voter.bank)  # [P, F]
        similarity = _similarity(state, voter, X, voter.memory.features[active])
        values.append(similarity @ w[1:][active] + state.settings.bias * w[0])
    return np.stack(values)


def _similarity(state: TrackerState, voter: Voter, features: Features, to: Features) -> Floats:
    return np.exp(-state.features.distances(features, to) / voter.sigma2)


def search(state: TrackerState, view: View, pose: Pose, radius: int) -> Floats:
    """Where in a view the voters see the target's centre, the median of where each would go.

    A coarse grid around a pose is searched first, then the neighbourhood of the best there. A move
    costs its squared distance.
    """
    settings = state.settings
    origin = corner(state, view, pose)

    def values(positions: Ints) -> Floats:
        far = ((positions - origin) ** 2).sum(axis=1) / settings.search_radius**2
        return scores(state, state.voters, view, positions) - settings.motion * far

    stride = int(np.clip(np.sqrt(np.prod(state.size)) / 12, 2, 4))
    coarse = inside(state, view, origin + disc(radius, stride))
    best = coarse[int(np.argmax(np.median(values(coarse), axis=0)))]
    fine = inside(state, view, best + disc(stride, 1))
    place = np.median(fine[np.argmax(values(fine), axis=1)], axis=0)
    return np.asarray(place + state.size / 2)


def bag_score(state: TrackerState, voters: Sequence[Voter], view: View, pose: Pose) -> float:
    """The score of the patches around a place, as a bag: the largest of the median votes."""
    near = inside(state, view, corner(state, view, pose) + disc(2, 1))
    return float(np.median(scores(state, voters, view, near), axis=0).max())


def new_voter(state: TrackerState, view: View, position: Ints, rng: np.random.Generator) -> Voter:
    """Draw features and learn the target from the first frame."""
    settings, features = state.settings, state.features
    first, later, negative = settings.memory
    bank = features.draw(int(state.size[0]), int(state.size[1]), rng)
    around = inside(state, view, position + disc(settings.search_radius, 4))
    spread = features.describe(view.maps, around, bank).std(axis=0) + 0.02
    bank = bank._replace(weights=bank.weights / spread[:, None])  # unit spread around the target
    K = first + later + negative
    target = features.describe(view.maps, position[None], bank)
    away = features.describe(view.maps, _negatives(state, view, position, negative, rng), bank)
    gaps = features.distances(target, away)
    memory = Memory(
        np.zeros((K, target.shape[1]), dtype=np.float32),
        np.zeros((K, K)),
        np.zeros(K, dtype=bool),
        np.zeros(K + 1),
    )
    voter = Voter(bank, settings.width * max(float(np.median(gaps)), 1e-6), memory)
    bag = features.describe(view.maps, _positives(state, view, position, first, rng), bank)
    _put(state, voter, np.arange(first), bag)
    _put(state, voter, first + later + np.arange(negative), away)
    for _ in range(state.thresholds.n_passes):
        voter = learn(state, voter, view, position, rng)
    return voter


def _positives(
    state: TrackerState, view: View, position: Ints, n: int, rng: np.random.Generator
) -> Ints:
    """The estimate and patches near it, ``n`` in all."""
    near = inside(state, view, position + disc(state.settings.positive_radius, 1))
    chosen = near[rng.permutation(len(near))[: n - 1]]
    chosen = np.vstack([position[None], chosen])
    return chosen[np.arange(n) % len(chosen)]


def _negatives(
    state: TrackerState, view: View, position: Ints, n: int, rng: np.random.Generator
) -> Ints:
    """``n`` patches away from the estimate; repeated where the frame leaves too few."""
    near, far = state.settings.negative_radius
    for reach in (far, 2 * far, 8 * far):
        steps = rng.uniform(-reach, reach, (20 * n, 2))
        distance = np.hypot(steps[:, 0], steps[:, 1])
        steps = steps[(distance > near) & (distance < reach)]
        places = inside(state, view, np.rint(position + steps).astype(int))
        if len(places) >= n:
            return places[:n]
    return places[np.arange(n) % len(places)]


def _put(state: TrackerState, voter: Voter, slots: Ints, features: Features) -> None:
    """Write patches into slots of a memory that nobody else holds."""
    memory = voter.memory
    memory.features[slots] = features
    memory.used[slots] = True
    memory.pi[slots + 1] = 0
    similarity = _similarity(state, voter, features, memory.features) * memory.used  # [n, K]
    memory.similarity[slots] = similarity
    memory.similarity[:, slots] = similarity.T


def _slots(memory: Memory, first: int, size: int, n: int, rng: np.random.Generator) -> Ints:
    """Free slots first, then random ones."""
    free = np.flatnonzero(~memory.used[first : first + size])[:n]
    others = np.ones(size, dtype=bool)
    others[free] = False
    taken = rng.permutation(np.flatnonzero(others))
    return first + np.append(free, taken[: n - len(free)])


def learn(
    state: TrackerState, voter: Voter, view: View, position: Ints, rng: np.random.Generator
) -> Voter:
    """One positive bag and the negatives of this frame, then a replay of the memory."""
    settings, describe = state.settings, state.features.describe
    features, similarity, used, pi = voter.memory
    memory = Memory(features.copy(), similarity.copy(), used.copy(), pi.copy())
    voter, (first, later, negative) = voter._replace(memory=memory), settings.memory
    n = settings.n_positive + 1
    bag = describe(view.maps, _positives(state, view, position, n, rng), voter.bank)
    n = min(settings.n_negative, negative)
    away = describe(view.maps, _negatives(state, view, position, n, rng), voter.bank)
    kept = bag[: min(2, later)]
    _put(state, voter, _slots(memory, first, later, len(kept), rng), kept)
    fresh = _slots(memory, first + later, negative, len(away), rng)
    _put(state, voter, fresh, away)
    # A bag's features are its largest similarities to the remembered patches, Eq. (1) of the paper.
    here = (_similarity(state, voter, bag, memory.features) * memory.used).max(axis=0)
    anchor = memory.similarity[:first].max(axis=0)  # the first frame is a positive bag for good
    replay = rng.permutation(first + np.flatnonzero(memory.used[first:]))
    rows = np.vstack([here, memory.similarity[fresh], anchor, memory.similarity[replay]])
    # In the order of the rows: this frame's bag, its negatives, the first frame's bag, the replay.
    signs = np.ones(len(rows))
    signs[1 : 1 + len(fresh)] = -1
    signs[len(fresh) + 2 :][replay >= first + later] = -1
    Z = np.column_stack([np.full(len(rows), float(settings.bias)), rows])  # [n, 1 + K]
    costs = np.where(signs > 0, *settings.cost).astype(np.float64)
    _steps(memory.pi, Z, signs, costs, settings.alpha, settings.beta)
    return voter


@njit(cache=True)
def _steps(pi: Floats, Z: Floats, signs: Floats, costs: Floats, alpha: float, beta: float) -> None:
    """MIO's step for each row of Z in turn; ``pi`` is updated in place."""
    for i in range(len(Z)):
        exact_step(pi, Z[i], signs[i], costs[i], alpha, beta)


@lru_cache(maxsize=32)
def disc(radius: int, stride: int) -> Ints:
    """Integer steps on a grid within a radius, [n, 2]; the same array each time, so read-only."""
    n = radius // stride
    grid = np.arange(-n, n + 1) * stride
    steps = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    steps = steps[(steps**2).sum(axis=1) <= radius**2]
    steps.flags.writeable = False
    return steps
