"""Fits the probability that a tracker's box shows the target, on made clips of turning solids.

A target is a photograph wrapped around an upright cylinder that moves, turns, grows and shrinks in
front of another photograph; some change into a third one. It may be passed by a piece of a fourth
one, vanish for a while, leave the frame, be dimmed, blurred or noisy. The tracker follows it with
its present belief; what it notes about each box (`Evidence`) and whether the box overlaps the
target are the data of a logistic regression, weighted as if nine in ten frames showed the target,
which is about what films do. The tracker's course depends on its belief: fit,
paste the coefficients into `bagwise.vision.tracking.BELIEF`, and fit again until they settle. No
clip, film or seed of `experiments.tracking` is used here.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold

from bagwise.datasets import fetch_detection
from bagwise.evaluate import box_iou
from bagwise.vision import start, step
from bagwise.vision.tracking import BELIEF, belief_terms
from experiments._held_out import gather, main, table_row

TITLE = "Tracking: the belief that a box shows the target"
PAPER = "none: the rules of this library"
NEEDS = ("detection/scenes",)
SEEDS = range(1000, 1120)
TERMS = ("early voters", "chain", "constant")
_SIZE = np.array([320, 240])  # width, height of a frame
_FRAMES = 80
_SHOWN = 0.3  # least overlap at which a box shows the target
_VISIBLE = 0.25  # a target of which less is visible is not shown
_PRIOR = 0.9  # share of the frames of a film that show the target
_MOST_TURN = 0.8  # radians by which a target turns to each side


def solid_clip(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Frames [T, H, W] of a turning target, and its box in each [T, 4], NaN where it is hidden."""
    rng = np.random.default_rng([seed, 47])
    scene, one, another, board = _photographs(rng)
    sides = np.rint(rng.uniform(36, 64) * np.array([1.0, rng.uniform(0.8, 1.5)])).astype(int)
    phase, pace = rng.uniform(0, 2 * np.pi, 6), rng.uniform(0.4, 1.2, 6)
    reach = rng.uniform(0.3, 1.0) * (_SIZE / 2 - sides / 2) * (1.5 if rng.random() < 0.2 else 1)
    turn = rng.choice([0.0, rng.uniform(0.2, _MOST_TURN)])
    change, sudden = rng.integers(2), rng.uniform(1.0, 4.0)
    growth = rng.choice([1.0, rng.uniform(1.1, 1.6)])
    dimming, blur = rng.choice([0.0, 0.5]), rng.choice([0.0, 2.0])
    noise = rng.choice([2.0, 6.0])
    passing = rng.uniform(0.4, 0.8) if rng.random() < 0.5 else None  # when a board is in front
    board_size = np.rint(sides * rng.uniform(0.7, 1.6, 2)).astype(int)
    gone = rng.integers(20, 60) + np.array([0, 25]) if rng.random() < 0.3 else np.array([-1, -1])
    frames, boxes = [], []
    for i in range(_FRAMES):
        t = i / _FRAMES * 2 * np.pi
        wave = np.sin(pace * t + phase) - np.sin(phase)
        pan = (30 + 30 * np.sin(pace[4:] * t + phase[4:])).astype(int)
        frame = scene[pan[1] : pan[1] + _SIZE[1], pan[0] : pan[0] + _SIZE[0]].astype(np.float32)
        centre = _SIZE / 2 + reach * np.sin(pace[:2] * t + phase[:2])
        size = sides * growth ** wave[2]
        box = np.array([*(centre - size / 2), *size])
        visible = np.ones(frame.shape, dtype=np.float32)
        mask = np.zeros_like(visible)
        present = not gone[0] <= i < gone[1]
        if present:
            # Another photograph takes the place of the first: a logistic curve of a sine.
            other = change / (1 + np.exp(-sudden * (2 * wave[4] - 1)))
            texture = (1 - other) * one + other * another
            mask = _paste_cylinder(frame, texture, centre, size, turn * wave[3])
        if passing is not None:
            offset = np.array([6 * (i / _FRAMES - passing) * 100, 0.1 * sides[1]])
            _paste_board(frame, visible, board, centre + offset, board_size)
        frame *= 1 - dimming * np.sin(pace[5] * t) ** 2
        frame = _blurred(frame, blur * np.sin(pace[4] * t) ** 2)
        frame += rng.normal(0, noise, frame.shape)
        frames.append(np.clip(frame, 0, 255).astype(np.uint8))
        seen = (mask * visible).sum() / (0.75 * np.prod(size))  # an ellipse covers about 3/4
        boxes.append(box if seen >= _VISIBLE else np.full(4, np.nan))
    return np.stack(frames), np.asarray(boxes)


@functools.cache
def _scenes() -> list[bytes]:
    jpeg: list[bytes] = fetch_detection("scenes").jpeg
    return jpeg


def _photographs(rng: np.random.Generator) -> list[NDArray[np.float32]]:
    """Four of the everyday scenes, grey, large enough for a panning camera."""
    import cv2

    scenes = _scenes()
    smallest = _SIZE + 62
    photographs = []
    for i in rng.choice(len(scenes), 4, replace=False):
        grey = cv2.imdecode(np.frombuffer(scenes[i], np.uint8), cv2.IMREAD_GRAYSCALE)
        factor = float(np.max(smallest / grey.shape[::-1]))
        large = cv2.resize(grey, None, fx=factor, fy=factor).astype(np.float32)
        photographs.append(large[: smallest[1], : smallest[0]])
    return photographs


def _paste_cylinder(frame: Any, texture: Any, centre: Any, size: Any, yaw: float) -> Any:
    """Draw the cylinder in place; its share of each pixel."""
    import cv2

    y, x = np.indices(frame.shape, dtype=np.float32)
    u, v = 2 * (x - centre[0]) / size[0], 2 * (y - centre[1]) / size[1]
    # A radian of the cylinder is 50 pixels of the photograph, its height 100.
    column = 150 + 50 * (np.arcsin(np.clip(u, -1, 1)) + yaw)
    row = 120 + 50 * v
    surface = cv2.remap(
        texture,
        column.astype(np.float32),
        row.astype(np.float32),
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT,
    )
    mask = np.clip((1 - np.hypot(u, v)) * size[0] / 4, 0, 1).astype(np.float32)
    frame += mask * (surface - frame)
    return mask


def _paste_board(frame: Any, visible: Any, board: Any, centre: Any, size: Any) -> None:
    """A piece of a photograph in front; ``visible`` is 0 where it hides what is behind."""
    low = np.maximum(np.rint(centre - size / 2).astype(int), 0)
    high = np.minimum(np.rint(centre + size / 2).astype(int), _SIZE)
    if np.all(low < high):
        area = slice(low[1], high[1]), slice(low[0], high[0])
        frame[area] = board[: high[1] - low[1], : high[0] - low[0]]
        visible[area] = 0


def _blurred(frame: Any, sigma: float) -> Any:
    import cv2

    return cv2.GaussianBlur(frame, (0, 0), sigma) if sigma > 0.3 else frame


def evidence(seed: int) -> dict[str, Any]:
    """What the tracker notes in each frame of a clip, and whether its box shows the target."""
    import cv2

    cv2.setNumThreads(1)
    frames, truth = solid_clip(seed)
    low, high = truth[:, :2], truth[:, :2] + truth[:, 2:]
    first = int(np.argmax(np.all((low >= 0) & (high <= _SIZE), axis=1)))  # NaN compares as False
    state = start(frames[first], np.rint(truth[first]), seed=seed)
    terms, shown = [], []
    for frame, box in zip(frames[first + 1 :], truth[first + 1 :], strict=True):
        state, seen = step(state, frame)
        terms.append(belief_terms(*seen.evidence[:-1]).tolist())
        known = bool(np.isfinite(box).all())
        shown.append(known and bool(box_iou(seen.box[None], box[None])[0, 0] > _SHOWN))
    return {"seed": seed, "terms": terms, "shown": shown}


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Coefficients by all clips, and how well those by four fifths tell frames of the others."""
    clips = gather(evidence, [(seed,) for seed in SEEDS[: 10 if quick else None]], out, n_jobs)
    terms = np.concatenate([np.reshape(rows, (-1, len(TERMS))) for rows in clips["terms"]])
    shown = np.concatenate(list(clips["shown"])).astype(bool)
    clip = np.repeat(clips["seed"], [len(rows) for rows in clips["shown"]])
    weight = np.where(shown, _PRIOR / shown.mean(), (1 - _PRIOR) / (1 - shown.mean()))
    # The last term is 1: the constant is a coefficient like the others.
    model = LogisticRegression(C=10, fit_intercept=False, max_iter=1000)
    held_out = np.empty(len(shown), dtype=bool)
    for train, test in GroupKFold(5).split(terms, shown, clip):
        model.fit(terms[train], shown[train], sample_weight=weight[train])
        held_out[test] = model.decision_function(terms[test]) > 0
    now = terms @ BELIEF > 0
    coefficients = model.fit(terms, shown, sample_weight=weight).coef_[0]
    values = {f"coefficient, {name}": coefficients[i] for i, name in enumerate(TERMS)}
    values |= {"frames with the target": shown.mean(), "AUC": roc_auc_score(shown, terms @ BELIEF)}
    for name, found in (("held-out coefficients", held_out), ("coefficients in use", now)):
        values |= {
            f"found, of frames with the target, {name}": found[shown].mean(),
            f"not found, of frames without, {name}": (~found[~shown]).mean(),
        }
    return pd.DataFrame([table_row("MIO", "turning solids", k, [v]) for k, v in values.items()])


if __name__ == "__main__":
    main(run)
