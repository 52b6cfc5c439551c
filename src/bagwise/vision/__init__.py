"""Images: proposals, region features, weak detection, tracking, CT.

Names are imported when first used, so that ``import bagwise.vision`` stays quick.
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> the module that defines it.
_HOME = {
    "ct_windows": "ct",
    "label_slices": "ct",
    "read_cq500_labels": "ct",
    "read_rsna_labels": "ct",
    "read_scan": "ct",
    "read_scans": "ct",
    "ImageSet": "images",
    "read_image": "images",
    "read_voc": "images",
    "read_coco": "images",
    "list_images": "images",
    "make_digit_canvases": "canvases",
    "MIOTracker": "tracking",
    "Detections": "detection",
    "Proposals": "proposals",
    "WeakDetector": "detection",
    "draw": "detection",
    "Track": "tracking",
    "track": "tracking",
    "RegionFeatures": "features",
}

__all__ = [
    "Detections",
    "ImageSet",
    "MIOTracker",
    "Proposals",
    "RegionFeatures",
    "WeakDetector",
    "ct_windows",
    "draw",
    "label_slices",
    "list_images",
    "make_digit_canvases",
    "read_coco",
    "read_cq500_labels",
    "read_image",
    "read_rsna_labels",
    "read_scan",
    "read_scans",
    "read_voc",
    "track",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"bagwise.vision.{_HOME[name]}"), name)
    raise AttributeError(f"module 'bagwise.vision' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
