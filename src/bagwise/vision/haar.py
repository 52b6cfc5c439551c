"""Haar-like features on integral images, and the distance over the k closest of them.

The appearance model of Li, Kwok and Lu (CVPR 2010), section 4.3: a patch is a vector of weighted
rectangle means, and two patches are alike when k of those numbers agree. The paper takes the
rectangles from the grey image; here they are taken from maps of edge strength by orientation,
normalised by the strength around, which a change of light leaves as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bagwise.core.arrays import Floats, Ints
from bagwise.models.parameters import AT_LEAST_1, HasParameters, parameter

Grey = NDArray[np.uint8]
Features = NDArray[np.float32]

_MAX_RECTANGLES = 4
_LARGEST = 0x7F7FFFFF  # bits of the largest float32


class HaarBank(NamedTuple):
    """Random rectangles inside a patch of fixed size."""

    corners: Ints  # [F, R, 4] int64: left, top, right, bottom, relative to the patch
    weights: Floats  # [F, R] float64: sign over area, 0 where a feature has fewer rectangles
    channels: Ints  # [F] int64: the map that a feature reads


@dataclass(kw_only=True, eq=False, repr=False)
class HaarFeatures(HasParameters):
    """Describe patches of a frame by Haar-like features of its oriented edges.

    Parameters
    ----------
    n_features : int, default=192
        Features of a patch.
    n_nearest : int, default=64
        k: two patches are compared on the k features that differ least.
    n_orientations : int, default=4
        Maps of edges that rectangles are drawn from.

    See Also
    --------
    MIOTracker

    References
    ----------
    [Li2010]_

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import HaarFeatures
    >>> grey = np.random.default_rng(0).integers(0, 255, (60, 80), dtype=np.uint8)
    >>> features = HaarFeatures(n_features=40, n_nearest=10)
    >>> bank = features.draw(20, 24, np.random.default_rng(0))
    >>> features.describe(features.maps(grey, 20), np.array([[5, 5], [30, 20]]), bank).shape
    (2, 40)
    """

    n_features: int = parameter(192, AT_LEAST_1)
    n_nearest: int = parameter(64, AT_LEAST_1)
    n_orientations: int = parameter(4, AT_LEAST_1)

    def check(self) -> None:
        """Raise where the parameters are out of range or do not fit together."""
        self._validate_params()
        if self.n_nearest > self.n_features:
            raise ValueError(
                f"n_nearest must be at most n_features = {self.n_features}; got {self.n_nearest}."
            )

    def draw(self, width: int, height: int, rng: np.random.Generator) -> HaarBank:
        """Draw features of two to four rectangles; the weights of a feature's means sum to 0."""
        shape = (self.n_features, _MAX_RECTANGLES)
        corners = np.empty((*shape, 4), dtype=np.int64)
        for axis, size in enumerate((width, height)):
            low = rng.integers(0, max(size - 1, 1), shape)
            corners[..., axis] = low
            corners[..., axis + 2] = low + 1 + rng.integers(0, size - low, shape)
        count = rng.integers(2, _MAX_RECTANGLES + 1, self.n_features)
        used = np.arange(_MAX_RECTANGLES) < count[:, None]  # [F, R]
        signs = rng.normal(size=shape) * used
        signs -= used * (signs.sum(1) / count)[:, None]  # a flat patch then has the value 0
        signs /= np.abs(signs).sum(1, keepdims=True)
        channels = rng.integers(0, self.n_orientations, self.n_features)
        area = (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])
        return HaarBank(corners, signs / area, channels)

    def maps(self, grey: Grey, side: int) -> Floats:
        """Integral images of edge strength by orientation, [O, H + 1, W + 1].

        The strength at a pixel is divided by its mean over a window of ``side`` pixels, the
        shorter side of a patch, and shared between the two nearest orientations.
        """
        import cv2

        pixels = grey.astype(np.float32)
        gx, gy = cv2.Sobel(pixels, cv2.CV_32F, 1, 0), cv2.Sobel(pixels, cv2.CV_32F, 0, 1)
        # cv2.magnitude rounds by where the array lies in memory; this gives the same bits always.
        magnitude = np.sqrt(gx * gx + gy * gy)
        window = 2 * max(side // 2, 2) + 1
        around = cv2.blur(magnitude, (window, window))
        return _oriented_integrals(gx, gy, magnitude / (around + 4.0), self.n_orientations)

    def describe(self, maps: Floats, positions: Ints, bank: HaarBank) -> Features:
        """Features of the patches whose top left corners are ``positions`` [P, 2], [P, F]."""
        return _haar_features(maps, positions, bank.corners, bank.weights, bank.channels)

    def distances(self, A: Features, B: Features) -> Floats:
        """Distances between described patches, [P, K]."""
        return nearest_distances(A, B, self.n_nearest, self.n_nearest // 16)


@njit(cache=True)
def _oriented_integrals(
    gx: Features, gy: Features, strength: Features, n_orientations: int
) -> Floats:
    height, width = strength.shape
    out = np.zeros((n_orientations, height + 1, width + 1))
    row = np.zeros(n_orientations)  # sums of the row so far
    for y in range(height):
        row[:] = 0
        for x in range(width):
            place = np.arctan2(gy[y, x], gx[y, x]) * (n_orientations / np.pi)
            if place < 0:  # an edge and its opposite are the same orientation
                place += n_orientations
            low = int(place)
            share = place - low
            row[low % n_orientations] += strength[y, x] * (1 - share)
            row[(low + 1) % n_orientations] += strength[y, x] * share
            for o in range(n_orientations):
                out[o, y + 1, x + 1] = out[o, y, x + 1] + row[o]
    return out


@njit(cache=True)
def _haar_features(
    totals: Floats, positions: Ints, corners: Ints, weights: Floats, channels: Ints
) -> Features:
    n_patches, n_features, n_rects = len(positions), corners.shape[0], corners.shape[1]
    out = np.empty((n_patches, n_features), dtype=np.float32)
    for p in range(n_patches):
        x, y = positions[p, 0], positions[p, 1]
        for f in range(n_features):
            total = totals[channels[f]]
            value = 0.0
            for r in range(n_rects):
                w = weights[f, r]
                if w == 0.0:  # the feature has no further rectangle
                    break
                left, top = x + corners[f, r, 0], y + corners[f, r, 1]
                right, bottom = x + corners[f, r, 2], y + corners[f, r, 3]
                # The sum over a rectangle from four corners of the integral image.
                inside = total[bottom, right] - total[top, right]
                value += w * (inside - total[bottom, left] + total[top, left])
            out[p, f] = value
    return out


@njit(cache=True, fastmath={"reassoc", "nsz", "nnan"})
def nearest_distances(A: Features, B: Features, k: int, slack: int = 0) -> Floats:
    """Sum of the k smallest squared feature differences of every pair of rows, [P, K].

    Non-negative floats sort as their bit patterns do, so the k-th smallest is found by a search
    over integers: every pass is one vectorised count instead of a sort. With ``slack`` the search
    ends at a bound with k - slack to k + slack entries below it, and entries between that bound
    and the k-th are counted as the bound: a sum that is low by a few percent, in half the time.
    """
    n_features = A.shape[1]
    out = np.empty((A.shape[0], B.shape[0]), dtype=np.float64)
    d = np.empty(n_features, dtype=np.float32)
    bits = d.view(np.int32)
    edge = np.empty(1, dtype=np.float32)
    bound = np.int64(_LARGEST)
    for i in range(A.shape[0]):
        for j in range(B.shape[0]):
            for f in range(n_features):
                gap = A[i, f] - B[j, f]
                d[f] = gap * gap
            bound = _cut(bits, k, bound, slack)  # the bound of the last pair is a good first guess
            edge.view(np.int32)[0] = bound
            value, count = np.float32(0), np.int32(0)
            for f in range(n_features):
                inside = d[f] <= edge[0]
                value = np.float32(value + (d[f] if inside else np.float32(0)))
                count += np.int32(inside)
            # Ties at the k-th value, and entries within the slack, count as the bound.
            out[i, j] = value - np.float32(count - k) * edge[0]
    return out


@njit(cache=True)
def _cut(bits: NDArray[np.int32], k: int, guess: int, slack: int) -> int:
    """A bound with exactly k entries at or below it, or the k-th smallest where ties forbid."""
    low = high = guess
    below = above = _count(bits, guess)
    if abs(below - k) <= slack:
        return guess
    step = 1 << 21  # a quarter of a power of two
    while below >= k:  # bracket: below < k <= above
        high, above = low, below
        low = max(low - step, -1)
        below = _count(bits, low)
        step *= 2
    while above < k:
        low, below = high, above
        high = min(high + step, _LARGEST)
        above = _count(bits, high)
        step *= 2
    halve = False
    while above - k > slack and high - low > 1:  # interpolation and bisection in turn
        middle = (low + high) // 2
        if not halve:
            middle = low + (high - low) * (k - below) // (above - below)
            middle = min(max(middle, low + 1), high - 1)
        halve = not halve
        count = _count(bits, middle)
        if count >= k:
            high, above = middle, count
        else:
            low, below = middle, count
    return high


@njit(cache=True)
def _count(bits: NDArray[np.int32], bound: int) -> np.int64:
    most, count = np.int32(bound), np.int32(0)
    for f in range(len(bits)):
        count += np.int32(bits[f] <= most)
    return np.int64(count)
