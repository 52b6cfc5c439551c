"""Baseline methods of the papers' tables, one file each, under the contract of the other models.

Besides the attributes they name, all have ``classes_``, the two bag classes.
"""

from bagwise.models.comparators.apr import APR
from bagwise.models.comparators.blrt import BLRT
from bagwise.models.comparators.citation_knn import CitationKNN
from bagwise.models.comparators.cknn_roi import CitationKNNROI
from bagwise.models.comparators.dd_svm import DDSVM
from bagwise.models.comparators.diverse_density import DiverseDensity
from bagwise.models.comparators.em_dd import EMDD
from bagwise.models.comparators.gicf import GICF
from bagwise.models.comparators.gpmil import GPMIL
from bagwise.models.comparators.ki_svm import BagKISVM, InstanceKISVM
from bagwise.models.comparators.mi_forest import MIForest
from bagwise.models.comparators.mi_graph import MIGraph, MiGraph
from bagwise.models.comparators.mica import MICA
from bagwise.models.comparators.milboost import MILBoost
from bagwise.models.comparators.ppmm import PPMM
from bagwise.models.comparators.probit_gp import ProbitGP
from bagwise.models.comparators.statistics import StatisticsBoosting, StatisticsForest
from bagwise.models.comparators.voting import VotingFramework, VotingWalk

__all__ = [
    "APR",
    "BLRT",
    "DDSVM",
    "EMDD",
    "GICF",
    "GPMIL",
    "MICA",
    "PPMM",
    "BagKISVM",
    "CitationKNN",
    "CitationKNNROI",
    "DiverseDensity",
    "InstanceKISVM",
    "MIForest",
    "MIGraph",
    "MILBoost",
    "MiGraph",
    "ProbitGP",
    "StatisticsBoosting",
    "StatisticsForest",
    "VotingFramework",
    "VotingWalk",
]
