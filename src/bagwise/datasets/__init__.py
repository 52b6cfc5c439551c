"""Data sets: bundled, fetched into a data home, and generated with known truth.

Every loader returns a Bunch with ``bags`` and ``y``, or the two with ``return_X_y=True``.
"""

from bagwise.datasets.bundled import (
    load_digit_bags,
    load_elephant,
    load_fox,
    load_musk1,
    load_musk2,
    load_tiger,
)
from bagwise.datasets.ct import make_ct_folder
from bagwise.datasets.fetched import (
    NEWSGROUPS,
    data_home,
    fetch_detection,
    fetch_mnist_bags,
    fetch_newsgroups,
    fetch_tracking,
)
from bagwise.datasets.generators import (
    make_gaussian_bags,
    make_neighbour_bags,
    make_patient_bags,
    make_two_concept_bags,
)
from bagwise.datasets.slides import make_slides

__all__ = [
    "NEWSGROUPS",
    "data_home",
    "fetch_detection",
    "fetch_mnist_bags",
    "fetch_newsgroups",
    "fetch_tracking",
    "load_digit_bags",
    "load_elephant",
    "load_fox",
    "load_musk1",
    "load_musk2",
    "load_tiger",
    "make_ct_folder",
    "make_gaussian_bags",
    "make_neighbour_bags",
    "make_patient_bags",
    "make_slides",
    "make_two_concept_bags",
]
