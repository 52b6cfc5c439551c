"""Blocks: whole bags in whitened coordinates, with their labels.

On paper                     | in code            | shape
-----------------------------|--------------------|------------------
bags, instances, tasks       | b, n, T            |
A = L^-1 k(Z, X)             | ``Block.A``        | [M, n]
r = k(x, x) - |a|^2          | ``Block.r``        | [n]
bag labels                   | ``BagLabels.y``    | [b] or [b, T]
instance labels, -1 unknown  | ``BagLabels.known``| [n] or [n, T]
how often a bag counts       | ``.weight``        | [b] or [b, T]

A *task* is one fit to the same bags: of one class of several, or without the bags of one fold,
which then weigh 0. Tasks share the projection and every pass over it (`inference`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bagwise.core import segments
from bagwise.core.arrays import (
    Array,
    Doubles,
    Flags,
    Floats,
    Ints,
    Wholes,
    as_array,
    as_float,
    is_tensor,
    tensor_of,
    to_numpy,
)

# Sets of draws that bags are dealt to: the products cost the same, and the errors of the sets
# average out (with four, the standard deviation of the bound falls to a half).
N_DEALS = 4
# Rows of the table of residual draws: a prime, so that no size of bags repeats itself in it.
N_NOISE = 8191


class InducingPosterior(NamedTuple):
    """``q(v) = N(m, W^T W)``, W lower triangular."""

    m: Floats  # [M]; between the iterations of a fit on a device, tensors there
    W: Floats  # [M, M]

    def on_host(self) -> InducingPosterior:
        """The same as NumPy arrays."""
        return InducingPosterior(*map(to_numpy, self))

    @property
    def S(self) -> Floats:
        """Covariance, [M, M]."""
        return self.W.T @ self.W


class Run(NamedTuple):
    """Neighbouring bags of one size and one label, dealt to the same draws where it matters."""

    bags: slice
    rows: slice
    size: int
    deal: int


class _Labels(NamedTuple):
    offsets: segments.Offsets  # [b + 1]
    y: Wholes  # [b] or [b, T]
    known: Wholes | None = None  # [n] or [n, T] int8, -1 where unknown; None where all are
    weight: Doubles | None = None  # [b] or [b, T]; None means once
    bag: Wholes | None = None  # [b] its number in the whole
    deal: Wholes | None = None  # [b] which set of draws
    row: Wholes | None = None  # [n] number of the instance in the whole


class BagLabels(_Labels):
    """Labels of whole bags and what is known of their instances.

    What follows from them is worked out once: a fit asks for it in every iteration.
    """

    def __getstate__(self) -> None:
        """What can be worked out again does not travel."""

    def map(self, change: Callable[[Any], Any]) -> BagLabels:
        """The same labels after a change of the arrays, such as to another device."""
        return BagLabels(*(None if x is None else change(x) for x in self))

    def beside(self, A: Array) -> BagLabels:
        """The same labels where ``A`` lives."""
        return self.map(lambda x: tensor_of(x).to(A.device)) if is_tensor(A) else self

    def slice(self, first: int, last: int) -> BagLabels:
        """Labels of neighbouring bags, ``first`` to ``last - 1``."""
        start, stop = int(self.offsets[first]), int(self.offsets[last])
        columns = self._columns(slice(first, last), slice(start, stop))
        return BagLabels(self.offsets[first : last + 1] - start, *columns)

    def take(self, bags: Ints) -> BagLabels:
        """Labels of some bags, in the given order."""
        rows, offsets = segments.take(self.offsets, bags)
        return BagLabels(offsets, *self._columns(bags, rows))

    def _columns(self, bags: Any, rows: Any) -> Iterator[Any]:
        of_rows = ("known", "row")
        for name, column in zip(self._fields[1:], self[1:], strict=True):
            yield None if column is None else column[rows if name in of_rows else bags]

    def of_tasks(self, tasks: Ints | int) -> BagLabels:
        """Labels of some tasks, in the given order; of one task by its number, without the axis."""
        known, weight = (None if x is None else x[:, tasks] for x in (self.known, self.weight))
        return self._replace(y=self.y[:, tasks], known=known, weight=weight)

    def dealt(self) -> BagLabels:
        """The same with bags numbered and the draws of every bag and instance assigned.

        Bags are dealt in order of their labels and size, so that every set of draws sees all
        kinds; the assignment goes by the bag's number in the whole, so that no cut into blocks
        changes it.
        """
        sizes, number = np.diff(self.offsets), np.arange(len(self.offsets) - 1)
        y = as_array(self.y).reshape(len(number), -1)
        # Kinds are numbered as they appear, whatever the order of the tasks.
        _, first, kind = np.unique(y, axis=0, return_index=True, return_inverse=True)
        deal = np.empty(len(sizes), dtype=np.int64)
        deal[np.lexsort((sizes, first[kind.ravel()]))] = number % N_DEALS
        return self._replace(bag=number, deal=deal, row=np.arange(int(self.offsets[-1])))

    def total(self, per_bag: Doubles, per_instance: Doubles) -> Doubles:
        """Sum of terms of bags [b] and instances [n], each as often as its bag counts."""
        if self.weight is None or self.each is None:
            return per_bag.sum() + per_instance.sum()
        return (self.weight * per_bag).sum() + (self.each * per_instance).sum()

    @cached_property
    def each(self) -> Doubles | None:
        """How often each instance counts; None means once."""
        return None if self.weight is None else segments.spread(self.weight, self.offsets)

    @cached_property
    def of_bag(self) -> Doubles:
        """Label of its bag for every instance, float."""
        return segments.spread(as_float(self.y), self.offsets)

    @cached_property
    def has_positive(self) -> Flags:
        """Whether a bag holds an instance known to be positive."""
        return segments.max(as_float(self.known == 1), self.offsets) > 0

    @cached_property
    def nothing_known(self) -> bool:
        """Whether no instance has a label of its own."""
        return self.known is None or not bool((self.known >= 0).any())

    @cached_property
    def runs(self) -> list[Run]:
        """Runs of neighbouring bags of one size, one label and one set of draws."""
        return self._runs(
            np.zeros(len(self.y), np.int64) if self.deal is None else as_array(self.deal)
        )

    @cached_property
    def long_runs(self) -> list[Run]:
        """Runs of neighbouring bags of one size and one label, whatever their draws."""
        return self._runs(np.zeros(len(self.y), dtype=np.int64))

    def _runs(self, deal: Ints) -> list[Run]:
        starts, label = as_array(self.offsets), as_array(self.y).reshape(len(deal), -1)[:, 0]
        keys = np.stack([np.diff(starts), label, deal])
        new = 1 + np.flatnonzero(np.diff(keys, axis=1).any(axis=0))
        edges = [0, *new.tolist(), keys.shape[1]]
        return [
            Run(slice(a, b), slice(int(starts[a]), int(starts[b])), int(keys[0, a]), int(deal[a]))
            for a, b in itertools.pairwise(edges)
        ]


class Block(NamedTuple):
    """Whole bags in whitened coordinates."""

    A: Array  # [M, n]
    r: Array  # [n] k(x, x) - |a|^2
    labels: BagLabels


def arranged(block: Block) -> Block:
    """A block whose bags are sorted by size, label and draws, so that runs of them are long."""
    labels = block.labels
    if labels.deal is None:
        return block
    sizes = np.diff(as_array(labels.offsets))
    label = as_array(labels.y).reshape(len(sizes), -1)[:, 0]
    order = np.lexsort((as_array(labels.deal), label, sizes))
    return block if (np.diff(order) == 1).all() else take_bags(block, order)


def take_bags(block: Block, bags: Ints) -> Block:
    """Some bags of a block, in the given order."""
    labels, A = block.labels, block.A
    rows, _ = segments.take(as_array(labels.offsets), bags)
    if is_tensor(A):
        return Block(A[:, rows], block.r[rows], labels.map(as_array).take(bags).beside(A))
    # Columns are contiguous: rows of the transpose are copied whole.
    return Block(A.T[rows].T, block.r[rows], labels.take(bags))


class Part(NamedTuple):
    """Neighbouring blocks, the unit that a driver keeps in one place; only sums leave it.

    Under the papers' updates it also holds what is believed about the instances of every block.
    """

    blocks: Iterable[Block]  # as often as asked
    beliefs: tuple[Any, ...] = ()  # the likelihood's; before the first update probabilities, [n]
