"""``bagwise fit``: train a model on labelled bags and save it."""

from __future__ import annotations

import ast
import dataclasses
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

from bagwise.cli.arguments import bag_options, class_options, output_options, set_up, strength
from bagwise.cli.console import Printer
from bagwise.cli.figures import show_evaluation
from bagwise.cli.inputs import class_roles, mixed_patients, patients_as_bags, read_labelled
from bagwise.core.lazy import optional
from bagwise.files import Training, check_output

if TYPE_CHECKING:
    from bagwise.models.base import Model
    from bagwise.report.evaluation import Evaluation

# Seconds until a scheduler that does not answer counts as absent.
DASK_TIMEOUT = 10


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise fit``."""
    set_up(
        parser,
        fit,
        "bagwise fit --bags features/ --labels labels.csv --out model.bagwise",
        "bagwise fit --bags features/ --labels labels.csv --model vgpmil \\",
        "            --set n_inducing=100 --set scale=global --cv 5 --out model.bagwise",
        "bagwise fit --bags features/ --labels labels.csv --dask local --out m.bagwise",
        "bagwise fit --bags rows.csv --id-column molecule --labels y.csv --out m.bagwise",
    )
    bag_options(parser)
    add = parser.add_argument
    what = "instance labels you have: columns slide_id, index, label"
    add("--instance-labels", type=Path, metavar="CSV", help=what)
    what = "train on the instance labels in the bag files, too"
    add("--use-instance-labels", action="store_true", help=what)
    what = "whom the labels are of; patient makes one bag of all slides of a patient"
    add("--level", choices=("bag", "patient"), help=what)
    class_options(parser)
    add = parser.add_argument_group("model").add_argument
    add("--model", default="auto", metavar="NAME", help="which model (default: auto)")
    what = "a parameter of the model, or of how it runs, as execution.dtype=float32; repeatable"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=what)
    what = "let rare and frequent classes count the same in the fit"
    add("--class-weight", choices=["balanced"], help=what)
    what = "let neighbours agree when predicting, by a strength chosen on held-out bags, or this"
    add("--couple", nargs="?", const="auto", type=strength, metavar="J", help=what)
    add("--seed", type=int, default=0, help="random seed (default: 0)")
    add("--cv", type=int, metavar="K", help="estimate accuracy by K-fold first")
    what = "look for leaks in the training bags first, and show them in reports (two classes)"
    add("--audit", action="store_true", help=what)
    what = "train on a Dask cluster: its scheduler's address, or 'local' for this machine"
    add("--dask", metavar="ADDRESS", help=what)
    output_options(parser, "model file to write, such as model.bagwise")


def fit(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Train a model on labelled bags and save it."""
    from bagwise.models.coupled import Coupled
    from bagwise.models.registry import make_model

    check_output(arguments.out, arguments.force)
    parameters = {"random_state": arguments.seed, **settings(arguments.set)}
    model = make_model(arguments.model, **parameters)
    if arguments.couple is not None:
        model = Coupled(model, strength=arguments.couple, random_state=arguments.seed)
    with _dask_client(arguments.dask, model, arguments.model):
        return _fit(model, arguments, printer)


def _fit(model: Model, arguments: Namespace, printer: Printer) -> dict[str, object]:
    import pandas as pd

    from bagwise import persist
    from bagwise.models.coupled import Coupled
    from bagwise.report.data import data_warnings
    from bagwise.report.predictions import model_notes

    data = read_labelled(arguments, printer)
    if arguments.use_instance_labels and data.instance_labels is None:
        if data.bags.instance_labels is None:
            raise ValueError(f"{arguments.bags}: the files have no dataset 'instance_labels'.")
        data = data._replace(instance_labels=data.bags.instance_labels)
    data, names, fit_params = class_roles(data, arguments, printer)
    # What the model cannot use is refused before anything slow begins.
    model = _for_labels(model, data, fit_params, arguments.model, printer)
    # The audit compares slides of a patient, which are one bag afterwards.
    audited = _audit(data, printer) if arguments.audit else None
    if arguments.level == "patient":
        data = patients_as_bags(data)
        printer.say(f"made {len(data.bags)} patients of them")
    # With the names of the classes where a bag may have several.
    y: Any = data.y if data.classes is None else pd.DataFrame(data.y, columns=list(data.classes))
    with printer.working("looking at the data"):
        remarks = data_warnings(data.bags, y) + mixed_patients(data)
    printer.warn(*remarks)
    evaluation = None
    if arguments.cv is not None:
        # Coupling moves instances, not bags: their figures are those of the model alone.
        alone = model.estimator if isinstance(model, Coupled) else model
        evaluation = _cross_validate(alone, data, names, fit_params, arguments, printer)
        doubt = _doubt(evaluation)
        printer.warn(*doubt)
        remarks += doubt
    if data.instance_labels is not None:
        fit_params["instance_labels"] = data.instance_labels
    start = time.perf_counter()
    what = f"training {arguments.model} on {len(data.bags)} bags"
    verbose = model.get_params().get("verbose") if printer.is_watched else None
    if verbose is None:
        with printer.working(what):
            model.fit(data.bags, y, **fit_params)
    else:  # a model's own bar, on stdout, knows the time that remains
        printer.say(what)
        model.set_params(verbose=True).fit(data.bags, y, **fit_params)
        model.set_params(verbose=verbose)
    seconds = time.perf_counter() - start
    # What predict and the report need to know besides the model.
    extra: dict[str, object] = {"name": arguments.model, "remarks": remarks, "class_names": names}
    if arguments.level == "patient":
        extra["level"] = "patient"
    if evaluation is not None:
        extra["evaluation"] = evaluation.as_json()
    if audited is not None:
        extra["audit"] = audited
    if isinstance(model, Coupled):
        extra["coupling"] = model.strength_
        printer.say(f"neighbours are coupled with strength {model.strength_:.2f}")
    # The summary in the file counts bags by the names of their classes.
    y = y if names is None else np.asarray(names)[y]
    out, feature_names = arguments.out, data.bags.feature_names
    persist.save(model, out, bags=data.bags, y=y, feature_names=feature_names, extra=extra)
    shown, notes = escape(str(out)), model_notes(model)
    printer.say(f"trained [bold]{arguments.model}[/bold] in {seconds:.1f} s, saved {shown}")
    for note in notes:
        printer.say(note)
    printer.say(f"next: [bold]bagwise predict {shown} --bags NEW/ --out results/[/bold]")
    return {
        "model": str(out),
        "seconds": seconds,
        "training": persist.summarise(data.bags, y),
        "metrics": None if evaluation is None else evaluation.metrics(),
        "warnings": remarks,
        "notes": notes,
        "audit": audited,
        "skipped": [str(problem) for problem in data.skipped],
    }


def _for_labels(
    model: Model, data: Training, fit_params: Mapping[str, object], name: str, printer: Printer
) -> Model:
    """The model, or one per class where it knows only two; refuses options it does not have."""
    from sklearn.utils.validation import has_fit_parameter

    from bagwise.models.one_vs_rest import for_labels

    whole = for_labels(model, data.y)
    if whole is not model:
        printer.say(f"{name} knows two classes: one model is trained per class")
    for option in fit_params:
        # OneVsRest passes class weights on to its models; the background is its own argument.
        if not has_fit_parameter(model if option == "class_weight" else whole, option):
            raise ValueError(f"{name} cannot use --{option.replace('_', '-')}; use vgpmil or auto.")
    return whole


def _cross_validate(
    model: Model,
    data: Training,
    names: list[object] | None,
    fit_params: dict[str, object],
    arguments: Namespace,
    printer: Printer,
) -> Evaluation:
    """The evaluation that ``--cv`` asks for, printed."""
    from bagwise.evaluate import BagFolds, GroupFolds, cross_validate
    from bagwise.report.evaluation import Evaluation

    by_patient = data.patients is not None
    folds = cross_validate(
        model,
        data.bags,
        data.y,
        (GroupFolds if by_patient else BagFolds)(arguments.cv, (arguments.seed,)),
        groups=data.patients,
        instance_labels=data.instance_labels,
        fit_params=fit_params,
        progress=printer.bar("cross-validating"),
    )
    for message, count in Counter(w for fold in folds for w in fold.warnings).items():
        printer.warn(f"in {count} of {len(folds)} folds: {message}")
    source = f"{arguments.cv}-fold cross-validation{' by patient' if by_patient else ''}"
    classes = data.classes or names or np.unique(data.y).tolist()
    evaluation = Evaluation.from_folds(folds, source, data.patients, classes)
    show_evaluation(evaluation, printer)
    return evaluation


def _doubt(evaluation: Evaluation) -> list[str]:
    """Whether held-out bags rank the wrong way round, which a swapped positive class does."""
    auc, classes = evaluation.metrics()["auc"], evaluation.classes
    if len(evaluation.axis) > 1 or not auc < 0.5:  # of several classes none can be swapped
        return []
    return [
        f"The held-out AUC is {auc:.2f}, below 0.5: the model ranks bags no better than chance, or "
        f"the wrong way round. It looks for what makes a bag {classes[1]!s}; if "
        f"{classes[0]!s} bags are those that hold something, pass --positive {classes[0]!s}."
    ]


def _audit(data: Training, printer: Printer) -> Mapping[str, object]:
    """Look for leaks in the training bags; findings become warnings."""
    from bagwise.evaluate import audit
    from bagwise.models.labels import is_binary

    if not is_binary(data.y):
        raise ValueError(f"{data.labels}: --audit needs two classes; these labels have more.")
    with printer.working("auditing the training bags"):
        audited = audit(
            data.bags, data.y, groups=data.patients, feature_names=data.bags.feature_names
        )
    for finding in audited:
        printer.warn(f"audit: {finding}")
    return audited.as_json()


def settings(pairs: Sequence[str]) -> dict[str, object]:
    """``["n_inducing=100", "scale=global"]`` as parameters; values are Python literals or text.

    ``execution.dtype=float32`` and its like together make one `Execution`.
    """
    from bagwise.models.execution import Execution

    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--set needs NAME=VALUE; got {pair!r}.")
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):  # text without quotes
            values[name] = text
    prefix = "execution."
    fields = {
        name.removeprefix(prefix): values.pop(name) for name in [*values] if name.startswith(prefix)
    }
    if not fields:
        return values
    if "execution" in values:
        taken = f"execution={values['execution']} and {prefix}{min(fields)}"
        raise ValueError(f"--set {taken} exclude each other.")
    known = [field.name for field in dataclasses.fields(Execution)]
    for name in fields:
        if name not in known:
            raise ValueError(f"--set {prefix}{name}: an execution has {', '.join(known)}.")
    return {**values, "execution": Execution(**fields)}  # type: ignore[arg-type]


@contextmanager
def _dask_client(address: str | None, model: Model, name: str) -> Iterator[None]:
    """Make the Dask client that ``--dask`` asks for the active one; None asks for none."""
    if address is None:
        yield
        return
    if not any(key.rpartition("__")[2] == "execution" for key in model.get_params()):
        raise ValueError(f"--dask: the model {name!r} does not run on a cluster; leave it out.")
    distributed = optional("distributed", extra="dask", what="--dask needs the extra dask")
    # Without an address the client starts workers on this machine, and ends them when it closes.
    where = {"address": address, "timeout": DASK_TIMEOUT}
    local = {"threads_per_worker": 1, "dashboard_address": None}
    try:
        client = distributed.Client(**(local if address == "local" else where))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--dask: no Dask scheduler answered at {address!r} within {DASK_TIMEOUT} s; give its "
            "address, such as tcp://10.0.0.1:8786, or 'local'."
        ) from error
    with client:
        yield
