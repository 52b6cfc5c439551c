"""What an instance without a picture is like: labelled neighbours, and the features that differ."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bagwise.bags import Bags
from bagwise.core.arrays import Floats, Ints, host_rows

_N_FEATURES = 5
# Rows that make the spread of each feature.
_SPREAD_ROWS = 2000


class Neighbours:
    """Nearest labelled instances in standardised features.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.label.neighbours import Neighbours
    >>> bags = Bags(np.array([[0.0, 0.0], [1.0, 0.0], [0.1, 0.0]]), [0, 2, 3], ids=["a", "b"])
    >>> near = Neighbours(bags).of(2, {0: 0, 1: 1})
    >>> near["no"]["bag"], near["no"]["index"], near["no"]["features"][0]["name"]
    ('a', 0, 'feature 0')
    """

    def __init__(self, bags: Bags) -> None:
        self.bags = bags
        self.names = bags.feature_names or [f"feature {k}" for k in range(bags.n_features)]
        step = max(1, bags.n_instances // _SPREAD_ROWS)
        sample = _rows(bags, np.arange(0, bags.n_instances, step))
        width = sample.std(axis=0)
        self.width = np.where(width > 0, width, 1.0)

    def of(self, row: int, known: Mapping[int, int]) -> dict[str, object]:
        """The nearest instance answered yes, and the nearest answered no; None where none is."""
        x = _rows(self.bags, np.array([row]))[0]
        nearest: dict[str, object] = {"yes": None, "no": None}
        for answer, code in (("yes", 1), ("no", 0)):
            rows = np.array([r for r, label in known.items() if label == code and r != row])
            if not len(rows):
                continue
            others = _rows(self.bags, rows)
            difference = (x - others) / self.width
            distance = np.sqrt((difference**2).mean(axis=1))
            k = int(distance.argmin())
            bag = int(np.searchsorted(self.bags.offsets, rows[k], side="right")) - 1
            top = np.argsort(-np.abs(difference[k]), kind="stable")[:_N_FEATURES]
            nearest[answer] = {
                "bag": str(self.bags.ids[bag]),
                "index": int(rows[k] - self.bags.offsets[bag]),
                "distance": round(float(distance[k]), 3),
                "features": [
                    {
                        "name": self.names[j],
                        "here": _short(x[j]),
                        "there": _short(others[k, j]),
                        "difference": round(float(difference[k, j]), 2),
                    }
                    for j in top
                ],
            }
        return nearest


def _rows(bags: Bags, rows: Ints) -> Floats:
    return np.asarray(host_rows(bags.instances, rows), dtype=np.float64)


def _short(value: float) -> float:
    return float(f"{float(value):.4g}")
