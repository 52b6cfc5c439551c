"""Where the blocks of a fit come from: memory, a file on disk, or the instances once more.

A `Part` holds neighbouring blocks and what is believed about them. It is the unit that a driver
keeps in one place; only statistics leave it. ``cache`` says how its blocks are kept:

- ``memory``: projected once and held,
- ``disk``: projected once, written to a file, and read in each iteration,
- ``none``: projected anew in each iteration.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from bagwise.core.arrays import Array, Rows
from bagwise.core.blocks import even_runs
from bagwise.files import map_rows_of
from bagwise.models.drivers import Driver, Span, cut
from bagwise.models.variational.blocks import BagLabels, Block, arranged, host
from bagwise.models.variational.projection import Projector, project_span


class Sites(NamedTuple):
    """Each instance's part in the Gaussian update that made q(v)."""

    omega: Array  # [n] precision weight
    rho: Array  # [n] linear weight


class Part(NamedTuple):
    """Blocks and, under the papers' updates, what is believed about their instances.

    A part stays where the work on it is done.
    """

    blocks: Iterable[Block]  # as often as asked
    pis: tuple[Array, ...] = ()  # [n] per block, instance probabilities at the start
    beliefs: tuple[Any, ...] | None = None  # per block, the likelihood's
    sites: tuple[Sites, ...] | None = None  # that made the q the beliefs were formed under
    new_sites: tuple[Sites, ...] | None = None  # that make the next q


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
            yield arranged(
                project_span(self.X, self.labels, span, self.projector, first, self.start)
            )


class OnDisk:
    """Blocks whose projections lie in a file of this process, removed with the object."""

    def __init__(self, blocks: Iterable[Block], folder: str | None) -> None:
        self.source = blocks
        handle, self.path = tempfile.mkstemp(prefix="bagwise-", suffix=".cache", dir=folder)
        self._remove = weakref.finalize(self, Path(self.path).unlink, missing_ok=True)
        self.rest: list[tuple[tuple[int, int], Array, BagLabels]] = []
        with os.fdopen(handle, "wb") as stream:
            for block in blocks:
                self.dtype = block.A.dtype
                self._write(stream, block)

    def _write(self, stream: IO[bytes], block: Block) -> None:
        try:
            stream.write(block.A.T.tobytes())  # columns are contiguous
        except OSError as error:
            self._remove()
            raise OSError(
                error.errno,
                f"the projected instances could not be cached on disk ({error.strerror}); free "
                "some space, point TMPDIR at a larger disk, or use cache='none'",
                self.path,
            ) from error
        self.rest.append((block.A.shape, block.r, block.labels))

    def __reduce__(self) -> tuple[type[OnDisk], tuple[Iterable[Block], None]]:
        # On another machine the file is not there: project again.
        return OnDisk, (self.source, None)

    def __iter__(self) -> Iterator[Block]:
        # Plain reads, not a memory map: mapped pages would count as this process's memory.
        with Path(self.path).open("rb") as stream:
            for (M, n), r, labels in self.rest:
                A = np.fromfile(stream, dtype=self.dtype, count=M * n).reshape(n, M).T
                yield Block(A, r, labels)


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
class OfTask:
    """One task's labels on the blocks of a part, whenever they are asked for."""

    blocks: Iterable[Block]
    task: int

    def __iter__(self) -> Iterator[Block]:
        for block in self.blocks:
            yield block._replace(labels=block.labels.of_task(self.task))


@dataclass(frozen=True)
class Begin:
    """A part as before the first iteration of one task; its projections are shared."""

    task: int
    start: Array  # [N] instance probabilities to start from

    def __call__(self, part: Part) -> tuple[Part, None]:
        """The same blocks with the labels of the task."""
        blocks = OfTask(part.blocks, self.task)
        pis = tuple(self.start[host(block.labels.row)] for block in part.blocks)
        return Part(tuple(blocks) if isinstance(part.blocks, tuple) else blocks, pis), None


def share_out(spans: list[Span], n_parts: int) -> list[tuple[Span, ...]]:
    """Neighbouring spans as at most ``n_parts`` groups of about as many rows each."""
    edges = np.array([spans[0].start, *(span.stop for span in spans)])
    return [tuple(spans[first:last]) for first, last in even_runs(edges, n_parts)]


def rows_of(X: Rows, spans: tuple[Span, ...]) -> Rows:
    """The rows of neighbouring spans: those on disk are chosen, not read; arrays are views."""
    rows = slice(spans[0].start, spans[-1].stop)
    return X.select_rows(rows) if hasattr(X, "select_rows") else X[rows]


def make_parts(
    X: Rows, labels: BagLabels, projector: Projector, chunk_size: int, n_parts: int
) -> list[Part]:
    """Cut bags into at most ``n_parts`` parts of about equal length, projected on demand."""
    X = map_rows_of(X)
    spans = cut(labels.offsets, chunk_size)
    return [_part(X, labels, projector, group) for group in share_out(spans, n_parts)]


def _part(X: Rows, labels: BagLabels, projector: Projector, spans: tuple[Span, ...]) -> Part:
    first, last = spans[0].first_bag, spans[-1].last_bag
    own = labels.slice(first, last)
    return Part(Projected(rows_of(X, spans), spans[0].start, spans, own, projector))


def materialised(parts: list[Part], cache: str, driver: Driver) -> list[Any]:
    """Parts whose blocks are kept as ``cache`` says, where the driver works on them."""
    return driver.sweep(Materialise(cache), parts, lambda _: None)
