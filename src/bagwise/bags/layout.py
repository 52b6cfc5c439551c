"""How rows become bags: offsets, order, names, and choosing rows of any kind of array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from array_api_compat import is_torch_array


def stacked(arrays: list[Any], ids: Any) -> tuple[Any, Any]:
    """2-d arrays, one per bag, as one array and its offsets."""
    if not arrays:
        raise ValueError("at least one bag is needed; got an empty list.")
    arrays = [
        a if sp.issparse(a) or is_torch_array(a) else as_array(a, i) for i, a in enumerate(arrays)
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
    if is_torch_array(arrays[0]):
        import torch

        return torch.cat(arrays), offsets
    return np.concatenate(arrays), offsets


def check_offsets(offsets: Any, instances: Any) -> None:
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


def grouped(bags: Any, within: Any = None) -> tuple[Any, Any, Any]:
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

    order: Any  # [N] rows, or None where those of a group lie together in order already
    offsets: Any  # [G + 1]
    names: Any  # [G]
    owner: Any  # [G] number of the bag


def group_rows(groups: Any, bag_index: Any) -> GroupRows:
    """Groups of every bag in order of first appearance."""
    codes, names = _codes(groups.astype(str))
    keys, _ = _codes(bag_index * np.int64(len(names)) + codes)
    order = np.lexsort((keys, bag_index))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(keys[order]))])
    # Bags come in order and so do the first rows of their groups: keys are sorted by bag already.
    first = order[offsets[:-1]]
    plain = bool(np.all(np.diff(order) == 1))
    return GroupRows(None if plain else order, offsets, names[codes[first]], bag_index[first])


def _codes(values: Any) -> tuple[Any, Any]:
    """Each value's rank by first appearance, and the values in that order."""
    names, first, codes = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(names))
    return rank[codes], names[np.argsort(first)]


def select(instances: Any, key: Any) -> Any:
    """Rows of the instances; those on disk stay there."""
    if hasattr(instances, "select_rows"):
        return instances.select_rows(key)
    # np.take is faster than fancy indexing; memmaps and others index for themselves.
    if type(instances) is np.ndarray and not isinstance(key, slice):
        return instances.take(key, axis=0)
    return instances[key]


def as_array(a: Any, i: int) -> Any:
    """One bag of a list as an array."""
    try:
        return np.asarray(a)
    except ValueError as error:
        raise ValueError(f"bag {i} is not a rectangular array: {error}.") from error


def bag_name(i: int, ids: Any) -> str:
    """A bag in messages: its number, and its id where it has one."""
    return f"bag {i}" if ids is None else f"bag {i} ({str(ids[i])!r})"


def width_of(shape: tuple[int, ...]) -> str:
    """Features of an instance in messages: ``166``, or ``3 x 28 x 28`` for images."""
    return " x ".join(str(n) for n in shape)


def checked_names(names: Sequence[str] | None, instances: Any) -> tuple[str, ...] | None:
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
