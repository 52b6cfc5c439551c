"""Whole bags as points: a Gaussian process on the normalised set kernel.

``K(A, B) = sum of k(a, b)`` over all pairs, divided by ``sqrt(K(A, A) K(B, B))`` (Gärtner et al.,
"Multi-instance kernels", 2002): a bag is the mean direction of its instances in the kernel's
feature space, and the label may depend on all of it. The instances are projected onto inducing
points as for every other model, ``k(x, z) ~ a_x^T a_z``; a bag is then the sum of its projected
instances over its length. What is left is a Gaussian process of bags of one, whose labels are
observed, and the updates of the family fit it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, to_numpy
from bagwise.core.gaussians import sigmoid_moments
from bagwise.core.kernels import Kernel
from bagwise.files import map_rows_of
from bagwise.models.drivers import cut
from bagwise.models.scaling import FeatureScaling, Scale
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.likelihoods import Inherited
from bagwise.models.variational.projection import Projector, make_projector, project_span
from bagwise.models.variational.score import Readout, on_host
from bagwise.models.variational.updates import InducingPosterior, moments, posterior_of_blocks

# Prior variance of the level that all bags share.
_BIAS = 25.0


def pooled(block: Block, variance: float) -> Block:
    """Every bag of a block as one instance, for a kernel of variance 1; [M + 1, b].

    The length of a bag counts what the inducing points do not see of its instances, the sum of
    their ``r``; that part of a bag is noise, so that a bag unlike any inducing point has nothing
    but the prior's variance.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational.blocks import BagLabels, Block
    >>> from bagwise.models.variational.whole_bags import pooled
    >>> labels = BagLabels(np.array([0, 2, 3]), np.array([0, 1]), np.full(3, -1))
    >>> block = Block((np.array([[1.0, 1.0, 0.6]]),), np.array([0.0, 0.0, 0.64]), labels)
    >>> bags = pooled(block, variance=4.0)
    >>> bags.A[0][:-1].round(2).tolist(), bags.r.round(2).tolist()
    ([[2.0, 1.2]], [0.0, 2.56])
    """
    block = on_host(block)
    offsets = np.asarray(block.labels.offsets, dtype=np.int64)
    A = np.concatenate(block.A, axis=1).T.astype(np.float64, copy=False)  # [n, M]
    direction, unseen = segments.sum(A, offsets), segments.sum(np.asarray(block.r), offsets)
    scale = variance / ((direction**2).sum(axis=1) + unseen)
    level = np.full(len(scale), np.sqrt(_BIAS))
    columns = np.vstack([(np.sqrt(scale)[:, None] * direction).T, level])  # [M + 1, b]
    n_bags = len(offsets) - 1
    labels = BagLabels(
        np.arange(n_bags + 1),
        np.asarray(block.labels.y),
        np.full(n_bags, -1, dtype=np.int8),
        block.labels.weight,
    )
    return Block((np.asfortranarray(columns),), scale * unseen, labels)


def pooled_bags(
    bags: Bags, labels: BagLabels, projector: Projector, variance: float, chunk_size: int
) -> Block:
    """All bags as points, a chunk of rows at a time."""
    X, parts = map_rows_of(bags.instances), []
    for span in cut(bags.offsets, chunk_size):
        offsets = bags.offsets[span.first_bag : span.last_bag + 1] - span.start
        known = np.full(span.stop - span.start, -1, dtype=np.int8)
        unlabelled = BagLabels(offsets, np.zeros(len(offsets) - 1, dtype=np.int64), known)
        rows = X[span.start : span.stop]
        block = project_span(rows, unlabelled, span, projector, span.first_bag, span.start)
        parts.append(pooled(block, variance))
    columns = np.concatenate([part.A[0] for part in parts], axis=1)
    own = BagLabels(
        np.arange(len(bags) + 1), labels.y, np.full(len(bags), -1, dtype=np.int8), labels.weight
    )
    r = np.concatenate([part.r for part in parts])
    return Block((np.asfortranarray(columns),), r, own)


def take_points(points: Block, bags: Ints) -> Block:
    """Some of the bags that `pooled` made."""
    labels, weight = points.labels, points.labels.weight
    own = BagLabels(
        np.arange(len(bags) + 1),
        labels.y[bags],
        labels.known[bags],
        None if weight is None else weight[bags],
    )
    return Block((np.asfortranarray(points.A[0][:, bags]),), points.r[bags], own)


def fit_points(points: Block, max_iter: int, tol: float) -> InducingPosterior:
    """q(v) given the labels of the bags that `pooled` made."""
    labels = np.asarray(points.labels.y, dtype=np.float64)
    return posterior_of_blocks((points,), labels, Inherited(), max_iter=max_iter, tol=tol)


def read_points(points: Block, q: InducingPosterior) -> Readout:
    """Log-odds of the bags that `pooled` made, and nothing about their instances."""
    f = moments(points.A, points.r, q)
    p = sigmoid_moments(f.mean, f.var)
    nothing = np.empty(0)
    return Readout(to_numpy(p.log_odds), to_numpy(p.std), nothing, nothing, nothing, nothing)


class WholeReader(NamedTuple):
    """A posterior over whole bags, on the projections of one projector."""

    projector: int  # position in the list of projectors
    q: InducingPosterior
    variance: float

    def read(self, block: Block) -> Readout:
        """The bags of a block."""
        return read_points(pooled(block, self.variance), self.q)


class WholeMember(NamedTuple):
    """A fitted Gaussian process on the set kernel."""

    scale: Scale
    kernel: Kernel
    variance: float
    center: Floats
    width: Floats
    inducing_points: Floats  # scaled
    posterior_mean: Floats
    posterior_factor: Floats

    def projector(self, dtype: str) -> Projector:
        """Onto its inducing points."""
        scaling = FeatureScaling(self.center, self.width)
        return make_projector(self.kernel, self.inducing_points, scaling, dtype)

    def reader(self, projector: int) -> WholeReader:
        """What reads bags off the projections of a projector."""
        q = InducingPosterior(self.posterior_mean, self.posterior_factor)
        return WholeReader(projector, q, self.variance)
