"""A picture per instance: from a dataset in the bag files, or from a folder, as PNG bytes."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bagwise.bags import Bags
from bagwise.files.problems import bad_file

_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
# Tiny pictures are enlarged by whole numbers, so that their pixels stay square.
_LEAST_SIDE = 64


class _EncodedPicture(NamedTuple):
    """A picture as a browser reads it."""

    content: bytes
    media_type: str

    def uri(self) -> str:
        """The picture inside an address."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.content).decode('ascii')}"


class ArrayPictures:
    """Pictures from an array aligned with the instances: gray [N, h, w] or colour [N, h, w, 3].

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.label import ArrayPictures
    >>> ArrayPictures(np.zeros((5, 8, 8), dtype=np.uint8)).read(2).media_type
    'image/png'
    """

    def __init__(self, images: NDArray[np.uint8]) -> None:
        images = np.asarray(images)
        if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3, 4)):
            raise ValueError(
                "pictures must be N x height x width, with 1, 3 or 4 channels where there is a "
                f"fourth axis; got shape {images.shape}."
            )
        self.images = images
        self._range = (0.0, 255.0)
        if images.dtype != np.uint8:
            self._range = float(images.min()), float(images.max())

    def read(self, row: int) -> _EncodedPicture | None:
        """The picture of an instance."""
        pixels = self.images[row]
        if pixels.dtype != np.uint8:
            low, high = self._range
            pixels = ((pixels - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
        if pixels.ndim == 3 and pixels.shape[2] == 1:
            pixels = pixels[..., 0]
        return _EncodedPicture(_png(pixels), "image/png")


class FolderPictures:
    """Pictures from a folder: ``BAG/INDEX.png`` or ``BAG_INDEX.png``, also .jpg and .webp.

    The folder is listed once. A request names an instance, never a path, and what a link leads
    to outside the folder is left out.

    Examples
    --------
    >>> from bagwise.label import FolderPictures
    >>> FolderPictures("no/such/folder", None)
    Traceback (most recent call last):
    bagwise.files.problems.BadFilesError: no/such/folder: is not a folder of pictures
    """

    def __init__(self, folder: str | Path, bags: Bags | None) -> None:
        self.folder = Path(folder)
        if bags is None or not self.folder.is_dir():
            raise bad_file(folder, "is not a folder of pictures")
        first = {str(name): int(start) for name, start in zip(bags.ids, bags.offsets, strict=False)}
        sizes = {str(name): int(n) for name, n in zip(bags.ids, bags.sizes, strict=True)}
        root = self.folder.resolve()
        self.paths: dict[int, Path] = {}
        for path in sorted(self.folder.rglob("*")):
            place = _instance_of(path.relative_to(self.folder))
            if place is None or not path.resolve().is_relative_to(root) or not path.is_file():
                continue
            bag, index = place
            if index < sizes.get(bag, 0):
                self.paths[first[bag] + index] = path.resolve()
        if not self.paths:
            what = "has no picture of these bags; they are called BAG/INDEX.png or BAG_INDEX.png"
            raise bad_file(folder, what)

    def read(self, row: int) -> _EncodedPicture | None:
        """The picture of an instance, None where the folder has none."""
        path = self.paths.get(row)
        if path is None:
            return None
        return _EncodedPicture(path.read_bytes(), _TYPES[path.suffix.lower()])


def _instance_of(path: Path) -> tuple[str, int] | None:
    """Bag and index from the name of a file."""
    if path.suffix.lower() not in _TYPES:
        return None
    if len(path.parts) == 2 and path.stem.isdecimal():
        return path.parts[0], int(path.stem)
    match = re.fullmatch(r"(.+)_(\d+)", path.stem)
    return (match[1], int(match[2])) if match and len(path.parts) == 1 else None


def _png(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    factor = -(-_LEAST_SIDE // max(1, min(image.size)))
    if factor > 1:
        image = image.resize(
            (image.width * factor, image.height * factor), Image.Resampling.NEAREST
        )
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
