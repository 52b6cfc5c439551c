"""The limits of the tracker, each from both sides: a test fails where its number is changed."""

from __future__ import annotations

import numpy as np
import pytest

from bagwise.vision import start, tracking, voters
from bagwise.vision.alignment import Alignment
from bagwise.vision.tracker_state import Doubt, Picture, Settled

cv2 = pytest.importorskip("cv2")

INSIDE, OUTSIDE = 0.98, 1.02


@pytest.fixture(scope="module")
def scene():
    rng = np.random.default_rng(0)
    return cv2.GaussianBlur(rng.integers(0, 255, (120, 160), dtype=np.uint8), (0, 0), 2)


@pytest.fixture(scope="module")
def state(scene):
    return start(scene, (60, 40, 40, 40), seed=0)


@pytest.fixture(scope="module")
def view(state, scene):
    return voters.see(state, scene, state.pose)


def aligned_at(monkeypatch, correlation=0.9, shift=0.0, axes=(1.0, 1.0)):
    """Every picture is seen in its place, and every alignment succeeds as the arguments say."""
    monkeypatch.setattr(tracking, "moved", lambda grey, picture, centre, radius: (centre, 0.9))
    monkeypatch.setattr(
        tracking,
        "align",
        lambda grey, picture, centre, angle: Alignment(
            np.add(centre, [shift, 0.0]), 0.0, np.array(axes), correlation
        ),
    )


@pytest.mark.parametrize(("share", "believed"), [(INSIDE, True), (OUTSIDE, False)])
def test_an_alignment_may_move_the_place_by_a_share_of_the_side(
    state, view, monkeypatch, share, believed
):
    slip = 0.15 * np.sqrt(np.prod(state.size))
    assert slip > 3
    aligned_at(monkeypatch, shift=share * slip)
    settled = tracking.fit_pictures(state, view, state.pose, state.pictures)
    assert (settled.correlation == 0.9) is believed


@pytest.mark.parametrize(
    ("shift", "correlation", "believed"),
    [(2.98, 0.61, True), (3.02, 0.79, False), (3.02, 0.81, True)],
)
def test_an_alignment_that_moves_the_place_by_much_must_fit_well(
    state, view, monkeypatch, shift, correlation, believed
):
    aligned_at(monkeypatch, correlation, shift)
    settled = tracking.fit_pictures(state, view, state.pose, state.pictures)
    assert (settled.correlation == correlation) is believed


@pytest.mark.parametrize(("correlation", "believed"), [(0.61, True), (0.59, False)])
def test_an_alignment_needs_a_correlation(state, view, monkeypatch, correlation, believed):
    aligned_at(monkeypatch, correlation)
    settled = tracking.fit_pictures(state, view, state.pose, state.pictures)
    assert (settled.correlation == correlation) is believed


@pytest.mark.parametrize(("oldest", "chosen"), [(0.76, [0, 2]), (0.74, [2])])
def test_an_older_picture_is_preferred_within_a_margin(state, view, monkeypatch, oldest, chosen):
    greys = [np.full_like(state.pictures[0].grey, v) for v in (10, 20, 30)]
    pictures = [Picture(grey, 0.0, True) for grey in greys]
    likeness = {10: oldest, 20: 0.5, 30: 0.9}

    def seen(grey, picture, centre, radius):
        number = int(picture[0, 0])
        return centre + number, likeness[number]

    monkeypatch.setattr(tracking, "moved", seen)
    place = (state.pose.centre - view.origin) * view.factor
    promising = tracking.promising_pictures(view, place, pictures)
    assert [int(picture.grey[0, 0]) // 10 - 1 for picture, _ in promising] == chosen
    for picture, near in promising:  # each with the place where it was seen
        np.testing.assert_allclose(near, place + int(picture.grey[0, 0]))


@pytest.mark.parametrize(("drift", "back"), [(7, True), (10, False)])
def test_a_picture_is_sought_around_the_voters_place(state, scene, view, drift, back):
    """A target that has drifted is brought back by a picture of before the drift."""
    there = (state.pose.centre - view.origin) * view.factor - 0.5
    ((_, near),) = tracking.promising_pictures(view, np.add(there, [drift, 0.0]), state.pictures)
    assert bool(np.abs(near - there).max() < 0.5) is back
    drifted = state.pose._replace(centre=np.add(state.pose.centre, [drift / view.factor, 0.0]))
    settled = tracking.fit_pictures(state, view, drifted, state.pictures)
    assert bool(np.abs(settled.pose.centre - state.pose.centre).max() < 0.5) is back


@pytest.mark.parametrize(("early", "anchored"), [(0.51, True), (0.49, False)])
def test_early_voters_anchor_a_picture_that_they_know(state, scene, view, early, anchored):
    rng = np.random.default_rng(0)
    settled = Settled(state.pose, 0.0, False)
    later = state._replace(n_frames=12)
    after = tracking.learn_frame(later, scene, view, rng, True, settled, early)
    assert len(after.pictures) == 2
    assert after.pictures[-1].anchored is anchored
    doubt = Doubt(state.voters, state.pictures, state.pose, 0)
    after = tracking.learn_frame(
        later._replace(doubt=doubt), scene, view, rng, True, settled, early
    )
    assert not after.pictures[-1].anchored


@pytest.mark.parametrize(
    ("n_frames", "correlation", "pictured"),
    [(12, 0.84, True), (12, 0.86, False), (13, 0.84, False)],
)
def test_a_picture_is_taken_where_none_fits(state, scene, view, n_frames, correlation, pictured):
    rng = np.random.default_rng(0)
    settled = Settled(state.pose, correlation, True)
    later = state._replace(n_frames=n_frames)
    after = tracking.learn_frame(later, scene, view, rng, True, settled, 0.0)
    assert (len(after.pictures) == 2) is pictured


def test_voters_are_frozen_after_ten_frames(state, scene, view):
    settled = Settled(state.pose, 0.95, True)
    for n_frames, frozen in ((10, False), (11, True)):
        later = state._replace(n_frames=n_frames)
        after = tracking.learn_frame(
            later, scene, view, np.random.default_rng(0), True, settled, 0.0
        )
        assert (after.early is state.early) is frozen


@pytest.mark.parametrize(("confidence", "doubted"), [(0.29, True), (0.31, False)])
def test_doubt_begins_below_a_confidence(state, view, confidence, doubted):
    settled = Settled(state.pose, 0.0, False)
    after = tracking.update_doubt(state, view, settled, confidence)
    assert (after.doubt is not None) is doubted


@pytest.mark.parametrize(("correlation", "known"), [(0.86, True), (0.84, False)])
def test_doubt_ends_where_an_anchored_picture_fits(state, view, monkeypatch, correlation, known):
    monkeypatch.setattr(tracking, "bag_score", lambda *_: -1.0)
    in_doubt = state._replace(doubt=Doubt(state.voters, state.pictures, state.pose, 0))
    settled = Settled(state.pose, correlation, True)
    assert (tracking.update_doubt(in_doubt, view, settled, 0.1).doubt is None) is known


@pytest.mark.parametrize(
    ("score", "correlation", "back"),
    [(0.51, 0.81, True), (0.49, 0.81, False), (0.51, 0.79, False)],
)
def test_the_target_is_back_where_voters_and_picture_agree(
    state, scene, monkeypatch, score, correlation, back
):
    aligned_at(monkeypatch, correlation)
    monkeypatch.setattr(tracking, "candidates", lambda *_: [state.pose.centre])
    monkeypatch.setattr(
        tracking, "scores", lambda state, voters, view, places: np.full((5, len(places)), score)
    )
    doubt = Doubt(state.voters, state.pictures, state.pose, 0)
    assert (tracking.look_everywhere(state, scene, doubt, -9.0) is not None) is back


def looked_for(state, scene, monkeypatch, share, score, early, correlation, followed):
    """Whether the target is believed to be back so far from where it was lost."""
    aligned_at(monkeypatch, correlation)
    monkeypatch.setattr(tracking, "candidates", lambda *_: [state.pose.centre])
    monkeypatch.setattr(
        tracking, "scores", lambda state, draws, view, places: np.full((5, len(places)), score)
    )
    monkeypatch.setattr(tracking, "bag_score", lambda *_: early)
    # The first of the equal places is chosen; the doubt began at a distance from it.
    view = voters.see(state, scene, state.pose, reach=max(state.size) / 4 + 4)
    near = voters.inside(state, view, voters.corner(state, view, state.pose) + voters.disc(4, 2))
    there = tracking.pose_at(state, view, near[0].astype(float), state.pose)
    moved = share * 2 * state.settings.search_radius / state.factor
    begun = state.pose._replace(centre=there.centre - [moved, 0.0])
    doubt = Doubt(state.voters, state.pictures, begun, 0)
    return tracking.look_everywhere(state, scene, doubt, followed) is not None


@pytest.mark.parametrize(
    ("score", "early", "followed", "back"),
    [(0.51, -0.1, -0.2, True), (0.49, -0.1, -0.2, False), (0.51, -0.1, 0.0, False)],
)
def test_nearby_the_early_voters_must_know_the_place_better(
    state, scene, monkeypatch, score, early, followed, back
):
    found = looked_for(state, scene, monkeypatch, INSIDE, score, early, 0.81, followed)
    assert found is back


@pytest.mark.parametrize(
    ("score", "early", "correlation", "followed", "back"),
    [
        (0.5, -0.04, 0.8, -9.0, True),  # log-odds of 1.96, where 1.946 are asked for
        (0.5, -0.07, 0.8, -9.0, False),
        (0.6, -0.07, 0.8, -9.0, True),  # voters, early voters and picture all count
        (0.5, -0.07, 0.82, -9.0, True),
        (0.5, 0.5, 0.9, -0.51, True),
        (0.5, 0.5, 0.9, -0.49, False),  # known better, but not by enough
    ],
)
def test_far_away_all_signs_together_must_speak_for_the_place(
    state, scene, monkeypatch, score, early, correlation, followed, back
):
    found = looked_for(state, scene, monkeypatch, OUTSIDE, score, early, correlation, followed)
    assert found is back


def test_a_place_elsewhere_is_compared_with_the_one_that_was_followed(state, scene, monkeypatch):
    asked = []
    monkeypatch.setattr(
        tracking,
        "whom_to_seek",
        lambda state, *_: tracking.Doubt(state.voters, state.pictures, state.pose, 0),
    )
    monkeypatch.setattr(tracking, "bag_score", lambda *_: 0.37)
    monkeypatch.setattr(tracking, "look_everywhere", lambda *given: asked.append(given[3]))
    tracking.step(state, scene)
    assert asked == [0.37]


@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize(
    ("correlation", "steady", "followed"),
    [(0.74, 0.91, True), (0.76, 0.91, False), (0.74, 0.89, False)],
)
def test_a_smooth_motion_is_followed_in_place_of_a_poor_fit(
    state, scene, monkeypatch, correlation, anchored, steady, followed
):
    """The share of the voters is taken from their own place, not from that of the fit."""
    fit = state.pose._replace(centre=np.add(state.pose.centre, [7.0, 0.0]))
    monkeypatch.setattr(tracking, "fit_pictures", lambda *_: Settled(fit, correlation, anchored))
    motion = np.add(state.pose.centre, [0.0, 1.0])
    monkeypatch.setattr(tracking, "last_motion", lambda *_: (motion, steady))
    monkeypatch.setattr(tracking, "look_everywhere", lambda *_: None)
    after, seen = tracking.step(state, scene)
    there = 0.7 * motion + 0.3 * state.pose.centre if followed else fit.centre
    np.testing.assert_allclose(after.pose.centre, there, atol=1e-6)
    assert bool(seen.signals[3] == 0) is (followed or not anchored)


def test_a_target_that_is_cut_off_may_fit_poorly(state, scene, monkeypatch):
    """At the border a poor fit is believed: the target is not all there."""
    fit = state.pose._replace(centre=np.add(state.pose.centre, [7.0, 0.0]))
    monkeypatch.setattr(tracking, "fit_pictures", lambda *_: Settled(fit, 0.7, True))
    monkeypatch.setattr(tracking, "last_motion", lambda *_: (state.pose.centre, 0.95))
    monkeypatch.setattr(tracking, "look_everywhere", lambda *_: None)
    monkeypatch.setattr(tracking, "share_inside", lambda *_: 0.99)
    after, _ = tracking.step(state, scene)
    np.testing.assert_allclose(after.pose.centre, fit.centre, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_box_is_inside_where_all_four_edges_are(state, scene, axis):
    half = state.box_size * 2.0 / 2
    ends = np.array(scene.shape[1::-1], dtype=float)
    for edge, sign in ((half, 1.0), (ends - half, -1.0)):
        for beyond, inside in ((0.01, True), (-0.01, False)):
            centre = ends / 2
            centre[axis] = edge[axis] + sign * beyond
            box = np.concatenate([centre - half, 2 * half])
            assert (tracking.share_inside(box, scene) > 1 - 1e-9) is inside


@pytest.mark.parametrize(("n_frames", "sought"), [(15, True), (16, False)])
def test_the_first_target_is_looked_for_now_and_then(state, n_frames, sought):
    unknown = Settled(state.pose, 0.0, False)
    later = state._replace(n_frames=n_frames)
    assert (tracking.whom_to_seek(later, -0.1, unknown) is not None) is sought
    assert tracking.whom_to_seek(later, 0.1, unknown) is None
