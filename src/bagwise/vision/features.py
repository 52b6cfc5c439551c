"""Features of regions: what the instances of an image's bag look like."""

from __future__ import annotations

import hashlib
import os
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval

from bagwise.files import new_file
from bagwise.vision.images import clip_boxes, fit_within, grow_boxes, read_image
from bagwise.vision.networks import BACKBONES

_PATCH = 32  # side of the patch that HOG and the histograms see
_BINS = 8  # of each colour channel's histogram
_CELL_SIDE, _STRIDE = 448, 32  # longest side of an image of cells, and what divides its sides
_CELL = 16  # side of a cell without a network, in pixels of that image
_SURROUNDINGS = 3.0  # times a cell's size is what describes it without a network
_REGIONS = {"box": 1.0, "centre": 0.5, "context": 1.6}  # size relative to the box


class RegionFeatures(BaseEstimator):
    """Describe the boxes of an image.

    Parameters
    ----------
    backbone : str or torch.nn.Module
        "hog": oriented gradients, Lab and HSV histograms and the box's size and shape; needs no
        network. "mobilenetv2", "efficientnet-lite0", "-lite1" or "-lite2": one pass of the
        network over the image, then each box is pooled from several layers, which is both
        quicker and better than running the network on crops. A module: its children are applied
        in turn. "faster-rcnn": the pooled features of torchvision's detector (with
        ``Proposals("faster-rcnn")``).
    weights : path, optional
        A file of weights instead of those of the backbone's package.
    layers : tuple of int, optional
        Blocks of the network that are pooled.
    regions : tuple of str
        Which of "box", "centre" (its inner half) and "context" (1.6 x its size) are described.
    max_side : int or None
        Images are shrunk to this longest side before the network sees them.
    shape : bool
        Whether the logarithms of the box's relative width and height are appended.
    cache : path, optional
        Folder for results, named by the content of image, boxes and settings.
    device : str
        Where torch runs.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import RegionFeatures
    >>> image = np.zeros((60, 80, 3), dtype=np.uint8)
    >>> RegionFeatures("hog").extract(image, [[0, 0, 30, 30], [10, 10, 40, 20]]).shape
    (2, 374)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "backbone": "no_validation",
        "weights": "no_validation",
        "layers": [tuple, None],
        "regions": [tuple],
        "max_side": [Interval(Integral, 8, None, closed="left"), None],
        "shape": ["boolean"],
        "cache": [str, os.PathLike, None],
        "device": [str],
    }

    def __init__(
        self,
        backbone: Any = "hog",
        *,
        weights: Any = None,
        layers: tuple[int, ...] | None = None,
        regions: tuple[str, ...] = ("box", "centre", "context"),
        max_side: int | None = 480,
        shape: bool = True,
        cache: str | os.PathLike[str] | None = None,
        device: str = "cpu",
    ) -> None:
        self.backbone = backbone
        self.weights = weights
        self.layers = layers
        self.regions = regions
        self.max_side = max_side
        self.shape = shape
        self.cache = cache
        self.device = device

    def extract(self, image: Any, boxes: Any) -> Any:
        """Features of each box, shape (n_boxes, n_features), float32."""
        self._check()
        image = read_image(image)
        boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
        if self.cache is None:
            return self._compute(image, boxes)
        path = Path(self.cache) / f"{self._key(image, boxes)}.npy"
        if path.is_file():
            return np.load(path)
        features = self._compute(image, boxes)
        with new_file(path) as draft, draft.open("wb") as file:
            np.save(file, features)
        return features

    def extract_cells(self, image: Any) -> tuple[Any, tuple[int, int]]:
        """Features of the cells of a grid over the whole image, row by row, and the grid's shape.

        A network's cells are those of its finest tapped layer, for the image scaled to a longest
        side of 448 pixels; coarser layers are interpolated. Without a network, a cell is a square
        of 1/28 of that side, described with its surroundings. ``regions`` and ``shape`` do not
        apply.
        """
        self._check()
        image = read_image(image)
        if self.cache is None:
            return self._cells(image)
        path = Path(self.cache) / f"{self._key(image, 'cells')}.npy"
        if not path.is_file():
            features, (rows, columns) = self._cells(image)
            with new_file(path) as draft, draft.open("wb") as file:
                np.save(file, features.reshape(rows, columns, -1))
        features = np.load(path)
        return features.reshape(-1, features.shape[2]), features.shape[:2]

    def _cells(self, image: Any) -> tuple[Any, tuple[int, int]]:
        height, width = image.shape[:2]
        if self.backbone == "faster-rcnn":
            raise ValueError("backbone 'faster-rcnn' describes boxes only; it has no cells.")
        # Whole multiples of a network's coarsest stride, so that its layers align.
        unit = _CELL_SIDE / max(height, width) / _STRIDE
        shape = tuple(max(round(side * unit), 1) * _STRIDE for side in (height, width))
        if self.backbone == "hog":
            rows, columns = (side // _CELL for side in shape)
            x, y = np.meshgrid(np.arange(columns), np.arange(rows))
            size = np.array([width / columns, height / rows])
            corners = np.column_stack([x.ravel(), y.ravel()]) * size
            boxes = np.hstack([corners, np.broadcast_to(size, corners.shape)])
            around = clip_boxes(grow_boxes(boxes, _SURROUNDINGS), height, width)
            return hog_colour_features(image, around).astype(np.float32), (rows, columns)
        import cv2

        from bagwise.vision.networks import feature_maps, stack_maps

        scaled = cv2.resize(image, shape[::-1], interpolation=cv2.INTER_CUBIC)
        return stack_maps(feature_maps(self._network(), scaled, self.device))

    def _check(self) -> None:
        self._validate_params()
        unknown = set(self.regions) - set(_REGIONS)
        if unknown or not self.regions:
            raise ValueError(f"regions must be some of {list(_REGIONS)}; got {self.regions}.")
        names = ("hog", "faster-rcnn", *BACKBONES)
        if isinstance(self.backbone, str) and self.backbone not in names:
            raise ValueError(f"backbone must be a module or one of {names}; got {self.backbone!r}.")

    def _key(self, image: Any, boxes: Any) -> str:
        what = boxes if not isinstance(boxes, str) else np.frombuffer(boxes.encode(), np.uint8)
        settings = {k: v for k, v in self.get_params().items() if k not in ("cache", "device")}
        if not isinstance(self.backbone, str):
            settings["backbone"] = _module_digest(self.backbone)
        digest = hashlib.sha256(repr(sorted(settings.items())).encode())
        for part in (np.array(image.shape), image, what):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()[:32]

    def _compute(self, image: Any, boxes: Any) -> Any:
        if len(boxes) == 0:
            raise ValueError("at least one box is needed; got none.")
        if self.backbone == "hog":
            features = hog_colour_features(image, boxes)
        elif self.backbone == "faster-rcnn":
            features = self._detector_features(image, boxes)
        else:
            features = self._pooled(image, boxes)
        if self.shape:
            size = boxes[:, 2:] / [image.shape[1], image.shape[0]]
            features = np.hstack([features, np.log(np.maximum(size, 1e-6))])
        return features.astype(np.float32)

    def _pooled(self, image: Any, boxes: Any) -> Any:
        from bagwise.vision.networks import feature_maps, pool_regions

        small, _ = fit_within(image, self.max_side)
        maps = feature_maps(self._network(), small, self.device)
        share = boxes / np.tile([image.shape[1], image.shape[0]], 2)
        pooled = [pool_regions(maps, grow_boxes(share, _REGIONS[name])) for name in self.regions]
        return np.hstack(pooled)

    def _network(self) -> Any:
        wanted = (self.backbone, self.weights, self.layers, self.device)
        if getattr(self, "_loaded", (None,))[0] != wanted:
            from bagwise.vision.networks import load_network

            network = load_network(self.backbone, self.weights, self.layers)
            network.blocks.to(self.device)
            self._loaded = (wanted, network)
        return self._loaded[1]

    def _detector_features(self, image: Any, boxes: Any) -> Any:
        from bagwise.vision.networks import region_features

        return region_features(image, boxes, self.weights)

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        state.pop("_loaded", None)  # the network is loaded again where it is needed
        return state


def hog_colour_features(image: Any, boxes: Any) -> Any:
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
        gradients = np.asarray(hog.compute(patch)).ravel()
        colours = [cv2.cvtColor(patch, code) for code in (cv2.COLOR_RGB2Lab, cv2.COLOR_RGB2HSV)]
        histograms = [_histograms(c) for c in colours]
        rows.append(np.concatenate([gradients, *histograms]))
    return np.stack(rows)


def _histograms(patch: Any) -> Any:
    """Square roots of the shares of each channel's bins: Euclid then compares as Hellinger."""
    # HSV's hue ends at 179; the last bins stay empty for every patch alike.
    bins = (patch.reshape(-1, 3) // (256 // _BINS)).astype(np.int64) + np.arange(3) * _BINS
    counts = np.bincount(bins.ravel(), minlength=3 * _BINS)
    return np.sqrt(counts / len(bins))


def _module_digest(module: Any) -> str:
    digest = hashlib.sha256(repr(module).encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
