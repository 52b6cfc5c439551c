"""Label files: one label per bag, ids as text, so that zero padding is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Ints
from bagwise.files.problems import BadFilesError, FileProblem, bad_file
from bagwise.files.tables import named_columns, read_frame

if TYPE_CHECKING:
    import pandas as pd


# How a missing instance label may be written.
_MISSING = ("", "nan", "NaN", "NA", "None", "-1")
# Names of the class that does not hold what is looked for; letters and digits only.
_NEGATIVES = {
    *("normal", "benign", "control", "controls", "negative", "neg", "healthy", "wildtype", "wt"),
    *("none", "no", "not", "nil", "false", "absent", "absence", "clean", "background", "inactive"),
    *("nontumor", "nontumour", "tumorfree", "tumourfree", "nonmalignant", "noncancer"),
    *("cancerfree", "unaffected", "uninfected", "nodisease", "nofinding", "nofindings"),
    *("mss", "stable", "pmmr", "intact"),
}
_DENIALS = ("non", "no", "not", "un", "in")


class LabelTable(NamedTuple):
    """Labels of bags as a file gives them.

    Examples
    --------
    >>> from bagwise.files import LabelTable
    >>> LabelTable("labels.csv", ["s1", "s2"], [1, 0]).y
    [1, 0]
    """

    path: str
    ids: Column  # [B] str
    y: Column  # [B] int where every label is a whole number, else str; [B, C] for several columns
    patients: Column | None = None  # [B] str
    skipped: tuple[FileProblem, ...] = ()  # rows left out, where that was allowed
    skipped_ids: frozenset[str] = frozenset()
    classes: tuple[str, ...] | None = None  # the columns, where a bag may have several classes


def read_labels(
    path: str | Path,
    bag: str = "slide_id",
    label: str = "label",
    patient: str | None = None,
    *,
    skip_bad: bool = False,
) -> LabelTable:
    r"""Read a table with a label per bag: CSV as Excel writes it, Parquet, or ``.xlsx``.

    Names of columns match whatever their case, blanks and underscores. Rows of a bag
    that say the same are one, so that a table of instances can be given. A bag without a label,
    and rows that disagree, are errors; with ``skip_bad`` they are left out and listed in
    ``skipped``. Where ``label`` names several columns, with commas between them, each is a class
    and holds 1 for the bags that have it, else 0.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from bagwise.files import read_labels
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.csv"
    >>> _ = path.write_text("Slide ID;Label\n007;1\n008;0\n")
    >>> labels = read_labels(path)
    >>> labels.ids.tolist(), labels.y.tolist()
    (['007', '008'], [1, 0])
    """
    wanted = [bag, label, *([patient] if patient else [])]
    columns = tuple(name.strip() for name in label.split(","))
    frame = read_frame(path)
    if len(columns) > 1:
        frame = _joined(named_columns(frame, str(path), columns), str(path), columns, label)
    frame = named_columns(frame, str(path), wanted)
    if len(frame) == 0:
        raise bad_file(path, "has no rows")
    text = {c: np.asarray([str(v).strip() for v in frame[c]], dtype=object) for c in wanted}
    rejected = _rejected_rows(str(path), frame.index.to_numpy(), text, bag)
    problems = list(dict.fromkeys(rejected.values()))
    # Rows that say the same are one: a table of instances may have the label in each.
    first = {name: i for i, name in reversed([*enumerate(text[bag])]) if i not in rejected}
    keep = np.sort(np.array([*first.values()], dtype=np.int64))
    if (problems and not skip_bad) or len(keep) == 0:
        raise BadFilesError(problems)
    ids, labels = text[bag][keep], text[label][keep]
    if len(columns) == 1:
        _check_spelling(str(path), labels)
        y, classes = _as_classes(labels), None
    else:
        y, classes = np.array([[int(v) for v in flags] for flags in labels]), columns
    patients = text[patient][keep] if patient else None
    gone = frozenset(text[bag]) - frozenset(ids) - {""}
    return LabelTable(str(path), ids, y, patients, tuple(problems), gone, classes)


def _joined(frame: pd.DataFrame, path: str, columns: tuple[str, ...], name: str) -> pd.DataFrame:
    """The frame with one column more: a row's indicators as text such as 0110, blank if any is."""
    ones = {"1": "1", "1.0": "1", "true": "1", "0": "0", "0.0": "0", "false": "0", "": ""}
    texts = []
    for line, row in zip(frame.index, frame[list(columns)].itertuples(index=False), strict=True):
        values = [str(v).strip() for v in row]
        for column, value in zip(columns, values, strict=True):
            if value.casefold() not in ones:
                what = f"line {line}: column {column!r} must be 0 or 1; got {value!r}"
                raise bad_file(path, what)
        texts.append("" if "" in values else "".join(ones[v.casefold()] for v in values))
    return frame.assign(**{name: texts})


def _rejected_rows(
    path: str, lines: Ints, text: dict[str, Column], bag: str
) -> dict[int, FileProblem]:
    """Rows with a blank, then rows of one bag that disagree, and why."""
    ids = text[bag]
    blank: dict[int, FileProblem] = {}
    for column, values in text.items():
        for i in np.flatnonzero(values == "").tolist():
            of = f" (bag {ids[i]!r})" if ids[i] else ""
            blank[i] = FileProblem(path, f"line {lines[i]}: column {column!r} is empty{of}")
    rows_of: dict[str, list[int]] = {}
    for i, name in enumerate(ids):
        if i not in blank:
            rows_of.setdefault(name, []).append(i)
    repeated: dict[int, FileProblem] = {}
    for name, rows in rows_of.items():
        if len({tuple(values[i] for values in text.values()) for i in rows}) > 1:
            listed = ", ".join(str(lines[i]) for i in rows)
            what = f"bag {name!r} has {len(rows)} rows (lines {listed}), which disagree"
            repeated.update(dict.fromkeys(rows, FileProblem(path, what)))
    return dict(sorted(blank.items())) | dict(sorted(repeated.items()))


def _check_spelling(path: str, labels: Column) -> None:
    """Labels that differ only in case or blanks are one label and a slip."""
    spelled: dict[str, list[str]] = {}
    for label in dict.fromkeys(labels):
        spelled.setdefault("".join(label.casefold().split()), []).append(label)
    problems = []
    for alike in spelled.values():
        if len(alike) > 1:
            counts = [f"{name!r} ({int(np.sum(labels == name))} bags)" for name in alike]
            what = f"labels {' and '.join(counts)} differ only in case or blanks, probably a slip"
            problems.append(FileProblem(path, what))
    if problems:
        raise BadFilesError(problems)


def positive_class(classes: Sequence[int | str]) -> int | str | None:
    """The class of two that holds what is looked for, or None where the names do not tell.

    Numbers: the larger one. Names: the other one where one is a usual name for its absence.

    Examples
    --------
    >>> from bagwise.files import positive_class
    >>> positive_class([0, 1]), positive_class(["Tumor", "normal"]), positive_class(["a", "b"])
    (1, 'Tumor', None)
    """
    if not any(isinstance(c, str) for c in classes):
        return max(classes)
    bare = ["".join(filter(str.isalnum, str(c).casefold())) for c in classes]
    negative = [
        name in _NEGATIVES or any(name == f"{denial}{other}" for denial in _DENIALS)
        for name, other in zip(bare, bare[::-1], strict=True)
    ]
    if sum(negative) != 1:
        return None
    return classes[negative.index(False)]


def background_class(classes: Sequence[object]) -> object:
    """The one class of several whose name says that nothing was found, or None.

    Examples
    --------
    >>> from bagwise.files import background_class
    >>> background_class(["adeno", "normal", "squamous"]), background_class([0, 1, 2])
    ('normal', None)
    """
    bare = ["".join(filter(str.isalnum, str(c).casefold())) for c in classes]
    at = [i for i, name in enumerate(bare) if name in _NEGATIVES]
    return classes[at[0]] if len(at) == 1 else None


def _as_classes(labels: Column) -> Column:
    """Whole numbers where all labels are written as such, else text."""
    if all(v.lstrip("-").isdecimal() and str(int(v)) == v for v in labels):
        return np.asarray([int(v) for v in labels])
    if all(re.fullmatch(r"-?\d+[.,]0*", v) for v in labels):  # as a frame with gaps is saved
        return np.asarray([int(float(v.replace(",", "."))) for v in labels])
    return np.asarray([str(v) for v in labels])


def read_instance_labels(path: str | Path, bags: Bags, bag: str = "slide_id") -> Column:
    r"""Instance labels from a CSV with columns ``bag``, index and label; None where not given.

    ``index`` counts from 0 within the bag, in the order of its file.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.files import read_instance_labels
    >>> bags = Bags(np.ones((3, 2)), [0, 2, 3], ids=["s1", "s2"])
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "patches.csv"
    >>> _ = path.write_text("slide_id,index,label\ns1,0,1\n")
    >>> read_instance_labels(path, bags).tolist()
    [1, None, None]
    """
    frame = named_columns(read_frame(path), str(path), [bag, "index", "label"])
    position = {name: i for i, name in enumerate(bags.ids)}
    out = np.full(bags.n_instances, None, dtype=object)
    texts = [str(v).strip() for v in frame["label"]]
    known = _as_classes(np.asarray([t for t in texts if t not in _MISSING], dtype=object))
    values = iter(known.tolist())
    problems = []
    rows = zip(frame.index, frame[bag], frame["index"], texts, strict=True)
    for line, name, number, text in rows:
        value = None if text in _MISSING else next(values)
        i = position.get(str(name).strip())
        if i is None:
            problems.append(FileProblem(str(path), f"line {line}: there is no bag {name!r}"))
        elif not (str(number).isdecimal() and int(number) < bags.sizes[i]):
            what = f"line {line}: bag {name!r} has instances 0 to {bags.sizes[i] - 1}; got {number}"
            problems.append(FileProblem(str(path), what))
        else:
            out[bags.offsets[i] + int(number)] = value
    if problems:
        raise BadFilesError(problems)
    return out
