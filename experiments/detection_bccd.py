"""Platelets in blood smears found from image labels alone (BCCD, shipped splits)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bagwise import Bags
from bagwise.datasets import fetch_detection
from bagwise.evaluate import corloc, detection_ap
from bagwise.vision import Proposals, RegionFeatures, WeakDetector
from bagwise.vision.networks import have_backbone
from experiments._held_out import main, table_row

TITLE = "Weakly supervised detection on BCCD: CorLoc and average precision on the test images"
PAPER = "VGPMIL, section 3.3 (other images)"
NEEDS = ("detection/bccd",)
# Chosen on the validation images among min_side 0.03 to 0.07, 25 to 100 components and rings of
# 1.25 to 2; the detector is then trained on training and validation images together.
SETTINGS: dict[str, dict[str, Any]] = {
    "without contrast": {"min_side": 0.06, "pca": 50, "contrast": None},
    "with contrast": {"min_side": 0.05, "pca": 25, "contrast": 1.25},
}
CACHE = Path(tempfile.gettempdir()) / "bagwise-bccd"


def plain() -> str:
    """What a row says where the network's weights are not installed."""
    return "" if have_backbone("mobilenetv2") else ", HOG and colour"


def describe(data: Any, min_side: float, images: Any, n_boxes: int = 200) -> Bags:
    """Regions of the images, kept on disk between runs."""
    backbone = "mobilenetv2" if have_backbone("mobilenetv2") else "hog"
    features = RegionFeatures(backbone=backbone, max_side=640, cache=CACHE)
    proposals = Proposals(method="blobs", n_boxes=n_boxes, min_side=min_side)
    detector = WeakDetector(proposals=proposals, features=features)
    return detector.describe([data.jpeg[i] for i in images], ids=data.image_id[images])


def measure(detections: Any, truth: Any, labels: Any) -> tuple[float, float]:
    """CorLoc over the positive images, and area AP over all."""
    positive = np.flatnonzero(labels)
    best = [detections[i].boxes[0] for i in positive]
    images = np.repeat(np.arange(len(detections)), [len(d.boxes) for d in detections])
    boxes = np.concatenate([d.boxes for d in detections])
    scores = np.concatenate([d.scores for d in detections])
    return corloc(best, [truth[i] for i in positive]), detection_ap(images, boxes, scores, truth)


class Task(NamedTuple):
    """One class of the set: its images, who is trained on, who is measured, and the true boxes."""

    data: Any
    y: Any  # of every image
    train: Any
    test: Any
    boxes: list[Any]  # of every image


def load(quick: bool, class_name: str) -> Task:
    """The class in the shipped splits; quick: some of the images."""
    data = fetch_detection("bccd")
    c = list(data.class_names).index(class_name)
    train = np.flatnonzero(np.isin(data.split, ["train", "val"]))
    test = np.flatnonzero(data.split == "test")
    if quick:
        train, test = train[::12], test[::8]
    boxes = [own[kinds == c] for own, kinds in zip(data.boxes, data.box_classes, strict=True)]
    return Task(data, data.image_label[:, c], train, test, boxes)


def run(quick: bool, out: Path, n_jobs: int = 1, class_name: str = "Platelets") -> pd.DataFrame:
    """Train on image labels, measure on the test images, five seeds."""
    data, y, train, test, boxes = load(quick, class_name)
    truth = [boxes[i] for i in test]
    rows = []
    for name, setting in SETTINGS.items():
        fitted, held_out = (describe(data, setting["min_side"], part) for part in (train, test))
        values = []
        for seed in range(1 if quick else 5):
            detector = WeakDetector(
                pca=setting["pca"],
                contrast=setting["contrast"],
                random_state=seed,
            ).fit(fitted, y[train][:, None], class_names=[class_name])
            found = detector.predict(held_out)
            values.append(measure(found, truth, y[test]))
        for metric, column in zip(("CorLoc", "AP"), np.transpose(values), strict=True):
            rows.append(row(f"VGPMIL, {name}{plain()}", class_name, metric, column))
    _show(data, test, found, out)
    return pd.DataFrame(rows)


def row(model: str, data: str, metric: str, values: Any) -> dict[str, Any]:
    """One line of the table."""
    return table_row(model, data, metric, values, note=" ".join(f"{v:.3f}" for v in values))


def _show(data: Any, images: Any, found: Any, out: Path) -> None:
    import matplotlib.pyplot as plt

    from bagwise.vision import read_image

    figure, axes = plt.subplots(2, 3, figsize=(9, 5), layout="constrained")
    order = np.argsort([-d.scores[0] for d in found])[:6]
    for axis, i in zip(axes.flat, order, strict=False):
        axis.imshow(read_image(data.jpeg[images[i]]))
        x, y, w, h = found[i].boxes[0]
        axis.add_patch(plt.Rectangle((x, y), w, h, fill=False, color="lime", lw=2))
        axis.set_axis_off()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "detection_bccd.png", dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    main(run)
