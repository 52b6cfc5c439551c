"""Blocks: whole bags in whitened coordinates, with their labels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

from bagwise.core import segments
from bagwise.core.arrays import Array, Doubles, Flags, Wholes, as_float


class _Labels(NamedTuple):
    offsets: segments.Offsets  # [b + 1]
    y: Wholes  # [b] 0 or 1
    known: Wholes  # [n] int8, -1 where unknown
    weight: Doubles | None = None  # [b] how often each bag counts; None means once


class BagLabels(_Labels):
    """Labels of whole bags and what is known of their instances.

    What follows from them is worked out once: a fit asks for it in every iteration.
    """

    def __getstate__(self) -> None:
        """What can be worked out again does not travel."""

    def map(self, change: Callable[[Any], Any]) -> BagLabels:
        """The same labels after a change of the arrays, such as to another device."""
        return BagLabels(*(None if x is None else change(x) for x in self))

    def bags(self, first: int, last: int) -> Doubles | None:
        """Weights of some neighbouring bags."""
        return None if self.weight is None else self.weight[first:last]

    def total(self, per_bag: Doubles, per_instance: Doubles) -> Doubles:
        """Sum of terms of bags [b] and instances [n], each as often as its bag counts."""
        if self.weight is None or self.each is None:
            return per_bag.sum() + per_instance.sum()
        return (self.weight * per_bag).sum() + (self.each * per_instance).sum()

    @cached_property
    def each(self) -> Doubles | None:
        """How often each instance counts, [n]; None means once."""
        return None if self.weight is None else segments.spread(self.weight, self.offsets)

    @cached_property
    def of_bag(self) -> Doubles:
        """Label of its bag for every instance, float, [n]."""
        return segments.spread(as_float(self.y), self.offsets)

    @cached_property
    def has_positive(self) -> Flags:
        """Whether a bag holds an instance known to be positive, [b]."""
        return segments.max(as_float(self.known == 1), self.offsets) > 0

    @cached_property
    def nothing_known(self) -> bool:
        """Whether no instance has a label of its own."""
        return not bool((self.known >= 0).any())

    @cached_property
    def negative(self) -> Flags:
        """Instances known to be negative, by their own label or by that of their bag, [n]."""
        return (self.of_bag == 0) | (self.known == 0)

    @cached_property
    def candidates(self) -> Flags:
        """Instances that may be what makes their bag positive, [n].

        Those of positive bags, unless known; none where a bag has an instance known to be positive.
        """
        searching = (self.y == 1) & ~self.has_positive
        return segments.spread(searching, self.offsets) & (self.known < 0)

    @cached_property
    def n_candidates(self) -> Doubles:
        """How many there are in each bag, [b]."""
        return segments.sum(as_float(self.candidates), self.offsets)


class Block(NamedTuple):
    """Whole bags in whitened coordinates. More than one chunk only for a bag larger than one."""

    A: tuple[Array, ...]  # chunks [M, n_i]
    r: Array  # [n] k(x, x) - |a|^2
    labels: BagLabels
