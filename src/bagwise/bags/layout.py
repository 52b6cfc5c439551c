"""What bags consist of: rows of any kind, offsets, names, and what travels with the instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from bagwise.bags.on_disk import LazyRows, map_rows_of
from bagwise.core.arrays import Column, Ints, RowKey, Rows, is_sparse, is_tensor

if TYPE_CHECKING:
    from bagwise.bags.container import Bags


class Content(NamedTuple):
    """What bags consist of, wherever it comes from."""

    instances: Rows  # [N, D]
    offsets: Ints  # [B + 1]
    ids: Column | None  # [B]
    columns: dict[str, Column]  # [N, ...] each
    feature_names: tuple[str, ...] | None  # [D]


def read_only(x: Any) -> Any:
    """A view of an array or a CSR matrix that refuses to be written; anything else as it is."""
    if isinstance(x, np.ndarray):
        view = x.view()
        view.flags.writeable = False
        return view
    if is_sparse(x):
        if not x.has_canonical_format:  # libraries would sort the entries in place
            x = x.copy()
            x.sum_duplicates()
        parts = (read_only(x.data), read_only(x.indices), read_only(x.indptr))
        return type(x)(parts, shape=x.shape, copy=False)
    return x


def as_rows(instances: Rows | ArrayLike) -> Rows:
    """Sparse rows as CSR, nested lists as an array, anything with a shape as it is."""
    if is_sparse(instances):
        return instances if instances.format == "csr" else instances.tocsr()
    if hasattr(instances, "shape"):
        return cast("Rows", instances)
    return np.asarray(instances)


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


def bag_name(i: int, ids: Sequence[object] | Column | None) -> str:
    """A bag in messages: its number, and its id where it has one."""
    return f"bag {i}" if ids is None else f"bag {i} ({str(ids[i])!r})"


def width_of(shape: tuple[int, ...]) -> str:
    """Features of an instance in messages: ``166``, or ``3 x 28 x 28`` for images."""
    return " x ".join(str(n) for n in shape)


def select(instances: Rows, key: RowKey) -> Rows:
    """Rows of the instances; those on disk stay there."""
    if hasattr(instances, "select_rows"):
        return instances.select_rows(key)
    # np.take is faster than fancy indexing; memmaps and others index for themselves.
    if type(instances) is np.ndarray and not isinstance(key, slice):
        return instances.take(key, axis=0)
    return instances[key]


# Columns, coordinates and groups.


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
    owner = owners[bags.bag_index]  # [N]
    first = np.full(codes.max(initial=-1) + 1, -1)  # bag in which a group begins
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


# Rows that belong together.


def grouped(bags: Column, within: Column | None = None) -> tuple[Ints | None, Ints, Column]:
    """Order that brings the rows of a bag together (None: they are), offsets and names.

    Bags come in order of first appearance; so do the sub-groups ``within`` a bag.
    """
    codes, names = _codes(bags)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes))])
    inner = np.zeros_like(codes) if within is None else _codes(within)[0]
    order = np.lexsort((inner, codes))
    return (None if np.all(np.diff(order) == 1) else order), offsets, names


class _GroupRows(NamedTuple):
    """The rows of bags by their groups, bag after bag."""

    order: Ints | None  # [N] rows, or None where those of a group lie together in order already
    offsets: Ints  # [G + 1]
    names: Column  # [G]
    owner: Ints  # [G] number of the bag


def group_rows(groups: Column, bag_index: Ints) -> _GroupRows:
    """Groups of every bag in order of first appearance."""
    codes, names = _codes(groups.astype(str))
    keys, _ = _codes(bag_index * np.int64(len(names)) + codes)
    order = np.lexsort((keys, bag_index))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(keys[order]))])
    # Bags come in order and so do the first rows of their groups: keys are sorted by bag already.
    first = order[offsets[:-1]]
    plain = bool(np.all(np.diff(order) == 1))
    return _GroupRows(None if plain else order, offsets, names[codes[first]], bag_index[first])


def _codes(values: Column) -> tuple[Ints, Column]:
    """Each value's rank by first appearance, and the values in that order."""
    names, first, codes = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(names))
    return rank[codes], names[np.argsort(first)]


# Several arrays as one.


def stacked(
    bags: Sequence[Rows | ArrayLike], ids: Sequence[object] | Column | None
) -> tuple[Rows, Ints]:
    """2-d arrays, one per bag, as one array and its offsets."""
    if not bags:
        raise ValueError("at least one bag is needed; got an empty list.")
    arrays: list[Rows] = []
    for i, bag in enumerate(bags):
        try:
            arrays.append(bag if is_sparse(bag) or is_tensor(bag) else np.asarray(bag))
        except ValueError as error:
            raise ValueError(f"bag {i} is not a rectangular array: {error}.") from error
        name, shape = bag_name(i, ids), tuple(arrays[i].shape)
        if len(shape) < 2:
            raise ValueError(
                f"{name} has shape {shape}; every bag must be a 2-d array (instances x features)."
            )
        if shape[1:] != arrays[0].shape[1:]:
            raise ValueError(
                f"{name} has {width_of(shape[1:])} features but bag 0 has "
                f"{width_of(arrays[0].shape[1:])}; all bags need the same features."
            )
    offsets = np.concatenate([[0], np.cumsum([a.shape[0] for a in arrays])])
    return _stack(arrays), offsets


def joined(parts: list[Bags]) -> Content:
    """Several bags as one: those in memory are copied together, those on disk stay there.

    They must agree in features, columns and the kind of their rows.
    """
    for i, part in enumerate(parts):
        if len(part) == 0 or part.n_instances == 0:
            what = "bags" if len(part) == 0 else "instances"
            raise ValueError(f"partition {i} is empty: it has 0 {what}; leave it out.")
        for (what, of_part), (_, of_first) in zip(_traits(part), _traits(parts[0]), strict=True):
            if of_part != of_first:
                raise ValueError(
                    f"partition {i} has {of_part} but partition 0 has {of_first}; all partitions "
                    f"need the same {what}."
                )
    if not parts:
        raise ValueError("at least one partition is needed; got none.")
    named = any(part._content.ids is not None for part in parts)
    return Content(
        _stack([map_rows_of(part.instances) for part in parts]),
        np.concatenate([[0], np.cumsum(np.concatenate([part.sizes for part in parts]))]),
        np.concatenate([part.ids for part in parts]) if named else None,
        {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        parts[0].feature_names,
    )


def _traits(bags: Bags) -> list[tuple[str, str]]:
    """What partitions must agree in, and what it is, in words."""
    X = bags.instances
    kind = "sparse" if sp.issparse(X) else "torch" if is_tensor(X) else "dense"
    return [
        ("features", f"{width_of(X.shape[1:])} features"),
        ("features", f"the features {list(bags.feature_names or [])}"),
        ("columns", f"the columns {sorted(bags.columns)}"),
        ("kind", f"{kind} instances"),
    ]


def _stack(arrays: list[Rows]) -> Rows:
    """Arrays of one kind, one below the other; as soon as one is on disk, all are left there."""
    if any(sp.issparse(a) for a in arrays):
        return sp.vstack(arrays, format="csr")
    if is_tensor(arrays[0]):
        import torch

        return torch.cat(arrays)
    if len(arrays) == 1:
        return arrays[0]
    if all(isinstance(a, np.ndarray) for a in arrays):
        return np.concatenate([np.asarray(a) for a in arrays])
    return LazyRows(arrays)
