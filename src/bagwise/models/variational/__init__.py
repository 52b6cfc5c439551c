"""The VGPMIL family: one engine; density, bag likelihood and kernel are objects passed in."""

from __future__ import annotations

from typing import Any

from bagwise.models.variational.densities import Density, Gamma, Sech
from bagwise.models.variational.estimators import GVGPMIL, LMVGPMIL, VGPMIL, PsiVGPMIL
from bagwise.models.variational.large_margin import LargeMargin
from bagwise.models.variational.likelihoods import (
    BagLikelihood,
    ExactOr,
    Inherited,
    NoisyMax,
    SoftWitness,
)
from bagwise.models.variational.softmax import Softmax

__all__ = [
    "GVGPMIL",
    "LMVGPMIL",
    "VGPMIL",
    "AutoVGPMIL",
    "BagLikelihood",
    "Density",
    "ExactOr",
    "Gamma",
    "Inherited",
    "LargeMargin",
    "NoisyMax",
    "PsiVGPMIL",
    "Sech",
    "SoftWitness",
    "Softmax",
]


def __getattr__(name: str) -> Any:
    if name == "AutoVGPMIL":
        from bagwise.models.variational.auto import AutoVGPMIL

        return AutoVGPMIL
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
