"""One self-contained HTML file that says which bags are positive, why, and how sure we are.

Nothing is loaded from anywhere: style, script and data are in the page. Numbers per instance
travel as base64 of small integers, so that a hundred thousand instances take about a megabyte.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.evaluate import Audit, Proportion, Rates, reliability_curve
from bagwise.files import FileProblem, new_file
from bagwise.files.problems import list_problems
from bagwise.report.charts import Axis, Series, histogram, line_chart
from bagwise.report.evaluation import Evaluation
from bagwise.report.mixtures import shown_clusters
from bagwise.report.predictions import Predictions

if TYPE_CHECKING:
    from bagwise.core.arrays import Column, Floats, Ints
    from bagwise.models.dpmil import ClusterExamples


# Instances put into the page, and of one bag once that is too few for all; instances.parquet
# has every one of them.
_MAX_INSTANCES = 150_000
_MAX_OF_BAG = 30_000
# Patients listed in the page; patients.csv has all of them.
_MAX_PATIENTS = 500
_MAX_PIXELS = 6_000_000
# Clusters shown of each class.
_CLUSTERS = 4
# A curve keeps this many points; the eye sees no more.
_MAX_POINTS = 300
_UNIT = Axis("", 0.0, 1.0)


class Report(NamedTuple):
    """Everything the page shows.

    ``evaluation`` is about the bags of this page, ``cross_validated`` about the bags the model
    was trained on, each predicted by a model that had not seen it; ``n_seen`` counts the bags of
    this page that the model was trained on. ``audit`` is what `evaluate.audit` found in the
    training bags, ``clusters`` what `DPMIL.nearest_instances` says of these bags.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report import Report, predict_tables
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> made = predict_tables(make_model("single-instance").fit(bags, y), bags)
    >>> Report(made, bags, {"model": "single-instance"}, truth=y).title
    'Predictions'
    """

    predictions: Predictions
    bags: Bags
    about: dict[str, Any]
    truth: Column | None = None
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
    >>> from bagwise.report.html import Report, write_report
    >>> from bagwise.report.predictions import predict_tables
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> made = predict_tables(make_model("single-instance").fit(bags, y), bags)
    >>> page = write_report(Report(made, bags, {}), pathlib.Path(tempfile.mkdtemp()) / "r.html")
    >>> "<!doctype html>" in page.read_text(encoding="utf-8")
    True
    """
    with new_file(path) as draft:
        draft.write_text(render_report(report), encoding="utf-8")
    return Path(path)


def render_report(report: Report) -> str:
    """The page as text."""
    assets = files("bagwise.report") / "assets"
    data = json.dumps(_payload(report), separators=(",", ":"), allow_nan=False)
    page = (assets / "report.html").read_text(encoding="utf-8")
    script = (assets / "report.js").read_text(encoding="utf-8")
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    parts = {
        # The browser runs this script and no other, whatever a name manages to smuggle in.
        "script-hash": f"sha256-{base64.b64encode(digest).decode('ascii')}",
        "title": escape(report.title),
        "style": (assets / "report.css").read_text(encoding="utf-8"),
        "script": script,
        # "</script>" inside a name must not end the data.
        "data": data.replace("<", "\\u003c"),
        "lead": _lead(report),
        "tiles": _tiles(report),
        "warnings": _warnings(report),
        "evaluation": _evaluation(report),
        "patients": _patients(report),
        "clusters": _clusters(report),
        "audit": _audit(report.audit),
        "about": _about(report),
    }
    for name, text in parts.items():
        page = page.replace(f"<!--{name}-->", text)
    return page


# The data the script works on.


def _payload(report: Report) -> dict[str, object]:
    table, bags = report.predictions.bags, report.bags
    payload: dict[str, object] = {
        "classes": [str(c) for c in report.predictions.classes],
        "threshold": report.predictions.threshold,
        "ids": [str(v) for v in table["id"]],
        "p": _rounded(table["probability"]),
        "std": _rounded(table["std"]),
        "label": [report.predictions.classes.index(v) for v in table["label"].tolist()],
        "n": bags.sizes.tolist(),
        "truth": _truth_codes(report),
        "score": _rounded(table["score"]) if "score" in table else None,
    }
    measured = report.evaluation or report.cross_validated
    if measured is not None:
        payload["evaluation"] = {"y": measured.y.tolist(), "p": _rounded(measured.probability)}
    if report.predictions.instances is not None:
        payload["instances"] = _instance_payload(report)
    return payload


def _truth_codes(report: Report) -> list[int | None] | None:
    if report.truth is None:
        return None
    codes = {c: i for i, c in enumerate(report.predictions.classes)}
    return [codes.get(v) for v in np.asarray(report.truth).tolist()]


def _instance_payload(report: Report) -> dict[str, Any]:
    """Instances of the most probable bags, as many as fit the page."""
    bags, table = report.bags, report.predictions.instances
    assert table is not None  # asked only of models that rank instances
    value = table["probability"].to_numpy()
    if np.isnan(value).any():  # scores only: their rank is all there is to show
        value = table["score"].rank(pct=True).to_numpy()
    shown = _shown_bags(report)
    cap = _cap(report)
    parts = [_sample(value, bags.offsets[i], bags.offsets[i + 1], cap) for i in shown]
    rows = np.concatenate(parts)
    above = (value > 0.5).astype(np.float64)
    sizes = [len(part) for part in parts]
    payload: dict[str, object] = {
        "bags": shown.tolist(),
        "sizes": sizes,
        "p": _packed(value[rows]),
        "std": None,
        "above": np.asarray(segments.sum(above, bags.offsets))[shown].astype(int).tolist(),
    }
    if any(len(part) < bags.sizes[i] for part, i in zip(parts, shown, strict=True)):
        numbers = rows - np.repeat(bags.offsets[:-1][shown], sizes)
        payload["numbers"] = _base64(numbers.astype("<u4"))
    std = table["std"].to_numpy()[rows]
    if np.isfinite(std).all():
        payload["std"] = _packed(np.clip(std, 0, 1))
    coords = bags.columns.get("coords")
    if coords is not None and coords.ndim == 2 and coords.shape[1] > 1:  # an order is no map
        payload["xy"] = _base64(np.asarray(coords)[rows, :2].astype("<f4"))
        size = bags.columns.get("patch_size")
        payload["patch"] = None if size is None else size[bags.offsets[:-1][shown]].tolist()
    images = bags.columns.get("images")
    if images is not None:
        payload["images"] = _image_payload(np.asarray(images), rows)
    return payload


def _cap(report: Report) -> int:
    """How many instances of one bag the page shows: all, unless that leaves no room."""
    return _MAX_INSTANCES if report.bags.n_instances <= _MAX_INSTANCES else _MAX_OF_BAG


def _shown_bags(report: Report) -> Ints:
    """The most probable bags whose instances fit the page: at least one."""
    table = report.predictions.bags
    value = table["score" if "score" in table else "probability"].to_numpy()
    order = np.argsort(-np.nan_to_num(value), kind="stable")
    used = np.cumsum(np.minimum(report.bags.sizes[order], _cap(report)))
    return order[: max(1, int((used <= _MAX_INSTANCES).sum()))]


def _sample(value: Floats, start: int, stop: int, cap: int) -> Ints:
    """Rows of a bag; of a large one, the most probable half of ``cap`` and an even spread."""
    if stop - start <= cap:
        return np.arange(start, stop)
    top = np.argsort(-value[start:stop], kind="stable")[: cap // 2]
    rest = np.delete(np.arange(stop - start), top)
    spread = rest[np.linspace(0, len(rest) - 1, cap - len(top)).astype(int)]
    return start + np.sort(np.concatenate([top, spread]))


def _image_payload(images: NDArray[np.number], rows: Ints) -> dict[str, object] | None:
    """Raw pixels, gray or RGB, thinned until they fit."""
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3, 4)):
        return None
    step = 1
    while len(rows) * (images.shape[1] // step) * (images.shape[2] // step) > _MAX_PIXELS:
        step += 1
    small = images[rows][:, ::step, ::step]
    if small.dtype != np.uint8:
        low, high = float(small.min()), float(small.max())
        small = ((small - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    small = small[..., None] if small.ndim == 3 else small[..., :3]
    return {
        "height": small.shape[1],
        "width": small.shape[2],
        "channels": small.shape[3],
        "pixels": _base64(small),
    }


def _packed(values: Floats) -> str:
    return _base64(np.round(np.clip(values, 0, 1) * 65535).astype("<u2"))


def _base64(array: NDArray[np.number]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _rounded(values: Iterable[float]) -> list[float | None]:
    return [round(float(v), 5) if np.isfinite(v) else None for v in values]


# The parts that are written here.


def _lead(report: Report) -> str:
    table, classes = report.predictions.bags, report.predictions.classes
    positive = int((table["label"] == classes[-1]).sum())
    name = report.about.get("extra", {}).get("name") or report.about.get("model")
    model = f"The model <strong>{escape(str(name))}</strong>" if name else "The model"
    return (
        f"{model} calls <strong>{positive} of {len(table)}</strong> bags "
        f"<span class='tag pos'>{escape(str(classes[-1]))}</span>. Open a bag to see which of "
        "its instances made it so, and how sure the model is."
    )


def _tiles(report: Report) -> str:
    bags = report.bags
    tiles = [
        (f"{len(bags):,}", "bags"),
        (f"{bags.n_instances:,}", "instances"),
        (f"{bags.n_features:,}", "features"),
        (f"{int(np.median(bags.sizes)):,}", "instances in a typical bag"),
    ]
    if report.predictions.patients is not None:
        tiles.append((f"{len(report.predictions.patients):,}", "patients"))
    for found, where in [(report.cross_validated, "cross-validated"), (report.evaluation, "here")]:
        if found is not None and found.has_both_classes:
            where = "on bags it was trained on" if where == "here" and report.n_seen else where
            tiles.append((f"{found.metrics()['auc']:.3f}", f"area under the ROC curve, {where}"))
    return "".join(
        f"<div class='tile'><b>{value}</b><span>{what}</span></div>" for value, what in tiles
    )


def _warnings(report: Report) -> str:
    remarks = [f"Training data: {r}" for r in report.about.get("extra", {}).get("remarks", [])]
    remarks += [f"Left out: {line}" for line in list_problems(report.skipped)]
    if report.n_seen:
        remarks.append(
            f"The model was trained on {report.n_seen} of these {len(report.bags)} bags. What it "
            "says about them looks better than what it would say about new ones."
        )
    remarks += report.predictions.notes
    strength = report.about.get("extra", {}).get("coupling")
    if isinstance(strength, (int, float)) and strength > 0:
        remarks.append(
            f"Instances next to each other were coupled (strength up to {strength:.2f}): maps show "
            "probabilities to which the neighbours have contributed."
        )
    if report.predictions.instances is None:
        remarks.append("This model judges whole bags; it says nothing about their instances.")
    elif report.bags.n_instances > _MAX_INSTANCES:
        remarks.append(
            f"Instances are shown for the {len(_shown_bags(report))} most probable bags; "
            f"instances.parquet has all of them. Of a bag with more than {_MAX_OF_BAG:,}, the page "
            "shows the most probable ones and an even spread of the others."
        )
    if report.predictions.bags["probability"].isna().any():
        remarks.append("This model gives scores, not probabilities.")
    if not remarks:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in remarks)
    head = "<aside class='notes' aria-label='Good to know'><h2>Good to know</h2>"
    return f"{head}<ul>{items}</ul></aside>"


def _evaluation(report: Report) -> str:
    """Figures of the bags here and of cross-validation, each under a heading of its own."""
    here, before = report.evaluation, report.cross_validated
    parts = ["<h2 id='quality'>How good is it?</h2>"]
    if here is not None and here.has_both_classes:
        flattered = "bags it was trained on (resubstitution)" if report.n_seen else here.source
        cards = [_metrics_card(here), *_rates_cards(report, here), _confusion_card(report)]
        parts.append(_figures(f"On these bags: {flattered}", [*cards, *_curve_cards(here)]))
    if before is not None and before.has_both_classes:
        cards = [_metrics_card(before), *_rates_cards(report, before)]
        cards += [] if here is not None else [_confusion_card(report)]
        title = f"On the training bags, each predicted by a model without it: {before.source}"
        parts.append(_figures(title, [*cards, *_curve_cards(before)]))
    cards = [_histogram_card(report)]
    if report.history is not None:
        cards.append(_history_card(report.history))
    return "".join([*parts, _figures("This model on these bags", cards)])


def _figures(title: str, cards: Sequence[str]) -> str:
    return f"<h3 class='source'>{escape(title)}</h3><div class='cards'>{''.join(cards)}</div>"


def _rates_cards(report: Report, found: Evaluation) -> list[str]:
    """Rates by bag and, where patients are known, by patient."""
    cards = [_rates_card(report, found, "bags")]
    if found.groups is not None and found.by_patient().has_both_classes:
        cards.append(_rates_card(report, found.by_patient(), "patients"))
    return cards


def _rates_card(report: Report, found: Evaluation, whose: str) -> str:
    """Sensitivity and specificity with intervals, as used here and as recommended."""
    used, best = found.rates(report.predictions.threshold), found.recommended()
    negative, positive = (escape(str(c)) for c in report.predictions.classes[-2:])

    def column(rates: Rates) -> list[str]:
        return [f"{rates.threshold:.2f}", _share(rates.sensitivity), _share(rates.specificity)]

    names = ["threshold", f"{positive} {whose} found", f"{negative} {whose} left alone"]
    rows = "".join(
        f"<tr><th scope='row'>{name}</th><td>{a}</td><td>{b}</td></tr>"
        for name, a, b in zip(names, column(used), column(best), strict=True)
    )
    head = "<thead><tr><td></td><th scope='col'>in use</th><th scope='col'>recommended</th></tr>"
    return _card(
        f"Sensitivity and specificity, by {whose[:-1]}",
        f"<table class='facts rates'>{head}</thead><tbody>{rows}</tbody></table>"
        "<p class='sub'>With 95 % confidence intervals. The recommended threshold makes the sum of "
        f"both largest; its shares are counted on {whose} it was not chosen on. For another goal, "
        "<code>bagwise predict</code> chooses the threshold on cross-validated bags by "
        "<code>--min-sensitivity</code>, <code>--min-specificity</code> or "
        "<code>--cost</code>.</p>",
    )


def _share(share: Proportion) -> str:
    return (
        f"{100 * share.value:.0f} % <small>({100 * share.low:.0f}–{100 * share.high:.0f}), "
        f"{share.successes} of {share.total}</small>"
    )


def _patients(report: Report) -> str:
    """A table of the patients, or nothing."""
    table = report.predictions.patients
    if table is None:
        return ""
    name = "score" if "score" in table.columns else "probability"
    positive = report.predictions.classes[-1]
    shown = table[["patient", name, "label", "bags", "positive_bags", "top_bag"]]
    rows = "".join(
        f"<tr><th scope='row'>{escape(str(patient))}</th><td>{value:.3f}</td>"
        f"<td><span class='tag {'pos' if label == positive else 'neg'}'>{escape(str(label))}</span>"
        f"</td><td>{called} of {n}</td><td>{escape(str(top))}</td></tr>"
        for patient, value, label, n, called, top in shown.head(_MAX_PATIENTS).itertuples(
            index=False
        )
    )
    more = "" if len(table) <= _MAX_PATIENTS else f" The first {_MAX_PATIENTS} are shown."
    together = "std" in table.columns  # the model read whole patients
    how = "all bags together" if together else "the most probable bag"
    columns = ["patient", name, "called", f"{escape(str(positive))} bags", "most probable bag"]
    head = "".join(f"<th scope='col'>{column}</th>" for column in columns)
    return (
        "<section aria-labelledby='patients'><h2 id='patients'>Patients</h2>"
        f"<p class='sub'>A patient is called by {how}; patients.csv has the same "
        f"table.{more}</p><div class='scroll' tabindex='0' role='region' "
        "aria-label='Table of patients'><table class='patients'><thead><tr>"
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _metrics_card(found: Evaluation) -> str:
    words = {
        "accuracy": "accuracy",
        "auc": "area under the ROC curve",
        "log_loss": "log-loss (lower is better)",
        "brier": "Brier score (lower is better)",
        "ece": "calibration error (lower is better)",
    }
    rows = "".join(
        f"<tr><th scope='row'>{words[name]}</th><td>{value:.3f}</td></tr>"
        for name, value in found.metrics().items()
    )
    return _card("In numbers", f"<table class='facts'>{rows}</table>")


def _confusion_card(report: Report) -> str:
    negative, positive = (escape(str(c)) for c in report.predictions.classes[-2:])
    start = report.predictions.threshold
    return _card(
        "Right and wrong at a threshold",
        f"<div class='slider'><label for='threshold'>call a bag {positive} above</label> "
        f"<output id='at' for='threshold'>{start:.2f}</output>"
        f"<input id='threshold' type='range' min='0.01' max='0.99' step='0.01' value='{start}'>"
        "</div><table class='confusion'><thead><tr><td></td>"
        f"<th scope='col'>called {negative}</th><th scope='col'>called {positive}</th></tr></thead>"
        f"<tbody><tr><th scope='row'>is {negative}</th><td id='tn'></td><td id='fp'></td></tr>"
        f"<tr><th scope='row'>is {positive}</th><td id='fn'></td><td id='tp'></td></tr></tbody>"
        "</table><p class='sub' id='rates' aria-live='polite'></p>",
    )


def _curve_cards(found: Evaluation) -> list[str]:
    y, p = found.y, found.probability
    auc = found.metrics()["auc"]
    fpr, tpr, _ = roc_curve(y, p)
    precision, recall, _ = precision_recall_curve(y, p)
    prevalence = float(np.mean(y))
    bins = reliability_curve(y, p)
    diagonal = Series([0, 1], [0, 1], "guide")
    return [
        _chart_card(
            "ROC curve",
            f"Area under the curve {auc:.3f}; the dashed diagonal is guessing.",
            ("false positive rate", "true positive rate"),
            [diagonal, Series(*_thin(fpr, tpr), "line")],
        ),
        _chart_card(
            "Precision and recall",
            f"Guessing would have a precision of {prevalence:.2f}, the share of positive bags.",
            ("recall", "precision"),
            [
                Series([0, 1], [prevalence, prevalence], "guide"),
                Series(*_thin(recall, precision), "line"),
            ],
        ),
        _chart_card(
            "Can the probabilities be believed?",
            "Among bags given a probability, the share that is positive. On the dashed line "
            "they agree.",
            ("predicted probability", "share that is positive"),
            [
                diagonal,
                Series(bins.predicted, bins.observed, "line"),
                Series(bins.predicted, bins.observed, "dots"),
            ],
        ),
    ]


def _histogram_card(report: Report) -> str:
    p = report.predictions.bags["probability"].to_numpy()
    p = p[np.isfinite(p)]
    if report.truth is not None and len(p) == len(report.truth):
        codes = np.asarray([-1 if c is None else c for c in _truth_codes(report) or []])
        groups = [(p[codes == 0], "bar neg"), (p[codes == 1], "bar pos"), (p[codes < 0], "bar")]
        names = [escape(str(c)) for c in report.predictions.classes]
        legend = (
            f"<p class='sub'><i class='key neg'></i> truly {names[0]} "
            f"<i class='key pos'></i> truly {names[1]}</p>"
        )
    else:
        groups, legend = [(p, "bar")], ""
    sure = int(((p < 0.1) | (p > 0.9)).sum())
    alt = f"{sure} of {len(p)} bags are below 0.1 or above 0.9."
    axis = Axis("probability of a bag", 0.0, 1.0)
    return _card("How sure is the model?", histogram("Probabilities", alt, axis, groups) + legend)


def _history_card(history: Floats) -> str:
    low, high = float(np.min(history)), float(np.max(history))
    pad = 0.05 * ((high - low) or 1.0)
    steps, values = _thin(np.arange(1, len(history) + 1), history)
    rise = f"from {history[0]:,.0f} to {history[-1]:,.0f} in {len(history)} iterations"
    alt = f"The evidence bound goes {rise}."
    chart = line_chart(
        "Training",
        alt,
        Axis("iteration", 1, max(2, len(history))),
        Axis("evidence bound", low - pad, high + pad),
        [Series(steps, values, "line")],
    )
    return _card("Training", f"{chart}<p class='sub'>{alt}</p>")


def _chart_card(title: str, alt: str, names: tuple[str, str], series: Sequence[Series]) -> str:
    x, y = (_UNIT._replace(name=name) for name in names)
    return _card(title, f"{line_chart(title, alt, x, y, series)}<p class='sub'>{alt}</p>")


def _card(title: str, inside: str) -> str:
    return f"<section class='card'><h3>{escape(title)}</h3>{inside}</section>"


def _thin(x: NDArray[np.number], y: Floats) -> tuple[NDArray[np.number], Floats]:
    if len(x) <= _MAX_POINTS:
        return x, y
    keep = np.unique(np.linspace(0, len(x) - 1, _MAX_POINTS).astype(int))
    return np.asarray(x)[keep], np.asarray(y)[keep]


def _clusters(report: Report) -> str:
    """The instances nearest to each cluster: their pictures, or where to find them."""
    shown = shown_clusters(list(report.clusters), _CLUSTERS)
    if not shown:
        return ""
    images = _pictures(report.bags)
    owner, offsets = report.bags.bag_index, report.bags.offsets
    ids = [str(i) for i in report.predictions.bags["id"]]
    cards = []
    for one in shown:
        items = []
        for row in one.rows:
            place = f"{ids[owner[row]]}, instance {row - offsets[owner[row]]}"
            picture = "" if images is None else _inline_picture(images[row], place)
            items.append(f"<li>{picture}<small>{escape(place)}</small></li>")
        title = f"class {one.label}, a cluster with {100 * one.weight:.0f} % of it"
        cards.append(_card(title, f"<ul class='gallery examples'>{''.join(items)}</ul>"))
    return (
        "<section aria-labelledby='clusters'><h2 id='clusters'>What the classes are made of</h2>"
        "<p>The model describes each class by clusters. Of the heaviest ones, these are the "
        f"instances nearest to it, each of another bag.</p><div class='cards'>{''.join(cards)}"
        "</div></section>"
    )


def _pictures(bags: Bags) -> NDArray[np.number] | None:
    """The column of pictures, where it holds some that a browser can show."""
    images = bags.columns.get("images")
    if images is None:
        return None
    images = np.asarray(images)
    has_channels = images.ndim == 4 and images.shape[3] in (1, 3, 4)
    return images if images.ndim == 3 or has_channels else None


def _inline_picture(image: NDArray[np.number], words: str) -> str:
    """A picture inside the page."""
    from matplotlib.image import imsave

    pixels = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        pixels = ((pixels - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    stream = io.BytesIO()
    imsave(stream, pixels, format="png", cmap="gray", vmin=0, vmax=255)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    return f"<img src='data:image/png;base64,{data}' alt='{escape(words, quote=True)}'>"


def _audit(audit: Audit | None) -> str:
    """What was found in the training bags, or nothing where nobody looked."""
    if audit is None:
        return ""
    head = "<section aria-labelledby='audit'><h2 id='audit'>Are the training data sound?</h2>"
    checks = escape(", ".join(audit.checks))
    if not audit.findings:
        return (
            f"{head}<p>An audit of the training bags found nothing. It made {len(audit.checks)} "
            f"checks: {checks}.</p></section>"
        )
    rows = "".join(
        f"<tr><th scope='row'>{escape(f.check)}</th><td>{escape(f.what)}</td>"
        f"<td>{escape(f.where)}</td><td>{escape(f.strength)}</td></tr>"
        for f in audit.findings
    )
    columns = "".join(
        f"<th scope='col'>{name}</th>" for name in ("check", "what", "where", "how strong")
    )
    n = len(audit.findings)
    return (
        f"{head}<p>An audit of the training bags found {n} {'thing' if n == 1 else 'things'} to "
        "look at before the figures of this page are believed. The checks made were "
        f"{checks}.</p><div class='scroll' tabindex='0' role='region' "
        f"aria-label='Findings of the audit'><table class='facts wide'><thead><tr>{columns}</tr>"
        f"</thead><tbody>{rows}</tbody></table></div></section>"
    )


def _about(report: Report) -> str:
    about = report.about
    now = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    facts = [("made", now)]
    if about.get("steps"):
        facts.append(("model", escape(" → ".join(map(str, about["steps"])))))
    training = about.get("training") or {}
    if training:
        classes = training.get("classes", {}).items()
        counts = ", ".join(f"{escape(str(n))} × {escape(str(c))}" for c, n in classes)
        facts.append(
            (
                "trained on",
                f"{training['n_bags']:,} bags ({counts}), {training['n_instances']:,} instances, "
                f"{training['n_features']:,} features",
            )
        )
    if about.get("bagwise"):
        facts.append(("saved by", f"bagwise {escape(str(about['bagwise']))}"))
    if about.get("parameters"):
        settings = ", ".join(f"{k}={v}" for k, v in about["parameters"].items())
        folded = "<details class='more'><summary>show all</summary>{}</details>"
        facts.append(("parameters", folded.format(escape(settings))))
    rows = "".join(f"<tr><th scope='row'>{k}</th><td>{v}</td></tr>" for k, v in facts)
    return f"<table class='facts wide'>{rows}</table>"
