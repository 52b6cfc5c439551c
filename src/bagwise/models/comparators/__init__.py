"""The rivals of the papers' tables, one file each, under the same contract as the other models."""

from bagwise.models.comparators.apr import APR
from bagwise.models.comparators.citation_knn import CitationKNN
from bagwise.models.comparators.dd_svm import DDSVM
from bagwise.models.comparators.diverse_density import DiverseDensity
from bagwise.models.comparators.em_dd import EMDD
from bagwise.models.comparators.gpmil import GPMIL
from bagwise.models.comparators.mi_graph import MIGraph, MiGraph
from bagwise.models.comparators.milboost import MILBoost

__all__ = [
    "APR",
    "DDSVM",
    "EMDD",
    "GPMIL",
    "CitationKNN",
    "DiverseDensity",
    "MIGraph",
    "MILBoost",
    "MiGraph",
]
