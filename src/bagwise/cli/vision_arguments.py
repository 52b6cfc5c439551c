"""Arguments of the commands on images and videos; nothing heavy is imported here.

``add_vision(commands, command)`` adds them to the command line: ``commands`` is what
``add_subparsers`` returned, ``command(commands, name, run, about, *examples)`` makes one.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError, _ArgumentGroup
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bagwise.cli.parser import Commands


_PROPOSALS = ("selective-search", "edge-boxes", "blobs", "windows", "faster-rcnn")
_WHOLENESS = ("auto", "u2netp", "classical", "none")
_BACKBONES = (
    "hog",
    "mobilenetv2",
    "efficientnet-lite0",
    "efficientnet-lite1",
    "efficientnet-lite2",
)


def _add_images(command: ArgumentParser) -> _ArgumentGroup:
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


def add_detect_fit(command: ArgumentParser) -> None:
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


def add_detect_predict(command: ArgumentParser) -> None:
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


def add_detect_evaluate(command: ArgumentParser) -> None:
    """Arguments of ``bagwise detect evaluate``."""
    command.add_argument("detections", type=Path, help="detections.csv that detect predict wrote")
    _add_images(command)


def add_track(command: ArgumentParser) -> None:
    """Arguments of ``bagwise track``."""
    command.add_argument("video", type=Path, help="video file, or folder of frames")
    command.add_argument(
        "--box",
        type=parse_box,
        action="append",
        metavar="X,Y,W,H",
        help="the target in the first frame; repeat for several (default: draw one on the screen)",
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="tracked video, .mp4 or .avi")
    command.add_argument("--csv", type=Path, metavar="FILE", help="table of boxes, a row per frame")
    command.add_argument("--mot", type=Path, metavar="FILE", help="table in MOT Challenge's format")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--force", action="store_true", help="replace what is there")


def strength(text: str) -> float | str:
    """A strength of coupling: a number from 0 up, or "auto"."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if text == "auto" or 0 <= value < math.inf:
        return text if text == "auto" else value
    raise ArgumentTypeError(f"a strength is a number from 0 up, or auto; got {text!r}")


def add_ct(command: ArgumentParser, what: str) -> None:
    """Arguments of ``bagwise ct fit`` and ``bagwise ct predict``."""
    if what == "predict":
        command.add_argument("model", type=Path, help="model that ct fit wrote")
    data = command.add_argument_group("data")
    data.add_argument(
        "--scans",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="DICOM files: a folder per scan, nested studies and series, or all in one folder",
    )
    data.add_argument(
        "--labels",
        type=Path,
        required=what == "fit",
        metavar="CSV",
        help="RSNA's or CQ500's label file, or columns scan and one of 0 and 1 per class"
        + ("" if what == "fit" else " (optional: adds the truth to the tables)"),
    )
    data.add_argument(
        "--series",
        metavar="TEXT",
        help="take the series whose name contains this (default: slices nearest to 5 mm apart)",
    )
    data.add_argument(
        "--skip-bad", action="store_true", help="leave out files and studies that cannot be used"
    )
    if what == "fit":
        command.add_argument(
            "--classes", metavar="A,B,...", help="which classes of the labels (default: all)"
        )
        command.add_argument(
            "--features",
            choices=("statistics", "attention"),
            default="statistics",
            help="statistics: computed per slice; attention: a network trained on them (torch)",
        )
        command.add_argument(
            "--couple",
            type=strength,
            default="auto",
            metavar="J",
            help="how strongly slices next to each other agree; 0 leaves each on its own, and auto "
            "chooses on held-out scans, which takes three more fits (default: auto)",
        )
        command.add_argument("--cv", type=int, metavar="K", help="estimate AUC by K-fold first")
        command.add_argument("--seed", type=int, default=0)
    where = "model to write" if what == "fit" else "folder to write"
    command.add_argument("--out", type=Path, required=True, metavar="PATH", help=where)
    command.add_argument("--force", action="store_true", help="replace what is there")


def parse_box(text: str) -> tuple[float, float, float, float]:
    """``x,y,w,h`` as numbers."""
    try:
        x, y, w, h = (float(v) for v in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError(f"a box is x,y,w,h; got {text!r}") from error
    return x, y, w, h


def add_vision(commands: Commands, command: Callable[..., Any]) -> None:
    """Add ``detect``, ``track`` and ``ct`` to the command line."""
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
            "track:run_track",
            "follow targets through a video",
            "bagwise track video.mp4 --box 122,58,75,97 --out tracked.mp4",
            "bagwise track frames/ --box 10,10,40,60 --box 90,12,38,61 --mot tracks.txt",
        )
    )
    about = "findings in CT scans and their slices after training on labels of scans"
    ct = commands.add_parser("ct", help=about, description=f"{about.capitalize()}.")
    parts = ct.add_subparsers(dest="part", metavar="PART", required=True)
    add_ct(
        command(
            parts,
            "fit",
            "ct:run_ct_fit",
            "train on folders of DICOM series and labels of scans",
            "bagwise ct fit --scans CQ500/ --labels reads.csv --classes ICH,SDH --out ct.bagwise",
            "bagwise ct fit --scans stage_2_train/ --labels stage_2_train.csv --out ct.bagwise",
        ),
        "fit",
    )
    add_ct(
        command(
            parts,
            "predict",
            "ct:run_ct_predict",
            "probabilities of scans and slices: scans.csv, slices.csv and a page per class",
            "bagwise ct predict ct.bagwise --scans new/ --out results/",
        ),
        "predict",
    )
