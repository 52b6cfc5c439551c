"""``bagwise ct fit`` and ``ct predict``: positive classes in CT scans and their slices."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.markup import escape

from bagwise.bags import Bags
from bagwise.cli.arguments import add_part, output_options, strength
from bagwise.cli.console import Printer
from bagwise.files import check_output, new_folder

if TYPE_CHECKING:
    from bagwise.core.arrays import Reals
    from bagwise.models.base import Model
    from bagwise.report.predictions import Predictions
    from bagwise.vision.ct import ScanFiles


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise ct fit`` and ``bagwise ct predict``."""
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    part = add_part(
        parts,
        "fit",
        "train on folders of DICOM series and labels of scans",
        fit,
        "bagwise ct fit --scans CQ500/ --labels reads.csv --classes ICH,SDH --out ct.bagwise",
        "bagwise ct fit --scans stage_2_train/ --labels stage_2_train.csv --out ct.bagwise",
    )
    labels = "RSNA's or CQ500's label file, or columns scan and one of 0 and 1 per class"
    _scan_options(part, labels, labels_required=True)
    add = part.add_argument
    add("--classes", metavar="A,B,...", help="which classes of the labels (default: all)")
    what = "statistics: computed per slice; attention: a network trained on them (torch)"
    add("--features", choices=("statistics", "attention"), default="statistics", help=what)
    what = (
        "how strongly slices next to each other agree; 0 leaves each on its own, and auto chooses "
        "on held-out scans, which takes three more fits (default: auto)"
    )
    add("--couple", type=strength, default="auto", metavar="J", help=what)
    add("--cv", type=int, metavar="K", help="estimate AUC by K-fold first")
    add("--seed", type=int, default=0)
    output_options(part, "model to write")

    about = "probabilities of scans and slices: a page, scans.csv and slices.csv"
    example = "bagwise ct predict ct.bagwise --scans new/ --out results/"
    part = add_part(parts, "predict", about, predict, example)
    part.add_argument("model", type=Path, help="model that ct fit wrote")
    _scan_options(part, f"{labels} (optional: adds the truth to the tables)", labels_required=False)
    output_options(part, "folder to write")


def _scan_options(part: ArgumentParser, labels: str, labels_required: bool) -> None:
    add = part.add_argument_group("data").add_argument
    what = "DICOM files: a folder per scan, nested studies and series, or all in one folder"
    add("--scans", type=Path, required=True, metavar="FOLDER", help=what)
    add("--labels", type=Path, required=labels_required, metavar="CSV", help=labels)
    what = "take the series whose name contains this (default: slices nearest to 5 mm apart)"
    add("--series", metavar="TEXT", help=what)
    add("--skip-bad", action="store_true", help="leave out files and studies that cannot be used")


def fit(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Train on folders of DICOM series and labels of scans, and save the model."""
    from bagwise import GVGPMIL, Coupled, OneVsRest, make_pipeline, persist
    from bagwise.models.coupled import LEAST_BAGS
    from bagwise.vision.ct_labels import label_scans, read_ct_labels

    out = check_output(arguments.out, arguments.force)
    labels = read_ct_labels(arguments.labels)
    if arguments.classes is not None:
        wanted = [name.strip() for name in arguments.classes.split(",")]
        labels = _columns(labels, wanted, arguments.labels)
    classes = list(labels.columns)
    bags, _ = _read(arguments, arguments.features, printer)
    Y, _ = label_scans(bags, labels)
    counts = np.minimum(Y.sum(axis=0), (1 - Y).sum(axis=0))  # of scans with or without each class
    least = classes[int(counts.argmin())]
    if counts.min() == 0:
        raise ValueError(f"class {least!r} needs scans with it and scans without it.")
    model: Any = GVGPMIL(random_state=arguments.seed)
    if arguments.features == "attention":
        from bagwise.deep import AttentionFeatures

        model = make_pipeline(AttentionFeatures(random_state=arguments.seed), model)
    scores = {}
    if arguments.cv is not None:
        if not 2 <= arguments.cv <= counts.min():
            raise ValueError(
                f"--cv {arguments.cv} must be 2 at least, and {counts.min()} at most: of the scans "
                f"with and without {least!r}, the fewer are {counts.min()}."
            )
        # Coupling moves slices, not scans: their AUC is that of the model alone.
        scores = _cross_validated(model, bags, Y, arguments, printer, classes)
    couple = arguments.couple
    if couple == "auto" and counts.min() < LEAST_BAGS:
        couple = 0
        printer.warn(
            f"slices are left on their own: choosing how strongly they agree needs {LEAST_BAGS} "
            f"scans with and without each class; the fewest are {counts.min()}."
        )
    if couple != 0:
        model = Coupled(model, strength=couple, random_state=arguments.seed)
    with printer.working(f"training on {len(bags)} scans, {bags.n_instances} slices"):
        scans = OneVsRest(model).fit(bags, Y if len(classes) > 1 else Y[:, 0])
    strengths = {
        name: getattr(member, "strength_", 0.0)
        for name, member in zip(classes, scans.estimators_, strict=True)
    }
    for name, value in strengths.items():
        printer.say(f"slices next to each other are coupled for {name}: strength {value:.2f}")
    extra = {"name": "ct", "features": arguments.features, "held_out_auc": scores}
    extra["positive_classes"] = classes
    extra["coupling"] = max(strengths.values())
    persist.save(scans, out, bags=bags, extra=extra)
    printer.say(f"saved {escape(str(out))}: finds {', '.join(classes)}")
    return {
        "model": str(out),
        "classes": classes,
        "scans": len(bags),
        "slices": bags.n_instances,
        "held_out_auc": scores,
        "strengths": strengths,
    }


def predict(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Positive classes in folders of DICOM series: a table of scans, one of slices, and a page."""
    from bagwise import persist
    from bagwise.report.predictions import predict_tables
    from bagwise.report.scans import write_scans
    from bagwise.vision.ct_labels import label_scans, read_ct_labels

    about = persist.about(arguments.model)
    classes = about["extra"].get("positive_classes")
    if classes is None:
        raise ValueError(f"{str(arguments.model)!r} is not a model of scans; train one: ct fit.")
    members = persist.load(arguments.model).estimators_
    holds = ("report.html", "scans.csv", "slices.csv")
    out = check_output(arguments.out, arguments.force, holds)
    bags, scans = _read(arguments, about["extra"]["features"], printer)
    truth = None
    if arguments.labels is not None:
        labels = read_ct_labels(arguments.labels)
        truth = label_scans(bags, _columns(labels, classes, arguments.labels))[0]
    with printer.working(f"predicting {len(bags)} scans"), new_folder(out) as folder:
        tables = {
            name: predict_tables(member, bags, 0.5, ["no", name])
            for name, member in zip(classes, members, strict=True)
        }
        write_scans(tables, bags, scans, folder / "report.html", about=about, truth=truth)
        _write_tables(folder, scans, bags, tables, truth)
    counts = {name: int((t.bags["label"] == name).sum()) for name, t in tables.items()}
    shown = ", ".join(f"{name} in {n}" for name, n in counts.items())
    printer.say(f"{len(bags)} scans: {shown}; see {escape(str(out / 'report.html'))}")
    return {"out": str(out), "scans": len(bags), "positive": counts, "files": list(holds)}


def _columns(labels: pd.DataFrame, classes: Sequence[str], path: Path) -> pd.DataFrame:
    for name in classes:
        if name not in labels:
            raise ValueError(f"{path} has no class {name!r}; it has {', '.join(map(str, labels))}.")
    return labels[list(classes)]


def _read(arguments: Namespace, features: str, printer: Printer) -> tuple[Bags, list[ScanFiles]]:
    """Bags of described slices, and the files that they come from."""
    from bagwise.vision.ct import ct_windows, describe_slice, find_scans, scan_bags, shrink

    def windows(hu: Reals) -> Reals:
        return ct_windows(shrink(hu, (64, 64)))

    scans = find_scans(
        arguments.scans,
        series=arguments.series,
        skip_bad=arguments.skip_bad,
        progress=printer.bar("reading headers"),
    )
    bags = scan_bags(
        printer.bar("reading scans")(scans, len(scans)),
        windows if features == "attention" else describe_slice,
    )
    n_other = sum(len(scan.others) for scan in scans)
    if n_other:
        printer.say(f"{n_other} other series were left out; --series chooses by name")
    return bags, scans


def _cross_validated(
    model: Model,
    bags: Bags,
    Y: NDArray[np.int64],
    arguments: Namespace,
    printer: Printer,
    classes: Sequence[str],
) -> dict[str, float]:
    """Held-out AUC of each class."""
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(arguments.cv, shuffle=True, random_state=arguments.seed)
    scores = {}
    for name, y in zip(classes, Y.T, strict=True):
        with printer.working(f"cross-validating {name}"):
            p = cross_val_predict(model, bags, y, cv=folds, method="predict_proba")[:, 1]
        scores[name] = float(roc_auc_score(y, p))
    with_it = [f"{n} of {len(Y)}" for n in Y.sum(axis=0)]
    rows = list(zip(classes, with_it, scores.values(), strict=True))
    printer.table(("class", "scans with it", f"AUC, {arguments.cv} folds"), rows, words=("class",))
    return scores


def _write_tables(
    folder: Path,
    scans: Sequence[ScanFiles],
    bags: Bags,
    tables: Mapping[str, Predictions],
    truth: NDArray[np.int64] | None,
) -> None:
    """Write scans.csv and slices.csv, with a probability and its deviation for every class."""
    of_scans: dict[str, object] = {
        "scan": bags.ids,
        "series": [scan.description for scan in scans],
        "n_slices": bags.sizes,
        "missing_slices": ["; ".join(scan.gaps) for scan in scans],
    }
    of_slices: dict[str, object] = {
        "scan": np.repeat(bags.ids, bags.sizes),
        "index": np.concatenate([np.arange(n) for n in bags.sizes]),
        "slice": bags.columns["slice_id"],
        "position": bags.columns["position"],
        "file": [str(file.path) for scan in scans for file in scan.slices],
    }
    for i, (name, table) in enumerate(tables.items()):
        assert table.instances is not None  # a model of scans has slices
        for columns, frame in ((of_scans, table.bags), (of_slices, table.instances)):
            columns[f"p_{name}"], columns[f"std_{name}"] = frame["probability"], frame["std"]
        if truth is not None:
            of_scans[f"label_{name}"] = truth[:, i]
    pd.DataFrame(of_scans).to_csv(folder / "scans.csv", index=False)
    pd.DataFrame(of_slices).to_csv(folder / "slices.csv", index=False)
