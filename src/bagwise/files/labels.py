"""Label files: one row per bag, ids as text, so that zero padding is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.files.problems import BadFilesError, Problem, bad_file
from bagwise.files.tables import read_frame, require_columns

# How a missing instance label may be written.
_MISSING = ("", "nan", "NaN", "NA", "None", "-1")


class Labels(NamedTuple):
    """Labels of bags as a file gives them.

    Examples
    --------
    >>> from bagwise.files import Labels
    >>> Labels("labels.csv", ["s1", "s2"], [1, 0]).y
    [1, 0]
    """

    path: str
    ids: Any  # [B] str
    y: Any  # [B] int where every label is a whole number, else str
    patients: Any = None  # [B] str


def read_labels(
    path: str | Path,
    bag: str = "slide_id",
    label: str = "label",
    patient: str | None = None,
) -> Labels:
    r"""Read a CSV with a label per bag.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from bagwise.files import read_labels
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.csv"
    >>> _ = path.write_text("slide_id,label\n007,1\n008,0\n")
    >>> labels = read_labels(path)
    >>> labels.ids.tolist(), labels.y.tolist()
    (['007', '008'], [1, 0])
    """
    frame = read_frame(path)
    require_columns(frame, str(path), [bag, label, *([patient] if patient else [])])
    if len(frame) == 0:
        raise bad_file(path, "has no rows")
    ids = np.asarray([str(v).strip() for v in frame[bag]], dtype=object)
    labels = np.asarray([str(v).strip() for v in frame[label]], dtype=object)
    problems = [*_blank(path, ids, bag), *_blank(path, labels, label), *_repeated(path, ids)]
    if problems:
        raise BadFilesError(problems)
    patients = None
    if patient:
        patients = np.asarray([str(v).strip() for v in frame[patient]], dtype=object)
        if blank := _blank(path, patients, patient):
            raise BadFilesError(blank)
    return Labels(str(path), ids, as_classes(labels), patients)


def as_classes(labels: Any) -> Any:
    """Whole numbers where all labels are written as such, else text."""
    if all(v.lstrip("-").isdecimal() and str(int(v)) == v for v in labels):
        return np.asarray([int(v) for v in labels])
    if all(_is_whole_float(v) for v in labels):  # 0.0 and 1.0, as a frame with gaps is saved
        return np.asarray([int(float(v)) for v in labels])
    return np.asarray([str(v) for v in labels])


def _is_whole_float(text: str) -> bool:
    whole, dot, rest = text.partition(".")
    return bool(dot) and whole.lstrip("-").isdecimal() and set(rest) <= {"0"}


def _blank(path: str | Path, values: Any, column: str) -> list[Problem]:
    rows = [i for i, v in enumerate(values) if v in ("", "nan", "None")]
    if not rows:
        return []
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return [Problem(str(path), f"line {rows[0] + 2}{more}: column {column!r} is empty")]


def _repeated(path: str | Path, ids: Any) -> list[Problem]:
    lines: dict[str, list[int]] = {}
    for i, name in enumerate(ids):
        lines.setdefault(name, []).append(i + 2)
    return [
        Problem(str(path), f"bag {name!r} has {len(at)} rows (lines {', '.join(map(str, at))})")
        for name, at in lines.items()
        if len(at) > 1
    ]


def read_instance_labels(
    path: str | Path, bags: Bags, bag: str = "slide_id", index: str = "index", label: str = "label"
) -> Any:
    r"""Instance labels from a CSV with columns bag, index and label; None where not given.

    ``index`` counts from 0 within the bag, in the order of its file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.files import read_instance_labels
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "patches.csv"
    >>> _ = path.write_text("slide_id,index,label\ns1,0,1\n")
    >>> bags = Bags(np.ones((3, 2)), [0, 2, 3], ids=["s1", "s2"])
    >>> read_instance_labels(path, bags).tolist()
    [1, None, None]
    """
    frame = read_frame(path)
    require_columns(frame, str(path), [bag, index, label])
    position = {name: i for i, name in enumerate(bags.ids)}
    out = np.full(bags.n_instances, None, dtype=object)
    texts = [str(v).strip() for v in frame[label]]
    known = as_classes(np.asarray([t for t in texts if t not in _MISSING], dtype=object))
    values = iter(known.tolist())
    problems = []
    for line, (name, number, text) in enumerate(
        zip(frame[bag], frame[index], texts, strict=True), start=2
    ):
        value = None if text in _MISSING else next(values)
        i = position.get(str(name).strip())
        if i is None:
            problems.append(Problem(str(path), f"line {line}: there is no bag {name!r}"))
        elif not (str(number).isdecimal() and int(number) < bags.sizes[i]):
            what = f"line {line}: bag {name!r} has instances 0 to {bags.sizes[i] - 1}; got {number}"
            problems.append(Problem(str(path), what))
        else:
            out[bags.offsets[i] + int(number)] = value
    if problems:
        raise BadFilesError(problems)
    return out
