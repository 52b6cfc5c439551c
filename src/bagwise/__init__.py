"""Multiple-instance learning with honest probabilities.

Public names only; each is imported when first used, so that ``import bagwise`` stays quick.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

__version__ = _version("bagwise")

# Public name -> the module that defines it.
_HOME = {
    "Bags": "bagwise.bags",
    "make_pipeline": "bagwise.models.pipeline",
    "BagPipeline": "bagwise.models.pipeline",
    "InstanceTransformer": "bagwise.models.pipeline",
    "BagStatistics": "bagwise.models.pipeline",
    "SingleInstance": "bagwise.models.single_instance",
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
    "MICRF": "bagwise.models.micrf",
    "save": "bagwise.persist",
    "load": "bagwise.persist",
}
_MODULES = ("datasets", "evaluate", "vision", "deep", "report")

__all__ = ["__version__"]
__all__ += list(_HOME)
__all__ += list(_MODULES)

if TYPE_CHECKING:
    from bagwise.bags import Bags as Bags


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"bagwise.{name}")
    raise AttributeError(f"module 'bagwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
