"""What keeps the tracker from drifting: motion since the last frame, chains of pictures, leaps."""

from __future__ import annotations

import numpy as np
import pytest

from bagwise.vision import start, step, tracking, voters
from bagwise.vision.alignment import cut, moved
from bagwise.vision.tracker_state import Picture, Settled, Sighting
from bagwise.vision.voters import see

cv2 = pytest.importorskip("cv2")


def textured(seed=0, shape=(120, 150)):
    rng = np.random.default_rng(seed)
    noise = cv2.GaussianBlur(rng.normal(size=shape).astype(np.float32), (0, 0), 3)
    return cv2.normalize(noise, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)


def shifted(grey, dx, dy):
    M = np.array([[1.0, 0, dx], [0, 1, dy]], dtype=np.float32)
    return cv2.warpAffine(grey, M, grey.shape[::-1], borderMode=cv2.BORDER_REFLECT)


@pytest.fixture
def state():
    return start(textured(), (50, 40, 40, 40), seed=0)


def pictures(n, anchored=True):
    return tuple(Picture(textured(i, (32, 32)), 0.0, anchored) for i in range(n))


@pytest.mark.parametrize("shift", [(3.4, -2.3), (-0.25, 0.4), (7, 5)])
def test_a_shift_is_found_to_a_fraction_of_a_pixel(shift):
    grey, centre = textured(), np.array([70.0, 60.0])
    picture = cut(grey, centre, 1.0, np.array([40, 40]))
    place, correlation = moved(shifted(grey, *shift), picture, centre, 12)
    np.testing.assert_allclose(place - centre, shift, atol=0.12)
    assert correlation > 0.97


def test_only_shifts_within_the_radius_are_looked_at():
    grey, centre = textured(), np.array([70.0, 60.0])
    picture = cut(grey, centre, 1.0, np.array([40, 40]))
    place, correlation = moved(shifted(grey, 9, 0), picture, centre, 5)
    assert np.abs(place - centre).max() <= 5.5
    assert correlation < 0.9
    assert moved(grey[:20, :20], picture, centre, 5)[1] == 0  # the picture is larger


def test_a_flat_frame_has_no_place():
    grey = np.full((120, 150), 90, dtype=np.uint8)
    picture = cut(textured(), np.array([70.0, 60.0]), 1.0, np.array([40, 40]))
    assert moved(grey, picture, np.array([70.0, 60.0]), 5)[1] <= 0


def test_the_last_picture_is_that_of_the_last_frame(state):
    frame = shifted(textured(), 4, 2)
    state, _ = step(state, frame)
    np.testing.assert_array_equal(
        state.last, cut(frame, state.pose.centre, state.pose.scale / state.factor, state.size)
    )


@pytest.mark.parametrize(("correlation", "share"), [(0.71, 0.7), (0.69, 0.0)])
def test_seven_tenths_of_a_clear_motion_are_followed(state, monkeypatch, correlation, share):
    view = see(state, textured(), state.pose)
    here = (state.pose.centre - view.origin) * view.factor
    answer = here + np.array([6.0, -4.0])
    asked = []

    def clear(grey, picture, centre, radius):
        asked.append((picture, centre, radius))
        return answer, correlation

    monkeypatch.setattr(tracking, "moved", clear)
    voted = state.pose._replace(centre=state.pose.centre + np.array([10.0, 3.0]))
    carried = tracking.carry(state, voted, *tracking.last_motion(state, view))
    there = answer / view.factor + view.origin
    np.testing.assert_allclose(carried.centre, share * there + (1 - share) * voted.centre)
    picture, centre, radius = asked[0]
    assert picture is state.last
    assert radius == state.settings.search_radius
    np.testing.assert_allclose(centre, here)


@pytest.mark.parametrize(("correlation", "calls"), [(0.0, 1), (0.9, 0)])
def test_motion_counts_only_where_no_picture_fits(state, monkeypatch, correlation, calls):
    called = []

    def settle(state, view, pose, pictures):
        return Settled(pose, correlation, correlation > 0)

    def carry(state, pose, place, correlation):
        called.append(pose)
        return pose._replace(centre=np.array([33.0, 44.0]))

    monkeypatch.setattr(tracking, "fit_pictures", settle)
    monkeypatch.setattr(tracking, "find_leap", lambda *_: None)
    monkeypatch.setattr(tracking, "look_everywhere", lambda *_: None)
    monkeypatch.setattr(tracking, "carry", carry)
    state, _ = step(state, textured())
    assert len(called) == calls
    assert (state.pose.centre.tolist() == [33.0, 44.0]) == bool(calls)


@pytest.mark.parametrize(
    ("score", "correlation", "leaps"),
    [(-0.4, 0.91, True), (-0.4, 0.89, False), (-0.6, 0.95, False)],
)
def test_a_leap_is_believed_only_where_the_picture_fits_very_well(
    state, monkeypatch, score, correlation, leaps
):
    view = see(state, textured(), state.pose)
    monkeypatch.setattr(tracking, "scores", lambda *_: np.full((5, 1), score))
    monkeypatch.setattr(
        tracking, "fit_pictures", lambda s, v, pose, p: Settled(pose, correlation, True)
    )
    sighting = Sighting(np.array([10.0, 10.0]), -0.5, 1.0)
    leap = tracking.find_leap(state, view, np.array([[20, 30]]), sighting)
    assert (leap is not None) == leaps


@pytest.mark.parametrize(("score", "goes"), [(0.1, True), (-0.1, False)])
def test_other_places_count_only_where_the_voters_know_them(state, monkeypatch, score, goes):
    """However bad the neighbourhood is: a target that looks new has not gone elsewhere."""
    view = see(state, textured(), state.pose)
    other = np.array([[2, 3]])

    def score_places(state, draws, view, places):
        return np.tile(np.where((places == other).all(axis=1), score, -9.0), (5, 1))

    monkeypatch.setattr(voters, "scores", score_places)
    sighting = voters.search(state, state.voters, view, state.pose, other)
    assert (np.abs(sighting.position - other[0]).max() <= 4) == goes


@pytest.mark.parametrize(
    ("correlation", "early", "n"), [(0.74, 0.4, 1), (0.76, -1.0, 2), (0.74, 0.6, 2), (0.86, 1.0, 1)]
)
def test_a_weak_fit_is_not_pictured(state, correlation, early, n):
    """Its pose is vague, and pictures would hand the error on; early voters may vouch for it."""
    state = state._replace(n_frames=3)
    scene, settled = textured(), Settled(state.pose, correlation, True)
    view, rng = see(state, scene, state.pose), np.random.default_rng(0)
    state = tracking.learn_frame(state, scene, view, rng, True, settled, early)
    assert [picture.anchored for picture in state.pictures] == [True] * n


@pytest.mark.parametrize(("correlation", "anchored"), [(0.76, True), (0.74, False)])
def test_an_anchored_picture_that_fits_is_preferred(state, monkeypatch, correlation, anchored):
    """Another picture may fit better, being younger: that must not break the chain."""
    loose = state.pictures[0]._replace(anchored=False)
    state = state._replace(pictures=(*state.pictures, loose))
    asked = []

    def fit(state, view, pose, pictures):
        asked.append(pictures)
        return Settled(pose._replace(angle=0.5), correlation, True)

    monkeypatch.setattr(tracking, "fit_pictures", fit)
    view = see(state, textured(), state.pose)
    young = Settled(state.pose, 0.99, False)
    settled = tracking.prefer_anchored(state, view, young)
    assert settled.anchored == anchored
    assert settled.pose.angle == (0.5 if anchored else 0.0)
    assert asked == [[state.pictures[0]]]
    nothing = Settled(state.pose, 0.0, False)
    assert tracking.prefer_anchored(state, view, nothing) is nothing
    fits = Settled(state.pose, 0.7, True)
    assert tracking.prefer_anchored(state, view, fits) is fits
    assert len(asked) == 1


def test_of_ten_pictures_the_one_that_repeats_an_older_one_goes():
    old = pictures(10)
    again = Picture(cv2.GaussianBlur(old[2].grey, (0, 0), 1), 0.0, True)
    old = (*old[:6], again, *old[7:])
    new = Picture(textured(99, (32, 32)), 0.0, True)
    kept = tracking.keep_picture(old, new)
    assert len(kept) == 10
    assert all(a is b for a, b in zip(kept, (*old[:6], *old[7:], new), strict=True))


def test_a_picture_that_is_not_anchored_goes_first():
    old = pictures(10)
    old = (*old[:4], old[1]._replace(anchored=False), *old[5:])
    new = Picture(textured(99, (32, 32)), 0.0, True)
    kept = tracking.keep_picture(old, new)
    assert all(a is b for a, b in zip(kept, (*old[:4], *old[5:], new), strict=True))
    assert len(tracking.keep_picture(old[:9], new)) == 10
