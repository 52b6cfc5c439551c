"""Reading images and image sets: any image becomes 8-bit RGB, any layout one `ImageSet`.

Boxes are ``x, y, width, height`` with the top left corner first, in pixels of the image.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from bagwise.files.limits import check_image

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class ImageSet(NamedTuple):
    """Images with their labels and whatever boxes are known.

    Examples
    --------
    >>> from bagwise.vision import make_digit_canvases
    >>> data = make_digit_canvases(4, random_state=0)
    >>> data.ids[0], data.class_names, [len(b) for b in data.boxes_of("9")].count(1)
    ('canvas_0000', ('9',), 2)
    """

    images: tuple[Any, ...]  # paths, bytes or arrays: what `read_image` takes
    ids: tuple[str, ...]
    class_names: tuple[str, ...]
    labels: Any  # [N, C] int8, 1 where the image contains the class
    boxes: tuple[Any, ...]  # one [k, 4] array per image
    box_classes: tuple[Any, ...]  # one [k] array of class numbers per image

    def boxes_of(self, name: str) -> list[Any]:
        """True boxes of one class, one array per image."""
        number = self.class_names.index(name)
        return [b[c == number] for b, c in zip(self.boxes, self.box_classes, strict=True)]


def read_image(source: Any) -> Any:
    """Any image as RGB, uint8, shape (H, W, 3).

    Grey images are repeated over the channels; transparent pixels are laid over white; 16-bit and
    floating images are stretched so that their darkest pixel is 0 and their brightest 255 (8-bit
    images, and floating ones within [0, 1], keep their scale).

    Parameters
    ----------
    source : path, bytes or array of shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import read_image
    >>> read_image(np.array([[0, 65535]], dtype=np.uint16))[0].tolist()
    [[0, 0, 0], [255, 255, 255]]
    """
    if isinstance(source, (str, Path)):
        name = f"image {str(source)!r}"
        try:
            data = Path(source).read_bytes()
        except OSError as error:
            raise ValueError(f"{name} cannot be read: {error.strerror}.") from error
        return _as_rgb(_decode(data, name), name)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _as_rgb(_decode(bytes(source), "image"), "image")
    return _as_rgb(np.asarray(source), "image")


def _decode(data: bytes, name: str) -> Any:
    import cv2

    pixels = None
    if data:
        try:
            check_image(data)
        except ValueError as error:
            raise ValueError(f"{name} {error}.") from error
        level = cv2.utils.logging.getLogLevel()
        cv2.utils.logging.setLogLevel(0)  # the error below says it once, with the file's name
        try:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        except cv2.error as error:
            raise ValueError(f"{name} cannot be decoded: {error}.") from error
        finally:
            cv2.utils.logging.setLogLevel(level)
    if pixels is None:
        raise ValueError(
            f"{name} is not an image or is corrupt ({len(data)} bytes); it must be one of "
            f"{', '.join(s[1:] for s in SUFFIXES)}."
        )
    if pixels.ndim == 3 and pixels.shape[2] >= 3:  # OpenCV's order is BGR(A)
        pixels = np.concatenate([pixels[..., 2::-1], pixels[..., 3:]], axis=2)
    return pixels


def _as_rgb(pixels: Any, name: str) -> Any:
    pixels = eight_bit(pixels, name)
    if pixels.shape[2] == 4:
        alpha = pixels[..., 3:].astype(np.float32) / 255
        over_white = pixels[..., :3] * alpha + 255 * (1 - alpha)
        pixels = np.rint(over_white).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def eight_bit(pixels: Any, name: str) -> Any:
    """Pixels of any number type as 8 bits with channels, [H, W, C], as `read_image` says."""
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or pixels.size == 0:
        raise ValueError(
            f"{name} must have shape (height, width) or (height, width, 1, 3 or 4); "
            f"got {pixels.shape}."
        )
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == bool:
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.kind not in "iuf":
        raise ValueError(f"{name} must hold numbers; got dtype {pixels.dtype}.")
    values = pixels.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"{name} contains NaN or infinity.")
    colour = values[..., :3]
    low, high = float(colour.min()), float(colour.max())
    if pixels.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    top = 1.0 if pixels.dtype.kind == "f" else float(np.iinfo(pixels.dtype).max)
    out = np.rint((values - low) / max(high - low, 1e-12) * 255)
    if pixels.shape[2] == 4:  # opacity is a share of the type's range, never stretched
        out[..., 3] = np.rint(values[..., 3] / top * 255)
    return np.clip(out, 0, 255).astype(np.uint8)


def fit_within(image: Any, max_side: int | None) -> tuple[Any, float]:
    """The image shrunk to ``max_side`` at most, and the factor that was applied."""
    import cv2

    longest = max(image.shape[:2])
    if max_side is None or longest <= max_side:
        return image, 1.0
    factor = max_side / longest
    size = (max(round(image.shape[1] * factor), 1), max(round(image.shape[0] * factor), 1))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA), factor


def clip_boxes(boxes: Any, height: int, width: int) -> Any:
    """Boxes cut to the image; those with nothing left are dropped."""
    boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    low = np.maximum(boxes[:, :2], 0)
    high = np.minimum(boxes[:, :2] + boxes[:, 2:], [width, height])
    kept = np.all(high > low, axis=1) & np.isfinite(boxes).all(axis=1)
    return np.hstack([low, high - low])[kept]


def grow_boxes(boxes: Any, factor: float) -> Any:
    """Boxes of ``factor`` x the size around the same centres."""
    size = boxes[:, 2:] * factor
    return np.hstack([boxes[:, :2] + (boxes[:, 2:] - size) / 2, size])


def list_images(folder: str | Path) -> list[Path]:
    """Image files below a folder, sorted by path.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from bagwise.vision import list_images
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("b.png", "a.jpg", "notes.txt"):
    ...     (folder / name).touch()
    >>> [path.name for path in list_images(folder)]
    ['a.jpg', 'b.png']
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is not a folder of images.")
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not found:
        raise ValueError(
            f"folder {str(folder)!r} holds no images; looked for {', '.join(SUFFIXES)}."
        )
    return found


def read_voc(folder: str | Path, split: str | None = None) -> ImageSet:
    """Read an image set in the layout of PASCAL VOC.

    Parameters
    ----------
    folder : path
        Holds ``JPEGImages``, ``Annotations`` (one xml file per image) and, for ``split``,
        ``ImageSets/Main/<split>.txt``.
    split : str, optional
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
        names = [
            line.split()[0]
            for line in listing.read_text(encoding="utf-8").splitlines()
            if line.strip()
        ]
    if not names:
        raise ValueError(f"{str(folder)!r} names no images.")
    rows = [_read_voc_boxes(folder / "Annotations" / f"{name}.xml") for name in names]
    paths = [_find_image(folder / "JPEGImages", name) for name in names]
    return _image_set(paths, names, [b for b, _ in rows], [c for _, c in rows])


def _read_voc_boxes(path: Path) -> tuple[Any, list[str]]:
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise ValueError(f"annotation {str(path)!r} cannot be read: {error}.") from error
    boxes, classes = [], []
    for item in root.iter("object"):
        corners = [item.findtext(f"bndbox/{k}") for k in ("xmin", "ymin", "xmax", "ymax")]
        name = item.findtext("name")
        if name is None or any(c is None for c in corners):
            raise ValueError(f"annotation {str(path)!r} has an object without a name or a box.")
        left, top, right, bottom = (float(c) for c in corners if c is not None)
        # VOC counts pixels from 1 and includes the last one.
        boxes.append([left - 1, top - 1, right - left + 1, bottom - top + 1])
        classes.append(name)
    return np.asarray(boxes, dtype=np.float64).reshape(-1, 4), classes


def _find_image(folder: Path, name: str) -> Path:
    for suffix in (*SUFFIXES, *(s.upper() for s in SUFFIXES)):
        if (folder / (name + suffix)).is_file():
            return folder / (name + suffix)
    raise ValueError(f"image {name!r} is annotated, but folder {str(folder)!r} does not hold it.")


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
    try:
        data = json.loads(Path(annotations).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(annotations)!r} is not a readable json file: {error}.") from error
    if not isinstance(data, dict):
        raise ValueError(f"{str(annotations)!r} is not a COCO file: it holds no object.")
    missing = [k for k in ("images", "annotations", "categories") if k not in data]
    if missing:
        raise ValueError(f"{str(annotations)!r} lacks {missing}, which a COCO file must have.")
    try:
        return _coco_set(data, str(annotations), Path(images))
    except KeyError as error:
        raise ValueError(f"{str(annotations)!r} has an entry without {error}.") from error
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{str(annotations)!r} is not a COCO file: {error}.") from error


def _coco_set(data: dict[str, Any], annotations: str, images: Path) -> ImageSet:
    category = {c["id"]: str(c["name"]) for c in data["categories"]}
    row = {image["id"]: i for i, image in enumerate(data["images"])}
    boxes: list[list[Any]] = [[] for _ in row]
    classes: list[list[str]] = [[] for _ in row]
    for item in data["annotations"]:
        if item["image_id"] not in row or item["category_id"] not in category:
            raise ValueError(
                f"annotation {item.get('id')} of {annotations!r} names image "
                f"{item['image_id']} or category {item['category_id']}, which is not listed."
            )
        boxes[row[item["image_id"]]].append([float(v) for v in item["bbox"]])
        classes[row[item["image_id"]]].append(category[item["category_id"]])
    paths = [images / image["file_name"] for image in data["images"]]
    absent = next((p for p in paths if not p.is_file()), None)
    if absent is not None:
        raise ValueError(f"image {str(absent)!r} is listed in {annotations!r} but missing.")
    names = [p.stem for p in paths]
    return _image_set(paths, names, boxes, classes, tuple(category.values()))


def _image_set(
    paths: Sequence[Any],
    names: Sequence[str],
    boxes: Sequence[Any],
    classes: Sequence[list[str]],
    class_names: tuple[str, ...] = (),
) -> ImageSet:
    if not class_names:
        class_names = tuple(sorted({name for row in classes for name in row}))
    number = {name: i for i, name in enumerate(class_names)}
    labels = np.zeros((len(paths), len(class_names)), dtype=np.int8)
    codes = [np.array([number[c] for c in row], dtype=np.int64) for row in classes]
    for i, row in enumerate(codes):
        labels[i, row] = 1
    tidy = [np.asarray(b, dtype=np.float64).reshape(-1, 4) for b in boxes]
    real = [np.all(b[:, 2:] > 0, axis=1) for b in tidy]  # some sets carry boxes of zero size
    return ImageSet(
        tuple(paths),
        tuple(names),
        class_names,
        labels,
        tuple(b[r] for b, r in zip(tidy, real, strict=True)),
        tuple(c[r] for c, r in zip(codes, real, strict=True)),
    )
