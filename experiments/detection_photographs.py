"""Objects in photographs from image labels alone, beside boxes that need no training."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from joblib import Memory
from sklearn.model_selection import StratifiedKFold

import bagwise.vision
from bagwise.datasets import fetch_detection
from bagwise.evaluate import corloc, detection_ap
from bagwise.vision import PhotographDetector, RegionFeatures, read_image
from bagwise.vision.images import fit_within
from bagwise.vision.networks import have_backbone
from bagwise.vision.proposals import edge_boxes
from bagwise.vision.saliency import u2netp_path
from bagwise.vision.wholeness import FRAMES, Photographs, frames, salient_box
from experiments._held_out import main, table_row

TITLE = "Weakly supervised detection in photographs: CorLoc and average precision"
PAPER = "none: detection in photographs"
NEEDS = ("detection/animals", "detection/scenes")
# The settings of the detector were chosen on the training images of "animals" and on "scenes",
# cross-validated. Three were revised there after a first look at the test images: the number of
# cells, the strength of the refinement by true boxes, and the boxes without networks.
GROUPS = {
    "person": ["person"],
    "animal": [
        *("bird", "cat", "dog", "horse", "sheep"),
        *("cow", "elephant", "bear", "zebra", "giraffe"),
    ],
    "vehicle": ["bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat"],
    "kitchenware": ["bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl"],
}
MEMORY = Memory(Path(tempfile.gettempdir()) / "bagwise-photographs", verbose=0)
# The modules on which the description of an image depends; what is learned from it does not count.
DESCRIBING = ("features", "images", "networks", "photographs", "proposals", "saliency", "wholeness")
BOXED = 0.1  # share of the images with boxes, for mixed supervision


def detector(networks: bool, seed: int = 0) -> PhotographDetector:
    """The detector as it comes, or without networks."""
    if networks:
        return PhotographDetector(check=False, random_state=seed)
    return PhotographDetector(
        features=RegionFeatures(backbone="hog"),
        saliency="classical",
        check=False,
        random_state=seed,
    )


def code_version() -> str:
    """A digest of the code that describes images, so that no old description is taken."""
    digest = hashlib.sha256()
    folder = Path(bagwise.vision.__file__).parent
    for name in DESCRIBING:
        digest.update((folder / f"{name}.py").read_bytes())
    return digest.hexdigest()


@MEMORY.cache
def describe(name: str, networks: bool, step: int, version: str) -> Photographs:
    """Every ``step``-th image of a set, kept on disk between runs of the same code."""
    return detector(networks).describe(fetch_detection(name).jpeg[::step])


@MEMORY.cache
def contour_boxes(name: str, step: int, version: str) -> Any:
    """For each image the box that encloses most whole contours: objectness alone."""
    best = []
    for jpeg in fetch_detection(name).jpeg[::step]:
        image = read_image(jpeg)
        small, factor = fit_within(image, 224)
        boxes = edge_boxes(small, 10) / factor
        best.append(boxes[0] if len(boxes) else frames(*image.shape[:2])[0])
    return np.array(best)


def truth_of(data: Any, names: list[str], step: int = 1) -> list[Any]:
    """True boxes of some classes in every ``step``-th image."""
    codes = [list(data.class_names).index(n) for n in names]
    pairs = list(zip(data.boxes, data.box_classes, strict=True))[::step]
    return [boxes[np.isin(classes, codes)] for boxes, classes in pairs]


class Task(NamedTuple):
    """One class of one set: described images and their true boxes."""

    photos: Photographs
    truth: list[Any]

    @property
    def y(self) -> Any:
        """Which images show the class."""
        return np.array([int(len(t) > 0) for t in self.truth])


def measure(boxes: Any, scores: Any, truth: Any) -> tuple[float, float]:
    """CorLoc of the best box of each image with the class, and AP over all images."""
    positive = [i for i, t in enumerate(truth) if len(t)]
    best = [boxes[i][int(np.argmax(scores[i]))] for i in positive]
    images = np.repeat(np.arange(len(boxes)), [len(b) for b in boxes])
    ap = detection_ap(images, np.concatenate(boxes), np.concatenate(scores), truth)
    return corloc(best, [truth[i] for i in positive]), ap


def evaluate(task: Task, folds: Any, networks: bool, seed: int, given: Any = None) -> Any:
    """Boxes and scores of held-out images, and the probability of each image, over all folds."""
    n = len(task.y)
    boxes, scores, p = [None] * n, [None] * n, np.zeros(n)
    for train, test in folds:
        part = None if given is None else [given[i] for i in train]
        labels = task.y[train][:, None]
        model = detector(networks, seed).fit(task.photos[train], labels, part, ["object"])
        for i, found in zip(test, model.predict(task.photos[test]), strict=True):
            boxes[i], scores[i] = found.boxes, found.scores
        p[test] = model.models_[0].image_probability(task.photos[test])
    return boxes, scores, p


def simple_boxes(task: Task, contours: Any) -> dict[str, Any]:
    """One box per image by every way that needs no training."""
    n = len(task.y)
    out: dict[str, Any] = {
        name: [frames(*task.photos.sizes[i])[k] for i in range(n)] for k, name in enumerate(FRAMES)
    }
    out["objectness alone"] = list(contours)
    out["saliency alone"] = [salient_box(task.photos, i) for i in range(n)]
    return out


def run_task(
    task: Task, folds_of: Any, networks: bool, contours: Any, seeds: int
) -> dict[str, list[Any]]:
    """CorLoc and AP by way and seed; simple boxes are ranked by the same image probability."""
    values: dict[str, list[Any]] = {}
    way = "PhotographDetector" if networks else "PhotographDetector without networks"
    for seed in range(seeds):
        folds = folds_of(seed)
        tested = np.concatenate([test for _, test in folds])
        boxes, scores, p = evaluate(task, folds, networks, seed)
        truth = [task.truth[i] for i in tested]
        values.setdefault(way, []).append(
            measure([boxes[i] for i in tested], [scores[i] for i in tested], truth)
        )
        if networks or not have_networks():
            for name, single in simple_boxes(task, contours).items():
                pair = measure([single[i][None] for i in tested], [p[[i]] for i in tested], truth)
                values.setdefault(name, []).append(pair)
    return values


def have_networks() -> bool:
    """Whether what the default uses at its best is installed."""
    return u2netp_path() is not None and have_backbone("efficientnet-lite2")


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Animals: trained on training, measured on test images. Scenes: cross-validated."""
    step, seeds = (16, 1) if quick else (1, 3)
    rows, version = [], code_version()
    for networks in [True, False] if have_networks() else [False]:
        animals, scenes = fetch_detection("animals"), fetch_detection("scenes")
        split = animals.split[::step]
        fixed = [(np.flatnonzero(split == "train"), np.flatnonzero(split == "test"))]
        photos = describe("animals", networks, step, version)
        contours = contour_boxes("animals", step, version)
        for name in animals.class_names:
            task = Task(photos, truth_of(animals, [str(name)], step))
            found = run_task(task, lambda _, folds=fixed: folds, networks, contours, seeds)
            rows += as_rows(found, f"animals: {name}")
            if networks and not quick:
                rows += mixed(task, fixed, f"animals: {name}", seeds)
        of_scenes = describe("scenes", networks, step, version)
        of_contours = contour_boxes("scenes", step, version)
        # Photographs without either animal, half of them for training and half for testing.
        odd = np.arange(len(of_scenes)) % 2 == 1
        among = np.concatenate([split, np.where(odd, "test", "train")])
        mixed_folds = [(np.flatnonzero(among == "train"), np.flatnonzero(among == "test"))]
        for name in animals.class_names:
            truth = truth_of(animals, [str(name)], step) + [np.empty((0, 4))] * len(of_scenes)
            task = Task(Photographs.concat([photos, of_scenes]), truth)
            both = np.concatenate([contours, of_contours])
            found = run_task(task, lambda _, folds=mixed_folds: folds, networks, both, seeds)
            rows += as_rows(found, f"animals among scenes: {name}")
        photos, contours = of_scenes, of_contours
        total: dict[str, list[Any]] = {}
        for name, names in GROUPS.items():
            task = Task(photos, truth_of(scenes, names, step))
            if np.bincount(task.y, minlength=2).min() < 4:
                continue  # a quick run has too few of some

            def folds_of(seed: int, y: Any = task.y) -> Any:
                return list(StratifiedKFold(4, shuffle=True, random_state=seed).split(y, y))

            found = run_task(task, folds_of, networks, contours, seeds)
            rows += as_rows(found, f"scenes: {name}")
            for way, pairs in found.items():
                total.setdefault(way, []).append(pairs)
        rows += as_rows(
            {way: np.mean(pairs, axis=0).tolist() for way, pairs in total.items()}, "scenes: mean"
        )
    return pd.DataFrame(rows)


def mixed(task: Task, folds: Any, data: str, seeds: int) -> list[dict[str, Any]]:
    """AP after boxes for a tenth of the training images with the class."""
    train, test = folds[0]
    pairs = []
    for seed in range(seeds):
        positive = np.random.default_rng(seed).permutation(train[task.y[train] == 1])
        boxed = set(positive[: round(BOXED * len(positive))].tolist())
        given = [{"object": t} if i in boxed else None for i, t in enumerate(task.truth)]
        boxes, scores, _ = evaluate(task, folds, True, seed, given)
        truth = [task.truth[i] for i in test]
        pairs.append(measure([boxes[i] for i in test], [scores[i] for i in test], truth))
    return as_rows({f"PhotographDetector, boxes for {BOXED:.0%}": pairs}, data)


def as_rows(values: dict[str, Any], data: str) -> list[dict[str, Any]]:
    """Lines of the table."""
    return [
        table_row(way, data, metric, column, note=" ".join(f"{v:.3f}" for v in column))
        for way, pairs in values.items()
        for metric, column in zip(("CorLoc", "AP"), np.transpose(pairs), strict=True)
    ]


if __name__ == "__main__":
    main(run)
