"""The detector of the VGPMIL paper on cells and digits, without its network.

Section 4.3 of the paper: 50 regions per image, 500 principal components, VGPMIL with 50 inducing
points and the updates of the paper, suppression. Its region proposal network was trained on
photographs; here blobs propose and the features are those of `detection_bccd` and
`detection_digits`. Nothing was chosen on these images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bagwise.models.presets import preset
from bagwise.vision import Proposals, WeakDetector
from bagwise.vision.region_network import COMPONENTS, REGIONS
from experiments._held_out import main
from experiments.detection_bccd import SETTINGS, describe, load, measure, plain, row
from experiments.detection_digits import canvases

TITLE = "The detector of the VGPMIL paper on platelets and digits, with proposals of ours"
PAPER = "VGPMIL, section 4.3 (other images)"
NEEDS = ("detection/bccd", "mnist", "synthetic")


def detector(seed: int) -> WeakDetector:
    """Components and classifier of the paper."""
    classifier = preset("vgpmil-paper")
    return WeakDetector(pca=COMPONENTS, classifier=classifier, random_state=seed)


def platelets(quick: bool, seeds: int) -> list[Any]:
    """CorLoc and AP of every seed on the test images."""
    data, y, train, test, boxes = load(quick, "Platelets")
    min_side = SETTINGS["without contrast"]["min_side"]
    fitted, held_out = (describe(data, min_side, part, REGIONS) for part in (train, test))
    values = []
    for seed in range(seeds):
        model = detector(seed).fit(fitted, y[train][:, None], class_names=["Platelets"])
        values.append(measure(model.predict(held_out), [boxes[i] for i in test], y[test]))
    return values


def digits(quick: bool, seeds: int) -> list[Any]:
    """CorLoc and AP on new canvases of every seed."""
    values = []
    for seed in range(seeds):
        sizes = (60, 30) if quick else (300, 150)
        train, test = (
            canvases(n, part, 2 * seed + k)
            for k, (n, part) in enumerate(zip(sizes, ("train", "test"), strict=True))
        )
        model = detector(seed)
        model.set_params(proposals=Proposals(method="blobs", n_boxes=REGIONS, min_side=0.08))
        model.fit(model.describe(train.images), train.labels, class_names=train.class_names)
        found = model.predict(model.describe(test.images))
        values.append(measure(found, test.boxes_of("9"), test.labels[:, 0]))
    return values


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Both sets, five seeds."""
    seeds = 1 if quick else 5
    rows = []
    for data, values in (
        (f"Platelets{plain()}", platelets(quick, seeds)),
        ("digit 9, HOG and colour", digits(quick, seeds)),
    ):
        for metric, column in zip(("CorLoc", "AP"), np.transpose(values), strict=True):
            rows.append(row("VGPMIL, settings of the paper", data, metric, column))
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(run)
