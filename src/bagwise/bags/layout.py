"""How rows become bags: offsets, order, names, and choosing rows of any kind of array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from bagwise.core.arrays import is_sparse, is_tensor

if TYPE_CHECKING:
    from bagwise.core.arrays import Column, Ints, RowKey, Rows


def stacked(
    bags: Sequence[Rows | ArrayLike], ids: Sequence[object] | Column | None
) -> tuple[Rows, Ints]:
    """2-d arrays, one per bag, as one array and its offsets."""
    if not bags:
        raise ValueError("at least one bag is needed; got an empty list.")
    arrays: list[Rows] = [
        a if is_sparse(a) or is_tensor(a) else as_array(a, i) for i, a in enumerate(bags)
    ]
    widths = [a.shape[1:] for a in arrays]
    for i, (a, width) in enumerate(zip(arrays, widths, strict=True)):
        name = bag_name(i, ids)
        if a.ndim < 2:
            raise ValueError(
                f"{name} has shape {tuple(a.shape)}; every bag must be a 2-d array "
                "(instances x features)."
            )
        if width != widths[0]:
            raise ValueError(
                f"{name} has {width_of(width)} features but bag 0 has {width_of(widths[0])}; "
                "all bags need the same features."
            )
    offsets = np.concatenate([[0], np.cumsum([a.shape[0] for a in arrays])])
    if any(sp.issparse(a) for a in arrays):
        return sp.vstack(arrays, format="csr"), offsets
    if is_tensor(arrays[0]):
        import torch

        return torch.cat(arrays), offsets
    return np.concatenate([np.asarray(a) for a in arrays]), offsets


def check_offsets(offsets: Ints, instances: Rows) -> None:
    """Offsets start at 0, never fall, and end at the number of rows."""
    if getattr(instances, "ndim", 2) < 2:
        raise ValueError(f"instances must be 2-d; got shape {tuple(instances.shape)}.")
    if offsets.ndim != 1 or len(offsets) < 1 or offsets[0] != 0:
        raise ValueError("offsets must be a 1-d array that starts at 0.")
    if np.any(np.diff(offsets) < 0):
        i = int(np.flatnonzero(np.diff(offsets) < 0)[0])
        raise ValueError(f"offsets must not fall; they do after bag {i}.")
    if offsets[-1] != instances.shape[0]:
        raise ValueError(
            f"offsets end at {offsets[-1]} but there are {instances.shape[0]} instances; "
            "the last offset is the number of instances."
        )


def grouped(bags: Column, within: Column | None = None) -> tuple[Ints | None, Ints, Column]:
    """Order that brings the rows of a bag together (None: they are), offsets and names.

    Bags come in order of first appearance; so do the sub-groups ``within`` a bag.
    """
    codes, names = _codes(bags)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes))])
    inner = np.zeros_like(codes) if within is None else _codes(within)[0]
    order = np.lexsort((inner, codes))
    return (None if np.all(np.diff(order) == 1) else order), offsets, names


class GroupRows(NamedTuple):
    """The rows of bags by their groups, bag after bag."""

    order: Ints | None  # [N] rows, or None where those of a group lie together in order already
    offsets: Ints  # [G + 1]
    names: Column  # [G]
    owner: Ints  # [G] number of the bag


def group_rows(groups: Column, bag_index: Ints) -> GroupRows:
    """Groups of every bag in order of first appearance."""
    codes, names = _codes(groups.astype(str))
    keys, _ = _codes(bag_index * np.int64(len(names)) + codes)
    order = np.lexsort((keys, bag_index))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(keys[order]))])
    # Bags come in order and so do the first rows of their groups: keys are sorted by bag already.
    first = order[offsets[:-1]]
    plain = bool(np.all(np.diff(order) == 1))
    return GroupRows(None if plain else order, offsets, names[codes[first]], bag_index[first])


def _codes(values: Column) -> tuple[Ints, Column]:
    """Each value's rank by first appearance, and the values in that order."""
    names, first, codes = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(names))
    return rank[codes], names[np.argsort(first)]


def select(instances: Rows, key: RowKey) -> Rows:
    """Rows of the instances; those on disk stay there."""
    if hasattr(instances, "select_rows"):
        return instances.select_rows(key)
    # np.take is faster than fancy indexing; memmaps and others index for themselves.
    if type(instances) is np.ndarray and not isinstance(key, slice):
        return instances.take(key, axis=0)
    return instances[key]


def as_rows(instances: Rows | ArrayLike) -> Rows:
    """Sparse rows as CSR, nested lists as an array, anything with a shape as it is."""
    if is_sparse(instances):
        return instances if instances.format == "csr" else instances.tocsr()
    if hasattr(instances, "shape"):
        return cast("Rows", instances)
    return np.asarray(instances)


def as_array(a: Rows | ArrayLike, i: int) -> Rows:
    """One bag of a list as an array."""
    try:
        return np.asarray(a)
    except ValueError as error:
        raise ValueError(f"bag {i} is not a rectangular array: {error}.") from error


def bag_name(i: int, ids: Sequence[object] | Column | None) -> str:
    """A bag in messages: its number, and its id where it has one."""
    return f"bag {i}" if ids is None else f"bag {i} ({str(ids[i])!r})"


def width_of(shape: tuple[int, ...]) -> str:
    """Features of an instance in messages: ``166``, or ``3 x 28 x 28`` for images."""
    return " x ".join(str(n) for n in shape)


def checked_names(names: Sequence[str] | None, instances: Rows) -> tuple[str, ...] | None:
    """Names of features as a tuple, one for each, all different."""
    if names is None:
        return None
    checked = tuple(str(name) for name in names)
    if len(checked) != instances.shape[1]:
        raise ValueError(
            f"feature_names must name every feature: got {len(checked)} names for "
            f"{instances.shape[1]} features."
        )
    if len(set(checked)) < len(checked):
        twice = next(name for name in checked if checked.count(name) > 1)
        raise ValueError(f"feature names must differ; {twice!r} is there twice.")
    return checked
