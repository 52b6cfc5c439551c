"""An SVM on many rows, trained on those that matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from bagwise.core.arrays import Bools, Codes, Floats, Ints

Classifier = TypeVar("Classifier")
# Where this share of the rows outside violates its margin, the rest is added with them: another
# round, which starts anew, would cost more than those rows.
_MOST = 0.5


def solve_on_working_set(
    t: Codes | Bools,
    active: Bools,
    fit: Callable[[Ints], Classifier],
    score: Callable[[Classifier, Ints], Floats],
    tol: float = 1e-3,
) -> tuple[Classifier, Ints]:
    """The SVM of all rows, and the rows it was trained on.

    A working set is grown by the rows that violate their margin, until none does: the same
    optimum, since a row outside has multiplier 0.

    Parameters
    ----------
    t : array of 0/1, shape (n,)
    active : array of bool, shape (n,)
        The working set to start with, of both classes; all True gives every row at once.
    fit, score : callables
        ``fit(rows)`` is the SVM of these rows, ``score(svm, rows)`` its decision.
    tol : float, default=0.001
        How far a margin may fall short of 1.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.svm import SVC
    >>> from bagwise.core.working_set import solve_on_working_set
    >>> X, t = np.arange(8.0)[:, None], np.arange(8) >= 4
    >>> svm, rows = solve_on_working_set(
    ...     t,
    ...     np.isin(np.arange(8), [0, 7]),
    ...     lambda rows: SVC(kernel="linear", C=100.0).fit(X[rows], t[rows]),
    ...     lambda svm, rows: svm.decision_function(X[rows]),
    ... )
    >>> rows.tolist(), svm.predict([[3.4], [3.6]]).tolist()
    ([0, 1, 2, 3, 4, 5, 6, 7], [False, True])
    """
    active = np.array(active, dtype=np.bool_)
    while True:
        inside, outside = np.flatnonzero(active), np.flatnonzero(~active)
        svm = fit(inside)
        if len(outside):
            violates = (2.0 * t[outside] - 1) * score(svm, outside) < 1 - tol
            if violates.mean() < _MOST:
                outside = outside[violates]
        if len(outside) == 0:
            return svm, inside
        active[outside] = True
