"""The VGPMIL family: one engine; bag likelihood, density and kernel are objects passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bagwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from bagwise.models.variational.auto import AutoVGPMIL as AutoVGPMIL
    from bagwise.models.variational.estimators import GVGPMIL as GVGPMIL
    from bagwise.models.variational.estimators import LMVGPMIL as LMVGPMIL
    from bagwise.models.variational.estimators import VGPMIL as VGPMIL
    from bagwise.models.variational.estimators import PsiVGPMIL as PsiVGPMIL
    from bagwise.models.variational.hyper import KernelStep as KernelStep
    from bagwise.models.variational.hyper import ProgramKernelStep as ProgramKernelStep
    from bagwise.models.variational.likelihoods import BagLikelihood as BagLikelihood
    from bagwise.models.variational.likelihoods import Gaussian as Gaussian
    from bagwise.models.variational.likelihoods import Or as Or
    from bagwise.models.variational.likelihoods import Score as Score
    from bagwise.models.variational.likelihoods import SoftMax as SoftMax
    from bagwise.models.variational.paper_likelihoods import Density as Density
    from bagwise.models.variational.paper_likelihoods import Gamma as Gamma
    from bagwise.models.variational.paper_likelihoods import LargeMargin as LargeMargin
    from bagwise.models.variational.paper_likelihoods import NoisyMax as NoisyMax
    from bagwise.models.variational.paper_likelihoods import Sech as Sech

# Module -> the public names that it defines.
__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "auto": ("AutoVGPMIL",),
        "estimators": ("GVGPMIL", "LMVGPMIL", "PsiVGPMIL", "VGPMIL"),
        "hyper": ("KernelStep", "ProgramKernelStep"),
        "likelihoods": ("BagLikelihood", "Gaussian", "Or", "Score", "SoftMax"),
        "paper_likelihoods": ("Density", "Gamma", "LargeMargin", "NoisyMax", "Sech"),
    },
)
