"""``bagwise datasets``: list the data sets."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rich.markup import escape

from bagwise.cli.arguments import set_up
from bagwise.cli.console import Printer


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise datasets``."""
    set_up(parser, datasets, "bagwise datasets")


def datasets(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """List the data sets."""
    from bagwise.datasets import data_home
    from bagwise.report.catalogue import catalogue

    entries = catalogue()
    rows = [["" if value is None else value for value in entry.values()] for entry in entries]
    printer.table(list(entries[0]), rows, words=("name", "where", "what"), box=None, pad_edge=False)
    printer.say(f"data home: {escape(str(data_home()))} (set BAGWISE_DATA to move it)")
    return {"datasets": entries}
