"""The values of a tracker: its settings, its state, and what it says about a frame."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval

from bagwise.core.arrays import Floats, Ints
from bagwise.models.parameters import (
    AT_LEAST_1,
    NOT_NEGATIVE,
    POSITIVE,
    HasParameters,
    parameter,
)
from bagwise.vision.haar import Features, Grey, HaarBank, HaarFeatures


@dataclass(kw_only=True, eq=False, repr=False)
class TrackerSettings(HasParameters):
    """The parameters of `MIOTracker`, which explains them.

    See Also
    --------
    MIOTracker

    Examples
    --------
    >>> from bagwise.vision import TrackerSettings
    >>> TrackerSettings(n_voters=5, growth=1).search_radius
    25
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
    return_above: float = parameter(0.5, NOT_NEGATIVE)
    patience: int = parameter(60, AT_LEAST_1)
    growth: float = parameter(1.05, Interval(Real, 1, 1.2, closed="both"))
    side: int = parameter(56, Interval(Integral, 8, None, closed="left"))

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
    unbroken: float = 1.0  # lowest correlation between consecutive frames since certainly seen
    doubt: Doubt | None = None
