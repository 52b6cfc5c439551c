"""Labels to and from other tools, as answers of a journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bagwise.bags import Bags
from bagwise.files import read_geojson, read_label_studio, write_label_studio
from bagwise.files.geojson import read_json
from bagwise.label.journal import Answer
from bagwise.label.session import Session


def import_file(
    path: Path, bags: Bags, classes: Sequence[object], bag: str | None = None
) -> list[Answer]:
    """Answers from GeoJSON (QuPath) or an export of Label Studio, told apart by their content."""
    content = read_json(path)
    listed = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if listed and not any(part.get("type") == "Feature" for part in content):
        labels, source = read_label_studio(path, bags, classes), "label-studio"
    else:
        labels, source = read_geojson(path, bags, classes, bag), "qupath"
    owners, answers = np.asarray(bags.bag_index), []
    for row in np.flatnonzero(labels != None):  # noqa: E711 - elementwise on objects
        i = int(owners[row])
        answer = "yes" if labels[row] == str(classes[1]) else "no"
        answers.append(Answer(str(bags.ids[i]), int(row - bags.offsets[i]), answer, tab=source))
    return answers


def write_tasks(session: Session, path: Path, n: int = 500) -> int:
    """Write the next ``n`` questions, and all answers, as tasks of Label Studio."""
    cards = session.queue("label-studio", n)
    answered = {
        session.row(*place): session.journal.classes[int(answer == "yes")]
        for place, answer in session.journal.state.items()
        if answer in ("yes", "no")
    }
    rows = np.array([*(card["row"] for card in cards), *answered], dtype=np.int64)
    p, std = session.instance_scores(rows)
    known = np.full(session.bags.n_instances, None, dtype=object)
    known[list(answered)] = list(answered.values())
    images = None
    if session.pictures is not None:
        pictures = [session.pictures.read(int(row)) for row in rows]
        images = ["" if picture is None else picture.uri() for picture in pictures]
    write_label_studio(
        path,
        session.bags,
        rows,
        p,
        std,
        classes=session.journal.classes,
        images=images,
        instance_labels=known,
    )
    return len(rows)
