"""What the arguments of several commands share; nothing heavy is imported here."""

from __future__ import annotations

import argparse
import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from bagwise.cli.console import Printer

EXIT_CODES = """exit codes:
  0    done
  1    an error in bagwise itself; nothing was written
  2    the arguments, files or labels cannot be used; nothing was written
  130  interrupted with Ctrl-C; nothing was written
  143  stopped by SIGTERM; nothing was written"""

# What runs a command returns what ``--json`` prints, or None.
Run = Callable[[Namespace, "Printer"], Mapping[str, object] | None]


class Parser(ArgumentParser):
    """Says what is wrong in one line, and keeps the lines of its examples."""

    def __init__(self, **options: Any) -> None:
        # Subparsers are made by the class of their parent, so that this holds for them, too.
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"bagwise: error: {message} (see {self.prog} --help)\n")


def add_command(commands: argparse._SubParsersAction[Any], name: str, about: str) -> ArgumentParser:
    """A command, or a part of one, whose arguments are still to come."""
    return commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")


def examples(*lines: str) -> str:
    """The end of a help text: how a command is typed, and its exit codes."""
    return "examples:\n" + "\n".join(f"  {line}" for line in lines) + "\n\n" + EXIT_CODES


def set_up(parser: ArgumentParser, run: Run, *lines: str) -> None:
    """What every command has: the function that runs it, examples and the common options."""
    parser.epilog = examples(*lines)
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--json", action="store_true", help="print the result as JSON")
    add("--traceback", action="store_true", help="show where an error arose")
    limit = "let one file unpack to this much (default: 20 times its size, at least 0.27 GB)"
    add("--max-unpacked", type=_gigabytes, metavar="GB", help=limit)


def add_part(
    parts: argparse._SubParsersAction[Any], name: str, about: str, run: Run, *lines: str
) -> ArgumentParser:
    """A part of a command, such as ``detect fit``, with what every command has."""
    part = add_command(parts, name, about)
    set_up(part, run, *lines)
    return part


def _number(text: str, least: float, below: float, what: str) -> float:
    """A number from ``least`` up to ``below``, or what is needed instead."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < below:  # NaN neither
        raise ArgumentTypeError(f"{what}; got {text!r}")
    return value


def _gigabytes(text: str) -> int:
    return int(_number(text, 1e-9, 1e6, "a number of gigabytes is needed") * 1e9)


def bag_options(
    parser: ArgumentParser,
    bags_required: bool = True,
    labels_required: bool = True,
    labels_help: str = "labels of the bags, as CSV or Excel: columns slide_id and label",
) -> None:
    """Where bags and labels are, and what things are called in them."""
    add = parser.add_argument_group("data").add_argument
    what = "folder with a .h5, .zarr, .npz, .npy or .pt file per bag; a table; or an s3:// address"
    add("--bags", required=bags_required, type=_address, metavar="PATH", help=what)
    add("--recursive", action="store_true", help="read the bag files in folders below, too")
    add("--labels", required=labels_required, type=_address, metavar="TABLE", help=labels_help)
    add("--skip-bad", action="store_true", help="use the good files and labels, list the others")
    add = parser.add_argument_group("names in the files").add_argument
    add("--features", default="features", metavar="NAME", help="dataset of features")
    add("--coords", metavar="NAME", help="dataset of coordinates (default: coords, where present)")
    add("--encoder", metavar="NAME", help="use features_NAME/ where there are several")
    add("--id-column", default="slide_id", metavar="NAME", help="column with the bag's name")
    what = "column of labels; or columns of 0 and 1, as in a,b,c, where a bag may have several"
    add("--label-column", default="label", metavar="NAME", help=what)
    add("--patient-column", metavar="NAME", help="keep the bags of a patient in one fold")
    what = "columns of a table that are features (default: all that look like features)"
    add("--feature-columns", metavar="A,B,...", help=what)


def _address(text: str) -> Path | str:
    """A path on this machine, or an address with a protocol, which `Path` would mangle."""
    return text if "://" in text else Path(text)


def output_options(
    parser: ArgumentParser, what: str, metavar: str = "PATH", required: bool = True
) -> None:
    """Where the output goes, and whether it replaces what is there."""
    parser.add_argument("--out", required=required, type=Path, metavar=metavar, help=what)
    parser.add_argument("--force", action="store_true", help="replace an existing output")


def class_options(parser: ArgumentParser) -> None:
    """Which class is the positive one, and which is the absence of all."""
    what = "label of the positive class (default: the larger number, or what is not normal, ...)"
    parser.add_argument("--positive", metavar="LABEL", help=what)
    what = "of several classes: label of bags of none of the others (default: normal; '' for none)"
    parser.add_argument("--background", metavar="LABEL", help=what)


def goal_options(group: _ArgumentGroup, where: str) -> None:
    """What a threshold is chosen for; none of them asks for Youden's index."""
    add = group.add_argument
    add("--min-sensitivity", type=float, metavar="S", help=f"find at least this share {where}")
    add("--min-specificity", type=float, metavar="S", help=f"spare at least this share {where}")
    what = "make the sum of these costs smallest, such as 10,1"
    add("--cost", type=_costs, metavar="MISS,ALARM", help=what)


def _costs(text: str) -> tuple[float, float]:
    try:
        miss, alarm = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError(f"costs are MISS,ALARM; got {text!r}") from error
    return miss, alarm


def strength(text: str) -> float | str:
    """A strength of coupling: a number from 0 up, or "auto"."""
    if text == "auto":
        return text
    return _number(text, 0, math.inf, "a strength is a number from 0 up, or auto")
