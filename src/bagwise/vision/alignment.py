"""Where exactly a target is: frames are aligned with kept pictures of it, and searched for it.

A picture shows the target upright in its first size. Aligning the frame with it by the enhanced
correlation coefficient (Evangelidis and Psarakis, 2008), which light does not change, gives
position, size and rotation to a fraction of a pixel. Matching it against a small copy of the whole
frame gives places where the target may have gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bagwise.core.arrays import Floats, Ints, Reals
from bagwise.vision.haar import Grey

_INNER = 0.8  # share of the box that a picture shows; its corners are mostly background
_GLANCE = 16  # side of the target in the small copy of a frame
_ITERATIONS = 12
_STRETCH = 1.35  # largest ratio of the two axes of a transform that still shows the target


class Alignment(NamedTuple):
    """A picture found in a frame."""

    centre: Floats  # [2] of the target
    angle: float  # by which it is rotated against the picture
    axes: Floats  # [2] by which it is larger than the picture along its two axes
    correlation: float


def cut(grey: Grey, centre: Floats, scale: float, size: Ints) -> Grey:
    """The inner part of a target as a picture, of which a pixel is ``scale`` of the frame's."""
    import cv2

    inner = np.maximum(np.rint(size * _INNER).astype(int), 4)
    M = np.column_stack([scale * np.eye(2), centre - 0.5 - scale * (inner - 1) / 2])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    picture = cv2.warpAffine(grey, M, inner.tolist(), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(picture, dtype=np.uint8)


def align(grey: Grey, picture: Grey, centre: Floats, angle: float) -> Alignment | None:
    """Align a picture with a frame, starting from a guess; None where that does not converge."""
    import cv2

    middle = (np.array(picture.shape[::-1]) - 1) / 2
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    reach = np.abs(turn) @ middle + 8
    low = np.maximum(np.floor(centre - reach), 0).astype(int)
    high = np.minimum(np.ceil(centre + reach) + 1, grey.shape[::-1]).astype(int)
    if np.any(high - low < 8):
        return None
    part = np.ascontiguousarray(grey[low[1] : high[1], low[0] : high[0]])
    # M [2, 3] takes a pixel of the picture to the frame: first the guess, then the optimum.
    M = np.column_stack([turn, centre - low - turn @ middle]).astype(np.float32)
    limit = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, _ITERATIONS, 1e-3)
    try:
        correlation, M = cv2.findTransformECC(picture, part, M, cv2.MOTION_AFFINE, limit, None, 5)
    except cv2.error:  # raised where the frame around the guess does not resemble the picture
        return None
    shape = np.asarray(M[:, :2], dtype=np.float64)
    if not np.isfinite(shape).all():
        return None
    # shape = U diag(axes) V: the rotation U V is the one nearest to it, and the singular values
    # are its stretches along two perpendicular axes, the larger first.
    U, axes, V = np.linalg.svd(shape)
    if axes[1] <= 0 or axes[0] / axes[1] > _STRETCH:
        return None
    R = U @ V
    turned = float(np.arctan2(R[1, 0], R[0, 0]))
    return Alignment(M[:, 2] + low + shape @ middle, turned, axes, float(correlation))


def moved(grey: Grey, picture: Grey, centre: Floats, radius: float) -> tuple[Floats, float]:
    """Where a picture fits best among the shifts within a radius, and its correlation there.

    A parabola through the best shift and its neighbours tells fractions of a pixel: rounded shifts
    would add up over many frames.
    """
    import cv2

    shape = np.array(picture.shape[::-1])
    low = np.clip(np.rint(centre - shape / 2 - radius).astype(int), 0, None)
    high = np.minimum(np.rint(centre + shape / 2 + radius).astype(int), grey.shape[::-1])
    part = grey[low[1] : high[1], low[0] : high[0]]
    if np.any(part.shape[::-1] < shape):
        return centre, 0.0
    match = _correlations(part, picture)
    _, value, _, (x, y) = cv2.minMaxLoc(match)
    shift = np.array([x + _vertex(match[y], x), y + _vertex(match[:, x], y)])
    return np.asarray(low + shift + shape / 2), float(value)


def _correlations(grey: Grey, picture: Grey) -> Reals:
    """The correlation of a picture with every place of a frame, -1 where one of them is flat."""
    import cv2

    match = cv2.matchTemplate(grey, picture, cv2.TM_CCOEFF_NORMED)
    match[~np.isfinite(match)] = -1
    return match


def _vertex(values: Reals, peak: int) -> float:
    """How far beside the largest of some values lies the top of the parabola through it."""
    if not 0 < peak < len(values) - 1:
        return 0.0
    # Through (-1, before), (0, top), (1, after): the vertex is at (after - before) / (2 bend).
    before, top, after = (float(v) for v in values[peak - 1 : peak + 2])
    bend = 2 * top - before - after
    return 0.5 * (after - before) / bend if bend > 0 else 0.0


def resemblance(a: Grey, b: Grey) -> float:
    """The correlation of two pictures of one size as they lie."""
    import cv2

    value = float(cv2.matchTemplate(a, b, cv2.TM_CCOEFF_NORMED)[0, 0])
    return value if np.isfinite(value) else 0.0


def candidates(grey: Grey, pictures: Sequence[Grey], size: Floats, n_peaks: int) -> list[Floats]:
    """Centres of places in a frame that look like one of the pictures, best first.

    ``size`` is the target's in pixels of the frame. The frame is compared at a size at which the
    target has sixteen pixels, which is enough to find a place and takes little time.
    """
    import cv2

    factor = min(_GLANCE / float(np.sqrt(np.prod(size))), 1.0)
    shape = np.maximum(np.rint(np.array(grey.shape[::-1]) * factor), 1).astype(int)
    small = cv2.resize(grey, shape.tolist(), interpolation=cv2.INTER_AREA)
    ratio = np.array(grey.shape[::-1]) / shape
    inner = np.maximum(np.rint(size * _INNER / ratio).astype(int), 3)
    pad = inner // 2
    small = cv2.copyMakeBorder(small, pad[1], pad[1], pad[0], pad[0], cv2.BORDER_REPLICATE)
    if np.any(small.shape < inner[::-1]):
        return []
    peaks: list[tuple[float, Floats]] = []
    for picture in pictures:
        template = cv2.resize(picture, inner.tolist(), interpolation=cv2.INTER_AREA)
        match = _correlations(small, template)
        for _ in range(n_peaks):
            _, value, _, (x, y) = cv2.minMaxLoc(match)
            if value <= 0:
                break
            peaks.append((float(value), (np.array([x, y]) - pad + inner / 2) * ratio))
            low, high = np.maximum([x, y] - pad, 0), [x, y] + pad + 1
            match[low[1] : high[1], low[0] : high[0]] = -1  # the next peak is another place
    peaks.sort(key=lambda peak: -peak[0])
    return [centre for _, centre in peaks[:n_peaks]]
