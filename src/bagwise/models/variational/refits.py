"""Fits without some of the bags, on the projections of a fit to all of them.

Calibration needs the latent values of bags under models that never saw their labels. The parts of
a fit hold the projected instances already, wherever the driver keeps them; a fit without a fold
of bags reads the same blocks and drops the columns of that fold on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bagwise.core import segments
from bagwise.core.arrays import Array, Floats, Ints
from bagwise.models.drivers import Driver
from bagwise.models.variational.blocks import Block
from bagwise.models.variational.latent_map import HeldOut, held_out_values, joined, select_bags
from bagwise.models.variational.parts import Part
from bagwise.models.variational.updates import InducingPosterior


@dataclass(frozen=True)
class Selected:
    """Some bags of the blocks of a part, cut out whenever they are asked for."""

    blocks: Iterable[Block]
    chosen: Array  # mask over the bags of the part

    def __iter__(self) -> Iterator[Block]:
        return select_bags(self.blocks, self.chosen)


@dataclass(frozen=True)
class KeepBags:
    """A part with some bags only, as before the first iteration: nothing is believed of them."""

    chosen: Array  # mask over all bags
    start: Floats  # [N] instance probabilities to start from
    offsets: Ints  # of all bags

    def __call__(self, part: Part) -> tuple[Part, None]:
        """The smaller part; at least one of its bags must be chosen."""
        own, pis, first = _own(part, self.chosen), [], 0
        for block_offsets in part.offsets:
            kept = np.flatnonzero(own[first : first + len(block_offsets) - 1])
            if len(kept):
                rows, _ = segments.take(self.offsets, part.first_bag + first + kept)
                pis.append(self.start[rows])
            first += len(block_offsets) - 1
        return Part(Selected(part.blocks, own), tuple(pis)), None


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
) -> HeldOut:
    """Held-out latent values of the bags of the first folds, in the order of the bags.

    ``fit`` is given parts without the bags of a fold, which start from ``start`` [N]: started
    from the fit to all bags, or from its beliefs, it would know the labels it does without.
    """
    extents: list[slice] = []
    parts = driver.sweep(_extent, parts, extents.append)
    values = []
    for fold in range(n_refits):
        seen = folds != fold
        kept = driver.sweep(
            KeepBags(seen, start, offsets), _having(parts, extents, seen), lambda _: None
        )
        read = ReadHeldOut(fit(kept), joint, ~seen)
        columns: list[HeldOut] = []
        driver.sweep(read, _having(parts, extents, ~seen), columns.append)
        owner = np.repeat(np.arange(len(columns)), [len(c.offsets) - 1 for c in columns])
        values.append(joined(columns, owner))
    return joined(values, folds[folds < n_refits])


def _having(parts: Sequence[Any], extents: Sequence[slice], chosen: Array) -> list[Any]:
    """The parts that hold a chosen bag."""
    return [part for part, own in zip(parts, extents, strict=True) if chosen[own].any()]
