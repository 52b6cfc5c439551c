"""``bagwise predict``: apply a saved model; tables, and a report."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.markup import escape

from bagwise.bags import Bags
from bagwise.cli.arguments import bag_options, goal_options, output_options, set_up
from bagwise.cli.console import Printer
from bagwise.cli.figures import (
    check_match,
    count_seen,
    patient_rates,
    print_metrics,
    say_rates,
    threshold_goal,
)
from bagwise.cli.inputs import Truth, one_label_each, read_truth, read_unlabelled
from bagwise.core.arrays import Column
from bagwise.files import check_output, new_folder
from bagwise.files.problems import bad_file
from bagwise.files.tables import named_columns, read_frame

if TYPE_CHECKING:
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
    what = "labels of the bags: columns slide_id and label (optional: adds ROC and calibration)"
    bag_options(parser, labels_required=False, labels_help=what)
    add = parser.add_argument
    add("--images", metavar="NAME", help="dataset with a picture per instance")
    add("--geojson", action="store_true", help="also write geojson/, one file per bag for QuPath")
    what = "also write top_instances.png, the most probable pictures of each bag (--images)"
    add("--sheet", action="store_true", help=what)
    what = "patients of the bags: columns slide_id and patient_id (or --patient-column)"
    add("--patients", type=Path, metavar="CSV", help=what)
    what = "patient reads patients off all their slides together (default: as it was trained)"
    add("--level", choices=("bag", "patient"), help=what)
    add("--top", type=int, default=10, metavar="N", help="instances per bag in top_instances.csv")
    group = parser.add_argument_group("when a bag is called positive")
    what = "above this probability (default: 0.5)"
    group.add_argument("--threshold", type=float, metavar="P", help=what)
    goal_options(group, "of the cross-validated training bags")
    what = "put an apostrophe before names that a spreadsheet would run as a formula"
    add("--spreadsheet-safe", action="store_true", help=what)
    output_options(parser, "folder to write")


def predict(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Apply a saved model and write tables and a report."""
    from bagwise import persist
    from bagwise.evaluate import Audit
    from bagwise.models.pipeline import last_step
    from bagwise.report.evaluation import Evaluation
    from bagwise.report.exports import with_fractions
    from bagwise.report.html import Report
    from bagwise.report.predictions import predict_level_tables, predict_tables

    about, model = persist.about(arguments.model), persist.load(arguments.model)
    extra = about["extra"]
    names, stored, audit = (extra.get(key) for key in ("class_names", "evaluation", "audit"))
    by_patient = (arguments.level or extra.get("level")) == "patient"
    cross_validated = None if stored is None else Evaluation.from_json(stored)
    # What is refused is refused before the bags are read, which takes long.
    threshold = _threshold(model, cross_validated, by_patient, arguments)
    bags, skipped = read_unlabelled(arguments, printer)
    truth = None if arguments.labels is None else read_truth(arguments, bags, printer)
    patients = _patients(arguments, bags, truth, printer)
    check_match(bags, None if truth is None else truth.classes, about, arguments)
    if by_patient and patients is None:
        raise ValueError(
            "--level patient needs the patient of every bag: --patients TABLE, or --labels with "
            "--patient-column."
        )
    bags = bags.merge(patients) if by_patient else bags
    n_seen = count_seen(bags, about)
    what = f"predicting {len(bags)} bags"
    if by_patient:
        with printer.working(what):  # from here on bags are slides
            predictions, bags = predict_level_tables(model, bags, threshold, names)
    else:
        bar = printer.bar(what)
        predictions = predict_tables(model, bags, threshold, names, patients, bar)
    with printer.working("writing the report"):
        predictions = with_fractions(predictions, bags)
        evaluation = codes = None
        if truth is not None:
            evaluation = _evaluate(model, bags, predictions, truth, patients, arguments)
            if not by_patient:
                codes = np.full((len(bags), len(predictions.axis)), -1)  # [B, F], -1 where unknown
                codes[truth.known] = evaluation.y
        history = getattr(last_step(model), "bound_history_", ())
        has_clusters = len(predictions.axis) == 1 and hasattr(model, "nearest_instances")
        report = Report(
            predictions,
            bags,
            about,
            truth=codes,
            evaluation=evaluation,
            history=np.asarray(history, dtype=float) if len(history) > 1 else None,
            skipped=skipped,
            cross_validated=cross_validated,
            n_seen=n_seen,
            audit=None if audit is None else Audit.from_json(audit),
            clusters=model.nearest_instances(bags) if has_clusters else [],
        )
        files = _write(report, by_patient, arguments)
    figures = _tell(report, printer)
    _warn(report, arguments, printer)
    printer.say(f"wrote {', '.join(files)} to {escape(str(arguments.out))}")
    return {
        "out": str(arguments.out),
        "files": files,
        "n_bags": len(bags),
        **figures,
        "n_trained_on": n_seen,
        "skipped": [str(problem) for problem in skipped],
    }


def _threshold(
    model: Model, cross_validated: Evaluation | None, by_patient: bool, arguments: Namespace
) -> float:
    """The threshold that is given, chosen on the cross-validated bags, or one half.

    Options that make no sense, at all or for a model of more than two classes, are refused.
    """
    from bagwise.evaluate.metrics import class_columns, is_multilabel
    from bagwise.report.exports import WRITTEN

    goal, given = threshold_goal(arguments), arguments.threshold
    if given is not None and not 0 < given < 1:
        raise ValueError(f"--threshold must be between 0 and 1; got {given:g}.")
    if arguments.top < 0:
        raise ValueError(f"--top must be at least 0; got {arguments.top}.")
    check_output(arguments.out, arguments.force, WRITTEN)
    if len(class_columns(model)) > 1:
        if by_patient:
            raise ValueError("--level patient is for two classes; leave it out.")
        if goal is not None:
            raise ValueError(
                "a bag gets its most probable class, not one above a threshold; the report "
                "recommends a threshold for each class, and evaluate takes these goals."
            )
        if given is not None and not is_multilabel(model):
            raise ValueError("--threshold has no effect where a bag has one of several classes.")
    if goal is None:
        return 0.5 if given is None else float(given)
    if given is not None:
        raise ValueError("give --threshold, or what it is to be chosen for; not both.")
    if cross_validated is None:
        raise ValueError(
            f"{arguments.model}: has no cross-validated predictions to choose a threshold on; "
            "train it with fit --cv."
        )
    return float(np.clip(cross_validated.threshold(goal), 0, 1))


def _patients(
    arguments: Namespace, bags: Bags, truth: Truth | None, printer: Printer
) -> Sequence[object] | Column | None:
    """The patient of every bag, from a table of its own or from the labels; None if unknown."""
    if arguments.patients is not None:
        columns = [arguments.id_column, arguments.patient_column or "patient_id"]
        frame = named_columns(read_frame(arguments.patients), str(arguments.patients), columns)
        # Spreadsheets leave blanks around names; the names of files have none.
        known = dict(zip(frame[columns[0]].str.strip(), frame[columns[1]], strict=True))
        lacking = [name for name in bags.ids if str(name) not in known]
        if lacking:
            what = f"has no patient for bag {str(lacking[0])!r} ({len(lacking)} bags lack one)"
            raise bad_file(arguments.patients, what)
        return [known[str(name)] for name in bags.ids]
    if truth is None or truth.patients is None or len(truth.known) == len(bags):
        return None if truth is None else truth.patients
    printer.warn(
        f"the patients of {len(bags) - len(truth.known)} bags are not known, so no table of "
        "patients is written; name all of them with --patients."
    )
    return None


def _evaluate(
    model: Model,
    bags: Bags,
    predictions: Predictions,
    truth: Truth,
    patients: Sequence[object] | Column | None,
    arguments: Namespace,
) -> Evaluation:
    """The predictions of those bags, or patients, whose label is known."""
    from bagwise.report.evaluation import Evaluation, evaluate_held_out

    classes, table = predictions.classes, predictions.patients
    of_known = truth.patients if patients is None else np.asarray(patients)[truth.known]
    if table is not None and "patient" in predictions.bags:  # slides, read together by patient
        labels = one_label_each(of_known, truth.y, str(arguments.labels))
        unknown = sorted({str(v) for v in labels.values()} - {str(c) for c in classes})
        if unknown:
            raise ValueError(
                f"the model knows the classes {classes}; the labels have {unknown[0]!r}."
            )
        table = table[table["patient"].isin(labels.keys())]
        y = [int(labels[name] == classes[1]) for name in table["patient"]]
        return Evaluation(f"{len(y)} labelled patients", y, table["probability"], classes)
    # The probabilities are those of the tables, so that bags are not predicted twice.
    p = predictions.values(predictions.bags)[truth.known]
    source = f"{len(truth.y)} labelled bags"
    return evaluate_held_out(model, bags[truth.known], truth.y, source, classes, p, of_known)


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
    measured = evaluation if evaluation is not None and evaluation.has_both_classes else None
    if measured is not None:
        print_metrics(measured.metrics(), measured.source, printer)
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
    if measured is not None:
        rates = say_rates("threshold", measured.rates(threshold), printer)
        say_rates("by patient, at the threshold", patient_rates(measured, threshold), printer)
    return {"n_positive": called[0], "threshold": threshold, "rates": rates}


def _warn(report: Report, arguments: Namespace, printer: Printer) -> None:
    """Say what makes the predictions look better than they are, or the tables unsafe."""
    from bagwise.report.predictions import formula_ids

    if report.n_seen:
        printer.warn(
            f"the model was trained on {report.n_seen} of these {len(report.bags)} bags; figures "
            "and probabilities of these look better than of new bags."
        )
    formulas = formula_ids(report.predictions)
    if formulas and not arguments.spreadsheet_safe:
        printer.warn(
            f"{len(formulas)} names start like a formula (first: {formulas[0]}); before opening "
            "the CSV files in a spreadsheet, run again with --spreadsheet-safe."
        )
