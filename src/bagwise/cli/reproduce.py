"""``bagwise reproduce``: run the experiments of a checkout, which the package does not contain."""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import ModuleType

from rich.markup import escape

from bagwise.cli.arguments import set_up
from bagwise.cli.console import Printer

_RUNNER = Path("experiments") / "_runner.py"
# src/bagwise/cli/reproduce.py -> the checkout
_CHECKOUT = Path(__file__).resolve().parents[3]


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise reproduce``."""
    set_up(parser, reproduce, "bagwise reproduce --list", "bagwise reproduce musk --quick")
    add = parser.add_argument
    add("names", nargs="*", help="experiments, or words of their names")
    add("--list", action="store_true", help="only list them: paper, data, times")
    add("--quick", action="store_true", help="fewer seeds and sets")
    add("--fresh", action="store_true", help="run again what is complete")
    add("--jobs", type=int, default=1, help="processes (default: 1)")
    add("--out", type=Path, default=Path("reproduction"), metavar="FOLDER")


def reproduce(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Run the experiments, or list them."""
    runner = load_runner(Path.cwd(), _CHECKOUT)
    if arguments.list:
        listing = runner.list_experiments()
        printer.show(importlib.import_module("experiments._tables").to_rich(listing))
        for line in (*runner.absent_data(), runner.quick_sum()):
            printer.say(escape(line))
        return {row["experiment"]: row for row in listing.to_dict("records")}
    frame = runner.reproduce(
        arguments.names or "all",
        quick=arguments.quick,
        out=arguments.out,
        n_jobs=arguments.jobs,
        fresh=arguments.fresh,
        console=printer.console,
    )
    return {"out": str(arguments.out), "rows": frame.to_dict("records")}


def load_runner(*roots: Path) -> ModuleType:
    """The module that runs the experiments, from the first of the folders that has it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from bagwise.cli.reproduce import load_runner
    >>> load_runner(Path("no/such/folder"))
    Traceback (most recent call last):
    FileNotFoundError: the experiments are not part of the installed package: ...
    """
    for root in roots:
        if (root / _RUNNER).is_file():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))  # worker processes inherit it
            return importlib.import_module("experiments._runner")
    raise FileNotFoundError(
        "the experiments are not part of the installed package: clone the repository of bagwise, "
        "change into it and run `bagwise reproduce` there."
    )
