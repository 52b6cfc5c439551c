"""From instances in the user's units to whitened coordinates.

``A = L^{-1} k(Z, X)`` with ``L L^T = k(Z, Z)``: the only code of the family that sees features.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from array_api_compat import is_torch_array

from bagwise.bags import Bags
from bagwise.core import inducing as inducing_points
from bagwise.core import linalg
from bagwise.core.arrays import (
    Array,
    Floats,
    Ints,
    Rows,
    host_rows,
    tensor_of,
    to_numpy,
)
from bagwise.core.gaussians import project
from bagwise.core.kernels import Kernel
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
        return labels.map(lambda x: tensor_of(x).to(self.Z.device))

    def to(self, device: str | None) -> Projector:
        """The same projector on a torch device, or here for None; the algebra stays in float64."""
        if device is None or self.on_device:
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


def choose_inducing(
    bags: Bags,
    scaling: FeatureScaling,
    inducing: Inducing | Floats,
    n_inducing: int,
    rng: np.random.RandomState,
    group: Ints | None = None,
) -> Floats:
    """Inducing points [M, D] in scaled units: by a method, or the user's own.

    ``group`` [N] numbers the groups of instances that ``class-kmeans`` clusters apart.
    """
    if not isinstance(inducing, str):
        return to_numpy(scaling(inducing))
    method = "subset" if inducing == "subset" else "kmeans"
    X = bags.instances
    if inducing != "class-kmeans":
        one = np.zeros(bags.n_instances, dtype=bool)
        return inducing_points.choose(X, one, n_inducing, method, rng, scaling)
    assert group is not None
    if group.max(initial=0) <= 1:
        return inducing_points.choose(X, group == 1, n_inducing, method, rng, scaling)
    return inducing_points.choose_by_group(X, group, n_inducing, method, rng, scaling)


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
    A, r = projector(X[span.start - first_row : span.stop - first_row])
    own = projector.place(labels.slice(span.first_bag - first_bag, span.last_bag - first_bag))
    return Block(A, r, own)
