"""Feature folders and tables on disk to Bags, lazily; label files; careful writing.

``read_bags`` takes a folder with one file per bag or a long table, ``read_labels`` a CSV of
labels, and ``read_training`` both, checked against each other. Whatever is wrong is collected
and raised once, as `BadFilesError`, naming every file.
"""

from bagwise.bags.on_disk import LazyRows, map_rows_of
from bagwise.files.geojson import patch_sizes, read_geojson, write_geojson
from bagwise.files.label_studio import label_studio_config, read_label_studio, write_label_studio
from bagwise.files.labels import (
    LabelTable,
    background_class,
    positive_class,
    read_instance_labels,
    read_labels,
)
from bagwise.files.problems import BadFilesError, FileProblem
from bagwise.files.reading import ScannedBags, read_bags, scan_bags
from bagwise.files.rows import read_plainly
from bagwise.files.tables import Names
from bagwise.files.training import Training, read_training
from bagwise.files.writing import check_output, new_file, new_folder

__all__ = [
    "BadFilesError",
    "FileProblem",
    "LabelTable",
    "LazyRows",
    "Names",
    "ScannedBags",
    "Training",
    "background_class",
    "check_output",
    "label_studio_config",
    "map_rows_of",
    "new_file",
    "new_folder",
    "patch_sizes",
    "positive_class",
    "read_bags",
    "read_geojson",
    "read_instance_labels",
    "read_label_studio",
    "read_labels",
    "read_plainly",
    "read_training",
    "scan_bags",
    "write_geojson",
    "write_label_studio",
]
