"""How probable it is that a box holds one object, learned on classes with boxes, tried on others.

Each class is detected in images that its model was not trained on (four folds). The logistic
regression of "the box overlaps an object by half, and no better box overlaps that one" on the clues
of `bagwise.vision.box_probability` is fitted to the kept boxes of all classes but one, and measured
on the one left out. The weights of the package are those of all classes together. Photographs
without any of the animals, the scenes, are among the images of both animals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold

from bagwise.datasets import fetch_detection
from bagwise.vision.box_probability import CLUES, hits
from bagwise.vision.photographs import kept_boxes, learn_class
from experiments._held_out import main
from experiments.detection_photographs import (
    GROUPS,
    code_version,
    describe,
    have_networks,
    truth_of,
)

TITLE = "Is a box right as often as its probability says? Each class with the weights of the others"
PAPER = "none: detection in photographs"
NEEDS = ("detection/animals", "detection/scenes")
# Inverse prior precision of a weight of a standardised clue.
STRENGTH = 0.3
NMS, OVERLAP, SHOWN = 0.3, 0.5, 0.3
# Boxes of each image that weights are fitted to, the best first: with networks those that may be
# shown; without, the first ones are right so rarely that only the others tell what a wrong one is.
MOST = {True: 3, False: 20}


class Boxes(NamedTuple):
    """The kept boxes of one class in held-out images."""

    clues: list[Any]  # of each image, [k, 6]
    right: list[Any]  # of each image, [k] bool
    truth: list[Any]  # of each image, its true boxes


def held_out_boxes(photos: Any, truth: list[Any], part: Any, seed: int = 0) -> Boxes:
    """Boxes of images whose model was trained on the others; folds are stratified by ``part``."""
    y = np.array([int(len(boxes) > 0) for boxes in truth])
    boxes: list[Any] = [None] * len(y)
    clues: list[Any] = [None] * len(y)
    folds = StratifiedKFold(4, shuffle=True, random_state=seed)
    for train, test in folds.split(y, 2 * np.asarray(part) + y):
        rng = np.random.default_rng(seed)
        model = learn_class(photos[train], y[train], [None] * len(train), OVERLAP, rng)
        for i, kept in zip(test, kept_boxes(model, photos[test], NMS), strict=True):
            boxes[i], clues[i] = kept
    right = [hits(b, t, OVERLAP) for b, t in zip(boxes, truth, strict=True)]
    return Boxes(clues, right, truth)


def fit_weights(classes: list[Boxes], most: int) -> Any:
    """Weights of `CLUES` from the best boxes of the images of several classes, [6]."""
    X = np.concatenate([clues[:most] for of_class in classes for clues in of_class.clues])
    right = np.concatenate([flags[:most] for of_class in classes for flags in of_class.right])
    scale = X[:, :-1].std(axis=0)
    fitted = LogisticRegression(C=STRENGTH, max_iter=1000).fit(X[:, :-1] / scale, right)
    return np.append(fitted.coef_[0] / scale, fitted.intercept_)


def of_image(clues: Any) -> Any:
    """The rule before: the image's probability, times the square of the relative score, [k]."""
    return expit(clues[:, 0]) * np.exp(2 * clues[:, 3])


def measure(boxes: Boxes, parts: list[Any]) -> dict[str, float]:
    """What probabilities of the kept boxes of each image say, and what is true."""
    p, right = np.concatenate(parts), np.concatenate(boxes.right)
    out = {"log-loss of kept boxes": float(log_loss(right, p))}
    for limit in (SHOWN, 0.5, 0.9, 0.99):
        shown = p >= limit
        out[f"boxes at {limit:g} or more"] = float(shown.sum())
        if shown.any():
            out[f"their mean probability, {limit:g}"] = float(p[shown].mean())
            out[f"share right, {limit:g}"] = float(right[shown].mean())
    for limit in (SHOWN, 0.5):
        n_hit = n_true = 0
        for q, flags, true in zip(parts, boxes.right, boxes.truth, strict=True):
            if len(true) > 1:
                n_hit, n_true = n_hit + int(flags[q >= limit].sum()), n_true + len(true)
        if n_true:
            out[f"objects found in images with several, {limit:g}"] = n_hit / n_true
    return out


def all_classes(networks: bool, step: int) -> dict[str, Boxes]:
    """Held-out boxes of both animals and the groups of scenes."""
    version, found = code_version(), {}
    animals, scenes = fetch_detection("animals"), fetch_detection("scenes")
    of_animals = describe("animals", networks, step, version)
    of_scenes = describe("scenes", networks, step, version)
    photos = type(of_animals).concat([of_animals, of_scenes])
    part = np.repeat([0, 1], [len(of_animals), len(of_scenes)])
    for name in animals.class_names:
        truth = truth_of(animals, [str(name)], step) + [np.empty((0, 4))] * len(of_scenes)
        found[str(name)] = held_out_boxes(photos, truth, part)
    for name, names in GROUPS.items():
        truth = truth_of(scenes, names, step)
        if 4 <= sum(len(t) > 0 for t in truth) <= len(truth) - 4:
            found[name] = held_out_boxes(of_scenes, truth, np.zeros(len(truth), dtype=int))
    return found


def merge(parts: list[Boxes]) -> Boxes:
    """Boxes of several classes together."""
    return Boxes(
        *([item for part in column for item in part] for column in zip(*parts, strict=True))
    )


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Each class left out once; the weights of all are written beside the table."""
    rows, weights = [], {}
    for networks in [True, False] if have_networks() else [False]:
        classes = all_classes(networks, 8 if quick else 1)
        way = "PhotographDetector" if networks else "PhotographDetector without networks"
        weights[way] = fit_weights(list(classes.values()), MOST[networks])
        learned: dict[str, list[Any]] = {}
        for name, boxes in classes.items():
            rest = [b for other, b in classes.items() if other != name]
            others = fit_weights(rest, MOST[networks])
            learned[name] = [expit(clues @ others) for clues in boxes.clues]
        before = {
            name: [of_image(clues) for clues in boxes.clues] for name, boxes in classes.items()
        }
        for rule, parts in ((way, learned), (f"{way}, probability of the image", before)):
            every = (
                merge(list(classes.values())),
                [p for of_class in parts.values() for p in of_class],
            )
            for name, (boxes, p) in {
                **{name: (boxes, parts[name]) for name, boxes in classes.items()},
                "all classes": every,
            }.items():
                for metric, value in measure(boxes, p).items():
                    rows.append({"model": rule, "data": name, "metric": metric, "mean": value})
    out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(weights, index=list(CLUES)).to_csv(out / "weights.csv")
    return pd.DataFrame(rows).assign(published=np.nan, spread=np.nan, n_seeds=1, note="")


if __name__ == "__main__":
    main(run)
