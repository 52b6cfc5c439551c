"""Metrics written as loops from their definitions, for comparison."""

from __future__ import annotations

import numpy as np


def average_precision(y, scores):
    """Sum over distinct thresholds of (gain in recall) x precision; ties enter together."""
    total = sum(y)
    area, last_recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = [t for t, s in zip(y, scores, strict=True) if s >= threshold]
        precision, recall = sum(chosen) / len(chosen), sum(chosen) / total
        area += (recall - last_recall) * precision
        last_recall = recall
    return area


def calibration_error(y, proba, n_bins=10):
    gap = 0.0
    for i in range(n_bins):
        low, high = i / n_bins, (i + 1) / n_bins
        inside = [k for k, p in enumerate(proba) if (low < p <= high) or (i == 0 and p <= high)]
        if inside:
            mean_p = np.mean([proba[k] for k in inside])
            share = np.mean([y[k] for k in inside])
            gap += len(inside) / len(proba) * abs(mean_p - share)
    return gap


def iou(a, b):
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    overlap = max(width, 0) * max(height, 0)
    union = a[2] * a[3] + b[2] * b[3] - overlap
    return overlap / union if union > 0 else 0.0


def corloc(predicted, truth, threshold=0.5):
    hits = n = 0
    for box, boxes in zip(predicted, truth, strict=True):
        if len(boxes):
            n += 1
            hits += any(iou(box, other) >= threshold for other in boxes)
    return hits / n


def detection_points(images, boxes, scores, truth, threshold=0.5):
    """(recall, precision) at every distinct score, matching anew for each."""
    n_true = sum(len(t) for t in truth)
    points = []
    for cut in sorted(set(scores), reverse=True):
        kept = [k for k in range(len(scores)) if scores[k] >= cut]
        kept.sort(key=lambda k: -scores[k])
        taken, right = set(), 0
        for k in kept:
            overlaps = [iou(boxes[k], t) for t in truth[images[k]]]
            if overlaps and max(overlaps) >= threshold:
                match = (images[k], overlaps.index(max(overlaps)))
                right += match not in taken
                taken.add(match)
        points.append((right / n_true, right / len(kept)))
    return points


def detection_ap(images, boxes, scores, truth, threshold=0.5, method="area"):
    points = detection_points(images, boxes, scores, truth, threshold)

    def envelope(recall):
        return max((p for r, p in points if r >= recall - 1e-12), default=0.0)

    if method == "11-point":
        return sum(envelope(level / 10) for level in range(11)) / 11
    area, last = 0.0, 0.0
    for recall, _ in points:
        area += (recall - last) * envelope(recall)
        last = recall
    return area


def corrected_t(difference, ratio):
    n = len(difference)
    mean = sum(difference) / n
    variance = sum((d - mean) ** 2 for d in difference) / (n - 1)
    return mean / ((1 / n + ratio) * variance) ** 0.5
