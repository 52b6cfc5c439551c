"""Looking for NaN and infinity in rows of any kind, a block at a time."""

from __future__ import annotations

import numpy as np

from bagwise.core.arrays import Bools, Reals, Rows, is_sparse, is_tensor

# Rows looked at together, so that a memory map is never read whole.
_ROWS = 65_536


def all_finite(X: Rows) -> bool:
    """Whether every number is finite.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.finite import all_finite
    >>> all_finite(np.ones((3, 2))), all_finite(np.array([[1.0, np.nan]]))
    (True, False)
    """
    return first_not_finite(X) is None


def first_not_finite(X: Rows, allow_nan: bool = False) -> tuple[tuple[int, ...], str] | None:
    """Index of the first entry that is not finite and what it is, or None.

    With ``allow_nan`` only infinity counts.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.finite import first_not_finite
    >>> first_not_finite(np.array([[1.0, 2.0], [3.0, -np.inf]]))
    ((1, 1), 'infinity')
    """
    if is_sparse(X):
        bad = np.flatnonzero(_bad(X.data, allow_nan))
        if len(bad) == 0:
            return None
        row = int(np.searchsorted(X.indptr, bad[0], side="right")) - 1
        return _place(row, X[row : row + 1].toarray(), allow_nan)
    for start in range(0, X.shape[0], _ROWS):
        block = X[start : start + _ROWS]
        if is_tensor(block):
            import torch

            good = torch.isfinite(block) | (torch.isnan(block) if allow_nan else False)
            if not bool(good.all()):
                return _place(start, block.cpu().numpy(), allow_nan)
            continue
        # One reduction that is NaN or inf iff an entry is; far cheaper than isfinite.
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.sum(block, dtype=np.float64)
        if not np.isfinite(total) and _bad(np.asarray(block), allow_nan).any():
            return _place(start, np.asarray(block), allow_nan)
    return None


def _bad(block: Reals, allow_nan: bool) -> Bools:
    return np.isinf(block) if allow_nan else ~np.isfinite(block)


def _place(start: int, block: Reals, allow_nan: bool) -> tuple[tuple[int, ...], str]:
    """Of a block of rows that begins at row ``start``."""
    place = tuple(int(i) for i in np.argwhere(_bad(block, allow_nan))[0])
    what = "NaN" if np.isnan(block[place]) else "infinity"
    return (start + place[0], *place[1:]), what
