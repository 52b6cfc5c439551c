"""``bagwise audit``: look for leaks in labelled bags, and in how a model does on them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from bagwise.cli.arguments import bag_options, set_up
from bagwise.cli.console import Printer
from bagwise.cli.inputs import read_labelled


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise audit``."""
    set_up(
        parser,
        audit,
        "bagwise audit --bags features/ --labels labels.csv",
        "bagwise audit --bags features/ --labels labels.csv --patient-column patient --model misvm",
    )
    bag_options(parser)
    add = parser.add_argument
    add("--model", metavar="NAME", help="also shuffle labels and replace test bags for this model")
    add("--cv", type=int, default=5, metavar="K", help="folds (default: 5)")
    add("--permutations", type=int, default=10, metavar="N", help="shufflings (default: 10)")


def audit(arguments: Namespace, printer: Printer) -> Mapping[str, object]:
    """Look for leaks."""
    from bagwise.evaluate import BagFolds, GroupFolds
    from bagwise.evaluate import audit as run_audit
    from bagwise.models.registry import make_model

    model = None if arguments.model is None else make_model(arguments.model, random_state=0)
    data = read_labelled(arguments, printer, two_classes=True)
    scheme = (BagFolds if data.patients is None else GroupFolds)(arguments.cv, (0,))
    with printer.working("auditing"):
        audited = run_audit(
            data.bags,
            data.y,
            estimator=model,
            splitter=scheme,
            groups=data.patients,
            feature_names=data.bags.feature_names,
            n_permutations=arguments.permutations,
        )
    if audited.findings:
        columns = ("check", "what", "where", "how strong")
        printer.table(columns, audited.findings, words=columns)
    else:
        printer.say(str(audited))
    return audited.as_json()
