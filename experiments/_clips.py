"""Clips with a known target: a face or a flower pasted on a photograph, in twelve situations."""

from __future__ import annotations

from typing import Any

import numpy as np

KINDS = (
    "plain",
    "light",
    "hidden",
    "scale",
    "turn",
    "clutter",
    "occluded",
    "gone",
    "distractor",
    "fast",
    "blurred",
    "noisy",
)
_SIZE = (320, 240)  # width, height of a frame
_TARGET = (48, 60)
_COVERED = (50, 90)  # frames in which "occluded" hides the target altogether
_VISIBLE = 0.25  # a target of which less is visible has no true box


def make_clip(kind: str, seed: int = 0, n_frames: int = 120) -> tuple[Any, Any]:
    """Grey frames [T, H, W] of one kind, and the target's box in each [T, 4].

    The box is NaN where the target cannot be seen: covered, or outside the frame.
    """
    import cv2

    rng = np.random.default_rng([seed, KINDS.index(kind)])
    scene, target = _photographs("flower" if kind in KINDS[6:] and seed % 2 else "face")
    corner = rng.integers(0, [scene.shape[1] - 360, scene.shape[0] - 280])
    mask = np.zeros(_TARGET[::-1], dtype=np.float32)
    cv2.ellipse(mask, (24, 30), (23, 29), 0, 0, 360, 1.0, -1)
    if kind == "clutter":
        _scatter(scene, target, mask, rng)
    phase, pace = rng.uniform(0, 2 * np.pi, 6), rng.uniform(0.7, 1.3, 6)
    side = rng.choice([-1, 1])
    frames, boxes = [], []
    for i in range(n_frames):
        t = i / n_frames * 2 * np.pi
        wave = np.sin(pace * t * np.array([1, 1.6, 1.2, 1.5, 2, 1]) + phase)
        pan = (corner + 18 + 18 * wave[4:]).astype(int)
        frame = scene[pan[1] : pan[1] + _SIZE[1], pan[0] : pan[0] + _SIZE[0]].astype(np.float32)
        if kind == "fast":  # up to 30 pixels from frame to frame
            wave[:2] = np.sin(4 * pace[:2] * t * np.array([1, 1.6]) + phase[:2])
        centre = np.array(_SIZE) / 2 + wave[:2] * [100, 60]
        if kind == "gone":  # leaves through a side for about a third of the clip
            centre[0] = _SIZE[0] / 2 + side * 260 * np.sin(t / 2) ** 4
        scale = 1.5 ** (wave[2] - np.sin(phase[2])) if kind == "scale" else 1.0
        angle = 30 * np.sin(2 * t) if kind == "turn" else 0.0
        if kind == "distractor":  # the target's mirror image, round which it goes
            near = centre + 70 * np.array([np.cos(3 * t + phase[3]), np.sin(3 * t + phase[3])])
            _paste(frame, target[:, ::-1], mask, near)
        _paste(frame, target, mask, centre, scale, angle)
        if kind == "hidden":
            _cover(frame, scene, centre, t)
        covered = kind == "occluded" and _COVERED[0] <= i < _COVERED[1]
        if covered:
            _curtain(frame, scene, centre)
        if kind == "light":
            frame = _light(frame, t)
        if kind == "blurred":
            frame = cv2.GaussianBlur(frame, (0, 0), 0.3 + 2.7 * np.sin(2 * t) ** 2)
        frame += rng.normal(0, 25 if kind == "noisy" else 3, frame.shape)
        frames.append(np.clip(frame, 0, 255).astype(np.uint8))
        size = np.array(_TARGET) * scale
        box = np.array([*(centre - size / 2), *size])
        seen = not covered and _share_inside(box) >= _VISIBLE
        boxes.append(box if seen else np.full(4, np.nan))
    return np.stack(frames), np.asarray(boxes)


def _share_inside(box: Any) -> float:
    """The share of a box that lies inside the frame."""
    low = np.maximum(box[:2], 0)
    high = np.minimum(box[:2] + box[2:], _SIZE)
    return float(np.prod(np.maximum(high - low, 0)) / np.prod(box[2:]))


def _photographs(target: str = "face") -> tuple[Any, Any]:
    """A grey scene and a target, from pictures that scikit-learn and matplotlib carry."""
    import cv2
    from matplotlib.cbook import get_sample_data
    from sklearn.datasets import load_sample_image

    scene = cv2.cvtColor(load_sample_image("china.jpg"), cv2.COLOR_RGB2GRAY)
    if target == "flower":
        flower = cv2.cvtColor(load_sample_image("flower.jpg"), cv2.COLOR_RGB2GRAY)
        return scene, cv2.resize(flower[20:420, 150:470], _TARGET, interpolation=cv2.INTER_AREA)
    with get_sample_data("grace_hopper.jpg") as file:
        portrait = cv2.imdecode(np.frombuffer(file.read(), np.uint8), cv2.IMREAD_GRAYSCALE)
    return scene, cv2.resize(portrait[50:260, 170:338], _TARGET, interpolation=cv2.INTER_AREA)


def _paste(
    frame: Any, target: Any, mask: Any, centre: Any, scale: float = 1.0, angle: float = 0.0
) -> None:
    """Blend the target into the frame in place, its middle at ``centre``."""
    import cv2

    M = cv2.getRotationMatrix2D((_TARGET[0] / 2, _TARGET[1] / 2), angle, scale)
    M[:, 2] += np.asarray(centre) - [_TARGET[0] / 2, _TARGET[1] / 2]
    size = frame.shape[1::-1]
    share = cv2.warpAffine(mask, M, size)
    frame += share * (cv2.warpAffine(target.astype(np.float32), M, size) - frame)


def _scatter(scene: Any, target: Any, mask: Any, rng: Any) -> None:
    """Thirty look-alikes in the scene: the target upside down, mirrored, or with halves swapped."""
    kinds = [target[::-1], target[:, ::-1], np.roll(target, 30, axis=0)]
    canvas = scene.astype(np.float32)
    for i in range(30):
        _paste(canvas, kinds[i % 3], mask, rng.uniform([0, 0], canvas.shape[1::-1]))
    scene[:] = np.clip(canvas, 0, 255).astype(np.uint8)


def _cover(frame: Any, scene: Any, centre: Any, t: float) -> None:
    """A board of 40 x 90 pixels that passes in front of the target twice."""
    x = int(centre[0] - 20 + 90 * np.cos(t))
    y = int(centre[1] - 45)
    left, top = max(x, 0), max(y, 0)
    right, bottom = min(x + 40, frame.shape[1]), min(y + 90, frame.shape[0])
    if left < right and top < bottom:
        frame[top:bottom, left:right] = scene[
            200 + top - y : 200 + bottom - y, left - x : right - x
        ]


def _curtain(frame: Any, scene: Any, centre: Any) -> None:
    """A piece of the scene, larger than the target, in front of it."""
    x, y = (int(v) for v in centre - [45, 50])
    left, top = max(x, 0), max(y, 0)
    right, bottom = min(x + 90, frame.shape[1]), min(y + 100, frame.shape[0])
    frame[top:bottom, left:right] = scene[250 + top - y : 250 + bottom - y, left - x : right - x]


def _light(frame: Any, t: float) -> Any:
    """The lamp dims to a third and moves from left to right."""
    side = np.linspace(-0.5, 0.5, frame.shape[1], dtype=np.float32)
    return frame * (0.65 + 0.35 * np.cos(2 * t)) * (1 + side * np.sin(t))
