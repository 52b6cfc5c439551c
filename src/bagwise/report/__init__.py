"""Tables, plots and the HTML report. Names are imported when first used."""

from __future__ import annotations

import importlib

# Public name -> the module that defines it.
_HOME = {
    "BagImagesDisplay": "plots",
    "BoundDisplay": "plots",
    "Evaluation": "evaluation",
    "InstanceMapDisplay": "plots",
    "Predictions": "predictions",
    "ProbabilityHistogramDisplay": "plots",
    "ReliabilityDisplay": "plots",
    "Report": "html",
    "data_warnings": "data",
    "evaluate_held_out": "evaluation",
    "predict_level_tables": "predictions",
    "predict_tables": "predictions",
    "plot_energies": "energies",
    "plot_cluster_examples": "mixtures",
    "plot_mixture_weights": "mixtures",
    "plot_ranks": "ranks",
    "positive_fraction": "exports",
    "with_fractions": "exports",
    "write_geojson_folder": "exports",
    "write_predictions": "predictions",
    "write_report": "html",
    "write_sheet": "exports",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(importlib.import_module(f"bagwise.report.{_HOME[name]}"), name)
    raise AttributeError(f"module 'bagwise.report' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOME)
