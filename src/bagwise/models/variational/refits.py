"""Fits without some of the bags.

Calibration needs the latent values of bags under models that never saw their labels. Bags that had
a part in the choice of the inducing points lie nearer to them than new ones do, so a fit without a
fold projects all bags onto points that the others chose. Where the bags are so many that a fold
moves no point far, it reads the projections of the fit to all of them, wherever the driver keeps
those: a small set without the columns of that fold, others with its bags passed over or weighed 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bagwise.core import segments
from bagwise.core.arrays import Array, Bools, Floats, Ints, beside, is_tensor
from bagwise.models.drivers import Driver
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.latent_map import HeldOut, held_out_values, joined, select_bags
from bagwise.models.variational.parts import Part
from bagwise.models.variational.updates import InducingPosterior

# Bytes of all projections that are copied rather than passed over in every iteration.
_COPIED = 1 << 27
# Instances from one left-out bag to the next, on average, from which they are blocks of their own.
_LONG_RUN = 4096

# Fits q to parts.
Refit = Callable[[list[Any]], InducingPosterior]


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

    Small projections are copied without these bags: a fit passes over the copy a hundred times. Of
    others none is copied: what lies between left-out bags is a block, if it is long, and else they
    stay with a weight of 0; blocks in memory that hold no other bags are passed over. The fit is
    the same either way.
    """

    seen: Array  # mask over all bags
    start: Floats  # [N] instance probabilities to start from
    offsets: Ints  # of all bags
    copied: bool

    def __call__(self, part: Part) -> tuple[Part, None]:
        """The part as the fit is to see it."""
        seen = _own(part, self.seen)
        of_block = _cut(seen, [len(offsets) - 1 for offsets in part.offsets])
        start = self.start[int(self.offsets[part.first_bag]) :]
        pis = _cut(start, [int(offsets[-1]) for offsets in part.offsets])
        if not isinstance(part.blocks, tuple):
            return part.afresh(Weighed(part.blocks, seen), pis, part.offsets), None
        some = [bool(own.any()) for own in of_block]
        if any(some) and self.copied:
            blocks = tuple(select_bags(part.blocks, seen))
            taken = [
                segments.take(offsets, np.flatnonzero(own))
                for offsets, own in zip(part.offsets, of_block, strict=True)
            ]
            pis = tuple(pi[rows] for pi, (rows, _) in zip(pis, taken, strict=True))
            kept = tuple(offsets for _, offsets in taken)
            pis, kept = tuple(itertools.compress(pis, some)), tuple(itertools.compress(kept, some))
            return part.afresh(blocks, pis, kept), None
        some[0] = some[0] or not any(some)  # a part is never empty
        columns = zip(Weighed(part.blocks, seen), of_block, pis, part.offsets, strict=True)
        pieces = [piece for own in itertools.compress(columns, some) for piece in _runs(*own)]
        return part.afresh(*zip(*pieces, strict=True)), None


def _runs(block: Block, seen: Array, pi: Array, offsets: Ints) -> list[tuple[Block, Array, Ints]]:
    """Neighbouring bags that are seen as blocks, if these are long; the weighed block otherwise.

    With each block goes what its instances start from, and the offsets of its bags.
    """
    edges = np.flatnonzero(np.diff(seen, prepend=False, append=False)).reshape(-1, 2)
    rows = offsets[edges]
    long = len(edges) and np.diff(rows).mean() >= _LONG_RUN
    if not long or len(block.A) > 1 or is_tensor(block.A[0]):
        return [(block, pi, offsets)]
    pieces = []
    for (first, last), (a, b) in zip(edges, rows, strict=True):
        own, (_, y, known, _) = offsets[first : last + 1] - a, block.labels
        weight = block.labels.bags(first, last)
        labels = BagLabels(own, y[first:last], known[a:b], weight)
        pieces.append((Block((block.A[0][:, a:b],), block.r[a:b], labels), pi[a:b], own))
    return pieces


def _cut(x: Array, lengths: Sequence[int]) -> tuple[Array, ...]:
    """The first entries of ``x``, in pieces of these lengths."""
    return tuple(x[b - n : b] for b, n in zip(itertools.accumulate(lengths), lengths, strict=True))


@dataclass(frozen=True)
class ReadHeldOut:
    """Latent values of some bags of a part under a posterior that was fitted without them."""

    q: InducingPosterior
    chosen: Array  # mask over all bags
    joint: bool = False
    top: bool = False

    def __call__(self, part: Part) -> tuple[Part, HeldOut]:
        """The part as it was, and the values."""
        blocks = select_bags(part.blocks, _own(part, self.chosen))
        return part, held_out_values(blocks, self.q, self.joint, self.top)


def _own(part: Part, chosen: Array) -> Array:
    return chosen[part.first_bag : part.first_bag + part.n_bags]


def _extent(part: Part) -> tuple[Part, tuple[slice, float]]:
    """Which bags a part holds, and bytes of its projections; without end where not in memory."""
    own = slice(part.first_bag, part.first_bag + part.n_bags)
    if not isinstance(part.blocks, tuple):
        return part, (own, np.inf)
    chunks = [chunk for block in part.blocks for chunk in block.A]
    return part, (own, np.inf if is_tensor(chunks[0]) else sum(chunk.nbytes for chunk in chunks))


def refit_folds(
    parts: Sequence[Any],
    start: Floats,
    offsets: Ints,
    folds: Ints,
    n_refits: int,
    fit: Refit,
    driver: Driver,
    joint: bool = False,
    top: bool = False,
    drifting: InducingPosterior | None = None,
    project: Callable[[Bools], tuple[list[Any], Refit]] | None = None,
) -> HeldOut:
    """Held-out latent values of the bags of the first folds, in the order of the bags.

    ``joint`` and ``top`` say what else is read of them; see `held_out_values`.

    ``fit`` is given parts without the bags of a fold, which start from ``start`` [N]: started
    from the fit to all bags, or from its beliefs, it would know the labels it does without.

    ``project`` makes parts of all bags on a projection that those of a mask chose, and the ``fit``
    that goes with it; by default every fold has the projection of ``parts``.

    ``drifting`` is the fit to all bags, where fits to nearly the same bags differ in level: the
    values of each refit are then moved by as much as the level of its training bags is below that
    of all bags under this one.
    """
    found: list[tuple[slice, float]] = []
    parts = driver.sweep(_extent, parts, found.append)
    extents, copied = [own for own, _ in found], sum(size for _, size in found) <= _COPIED

    def read(parts: Sequence[Any], q: InducingPosterior, chosen: Array, **more: bool) -> HeldOut:
        columns: list[HeldOut] = []
        which = _having(parts, extents, chosen)
        driver.sweep(ReadHeldOut(q, chosen, **more), which, columns.append)
        owner = np.repeat(np.arange(len(columns)), [len(c.offsets) - 1 for c in columns])
        return joined(columns, owner)

    level = None
    if drifting is not None:
        level = _level(read(parts, drifting, np.ones(len(folds), dtype=bool)))
    values = []
    for fold in range(n_refits):
        seen = folds != fold
        own, refit = (parts, fit) if project is None else project(seen)
        kept = driver.sweep(LeaveOut(seen, start, offsets, copied), own, lambda _: None)
        q = refit(kept)
        held_out = read(own, q, ~seen, joint=joint, top=top and level is None)
        if level is not None:
            rise = level - _level(read(own, q, seen))
            held_out = held_out._replace(mean=held_out.mean + rise)
        values.append(held_out)
    return joined(values, folds[folds < n_refits])


def _level(values: HeldOut) -> float:
    """Mean over the bags of their largest values."""
    return float(np.mean(segments.max(values.mean, values.offsets)))


def _having(parts: Sequence[Any], extents: Sequence[slice], chosen: Array) -> list[Any]:
    """The parts that hold a chosen bag."""
    return [part for part, own in zip(parts, extents, strict=True) if chosen[own].any()]
