"""What a data set looks like, and what may be wrong with it before any model is blamed."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.evaluate.audit.features import blocks
from bagwise.evaluate.audit.folds import row_hashes


def data_warnings(bags: Bags, y: Any = None) -> list[str]:
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
    warnings = []
    lowest, highest, hashes = np.array(np.inf), np.array(-np.inf), []
    for _, rows in blocks(bags):
        lowest, highest = (
            np.minimum(lowest, rows.min(axis=0)),
            np.maximum(highest, rows.max(axis=0)),
        )
        hashes.append(row_hashes(rows))
    codes = np.concatenate(hashes)  # [N]
    constant = np.flatnonzero(lowest == highest)
    if len(constant):
        warnings.append(
            f"{len(constant)} of {bags.n_features} features are constant and carry no information "
            f"(first: feature {constant[0]})."
        )
    if y is not None:
        warnings += _label_warnings(bags, y)
        classes = np.unique(y)
        if np.ndim(y) == 1 and len(classes) == 2:
            positive = segments.spread(np.asarray(y) == classes[1], bags.offsets)
            # Distinct instances, however often each appears.
            shared = len(np.intersect1d(codes[positive], codes[~positive]))
            if shared:
                warnings.append(
                    f"{shared} distinct instances appear, identical, in bags of both classes."
                )
    # The instances of a bag as a set, whatever their order.
    distinct = {np.sort(part).tobytes() for part in bags.split(codes)}
    if len(distinct) < len(bags):
        repeated = len(bags) - len(distinct)
        warnings.append(f"{repeated} of {len(bags)} bags repeat instances of another bag exactly.")
    return warnings


def _label_warnings(bags: Bags, y: Any) -> list[str]:
    """Sentences about rare classes, and about a bag size that gives the label away."""
    names = getattr(y, "columns", None)
    y = np.asarray(y)
    if y.ndim == 2:
        counts = y.sum(axis=0)
        rarest = int(counts.argmin())
        name = rarest if names is None else names[rarest]
        sentence = (
            f"Only {counts[rarest]} of {len(y)} bags have class {name}; expect wide error margins."
        )
        return [sentence] if counts[rarest] < 15 else []
    warnings = []
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) == 2 and counts.min() < 0.2 * counts.sum():
        rare = classes[int(np.argmin(counts))]
        warnings.append(
            f"The classes are imbalanced: only {counts.min()} of {counts.sum()} bags are "
            f"{rare!s}. Accuracy is misleading; look at the precision-recall curve, and choose the "
            "threshold for a goal (--min-sensitivity, --min-specificity or --cost)."
        )
    if counts.min() < 15:
        warnings.append(
            f"There are only {counts.min()} bags of one class; expect wide error margins."
        )
    if len(classes) == 2:
        auc = roc_auc_score(y == classes[1], bags.sizes)
        if max(auc, 1 - auc) > 0.8 and counts.min() >= 5:
            warnings.append(
                f"The number of instances alone predicts the label (AUC {max(auc, 1 - auc):.2f}); "
                "make sure that is not how the data were collected."
            )
    return warnings
