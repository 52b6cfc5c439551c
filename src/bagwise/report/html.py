"""One self-contained HTML file: which bags are positive, why, and how certain the model is.

Nothing is loaded from anywhere: style, script and data are in the page. Text is written by
templates that escape whatever they are given; the browser runs the page's own script only.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.core.arrays import Floats
from bagwise.evaluate import Audit
from bagwise.evaluate.metrics import METRICS
from bagwise.files import FileProblem
from bagwise.files.problems import list_problems
from bagwise.files.writing import write_text
from bagwise.report import charts, payload
from bagwise.report.evaluation import Evaluation
from bagwise.report.mixtures import shown_clusters
from bagwise.report.predictions import Predictions

if TYPE_CHECKING:
    from jinja2 import Environment

    from bagwise.models.dpmil import ClusterExamples


# Clusters shown of each class.
_CLUSTERS = 4


class Report(NamedTuple):
    """Everything the page shows.

    ``truth`` holds the classes of the bags, None where unknown, or has a class axis, [B, F]: 1, 0,
    or -1 for unknown. ``evaluation`` is about the bags of this page,
    ``cross_validated`` about the bags the model was trained on, each predicted by a model that
    had not seen it; ``n_seen`` counts the bags of this page that the model was trained on.
    ``audit`` is what `evaluate.audit` returned for the training bags, ``clusters`` what
    `DPMIL.nearest_instances` returned for these bags.

    Examples
    --------
    >>> from bagwise import StatisticsClassifier, datasets
    >>> from bagwise.report import Report, predict_tables
    >>> bags, y = datasets.make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> tables = predict_tables(StatisticsClassifier().fit(bags, y), bags)
    >>> Report(tables, bags, {"model": "statistics"}, truth=y).title
    'Predictions'
    """

    predictions: Predictions
    bags: Bags
    about: dict[str, Any]
    truth: Any = None
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
    return write_text(path, render_report(report))


def render_report(report: Report) -> str:
    """The page as text."""
    predictions, bags = report.predictions, report.bags
    truth = report.truth
    if truth is not None and np.ndim(truth) == 1:
        truth = predictions.targets(truth)
    assets = files("bagwise.report") / "assets"
    script = (assets / "report.js").read_text(encoding="utf-8")
    is_cut = predictions.instances is not None and bags.n_instances > payload.MAX_INSTANCES
    return render(
        "report.html",
        # The browser runs this script and no other, whatever a name manages to smuggle in.
        script_hash=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode(),
        script=script,
        style=(assets / "report.css").read_text(encoding="utf-8"),
        data=payload.page_data(
            predictions, bags, truth, report.evaluation or report.cross_validated
        ),
        report=report,
        axis=predictions.axis,
        typical_size=int(np.median(bags.sizes)),
        problems=list_problems(report.skipped),
        n_shown=len(payload.shown_bags(predictions, bags)) if is_cut else None,
        max_of_bag=payload.MAX_OF_BAG,
        probabilities=[
            charts.probability_chart(p, None if truth is None else truth[:, f])
            for f, p in enumerate(predictions.values(predictions.bags).T)
        ],
        history=None if report.history is None else charts.history_chart(report.history),
        clusters=_clusters(report),
        now=written_at(),
    )


def written_at() -> str:
    """The time that a page carries."""
    return datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def render(template: str, **values: object) -> str:
    """A template of this package as text; values are escaped."""
    return str(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bagwise.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # "</script>" inside a name must not end the data: `tojson` writes < as \u003c.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["thousands"] = "{:,}".format
    environment.tests["has_both"] = lambda number, evaluation: evaluation.has_both(number)
    environment.globals |= {
        "chart": {k: v for k, v in vars(charts).items() if k.isupper()},
        "metrics": METRICS,
        "quality_charts": charts.quality_charts,
    }
    return environment


def _clusters(report: Report) -> list[tuple[ClusterExamples, list[tuple[str, str | None]]]]:
    """The heaviest clusters, and of each the instances nearest to it: names, and PNG as base64."""
    from matplotlib.image import imsave

    images = payload.pictures(report.bags)
    owner, offsets = report.bags.bag_index, report.bags.offsets
    ids = report.predictions.bags["id"].tolist()
    clusters = []
    for cluster in shown_clusters(list(report.clusters), _CLUSTERS):
        nearest = []
        for row in cluster.rows:
            picture = None
            if images is not None:
                # A channel of its own for gray is one that Matplotlib does not take.
                pixels = payload.as_bytes(images[row])
                pixels = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
                stream = io.BytesIO()
                imsave(stream, pixels, format="png", cmap="gray", vmin=0, vmax=255)
                picture = base64.b64encode(stream.getvalue()).decode("ascii")
            place = f"{ids[owner[row]]}, instance {row - offsets[owner[row]]}"
            nearest.append((place, picture))
        clusters.append((cluster, nearest))
    return clusters
