"""Label Studio: tasks with predictions out, annotations back in.

One task per instance. ``data`` names the bag and the index, so that annotations find their way
back; the prediction is a choice with its probability as score.
https://labelstud.io/guide/predictions and https://labelstud.io/guide/task_format
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Floats, Ints
from bagwise.files.geojson import read_json
from bagwise.files.problems import bad_file
from bagwise.files.writing import write_text

_FROM, _TO = "label", "instance"


def label_studio_config(classes: Sequence[object], pictures: bool = True) -> str:
    """The labelling interface that the tasks are made for, to paste into a project's settings.

    Examples
    --------
    >>> from bagwise.files import label_studio_config
    >>> '<Choice value="tumour"/>' in label_studio_config(["normal", "tumour"])
    True
    """
    choices = "".join(f'<Choice value="{escape(str(c))}"/>' for c in classes)
    shown, source = ("Image", "$image") if pictures else ("Text", "$text")
    return (
        f'<View><{shown} name="{_TO}" value="{source}"/>'
        f'<Choices name="{_FROM}" toName="{_TO}" choice="single">{choices}</Choices></View>'
    )


def write_label_studio(
    path: str | Path,
    bags: Bags,
    rows: Ints,
    probability: Floats,
    std: Floats,
    *,
    classes: Sequence[object],
    images: Sequence[str] | None = None,
    instance_labels: Column | None = None,
) -> Path:
    """Write tasks for some instances.

    Parameters
    ----------
    path : path
    bags : Bags
    rows : array of int
        The instances, in the order in which they shall be asked.
    probability, std : arrays of shape (len(rows),)
    classes : (negative, positive)
    images : sequence of str or None, default=None
        Address or ``data:`` URI of each instance's picture.
    instance_labels : array of shape (n_instances,) or None, default=None
        Known classes, None where unknown; written as annotations.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.files import read_label_studio, write_label_studio
    >>> bags = Bags(np.ones((3, 2)), [0, 2, 3], ["s1", "s2"])
    >>> known = np.array(["normal", None, "tumour"], dtype=object)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "tasks.json"
    >>> _ = write_label_studio(path, bags, [0, 1, 2], [0.2, 0.5, 0.9], [0.1, 0.3, 0.1],
    ...                        classes=["normal", "tumour"], instance_labels=known)
    >>> read_label_studio(path, bags, ["normal", "tumour"]).tolist()
    ['normal', None, 'tumour']
    """
    texts = [str(c) for c in classes]
    tasks = []
    for k, row in enumerate(int(row) for row in rows):
        i = int(np.searchsorted(bags.offsets, row, side="right")) - 1
        p, bag, index = float(probability[k]), str(bags.ids[i]), row - int(bags.offsets[i])
        data: dict[str, object] = {"bag": bag, "index": index, "probability": round(p, 6)}
        if np.isfinite(std[k]):
            data["std"] = round(float(std[k]), 6)
        if images is None:
            data["text"] = f"{bag}, instance {index}"
        else:
            data["image"] = images[k]
        guess = {"result": [_choice(texts[int(p >= 0.5)])], "model_version": "bagwise"}
        task = {"data": data, "predictions": [{**guess, "score": round(max(p, 1 - p), 6)}]}
        if instance_labels is not None and instance_labels[row] is not None:
            task["annotations"] = [{"result": [_choice(str(instance_labels[row]))]}]
        tasks.append(task)
    return write_text(path, json.dumps(tasks, allow_nan=False))


def _choice(label: str) -> dict[str, object]:
    return {"from_name": _FROM, "to_name": _TO, "type": "choices", "value": {"choices": [label]}}


def read_label_studio(path: str | Path, bags: Bags, classes: Sequence[object]) -> Column:
    """Instance labels from Label Studio's JSON export; None where nothing was answered.

    Of several annotations of a task the last one that was not cancelled counts.

    Examples
    --------
    >>> import json, pathlib, tempfile, numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.files import read_label_studio
    >>> result = [{"type": "choices", "value": {"choices": ["tumour"]}}]
    >>> tasks = [{"data": {"bag": "s1", "index": 1}, "annotations": [{"result": result}]}]
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "export.json"
    >>> _ = path.write_text(json.dumps(tasks))
    >>> bags = Bags(np.ones((2, 3)), [0, 2], ["s1"])
    >>> read_label_studio(path, bags, ["normal", "tumour"]).tolist()
    [None, 'tumour']
    """
    path = Path(path)
    tasks = read_json(path)
    if not isinstance(tasks, list):
        raise bad_file(path, "is not an export of Label Studio: a list of tasks is needed")
    texts = [str(c) for c in classes]
    first = {str(name): int(start) for name, start in zip(bags.ids, bags.offsets, strict=False)}
    sizes = {str(name): int(n) for name, n in zip(bags.ids, bags.sizes, strict=True)}
    labels = np.full(bags.n_instances, None, dtype=object)
    for number, task in enumerate(tasks):
        bag, index = _place(path, number, task, sizes)
        label = _answer(path, number, task, texts)
        if label is not None:
            labels[first[bag] + index] = label
    return labels


def _place(path: Path, number: int, task: Any, sizes: dict[str, int]) -> tuple[str, int]:
    data = task.get("data") if isinstance(task, dict) else None
    if not isinstance(data, dict):
        raise bad_file(path, f"task {number} has no 'data'")
    for name in ("bag", "index"):
        if name not in data:
            raise bad_file(path, f"task {number}: its data has no {name!r}, which the tasks had")
    bag, index = str(data["bag"]), data["index"]
    if bag not in sizes:
        raise bad_file(path, f"task {number} is about bag {bag!r}, which is not among the bags")
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < sizes[bag]:
        what = f"task {number}: bag {bag!r} has instances 0 to {sizes[bag] - 1}; got {index!r}"
        raise bad_file(path, what)
    return bag, index


def _answer(path: Path, number: int, task: dict[str, Any], texts: list[str]) -> str | None:
    annotations = task.get("annotations", [])
    if not isinstance(annotations, list) or not all(isinstance(a, dict) for a in annotations):
        raise bad_file(path, f"task {number}: 'annotations' is not a list of objects")
    label = None
    for annotation in annotations:
        if annotation.get("was_cancelled"):
            continue
        if not isinstance(annotation.get("result"), list):
            raise bad_file(path, f"task {number}: an annotation has no 'result'")
        for result in annotation["result"]:
            value = result.get("value") if isinstance(result, dict) else None
            choices = value.get("choices") if isinstance(value, dict) else None
            if not isinstance(choices, list) or len(choices) != 1:
                raise bad_file(path, f"task {number}: a result has no single choice")
            if str(choices[0]) not in texts:
                what = f"task {number} has the choice {choices[0]!r}; the classes are {texts}"
                raise bad_file(path, what)
            label = str(choices[0])
    return label
