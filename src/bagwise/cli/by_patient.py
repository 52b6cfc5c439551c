"""Labels of patients: their slides become one bag, and back again."""

from __future__ import annotations

from typing import Any

import numpy as np

from bagwise.cli.inputs import Truth
from bagwise.core import segments
from bagwise.files import Training


def patients_as_bags(data: Training, known: Any) -> tuple[Training, Any]:
    """Training data in which a patient is a bag, and the instance labels in its order."""
    if data.patients is None:
        raise ValueError("--level patient needs --patient-column, which names the patients.")
    labels = one_label_each(data.patients, data.y, data.labels)
    bags = data.bags.merge(data.patients)
    if known is not None:
        place = {name: i for i, name in enumerate(bags.ids)}
        order = np.argsort([place[str(name)] for name in data.patients], kind="stable")
        rows, _ = segments.take(data.bags.offsets, order)
        known = [known[row] for row in rows]
    y = np.asarray([labels[name] for name in bags.ids])
    return data._replace(bags=bags, y=y, patients=None), known


def one_label_each(patients: Any, y: Any, path: str) -> dict[str, Any]:
    """The label of every patient; slides of one patient must agree on it."""
    labels: dict[str, Any] = {}
    for patient, label in zip(patients, np.asarray(y).tolist(), strict=True):
        before = labels.setdefault(str(patient), label)
        if before != label:
            raise ValueError(
                f"{path}: patient {str(patient)!r} has slides labelled {before!r} and {label!r}; "
                "with --level patient a label is the patient's, so all slides need the same."
            )
    return labels


def labels_of_patients(truth: Truth, patients: Any, predictions: Any, path: str) -> Any:
    """Patients with a label, and what was predicted for them, as an `Evaluation`."""
    from bagwise.report.evaluation import Evaluation

    labels = one_label_each(np.asarray(patients)[truth.known], truth.y, path)
    unknown = sorted({str(v) for v in labels.values()} - {str(c) for c in predictions.classes})
    if unknown:
        raise ValueError(
            f"the model knows the classes {predictions.classes}; the labels have {unknown[0]!r}."
        )
    table = predictions.patients[[name in labels for name in predictions.patients["patient"]]]
    y = [int(labels[name] == predictions.classes[1]) for name in table["patient"]]
    source = f"{len(y)} labelled patients"
    return Evaluation(source, np.asarray(y), table["probability"].to_numpy())
