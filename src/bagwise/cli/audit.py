"""The command ``bagwise audit``."""

from __future__ import annotations

from argparse import Namespace

from rich.table import Table

from bagwise.cli.console import Printer
from bagwise.cli.inputs import read_labelled


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
    printer.result(
        {"checks": made.checks, "findings": [finding._asdict() for finding in made.findings]}
    )
    return 0
