"""The table of commands, and the way from the words that are typed to the command that runs.

A command is a module of this package with its name, whose ``configure(parser)`` adds its arguments.
Only the module of the command that is typed is imported, so that ``bagwise --help`` is quick.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import warnings
from argparse import Namespace
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

from bagwise.cli.arguments import Parser, add_command, examples

# Name of a command, and of its module: what it does.
COMMANDS = {
    "fit": "train a model on labelled bags and save it",
    "predict": "apply a saved model: tables of bags, instances and patients, and report.html",
    "evaluate": "measure a saved model on labelled bags it has not seen",
    "compare": "cross-validate several models on the same folds",
    "audit": "look for leaks: features that know the label, copies across folds, too good a score",
    "reproduce": "run the experiments behind the documented numbers (needs a checkout)",
    "demo": "the whole path on bundled digits: files, fit, predict, report",
    "datasets": "list the data sets that come with bagwise, and those it can fetch",
    "info": "say what a model file holds, without running it",
    "label": "label the instances that matter, on a local page that learns from every answer",
    "detect": "find objects in images after training on image labels",
    "track": "follow targets through a video",
    "ct": "find classes in CT scans and their slices after training on labels of scans",
}

# What bad input raises; the message was written for the user.
_EXPECTED = (ValueError, OSError, ImportError)


class _Stopped(BaseException):
    """SIGTERM or SIGHUP, as something that unwinds and so removes every draft on the way."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    Examples
    --------
    >>> from bagwise.cli import main
    >>> main(["info", "nothing.bagwise"])  # says on stderr what is wrong
    2
    """
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(words)
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return 0
    try:
        with unwinding_on_signals():
            run(arguments)
    except BaseException as error:  # noqa: BLE001 - whatever is not for users is raised again
        return exit_code(error, arguments.traceback)
    return 0


def build_parser(words: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """The command line, with the arguments of those commands that are among the words."""
    from bagwise import __version__

    parser = Parser(
        prog="bagwise",
        description="Learn from labelled bags; say which instances made the label.",
        epilog=examples(
            "bagwise demo",
            "bagwise fit --bags features/ --labels labels.csv --cv 5 --out model.bagwise",
            "bagwise predict model.bagwise --bags new/ --out results/",
        ),
    )
    parser.add_argument("--version", action="version", version=f"bagwise {__version__}")
    parser.set_defaults(traceback=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, about in COMMANDS.items():
        # A command that is not typed is only listed: its module would import NumPy and pandas.
        command = add_command(commands, name, about)
        if name in words:
            import_module(f"bagwise.cli.{name}").configure(command)
    return parser


def run(arguments: Namespace) -> None:
    """Run a command on its parsed arguments; with ``--json`` its result goes to stdout."""
    from bagwise.cli.console import Printer
    from bagwise.files.limits import allow_unpacked

    def show(message: Warning | str, *where: object, **more: object) -> None:
        # One line; where in the code a warning arose is no use to who types commands.
        print(f"bagwise: warning: {' '.join(str(message).split())}", file=sys.stderr)

    printer = Printer(arguments.json)
    with warnings.catch_warnings(), allow_unpacked(arguments.max_unpacked):
        warnings.simplefilter("once", UserWarning)
        warnings.showwarning = show
        # ``configure`` of the command's module named the function that runs it.
        printer.result(arguments.run(arguments, printer))


def exit_code(error: BaseException, traceback: bool = False) -> int:
    """Exit code for what ended a command, which is said in one line on stderr.

    With ``traceback``, and where the error is no concern of the user, it is raised again.

    Examples
    --------
    >>> from bagwise.cli.commands import exit_code
    >>> exit_code(ValueError("labels.csv: has no rows"))  # says so on stderr
    2
    """
    if isinstance(error, BrokenPipeError):  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, KeyboardInterrupt):
        code, text = 130, "interrupted; nothing was written"
    elif isinstance(error, _Stopped):
        code, text = 143, "stopped; nothing was written"
    elif traceback or not isinstance(error, Exception):
        raise error
    elif isinstance(error, MemoryError):
        code, text = 2, "error: there is not enough memory for this"
    elif isinstance(error, _EXPECTED):
        code, text = 2, f"error: {message(error)}"
    else:
        code, what = 1, " ".join(message(error).split())[:500]
        text = f"error: unexpected {type(error).__name__}: {what} (this is a fault in bagwise; "
        text += "run again with --traceback and report what it prints)"
    # A name in a file may hold what the terminal cannot show.
    encoding = sys.stderr.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    print(f"bagwise: {shown}", file=sys.stderr)
    return code


def message(error: BaseException) -> str:
    """What an error says, with the file it is about."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error).strip() or type(error).__name__


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the command, so that it removes its drafts and workers."""

    def stop(number: int, frame: FrameType | None) -> None:
        # A second signal must not interrupt the cleaning up after the first.
        signal.signal(number, signal.SIG_IGN)
        raise _Stopped

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
