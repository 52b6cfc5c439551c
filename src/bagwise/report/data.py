"""What a data set looks like, and what may be wrong with it before any model is blamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from bagwise.bags import Bags
from bagwise.core import segments

if TYPE_CHECKING:
    from bagwise.core.arrays import Column, Floats, Ints


_CHUNK = 8_192


def data_warnings(bags: Bags, y: Column | None = None) -> list[str]:
    """Sentences about a data set that a reader should know before trusting a model.

    Imbalance, few bags, constant features, instances that appear in bags of both classes, and
    a bag size that gives the label away. Instances are read in chunks.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.report.data import data_warnings
    >>> bags = Bags.from_list([np.ones((2, 3)), np.zeros((2, 3))] * 20)
    >>> data_warnings(bags, [0, 1] * 20)
    ['38 of 40 bags repeat instances of another bag exactly.']
    """
    said = []
    codes, lowest, highest = _scan(bags)
    constant = np.flatnonzero(lowest == highest)
    if len(constant):
        said.append(
            f"{len(constant)} of {bags.n_features} features are constant and say nothing "
            f"(first: feature {constant[0]})."
        )
    if y is not None:
        names = getattr(y, "columns", None)
        y = np.asarray(y)
        said += _label_warnings(bags, y) if y.ndim == 1 else _class_warnings(y, names)
        shared = _shared_between_classes(codes, bags, y)
        if shared:
            said.append(f"{shared} distinct instances appear, identical, in bags of both classes.")
    repeated = _repeated_bags(codes, bags)
    if repeated:
        said.append(f"{repeated} of {len(bags)} bags repeat instances of another bag exactly.")
    return said


def _class_warnings(y: Ints, names: Sequence[object] | None) -> list[str]:
    """Sentences about the rarest column of an indicator matrix."""
    rarest = int(y.sum(axis=0).argmin())
    if y[:, rarest].sum() >= 15:
        return []
    name = rarest if names is None else names[rarest]
    return [
        f"Only {y[:, rarest].sum()} of {len(y)} bags have class {name}; expect wide error margins."
    ]


def _label_warnings(bags: Bags, y: Ints) -> list[str]:
    said = []
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) == 2 and counts.min() < 0.2 * counts.sum():
        rare = classes[int(np.argmin(counts))]
        said.append(
            f"The classes are imbalanced: only {counts.min()} of {counts.sum()} bags are "
            f"{rare!s}. Accuracy flatters; look at the precision-recall curve, and choose the "
            "threshold for a goal (--min-sensitivity, --min-specificity or --cost)."
        )
    if counts.min() < 15:
        said.append(f"There are only {counts.min()} bags of one class; expect wide error margins.")
    if len(classes) == 2:
        auc = roc_auc_score(y == classes[1], bags.sizes)
        if max(auc, 1 - auc) > 0.8 and counts.min() >= 5:
            said.append(
                f"The number of instances alone predicts the label (AUC {max(auc, 1 - auc):.2f}); "
                "make sure that is not how the data were collected."
            )
    return said


def _scan(bags: Bags) -> tuple[NDArray[np.number], Floats, Floats]:
    """A hash of every row, and the smallest and largest value of every feature."""
    X = bags.instances
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 2**63, size=bags.n_features, dtype=np.uint64) | np.uint64(1)
    codes = np.empty(bags.n_instances, dtype=np.uint64)
    lowest = np.full(bags.n_features, np.inf)
    highest = -lowest
    for start in range(0, bags.n_instances, _CHUNK):
        block = X[start : start + _CHUNK]
        block = np.asarray(block.toarray() if hasattr(block, "toarray") else block)
        lowest = np.minimum(lowest, block.min(axis=0))
        highest = np.maximum(highest, block.max(axis=0))
        bits = np.ascontiguousarray(block + 0.0, dtype=np.float64).view(np.uint64)
        # Mixed before weighting, because most bits of short decimals are zero.
        bits = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        codes[start : start + len(block)] = (bits * weights).sum(axis=1, dtype=np.uint64)
    return codes, lowest, highest


def _shared_between_classes(codes: NDArray[np.number], bags: Bags, y: Ints) -> int:
    classes = np.unique(y)
    if y.ndim != 1 or len(classes) != 2:
        return 0
    positive = segments.spread(y == classes[1], bags.offsets)
    return len(np.intersect1d(codes[positive], codes[~positive]))


def _repeated_bags(codes: NDArray[np.number], bags: Bags) -> int:
    """Bags all of whose instances were seen, as a set, in an earlier bag."""
    seen: set[bytes] = set()
    repeated = 0
    for part in bags.split(codes):
        key = np.sort(part).tobytes()
        repeated += key in seen
        seen.add(key)
    return repeated
