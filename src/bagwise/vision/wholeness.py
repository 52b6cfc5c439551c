"""How well a box holds one whole object, judged by maps: overlap, components, contrast.

A class map says how much each cell of an image looks like the class; a saliency map says where
objects end. A part of an object leaves much of the class map outside; too large a box is empty at
its edges; a box around two objects fits neither component.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bagwise.core.arrays import Floats
from bagwise.evaluate.boxes import box_iou
from bagwise.vision.images import grow_boxes
from bagwise.vision.proposals import box_sums, ring_contrast
from bagwise.vision.saliency import LEVELS, Components

# Share of its box that an object fills, in the mean.
_FILL = 0.5
_FILLS = (0.3, 0.5, 0.7)
# The class map within this many times the size of a box is what the box should hold.
_NEAR = 2.0
_RINGS = (1.25, 1.5, 2.0)
# The class map is divided by this percentile, so that the best place of an image counts 1.
_TOP = 99


class Evidence(NamedTuple):
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

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision.wholeness import soft_overlap
    >>> soft_overlap(np.array([50.0, 25.0, 50.0]), np.array([100.0, 50.0, 400.0]), 50.0).tolist()
    [1.0, 0.5, 0.25]
    """
    union = np.maximum(fill * area, inside) + total - inside
    return np.divide(inside, union, out=np.zeros_like(inside), where=union > 0)


def weigh_boxes(
    boxes: Floats,
    components: Components,
    class_map: NDArray[np.float32],
    saliency: NDArray[np.float32],
    factor: float,
) -> Evidence:
    """Evidence of an image's boxes; ``factor`` is map cells per pixel, both maps alike in shape."""
    import cv2

    relative = class_map / max(float(np.percentile(class_map, _TOP)), 1e-12)
    relative = np.clip(relative, 0, 1)
    integral = cv2.integral(relative, sdepth=cv2.CV_64F)
    inside, area = box_sums(integral, boxes * factor)
    # Only what is near counts as missed: other objects of the image are boxes of their own.
    near = box_sums(integral, grow_boxes(boxes * factor, _NEAR))[0]
    return Evidence(
        soft_overlap(inside, np.maximum(area, 1.0), near),
        _component_agreement(boxes, components, relative, saliency, factor),
    )


def _component_agreement(
    boxes: Floats,
    components: Components,
    relative: NDArray[np.float32],
    saliency: NDArray[np.float32],
    factor: float,
) -> Floats:
    """Mean over levels of the best overlap with a component, times how it looks like the class.

    How a component looks is the mean of the class map in its box, weighted by saliency.
    """
    import cv2

    salient = cv2.integral(saliency, sdepth=cv2.CV_64F)
    alike = cv2.integral(saliency * relative, sdepth=cv2.CV_64F)
    weight = box_sums(salient, components.boxes * factor)[0]
    value = box_sums(alike, components.boxes * factor)[0] / np.maximum(weight, 1e-12)
    agreement = box_iou(boxes, components.boxes) * value  # [n, k]
    out = np.zeros(len(boxes))
    for level in range(len(LEVELS)):
        out += agreement[:, components.level == level].max(axis=1, initial=0.0) / len(LEVELS)
    return out


def box_clues(
    boxes: Floats,
    evidence: Evidence,
    class_map: NDArray[np.float32],
    saliency: NDArray[np.float32],
    factor: float,
) -> Floats:
    """What true boxes may teach about proposals of photographs, [n, F]."""
    import cv2

    columns = [evidence.component]
    scaled = boxes * factor
    for layer in (class_map, saliency):
        integral = cv2.integral(layer, sdepth=cv2.CV_64F)
        inside, area = box_sums(integral, scaled)
        area, total = np.maximum(area, 1.0), float(layer.sum())
        columns += [soft_overlap(inside, area, total, fill) for fill in _FILLS]
        columns += [ring_contrast(integral, scaled, ring) for ring in _RINGS]
        core, core_area = box_sums(integral, grow_boxes(scaled, 0.8))
        columns += [(inside - core) / np.maximum(area - core_area, 1.0), inside / area]
    return np.column_stack(columns)
