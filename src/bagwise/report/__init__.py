"""Tables, plots and the HTML report. Names are imported when first used."""

from __future__ import annotations

from bagwise.core.lazy import lazy_names

# Module -> the public names that it defines.
__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "data": ("data_warnings",),
        "energies": ("plot_energies",),
        "evaluation": ("Evaluation", "evaluate_held_out"),
        "exports": ("positive_fraction", "with_fractions"),
        "html": ("Report", "write_report"),
        "mixtures": ("plot_cluster_examples", "plot_mixture_weights"),
        "plots": (
            "BagImagesDisplay",
            "BoundDisplay",
            "InstanceMapDisplay",
            "ProbabilityHistogramDisplay",
            "ReliabilityDisplay",
            "plot_ranks",
        ),
        "predictions": (
            "Predictions",
            "predict_level_tables",
            "predict_tables",
            "write_predictions",
        ),
    },
)
