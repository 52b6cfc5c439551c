"""``bagwise evaluate``: measure a saved model on labelled bags it has not seen."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from bagwise.cli.arguments import bag_options, goal_options, set_up
from bagwise.cli.classes import check_columns, show_classes
from bagwise.cli.console import Printer
from bagwise.cli.figures import (
    check_features,
    count_seen,
    describe_rates,
    patient_rates,
    print_metrics,
    rates_json,
    show_metrics,
    threshold_goal,
)
from bagwise.cli.inputs import read_labelled

if TYPE_CHECKING:
    from bagwise.evaluate import Goal
    from bagwise.report.evaluation import Evaluation


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise evaluate``."""
    example = "bagwise evaluate model.bagwise --bags held_out/ --labels labels.csv"
    set_up(parser, evaluate, example)
    parser.add_argument("model", type=Path, help="model file made by bagwise fit")
    bag_options(parser)
    group = parser.add_argument_group("what the recommended threshold is for")
    goal_options(group, "of these bags")


def evaluate(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Measure a saved model on labelled bags."""
    from bagwise import persist
    from bagwise.evaluate import instance_metrics
    from bagwise.report.evaluation import evaluate_held_out

    about, model = persist.about(arguments.model), persist.load(arguments.model)
    data = read_labelled(arguments, printer)
    bags, goal = data.bags, threshold_goal(arguments)
    check_features(bags, about, arguments)
    check_columns(data.classes, model)
    names = about["extra"].get("class_names")
    with printer.working(f"predicting {len(bags)} bags"):
        evaluation = evaluate_held_out(
            model, bags, data.y, f"{len(bags)} bags", names, patients=data.patients
        )
    show_metrics(evaluation, printer)
    show = _show_rates if len(evaluation.axis) == 1 else _show_classes
    result = show(evaluation, goal, printer)
    instances = None
    if bags.instance_labels is not None and hasattr(model, "predict_proba_instances"):
        instances = instance_metrics(model, bags, bags.instance_labels)
        print_metrics(instances, "their instances", printer)
    n_seen = count_seen(bags, about)
    if n_seen:
        printer.warn(
            f"the model was trained on {n_seen} of these {len(bags)} bags: these figures are "
            "resubstitution, better than on new bags. Train with --cv for out-of-fold ones."
        )
    return {
        "metrics": evaluation.metrics(),
        **result,
        "n_trained_on": n_seen,
        "instance_metrics": instances,
        "n_bags": len(bags),
        "skipped": [str(problem) for problem in data.skipped],
    }


def _show_rates(evaluation: Evaluation, goal: Goal | None, printer: Printer) -> dict[str, object]:
    """Say how well two classes are told apart at one half and at the recommended threshold."""
    rates, recommended = evaluation.rates(0.5), evaluation.recommended(goal)
    patients = patient_rates(evaluation, recommended.threshold)
    printer.say(describe_rates("threshold", rates))
    printer.say(describe_rates("recommended threshold", recommended))
    if patients is not None:
        printer.say(describe_rates("by patient, at the recommended threshold", patients))
    return {
        "rates": rates_json(rates),
        "recommended": rates_json(recommended),
        "patients": None if patients is None else rates_json(patients),
    }


def _show_classes(evaluation: Evaluation, goal: Goal | None, printer: Printer) -> dict[str, object]:
    """Say how well each of several classes is told apart from all others."""
    frame, confusion = show_classes(evaluation, printer, goal), evaluation.confusion()
    return {
        "classes": frame.to_dict("records"),
        "confusion": None if confusion is None else confusion.tolist(),
    }
