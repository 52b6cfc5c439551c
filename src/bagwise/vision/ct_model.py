"""Labels of CT scans and slices, descriptions of slices, and a classifier of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Floats, Ints
from bagwise.files.tables import named_columns, read_frame
from bagwise.models.parameters import HasParameters, parameter
from bagwise.vision.ct import ct_windows

if TYPE_CHECKING:
    import pandas as pd

    from bagwise.models.base import InstanceClassifier

_SIDE = 128  # slices are shrunk to this side before they are described
_GRID = 4  # cells along a side
_BLOOD = (50.0, 95.0)  # Hounsfield units of fresh blood
_BRAIN = (0.0, 100.0)
_BRIGHTEST = 0.02  # share of the brain


class CTLabels(NamedTuple):
    """Labels by scan or by slice, as a label file has them.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import CTLabels
    >>> CTLabels(("any", "subdural"), {"scan1": np.array([1, 0])}, of_slices=False).classes
    ('any', 'subdural')
    """

    classes: tuple[str, ...]
    values: dict[str, Ints]  # name of the scan or slice -> 0 or 1 per class
    of_slices: bool


def read_ct_labels(path: str | PathLike[str]) -> CTLabels:
    r"""Read a label file: that of RSNA 2019, that of CQ500, or a table of scans.

    RSNA's has a row per slice and subtype, ``ID_<slice>_<subtype>,Label``. CQ500's has a row per
    scan and a column per reader and class, ``R1:ICH``; two of three readers decide. Any other
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
    frame, where = read_frame(path, text=()), str(path)
    if {"ID", "Label"} <= set(frame.columns):
        return _rsna_labels(frame, where)
    if "name" in frame.columns and any(str(c).startswith("R1:") for c in frame.columns):
        classes = [str(c)[3:] for c in frame.columns if str(c).startswith("R1:")]
        columns = [f"R{reader}:{finding}" for finding in classes for reader in (1, 2, 3)]
        frame = named_columns(frame, where, columns)
        votes = _zero_one(frame[columns], frame["name"], where)
        majority = votes.reshape(len(frame), len(classes), 3).sum(axis=2) >= 2
        values = majority.astype(np.int64)
        return CTLabels(
            tuple(classes), dict(zip(map(str, frame["name"]), values, strict=True)), False
        )
    frame = named_columns(frame, where, ["scan"])
    classes = [str(c) for c in frame.columns if c != "scan"]
    if not classes:
        raise ValueError(f"{path} has no column of labels beside 'scan'.")
    values = _zero_one(frame[classes], frame["scan"], where)
    return CTLabels(tuple(classes), dict(zip(map(str, frame["scan"]), values, strict=True)), False)


def _rsna_labels(frame: pd.DataFrame, where: str) -> CTLabels:
    parts = frame["ID"].astype(str).str.extract(r"^(?P<slice>.*)_(?P<subtype>[^_]*)$")
    if parts["slice"].isna().any():
        wrong = frame["ID"][parts["slice"].isna()].iloc[0]
        raise ValueError(f"{where} has the ID {wrong!r}; RSNA's are ID_<slice>_<subtype>.")
    frame = frame.join(parts).drop_duplicates(["slice", "subtype"])
    table = frame.pivot_table("Label", "slice", "subtype", aggfunc="first", dropna=False)
    classes = sorted(map(str, table.columns), key=lambda c: (c != "any", c))
    incomplete = table[classes].isna().any(axis=1)
    if incomplete.any():
        raise ValueError(f"{where} lacks a subtype of slice {table.index[incomplete][0]!r}.")
    values = _zero_one(table[classes], table.index, where)
    return CTLabels(tuple(classes), dict(zip(map(str, table.index), values, strict=True)), True)


def _zero_one(frame: pd.DataFrame, names: Iterable[object], where: str) -> Ints:
    """The values of a table of labels; one that is not 0 or 1, or a second row, is an error."""
    numbers, seen = frame.to_numpy(dtype=object), set()
    for name, row in zip(map(str, names), numbers, strict=True):
        if name in seen:
            raise ValueError(f"{where} has {name!r} more than once.")
        seen.add(name)
        for column, value in zip(frame.columns, row, strict=True):
            if value not in (0, 1):
                raise ValueError(f"{where}: {name}, column {column!r}: {value!r} is not 0 or 1.")
    return numbers.astype(np.int64)


def label_scans(bags: Bags, labels: CTLabels) -> tuple[Ints, Ints | None]:
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
        return label_slices(bags, labels.values)

    def plain(name: str) -> str:
        return "".join(c for c in name.lower() if c.isalnum())

    by_plain_name = {plain(name): row for name, row in labels.values.items()}
    rows = []
    for scan in map(str, bags.ids):
        names = [plain(name) for name in (scan, *scan.split())]
        row = next((by_plain_name[name] for name in names if name in by_plain_name), None)
        if row is None:
            raise ValueError(
                f"scan {scan!r} has no label; labels name {next(iter(labels.values))!r}, ..."
            )
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


def describe_slice(hu: ArrayLike) -> Floats:
    """Numbers that tell slices with blood from others, without a trained network.

    Of each window: mean and largest smoothed value in 4 x 4 cells, and how the cells differ from
    their mirror images, as a bleeding is rarely on both sides. Of the brain: the share in the range
    of blood, the area of its largest connected piece, mean, spread and the brightest 2 %.

    Parameters
    ----------
    hu : array of shape (H, W)
        A slice in Hounsfield units.

    Returns
    -------
    array of shape (125,)

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import describe_slice
    >>> describe_slice(np.zeros((64, 64))).shape
    (125,)
    """
    import cv2

    small = np.asarray(hu, dtype=np.float32)
    if small.shape != (_SIDE, _SIDE):
        small = cv2.resize(small, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    smooth = cv2.blur(small, (5, 5))
    cells = ct_windows(smooth).reshape(-1, _GRID, _SIDE // _GRID, _GRID, _SIDE // _GRID)
    mean, top = cells.mean(axis=(2, 4)), cells.max(axis=(2, 4))  # [W, 4, 4]
    uneven = np.abs(mean - mean[..., ::-1])[..., : _GRID // 2]
    brain = (smooth > _BRAIN[0]) & (smooth < _BRAIN[1])
    blood = brain & (smooth > _BLOOD[0]) & (smooth < _BLOOD[1])
    values = np.sort(smooth[brain])  # Hounsfield units of the brain, the brightest last
    of_brain = [0.0] * 5
    if len(values):
        pieces = cv2.connectedComponentsWithStats(blood.astype(np.uint8))[2]
        largest = pieces[1:, cv2.CC_STAT_AREA].max() if len(pieces) > 1 else 0
        brightest = values[-max(int(_BRIGHTEST * len(values)), 1) :].mean()
        share, area = blood.sum() / len(values), largest / len(values)
        of_brain = [share, area, values.mean() / 100, values.std() / 100, brightest / 100]
    return np.concatenate([mean.ravel(), top.ravel(), uneven.ravel(), of_brain]).astype(np.float64)


@dataclass(eq=False, repr=False)
class ScanClassifier(HasParameters):
    """Classes of CT scans and their slices, with one model per class.

    Parameters
    ----------
    model : estimator or None, default=None
        A bag classifier with instance probabilities; a copy is trained for each class.

    Attributes
    ----------
    class_names_ : tuple of str
    models_ : dict of str to fitted model

    See Also
    --------
    read_scans, bagwise.Coupled

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags, VGPMIL
    >>> from bagwise.vision import ScanClassifier
    >>> rng = np.random.default_rng(0)
    >>> Y = np.tile([[1, 0], [0, 1], [0, 0], [1, 1]], (10, 1))
    >>> rows = [np.vstack([rng.normal(size=(4, 2)), [4 * y]]) for y in Y]
    >>> bags = Bags.from_list(rows)
    >>> model = VGPMIL(n_inducing=20, random_state=0)
    >>> scans = ScanClassifier(model).fit(bags, Y, ("a", "b"))
    >>> p = scans.predict_proba(bags)
    >>> p.shape, bool(((p > 0.5) == Y).mean() > 0.9)
    ((40, 2), True)
    """

    model: InstanceClassifier = parameter(
        None, HasMethods(["fit", "predict_proba_instances"]), kw_only=False
    )

    def fit(self, bags: Bags, Y: ArrayLike, class_names: Sequence[str]) -> ScanClassifier:
        """Train on labels of scans, [n_scans, n_classes] of 0 and 1."""
        self._validate_params()
        Y = np.asarray(Y)
        if Y.shape != (len(bags), len(class_names)):
            raise ValueError(
                f"labels must be {len(bags)} scans x {len(class_names)} classes; got {Y.shape}."
            )
        for name, y in zip(class_names, Y.T, strict=True):
            if len(np.unique(y)) < 2:
                raise ValueError(
                    f"class {name!r} is {'in every' if y.any() else 'in no'} scan; a class needs "
                    "scans with it and scans without."
                )
        self.class_names_ = tuple(class_names)
        self.models_ = {
            name: clone(self.model).fit(bags, y) for name, y in zip(class_names, Y.T, strict=True)
        }
        return self

    def predict_proba(self, bags: Bags) -> Floats:
        """Probability of each class.

        Returns
        -------
        p : array of shape (n_scans, n_classes)
        """
        check_is_fitted(self)
        return np.column_stack([m.predict_proba(bags)[:, 1] for m in self.models_.values()])

    def predict_proba_instances(self, bags: Bags) -> Floats:
        """Probability of each class in each slice.

        Returns
        -------
        p : array of shape (n_slices, n_classes)
        """
        check_is_fitted(self)
        columns = [m.predict_proba_instances(bags)[:, 1] for m in self.models_.values()]
        return np.column_stack(columns)
