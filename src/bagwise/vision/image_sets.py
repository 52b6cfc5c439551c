"""Image sets and detections as files: PASCAL VOC, COCO and tables.

Boxes are ``x, y, width, height`` with the top left corner first, in pixels of the image.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike

from bagwise.core.arrays import Codes, Floats
from bagwise.datasets.layouts import read_annotation
from bagwise.files.tables import named_columns, read_frame
from bagwise.vision.detection import Detections
from bagwise.vision.images import SUFFIXES, ImageSource, list_images

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("image", "class", "x", "y", "w", "h", "score", "probability", "std")


class ImageSet(NamedTuple):
    """Images with their labels and whatever boxes are known.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import ImageSet
    >>> boxes = ({"cell": np.array([[4.0, 4.0, 9.0, 9.0]])}, {})
    >>> data = ImageSet(("a.png", "b.png"), ("a", "b"), ("cell",), np.array([[1], [0]]), boxes)
    >>> [len(of_image) for of_image in data.boxes_of("cell")]
    [1, 0]
    """

    images: tuple[ImageSource, ...]
    ids: tuple[str, ...]
    class_names: tuple[str, ...]
    labels: Codes  # [N, C] 1 where the image contains the class
    boxes: tuple[dict[str, Floats], ...]  # of each image the boxes [k, 4] by class, as `fit` takes

    def boxes_of(self, name: str) -> list[Floats]:
        """True boxes of one class, one array per image."""
        return [by_class.get(name, np.empty((0, 4))) for by_class in self.boxes]


def _image_set(
    paths: Sequence[Path],
    ids: Sequence[str],
    objects: Sequence[Iterable[tuple[str, ArrayLike | None]]],
    class_names: tuple[str, ...],
) -> ImageSet:
    """An image set from the objects of each image: the class, and the box where it is known."""
    boxes: list[dict[str, Floats]] = []
    for of_image in objects:
        by_class: dict[str, list[ArrayLike]] = {}
        for name, box in of_image:
            by_class.setdefault(name, [])
            # Boxes of zero size, which some sets have, are left out.
            if box is not None and min(np.asarray(box)[2:]) > 0:
                by_class[name].append(box)
        boxes.append({n: np.array(b, dtype=np.float64).reshape(-1, 4) for n, b in by_class.items()})
    labels = np.array([[name in row for name in class_names] for row in boxes], dtype=np.int8)
    return ImageSet(tuple(paths), tuple(ids), class_names, labels, tuple(boxes))


def read_labels(table: str | Path, folder: str | Path) -> ImageSet:
    """The images below a folder with a table of columns image and label, a row per class."""
    frame = named_columns(read_frame(Path(table)), str(table), ["image", "label"])
    labels: dict[str, set[str]] = {}
    for image, label in zip(frame["image"], frame["label"], strict=True):
        labels.setdefault(image, set()).update({label} - {""})
    paths = list_images(folder)
    names = [str(path.relative_to(folder)) for path in paths]
    missing = [name for name in names if name not in labels]
    unknown = sorted(set(labels) - set(names))
    if missing or unknown:
        first = f"image {missing[0]!r} has no label" if missing else f"label for {unknown[0]!r}"
        raise ValueError(
            f"{first}: {len(missing)} images of {str(folder)!r} are not in {str(table)!r}, and "
            f"{len(unknown)} of the table not in the folder."
        )
    classes = tuple(sorted(set().union(*labels.values())))
    if not classes:
        raise ValueError(f"{str(table)!r} names no class.")
    return _image_set(paths, names, [[(c, None) for c in labels[name]] for name in names], classes)


def read_voc(folder: str | Path, split: str | None = None) -> ImageSet:
    """Read an image set in the layout of PASCAL VOC.

    Parameters
    ----------
    folder : path
        Holds ``JPEGImages``, ``Annotations`` (one xml file per image) and, for ``split``,
        ``ImageSets/Main/<split>.txt``.
    split : str or None, default=None
        "train", "val", "test" ...; every annotated image when not given.

    Examples
    --------
    >>> from bagwise.vision import read_voc
    >>> data = read_voc("VOCdevkit/VOC2007", "trainval")  # doctest: +SKIP
    >>> data.class_names[:2]  # doctest: +SKIP
    ('aeroplane', 'bicycle')
    """
    folder = Path(folder)
    if not (folder / "Annotations").is_dir():
        raise ValueError(f"{str(folder)!r} has no folder Annotations, as a VOC folder must.")
    if split is None:
        names = sorted(p.stem for p in (folder / "Annotations").glob("*.xml"))
    else:
        listing = folder / "ImageSets" / "Main" / f"{split}.txt"
        if not listing.is_file():
            raise ValueError(f"split {split!r} needs the file {str(listing)!r}, which is missing.")
        lines = listing.read_text(encoding="utf-8").splitlines()
        names = [line.split()[0] for line in lines if line.strip()]
    if not names:
        raise ValueError(f"{str(folder)!r} names no images.")
    files = (folder / "JPEGImages").glob("*")
    pictures = {path.stem: path for path in files if path.suffix.lower() in SUFFIXES}
    paths, objects = [], []
    for name in names:
        _, annotated = read_annotation(folder / "Annotations" / f"{name}.xml")
        # VOC counts pixels from 1 and includes the last one.
        objects.append(
            [
                (of_class, (left - 1, top - 1, right - left + 1, bottom - top + 1))
                for of_class, left, top, right, bottom in annotated
            ]
        )
        if name not in pictures:
            raise ValueError(
                f"image {name!r} is annotated, but folder {str(folder / 'JPEGImages')!r} does not "
                "hold it."
            )
        paths.append(pictures[name])
    class_names = tuple(sorted({of_class for row in objects for of_class, _ in row}))
    return _image_set(paths, names, objects, class_names)


def read_coco(annotations: str | Path, images: str | Path) -> ImageSet:
    """Read an image set in the layout of COCO.

    Parameters
    ----------
    annotations : path
        The json file with ``images``, ``annotations`` and ``categories``.
    images : path
        The folder that the file names are relative to.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> from bagwise.vision import read_coco
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> (folder / "one.png").touch()
    >>> _ = (folder / "boxes.json").write_text(json.dumps({
    ...     "images": [{"id": 1, "file_name": "one.png"}],
    ...     "categories": [{"id": 7, "name": "cell"}],
    ...     "annotations": [{"id": 1, "image_id": 1, "category_id": 7, "bbox": [2, 3, 9, 9]}],
    ... }))
    >>> data = read_coco(folder / "boxes.json", folder)
    >>> data.class_names, data.boxes[0]["cell"].tolist()
    (('cell',), [[2.0, 3.0, 9.0, 9.0]])
    """
    where = repr(str(annotations))
    try:
        data = json.loads(Path(annotations).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not a readable json file: {error}.") from error
    if not isinstance(data, dict):
        raise ValueError(f"{where} is not a COCO file: it holds no object.")
    missing = [k for k in ("images", "annotations", "categories") if k not in data]
    if missing:
        raise ValueError(f"{where} lacks {missing}, which a COCO file must have.")
    try:
        category = {c["id"]: str(c["name"]) for c in data["categories"]}
        row = {image["id"]: i for i, image in enumerate(data["images"])}
        objects: list[list[tuple[str, list[float]]]] = [[] for _ in row]
        for item in data["annotations"]:
            if item["image_id"] not in row or item["category_id"] not in category:
                raise ValueError(
                    f"annotation {item.get('id')} of {where} names image {item['image_id']} or "
                    f"category {item['category_id']}, which is not listed."
                )
            box = [float(v) for v in item["bbox"]]
            if len(box) != 4 or not np.isfinite(box).all():
                raise ValueError(
                    f"annotation {item.get('id')} of {where} has the box {str(box)[:60]}; a box is "
                    "x, y, width and height."
                )
            objects[row[item["image_id"]]].append((category[item["category_id"]], box))
        paths = [Path(images) / image["file_name"] for image in data["images"]]
        absent = next((p for p in paths if not p.is_file()), None)
        if absent is not None:
            raise ValueError(f"image {str(absent)!r} is listed in {where} but missing.")
        return _image_set(paths, [p.stem for p in paths], objects, tuple(category.values()))
    except KeyError as error:
        raise ValueError(f"{where} has an entry without {error}.") from error
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{where} is not a COCO file: {error}.") from error


def write_table(names: Sequence[str], detections: Sequence[Detections], path: str | Path) -> None:
    """One row per box as CSV."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(_COLUMNS)
        for name, of_image in zip(names, detections, strict=True):
            for box, label, *numbers in zip(*of_image, strict=True):
                table.writerow([name, label, *(f"{v:.6g}" for v in (*box, *numbers))])


def read_table(path: str | Path) -> pd.DataFrame:
    """Read what `write_table` wrote, or any table with those columns; ``score`` ranks the boxes."""
    import pandas as pd

    needed = [c for c in _COLUMNS if c not in ("probability", "std")]
    frame = named_columns(read_frame(Path(path)), str(path), needed)
    for column in needed[2:]:
        numbers = pd.to_numeric(frame[column], errors="coerce")
        if numbers.isna().any():
            row = int(np.flatnonzero(numbers.isna())[0])
            raise ValueError(
                f"row {row + 2} of {str(path)!r} has {frame[column].iloc[row]!r} as {column}; a "
                "number is needed."
            )
        frame[column] = numbers
    return frame


def write_coco(
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    classes: Sequence[str],
    detections: Sequence[Detections],
    path: str | Path,
) -> None:
    """All boxes in the layout of COCO, each with its ``score``; sizes are height and width."""
    number = {str(name): c + 1 for c, name in enumerate(classes)}
    annotations = [
        {
            "image_id": i,
            "category_id": number[str(label)],
            "bbox": [round(float(v), 2) for v in box],
            "area": round(float(box[2] * box[3]), 2),
            "iscrowd": 0,
            "score": float(score),
            "probability": float(p),
        }
        for i, of_image in enumerate(detections, start=1)
        for box, label, score, p, _ in zip(*of_image, strict=True)
    ]
    images = [
        {"id": i, "file_name": name, "height": int(height), "width": int(width)}
        for i, (name, (height, width)) in enumerate(zip(names, sizes, strict=True), start=1)
    ]
    data = {
        "images": images,
        "annotations": [{"id": i, **entry} for i, entry in enumerate(annotations, start=1)],
        "categories": [{"id": c, "name": name} for name, c in number.items()],
    }
    Path(path).write_text(json.dumps(data), encoding="utf-8")


def file_names(names: Sequence[str], suffix: str) -> list[str]:
    """Names of files about images: another suffix, or one more where two images would share it.

    Examples
    --------
    >>> from bagwise.vision.image_sets import file_names
    >>> file_names(["a/x.jpg", "y.png", "y.jpg"], ".xml")
    ['a/x.xml', 'y.png.xml', 'y.jpg.xml']
    """
    stems = [PurePath(name).with_suffix("").as_posix() for name in names]
    count = Counter(stems)
    return [
        (stem if count[stem] == 1 else name) + suffix
        for name, stem in zip(names, stems, strict=True)
    ]


def write_voc(
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    detections: Sequence[Detections],
    folder: str | Path,
    *,
    min_probability: float = 0.5,
) -> None:
    """One xml file per image with the boxes that are probable enough, named as the image."""

    def add(parent: ElementTree.Element, **children: object) -> None:
        for tag, value in children.items():
            ElementTree.SubElement(parent, tag).text = str(value)

    targets = file_names(names, ".xml")
    for name, target, (height, width), of_image in zip(
        names, targets, sizes, detections, strict=True
    ):
        root = ElementTree.Element("annotation")
        add(root, filename=PurePath(name).name)
        add(ElementTree.SubElement(root, "size"), width=int(width), height=int(height), depth=3)
        for box, label, _, p, _ in zip(*of_image, strict=True):
            if p < min_probability:
                continue
            item = ElementTree.SubElement(root, "object")
            add(item, name=label, score=f"{p:.6g}")
            x, y, w, h = (float(v) for v in box)
            # VOC counts pixels from 1 and includes the last one.
            corners = {"xmin": x + 1, "ymin": y + 1, "xmax": x + w, "ymax": y + h}
            values = {tag: f"{corner:.2f}" for tag, corner in corners.items()}
            add(ElementTree.SubElement(item, "bndbox"), **values)
        ElementTree.indent(root)
        path = Path(folder) / target
        path.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(root).write(path, encoding="utf-8")
