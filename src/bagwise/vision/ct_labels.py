"""Labels of CT scans and slices."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Ints
from bagwise.files.tables import named_columns, read_frame

if TYPE_CHECKING:
    import pandas as pd


def read_ct_labels(path: str | PathLike[str]) -> pd.DataFrame:
    r"""Read a label file: that of RSNA 2019, that of CQ500, or a table of scans.

    RSNA's has a row per slice and subtype, ``ID_<slice>_<subtype>,Label``. CQ500's has a row per
    scan and a column per reader and class, ``R1:ICH``; two of three readers decide. Any other
    table has a column ``scan`` and a column of 0 and 1 for each class.

    Returns
    -------
    DataFrame of 0 and 1 with a column per class, whose index is called "slice" or "scan"

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from bagwise.vision import read_ct_labels
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "reads.csv"
    >>> _ = path.write_text("scan,any,subdural\na,1,0\nb,0,0\n")
    >>> read_ct_labels(path).loc["a"].to_dict()
    {'any': 1, 'subdural': 0}
    """
    import pandas as pd

    frame, where = read_frame(path, text=()), str(path)
    if {"ID", "Label"} <= set(frame.columns):
        return _rsna_labels(frame, where)
    if "name" in frame.columns and any(str(c).startswith("R1:") for c in frame.columns):
        classes = [str(c)[3:] for c in frame.columns if str(c).startswith("R1:")]
        columns = [f"R{reader}:{name}" for name in classes for reader in (1, 2, 3)]
        frame = named_columns(frame, where, columns)
        votes = _zero_one(frame.set_index("name")[columns], where)
        majority = votes.to_numpy().reshape(len(frame), len(classes), 3).sum(axis=2) >= 2
        return pd.DataFrame(majority.astype(np.int64), votes.index.rename("scan"), classes)
    frame = named_columns(frame, where, ["scan"]).set_index("scan")
    if frame.columns.empty:
        raise ValueError(f"{path} has no column of labels beside 'scan'.")
    return _zero_one(frame, where)


def _rsna_labels(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    parts = frame["ID"].astype(str).str.extract(r"^(?P<slice>.*)_(?P<subtype>[^_]*)$")
    if parts["slice"].isna().any():
        wrong = frame["ID"][parts["slice"].isna()].iloc[0]
        raise ValueError(f"{where} has the ID {wrong!r}; RSNA's are ID_<slice>_<subtype>.")
    frame = frame.join(parts).drop_duplicates(["slice", "subtype"])
    table = frame.pivot_table("Label", "slice", "subtype", aggfunc="first", dropna=False)
    incomplete = table.isna().any(axis=1)
    if incomplete.any():
        raise ValueError(f"{where} lacks a subtype of slice {table.index[incomplete][0]!r}.")
    return _zero_one(table[sorted(table.columns, key=lambda c: (c != "any", c))], where)


def _zero_one(labels: pd.DataFrame, where: str) -> pd.DataFrame:
    """A table of labels by name; a value that is not 0 or 1, or a second row, is an error."""
    labels = labels.set_axis(labels.index.astype(str), axis=0)
    twice = labels.index[labels.index.duplicated()]
    if len(twice):
        raise ValueError(f"{where} has {twice[0]!r} more than once.")
    for row, column in np.argwhere(~labels.isin((0, 1)).to_numpy()):
        name, value = labels.columns[column], labels.to_numpy(dtype=object)[row, column]
        raise ValueError(f"{where}: {labels.index[row]}, column {name!r}: {value!r} is not 0 or 1.")
    return labels.astype(np.int64)


def label_scans(bags: Bags, labels: pd.DataFrame) -> tuple[Ints, Ints | None]:
    """Labels of scans [n_scans, n_classes], and of slices where `read_ct_labels` read those.

    Names of scans are compared without case, spaces and punctuation, and a folder may hold its
    name twice: CQ500's ``CQ500CT12 CQ500CT12`` is ``CQ500-CT-12`` in its table.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> import pandas as pd
    >>> from bagwise.vision import label_scans
    >>> bags = Bags(np.ones((3, 2)), [0, 2, 3], ids=["CQ500CT0 CQ500CT0", "CQ500CT1 CQ500CT1"])
    >>> labels = pd.DataFrame({"ICH": [1, 0]}, index=["CQ500-CT-0", "CQ500-CT-1"])
    >>> label_scans(bags, labels)[0].tolist()
    [[1], [0]]
    """
    rows_by_name = dict(zip(labels.index, labels.to_numpy(), strict=True))
    if labels.index.name == "slice":
        return label_slices(bags, rows_by_name)

    def plain(name: str) -> str:
        return "".join(c for c in name.lower() if c.isalnum())

    by_plain_name = {plain(name): row for name, row in rows_by_name.items()}
    rows = []
    for scan in map(str, bags.ids):
        names = [plain(name) for name in (scan, *scan.split())]
        row = next((by_plain_name[name] for name in names if name in by_plain_name), None)
        if row is None:
            raise ValueError(f"scan {scan!r} has no label; labels name {labels.index[0]!r}, ...")
        rows.append(row)
    return np.stack(rows), None


def label_slices(bags: Bags, labels: Mapping[str, int | Ints]) -> tuple[Column, Column]:
    """Scan labels and slice labels of bags read by `read_scans`, from slice labels by id.

    Returns ``(y, instance_labels)``, with a column per class where labels are arrays; a slice
    without a label is an error that names it.

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
    ids = [str(name) for name in bags.columns["slice_id"]]
    unknown = [name for name in ids if name not in labels]
    if unknown:
        raise ValueError(f"{len(unknown)} slice(s) have no label, the first is {unknown[0]!r}.")
    by_slice = np.array([labels[name] for name in ids])
    return np.array([part.max(axis=0) for part in bags.split(by_slice)]), by_slice
