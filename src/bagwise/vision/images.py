"""Reading images and the geometry of boxes: any image becomes 8-bit RGB.

Boxes are ``x, y, width, height`` with the top left corner first, in pixels of the image.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bagwise.core.arrays import Column, Floats
from bagwise.files.limits import check_image

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")

Image: TypeAlias = NDArray[np.uint8]
# What `read_image` takes: a path, an encoded file, or pixels.
ImageSource: TypeAlias = str | Path | bytes | bytearray | memoryview | Column


def read_image(source: ImageSource) -> Image:
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
    name = "image"
    if isinstance(source, (str, Path)):
        name = f"image {str(source)!r}"
        try:
            source = Path(source).read_bytes()
        except OSError as error:
            raise ValueError(f"{name} cannot be read: {error.strerror}.") from error
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = _decode(bytes(source), name)
    pixels = eight_bit(np.asarray(source), name)
    if pixels.shape[2] == 4:
        alpha = pixels[..., 3:].astype(np.float32) / 255
        over_white = pixels[..., :3] * alpha + 255 * (1 - alpha)
        pixels = np.rint(over_white).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


@contextmanager
def quiet_opencv() -> Iterator[None]:
    """OpenCV prints nothing: what went wrong is said by an error, with the file's name."""
    import cv2

    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(0)
    try:
        yield
    finally:
        cv2.utils.logging.setLogLevel(level)


def _decode(data: bytes, name: str) -> Column:
    import cv2

    pixels = None
    if data:
        try:
            check_image(data)
            with quiet_opencv():
                pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        except ValueError as error:
            raise ValueError(f"{name} {error}.") from error
        except cv2.error as error:
            raise ValueError(f"{name} cannot be decoded: {error}.") from error
    if pixels is None:
        raise ValueError(
            f"{name} is not an image or is corrupt ({len(data)} bytes); it must be one of "
            f"{', '.join(s[1:] for s in SUFFIXES)}."
        )
    if pixels.ndim == 3 and pixels.shape[2] >= 3:  # OpenCV's order is BGR(A)
        pixels = np.concatenate([pixels[..., 2::-1], pixels[..., 3:]], axis=2)
    return pixels


def eight_bit(pixels: Column, name: str) -> Image:
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


def fit_within(image: Image, max_side: int | None) -> tuple[Image, float]:
    """The image shrunk to ``max_side`` at most, and the factor that was applied."""
    import cv2

    longest = max(image.shape[:2])
    if max_side is None or longest <= max_side:
        return image, 1.0
    factor = max_side / longest
    size = (max(round(image.shape[1] * factor), 1), max(round(image.shape[0] * factor), 1))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA), factor


def clip_boxes(boxes: ArrayLike, height: int, width: int) -> Floats:
    """Boxes cut to the image; those with nothing left are dropped."""
    boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    low = np.maximum(boxes[:, :2], 0)
    high = np.minimum(boxes[:, :2] + boxes[:, 2:], [width, height])
    kept = np.all(high > low, axis=1) & np.isfinite(boxes).all(axis=1)
    return np.hstack([low, high - low])[kept]


def grow_boxes(boxes: Floats, factor: float) -> Floats:
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
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not paths:
        raise ValueError(
            f"folder {str(folder)!r} holds no images; looked for {', '.join(SUFFIXES)}."
        )
    return paths
