"""Where the blocks of a fit come from: memory, a file on disk, or the instances once more.

A `Part` holds neighbouring blocks and what is believed about them. It is the unit that a driver
keeps in one place; only statistics leave it. ``cache`` says how its blocks are kept:

- ``memory``: projected once and held,
- ``disk``: projected once, written to a file, and read in each iteration,
- ``none``: projected anew in each iteration.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from bagwise.core.arrays import Array, Ints, Rows, beside
from bagwise.core.blocks import even_runs
from bagwise.files import map_rows_of
from bagwise.models.drivers import Driver, Span, cut
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.projection import Projector, project_span


class Sites(NamedTuple):
    """Each instance's part in the Gaussian update that made q(v)."""

    omega: Array  # [n] precision weight
    rho: Array  # [n] linear weight


class Part(NamedTuple):
    """Blocks and what is believed about them: stays where the work on it is done."""

    blocks: Iterable[Block]  # as often as asked
    pis: tuple[Array, ...]  # [n] per block, instance probabilities at the start
    beliefs: tuple[Any, ...] | None = None  # per block, the likelihood's
    sites: tuple[Sites, ...] | None = None  # that made the q the beliefs were formed under
    new_sites: tuple[Sites, ...] | None = None  # that make the next q
    first_bag: int = 0  # number of its first bag in the whole
    offsets: tuple[Ints, ...] = ()  # per block, of its bags

    @property
    def n_bags(self) -> int:
        """Number of bags."""
        return sum(len(offsets) - 1 for offsets in self.offsets)

    def afresh(
        self, blocks: Iterable[Block], pis: tuple[Array, ...], offsets: tuple[Ints, ...]
    ) -> Part:
        """The part with other blocks, as before the first iteration."""
        return Part(blocks, pis, first_bag=self.first_bag, offsets=offsets)


@dataclass(frozen=True)
class Projected:
    """Blocks made from the instances whenever they are asked for."""

    X: Rows  # rows of this part; files are read on demand
    start: int  # number of the first row in the whole
    spans: tuple[Span, ...]
    labels: BagLabels  # of this part
    projector: Projector

    def __iter__(self) -> Iterator[Block]:
        first = self.spans[0].first_bag
        for span in self.spans:
            yield project_span(self.X, self.labels, span, self.projector, first, self.start)


class OnDisk:
    """Blocks whose projections lie in a file of this process, removed with the object."""

    def __init__(self, blocks: Iterable[Block], folder: str | None) -> None:
        self.source = blocks
        handle, self.path = tempfile.mkstemp(prefix="bagwise-", suffix=".cache", dir=folder)
        self._remove = weakref.finalize(self, Path(self.path).unlink, missing_ok=True)
        self.shapes: list[list[tuple[int, int]]] = []
        self.rest: list[tuple[Array, BagLabels]] = []
        with os.fdopen(handle, "wb") as stream:
            for block in blocks:
                self.dtype = block.A[0].dtype
                self._write(stream, block)

    def _write(self, stream: IO[bytes], block: Block) -> None:
        try:
            for chunk in block.A:
                stream.write(chunk.T.tobytes())  # columns are contiguous
        except OSError as error:
            self._remove()
            raise OSError(
                error.errno,
                f"the projected instances could not be cached on disk ({error.strerror}); free "
                "some space, point TMPDIR at a larger disk, or use cache='none'",
                self.path,
            ) from error
        self.shapes.append([chunk.shape for chunk in block.A])
        self.rest.append((block.r, block.labels))

    def __reduce__(self) -> tuple[type[OnDisk], tuple[Iterable[Block], None]]:
        # On another machine the file is not there: project again.
        return OnDisk, (self.source, None)

    def __iter__(self) -> Iterator[Block]:
        # Plain reads, not a memory map: mapped pages would count as this process's memory.
        with Path(self.path).open("rb") as stream:
            for shapes, (r, labels) in zip(self.shapes, self.rest, strict=True):
                chunks = [
                    np.fromfile(stream, dtype=self.dtype, count=M * n).reshape(n, M).T
                    for M, n in shapes
                ]
                yield Block(tuple(chunks), r, labels)


@dataclass(frozen=True)
class Materialise:
    """Fix how the blocks of a part are kept."""

    cache: str
    folder: str | None = None

    def __call__(self, part: Part) -> tuple[Part, None]:
        """The part with its blocks in memory or on disk."""
        if self.cache == "memory":
            return part._replace(blocks=tuple(part.blocks)), None
        if self.cache == "disk":
            return part._replace(blocks=OnDisk(part.blocks, self.folder)), None
        return part, None


@dataclass(frozen=True)
class Relabelled:
    """Blocks of a part under other labels, whenever they are asked for."""

    blocks: Iterable[Block]
    labels: BagLabels  # of all bags
    first_bag: int  # number of the part's first bag in the whole

    def __iter__(self) -> Iterator[Block]:
        first = self.first_bag
        for block in self.blocks:
            last = first + len(block.labels.offsets) - 1
            start, stop = self.labels.offsets[first], self.labels.offsets[last]
            own = BagLabels(
                self.labels.offsets[first : last + 1] - start,
                self.labels.y[first:last],
                self.labels.known[start:stop],
                self.labels.bags(first, last),
            )
            here = [None if x is None else beside(np.array(x), block.r) for x in own]
            yield block._replace(labels=BagLabels(*here))
            first = last


@dataclass(frozen=True)
class Relabel:
    """A part under other labels, as before the first iteration; its projections are shared."""

    labels: BagLabels  # of all bags
    start: Array  # [N] instance probabilities to start from

    def __call__(self, part: Part) -> tuple[Part, None]:
        """The same blocks with the new labels."""
        blocks: Iterable[Block] = Relabelled(part.blocks, self.labels, part.first_bag)
        if isinstance(part.blocks, tuple):
            blocks = tuple(blocks)
        first_row = int(self.labels.offsets[part.first_bag])
        ends = first_row + np.cumsum([0] + [int(offsets[-1]) for offsets in part.offsets])
        pis = tuple(self.start[a:b] for a, b in itertools.pairwise(ends))
        return part.afresh(blocks, pis, part.offsets), None


def share_out(spans: list[Span], n_parts: int) -> list[tuple[Span, ...]]:
    """Neighbouring spans as at most ``n_parts`` groups of about as many rows each."""
    edges = np.array([spans[0].start, *(span.stop for span in spans)])
    return [tuple(spans[first:last]) for first, last in even_runs(edges, n_parts)]


def rows_of(X: Rows, spans: tuple[Span, ...]) -> Rows:
    """The rows of neighbouring spans: those on disk are chosen, not read; arrays are views."""
    rows = slice(spans[0].start, spans[-1].stop)
    return X.select_rows(rows) if hasattr(X, "select_rows") else X[rows]


def make_parts(
    X: Rows, labels: BagLabels, projector: Projector, pi: Array, chunk_size: int, n_parts: int
) -> list[Part]:
    """Cut bags into at most ``n_parts`` parts of about equal length, projected on demand."""
    X = map_rows_of(X)
    spans = cut(labels.offsets, chunk_size)
    return [_part(X, labels, projector, pi, group) for group in share_out(spans, n_parts)]


def _part(
    X: Rows, labels: BagLabels, projector: Projector, pi: Array, spans: tuple[Span, ...]
) -> Part:
    start, stop = spans[0].start, spans[-1].stop
    first, last = spans[0].first_bag, spans[-1].last_bag
    own = BagLabels(
        labels.offsets[first : last + 1] - start,
        labels.y[first:last],
        labels.known[start:stop],
        labels.bags(first, last),
    )
    pis = tuple(pi[span.start : span.stop] for span in spans)
    offsets = tuple(
        labels.offsets[span.first_bag : span.last_bag + 1] - span.start for span in spans
    )
    blocks = Projected(rows_of(X, spans), start, spans, own, projector)
    return Part(blocks, pis, first_bag=first, offsets=offsets)


def materialised(parts: list[Part], cache: str, driver: Driver) -> list[Any]:
    """Parts whose blocks are kept as ``cache`` says, where the driver works on them."""
    return driver.sweep(Materialise(cache), parts, lambda _: None)
