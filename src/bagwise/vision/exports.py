"""Detections as files that other tools read: a table, COCO, PASCAL VOC, and back for measuring."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from bagwise.files.tables import named_columns, read_frame
from bagwise.vision.detection import Detections, shown

_COLUMNS = ("image", "class", "x", "y", "w", "h", "score", "probability", "std")


def write_table(names: Sequence[str], detections: Sequence[Detections], path: str | Path) -> None:
    """One row per box as CSV."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(_COLUMNS)
        for name, found in zip(names, detections, strict=True):
            for box, label, *numbers in zip(*found, strict=True):
                table.writerow([name, label, *(f"{v:.6g}" for v in (*box, *numbers))])


def write_coco(
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    classes: Sequence[str],
    detections: Sequence[Detections],
    path: str | Path,
) -> None:
    """All boxes in the layout of COCO, each with its ``score``; sizes are height and width."""
    number = {str(name): c + 1 for c, name in enumerate(classes)}
    annotations: list[dict[str, Any]] = []
    for i, found in enumerate(detections):
        for box, label, score, p, _ in zip(*found, strict=True):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": i + 1,
                    "category_id": number[str(label)],
                    "bbox": [round(float(v), 2) for v in box],
                    "area": round(float(box[2] * box[3]), 2),
                    "iscrowd": 0,
                    "score": float(score),
                    "probability": float(p),
                }
            )
    images = [
        {"id": i + 1, "file_name": name, "height": int(height), "width": int(width)}
        for i, (name, (height, width)) in enumerate(zip(names, sizes, strict=True))
    ]
    categories = [{"id": c, "name": name} for name, c in number.items()]
    data = {"images": images, "annotations": annotations, "categories": categories}
    Path(path).write_text(json.dumps(data), encoding="utf-8")


def write_voc(
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    detections: Sequence[Detections],
    folder: str | Path,
    *,
    min_probability: Any = 0.5,
) -> None:
    """One xml file per image with the boxes that are probable enough, named as the image."""
    for name, (height, width), found in zip(names, sizes, detections, strict=True):
        root = ElementTree.Element("annotation")
        ElementTree.SubElement(root, "filename").text = PurePath(name).name
        size = ElementTree.SubElement(root, "size")
        for tag, value in (("width", width), ("height", height), ("depth", 3)):
            ElementTree.SubElement(size, tag).text = str(int(value))
        for k in np.flatnonzero(shown(found, min_probability)):
            item = ElementTree.SubElement(root, "object")
            ElementTree.SubElement(item, "name").text = str(found.classes[k])
            ElementTree.SubElement(item, "score").text = f"{found.probabilities[k]:.6g}"
            x, y, w, h = (float(v) for v in found.boxes[k])
            corners = ElementTree.SubElement(item, "bndbox")
            # VOC counts pixels from 1 and includes the last one.
            for tag, corner in zip(
                ("xmin", "ymin", "xmax", "ymax"), (x + 1, y + 1, x + w, y + h), strict=True
            ):
                ElementTree.SubElement(corners, tag).text = f"{corner:.2f}"
        ElementTree.indent(root)
        path = Path(folder) / PurePath(name).with_suffix(".xml")
        path.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(root).write(path, encoding="utf-8")


class FoundBoxes(NamedTuple):
    """Boxes read back from a table, one row per box."""

    images: Any  # [n] names as in the table
    classes: Any  # [n]
    boxes: Any  # [n, 4]
    scores: Any  # [n]


def read_table(path: str | Path) -> FoundBoxes:
    """Read what `write_table` wrote, or any table with those columns; ``score`` ranks the boxes."""
    needed = [c for c in _COLUMNS if c not in ("probability", "std")]
    frame = named_columns(read_frame(Path(path)), str(path), needed)
    numbers = []
    for column in ("x", "y", "w", "h", "score"):
        values = []
        for row, text in enumerate(frame[column]):
            try:
                values.append(float(text))
            except ValueError as error:
                raise ValueError(
                    f"row {row + 2} of {str(path)!r} has {text!r} as {column}; a number is needed."
                ) from error
        numbers.append(values)
    columns = np.array(numbers, dtype=np.float64).reshape(5, -1)
    return FoundBoxes(
        np.array(frame["image"], dtype=str),
        np.array(frame["class"], dtype=str),
        columns[:4].T,
        columns[4],
    )
