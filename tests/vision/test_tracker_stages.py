"""The stages of a step: where, how large, whether, where else, what it looks like now."""

from __future__ import annotations

import numpy as np
import pytest
from experiments._clips import make_clip

from bagwise.vision import start, step, tracking, voters
from bagwise.vision.alignment import Alignment, cut, moved
from bagwise.vision.tracker_state import Evidence, Fit, Picture, Thresholds

cv2 = pytest.importorskip("cv2")

LIMITS = Thresholds()
INSIDE, OUTSIDE = 0.98, 1.02


def textured(seed=0, shape=(120, 150)):
    rng = np.random.default_rng(seed)
    noise = cv2.GaussianBlur(rng.normal(size=shape).astype(np.float32), (0, 0), 3)
    return cv2.normalize(noise, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)


def shifted(grey, dx, dy):
    M = np.array([[1.0, 0, dx], [0, 1, dy]], dtype=np.float32)
    return cv2.warpAffine(grey, M, grey.shape[::-1], borderMode=cv2.BORDER_REFLECT)


def resized(grey, x, y):
    """The frame stretched about the middle of the target of `state`."""
    M = np.array([[x, 0, (1 - x) * 70], [0, y, (1 - y) * 60]], dtype=np.float32)
    return cv2.warpAffine(grey, M, grey.shape[::-1], borderMode=cv2.BORDER_REFLECT)


@pytest.fixture(scope="module")
def scene():
    return textured()


@pytest.fixture(scope="module")
def state(scene):
    return start(scene, (50, 40, 40, 40), seed=0)


@pytest.fixture(scope="module")
def view(state, scene):
    return voters.see(state, scene, state.pose)


def sighted(state, shift=0.0):
    return state.pose._replace(centre=np.add(state.pose.centre, [shift, 0.0]))


def evident(probability, early=1.0):
    return Evidence(early, 0.9, probability)


def aligned_at(monkeypatch, correlation=0.9, shift=0.0, axes=(1.0, 1.0)):
    """Every picture is seen in its place, and every alignment succeeds as the arguments say."""
    monkeypatch.setattr(tracking, "moved", lambda grey, picture, centre, radius: (centre, 0.9))
    monkeypatch.setattr(
        tracking,
        "align",
        lambda grey, picture, centre, angle, stretch: Alignment(
            np.add(centre, [shift, 0.0]), 0.0, np.array(axes), correlation
        ),
    )


# Where: voters and motion.


@pytest.mark.parametrize("shift", [(3.4, -2.3), (-0.25, 0.4), (7, 5)])
def test_a_shift_is_found_to_a_fraction_of_a_pixel(shift):
    grey, centre = textured(), np.array([70.0, 60.0])
    picture = cut(grey, centre, 1.0, np.array([32, 32]))
    place, correlation = moved(shifted(grey, *shift), picture, centre, 12)
    np.testing.assert_allclose(place - centre, shift, atol=0.12)
    assert correlation > 0.97


def test_only_shifts_within_the_radius_are_looked_at():
    grey, centre = textured(), np.array([70.0, 60.0])
    picture = cut(grey, centre, 1.0, np.array([32, 32]))
    place, correlation = moved(shifted(grey, 9, 0), picture, centre, 5)
    assert np.abs(place - centre).max() <= 5.5
    assert correlation < 0.9
    assert moved(grey[:20, :20], picture, centre, 5)[1] == 0  # the picture is larger


def test_a_flat_frame_has_no_place():
    grey = np.full((120, 150), 90, dtype=np.uint8)
    picture = cut(textured(), np.array([70.0, 60.0]), 1.0, np.array([32, 32]))
    assert moved(grey, picture, np.array([70.0, 60.0]), 5)[1] <= 0


@pytest.mark.parametrize(("share", "clear"), [(OUTSIDE, True), (INSIDE, False)])
def test_a_clear_motion_is_followed(state, view, monkeypatch, share, clear):
    """Voters search around it and keep a share of the place; else they search everywhere."""
    here = (state.pose.centre - view.origin) * view.factor
    link = share * LIMITS.follows
    monkeypatch.setattr(tracking, "moved", lambda *_: (np.add(here, [6.0, -4.0]), link))
    asked = []

    def search(state, view, pose, radius):
        asked.append(((pose.centre - state.pose.centre) * view.factor, radius))
        return np.add(here, [10.0, 3.0])

    monkeypatch.setattr(tracking, "search", search)
    pose, seen = tracking.vote(state, view)
    assert seen == link
    ((begin, radius),) = asked
    assert (radius == state.settings.search_radius) is not clear
    np.testing.assert_allclose(begin, [6.0, -4.0] if clear else [0, 0], atol=1e-9)
    part = LIMITS.share * clear
    place = part * np.array([6.0, -4.0]) + (1 - part) * np.array([10.0, 3.0])
    np.testing.assert_allclose((pose.centre - state.pose.centre) * view.factor, place)


def test_the_last_picture_is_that_of_the_last_frame(state):
    frame = shifted(textured(), 4, 2)
    after, _ = step(state, frame)
    expected = tracking.take_picture(after, frame, after.pose).grey
    np.testing.assert_array_equal(after.last, expected)
    assert after.last.shape == (45, 45)  # 0.8 of the target's size in a view


# How large: kept pictures.


@pytest.mark.parametrize(("share", "fits"), [(INSIDE, True), (OUTSIDE, False)])
def test_an_alignment_may_move_the_place_by_a_share_of_the_side(
    state, view, monkeypatch, share, fits
):
    slip = LIMITS.slip * np.sqrt(np.prod(state.size))
    aligned_at(monkeypatch, shift=share * slip)
    fit = tracking.fit_pictures(state, view, sighted(state))
    assert (fit.correlation == 0.9) is fits
    assert bool(fit.pose.centre[0] > state.pose.centre[0] + 1) is fits


@pytest.mark.parametrize(("share", "fits"), [(OUTSIDE, True), (INSIDE, False)])
def test_an_alignment_needs_a_correlation(state, view, monkeypatch, share, fits):
    aligned_at(monkeypatch, share * LIMITS.fits, axes=(1.03, 1.03))
    fit = tracking.fit_pictures(state, view, sighted(state))
    assert (fit.correlation > 0) is fits
    assert fit.pose.scale == pytest.approx(1.03 if fits else 1.0)


@pytest.mark.parametrize(("gap", "chosen"), [(INSIDE, [0, 2]), (OUTSIDE, [2])])
def test_an_older_picture_is_preferred_within_a_margin(state, view, monkeypatch, gap, chosen):
    greys = [np.full_like(state.pictures[0].grey, v) for v in (10, 20, 30)]
    state = state._replace(pictures=tuple(Picture(grey, 0.0) for grey in greys))
    likeness = {10: 0.9 - gap * LIMITS.margin, 20: 0.5, 30: 0.9}

    def seen(grey, picture, centre, radius):
        number = int(picture[0, 0])
        return centre + number, likeness[number]

    monkeypatch.setattr(tracking, "moved", seen)
    place = (state.pose.centre - view.origin) * view.factor
    promising = tracking.promising_pictures(state, view, place)
    assert [int(picture.grey[0, 0]) // 10 - 1 for picture, _ in promising] == chosen
    for picture, near in promising:  # each with the place where it was seen
        np.testing.assert_allclose(near, place + int(picture.grey[0, 0]))


@pytest.mark.parametrize(("drift", "back"), [(4, True), (9, False)])
def test_a_picture_is_sought_around_the_voters_place(state, view, drift, back):
    """A target that has drifted is brought back by a picture of before the drift."""
    fit = tracking.fit_pictures(state, view, sighted(state, drift))
    assert bool(np.abs(fit.pose.centre - state.pose.centre).max() < 0.5) is back


def test_size_is_read_off_the_axis_that_changed_least(state, scene):
    """A target that turns away grows narrow; its size has not changed."""
    for stretch, scale in (((0.9, 1.0), 1.0), ((1.04, 1.04), 1.04)):
        view = voters.see(state, resized(scene, *stretch), state.pose)
        fit = tracking.fit_pictures(state, view, sighted(state))
        assert fit.correlation > 0.9
        assert fit.pose.scale == pytest.approx(scale, abs=0.02)


@pytest.mark.parametrize(("scale", "usual"), [(1.5, 1.0), (0.8, 1.0), (0.8, 0.7), (1.002, 1.0)])
def test_a_size_that_cannot_be_seen_goes_back_to_the_usual_one(
    state, view, monkeypatch, scale, usual
):
    monkeypatch.setattr(tracking, "align", lambda *_: None)
    state = state._replace(pose=state.pose._replace(scale=scale), usual_scale=usual)
    after = tracking.fit_pictures(state, view, sighted(state)).pose.scale
    assert abs(np.log(after / scale)) <= LIMITS.relax + 1e-9
    assert abs(np.log(after / usual)) == pytest.approx(
        max(abs(np.log(scale / usual)) - LIMITS.relax, 0)
    )


def test_the_usual_size_follows_sizes_that_are_seen(state, scene, view):
    pose = state.pose._replace(scale=0.5)
    seen = tracking.learn_frame(state, scene, view, Fit(pose, 0.95), evident(1.0))
    assert seen.usual_scale == pytest.approx(0.5**LIMITS.relax)
    unseen = tracking.learn_frame(state, scene, view, Fit(pose, 0.0), evident(1.0))
    assert unseen.usual_scale == 1.0


# Whether: the belief.


def test_the_belief_rises_with_what_speaks_for_the_target():
    """Each of the two alone; and what the voters know best counts no more than known."""
    strange = (-1.0, 0.5)
    base = tracking.belief_terms(*strange) @ tracking.BELIEF
    for i, more in enumerate((0.5, 0.9)):
        signals = (*strange[:i], more, *strange[i + 1 :])
        assert tracking.belief_terms(*signals) @ tracking.BELIEF > base
    assert base < 0 < tracking.belief_terms(0.5, 1.0) @ tracking.BELIEF
    best, known = (tracking.belief_terms(score, 1.0) for score in (5.0, 1.0))
    np.testing.assert_array_equal(best, known)


@pytest.mark.parametrize(("early", "chain"), [(0.1, 1.0), (-0.1, 0.6)])
def test_the_chain_begins_anew_where_the_early_voters_know_the_target(
    state, view, monkeypatch, early, chain
):
    monkeypatch.setattr(tracking, "bag_score", lambda *_: early)
    state = state._replace(chain=0.8)
    evidence = tracking.believe(state, view, Fit(state.pose, 0), 0.6)
    assert evidence.chain == chain
    smooth = tracking.believe(state, view, Fit(state.pose, 0), 0.9)
    assert smooth.chain == max(chain, 0.8)


@pytest.fixture(scope="module")
def covered():
    """A target that a curtain covers from frame 50 to 89, and a tracker that starts before."""
    frames, boxes = make_clip("occluded", 100)
    return frames, start(frames[30], boxes[30], seed=0)


def test_a_covered_target_is_not_believed_until_it_is_back(covered):
    frames, state = covered
    kept = None
    for i in range(31, 95):
        state, seen = step(state, frames[i])
        assert seen.ok == (seen.confidence > 0.5)
        if i < 50 or i >= 90:
            assert seen.ok
            assert state.before_doubt == ()
        else:
            assert not seen.ok
            kept = kept or state.before_doubt
            assert state.before_doubt is kept  # they learn nothing
            assert state.voters is not kept


# Where else: recovery.


@pytest.mark.parametrize(
    ("probability", "back"), [(INSIDE * LIMITS.doubt, False), (OUTSIDE * LIMITS.doubt, True)]
)
def test_the_tracker_goes_back_to_where_the_target_is_believed_to_be(
    state, scene, view, monkeypatch, probability, back
):
    there = np.add(state.pose.centre, [30.0, 0.0])
    before = state.voters[:1]
    monkeypatch.setattr(tracking, "candidates", lambda *_: [there])
    monkeypatch.setattr(tracking, "fit_pictures", lambda state, view, pose: Fit(pose, 0.9))
    monkeypatch.setattr(tracking, "believe", lambda *_: evident(probability))
    fit, evidence = Fit(state.pose, 0.0), evident(0.1)
    after, _, now, signs = tracking.recover(
        state._replace(before_doubt=before), scene, view, fit, evidence
    )
    assert (now is not fit) is back
    assert (after.voters is before) is back
    assert signs.probability == (probability if back else 0.1)
    np.testing.assert_allclose(now.pose.centre, there if back else state.pose.centre)


def test_a_place_that_no_picture_fits_is_not_gone_to(state, scene, view, monkeypatch):
    monkeypatch.setattr(tracking, "candidates", lambda *_: [np.add(state.pose.centre, [30.0, 0.0])])
    monkeypatch.setattr(tracking, "align", lambda *_: None)
    monkeypatch.setattr(tracking, "believe", lambda *_: evident(0.99))
    fit = Fit(state.pose, 0.0)
    assert tracking.recover(state, scene, view, fit, evident(0.1))[2] is fit


# What it looks like now: voters and pictures.


@pytest.mark.parametrize(
    ("correlation", "early", "pictured"),
    [
        (0.8, 0.1, False),  # a picture fits
        (0.0, 0.1, True),
        (0.0, -0.1, False),  # it may be something else
    ],
)
def test_a_picture_is_taken_where_none_fits_and_the_target_is_known(
    state, scene, view, correlation, early, pictured
):
    fit = Fit(state.pose, correlation)
    after = tracking.learn_frame(state, scene, view, fit, evident(1.0, early))
    assert (len(after.pictures) == 2) is pictured


def test_early_voters_are_frozen(state, scene, view):
    for n_frames, frozen in ((LIMITS.early_frames - 1, False), (LIMITS.early_frames, True)):
        later = state._replace(n_frames=n_frames)
        after = tracking.learn_frame(later, scene, view, Fit(state.pose, 0.95), evident(1.0))
        assert (after.early is state.early) is frozen


def test_of_many_pictures_the_one_that_repeats_an_older_one_goes():
    old = [Picture(textured(i, (32, 32)), 0.0) for i in range(10)]
    old[6] = Picture(cv2.GaussianBlur(old[2].grey, (0, 0), 1), 0.0)
    new = Picture(textured(99, (32, 32)), 0.0)
    kept = tracking.keep_picture(tuple(old), new, 10)
    assert all(a is b for a, b in zip(kept, (*old[:6], *old[7:], new), strict=True))
    assert tracking.keep_picture(tuple(old[:9]), new, 10) == (*old[:9], new)
