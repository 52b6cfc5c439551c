"""What travels with instances: columns of any kind, coordinates, and groups within a bag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from bagwise.bags.container import Bags
    from bagwise.core.arrays import Column


def check_column(name: str, column: ArrayLike, n_instances: int) -> Column:
    """An instance-aligned column as an array of the right length."""
    column = np.asarray(column)
    if column.ndim == 0 or len(column) != n_instances:
        rows = "a single value" if column.ndim == 0 else f"{len(column)} rows"
        raise ValueError(
            f"column {name!r} must have one row per instance: got {rows} for "
            f"{n_instances} instances."
        )
    return column


def check_coords(coords: Column, bags: Bags) -> None:
    """Coordinates are an order, points in a plane or points in space, all finite."""
    if coords.ndim not in (1, 2) or (coords.ndim == 2 and coords.shape[1] not in (1, 2, 3)):
        raise ValueError(
            "coords must be one number per instance, or N x 2 or N x 3 points; got shape "
            f"{coords.shape}."
        )
    if coords.dtype.kind not in "iuf":
        raise ValueError(f"coords must be numbers; got dtype {coords.dtype}.")
    bad = np.flatnonzero(~np.isfinite(coords.reshape(len(coords), -1)).all(axis=1))
    if len(bad):
        raise ValueError(f"coords must be finite; {_instance(int(bad[0]), bags)} has none.")


def check_groups(groups: Column, bags: Bags) -> None:
    """A group belongs to one bag: a slide in two patients is a mistake in the data."""
    if groups.ndim != 1:
        raise ValueError(f"groups must be one name per instance; got shape {groups.shape}.")
    missing = np.flatnonzero(groups != groups)  # only NaN differs from itself
    if groups.dtype == object:
        missing = np.flatnonzero([value is None or value != value for value in groups])
    if len(missing):
        raise ValueError(f"{_instance(int(missing[0]), bags)} has no group.")
    _, codes = np.unique(groups.astype(str), return_inverse=True)
    # By name, because a bag drawn twice, as a bootstrap does, is still one bag.
    _, owners = np.unique(bags.ids.astype(str), return_inverse=True)
    owner = owners[bags.bag_index]
    first = np.full(codes.max(initial=-1) + 1, -1)
    first[codes[::-1]] = owner[::-1]
    clash = np.flatnonzero(first[codes] != owner)
    if len(clash):
        row = int(clash[0])
        other = int(np.flatnonzero(codes == codes[row])[0])
        names = [bags.describe_bag(int(bags.bag_index[r])) for r in (other, row)]
        raise ValueError(
            f"group {str(groups[row])!r} is in {names[0]} and in {names[1]}; a group belongs to "
            "one bag. Where groups are only numbered within a bag, put the bag's name before them."
        )


def _instance(row: int, bags: Bags) -> str:
    i = int(bags.bag_index[row])
    return f"instance {row - int(bags.offsets[i])} of {bags.describe_bag(i)}"
