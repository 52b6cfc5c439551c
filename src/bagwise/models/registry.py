"""Models by name: what ``bagwise fit --model NAME`` and ``evaluate.compare`` build.

Only names and strings live here; a family is imported when one of its models is asked for, so
the registry depends on no family and none depends on it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple


class Entry(NamedTuple):
    """One named model.

    ``assumption`` is what the model claims: "standard" says that a bag is positive iff one of its
    instances is, so that no instance can ever make a bag less positive; "embedding" says that the
    bag is described as a whole and any evidence, also absence, may count.
    """

    name: str
    home: str  # "module:Class" of the last step
    summary: str
    assumption: Literal["standard", "embedding"]
    defaults: dict[str, Any]
    scaled: bool  # standardise the instances first, inside the pipeline


# The largest instance makes the bag: noisy-or would add up weak evidence over large bags.
_GP = {"bag_rule": "max", "calibrate": True}
# For dense features of one kind; the papers' own settings are the class's defaults.
_WIDE = {"scale": "global", "length_scale": "median", "variance": 16.0}
_ENTRIES = [
    Entry(
        "auto",
        "bagwise.models.variational:AutoVGPMIL",
        "GP whose kernel, scaling and bag likelihood are chosen by inner cross-validation",
        "standard",
        {},
        False,
    ),
    Entry(
        "vgpmil",
        "bagwise.models.variational:VGPMIL",
        "variational Gaussian process, instance and bag probabilities with uncertainty",
        "standard",
        {**_GP, "likelihood": "witness", **_WIDE},
        False,
    ),
    Entry(
        "lm-vgpmil",
        "bagwise.models.variational:LMVGPMIL",
        "VGPMIL with a large margin",
        "standard",
        {**_GP, "length_scale": "median"},
        False,
    ),
    Entry(
        "g-vgpmil",
        "bagwise.models.variational:GVGPMIL",
        "psi-VGPMIL with the Gamma scale mixture",
        "standard",
        _GP,
        False,
    ),
    Entry(
        "dpmil",
        "bagwise.models.dpmil:DPMIL",
        "Dirichlet-process mixtures per class, names the positive instances",
        "standard",
        {"bag_rule": "max"},
        True,
    ),
    Entry(
        "misvm",
        "bagwise.models.svm:MISVM",
        "support vector machine on the most positive instance of each bag",
        "standard",
        {"C": 10.0, "probability": True},
        True,
    ),
    Entry(
        "micrf",
        "bagwise.models.micrf:MICRF",
        "conditional random field over bags, states are instances",
        "standard",
        {"probability": True, "cv": 3},
        False,
    ),
    Entry(
        "single-instance",
        "bagwise.models.single_instance:SingleInstance",
        "any classifier on instances that inherit their bag's label",
        "standard",
        {},
        True,
    ),
    Entry(
        "miles",
        "bagwise.models.miles:MILES",
        "sparse linear programme on similarities to instances",
        "embedding",
        {"probability": True},
        True,
    ),
    Entry(
        "mio",
        "bagwise.models.mio:MIO",
        "MILES learned online, bag by bag",
        "embedding",
        {"probability": True},
        True,
    ),
    Entry(
        "setkernel",
        "bagwise.models.svm:SetKernelSVM",
        "SVM on a kernel between whole bags",
        "embedding",
        {"probability": True},
        True,
    ),
    Entry(
        "statistics",
        "sklearn.linear_model:LogisticRegression",
        "logistic regression on mean, minimum and maximum of each feature",
        "embedding",
        {"C": 0.1, "max_iter": 5000},
        False,
    ),
]
# The rivals of the papers' tables; they scale and calibrate themselves.
_COMPARATORS: list[tuple[str, str, str, Literal["standard", "embedding"]]] = [
    ("apr", "APR", "axis-parallel box by iterated discrimination", "standard"),
    ("diverse-density", "DiverseDensity", "point of highest diverse density", "standard"),
    ("em-dd", "EMDD", "diverse density with one responsible instance per bag", "standard"),
    ("mica", "MICA", "sparse machine on points of the convex hulls", "standard"),
    ("bag-ki-svm", "BagKISVM", "key-instance machine, margin per negative bag", "standard"),
    ("ki-svm", "InstanceKISVM", "key-instance machine, margin per negative instance", "standard"),
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
    ("migraph", "MiGraph", "SVM on bags whose near copies share a vote", "embedding"),
    ("mi-graph", "MIGraph", "SVM on nodes and edges of the bags' graphs", "embedding"),
    ("blrt", "BLRT", "trees that ask which share of a bag exceeds a value", "embedding"),
    ("forest", "StatisticsForest", "random forest on statistics of the bag", "embedding"),
    ("boosting", "StatisticsBoosting", "gradient boosting on statistics of the bag", "embedding"),
]
_ENTRIES += [
    Entry(name, f"bagwise.models.comparators:{class_name}", summary, assumption, {}, False)
    for name, class_name, summary, assumption in _COMPARATORS
]
MODELS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def make_model(name: str, *, random_state: int | None = 0, **params: Any) -> Any:
    """An unfitted model, ready for bags, by its short name.

    Parameters
    ----------
    name : str
        One of ``MODELS``: "auto", "vgpmil", "misvm", ...
    random_state : int or None, default=0
        Seed, for the models that draw.
    **params
        Parameters of the model; they replace the defaults.

    Returns
    -------
    estimator
        The model alone, or a pipeline that first standardises the instances.

    Examples
    --------
    >>> from bagwise.models.registry import make_model
    >>> make_model("statistics", C=0.5)[-1].C
    0.5
    """
    entry = find(name)
    model_class = load_class(entry)
    known = model_class._get_param_names()
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise ValueError(f"model {name!r} has no parameter {unknown[0]!r}; it has {sorted(known)}.")
    settings = {key: value for key, value in entry.defaults.items() if key in known}
    if "random_state" in known:
        settings["random_state"] = random_state
    return _ARRANGE.get(name, _standard)(entry, model_class, {**settings, **params})


def find(name: str) -> Entry:
    """The registry's entry for a name, or an error that lists the names."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; choose one of {list(MODELS)}.")
    return MODELS[name]


def load_class(entry: Entry) -> Any:
    """The estimator class behind an entry, imported now."""
    module, _, class_name = entry.home.partition(":")
    return getattr(importlib.import_module(module), class_name)


def _standard(entry: Entry, model_class: Any, settings: dict[str, Any]) -> Any:
    model = model_class(**settings)
    if not entry.scaled:
        return model
    from sklearn.preprocessing import StandardScaler

    from bagwise.models.pipeline import InstanceTransformer, make_pipeline

    return make_pipeline(InstanceTransformer(StandardScaler()), model)


def _dpmil(entry: Entry, model_class: Any, settings: dict[str, Any]) -> Any:
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    from bagwise.models.pipeline import InstanceTransformer, make_pipeline

    # Full covariances need few dimensions: keep those with nine tenths of the variance.
    reduce = InstanceTransformer(PCA(0.9, svd_solver="full"))
    return make_pipeline(InstanceTransformer(StandardScaler()), reduce, model_class(**settings))


def _single_instance(entry: Entry, model_class: Any, settings: dict[str, Any]) -> Any:
    from sklearn.linear_model import LogisticRegression

    # Balanced, because large positive bags flood the inherited labels.
    base = LogisticRegression(C=0.1, class_weight="balanced", max_iter=5000)
    settings.setdefault("estimator", base)
    return _standard(entry, model_class, settings)


def _statistics(entry: Entry, model_class: Any, settings: dict[str, Any]) -> Any:
    from sklearn.preprocessing import StandardScaler

    from bagwise.models.pipeline import BagStatistics, make_pipeline

    return make_pipeline(BagStatistics(), StandardScaler(), model_class(**settings))


# Models that are more than "maybe scale, then the class".
_ARRANGE: dict[str, Callable[[Entry, Any, dict[str, Any]], Any]] = {
    "dpmil": _dpmil,
    "single-instance": _single_instance,
    "statistics": _statistics,
}
