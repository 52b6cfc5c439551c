"""A classifier of CT scans and their slices: a description of slices, and a model per finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags
from bagwise.vision.ct import ct_windows

_SIDE = 128  # slices are shrunk to this side before they are described
_GRID = 4  # cells along a side
_BLOOD = (50.0, 95.0)  # Hounsfield units of fresh blood
_BRAIN = (0.0, 100.0)
_TOP = 0.02  # the brightest share of the brain


def describe_slice(hu: ArrayLike) -> NDArray[np.float64]:
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
    values = np.sort(smooth[brain])
    if len(values) == 0:
        of_brain = [0.0, 0.0, 0.0, 0.0, 0.0]
    else:
        pieces = cv2.connectedComponentsWithStats(blood.astype(np.uint8))[2]
        largest = pieces[1:, cv2.CC_STAT_AREA].max() if len(pieces) > 1 else 0
        brightest = values[-max(int(_TOP * len(values)), 1) :].mean()
        share, area = blood.sum() / len(values), largest / len(values)
        of_brain = [share, area, values.mean() / 100, values.std() / 100, brightest / 100]
    return np.concatenate([mean.ravel(), top.ravel(), uneven.ravel(), of_brain]).astype(np.float64)


class ScanClassifier(BaseEstimator):
    """Findings in CT scans and their slices, each by a model of its own.

    Parameters
    ----------
    model : estimator
        A bag classifier with instance probabilities; a copy is trained for each finding.

    Attributes
    ----------
    class_names_ : tuple of str
    models_ : dict of str to fitted model

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags, VGPMIL
    >>> from bagwise.vision import ScanClassifier
    >>> rng = np.random.default_rng(0)
    >>> Y = np.tile([[1, 0], [0, 1], [0, 0], [1, 1]], (10, 1))
    >>> rows = [np.vstack([rng.normal(size=(4, 2)), [4 * y]]) for y in Y]
    >>> bags = Bags.from_list(rows)
    >>> scans = ScanClassifier(VGPMIL(n_inducing=20, random_state=0)).fit(bags, Y, ("a", "b"))
    >>> p = scans.predict_proba(bags)
    >>> p.shape, bool(((p > 0.5) == Y).mean() > 0.9)
    ((40, 2), True)
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, bags: Bags, Y: ArrayLike, class_names: Sequence[str]) -> ScanClassifier:
        """Train on labels of scans, [n_scans, n_classes] of 0 and 1."""
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

    def predict_proba(self, bags: Bags) -> NDArray[np.float64]:
        """Probability of each finding, [n_scans, n_classes]."""
        check_is_fitted(self)
        return np.column_stack([m.predict_proba(bags)[:, 1] for m in self.models_.values()])

    def predict_proba_instances(self, bags: Bags) -> NDArray[np.float64]:
        """Probability of each finding in each slice, [n_slices, n_classes]."""
        check_is_fitted(self)
        columns = [m.predict_proba_instances(bags)[:, 1] for m in self.models_.values()]
        return np.column_stack(columns)
