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
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from bagwise.core.arrays import Bools, Floats, Ints
from bagwise.models.parameters import parameter
from bagwise.vision.alignment import Alignment, align, candidates, cut, moved, resemblance
from bagwise.vision.haar import Grey, HaarFeatures
from bagwise.vision.images import eight_bit
from bagwise.vision.tracker_state import (
    Doubt,
    Picture,
    Pose,
    Settled,
    Sighting,
    Step,
    TrackerSettings,
    TrackerState,
    View,
)
from bagwise.vision.voters import (
    bag_score,
    corner,
    disc,
    inside,
    learn,
    new_voter,
    scores,
    search,
    see,
)

_MIN_SIDE = 4  # pixels; a smaller target has no rectangles to compare
_SCALES = (0.2, 5.0)  # of the target against the first frame
_EARLY = 10  # frames after which the early voters are frozen
_PICTURES = 10  # kept pictures of the target, that of the first frame among them
_KNOWN = 0.5  # score of the early voters that anchors a new picture without an alignment
_PICTURE_EVERY = 3  # frames between new pictures, at least
_ALIGNED = 0.6  # least correlation at which an alignment is believed
_LINK = 0.75  # correlation with an anchored picture below which its pose is too vague to picture
_FAMILIAR = 0.85  # correlation below which another picture is tried
_NEW_PICTURE = 0.85  # correlation below which the target is pictured anew
_REACH = 8  # pixels around the voters' place in which pictures are sought
_NUDGE = 3.0  # pixels by which any alignment may move the voters' place
_SLIP = 0.15  # share of the side by which one that fits well may move it
_GLIMPSES = 2  # places that resemble the last picture, searched beside the neighbourhood
_LEAP_CORRELATION = 0.9  # least correlation at which the target is believed to have leapt
_RETURN_CORRELATION = 0.8  # least correlation at which it is believed to be back, or to one side
_FOUND = 0.875  # familiarity above which a place far away may be the target's
_BETTER = 1.0  # by which the early voters must know such a place better than the one followed
_RELAX = 0.01  # by how much the size goes back to the usual one in a frame that does not show it
_USUAL = 0.01  # share by which the usual size follows the size in a frame that shows it
_RESIZED = 0.01  # a view is made anew for learning where the size changed by more
_MARGIN = 0.15  # of resemblance within which an older picture is preferred
_DOUBT = 0.3  # familiarity below which the target is in doubt
_GLANCE_EVERY = 5  # frames between looks for the first target while the present one is not known
_STEADY = 0.7  # least correlation with the last frame at which its motion is followed
_SMOOTH = 0.9  # correlation with the last frame above which a vague fit is not believed
_CARRY = 0.7  # share of that motion in the place; the rest is the voters'
_CHAIN = (0.5, 0.7)  # correlations of consecutive frames between which a chain counts as weak
_STRONG = 0.925  # correlation of all consecutive frames at which they alone vouch for the target
_PROTEST = -0.8  # score of the early voters below which a picture that fits is not enough
_PEAKS = 6  # places that are looked at when the whole frame is searched


def start(
    frame: ArrayLike, box: ArrayLike, settings: TrackerSettings | None = None, seed: int = 0
) -> TrackerState:
    """Learn a target from its box ``x, y, w, h`` in the first frame.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import TrackerSettings, start
    >>> scene = np.random.default_rng(0).integers(0, 255, (80, 100), dtype=np.uint8)
    >>> len(start(scene, (30, 20, 24, 24), TrackerSettings(n_voters=5), seed=1).voters)
    5
    """
    settings = settings or TrackerSettings()
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
    values = {name: getattr(settings, name) for name in TrackerSettings.__dataclass_fields__}
    state = TrackerState(
        settings=TrackerSettings(**values),
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
    picture = _picture(state, grey, pose, anchored=True)
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
    rng = np.random.default_rng([state.seed, state.n_frames])
    scene = grey = as_grey(frame)
    if grey.shape != state.frame_shape:
        import cv2

        # A stream that changes its resolution shows the same scene: bring it to the first.
        scene = cv2.resize(grey, state.frame_shape[::-1], interpolation=cv2.INTER_AREA)
    view = see(state, scene, state.pose)
    sighting, settled, steady = locate(state, scene, view)
    early = bag_score(state, state.early, view, settled.pose)
    if _certain(settled) and early <= _PROTEST:
        steady = last_motion(state, view)[1]
    state, settled = settle_size(state, settled, early)
    score, agreement = sighting.score, sighting.agreement
    signals = np.array([score, early, agreement, settled.correlation * settled.anchored])
    state = state._replace(pose=settled.pose, n_frames=state.n_frames + 1)
    state = update_doubt(state, view, settled, familiarity(signals))
    seek = whom_to_seek(state, early, settled)
    again = None if seek is None else look_everywhere(state, scene, seek, early)
    if seek is not None and again is not None:
        settled, score = again
        view = see(state, scene, settled.pose)
        state = state._replace(
            voters=seek.voters, pictures=seek.pictures, pose=settled.pose, doubt=None
        )
        early = bag_score(state, state.early, view, settled.pose)
        signals = np.array([score, early, 1.0, settled.correlation * settled.anchored])
    state = state._replace(unbroken=unbroken_chain(state.unbroken, steady, settled, early))
    box = _box(state, state.pose)
    confidence = confidence_of(early, signals[3] > 0, state.unbroken, share_inside(box, scene))
    sure = signals[0] > 0 and signals[2] > 0.5  # most voters agree on a patch that they know
    state = learn_frame(state, scene, view, rng, sure, settled, early)
    ratio = np.array(grey.shape[::-1]) / np.array(state.frame_shape[::-1])
    return state, Step(confidence > 0.5, box * np.tile(ratio, 2), confidence, signals)


def locate(state: TrackerState, scene: Grey, view: View) -> tuple[Sighting, Settled, float]:
    """Where voters and pictures see the target, and how steadily it moved since the last frame."""
    # Beside the neighbourhood, places that resemble the last picture are searched.
    peaks = candidates(view.grey, [state.pictures[-1].grey], state.size.astype(float), _GLIMPSES)
    corners = np.array(peaks).reshape(-1, 2) - state.size / 2
    elsewhere = inside(state, view, np.rint(corners).astype(int))
    sighting = search(state, state.voters, view, state.pose, elsewhere)
    pose = pose_at(state, view, sighting.position, state.pose)
    settled = prefer_anchored(state, view, fit_pictures(state, view, pose, state.pictures))
    leap = find_leap(state, view, elsewhere, sighting) if settled.correlation == 0 else None
    if leap is not None:
        sighting, settled = leap
    place, steady = (settled.pose.centre, 1.0) if _certain(settled) else last_motion(state, view)
    # A target that turns fits its old pictures badly, and the best fit may lie beside it: beside
    # so smooth a motion it is not believed. What is cut off fits its pictures badly for that.
    whole = share_inside(_box(state, settled.pose), scene) > 1 - 1e-9  # but for rounding
    if whole and settled.correlation < _LINK and steady >= _SMOOTH:
        settled = _unfitted(pose)
    if settled.correlation == 0:
        settled = settled._replace(pose=carry(state, settled.pose, place, steady))
    return sighting, settled, steady


def settle_size(
    state: TrackerState, settled: Settled, early: float
) -> tuple[TrackerState, Settled]:
    """The usual size follows a size that the frame shows; else the size goes back towards it."""
    usual = state.usual_scale
    if settled.anchored or (settled.correlation > 0 and early > 0):
        usual = float(usual * (settled.pose.scale / usual) ** _USUAL)
        return state._replace(usual_scale=usual), settled
    scale = state.pose.scale
    scale = float(scale * np.exp(np.clip(np.log(usual / scale), -_RELAX, _RELAX)))
    return state, settled._replace(pose=settled.pose._replace(scale=scale))


def update_doubt(
    state: TrackerState, view: View, settled: Settled, familiar: float
) -> TrackerState:
    """The state in doubt, where little is familiar; or out of it, where the target is known."""
    doubt = state.doubt
    if doubt is None:
        if familiar >= _DOUBT:
            return state
        return state._replace(doubt=Doubt(state.voters, state.pictures, state.pose, 0))
    doubt = doubt._replace(age=doubt.age + 1)
    known = settled.anchored and settled.correlation > _FAMILIAR
    known = known or bag_score(state, doubt.voters, view, state.pose) > 0
    ended = known or doubt.age >= state.settings.patience
    return state._replace(doubt=None if ended else doubt)


def whom_to_seek(state: TrackerState, early: float, settled: Settled) -> Doubt | None:
    """What to look for in the whole frame: the target before the doubt; now and then, the first."""
    if state.doubt is not None:
        return state.doubt
    sure = early > 0 or settled.anchored
    if sure or state.n_frames % _GLANCE_EVERY:
        return None
    return Doubt(state.early, state.pictures[:1], state.pose, 0)


def familiarity(signals: Floats) -> float:
    """How much the frame looks like the target, 0 to 1, from what the parts of the tracker say."""
    score, early, agreement, correlation = signals
    z = 0.7 * score + 1.0 * early + 1.5 * (agreement - 0.5) + 4 * (correlation - 0.3)
    return float(1 / (1 + np.exp(-z)))


def confidence_of(early: float, fits: bool, unbroken: float, inside: float) -> float:
    """The probability that the box overlaps the target, if that is as likely as not beforehand.

    A target that turns looks strange to the ``early`` voters, as what hides it does, but it changes
    little from one frame to the next: ``unbroken`` tells the two apart, and a chain without a weak
    link is enough alone. Where an anchored picture ``fits`` though the early voters protest, the
    picture may have drifted away from the target, so more is asked of them there. A box that is
    partly outside the frame, of which ``inside`` is the share that is not, often follows what the
    target left behind.
    """
    chain = 20 * (float(np.clip(unbroken, *_CHAIN)) - _CHAIN[1])
    z = max(4.2 + 3 * min(early, 0.0) + chain - 2 * fits, 20 * (unbroken - _STRONG))
    return float(1 / (1 + np.exp(-z - 8 * (inside - 1))))


def unbroken_chain(before: float, steady: float, settled: Settled, early: float) -> float:
    """The lowest correlation from one frame to the next since the target was certainly seen."""
    return 1.0 if _certain(settled) and early > _PROTEST else min(before, steady)


def share_inside(box: Floats, scene: Grey) -> float:
    """The share of a box that lies in the frame."""
    low = np.maximum(box[:2], 0)
    high = np.minimum(box[:2] + box[2:], scene.shape[::-1])
    return float(np.prod(np.maximum(high - low, 0)) / np.prod(box[2:]))


def _unfitted(pose: Pose) -> Settled:
    """Where the voters see the target, and no picture fits."""
    return Settled(pose._replace(angle=0.0), 0.0, False)


def _certain(settled: Settled) -> bool:
    """Whether an anchored picture fits well."""
    return settled.anchored and settled.correlation >= _LINK


def find_leap(
    state: TrackerState, view: View, places: Ints, sighting: Sighting
) -> tuple[Sighting, Settled] | None:
    """The first of the places that an anchored picture fits and the voters prefer."""
    for place in places:
        score = float(np.median(scores(state, state.voters, view, place[None])[:, 0]))
        if score <= sighting.score:
            continue
        pose = pose_at(state, view, place.astype(float), state.pose)
        settled = fit_pictures(state, view, pose, state.pictures)
        if settled.anchored and settled.correlation >= _LEAP_CORRELATION:
            return Sighting(place.astype(float), score, 1.0), settled
    return None


def last_motion(state: TrackerState, view: View) -> tuple[Floats, float]:
    """Where the view looks as the target did in the last frame, in the frame, and how much so."""
    here = (state.pose.centre - view.origin) * view.factor
    place, correlation = moved(view.grey, state.last, here, state.settings.search_radius)
    return place / view.factor + view.origin, correlation


def carry(state: TrackerState, pose: Pose, place: Floats, correlation: float) -> Pose:
    """The voters' place, drawn to the one that looks as the target did in the last frame.

    A target that turns fits no kept picture and looks new to the voters, who may slip, while it
    hardly changes from one frame to the next. Its surface turns away with it, though, so that the
    voters keep a share.
    """
    if correlation < _STEADY:
        return pose
    centre = _CARRY * place + (1 - _CARRY) * pose.centre
    return pose._replace(centre=np.clip(centre, 0, np.array(state.frame_shape[::-1], dtype=float)))


def pose_at(state: TrackerState, view: View, position: Floats, pose: Pose) -> Pose:
    """The pose of a target whose top left corner in a view is ``position``, in the frame."""
    centre = (position + state.size / 2) / view.factor + view.origin
    limits = np.array(state.frame_shape[::-1], dtype=float)
    return pose._replace(centre=np.clip(centre, 0, limits))


def _picture(state: TrackerState, grey: Grey, pose: Pose, anchored: bool) -> Picture:
    grey = cut(grey, pose.centre, pose.scale / state.factor, state.size)
    return Picture(grey, pose.angle, anchored)


def fit_pictures(
    state: TrackerState, view: View, pose: Pose, pictures: Sequence[Picture]
) -> Settled:
    """Pose and correlation of the picture that fits; the pose as it is where none does.

    The size is read off the axis that changed least: one that turns away grows narrow on the
    other axis only.
    """
    place = (pose.centre - view.origin) * view.factor - 0.5
    slip = _SLIP * float(np.sqrt(np.prod(state.size)))
    best: Alignment | None = None
    used = pictures[0]
    for picture, near in promising_pictures(view, place, pictures):
        match = align(view.grey, picture.grey, near, pose.angle - picture.angle)
        if match is None:
            continue
        # An alignment may correct the voters' place by much only where it fits well.
        far = np.hypot(*(match.centre - place))
        if far > _NUDGE and (far > slip or match.correlation < _RETURN_CORRELATION):
            continue
        if best is None or match.correlation > best.correlation:
            best, used = match, picture
        if best.correlation > _FAMILIAR:
            break
    if best is None or best.correlation < _ALIGNED:
        return _unfitted(pose)
    growth = float(best.axes[np.argmin(np.abs(np.log(best.axes)))])
    limit = state.settings.growth
    scale = float(np.clip(pose.scale * np.clip(growth, 1 / limit, limit), *_SCALES))
    centre = (best.centre + 0.5) / view.factor + view.origin
    settled = Pose(centre, scale, used.angle + best.angle)
    return Settled(settled, best.correlation, used.anchored)


def prefer_anchored(state: TrackerState, view: View, settled: Settled) -> Settled:
    """The pose by an anchored picture where one fits, though another picture may fit better.

    A picture taken in a frame that no other one fits resembles the next frames most of all, and
    would break the chain of alignments for good.
    """
    if settled.anchored or settled.correlation == 0:
        return settled
    anchored = [picture for picture in state.pictures if picture.anchored]
    again = fit_pictures(state, view, settled.pose._replace(scale=state.pose.scale), anchored)
    return again if again.correlation >= _LINK else settled


def promising_pictures(
    view: View, place: Floats, pictures: Sequence[Picture]
) -> list[tuple[Picture, Floats]]:
    """Two pictures to align: the oldest that is seen near the place, and the best; and where.

    Chains of alignments drift. An old picture brings the target back, but only if it is sought
    around the place: as it lies it resembles less the further the target has drifted.
    """
    near = [moved(view.grey, picture.grey, place + 0.5, _REACH) for picture in pictures]
    likeness = np.array([correlation for _, correlation in near])
    oldest = int(np.argmax(likeness >= likeness.max() - _MARGIN))
    chosen = dict.fromkeys([oldest, int(likeness.argmax())])
    return [(pictures[i], near[i][0] - 0.5) for i in chosen]


def look_everywhere(
    state: TrackerState, scene: Grey, doubt: Doubt, early: float
) -> tuple[Settled, float] | None:
    """The place in the whole frame where the voters from before the doubt see the target.

    The early voters must know it better than the place that was followed, which they score
    ``early``: the voters from before the doubt may have learned background with a turned target.
    Far away it must be much better, and all signs together must speak for it.
    """
    settings = state.settings
    pictures = list(dict.fromkeys([0, len(doubt.pictures) - 1]))
    size = state.box_size * doubt.pose.scale
    peaks = candidates(scene, [doubt.pictures[i].grey for i in pictures], size, _PEAKS)
    best, chosen = -np.inf, None
    for centre in peaks:
        pose = Pose(centre, doubt.pose.scale, 0.0)
        view = see(state, scene, pose, reach=max(state.size) / 4 + 4)
        near = inside(state, view, corner(state, view, pose) + disc(4, 2))
        value = np.median(scores(state, doubt.voters, view, near), axis=0)
        if value.max() > best:
            best = float(value.max())
            place = pose_at(state, view, near[int(value.argmax())].astype(float), pose)
            chosen = (view, place)
    if chosen is None:
        return None
    view, pose = chosen
    settled = fit_pictures(state, view, pose, doubt.pictures)
    if settled.correlation < _RETURN_CORRELATION:
        return None
    known = bag_score(state, state.early, view, settled.pose)
    above = best - settings.return_above
    far = np.hypot(*(settled.pose.centre - doubt.pose.centre)) * view.factor
    if far <= 2 * settings.search_radius:
        back = above > 0 and known > early
    else:
        signs = np.array([above, known, 0.5, settled.correlation])
        back = familiarity(signs) > _FOUND and known > early + _BETTER
    return (settled, best) if back else None


def learn_frame(
    state: TrackerState,
    scene: Grey,
    view: View,
    rng: np.random.Generator,
    sure: bool,
    settled: Settled,
    early: float,
) -> TrackerState:
    """The state after the voters have learned from the frame, with new pictures where needed."""
    if abs(np.log(view.factor * state.pose.scale / state.factor)) > _RESIZED:
        view = see(state, scene, state.pose)
    position = corner(state, view, state.pose)
    voters = tuple(learn(state, voter, view, position, rng) for voter in state.voters)
    frozen = voters if state.n_frames <= _EARLY else state.early
    pictures = state.pictures
    weak = settled.anchored and settled.correlation < _LINK and early <= _KNOWN
    new = sure and not weak and settled.correlation < _NEW_PICTURE
    if new and state.n_frames % _PICTURE_EVERY == 0:
        anchored = settled.anchored or (early > _KNOWN and state.doubt is None)
        pictures = keep_picture(pictures, _picture(state, scene, state.pose, anchored))
    last = _picture(state, scene, state.pose, anchored=False).grey
    return state._replace(voters=voters, early=frozen, pictures=pictures, last=last)


def keep_picture(pictures: tuple[Picture, ...], new: Picture) -> tuple[Picture, ...]:
    """The pictures with a new one; where they are too many, an old one that is not anchored goes.

    If all are, the one that most resembles an older one goes: chains of alignments drift, so the
    oldest picture of every look is worth most. That of the first frame always stays.
    """
    if len(pictures) < _PICTURES:
        return (*pictures, new)
    loose = [i for i, picture in enumerate(pictures) if i and not picture.anchored]
    if loose:
        drop = loose[0]
    else:
        repeats = [
            max(resemblance(old.grey, pictures[i].grey) for old in pictures[:i])
            for i in range(1, len(pictures))
        ]
        drop = 1 + int(np.argmax(repeats))
    return (*pictures[:drop], *pictures[drop + 1 :], new)


def _box(state: TrackerState, pose: Pose) -> Floats:
    """The box of a pose in a frame of the first size, x, y, w, h."""
    size = state.box_size * pose.scale
    return np.concatenate([pose.centre - size / 2, size])


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
class MIOTracker(TrackerSettings):
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
    return_above : float, default=0.5
        In doubt, the target is taken to be elsewhere in the frame where the voters from before the
        doubt score a patch above this and it agrees with a kept picture. Far from where it was
        lost, the early voters and the picture may make up for a lower score.
    patience : int, default=60
        The doubt ends after this many frames: what was followed meanwhile is taken for the target.
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

    random_state: int | None = parameter(None)

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
