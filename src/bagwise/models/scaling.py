"""Scaling of the features: learnt from training instances in one pass, on disk or on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.sparsefuncs import mean_variance_axis

from bagwise.bags import Bags, BagsLike
from bagwise.core.arrays import (
    Doubles,
    Floats,
    Rows,
    is_sparse,
    is_tensor,
    like,
    tensor_of,
    to_numpy,
)
from bagwise.models.base import BagClassifier
from bagwise.models.drivers import Driver, Serial
from bagwise.models.parameters import SCALES, parameter

Scale = Literal["feature", "global"] | None
T = TypeVar("T")

# Numbers read at a time while the features are measured: 8 MB.
_NUMBERS = 1_000_000
# Numbers that two operations in turn find in the cache.
_CACHED = 1 << 17
# Such chunks in a run of rows that one worker measures.
_CHUNKS = 32


class FeatureScaling(NamedTuple):
    """``(X - center) / width``, learnt from training instances."""

    center: Doubles  # [D]
    width: Doubles  # [D]

    def __call__(self, X: Rows, out: Floats | None = None) -> Doubles:
        """Scaled rows, in float64, on the device the scaling lives on; on the host in ``out``."""
        if is_sparse(X):
            return X.multiply(1 / self.width).tocsr()  # its center is 0, see `learn_scaling`
        if is_tensor(self.center):
            return (like(tensor_of(X), self.center) - self.center) / self.width
        rows = np.asarray(X)
        scaled = np.empty(rows.shape) if out is None else out[: len(rows)]
        for run in _cached_runs(rows):
            np.subtract(rows[run], self.center, out=scaled[run])
            scaled[run] /= self.width
        return scaled

    def undo(self, X: Doubles) -> Doubles:
        """Back to the user's units."""
        return X * self.width + self.center


def _cached_runs(rows: NDArray[np.generic]) -> list[slice]:
    """Rows in runs that stay in the cache while they are worked on."""
    step = max(1, _CACHED // rows.shape[1])
    return [slice(a, a + step) for a in range(0, len(rows), step)]


class _FeatureMoments(NamedTuple):
    """Number, mean, and squared distances from that mean, of rows."""

    n: int
    mean: NDArray[np.float64]  # [D]
    squares: NDArray[np.float64]  # [D]


def measure(X: Rows) -> _FeatureMoments:
    """Rows in chunks, each read once."""
    step, parts = max(1, _NUMBERS // X.shape[1]), []
    # NaN and infinity go through, so that one pass over rows on disk also finds them.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, X.shape[0], step):
            rows = np.asarray(X[start : start + step])
            runs = _cached_runs(rows)
            sums = [rows[run].sum(axis=0, dtype=np.float64) for run in runs]
            mean = np.sum(sums, axis=0) / len(rows)
            squares = [np.square(rows[run] - mean).sum(axis=0) for run in runs]
            parts.append(_FeatureMoments(len(rows), mean, np.sum(squares, axis=0)))
    return pooled(parts)


def pooled(parts: Sequence[_FeatureMoments]) -> _FeatureMoments:
    """Rows measured apart as if together; every term is a square, so nothing cancels.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.scaling import measure, pooled
    >>> X = np.arange(6.0)[:, None] + 1e9
    >>> apart, together = pooled([measure(X[:4]), measure(X[4:])]), measure(X)
    >>> float(apart.squares[0]), float(together.squares[0])
    (17.5, 17.5)
    """
    if len(parts) == 1:
        return parts[0]
    n, means, squares = (np.array(column) for column in zip(*parts, strict=True))
    with np.errstate(invalid="ignore", over="ignore"):
        mean = n @ means / n.sum()
        between = n @ np.square(means - mean)
    return _FeatureMoments(int(n.sum()), mean, squares.sum(axis=0) + between)


def learn_scaling(X: Rows, scale: Scale, driver: Driver | None = None) -> FeatureScaling:
    """Standardise every feature, or divide all by one width; chunked, one pass.

    A constant feature keeps its width. Rows on disk are read where the driver works.
    """
    if scale is None:
        return FeatureScaling(np.zeros(X.shape[1]), np.ones(X.shape[1]))
    if is_tensor(X):  # where the tensor lives; the result comes to the host
        import torch

        step = max(1, 100 * _NUMBERS // X.shape[1])  # a device has the memory
        rows = range(0, X.shape[0], step)
        mean = sum(X[a : a + step].sum(0, dtype=torch.float64) for a in rows) / X.shape[0]
        squares = sum((X[a : a + step].double() - mean).square().sum(0) for a in rows)
        moments = _FeatureMoments(X.shape[0], to_numpy(mean), to_numpy(squares))
    elif is_sparse(X):
        # Taking the mean off would fill a sparse matrix: only the widths are used.
        mean, variance = mean_variance_axis(X, axis=0)
        moments = _FeatureMoments(X.shape[0], np.zeros_like(mean), X.shape[0] * variance)
    else:
        moments = pooled(list(over_rows(measure, X, driver)))
    with np.errstate(invalid="ignore"):
        width = np.sqrt(moments.squares / moments.n)
        # Rounding leaves a constant feature with a width that is not quite 0.
        constant = width <= 1e-12 * np.maximum(np.abs(moments.mean), 1e-300)
    width = np.where(constant, 0.0, width)
    if scale == "global":
        width = np.full(len(width), np.sqrt(np.mean(width**2)))
    return FeatureScaling(moments.mean, np.where(width > 0, width, 1.0))


def over_rows(function: Callable[[Rows], T], X: Rows, driver: Driver | None) -> Iterator[T]:
    """``function`` of runs of rows: by the driver where they are on disk, here where in memory.

    What is in memory would take longer to send than to read. The runs are the same whoever
    reads them, so that results are, to the last bit: a checkpoint knows a problem by them.
    """
    step = _CHUNKS * max(1, _NUMBERS // X.shape[1])
    runs = [slice(a, min(a + step, X.shape[0])) for a in range(0, X.shape[0], step)]
    if not hasattr(X, "select_rows"):
        return Serial().map(function, [X[run] for run in runs])
    return (driver or Serial()).map(function, [X.select_rows(run) for run in runs])


@dataclass(kw_only=True, eq=False, repr=False)
class ScalesFeatures(BagClassifier):
    """A bag classifier with a ``scale`` parameter, learned from the training bags.

    Attributes
    ----------
    scaling_ : FeatureScaling
        What the features go through; ``scaling_(X)`` scales rows, ``scaling_.undo`` goes back.
    """

    scale: Scale = parameter("feature", *SCALES)

    def _learn_preparation(self, bags: Bags) -> Bags:
        self.scaling_ = learn_scaling(bags.instances, self.scale)
        return self._scaled(bags)

    def _validate_predict(self, bags: BagsLike) -> Bags:
        """Check that the model is fitted and the bags fit it, and scale them."""
        return self._scaled(super()._validate_predict(bags))

    def _scaled(self, bags: Bags) -> Bags:
        return bags if self.scale is None else bags.map(self.scaling_.__call__)
