"""From instances in the user's units to whitened coordinates.

``A = L^{-1} k(Z, X)`` with ``L L^T = k(Z, Z)``: the only code of the family that sees features.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from array_api_compat import is_torch_array

from bagwise.core import inducing as inducing_points
from bagwise.core import linalg, segments
from bagwise.core.arrays import Array, Bools, Floats, Rows, concatenate, host_rows
from bagwise.core.gaussians import project
from bagwise.core.kernels import Kernel
from bagwise.models.base import TrainingData
from bagwise.models.drivers import Span
from bagwise.models.scaling import FeatureScaling
from bagwise.models.variational.blocks import BagLabels, Block

# Instances whose distances make the median length scale.
_MEDIAN_ROWS = 1000
# Numbers projected at a time on the host, features or coordinates: 4 MB, written over and over.
_SLAB_NUMBERS = 1 << 19


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
        n = X.shape[0]
        step = linalg.SLAB if self.on_device else max(1, _SLAB_NUMBERS // max(self.Z.shape))
        if n <= step and not self.on_device:  # nothing to put together
            return project(self.kernel, self.scaling(X), self.Z, self.L, self.dtype)
        A, r = self._room_for(n)
        # Slabs bound the float64 workspace; what is kept is rounded where it is stored.
        room = None if self.on_device else np.empty((step, X.shape[1]))
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            scaled = self.scaling(X[rows], room)
            A[:, rows], r[rows] = project(self.kernel, scaled, self.Z, self.L, self.L.dtype)
        return A, r

    def _room_for(self, n: int) -> tuple[Array, Array]:
        """Where ``A`` and ``r`` of ``n`` instances go."""
        shape = len(self.Z), n
        if not self.on_device:
            return np.empty(shape, dtype=self.dtype, order="F"), np.empty(n)
        import torch

        options = {"dtype": self.dtype, "device": self.Z.device}
        return torch.empty(shape, **options), torch.empty(n, **options)

    @property
    def on_device(self) -> bool:
        """Whether the work is done by torch."""
        return is_torch_array(self.Z)

    def place(self, labels: BagLabels) -> BagLabels:
        """Labels where the projections will be."""
        if not self.on_device:
            return labels
        import torch

        # torch warns of arrays that cannot be written to.
        return labels.map(
            lambda x: torch.as_tensor(x if x.flags.writeable else x.copy()).to(self.Z.device)
        )

    def to(self, device: str | None) -> Projector:
        """The same projector on a torch device, or here for None; the algebra stays in float64."""
        if device is None:
            return self
        import torch

        Z, L, *scaling = (
            torch.as_tensor(np.array(x), dtype=torch.float64).to(device)
            for x in (self.Z, self.L, *self.scaling)
        )
        dtype = getattr(torch, str(np.dtype(self.dtype)))  # type: ignore[call-overload]
        return Projector(self.kernel, Z, L, FeatureScaling(*scaling), dtype)


def make_projector(kernel: Kernel, Z: Floats, scaling: FeatureScaling, dtype: str) -> Projector:
    """A projector onto scaled inducing points ``Z``."""
    return Projector(kernel, Z, linalg.cholesky(kernel(Z, Z)), scaling, np.dtype(dtype))


Inducing = Literal["kmeans", "class-kmeans", "subset"]


class ProjectionChoices(NamedTuple):
    """What a model says about its projection."""

    kernel: Kernel
    scaling: FeatureScaling
    inducing: Inducing | Floats
    n_inducing: int
    dtype: str


def choose_projector(
    data: TrainingData,
    choices: ProjectionChoices,
    rng: np.random.RandomState,
    several: bool = False,
) -> Projector:
    """Inducing points and kernel for training bags, on the host.

    With ``several`` classes, class-wise points are shared out among the bags of each code of ``y``.
    """
    X, scaling = data.bags.instances, choices.scaling
    if isinstance(choices.inducing, str):
        method = "subset" if choices.inducing == "subset" else "kmeans"
        # Folds that are refitted on this projection must not know their labels through it.
        by_class = choices.inducing == "class-kmeans"
        if several and by_class:
            group = segments.spread(data.y, data.bags.offsets)
            Z = inducing_points.choose_by_group(X, group, choices.n_inducing, method, rng, scaling)
        else:
            side = _positive_side(data) if by_class else np.zeros(data.bags.n_instances, dtype=bool)
            Z = inducing_points.choose(X, side, choices.n_inducing, method, rng, scaling)
    else:
        Z = scaling(choices.inducing)
    kernel = choices.kernel.resolve(sample_rows(X, scaling, choices.kernel, rng))
    return make_projector(kernel, Z, scaling, choices.dtype)


def _positive_side(data: TrainingData) -> Bools:
    """Which instances count as positive where points are chosen class by class, [N]."""
    # Known labels sort the instances into the two groups better than their bags do.
    known, of_bag = data.instance_labels, segments.spread(data.y == 1, data.bags.offsets)
    return of_bag if known.max(initial=-1) < 0 else np.where(known < 0, of_bag, known == 1)


def sample_rows(
    X: Rows, scaling: FeatureScaling, kernel: Kernel, rng: np.random.RandomState
) -> Floats:
    """Scaled rows for `Kernel.resolve`: as many as a median needs, or none."""
    n = X.shape[0]
    if n == 0 or not kernel.needs_distances:
        return np.empty((0, X.shape[1]))
    few = n <= _MEDIAN_ROWS
    rows = np.arange(n) if few else np.sort(rng.choice(n, _MEDIAN_ROWS, replace=False))
    return scaling(host_rows(X, rows))


def project_span(
    X: Rows,
    labels: BagLabels,
    span: Span,
    projector: Projector,
    first_bag: int = 0,
    first_row: int = 0,
) -> Block:
    """The block of a span, from rows and labels that begin at ``first_bag`` and ``first_row``."""
    chunks = [projector(X[a - first_row : b - first_row]) for a, b in span.rows]
    bags = slice(span.first_bag - first_bag, span.last_bag - first_bag)
    offsets = labels.offsets[bags.start : bags.stop + 1]
    known = labels.known[span.start - first_row : span.stop - first_row]
    A, r = zip(*chunks, strict=True)
    weight = labels.bags(bags.start, bags.stop)
    own = projector.place(BagLabels(offsets - offsets[0], labels.y[bags], known, weight))
    return Block(A, concatenate(r), own)
