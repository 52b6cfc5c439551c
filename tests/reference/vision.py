"""Naive reference implementations of the vision routines: loops, sorts, masks."""

from __future__ import annotations

import numpy as np


def nearest_distances(A, B, k):
    out = np.empty((len(A), len(B)))
    for i, a in enumerate(A.astype(np.float64)):
        for j, b in enumerate(B.astype(np.float64)):
            out[i, j] = np.sort((a - b) ** 2)[:k].sum()
    return out


def haar_features(channels, positions, bank):
    """Means over rectangles, read from the maps themselves."""
    out = np.zeros((len(positions), len(bank.corners)))
    for p, (x, y) in enumerate(positions):
        for f in range(len(bank.corners)):
            patch = channels[bank.channels[f]][y:, x:]
            for (left, top, right, bottom), w in zip(bank.corners[f], bank.weights[f], strict=True):
                out[p, f] += w * patch[top:bottom, left:right].sum()
    return out


def oriented_maps(gx, gy, strength, n_orientations):
    out = np.zeros((n_orientations, *strength.shape))
    for y in range(strength.shape[0]):
        for x in range(strength.shape[1]):
            angle = np.arctan2(gy[y, x], gx[y, x]) % np.pi
            place = angle * n_orientations / np.pi
            low = int(np.floor(place))
            out[low % n_orientations, y, x] += strength[y, x] * (1 - (place - low))
            out[(low + 1) % n_orientations, y, x] += strength[y, x] * (place - low)
    return out


def pixel_scores(boxes, scores, height, width):
    """Mean score of the boxes over each pixel, whole-pixel boxes."""
    total, count = np.zeros((height, width)), np.zeros((height, width))
    for (x, y, w, h), s in zip(boxes.astype(int), scores, strict=True):
        total[y : y + h, x : x + w] += s
        count[y : y + h, x : x + w] += 1
    out = np.full((height, width), scores.min())
    out[count > 0] = total[count > 0] / count[count > 0]
    return out


def ring_contrast(mean, box, ring):
    """Mean inside minus mean of the ring, by masks."""
    height, width = mean.shape
    x, y, w, h = box
    inside, grown = np.zeros(mean.shape, dtype=bool), np.zeros(mean.shape, dtype=bool)
    inside[int(y) : int(y + h), int(x) : int(x + w)] = True
    left, top = x - w * (ring - 1) / 2, y - h * (ring - 1) / 2
    rows = slice(max(int(np.floor(top)), 0), min(int(np.ceil(top + h * ring)), height))
    columns = slice(max(int(np.floor(left)), 0), min(int(np.ceil(left + w * ring)), width))
    grown[rows, columns] = True
    around = grown & ~inside
    return mean[inside].mean() - (mean[around].mean() if around.any() else 0)


def suppress(boxes, scores, threshold):
    kept = []
    for i in np.argsort(-scores, kind="stable"):
        if all(_iou(boxes[i], boxes[j]) <= threshold for j in kept):
            kept.append(i)
    return np.array(kept)


def _iou(a, b):
    w = max(min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0]), 0)
    h = max(min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1]), 0)
    union = a[2] * a[3] + b[2] * b[3] - w * h
    return w * h / union if union > 0 else 0.0


def refinement_loss(theta, X, offset, target, weight, precision):
    """Minus the log posterior of a weighted logistic regression, one proposal at a time."""
    total = sum(0.5 * a * t * t for a, t in zip(precision, theta, strict=True))
    for x, o, y, w in zip(X, offset, target, weight, strict=True):
        z = o + sum(a * b for a, b in zip(x, theta, strict=True))
        total += w * np.logaddexp(0, -z if y else z)  # -log p, or -log(1 - p)
    return total
