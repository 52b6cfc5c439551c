"""Rows of the host or of a disk, moved to a device once, where they fit there.

A fit looks at the rows three times: to measure the features, to choose inducing points and to
project. Moved once, everything after runs at the speed of the device. Rows that do not fit stay
where they are and are read in slabs.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from array_api_compat import is_torch_array

from bagwise.core.arrays import Rows, tensor_of
from bagwise.models.drivers import in_order
from bagwise.models.execution import free_memory

if TYPE_CHECKING:
    from bagwise.bags import Bags

# Numbers read at a time, 64 MB in float32, and how many such pieces are read ahead.
_NUMBERS = 1 << 24
_AHEAD = 6
# Rows take at most this share of the free memory: projections and workspace need the rest.
_SHARE = 0.25


def placed(bags: Bags, device: str | None) -> Bags:
    """The bags with their rows on a device, where that is asked for and they fit."""
    X = bags.instances
    if device is None or is_torch_array(X) or sp.issparse(X) or np.dtype(X.dtype).kind != "f":
        return bags
    if X.shape[0] * X.shape[1] * np.dtype(X.dtype).itemsize > _SHARE * free_memory(device):
        return bags
    import torch

    rows = torch.empty(X.shape, dtype=getattr(torch, np.dtype(X.dtype).name), device=device)
    for run, piece in read_ahead(X):
        rows[run] = tensor_of(piece).to(device)
    return bags.with_instances(rows)


def read_ahead(X: Rows) -> Iterator[tuple[slice, Rows]]:
    """Runs of rows, in order, while threads read those that come next.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.placement import read_ahead
    >>> [(run.start, len(rows)) for run, rows in read_ahead(np.ones((5, 2)))]
    [(0, 5)]
    """
    step = max(1, _NUMBERS // X.shape[1])
    runs = [slice(a, min(a + step, X.shape[0])) for a in range(0, X.shape[0], step)]

    def read(run: slice) -> Rows:
        rows = X[run]
        return rows if rows.flags.writeable else rows.copy()  # torch warns of read-only rows

    with ThreadPoolExecutor(_AHEAD) as pool:
        pieces = in_order((pool.submit(read, run) for run in runs), _AHEAD)
        yield from zip(runs, pieces, strict=True)
