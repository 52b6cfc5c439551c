"""From instances in the user's units to parts of blocks in whitened coordinates.

``A = L^{-1} k(Z, X)`` with ``L L^T = k(Z, Z)``: the only code of the family that sees features.
Blocks come from memory, from a file on disk, or from the instances once more; ``cache`` says which:

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
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bagwise.core import linalg
from bagwise.core.arrays import Array, Floats, Rows, is_tensor, to_numpy
from bagwise.core.blocks import even_runs
from bagwise.core.gaussians import project
from bagwise.core.kernels import Kernel
from bagwise.files import map_rows_of
from bagwise.models.drivers import Driver, Span, cut
from bagwise.models.scaling import FeatureScaling
from bagwise.models.variational.blocks import BagLabels, Block, Part, arranged

# Numbers projected at a time on the host, features or coordinates: 4 MB, written over and over.
_SLAB_NUMBERS = 1 << 19

Inducing = Literal["kmeans", "class-kmeans", "subset"]


class Projector(NamedTuple):
    """Instances in the user's units -> whitened coordinates.

    On a device ``Z``, ``L`` and the scaling are tensors there.
    """

    kernel: Kernel
    Z: Array  # [M, D] scaled
    L: Array  # [M, M]
    scaling: FeatureScaling
    dtype: object  # of A; numpy's or torch's

    def __call__(self, X: Rows) -> tuple[Array, Array]:
        """``A`` [M, n] and ``r`` [n]."""
        n, M, room = X.shape[0], len(self.Z), None
        step = linalg.SLAB if is_tensor(self.Z) else max(1, _SLAB_NUMBERS // max(self.Z.shape))
        if is_tensor(self.Z):
            A = self.Z.new_empty((M, n), dtype=self.dtype)
            r: Array = self.Z.new_empty(n, dtype=self.dtype)
        elif n <= step:  # nothing to put together
            return project(self.kernel, self.scaling(X), self.Z, self.L, self.dtype)
        else:
            A, r = np.empty((M, n), dtype=self.dtype, order="F"), np.empty(n)
            room = np.empty((step, X.shape[1]))
        # Slabs bound the float64 workspace; what is kept is rounded where it is stored.
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            scaled = self.scaling(X[rows], room)
            A[:, rows], r[rows] = project(self.kernel, scaled, self.Z, self.L, self.L.dtype)
        return A, r

    def to(self, device: str | None) -> Projector:
        """The same projector on a torch device, or here for None; the algebra stays in float64."""
        if device is None or is_tensor(self.Z):
            return self
        import torch

        Z, L, *scaling = (
            torch.as_tensor(np.array(x), dtype=torch.float64).to(device)
            for x in (self.Z, self.L, *self.scaling)
        )
        dtype = getattr(torch, str(np.dtype(self.dtype)))  # type: ignore[call-overload]
        return Projector(self.kernel, Z, L, FeatureScaling(*scaling), dtype)

    def on_host(self) -> Projector:
        """The same projector of NumPy arrays in double precision."""
        scaling = FeatureScaling(*(to_numpy(x) for x in self.scaling))
        return make_projector(self.kernel, to_numpy(self.Z), scaling, "float64")


def make_projector(kernel: Kernel, Z: Floats, scaling: FeatureScaling, dtype: str) -> Projector:
    """A projector onto scaled inducing points ``Z``."""
    return Projector(kernel, Z, linalg.cholesky(kernel(Z, Z)), scaling, np.dtype(dtype))


def project_span(
    X: Rows,
    labels: BagLabels,
    span: Span,
    projector: Projector,
    first_bag: int = 0,
    first_row: int = 0,
) -> Block:
    """The block of a span, from rows and labels that begin at ``first_bag`` and ``first_row``."""
    A, r = projector(X[span.start - first_row : span.stop - first_row])
    own = labels.slice(span.first_bag - first_bag, span.last_bag - first_bag)
    return Block(A, r, own.beside(A))


# Parts, and how their blocks are kept.


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
            block = project_span(self.X, self.labels, span, self.projector, first, self.start)
            yield arranged(block)


class OnDisk:
    """Blocks whose projections lie in a file of this process, removed with the object."""

    def __init__(self, blocks: Iterable[Block], folder: str | None = None) -> None:
        self.source = blocks
        handle, self.path = tempfile.mkstemp(prefix="bagwise-", suffix=".cache", dir=folder)
        remove = weakref.finalize(self, Path(self.path).unlink, missing_ok=True)
        self.rest: list[tuple[tuple[int, int], Array, BagLabels]] = []
        with os.fdopen(handle, "wb") as stream:
            for block in blocks:
                self.dtype = block.A.dtype
                try:
                    stream.write(block.A.T.tobytes())  # columns are contiguous
                except OSError as error:
                    remove()
                    raise OSError(
                        error.errno,
                        f"the projected instances could not be cached on disk ({error.strerror}); "
                        "free some space, point TMPDIR at a larger disk, or use cache='none'",
                        self.path,
                    ) from error
                self.rest.append((block.A.shape, block.r, block.labels))

    def __reduce__(self) -> tuple[type[OnDisk], tuple[Iterable[Block]]]:
        # On another machine the file is not there: project again.
        return OnDisk, (self.source,)

    def __iter__(self) -> Iterator[Block]:
        # Plain reads, not a memory map: mapped pages would count as this process's memory.
        with Path(self.path).open("rb") as stream:
            for (M, n), r, labels in self.rest:
                A = np.fromfile(stream, dtype=self.dtype, count=M * n).reshape(n, M).T
                yield Block(A, r, labels)


def rows_of(X: Rows, spans: tuple[Span, ...]) -> Rows:
    """The rows of neighbouring spans: those on disk are chosen, not read; arrays are views."""
    rows = slice(spans[0].start, spans[-1].stop)
    return X.select_rows(rows) if hasattr(X, "select_rows") else X[rows]


def share_out(spans: list[Span], n_parts: int) -> list[tuple[Span, ...]]:
    """Neighbouring spans as at most ``n_parts`` groups of about as many rows each."""
    edges = np.array([spans[0].start, *(span.stop for span in spans)])
    return [tuple(spans[first:last]) for first, last in even_runs(edges, n_parts)]


def make_parts(
    X: Rows, labels: BagLabels, projector: Projector, chunk_size: int, n_parts: int
) -> list[Part]:
    """Cut bags into at most ``n_parts`` parts of about equal length, projected on demand."""
    X, parts = map_rows_of(X), []
    for spans in share_out(cut(labels.offsets, chunk_size), n_parts):
        of_part = labels.slice(spans[0].first_bag, spans[-1].last_bag)
        parts.append(Part(Projected(rows_of(X, spans), spans[0].start, spans, of_part, projector)))
    return parts


def materialised(parts: list[Part], cache: str, driver: Driver) -> list[Any]:
    """Parts whose blocks are kept as ``cache`` says, where the driver works on them."""
    if cache == "none":
        return parts
    keep: Any = tuple if cache == "memory" else OnDisk
    return driver.sweep(partial(_keep_blocks, keep=keep), parts, lambda _: None)


def _keep_blocks(part: Part, keep: Any) -> tuple[Part, None]:
    return part._replace(blocks=keep(part.blocks)), None
