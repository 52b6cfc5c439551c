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

_GLANCE = 13  # side of a picture in the small copy of a frame
_ITERATIONS = 12


class Alignment(NamedTuple):
    """A picture found in a frame."""

    centre: Floats  # [2] of the target
    angle: float  # by which it is rotated against the picture
    axes: Floats  # [2] by which it is larger than the picture along its two axes
    correlation: float


def cut(grey: Grey, centre: Floats, scale: float, shape: Ints) -> Grey:
    """A picture of width and height ``shape``, a pixel of which is ``scale`` of the frame's."""
    import cv2

    M = np.column_stack([scale * np.eye(2), centre - 0.5 - scale * (shape - 1) / 2])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    picture = cv2.warpAffine(grey, M, shape.tolist(), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(picture, dtype=np.uint8)


def align(
    grey: Grey, picture: Grey, centre: Floats, angle: float, stretch: float
) -> Alignment | None:
    """Align a picture with a frame, starting from a guess; None where that does not converge.

    A transform whose axes differ by more than the factor ``stretch`` does not show the target.
    """
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
    if axes[1] <= 0 or axes[0] / axes[1] > stretch:
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
    return float(_correlations(a, b)[0, 0])


def candidates(grey: Grey, pictures: Sequence[Grey], scale: float, n_peaks: int) -> list[Floats]:
    """Centres of places in a frame that look like one of the pictures, best first.

    A pixel of a picture is ``scale`` pixels of the frame. They are compared at a size at which a
    picture has thirteen pixels, which is enough to find a place and takes little time.
    """
    import cv2

    shape = np.array(pictures[0].shape[::-1])
    factor = min(_GLANCE / (scale * float(np.sqrt(np.prod(shape)))), 1.0)
    small_shape = np.maximum(np.rint(np.array(grey.shape[::-1]) * factor), 1).astype(int)
    small = cv2.resize(grey, small_shape.tolist(), interpolation=cv2.INTER_AREA)
    ratio = np.array(grey.shape[::-1]) / small_shape
    inner = np.maximum(np.rint(shape * scale / ratio).astype(int), 3)
    pad = inner // 2
    small = cv2.copyMakeBorder(small, pad[1], pad[1], pad[0], pad[0], cv2.BORDER_REPLICATE)
    if np.any(small.shape < inner[::-1]):
        return []
    templates = [cv2.resize(p, inner.tolist(), interpolation=cv2.INTER_AREA) for p in pictures]
    match = np.max([_correlations(small, template) for template in templates], axis=0)
    peaks: list[Floats] = []
    while len(peaks) < n_peaks:
        _, value, _, (x, y) = cv2.minMaxLoc(match)
        if value <= 0:
            break
        peaks.append((np.array([x, y]) - pad + inner / 2) * ratio)
        low, high = np.maximum([x, y] - pad, 0), [x, y] + pad + 1
        match[low[1] : high[1], low[0] : high[0]] = -1  # the next peak is another place
    return peaks
