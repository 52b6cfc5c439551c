"""Arguments of ``bagwise label``; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bagwise.cli.parser import Commands


_STRATEGIES = ("information", "uncertainty", "disagreement", "random")


def add_label(
    commands: Commands, command: Callable[..., Any], bag_options: Callable[..., None]
) -> None:
    """Add ``label`` to the command line."""
    label = command(
        commands,
        "label",
        "label:label",
        "label the instances that matter, on a local page that learns from every answer",
        "bagwise label --demo",
        "bagwise label model.bagwise --bags features/ --labels labels.csv \\",
        "              --images patches/ --out instance_labels.csv",
        "bagwise label model.bagwise --bags features/ --import drawn.geojson --bag slide_7 \\",
        "              --out instance_labels.csv --export-only",
    )
    label.add_argument("model", type=Path, nargs="?", help="model file made by bagwise fit")
    label.add_argument("--demo", action="store_true", help="try it on bundled digits")
    bag_options(label, labels="optional")
    for action in label._actions:
        if action.dest == "bags":
            action.required = False
        if action.dest == "labels":
            action.help = (
                "labels of the bags, where these are the bags the model was trained on; "
                "without them the bags are new to the model"
            )
    label.add_argument(
        "--images",
        metavar="FOLDER",
        help="folder with pictures BAG/INDEX.png, or the name of the dataset that holds them",
    )
    label.add_argument("--test-bags", type=Path, metavar="PATH", help="held-out bags for the curve")
    label.add_argument("--test-labels", type=Path, metavar="CSV", help="labels of --test-bags")
    label.add_argument(
        "--strategy", choices=_STRATEGIES, default="information", help="which instances to ask"
    )
    label.add_argument(
        "--auto", type=int, default=10, metavar="K", help="learn after K answers (default: 10)"
    )
    label.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    label.add_argument("--port", type=int, default=0, help="port (default: any that is free)")
    label.add_argument("--no-browser", action="store_true", help="only print the address")
    label.add_argument(
        "--save-model", type=Path, metavar="FILE", help="on leaving, save what the model learned"
    )
    label.add_argument(
        "--out", type=Path, metavar="CSV", help="instance labels; an existing file is gone on with"
    )
    exchange = label.add_argument_group("QuPath and Label Studio")
    exchange.add_argument(
        "--import",
        dest="import_file",
        type=Path,
        metavar="FILE",
        help="take in GeoJSON from QuPath (with --bag) or annotations from Label Studio",
    )
    exchange.add_argument("--bag", metavar="NAME", help="the bag that --import is about")
    exchange.add_argument(
        "--label-studio", type=Path, metavar="FILE", help="write tasks with predictions, and end"
    )
    exchange.add_argument(
        "--export-only", action="store_true", help="import and export, without the page"
    )
