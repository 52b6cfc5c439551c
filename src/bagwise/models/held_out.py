"""Which bags are held out together, and the one loop that fits a model without them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from bagwise.core.arrays import Bools, Column, Floats, Ints

if TYPE_CHECKING:
    from sklearn.model_selection import BaseCrossValidator

    from bagwise.models.base import TrainingData

Split: TypeAlias = tuple[Ints, Ints]  # training and test bags
# Folds of an inner cross-validation: their number, a splitter, or the splits themselves; None is
# the number of `calibration_folds`.
CV: TypeAlias = "int | BaseCrossValidator | Iterable[Split] | None"
# With fewer bags in a class, leaving out a fifth of them changes the fit too much.
_FEW = 20


def calibration_folds(y: ArrayLike) -> int:
    """Folds whose bags are left out in turn: 5, and 10 where a class has fewer than twenty bags.

    A fit without one or two of eight positive bags is no guide to the fit to all.

    Examples
    --------
    >>> from bagwise.models.held_out import calibration_folds
    >>> calibration_folds(20 * [0] + 20 * [1]), calibration_folds(200 * [0] + 19 * [1])
    (5, 10)
    """
    fewest = int(np.bincount(np.asarray(y, dtype=np.int64), minlength=2).min())
    return 10 if fewest < _FEW else 5


def folds(
    y: ArrayLike, n_folds: int, groups: ArrayLike | None = None, seed: int | None = 0
) -> Ints:
    """Fold of every bag, stratified by label; bags of one group stay together.

    There are never more folds than bags of the rarest label, and where that is a single bag
    there is one fold, in which nothing can be held out.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.held_out import folds
    >>> sorted(folds(np.array([0, 0, 0, 1, 1, 1]), 4).tolist())
    [0, 0, 1, 1, 2, 2]
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    y = np.asarray(y)
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    n_folds = min(n_folds, int(counts.min()))
    fold = np.zeros(len(y), dtype=np.int64)
    if n_folds < 2:
        return fold
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    splitter = kind(n_folds, shuffle=True, random_state=seed)
    for k, (_, left_out) in enumerate(splitter.split(codes, codes, groups)):
        fold[left_out] = k
    return fold


def splits(y: Ints, cv: CV = None) -> list[Split]:
    """Training and test bags of an inner cross-validation that holds out every bag once.

    A number of folds is shuffled by a fixed seed: bags often come sorted, and a fit must repeat
    itself.
    """
    if cv is None or isinstance(cv, int):
        fold = folds(y, calibration_folds(y) if cv is None else cv)
        return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in np.unique(fold)]
    from sklearn.model_selection import check_cv

    chosen = list(check_cv(cv, y, classifier=True).split(y, y))
    without = len(y) - len(np.unique(np.concatenate([test for _, test in chosen])))
    if without:
        raise ValueError(
            "cv must put every bag into one test fold, so that each has a held-out score; "
            f"{without} of {len(y)} bags were in none."
        )
    return chosen


def fitted_without(
    model: Any,
    data: TrainingData,
    classes: Column,
    splits: Iterable[Split],
    bag_weights: Floats | None = None,
) -> Iterator[tuple[Any, Ints, Ints]]:
    """Clones of a model fitted to the training bags of each split, its training and test bags.

    Each clone scales the features by its own training bags. A scaling that had seen the bags left
    out would keep them from being outliers, which new bags can be.
    """
    bags, y, known = data
    names = np.array([*classes, None], dtype=object)[known]  # code -1 is the last
    labels = bags.split(names) if (known >= 0).any() else None
    for train, test in splits:
        options: dict[str, Any] = {}
        if labels is not None:
            options["instance_labels"] = [labels[i] for i in train]
        if bag_weights is not None:
            options["sample_weight"] = bag_weights[train]
        fitted = clone(model)
        with warnings.catch_warnings():
            # The fit to all bags has already warned of them.
            warnings.filterwarnings("ignore", "feature.* alone .*the label of every bag")
            fitted.fit(bags[train], classes[y[train]], **options)
        yield fitted, train, test


def leave_out(y: Ints, fraction: float, rng: np.random.RandomState) -> Bools:
    """Mask of a random share of the bags of each class; no class loses its last bag, [B].

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.held_out import leave_out
    >>> int(leave_out(np.array([0, 0, 0, 0, 1]), 0.5, np.random.RandomState(0)).sum())
    2
    """
    mask = np.zeros(len(y), dtype=bool)
    for code in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == code))
        mask[members[: min(int(fraction * len(members)), len(members) - 1)]] = True
    return mask
