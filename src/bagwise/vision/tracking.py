"""Online tracking with a multiple-instance appearance model (MIO), section 4.3 of its paper.

Where the target is in a new frame is never known exactly, so the patches near the estimate form
one positive bag: one of them shows it. Patches further away are negative bags of one. A patch is
described by Haar-like features; the features of a bag are its similarities to remembered patches
(the memory), and their weights are learned by MIO's exact online step.

Departures from the paper: rectangles are drawn from maps of oriented edges (`haar`); the memory
has a fixed size, with patches of the first frame kept for good and the others replaced at random,
so that it thins out with age; remembered bags are replayed once per frame, since a patch that
entered later had no weight when they were seen. The target may grow and shrink: frames are scaled
so that it keeps its size, and patches of a wrong size around its middle are negative bags too.

Where no patch scores well the target may have turned, and must be learned, or it may be hidden, and
what hides it must not be. Only later frames tell: the tracker follows and learns, and keeps a copy
of itself from before the doubt, which waits and learns nothing. When the copy knows the followed
box again, the target had turned; when it sees the target elsewhere, the tracker goes back to it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numba import njit
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval

from bagwise.core.mio import ElasticNet, exact_step, weights
from bagwise.vision.haar import (
    HaarBank,
    haar_features,
    nearest_distances,
    oriented_integrals,
    random_haar,
    rescaled,
)
from bagwise.vision.images import eight_bit

_MIN_SIDE = 4  # pixels; a smaller target has no rectangles to compare
_SCALES = (0.2, 5.0)  # of the target against the first frame
_SURE = 0.5  # the size is judged where the score is at least this
_RESIZE_COST = 0.05  # a change of size must raise the score by more
_SIZE_PRIOR = 1.0  # cost of twice or half the first size; it grows with the squared logarithm
_WRONG_SIZE = 1.3  # patches larger or smaller by this factor do not show the target


class Memory(NamedTuple):
    """Remembered patches in fixed slots: first frame, later positives, negatives."""

    features: Any  # [K, F] float32
    similarity: Any  # [K, K]
    used: Any  # [K] bool
    pi: Any  # [1 + K] sum of MIO's multipliers; entry 0 belongs to the constant feature


class View(NamedTuple):
    """The part of a frame around the target, scaled so that the target has its first size."""

    totals: Any  # [O, h + 1, w + 1] integral images
    origin: Any  # [2] its corner in the frame
    factor: float  # its pixels per pixel of the frame


class Track(NamedTuple):
    """What `track` returns, one row per frame."""

    boxes: Any  # [T, 4] x, y, w, h
    found: Any  # [T] bool, False where the target may be hidden
    scores: Any  # [T] decision value of the box


class MIOTracker(BaseEstimator):
    """Follow a target through a video, with OpenCV's interface.

    Parameters
    ----------
    n_features : int
        Haar-like features of a patch.
    n_nearest : int
        k: two patches are compared on the k features that differ least.
    search_radius : int
        How far the target may move from one frame to the next.
    positive_radius : int
        Patches this close to the estimate make up the positive bag.
    negative_radius : tuple of int
        Negative patches lie this far from the estimate, at least and at most.
    n_positive, n_negative : int
        Patches drawn per frame for the positive bag, and negative bags.
    memory : tuple of int
        Patches remembered: of the first frame, of later positive bags, negative.
    width : float
        sigma² of the similarity, in units of the median distance between the target and patches
        around it in the first frame.
    alpha, beta : float
        MIO's regulariser.
    cost : tuple of float
        C1 and C2, the costs of errors on positive and negative bags.
    bias : float
        Value of the constant feature.
    motion : float
        Penalty on the score of a patch at ``search_radius``; it grows with the squared distance.
    doubt_below : float
        Where no patch scores higher the target is in doubt: hidden, or turned away. The best patch
        is followed and learned, while a copy of the model from before the doubt is kept.
    return_above : float
        The doubt ends when the copy scores the followed box above 0, or when it scores a patch
        elsewhere above this: then the copy is taken up, and what was learned since is dropped.
    patience : int
        The doubt ends after this many frames: what was followed meanwhile is taken for the target.
    growth : float
        The factor by which the target may grow or shrink from one frame to the next; 1 keeps the
        size of the box.
    side : int
        Frames are scaled so that the target's side (square root of its area) is this many pixels,
        enlarged to twice their size at most; all radii are in pixels of the scaled frames.
    random_state : int or None

    Attributes
    ----------
    score_ : float
        Decision value of the last box; in doubt, the one that the copy from before gives it.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import MIOTracker
    >>> scene = np.random.default_rng(0).integers(0, 255, (80, 100), dtype=np.uint8)
    >>> tracker = MIOTracker(random_state=0)
    >>> tracker.init(scene, (30, 20, 24, 24))
    >>> tracker.update(np.roll(scene, 5, axis=1))
    (True, (35, 20, 24, 24))
    """

    _memory: Memory
    _view: View

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_features": [Interval(Integral, 1, None, closed="left")],
        "n_nearest": [Interval(Integral, 1, None, closed="left")],
        "search_radius": [Interval(Integral, 1, None, closed="left")],
        "positive_radius": [Interval(Integral, 0, None, closed="left")],
        "negative_radius": [tuple],
        "n_positive": [Interval(Integral, 1, None, closed="left")],
        "n_negative": [Interval(Integral, 1, None, closed="left")],
        "memory": [tuple],
        "width": [Interval(Real, 0, None, closed="neither")],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "beta": [Interval(Real, 0, None, closed="neither")],
        "cost": [tuple],
        "bias": [Interval(Real, 0, None, closed="left")],
        "motion": [Interval(Real, 0, None, closed="left")],
        "doubt_below": [Interval(Real, None, 0, closed="neither")],
        "return_above": [Interval(Real, 0, None, closed="left")],
        "patience": [Interval(Integral, 1, None, closed="left")],
        "growth": [Interval(Real, 1, 1.2, closed="both")],
        "side": [Interval(Integral, 8, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        n_features: int = 500,
        n_nearest: int = 160,
        search_radius: int = 25,
        positive_radius: int = 3,
        negative_radius: tuple[int, int] = (8, 50),
        n_positive: int = 12,
        n_negative: int = 10,
        memory: tuple[int, int, int] = (5, 40, 55),
        width: float = 1.0,
        alpha: float = 0.05,
        beta: float = 1.0,
        cost: tuple[float, float] = (1.0, 1.0),
        bias: float = 1.0,
        motion: float = 0.8,
        doubt_below: float = -0.5,
        return_above: float = 1.0,
        patience: int = 15,
        growth: float = 1.025,
        side: int = 56,
        random_state: int | None = None,
    ) -> None:
        self.n_features = n_features
        self.n_nearest = n_nearest
        self.search_radius = search_radius
        self.positive_radius = positive_radius
        self.negative_radius = negative_radius
        self.n_positive = n_positive
        self.n_negative = n_negative
        self.memory = memory
        self.width = width
        self.alpha = alpha
        self.beta = beta
        self.cost = cost
        self.bias = bias
        self.motion = motion
        self.doubt_below = doubt_below
        self.return_above = return_above
        self.patience = patience
        self.growth = growth
        self.side = side
        self.random_state = random_state

    def init(self, frame: Any, box: Any) -> None:
        """Learn the target from its box ``x, y, w, h`` in the first frame."""
        self._validate_params()
        self._check()
        grey = as_grey(frame)
        x, y, w, h = check_box(box, *grey.shape)
        self._rng = np.random.default_rng(self.random_state)
        self._frame_shape = grey.shape
        self._factor = min(2.0, self.side / np.sqrt(w * h))
        self._size = np.maximum(np.rint(np.array([w, h]) * self._factor).astype(int), _MIN_SIDE)
        self._box_size = np.array([w, h])
        self._centre = np.array([x, y]) + self._box_size / 2  # in pixels of the frame
        self._scale = 1.0
        self._before: MIOTracker | None = None  # the copy from before a doubt
        self._see(grey)
        self._position = self._corner()
        n_channels = len(self._view.totals)
        self._bank = random_haar(
            self.n_features, int(self._size[0]), int(self._size[1]), self._rng, n_channels
        )
        self._scale_features()
        self._start_memory()
        self.score_ = float(self._score(self._position[None])[0])

    def update(self, frame: Any) -> tuple[bool, tuple[int, int, int, int]]:
        """Find the target in the next frame: whether it is there beyond doubt, and its box."""
        if not hasattr(self, "_bank"):
            raise ValueError("MIOTracker has no target yet; call init(frame, box) first.")
        grey = as_grey(frame)
        scene = self._resize(grey)
        self._see(scene)
        self._position, score = self._search(self.search_radius, self.motion)
        self.score_ = score
        if self._before is not None:
            score = self._reconsider(self._before, scene, score)
        elif score <= self.doubt_below:
            self._begin_doubt()
        self._centre = (self._position + self._size / 2) / self._view.factor + self._view.origin
        if score > _SURE:  # before learning, which speaks for the present size
            self._scale = float(np.clip(self._scale * self._growth(), *_SCALES))
        self._learn()
        return self._before is None, self._output(grey.shape)

    def _begin_doubt(self) -> None:
        self._before = copy.copy(self)
        self._before._memory = Memory(*(part.copy() for part in self._memory))
        self._doubted = 0

    def _reconsider(self, before: MIOTracker, scene: Any, score: float) -> float:
        """End the doubt where the copy from before it sees the target; the score of the box.

        The copy waits where the target was last seen. As the target may have gone anywhere, it
        seeks twice as far, and moving is free.
        """
        self._doubted += 1
        near = self._inside(self._position + disc(self.positive_radius, 1))
        self.score_ = float(before._score(near, view=self._view).max())  # the score of a bag
        if self.score_ > 0:
            self._before = None  # turned, not hidden
            return score
        before._see(scene)
        place, there = before._search(2 * self.search_radius, 0.0)
        if there <= self.return_above:
            if self._doubted >= self.patience:
                self._before, self.score_ = None, score
            return score
        self._before = None
        self._memory, self._scale = before._memory, before._scale
        self._view, self._position, self.score_ = before._view, place, there
        return there

    def _check(self) -> None:
        for name, length in (("negative_radius", 2), ("memory", 3), ("cost", 2)):
            value = getattr(self, name)
            if len(value) != length or min(value) <= 0:
                raise ValueError(f"{name} must be {length} positive numbers; got {value}.")
        near, far = self.negative_radius
        if not self.positive_radius < near < far:
            raise ValueError(
                "positive_radius < negative_radius[0] < negative_radius[1] must hold; got "
                f"{self.positive_radius}, {near}, {far}."
            )
        if self.n_nearest > self.n_features:
            raise ValueError(
                f"n_nearest must be at most n_features = {self.n_features}; got {self.n_nearest}."
            )

    def _resize(self, grey: Any) -> Any:
        """A stream that changes its resolution shows the same scene: bring it to the first."""
        import cv2

        if grey.shape == self._frame_shape:
            return grey
        return cv2.resize(grey, self._frame_shape[::-1], interpolation=cv2.INTER_AREA)

    def _output(self, shape: tuple[int, int]) -> tuple[int, int, int, int]:
        ratio = np.array([shape[1], shape[0]]) / np.array(self._frame_shape[::-1])
        size = self._box_size * self._scale
        corner = np.rint((self._centre - size / 2) * ratio).astype(int)
        size = np.rint(size * ratio).astype(int)
        return (int(corner[0]), int(corner[1]), int(size[0]), int(size[1]))

    def _see(self, grey: Any) -> None:
        """Cut out what the search and the negative patches can reach, so cost is bounded."""
        import cv2

        factor = self._factor / self._scale
        reach = self._size / 2 + self.search_radius + self.negative_radius[1] + 8
        low = np.floor(np.maximum(self._centre - reach / factor, 0)).astype(int)
        high = np.ceil(np.minimum(self._centre + reach / factor, grey.shape[::-1])).astype(int)
        part = np.ascontiguousarray(grey[low[1] : high[1], low[0] : high[0]])
        if factor != 1:
            size = np.maximum(np.rint((high - low) * factor), self._size).astype(int)
            part = cv2.resize(part, size.tolist(), interpolation=cv2.INTER_AREA)
        window = 2 * int(max(min(self._size) // 2, 2)) + 1
        self._view = View(oriented_integrals(part, window), low, factor)

    def _corner(self) -> Any:
        """The target's top left corner in the view."""
        corner = (self._centre - self._view.origin) * self._view.factor - self._size / 2
        return np.clip(np.rint(corner).astype(int), 0, self._limit())

    def _limit(self, scale: float = 1.0) -> Any:
        """The largest top left corner of a patch in the view."""
        shape = np.array(self._view.totals.shape[:0:-1]) - 1
        return shape - np.ceil(self._size * scale).astype(int)

    def _inside(self, positions: Any, scale: float = 1.0) -> Any:
        return positions[np.all((positions >= 0) & (positions <= self._limit(scale)), axis=1)]

    def _features(self, positions: Any) -> Any:
        return haar_features(self._view.totals, positions, self._bank)

    def _growth(self) -> float:
        """The factor of growth at which the patch scores highest: 1, or one step up or down.

        Rectangles are rounded to pixels, so that patches of a size nearer than 5 % look alike:
        they are compared at twice the step that is taken.
        """
        if self.growth == 1:
            return 1.0
        best, chosen = -np.inf, 1.0
        for factor in (1.0, self.growth, 1 / self.growth):
            scale = factor**2
            corner = np.rint(self._position + self._size * (1 - scale) / 2).astype(int)
            corners = self._inside(corner + disc(1, 1), scale)
            if len(corners) == 0:
                continue
            score = self._score(corners, rescaled(self._bank, scale)).max()
            score -= _RESIZE_COST * (factor != 1) + _SIZE_PRIOR * np.log2(self._scale * scale) ** 2
            if score > best:
                best, chosen = score, factor
        return chosen

    def _scale_features(self) -> None:
        """Give every feature unit spread over the patches around the target."""
        around = self._inside(self._position + disc(self.search_radius, 4))
        spread = self._features(around).std(axis=0) + 0.02
        self._bank = self._bank._replace(weights=self._bank.weights / spread[:, None])

    def _start_memory(self) -> None:
        first, later, negative = self.memory
        K = first + later + negative
        self._memory = Memory(
            np.zeros((K, self.n_features), dtype=np.float32),
            np.zeros((K, K)),
            np.zeros(K, dtype=bool),
            np.zeros(K + 1),
        )
        target = self._features(self._position[None])
        away = self._features(self._negatives(negative))
        gaps = nearest_distances(target, away, self.n_nearest)
        self._sigma2 = self.width * max(float(np.median(gaps)), 1e-6)
        self._put(np.arange(first), self._features(self._positives(first)))
        self._put(first + later + np.arange(negative), away)
        for _ in range(5):  # a few passes, for the first frame is the only certain one
            self._learn()

    def _positives(self, n: int) -> Any:
        """The estimate and patches near it, ``n`` in all."""
        near = self._inside(self._position + disc(self.positive_radius, 1))
        chosen = near[self._rng.permutation(len(near))[: n - 1]]
        chosen = np.vstack([self._position[None], chosen])
        return chosen[np.arange(n) % len(chosen)]

    def _negatives(self, n: int) -> Any:
        """``n`` patches away from the estimate; repeated where the frame leaves too few."""
        near, far = self.negative_radius
        for reach in (far, 2 * far, 8 * far):
            steps = self._rng.uniform(-reach, reach, (20 * n, 2))
            distance = np.hypot(steps[:, 0], steps[:, 1])
            steps = steps[(distance > near) & (distance < reach)]
            found = self._inside(np.rint(self._position + steps).astype(int))
            if len(found) >= n:
                return found[:n]
        if len(found) == 0:
            raise ValueError(
                f"the frame leaves no room for background around the target: a box of "
                f"{tuple(self._box_size.tolist())} in a frame of {self._frame_shape[::-1]}; choose "
                "a smaller box."
            )
        return found[np.arange(n) % len(found)]

    def _wrong_sizes(self) -> Any:
        """Features of patches around the target's middle that are too large or too small."""
        parts = []
        for scale in (_WRONG_SIZE, 1 / _WRONG_SIZE):
            corner = np.rint(self._position + self._size * (1 - scale) / 2).astype(int)
            corners = self._inside(corner[None], scale)
            parts.append(haar_features(self._view.totals, corners, rescaled(self._bank, scale)))
        return np.vstack(parts)

    def _similarity(self, features: Any, to: Any) -> Any:
        return np.exp(-nearest_distances(features, to, self.n_nearest) / self._sigma2)

    def _put(self, slots: Any, features: Any) -> None:
        m = self._memory
        m.features[slots] = features
        m.used[slots] = True
        m.pi[slots + 1] = 0
        similarity = self._similarity(features, m.features) * m.used
        m.similarity[slots] = similarity
        m.similarity[:, slots] = similarity.T

    def _slots(self, start: int, size: int, n: int) -> Any:
        """Free slots first, then random ones."""
        free = np.flatnonzero(~self._memory.used[start : start + size])[:n]
        taken = np.setdiff1d(np.arange(size), free)
        return start + np.append(free, self._rng.permutation(taken)[: n - len(free)])

    def _learn(self) -> None:
        """One positive bag and the negatives of this frame, then a replay of the memory."""
        m, (first, later, negative) = self._memory, self.memory
        bag = self._features(self._positives(self.n_positive + 1))
        away = self._features(self._negatives(min(self.n_negative, negative)))
        if self.growth > 1:
            away = np.vstack([self._wrong_sizes(), away])[: len(away)]
        kept = bag[: min(2, later)]
        self._put(self._slots(first, later, len(kept)), kept)
        fresh = self._slots(first + later, negative, len(away))
        self._put(fresh, away)
        here = (self._similarity(bag, m.features) * m.used).max(axis=0)
        anchor = m.similarity[:first].max(axis=0)  # the first frame is a positive bag for good
        replay = self._rng.permutation(first + np.flatnonzero(m.used[first:]))
        rows = np.vstack([here, m.similarity[fresh], anchor, m.similarity[replay]])
        signs = np.ones(len(rows))
        signs[1 : 1 + len(fresh)] = -1
        signs[len(fresh) + 2 :][replay >= first + later] = -1
        Z = np.column_stack([np.full(len(rows), float(self.bias)), rows])
        costs = np.where(signs > 0, *self.cost).astype(np.float64)
        _steps(m.pi, Z, signs, costs, self.alpha, self.beta)

    def _score(self, positions: Any, bank: HaarBank | None = None, view: View | None = None) -> Any:
        w = weights(self._memory.pi, ElasticNet(self.alpha, self.beta))
        active = np.flatnonzero(w[1:])
        view, bank = view or self._view, bank or self._bank
        X = haar_features(view.totals, positions, bank)
        similarity = self._similarity(X, self._memory.features[active])
        return similarity @ w[1:][active] + self.bias * w[0]

    def _search(self, radius: int, motion: float) -> tuple[Any, float]:
        """The best patch and its score: on a coarse grid first, then around the best there."""
        start = self._corner()
        stride = int(np.clip(np.sqrt(np.prod(self._size)) / 12, 2, 4))
        best, _ = self._best(start + disc(radius, stride), start, motion)
        return self._best(best + disc(stride, 1), start, motion)

    def _best(self, positions: Any, start: Any, motion: float) -> tuple[Any, float]:
        """The patch with the highest score less the cost of moving there, and its score."""
        positions = self._inside(positions)
        score = self._score(positions)
        moved = ((positions - start) ** 2).sum(axis=1) / self.search_radius**2
        chosen = int(np.argmax(score - motion * moved))
        return positions[chosen], float(score[chosen])


@njit(cache=True)
def _steps(pi: Any, Z: Any, signs: Any, costs: Any, alpha: float, beta: float) -> None:
    """MIO's step for each row of Z in turn; ``pi`` is updated in place."""
    for i in range(len(Z)):
        exact_step(pi, Z[i], signs[i], costs[i], alpha, beta)


def disc(radius: int, stride: int) -> Any:
    """Integer steps on a grid within a radius, [n, 2]."""
    n = radius // stride
    grid = np.arange(-n, n + 1) * stride
    steps = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    return steps[(steps**2).sum(axis=1) <= radius**2]


def as_grey(frame: Any) -> Any:
    """A frame as 8-bit grey; colour frames are in OpenCV's order, BGR or BGRA."""
    frame = eight_bit(np.asarray(frame), "a frame")
    if frame.shape[2] == 1:
        return np.ascontiguousarray(frame[..., 0])
    import cv2

    return cv2.cvtColor(np.ascontiguousarray(frame[..., :3]), cv2.COLOR_BGR2GRAY)


def check_box(box: Any, height: int, width: int) -> tuple[int, int, int, int]:
    """A box cut to the frame, or what is wrong with it."""
    values = np.asarray(box, dtype=np.float64).ravel()
    if values.shape != (4,) or not np.isfinite(values).all():
        raise ValueError(f"a box must be four finite numbers x, y, w, h; got {box!r}.")
    low = np.rint(np.maximum(values[:2], 0)).astype(int)
    high = np.rint(np.minimum(values[:2] + values[2:], [width, height])).astype(int)
    size = high - low
    if np.any(size < _MIN_SIDE):
        raise ValueError(
            f"the box {tuple(values.tolist())} leaves {max(size[0], 0)} x {max(size[1], 0)} pixels "
            f"inside the frame of {width} x {height}; it needs at least {_MIN_SIDE} x {_MIN_SIDE}."
        )
    return (int(low[0]), int(low[1]), int(size[0]), int(size[1]))


def track(frames: Iterable[Any], box: Any, tracker: Any = None) -> Track:
    """Follow a target through frames; the first one has the target in ``box``.

    Parameters
    ----------
    frames : iterable of arrays
    box : tuple of x, y, w, h
    tracker : MIOTracker, optional
        Any object with ``init`` and ``update`` will do; ``score_`` is recorded where it has one.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import track
    >>> frames = np.random.default_rng(0).integers(0, 90, (3, 60, 80), dtype=np.uint8)
    >>> for i, frame in enumerate(frames):
    ...     frame[20:36, 20 + 2 * i : 36 + 2 * i] = 250
    ...     frame[24:32, 24 + 2 * i : 32 + 2 * i] = 10
    >>> track(frames, (20, 20, 16, 16)).boxes.shape
    (3, 4)
    """
    tracker = MIOTracker(random_state=0) if tracker is None else tracker
    boxes, found, scores = [], [], []
    for number, frame in enumerate(frames):
        if number == 0:
            tracker.init(frame, box)
            ok, place = True, tuple(box)
        else:
            ok, place = tracker.update(frame)
        boxes.append(place)
        found.append(bool(ok))
        scores.append(float(getattr(tracker, "score_", np.nan)))
    if not boxes:
        raise ValueError("the video has no frames.")
    return Track(np.asarray(boxes, dtype=np.float64), np.asarray(found), np.asarray(scores))
