"""Bags and labels together, checked against each other before anything is trained."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.core.arrays import Column
from bagwise.files.addresses import AnyPath
from bagwise.files.labels import LabelTable, read_instance_labels, read_labels
from bagwise.files.problems import BadFilesError, FileProblem, bad_file
from bagwise.files.reading import Progress, ScannedBags, scan_bags
from bagwise.files.tables import Names


class Training(NamedTuple):
    r"""What a model is trained or tested on; ``labels`` is the file the labels came from.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np
    >>> from bagwise.files import read_training
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> (folder / "features").mkdir()
    >>> for name in ("s1", "s2"):
    ...     np.save(folder / "features" / f"{name}.npy", np.ones((3, 2)))
    >>> _ = (folder / "labels.csv").write_text("slide_id,label\ns1,0\ns2,1\n")
    >>> data = read_training(folder / "features", folder / "labels.csv")
    >>> data.bags, data.y.tolist()
    (Bags(2 bags, 6 instances, 2 features), [0, 1])
    """

    bags: Bags
    y: Column
    patients: Column | None
    instance_labels: Column | None
    skipped: list[FileProblem]
    labels: str
    classes: tuple[str, ...] | None = None  # where a bag may have several, one column of y each


def read_training(
    bags: str | AnyPath,
    labels: str | Path,
    names: Names | None = None,
    *,
    instance_labels: str | Path | None = None,
    skip_bad: bool = False,
    lazy: bool | Literal["auto"] = "auto",
    two_classes: bool = True,
    recursive: bool = False,
    progress: Progress | None = None,
) -> Training:
    r"""Read bags and their labels; everything that does not fit is raised as one `BadFilesError`.

    Missing files (a label without a bag), extra files (a bag without a label), duplicate,
    empty, truncated or odd ones are all named. With ``skip_bad`` the rest is used and
    ``skipped`` lists what was left out.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np
    >>> from bagwise.files import read_training
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in "abc":
    ...     np.save(folder / f"{name}.npy", np.ones((2, 4)))
    >>> _ = (folder / "labels.csv").write_text("slide_id,label\na,0\nb,1\n")
    >>> data = read_training(folder, folder / "labels.csv", skip_bad=True)
    >>> len(data.bags), data.y.tolist(), len(data.skipped)
    (2, [0, 1], 1)
    """
    names = names or Names()
    scan = scan_bags(bags, names, lazy=lazy, recursive=recursive, progress=progress)
    problems = list(scan.problems)
    try:
        label_table = read_labels(labels, names.bag, names.label, names.patient, skip_bad=skip_bad)
    except BadFilesError as error:
        raise BadFilesError([*problems, *error.problems]) from error
    if scan.bags is None:
        raise BadFilesError(problems)
    problems += [*label_table.skipped, *_mismatches(scan, label_table, str(bags))]
    if problems and not skip_bad:
        raise BadFilesError(problems)
    row_of = {name: row for row, name in enumerate(label_table.ids)}
    keep = np.flatnonzero([name in row_of for name in scan.bags.ids])
    rows = [row_of[name] for name in scan.bags.ids[keep]]
    if len(keep) == 0:
        raise BadFilesError(
            [*problems, FileProblem(label_table.path, f"no label matches a bag in {bags}")]
        )
    chosen = scan.bags if len(keep) == len(scan.bags) else scan.bags[keep]
    y = label_table.y[rows]
    if y.ndim == 2 and two_classes:
        what = "needs one column of labels with two classes; got several columns"
        raise bad_file(label_table.path, what)
    if y.ndim == 1:
        present = np.unique(y)
        if len(present) < 2 or (two_classes and len(present) > 2):
            shown = ", ".join(f"{c!r}" for c in present[:5].tolist())
            what = f"needs two classes of bags; got {len(present)}: {shown}"
            raise bad_file(label_table.path, what)
    # Labels that files carry are for evaluation; only those that are asked for train a model.
    known = read_instance_labels(instance_labels, chosen, names.bag) if instance_labels else None
    patients = None if label_table.patients is None else label_table.patients[rows]
    return Training(chosen, y, patients, known, problems, label_table.path, label_table.classes)


def _mismatches(scan: ScannedBags, labels: LabelTable, where: str) -> list[FileProblem]:
    """Labels without a bag and bags without a label, with a hint where names nearly agree."""
    assert scan.bags is not None
    broken = {PurePosixPath(problem.path).stem for problem in scan.problems}
    have, labelled = set(scan.bags.ids) | broken, set(labels.ids) | labels.skipped_ids
    unknown = [name for name in labels.ids if name not in have]
    # Slide names often come with the extension of the image, or lose their zeros to Excel.
    unpadded = {name.lstrip("0"): name for name in have if name.isdecimal()}
    hint = ""
    for name in unknown:
        padded = unpadded.get(name.lstrip("0")) if name.isdecimal() else None
        if Path(name).stem in have:
            hint = f" (there is {Path(name).stem!r}: drop the extension)"
        elif padded:
            hint = f" (there is {padded!r}: store ids as text to keep zeros)"
        if hint:
            break
    lacking = [f"bag {name!r} has a label but no file in {where}{hint}" for name in unknown]
    return [FileProblem(labels.path, what) for what in lacking] + [
        FileProblem(where, f"bag {name!r} has no label in {labels.path}")
        for name in scan.bags.ids
        if name not in labelled
    ]
