"""Arguments of the commands, and the way from them to the command that runs.

Exit codes are in `ending`; whatever the code, nothing is left half-written.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from bagwise.cli.ending import EXIT_CODES, Ending, unwinding_on_signals
from bagwise.cli.label_arguments import add_label
from bagwise.cli.vision_arguments import add_vision, strength

if TYPE_CHECKING:
    from argparse import ArgumentParser, _ArgumentGroup


Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"bagwise: error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    Examples
    --------
    >>> from bagwise.cli import main
    >>> main(["info", "nothing.bagwise"])  # says on stderr what is wrong
    2
    """
    arguments = build_parser().parse_args(argv)
    if arguments.command is None:
        build_parser().print_help()
        return 0
    module, _, function = arguments.run.partition(":")
    with Ending(arguments.traceback) as ending, unwinding_on_signals(), warnings.catch_warnings():
        warnings.simplefilter("once", UserWarning)
        warnings.showwarning = _show_warning
        from bagwise.files.limits import allow_unpacked

        with allow_unpacked(arguments.max_unpacked):
            ending.code = int(getattr(import_module(module), function)(arguments) or 0)
    return ending.code


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """A warning as one line; where in the code it arose is no use to who types commands."""
    print(f"bagwise: warning: {' '.join(str(message).split())}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from bagwise import __version__

    parser = _Parser(
        prog="bagwise",
        description="Learn from labelled bags; say which instances made the label.",
        epilog=_examples(
            "bagwise demo",
            "bagwise fit --bags features/ --labels labels.csv --cv 5 --out model.bagwise",
            "bagwise predict model.bagwise --bags new/ --out results/",
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"bagwise {__version__}")
    parser.set_defaults(traceback=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for add in (_fit, _predict, _evaluate, _compare, _audit, _reproduce, _demo, _datasets, _info):
        add(commands)
    add_label(commands, _command, _bag_options)
    add_vision(commands, _command)
    return parser


def _examples(*lines: str) -> str:
    return "examples:\n" + "\n".join(f"  {line}" for line in lines) + "\n\n" + EXIT_CODES


def _command(commands: Commands, name: str, run: str, about: str, *examples: str) -> ArgumentParser:
    command = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=_examples(*examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=f"bagwise.cli.{run}")
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    command.add_argument("--traceback", action="store_true", help="show where an error arose")
    command.add_argument(
        "--max-unpacked",
        type=_gigabytes,
        metavar="GB",
        help="let one file unpack to this much (default: 20 times its size, at least 0.27 GB)",
    )
    return command


def _address(text: str) -> Path | str:
    """A path on this machine, or an address with a protocol, which `Path` would mangle."""
    return text if "://" in text else Path(text)


def _gigabytes(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"a number of gigabytes is needed; got {text!r}")
    return int(value * 1e9)


def _bag_options(command: ArgumentParser, *, labels: str) -> None:
    """Where bags and labels are, and what things are called in them."""
    data = command.add_argument_group("data")
    what = (
        "folder of .h5, .zarr, .npy, .npz or .pt files, one per bag; or a CSV, Excel or Parquet "
        "table; also an address such as s3://bucket/features"
    )
    data.add_argument("--bags", required=True, type=_address, metavar="PATH", help=what)
    data.add_argument(
        "--recursive", action="store_true", help="read the bag files in folders below, too"
    )
    data.add_argument(
        "--labels",
        required=labels == "required",
        type=_address,
        metavar="TABLE",
        help="labels of the bags, as CSV or Excel: columns slide_id and label"
        + ("" if labels == "required" else " (optional: adds ROC and calibration)"),
    )
    data.add_argument(
        "--skip-bad", action="store_true", help="use the good files and labels, list the others"
    )
    names = command.add_argument_group("names in the files")
    names.add_argument("--features", default="features", metavar="NAME", help="dataset of features")
    names.add_argument(
        "--coords", metavar="NAME", help="dataset of coordinates (default: coords, where present)"
    )
    names.add_argument(
        "--encoder", metavar="NAME", help="use features_NAME/ where there are several"
    )
    names.add_argument(
        "--id-column", default="slide_id", metavar="NAME", help="column with the bag's name"
    )
    names.add_argument(
        "--label-column",
        default="label",
        metavar="NAME",
        help="column of labels; several columns of 0 and 1, as in a,b,c, where a bag may have "
        "several classes",
    )
    names.add_argument(
        "--patient-column", metavar="NAME", help="keep the bags of a patient in one fold"
    )
    names.add_argument(
        "--feature-columns",
        metavar="A,B,...",
        help="columns of a table that are features (default: all that look like features)",
    )


def _output_options(command: ArgumentParser, what: str, required: bool = True) -> None:
    command.add_argument("--out", required=required, type=Path, metavar="PATH", help=what)
    command.add_argument("--force", action="store_true", help="replace an existing output")


def _fit(commands: Commands) -> None:
    command = _command(
        commands,
        "fit",
        "commands:fit",
        "train a model on labelled bags and save it",
        "bagwise fit --bags features/ --labels labels.csv --out model.bagwise",
        "bagwise fit --bags features/ --labels labels.csv --model vgpmil \\",
        "            --set n_inducing=100 --set scale=global --cv 5 --out model.bagwise",
        "bagwise fit --bags features/ --labels labels.csv --dask local --out m.bagwise",
        "bagwise fit --bags rows.csv --id-column molecule --labels y.csv --out m.bagwise",
    )
    _bag_options(command, labels="required")
    command.add_argument(
        "--instance-labels",
        type=Path,
        metavar="CSV",
        help="instance labels you have: columns slide_id, index, label",
    )
    command.add_argument(
        "--use-instance-labels",
        action="store_true",
        help="train on the instance labels in the bag files, too",
    )
    _level_option(
        command,
        "whom the labels are of (default: bag); patient makes one bag of all the slides of a "
        "patient (--patient-column)",
    )
    _positive(command)
    model = command.add_argument_group("model")
    model.add_argument(
        "--model", default="auto", metavar="NAME", help="which model (default: auto)"
    )
    model.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the model, or of how it runs, such as execution.dtype=float32; "
        "may be repeated",
    )
    model.add_argument(
        "--class-weight",
        choices=["balanced"],
        help="let rare and frequent classes count the same in the fit",
    )
    _couple_option(model)
    model.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    model.add_argument("--cv", type=int, metavar="K", help="estimate accuracy by K-fold first")
    model.add_argument(
        "--audit",
        action="store_true",
        help="look for leaks in the training bags first; reports made with the model show what "
        "was found (two classes)",
    )
    model.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="train on a Dask cluster: its scheduler's address, or 'local' for this machine",
    )
    _output_options(command, "model file to write, such as model.bagwise")


def _couple_option(group: ArgumentParser | _ArgumentGroup) -> None:
    group.add_argument(
        "--couple",
        nargs="?",
        const="auto",
        type=strength,
        metavar="J",
        help="let neighbouring instances agree when predicting; the strength is chosen on held-out "
        "bags unless it is given (needs coordinates)",
    )


def _level_option(group: ArgumentParser | _ArgumentGroup, about: str) -> None:
    group.add_argument("--level", choices=("bag", "patient"), help=about)


def _positive(command: ArgumentParser) -> None:
    command.add_argument(
        "--positive",
        metavar="LABEL",
        help="the label of bags that hold what is looked for (default: the larger number, or the "
        "name beside a usual negative such as normal, benign or control)",
    )
    command.add_argument(
        "--background",
        metavar="LABEL",
        help="with more than two classes: the label of bags in which nothing is found (default: "
        "a usual negative such as normal, where there is one; '' for none)",
    )


def _predict(commands: Commands) -> None:
    command = _command(
        commands,
        "predict",
        "commands:predict",
        "apply a saved model: tables of bags, instances and patients, and report.html",
        "bagwise predict model.bagwise --bags new/ --out results/",
        "bagwise predict model.bagwise --bags held_out/ --labels labels.csv --out results/",
        "bagwise predict model.bagwise --bags new/ --min-sensitivity 0.95 --out results/",
    )
    command.add_argument("model", type=Path, help="model file made by bagwise fit")
    _bag_options(command, labels="optional")
    command.add_argument("--images", metavar="NAME", help="dataset with a picture per instance")
    command.add_argument(
        "--geojson", action="store_true", help="also write geojson/, one file per bag for QuPath"
    )
    command.add_argument(
        "--sheet",
        action="store_true",
        help="also write top_instances.png, the most probable pictures of each bag (--images)",
    )
    command.add_argument(
        "--patients",
        type=Path,
        metavar="CSV",
        help="patients of the bags: columns slide_id and patient_id (or --patient-column)",
    )
    _level_option(
        command,
        "patient also writes slides.csv and reads patients off all their slides together (default: "
        "as the model was trained)",
    )
    command.add_argument(
        "--top", type=int, default=10, metavar="N", help="instances per bag in top_instances.csv"
    )
    group = command.add_argument_group("when a bag is called positive")
    group.add_argument(
        "--threshold", type=float, metavar="P", help="above this probability (default: 0.5)"
    )
    _goal_options(group, "of the cross-validated training bags")
    command.add_argument(
        "--spreadsheet-safe",
        action="store_true",
        help="put an apostrophe before names that a spreadsheet would run as a formula",
    )
    _output_options(command, "folder to write")


def _goal_options(group: _ArgumentGroup, where: str) -> None:
    """What a threshold is chosen for; none of them asks for Youden's index."""
    group.add_argument(
        "--min-sensitivity", type=float, metavar="S", help=f"find at least this share {where}"
    )
    group.add_argument(
        "--min-specificity", type=float, metavar="S", help=f"spare at least this share {where}"
    )
    group.add_argument(
        "--cost",
        type=_costs,
        metavar="MISS,ALARM",
        help="make the sum of these costs smallest, such as 10,1",
    )


def _costs(text: str) -> tuple[float, float]:
    try:
        miss, alarm = (float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"costs are MISS,ALARM; got {text!r}") from error
    return miss, alarm


def _evaluate(commands: Commands) -> None:
    command = _command(
        commands,
        "evaluate",
        "commands:evaluate",
        "measure a saved model on labelled bags it has not seen",
        "bagwise evaluate model.bagwise --bags held_out/ --labels labels.csv",
    )
    command.add_argument("model", type=Path, help="model file made by bagwise fit")
    _bag_options(command, labels="required")
    group = command.add_argument_group("what the recommended threshold is for")
    _goal_options(group, "of these bags")


def _compare(commands: Commands) -> None:
    command = _command(
        commands,
        "compare",
        "commands:compare",
        "cross-validate several models on the same folds",
        "bagwise compare --bags features/ --labels labels.csv --models vgpmil,misvm,statistics",
        "bagwise compare --datasets musk1,fox --models vgpmil,misvm --out comparison.csv",
    )
    _bag_options(command, labels="optional")
    for action in command._actions:
        if action.dest == "bags":
            action.required = False
    command.add_argument(
        "--datasets", metavar="A,B,...", help="bundled data sets instead of --bags"
    )
    command.add_argument(
        "--models",
        default="auto,misvm,statistics",
        metavar="A,B,...",
        help="which models (default: auto,misvm,statistics)",
    )
    _positive(command)
    command.add_argument("--cv", type=int, default=5, metavar="K", help="folds (default: 5)")
    command.add_argument("--seeds", type=int, default=1, help="repetitions (default: 1)")
    command.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    _output_options(command, "CSV with every fold's result", required=False)


def _audit(commands: Commands) -> None:
    command = _command(
        commands,
        "audit",
        "audit:audit",
        "look for leaks: features that know the label, copies across folds, too good a score",
        "bagwise audit --bags features/ --labels labels.csv",
        "bagwise audit --bags features/ --labels labels.csv --patient-column patient --model misvm",
    )
    _bag_options(command, labels="required")
    command.add_argument(
        "--model", metavar="NAME", help="also shuffle labels and replace test bags for this model"
    )
    command.add_argument("--cv", type=int, default=5, metavar="K", help="folds (default: 5)")
    command.add_argument(
        "--permutations", type=int, default=10, metavar="N", help="shufflings (default: 10)"
    )


def _reproduce(commands: Commands) -> None:
    command = _command(
        commands,
        "reproduce",
        "commands:reproduce",
        "run the experiments behind the documented numbers (needs a checkout)",
        "bagwise reproduce --list",
        "bagwise reproduce musk --quick",
    )
    command.add_argument("names", nargs="*", help="experiments, or words of their names")
    command.add_argument("--list", action="store_true", help="only list them: paper, data, time")
    command.add_argument("--quick", action="store_true", help="fewer seeds and sets")
    command.add_argument("--fresh", action="store_true", help="run again what is complete")
    command.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    command.add_argument("--out", type=Path, default=Path("reproduction"), metavar="FOLDER")


def _demo(commands: Commands) -> None:
    command = _command(
        commands,
        "demo",
        "demo:demo",
        "the whole path on bundled digits: files, fit, predict, report",
        "bagwise demo",
        "bagwise demo --out somewhere/",
    )
    command.add_argument("--out", type=Path, default=Path("demo-output"), metavar="FOLDER")
    command.add_argument(
        "--bags", type=int, default=150, metavar="N", help="number of bags (default: 150)"
    )


def _datasets(commands: Commands) -> None:
    _command(
        commands,
        "datasets",
        "commands:datasets",
        "list the data sets that come with bagwise, and those it can fetch",
        "bagwise datasets",
    )


def _info(commands: Commands) -> None:
    command = _command(
        commands,
        "info",
        "commands:info",
        "say what a model file holds, without running it",
        "bagwise info model.bagwise",
    )
    command.add_argument("model", type=Path, help="model file made by bagwise fit")
