"""Models by name: what ``bagwise fit --model NAME`` and ``evaluate.compare`` build.

Names and claims only: a model's settings are its class's defaults. A family is imported when one
of its models is asked for, so the registry depends on no family and none depends on it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from bagwise.models.base import BagClassifier


class Entry(NamedTuple):
    """One named model.

    ``assumption`` is what the model claims: "standard" says that a bag is positive iff one of its
    instances is, so that no instance can ever make a bag less positive; "embedding" says that the
    bag is described as a whole and any evidence, also absence, may count.
    """

    home: str  # "module:Class"
    assumption: Literal["standard", "embedding"]


_FAMILIES = {
    "auto": Entry("bagwise.models.variational:AutoVGPMIL", "embedding"),
    "vgpmil": Entry("bagwise.models.variational:VGPMIL", "standard"),
    "lm-vgpmil": Entry("bagwise.models.variational:LMVGPMIL", "standard"),
    "g-vgpmil": Entry("bagwise.models.variational:GVGPMIL", "standard"),
    "dpmil": Entry("bagwise.models.dpmil:DPMIL", "standard"),
    "misvm": Entry("bagwise.models.svm:MISVM", "standard"),
    "micrf": Entry("bagwise.models.micrf:MICRF", "standard"),
    "single-instance": Entry("bagwise.models.wrapped:SingleInstance", "standard"),
    "miles": Entry("bagwise.models.miles:MILES", "embedding"),
    "mio": Entry("bagwise.models.mio:MIO", "embedding"),
    "setkernel": Entry("bagwise.models.svm:SetKernelSVM", "embedding"),
    "statistics": Entry("bagwise.models.wrapped:StatisticsClassifier", "embedding"),
}


class _Models(Mapping[str, Entry]):
    """The families' models, and the baseline methods, which are imported when one is looked for."""

    def __getitem__(self, name: str) -> Entry:
        return _FAMILIES[name] if name in _FAMILIES else self._baselines()[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*_FAMILIES, *self._baselines()])

    def __len__(self) -> int:
        return len(_FAMILIES) + len(self._baselines())

    def _baselines(self) -> dict[str, Entry]:
        """What the classes of `comparators` declare themselves."""
        declared = importlib.import_module("bagwise.models.comparators").BASELINES
        return {n: Entry(f"{c.__module__}:{c.__name__}", c.assumption) for n, c in declared.items()}


MODELS = _Models()


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
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; choose one of {list(MODELS)}.")
    model_class = load_class(MODELS[name])
    known = model_class._get_param_names()
    if "random_state" not in known:
        params.pop("random_state", None)
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise ValueError(f"model {name!r} has no parameter {unknown[0]!r}; it has {sorted(known)}.")
    return model_class(**params)


def load_class(entry: Entry) -> type[BagClassifier]:
    """The estimator class behind an entry, imported now."""
    module, _, class_name = entry.home.partition(":")
    return getattr(importlib.import_module(module), class_name)
