"""The tracker: kernels against loops, OpenCV's interface, lost targets, odd frames."""

from __future__ import annotations

import numpy as np
import pytest
from experiments import tracking as tracking_experiment
from experiments._clips import make_clip
from sklearn.base import clone

from bagwise.core.mio import ElasticNet, weights
from bagwise.evaluate import box_iou, centre_error
from bagwise.vision import (
    MIOTracker,
    Track,
    start,
    step,
    track,
    track_many,
    voters,
)
from bagwise.vision.alignment import align, candidates, cut, resemblance
from bagwise.vision.haar import HaarFeatures, nearest_distances
from bagwise.vision.tracking import as_grey, check_box
from bagwise.vision.video import count_frames, frame_rate, read_frames, write_video
from bagwise.vision.voters import disc
from tests.reference import vision as naive

cv2 = pytest.importorskip("cv2")


def moving_target(n=25, seed=0, size=(90, 120), side=22):
    """A textured target that moves over a textured background, and its boxes."""
    rng = np.random.default_rng(seed)
    back = cv2.GaussianBlur(rng.integers(0, 255, size, dtype=np.uint8), (0, 0), 2.5)
    target = cv2.GaussianBlur(rng.integers(0, 255, (side, side), dtype=np.uint8), (0, 0), 2)
    target = cv2.normalize(target, None, 0, 255, cv2.NORM_MINMAX)
    frames, boxes = [], []
    for t in range(n):
        x = int(40 + 30 * np.sin(t / 6))
        y = int(30 + 15 * np.cos(t / 5))
        frame = back.copy()
        frame[y : y + side, x : x + side] = target
        noise = rng.normal(0, 4, size)
        frames.append(np.clip(frame + noise, 0, 255).astype(np.uint8))
        boxes.append([x, y, side, side])
    return np.stack(frames), np.array(boxes, dtype=float)


@pytest.fixture(scope="module")
def clip():
    return moving_target()


@pytest.mark.parametrize("k", [1, 7, 30, 50])
def test_nearest_distances_match_sorting(k):
    rng = np.random.default_rng(k)
    A, B = (rng.normal(size=(n, 50)).astype(np.float32) for n in (6, 9))
    B[0] = A[0]  # zero gaps
    B[1] = A[1] + 0.5  # ties, up to rounding
    expected = naive.nearest_distances(A, B, k)
    np.testing.assert_allclose(nearest_distances(A, B, k), expected, rtol=2e-5, atol=1e-5)


def test_ties_are_counted_k_times():
    A, B = np.zeros((1, 6), np.float32), np.ones((1, 6), np.float32)
    assert nearest_distances(A, B, 4)[0, 0] == 4


@pytest.mark.parametrize(("slack", "share"), [(0, 1e-5), (1, 0.01), (5, 0.05)])
def test_slack_changes_distances_by_little(slack, share):
    rng = np.random.default_rng(0)
    A, B = (rng.normal(size=(n, 240)).astype(np.float32) for n in (6, 9))
    exact = naive.nearest_distances(A, B, 80)
    np.testing.assert_allclose(nearest_distances(A, B, 80, slack), exact, rtol=share)


def test_haar_features_match_sums_over_the_map():
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(2, 30, 40))
    totals = np.stack([cv2.integral(m) for m in maps])
    bank = HaarFeatures(n_features=25, n_orientations=2).draw(11, 9, rng)
    positions = rng.integers(0, 20, (5, 2))
    fast = HaarFeatures().describe(totals, positions, bank)
    np.testing.assert_allclose(fast, naive.haar_features(maps, positions, bank), atol=1e-5)


def test_haar_weights_cancel_a_constant():
    bank = HaarFeatures(n_features=40, n_orientations=1).draw(20, 15, np.random.default_rng(0))
    totals = cv2.integral(np.full((30, 40), 7.0))[None]
    assert np.abs(HaarFeatures().describe(totals, np.array([[3, 4]]), bank)).max() < 1e-6
    inside = (bank.corners >= 0) & (bank.corners <= [20, 15, 20, 15])
    assert inside.all()


def test_oriented_integrals_match_loops():
    grey = np.random.default_rng(1).integers(0, 255, (12, 15), dtype=np.uint8)
    pixels = grey.astype(np.float32)
    gx, gy = cv2.Sobel(pixels, cv2.CV_32F, 1, 0), cv2.Sobel(pixels, cv2.CV_32F, 0, 1)
    magnitude = cv2.magnitude(gx, gy)
    strength = magnitude / (cv2.blur(magnitude, (5, 5)) + 4.0)
    maps = naive.oriented_maps(gx, gy, strength, 4)
    expected = np.stack([cv2.integral(m) for m in maps])
    np.testing.assert_allclose(HaarFeatures().maps(grey, 5), expected, atol=1e-3)


def test_integrals_do_not_depend_on_where_the_frame_lies_in_memory():
    grey = np.random.default_rng(2).integers(0, 255, (90, 121), dtype=np.uint8)
    expected, held = HaarFeatures().maps(grey, 11), []
    for n in range(1, 40):
        held.append(np.empty(1003 * n))  # moves the arrays that come after it
        np.testing.assert_array_equal(HaarFeatures().maps(grey, 11), expected)


def test_a_change_of_light_changes_little():
    grey = np.random.default_rng(1).integers(40, 120, (40, 40), dtype=np.uint8)
    bank = HaarFeatures(n_features=50, n_orientations=4).draw(20, 20, np.random.default_rng(0))
    place = np.array([[10, 10]])
    dim, bright = (
        HaarFeatures().describe(HaarFeatures().maps(image, 11), place, bank)
        for image in (grey, (grey * 1.8 + 20).astype(np.uint8))
    )
    assert np.abs(dim - bright).max() < 0.15 * np.abs(dim).max()


@pytest.mark.parametrize("seed", [0, 1])
def test_follows_the_target(clip, seed):
    frames, boxes = clip
    result = track(frames, boxes[0], MIOTracker(random_state=seed))
    assert centre_error(result.boxes, boxes) < 2
    assert result.found.all()
    assert result.scores.min() > 0.5


def test_the_box_grows_with_the_target():
    frames, boxes = (part[:50] for part in make_clip("scale"))
    result = track(frames, boxes[0], MIOTracker(random_state=0))
    assert centre_error(result.boxes, boxes) < 3
    assert boxes[:, 2].min() < 0.5 * boxes[0, 2]
    assert abs(np.log(result.boxes[:, 2] / boxes[:, 2])).max() < 0.06
    fixed = track(frames[:5], boxes[0], MIOTracker(growth=1, random_state=0))
    assert np.ptp(fixed.boxes[:, 2]) == 0


def test_follows_where_opencv_does(clip):
    frames, boxes = clip
    theirs = cv2.TrackerMIL_create()
    colour = np.repeat(frames[..., None], 3, axis=3)
    cv2.setRNGSeed(0)
    theirs.init(colour[0], tuple(int(v) for v in boxes[0]))
    ours = MIOTracker(random_state=0)
    ours.init(colour[0], tuple(int(v) for v in boxes[0]))
    ok, box = ours.update(colour[1])
    assert isinstance(ok, bool)
    assert len(box) == len(theirs.update(colour[1])[1]) == 4
    assert all(type(v) is int for v in box)


def test_same_seed_same_track(clip):
    frames, boxes = clip
    first, again = (track(frames[:8], boxes[0], MIOTracker(random_state=3)) for _ in range(2))
    np.testing.assert_array_equal(first.boxes, again.boxes)
    np.testing.assert_array_equal(first.scores, again.scores)


def test_memory_is_bounded(clip):
    frames, boxes = clip
    features = HaarFeatures(n_features=90, n_nearest=30)
    tracker = MIOTracker(memory=(3, 6, 8), features=features, random_state=0)
    track(frames, boxes[0], tracker)
    assert len(tracker.state_.voters) == 5
    for voter in tracker.state_.voters:
        assert voter.memory.features.shape == (17, 90)
        assert voter.memory.used.all()
        G = voter.memory.similarity
        np.testing.assert_allclose(G, G.T, atol=1e-2)  # slack in the distances
        np.testing.assert_allclose(np.diag(G), 1, atol=1e-6)


def flat(value):
    """Every array and number in a state."""
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in flat(part)]
    return [np.array(value)] if isinstance(value, (np.ndarray, float, int, bool)) else []


def test_a_step_leaves_the_state_as_it_was(clip):
    frames, boxes = clip
    state, _ = step(start(frames[0], boxes[0], seed=3), frames[1])
    before = flat(state)
    after, seen = step(state, frames[2])
    again, seen_again = step(state, frames[2])
    for old, now in zip(before, flat(state), strict=True):
        np.testing.assert_array_equal(old, now)
    for one, other in zip(flat(after), flat(again), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(seen.box, seen_again.box)
    assert after.n_frames == state.n_frames + 1 == 3


def test_the_tracker_holds_what_start_and_step_give(clip):
    frames, boxes = clip
    tracker = MIOTracker(random_state=5, n_voters=2, growth=1)
    tracker.init(frames[0], boxes[0])
    state = start(frames[0], boxes[0], MIOTracker(n_voters=2, growth=1), seed=5)
    for frame in frames[1:4]:
        ok, box = tracker.update(frame)
        state, seen = step(state, frame)
        assert (ok, tracker.score_) == (seen.ok, seen.confidence)
        np.testing.assert_array_equal(tracker.box_, seen.box)
        assert box == tuple(np.rint(seen.box).astype(int))


def test_scores_are_those_of_a_loop_over_memory(clip):
    frames, boxes = clip
    state, _ = step(start(frames[0], boxes[0], seed=0), frames[1])
    view = voters.see(state, frames[1], state.pose)
    places = voters.corner(state, view, state.pose) + np.array([[0, 0], [3, -2], [-7, 5]])
    fast = voters.scores(state, state.voters, view, places)
    settings = state.settings
    for v, voter in enumerate(state.voters):
        w = weights(voter.memory.pi, ElasticNet(settings.alpha, settings.beta))
        for p, place in enumerate(places):
            patch = HaarFeatures().describe(view.maps, place[None], voter.bank)
            gaps = naive.nearest_distances(patch, voter.memory.features, 64)[0]
            expected = w[0] * settings.bias + np.exp(-gaps / voter.sigma2) @ w[1:]
            assert fast[v, p] == pytest.approx(expected, abs=0.02)


def test_the_place_is_the_median_of_the_votes(clip, monkeypatch):
    frames, boxes = clip
    state = start(frames[0], boxes[0], seed=0)
    view = voters.see(state, frames[0], state.pose)
    here = voters.corner(state, view, state.pose)
    liked = np.array([[1, 0], [2, 2], [-20, 0]]) + here  # the third voter goes astray

    def votes(state, members, view, positions):
        gaps = np.linalg.norm(positions[None] - liked[:, None], axis=2)
        return 2 - gaps / 10

    monkeypatch.setattr(voters, "scores", votes)
    place = voters.search(state, view, state.pose, 25) - state.size / 2
    np.testing.assert_array_equal(place - here, [1, 0])


def warped(image, angle, scale, shift):
    """The image turned, scaled and moved about its middle."""
    middle = (np.array(image.shape[::-1]) - 1) / 2
    M = cv2.getRotationMatrix2D(tuple(middle), -np.degrees(angle), scale)
    M[:, 2] += shift
    return cv2.warpAffine(image, M, image.shape[::-1], borderMode=cv2.BORDER_REFLECT), middle


@pytest.mark.parametrize(
    ("angle", "scale", "shift"), [(0.0, 1.0, (2.5, -1.25)), (0.2, 1.0, (0, 0)), (0.0, 1.08, (1, 1))]
)
def test_alignment_finds_a_known_transform(angle, scale, shift):
    noise = np.random.default_rng(0).integers(0, 255, (120, 140), dtype=np.uint8)
    image = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3), None, 0, 255, cv2.NORM_MINMAX)
    moved, middle = warped(image, angle, scale, shift)
    picture = cut(image, middle + 0.5, 1.0, np.array([50, 60]))
    match = align((0.5 * moved + 20).astype(np.uint8), picture, middle, angle / 2, 1.35)  # dimmed
    np.testing.assert_allclose(match.centre, middle + shift, atol=0.1)
    assert match.angle == pytest.approx(angle, abs=0.01)
    np.testing.assert_allclose(match.axes, scale, atol=0.02)
    assert match.correlation > 0.98


def test_alignment_with_something_else_is_refused(clip):
    frames, _ = clip
    picture = cut(frames[0], np.array([60.0, 45.0]), 1.0, np.array([30, 30]))
    match = align(np.full_like(frames[0], 128), picture, np.array([60.0, 45.0]), 0.0, 1.35)
    assert match is None or not match.correlation > 0.6


def test_cut_takes_a_picture_at_the_given_scale():
    ramp = np.tile(np.arange(100, dtype=np.uint8), (100, 1))
    picture = cut(ramp, np.array([50.0, 50.0]), 2.0, np.array([16, 24]))
    assert picture.shape == (24, 16)
    np.testing.assert_allclose(picture[0], 49.5 + 2 * (np.arange(16) - 7.5), atol=1)


def test_candidates_are_where_the_picture_was_pasted(clip):
    frames, boxes = clip
    large = cv2.resize(frames[0], None, fx=3, fy=3)
    x, y, w, h = boxes[0] * 3
    picture = cut(large, np.array([x + w / 2, y + h / 2]), 1.0, np.array([int(w), int(h)]))
    centre, *others = candidates(large, [picture], 1.0, 3)
    np.testing.assert_allclose(centre, [x + w / 2, y + h / 2], atol=5)
    assert all(np.abs(other - centre).max() > w / 4 for other in others)
    assert len(candidates(large, [picture], 1.0, 2)) <= 2


def test_resemblance_is_the_correlation():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 255, (9, 7), dtype=np.uint8) for _ in range(2))
    assert resemblance(a, b) == pytest.approx(np.corrcoef(a.ravel(), b.ravel())[0, 1], abs=1e-4)


def test_says_when_the_target_is_gone_and_finds_it_again(clip):
    frames, boxes = clip
    tracker = MIOTracker(random_state=0)
    tracker.init(frames[0], boxes[0])
    for frame in frames[1:6]:
        assert tracker.update(frame)[0]
    blank = np.full_like(frames[0], 128)
    kept = tracker.state_.voters
    for _ in range(4):
        assert not tracker.update(blank)[0]
        assert tracker.state_.voters is not kept  # they learn, those from before the doubt do not
        for old, now in zip(flat(kept), flat(tracker.state_.before_doubt), strict=True):
            np.testing.assert_array_equal(old, now)
    ok, box = tracker.update(frames[6])
    assert ok
    assert tracker.state_.before_doubt == ()
    assert np.hypot(box[0] - boxes[6][0], box[1] - boxes[6][1]) < 2


def test_finds_a_target_that_comes_back_elsewhere():
    rng = np.random.default_rng(1)
    back, target = (
        cv2.GaussianBlur(rng.integers(0, 255, size, dtype=np.uint8), (0, 0), 2)
        for size in ((200, 300), (40, 40))
    )
    target = cv2.normalize(target, None, 0, 255, cv2.NORM_MINMAX)
    frames = []
    for place in [(20, 20)] * 6 + [None] * 4 + [(240, 140)] * 4:
        frame = back.copy()
        if place is not None:
            frame[place[1] : place[1] + 40, place[0] : place[0] + 40] = target
        frames.append(frame)
    result = track(frames, (20, 20, 40, 40), MIOTracker(random_state=0))
    np.testing.assert_array_equal(result.found, [1] * 6 + [0] * 4 + [1] * 4)
    np.testing.assert_allclose(result.boxes[-1], [240, 140, 40, 40], atol=1.5)


def test_follows_a_target_to_the_border_and_beyond(clip):
    rng = np.random.default_rng(2)
    back, target = (
        cv2.GaussianBlur(rng.integers(0, 255, size, dtype=np.uint8), (0, 0), 2)
        for size in ((120, 160), (30, 30))
    )
    target = cv2.normalize(target, None, 0, 255, cv2.NORM_MINMAX)
    frames, boxes = [], []
    for x in range(100, 141, 4):
        frame = np.pad(back, 40, mode="edge")
        frame[90:120, 40 + x : 70 + x] = target
        frames.append(frame[40:-40, 40:-40])
        boxes.append([x, 50, 30, 30])
    result = track(frames, boxes[0], MIOTracker(random_state=0))
    assert centre_error(result.boxes, np.array(boxes, float)) < 2


def test_goes_back_from_what_hid_the_target():
    frames, boxes = (part[:60] for part in make_clip("hidden", 103))
    result = track(frames, boxes[0], MIOTracker(random_state=103))
    lost = np.flatnonzero(~result.found)
    assert len(lost) > 4
    assert lost.min() > 20  # the board covers more than half of the target in frames 26 to 34
    assert lost.max() < 40
    assert centre_error(result.boxes[40:], boxes[40:]) < 1.5


def changing_target(share):
    """A target at rest whose texture gives way to another one; ``share`` of it in each frame."""
    rng = np.random.default_rng(4)
    back, one, other = (
        cv2.GaussianBlur(rng.integers(0, 255, size, dtype=np.uint8), (0, 0), 2).astype(float)
        for size in ((90, 120), (26, 26), (26, 26))
    )
    frames = []
    for part in share:
        frame = back + rng.normal(0, 2, back.shape)
        texture = (1 - part) * one + part * other
        frame[30:56, 40:66] = 128 + 3 * (texture - texture.mean())
        frames.append(np.clip(frame, 0, 255).astype(np.uint8))
    return frames, np.tile([40.0, 30.0, 26.0, 26.0], (len(frames), 1))


def test_a_gradual_change_is_followed():
    frames, boxes = changing_target(np.linspace(0, 1, 50))
    result = track(frames, boxes[0], MIOTracker(random_state=0))
    assert centre_error(result.boxes, boxes) < 2
    assert result.found.all()


def test_several_targets_are_followed_as_each_alone():
    frames, boxes = moving_target(8)
    second = (2.0, 60.0, 24.0, 24.0)
    both = track_many(frames, [boxes[0], second], [MIOTracker(random_state=i) for i in range(2)])
    for i, box in enumerate((boxes[0], second)):
        alone = track(frames, box, MIOTracker(random_state=i))
        np.testing.assert_array_equal(both[i].boxes, alone.boxes)
        np.testing.assert_array_equal(both[i].scores, alone.scores)
    with pytest.raises(ValueError, match="at least one box"):
        track_many(frames, [])


def test_leaps_of_a_fast_target_are_followed():
    frames, boxes = (part[:25] for part in make_clip("fast", 104))
    steps = np.hypot(*np.diff(boxes[:, :2], axis=0).T)
    assert steps.max() > 20
    result = track(frames, boxes[0], MIOTracker(random_state=0))
    overlap = [box_iou(a[None], b[None])[0, 0] for a, b in zip(result.boxes, boxes, strict=True)]
    assert min(overlap) > 0.8


def test_frames_of_changing_size(clip):
    frames, boxes = clip
    tracker = MIOTracker(random_state=0)
    tracker.init(frames[0], boxes[0])
    double = cv2.resize(frames[1], None, fx=2, fy=2)
    ok, box = tracker.update(double)
    assert ok
    np.testing.assert_allclose(box, boxes[1] * 2, atol=4)
    np.testing.assert_allclose(tracker.update(frames[2])[1], boxes[2], atol=3)


def test_large_targets_are_shrunk(clip):
    frames, boxes = clip
    big = np.stack([cv2.resize(f, None, fx=5, fy=5) for f in frames[:4]])
    result = track(big, boxes[0] * 5, MIOTracker(random_state=0, side=40))
    assert centre_error(result.boxes, boxes[:4] * 5) < 10


@pytest.mark.parametrize("kind", ["grey", "channel", "bgr", "bgra", "deep", "float"])
def test_kinds_of_frames(clip, kind):
    frame, box = clip[0][0], clip[1][0]
    made = {
        "grey": frame,
        "channel": frame[..., None],
        "bgr": np.repeat(frame[..., None], 3, axis=2),
        "bgra": np.repeat(frame[..., None], 4, axis=2),
        "deep": frame.astype(np.uint16) * 257,
        "float": frame / 255,
    }[kind]
    tracker = MIOTracker(random_state=0)
    tracker.init(made, box)
    found, place = tracker.update(made)
    assert found
    np.testing.assert_allclose(place, box, atol=1)


@pytest.mark.parametrize(
    ("box", "words"),
    [
        ((500, 10, 20, 20), "inside the frame"),
        ((10, 10, 2, 20), "at least 4 x 4"),
        ((10, 10, 0, 0), "at least 4 x 4"),
        ((10, 10, 20), "four finite numbers"),
        ((10, np.nan, 20, 20), "four finite numbers"),
        ((0, 0, 120, 90), "shows no background"),
    ],
)
def test_bad_boxes(clip, box, words):
    with pytest.raises(ValueError, match=words):
        MIOTracker(random_state=0).init(clip[0][0], box)


def test_a_box_across_the_border_is_cut():
    assert check_box((-5, -6, 20, 20), 90, 120) == (0, 0, 15, 14)
    assert check_box((110, 80, 40, 40), 90, 120) == (110, 80, 10, 10)


def test_bad_frames(clip):
    with pytest.raises(ValueError, match="shape"):
        as_grey(np.zeros((3, 3, 2)))
    with pytest.raises(ValueError, match="shape"):
        as_grey(np.zeros((0, 4)))
    with pytest.raises(ValueError, match="init"):
        MIOTracker().update(clip[0][0])
    with pytest.raises(ValueError, match="no frames"):
        track([], (0, 0, 5, 5))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"features": HaarFeatures(n_features=9, n_nearest=10)}, "at most n_features"),
        ({"features": "haar"}, "features"),
        ({"n_voters": 0}, "n_voters"),
        ({"negative_radius": (2, 50)}, "must hold"),
        ({"memory": (5, 0, 5)}, "positive numbers"),
        ({"cost": (1.0,)}, "2 positive numbers"),
        ({"alpha": -1}, "alpha"),
        ({"motion": -1}, "motion"),
        ({"growth": 0.9}, "growth"),
    ],
)
def test_bad_settings(clip, setting, words):
    with pytest.raises(ValueError, match=words):
        MIOTracker(**setting).init(clip[0][0], clip[1][0])


def test_is_cloned_like_any_estimator():
    assert clone(MIOTracker(n_voters=5)).n_voters == 5
    assert MIOTracker().get_params()["random_state"] is None


def test_disc():
    steps = disc(4, 2)
    assert [0, 0] in steps.tolist()
    assert np.all(steps % 2 == 0)
    assert np.hypot(*steps.T).max() <= 4


def test_video_round_trip(clip, tmp_path):
    frames, boxes = clip
    path = tmp_path / "out.avi"
    drawn = [np.repeat(frame[..., None], 3, axis=2) for frame in frames[:5]]
    drawn.append(np.zeros((45, 60, 3), np.uint8))  # another size
    one = Track(boxes[:6], np.arange(6) < 5, np.full(6, 0.5))
    write_video(path, 10, drawn, [one, one])
    assert [p.name for p in tmp_path.iterdir()] == ["out.avi"]
    back = list(read_frames(path))
    assert len(back) == 6
    assert back[0].shape == (90, 120, 3)
    assert frame_rate(path) == 10
    assert count_frames(path) == 6


def test_frames_from_a_folder(clip, tmp_path):
    for i, frame in enumerate(clip[0][:3]):
        cv2.imwrite(str(tmp_path / f"{i:03}.png"), frame)
    frames = list(read_frames(tmp_path))
    np.testing.assert_array_equal(frames[2][..., 0], clip[0][2])
    assert frame_rate(tmp_path) == 25
    assert count_frames(tmp_path) == 3


def test_bad_videos(tmp_path):
    empty = tmp_path / "empty.mp4"
    empty.touch()
    with pytest.raises(ValueError, match=r"empty\.mp4"):
        list(read_frames(empty))
    broken = tmp_path / "broken.avi"
    broken.write_bytes(b"RIFF" + b"\0" * 100)
    with pytest.raises(ValueError, match="corrupt"):
        list(read_frames(broken))
    with pytest.raises(ValueError, match="neither"):
        list(read_frames(tmp_path / "absent.mp4"))
    with pytest.raises(ValueError, match=r"\.mp4 or \.avi"):
        write_video(tmp_path / "x.gif", 10, [], [])


def test_the_experiment_measures_and_continues(tmp_path, monkeypatch):
    table = tracking_experiment.run(True, tmp_path, trackers=("MIO", "CSRT (OpenCV)"))
    plain = table[(table["data"] == "plain") & (table["metric"] == "centre error, px")]
    assert plain["model"].tolist() == ["MIO", "CSRT (OpenCV)"]
    assert plain["mean"].max() < 2
    speed = table[(table["metric"] == "ms per frame") & (table["model"] == "MIO")]
    of_all = speed["data"] == "all sequences"
    assert speed["mean"][of_all].item() == pytest.approx(speed["mean"][~of_all].mean())
    # What was measured is kept: no tracker runs again.
    monkeypatch.setattr(tracking_experiment, "_tracker", None)
    again = tracking_experiment.run(True, tmp_path, trackers=("MIO", "CSRT (OpenCV)"))
    assert again.equals(table)


def test_a_tracker_that_draws_nothing_meets_a_film_once():
    every = list(tracking_experiment.TRACKERS)
    assert tracking_experiment._drawing(every, "david", first=True) == every
    assert tracking_experiment._drawing(every, "david", first=False) == every[:2]
    assert tracking_experiment._drawing(every, "plain", first=False) == every


def test_runs_are_repeated_when_the_tracker_has_changed(monkeypatch):
    before = tracking_experiment._stem("MIO")
    monkeypatch.setattr(tracking_experiment, "_version", lambda: "changed")
    assert before != tracking_experiment._stem("MIO")
    assert tracking_experiment._stem("MIL (OpenCV)") == "MIL"


def test_made_clips_say_when_the_target_cannot_be_seen():
    _, covered = make_clip("occluded", 100)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(covered).any(axis=1)), np.arange(50, 90))
    _, gone = make_clip("gone", 100)
    away = np.flatnonzero(np.isnan(gone).any(axis=1))
    assert 20 < len(away) < 60
    assert np.isfinite(gone[[0, -1]]).all()
