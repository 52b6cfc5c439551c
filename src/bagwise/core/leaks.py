"""Features that know the label of a bag: values of the bag, not of its instances."""

from __future__ import annotations

from math import lgamma

import numpy as np
from numpy.typing import ArrayLike

from bagwise.core.arrays import Bools, Ints, Reals, Rows, as_array, is_sparse

# What chance may do, over all candidates together, before a feature is named.
_CHANCE = 0.01
# Bags of each class looked at first; the number doubles while candidates remain.
_FIRST_BAGS = 4


def bag_level_features(X: ArrayLike, offsets: ArrayLike) -> Ints:
    """Features with one value for all rows of each bag, though they differ between bags.

    A feature counts only where that is no accident: had its values been dealt to the rows at
    random, neighbours within a bag would all agree with a probability below 1e-6.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.leaks import bag_level_features
    >>> age = np.repeat([61.0, 47.0, 58.0], 9)
    >>> X = np.column_stack([np.arange(27.0), age])
    >>> bag_level_features(X, [0, 9, 18, 27]).tolist()
    [1]
    """
    X, offsets = np.asarray(X), np.asarray(offsets)
    inside = np.ones(len(X), dtype=bool)
    inside[offsets[:-1][np.diff(offsets) > 0]] = False  # the first row of a bag has no neighbour
    later = np.flatnonzero(inside)
    constant = np.arange(X.shape[1])
    start, step = 0, 64
    while start < len(later) and len(constant):  # a few rows rule out most features
        rows = later[start : start + step]
        equal = X[np.ix_(rows, constant)] == X[np.ix_(rows - 1, constant)]
        constant = constant[equal.all(axis=0)]
        start, step = start + step, 4 * step
    named = []
    for j in constant:
        _, counts = np.unique(X[:, j], return_counts=True)
        agree = float(np.sum((counts / len(X)) ** 2))  # of two rows drawn at random
        if len(counts) > 1 and agree ** len(later) < 1e-6:
            named.append(j)
    return np.asarray(named, dtype=np.int64)


def determining_features(X: Rows, offsets: ArrayLike, y: ArrayLike) -> Ints:
    """Features that give the label of every bag away, beyond what chance would do.

    Two kinds are named. A feature that has one value for all rows of a bag and no value in bags
    of two classes (a copy of the label, a site that sent one class only). And a feature whose
    values in the rows of one class all lie apart from those of the others: in real bags most
    instances of a positive bag look like those of a negative one, so no single feature does that.
    In bags of one instance a good feature may do either by merit; there, only a feature with one
    value per class is named, which is the label under another name.

    Rows are read bag by bag, from all classes in turn, and only as long as a feature is under
    suspicion: ordinary data are settled by the first few bags.

    Parameters
    ----------
    X : array of shape (n_instances, n_features)
        ndarray, sparse, torch, or rows on disk.
    offsets : array of shape (n_bags + 1,)
    y : array of shape (n_bags,)

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.leaks import determining_features
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(20) % 2
    >>> X = np.column_stack([rng.normal(size=100), np.repeat(y, 5)])
    >>> determining_features(X, np.arange(0, 101, 5), y).tolist()
    [1]
    """
    offsets = np.asarray(offsets)
    classes = np.unique(np.asarray(y))
    codes = np.searchsorted(classes, np.asarray(y))
    sizes = np.diff(offsets)
    if len(classes) < 2 or len(X.shape) != 2 or np.any(sizes == 0):
        return np.empty(0, dtype=np.int64)
    suspects = _Suspects(X.shape[1], len(classes))
    of_class = [np.flatnonzero(codes == c) for c in range(len(classes))]
    start, step = 0, _FIRST_BAGS
    while start < max(map(len, of_class)):  # rounds of as many bags from each class, doubling
        for i in np.concatenate([bags[start : start + step] for bags in of_class]):
            rows = X[int(offsets[i]) : int(offsets[i + 1])]
            suspects.see(int(codes[i]), rows.toarray() if is_sparse(rows) else as_array(rows))
        if not suspects.narrow():
            return np.empty(0, dtype=np.int64)
        start, step = start + step, 2 * step
    return suspects.named(several=X.shape[0] >= 2 * len(sizes))


class _Suspects:
    """Features still under suspicion: their range in each class, and their value in each bag."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        self.n_started = n_features
        self.features = np.arange(n_features)
        self.constant = np.ones(n_features, dtype=bool)
        self.low = np.full((n_classes, n_features), np.inf)
        self.high = -self.low
        self.codes: list[int] = []  # class of each bag seen
        self.values: list[Reals] = []  # first row of each bag seen

    def see(self, code: int, rows: Reals) -> None:
        rows = rows[:, self.features]
        low, high = rows.min(axis=0), rows.max(axis=0)
        self.constant &= low == high
        self.low[code] = np.minimum(self.low[code], low)
        self.high[code] = np.maximum(self.high[code], high)
        self.codes.append(code)
        self.values.append(low)

    def narrow(self) -> bool:
        """Acquit features that neither lie apart nor stand for the bags of one class."""
        self.constant &= self.apart() | self._stands_for_class()
        keep = self.constant | self.apart()
        self.features, self.constant = self.features[keep], self.constant[keep]
        self.low, self.high = self.low[:, keep], self.high[:, keep]
        self.values = [row[keep] for row in self.values]
        return bool(keep.any())

    def apart(self) -> Bools:
        """Whether the ranges of the classes do not touch, for each feature."""
        order = np.argsort(self.low, axis=0)
        low = np.take_along_axis(self.low, order, axis=0)
        high = np.take_along_axis(self.high, order, axis=0)
        return np.all(high[:-1] < low[1:], axis=0)

    def _stands_for_class(self) -> Bools:
        """Whether no value is in bags of two classes, for each feature that has one per bag."""
        codes = np.asarray(self.codes)
        pure = self.constant.copy()
        for k in np.flatnonzero(pure):
            values, at = np.unique([row[k] for row in self.values], return_inverse=True)
            # As many pairs of a value and a class as values: none is in bags of two classes.
            pure[k] = len(np.unique(at * len(self.low) + codes)) == len(values)
        return pure

    def named(self, several: bool) -> Ints:
        """Features that determine the label where chance would hardly let one."""
        codes, values = np.asarray(self.codes), np.asarray(self.values)
        counts = np.bincount(codes)
        share = float(np.sum((counts / len(codes)) ** 2))
        # Of all ways to arrange the labels along the values, one per order of the classes sorts.
        arrangements = lgamma(len(codes) + 1) - sum(lgamma(n + 1) for n in counts)
        sorted_by_chance = lgamma(len(counts) + 1) - arrangements
        apart, pure = self.apart(), self._stands_for_class()
        named = []
        for k, j in enumerate(self.features):
            chance = sorted_by_chance if apart[k] and several else 0.0
            distinct = len(np.unique(values[:, k]))
            if pure[k] and (several or distinct == len(counts)):
                chance = min(chance, (len(codes) - distinct) * np.log(share))
            candidates = int(self.constant.sum()) if self.constant[k] else self.n_started
            if chance + np.log(candidates) < np.log(_CHANCE):
                named.append(int(j))
        return np.asarray(named, dtype=np.int64)
