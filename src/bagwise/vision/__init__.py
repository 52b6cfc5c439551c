"""Images: proposals, region features, detection from image labels, tracking, CT.

Names are imported when first used, so that ``import bagwise.vision`` stays quick.
"""

from __future__ import annotations

from bagwise.core.lazy import lazy_names

# Module -> the public names that it defines.
__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ct": ("ct_windows", "describe_slice", "find_scans", "read_scans"),
        "ct_labels": ("label_scans", "label_slices", "read_ct_labels"),
        "detection": ("Detections", "draw"),
        "features": ("RegionFeatures",),
        "haar": ("HaarFeatures",),
        "image_sets": ("ImageSet", "read_coco", "read_voc"),
        "images": ("list_images", "read_image"),
        "photographs": ("PhotographDetector",),
        "proposals": ("Proposals",),
        "region_network": ("RegionNetwork", "load_region_network", "paper_detector"),
        "regions": ("WeakDetector",),
        "tracker_state": ("TrackerState",),
        "tracking": ("MIOTracker", "Track", "start", "step", "track", "track_many"),
    },
)
