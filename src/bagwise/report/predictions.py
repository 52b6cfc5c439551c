"""What a model says about bags, their instances and their patients, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.models.pipeline import last_step, positive_proba

if TYPE_CHECKING:
    import pandas as pd

    from bagwise.core.arrays import Column, Floats, Reals
    from bagwise.models.base import Model


class Predictions(NamedTuple):
    """Tables of a model's answers.

    ``bags`` has the columns id, probability, std, label; ``instances`` bag, index, the
    coordinates where known, probability, std. ``std`` is missing where a model gives none, and
    ``instances`` is None where a model cannot rank them. ``patients`` is None where nothing is
    known about them; see `patient_table`. ``notes`` are sentences on how to read the
    probabilities; see `model_notes`.

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
    classes: list[object]
    threshold: float
    patients: pd.DataFrame | None = None
    notes: Sequence[str] = ()


# The first characters by which a spreadsheet takes a cell for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def predict_tables(
    model: Model,
    bags: Bags,
    threshold: float = 0.5,
    class_names: Sequence[object] | None = None,
    patients: Sequence[object] | Column | None = None,
) -> Predictions:
    """Probability and uncertainty of every bag and instance, and of every patient where known.

    ``class_names`` replaces the model's classes in the tables; ``patients`` names the patient of
    each bag.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report.predictions import predict_tables
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> made = predict_tables(make_model("single-instance").fit(bags, y), bags)
    >>> list(made.bags.columns), len(made.instances) == bags.n_instances
    (['id', 'probability', 'std', 'label'], True)
    """
    import pandas as pd

    p, std = _probability(model, bags, "")
    classes = np.asarray(model.classes_)
    scores = None
    if p is None:
        scores, p = model.decision_function(bags), np.full(len(bags), np.nan)
    positive = p > threshold if scores is None else scores > 0  # what predict says, without a pass
    names = classes if class_names is None else np.asarray(class_names)
    columns = {"id": bags.ids, "probability": p, "std": std, "label": names[positive.astype(int)]}
    if scores is not None:
        columns["score"] = scores
    table = pd.DataFrame(columns)
    by_patient = None if patients is None else patient_table(table, patients, names, threshold)
    instances, notes = _instance_table(model, bags), model_notes(model)
    return Predictions(table, instances, names.tolist(), threshold, by_patient, notes)


_QUESTIONS = {
    "share": "whether it is one of those that made its bag positive",
    "alone": "whether a bag of this instance alone would be positive",
}


def model_notes(model: Any) -> list[str]:
    """Sentences on how to read a model's probabilities; none where it says nothing about them.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.report.predictions import model_notes
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> model_notes(VGPMIL(n_inducing=10, calibrate=False, random_state=0).fit(bags, y))
    ['The probability of an instance says whether a bag of this instance alone would be positive.']
    """
    core = last_step(model)
    core = last_step(getattr(core, "estimator_", core))  # of a model with coupled instances
    predictor = getattr(core, "predictor_", None)
    if predictor is None:
        return []
    question = _QUESTIONS[predictor.default_question]
    notes = [f"The probability of an instance says {question}."]
    weight = getattr(core, "whole_bag_weight_", None)
    if weight is not None:
        lowered = "an" if weight > 0 else "no"
        notes.append(
            f"Candidates that look at whole bags weigh {100 * weight:.0f} % of this model: "
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
        With the columns id, probability and label of `Predictions`, and score where the model
        gives no probabilities.
    patients : array of str, shape (n_bags,)
    classes : pair
        Names of the negative and the positive class.
    threshold : float

    Returns
    -------
    pandas.DataFrame
        Columns patient, probability (the largest of the bags), label, bags, positive_bags and
        top_bag, the most probable patient first.

    Examples
    --------
    >>> import pandas as pd
    >>> from bagwise.report.predictions import patient_table
    >>> table = pd.DataFrame({"id": ["s1", "s2"], "probability": [0.2, 0.9], "label": [0, 1]})
    >>> patient_table(table, ["p", "p"], [0, 1], 0.5).to_dict("list")["top_bag"]
    ['s2']
    """
    import pandas as pd

    has_scores = "score" in bags.columns
    value = bags["score" if has_scores else "probability"].to_numpy()
    names, codes = np.unique(np.asarray(patients, dtype=str), return_inverse=True)
    # Sorted by patient, then by value: the last bag of each patient is its most probable one.
    order = np.lexsort((value, codes))
    top = order[np.flatnonzero(np.diff(codes[order], append=-1))]
    called = (bags["label"] == classes[1]).to_numpy()
    positive = value[top] > (0 if has_scores else threshold)
    table = pd.DataFrame(
        {
            "patient": names,
            "score" if has_scores else "probability": value[top],
            "label": np.asarray(classes)[positive.astype(int)],
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

    Unlike `patient_table`, which takes the most probable slide, a patient's probability is the
    model's own, read off all patches of all slides; see `predict_levels`.

    Parameters
    ----------
    model : fitted model
    patients : Bags with ``groups``
        Patients as bags, slides as groups.
    threshold : float
    class_names : pair, optional
        Replaces the model's classes in the tables.

    Examples
    --------
    >>> from bagwise import VGPMIL
    >>> from bagwise.datasets import make_patient_bags
    >>> from bagwise.report import predict_level_tables
    >>> patients, y = make_patient_bags(n_patients=20, random_state=0, return_X_y=True)
    >>> model = VGPMIL(n_inducing=20, random_state=0).fit(patients, y)
    >>> tables, slides = predict_level_tables(model, patients)
    >>> list(tables.bags.columns), len(tables.patients), len(tables.bags) == len(slides)
    (['id', 'patient', 'probability', 'std', 'label'], 20, True)
    """
    import pandas as pd

    from bagwise.models.levels import predict_levels

    levels = predict_levels(model, patients)
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
    probability = levels.bags.probability[code]
    by_patient["patient"] = patients.ids[code]
    by_patient["probability"] = probability
    by_patient["label"] = names[(probability > threshold).astype(int)]
    by_patient.insert(2, "std", levels.bags.std[code])
    order = np.argsort(-probability, kind="stable")
    by_patient = by_patient.iloc[order].reset_index(drop=True)
    instances = _instance_columns(model, slides, *levels.instances)
    notes = model_notes(model)
    return Predictions(table, instances, names.tolist(), threshold, by_patient, notes), slides


def top_instances(made: Predictions, bags: Bags, n: int = 10) -> pd.DataFrame:
    """The most probable instances of every bag, by rank; ties in the order of the bag.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.models.registry import make_model
    >>> from bagwise.report.predictions import predict_tables, top_instances
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> made = predict_tables(make_model("single-instance").fit(bags, y), bags)
    >>> top_instances(made, bags, n=3)["rank"].max().item()
    3
    """
    table = made.instances
    assert table is not None  # asked only of models that rank instances
    value = table["score" if "score" in table.columns else "probability"].to_numpy()
    owner = segments.spread(np.arange(len(bags)), bags.offsets)
    order = np.lexsort((np.arange(len(value)), -value, owner))
    rank = np.arange(len(value)) - bags.offsets[owner[order]]
    chosen = order[rank < n]
    top = table.iloc[chosen].reset_index(drop=True)
    top.insert(1, "rank", rank[rank < n] + 1)
    return top


def _instance_table(model: Model, bags: Bags) -> pd.DataFrame | None:
    if not hasattr(model, "decision_function_instances"):
        return None
    return _instance_columns(model, bags, *_probability(model, bags, "_instances"))


def _instance_columns(model: Any, bags: Bags, p: Any, std: Any) -> Any:
    """The table of instances from their probabilities, or from scores where there are none."""
    import pandas as pd

    columns = instance_places(bags)
    if p is None:
        columns["score"] = model.decision_function_instances(bags)
        p = np.full(bags.n_instances, np.nan)
    return pd.DataFrame({**columns, "probability": p, "std": std})


def instance_places(bags: Bags) -> dict[str, Any]:
    """Columns that say where each instance is: its bag, its number there, its coordinates."""
    import pandas as pd

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


def _probability(model: Model, bags: Bags, twin: str) -> tuple[Reals | None, Floats]:
    """Probability of the positive class and its standard deviation, or None and NaN."""
    if not hasattr(model, f"predict_proba{twin}"):
        return None, np.full(bags.n_instances if twin else len(bags), np.nan)
    p, std = positive_proba(model, bags, twin)
    wrong = np.flatnonzero(~((p >= 0) & (p <= 1)))
    if len(wrong):
        where = int(bags.bag_index[wrong[0]]) if twin else int(wrong[0])
        raise ValueError(
            f"the model gives a probability of {p[wrong[0]]:g} for {bags.describe_bag(where)}; its "
            "parameters are damaged, or the features are far from those it was trained on."
        )
    return p, std


def formula_ids(made: Predictions) -> list[str]:
    """Names of bags and patients that a spreadsheet would take for formulas."""
    names = [str(name) for name in made.bags["id"]]
    if made.patients is not None:
        names += [str(name) for name in made.patients["patient"]]
    return [name for name in names if name.startswith(_FORMULA)]


def write_predictions(
    made: Predictions,
    folder: str | Path,
    *,
    top: pd.DataFrame | None = None,
    spreadsheet_safe: bool = False,
    bags_name: str = "bags.csv",
) -> list[Path]:
    """Write ``bags.csv`` (or ``bags_name``) and ``instances.parquet`` into a folder.

    ``patients.csv`` is added where patients are known, ``top_instances.csv`` where ``top`` holds
    what `top_instances` returned. With ``spreadsheet_safe``, text in CSV files that a spreadsheet
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
    tables = {bags_name: made.bags, "patients.csv": made.patients, "top_instances.csv": top}
    written = []
    for name, table in tables.items():
        if table is not None:
            table = neutralised(table) if spreadsheet_safe else table
            # 17 digits: reading the file back gives the same floats.
            table.to_csv(folder / name, index=False, float_format="%.17g")
            written.append(folder / name)
    if made.instances is not None:
        written.append(folder / "instances.parquet")
        made.instances.to_parquet(written[-1], index=False)
    return written


def neutralised(table: pd.DataFrame) -> pd.DataFrame:
    """The table with an apostrophe before text that a spreadsheet would run as a formula.

    Examples
    --------
    >>> import pandas as pd
    >>> from bagwise.report.predictions import neutralised
    >>> neutralised(pd.DataFrame({"id": ["=1+1", "s2"], "p": [-0.1, 0.2]}))["id"].tolist()
    ["'=1+1", 's2']
    """
    safe = table.copy()
    for column in safe.columns:
        if safe[column].dtype.kind not in "iufb":
            safe[column] = [
                f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
                for value in safe[column]
            ]
    return safe
