"""Several classes: tables with a column per class, an overview page, and a page for each class.

The page of a class is the report that two classes have, of this class against all others, with
its curves, its thresholds and its instances; the overview says which bag is of which class.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.evaluate import Fold, Goal, score_predictions
from bagwise.evaluate.metrics import is_multilabel, targets
from bagwise.files import FileProblem, new_file
from bagwise.models.pipeline import last_step
from bagwise.report.evaluation import METRICS, Evaluation, patient_codes
from bagwise.report.html import Report, write_report
from bagwise.report.predictions import (
    Predictions,
    instance_places,
    model_notes,
    patient_table,
)

# Bags listed in the overview; bags.csv has all of them.
_MAX_BAGS = 1000
# What ``bagwise predict`` writes beside the overview for the pages of the classes.
CLASS_FOLDER = "classes"


class ClassEvaluation(NamedTuple):
    """True classes and predicted probabilities of bags the model had not seen, a column per class.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.report import ClassEvaluation
    >>> p = np.array([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]])
    >>> ClassEvaluation("my test set", ["a", "b", "c"], np.eye(3, dtype=int), p).metrics()["auc"]
    1.0
    """

    source: str
    classes: list[Any]
    y: Any  # [B, C] 0/1
    probability: Any  # [B, C]
    groups: Any = None  # [B] codes of patients, whose bags are not independent

    @property
    def exclusive(self) -> bool:
        """Whether every bag has one class."""
        return bool((self.y.sum(axis=1) == 1).all())

    @property
    def called(self) -> Any:
        """The classes that the probabilities speak for, [B, C] 0/1."""
        if not self.exclusive:
            return (self.probability > 0.5).astype(int)
        return (self.probability.argmax(axis=1)[:, None] == np.arange(len(self.classes))).astype(
            int
        )

    def metrics(self) -> dict[str, float]:
        """Accuracy, and the other metrics as means over the classes; see `score_predictions`."""
        return score_predictions(
            self.y,
            label=self.called,
            score=self.probability,
            proba=self.probability,
            metrics=METRICS,
        )

    def of_class(self, number: int) -> Evaluation:
        """One class against all others."""
        source = f"{self.source}, {self.classes[number]} against all others"
        y, p = self.y[:, number], self.probability[:, number]
        return Evaluation(source, y, p, self.groups)

    def per_class(self, goal: Goal | None = None) -> Any:
        """A row per class: bags, AUC, and the threshold these bags recommend, with its rates."""
        import pandas as pd

        rows = []
        for number, name in enumerate(self.classes):
            own = self.of_class(number)
            row: dict[str, Any] = {"class": name, "bags": int(own.y.sum())}
            if own.has_both_classes:
                best = own.recommended(goal)
                row |= {"auc": own.metrics()["auc"], "threshold": best.threshold}
                row |= {
                    "sensitivity": best.sensitivity.value,
                    "specificity": best.specificity.value,
                }
            rows.append(row)
        columns = ["class", "bags", "auc", "threshold", "sensitivity", "specificity"]
        return pd.DataFrame(rows, columns=columns)

    def confusion(self) -> Any:
        """How many bags of each class (rows) were called each class (columns); one class a bag."""
        return self.y.T @ self.called

    def as_json(self) -> dict[str, Any]:
        """For storing beside a model."""
        stored = {
            "source": self.source,
            "classes": list(self.classes),
            "y": self.y.tolist(),
            "p": self.probability.tolist(),
        }
        return stored if self.groups is None else {**stored, "groups": self.groups.tolist()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> ClassEvaluation:
        """What `as_json` stored."""
        y, p = np.asarray(stored["y"]), np.asarray(stored["p"], dtype=float)
        groups = stored.get("groups")
        groups = None if groups is None else np.asarray(groups)
        return cls(stored["source"], stored["classes"], y, p, groups)

    @classmethod
    def from_folds(
        cls, folds: Sequence[Fold], source: str, classes: Sequence[Any], patients: Any = None
    ) -> ClassEvaluation:
        """The held-out predictions of one repetition of `evaluate.cross_validate`, in bag order."""
        if any(fold.bags.proba is None for fold in folds):
            raise ValueError("the model gives no probabilities; set calibrate=True where it can.")
        order = np.argsort(np.concatenate([fold.split.test for fold in folds]))
        y = np.concatenate([fold.bags.y for fold in folds])[order]
        p = np.concatenate([np.asarray(fold.bags.proba) for fold in folds])[order]
        return cls(source, list(classes), y, p, patient_codes(patients))


class ClassPredictions(NamedTuple):
    """Tables of a model's answers about several classes.

    ``bags`` has the columns id and label, and ``probability_NAME`` and ``std_NAME`` for every
    class; where a bag may have several classes, label holds their names with ``|`` between them.
    ``instances`` has bag, index, coordinates where known, and the same columns, or is None.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import OneVsRest, SingleInstance
    >>> from bagwise.bags import Bags
    >>> from bagwise.report import ClassPredictions, predict_class_tables
    >>> bags = Bags(np.random.default_rng(0).normal(size=(90, 2)), np.arange(0, 91, 3))
    >>> model = OneVsRest(SingleInstance()).fit(bags, np.arange(30) % 3)
    >>> predictions = predict_class_tables(model, bags)
    >>> isinstance(predictions, ClassPredictions), predictions.probability.shape
    (True, (30, 3))
    """

    bags: Any
    instances: Any
    classes: list[Any]
    probability: Any  # [B, C]
    std: Any  # [B, C]
    called: Any  # [B, C] 0/1
    multilabel: bool
    notes: Sequence[str] = ()  # see `model_notes`

    def of_class(self, number: int, patients: Any = None) -> Predictions:
        """One class against all others, as tables of two classes."""
        import pandas as pd

        name = self.classes[number]
        names = [f"not {name}", name]
        called = self.called[:, number] == 1
        columns = {
            "id": self.bags["id"].to_numpy(),
            "probability": self.probability[:, number],
            "std": self.std[:, number],
            "label": np.asarray(names, dtype=object)[called.astype(int)],
        }
        table, instances = pd.DataFrame(columns), None
        if self.instances is not None:
            own = {f"probability_{name}": "probability", f"std_{name}": "std"}
            others = [c for c in self.instances.columns if c.startswith(("probability_", "std_"))]
            kept = [c for c in self.instances.columns if c not in others or c in own]
            instances = self.instances[kept].drop(columns="label").rename(columns=own)
        by_patient = None if patients is None else patient_table(table, patients, names, 0.5)
        return Predictions(table, instances, names, 0.5, by_patient, self.notes)


def predict_class_tables(model: Any, bags: Bags, threshold: float = 0.5) -> ClassPredictions:
    """Probability and uncertainty of every class, for every bag and instance.

    ``threshold`` counts where a bag may have several classes; where it has one, that is the most
    probable.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import OneVsRest, SingleInstance
    >>> from bagwise.bags import Bags
    >>> from bagwise.report import predict_class_tables
    >>> X = np.random.default_rng(0).normal(size=(30, 3, 2))
    >>> bags = Bags(X.reshape(-1, 2), np.arange(0, 91, 3))
    >>> model = OneVsRest(SingleInstance()).fit(bags, np.arange(30) % 3)
    >>> list(predict_class_tables(model, bags).bags.columns)[:4]
    ['id', 'label', 'probability_0', 'std_0']
    """
    import pandas as pd

    if not hasattr(model, "predict_proba"):
        raise ValueError(
            "tables of several classes need probabilities, and this model gives none; set "
            "calibrate=True where it can."
        )
    classes = np.asarray(model.classes_)
    multilabel = is_multilabel(model)
    p, std = _probabilities(model, bags, "")
    called = _called(p, multilabel, threshold)
    columns = {"id": bags.ids, "label": _names(called, classes, multilabel)}
    table = pd.DataFrame({**columns, **_named(classes, p, std)})
    instances = None
    if hasattr(model, "predict_proba_instances"):
        q, q_std = _probabilities(model, bags, "_instances")
        label = _names(_called(q, multilabel, threshold), classes, multilabel)
        places = instance_places(bags)
        instances = pd.DataFrame({**places, "label": label, **_named(classes, q, q_std)})
    names, notes = classes.tolist(), model_notes(model)
    return ClassPredictions(table, instances, names, p, std, called, multilabel, notes)


def _probabilities(model: Any, bags: Bags, twin: str) -> tuple[Any, Any]:
    """Probability of each class and its standard deviation, NaN where a model gives none."""
    name = f"predict_proba{twin}"
    if "return_std" in inspect.signature(getattr(last_step(model), name)).parameters:
        return getattr(model, name)(bags, return_std=True)
    p = getattr(model, name)(bags)
    return p, np.full(p.shape, np.nan)


def _called(p: Any, multilabel: bool, threshold: float) -> Any:
    if multilabel:
        return (p > threshold).astype(int)
    return (p.argmax(axis=1)[:, None] == np.arange(p.shape[1])).astype(int)


def _names(called: Any, classes: Any, multilabel: bool) -> Any:
    if not multilabel:
        return classes[called.argmax(axis=1)]
    return np.array(["|".join(map(str, classes[row == 1])) for row in called], dtype=object)


def _named(classes: Any, p: Any, std: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for c, name in enumerate(classes):
        columns |= {f"probability_{name}": p[:, c], f"std_{name}": std[:, c]}
    return columns


def evaluate_classes(
    model: Any, bags: Bags, y: Any, source: str, probability: Any = None, patients: Any = None
) -> ClassEvaluation:
    """Evaluate a fitted model on labelled bags; ``probability`` saves predicting them again."""
    truth = targets(y, model)
    p = model.predict_proba(bags) if probability is None else probability
    return ClassEvaluation(
        source, np.asarray(model.classes_).tolist(), truth, np.asarray(p), patient_codes(patients)
    )


class ClassReport(NamedTuple):
    """Everything the pages of several classes show; compare `Report`.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import OneVsRest, SingleInstance
    >>> from bagwise.bags import Bags
    >>> from bagwise.report import ClassReport, predict_class_tables
    >>> bags = Bags(np.random.default_rng(0).normal(size=(90, 2)), np.arange(0, 91, 3))
    >>> model = OneVsRest(SingleInstance()).fit(bags, np.arange(30) % 3)
    >>> ClassReport(predict_class_tables(model, bags), bags, {}).n_seen
    0
    """

    predictions: ClassPredictions
    bags: Bags
    about: dict[str, Any]
    truth: Any = None  # [B, C] 0/1, -1 in the rows of bags without a label
    evaluation: ClassEvaluation | None = None
    cross_validated: ClassEvaluation | None = None
    patients: Any = None
    skipped: Sequence[FileProblem] = ()
    n_seen: int = 0


def write_class_reports(report: ClassReport, folder: str | Path) -> list[Path]:
    """Write the overview ``report.html``, and ``classes/NAME/report.html`` for each class.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from bagwise import OneVsRest, SingleInstance
    >>> from bagwise.bags import Bags
    >>> from bagwise.report import ClassReport, predict_class_tables, write_class_reports
    >>> bags = Bags(np.random.default_rng(0).normal(size=(90, 2)), np.arange(0, 91, 3))
    >>> model = OneVsRest(SingleInstance()).fit(bags, np.arange(30) % 3)
    >>> report = ClassReport(predict_class_tables(model, bags), bags, {})
    >>> len(write_class_reports(report, tempfile.mkdtemp()))
    4
    """
    folder = Path(folder)
    written = []
    links = class_folders(report.predictions.classes)
    for number, (name, link) in enumerate(zip(report.predictions.classes, links, strict=True)):
        own = folder / CLASS_FOLDER / link
        own.mkdir(parents=True)
        truth = None
        if report.truth is not None:
            names = np.array([f"not {name}", name, None], dtype=object)
            truth = names[report.truth[:, number]]  # -1 is the last: no label
        here, before = report.evaluation, report.cross_validated
        page = Report(
            report.predictions.of_class(number, report.patients),
            report.bags,
            report.about,
            truth,
            None if here is None else here.of_class(number),
            None,
            report.skipped,
            title=f"{name}",
            cross_validated=None if before is None else before.of_class(number),
            n_seen=report.n_seen,
        )
        written.append(write_report(page, own / "report.html"))
    with new_file(folder / "report.html") as draft:
        draft.write_text(render_overview(report, links), encoding="utf-8")
    return [folder / "report.html", *written]


def class_folders(classes: Sequence[Any]) -> list[str]:
    """A folder name for each class, safe on every file system.

    Examples
    --------
    >>> from bagwise.report.classes import class_folders
    >>> class_folders(["a/b", "a b", 3])
    ['a-b', 'a-b-2', '3']
    """
    made: list[str] = []
    for name in classes:
        plain = re.sub(r"[^A-Za-z0-9_]+", "-", str(name)).strip("-")[:60] or "class"
        same = sum(other == plain or other.startswith(f"{plain}-") for other in made)
        made.append(f"{plain}-{same + 1}" if same else plain)
    return made


def render_overview(report: ClassReport, links: Sequence[str]) -> str:
    """The overview as text: one self-contained page without a script."""
    style = (files("bagwise.report") / "assets" / "report.css").read_text(encoding="utf-8")
    parts = [_lead(report), _tiles(report), _class_table(report, links)]
    for found, title in (
        (report.evaluation, "On these bags"),
        (report.cross_validated, "On the training bags, each predicted by a model without it"),
    ):
        if found is not None:
            parts.append(_quality(found, title))
    parts.append(_bag_table(report, links))
    head = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src "
        "'unsafe-inline'\"><meta name='color-scheme' content='light dark'>"
        f"<title>Predictions · bagwise</title><style>{style}{_STYLE}</style></head>"
    )
    foot = "<footer>Made by bagwise. This page loads nothing from anywhere.</footer></body></html>"
    return f"{head}<body><main><h1>Predictions</h1>{''.join(parts)}</main>{foot}"


_STYLE = (
    ".grid{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;"
    "background:var(--card)}.grid th,.grid td{padding:6px 10px;text-align:right;"
    "border-bottom:1px solid var(--line);white-space:nowrap}"
    ".grid .name{text-align:left}.grid a{color:var(--accent)}"
    ".grid td.p{background:color-mix(in srgb,var(--pos) calc(var(--w)*45%),transparent)}"
)


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], label: str, n_names: int = 1
) -> str:
    """A table whose cells are HTML already; the first ``n_names`` columns hold names."""
    head = "".join(
        f"<th scope='col'{' class=name' if i < n_names else ''}>{escape(c)}</th>"
        for i, c in enumerate(columns)
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='{escape(label)}'>"
        f"<table class='grid'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _lead(report: ClassReport) -> str:
    made = report.predictions
    name = report.about.get("extra", {}).get("name") or report.about.get("model") or "the model"
    each = "may have several of" if made.multilabel else "has one of"
    text = (
        f"<p class='lead'>What <strong>{escape(str(name))}</strong> says about {len(made.bags)} "
        f"bags. A bag {each} {len(made.classes)} classes; open a class to see its bags, the "
        "instances that made them so, and how good the model is at it.</p>"
    )
    remarks = [f"Training data: {r}" for r in report.about.get("extra", {}).get("remarks", [])]
    remarks += [f"Left out: {problem}" for problem in report.skipped]
    if report.n_seen:
        remarks.append(
            f"The model was trained on {report.n_seen} of these {len(made.bags)} bags. What it "
            "says about them looks better than what it would say about new ones."
        )
    remarks += made.notes
    items = "".join(f"<li>{escape(remark)}</li>" for remark in remarks)
    notes = f"<aside class='notes'><h2>Good to know</h2><ul>{items}</ul></aside>"
    return text + (notes if remarks else "")


def _tiles(report: ClassReport) -> str:
    tiles = [
        (f"{len(report.bags):,}", "bags"),
        (f"{report.bags.n_instances:,}", "instances"),
        (f"{len(report.predictions.classes)}", "classes"),
    ]
    for found, where in ((report.cross_validated, "cross-validated"), (report.evaluation, "here")):
        if found is not None:
            tiles.append((f"{found.metrics()['auc']:.3f}", f"AUC, mean over classes, {where}"))
    cells = "".join(f"<div class='tile'><b>{v}</b><span>{what}</span></div>" for v, what in tiles)
    return f"<div class='tiles'>{cells}</div>"


def _class_table(report: ClassReport, links: Sequence[str]) -> str:
    """A row per class: what was called, and where known the threshold that is recommended."""
    made = report.predictions
    found = report.cross_validated or report.evaluation
    rates = None if found is None else found.per_class().set_index("class")
    columns = ["class", "bags called", "mean probability"]
    if rates is not None:
        columns += ["AUC", "recommended threshold", "sensitivity", "specificity"]
    rows = []
    for c, (name, link) in enumerate(zip(made.classes, links, strict=True)):
        page = f"{CLASS_FOLDER}/{link}/report.html"
        row = [f"<th scope='row' class='name'><a href='{page}'>{escape(str(name))}</a></th>"]
        row += [f"<td>{int(made.called[:, c].sum())}</td>"]
        row += [f"<td>{made.probability[:, c].mean():.3f}</td>"]
        if rates is not None:
            values = [
                rates.loc[name, k] for k in ("auc", "threshold", "sensitivity", "specificity")
            ]
            row += [f"<td>{'–' if np.isnan(v) else f'{v:.2f}'}</td>" for v in values]
        rows.append(row)
    note = ""
    if rates is not None and found is not None:
        note = (
            f"<p class='sub'>Thresholds on one class against all others ({escape(found.source)}) "
            "make the sum of sensitivity and specificity largest. For another goal, a least "
            "sensitivity or the costs of errors, run bagwise evaluate with --min-sensitivity, "
            "--min-specificity or --cost.</p>"
        )
    return f"<h2>Classes</h2>{_table(columns, rows, 'Table of classes')}{note}"


def _quality(found: ClassEvaluation, title: str) -> str:
    words = {
        "auc": "AUC",
        "log_loss": "log-loss",
        "brier": "Brier score",
        "ece": "calibration error",
    }
    metrics = found.metrics()
    row = [[f"<td>{value:.3f}</td>" for value in metrics.values()]]
    numbers = _table([words.get(name, name) for name in metrics], row, "Metrics", n_names=0)
    parts = [f"<h2>{escape(title)}: {escape(found.source)}</h2>{numbers}"]
    parts.append(
        "<p class='sub'>All but accuracy and log-loss are means over the classes, each against all "
        "others.</p>"
    )
    if found.exclusive:
        rows = [
            [
                f"<th scope='row' class='name'>is {escape(str(name))}</th>",
                *(f"<td>{n}</td>" for n in counts),
            ]
            for name, counts in zip(found.classes, found.confusion(), strict=True)
        ]
        columns = ["", *(f"called {name}" for name in found.classes)]
        parts.append(_table(columns, rows, "Right and wrong, class by class"))
    return "".join(parts)


def _bag_table(report: ClassReport, links: Sequence[str]) -> str:
    made = report.predictions
    sure = made.probability.max(axis=1)
    rows = []
    for i in np.argsort(-sure, kind="stable")[:_MAX_BAGS]:
        row = [f"<th scope='row' class='name'>{escape(str(made.bags['id'].iloc[i]))}</th>"]
        row += [f"<td class='name'>{escape(str(made.bags['label'].iloc[i])) or 'none'}</td>"]
        if report.truth is not None:
            row += [f"<td class='name'>{_truth_text(report, i)}</td>"]
        row += [f"<td class='p' style='--w:{p:.3f}'>{p:.3f}</td>" for p in made.probability[i]]
        rows.append(row)
    columns = ["bag", "called", *([] if report.truth is None else ["is"]), *map(str, made.classes)]
    more = f" The first {_MAX_BAGS} are shown." if len(made.bags) > _MAX_BAGS else ""
    note = f"<p class='sub'>The surest first; bags.csv has the same table.{more}</p>"
    n_names = 2 if report.truth is None else 3
    return f"<h2>Bags</h2>{note}{_table(columns, rows, 'Table of bags', n_names)}"


def _truth_text(report: ClassReport, i: int) -> str:
    row = report.truth[i]
    if (row < 0).any():
        return "–"
    names = [str(n) for n, has in zip(report.predictions.classes, row, strict=True) if has]
    return escape("|".join(names)) or "none"
