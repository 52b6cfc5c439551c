"""``bagwise predict``: apply a saved model; tables, and a report."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.markup import escape

from bagwise.cli.arguments import bag_options, goal_options, output_options, set_up
from bagwise.cli.console import Printer
from bagwise.cli.figures import (
    check_match,
    count_seen,
    describe_rates,
    patient_rates,
    print_metrics,
    rates_json,
    threshold_goal,
    warn_of_seen,
)
from bagwise.cli.inputs import Truth, one_label_each, patients_of_all, read_truth, read_unlabelled
from bagwise.files import FileProblem, check_output, new_folder
from bagwise.files.problems import bad_file
from bagwise.files.tables import named_columns, read_frame

if TYPE_CHECKING:
    from bagwise.bags import Bags
    from bagwise.core.arrays import Column
    from bagwise.models.base import Model
    from bagwise.report.evaluation import Evaluation
    from bagwise.report.html import Report
    from bagwise.report.predictions import Predictions


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise predict``."""
    set_up(
        parser,
        predict,
        "bagwise predict model.bagwise --bags new/ --out results/",
        "bagwise predict model.bagwise --bags held_out/ --labels labels.csv --out results/",
        "bagwise predict model.bagwise --bags new/ --min-sensitivity 0.95 --out results/",
    )
    parser.add_argument("model", type=Path, help="model file made by bagwise fit")
    what = (
        "labels of the bags, as CSV or Excel: columns slide_id and label (optional: adds ROC and "
        "calibration)"
    )
    bag_options(parser, labels_required=False, labels_help=what)
    add = parser.add_argument
    add("--images", metavar="NAME", help="dataset with a picture per instance")
    add("--geojson", action="store_true", help="also write geojson/, one file per bag for QuPath")
    what = "also write top_instances.png, the most probable pictures of each bag (--images)"
    add("--sheet", action="store_true", help=what)
    what = "patients of the bags: columns slide_id and patient_id (or --patient-column)"
    add("--patients", type=Path, metavar="CSV", help=what)
    what = (
        "patient also writes slides.csv and reads patients off all their slides together (default: "
        "as the model was trained)"
    )
    add("--level", choices=("bag", "patient"), help=what)
    add("--top", type=int, default=10, metavar="N", help="instances per bag in top_instances.csv")
    group = parser.add_argument_group("when a bag is called positive")
    what = "above this probability (default: 0.5)"
    group.add_argument("--threshold", type=float, metavar="P", help=what)
    goal_options(group, "of the cross-validated training bags")
    what = "put an apostrophe before names that a spreadsheet would run as a formula"
    add("--spreadsheet-safe", action="store_true", help=what)
    output_options(parser, "folder to write")


class _Input(NamedTuple):
    """The bags to predict, and what is known about them."""

    bags: Bags  # with --level patient the patients, whose slides are groups
    skipped: list[FileProblem]
    truth: Truth | None
    patients: Sequence[object] | Column | None  # of every bag that was read
    by_patient: bool


def predict(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Apply a saved model and write tables and a report."""
    from bagwise import persist
    from bagwise.evaluate import Audit
    from bagwise.models.pipeline import last_step
    from bagwise.report.evaluation import Evaluation
    from bagwise.report.html import Report

    about, model = persist.about(arguments.model), persist.load(arguments.model)
    extra = about["extra"]
    by_patient = (arguments.level or extra.get("level")) == "patient"
    _check_options(model, by_patient, arguments)  # before the bags are read, which takes long
    stored, audit = extra.get("evaluation"), extra.get("audit")
    cross_validated = None if stored is None else Evaluation.from_json(stored)
    threshold = _threshold(arguments, cross_validated)
    inputs = _read(arguments, by_patient, about, printer)
    n_seen = count_seen(inputs.bags, about)
    with printer.working(f"predicting {len(inputs.bags)} bags"):
        predictions, bags = _predict(model, inputs, threshold, extra.get("class_names"))
        evaluation = _evaluate(model, inputs, predictions, arguments)
        truth = None
        if inputs.truth is not None and evaluation is not None and not by_patient:
            truth = np.full((len(bags), len(predictions.axis)), -1)  # [B, F], -1 where unknown
            truth[inputs.truth.known] = evaluation.y
        history = getattr(last_step(model), "bound_history_", ())
        has_clusters = len(predictions.axis) == 1 and hasattr(model, "nearest_instances")
        report = Report(
            predictions,
            bags,
            about,
            truth=truth,
            evaluation=evaluation,
            history=np.asarray(history, dtype=float) if len(history) > 1 else None,
            skipped=inputs.skipped,
            cross_validated=cross_validated,
            n_seen=n_seen,
            audit=None if audit is None else Audit.from_json(audit),
            clusters=model.nearest_instances(bags) if has_clusters else [],
        )
        names = _write(report, by_patient, arguments)
    figures = _tell(report, printer)
    warn_of_seen(n_seen, len(bags), printer)
    _warn_of_formulas(predictions, arguments, printer)
    printer.say(f"wrote {', '.join(names)} to {escape(str(arguments.out))}")
    return {
        "out": str(arguments.out),
        "files": names,
        "n_bags": len(bags),
        **figures,
        "n_trained_on": n_seen,
        "skipped": [str(problem) for problem in inputs.skipped],
    }


def _check_options(model: Model, by_patient: bool, arguments: Namespace) -> None:
    """Refuse what makes no sense, at all or for a model of more than two classes."""
    from bagwise.evaluate.metrics import class_columns, is_multilabel
    from bagwise.report.exports import WRITTEN

    if arguments.threshold is not None and not 0 < arguments.threshold < 1:
        raise ValueError(f"--threshold must be between 0 and 1; got {arguments.threshold:g}.")
    if arguments.top < 0:
        raise ValueError(f"--top must be at least 0; got {arguments.top}.")
    check_output(arguments.out, arguments.force, WRITTEN)
    if len(class_columns(model)) == 1:
        return
    if by_patient:
        raise ValueError("--level patient is for two classes; leave it out.")
    if threshold_goal(arguments) is not None:
        raise ValueError(
            "a bag gets its most probable class, not one above a threshold; the report "
            "recommends a threshold for each class, and evaluate takes these goals."
        )
    if arguments.threshold is not None and not is_multilabel(model):
        raise ValueError("--threshold has no effect where a bag has one of several classes.")


def _threshold(arguments: Namespace, cross_validated: Evaluation | None) -> float:
    """The threshold that is given, chosen on the cross-validated bags, or one half."""
    goal = threshold_goal(arguments)
    if goal is None:
        return 0.5 if arguments.threshold is None else float(arguments.threshold)
    if arguments.threshold is not None:
        raise ValueError("give --threshold, or what it is to be chosen for; not both.")
    if cross_validated is None:
        raise ValueError(
            f"{arguments.model}: has no cross-validated predictions to choose a threshold on; "
            "train it with fit --cv."
        )
    return float(np.clip(cross_validated.threshold(goal), 0, 1))


def _read(
    arguments: Namespace, by_patient: bool, about: dict[str, Any], printer: Printer
) -> _Input:
    """Read the bags, and their labels and patients where they are known."""
    bags, skipped = read_unlabelled(arguments, printer)
    truth = None if arguments.labels is None else read_truth(arguments, bags, printer)
    patients: Sequence[object] | Column | None = None
    if arguments.patients is not None:
        patients = _read_patients(arguments, bags)
    elif truth is not None:
        patients = patients_of_all(truth, bags, printer)
    check_match(bags, None if truth is None else truth.classes, about, arguments)
    if by_patient:
        if patients is None:
            raise ValueError(
                "--level patient needs the patient of every bag: --patients TABLE, or --labels "
                "with --patient-column."
            )
        bags = bags.merge(patients)
    return _Input(bags, skipped, truth, patients, by_patient)


def _read_patients(arguments: Namespace, bags: Bags) -> list[object]:
    """The patient of every bag, from a table of its own."""
    column = arguments.patient_column or "patient_id"
    needed = [arguments.id_column, column]
    frame = named_columns(read_frame(arguments.patients), str(arguments.patients), needed)
    # Spreadsheets leave blanks around names; the names of files have none.
    known = dict(zip(frame[arguments.id_column].str.strip(), frame[column], strict=True))
    lacking = [name for name in bags.ids if str(name) not in known]
    if lacking:
        raise bad_file(
            arguments.patients,
            f"has no patient for bag {str(lacking[0])!r} ({len(lacking)} bags lack one)",
        )
    return [known[str(name)] for name in bags.ids]


def _predict(
    model: Model, inputs: _Input, threshold: float, class_names: Sequence[object] | None
) -> tuple[Predictions, Bags]:
    """Tables of the predictions, and the bags that they are about."""
    from bagwise.report.exports import with_fractions
    from bagwise.report.predictions import predict_level_tables, predict_tables

    if inputs.by_patient:
        predictions, bags = predict_level_tables(model, inputs.bags, threshold, class_names)
    else:
        bags = inputs.bags
        predictions = predict_tables(model, bags, threshold, class_names, inputs.patients)
    return with_fractions(predictions, bags), bags


def _evaluate(
    model: Model, inputs: _Input, predictions: Predictions, arguments: Namespace
) -> Evaluation | None:
    """The predictions of those bags, or patients, whose label is known."""
    from bagwise.report.evaluation import Evaluation, evaluate_held_out

    truth, patients, classes = inputs.truth, inputs.patients, predictions.classes
    if truth is None:
        return None
    of_known = truth.patients if patients is None else np.asarray(patients)[truth.known]
    if inputs.by_patient and predictions.patients is not None:
        labels = one_label_each(of_known, truth.y, str(arguments.labels))
        unknown = sorted({str(v) for v in labels.values()} - {str(c) for c in classes})
        if unknown:
            raise ValueError(
                f"the model knows the classes {classes}; the labels have {unknown[0]!r}."
            )
        table = predictions.patients
        table = table[table["patient"].isin(labels.keys())]
        y = [int(labels[name] == classes[1]) for name in table["patient"]]
        return Evaluation(f"{len(y)} labelled patients", y, table["probability"], classes)
    # The probabilities are those of the tables, so that bags are not predicted twice.
    p = None
    if hasattr(model, "predict_proba"):
        p = predictions.values(predictions.bags)[truth.known]
    source = f"{len(truth.y)} labelled bags"
    return evaluate_held_out(model, inputs.bags[truth.known], truth.y, source, classes, p, of_known)


def _write(report: Report, by_patient: bool, arguments: Namespace) -> list[str]:
    """Write tables, report and extras, all or none; returns their names."""
    from bagwise.report.exports import write_extras
    from bagwise.report.html import write_report
    from bagwise.report.predictions import top_instances, write_predictions

    predictions, bags = report.predictions, report.bags
    with_top = arguments.top > 0 and predictions.instances is not None
    with new_folder(arguments.out) as draft:
        written = write_predictions(
            predictions,
            draft,
            top=top_instances(predictions, bags, arguments.top) if with_top else None,
            spreadsheet_safe=arguments.spreadsheet_safe,
            bags_name="slides.csv" if by_patient else "bags.csv",
        )
        written.append(write_report(report, draft / "report.html"))
        written += write_extras(predictions, bags, draft, arguments.geojson, arguments.sheet)
        return [path.name for path in written]


def _tell(report: Report, printer: Printer) -> dict[str, object]:
    """Say how many bags and patients are positive and how good that is; returns it for JSON."""
    predictions, evaluation = report.predictions, report.evaluation
    threshold, n_bags = predictions.threshold, len(predictions.bags)
    called = predictions.called.sum(axis=0).tolist()  # [F]
    names = [str(column.positive) for column in predictions.axis]
    measured = evaluation is not None and evaluation.has_both_classes
    if evaluation is not None and measured:
        print_metrics(evaluation.metrics(), evaluation.source, printer)
    if len(names) > 1:
        counts = [f"{n} {escape(name)}" for n, name in zip(called, names, strict=True)]
        printer.say(f"of {n_bags} bags: {', '.join(counts)}")
        metrics = None if evaluation is None else evaluation.metrics()
        return {"classes": dict(zip(names, called, strict=True)), "metrics": metrics}
    name, rates = escape(names[0]), None
    printer.say(f"{called[0]} of {n_bags} bags are {name} (threshold {threshold:.3g})")
    if predictions.patients is not None:
        n = int((predictions.patients["label"] == predictions.classes[-1]).sum())
        printer.say(f"{n} of {len(predictions.patients)} patients are {name}")
    if evaluation is not None and measured:
        rates = evaluation.rates(threshold)
        printer.say(describe_rates("threshold", rates))
        by_patient = patient_rates(evaluation, threshold)
        if by_patient is not None:
            printer.say(describe_rates("by patient, at the threshold", by_patient))
    return {
        "n_positive": called[0],
        "threshold": threshold,
        "rates": None if rates is None else rates_json(rates),
    }


def _warn_of_formulas(predictions: Predictions, arguments: Namespace, printer: Printer) -> None:
    from bagwise.report.predictions import formula_ids

    formulas = formula_ids(predictions)
    if formulas and not arguments.spreadsheet_safe:
        printer.warn(
            f"{len(formulas)} names start like a formula (first: {formulas[0]}); before opening "
            "the CSV files in a spreadsheet, run again with --spreadsheet-safe."
        )
