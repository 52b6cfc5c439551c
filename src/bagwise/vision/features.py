"""Features of regions: what the instances of an image's bag look like."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from bagwise.core.arrays import Column, Floats, Reals
from bagwise.files import new_file
from bagwise.models.parameters import HasParameters, parameter
from bagwise.vision import networks
from bagwise.vision.images import Image, ImageSource, clip_boxes, fit_within, grow_boxes, read_image

if TYPE_CHECKING:
    from torch import nn

_PATCH = 32  # side of the patch that HOG and the histograms see
_BINS = 8  # of each colour channel's histogram
_FIRST_BIN = np.arange(3) * _BINS  # of each channel
_CELL_SIDE, _STRIDE = 448, 32  # longest side of an image of cells, and what divides its sides
_CELL = 16  # side of a cell without a network, in pixels of that image
_SURROUNDINGS = 3.0  # times a cell's size is what describes it without a network
_REGIONS = (1.0, 0.5, 1.6)  # sizes relative to the box: itself, its centre, its context


@dataclass(kw_only=True, eq=False, repr=False)
class RegionFeatures(HasParameters):
    """Describe the boxes of an image.

    A network describes each box, its inner half and its surroundings (1.6 x its size). The
    logarithms of the box's relative width and height come last.

    Parameters
    ----------
    backbone : str or torch.nn.Module, default="hog"
        "hog": oriented gradients, Lab and HSV histograms and the box's size and shape; needs no
        network. "mobilenetv2", "efficientnet-lite0" or "-lite2": one pass of the
        network over the image, then each box is pooled from several layers, which is both
        quicker and better than running the network on crops. A module: its children are applied
        in turn, and the output of the last is pooled.
    weights : path or None, default=None
        A file of weights instead of those of the backbone's package.
    max_side : int or None, default=480
        Images are shrunk to this longest side before the network sees them.
    cache : path or None, default=None
        Folder for results, named by the content of image, boxes and settings.
    device : str, default="cpu"
        Where torch runs.

    See Also
    --------
    Proposals, WeakDetector

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import RegionFeatures
    >>> image = np.zeros((60, 80, 3), dtype=np.uint8)
    >>> RegionFeatures(backbone="hog").extract(image, [[0, 0, 30, 30], [10, 10, 40, 20]]).shape
    (2, 374)
    """

    backbone: str | nn.Module = parameter(
        "hog", StrOptions({"hog", *networks.BACKBONES}), HasMethods(["children"])
    )
    weights: networks.Weights = parameter(None)
    max_side: int | None = parameter(480, Interval(Integral, 8, None, closed="left"), None)
    cache: str | os.PathLike[str] | None = parameter(None, str, os.PathLike, None)
    device: str = parameter("cpu", str)

    def extract(self, image: ImageSource, boxes: ArrayLike) -> Reals:
        """Features of each box, shape (n_boxes, n_features), float32."""
        self._validate_params()
        image = read_image(image)
        boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
        if len(boxes) == 0:
            raise ValueError("at least one box is needed; got none.")
        return self._cached(image, boxes, self._of_boxes)

    def extract_cells(self, image: ImageSource) -> tuple[Reals, tuple[int, int]]:
        """Features of the cells of a grid over the whole image, row by row, and the grid's shape.

        A network's cells are those of its finest tapped layer, for the image scaled to a longest
        side of 448 pixels; coarser layers are interpolated. Without a network, a cell is a square
        of 1/28 of that side, described with its surroundings.
        """
        self._validate_params()
        image = read_image(image)
        features = self._cached(image, np.frombuffer(b"cells", np.uint8), self._of_cells)
        rows, columns, _ = features.shape
        return features.reshape(rows * columns, -1), (rows, columns)

    def _cached(
        self, image: Image, what: Column, compute: Callable[[Image, Column], Reals]
    ) -> Reals:
        """Features from the cache, or computed and kept there, named by all they depend on."""
        if self.cache is None:
            return compute(image, what)
        settings = {k: v for k, v in self.get_params().items() if k not in ("cache", "device")}
        if not isinstance(self.backbone, str):
            settings["backbone"] = networks.module_digest(self.backbone)
        digest = hashlib.sha256(repr(sorted(settings.items())).encode())
        for part in (np.array(image.shape), image, what):
            digest.update(np.ascontiguousarray(part).tobytes())
        path = Path(self.cache) / f"{digest.hexdigest()[:32]}.npy"
        if not path.is_file():
            with new_file(path) as draft, draft.open("wb") as file:
                np.save(file, compute(image, what))
        return np.load(path)

    def _of_boxes(self, image: Image, boxes: Floats) -> Reals:
        if self.backbone == "hog":
            features: Reals = hog_colour_features(image, boxes)
        else:
            small, _ = fit_within(image, self.max_side)
            maps = networks.feature_maps(self._network(), small, self.device)
            share = boxes / np.tile([image.shape[1], image.shape[0]], 2)
            grown = [grow_boxes(share, size) for size in _REGIONS]
            features = np.hstack([networks.pool_regions(maps, region) for region in grown])
        size = boxes[:, 2:] / [image.shape[1], image.shape[0]]
        return np.hstack([features, np.log(np.maximum(size, 1e-6))]).astype(np.float32)

    def _of_cells(self, image: Image, _: object) -> Reals:
        """Features of the grid's cells, [rows, columns, D]."""
        import cv2

        height, width = image.shape[:2]
        # Whole multiples of a network's coarsest stride, so that its layers align.
        unit = _CELL_SIDE / max(height, width) / _STRIDE
        shape = tuple(max(round(side * unit), 1) * _STRIDE for side in (height, width))
        if self.backbone != "hog":
            scaled = cv2.resize(image, shape[::-1], interpolation=cv2.INTER_CUBIC)
            return networks.stack_maps(networks.feature_maps(self._network(), scaled, self.device))
        rows, columns = (side // _CELL for side in shape)
        x, y = np.meshgrid(np.arange(columns), np.arange(rows))
        size = np.array([width / columns, height / rows])
        corners = np.column_stack([x.ravel(), y.ravel()]) * size
        boxes = np.hstack([corners, np.broadcast_to(size, corners.shape)])
        around = clip_boxes(grow_boxes(boxes, _SURROUNDINGS), height, width)
        return hog_colour_features(image, around).astype(np.float32).reshape(rows, columns, -1)

    def _network(self) -> networks.Network:
        return networks.load_network(self.backbone, self.weights, self.device)


def hog_colour_features(image: Image, boxes: Floats) -> Floats:
    """Oriented gradients and colour histograms of each box, [K, 372]."""
    import cv2

    hog = cv2.HOGDescriptor((_PATCH, _PATCH), (16, 16), (8, 8), (8, 8), 9)
    height, width = image.shape[:2]
    rows = []
    for x, y, w, h in boxes:
        left, top = min(int(x), width - 1), min(int(y), height - 1)
        right, bottom = max(int(np.ceil(x + w)), left + 1), max(int(np.ceil(y + h)), top + 1)
        crop = image[max(top, 0) : bottom, max(left, 0) : right]
        patch = cv2.resize(crop, (_PATCH, _PATCH), interpolation=cv2.INTER_AREA)
        parts = [np.asarray(hog.compute(patch)).ravel()]
        for code in (cv2.COLOR_RGB2Lab, cv2.COLOR_RGB2HSV):
            # HSV's hue ends at 179; the last bins stay empty for every patch alike.
            bins = cv2.cvtColor(patch, code).reshape(-1, 3) // (256 // _BINS) + _FIRST_BIN
            counts = np.bincount(bins.ravel(), minlength=3 * _BINS)
            # Square roots of the shares: Euclid then compares histograms as Hellinger does.
            parts.append(np.sqrt(counts / len(bins)))
        rows.append(np.concatenate(parts))
    return np.stack(rows)
