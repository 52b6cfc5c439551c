"""Public layouts of tracking sequences and annotated images, read as the data home's files are.

Whoever has no ``.npz`` of the data home unpacks the public archive in its place: the folder
``tracking/david/`` instead of the file ``tracking/david.npz``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from bagwise.core.arrays import Column

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp")
# Classes of BCCD in the order of its published file; other sets sort theirs.
_CLASS_ORDER = ("RBC", "WBC", "Platelets")
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def read_sequence(folder: str | Path) -> dict[str, Column]:
    """Frames and true boxes of a tracking sequence.

    Two layouts are known. MILTrack's: ``imgs/`` with one picture per frame and ``NAME_gt.txt``
    with ``x,y,w,h`` per frame, ``0,0,0,0`` where a frame is not annotated. OTB's: ``img/`` and
    ``groundtruth_rect.txt``, whose pixels are counted from 1.

    Parameters
    ----------
    folder : path

    Returns
    -------
    dict
        ``frames`` uint8 (T, H, W), ``gt`` float32 (T, 4) with NaN where not annotated and
        ``gt_valid`` (T,).

    Examples
    --------
    >>> from bagwise.datasets.layouts import read_sequence
    >>> read_sequence("no/such/folder")
    Traceback (most recent call last):
    ValueError: no/such/folder is not a tracking sequence: ...
    """
    from PIL import Image, UnidentifiedImageError

    folder = Path(folder)
    otb = folder / "groundtruth_rect.txt"
    truths = [otb] if otb.is_file() else sorted(folder.glob("*_gt.txt"))
    pictures = folder / ("img" if otb.is_file() else "imgs")
    if len(truths) != 1 or not pictures.is_dir():
        raise ValueError(
            f"{folder} is not a tracking sequence: it needs img/ with groundtruth_rect.txt (OTB) "
            "or imgs/ with one NAME_gt.txt (MILTrack)."
        )
    raw = _read_boxes(truths[0])
    paths = sorted(p for p in pictures.iterdir() if p.suffix.lower() in _PICTURES)
    if len(paths) != len(raw):
        raise ValueError(f"{folder} has {len(paths)} frames and {len(raw)} boxes; they must agree.")
    frames = []
    for path in paths:
        try:
            with Image.open(path) as picture:
                frames.append(np.asarray(picture.convert("L")))
        except (OSError, UnidentifiedImageError) as error:
            raise ValueError(f"{path} cannot be read as a picture: {error}.") from error
    sizes = {frame.shape for frame in frames}
    if len(sizes) != 1:
        raise ValueError(f"{pictures} has frames of different sizes: {sorted(sizes)}.")
    valid = np.any(raw != 0, axis=1)
    gt = np.where(valid[:, None], raw, np.float32(np.nan))
    if otb.is_file():
        gt[:, :2] -= 1
    return {"frames": np.stack(frames), "gt": gt, "gt_valid": valid}


def _read_boxes(path: Path) -> NDArray[np.float32]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = [float(word) for word in line.replace(",", " ").split()]
        except ValueError:
            row = []
        if len(row) != 4:
            raise ValueError(f"{path}: line {number} must be x, y, w, h; got {line.strip()!r}.")
        rows.append(row)
    return np.array(rows, dtype=np.float32).reshape(-1, 4)


def read_annotated(folder: str | Path) -> dict[str, Column]:
    """Pictures with boxes in PASCAL VOC's layout, as the arrays of ``detection/NAME.npz``.

    Parameters
    ----------
    folder : path
        With ``JPEGImages/``, ``Annotations/`` (one xml file per picture) and
        ``ImageSets/Main/train.txt``, ``val.txt``, ``test.txt``; pictures in none of the lists
        are "train". Boxes are ``xmin, ymin, xmax - xmin, ymax - ymin``.

    Examples
    --------
    >>> from bagwise.datasets.layouts import read_annotated
    >>> read_annotated("no/such/folder")
    Traceback (most recent call last):
    ValueError: no/such/folder has no folder Annotations ...
    """
    folder = Path(folder)
    notes = sorted((folder / "Annotations").glob("*.xml"))
    if not notes:
        raise ValueError(f"{folder} has no folder Annotations with one xml file per picture.")
    names = [path.stem for path in notes]
    jpegs = [(folder / "JPEGImages" / f"{name}.jpg") for name in names]
    missing = [path for path in jpegs if not path.is_file()]
    if missing:
        raise ValueError(f"{missing[0]} is annotated, but it is not there.")
    parsed = [read_annotation(path) for path in notes]
    named = {box[0] for _, boxes in parsed for box in boxes}
    classes = [c for c in _CLASS_ORDER if c in named] + sorted(named - set(_CLASS_ORDER))
    owner, box_class, xywh = [], [], []
    label = np.zeros((len(names), len(classes)), dtype=np.int8)
    for i, (_, boxes) in enumerate(parsed):
        for name, left, top, right, bottom in boxes:
            owner.append(i)
            box_class.append(classes.index(name))
            xywh.append((left, top, right - left, bottom - top))
            label[i, classes.index(name)] = 1
    splits = {}
    for part in ("train", "val", "test"):
        listing = folder / "ImageSets" / "Main" / f"{part}.txt"
        lines = listing.read_text(encoding="utf-8").splitlines() if listing.is_file() else []
        splits.update({line.split()[0]: part for line in lines if line.strip()})
    stored = [path.read_bytes() for path in jpegs]
    return {
        "jpeg": np.frombuffer(b"".join(stored), dtype=np.uint8),
        "jpeg_offset": np.concatenate([[0], np.cumsum([len(b) for b in stored])]),
        "image_hw": np.array([size for size, _ in parsed], dtype=np.int32),
        "box_image": np.array(owner, dtype=np.int32),
        "box_class": np.array(box_class, dtype=np.int16),
        "box_xywh": np.array(xywh, dtype=np.float32).reshape(-1, 4),
        "image_label": label,
        "split": np.array([splits.get(name, "train") for name in names]),
        "image_id": np.array(names),
        "class_names": np.array(classes),
    }


def read_annotation(
    path: Path,
) -> tuple[tuple[int, int], list[tuple[Any, ...]]]:
    """Height and width of a picture, and name and corners of its boxes."""
    try:
        root = ElementTree.parse(path).getroot()
        size = int(root.findtext("size/height", "0")), int(root.findtext("size/width", "0"))
        boxes: list[tuple[Any, ...]] = [
            (
                str(item.findtext("name")),
                *(float(item.findtext(f"bndbox/{k}", "nan")) for k in _CORNERS),
            )
            for item in root.iter("object")
        ]
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise ValueError(f"annotation {path} cannot be read: {error}.") from error
    if any(name == "None" or not np.isfinite(corners).all() for name, *corners in boxes):
        raise ValueError(f"annotation {path} has an object without a name or a box.")
    return size, boxes
