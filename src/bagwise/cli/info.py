"""``bagwise info``: say what a model file holds, without running it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.table import Table

from bagwise.cli.arguments import set_up
from bagwise.cli.console import Printer


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise info``."""
    set_up(parser, info, "bagwise info model.bagwise")
    parser.add_argument("model", type=Path, help="model file made by bagwise fit")


def info(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Say what a model file holds."""
    from bagwise import persist

    about = persist.about(arguments.model)
    table = Table(show_header=False, title=str(arguments.model), title_justify="left")
    for name in ("model", "steps", "classes", "n_features", "bagwise", "format_version"):
        value = about[name]
        table.add_row(name, " → ".join(map(str, value)) if isinstance(value, list) else str(value))
    for name, value in (about["training"] or {}).items():
        table.add_row(f"training {name}", str(value))
    for name, value in about["parameters"].items():
        table.add_row(f"parameter {name}", value)
    for remark in about["extra"].get("remarks", []):
        table.add_row("remark", remark)
    printer.show(table)
    return about
