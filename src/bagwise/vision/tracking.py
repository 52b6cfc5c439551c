"""Online tracking with a multiple-instance appearance model (MIO), section 4.3 of its paper.

Where the target is in a new frame is never known exactly, so the patches near the estimate form
one positive bag: one of them shows it. Patches further away are negative bags of one. A patch is
described by Haar-like features; the features of a bag are its similarities to remembered patches
(the memory), and their weights are learned by MIO's exact online step.

A tracker is a value: ``start(frame, box)`` gives a state and ``step(state, frame)`` the next state
and what was seen. Nothing is changed in place, so a state can be kept, compared and gone back to.

Departures from the paper: rectangles are drawn from maps of oriented edges (`haar`); several draws
of features vote, since one draw in five is a bad one; the memory has a fixed size, with patches of
the first frame kept for good and the others replaced at random, so that it thins out with age;
remembered bags are replayed once per frame. The voters say where the target is to a pixel or two;
position and size are then read off by aligning the frame with kept pictures of the target
(`alignment`), which need no prior on the size. Where no picture fits, the motion since the last
frame steadies the voters.

Where no patch scores well the target may have turned, and must be learned, or it may be hidden, and
what hides it must not be. Only later frames tell: the tracker follows and learns, and keeps the
voters from before the doubt, which learn nothing and look for the target in the whole frame. When
they know the followed box again, the target had turned; when they see the target elsewhere, the
tracker goes back to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils._param_validation import Interval

from bagwise.core.arrays import Bools, Floats
from bagwise.models.parameters import (
    AT_LEAST_1,
    NOT_NEGATIVE,
    POSITIVE,
    HasParameters,
    parameter,
)
from bagwise.vision.alignment import align, candidates, cut, moved, resemblance
from bagwise.vision.haar import Grey, HaarFeatures
from bagwise.vision.images import eight_bit
from bagwise.vision.tracker_state import (
    Evidence,
    Fit,
    Picture,
    Pose,
    Step,
    Thresholds,
    TrackerState,
    View,
)
from bagwise.vision.voters import bag_score, corner, learn, new_voter, search, see

_MIN_SIDE = 4  # pixels; a smaller target has no rectangles to compare
# Coefficients of `belief_terms`. experiments/tracking_belief.py, which came later, fits 1.83, 9.30
# and -4.70: more lost targets are noticed, and on films more boxes that are right are doubted.
BELIEF = np.array([1.87, 6.85, -2.59])


def start(
    frame: ArrayLike,
    box: ArrayLike,
    settings: MIOTracker | None = None,
    seed: int = 0,
    thresholds: Thresholds | None = None,
) -> TrackerState:
    """Learn a target from its box ``x, y, w, h`` in the first frame.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import MIOTracker, start
    >>> scene = np.random.default_rng(0).integers(0, 255, (80, 100), dtype=np.uint8)
    >>> len(start(scene, (30, 20, 24, 24), MIOTracker(n_voters=5), seed=1).voters)
    5
    """
    settings = clone(settings or MIOTracker())  # a copy that nobody changes
    settings.check()
    grey = as_grey(frame)
    x, y, w, h = check_box(box, *grey.shape)
    factor = min(2.0, settings.side / float(np.sqrt(w * h)))
    size = np.maximum(np.rint(np.array([w, h]) * factor).astype(int), _MIN_SIDE)
    room = np.array(grey.shape[::-1]) - [w, h]
    if np.all(room * factor <= settings.negative_radius[0]):
        raise ValueError(
            f"the frame shows no background around the target: a box of {w} x {h} in a "
            f"frame of {grey.shape[1]} x {grey.shape[0]}; choose a smaller box."
        )
    pose = Pose(np.array([x + w / 2, y + h / 2]), 1.0, 0.0)
    state = TrackerState(
        settings=settings,
        thresholds=thresholds or Thresholds(),
        features=settings.features or HaarFeatures(),
        seed=seed,
        frame_shape=grey.shape,
        factor=factor,
        size=size,
        box_size=np.array([w, h], float),
        pose=pose,
        last=grey,
    )
    view = see(state, grey, pose)
    position = corner(state, view, pose)
    rng = np.random.default_rng([seed, 0])
    voters = tuple(new_voter(state, view, position, rng) for _ in range(settings.n_voters))
    picture = take_picture(state, grey, pose)
    return state._replace(
        voters=voters, early=voters, pictures=(picture,), last=picture.grey, n_frames=1
    )


def step(state: TrackerState, frame: ArrayLike) -> tuple[TrackerState, Step]:
    """Find the target in the next frame, and learn from it; ``state`` stays as it is.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import start, step
    >>> scene = np.random.default_rng(0).integers(0, 255, (80, 100), dtype=np.uint8)
    >>> state, seen = step(start(scene, (30, 20, 24, 24)), np.roll(scene, 5, axis=1))
    >>> seen.ok, seen.box.round().tolist()
    (True, [35.0, 20.0, 24.0, 24.0])
    """
    grey = as_grey(frame)
    scene = in_first_shape(state, grey)
    view = see(state, scene, state.pose)
    pose, link = vote(state, view)  # 1. where: voters, and the motion since the last frame
    fit = fit_pictures(state, view, pose)  # 2. how large: kept pictures
    evidence = believe(state, view, fit, link)  # 3. whether it is the target
    if evidence.probability < state.thresholds.doubt:  # 4. if not surely, where else it may be
        state, view, fit, evidence = recover(state, scene, view, fit, evidence)
    state = learn_frame(state, scene, view, fit, evidence)  # 5. what it looks like now
    ratio = np.array(grey.shape[::-1]) / np.array(state.frame_shape[::-1])
    box = _box(state, state.pose) * np.tile(ratio, 2)
    return state, Step(evidence.probability > 0.5, box, evidence.probability, evidence)


def vote(state: TrackerState, view: View) -> tuple[Pose, float]:
    """The place by the voters, drawn to the one that looks as the target did in the last frame.

    Where that place is clear, the voters search around it, else around where the target was. A
    target that turns looks new to the voters, who may slip, while it hardly changes from one frame
    to the next. Its surface turns away with it, though, so that the voters keep a share.

    Returns the pose, and the correlation of the last picture of the target with this frame.
    """
    limits, reach = state.thresholds, state.settings.search_radius
    here = (state.pose.centre - view.origin) * view.factor
    motion, link = moved(view.grey, state.last, here, reach)
    if link < limits.follows:
        return _pose_at(state, view, search(state, view, state.pose, reach)), link
    voted = search(state, view, _pose_at(state, view, motion), int(_slip(state)))
    return _pose_at(state, view, limits.share * motion + (1 - limits.share) * voted), link


def fit_pictures(state: TrackerState, view: View, pose: Pose) -> Fit:
    """The pose by the first of two promising pictures that fits near the place, if one does.

    The size is read off the axis that changed least: one that turns away grows narrow on the
    other axis only. A size that no picture shows goes back to the usual one.
    """
    limits, slip = state.thresholds, _slip(state)
    place = (pose.centre - view.origin) * view.factor
    usual = np.clip(np.log(state.usual_scale / pose.scale), -limits.relax, limits.relax)
    for picture, near in promising_pictures(state, view, place):
        angle = pose.angle - picture.angle
        found = align(view.grey, picture.grey, near - 0.5, angle, limits.stretch)
        if found is None or found.correlation < limits.fits:
            continue
        if np.hypot(*(found.centre + 0.5 - place)) <= slip:
            growth = float(found.axes[np.argmin(np.abs(np.log(found.axes)))])
            scale = _grown(state, pose.scale, growth)
            centre = _pose_at(state, view, found.centre + 0.5).centre
            return Fit(Pose(centre, scale, picture.angle + found.angle), found.correlation)
    return Fit(Pose(pose.centre, float(pose.scale * np.exp(usual)), 0.0), 0.0)


def promising_pictures(
    state: TrackerState, view: View, place: Floats
) -> list[tuple[Picture, Floats]]:
    """Two pictures to align: the oldest that is seen near the place, and the best; and where.

    Chains of alignments drift. An old picture brings the target back, but only if it is sought
    around the place: as it lies it resembles less the further the target has drifted.
    """
    reach, pictures = _slip(state), state.pictures
    near = [moved(view.grey, picture.grey, place, reach) for picture in pictures]
    likeness = np.array([correlation for _, correlation in near])
    oldest = int(np.argmax(likeness >= likeness.max() - state.thresholds.margin))
    chosen = dict.fromkeys([oldest, int(likeness.argmax())])
    return [(pictures[i], near[i][0]) for i in chosen]


def believe(state: TrackerState, view: View, fit: Fit, link: float) -> Evidence:
    """What speaks for a box, and the probability that it shows the target.

    A target that turns looks strange to the early voters, as what hides it does, but it changes
    little from one frame to the next: the chain of correlations tells the two apart.
    """
    early = bag_score(state, state.early, view, fit.pose)
    chain = 1.0 if early > 0 else min(state.chain, link)
    log_odds = float(belief_terms(early, chain) @ BELIEF)
    return Evidence(early, chain, float(1 / (1 + np.exp(-log_odds))))


def belief_terms(early: float, chain: float) -> Floats:
    """What the log-odds of the belief are linear in, and 1 for the constant.

    Bags of the target are learned to score 1: what scores more is not known any better.
    """
    return np.array([min(early, 1.0), max(chain, 0.0), 1.0])


def recover(
    state: TrackerState, scene: Grey, view: View, fit: Fit, evidence: Evidence
) -> tuple[TrackerState, View, Fit, Evidence]:
    """Look for the target in the whole frame, and go back to where it is believed to be.

    The box may show the target from another side, which must be learned, or what hides it, which
    must not be. Later frames tell: the tracker follows and learns, and keeps the voters from before
    the doubt, which learn nothing. They are gone back to at another place.
    """
    before = state.before_doubt or state.voters
    state, best = state._replace(before_doubt=before), evidence
    pictures = [state.pictures[i].grey for i in dict.fromkeys([0, len(state.pictures) - 1])]
    scale = state.usual_scale  # what is followed meanwhile may have another size
    for centre in candidates(scene, pictures, scale / state.factor, state.thresholds.n_peaks):
        there = Pose(centre, scale, 0.0)
        near = see(state, scene, there, reach=2 * _slip(state))
        found = fit_pictures(state, near, there)
        if found.correlation == 0:
            continue
        signs = believe(state, near, found, 0.0)
        if signs.probability > max(state.thresholds.doubt, best.probability):
            best, fit = signs, found
    if best is not evidence:
        view, state = see(state, scene, fit.pose), state._replace(voters=before)
    return state, view, fit, best


def learn_frame(
    state: TrackerState, scene: Grey, view: View, fit: Fit, evidence: Evidence
) -> TrackerState:
    """The state after the voters have learned from the frame, with a new picture where needed."""
    rng = np.random.default_rng([state.seed, state.n_frames])
    position = corner(state, view, fit.pose)
    voters = tuple(learn(state, voter, view, position, rng) for voter in state.voters)
    picture = take_picture(state, scene, fit.pose)
    pictures, usual, limits = state.pictures, state.usual_scale, state.thresholds
    if evidence.early > 0 and fit.correlation == 0:
        pictures = keep_picture(pictures, picture, limits.n_pictures)
    if fit.correlation > 0:
        usual = usual * (fit.pose.scale / usual) ** limits.relax
    sure = evidence.probability >= limits.doubt
    return state._replace(
        pose=fit.pose,
        last=picture.grey,
        n_frames=state.n_frames + 1,
        voters=voters,
        early=voters if sure and state.n_frames < limits.early_frames else state.early,
        pictures=pictures,
        usual_scale=usual,
        chain=evidence.chain,
        before_doubt=() if sure else state.before_doubt,
    )


def keep_picture(pictures: tuple[Picture, ...], new: Picture, most: int) -> tuple[Picture, ...]:
    """The pictures with a new one; where they are too many, one that resembles an older one goes.

    Chains of alignments drift, so the oldest picture of every look is worth most. That of the first
    frame always stays.
    """
    if len(pictures) < most:
        return (*pictures, new)
    repeats = [
        max(resemblance(old.grey, pictures[i].grey) for old in pictures[:i])
        for i in range(1, len(pictures))
    ]
    drop = 1 + int(np.argmax(repeats))
    return (*pictures[:drop], *pictures[drop + 1 :], new)


def take_picture(state: TrackerState, grey: Grey, pose: Pose) -> Picture:
    """The inner part of the target, upright in its first size."""
    shape = np.maximum(np.rint(state.size * state.thresholds.inner).astype(int), 4)
    return Picture(cut(grey, pose.centre, pose.scale / state.factor, shape), pose.angle)


def _pose_at(state: TrackerState, view: View, place: Floats) -> Pose:
    """The last pose with its centre moved to a place in the view, but not out of the frame."""
    limits = np.array(state.frame_shape[::-1], dtype=float)
    return state.pose._replace(centre=np.clip(place / view.factor + view.origin, 0, limits))


def _slip(state: TrackerState) -> float:
    """How far from the place a target is sought in detail, in pixels of a view."""
    return state.thresholds.slip * float(np.sqrt(np.prod(state.size)))


def _grown(state: TrackerState, scale: float, growth: float) -> float:
    """The target's scale after it has grown: not below the smallest box, nor beyond the frame."""
    most = state.settings.growth
    frame = np.array(state.frame_shape[::-1])
    limits = _MIN_SIDE / state.box_size.min(), (frame / state.box_size).max()
    return float(np.clip(scale * np.clip(growth, 1 / most, most), *limits))


def _box(state: TrackerState, pose: Pose) -> Floats:
    """The box of a pose in a frame of the first size, x, y, w, h."""
    size = state.box_size * pose.scale
    return np.concatenate([pose.centre - size / 2, size])


def in_first_shape(state: TrackerState, grey: Grey) -> Grey:
    """A stream that changes its resolution shows the same scene: bring it to the first."""
    if grey.shape == state.frame_shape:
        return grey
    import cv2

    shape = state.frame_shape[::-1]
    return np.asarray(cv2.resize(grey, shape, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def as_grey(frame: ArrayLike) -> Grey:
    """A frame as 8-bit grey; colour frames are in OpenCV's order, BGR or BGRA."""
    pixels = eight_bit(np.asarray(frame), "a frame")
    if pixels.shape[2] == 1:
        return np.ascontiguousarray(pixels[..., 0])
    import cv2

    return cv2.cvtColor(np.ascontiguousarray(pixels[..., :3]), cv2.COLOR_BGR2GRAY)


def check_box(box: ArrayLike, height: int, width: int) -> tuple[int, int, int, int]:
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


class Track(NamedTuple):
    """What `track` returns, one row per frame.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import Track
    >>> Track(np.array([[3.0, 2.0, 8.0, 8.0]]), np.array([True]), np.array([0.9])).found.tolist()
    [True]
    """

    boxes: Floats  # [T, 4] x, y, w, h
    found: Bools  # [T] whether the box is believed to show the target
    scores: Floats  # [T] the probability of that


class Tracker(Protocol):
    """OpenCV's interface of a tracker."""

    def init(self, frame: ArrayLike, box: ArrayLike, /) -> None:
        """Learn the target."""

    def update(self, frame: ArrayLike, /) -> tuple[bool, Sequence[float]]:
        """Find it in the next frame."""


@dataclass(kw_only=True, eq=False, repr=False)
class MIOTracker(HasParameters):
    """Follow a target through a video, with OpenCV's interface.

    It holds a `TrackerState` and calls `start` and `step`, which can be used without it.

    Parameters
    ----------
    features : HaarFeatures or None, default=None
        How patches are described and compared.
    n_voters : int, default=5
        Draws of features that vote, each with a memory of its own.
    search_radius : int, default=25
        How far around its last place the target is sought; further away only where the frame
        resembles its last picture.
    positive_radius : int, default=3
        Patches this close to the estimate make up the positive bag.
    negative_radius : tuple of int, default=(8, 50)
        Negative patches lie this far from the estimate, at least and at most.
    n_positive, n_negative : int, default=12, 10
        Patches drawn per frame for the positive bag, and negative bags.
    memory : tuple of int, default=(5, 40, 55)
        Patches remembered by a voter: of the first frame, of later positive bags, negative.
    width : float, default=1.0
        sigma² of the similarity, in units of the median distance between the target and patches
        around it in the first frame.
    alpha, beta : float, default=0.05, 1.0
        MIO's regulariser.
    cost : tuple of float, default=(1.0, 1.0)
        C1 and C2, the costs of errors on positive and negative bags.
    bias : float, default=1.0
        Value of the constant feature.
    motion : float, default=0.8
        Penalty on the score of a patch at ``search_radius``; it grows with the squared distance.
    growth : float, default=1.05
        The factor by which the target may grow or shrink from one frame to the next; 1 keeps the
        size of the box.
    side : int, default=56
        Frames are scaled so that the target's side (square root of its area) is this many pixels,
        enlarged to twice their size at most; all radii are in pixels of the scaled frames.
    random_state : int or None, default=None

    Attributes
    ----------
    state_ : TrackerState
    box_ : array of shape (4,)
        The last box in fractions of pixels; `update` rounds it, as OpenCV's trackers do.
    score_ : float
        The probability that the last box shows the target, for even odds beforehand; `update`
        says whether it is above 0.5.

    See Also
    --------
    bagwise.MIO, track

    References
    ----------
    [Li2010]_

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

    features: HaarFeatures | None = parameter(None, HaarFeatures, None)
    n_voters: int = parameter(5, AT_LEAST_1)
    search_radius: int = parameter(25, AT_LEAST_1)
    positive_radius: int = parameter(3, Interval(Integral, 0, None, closed="left"))
    negative_radius: tuple[int, int] = parameter((8, 50), tuple)
    n_positive: int = parameter(12, AT_LEAST_1)
    n_negative: int = parameter(10, AT_LEAST_1)
    memory: tuple[int, int, int] = parameter((5, 40, 55), tuple)
    width: float = parameter(1.0, POSITIVE)
    alpha: float = parameter(0.05, NOT_NEGATIVE)
    beta: float = parameter(1.0, POSITIVE)
    cost: tuple[float, float] = parameter((1.0, 1.0), tuple)
    bias: float = parameter(1.0, NOT_NEGATIVE)
    motion: float = parameter(0.8, NOT_NEGATIVE)
    growth: float = parameter(1.05, Interval(Real, 1, 1.2, closed="both"))
    side: int = parameter(56, Interval(Integral, 8, None, closed="left"))
    random_state: int | None = parameter(None)

    def check(self) -> None:
        """Raise where the settings are out of range or do not fit together."""
        self._validate_params()
        if self.features is not None:
            self.features.check()
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

    def init(self, frame: ArrayLike, box: ArrayLike) -> None:
        """Learn the target from its box ``x, y, w, h`` in the first frame."""
        seed = self.random_state
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        self.state_: TrackerState = start(frame, box, self, seed)
        self.box_, self.score_ = _box(self.state_, self.state_.pose), 1.0

    def update(self, frame: ArrayLike) -> tuple[bool, tuple[int, int, int, int]]:
        """Find the target in the next frame: whether the box is believed to show it; the box."""
        if not hasattr(self, "state_"):
            raise ValueError("MIOTracker has no target yet; call init(frame, box) first.")
        self.state_, seen = step(self.state_, frame)
        self.box_, self.score_ = seen.box, seen.confidence
        x, y, w, h = (int(v) for v in np.rint(seen.box))
        return seen.ok, (x, y, w, h)


def track(frames: Iterable[ArrayLike], box: ArrayLike, tracker: Tracker | None = None) -> Track:
    """Follow a target through frames; the first one has the target in ``box``.

    Parameters
    ----------
    frames : iterable of arrays
    box : tuple of x, y, w, h
    tracker : MIOTracker or None, default=None
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
    return track_many(frames, [box], [MIOTracker(random_state=0) if tracker is None else tracker])[
        0
    ]


def track_many(
    frames: Iterable[ArrayLike],
    boxes: Sequence[ArrayLike],
    trackers: Sequence[Tracker] | None = None,
) -> list[Track]:
    """Follow several targets through frames in one pass, each by a tracker of its own.

    Parameters
    ----------
    frames : iterable of arrays
    boxes : sequence of tuples x, y, w, h
        The targets in the first frame.
    trackers : sequence of trackers or None, default=None
        One per target; by default `MIOTracker` with seeds 0, 1, ...

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import track_many
    >>> frames = np.random.default_rng(0).integers(0, 255, (1, 60, 80), dtype=np.uint8).repeat(3, 0)
    >>> [one.boxes[-1].tolist() for one in track_many(frames, [(9, 9, 20, 20), (40, 30, 16, 20)])]
    [[9.0, 9.0, 20.0, 20.0], [40.0, 30.0, 16.0, 20.0]]
    """
    if len(boxes) == 0:
        raise ValueError("there is no target to follow: give at least one box.")
    if trackers is None:
        trackers = [MIOTracker(random_state=i) for i in range(len(boxes))]
    rows: list[list[tuple[ArrayLike, bool, float]]] = [[] for _ in boxes]
    for number, frame in enumerate(frames):
        for box, tracker, row in zip(boxes, trackers, rows, strict=True):
            ok, place = True, box
            if number == 0:
                tracker.init(frame, box)
            else:
                ok, place = tracker.update(frame)
            row.append((place, bool(ok), float(getattr(tracker, "score_", np.nan))))
    if not rows[0]:
        raise ValueError("the video has no frames.")
    columns = [zip(*row, strict=True) for row in rows]
    return [
        Track(np.asarray(places, dtype=np.float64), np.array(found), np.array(scores))
        for places, found, scores in columns
    ]
