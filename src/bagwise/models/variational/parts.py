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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bagwise.core.arrays import concatenate, to_numpy
from bagwise.files import map_rows_of
from bagwise.models.drivers import Driver, Span, cut
from bagwise.models.variational.likelihoods import Labels
from bagwise.models.variational.training import project_span
from bagwise.models.variational.updates import Block, Part, Posterior, Sites

CACHES = ("auto", "memory", "disk", "none")


@dataclass(frozen=True)
class Projected:
    """Blocks made from the instances whenever they are asked for."""

    X: Any  # rows of this part; files are read on demand
    start: int  # number of the first row in the whole
    spans: tuple[Span, ...]
    labels: Labels  # of this part
    projector: Any

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
        self.rest: list[tuple[Any, Labels]] = []
        with os.fdopen(handle, "wb") as stream:
            for block in blocks:
                self.dtype = block.A[0].dtype
                self._write(stream, block)

    def _write(self, stream: Any, block: Block) -> None:
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

    def __reduce__(self) -> Any:
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


class Plan(NamedTuple):
    """How a fit keeps its projections."""

    cache: str
    bytes: int  # of all projections


def plan_cache(cache: str, M: int, N: int, dtype: Any, limit: int | None) -> Plan:
    """``auto`` is memory where the projections fit the limit, else disk.

    The limit defaults to half of the memory that is free now.
    """
    size = M * N * np.dtype(dtype).itemsize
    if cache == "auto":
        limit = _available_memory() // 2 if limit is None else limit
        return Plan("memory" if size <= limit else "disk", size)
    if cache == "memory" and limit is not None and size > limit:
        raise ValueError(
            f"cache='memory' would hold {size / 1e9:.2f} GB of projected instances, more than "
            f"memory_limit ({limit / 1e9:.2f} GB); use cache='disk' or 'none', or fewer inducing "
            "points."
        )
    return Plan(cache, size)


_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_bytes(size: Any) -> int | None:
    """Bytes from a number or a string such as "1.5GB".

    Examples
    --------
    >>> from bagwise.models.variational.parts import parse_bytes
    >>> parse_bytes("1.5 GB"), parse_bytes(100)
    (1500000000, 100)
    """
    if size is None or not isinstance(size, str):
        return None if size is None else int(size)
    text = size.strip().upper()
    unit = next((u for u in sorted(_UNITS, key=len, reverse=True) if text.endswith(u)), "")
    try:
        return int(float(text.removesuffix(unit)) * _UNITS.get(unit, 1))
    except ValueError as error:
        raise ValueError(f"memory_limit must be bytes or such as '2GB'; got {size!r}.") from error


def _available_memory() -> int:
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return int(pages * size)


def make_parts(
    X: Any, labels: Labels, projector: Any, pi: Any, chunk_size: int, n_parts: int
) -> list[Part]:
    """Cut bags into at most ``n_parts`` parts of about equal length, projected on demand."""
    spans = cut(labels.offsets, chunk_size)
    ends = np.array([span.stop for span in spans])
    goals = np.arange(1, n_parts + 1) * (ends[-1] / n_parts)
    edges = np.unique(np.concatenate([[0], np.searchsorted(ends, goals - 0.5) + 1]))
    edges = np.minimum(edges, len(spans))
    X = map_rows_of(X)
    parts = []
    for a, b in itertools.pairwise(edges):
        chosen = spans[a:b]
        if chosen:
            parts.append(_part(X, labels, projector, pi, tuple(chosen)))
    return parts


def _part(X: Any, labels: Labels, projector: Any, pi: Any, spans: tuple[Span, ...]) -> Part:
    start, stop = spans[0].start, spans[-1].stop
    first, last = spans[0].first_bag, spans[-1].last_bag
    own = Labels(
        labels.offsets[first : last + 1] - start, labels.y[first:last], labels.known[start:stop]
    )
    # Rows on disk are chosen, not read; arrays are views.
    rows = X.select_rows(slice(start, stop)) if hasattr(X, "select_rows") else X[start:stop]
    pis = tuple(pi[span.start : span.stop] for span in spans)
    return Part(Projected(rows, start, spans, own, projector), pis)


@dataclass(frozen=True)
class LeaveOut:
    """Left-out decisions of the bags of a part, read by a sweep."""

    q: Posterior
    rule: Any

    def __call__(self, part: Part) -> tuple[Part, Any]:
        """The part as it was, and the scores."""
        from bagwise.models.variational.predict import LeftOutScores, loo_scores

        assert part.sites is not None  # set by the first pass of every fit
        scores = [
            loo_scores(block, self.q, Sites(*sites), self.rule)
            for block, sites in zip(part.blocks, part.sites, strict=True)
        ]
        return part, LeftOutScores(*(np.concatenate(part) for part in zip(*scores, strict=True)))


@dataclass(frozen=True)
class OverBlocks:
    """Columns that a function makes of every block of a part, joined; only they travel."""

    function: Callable[[Block], Iterable[Any]]

    def __call__(self, part: Part) -> tuple[Any, ...]:
        """One array per column, on the host."""
        found = [self.function(block) for block in part.blocks]
        return tuple(to_numpy(concatenate(column)) for column in zip(*found, strict=True))


def materialised(parts: list[Part], cache: str, driver: Driver) -> list[Any]:
    """Parts whose blocks are kept as ``cache`` says, where the driver works on them."""
    return driver.sweep(Materialise(cache), parts, lambda _: None)
