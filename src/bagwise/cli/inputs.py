"""What the commands read: bags, labels, which class is positive, and doubts about them."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, NamedTuple

import numpy as np
from rich.markup import escape

from bagwise.bags import Bags
from bagwise.cli.console import Printer
from bagwise.core import segments
from bagwise.core.arrays import Column
from bagwise.files import (
    BadFilesError,
    FileProblem,
    Names,
    Training,
    background_class,
    positive_class,
    read_labels,
    read_training,
    scan_bags,
)
from bagwise.files.problems import bad_file, list_problems


def file_names(arguments: Namespace) -> Names:
    """What the options say things are called."""
    columns = arguments.feature_columns
    return Names(
        features=arguments.features,
        coords=arguments.coords,
        images=getattr(arguments, "images", None),
        bag=arguments.id_column,
        label=arguments.label_column,
        patient=arguments.patient_column,
        feature_columns=tuple(columns.split(",")) if columns else None,
        encoder=arguments.encoder,
    )


def read_labelled(
    arguments: Namespace, printer: Printer, names: Names | None = None, two_classes: bool = False
) -> Training:
    """Bags with labels, or one report of all that is wrong."""
    data = read_training(
        arguments.bags,
        arguments.labels,
        names or file_names(arguments),
        instance_labels=getattr(arguments, "instance_labels", None),
        skip_bad=arguments.skip_bad,
        recursive=arguments.recursive,
        two_classes=two_classes,
        progress=printer.bar("reading bags"),
    )
    _say_skipped(data.skipped, printer)
    printer.say(f"read {data.bags!r} from {escape(str(arguments.bags))}")
    return data


def read_unlabelled(
    arguments: Namespace, printer: Printer, names: Names | None = None
) -> tuple[Bags, list[FileProblem]]:
    """Bags, with or without labels, and the files that were left out."""
    tables = (arguments.labels, getattr(arguments, "patients", None))
    if arguments.patient_column is not None and tables == (None, None):
        raise ValueError(
            "--patient-column is a column of the labels or of --patients; pass one of them, too."
        )
    scan = scan_bags(
        arguments.bags,
        names or file_names(arguments),
        recursive=arguments.recursive,
        progress=printer.bar("reading bags"),
    )
    if scan.bags is None or (scan.problems and not arguments.skip_bad):
        raise BadFilesError(scan.problems)
    _say_skipped(scan.problems, printer)
    return scan.bags, scan.problems


def _say_skipped(skipped: list[FileProblem], printer: Printer) -> None:
    if skipped:
        printer.warn(f"skipped {len(skipped)}:")
        for line in list_problems(skipped):
            printer.say(f"  {escape(line)}")


class Truth(NamedTuple):
    """Labels of those bags that have one."""

    known: Column  # [K] numbers of the bags
    y: Column  # [K]
    patients: Column | None  # [K], or None where no column names them
    classes: tuple[str, ...] | None = None  # where a bag may have several, one column of y each


def read_truth(arguments: Namespace, bags: Bags, printer: Printer) -> Truth:
    """Labels to measure predictions by; bags without one are predicted all the same."""
    names = file_names(arguments)
    labels = read_labels(arguments.labels, names.bag, names.label, names.patient, skip_bad=True)
    _say_skipped(list(labels.skipped), printer)
    # Unlike for training, bags and labels need not match one to one.
    row_of = {name: i for i, name in enumerate(labels.ids)}
    known = np.asarray([i for i, name in enumerate(bags.ids) if name in row_of], dtype=np.int64)
    if len(known) == 0:
        raise bad_file(labels.path, f"no label matches a bag in {arguments.bags}")
    absent = sorted(set(labels.ids) - set(bags.ids))
    if absent:
        printer.warn(
            f"{len(absent)} labels have no bag in {arguments.bags} (first: {absent[0]!r})."
        )
    if len(known) < len(bags):
        printer.warn(
            f"{len(bags) - len(known)} of {len(bags)} bags have no label in {labels.path}; they "
            "are predicted, and the figures are of the others."
        )
    rows = [row_of[bags.ids[i]] for i in known]
    patients = None if labels.patients is None else labels.patients[rows]
    return Truth(known, labels.y[rows], patients, labels.classes)


def class_roles(
    data: Training, arguments: Namespace, printer: Printer
) -> tuple[Training, list[object] | None, dict[str, object]]:
    """Which of two classes is positive, or which of several is the background.

    Returns the training data, the names of two classes that it codes as 0 and 1 (None where it
    does not), and arguments of ``fit``.
    """
    from bagwise.models.labels import is_binary

    fit_params: dict[str, object] = {}
    if getattr(arguments, "class_weight", None) is not None:
        fit_params["class_weight"] = arguments.class_weight
    if is_binary(data.y):
        if arguments.background is not None:
            raise ValueError("--background is for more than two classes; use --positive.")
        return *_positive_last(data, arguments.positive, printer), fit_params
    if arguments.positive is not None:
        raise ValueError("--positive is for two classes; with more, name the --background.")
    background = arguments.background
    if data.classes is not None:
        if background is not None:
            raise ValueError("--background has no meaning where a bag may have several classes.")
        return data, None, fit_params
    classes = np.unique(data.y).tolist()
    if background is None:
        background = background_class(classes)
        shown = "none" if background is None else background
        printer.say(f"background class: {escape(str(shown))} (choose with --background)")
    if background not in (None, ""):
        fit_params["background"] = _class_named(background, classes, data)
    return data, None, fit_params


def _class_named(name: object, classes: list[Any], data: Training) -> Any:
    """The class that an option means by its text."""
    for known in classes:
        if str(known) == str(name):
            return known
    raise ValueError(f"{data.labels}: has no label {name!r}; it has {classes}.")


def _positive_last(
    data: Training, positive: str | None, printer: Printer
) -> tuple[Training, list[object] | None]:
    """Labels whose positive class comes last, as estimators sort their classes."""
    classes = np.unique(data.y).tolist()
    if positive is None:
        guess = positive_class(classes)
        if guess is None:
            raise ValueError(
                f"{data.labels}: cannot tell which of {classes[0]!r} and {classes[1]!r} is the "
                f"positive class; pass --positive {classes[0]} or --positive {classes[1]}."
            )
        positive = str(guess)
        if classes not in ([0, 1], [-1, 1]):
            printer.say(f"positive class: {escape(positive)} (choose with --positive)")
    if _class_named(positive, classes, data) == classes[1]:
        return data, None
    # The other order is stored as 0 and 1, with names; instance labels follow.
    names = [classes[1], classes[0]]
    known: Any = data.instance_labels
    if known is not None:
        known = [names.index(label) if label in names else label for label in known]
    return data._replace(y=(data.y == classes[0]).astype(int), instance_labels=known), names


def mixed_patients(data: Training) -> list[str]:
    """Say where bags of one patient have both labels, which may be meant or a slip."""
    if data.patients is None:
        return []
    labels: dict[str, set[str]] = {}
    for patient, label in zip(data.patients, data.y.tolist(), strict=True):
        labels.setdefault(patient, set()).add(str(label))
    mixed = sorted(patient for patient, different in labels.items() if len(different) > 1)
    if not mixed:
        return []
    return [
        f"{len(mixed)} of {len(labels)} patients have bags of different labels (first: "
        f"{mixed[0]}). Make sure that labels are those of the bags, not of the patients."
    ]


# Labels of patients: their slides become one bag.


def patients_as_bags(data: Training) -> Training:
    """Training data in which a patient is a bag; the instances are put in its order."""
    if data.patients is None:
        raise ValueError("--level patient needs --patient-column, which names the patients.")
    labels = one_label_each(data.patients, data.y, data.labels)
    bags = data.bags.merge(data.patients)
    known: Any = data.instance_labels
    if known is not None:
        place = {name: i for i, name in enumerate(bags.ids)}
        order = np.argsort([place[str(name)] for name in data.patients], kind="stable")
        rows, _ = segments.take(data.bags.offsets, order)
        known = [known[row] for row in rows]
    y = np.asarray([labels[name] for name in bags.ids])
    return data._replace(bags=bags, y=y, patients=None, instance_labels=known)


def one_label_each(patients: Any, y: Any, path: str) -> dict[str, Any]:
    """The label of every patient; slides of one patient must agree on it."""
    labels: dict[str, Any] = {}
    for patient, label in zip(patients, np.asarray(y).tolist(), strict=True):
        before = labels.setdefault(str(patient), label)
        if before != label:
            raise ValueError(
                f"{path}: patient {str(patient)!r} has slides labelled {before!r} and {label!r}; "
                "with --level patient a label is the patient's, so all slides need the same."
            )
    return labels
