"""The probability that a box holds one object of the class, which image labels alone do not tell.

Image labels say which images show a class, never which boxes hold one object of it whole. How often
a box does is therefore learned from other photographs, of other classes, whose objects are boxed:
a logistic regression of "overlaps an object that no better box overlaps" on five clues that every
class has. `experiments/detection_probability.py` fits the weights below, and measures them on
classes that they were not fitted on. Where objects of the class itself are boxed, held-out boxes
correct them.
"""

from __future__ import annotations

import numpy as np

from bagwise.core.arrays import Bools, Floats
from bagwise.evaluate.boxes import box_iou
from bagwise.vision.detection import fit_weights

CLUES = (
    "log-odds of the image",
    "log-odds of the image, where below 0",
    "log-odds of the region",
    "log of the score, relative to the image's best",
    "share of the image's scores near the box",
    "constant",
)
# Of `CLUES`, with the networks and without.
WITH_NETWORKS = np.array([0.1369, 0.5287, 0.2526, 2.2255, 5.0778, -2.1241])
WITHOUT_NETWORKS = np.array([0.0595, 0.6898, 0.1491, 1.5647, 3.6536, -1.6453])
# Probabilities as near as this to 0 or 1 count as this; relative scores below it too.
_SMALLEST = 1e-4
# Proposals that overlap a box by this much speak for it.
_NEAR = 0.6
# Prior precision of a correction of the weights, in clues of about unit scale: the boxes of ten
# images, a few kept in each, move them half of the way.
_PRECISION = 10.0


def probability_clues(image: float, region: Floats, scores: Floats, boxes: Floats) -> Floats:
    """`CLUES` of the boxes of one image, [n, 6].

    ``image`` is the log-odds that the image shows the class, ``region`` [n] that its boxes do by
    their own cells, ``scores`` [n] what boxes are ranked by.
    """
    limit = np.log(1 / _SMALLEST - 1)
    image = float(np.clip(image, -limit, limit))
    relative = np.log(np.maximum(scores / max(float(scores.max()), 1e-300), _SMALLEST))
    near = box_iou(boxes, boxes) > _NEAR  # [n, n]
    n = len(boxes)
    return np.column_stack(
        [
            np.full(n, image),
            np.full(n, min(image, 0.0)),
            np.clip(region, -limit, limit),
            relative,
            near @ scores / max(float(scores.sum()), 1e-300),
            np.ones(n),
        ]
    )


def correct_weights(weights: Floats, clues: Floats, right: Bools) -> Floats:
    """Weights moved towards held-out boxes of which it is known whether they are right."""
    precision = np.full(len(weights), _PRECISION)
    target = right.astype(np.float64)
    return weights + fit_weights(clues, clues @ weights, target, np.ones(len(right)), precision)


def hits(boxes: Floats, true: Floats, overlap: float) -> Bools:
    """Which boxes, best first, overlap a true box that no better one overlaps, [k]."""
    right, iou = np.zeros(len(boxes), dtype=bool), box_iou(boxes, true)
    for k in range(len(boxes)):
        if iou.shape[1] and iou[k].max() >= overlap:
            right[k] = True
            iou[:, iou[k].argmax()] = -1.0
    return right
