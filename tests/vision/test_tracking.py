"""The tracker: kernels against loops, OpenCV's interface, lost targets, odd frames."""

from __future__ import annotations

import numpy as np
import pytest
from experiments._clips import make_clip
from sklearn.base import clone

from bagwise.core.mio import ElasticNet, weights
from bagwise.evaluate import centre_error
from bagwise.vision import MIOTracker, track
from bagwise.vision.haar import (
    haar_features,
    nearest_distances,
    oriented_integrals,
    random_haar,
    rescaled,
)
from bagwise.vision.tracking import as_grey, check_box, disc
from bagwise.vision.video import VideoWriter, frame_rate, read_frames
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


def test_haar_features_match_sums_over_the_map():
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(2, 30, 40))
    totals = np.stack([cv2.integral(m) for m in maps])
    bank = random_haar(25, 11, 9, rng, n_channels=2)
    positions = rng.integers(0, 20, (5, 2))
    fast = haar_features(totals, positions, bank)
    np.testing.assert_allclose(fast, naive.haar_features(maps, positions, bank), atol=1e-5)


def test_haar_weights_cancel_a_constant():
    bank = random_haar(40, 20, 15, np.random.default_rng(0))
    totals = cv2.integral(np.full((30, 40), 7.0))[None]
    assert np.abs(haar_features(totals, np.array([[3, 4]]), bank)).max() < 1e-6
    inside = (bank.corners >= 0) & (bank.corners <= [20, 15, 20, 15])
    assert inside.all()


def test_rescaled_features_of_a_larger_patch_agree():
    rng = np.random.default_rng(0)
    small = cv2.GaussianBlur(rng.normal(size=(24, 30)), (0, 0), 2)
    large = np.kron(small, np.ones((2, 2)))
    bank = random_haar(25, 11, 9, rng)
    twice = rescaled(bank, 2.0)
    place = np.array([[4, 6]])
    expected = haar_features(cv2.integral(small)[None], place, bank)
    found = haar_features(cv2.integral(large)[None], 2 * place, twice)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found, naive.haar_features(large[None], 2 * place, twice), atol=1e-6)


@pytest.mark.parametrize("scale", [0.77, 0.95, 1.3])
def test_rescaled_rectangles_stay_in_the_patch(scale):
    bank = rescaled(random_haar(60, 21, 16, np.random.default_rng(0)), scale)
    assert bank.corners.min() >= 0
    assert np.all(bank.corners[..., 2:] <= np.ceil(np.array([21, 16]) * scale))
    assert np.all(bank.corners[..., 2:] > bank.corners[..., :2])


def test_oriented_integrals_match_loops():
    grey = np.random.default_rng(1).integers(0, 255, (12, 15), dtype=np.uint8)
    pixels = grey.astype(np.float32)
    gx, gy = cv2.Sobel(pixels, cv2.CV_32F, 1, 0), cv2.Sobel(pixels, cv2.CV_32F, 0, 1)
    magnitude = cv2.magnitude(gx, gy)
    strength = magnitude / (cv2.blur(magnitude, (5, 5)) + 4.0)
    maps = naive.oriented_maps(gx, gy, strength, 4)
    expected = np.stack([cv2.integral(m) for m in maps])
    np.testing.assert_allclose(oriented_integrals(grey, 5), expected, atol=1e-3)


def test_integrals_do_not_depend_on_where_the_frame_lies_in_memory():
    grey = np.random.default_rng(2).integers(0, 255, (90, 121), dtype=np.uint8)
    expected, held = oriented_integrals(grey, 11), []
    for n in range(1, 40):
        held.append(np.empty(1003 * n))  # moves the arrays that come after it
        np.testing.assert_array_equal(oriented_integrals(grey, 11), expected)


def test_a_change_of_light_changes_little():
    grey = np.random.default_rng(1).integers(40, 120, (40, 40), dtype=np.uint8)
    bank = random_haar(50, 20, 20, np.random.default_rng(0), n_channels=4)
    place = np.array([[10, 10]])
    dim, bright = (
        haar_features(oriented_integrals(image, 11), place, bank)
        for image in (grey, (grey * 1.8 + 20).astype(np.uint8))
    )
    assert np.abs(dim - bright).max() < 0.15 * np.abs(dim).max()


@pytest.mark.parametrize("seed", [0, 1])
def test_follows_the_target(clip, seed):
    frames, boxes = clip
    result = track(frames, boxes[0], MIOTracker(random_state=seed))
    assert centre_error(result.boxes, boxes) < 2
    assert result.found.all()
    assert result.scores.min() > 0


def test_the_box_grows_with_the_target():
    frames, boxes = (part[:50] for part in make_clip("scale"))
    result = track(frames, boxes[0], MIOTracker(random_state=0))
    assert centre_error(result.boxes, boxes) < 3
    assert abs(np.log(result.boxes[:, 2] / boxes[:, 2])).max() < 0.25
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
    tracker = MIOTracker(memory=(3, 6, 8), random_state=0)
    track(frames, boxes[0], tracker)
    assert tracker._memory.features.shape == (17, 500)
    assert tracker._memory.used.all()
    G = tracker._memory.similarity
    np.testing.assert_allclose(G, G.T, atol=1e-6)
    np.testing.assert_allclose(np.diag(G), 1, atol=1e-6)


def test_says_when_the_target_is_gone_and_finds_it_again(clip):
    frames, boxes = clip
    tracker = MIOTracker(random_state=0)
    tracker.init(frames[0], boxes[0])
    for frame in frames[1:6]:
        assert tracker.update(frame)[0]
    score, pi = tracker.score_, tracker._memory.pi.copy()
    blank = np.full_like(frames[0], 128)
    for _ in range(4):
        assert not tracker.update(blank)[0]
        assert tracker.score_ < min(score, 0)
    np.testing.assert_array_equal(pi, tracker._before._memory.pi)  # the copy learns nothing
    assert np.any(pi != tracker._memory.pi)
    ok, box = tracker.update(frames[6])
    assert ok
    assert np.hypot(box[0] - boxes[6][0], box[1] - boxes[6][1]) < 4


def test_goes_back_from_what_hid_the_target():
    frames, boxes = (part[:60] for part in make_clip("hidden", 103))
    result = track(frames, boxes[0], MIOTracker(random_state=103))
    lost = np.flatnonzero(~result.found)
    assert len(lost) > 4
    assert lost.min() > 20  # the board covers more than half of the target in frames 26 to 34
    assert lost.max() < 40
    assert result.scores[lost].max() <= 0
    assert centre_error(result.boxes[40:], boxes[40:]) < 3


def test_in_doubt_the_score_is_that_of_the_bag_to_the_copy(clip):
    frames, boxes = clip
    tracker = MIOTracker(random_state=0, growth=1)
    track(frames[:4], boxes[0], tracker)
    noise = np.random.default_rng(5).integers(0, 255, frames[0].shape, dtype=np.uint8)
    for _ in range(2):
        assert not tracker.update(noise)[0]
    memory, bank = tracker._before._memory, tracker._bank
    w = weights(memory.pi, ElasticNet(tracker.alpha, tracker.beta))
    values = []
    for step in disc(tracker.positive_radius, 1):
        corner = (tracker._position + step)[None]
        if np.any(corner < 0) or np.any(corner > tracker._limit()):
            continue
        patch = haar_features(tracker._view.totals, corner, bank)
        gaps = naive.nearest_distances(patch, memory.features, tracker.n_nearest)[0]
        values.append(w[0] * tracker.bias + np.exp(-gaps / tracker._sigma2) @ w[1:])
    assert tracker.score_ == pytest.approx(max(values), abs=1e-4)


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


@pytest.mark.parametrize("patience", [3, 8])
def test_doubt_ends_with_patience(patience):
    share = np.r_[np.zeros(6), np.ones(12)]
    frames, boxes = changing_target(share)
    result = track(frames, boxes[0], MIOTracker(random_state=0, patience=patience))
    np.testing.assert_array_equal(np.flatnonzero(~result.found), 6 + np.arange(patience))
    assert result.scores[-1] > 0  # learned by now
    assert centre_error(result.boxes, boxes) < 4


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
        ((0, 0, 120, 90), "no room for background"),
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
        ({"n_nearest": 600}, "at most n_features"),
        ({"negative_radius": (2, 50)}, "must hold"),
        ({"memory": (5, 0, 5)}, "positive numbers"),
        ({"cost": (1.0,)}, "2 positive numbers"),
        ({"alpha": -1}, "alpha"),
        ({"doubt_below": 0.5}, "doubt_below"),
        ({"patience": 0}, "patience"),
    ],
)
def test_bad_settings(clip, setting, words):
    with pytest.raises(ValueError, match=words):
        MIOTracker(**setting).init(clip[0][0], clip[1][0])


def test_is_cloned_like_any_estimator():
    assert clone(MIOTracker(n_nearest=40)).n_nearest == 40


def test_disc():
    steps = disc(4, 2)
    assert [0, 0] in steps.tolist()
    assert np.all(steps % 2 == 0)
    assert np.hypot(*steps.T).max() <= 4


def test_video_round_trip(clip, tmp_path):
    frames, boxes = clip
    path = tmp_path / "out.avi"
    writer = VideoWriter(path, 10)
    for frame, box in zip(frames[:5], boxes, strict=False):
        writer.write(np.repeat(frame[..., None], 3, axis=2), box, True, 0.5)
    writer.write(np.zeros((45, 60, 3), np.uint8), boxes[5], False, -0.5)  # another size
    writer.close()
    back = list(read_frames(path))
    assert len(back) == 6
    assert back[0].shape == (90, 120, 3)
    assert frame_rate(path) == 10


def test_frames_from_a_folder(clip, tmp_path):
    for i, frame in enumerate(clip[0][:3]):
        cv2.imwrite(str(tmp_path / f"{i:03}.png"), frame)
    frames = list(read_frames(tmp_path))
    np.testing.assert_array_equal(frames[2][..., 0], clip[0][2])
    assert frame_rate(tmp_path) == 25


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
        VideoWriter(tmp_path / "x.gif", 10)
