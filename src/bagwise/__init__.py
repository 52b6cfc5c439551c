"""Multiple-instance learning with calibrated probabilities.

Public names only; each is imported when first used, so that ``import bagwise`` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

# Public name -> the module that defines it.
_HOME = {
    "Bags": "bagwise.bags",
    "make_pipeline": "bagwise.models.pipeline",
    "BagPipeline": "bagwise.models.pipeline",
    "InstanceTransformer": "bagwise.models.pipeline",
    "BagStatistics": "bagwise.models.pipeline",
    "Coupled": "bagwise.models.coupled",
    "Execution": "bagwise.models.execution",
    "SingleInstance": "bagwise.models.wrapped",
    "VGPMIL": "bagwise.models.variational",
    "LMVGPMIL": "bagwise.models.variational",
    "PsiVGPMIL": "bagwise.models.variational",
    "GVGPMIL": "bagwise.models.variational",
    "AutoVGPMIL": "bagwise.models.variational",
    "DPMIL": "bagwise.models.dpmil",
    "MILES": "bagwise.models.miles",
    "MIO": "bagwise.models.mio",
    "MISVM": "bagwise.models.svm",
    "SetKernelSVM": "bagwise.models.svm",
    "StatisticsClassifier": "bagwise.models.wrapped",
    "MICRF": "bagwise.models.micrf",
    "OneVsRest": "bagwise.models.one_vs_rest",
    "predict_levels": "bagwise.models.levels",
    "save": "bagwise.persist",
    "load": "bagwise.persist",
}
_MODULES = ("comparators", "datasets", "evaluate", "kernels", "vision", "deep", "report", "label")

__all__ = ["__version__"]
__all__ += list(_HOME)
__all__ += list(_MODULES)

if TYPE_CHECKING:
    from bagwise import comparators as comparators
    from bagwise import datasets as datasets
    from bagwise import deep as deep
    from bagwise import evaluate as evaluate
    from bagwise import label as label
    from bagwise import report as report
    from bagwise import vision as vision
    from bagwise.bags import Bags as Bags
    from bagwise.models.coupled import Coupled as Coupled
    from bagwise.models.dpmil import DPMIL as DPMIL
    from bagwise.models.execution import Execution as Execution
    from bagwise.models.levels import predict_levels as predict_levels
    from bagwise.models.micrf import MICRF as MICRF
    from bagwise.models.miles import MILES as MILES
    from bagwise.models.mio import MIO as MIO
    from bagwise.models.one_vs_rest import OneVsRest as OneVsRest
    from bagwise.models.pipeline import BagPipeline as BagPipeline
    from bagwise.models.pipeline import BagStatistics as BagStatistics
    from bagwise.models.pipeline import InstanceTransformer as InstanceTransformer
    from bagwise.models.pipeline import make_pipeline as make_pipeline
    from bagwise.models.svm import MISVM as MISVM
    from bagwise.models.svm import SetKernelSVM as SetKernelSVM
    from bagwise.models.variational import GVGPMIL as GVGPMIL
    from bagwise.models.variational import LMVGPMIL as LMVGPMIL
    from bagwise.models.variational import VGPMIL as VGPMIL
    from bagwise.models.variational import AutoVGPMIL as AutoVGPMIL
    from bagwise.models.variational import PsiVGPMIL as PsiVGPMIL
    from bagwise.models.wrapped import SingleInstance as SingleInstance
    from bagwise.models.wrapped import StatisticsClassifier as StatisticsClassifier
    from bagwise.persist import load as load
    from bagwise.persist import save as save


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        home = {"kernels": "bagwise.core.kernels"}.get(name, f"bagwise.{name}")
        return importlib.import_module(home)
    raise AttributeError(f"module 'bagwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
