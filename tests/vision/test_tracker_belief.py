"""Whether the tracker believes its box: early voters, the chain of frames, the place."""

from __future__ import annotations

import numpy as np
import pytest
from experiments._clips import make_clip

from bagwise.vision import start, step, tracking
from bagwise.vision.tracker_state import Settled
from bagwise.vision.tracking import confidence_of

cv2 = pytest.importorskip("cv2")


@pytest.mark.parametrize(
    ("early", "fits", "unbroken", "inside", "ok"),
    [
        (-0.7, True, 0.8, 1.0, True),  # a picture fits and the early voters hardly protest
        (-0.77, True, 0.8, 1.0, False),  # they do: the picture has drifted
        (-1.35, False, 0.8, 1.0, True),  # it has turned, from frame to frame
        (-1.45, False, 0.8, 1.0, False),
        (-1.35, False, 0.7, 1.0, True),  # between 0.7 and 0.925 a chain is as good as any
        (-1.05, False, 0.65, 1.0, True),
        (-1.1, False, 0.65, 1.0, False),
        (-0.05, False, 0.5, 1.0, True),
        (-0.1, False, 0.5, 1.0, False),
        (-0.05, False, -0.4, 1.0, True),  # no chain is worse than broken
        (-3.0, True, 0.935, 1.0, True),  # a chain without a weak link is enough alone
        (-3.0, True, 0.915, 1.0, False),
        (-3.0, True, 0.995, 0.85, True),
        (-3.0, True, 0.995, 0.8, False),
        (5.0, False, 0.5, 0.98, True),  # what the early voters know best counts no more than known
        (5.0, False, 0.5, 0.97, False),
        (-1.3, False, 0.8, 0.97, True),
        (-1.3, False, 0.8, 0.955, False),  # a part is outside the frame
    ],
)
def test_what_a_box_is_believed_by(early, fits, unbroken, inside, ok):
    assert (confidence_of(early, fits, unbroken, inside) > 0.5) is ok


@pytest.mark.parametrize(
    ("settled", "early", "expected"),
    [
        (Settled(None, 0.76, True), -0.75, 1.0),
        (Settled(None, 0.76, True), -0.85, 0.6),
        (Settled(None, 0.74, True), 1.0, 0.6),
        (Settled(None, 0.99, False), 1.0, 0.6),
    ],
)
def test_the_chain_begins_anew_where_the_target_is_certainly_seen(settled, early, expected):
    assert tracking.unbroken_chain(0.8, 0.6, settled, early) == expected
    assert tracking.unbroken_chain(0.6, 0.8, settled, early) == expected


def test_a_box_may_lie_partly_outside_the_frame():
    frame = np.zeros((40, 60), dtype=np.uint8)
    for box, share in (([5, 5, 10, 10], 1), ([-5, 35, 10, 10], 0.25), ([70, 0, 10, 10], 0)):
        assert tracking.share_inside(np.array(box, dtype=float), frame) == share


@pytest.fixture(scope="module")
def covered():
    """A target that a curtain covers from frame 50 to 89, and its track."""
    frames, boxes = make_clip("occluded", 100)
    return frames, boxes, start(frames[48], boxes[48], seed=0)


def test_the_state_keeps_the_weakest_link_and_the_box_is_believed_by_it(covered, monkeypatch):
    frames, _, state = covered
    seen_by = []

    def believe(*signals):
        seen_by.append(signals)
        return confidence_of(*signals)

    monkeypatch.setattr(tracking, "confidence_of", believe)
    state, seen = step(state, frames[49])
    assert state.unbroken == 1
    assert seen.ok
    for i in (50, 51, 52):
        view = tracking.see(state, frames[i], state.pose)
        steady = tracking.last_motion(state, view)[1]
        before, (state, seen) = state, step(state, frames[i])
        assert state.unbroken == min(before.unbroken, steady)
        assert not seen.ok
        early, fits, unbroken, inside = seen_by[-1]
        assert (early, fits) == (seen.signals[1], seen.signals[3] > 0)
        assert unbroken == state.unbroken < 0.5
        assert inside == tracking.share_inside(seen.box, frames[i])
        assert seen.confidence == confidence_of(*seen_by[-1])


@pytest.mark.parametrize(("early", "calls"), [(-0.75, 0), (-0.85, 1)])
def test_a_chain_goes_on_where_the_early_voters_protest(covered, monkeypatch, early, calls):
    """Though a picture fits; elsewhere the time for it is saved."""
    frames, _, state = covered
    called = []

    def motion(state, view):
        called.append(state.pose)
        return state.pose.centre, 0.77

    monkeypatch.setattr(tracking, "last_motion", motion)
    monkeypatch.setattr(tracking, "bag_score", lambda *_: early)
    after, seen = step(state, frames[49])
    assert seen.signals[3] > 0.75
    assert called == [state.pose] * calls
    assert after.unbroken == (0.77 if calls else 1.0)
    called.clear()
    step(state, frames[50])  # covered: no picture fits
    assert len(called) == 1
