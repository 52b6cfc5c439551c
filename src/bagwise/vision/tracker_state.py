"""The values of a tracker: its thresholds, its state, and what it says about a frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bagwise.core.arrays import Floats, Ints
from bagwise.vision.haar import Features, Grey, HaarBank, HaarFeatures

if TYPE_CHECKING:
    from bagwise.vision.tracking import MIOTracker


class Memory(NamedTuple):
    """Remembered patches in fixed slots: first frame, later positives, negatives."""

    features: Features  # [K, F]
    similarity: Floats  # [K, K]
    used: NDArray[np.bool_]  # [K]
    pi: Floats  # [1 + K] sum of MIO's multipliers; entry 0 belongs to the constant feature


class Voter(NamedTuple):
    """One draw of features and what was learned with it."""

    bank: HaarBank
    sigma2: float
    memory: Memory


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The constants of the tracker; docs/methods-vision.md has the reason for each.

    Lengths are shares of the target's side, correlations those of two pictures.

    Examples
    --------
    >>> from bagwise.vision.tracker_state import Thresholds
    >>> Thresholds(n_pictures=1).fits
    0.75
    """

    early_frames: int = 10  # frames after which the early voters are frozen
    n_passes: int = 5  # over the first frame, which is the only certain one
    follows: float = 0.7  # correlation with the last frame at which its motion is followed
    share: float = 0.7  # of that motion in the place; the rest is the voters'
    inner: float = 0.8  # share of the box that a picture shows: its corners are background
    slip: float = 0.15  # how far from the place pictures are sought, and may move it
    stretch: float = 1.35  # largest ratio of the axes of an alignment that shows the target
    fits: float = 0.75  # correlation at which an alignment counts
    margin: float = 0.15  # of correlation within which an older picture is preferred
    relax: float = 0.01  # per frame, of an unseen size towards the usual one, and of that
    n_pictures: int = 10  # kept pictures, that of the first frame among them
    n_peaks: int = 3  # places that are looked at when the whole frame is searched
    doubt: float = 0.9  # probability below which the tracker looks for the target elsewhere


class Pose(NamedTuple):
    """Where the target is in a frame."""

    centre: Floats  # [2] in pixels of the frame
    scale: float  # its size against the first frame
    angle: float  # its rotation in the plane against the first frame, in radians


class Picture(NamedTuple):
    """The target as it looked in some frame."""

    grey: Grey  # the inner part of its box in the first size
    angle: float  # of its pose then


class View(NamedTuple):
    """The part of a frame around a place, scaled so that the target has its first size."""

    grey: Grey
    maps: Floats  # [O, h + 1, w + 1]
    origin: Floats  # [2] its corner in the frame
    factor: float  # its pixels per pixel of the frame


class Fit(NamedTuple):
    """A pose, and how well a kept picture fits there."""

    pose: Pose
    correlation: float  # 0 where no picture fits


class Evidence(NamedTuple):
    """What speaks for a box, and the probability that it shows the target."""

    early: float  # score of the early voters
    chain: float  # lowest correlation from frame to frame since the early voters knew the target
    probability: float


class Step(NamedTuple):
    """What is known of the target in a frame."""

    ok: bool  # probability above one half
    box: Floats  # [4] x, y, w, h in pixels of the frame
    confidence: float  # probability that the box shows the target
    evidence: Evidence


class TrackerState(NamedTuple):
    """All that a tracker knows; `start` makes the first one and `step` the next.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import start
    >>> scene = np.random.default_rng(0).integers(0, 255, (80, 100), dtype=np.uint8)
    >>> state = start(scene, (30, 20, 24, 24))
    >>> state.n_frames, state.pose.centre.tolist(), state.before_doubt
    (1, [42.0, 32.0], ())
    """

    settings: MIOTracker  # its parameters
    thresholds: Thresholds
    features: HaarFeatures  # of the settings, or its defaults
    seed: int
    frame_shape: tuple[int, int]
    factor: float  # pixels of a view per pixel of the first frame
    size: Ints  # [2] the target's in a view
    box_size: Floats  # [2] in the first frame
    pose: Pose
    last: Grey  # the picture of the target in the last frame
    n_frames: int = 0
    usual_scale: float = 1.0  # mean of the sizes that frames showed, the last ones counting most
    voters: tuple[Voter, ...] = ()
    early: tuple[Voter, ...] = ()
    pictures: tuple[Picture, ...] = ()  # the first frame's first
    chain: float = 1.0  # lowest correlation between frames since the early voters knew the target
    before_doubt: tuple[Voter, ...] = ()  # voters as they were when the target was last believed
