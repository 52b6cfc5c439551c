"""Described photographs, and how well a box holds one whole object on their maps.

Describing an image (cells of a grid, saliency, its components, proposed boxes) is the slow part of
detection. A class map says how much each cell of an image looks like the class; a saliency map
says where objects end. A part of an object leaves much of the class map outside; too large a box
is empty at its edges; a box around two objects fits neither component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Floats, Ints, Reals, RowKey
from bagwise.evaluate.boxes import box_iou
from bagwise.vision.images import grow_boxes
from bagwise.vision.proposals import RINGS, box_sums, ring_contrast
from bagwise.vision.saliency import LEVELS, Components

# Longest side of the maps that boxes are judged on, in map cells.
_MAP_SIDE = 160
# Simple boxes that any detector should beat, by name: the share of each side that they take.
SMALL_FRAME = "centre 60 %"
FRAMES = {"whole image": 1.0, "centre 80 %": 0.8, SMALL_FRAME: 0.6}
# The level of saliency whose largest component is the box of saliency alone.
_SALIENT_LEVEL = 1
# Share of its box that an object fills, in the mean.
_FILL = 0.5
_FILLS = (0.3, 0.5, 0.7)
# The class map within this many times the size of a box is what the box should hold.
_NEAR = 2.0
# A box of this share of the size leaves its margin outside.
_CORE = 0.8
# The class map is divided by this percentile, so that the best place of an image counts 1.
_TOP_PERCENTILE = 99


@dataclass(frozen=True, eq=False)
class Photographs:
    """Described photographs: bags of cells, and the boxes proposed in each image.

    ``photographs[rows]`` takes some of them, as with `Bags`.
    """

    cells: Bags  # with a column "salient", row by row
    grids: Ints  # [B, 2] rows and columns of cells
    sizes: Ints  # [B, 2] height and width of the image
    boxes: list[Floats]  # [n, 4] of each image
    components: list[Components]  # of each image's saliency
    centred: bool = False  # saliency is little more than a prior for the middle

    @classmethod
    def concat(cls, parts: Sequence[Photographs]) -> Photographs:
        """The photographs of several parts as one, in order."""
        return cls(
            Bags.concat([part.cells for part in parts]),
            np.concatenate([part.grids for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            [boxes for part in parts for boxes in part.boxes],
            [components for part in parts for components in part.components],
            parts[0].centred,
        )

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, rows: RowKey) -> Photographs:
        taken = np.arange(len(self))[rows].reshape(-1).tolist()
        return Photographs(
            self.cells[taken],
            self.grids[taken],
            self.sizes[taken],
            [self.boxes[i] for i in taken],
            [self.components[i] for i in taken],
            self.centred,
        )

    @property
    def ids(self) -> Column:
        """Names of the images."""
        return self.cells.ids

    @property
    def n_features(self) -> int:
        """Numbers that describe a cell."""
        return self.cells.n_features

    @property
    def offsets(self) -> Ints:
        """Where the boxes of each image begin among all boxes, [B + 1]."""
        return np.concatenate([[0], np.cumsum([len(b) for b in self.boxes])])

    def map_of(self, i: int, values: Reals) -> tuple[Reals, float]:
        """Values of image ``i``'s cells as a map of pixels, and its cells per image pixel."""
        import cv2

        height, width = self.sizes[i]
        factor = min(1.0, _MAP_SIDE / max(height, width))
        shape = (max(round(width * factor), 1), max(round(height * factor), 1))
        grid = np.asarray(values, dtype=np.float32).reshape(tuple(self.grids[i]))
        return cv2.resize(grid, shape, interpolation=cv2.INTER_LINEAR), factor


def frames(height: int, width: int) -> Floats:
    """The whole image and boxes in its middle, in the order of `FRAMES`, [3, 4]."""
    share = np.array(list(FRAMES.values()))[:, None]
    size = np.array([[width, height]])
    return np.hstack([(1 - share) / 2 * size, share * size])


def salient_box(photos: Photographs, i: int) -> Floats:
    """The box around the largest salient component of image ``i``, or the whole image, [4]."""
    components = photos.components[i]
    boxes = components.boxes[components.level == _SALIENT_LEVEL]
    height, width = photos.sizes[i]
    return boxes[0] if len(boxes) else np.array([0.0, 0.0, width, height])


class Maps(NamedTuple):
    """What the boxes of one image are judged by."""

    of_class: Reals  # [h, w] how much a place looks like the class
    saliency: Reals  # [h, w]
    factor: float  # map cells per pixel


class BoxEvidence(NamedTuple):
    """What the maps of one image say of its boxes, each [n]."""

    overlap: Floats  # soft intersection over union with the class map
    component: Floats  # agreement with a component that looks like the class

    @property
    def wholeness(self) -> Floats:
        """Both in equal shares, 0 to 1."""
        return (self.overlap + self.component) / 2


def soft_overlap(
    inside: Floats, area: Floats, total: Floats | float, fill: float = _FILL
) -> Floats:
    """Soft intersection over union of boxes with a map whose objects fill a share of their boxes.

    ``inside`` is the sum of the map in each box, ``total`` that in and around it. A box that
    holds all of an object which fills ``fill`` of it has value 1.
    """
    # |box and map| / (|object in the box| + |map| - |box and map|), where the object in the box has
    # the area fill * area, or more where the map says so.
    union = np.maximum(fill * area, inside) + total - inside
    return np.divide(inside, union, out=np.zeros_like(inside), where=union > 0)


def judge_boxes(boxes: Floats, components: Components, maps: Maps) -> BoxEvidence:
    """Evidence of an image's boxes: overlap with the class map, and with salient components."""
    import cv2

    top = max(float(np.percentile(maps.of_class, _TOP_PERCENTILE)), 1e-12)
    relative = np.clip(maps.of_class / top, 0, 1)
    integral = cv2.integral(relative, sdepth=cv2.CV_64F)
    scaled = boxes * maps.factor
    inside, area = box_sums(integral, scaled)
    # Only what is near counts as missed: other objects of the image are boxes of their own.
    near = box_sums(integral, grow_boxes(scaled, _NEAR))[0]
    overlap = soft_overlap(inside, np.maximum(area, 1.0), near)
    # A component looks like the class by the mean of the class map in it, weighted by saliency.
    salient = cv2.integral(maps.saliency, sdepth=cv2.CV_64F)
    alike = cv2.integral(maps.saliency * relative, sdepth=cv2.CV_64F)
    weight = box_sums(salient, components.boxes * maps.factor)[0]
    likeness = box_sums(alike, components.boxes * maps.factor)[0] / np.maximum(weight, 1e-12)
    agreement = box_iou(boxes, components.boxes) * likeness  # [n, k]
    component = np.zeros(len(boxes))
    for level in range(len(LEVELS)):
        best = agreement[:, components.level == level].max(axis=1, initial=0.0)
        component += best / len(LEVELS)
    return BoxEvidence(overlap, component)


def box_clues(boxes: Floats, evidence: BoxEvidence, maps: Maps) -> Floats:
    """What true boxes may teach about proposals of photographs, [n, F]."""
    import cv2

    columns = [evidence.component]
    scaled = boxes * maps.factor
    for layer in (maps.of_class, maps.saliency):
        integral = cv2.integral(layer, sdepth=cv2.CV_64F)
        inside, area = box_sums(integral, scaled)
        area, total = np.maximum(area, 1.0), float(layer.sum())
        columns += [soft_overlap(inside, area, total, fill) for fill in _FILLS]
        columns += [ring_contrast(integral, scaled, ring) for ring in RINGS]
        core, core_area = box_sums(integral, grow_boxes(scaled, _CORE))
        columns += [(inside - core) / np.maximum(area - core_area, 1.0), inside / area]
    return np.column_stack(columns)
