"""Boxes that may hold an object: the instances of an image's bag."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import Interval, StrOptions

from bagwise.core.arrays import Floats, Reals
from bagwise.models.parameters import AT_LEAST_1, HasParameters, parameter
from bagwise.vision.images import Image, ImageSource, clip_boxes, fit_within, grow_boxes, read_image

# Rings around a box, relative to its size, whose contrast is a clue where true boxes are known.
RINGS = (1.25, 1.5, 2.0)
_LEVELS = 12  # thresholds of each colour channel that blobs are taken at
_SCALES = (0.6, 0.35, 0.2, 0.1)  # sizes of windows, as shares of the image's side
METHODS = ("selective-search", "edge-boxes", "blobs", "windows", "given")


@dataclass(kw_only=True, eq=False, repr=False)
class Proposals(HasParameters):
    """Propose boxes of an image.

    Parameters
    ----------
    method : str, default="selective-search"
        "selective-search" groups segments (OpenCV contrib); "edge-boxes" ranks boxes by the
        edges they enclose whole; "blobs" takes connected regions that stand out in colour at
        several thresholds; "windows" slides windows of several sizes and shapes; "given" looks
        boxes up in ``boxes``.
    n_boxes : int, default=200
        At most so many boxes per image, the best first.
    max_side : int or None, default=320
        Images are shrunk to this longest side first. Boxes come back in the image's own pixels.
    min_side : float, default=0.02
        Boxes with a side shorter than this share of the image's shorter side are dropped.
    max_area : float, default=0.9
        Boxes larger than this share of the image are dropped.
    quality : {"quality", "fast"}, default="quality"
        Effort of selective search.
    boxes : mapping or sequence or None, default=None
        For "given": boxes (k, 4) by image id or by position.
    random_state : int, default=0
        Seed. Selective search orders boxes by the C library's ``rand``, which is seeded with it.

    See Also
    --------
    RegionFeatures, WeakDetector

    Notes
    -----
    An image without any proposal gets one box: the whole image.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import Proposals
    >>> image = np.zeros((60, 80, 3), dtype=np.uint8)
    >>> image[20:40, 30:50] = 255
    >>> Proposals(method="blobs").propose(image)[0].tolist()
    [30.0, 20.0, 20.0, 20.0]
    """

    method: str = parameter("selective-search", StrOptions(set(METHODS)))
    n_boxes: int = parameter(200, AT_LEAST_1)
    max_side: int | None = parameter(320, Interval(Integral, 8, None, closed="left"), None)
    min_side: float = parameter(0.02, Interval(Real, 0, 1, closed="both"))
    max_area: float = parameter(0.9, Interval(Real, 0, 1, closed="right"))
    quality: str = parameter("quality", StrOptions({"quality", "fast"}))
    boxes: Mapping[object, ArrayLike] | Sequence[ArrayLike] | None = parameter(None)
    random_state: int = parameter(0, Interval(Integral, 0, None, closed="left"))

    def propose(self, image: ImageSource, key: object = None) -> Floats:
        """Boxes of one image, shape (k, 4), k >= 1.

        ``key`` is the image's id or position, needed by "given" alone.
        """
        self._validate_params()
        image = read_image(image)
        height, width = image.shape[:2]
        if self.method == "given":
            known = () if self.boxes is None else self.boxes
            known = known if isinstance(known, Mapping) else dict(enumerate(known))
            if key not in known:
                raise ValueError(
                    f"method='given' needs boxes for image {key!r}; pass boxes= as a mapping from "
                    "image id, or as a sequence by position."
                )
            boxes = clip_boxes(known[key], height, width)
        elif min(height, width) < 2:
            boxes = np.empty((0, 4))
        else:
            small, factor = fit_within(image, self.max_side)
            boxes = clip_boxes(self._candidates(small), *small.shape[:2]) / factor
            boxes = clip_boxes(boxes, height, width)
            fits = boxes[:, 2:].min(axis=1, initial=np.inf) >= self.min_side * min(height, width)
            fits &= boxes[:, 2] * boxes[:, 3] <= self.max_area * height * width
            boxes = boxes[fits]
            boxes = boxes[np.sort(np.unique(boxes, axis=0, return_index=True)[1])]
        if len(boxes) == 0:
            return np.array([[0.0, 0.0, width, height]])
        return boxes[: self.n_boxes]

    def _candidates(self, image: Image) -> Floats:
        if self.method == "selective-search":
            return selective_search(image, self.quality, self.random_state)
        if self.method == "edge-boxes":
            return edge_boxes(image, self.n_boxes)
        if self.method == "blobs":
            return colour_blobs(image)
        windows = sliding_windows(*image.shape[:2])
        # Shuffled, so that a cut to n_boxes keeps all sizes and places.
        return np.random.default_rng(self.random_state).permutation(windows)


def selective_search(image: Image, quality: str = "quality", seed: int = 0) -> Floats:
    """Boxes by grouping segments, in OpenCV's order, reproducible for a seed."""
    import cv2

    search = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
    search.setBaseImage(np.ascontiguousarray(image[..., ::-1]))
    if quality == "quality":
        search.switchToSelectiveSearchQuality()
    else:
        search.switchToSelectiveSearchFast()
    # OpenCV multiplies each region's rank by rand() and sorts: seed it, or the top-K changes.
    ctypes.CDLL("ucrtbase" if os.name == "nt" else None).srand(ctypes.c_uint(seed))
    return np.asarray(search.process(), dtype=np.float64).reshape(-1, 4)


def edge_boxes(image: Image, n_boxes: int = 200) -> Floats:
    """Boxes that enclose whole contours (EdgeBoxes), on a gradient map."""
    import cv2

    # The largest gradient over the colour channels, with its orientation.
    smooth = cv2.GaussianBlur(image, (0, 0), 1.0).astype(np.float32)
    gx, gy = cv2.Sobel(smooth, cv2.CV_32F, 1, 0), cv2.Sobel(smooth, cv2.CV_32F, 0, 1)
    magnitude = np.sqrt(gx * gx + gy * gy)
    pick = magnitude.argmax(axis=2)[..., None]
    strength = np.take_along_axis(magnitude, pick, 2)[..., 0]
    top = float(np.percentile(strength, 99))
    if top <= 0:
        return np.empty((0, 4))
    angle = np.arctan2(np.take_along_axis(gy, pick, 2), np.take_along_axis(gx, pick, 2))[..., 0]
    # Thinned: a pixel stays only where its gradient is a maximum across the edge.
    strength = np.clip(strength / top, 0, 1)
    dx, dy = np.rint(np.cos(angle)).astype(int), np.rint(np.sin(angle)).astype(int)
    rows, columns = np.indices(strength.shape)
    padded = np.pad(strength, 1)
    ahead = padded[rows + 1 + dy, columns + 1 + dx]
    behind = padded[rows + 1 - dy, columns + 1 - dx]
    edges = np.where((strength >= ahead) & (strength >= behind), strength, 0).astype(np.float32)
    finder = cv2.ximgproc.createEdgeBoxes(maxBoxes=max(n_boxes, 1), minBoxArea=64)
    # OpenCV's orientation is that of the edge's normal in [0, pi), with y pointing up.
    boxes, _ = finder.getBoundingBoxes(edges, np.mod(-angle, np.pi).astype(np.float32))
    return np.asarray(boxes, dtype=np.float64).reshape(-1, 4)


def colour_blobs(image: Image) -> Floats:
    """Connected regions above and below thresholds of each Lab channel, most distinct first.

    A box ranks by how far the mean inside lies from the mean of the ring around it.
    """
    import cv2

    lab = cv2.cvtColor(image, cv2.COLOR_RGB2Lab)
    boxes, scores = [np.empty((0, 4))], [np.empty(0)]
    for channel in range(3):
        values = lab[..., channel]
        low, high = float(values.min()), float(values.max())
        integral = cv2.integral(values, sdepth=cv2.CV_64F)
        for level in np.linspace(low, high, _LEVELS + 2)[1:-1] if high > low else ():
            for mask in (values > level, values <= level):
                stats = cv2.connectedComponentsWithStats(mask.astype(np.uint8))[2][1:]
                large = stats[:, :4][stats[:, cv2.CC_STAT_AREA] >= 9].astype(np.float64)
                boxes.append(large)
                scores.append(ring_contrast(integral, large) / (high - low))
    order = np.argsort(-np.abs(np.concatenate(scores)), kind="stable")
    return np.concatenate(boxes)[order]


def ring_contrast(integral: Reals, boxes: Floats, ring: float = 1.5) -> Floats:
    """Mean inside each box minus the mean of the ring that ``ring`` x its size adds around it."""
    inner, inner_area = box_sums(integral, boxes)
    outer, outer_area = box_sums(integral, grow_boxes(boxes, ring))
    area = outer_area - inner_area
    around = np.divide(outer - inner, area, out=np.zeros_like(outer), where=area > 0)
    return inner / np.maximum(inner_area, 1) - around


def box_sums(integral: Reals, boxes: Floats) -> tuple[Floats, Floats]:
    """Sum and number of the pixels in each box, cut to the image, from an integral image."""
    height, width = integral.shape[0] - 1, integral.shape[1] - 1
    low, high = np.floor(boxes[:, :2]), np.ceil(boxes[:, :2] + boxes[:, 2:])
    left, right = (np.clip(v[:, 0], 0, width).astype(int) for v in (low, high))
    top, bottom = (np.clip(v[:, 1], 0, height).astype(int) for v in (low, high))
    total = integral[bottom, right] - integral[top, right]
    total = total - integral[bottom, left] + integral[top, left]
    return total, ((right - left) * (bottom - top)).astype(np.float64)


def sliding_windows(height: int, width: int) -> Floats:
    """Windows of several sizes and shapes that overlap by half, large ones first."""
    boxes = []
    for scale in _SCALES:
        for shape in (1.0, 0.5, 2.0):
            side = scale * math.sqrt(height * width)
            w = min(max(side * math.sqrt(shape), 2), width)
            h = min(max(side / math.sqrt(shape), 2), height)
            xs = np.linspace(0, width - w, math.ceil(2 * (width - w) / w) + 1)
            ys = np.linspace(0, height - h, math.ceil(2 * (height - h) / h) + 1)
            X, Y = np.meshgrid(xs, ys)
            size = np.broadcast_to([w, h], (X.size, 2))
            boxes.append(np.column_stack([X.ravel(), Y.ravel(), size]))
    return np.concatenate(boxes)
