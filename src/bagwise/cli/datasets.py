"""``bagwise datasets``: list the data sets."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rich.markup import escape

from bagwise.cli.arguments import set_up
from bagwise.cli.console import Printer

_BUNDLED = {
    "musk1": "molecules, musk or not",
    "musk2": "more conformations",
    "elephant": "images by segments",
    "fox": "images by segments",
    "tiger": "images by segments",
    "digits": "8 x 8 handwriting",
}
# What it is, bags and positive bags.
_FETCHED = {
    "newsgroups/NAME": ("posts, 20 sets", 100, 50),
    "mnist": ("28 x 28 handwriting", None, None),
    "tracking/NAME": ("david, girl: video", None, None),
    "detection/bccd": ("blood cells", None, None),
}
_COLUMNS = ("name", "bags", "positive", "instances", "features", "where", "what")


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise datasets``."""
    set_up(parser, datasets, "bagwise datasets")


def datasets(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """List the data sets."""
    from bagwise.datasets import data_home
    from bagwise.evaluate.run import load_dataset

    rows: list[tuple[object, ...]] = []
    for name, what in _BUNDLED.items():
        data = load_dataset(name)
        bags, positive = data.bags, int((data.y == data.y.max()).sum())
        sizes = (len(bags), positive, bags.n_instances, bags.n_features)
        rows.append((name, *sizes, "bundled", what))
    for name, (what, n_bags, n_positive) in _FETCHED.items():
        rows.append((name, n_bags, n_positive, None, None, "fetched", what))
    shown = [["" if value is None else value for value in row] for row in rows]
    printer.table(_COLUMNS, shown, words=("name", "where", "what"), box=None, pad_edge=False)
    printer.say(f"data home: {escape(str(data_home()))} (set BAGWISE_DATA to move it)")
    return {"datasets": [dict(zip(_COLUMNS, row, strict=True)) for row in rows]}
