"""``bagwise demo``: what a user does with files, on bundled digits, by the same commands."""

from __future__ import annotations

import shlex
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

from bagwise.cli.arguments import set_up
from bagwise.cli.console import Printer
from bagwise.files import check_output, new_folder

_OURS = ("train", "new", "train.csv", "new.csv", "model.bagwise", "results")


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise demo``."""
    set_up(parser, demo, "bagwise demo", "bagwise demo --out somewhere/")
    add = parser.add_argument
    add("--out", type=Path, default=Path("demo-output"), metavar="FOLDER")
    add("--bags", type=int, default=150, metavar="N", help="number of bags (default: 150)")


def demo(arguments: Namespace, printer: Printer) -> None:
    """Digit bags as a folder of HDF5 files, then fit, predict and report."""
    from bagwise.cli.commands import build_parser, run

    out: Path = arguments.out
    place = shlex.quote(str(out))
    start = time.perf_counter()
    if arguments.bags < 20:
        raise ValueError(f"--bags must be at least 20 for a demo; got {arguments.bags}.")
    printer.say(
        "[bold]1. Bags on disk[/bold]: one .h5 file per bag of handwritten digits; a bag is\n"
        "   positive when it holds a 9. The labels say which bags, never which digits."
    )
    # A demo that was run before is replaced; anything else there is not.
    check_output(out, force=True, holds=_OURS)
    with new_folder(out) as draft:
        truth = _write_digits(draft, arguments.bags)
    printer.say(f"   wrote {escape(str(out))}/train, new and two label files")
    commands = {
        "2. Train": f"fit --bags {place}/train --labels {place}/train.csv --positive nine "
        f"--set n_inducing=100 --cv 5 --out {place}/model.bagwise",
        "3. Predict bags it has never seen, above one half positive (or choose with "
        "--min-sensitivity, --cost)": f"predict {place}/model.bagwise --bags {place}/new "
        f"--labels {place}/new.csv --images images --out {place}/results",
    }
    for title, line in commands.items():
        printer.say(f"\n[bold]{title}[/bold]\n[dim]$ bagwise {escape(line)}[/dim]")
        # The same path that a user's words take, but errors end the demo itself.
        words = shlex.split(line) + (["--json"] if arguments.json else [])
        run(build_parser(words).parse_args(words))
    _show_instances(printer, out, truth)
    report = escape(str(out / "results" / "report.html"))
    seconds = time.perf_counter() - start
    printer.say(f"\nDone in {seconds:.0f} s. Open [bold]{report}[/bold] in a browser.")


def _write_digits(folder: Path, n_bags: int) -> dict[str, object]:
    """Two thirds to train on, one third as the new bags; returns the truth about the digits."""
    import h5py

    from bagwise.datasets import load_digit_bags

    data = load_digit_bags(n_bags=n_bags, random_state=0)
    cut = 2 * n_bags // 3
    truth = {}
    images = data.bags.split((data.images * 255).astype(np.uint8))
    nines = data.bags.split(np.asarray(data.instance_labels))
    for part, chosen in [("train", range(cut)), ("new", range(cut, n_bags))]:
        (folder / part).mkdir()
        lines = ["slide_id,label"]
        for i in chosen:
            name = f"bag_{i:03d}"
            with h5py.File(folder / part / f"{name}.h5", "w") as file:
                file["features"] = data.bags[i].astype(np.float32)
                file["images"] = images[i]
            lines.append(f"{name},{'nine' if data.y[i] else 'none'}")
            truth[name] = nines[i]
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return truth


def _show_instances(printer: Printer, out: Path, truth: dict[str, Any]) -> None:
    """How well the digits were found, which no label had told."""
    import pandas as pd
    from sklearn.metrics import average_precision_score, roc_auc_score

    instances = pd.read_parquet(out / "results" / "instances.parquet")
    is_nine = np.asarray(
        [truth[bag][i] for bag, i in zip(instances["bag"], instances["index"], strict=True)]
    )
    p = instances["probability"].to_numpy()
    figures = {
        "digits": len(p),
        "nines": int(is_nine.sum()),
        "auc": float(roc_auc_score(is_nine, p)),
        "average precision": float(average_precision_score(is_nine, p)),
    }
    printer.table(figures, [figures.values()], "single digits, never labelled")
