"""Arguments of the commands on images and videos; nothing heavy is imported here.

``add_vision(commands, command)`` adds them to the command line: ``commands`` is what
``add_subparsers`` returned, ``command(commands, name, run, about, *examples)`` makes one.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PROPOSALS = ("selective-search", "edge-boxes", "blobs", "windows", "faster-rcnn")
_WHOLENESS = ("auto", "u2netp", "classical", "none")
_BACKBONES = (
    "hog",
    "mobilenetv2",
    "efficientnet-lite0",
    "efficientnet-lite1",
    "efficientnet-lite2",
)


def _add_images(command: Any) -> Any:
    data = command.add_argument_group("data: a folder with labels, a VOC folder, or a COCO file")
    data.add_argument("--images", type=Path, metavar="FOLDER", help="folder of images")
    data.add_argument(
        "--labels",
        type=Path,
        metavar="CSV",
        help="columns image and label; one row per class of an image, label empty for none",
    )
    data.add_argument("--voc", type=Path, metavar="FOLDER", help="image set in PASCAL VOC's layout")
    data.add_argument("--split", help="with --voc: train, val, trainval, ...")
    data.add_argument("--coco", type=Path, metavar="JSON", help="COCO annotations, with --images")
    return data


def add_detect_fit(command: Any) -> None:
    """Arguments of ``bagwise detect fit``."""
    data = _add_images(command)
    data.add_argument(
        "--skip-bad", action="store_true", help="leave images out that cannot be read, and say so"
    )
    data.add_argument(
        "--use-boxes", action="store_true", help="also learn from the boxes of --voc or --coco"
    )
    model = command.add_argument_group("model")
    model.add_argument(
        "--proposals", choices=_PROPOSALS, help="blobs for cells and marks; default: photographs"
    )
    model.add_argument("--n-boxes", type=int, help="proposals per image")
    model.add_argument(
        "--min-side", type=float, help="least side of a proposal, as a share of the image's"
    )
    model.add_argument("--features", choices=_BACKBONES, help="default: the best installed")
    model.add_argument(
        "--wholeness",
        choices=_WHOLENESS,
        default="auto",
        help="saliency that judges whether a box holds a whole object; none for cells and marks",
    )
    model.add_argument("--pca", type=int, default=50, help="principal components kept")
    model.add_argument(
        "--contrast", type=float, help="rank boxes by contrast with a ring, 1.5 to 2"
    )
    model.add_argument("--cache", type=Path, help="folder that keeps region features")
    model.add_argument("--seed", type=int, default=0)
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="model to write")
    command.add_argument("--force", action="store_true", help="replace what is there")


def add_detect_predict(command: Any) -> None:
    """Arguments of ``bagwise detect predict``."""
    command.add_argument("model", type=Path, help="model that detect fit wrote")
    command.add_argument("--images", type=Path, required=True, metavar="FOLDER")
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="results")
    command.add_argument(
        "--min-probability",
        type=float,
        help="least probability of a box in gallery, overlays and VOC files; default: chosen on "
        "held-out images when the model was trained",
    )
    command.add_argument(
        "--skip-bad", action="store_true", help="leave images out that cannot be read, and say so"
    )
    command.add_argument("--force", action="store_true", help="replace what is there")


def add_detect_evaluate(command: Any) -> None:
    """Arguments of ``bagwise detect evaluate``."""
    command.add_argument("detections", type=Path, help="detections.csv that detect predict wrote")
    _add_images(command)


def add_track(command: Any) -> None:
    """Arguments of ``bagwise track``."""
    command.add_argument("video", type=Path, help="video file, or folder of frames")
    command.add_argument("--box", type=parse_box, required=True, metavar="X,Y,W,H")
    command.add_argument("--out", type=Path, metavar="FILE", help="tracked video, .mp4 or .avi")
    command.add_argument("--csv", type=Path, metavar="FILE", help="table of boxes and scores")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--force", action="store_true", help="replace what is there")


def parse_box(text: str) -> tuple[float, float, float, float]:
    """``x,y,w,h`` as numbers."""
    try:
        x, y, w, h = (float(v) for v in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError(f"a box is x,y,w,h; got {text!r}") from error
    return x, y, w, h


def add_vision(commands: Any, command: Callable[..., Any]) -> None:
    """Add ``detect fit``, ``detect predict`` and ``track`` to the command line."""
    about = "find objects in images after training on image labels"
    detect = commands.add_parser("detect", help=about, description=f"{about.capitalize()}.")
    parts = detect.add_subparsers(dest="part", metavar="PART", required=True)
    add_detect_fit(
        command(
            parts,
            "fit",
            "vision:run_detect_fit",
            "train a detector on image labels",
            "bagwise detect fit --images train/ --labels labels.csv --out cells.bagwise",
            "bagwise detect fit --voc VOC2007/ --split trainval --out voc.bagwise",
        )
    )
    add_detect_predict(
        command(
            parts,
            "predict",
            "vision:run_detect_predict",
            "find objects in a folder of images: tables (CSV, COCO, VOC), overlays and a page",
            "bagwise detect predict cells.bagwise --images new/ --out results/",
        )
    )
    add_detect_evaluate(
        command(
            parts,
            "evaluate",
            "vision:run_detect_evaluate",
            "measure detections against true boxes: CorLoc and average precision",
            "bagwise detect evaluate results/detections.csv --voc VOC2007/ --split test",
        )
    )
    add_track(
        command(
            commands,
            "track",
            "vision:run_track",
            "follow a target through a video",
            "bagwise track video.mp4 --box 122,58,75,97 --out tracked.mp4",
        )
    )
