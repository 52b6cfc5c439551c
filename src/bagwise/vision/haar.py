"""Haar-like features on integral images, and the similarity over the k closest of them.

The appearance model of Li, Kwok and Lu (CVPR 2010), section 4.3: a patch is a vector of
differences between mean intensities of random rectangles, and two patches are alike when at least
k of those differences agree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

_MAX_RECTANGLES = 4
# A patch flatter than this (in grey levels) has no texture to normalise.
_FLAT = 2.0


class HaarBank(NamedTuple):
    """Random rectangles inside a patch of fixed size."""

    corners: Any  # [F, R, 4] int64: left, top, right, bottom, relative to the patch
    weights: Any  # [F, R] float64: sign over area, 0 where a feature has fewer rectangles
    width: int
    height: int


def random_haar(n_features: int, width: int, height: int, rng: Any) -> HaarBank:
    """Draw features of two to four rectangles whose weights sum to 0 over unit areas.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision.haar import random_haar
    >>> bank = random_haar(5, 20, 30, np.random.default_rng(0))
    >>> bank.corners.shape, bank.weights.shape
    ((5, 4, 4), (5, 4))
    """
    shape = (n_features, _MAX_RECTANGLES)
    corners = np.empty((*shape, 4), dtype=np.int64)
    for axis, size in enumerate((width, height)):
        low = rng.integers(0, max(size - 1, 1), shape)
        high = low + 1 + rng.integers(0, np.maximum(size - low, 1), shape)
        corners[..., axis] = low
        corners[..., axis + 2] = np.minimum(high, size)
    count = rng.integers(2, _MAX_RECTANGLES + 1, n_features)
    used = np.arange(_MAX_RECTANGLES) < count[:, None]  # [F, R]
    signs = rng.normal(size=shape) * used
    # Zero-sum weights: adding a constant to the patch changes nothing.
    signs -= used * (signs.sum(1) / count)[:, None]
    signs /= np.abs(signs).sum(1, keepdims=True) + 1e-12
    area = (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])
    return HaarBank(corners, signs / area, width, height)


def integrals(frame: Any) -> tuple[Any, Any]:
    """Integral images of a grey frame and of its square, one row and column larger."""
    import cv2

    total, square = cv2.integral2(frame, sdepth=cv2.CV_64F, sqdepth=cv2.CV_64F)
    return total, square


def haar_features(total: Any, square: Any, positions: Any, bank: HaarBank) -> Any:
    """Features of the patches whose top left corners are ``positions`` [P, 2], shape [P, F].

    Each patch is divided by its own standard deviation, so that a change of contrast does not
    change its features.
    """
    return _haar_features(total, square, positions, *bank)


@njit(cache=True)  # type: ignore[misc]
def _haar_features(
    total: Any, square: Any, positions: Any, corners: Any, weights: Any, width: int, height: int
) -> Any:
    n_patches, n_features, n_rects = len(positions), corners.shape[0], corners.shape[1]
    out = np.empty((n_patches, n_features), dtype=np.float32)
    area = width * height
    for p in range(n_patches):
        x, y = positions[p, 0], positions[p, 1]
        s = total[y + height, x + width] - total[y, x + width]
        s += total[y, x] - total[y + height, x]
        s2 = square[y + height, x + width] - square[y, x + width]
        s2 += square[y, x] - square[y + height, x]
        spread = np.sqrt(max(s2 / area - (s / area) ** 2, _FLAT * _FLAT))
        for f in range(n_features):
            value = 0.0
            for r in range(n_rects):
                w = weights[f, r]
                if w == 0.0:
                    continue
                left, top = x + corners[f, r, 0], y + corners[f, r, 1]
                right, bottom = x + corners[f, r, 2], y + corners[f, r, 3]
                value += w * (
                    total[bottom, right]
                    - total[top, right]
                    - total[bottom, left]
                    + total[top, left]
                )
            out[p, f] = value / spread
    return out


@njit(cache=True)  # type: ignore[misc]
def nearest_distances(A: Any, B: Any, k: int) -> Any:
    """Sum of the k smallest squared feature differences of every pair of rows, [P, K].

    Non-negative floats sort as their bit patterns do, so the k-th smallest is found by bisection
    on integers: every pass is one vectorised count instead of a sort.
    """
    n_features = A.shape[1]
    out = np.empty((A.shape[0], B.shape[0]), dtype=np.float64)
    d = np.empty(n_features, dtype=np.float32)
    bits = d.view(np.int32)
    for i in range(A.shape[0]):
        for j in range(B.shape[0]):
            for f in range(n_features):
                gap = A[i, f] - B[j, f]
                d[f] = gap * gap
            largest = np.int32(0)
            for f in range(n_features):
                largest = max(largest, bits[f])
            low, high = np.int32(-1), largest  # count(<= low) < k <= count(<= high)
            while high - low > 1:
                middle = low + (high - low) // np.int32(2)
                count = np.int32(0)
                for f in range(n_features):
                    count += np.int32(bits[f] <= middle)
                if count >= k:
                    high = middle
                    if count == k:
                        break
                else:
                    low = middle
            value, count, kth = np.float32(0), np.int32(0), np.float32(0)
            for f in range(n_features):
                if bits[f] <= high:
                    value += d[f]
                    count += np.int32(1)
                    kth = max(kth, d[f])
            # Ties at the k-th value are counted once each beyond k.
            out[i, j] = value - np.float32(count - k) * kth
    return out
