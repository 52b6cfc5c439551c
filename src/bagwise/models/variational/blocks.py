"""Blocks: whole bags in whitened coordinates, with their labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bagwise.core import segments
from bagwise.core.arrays import Array, as_float


class BagLabels(NamedTuple):
    """Labels of whole bags and what is known of their instances."""

    offsets: Array  # [b + 1]
    y: Array  # [b] 0 or 1
    known: Array  # [n] int8, -1 where unknown
    weight: Array | None = None  # [b] how often each bag counts; None means once

    def map(self, change: Callable[[Array], Array]) -> BagLabels:
        """The same labels after a change of the arrays, such as to another device."""
        return BagLabels(*(None if x is None else change(x) for x in self))

    def bags(self, first: int, last: int) -> Array | None:
        """Weights of some neighbouring bags."""
        return None if self.weight is None else self.weight[first:last]

    def total(self, per_bag: Any, per_instance: Any) -> Any:
        """Sum of terms of bags [b] and of instances [n], each as often as its bag counts."""
        if self.weight is None:
            return per_bag.sum() + per_instance.sum()
        each = segments.spread(self.weight, self.offsets)
        return (self.weight * per_bag).sum() + (each * per_instance).sum()

    @property
    def of_bag(self) -> Array:
        """Label of its bag for every instance, float, [n]."""
        return segments.spread(as_float(self.y), self.offsets)

    @property
    def has_positive(self) -> Array:
        """Whether a bag holds an instance known to be positive, [b]."""
        return segments.max(as_float(self.known == 1), self.offsets) > 0


class Block(NamedTuple):
    """Whole bags in whitened coordinates. More than one chunk only for a bag larger than one."""

    A: tuple[Array, ...]  # chunks [M, n_i]
    r: Array  # [n] k(x, x) - |a|^2
    labels: BagLabels
