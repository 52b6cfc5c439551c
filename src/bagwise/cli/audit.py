"""The command ``bagwise audit``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from rich.table import Table

from bagwise.cli.console import Printer
from bagwise.cli.inputs import read_labelled
from bagwise.models.labels import is_binary

if TYPE_CHECKING:
    from bagwise.evaluate import Audit
    from bagwise.files import Training


def audit(arguments: Namespace) -> int:
    """Look for leaks in labelled bags, and in how a model does on them."""
    from bagwise.evaluate import BagFolds, GroupFolds
    from bagwise.evaluate import audit as run_audit
    from bagwise.models.registry import make_model

    printer = Printer(arguments.json)
    model = None if arguments.model is None else make_model(arguments.model, random_state=0)
    data = read_labelled(arguments, printer, two_classes=True)
    protocol = (BagFolds if data.patients is None else GroupFolds)(arguments.cv, (0,))
    with printer.working("auditing"):
        made = run_audit(
            data.bags,
            data.y,
            estimator=model,
            splitter=protocol,
            groups=data.patients,
            feature_names=data.bags.feature_names,
            n_permutations=arguments.permutations,
        )
    if made.findings:
        table = Table("check", "what", "where", "how strong")
        for finding in made:
            table.add_row(*finding)
        printer.show(table)
    else:
        printer.say(str(made))
    printer.result(made.as_json())
    return 0


def audit_training(data: Training, printer: Printer) -> Audit:
    """Look for leaks in the training bags; findings become warnings."""
    from bagwise.evaluate import audit as run_audit

    if not is_binary(data.y):
        raise ValueError(f"{data.labels}: --audit needs two classes; these labels have more.")
    with printer.working("auditing the training bags"):
        made = run_audit(
            data.bags, data.y, groups=data.patients, feature_names=data.bags.feature_names
        )
    for finding in made:
        printer.warn(f"audit: {finding}")
    return made
