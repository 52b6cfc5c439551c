"""Blocks: whole bags in whitened coordinates, with their labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bagwise.core import segments
from bagwise.core.arrays import Array, Doubles, Flags, Wholes, as_float


class BagLabels(NamedTuple):
    """Labels of whole bags and what is known of their instances."""

    offsets: segments.Offsets  # [b + 1]
    y: Wholes  # [b] 0 or 1
    known: Wholes  # [n] int8, -1 where unknown
    weight: Doubles | None = None  # [b] how often each bag counts; None means once

    def map(self, change: Callable[[Any], Any]) -> BagLabels:
        """The same labels after a change of the arrays, such as to another device."""
        return BagLabels(*(None if x is None else change(x) for x in self))

    def bags(self, first: int, last: int) -> Doubles | None:
        """Weights of some neighbouring bags."""
        return None if self.weight is None else self.weight[first:last]

    def total(self, per_bag: Doubles, per_instance: Doubles) -> Doubles:
        """Sum of terms of bags [b] and instances [n], each as often as its bag counts."""
        if self.weight is None:
            return per_bag.sum() + per_instance.sum()
        each = segments.spread(self.weight, self.offsets)
        return (self.weight * per_bag).sum() + (each * per_instance).sum()

    @property
    def of_bag(self) -> Doubles:
        """Label of its bag for every instance, float, [n]."""
        return segments.spread(as_float(self.y), self.offsets)

    @property
    def has_positive(self) -> Flags:
        """Whether a bag holds an instance known to be positive, [b]."""
        return segments.max(as_float(self.known == 1), self.offsets) > 0


class Block(NamedTuple):
    """Whole bags in whitened coordinates. More than one chunk only for a bag larger than one."""

    A: tuple[Array, ...]  # chunks [M, n_i]
    r: Array  # [n] k(x, x) - |a|^2
    labels: BagLabels
