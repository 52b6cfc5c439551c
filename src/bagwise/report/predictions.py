"""Tables of what a model predicts for bags, their instances and their patients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Column, Floats, Ints
from bagwise.core.blocks import even_runs
from bagwise.evaluate.metrics import as_columns, call_classes, class_columns, is_multilabel
from bagwise.models.base import Model, class_probabilities
from bagwise.models.pipeline import last_step

NO_PROBABILITIES = "the model gives no probabilities; set calibrate=True where it can."
# Rows of a step of a progress bar: a second or less, and enough for all threads.
_ROWS = 1 << 16
# The first characters by which a spreadsheet takes a cell for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class ClassColumn(NamedTuple):
    """One column of the class axis: a positive class, its negative, and its suffix in tables."""

    negative: Any
    positive: Any
    suffix: str


def class_axis(classes: Sequence[Any], multilabel: bool = False) -> list[ClassColumn]:
    """The columns of classes: one of two classes, otherwise one for each against all others.

    Examples
    --------
    >>> from bagwise.report.predictions import class_axis
    >>> class_axis(["normal", "tumour"])
    [ClassColumn(negative='normal', positive='tumour', suffix='')]
    >>> [column.suffix for column in class_axis(["a", "b", "c"])]
    ['_a', '_b', '_c']
    """
    if len(classes) == 2 and not multilabel:
        return [ClassColumn(classes[0], classes[1], "")]
    return [ClassColumn(f"not {name}", name, f"_{name}") for name in classes]


class Predictions(NamedTuple):
    """Tables of a model's predictions.

    ``bags`` has the columns id, probability, std, label; ``instances`` bag, index, the
    coordinates where known, probability, std. ``std`` is missing where a model gives none, and
    ``instances`` is None where a model cannot rank them; they have a score where it ranks them
    without probabilities. With more than two classes, or an indicator matrix, there are
    ``probability_NAME`` and ``std_NAME`` for every class; label then holds the most probable
    class, or all classes above the threshold with ``|`` between them. ``patients`` is None where
    nothing is known about them; see ``patient_table``. ``notes`` are sentences on how to read the
    probabilities; see ``model_notes``.

    Examples
    --------
    >>> import pandas as pd
    >>> from bagwise.report import Predictions
    >>> table = pd.DataFrame({"id": ["s1"], "probability": [0.9], "std": [0.1], "label": [1]})
    >>> Predictions(table, None, [0, 1], 0.5).bags["probability"].item()
    0.9
    """

    bags: pd.DataFrame
    instances: pd.DataFrame | None
    classes: list[Any]
    threshold: float
    patients: pd.DataFrame | None = None
    notes: Sequence[str] = ()
    multilabel: bool = False  # whether a bag may have several classes, or none

    @property
    def axis(self) -> list[ClassColumn]:
        """What the columns of the class axis stand for, [F]."""
        return class_axis(self.classes, self.multilabel)

    def values(self, table: pd.DataFrame, what: str = "probability") -> Floats:
        """Columns "probability", "std" or "score" of a table with a class axis, [n, F]."""
        return table[[f"{what}{column.suffix}" for column in self.axis]].to_numpy()

    @property
    def called(self) -> Ints:
        """Which classes the bags are called, [B, F] 0 or 1."""
        if self.multilabel:
            return call_classes(self.values(self.bags), False, self.threshold)
        label = self.bags["label"].to_numpy()
        return np.stack([label == column.positive for column in self.axis], axis=1).astype(int)

    def targets(self, labels: Sequence[object] | Column) -> Ints:
        """Classes of bags, None where unknown, with a class axis: 1, 0, or -1 for unknown, [B, F].

        Examples
        --------
        >>> from bagwise.report import Predictions
        >>> Predictions(None, None, ["no", "yes"], 0.5).targets(["yes", None, "no"]).tolist()
        [[1], [-1], [0]]
        """
        position = {name: i for i, name in enumerate(self.classes)}
        codes = np.array([position.get(label, -1) for label in np.asarray(labels).tolist()])
        columns = [position[column.positive] for column in self.axis]  # of two classes the second
        return np.where(codes[:, None] < 0, -1, codes[:, None] == columns)

    def of_class(self, number: int) -> Predictions:
        """One class against all others, as tables of two classes."""
        negative, positive, suffix = self.axis[number]
        if not suffix:
            return self
        names = np.asarray([negative, positive], dtype=object)
        others = {
            f"{what}{c.suffix}" for c in self.axis for what in ("probability", "std", "score")
        }
        renamed = {f"{what}{suffix}": what for what in ("probability", "std", "score")}

        def narrowed(table: pd.DataFrame) -> pd.DataFrame:
            kept = [name for name in table.columns if name in renamed or name not in others]
            return table[kept].rename(columns=renamed)

        bags = narrowed(self.bags).assign(label=names[self.called[:, number]])
        instances = None if self.instances is None else narrowed(self.instances)
        patients = self.patients
        if patients is not None:
            patients = patients[patients["class"] == positive].drop(columns="class")
        return Predictions(bags, instances, names.tolist(), self.threshold, patients, self.notes)


def predict_tables(
    model: Model,
    bags: Bags,
    threshold: float = 0.5,
    class_names: Sequence[object] | None = None,
    patients: Sequence[object] | Column | None = None,
    progress: Callable[[Sequence[Bags], int], Iterable[Bags]] | None = None,
) -> Predictions:
    """Probability and uncertainty of every bag and instance, and of every patient where known.

    Parameters
    ----------
    model : fitted bag classifier
    bags : Bags
    threshold : float, default=0.5
        Of two classes, and where a bag may have several. A bag that has one of several classes is
        called the most probable one.
    class_names : sequence or None, default=None
        Replaces the model's classes in the tables.
    patients : sequence of shape (n_bags,) or None, default=None
        The patient of each bag.
    progress : callable or None, default=None
        ``progress(runs, n_runs)`` passes runs of bags through, as a progress bar does.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report.predictions import predict_tables
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> tables = predict_tables(make_model("single-instance").fit(bags, y), bags)
    >>> list(tables.bags.columns), len(tables.instances) == bags.n_instances
    (['id', 'probability', 'std', 'label'], True)
    """
    classes = np.asarray(model.classes_ if class_names is None else class_names).tolist()
    predictions = Predictions(
        pd.DataFrame(), None, classes, threshold, None, model_notes(model), is_multilabel(model)
    )
    runs: Iterable[Bags] = [bags]
    if progress is not None:
        cuts = even_runs(bags.offsets, max(1, bags.n_instances // _ROWS))
        cut = [bags[first:last] for first, last in cuts]
        runs = progress(cut, len(cut))
    outputs = _joined([_outputs(model, run) for run in runs])
    predictions = predictions._replace(bags=_table(outputs[""], bags, predictions))
    if "_instances" in outputs:
        instances = _table(outputs["_instances"], bags, predictions, "_instances")
        predictions = predictions._replace(instances=instances)
    if patients is None:
        return predictions
    tables = []
    for number, (negative, positive, suffix) in enumerate(predictions.axis):
        of_class = predictions.of_class(number).bags
        table = patient_table(of_class, patients, [negative, positive], threshold)
        if suffix:
            table.insert(0, "class", positive)
        tables.append(table)
    return predictions._replace(patients=pd.concat(tables, ignore_index=True))


def _table(
    outputs: dict[str, Floats], bags: Bags, about: Predictions, suffix: str = ""
) -> pd.DataFrame:
    """A row per bag or instance; this is where two classes lose their class axis."""
    columns = _instance_places(bags) if suffix else {"id": bags.ids}
    for f, column in enumerate(about.axis):
        columns |= {f"{what}{column.suffix}": values[:, f] for what, values in outputs.items()}
    several = len(about.axis) > 1
    if suffix and not several:
        return pd.DataFrame(columns)  # no threshold is chosen for instances
    values, threshold = outputs.get("score"), 0.0
    if values is None:
        values, threshold = outputs["probability"], about.threshold
    names = np.asarray(about.classes)
    called = call_classes(values, several and not about.multilabel, threshold)  # [n, F]
    if about.multilabel:
        label = np.array(["|".join(map(str, names[row == 1])) for row in called], dtype=object)
    else:
        label = names[called.argmax(axis=1) if several else called[:, 0]]
    return pd.DataFrame({**columns, "label": label})


def _outputs(model: Any, bags: Bags) -> dict[str, dict[str, Floats]]:
    """Probability and deviation of bags, and under "_instances" of instances, where ranked, [n, F].

    From one pass over the rows, where the model can.
    """
    if hasattr(model, "score_bags"):
        columns, scores = class_columns(model), model.score_bags(bags)
        read = {"": scores[:2], "_instances": scores[2:]}
        outputs = {
            end: {"probability": class_probabilities(z)[:, columns], "std": as_columns(std)}
            for end, (z, std) in read.items()
        }
    else:
        ranks = hasattr(model, "decision_function_instances")
        outputs = {end: _asked(model, bags, end) for end in ("", *["_instances"] * ranks)}
    if "score" in outputs[""]:
        raise ValueError(NO_PROBABILITIES)
    for end, values in outputs.items():
        p = values["probability"]
        wrong = np.argwhere(~((p >= 0) & (p <= 1)) & ("score" not in values))
        for row, column in wrong[:1]:
            bag = int(bags.bag_index[row] if end else row)
            raise ValueError(
                f"the model gives a probability of {p[row, column]:g} for "
                f"{bags.describe_bag(bag)}; its parameters are damaged, or the features are far "
                "from those it was trained on."
            )
    return outputs


def _joined(parts: list[dict[str, dict[str, Floats]]]) -> dict[str, dict[str, Floats]]:
    """The outputs of runs of bags as those of all."""
    return {
        end: {what: np.concatenate([part[end][what] for part in parts]) for what in values}
        for end, values in parts[0].items()
    }


def _asked(model: Any, bags: Bags, suffix: str) -> dict[str, Floats]:
    """Probability and standard deviation [n, F]; where there are none NaN, and a score."""
    columns, name = class_columns(model), f"predict_proba{suffix}"
    n_rows = bags.n_instances if suffix else len(bags)
    unknown = np.full((n_rows, len(columns)), np.nan)
    if not hasattr(model, name):
        score = as_columns(getattr(model, f"decision_function{suffix}")(bags))
        return {"score": score, "probability": unknown, "std": unknown}
    # Only Gaussian processes have standard deviations; a pipeline passes the argument on.
    if "return_std" in inspect.signature(getattr(last_step(model), name)).parameters:
        p, std = getattr(model, name)(bags, return_std=True)
        p, std = p[:, columns], as_columns(std)
    else:
        p, std = getattr(model, name)(bags)[:, columns], unknown
    return {"probability": p, "std": std}


_MEANINGS = {
    "share": "whether it is one of those that made its bag positive",
    "alone": "whether a bag of this instance alone would be positive",
}


def model_notes(model: Any) -> list[str]:
    """Sentences on how to read a model's probabilities; none where it does not define them.

    Examples
    --------
    >>> from bagwise import VGPMIL, datasets
    >>> from bagwise.report.predictions import model_notes
    >>> bags, y = datasets.make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> model_notes(VGPMIL(n_inducing=10, calibrate=False, random_state=0).fit(bags, y))
    ['The probability of an instance says whether a bag of this instance alone would be positive.']
    """
    core = last_step(model)
    core = last_step(getattr(core, "estimator_", core))  # of a model with coupled instances
    predictor = getattr(core, "predictor_", None)
    if predictor is None:
        return []
    meaning = _MEANINGS[predictor.default_question]
    notes = [f"The probability of an instance says {meaning}."]
    weight = getattr(core, "whole_bag_weight_", None)
    if weight is not None:
        lowered = "an" if weight > 0 else "no"
        notes.append(
            f"Candidates that look at whole bags have {100 * weight:.0f} % of the weight: "
            f"{lowered} instance can lower the probability of its bag."
        )
    return notes


def patient_table(
    bags: pd.DataFrame,
    patients: Sequence[object] | Column,
    classes: Sequence[object] | Column,
    threshold: float,
) -> pd.DataFrame:
    """One row per patient: called positive when the most probable of the patient's bags is.

    Parameters
    ----------
    bags : pandas.DataFrame
        With the columns id, probability and label of `Predictions`.
    patients : array of str, shape (n_bags,)
    classes : pair
        Names of the negative and the positive class.
    threshold : float

    Returns
    -------
    pandas.DataFrame
        Columns patient, probability (the largest of the bags), label, bags, positive_bags and
        top_bag, the most probable patient first.
    """
    value = bags["probability"].to_numpy()
    names, codes = np.unique(np.asarray(patients, dtype=str), return_inverse=True)
    # Sorted by patient, then by value: the last bag of each patient is its most probable one.
    order = np.lexsort((value, codes))
    top = order[np.flatnonzero(np.diff(codes[order], append=-1))]
    called = (bags["label"] == classes[1]).to_numpy()  # [B]
    table = pd.DataFrame(
        {
            "patient": names,
            "probability": value[top],
            "label": np.asarray(classes)[(value[top] > threshold).astype(int)],
            "bags": np.bincount(codes),
            "positive_bags": np.bincount(codes, weights=called).astype(int),
            "top_bag": bags["id"].to_numpy()[top],
        }
    )
    return table.iloc[np.argsort(-value[top], kind="stable")].reset_index(drop=True)


def predict_level_tables(
    model: Model,
    patients: Bags,
    threshold: float = 0.5,
    class_names: Sequence[object] | None = None,
) -> tuple[Predictions, Bags]:
    """Tables of patients, their slides and patches from one model, and the slides as bags.

    Unlike ``patient_table``, which takes the most probable slide, a patient's probability is the
    model's own, read off all patches of all slides; see `predict_levels`.

    Parameters
    ----------
    model : fitted model
    patients : Bags with ``groups``
        Patients as bags, slides as groups.
    threshold : float, default=0.5
    class_names : pair or None, default=None
        Replaces the model's classes in the tables.

    Examples
    --------
    >>> from bagwise import VGPMIL, datasets, report
    >>> patients, y = datasets.make_patient_bags(n_patients=20, random_state=0, return_X_y=True)
    >>> model = VGPMIL(n_inducing=20, random_state=0).fit(patients, y)
    >>> tables, slides = report.predict_level_tables(model, patients)
    >>> list(tables.bags.columns), len(tables.patients), len(tables.bags) == len(slides)
    (['id', 'patient', 'probability', 'std', 'label'], 20, True)
    """
    from bagwise.models.levels import predict_levels

    levels = predict_levels(model, patients)  # of patients, their slides, and patches
    names = np.asarray(model.classes_ if class_names is None else class_names)
    slides = levels.group_bags
    p = levels.groups.probability
    table = pd.DataFrame(
        {
            "id": slides.ids,
            "patient": patients.ids[levels.owner],
            "probability": p,
            "std": levels.groups.std,
            "label": names[(p > threshold).astype(int)],
        }
    )
    by_patient = patient_table(table, levels.owner, names, threshold)
    code = by_patient["patient"].astype(int).to_numpy()
    p = levels.bags.probability[code]
    label = names[(p > threshold).astype(int)]
    by_patient = by_patient.assign(patient=patients.ids[code], probability=p, label=label)
    by_patient.insert(2, "std", levels.bags.std[code])
    by_patient = by_patient.iloc[np.argsort(-p, kind="stable")].reset_index(drop=True)
    instances = pd.DataFrame({**_instance_places(slides), **levels.instances._asdict()})
    notes = model_notes(model)
    return Predictions(table, instances, names.tolist(), threshold, by_patient, notes), slides


def top_instances(predictions: Predictions, bags: Bags, n: int = 10) -> pd.DataFrame:
    """The most probable instances of every bag, by rank; ties in the order of the bag.

    Of more than two classes, those of each, with a column ``class`` in front.
    """
    owner = segments.spread(np.arange(len(bags)), bags.offsets)  # [N]
    number = np.arange(len(owner))
    tables = []
    for f, column in enumerate(predictions.axis):
        table = predictions.of_class(f).instances
        assert table is not None  # asked only of models that rank instances
        value = table["score" if "score" in table else "probability"].to_numpy()
        order = np.lexsort((number, -value, owner))
        rank = number - bags.offsets[owner[order]]
        top = table.iloc[order[rank < n]].reset_index(drop=True)
        top.insert(1, "rank", rank[rank < n] + 1)
        if column.suffix:
            top.insert(0, "class", column.positive)
        tables.append(top)
    return pd.concat(tables, ignore_index=True)


def _instance_places(bags: Bags) -> dict[str, Any]:
    """Columns that say where each instance is: its bag, its number there, its coordinates."""
    owner = bags.bag_index
    columns: dict[str, Any] = {
        "bag": pd.Categorical.from_codes(owner, categories=pd.Index(bags.ids)),
        "index": np.arange(bags.n_instances) - bags.offsets[owner],
    }
    coords = bags.columns.get("coords")
    if coords is not None:
        places = coords.reshape(len(coords), -1)
        axes = ["order"] if places.shape[1] == 1 else ["x", "y", "z"]
        for name, values in zip(axes, places.T, strict=False):
            columns[name] = values
    return columns


def formula_ids(predictions: Predictions) -> list[str]:
    """Names of bags and patients that a spreadsheet would take for formulas."""
    names = [str(name) for name in predictions.bags["id"]]
    if predictions.patients is not None:
        names += [str(name) for name in predictions.patients["patient"]]
    return [name for name in names if name.startswith(_FORMULA)]


def write_predictions(
    predictions: Predictions,
    folder: str | Path,
    *,
    top: pd.DataFrame | None = None,
    spreadsheet_safe: bool = False,
    bags_name: str = "bags.csv",
) -> list[Path]:
    """Write ``bags.csv`` (or ``bags_name``) and ``instances.parquet`` into a folder.

    ``patients.csv`` is added where patients are known, ``top_instances.csv`` where ``top`` holds
    what ``top_instances`` returned. With ``spreadsheet_safe``, text in CSV files that a spreadsheet
    would run as a formula gets an apostrophe in front; it is left as it is otherwise, so that
    names match those of the files.

    Examples
    --------
    >>> import tempfile
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report import predict_tables, write_predictions
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> made = predict_tables(make_model("single-instance").fit(bags, y), bags)
    >>> [path.name for path in write_predictions(made, tempfile.mkdtemp())]
    ['bags.csv', 'instances.parquet']
    """
    folder = Path(folder)
    tables = {
        bags_name: predictions.bags,
        "patients.csv": predictions.patients,
        "top_instances.csv": top,
    }
    written = []
    for name, table in tables.items():
        if table is not None:
            table = neutralised(table) if spreadsheet_safe else table
            # 17 digits: reading the file back gives the same floats.
            table.to_csv(folder / name, index=False, float_format="%.17g")
            written.append(folder / name)
    if predictions.instances is not None:
        written.append(folder / "instances.parquet")
        predictions.instances.to_parquet(written[-1], index=False)
    return written


def neutralised(table: pd.DataFrame) -> pd.DataFrame:
    """The table with an apostrophe before text that a spreadsheet would run as a formula."""
    safe = table.copy()
    for column in safe.columns:
        if safe[column].dtype.kind not in "iufb":
            safe[column] = [
                f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
                for value in safe[column]
            ]
    return safe
