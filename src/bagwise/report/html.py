"""One self-contained HTML file: which bags are positive, why, and how certain the model is.

Nothing is loaded from anywhere: style, script and data are in the page. Text is written by
templates that escape whatever they are given; the browser runs the page's own script only.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.evaluate import Audit
from bagwise.evaluate.metrics import METRICS
from bagwise.files import FileProblem, new_file
from bagwise.files.problems import list_problems
from bagwise.report import charts, payload
from bagwise.report.evaluation import Evaluation
from bagwise.report.mixtures import shown_clusters
from bagwise.report.predictions import ClassColumn, Predictions

if TYPE_CHECKING:
    import pandas as pd
    from jinja2 import Environment
    from numpy.typing import NDArray

    from bagwise.core.arrays import Floats, Ints
    from bagwise.models.dpmil import ClusterExamples


# Patients listed in the page, of each class; patients.csv has all of them.
_MAX_PATIENTS = 500
# Clusters shown of each class.
_CLUSTERS = 4


class Report(NamedTuple):
    """Everything the page shows.

    ``truth`` holds the classes of the bags with a class axis, [B, F]: 1, 0, or -1 for unknown;
    `Predictions.targets` makes it of labels. ``evaluation`` is about the bags of this page,
    ``cross_validated`` about the bags the model was trained on, each predicted by a model that
    had not seen it; ``n_seen`` counts the bags of this page that the model was trained on.
    ``audit`` is what `evaluate.audit` returned for the training bags, ``clusters`` what
    `DPMIL.nearest_instances` returned for these bags.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report import Report, predict_tables
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> tables = predict_tables(make_model("single-instance").fit(bags, y), bags)
    >>> Report(tables, bags, {"model": "single-instance"}, truth=tables.targets(y)).title
    'Predictions'
    """

    predictions: Predictions
    bags: Bags
    about: dict[str, Any]
    truth: Ints | None = None
    evaluation: Evaluation | None = None
    history: Floats | None = None
    skipped: Sequence[FileProblem] = ()
    title: str = "Predictions"
    cross_validated: Evaluation | None = None
    n_seen: int = 0
    audit: Audit | None = None
    clusters: Sequence[ClusterExamples] = ()


def write_report(report: Report, path: str | Path) -> Path:
    """Write the page, whole or not at all.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report import Report, predict_tables, write_report
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> tables = predict_tables(make_model("single-instance").fit(bags, y), bags)
    >>> page = write_report(Report(tables, bags, {}), pathlib.Path(tempfile.mkdtemp()) / "r.html")
    >>> "<!doctype html>" in page.read_text(encoding="utf-8")
    True
    """
    with new_file(path) as draft:
        draft.write_text(render_report(report), encoding="utf-8")
    return Path(path)


def render_report(report: Report) -> str:
    """The page as text."""
    predictions, bags, about = report.predictions, report.bags, report.about
    assets = files("bagwise.report") / "assets"
    script = (assets / "report.js").read_text(encoding="utf-8")
    measured = report.evaluation or report.cross_validated
    return render(
        "report.html",
        # The browser runs this script and no other, whatever a name manages to smuggle in.
        script_hash=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode(),
        script=script,
        style=(assets / "report.css").read_text(encoding="utf-8"),
        data=payload.page_data(predictions, bags, report.truth, measured),
        report=report,
        model=about.get("extra", {}).get("name") or about.get("model"),
        axis=predictions.axis,
        tiles=_tiles(report),
        remarks=_remarks(report),
        class_rows=_class_rows(predictions, report.cross_validated or report.evaluation),
        sections=_sections(report),
        threshold=predictions.threshold,
        probabilities=[
            charts.probability_chart(p, None if report.truth is None else report.truth[:, f])
            for f, p in enumerate(predictions.values(predictions.bags).T)
        ],
        history=None if report.history is None else charts.history_chart(report.history),
        patients=_patients(predictions),
        max_patients=_MAX_PATIENTS,
        clusters=_clusters(report),
        facts=_facts(about),
    )


def render(template: str, **values: object) -> str:
    """A template of this package as text; values are escaped."""
    return str(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("bagwise.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # "</script>" inside a name must not end the data: `tojson` writes < as \u003c.
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    made.policies["json.dumps_function"] = json.dumps
    made.globals["chart"] = {name: getattr(charts, name) for name in dir(charts) if name.isupper()}
    return made


def _tiles(report: Report) -> list[tuple[str, str]]:
    """Figures at the top of the page, and what each is."""
    bags, n_classes = report.bags, len(report.predictions.axis)
    tiles = [
        (f"{len(bags):,}", "bags"),
        (f"{bags.n_instances:,}", "instances"),
        (f"{bags.n_features:,}", "features"),
        (f"{int(np.median(bags.sizes)):,}", "instances in a typical bag"),
    ]
    if n_classes > 1:
        tiles.append((f"{n_classes}", "classes"))
    if report.predictions.patients is not None:
        n_patients = report.predictions.patients["patient"].nunique()
        tiles.append((f"{n_patients:,}", "patients"))
    here = "on bags it was trained on" if report.n_seen else "here"
    mean = ", mean over classes" if n_classes > 1 else ""
    for evaluation, where in (
        (report.cross_validated, "cross-validated"),
        (report.evaluation, here),
    ):
        if evaluation is not None and evaluation.has_both_classes:
            auc = evaluation.metrics()["auc"]
            tiles.append((f"{auc:.3f}", f"area under the ROC curve{mean}, {where}"))
    return tiles


def _remarks(report: Report) -> list[str]:
    """What a reader should know before believing the page."""
    predictions, bags, extra = report.predictions, report.bags, report.about.get("extra", {})
    remarks = [f"Training data: {remark}" for remark in extra.get("remarks", [])]
    remarks += [f"Left out: {line}" for line in list_problems(report.skipped)]
    if report.n_seen:
        remarks.append(
            f"The model was trained on {report.n_seen} of these {len(bags)} bags. Its predictions "
            "of them look better than those of new bags would."
        )
    remarks += predictions.notes
    strength = extra.get("coupling")
    if isinstance(strength, (int, float)) and strength > 0:
        remarks.append(
            f"Instances next to each other were coupled (strength up to {strength:.2f}): maps show "
            "probabilities to which the neighbours have contributed."
        )
    if predictions.instances is None:
        remarks.append("This model judges whole bags; it has no predictions of their instances.")
    elif bags.n_instances > payload.MAX_INSTANCES:
        remarks.append(
            f"Instances are shown for the {len(payload.shown_bags(predictions, bags))} most "
            "probable bags; instances.parquet has all of them. Of a bag with more than "
            f"{payload.MAX_OF_BAG:,}, the page shows the most probable ones and an even spread of "
            "the others."
        )
    if predictions.has_scores:
        remarks.append("This model gives scores, not probabilities.")
    return remarks


def _class_rows(predictions: Predictions, evaluation: Evaluation | None) -> list[dict[str, Any]]:
    """A row per class: how many bags are called it, and the threshold recommended for it."""
    if len(predictions.axis) == 1:
        return []
    rows: list[Any] = [{} for _ in predictions.axis]
    if evaluation is not None:
        rows = evaluation.per_class().to_dict("records")
    called, mean = predictions.called.sum(axis=0), predictions.values(predictions.bags).mean(axis=0)
    return [
        {**row, "class": column.positive, "called": int(n), "mean": float(p)}
        for row, column, n, p in zip(rows, predictions.axis, called, mean, strict=True)
    ]


class _Section(NamedTuple):
    """The figures of one evaluation."""

    title: str
    evaluation: Evaluation
    metrics: list[tuple[str, float]]
    has_slider: bool  # the page has one, for the first evaluation
    classes: list[dict[str, Any]]  # rates and charts of every class that has them


def _sections(report: Report) -> list[_Section]:
    """Figures of the bags here and of cross-validation, each under a heading of its own."""
    here, before = report.evaluation, report.cross_validated
    sections = []
    if here is not None and here.has_both_classes:
        source = "bags it was trained on (resubstitution)" if report.n_seen else here.source
        sections.append(_section(report, f"On these bags: {source}", here))
    if before is not None and before.has_both_classes:
        title = f"On the training bags, each predicted by a model without it: {before.source}"
        sections.append(_section(report, title, before)._replace(has_slider=here is None))
    return sections


def _section(report: Report, title: str, evaluation: Evaluation) -> _Section:
    metrics = evaluation.metrics()
    named = [
        (
            METRICS[name].title + (" (lower is better)" if METRICS[name].lower_is_better else ""),
            value,
        )
        for name, value in metrics.items()
    ]
    threshold, classes = report.predictions.threshold, []
    for number, column in enumerate(report.predictions.axis):
        if not evaluation.has_both(number):
            continue
        y, p = evaluation.y[:, number], evaluation.probability[:, number]
        auc = METRICS["auc"].function(y[:, None], p[:, None])
        of_patients = evaluation.by_patient() if evaluation.groups is not None else None
        classes.append(
            {
                "number": number,
                "column": column,
                # At the threshold in use, and at the recommended one.
                "rates": [
                    (whose, source.rates(threshold, number), source.recommended(None, number))
                    for whose, source in (("bags", evaluation), ("patients", of_patients))
                    if source is not None and source.has_both(number)
                ],
                "charts": charts.quality_charts(y, p, auc),
            }
        )
    return _Section(title, evaluation, named, True, classes)


def _patients(predictions: Predictions) -> list[tuple[ClassColumn, pd.DataFrame]]:
    """The table of patients of every class; nothing where they are unknown."""
    if predictions.patients is None:
        return []
    tables = []
    for number, column in enumerate(predictions.axis):
        table = predictions.of_class(number).patients
        assert table is not None
        tables.append((column, table.rename(columns={"score": "probability"})))
    return tables


def _clusters(report: Report) -> list[tuple[str, list[tuple[str, str | None]]]]:
    """Titles of the heaviest clusters, and of each the instances nearest to it, with pictures."""
    images = payload.pictures(report.bags)
    owner, offsets = report.bags.bag_index, report.bags.offsets
    ids = report.predictions.bags["id"].tolist()
    cards = []
    for cluster in shown_clusters(list(report.clusters), _CLUSTERS):
        nearest = []
        for row in cluster.rows:
            place = f"{ids[owner[row]]}, instance {row - offsets[owner[row]]}"
            nearest.append((place, None if images is None else _png(images[row])))
        share = f"{100 * cluster.weight:.0f} %"
        cards.append((f"class {cluster.label}, a cluster with {share} of it", nearest))
    return cards


def _png(image: NDArray[Any]) -> str:
    """A picture as base64."""
    from matplotlib.image import imsave

    pixels = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    stream = io.BytesIO()
    imsave(stream, payload.as_bytes(pixels), format="png", cmap="gray", vmin=0, vmax=255)
    return base64.b64encode(stream.getvalue()).decode("ascii")


def _facts(about: dict[str, Any]) -> list[tuple[str, str]]:
    """What is known about the model and this page."""
    now = datetime.datetime.now(tz=datetime.UTC)
    facts = [("made", now.strftime("%Y-%m-%d %H:%M UTC"))]
    if about.get("steps"):
        facts.append(("model", " → ".join(map(str, about["steps"]))))
    training = about.get("training") or {}
    if training:
        counts = ", ".join(f"{n} × {name}" for name, n in training.get("classes", {}).items())
        facts.append(
            (
                "trained on",
                f"{training['n_bags']:,} bags ({counts}), {training['n_instances']:,} instances, "
                f"{training['n_features']:,} features",
            )
        )
    if about.get("bagwise"):
        facts.append(("saved by", f"bagwise {about['bagwise']}"))
    if about.get("parameters"):
        settings = ", ".join(f"{name}={value}" for name, value in about["parameters"].items())
        facts.append(("parameters", settings))
    return facts
