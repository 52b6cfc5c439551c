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


def show_evaluation(
    evaluation: Evaluation, printer: Printer, goal: Goal | None = None
) -> dict[str, object]:
    """Print metrics and recommended thresholds; returns what JSON holds of the thresholds.

    Two classes are told apart at one half and at the recommended threshold; of several, each is
    told apart from all others.
    """
    print_metrics(evaluation.metrics(), evaluation.source, printer)
    if len(evaluation.axis) > 1:
        frame, confusion = evaluation.per_class(goal), evaluation.confusion()
        title = f"each class against all others, {evaluation.source}"
        printer.table(frame.columns, frame.itertuples(index=False), title, words=("class",))
        return {
            "classes": frame.to_dict("records"),
            "confusion": None if confusion is None else confusion.tolist(),
        }
    recommended = evaluation.recommended(goal)
    patients = patient_rates(evaluation, recommended.threshold)
    return {
        "rates": say_rates("threshold", evaluation.rates(0.5), printer),
        "recommended": say_rates("recommended threshold", recommended, printer),
        "patients": say_rates("by patient, at the recommended threshold", patients, printer),
    }


def print_metrics(metrics: Mapping[str, float], title: str, printer: Printer) -> None:
    """Print metrics side by side."""
    printer.table([name.replace("_", " ") for name in metrics], [metrics.values()], title)


def say_rates(title: str, rates: Rates | None, printer: Printer) -> dict[str, object] | None:
    """Print sensitivity and specificity at a threshold in one line; returns them for JSON."""
    if rates is None:
        return None
    shares = {"sensitivity": rates.sensitivity, "specificity": rates.specificity}
    parts = [
        f"{name} {share.value:.2f} ({share.low:.2f} to {share.high:.2f}, n={share.total})"
        for name, share in shares.items()
    ]
    printer.say(f"{title} {rates.threshold:.3g}: {', '.join(parts)}")
    stored = {name: share._asdict() for name, share in shares.items()}
    return {"threshold": rates.threshold, **stored}


def patient_rates(evaluation: Evaluation, threshold: float) -> Rates | None:
    """Rates counted by patient, whose bags are not independent; None where none are known."""
    if evaluation.groups is None:
        return None
    # Intervals of rates take bags for independent, which those of a patient are not.
    by_patient = evaluation.by_patient()
    return by_patient.rates(threshold) if by_patient.has_both_classes else None


def check_match(
    bags: Bags, columns: tuple[str, ...] | None, about: Mapping[str, Any], arguments: Namespace
) -> None:
    """Refuse bags whose features are not those of the model, and columns of other classes."""
    expected = about["n_features"]
    if expected is not None and bags.n_features != expected:
        raise ValueError(
            f"{arguments.bags}: bags have {bags.n_features} features, but "
            f"{arguments.model} was trained on {expected}."
        )
    classes = [str(c) for c in about["classes"] or []]
    if columns is not None and list(columns) != classes:
        raise ValueError(
            f"the model has the classes {','.join(classes)}; pass them as --label-column in this "
            f"order. Got {','.join(columns)}."
        )


def count_seen(bags: Bags, about: Mapping[str, Any]) -> int:
    """How many of the bags the model was trained on."""
    from bagwise import persist

    # A hash per bag: the file holds no data of those it was trained on.
    trained = set(about["fingerprints"] or [])
    return sum(mark in trained for mark in persist.fingerprints(bags)) if trained else 0
