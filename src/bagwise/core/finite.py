"""Looking for NaN and infinity in rows of any kind, a block at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from array_api_compat import is_torch_array

# Rows looked at together, so that a memory map is never read whole.
_ROWS = 65_536


def all_finite(X: Any) -> bool:
    """Whether every number is finite.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.finite import all_finite
    >>> all_finite(np.ones((3, 2))), all_finite(np.array([[1.0, np.nan]]))
    (True, False)
    """
    return first_not_finite(X) is None


def first_not_finite(X: Any) -> tuple[tuple[int, ...], str] | None:
    """Index of the first entry that is not finite and what it is, or None.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.finite import first_not_finite
    >>> first_not_finite(np.array([[1.0, 2.0], [3.0, -np.inf]]))
    ((1, 1), 'infinity')
    """
    if sp.issparse(X):
        bad = np.flatnonzero(~np.isfinite(X.data))
        if len(bad) == 0:
            return None
        row = int(np.searchsorted(X.indptr, bad[0], side="right")) - 1
        return _place(row, X[row : row + 1].toarray())
    for start in range(0, X.shape[0], _ROWS):
        block = X[start : start + _ROWS]
        if is_torch_array(block):
            import torch

            if not bool(torch.isfinite(block).all()):
                return _place(start, block.cpu().numpy())
            continue
        # One reduction that is NaN or inf iff an entry is; far cheaper than isfinite.
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.sum(block, dtype=np.float64)
        if not np.isfinite(total) and not np.isfinite(block).all():
            return _place(start, np.asarray(block))
    return None


def _place(start: int, block: Any) -> tuple[tuple[int, ...], str]:
    """Of a block of rows that begins at row ``start``."""
    place = tuple(int(i) for i in np.argwhere(~np.isfinite(block))[0])
    what = "NaN" if np.isnan(block[place]) else "infinity"
    return (start + place[0], *place[1:]), what
