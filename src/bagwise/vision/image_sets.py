"""Image sets and detections as files: PASCAL VOC, COCO and tables; and a set that is drawn.

Boxes are ``x, y, width, height`` with the top left corner first, in pixels of the image.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike

from bagwise.core.arrays import Codes, Column, Floats, Ints
from bagwise.datasets.layouts import read_annotation
from bagwise.files.tables import named_columns, read_frame
from bagwise.vision.detection import Detections, Limits, shown
from bagwise.vision.images import SUFFIXES, ImageSource

_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_COLUMNS = ("image", "class", "x", "y", "w", "h", "score", "probability", "std")


class ImageSet(NamedTuple):
    """Images with their labels and whatever boxes are known.

    Examples
    --------
    >>> from bagwise.vision import make_digit_canvases
    >>> data = make_digit_canvases(4, random_state=0)
    >>> data.ids[0], data.class_names, [len(b) for b in data.boxes_of("9")].count(1)
    ('canvas_0000', ('9',), 2)
    """

    images: tuple[ImageSource, ...]
    ids: tuple[str, ...]
    class_names: tuple[str, ...]
    labels: Codes  # [N, C] 1 where the image contains the class
    boxes: tuple[Floats, ...]  # one [k, 4] array per image
    box_classes: tuple[Ints, ...]  # one [k] array of class numbers per image

    def boxes_of(self, name: str) -> list[Floats]:
        """True boxes of one class, one array per image."""
        number = self.class_names.index(name)
        return [b[c == number] for b, c in zip(self.boxes, self.box_classes, strict=True)]


def _image_set(
    paths: Sequence[Path],
    ids: Sequence[str],
    boxes: Iterable[ArrayLike],
    classes: Sequence[list[str]],
    class_names: tuple[str, ...],
) -> ImageSet:
    """An image set from the boxes of each image and their class names."""
    number = {name: i for i, name in enumerate(class_names)}
    labels = np.zeros((len(paths), len(class_names)), dtype=np.int8)
    codes = [np.array([number[c] for c in row], dtype=np.int64) for row in classes]
    for i, row in enumerate(codes):
        labels[i, row] = 1
    arrays = [np.asarray(b, dtype=np.float64).reshape(-1, 4) for b in boxes]
    real = [np.all(b[:, 2:] > 0, axis=1) for b in arrays]  # some sets have boxes of zero size
    return ImageSet(
        tuple(paths),
        tuple(ids),
        class_names,
        labels,
        tuple(b[r] for b, r in zip(arrays, real, strict=True)),
        tuple(c[r] for c, r in zip(codes, real, strict=True)),
    )


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
    paths, boxes, classes = [], [], []
    for name in names:
        _, objects = read_annotation(folder / "Annotations" / f"{name}.xml")
        classes.append([of_class for of_class, *_ in objects])
        # VOC counts pixels from 1 and includes the last one.
        corners = np.array([of_box for _, *of_box in objects], dtype=np.float64).reshape(-1, 4)
        boxes.append(np.hstack([corners[:, :2] - 1, corners[:, 2:] - corners[:, :2] + 1]))
        candidates = [
            folder / "JPEGImages" / (name + suffix)
            for suffix in (*SUFFIXES, *(s.upper() for s in SUFFIXES))
        ]
        path = next((path for path in candidates if path.is_file()), None)
        if path is None:
            raise ValueError(
                f"image {name!r} is annotated, but folder {str(folder / 'JPEGImages')!r} does not "
                "hold it."
            )
        paths.append(path)
    class_names = tuple(sorted({name for row in classes for name in row}))
    return _image_set(paths, names, boxes, classes, class_names)


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
    >>> data.class_names, data.boxes[0].tolist()
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
        boxes: list[list[list[float]]] = [[] for _ in row]
        classes: list[list[str]] = [[] for _ in row]
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
            boxes[row[item["image_id"]]].append(box)
            classes[row[item["image_id"]]].append(category[item["category_id"]])
        paths = [Path(images) / image["file_name"] for image in data["images"]]
        absent = next((p for p in paths if not p.is_file()), None)
        if absent is not None:
            raise ValueError(f"image {str(absent)!r} is listed in {where} but missing.")
        ids = [path.stem for path in paths]
        return _image_set(paths, ids, boxes, classes, tuple(category.values()))
    except KeyError as error:
        raise ValueError(f"{where} has an entry without {error}.") from error
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{where} is not a COCO file: {error}.") from error


class BoxTable(NamedTuple):
    """Boxes read from a table, one row per box."""

    images: Column  # [n] names as in the table
    classes: Column  # [n]
    boxes: Floats  # [n, 4]
    scores: Floats  # [n]


def write_table(names: Sequence[str], detections: Sequence[Detections], path: str | Path) -> None:
    """One row per box as CSV."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(_COLUMNS)
        for name, of_image in zip(names, detections, strict=True):
            for box, label, *numbers in zip(*of_image, strict=True):
                table.writerow([name, label, *(f"{v:.6g}" for v in (*box, *numbers))])


def read_table(path: str | Path) -> BoxTable:
    """Read what `write_table` wrote, or any table with those columns; ``score`` ranks the boxes."""
    needed = [c for c in _COLUMNS if c not in ("probability", "std")]
    frame = named_columns(read_frame(Path(path)), str(path), needed)
    numbers = np.empty((5, len(frame)))
    for i, column in enumerate(("x", "y", "w", "h", "score")):
        for row, text in enumerate(frame[column]):
            try:
                numbers[i, row] = float(text)
            except ValueError as error:
                raise ValueError(
                    f"row {row + 2} of {str(path)!r} has {text!r} as {column}; a number is needed."
                ) from error
    images, classes = (np.array(frame[column], dtype=str) for column in ("image", "class"))
    return BoxTable(images, classes, numbers[:4].T, numbers[4])


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
    for i, of_image in enumerate(detections):
        for box, label, score, p, _ in zip(*of_image, strict=True):
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
    min_probability: Limits = 0.5,
) -> None:
    """One xml file per image with the boxes that are probable enough, named as the image."""
    targets = file_names(names, ".xml")
    for name, target, (height, width), of_image in zip(
        names, targets, sizes, detections, strict=True
    ):
        root = ElementTree.Element("annotation")
        ElementTree.SubElement(root, "filename").text = PurePath(name).name
        size = ElementTree.SubElement(root, "size")
        for tag, value in (("width", width), ("height", height), ("depth", 3)):
            ElementTree.SubElement(size, tag).text = str(int(value))
        for k in np.flatnonzero(shown(of_image, min_probability)):
            item = ElementTree.SubElement(root, "object")
            ElementTree.SubElement(item, "name").text = str(of_image.classes[k])
            ElementTree.SubElement(item, "score").text = f"{of_image.probabilities[k]:.6g}"
            x, y, w, h = (float(v) for v in of_image.boxes[k])
            box = ElementTree.SubElement(item, "bndbox")
            # VOC counts pixels from 1 and includes the last one.
            for tag, corner in zip(_CORNERS, (x + 1, y + 1, x + w, y + h), strict=True):
                ElementTree.SubElement(box, tag).text = f"{corner:.2f}"
        ElementTree.indent(root)
        path = Path(folder) / target
        path.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(root).write(path, encoding="utf-8")


def make_digit_canvases(
    n_images: int = 100,
    *,
    digit: int = 9,
    digits: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    size: int = 128,
    n_others: int = 3,
    n_clutter: int = 8,
    random_state: int | None = None,
) -> ImageSet:
    """Draw digits of random size and place on canvases of coloured blots and lines.

    Every canvas holds ``n_others`` digits of other classes; half of them hold the wanted digit
    as well. True boxes of the wanted digit are known, those of the others are not part of the set.

    Parameters
    ----------
    n_images, digit : int, default=100, 9
        How many, and the class to find.
    digits, labels : arrays of shape (n, h, w) and (n,) or None, default=None
        Source of digits, 0 to 255. Default: scikit-learn's 8 x 8 digits.
    size, n_others, n_clutter : int, default=128, 3, 8
        Side of a canvas in pixels; other digits, and pieces of clutter, on each.
    random_state : int or None, default=None

    Examples
    --------
    >>> from bagwise.vision import make_digit_canvases
    >>> data = make_digit_canvases(10, random_state=0)
    >>> data.images[0].shape, data.class_names, int(data.labels.sum())
    ((128, 128, 3), ('9',), 5)
    """
    rng = np.random.default_rng(random_state)
    if digits is None or labels is None:
        from sklearn.datasets import load_digits

        source = load_digits()
        digits, labels = source.images * (255 / 16), source.target
    digits, labels = np.asarray(digits), np.asarray(labels)
    wanted, others = np.flatnonzero(labels == digit), np.flatnonzero(labels != digit)
    if len(wanted) == 0 or len(others) == 0:
        raise ValueError(f"digits must hold {digit} and other digits.")
    Y = rng.permutation(np.arange(n_images) % 2)
    images, boxes = [], []
    for positive in Y:
        canvas = _draw_clutter(size, n_clutter, rng)
        places: list[tuple[int, int, int]] = []
        true = np.empty((0, 4))
        if positive:
            true = np.array([_place_digit(canvas, digits[rng.choice(wanted)], places, rng)])
        for index in rng.choice(others, n_others):
            _place_digit(canvas, digits[index], places, rng)
        noise = rng.normal(0, 6, canvas.shape)
        images.append(np.clip(canvas + noise, 0, 255).astype(np.uint8))
        boxes.append(true)
    codes = tuple(np.zeros(len(b), dtype=np.int64) for b in boxes)
    names = tuple(f"canvas_{i:04}" for i in range(n_images))
    matrix = Y[:, None].astype(np.int8)
    return ImageSet(tuple(images), names, (str(digit),), matrix, tuple(boxes), codes)


def _draw_clutter(size: int, n_pieces: int, rng: np.random.Generator) -> Floats:
    """A smooth ground with blots and lines on it."""
    import cv2

    ground = rng.integers(20, 90, (4, 4, 3)).astype(np.float32)
    canvas = cv2.resize(ground, (size, size), interpolation=cv2.INTER_CUBIC)
    for _ in range(n_pieces):
        colour = tuple(float(v) for v in rng.integers(20, 170, 3))
        a, b = (tuple(int(v) for v in rng.integers(0, size, 2)) for _ in range(2))
        if rng.random() < 0.5:
            cv2.line(canvas, a, b, colour, int(rng.integers(1, 3)), cv2.LINE_AA)
        else:
            axes = tuple(int(v) for v in rng.integers(2, size // 14, 2))
            cv2.ellipse(canvas, a, axes, float(rng.uniform(0, 180)), 0, 360, colour, -1)
    return canvas


def _place_digit(
    canvas: Floats, digit: Floats, places: list[tuple[int, int, int]], rng: np.random.Generator
) -> list[int]:
    """Draw a digit where it meets no other one, as far as a few tries go; its tight box."""
    import cv2

    size = len(canvas)
    for _ in range(30):
        side = int(rng.integers(size // 5, size // 3))
        x, y = (int(v) for v in rng.integers(0, size - side, 2))
        if all(x + side <= a or a + s <= x or y + side <= b or b + s <= y for a, b, s in places):
            break
    places.append((x, y, side))
    ink = cv2.resize(digit.astype(np.float32), (side, side), interpolation=cv2.INTER_CUBIC)
    ink = np.clip(ink / 255, 0, 1)[..., None]
    colour = rng.integers(200, 256, 3).astype(np.float32)
    patch = canvas[y : y + side, x : x + side]
    patch[:] = patch * (1 - ink) + colour * ink
    rows, columns = (np.flatnonzero((ink[..., 0] > 0.3).any(axis=axis)) for axis in (1, 0))
    left, top = x + columns[0], y + rows[0]
    return [left, top, columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
