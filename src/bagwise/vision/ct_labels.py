"""Labels of CT scans and slices: published label files, and matching them to what was read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bagwise.bags import Bags
from bagwise.files.tables import named_columns, read_frame


class CTLabels(NamedTuple):
    """Findings by scan or by slice, as a label file has them.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import CTLabels
    >>> CTLabels(("any", "subdural"), {"scan1": np.array([1, 0])}, of_slices=False).classes
    ('any', 'subdural')
    """

    classes: tuple[str, ...]
    values: dict[str, NDArray[np.int64]]  # name of the scan or slice -> 0 or 1 per class
    of_slices: bool


def read_ct_labels(path: Any) -> CTLabels:
    r"""Read a label file: that of RSNA 2019, that of CQ500, or a table of scans.

    RSNA's has a row per slice and subtype, ``ID_<slice>_<subtype>,Label``. CQ500's has a row per
    scan and a column per reader and finding, ``R1:ICH``; two of three readers decide. Any other
    table has a column ``scan`` and a column of 0 and 1 for each class.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from bagwise.vision import read_ct_labels
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "reads.csv"
    >>> _ = path.write_text("scan,any,subdural\na,1,0\nb,0,0\n")
    >>> labels = read_ct_labels(path)
    >>> labels.classes, labels.values["a"].tolist()
    (('any', 'subdural'), [1, 0])
    """
    frame = read_frame(path, text=())
    if {"ID", "Label"} <= set(frame.columns):
        return _rsna_labels(frame, path)
    if "name" in frame.columns and any(str(c).startswith("R1:") for c in frame.columns):
        return _cq500_labels(frame, path)
    frame = named_columns(frame, str(path), ["scan"])
    classes = [str(c) for c in frame.columns if c != "scan"]
    if not classes:
        raise ValueError(f"{path} has no column of labels beside 'scan'.")
    values = _zero_one(frame[classes].to_numpy(), path, frame["scan"].astype(str), classes)
    return _labels_by_name(classes, frame["scan"].astype(str), values, path, False)


def _rsna_labels(frame: Any, path: Any) -> CTLabels:
    parts = frame["ID"].astype(str).str.rsplit("_", n=1, expand=True)
    if parts.shape[1] != 2 or parts[1].isna().any():
        bad = frame["ID"][parts[1].isna()].iloc[0] if parts.shape[1] == 2 else frame["ID"].iloc[0]
        raise ValueError(f"{path} has the ID {bad!r}; RSNA's are ID_<slice>_<subtype>.")
    frame = frame.assign(slice=parts[0], subtype=parts[1]).drop_duplicates(["slice", "subtype"])
    table = frame.pivot(index="slice", columns="subtype", values="Label")
    classes = sorted((str(c) for c in table.columns), key=lambda c: (c != "any", c))
    lacking = table[classes].isna().any(axis=1)
    if lacking.any():
        raise ValueError(f"{path} lacks a subtype of slice {table.index[lacking][0]!r}.")
    values = _zero_one(table[classes].to_numpy(), path, table.index, classes)
    return _labels_by_name(classes, table.index, values, path, True)


def _cq500_labels(frame: Any, path: Any) -> CTLabels:
    classes = [str(c)[3:] for c in frame.columns if str(c).startswith("R1:")]
    columns = [f"R{reader}:{finding}" for finding in classes for reader in (1, 2, 3)]
    frame = named_columns(frame, str(path), columns)
    names = frame["name"].astype(str)
    votes = _zero_one(frame[columns].to_numpy(), path, names, columns)
    majority = votes.reshape(len(frame), len(classes), 3).sum(axis=2) >= 2
    return _labels_by_name(classes, names, majority.astype(np.int64), path, False)


def _zero_one(
    values: Any, path: Any, names: Iterable[str], columns: Sequence[str]
) -> NDArray[np.int64]:
    numbers = np.asarray(values, dtype=object)
    for name, row in zip(names, numbers, strict=True):
        for column, value in zip(columns, row, strict=True):
            if value not in (0, 1):
                raise ValueError(f"{path}: {name}, column {column!r}: {value!r} is not 0 or 1.")
    return numbers.astype(np.int64)


def _labels_by_name(
    classes: Sequence[str], names: Iterable[str], values: Any, path: Any, of_slices: bool
) -> CTLabels:
    by_name: dict[str, NDArray[np.int64]] = {}
    for name, row in zip(names, values, strict=True):
        if name in by_name:
            raise ValueError(f"{path} has {name!r} more than once.")
        by_name[name] = row
    return CTLabels(tuple(classes), by_name, of_slices)


def label_scans(bags: Bags, labels: CTLabels) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Labels of scans [n_scans, n_classes], and of slices where the file has them.

    Names of scans are compared without case, spaces and punctuation, and a folder may hold its
    name twice: CQ500's ``CQ500CT12 CQ500CT12`` is ``CQ500-CT-12`` in its table.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.vision import CTLabels, label_scans
    >>> bags = Bags(np.ones((3, 2)), [0, 2, 3], ids=["CQ500CT0 CQ500CT0", "CQ500CT1 CQ500CT1"])
    >>> values = {"CQ500-CT-0": np.array([1]), "CQ500-CT-1": np.array([0])}
    >>> labels = CTLabels(("ICH",), values, False)
    >>> label_scans(bags, labels)[0].tolist()
    [[1], [0]]
    """
    if labels.of_slices:
        ids = [str(i) for i in bags.columns["slice_id"]]
        unknown = [i for i in ids if i not in labels.values]
        if unknown:
            raise ValueError(f"{len(unknown)} slice(s) have no label, the first is {unknown[0]!r}.")
        flat = np.stack([labels.values[i] for i in ids])
        return np.stack([part.max(axis=0) for part in bags.split(flat)]), flat
    plain = {_plain_name(name): row for name, row in labels.values.items()}
    rows = []
    for scan in bags.ids:
        names = [_plain_name(str(scan)), *(_plain_name(part) for part in str(scan).split())]
        row = next((plain[name] for name in names if name in plain), None)
        if row is None:
            raise ValueError(
                f"scan {scan!r} has no label; labels name {next(iter(labels.values))!r}, ..."
            )
        rows.append(row)
    return np.stack(rows), None


def _plain_name(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def label_slices(bags: Bags, labels: Mapping[str, int]) -> tuple[Any, Any]:
    """Scan labels and slice labels of bags read by `read_scans`, from slice labels by id.

    Returns ``(y, instance_labels)``; a slice without a label is an error that names it.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.vision import label_slices
    >>> bags = Bags(np.ones((3, 2)), [0, 2, 3]).with_columns(slice_id=np.array(["a", "b", "c"]))
    >>> y, instance_labels = label_slices(bags, {"a": 0, "b": 1, "c": 0})
    >>> y.tolist(), instance_labels.tolist()
    ([1, 0], [0, 1, 0])
    """
    ids = bags.columns["slice_id"]
    unknown = [i for i in ids if i not in labels]
    if unknown:
        raise ValueError(f"{len(unknown)} slice(s) have no label, the first is {unknown[0]!r}.")
    flat = np.array([labels[i] for i in ids])
    return np.array([part.max() for part in bags.split(flat)]), flat
