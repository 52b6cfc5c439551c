"""A page of images with their detections, self-contained."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from bagwise.files.writing import write_text
from bagwise.report.html import render
from bagwise.vision.detection import Detections, draw, shown
from bagwise.vision.images import ImageSource, fit_within


def write_gallery(
    images: Sequence[ImageSource],
    names: Sequence[str],
    detections: Sequence[Detections],
    path: str | Path,
    *,
    min_probability: float = 0.5,
) -> Path:
    """Write one HTML page with every image, its boxes, and their probabilities.

    Parameters
    ----------
    images : sequence of images
        Whatever `bagwise.vision.read_image` takes.
    names : sequence of str
    detections : sequence of Detections
    path : path
    min_probability : float, default=0.5
        Boxes less probable than this are left out; an image without any shows its best box.
    """
    page = render(
        "gallery.html",
        limits=f"{min_probability:g} or more",
        figures=[
            _figure(image, name, of_image, min_probability)
            for image, name, of_image in zip(images, names, detections, strict=True)
        ],
    )
    return write_text(path, page)


def _figure(
    image: ImageSource, name: str, detections: Detections, least: float
) -> dict[str, object]:
    """An image with its boxes drawn, as base64 of a JPEG, and the rows of its table."""
    import cv2

    drawn, _ = fit_within(draw(image, detections, min_probability=least), 480)
    jpeg = cv2.imencode(".jpg", drawn[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 85])[1]
    return {
        "name": name,
        "picture": base64.b64encode(jpeg.tobytes()).decode(),
        "n_probable": sum(p >= least for p in detections.probabilities),
        "rows": [[part[k] for part in detections] for k in shown(detections, least)],
    }
