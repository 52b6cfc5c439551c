"""Bags on a memory map, read by plain reads instead."""

from __future__ import annotations

from typing import overload

import numpy as np

from bagwise.bags import Bags, BagsLike
from bagwise.bags.mapped import map_rows_of


@overload
def read_plainly(bags: Bags) -> Bags: ...
@overload
def read_plainly(bags: BagsLike) -> BagsLike: ...
def read_plainly(bags: BagsLike) -> BagsLike:
    """Bags whose rows, if they are a memory map of floats, are read by plain reads.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.files import read_plainly
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.npy"
    >>> np.save(path, np.ones((3, 2)))
    >>> bags = Bags(np.load(path, mmap_mode="r"), [0, 1, 3])
    >>> type(read_plainly(bags).instances).__name__
    'MappedRows'
    """
    if not isinstance(bags, Bags) or not isinstance(bags.instances, np.memmap):
        return bags
    if bags.instances.dtype.kind != "f":
        return bags
    rows = map_rows_of(bags.instances)
    return (
        bags
        if rows is bags.instances
        else bags._with_rows(rows, bags.feature_names, bags.known_finite)
    )
