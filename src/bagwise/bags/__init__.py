"""`Bags`, and `check_bags`, which validates them.

Every estimator sees data only through `check_bags`; no package above has to know whether a user
brought a list, a 3-d array, a memory map, a sparse matrix, a torch tensor or files.
"""

from bagwise.bags.check import BagsLike as BagsLike
from bagwise.bags.check import InstanceLabels as InstanceLabels
from bagwise.bags.check import check_bags as check_bags
from bagwise.bags.check import check_feature_names as check_feature_names
from bagwise.bags.check import encode_instance_labels as encode_instance_labels
from bagwise.bags.container import Bags as Bags
