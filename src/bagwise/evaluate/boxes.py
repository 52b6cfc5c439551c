"""Metrics of boxes: localisation, detection and tracking.

Boxes are ``x, y, width, height`` with the top-left corner first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bagwise.core.arrays import Floats, Ints


def box_iou(a: ArrayLike, b: ArrayLike) -> Floats:
    """Intersection over union of every box of ``a`` with every box of ``b``, shape (n, m).

    Examples
    --------
    >>> from bagwise.evaluate import box_iou
    >>> box_iou([[0, 0, 2, 2]], [[0, 0, 2, 2], [1, 0, 2, 2], [5, 5, 1, 1]]).round(3).tolist()
    [[1.0, 0.333, 0.0]]
    """
    a, b = _boxes(a), _boxes(b)
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, :2] + a[:, None, 2:], b[None, :, :2] + b[None, :, 2:])
    overlap = np.clip(high - low, 0, None).prod(axis=2)  # [n, m]
    union = a[:, None, 2:].prod(axis=2) + b[None, :, 2:].prod(axis=2) - overlap
    return np.divide(overlap, union, out=np.zeros_like(overlap), where=union > 0)


def corloc(
    predicted: ArrayLike,
    truth: Sequence[Sequence[Sequence[float]] | Floats],
    *,
    threshold: float = 0.5,
) -> float:
    """Share of positive images whose one predicted box meets a true box.

    Parameters
    ----------
    predicted : array of shape (n_images, 4)
        The best box of each image that contains the class.
    truth : sequence of arrays of shape (k_i, 4)
        The true boxes of the same images; images without one are left out.
    threshold : float, default=0.5
        Least intersection over union that counts.

    Examples
    --------
    >>> from bagwise.evaluate import corloc
    >>> corloc([[0, 0, 2, 2], [9, 9, 1, 1]], [[[0, 0, 2, 2]], [[0, 0, 2, 2]]])
    0.5
    """
    predicted = _boxes(predicted)
    if len(predicted) != len(truth):
        raise ValueError(
            f"one predicted box per image is needed: got {len(predicted)} for {len(truth)} images."
        )
    hits = [
        bool((box_iou(box[None], boxes) >= threshold).any())
        for box, boxes in zip(predicted, truth, strict=True)
        if len(boxes)
    ]
    if not hits:
        raise ValueError("no image has a true box; CorLoc is undefined.")
    return float(np.mean(hits))


class PrecisionRecall(NamedTuple):
    """Precision and recall of detections at every distinct score, best first."""

    precision: Floats
    recall: Floats
    score: Floats


def detection_curve(
    images: Ints, boxes: Floats, scores: Floats, truth: Sequence[Floats], *, threshold: float = 0.5
) -> PrecisionRecall:
    """Precision and recall of detections of one class over all images.

    A detection is right when the true box it overlaps most does so by ``threshold`` and was not
    detected with a better score. Detections of equal score enter together, so the curve
    does not depend on their order.

    Parameters
    ----------
    images : array of int, shape (n,)
        Image number of each detection, an index into ``truth``.
    boxes : array of shape (n, 4)
    scores : array of shape (n,)
    truth : sequence of arrays of shape (k_i, 4)
        True boxes of every image, also of those without any.
    threshold : float, default=0.5

    Examples
    --------
    >>> from bagwise.evaluate import detection_curve
    >>> truth = [[[0, 0, 10, 10]], [[5, 5, 10, 10]]]
    >>> found = [[0, 0, 10, 9], [40, 40, 10, 10]]
    >>> curve = detection_curve([0, 1], found, [0.9, 0.4], truth)
    >>> curve.precision.tolist(), curve.recall.tolist()
    ([1.0, 0.5], [0.5, 0.5])
    """
    images, boxes, scores = np.asarray(images, dtype=int), _boxes(boxes), np.asarray(scores, float)
    if not len(images) == len(boxes) == len(scores):
        raise ValueError("images, boxes and scores need one entry per detection.")
    n_true = sum(len(t) for t in truth)
    if n_true == 0:
        raise ValueError("no image has a true box; average precision is undefined.")
    target, overlap = _best_match(images, boxes, truth)
    order = np.argsort(-scores, kind="stable")  # best first
    target, overlap, ranked = target[order], overlap[order], scores[order]
    right = np.zeros(len(order), dtype=bool)
    candidate = np.flatnonzero(overlap >= threshold)
    # The first detection of each true box is right; later ones are duplicates.
    right[candidate[np.unique(target[candidate], return_index=True)[1]]] = True
    # The last detection of every distinct score; none where nothing was detected.
    last = np.flatnonzero(np.append(np.diff(ranked) != 0, True)[: len(ranked)])
    hits = np.cumsum(right)[last]
    return PrecisionRecall(hits / (last + 1), hits / n_true, ranked[last])


def detection_ap(
    images: Ints,
    boxes: Floats,
    scores: Floats,
    truth: Sequence[Floats],
    *,
    threshold: float = 0.5,
    method: Literal["area", "11-point"] = "area",
) -> float:
    """Average precision of detections as PASCAL VOC defines it.

    Parameters
    ----------
    images, boxes, scores, truth : as in `detection_curve`
    threshold : float, default=0.5
        Intersection over union from which a box is a detection.
    method : {"area", "11-point"}, default="area"
        Area under the precision envelope (VOC 2010 on), or its mean at recalls 0, 0.1, ... 1
        (VOC 2007).

    Examples
    --------
    >>> from bagwise.evaluate import detection_ap
    >>> truth = [[[0, 0, 2, 2]], [[5, 5, 2, 2]]]
    >>> boxes = [[0, 0, 2, 2], [0, 0, 2, 2], [5, 5, 2, 2]]
    >>> round(detection_ap([0, 1, 1], boxes, [0.9, 0.8, 0.7], truth), 3)
    0.833
    """
    curve = detection_curve(images, boxes, scores, truth, threshold=threshold)
    if len(curve.score) == 0:
        return 0.0
    # The best precision at this recall or a higher one.
    envelope = np.maximum.accumulate(curve.precision[::-1])[::-1]
    if method == "area":
        return float(np.sum(np.diff(curve.recall, prepend=0) * envelope))
    if method != "11-point":
        raise ValueError(f"method must be 'area' or '11-point'; got {method!r}.")
    # Recalls are ratios of integers: compare with a margin for the rounding of 0.1, 0.2, ...
    at = [np.flatnonzero(curve.recall >= level - 1e-12) for level in np.linspace(0, 1, 11)]
    return float(np.mean([envelope[i[0]] if len(i) else 0.0 for i in at]))


def centre_error(predicted: ArrayLike, truth: ArrayLike) -> float:
    """Mean distance in pixels between predicted and true box centres.

    Frames without a true box (NaN) are left out; a predicted NaN (target declared lost) on a
    frame that has one is an error, since no distance can be given.

    Examples
    --------
    >>> from bagwise.evaluate import centre_error
    >>> centre_error([[0, 0, 2, 2], [3, 4, 2, 2]], [[0, 0, 2, 2], [0, 0, 2, 2]])
    2.5
    """
    predicted, truth = _tracks(predicted, truth)
    centres = predicted[:, :2] + predicted[:, 2:] / 2
    return float(np.linalg.norm(centres - (truth[:, :2] + truth[:, 2:] / 2), axis=1).mean())


def tracking_success(
    predicted: ArrayLike, truth: ArrayLike, *, threshold: float | None = 0.5
) -> float:
    """Share of frames whose box overlaps the true one by more than ``threshold``.

    With ``threshold=None``, the area under the success curve over all thresholds in [0, 1],
    which is the mean overlap.

    Examples
    --------
    >>> from bagwise.evaluate import tracking_success
    >>> tracking_success([[0, 0, 2, 2], [9, 9, 2, 2]], [[0, 0, 2, 2], [0, 0, 2, 2]])
    0.5
    """
    predicted, truth = _tracks(predicted, truth)
    pairs = zip(predicted, truth, strict=True)
    overlap = np.array([box_iou(p[None], t[None])[0, 0] for p, t in pairs])
    return float(overlap.mean() if threshold is None else np.mean(overlap > threshold))


def _best_match(images: Ints, boxes: Floats, truth: Sequence[Floats]) -> tuple[Ints, Floats]:
    """For each detection, the number of the true box it overlaps most (over all images)."""
    starts = np.concatenate([[0], np.cumsum([len(t) for t in truth])]).astype(int)
    target = np.full(len(images), -1)
    overlap = np.full(len(images), -1.0)  # below any threshold where there is nothing to match
    for image in np.unique(images):
        rows = np.flatnonzero(images == image)
        if len(truth[image]):
            iou = box_iou(boxes[rows], truth[image])
            target[rows] = starts[image] + iou.argmax(axis=1)
            overlap[rows] = iou.max(axis=1)
    return target, overlap


def _boxes(boxes: ArrayLike) -> Floats:
    boxes = np.asarray(boxes, dtype=np.float64)
    if boxes.size == 0:
        return boxes.reshape(0, 4)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes must have shape (n, 4): x, y, w, h; got {boxes.shape}.")
    return boxes


def _tracks(predicted: ArrayLike, truth: ArrayLike) -> tuple[Floats, Floats]:
    predicted, truth = _boxes(predicted), _boxes(truth)
    if len(predicted) != len(truth):
        raise ValueError(
            f"a box per frame is needed: got {len(predicted)} predicted and {len(truth)} true."
        )
    annotated = np.isfinite(truth).all(axis=1)
    if not annotated.any():
        raise ValueError("no frame has a true box.")
    predicted, truth = predicted[annotated], truth[annotated]
    if not np.isfinite(predicted).all():
        frame = int(np.flatnonzero(annotated)[~np.isfinite(predicted).all(axis=1)][0])
        raise ValueError(f"frame {frame} has a true box but no predicted one.")
    return predicted, truth
