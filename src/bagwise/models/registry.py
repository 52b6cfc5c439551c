"""Models by name: what ``bagwise fit --model NAME`` and ``evaluate.compare`` build.

Names, summaries and claims only: a model's settings are its class's defaults. A family is
imported when one of its models is asked for, so the registry depends on no family and none
depends on it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from bagwise.models.base import BagClassifier


class Entry(NamedTuple):
    """One named model.

    ``assumption`` is what the model claims: "standard" says that a bag is positive iff one of its
    instances is, so that no instance can ever make a bag less positive; "embedding" says that the
    bag is described as a whole and any evidence, also absence, may count.
    """

    name: str
    home: str  # "module:Class"
    summary: str
    assumption: Literal["standard", "embedding"]


_ENTRIES = [
    Entry(
        "auto",
        "bagwise.models.variational:AutoVGPMIL",
        "Gaussian processes by soft maximum and by mean, weighed by held-out bags",
        "embedding",
    ),
    Entry(
        "vgpmil",
        "bagwise.models.variational:VGPMIL",
        "sparse Gaussian process, bag and instance probabilities with uncertainty",
        "standard",
    ),
    Entry(
        "lm-vgpmil",
        "bagwise.models.variational:LMVGPMIL",
        "VGPMIL with a large margin, by the paper's updates",
        "standard",
    ),
    Entry(
        "g-vgpmil",
        "bagwise.models.variational:GVGPMIL",
        "VGPMIL with the Gamma scale mixture, by the paper's updates",
        "standard",
    ),
    Entry(
        "dpmil",
        "bagwise.models.dpmil:DPMIL",
        "Dirichlet-process mixtures per class, names the positive instances",
        "standard",
    ),
    Entry(
        "misvm",
        "bagwise.models.svm:MISVM",
        "support vector machine on the most positive instance of each bag",
        "standard",
    ),
    Entry(
        "micrf",
        "bagwise.models.micrf:MICRF",
        "conditional random field over bags, states are instances",
        "standard",
    ),
    Entry(
        "single-instance",
        "bagwise.models.single_instance:SingleInstance",
        "any classifier on instances that inherit their bag's label",
        "standard",
    ),
    Entry(
        "miles",
        "bagwise.models.miles:MILES",
        "sparse linear program on similarities to instances",
        "embedding",
    ),
    Entry(
        "mio",
        "bagwise.models.mio:MIO",
        "MILES learned online, bag by bag",
        "embedding",
    ),
    Entry(
        "setkernel",
        "bagwise.models.svm:SetKernelSVM",
        "SVM on a kernel between whole bags",
        "embedding",
    ),
    Entry(
        "statistics",
        "bagwise.models.statistics:StatisticsClassifier",
        "logistic regression on mean, minimum and maximum of each feature",
        "embedding",
    ),
]
# The baseline methods of the papers' tables; they scale and calibrate themselves.
_COMPARATORS: list[tuple[str, str, str, Literal["standard", "embedding"]]] = [
    ("apr", "APR", "axis-parallel box by iterated discrimination", "standard"),
    ("diverse-density", "DiverseDensity", "point of highest diverse density", "standard"),
    ("em-dd", "EMDD", "diverse density with one responsible instance per bag", "standard"),
    ("mica", "MICA", "sparse SVM on points of the convex hulls", "standard"),
    ("bag-ki-svm", "BagKISVM", "key-instance SVM, margin per negative bag", "standard"),
    ("ki-svm", "InstanceKISVM", "key-instance SVM, margin per negative instance", "standard"),
    ("milboost", "MILBoost", "boosted stumps under noisy-or", "standard"),
    ("gpmil", "GPMIL", "Gaussian process with a softened maximum, Laplace", "standard"),
    ("probit-gp", "ProbitGP", "probit Gaussian process, sampled", "standard"),
    ("mi-forest", "MIForest", "random forest with annealed instance labels", "standard"),
    ("vf", "VotingFramework", "votes of the instances that cite an instance", "standard"),
    ("vfr", "VotingWalk", "the same by a random walk", "standard"),
    ("gicf", "GICF", "similar instances alike, averages of bags as labelled", "embedding"),
    ("citation-knn", "CitationKNN", "nearest bags and bags that are near to", "embedding"),
    ("cknn-roi", "CitationKNNROI", "Citation-kNN that names the key instance", "embedding"),
    ("dd-svm", "DDSVM", "SVM on distances to points of high diverse density", "embedding"),
    ("ppmm", "PPMM", "SVM on pooled posteriors of a mixture", "embedding"),
    ("mi-graph", "MiGraph", "SVM on bags whose near copies share a vote", "embedding"),
    ("mi-graph-edges", "MIGraph", "SVM on nodes and edges of the bags' graphs", "embedding"),
    ("blrt", "BLRT", "trees on the share of a bag that exceeds a value", "embedding"),
    ("forest", "StatisticsForest", "random forest on statistics of the bag", "embedding"),
    ("boosting", "StatisticsBoosting", "gradient boosting on statistics of the bag", "embedding"),
]
_ENTRIES += [
    Entry(name, f"bagwise.models.comparators:{class_name}", summary, assumption)
    for name, class_name, summary, assumption in _COMPARATORS
]
# The one place where a model gets a name.
MODELS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def make_model(name: str, **params: object) -> BagClassifier:
    """An unfitted model by its short name: its class with its own defaults.

    Parameters
    ----------
    name : str
        One of ``MODELS``: "auto", "vgpmil", "misvm", ...
    **params
        Parameters of the model; they replace the defaults. ``random_state`` is left out for
        models that draw nothing.

    Examples
    --------
    >>> from bagwise.models.registry import make_model
    >>> make_model("misvm", C=0.5).C
    0.5
    """
    model_class = load_class(find(name))
    known = model_class._get_param_names()
    if "random_state" not in known:
        params.pop("random_state", None)
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise ValueError(f"model {name!r} has no parameter {unknown[0]!r}; it has {sorted(known)}.")
    return model_class(**params)


def find(name: str) -> Entry:
    """The registry's entry for a name, or an error that lists the names."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; choose one of {list(MODELS)}.")
    return MODELS[name]


def load_class(entry: Entry) -> type[BagClassifier]:
    """The estimator class behind an entry, imported now."""
    module, _, class_name = entry.home.partition(":")
    return getattr(importlib.import_module(module), class_name)
