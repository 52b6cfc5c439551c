"""Data sets: bundled, fetched into a data home, and generated with known truth.

Every loader returns a Bunch with ``bags`` and ``y``, or the two with ``return_X_y=True``.
"""

from bagwise.core.lazy import public_names
from bagwise.datasets.bundled import load_digit_bags as load_digit_bags
from bagwise.datasets.bundled import load_elephant as load_elephant
from bagwise.datasets.bundled import load_fox as load_fox
from bagwise.datasets.bundled import load_musk1 as load_musk1
from bagwise.datasets.bundled import load_musk2 as load_musk2
from bagwise.datasets.bundled import load_tiger as load_tiger
from bagwise.datasets.ct import make_ct_folder as make_ct_folder
from bagwise.datasets.fetched import NEWSGROUPS as NEWSGROUPS
from bagwise.datasets.fetched import data_home as data_home
from bagwise.datasets.fetched import fetch_detection as fetch_detection
from bagwise.datasets.fetched import fetch_mnist_bags as fetch_mnist_bags
from bagwise.datasets.fetched import fetch_newsgroups as fetch_newsgroups
from bagwise.datasets.fetched import fetch_tracking as fetch_tracking
from bagwise.datasets.generators import make_gaussian_bags as make_gaussian_bags
from bagwise.datasets.generators import make_neighbour_bags as make_neighbour_bags
from bagwise.datasets.generators import make_patient_bags as make_patient_bags
from bagwise.datasets.generators import make_two_concept_bags as make_two_concept_bags
from bagwise.datasets.slides import make_slides as make_slides

__all__ = public_names(globals())  # noqa: PLE0605
