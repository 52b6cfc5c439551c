"""``bagwise evaluate``: measure a saved model on labelled bags it has not seen."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from bagwise.cli.arguments import bag_options, goal_options, set_up
from bagwise.cli.console import Printer
from bagwise.cli.figures import (
    check_match,
    count_seen,
    print_metrics,
    show_evaluation,
    threshold_goal,
)
from bagwise.cli.inputs import read_labelled


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise evaluate``."""
    set_up(parser, evaluate, "bagwise evaluate model.bagwise --bags held_out/ --labels labels.csv")
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
    bags = data.bags
    check_match(bags, data.classes, about, arguments)
    names = about["extra"].get("class_names")
    with printer.working(f"predicting {len(bags)} bags"):
        evaluation = evaluate_held_out(
            model, bags, data.y, f"{len(bags)} bags", names, patients=data.patients
        )
    thresholds = show_evaluation(evaluation, printer, threshold_goal(arguments))
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
        **thresholds,
        "n_trained_on": n_seen,
        "instance_metrics": instances,
        "n_bags": len(bags),
        "skipped": [str(problem) for problem in data.skipped],
    }
