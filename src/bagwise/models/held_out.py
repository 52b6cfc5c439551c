"""Which bags are held out together: the folds that every model of the library calibrates by."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from bagwise.core.arrays import Bools, Ints


def folds(y: ArrayLike, n_folds: int, groups: ArrayLike | None = None, seed: int = 0) -> Ints:
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


def leave_out(y: Ints, fraction: float, rng: np.random.RandomState) -> Bools:
    """Mask of a random share of the bags of each class; no class loses its last bag, [B].

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.held_out import leave_out
    >>> leave_out(np.array([0, 0, 0, 0, 1]), 0.5, np.random.RandomState(0)).sum()
    np.int64(2)
    """
    mask = np.zeros(len(y), dtype=bool)
    for code in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == code))
        mask[members[: min(int(fraction * len(members)), len(members) - 1)]] = True
    return mask
