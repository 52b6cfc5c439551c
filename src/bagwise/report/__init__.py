"""Tables, plots and the HTML report. Names are imported when first used."""

from __future__ import annotations

from bagwise.core.lazy import lazy_names

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
__getattr__, __dir__ = lazy_names(__name__, _HOME)
