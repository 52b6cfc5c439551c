"""The VGPMIL family: one engine; bag likelihood, density and kernel are objects passed in."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bagwise.models.variational.auto import AutoVGPMIL as AutoVGPMIL
    from bagwise.models.variational.densities import Density as Density
    from bagwise.models.variational.densities import Gamma as Gamma
    from bagwise.models.variational.densities import Sech as Sech
    from bagwise.models.variational.estimators import GVGPMIL as GVGPMIL
    from bagwise.models.variational.estimators import LMVGPMIL as LMVGPMIL
    from bagwise.models.variational.estimators import VGPMIL as VGPMIL
    from bagwise.models.variational.estimators import PsiVGPMIL as PsiVGPMIL
    from bagwise.models.variational.large_margin import LargeMargin as LargeMargin
    from bagwise.models.variational.likelihoods import BagLikelihood as BagLikelihood
    from bagwise.models.variational.likelihoods import Gaussian as Gaussian
    from bagwise.models.variational.likelihoods import Or as Or
    from bagwise.models.variational.likelihoods import Score as Score
    from bagwise.models.variational.likelihoods import SoftMax as SoftMax
    from bagwise.models.variational.noisy_max import NoisyMax as NoisyMax

_HOME = {
    "AutoVGPMIL": "auto",
    **dict.fromkeys(("VGPMIL", "LMVGPMIL", "PsiVGPMIL", "GVGPMIL"), "estimators"),
    **dict.fromkeys(("Density", "Gamma", "Sech"), "densities"),
    **dict.fromkeys(("BagLikelihood", "Gaussian", "Or", "Score", "SoftMax"), "likelihoods"),
    "LargeMargin": "large_margin",
    "NoisyMax": "noisy_max",
}
__all__ = [
    "GVGPMIL",
    "LMVGPMIL",
    "VGPMIL",
    "AutoVGPMIL",
    "BagLikelihood",
    "Density",
    "Gamma",
    "Gaussian",
    "LargeMargin",
    "NoisyMax",
    "Or",
    "PsiVGPMIL",
    "Score",
    "Sech",
    "SoftMax",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
