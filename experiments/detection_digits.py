"""Digits on cluttered canvases: detection where the truth is known exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from bagwise.datasets.fetched import data_home
from bagwise.vision import ImageSet, Proposals, WeakDetector
from experiments._canvases import make_digit_canvases
from experiments._held_out import main
from experiments.detection_bccd import measure, row

TITLE = "Weakly supervised detection of digits on clutter: CorLoc and average precision"
PAPER = "none: detection with known truth"
NEEDS = ("synthetic", "mnist")


def canvases(n: int, part: str, seed: int, digit: int = 9) -> ImageSet:
    """Canvases with digits of MNIST's training or test images, or of half of the bundled ones."""
    if (data_home() / "mnist.npz").is_file():
        with np.load(data_home() / "mnist.npz", allow_pickle=False) as mnist:
            n_train = int(mnist["n_train"])
            images, classes = mnist["X"].reshape(-1, 28, 28), mnist["y"]
    else:
        bundled = load_digits()
        n_train = len(bundled.target) // 2
        images, classes = bundled.images * (255 / 16), bundled.target
    rows = slice(n_train) if part == "train" else slice(n_train, None)
    digits, labels = images[rows], classes[rows]
    return make_digit_canvases(n, digit=digit, digits=digits, labels=labels, random_state=seed)


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """New canvases for every seed; HOG and colour features, so no network is needed."""
    values: dict[tuple[str, str], list[Any]] = {}
    n_train, n_test = (60, 30) if quick else (300, 150)
    for seed in range(1 if quick else 5):
        train, test = (
            canvases(n, part, 2 * seed + k)
            for k, (n, part) in enumerate(((n_train, "train"), (n_test, "test")))
        )
        detector = WeakDetector(
            proposals=Proposals(method="blobs", n_boxes=100, min_side=0.08), random_state=seed
        )
        fitted, held_out = detector.describe(train.images), detector.describe(test.images)
        for share in (0.0, 0.1):
            given = boxes_for(share, train, seed)
            detector.fit(fitted, train.labels, given, train.class_names)
            for name, contrast in (("without contrast", None), ("with contrast", 1.25)):
                found = detector.set_params(contrast=contrast).predict(held_out)
                measured = measure(found, test.boxes_of("9"), test.labels[:, 0])
                values.setdefault((name, f"boxes for {share:.0%}"), []).append(measured)
    source = "MNIST" if (data_home() / "mnist.npz").is_file() else "8 x 8 digits"
    return pd.DataFrame(
        row(f"VGPMIL, {name}", f"digit 9 of {source}, {boxed}", metric, column)
        for (name, boxed), pairs in values.items()
        for metric, column in zip(("CorLoc", "AP"), np.transpose(pairs), strict=True)
    )


def boxes_for(share: float, images: ImageSet, seed: int) -> list[Any]:
    """True boxes of a random share of the positive images."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(images.labels[:, 0]))
    boxed = set(order[: round(share * len(order))].tolist())
    return [of_image if i in boxed else None for i, of_image in enumerate(images.boxes)]


if __name__ == "__main__":
    main(run)
