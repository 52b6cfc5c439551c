"""A page of images with their detections, self-contained."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from bagwise.files import new_file
from bagwise.vision.detection import Detections, draw, shown
from bagwise.vision.images import fit_within

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem;color:#222;background:#fafafa}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(300px,1fr));gap:1.2rem}
figure{margin:0;background:#fff;border:1px solid #ddd;border-radius:6px;padding:.6rem}
img{width:100%;height:auto}
figcaption{font-weight:600;overflow-wrap:anywhere}
table{width:100%;border-collapse:collapse;font-size:13px}
td,th{text-align:left;padding:1px 6px 1px 0}
.doubt{color:#777}
@media(prefers-color-scheme:dark){body{background:#1b1b1b;color:#ddd}
figure{background:#262626;border-color:#444}}
"""


def write_gallery(
    images: Sequence[Path],
    names: Sequence[str],
    detections: Sequence[Detections],
    path: str | Path,
    *,
    min_probability: Any = 0.5,
    title: str = "Detections",
) -> Path:
    """Write one HTML page with every image, its boxes, and their probabilities.

    Parameters
    ----------
    images : sequence of images
        Whatever `bagwise.vision.read_image` takes.
    names : sequence of str
    detections : sequence of Detections
    path : path
    min_probability : float or mapping from class name
        Boxes less probable than this are left out; an image without any shows its best box.
    title : str
    """
    figures = [
        _figure(image, name, found, min_probability)
        for image, name, found in zip(images, names, detections, strict=True)
    ]
    n_boxes = sum(int(shown(d, min_probability).sum()) for d in detections)
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        f"<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>"
        f"<p>{len(figures)} images, {n_boxes} boxes that are probable enough "
        f"({escape(_limits(min_probability))}). Where an image has none, its best box is grey."
        f"</p><main>{''.join(figures)}</main></html>"
    )
    path = Path(path)
    with new_file(path) as draft:
        draft.write_text(page, encoding="utf-8")
    return path


def _limits(least: Any) -> str:
    if not isinstance(least, Mapping):
        return f"{least:g} or more"
    return ", ".join(f"{name}: {value:.2f} or more" for name, value in least.items())


def _figure(image: Any, name: str, found: Detections, least: Any) -> str:
    import cv2

    drawn, _ = fit_within(draw(image, found, min_probability=least), 480)
    data = cv2.imencode(".jpg", drawn[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 85])[1]
    source = base64.b64encode(data.tobytes()).decode()
    certain = shown(found, least)
    listed = np.flatnonzero(certain) if certain.any() else np.arange(min(1, len(certain)))
    rows = [
        f"<tr{'' if certain[k] else ' class=doubt'}><td>{escape(str(found.classes[k]))}"
        f"<td>{found.probabilities[k]:.2f}"
        f"<td>{'' if np.isnan(found.std[k]) else f'{found.std[k]:.2f}'}"
        f"<td>{', '.join(f'{v:.0f}' for v in found.boxes[k])}"
        for k in listed
    ]
    table = (
        f"{'' if certain.any() else '<p>nothing probable enough; the best box is'}"
        f"<table><tr><th>class<th>probability<th>std<th>x, y, w, h{''.join(rows)}</table>"
    )
    return (
        f"<figure><img alt='{escape(name, quote=True)}' src='data:image/jpeg;base64,{source}'>"
        f"<figcaption>{escape(name)}</figcaption>{table}</figure>"
    )
