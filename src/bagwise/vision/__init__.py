"""Images: proposals, region features, detection from image labels, tracking, CT.

Names are imported when first used, so that ``import bagwise.vision`` stays quick.
"""

from __future__ import annotations

from bagwise.core.lazy import lazy_names

# Public name -> the module that defines it.
_HOME = {
    name: module
    for module, names in {
        "ct": ("ct_windows", "find_scans", "read_scan", "read_scans"),
        "ct_model": (
            *("CTLabels", "ScanClassifier", "describe_slice"),
            *("label_scans", "label_slices", "read_ct_labels"),
        ),
        "detection": ("Detections", "draw"),
        "features": ("RegionFeatures",),
        "haar": ("HaarFeatures",),
        "image_sets": ("ImageSet", "make_digit_canvases", "read_coco", "read_voc"),
        "images": ("list_images", "read_image"),
        "photographs": ("PhotographDetector",),
        "proposals": ("Proposals",),
        "regions": ("WeakDetector",),
        "tracker_state": ("TrackerSettings", "TrackerState"),
        "tracking": ("MIOTracker", "Track", "start", "step", "track", "track_many"),
    }.items()
    for name in names
}

__all__ = list(_HOME)
__getattr__, __dir__ = lazy_names(__name__, _HOME)
