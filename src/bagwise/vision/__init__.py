"""Images: proposals, weak detection, tracking, CT."""

from bagwise.vision.ct import (
    ct_windows,
    label_slices,
    read_cq500_labels,
    read_rsna_labels,
    read_scan,
    read_scans,
)

__all__ = [
    "ct_windows",
    "label_slices",
    "read_cq500_labels",
    "read_rsna_labels",
    "read_scan",
    "read_scans",
]
