"""Fits without some of the bags, on the projections of a fit to all of them.

Calibration needs the latent values of bags under models that never saw their labels. The parts of
a fit hold the projected instances already, wherever the driver keeps them; a fit without a fold
of bags reads the same blocks with the bags of that fold weighed 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bagwise.core import segments
from bagwise.core.arrays import Array, Floats, Ints, beside
from bagwise.models.drivers import Driver
from bagwise.models.variational.blocks import Block
from bagwise.models.variational.latent_map import HeldOut, held_out_values, joined, select_bags
from bagwise.models.variational.parts import Part
from bagwise.models.variational.updates import InducingPosterior


@dataclass(frozen=True)
class Weighed:
    """The blocks of a part, in which bags that are left out count for nothing."""

    blocks: Iterable[Block]
    seen: Array  # mask over the bags of the part

    def __iter__(self) -> Iterator[Block]:
        first = 0
        for block in self.blocks:
            last = first + len(block.labels.offsets) - 1
            weight = beside(self.seen[first:last].astype(np.float64), block.r)
            if block.labels.weight is not None:
                weight = weight * block.labels.weight
            yield block._replace(labels=block.labels._replace(weight=weight))
            first = last


@dataclass(frozen=True)
class LeaveOut:
    """A part without some bags, as before the first iteration: nothing is believed of it.

    The bags stay in their blocks with a weight of 0, so that no projection is copied. Blocks that
    hold no other bags are passed over, and the fit is the same without them.
    """

    seen: Array  # mask over all bags
    start: Floats  # [N] instance probabilities to start from
    offsets: Ints  # of all bags

    def __call__(self, part: Part) -> tuple[Part, None]:
        """The part with the new weights."""
        seen = _own(part, self.seen)
        blocks: Iterable[Block] = Weighed(part.blocks, seen)
        first_row = int(self.offsets[part.first_bag])
        ends = first_row + np.cumsum([0] + [int(offsets[-1]) for offsets in part.offsets])
        pis = tuple(self.start[a:b] for a, b in itertools.pairwise(ends))
        offsets = part.offsets
        if isinstance(part.blocks, tuple):  # in memory: blocks without a bag to see can go
            ends = np.cumsum([0] + [len(own) - 1 for own in offsets])
            some = [bool(seen[a:b].any()) for a, b in itertools.pairwise(ends)]
            some[0] = some[0] or not any(some)  # a part is never empty
            blocks = tuple(itertools.compress(blocks, some))
            pis = tuple(itertools.compress(pis, some))
            offsets = tuple(itertools.compress(offsets, some))
        return Part(blocks, pis, first_bag=part.first_bag, offsets=offsets), None


@dataclass(frozen=True)
class ReadHeldOut:
    """Latent values of some bags of a part under a posterior that was fitted without them."""

    q: InducingPosterior
    joint: bool
    chosen: Array  # mask over all bags

    def __call__(self, part: Part) -> tuple[Part, HeldOut]:
        """The part as it was, and the values."""
        blocks = select_bags(part.blocks, _own(part, self.chosen))
        return part, held_out_values(blocks, self.q, self.joint)


def _own(part: Part, chosen: Array) -> Array:
    return chosen[part.first_bag : part.first_bag + part.n_bags]


def _extent(part: Part) -> tuple[Part, slice]:
    return part, slice(part.first_bag, part.first_bag + part.n_bags)


def refit_folds(
    parts: Sequence[Any],
    start: Floats,
    offsets: Ints,
    folds: Ints,
    n_refits: int,
    fit: Callable[[list[Any]], InducingPosterior],
    driver: Driver,
    joint: bool = False,
    drifting: InducingPosterior | None = None,
) -> HeldOut:
    """Held-out latent values of the bags of the first folds, in the order of the bags.

    ``fit`` is given parts without the bags of a fold, which start from ``start`` [N]: started
    from the fit to all bags, or from its beliefs, it would know the labels it does without.

    ``drifting`` is the fit to all bags, where fits to nearly the same bags differ in level: the
    values of each refit are then moved by as much as the level of its training bags is below that
    of all bags under this one.
    """
    extents: list[slice] = []
    parts = driver.sweep(_extent, parts, extents.append)

    def read(q: InducingPosterior, chosen: Array, joint: bool = joint) -> HeldOut:
        columns: list[HeldOut] = []
        which = _having(parts, extents, chosen)
        driver.sweep(ReadHeldOut(q, joint, chosen), which, columns.append)
        owner = np.repeat(np.arange(len(columns)), [len(c.offsets) - 1 for c in columns])
        return joined(columns, owner)

    level = None
    if drifting is not None:
        level = _level(read(drifting, np.ones(len(folds), dtype=bool), joint=False))
    values = []
    for fold in range(n_refits):
        seen = folds != fold
        kept = driver.sweep(LeaveOut(seen, start, offsets), parts, lambda _: None)
        q = fit(kept)
        held_out = read(q, ~seen)
        if level is not None:
            rise = level - _level(read(q, seen, joint=False))
            held_out = held_out._replace(mean=held_out.mean + rise)
        values.append(held_out)
    return joined(values, folds[folds < n_refits])


def _level(values: HeldOut) -> float:
    """Mean over the bags of their largest values."""
    return float(np.mean(segments.max(values.mean, values.offsets)))


def _having(parts: Sequence[Any], extents: Sequence[slice], chosen: Array) -> list[Any]:
    """The parts that hold a chosen bag."""
    return [part for part, own in zip(parts, extents, strict=True) if chosen[own].any()]
