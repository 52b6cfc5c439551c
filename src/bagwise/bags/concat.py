"""Several `Bags` as one: partitions in memory are joined, partitions on disk stay there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from array_api_compat import is_torch_array

from bagwise.bags.mapped import map_rows_of
from bagwise.bags.virtual import VirtualRows

if TYPE_CHECKING:
    from bagwise.bags.container import Bags
    from bagwise.core.arrays import Column, Ints, Reals, RowFunction, RowKey, Rows


class StackedRows(VirtualRows):
    """Rows of several sources, one below the other, read from each when asked for."""

    def __init__(self, sources: Sequence[Rows]) -> None:
        self._sources = tuple(sources)
        self._starts = np.concatenate([[0], np.cumsum([x.shape[0] for x in self._sources])])
        self.shape = (int(self._starts[-1]), int(self._sources[0].shape[1]))
        self.dtype = np.result_type(*(x.dtype for x in self._sources))

    def select_rows(self, key: RowKey) -> Rows:
        """A run of rows, still where they are; any other choice is read."""
        if not isinstance(key, slice) or key.step not in (None, 1):
            return self[key]
        start, stop, _ = key.indices(len(self))
        pieces = [
            x.select_rows(slice(a, b)) if hasattr(x, "select_rows") else x[a:b]
            for x, a, b in self._cut(start, stop)
        ]
        return StackedRows(pieces or [self._sources[0][:0]])

    def map_rows(self, function: RowFunction) -> StackedRows:
        """Rows that go through ``function`` whenever they are read."""
        return StackedRows(
            [
                x.map_rows(function) if hasattr(x, "map_rows") else function(x[:])
                for x in self._sources
            ]
        )

    def _cut(self, start: int, stop: int) -> list[tuple[Rows, int, int]]:
        """The sources that hold a run of rows, and which of their rows."""
        ends = zip(self._sources, self._starts[:-1], self._starts[1:], strict=True)
        return [
            (x, max(start, int(a)) - int(a), min(stop, int(b)) - int(a))
            for x, a, b in ends
            if max(start, a) < min(stop, b)
        ]

    def _run(self, start: int, stop: int) -> Reals:
        pieces = [np.asarray(x[a:b], self.dtype) for x, a, b in self._cut(start, stop)]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate([np.empty((0, self.shape[1]), self.dtype), *pieces])

    def _chosen(self, rows: Ints) -> Reals:
        out = np.empty((len(rows), self.shape[1]), self.dtype)
        owner = np.searchsorted(self._starts, rows, side="right") - 1
        for i in np.unique(owner):
            its = np.flatnonzero(owner == i)
            out[its] = self._sources[i][rows[its] - self._starts[i]]
        return out

    def __repr__(self) -> str:
        return f"StackedRows({self.shape[0]} x {self.shape[1]}, {len(self._sources)} sources)"


class Joined(NamedTuple):
    """What the bags of several partitions consist of."""

    instances: Rows
    offsets: Ints
    ids: Column | None
    columns: dict[str, Column]
    feature_names: tuple[str, ...] | None


def join(parts: list[Bags]) -> Joined:
    """Stack the partitions, which must agree in features and columns."""
    _check_partitions(parts)
    sizes = np.concatenate([part.sizes for part in parts])
    named = any(part._ids is not None for part in parts)
    return Joined(
        _stack([map_rows_of(part.instances) for part in parts]),
        np.concatenate([[0], np.cumsum(sizes)]),
        np.concatenate([part.ids for part in parts]) if named else None,
        {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        parts[0].feature_names,
    )


def _check_partitions(parts: list[Bags]) -> None:
    if not parts:
        raise ValueError("at least one partition is needed; got none.")
    for i, part in enumerate(parts):
        if len(part) == 0 or part.n_instances == 0:
            what = "bags" if len(part) == 0 else "instances"
            raise ValueError(f"partition {i} is empty: it has 0 {what}; leave it out.")
        shape, first = part.instances.shape[1:], parts[0].instances.shape[1:]
        if shape != first:
            widths = [" x ".join(map(str, s)) for s in (shape, first)]
            raise ValueError(
                f"partition {i} has {widths[0]} features but partition 0 has {widths[1]}; all "
                "partitions need the same features."
            )
        if part.feature_names != parts[0].feature_names:
            raise ValueError(
                f"partition {i} has the features {list(part.feature_names or [])} but partition 0 "
                f"has {list(parts[0].feature_names or [])}; all partitions need the same features."
            )
        if set(part.columns) != set(parts[0].columns):
            raise ValueError(
                f"partition {i} has the columns {sorted(part.columns)} but partition 0 has "
                f"{sorted(parts[0].columns)}; all partitions need the same columns."
            )
    kinds = [_kind(part.instances) for part in parts]
    for i, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(
                f"partition {i} holds {kind} instances but partition 0 holds {kinds[0]} ones; "
                "bring all partitions to one kind."
            )


def _kind(X: Rows) -> str:
    return "sparse" if sp.issparse(X) else "torch" if is_torch_array(X) else "dense"


def _stack(sources: list[Rows]) -> Rows:
    if len(sources) == 1:
        return sources[0]
    if sp.issparse(sources[0]):
        return sp.vstack(sources, format="csr")
    if is_torch_array(sources[0]):
        import torch

        return torch.cat(sources)
    if all(isinstance(x, np.ndarray) for x in sources):
        return np.concatenate([np.asarray(x) for x in sources])
    return StackedRows(sources)
