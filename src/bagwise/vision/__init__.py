"""Images: proposals, region features, weak detection, tracking, CT.

Names are imported when first used, so that ``import bagwise.vision`` stays quick.
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> the module that defines it.
_HOME = {
    "ct_windows": "ct",
    "CTLabels": "ct_labels",
    "find_scans": "ct",
    "label_scans": "ct_labels",
    "label_slices": "ct_labels",
    "read_ct_labels": "ct_labels",
    "read_scan": "ct",
    "read_scans": "ct",
    "ImageSet": "images",
    "read_image": "images",
    "read_voc": "images",
    "read_coco": "images",
    "list_images": "images",
    "make_digit_canvases": "canvases",
    "ScanClassifier": "ct_model",
    "describe_slice": "ct_model",
    "HaarFeatures": "haar",
    "MIOTracker": "tracking",
    "Detections": "detection",
    "Proposals": "proposals",
    "WeakDetector": "detection",
    "draw": "detection",
    "Track": "tracking",
    "TrackerSettings": "tracker_state",
    "TrackerState": "tracker_state",
    "start": "tracking",
    "step": "tracking",
    "track": "tracking",
    "track_many": "tracking",
    "RegionFeatures": "features",
}

__all__ = [
    "CTLabels",
    "Detections",
    "HaarFeatures",
    "ImageSet",
    "MIOTracker",
    "Proposals",
    "RegionFeatures",
    "ScanClassifier",
    "TrackerSettings",
    "TrackerState",
    "WeakDetector",
    "ct_windows",
    "describe_slice",
    "draw",
    "find_scans",
    "label_scans",
    "label_slices",
    "list_images",
    "make_digit_canvases",
    "read_coco",
    "read_ct_labels",
    "read_image",
    "read_scan",
    "read_scans",
    "read_voc",
    "start",
    "step",
    "track",
    "track_many",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"bagwise.vision.{_HOME[name]}"), name)
    raise AttributeError(f"module 'bagwise.vision' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
