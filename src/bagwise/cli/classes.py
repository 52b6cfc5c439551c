"""What the commands do with more than two classes."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
from rich.markup import escape
from sklearn.utils.validation import has_fit_parameter

from bagwise.cli.console import Printer
from bagwise.cli.figures import show_metrics, warn_of_seen
from bagwise.files import Training, background_class, new_folder
from bagwise.models.labels import is_binary


def class_arguments(arguments: Namespace, data: Training, printer: Printer) -> dict[str, Any]:
    """Arguments of ``fit`` that say what the labels mean and how much the classes count."""
    options: dict[str, Any] = {}
    if getattr(arguments, "class_weight", None) is not None:
        options["class_weight"] = arguments.class_weight
    several = not is_binary(data.y)
    background = arguments.background
    if not several:
        if background is not None:
            raise ValueError("--background is for more than two classes; use --positive.")
        return options
    if arguments.positive is not None:
        raise ValueError("--positive is for two classes; with more, name the --background.")
    if data.classes is not None:
        if background is not None:
            raise ValueError("--background has no meaning where a bag may have several classes.")
        return options
    classes = np.unique(data.y).tolist()
    if background is None:
        background = background_class(classes)
        said = "none" if background is None else background
        printer.say(f"background class: {escape(str(said))} (choose with --background)")
    elif background == "":
        background = None
    else:
        texts = [str(c) for c in classes]
        if background not in texts:
            raise ValueError(f"{data.labels}: has no label {background!r}; it has {classes}.")
        background = classes[texts.index(background)]
    return options if background is None else {**options, "background": background}


def ready_model(model: Any, name: str, y: Any, options: dict[str, Any], printer: Printer) -> Any:
    """The model, or one per class where it knows only two; refuses what it cannot use."""
    from bagwise.models.one_vs_rest import for_labels

    made = for_labels(model, y)
    if made is not model:
        printer.say(f"{name} knows two classes: one model is trained per class")
    for option in options:
        takes = has_fit_parameter(model if option == "class_weight" else made, option)
        if not takes:
            raise ValueError(f"{name} cannot use --{option.replace('_', '-')}; use vgpmil or auto.")
    return made


def labels_for_fit(data: Training) -> Any:
    """The labels, with the names of the classes where a bag may have several."""
    if data.classes is None:
        return data.y
    import pandas as pd

    return pd.DataFrame(data.y, columns=list(data.classes))


def check_columns(columns: tuple[str, ...] | None, model: Any) -> None:
    """Refuse columns of labels that are not the classes of the model, in their order."""
    classes = [str(c) for c in np.asarray(model.classes_).tolist()]
    if columns is not None and list(columns) != classes:
        raise ValueError(
            f"the model has the classes {','.join(classes)}; pass them as --label-column in this "
            f"order. Got {','.join(columns)}."
        )


def show_classes(evaluation: Any, printer: Printer, goal: Any = None) -> Any:
    """Print the table of classes with their recommended thresholds; returns it."""
    frame = evaluation.per_class(goal)
    title = f"each class against all others, {evaluation.source}"
    printer.table(frame.columns, frame.itertuples(index=False), title, words=("class",))
    return frame


def predict_classes(
    model: Any,
    given: Any,
    about: dict[str, Any],
    seen: int,
    arguments: Namespace,
    printer: Printer,
) -> dict[str, object]:
    """Write tables and pages of several classes."""
    from bagwise.evaluate.metrics import targets
    from bagwise.report.classes import (
        CLASS_FOLDER,
        ClassEvaluation,
        ClassReport,
        class_folders,
        evaluate_classes,
        predict_class_tables,
        write_class_reports,
    )
    from bagwise.report.exports import write_extras
    from bagwise.report.predictions import neutralised

    bags, skipped, truth, patients, by_patient = given
    out = arguments.out
    if by_patient:
        raise ValueError("--level patient is for two classes; leave it out.")
    stored = about["extra"].get("class_evaluation")
    if arguments.min_sensitivity or arguments.min_specificity or arguments.cost:
        raise ValueError(
            "a bag gets its most probable class, not one above a threshold; the overview "
            "recommends a threshold for each class, and evaluate takes these goals."
        )
    with printer.working(f"predicting {len(bags)} bags"):
        threshold = 0.5 if arguments.threshold is None else arguments.threshold
        made = predict_class_tables(model, bags, threshold)
        if arguments.threshold is not None and not made.multilabel:
            raise ValueError("--threshold has no effect where a bag has one of several classes.")
        here, known = None, None
        if truth is not None:
            check_columns(truth.classes, model)
            source = f"{len(truth.y)} labelled bags"
            p = made.probability[truth.known]
            here = evaluate_classes(model, bags[truth.known], truth.y, source, p, truth.patients)
            known = np.full(made.probability.shape, -1)
            known[truth.known] = targets(truth.y, model)
        before = None if stored is None else ClassEvaluation.from_json(stored)
        report = ClassReport(made, bags, about, known, here, before, patients, skipped, seen)
        with new_folder(out) as draft:
            safe = neutralised(made.bags) if arguments.spreadsheet_safe else made.bags
            safe.to_csv(draft / "bags.csv", index=False, float_format="%.17g")
            names = ["bags.csv"]
            if made.instances is not None:
                made.instances.to_parquet(draft / "instances.parquet", index=False)
                names.append("instances.parquet")
            write_class_reports(report, draft)
            for number, folder in enumerate(class_folders(made.classes)):
                own = made.of_class(number)
                place = draft / CLASS_FOLDER / folder
                write_extras(own, bags, place, arguments.geojson, arguments.sheet)
            names += ["report.html", CLASS_FOLDER]
    counts = {str(c): int(n) for c, n in zip(made.classes, made.called.sum(axis=0), strict=True)}
    said = ", ".join(f"{n} {escape(name)}" for name, n in counts.items())
    printer.say(f"of {len(bags)} bags: {said}")
    if here is not None:
        show_metrics(here, printer)
    warn_of_seen(seen, len(bags), printer)
    printer.say(f"wrote {', '.join(names)} to {escape(str(out))}")
    return {
        "out": str(out),
        "files": names,
        "n_bags": len(bags),
        "classes": counts,
        "metrics": None if here is None else here.metrics(),
        "n_trained_on": seen,
        "skipped": [str(problem) for problem in skipped],
    }


def evaluate_classes_of(
    model: Any, data: Training, goal: Any, printer: Printer
) -> tuple[Any, dict[str, object]]:
    """Measure a model of several classes on labelled bags."""
    from bagwise.report.classes import evaluate_classes

    check_columns(data.classes, model)
    with printer.working(f"predicting {len(data.bags)} bags"):
        evaluation = evaluate_classes(
            model, data.bags, data.y, f"{len(data.bags)} bags", patients=data.patients
        )
    show_metrics(evaluation, printer)
    frame = show_classes(evaluation, printer, goal)
    confusion = evaluation.confusion().tolist() if evaluation.exclusive else None
    return evaluation, {"classes": frame.to_dict("records"), "confusion": confusion}
