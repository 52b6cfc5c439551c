"""``bagwise detect fit``, ``detect predict`` and ``detect evaluate``: objects in images."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _ArgumentGroup
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

from bagwise.cli.arguments import add_part, output_options
from bagwise.cli.console import Printer
from bagwise.files import check_output, new_folder

if TYPE_CHECKING:
    from bagwise.vision.detection import Detector
    from bagwise.vision.image_sets import ImageSet


PROPOSALS = ("selective-search", "edge-boxes", "blobs", "windows")
_BACKBONES = ("hog", "mobilenetv2", "efficientnet-lite0", "efficientnet-lite2")


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise detect fit``, ``predict`` and ``evaluate``."""
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    of_folder = "bagwise detect fit --images train/ --labels labels.csv --out cells.bagwise"
    of_voc = "bagwise detect fit --voc VOC2007/ --split trainval --out voc.bagwise"
    part = add_part(parts, "fit", "train a detector on image labels", fit, of_folder, of_voc)
    add = _image_options(part).add_argument
    skip = "leave images out that cannot be read, and say so"
    add("--skip-bad", action="store_true", help=skip)
    add("--use-boxes", action="store_true", help="also learn from the boxes of --voc or --coco")
    add = part.add_argument_group("model").add_argument
    what = (
        "blobs, windows: a Gaussian process on regions, for cells and marks; else the detector of "
        "photographs (default: selective-search)"
    )
    add("--proposals", choices=PROPOSALS, help=what)
    add("--n-boxes", type=int, help="proposals per image")
    add("--min-side", type=float, help="least side of a proposal, as a share of the image's")
    add("--features", choices=_BACKBONES, help="default: the best installed")
    add("--contrast", type=float, help="for cells: rank boxes by contrast with a ring, 1.5 to 2")
    add("--cache", type=Path, help="folder that keeps region features")
    add("--seed", type=int, default=0)
    output_options(part, "model to write", metavar="FILE")

    about = "find objects in a folder of images: tables (CSV, COCO, VOC), overlays and a page"
    example = "bagwise detect predict cells.bagwise --images new/ --out results/"
    part = add_part(parts, "predict", about, predict, example)
    add = part.add_argument
    add("model", type=Path, help="model that detect fit wrote")
    add("--images", type=Path, required=True, metavar="FOLDER")
    what = (
        "least probability of a box in gallery, overlays and VOC files (default: 0.3 in "
        "photographs, 0.5 of regions)"
    )
    add("--min-probability", type=float, help=what)
    add("--skip-bad", action="store_true", help=skip)
    output_options(part, "results", metavar="FOLDER")

    about = "measure detections against true boxes: CorLoc and average precision"
    example = "bagwise detect evaluate results/detections.csv --voc VOC2007/ --split test"
    part = add_part(parts, "evaluate", about, evaluate, example)
    part.add_argument("detections", type=Path, help="detections.csv that detect predict wrote")
    _image_options(part)


def _image_options(part: ArgumentParser) -> _ArgumentGroup:
    title = "data: a folder with labels, a VOC folder, or a COCO file"
    group = part.add_argument_group(title)
    add = group.add_argument
    add("--images", type=Path, metavar="FOLDER", help="folder of images")
    what = "columns image and label; one row per class of an image, label empty for none"
    add("--labels", type=Path, metavar="CSV", help=what)
    add("--voc", type=Path, metavar="FOLDER", help="image set in PASCAL VOC's layout")
    add("--split", help="with --voc: train, val, trainval, ...")
    add("--coco", type=Path, metavar="JSON", help="COCO annotations, with --images")
    return group


def fit(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Train a detector on image labels and save it."""
    from bagwise import persist

    out = check_output(arguments.out, arguments.force)
    data = _image_set(arguments)
    detector = new_detector(arguments)
    described = detector.describe(data.images, data.ids, skip_bad=arguments.skip_bad)
    position = {name: i for i, name in enumerate(data.ids)}
    kept = [position[name] for name in described.ids]
    boxes = [data.boxes[i] for i in kept] if arguments.use_boxes else None
    with printer.working(f"training on {len(kept)} images"):
        detector.fit(described, data.labels[kept], boxes, data.class_names)
    missing = getattr(detector, "missing_", "")  # of photographs
    remarks = [missing] if missing else []
    extra = {"name": "detector", "remarks": remarks}
    persist.save(detector.set_params(verbose=False), out, extra=extra)
    printer.say(f"saved {escape(str(out))}: finds {', '.join(data.class_names)}")
    return {
        "model": str(out),
        "classes": list(data.class_names),
        "images": len(kept),
        "skipped": len(data.ids) - len(kept),
        "threshold": detector.threshold,
    }


def new_detector(arguments: Namespace) -> Detector[Any]:
    """The detector that suits proposals and ranking: of regions for blobs, windows or contrast."""
    from bagwise.vision.features import RegionFeatures
    from bagwise.vision.networks import best_backbone
    from bagwise.vision.photographs import PhotographDetector
    from bagwise.vision.proposals import Proposals
    from bagwise.vision.regions import WeakDetector

    of_photographs = arguments.proposals in (None, "selective-search", "edge-boxes")
    of_photographs = of_photographs and arguments.contrast is None
    names = {"proposals": "method", "n_boxes": "n_boxes", "min_side": "min_side"}
    asked = {name: getattr(arguments, option) for option, name in names.items()}
    asked = {name: value for name, value in asked.items() if value is not None}
    features = None
    if arguments.features is not None or arguments.cache is not None:
        backbone = arguments.features or (best_backbone() if of_photographs else "hog")
        cache = None if arguments.cache is None else str(arguments.cache)
        features = RegionFeatures(backbone=backbone, cache=cache)
    shared: dict[str, Any] = {
        "proposals": Proposals(**asked) if asked else None,
        "features": features,
        "random_state": arguments.seed,
        "verbose": not arguments.json,
    }
    if of_photographs:
        return PhotographDetector(**shared)
    return WeakDetector(contrast=arguments.contrast, **shared)


def predict(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Find objects in a folder of images: tables, annotated images and a page."""
    import cv2

    from bagwise import persist
    from bagwise.report.gallery import write_gallery
    from bagwise.vision.detection import Detector, draw
    from bagwise.vision.image_sets import file_names, write_coco, write_table, write_voc
    from bagwise.vision.images import list_images, read_image

    out = check_output(arguments.out, arguments.force)
    detector = persist.load(arguments.model)
    if not isinstance(detector, Detector):
        raise ValueError(f"{str(arguments.model)!r} is not a detector; train one: detect fit.")
    for remark in persist.about(arguments.model)["extra"]["remarks"]:
        printer.warn(f"{arguments.model} was trained without all networks: {remark}")
    by_name = {
        str(path.relative_to(arguments.images)): path for path in list_images(arguments.images)
    }
    detector.set_params(verbose=not arguments.json)
    described = detector.describe(
        list(by_name.values()), list(by_name), skip_bad=arguments.skip_bad
    )
    names = [str(name) for name in described.ids]
    paths = [by_name[name] for name in names]
    detections = detector.predict(described)
    least = arguments.min_probability
    if least is None:
        least = detector.threshold
    sizes = [read_image(path).shape[:2] for path in paths]
    with new_folder(out) as folder:
        write_table(names, detections, folder / "detections.csv")
        write_coco(names, sizes, list(detector.classes_), detections, folder / "coco.json")
        write_voc(names, sizes, detections, folder / "voc", min_probability=least)
        drawn = [folder / "overlays" / name for name in file_names(names, ".jpg")]
        for overlay, path, boxes in zip(drawn, paths, detections, strict=True):
            overlay.parent.mkdir(parents=True, exist_ok=True)
            pixels = draw(path, boxes, min_probability=least)[..., ::-1]
            overlay.write_bytes(cv2.imencode(".jpg", pixels)[1].tobytes())
        write_gallery(paths, names, detections, folder / "gallery.html", min_probability=least)
    n = sum(int(np.sum(d.probabilities >= least)) for d in detections)
    skipped = len(by_name) - len(names)
    unread = f", {skipped} could not be read" if skipped else ""
    gallery = escape(str(out / "gallery.html"))
    printer.say(f"{n} objects in {len(names)} images{unread}; see {gallery}")
    return {"out": str(out), "images": len(names), "objects": n, "skipped": skipped}


def evaluate(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Measure a table of detections against true boxes: CorLoc and average precision."""
    from bagwise.evaluate.boxes import corloc, detection_ap
    from bagwise.vision.image_sets import read_table

    truth = _image_set(arguments)
    detections = read_table(arguments.detections)
    number = {Path(name).with_suffix("").as_posix(): i for i, name in enumerate(truth.ids)}
    named = [Path(name).with_suffix("").as_posix() for name in detections["image"]]
    known = np.array([name in number for name in named], dtype=bool)
    if not known.any():
        raise ValueError(
            f"no image of {str(arguments.detections)!r} is among the {len(truth.ids)} annotated "
            f"ones, which are named like {truth.ids[0]!r}."
        )
    image = np.array([number.get(name, -1) for name in named])
    detected, score = detections[["x", "y", "w", "h"]].to_numpy(), detections["score"].to_numpy()
    rows: list[tuple[object, ...]] = []
    results: dict[str, object] = {}
    for name in truth.class_names:
        boxes = truth.boxes_of(name)
        if not any(len(b) for b in boxes):
            continue
        of_class = np.flatnonzero(known & (detections["class"] == name))
        ranked = image[of_class], detected[of_class], score[of_class]
        # The best-scored box of each image, or one of no size where none was found, [n, 4].
        best = np.zeros((len(boxes), 4))
        order = of_class[np.argsort(score[of_class], kind="stable")]
        best[image[order]] = detected[order]  # the last one written, the best, stays
        values = {"CorLoc": corloc(best, boxes), "AP": detection_ap(*ranked, boxes)}
        results[name] = values
        counts = (sum(len(b) > 0 for b in boxes), sum(len(b) for b in boxes))
        rows.append((name, *counts, *values.values()))
    if not known.all():
        printer.warn(f"{int(np.sum(~known))} boxes are of images without annotation; left out.")
    printer.table(("class", "images", "boxes", "CorLoc", "AP"), rows, words=("class",))
    return results


def _image_set(arguments: Namespace) -> ImageSet:
    from bagwise.vision.image_sets import read_coco, read_labels, read_voc

    if arguments.voc is not None:
        return read_voc(arguments.voc, arguments.split)
    if arguments.images is None:
        raise ValueError("say where the images are: --images with --labels or --coco, or --voc.")
    if arguments.coco is not None:
        return read_coco(arguments.coco, arguments.images)
    if arguments.labels is None:
        raise ValueError("--images needs --labels, a table with columns image and label.")
    return read_labels(arguments.labels, arguments.images)
