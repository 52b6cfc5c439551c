"""Digits on cluttered canvases: images of a class whose true boxes are known exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.datasets import load_digits

from bagwise.vision import ImageSet


def make_digit_canvases(
    n_images: int = 100,
    *,
    digit: int = 9,
    digits: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    random_state: int | None = None,
) -> ImageSet:
    """Draw digits of random size and place on canvases of coloured blots and lines.

    Every canvas of 128 x 128 holds three digits of other classes and eight blots and lines; half of
    them hold the wanted digit as well. Its true boxes are known, those of the others are not part
    of the set. ``digits`` (n, h, w) and ``labels`` (n,) are scikit-learn's by default.
    """
    rng = np.random.default_rng(random_state)
    if digits is None or labels is None:
        source = load_digits()
        digits, labels = source.images * (255 / 16), source.target
    digits, labels = np.asarray(digits), np.asarray(labels)
    wanted, others = np.flatnonzero(labels == digit), np.flatnonzero(labels != digit)
    if len(wanted) == 0 or len(others) == 0:
        raise ValueError(f"digits must hold {digit} and other digits.")
    Y = rng.permutation(np.arange(n_images) % 2)
    images, boxes = [], []
    for positive in Y:
        canvas = _draw_clutter(128, 8, rng)
        places: list[tuple[int, int, int]] = []
        true: dict[str, Any] = {}
        if positive:
            box = _place_digit(canvas, digits[rng.choice(wanted)], places, rng)
            true[str(digit)] = np.array([box], dtype=np.float64)
        for index in rng.choice(others, 3):
            _place_digit(canvas, digits[index], places, rng)
        noise = rng.normal(0, 6, canvas.shape)
        images.append(np.clip(canvas + noise, 0, 255).astype(np.uint8))
        boxes.append(true)
    names = tuple(f"canvas_{i:04}" for i in range(n_images))
    matrix = Y[:, None].astype(np.int8)
    return ImageSet(tuple(images), names, (str(digit),), matrix, tuple(boxes))


def _draw_clutter(size: int, n_pieces: int, rng: np.random.Generator) -> Any:
    """A smooth ground with blots and lines on it."""
    import cv2

    ground = rng.integers(20, 90, (4, 4, 3)).astype(np.float32)
    canvas = cv2.resize(ground, (size, size), interpolation=cv2.INTER_CUBIC)
    for _ in range(n_pieces):
        colour = tuple(float(v) for v in rng.integers(20, 170, 3))
        a, b = (tuple(int(v) for v in rng.integers(0, size, 2)) for _ in range(2))
        if rng.random() < 0.5:
            cv2.line(canvas, a, b, colour, int(rng.integers(1, 3)), cv2.LINE_AA)
        else:
            axes = tuple(int(v) for v in rng.integers(2, size // 14, 2))
            cv2.ellipse(canvas, a, axes, float(rng.uniform(0, 180)), 0, 360, colour, -1)
    return canvas


def _place_digit(
    canvas: Any, digit: Any, places: list[tuple[int, int, int]], rng: np.random.Generator
) -> list[int]:
    """Draw a digit where it meets no other one, as far as a few tries go; its tight box."""
    import cv2

    size = len(canvas)
    for _ in range(30):
        side = int(rng.integers(size // 5, size // 3))
        x, y = (int(v) for v in rng.integers(0, size - side, 2))
        if all(x + side <= a or a + s <= x or y + side <= b or b + s <= y for a, b, s in places):
            break
    places.append((x, y, side))
    ink = cv2.resize(digit.astype(np.float32), (side, side), interpolation=cv2.INTER_CUBIC)
    ink = np.clip(ink / 255, 0, 1)[..., None]
    colour = rng.integers(200, 256, 3).astype(np.float32)
    patch = canvas[y : y + side, x : x + side]
    patch[:] = patch * (1 - ink) + colour * ink
    rows, columns = (np.flatnonzero((ink[..., 0] > 0.3).any(axis=axis)) for axis in (1, 0))
    left, top = x + columns[0], y + rows[0]
    return [left, top, columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
