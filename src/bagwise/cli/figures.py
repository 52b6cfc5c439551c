"""Figures of a model as the commands print them, and what makes them doubtful."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bagwise.cli.console import Printer

if TYPE_CHECKING:
    from bagwise.bags import Bags
    from bagwise.evaluate import Goal
    from bagwise.evaluate.thresholds import Rates
    from bagwise.report.evaluation import Evaluation


def threshold_goal(arguments: Namespace) -> Goal | None:
    """What the options ask a threshold to be chosen for, or None."""
    from bagwise.evaluate import Goal

    goal = Goal(arguments.min_sensitivity, arguments.min_specificity, arguments.cost)
    return None if goal == Goal() else goal


def show_metrics(evaluation: Any, printer: Printer) -> None:
    """Print the metrics of an evaluation side by side."""
    print_metrics(evaluation.metrics(), evaluation.source, printer)


def print_metrics(metrics: Mapping[str, float], title: str, printer: Printer) -> None:
    """Print metrics side by side."""
    printer.table([name.replace("_", " ") for name in metrics], [metrics.values()], title)


def describe_rates(title: str, rates: Rates) -> str:
    """Sensitivity and specificity at a threshold, in one line."""
    parts = [
        f"{name} {share.value:.2f} ({share.low:.2f} to {share.high:.2f}, n={share.total})"
        for name, share in [("sensitivity", rates.sensitivity), ("specificity", rates.specificity)]
    ]
    return f"{title} {rates.threshold:.3g}: {', '.join(parts)}"


def rates_json(rates: Rates) -> dict[str, object]:
    """Rates as JSON holds them."""
    return {
        "threshold": rates.threshold,
        "sensitivity": rates.sensitivity._asdict(),
        "specificity": rates.specificity._asdict(),
    }


def patient_rates(evaluation: Evaluation, threshold: float) -> Rates | None:
    """Rates counted by patient, whose bags are not independent; None where none are known."""
    if evaluation.groups is None:
        return None
    by_patient = evaluation.by_patient()
    return by_patient.rates(threshold) if by_patient.has_both_classes else None


def check_features(bags: Bags, about: Mapping[str, object], arguments: Namespace) -> None:
    """Refuse bags whose number of features is not that of the model."""
    expected = about["n_features"]
    if expected is not None and bags.n_features != expected:
        raise ValueError(
            f"{arguments.bags}: bags have {bags.n_features} features, but "
            f"{arguments.model} was trained on {expected}."
        )


def count_seen(bags: Bags, about: Mapping[str, Any]) -> int:
    """How many of the bags the model was trained on."""
    from bagwise import persist

    trained = set(about["fingerprints"] or [])
    return sum(mark in trained for mark in persist.fingerprints(bags)) if trained else 0


def warn_of_seen(n_seen: int, n_bags: int, printer: Printer) -> None:
    """Say where predictions are of bags that the model was trained on."""
    if n_seen:
        printer.warn(
            f"the model was trained on {n_seen} of these {n_bags} bags; figures and probabilities "
            "of these look better than of new bags."
        )
