"""The commands: read, compute with the rooms below, write, say where."""

from __future__ import annotations

import ast
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from bagwise.cli.audit import audit_training
from bagwise.cli.by_patient import labels_of_patients, patients_as_bags
from bagwise.cli.classes import (
    class_options,
    evaluate_classes_of,
    labels_for_fit,
    predict_classes,
    ready_model,
    show_classes,
    show_metrics,
)
from bagwise.cli.console import Printer
from bagwise.cli.inputs import (
    mixed_patients,
    patients_of_all,
    positive_last,
    read_labelled,
    read_truth,
    read_unlabelled,
)
from bagwise.files import Training, check_output, new_file, new_folder
from bagwise.models.labels import is_binary

if TYPE_CHECKING:
    from bagwise.bags import Bags
    from bagwise.core.arrays import Column
    from bagwise.evaluate.thresholds import Rates
    from bagwise.models.base import Model
    from bagwise.models.dpmil import ClusterExamples
    from bagwise.models.execution import Execution
    from bagwise.report.evaluation import Evaluation
    from bagwise.report.predictions import Predictions


def fit(arguments: Namespace) -> int:
    """Train a model on labelled bags and save it."""
    from bagwise.cli.cluster import dask_client

    out = check_output(arguments.out, arguments.force)
    model = _make(arguments.model, arguments.seed, settings(arguments.set))
    if arguments.couple is not None:
        from bagwise.models.coupled import Coupled

        model = Coupled(model, strength=arguments.couple, random_state=arguments.seed)
    with dask_client(arguments.dask, model, arguments.model):
        return _fit(model, out, arguments)


def _fit(model: Model, out: Path, arguments: Namespace) -> int:
    from bagwise import persist
    from bagwise.models.coupled import Coupled
    from bagwise.report.data import data_warnings
    from bagwise.report.predictions import model_notes

    printer = Printer(arguments.json)
    data = read_labelled(arguments, printer)
    known: Column | list[object] | None = _known_labels(arguments, data)
    options = class_options(arguments, data, printer)
    model = ready_model(model, arguments.model, data.y, options, printer)
    audited = audit_training(data, printer) if arguments.audit else None
    data, names = positive_last(data, arguments.positive, printer)
    if names is not None and known is not None:  # coded as the bags' labels are
        known = [names.index(label) if label in names else label for label in known]
    if arguments.level == "patient":
        data, known = patients_as_bags(data, known)
        printer.say(f"made {len(data.bags)} patients of them")
    with printer.working("looking at the data"):
        remarks = data_warnings(data.bags, labels_for_fit(data)) + mixed_patients(data)
    for remark in remarks:
        printer.warn(remark)
    # Coupling moves instances, not bags: their figures are those of the model alone.
    alone = model.estimator if isinstance(model, Coupled) else model
    evaluation = _cross_validated(alone, data, known, options, arguments, printer)
    if evaluation is not None and is_binary(data.y):
        doubts = _doubts(evaluation, names or np.unique(data.y).tolist())
        remarks += doubts
        for doubt in doubts:
            printer.warn(doubt)
    start = time.perf_counter()
    with printer.working(f"training {arguments.model} on {len(data.bags)} bags"):
        known_labels = {} if known is None else {"instance_labels": known}
        model.fit(data.bags, labels_for_fit(data), **known_labels, **options)
    seconds = time.perf_counter() - start
    extra: dict[str, object] = {"name": arguments.model, "remarks": remarks, "class_names": names}
    if arguments.level == "patient":
        extra["level"] = "patient"
    if evaluation is not None:
        kind = "evaluation" if is_binary(data.y) else "class_evaluation"
        extra[kind] = evaluation.as_json()
    if audited is not None:
        extra["audit"] = audited.as_json()
    if isinstance(model, Coupled):
        extra["coupling"] = model.strength_
        printer.say(f"neighbours are coupled with strength {model.strength_:.2f}")
    persist.save(
        model,
        out,
        bags=data.bags,
        y=labels_for_fit(data) if data.classes else _named(data.y, names),
        feature_names=data.bags.feature_names,
        extra=extra,
    )
    printer.say(
        f"trained [bold]{arguments.model}[/bold] in {seconds:.1f} s, saved {escape(str(out))}"
    )
    notes = model_notes(model)
    for note in notes:
        printer.say(note)
    printer.say(f"next: [bold]bagwise predict {escape(str(out))} --bags NEW/ --out results/[/bold]")
    printer.result(
        {
            "model": str(out),
            "seconds": seconds,
            "training": persist.summarise(
                data.bags, labels_for_fit(data) if data.classes else _named(data.y, names)
            ),
            "metrics": None if evaluation is None else evaluation.metrics(),
            "warnings": remarks,
            "notes": notes,
            "audit": None if audited is None else audited.as_json(),
            "skipped": [str(problem) for problem in data.skipped],
        }
    )
    return 0


def _cross_validated(
    model: Model,
    data: Training,
    known: Column | list[object] | None,
    options: dict[str, Any],
    arguments: Namespace,
    printer: Printer,
) -> Any:
    """The evaluation that ``--cv`` asks for, printed, or None."""
    from bagwise.evaluate import BagFolds, GroupFolds, cross_validate
    from bagwise.report.evaluation import Evaluation

    if arguments.cv is None:
        return None
    by_patient = data.patients is not None
    folds = cross_validate(
        model,
        data.bags,
        data.y,
        (GroupFolds if by_patient else BagFolds)(arguments.cv, (arguments.seed,)),
        groups=data.patients,
        instance_labels=known,
        fit_params=options,
        progress=printer.bar("cross-validating"),
    )
    for message, count in Counter(w for fold in folds for w in fold.warnings).items():
        printer.warn(f"in {count} of {len(folds)} folds: {message}")
    kind = "cross-validation by patient" if by_patient else "cross-validation"
    if not is_binary(data.y):
        from bagwise.report.classes import ClassEvaluation

        classes = np.unique(data.y).tolist() if data.classes is None else data.classes
        source = f"{arguments.cv}-fold {kind}"
        of_classes = ClassEvaluation.from_folds(folds, source, classes, data.patients)
        show_metrics(of_classes, printer)
        show_classes(of_classes, printer)
        return of_classes
    evaluation = Evaluation.from_folds(folds, f"{arguments.cv}-fold {kind}", data.patients)
    printer.show(metrics_table(evaluation.metrics(), evaluation.source))
    printer.say(describe_rates("recommended threshold", evaluation.recommended()))
    return evaluation


def _doubts(evaluation: Evaluation, classes: Sequence[object]) -> list[str]:
    """Whether held-out bags rank the wrong way round, which a swapped positive class does."""
    auc = evaluation.metrics()["auc"]
    if not auc < 0.5:
        return []
    return [
        f"The held-out AUC is {auc:.2f}, below 0.5: the model ranks bags no better than chance, or "
        f"the wrong way round. It looks for what makes a bag {classes[1]!s}; if "
        f"{classes[0]!s} bags are those that hold something, pass --positive {classes[0]!s}."
    ]


def predict(arguments: Namespace) -> int:
    """Apply a saved model and write tables and a report."""
    from bagwise import persist
    from bagwise.evaluate import Audit
    from bagwise.evaluate.metrics import class_columns
    from bagwise.report.evaluation import Evaluation, evaluate_held_out
    from bagwise.report.exports import WRITTEN, with_fractions, write_extras
    from bagwise.report.html import Report, write_report
    from bagwise.report.predictions import (
        predict_level_tables,
        predict_tables,
        top_instances,
        write_predictions,
    )

    printer = Printer(arguments.json)
    if arguments.threshold is not None and not 0 < arguments.threshold < 1:
        raise ValueError(f"--threshold must be between 0 and 1; got {arguments.threshold:g}.")
    if arguments.top < 0:
        raise ValueError(f"--top must be at least 0; got {arguments.top}.")
    out = check_output(arguments.out, arguments.force, WRITTEN)
    about, model = persist.about(arguments.model), persist.load(arguments.model)
    stored = about["extra"].get("evaluation")
    before = Evaluation.from_json(stored) if stored else None
    threshold = _threshold(arguments, before)
    bags, skipped = read_unlabelled(arguments, printer)
    truth = None if arguments.labels is None else read_truth(arguments, bags, printer)
    patients: Sequence[object] | Column | None = None
    here = None
    if arguments.patients is not None:
        patients = _read_patients(arguments, bags)
    elif truth is not None:
        patients = patients_of_all(truth, bags, printer)
    _check_features(bags, about, arguments)
    by_patient = (arguments.level or about["extra"].get("level")) == "patient"
    if by_patient and patients is None:
        raise ValueError(
            "--level patient needs the patient of every bag: --patients TABLE, or --labels with "
            "--patient-column."
        )
    whole = bags.merge(patients) if by_patient else bags
    seen = _count_seen(whole, about)
    if len(class_columns(model)) > 1:
        if by_patient:
            raise ValueError("--level patient is for two classes; leave it out.")
        return predict_classes(
            model, bags, about, truth, patients, skipped, seen, out, arguments, printer
        )
    with printer.working(f"predicting {len(bags)} bags"):
        class_names = about["extra"].get("class_names")
        if by_patient:
            predictions, bags = predict_level_tables(model, whole, threshold, class_names)
        else:
            predictions = predict_tables(model, bags, threshold, class_names, patients)
        predictions = with_fractions(predictions, bags)
        if truth is not None and by_patient:
            here = labels_of_patients(truth, patients, predictions, str(arguments.labels))
        elif truth is not None:
            source = f"{len(truth.y)} labelled bags"
            p = (
                predictions.bags["probability"].to_numpy()
                if hasattr(model, "predict_proba")
                else None
            )
            here = evaluate_held_out(
                model,
                bags[truth.known],
                truth.y,
                source,
                predictions.classes,
                None if p is None else p[truth.known],
                truth.patients if patients is None else np.asarray(patients)[truth.known],
            )
        audited = about["extra"].get("audit")
        report = Report(
            predictions,
            bags,
            about,
            None if truth is None or by_patient else truth.for_all(len(bags)),
            here,
            _history(model),
            skipped,
            cross_validated=before,
            n_seen=seen,
            audit=None if audited is None else Audit.from_json(audited),
            clusters=_cluster_examples(model, bags),
        )
        n_top = arguments.top if predictions.instances is not None else 0
        with new_folder(out) as draft:
            written = write_predictions(
                predictions,
                draft,
                top=top_instances(predictions, bags, n_top) if n_top else None,
                spreadsheet_safe=arguments.spreadsheet_safe,
                bags_name="slides.csv" if by_patient else "bags.csv",
            )
            written.append(write_report(report, draft / "report.html"))
            written += write_extras(predictions, bags, draft, arguments.geojson, arguments.sheet)
            names = [path.name for path in written]
    positive = int((predictions.bags["label"] == predictions.classes[-1]).sum())
    name = escape(str(predictions.classes[-1]))
    printer.say(f"{positive} of {len(bags)} bags are {name} (threshold {threshold:.3g})")
    if predictions.patients is not None:
        n = int((predictions.patients["label"] == predictions.classes[-1]).sum())
        printer.say(f"{n} of {len(predictions.patients)} patients are {name}")
    if here is not None and here.has_both_classes:
        printer.show(metrics_table(here.metrics(), here.source))
        printer.say(describe_rates("threshold", here.rates(threshold)))
        patient_rates = _patient_rates(here, threshold)
        if patient_rates is not None:
            printer.say(describe_rates("by patient, at the threshold", patient_rates))
    _warn_about(predictions, seen, arguments, printer)
    printer.say(f"wrote {', '.join(names)} to {escape(str(out))}")
    printer.result(
        {
            "out": str(out),
            "files": names,
            "n_bags": len(bags),
            "n_positive": positive,
            "threshold": threshold,
            "n_trained_on": seen,
            "rates": _rates_json(here.rates(threshold))
            if here is not None and here.has_both_classes
            else None,
            "skipped": [str(problem) for problem in skipped],
        }
    )
    return 0


def _cluster_examples(model: Model, bags: Bags) -> list[ClusterExamples]:
    """What a model that has clusters says of these bags; of several classes nothing."""
    nearest = getattr(model, "nearest_instances", None)
    return [] if nearest is None or len(model.classes_) != 2 else nearest(bags)


def _goal(arguments: Namespace) -> Any:
    """What the options ask a threshold to be chosen for, or None."""
    from bagwise.evaluate import Goal

    goal = Goal(arguments.min_sensitivity, arguments.min_specificity, arguments.cost)
    return None if goal == Goal() else goal


def _threshold(arguments: Namespace, before: Any) -> float:
    """The threshold that is given, chosen on the cross-validated bags, or one half."""
    goal = _goal(arguments)
    if goal is None:
        return 0.5 if arguments.threshold is None else float(arguments.threshold)
    if arguments.threshold is not None:
        raise ValueError("give --threshold, or what it is to be chosen for; not both.")
    if before is None:
        raise ValueError(
            f"{arguments.model}: has no cross-validated predictions to choose a threshold on; "
            "train it with fit --cv."
        )
    return float(np.clip(before.threshold(goal), 0, 1))


def _read_patients(arguments: Namespace, bags: Bags) -> list[object]:
    """The patient of every bag, from a table of its own."""
    from bagwise.files.problems import bad_file
    from bagwise.files.tables import named_columns, read_frame

    column = arguments.patient_column or "patient_id"
    needed = [arguments.id_column, column]
    frame = named_columns(read_frame(arguments.patients), str(arguments.patients), needed)
    known = dict(zip(frame[arguments.id_column].str.strip(), frame[column], strict=True))
    lacking = [name for name in bags.ids if str(name) not in known]
    if lacking:
        raise bad_file(
            arguments.patients,
            f"has no patient for bag {str(lacking[0])!r} ({len(lacking)} bags lack one)",
        )
    return [known[str(name)] for name in bags.ids]


def _count_seen(bags: Bags, about: dict[str, Any]) -> int:
    """How many of the bags the model was trained on."""
    from bagwise import persist

    trained = set(about.get("fingerprints") or [])
    return sum(mark in trained for mark in persist.fingerprints(bags)) if trained else 0


def _warn_about(made: Predictions, seen: int, arguments: Namespace, printer: Printer) -> None:
    from bagwise.report.predictions import formula_ids

    if seen:
        printer.warn(
            f"the model was trained on {seen} of these {len(made.bags)} bags; figures and "
            "probabilities of these look better than of new bags."
        )
    formulas = formula_ids(made)
    if formulas and not arguments.spreadsheet_safe:
        printer.warn(
            f"{len(formulas)} names start like a formula (first: {formulas[0]}); before opening "
            "the CSV files in a spreadsheet, run again with --spreadsheet-safe."
        )


def _patient_rates(found: Evaluation, threshold: float) -> Rates | None:
    """Rates counted by patient, whose bags are not independent; None where none are known."""
    if found.groups is None:
        return None
    by_patient = found.by_patient()
    return by_patient.rates(threshold) if by_patient.has_both_classes else None


def describe_rates(title: str, rates: Rates) -> str:
    """Sensitivity and specificity at a threshold, in one line."""
    parts = [
        f"{name} {share.value:.2f} ({share.low:.2f} to {share.high:.2f}, n={share.total})"
        for name, share in [("sensitivity", rates.sensitivity), ("specificity", rates.specificity)]
    ]
    return f"{title} {rates.threshold:.3g}: {', '.join(parts)}"


def _rates_json(rates: Rates) -> dict[str, object]:
    return {
        "threshold": rates.threshold,
        "sensitivity": rates.sensitivity._asdict(),
        "specificity": rates.specificity._asdict(),
    }


def evaluate(arguments: Namespace) -> int:
    """Measure a saved model on labelled bags."""
    from bagwise import persist
    from bagwise.evaluate import instance_metrics
    from bagwise.evaluate.metrics import class_columns
    from bagwise.report.evaluation import evaluate_held_out

    printer = Printer(arguments.json)
    about, model = persist.about(arguments.model), persist.load(arguments.model)
    data = read_labelled(arguments, printer)
    _check_features(data.bags, about, arguments)
    if len(class_columns(model)) > 1:
        of_instances = None
        if data.bags.instance_labels is not None and hasattr(model, "predict_proba_instances"):
            of_instances = instance_metrics(model, data.bags, data.bags.instance_labels)
        seen = _count_seen(data.bags, about)
        return evaluate_classes_of(model, data, seen, _goal(arguments), of_instances, printer)
    with printer.working(f"predicting {len(data.bags)} bags"):
        names = about["extra"].get("class_names")
        found = evaluate_held_out(
            model, data.bags, data.y, "held-out bags", names, patients=data.patients
        )
        metrics = found.metrics()
        rates = found.recommended(_goal(arguments))
        seen = _count_seen(data.bags, about)
        instances = None
        if data.bags.instance_labels is not None and hasattr(model, "predict_proba_instances"):
            instances = instance_metrics(model, data.bags, data.bags.instance_labels)
    printer.show(metrics_table(metrics, f"{len(data.bags)} bags"))
    if instances is not None:
        printer.show(metrics_table(instances, "their instances"))
    printer.say(describe_rates("threshold", found.rates(0.5)))
    printer.say(describe_rates("recommended threshold", rates))
    patients = _patient_rates(found, rates.threshold)
    if patients is not None:
        printer.say(describe_rates("by patient, at the recommended threshold", patients))
    if seen:
        printer.warn(
            f"the model was trained on {seen} of these {len(data.bags)} bags: these figures are "
            "resubstitution, better than on new bags. Train with --cv for honest ones."
        )
    printer.result(
        {
            "metrics": metrics,
            "rates": _rates_json(found.rates(0.5)),
            "recommended": _rates_json(rates),
            "patients": None if patients is None else _rates_json(patients),
            "n_trained_on": seen,
            "instance_metrics": instances,
            "n_bags": len(data.bags),
            "skipped": [str(problem) for problem in data.skipped],
        }
    )
    return 0


def compare(arguments: Namespace) -> int:
    """Cross-validate several models on the same folds."""
    from sklearn.utils import Bunch

    from bagwise.evaluate import BagFolds, GroupFolds
    from bagwise.evaluate import compare as run_comparison
    from bagwise.report.tables import print_comparison

    printer = Printer(arguments.json)
    if arguments.out is not None:
        check_output(arguments.out, arguments.force)
    if (arguments.bags is None) == (arguments.datasets is None):
        raise ValueError("compare needs either --bags with --labels, or --datasets.")
    for option, least in {"cv": 2, "seeds": 1}.items():
        if getattr(arguments, option) < least:
            raise ValueError(
                f"--{option} must be at least {least}; got {getattr(arguments, option)}."
            )
    if arguments.jobs < 1 and arguments.jobs != -1:
        raise ValueError(f"--jobs must be at least 1, or -1 for all cores; got {arguments.jobs}.")
    folds: Any = BagFolds
    options: dict[str, Any] = {}
    datasets: Any = arguments.datasets.split(",") if arguments.datasets else None
    if arguments.bags is not None:
        if arguments.labels is None:
            raise ValueError("compare --bags needs --labels.")
        data = read_labelled(arguments, printer)
        options = class_options(arguments, data, printer)
        data, _ = positive_last(data, arguments.positive, printer)
        for remark in mixed_patients(data):
            printer.warn(remark)
        dataset = Bunch(bags=data.bags, y=data.y)
        if data.patients is not None:
            dataset.groups, folds = data.patients, GroupFolds
        datasets = {PurePosixPath(str(arguments.bags)).name: dataset}
    comparison = run_comparison(
        arguments.models.split(","),
        datasets,
        folds(n_splits=arguments.cv, seeds=tuple(range(arguments.seeds))),
        n_jobs=arguments.jobs,
        fit_params=options,
        progress=not arguments.json,
    )
    print_comparison(comparison, printer.console)
    if arguments.out is not None:
        with new_file(arguments.out) as draft:
            comparison.rows.to_csv(draft, index=False)
        printer.say(f"wrote {escape(str(arguments.out))}")
    printer.result({"summary": comparison.summary().to_dict("records")})
    return 0


def reproduce(arguments: Namespace) -> int:
    """Run the experiments of a checkout."""
    from bagwise.cli.checkout import load_runner
    from bagwise.report.tables import to_rich

    printer = Printer(arguments.json)
    runner = load_runner()
    if arguments.list:
        listing = runner.list_experiments()
        printer.show(to_rich(listing))
        for line in runner.absent_data():
            printer.say(escape(line))
        printer.result({row["experiment"]: row for row in listing.to_dict("records")})
        return 0
    frame = runner.reproduce(
        arguments.names or "all",
        quick=arguments.quick,
        out=arguments.out,
        n_jobs=arguments.jobs,
        fresh=arguments.fresh,
        console=printer.console,
    )
    printer.result({"out": str(arguments.out), "rows": frame.to_dict("records")})
    return 0


_WORDS = ("name", "where", "what")


def datasets(arguments: Namespace) -> int:
    """List the data sets."""
    from bagwise.datasets import data_home
    from bagwise.report.catalogue import catalogue

    printer = Printer(arguments.json)
    entries = catalogue()
    table = Table(box=None, pad_edge=False)
    for column in entries[0]:
        table.add_column(column, justify="left" if column in _WORDS else "right")
    for entry in entries:
        table.add_row(*("" if value is None else str(value) for value in entry.values()))
    printer.show(table)
    printer.say(f"data home: {escape(str(data_home()))} (set BAGWISE_DATA to move it)")
    printer.result({"datasets": entries})
    return 0


def info(arguments: Namespace) -> int:
    """Say what a model file holds."""
    from bagwise import persist

    printer = Printer(arguments.json)
    about = persist.about(arguments.model)
    table = Table(show_header=False, title=str(arguments.model), title_justify="left")
    for name in ("model", "steps", "classes", "n_features", "bagwise", "format_version"):
        value = about.get(name)
        table.add_row(name, " → ".join(map(str, value)) if isinstance(value, list) else str(value))
    for name, value in (about.get("training") or {}).items():
        table.add_row(f"training {name}", str(value))
    for name, value in about["parameters"].items():
        table.add_row(f"parameter {name}", value)
    printer.show(table)
    printer.result(about)
    return 0


# What several commands share.


def _make(name: str, seed: int, given: Mapping[str, object]) -> Model:
    from bagwise.models.registry import make_model

    return make_model(name, **{"random_state": seed, **given})


def settings(pairs: list[str]) -> dict[str, object]:
    """``["n_inducing=100", "scale=global"]`` as parameters; values are Python literals or text.

    ``execution.dtype=float32`` and its like together make one `Execution`.
    """
    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--set needs NAME=VALUE; got {pair!r}.")
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[name] = text
    own = {name: value for name, value in found.items() if name.startswith("execution.")}
    if not own:
        return found
    if "execution" in found:
        raise ValueError(f"--set execution={found['execution']} and {min(own)} exclude each other.")
    return {name: value for name, value in found.items() if name not in own} | {
        "execution": _execution({name.partition(".")[2]: value for name, value in own.items()})
    }


def _execution(given: Mapping[str, object]) -> Execution:
    from dataclasses import fields

    from bagwise.models.execution import Execution

    known = [field.name for field in fields(Execution)]
    for name in given:
        if name not in known:
            raise ValueError(f"--set execution.{name}: an execution has {', '.join(known)}.")
    return Execution(**given)  # type: ignore[arg-type]


def _known_labels(arguments: Namespace, data: Training) -> Column | None:
    if data.instance_labels is not None or not arguments.use_instance_labels:
        return data.instance_labels
    if data.bags.instance_labels is None:
        raise ValueError(f"{arguments.bags}: the files have no dataset 'instance_labels'.")
    return data.bags.instance_labels


def _check_features(bags: Bags, about: Mapping[str, object], arguments: Namespace) -> None:
    expected = about.get("n_features")
    if expected is not None and bags.n_features != expected:
        raise ValueError(
            f"{arguments.bags}: bags have {bags.n_features} features, but "
            f"{arguments.model} was trained on {expected}."
        )


def _named(y: Column, names: Sequence[object] | None) -> Column:
    return y if names is None else np.asarray(names)[y]


def _history(model: Model) -> Column | None:
    from bagwise.models.pipeline import last_step

    history = getattr(last_step(model), "bound_history_", None)
    return None if history is None or len(history) < 2 else np.asarray(history, dtype=float)


def metrics_table(metrics: dict[str, float], title: str) -> Table:
    """Metrics side by side."""
    table = Table(title=title, title_justify="left")
    for name in metrics:
        table.add_column(name.replace("_", " "), justify="right")
    table.add_row(*(f"{value:.3f}" for value in metrics.values()))
    return table
