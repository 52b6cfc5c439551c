"""``bagwise compare``: cross-validate several models on the same folds."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import PurePosixPath
from typing import Any

from rich.markup import escape

from bagwise.cli.arguments import bag_options, class_options, output_options, set_up
from bagwise.cli.console import Printer
from bagwise.cli.inputs import class_roles, mixed_patients, read_labelled
from bagwise.files import check_output, new_file


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise compare``."""
    set_up(
        parser,
        compare,
        "bagwise compare --bags features/ --labels labels.csv --models vgpmil,misvm,statistics",
        "bagwise compare --datasets musk1,fox --models vgpmil,misvm --out comparison.csv",
    )
    bag_options(parser, bags_required=False, labels_required=False)
    add = parser.add_argument
    add("--datasets", metavar="A,B,...", help="bundled data sets instead of --bags")
    default = "auto,misvm,statistics"
    what = f"which models (default: {default})"
    add("--models", default=default, metavar="A,B,...", help=what)
    class_options(parser)
    add("--cv", type=int, default=5, metavar="K", help="folds (default: 5)")
    add("--seeds", type=int, default=1, help="repetitions (default: 1)")
    add("--jobs", type=int, default=1, help="processes (default: 1)")
    output_options(parser, "CSV with every fold's result", required=False)


def compare(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Cross-validate several models on the same folds."""
    from sklearn.utils import Bunch

    from bagwise.evaluate import BagFolds, GroupFolds
    from bagwise.evaluate import compare as run_comparison
    from bagwise.report.tables import print_comparison

    _check(arguments)
    folds: Any = BagFolds
    fit_params: dict[str, Any] = {}
    datasets: Any
    if arguments.bags is None:
        datasets = arguments.datasets.split(",")
    else:
        data = read_labelled(arguments, printer)
        # Names are not needed: no probability of the comparison is reported by class.
        data, _, fit_params = class_roles(data, arguments, printer)
        printer.warn(*mixed_patients(data))
        dataset = Bunch(bags=data.bags, y=data.y)
        if data.patients is not None:
            dataset.groups, folds = data.patients, GroupFolds
        datasets = {PurePosixPath(str(arguments.bags)).name: dataset}
    comparison = run_comparison(
        arguments.models.split(","),
        datasets,
        folds(n_splits=arguments.cv, seeds=tuple(range(arguments.seeds))),
        n_jobs=arguments.jobs,
        fit_params=fit_params,
        progress=not arguments.json,
    )
    print_comparison(comparison, printer.console)
    if arguments.out is not None:
        with new_file(arguments.out) as draft:
            comparison.rows.to_csv(draft, index=False)
        printer.say(f"wrote {escape(str(arguments.out))}")
    return {"summary": comparison.summary().to_dict("records")}


def _check(arguments: Namespace) -> None:
    """Refuse what makes no sense before anything is read."""
    if arguments.out is not None:
        check_output(arguments.out, arguments.force)
    if (arguments.bags is None) == (arguments.datasets is None):
        raise ValueError("compare needs either --bags with --labels, or --datasets.")
    if arguments.bags is not None and arguments.labels is None:
        raise ValueError("compare --bags needs --labels.")
    for option, least in {"cv": 2, "seeds": 1}.items():
        value = getattr(arguments, option)
        if value < least:
            raise ValueError(f"--{option} must be at least {least}; got {value}.")
    if arguments.jobs < 1 and arguments.jobs != -1:
        raise ValueError(f"--jobs must be at least 1, or -1 for all cores; got {arguments.jobs}.")
