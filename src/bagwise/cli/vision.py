"""The commands on images: detect fit, detect predict."""

from __future__ import annotations

import csv
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

from bagwise.cli.console import Printer
from bagwise.files import check_output, new_folder
from bagwise.files.tables import named_columns, read_frame


def run_detect_fit(arguments: Namespace) -> int:
    """Train a detector on image labels and save it."""
    from bagwise import persist
    from bagwise.vision.detection import WeakDetector
    from bagwise.vision.features import RegionFeatures
    from bagwise.vision.proposals import Proposals

    printer = Printer(arguments.json)
    out = check_output(arguments.out, arguments.force)
    data = _image_set(arguments)
    cache = None if arguments.cache is None else str(arguments.cache)
    detector = WeakDetector(
        Proposals(arguments.proposals or "selective-search", n_boxes=arguments.n_boxes),
        RegionFeatures(arguments.features, cache=cache),
        pca=arguments.pca,
        contrast=arguments.contrast,
        random_state=arguments.seed,
        verbose=not arguments.json,
    )
    bags = detector.describe(data.images, ids=data.ids)
    boxes = None
    if arguments.use_boxes:
        by_class = [data.boxes_of(name) for name in data.class_names]
        boxes = [
            {name: rows[i] for name, rows in zip(data.class_names, by_class, strict=True)}
            for i in range(len(data.images))
        ]
    with printer.working(f"training on {len(bags)} images, {bags.n_instances} boxes"):
        detector.fit(bags, data.labels, boxes, data.class_names)
    persist.save(detector.set_params(verbose=False), out, bags=bags, extra={"name": "detector"})
    printer.say(f"saved {escape(str(out))}: finds {', '.join(data.class_names)}")
    printer.result({"model": str(out), "classes": list(data.class_names), "images": len(bags)})
    return 0


def run_detect_predict(arguments: Namespace) -> int:
    """Find objects in a folder of images: a table and a page."""
    from bagwise import persist
    from bagwise.report.gallery import write_gallery
    from bagwise.vision.detection import WeakDetector
    from bagwise.vision.images import list_images

    printer = Printer(arguments.json)
    out = check_output(arguments.out, arguments.force)
    detector = persist.load(arguments.model)
    if not isinstance(detector, WeakDetector):
        raise ValueError(f"{str(arguments.model)!r} is not a detector; train one: detect fit.")
    paths = list_images(arguments.images)
    names = [str(path.relative_to(arguments.images)) for path in paths]
    bags = detector.set_params(verbose=not arguments.json).describe(paths, ids=names)
    found = detector.predict(bags)
    with new_folder(out) as folder:
        with (folder / "detections.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["image", "class", "x", "y", "w", "h", "score", "probability", "std"])
            for name, d in zip(names, found, strict=True):
                for box, label, score, p, std in zip(*d, strict=True):
                    numbers = (*box, score, p, std)
                    table.writerow([name, label, *(f"{v:.6g}" for v in numbers)])
        write_gallery(
            paths, names, found, folder / "gallery.html", min_probability=arguments.min_probability
        )
    n = sum(int(np.sum(d.probabilities >= arguments.min_probability)) for d in found)
    printer.say(f"{n} objects in {len(paths)} images; see {escape(str(out / 'gallery.html'))}")
    printer.result({"out": str(out), "images": len(paths), "objects": n})
    return 0


def _image_set(arguments: Namespace) -> Any:
    from bagwise.vision.images import ImageSet, list_images, read_coco, read_voc

    if arguments.voc is not None:
        return read_voc(arguments.voc, arguments.split)
    if arguments.images is None:
        raise ValueError("say where the images are: --images with --labels or --coco, or --voc.")
    if arguments.coco is not None:
        return read_coco(arguments.coco, arguments.images)
    if arguments.labels is None:
        raise ValueError("--images needs --labels, a table with columns image and label.")
    labels = _read_labels(arguments.labels)
    paths = list_images(arguments.images)
    names = [str(path.relative_to(arguments.images)) for path in paths]
    missing = [name for name in names if name not in labels]
    unknown = sorted(set(labels) - set(names))
    if missing or unknown:
        first = (
            f"image {missing[0]!r} has no label"
            if missing
            else (f"label for {unknown[0]!r}, which is not in {str(arguments.images)!r}")
        )
        raise ValueError(f"{first} ({len(missing)} without label, {len(unknown)} without image).")
    classes = tuple(sorted({c for row in labels.values() for c in row}))
    if not classes:
        raise ValueError(f"{str(arguments.labels)!r} names no class.")
    Y = np.array([[int(c in labels[name]) for c in classes] for name in names])
    none = tuple(np.empty((0, 4)) for _ in names)
    empty = tuple(np.empty(0, dtype=int) for _ in names)
    return ImageSet(tuple(paths), tuple(names), classes, Y, none, empty)


def _read_labels(path: Path) -> dict[str, set[str]]:
    frame = named_columns(read_frame(path), str(path), ["image", "label"])
    labels: dict[str, set[str]] = {}
    for image, label in zip(frame["image"], frame["label"], strict=True):
        labels.setdefault(image, set()).update({label} - {""})
    return labels
