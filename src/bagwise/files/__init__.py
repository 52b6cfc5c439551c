"""Feature folders and tables on disk to Bags, lazily; label files; careful writing.

``read_bags`` takes a folder with one file per bag or a long table, ``read_labels`` a CSV of
labels, and ``read_training`` both, checked against each other. Whatever is wrong is collected
and raised once, as `BadFilesError`, naming every file.
"""

from bagwise.bags.on_disk import LazyRows as LazyRows
from bagwise.bags.on_disk import map_rows_of as map_rows_of
from bagwise.core.lazy import public_names
from bagwise.files.geojson import patch_sizes as patch_sizes
from bagwise.files.geojson import read_geojson as read_geojson
from bagwise.files.geojson import write_geojson as write_geojson
from bagwise.files.label_studio import label_studio_config as label_studio_config
from bagwise.files.label_studio import read_label_studio as read_label_studio
from bagwise.files.label_studio import write_label_studio as write_label_studio
from bagwise.files.labels import LabelTable as LabelTable
from bagwise.files.labels import background_class as background_class
from bagwise.files.labels import positive_class as positive_class
from bagwise.files.labels import read_instance_labels as read_instance_labels
from bagwise.files.labels import read_labels as read_labels
from bagwise.files.problems import BadFilesError as BadFilesError
from bagwise.files.problems import FileProblem as FileProblem
from bagwise.files.reading import ScannedBags as ScannedBags
from bagwise.files.reading import read_bags as read_bags
from bagwise.files.reading import scan_bags as scan_bags
from bagwise.files.rows import read_plainly as read_plainly
from bagwise.files.tables import Names as Names
from bagwise.files.training import Training as Training
from bagwise.files.training import read_training as read_training
from bagwise.files.writing import check_output as check_output
from bagwise.files.writing import new_file as new_file
from bagwise.files.writing import new_folder as new_folder

__all__ = public_names(globals())  # noqa: PLE0605
