"""The values of a tracker: its settings, its state, and what it says about a frame."""

from __future__ import annotations

from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, validate_parameter_constraints

from bagwise.vision.haar import HaarBank, HaarFeatures

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Grey = NDArray[np.uint8]


class TrackerSettings(NamedTuple):
    """The parameters of `MIOTracker`, which explains them.

    Examples
    --------
    >>> from bagwise.vision import TrackerSettings
    >>> TrackerSettings(n_voters=5, growth=1).search_radius
    25
    """

    features: HaarFeatures = HaarFeatures()
    n_voters: int = 5
    search_radius: int = 25
    positive_radius: int = 3
    negative_radius: tuple[int, int] = (8, 50)
    n_positive: int = 12
    n_negative: int = 10
    memory: tuple[int, int, int] = (5, 40, 55)
    width: float = 1.0
    alpha: float = 0.05
    beta: float = 1.0
    cost: tuple[float, float] = (1.0, 1.0)
    bias: float = 1.0
    motion: float = 0.8
    return_above: float = 0.5
    patience: int = 60
    growth: float = 1.05
    side: int = 56


_CONSTRAINTS: dict[str, list[object]] = {
    "features": [HaarFeatures],
    "n_voters": [Interval(Integral, 1, None, closed="left")],
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
    "return_above": [Interval(Real, 0, None, closed="left")],
    "patience": [Interval(Integral, 1, None, closed="left")],
    "growth": [Interval(Real, 1, 1.2, closed="both")],
    "side": [Interval(Integral, 8, None, closed="left")],
}


def check_settings(settings: TrackerSettings) -> None:
    """Raise where the settings are out of range or do not fit together."""
    validate_parameter_constraints(_CONSTRAINTS, settings._asdict(), caller_name="MIOTracker")
    settings.features.check()
    for name, length in (("negative_radius", 2), ("memory", 3), ("cost", 2)):
        value = getattr(settings, name)
        if len(value) != length or min(value) <= 0:
            raise ValueError(f"{name} must be {length} positive numbers; got {value}.")
    near, far = settings.negative_radius
    if not settings.positive_radius < near < far:
        raise ValueError(
            "positive_radius < negative_radius[0] < negative_radius[1] must hold; got "
            f"{settings.positive_radius}, {near}, {far}."
        )


class Memory(NamedTuple):
    """Remembered patches in fixed slots: first frame, later positives, negatives."""

    features: NDArray[np.float32]  # [K, F]
    similarity: Floats  # [K, K]
    used: NDArray[np.bool_]  # [K]
    pi: Floats  # [1 + K] sum of MIO's multipliers; entry 0 belongs to the constant feature


class Voter(NamedTuple):
    """One draw of features and what was learned with it."""

    bank: HaarBank
    sigma2: float
    memory: Memory


class Pose(NamedTuple):
    """Where the target is in a frame."""

    centre: Floats  # [2] in pixels of the frame
    scale: float  # its size against the first frame
    angle: float  # its rotation in the plane against the first frame, in radians


class Picture(NamedTuple):
    """The target as it looked in some frame."""

    grey: Grey  # the inner part of its box in the first size
    angle: float  # of its pose then
    anchored: bool  # whether an unbroken chain of alignments leads to it from the first frame


class View(NamedTuple):
    """The part of a frame around a place, scaled so that the target has its first size."""

    grey: Grey
    maps: Floats  # [O, h + 1, w + 1]
    origin: Floats  # [2] its corner in the frame
    factor: float  # its pixels per pixel of the frame


class Sighting(NamedTuple):
    """What the voters say about a view."""

    position: Floats  # [2] top left corner in the view
    score: float  # median over the voters
    agreement: float  # share of voters that alone would have gone to the same place


class Settled(NamedTuple):
    """A pose, and what the kept pictures say about it."""

    pose: Pose
    correlation: float  # with the picture that fits best, 0 where none does
    anchored: bool  # whether that picture is


class Doubt(NamedTuple):
    """The tracker from before the target was lost from sight."""

    voters: tuple[Voter, ...]
    pictures: tuple[Picture, ...]
    pose: Pose
    age: int


class Step(NamedTuple):
    """What is known of the target in a frame."""

    ok: bool  # confidence above one half
    box: Floats  # [4] x, y, w, h in pixels of the frame
    confidence: float  # probability that the box overlaps the target, for even odds beforehand
    signals: Floats  # [4] score, score of the early voters, agreement, correlation


class TrackerState(NamedTuple):
    """All that a tracker knows; `start` makes the first one and `step` the next.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import start
    >>> scene = np.random.default_rng(0).integers(0, 255, (80, 100), dtype=np.uint8)
    >>> state = start(scene, (30, 20, 24, 24))
    >>> state.n_frames, state.pose.centre.tolist(), state.doubt
    (1, [42.0, 32.0], None)
    """

    settings: TrackerSettings
    seed: int
    n_frames: int
    frame_shape: tuple[int, int]
    factor: float  # pixels of a view per pixel of the first frame
    size: Integers  # [2] the target's in a view
    box_size: Floats  # [2] in the first frame
    pose: Pose
    usual_scale: float  # mean of the sizes that frames showed, the last ones counting most
    voters: tuple[Voter, ...]
    early: tuple[Voter, ...]
    pictures: tuple[Picture, ...]  # the first frame's first
    last: Grey  # the picture of the target in the last frame
    unbroken: float  # lowest correlation between consecutive frames since it was certainly seen
    doubt: Doubt | None
