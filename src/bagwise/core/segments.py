"""Reductions over ragged segments of a flat array, given by offsets.

Segment ``b`` is ``values[offsets[b]:offsets[b + 1]]``. Empty segments are defined: they sum
to 0 and their maximum and logsumexp are -inf (``numpy.ufunc.reduceat`` gets them wrong).
NumPy and torch arrays are accepted; the result lives where the values do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bagwise.core.arrays import Array, ArrayT, Bools, Codes, Floats, Ints, is_tensor, namespace

if TYPE_CHECKING:
    import torch

# Where the segments start and end: integers, beside the values.
Offsets: TypeAlias = "Ints | torch.Tensor"
# Counts and flags become float64 when they are reduced.
Counts: TypeAlias = Codes | Bools
OffsetsT = TypeVar("OffsetsT", bound="Ints | torch.Tensor")
_AnyT = TypeVar("_AnyT", bound="NDArray[np.generic] | torch.Tensor")


def lengths(offsets: OffsetsT) -> OffsetsT:
    """Size of every segment."""
    return cast(OffsetsT, offsets[1:] - offsets[:-1])


def index(offsets: OffsetsT) -> OffsetsT:
    """Segment number of every row, shape (N,)."""
    if is_tensor(offsets):
        import torch

        # Kept on the tensor: making it waits for the device, and a fit asks for it again and again.
        if not hasattr(offsets, "_bagwise_index"):
            offsets._bagwise_index = torch.repeat_interleave(lengths(offsets))
        return offsets._bagwise_index
    return cast(OffsetsT, np.repeat(np.arange(len(offsets) - 1), lengths(offsets)))


def spread(per_segment: _AnyT, offsets: Offsets) -> _AnyT:
    """Repeat one value per segment to one value per row."""
    if is_tensor(per_segment):
        return per_segment[index(offsets)]
    return cast(_AnyT, np.repeat(per_segment, offsets[1:] - offsets[:-1], axis=0))


@overload
def sum(values: Counts, offsets: Offsets) -> Floats: ...
@overload
def sum(values: ArrayT, offsets: Offsets) -> ArrayT: ...
def sum(values: Array | Counts, offsets: Offsets) -> Array:
    """Sum of every segment; 0 where empty."""
    return _reduce(values, offsets, "sum", 0.0)


@overload
def max(values: Counts, offsets: Offsets) -> Floats: ...
@overload
def max(values: ArrayT, offsets: Offsets) -> ArrayT: ...
def max(values: Array | Counts, offsets: Offsets) -> Array:
    """Maximum of every segment; -inf where empty."""
    return _reduce(values, offsets, "max", -np.inf)


@overload
def min(values: Codes, offsets: Offsets) -> Floats: ...
@overload
def min(values: ArrayT, offsets: Offsets) -> ArrayT: ...
def min(values: Array | Codes, offsets: Offsets) -> Array:
    """Minimum of every segment; +inf where empty."""
    return -max(-values, offsets)


@overload
def mean(values: Counts, offsets: Offsets) -> Floats: ...
@overload
def mean(values: ArrayT, offsets: Offsets) -> ArrayT: ...
def mean(values: Array | Counts, offsets: Offsets) -> Array:
    """Mean of every segment; nan where empty."""
    n = lengths(offsets)
    total = sum(values, offsets)
    n = n.reshape((-1,) + (1,) * (total.ndim - 1))
    if is_tensor(n):
        return total / n.to(total.dtype)
    return np.divide(total, n, out=np.full_like(total, np.nan), where=n > 0)


def _reduce(values: Array | Counts, offsets: Offsets, how: str, empty: float) -> Array:
    if is_tensor(values):
        return _scatter(values, offsets, how, empty)
    offsets = np.asarray(offsets)
    values = np.asarray(values)
    if values.dtype.kind not in "f":
        values = values.astype(np.float64)
    ufunc = np.add if how == "sum" else np.maximum
    starts, values = offsets[:-1], values[: offsets[-1]]  # rows past the last segment do not count
    filled = offsets[1:] > starts
    if len(starts) and filled.all():
        return ufunc.reduceat(values, starts, axis=0)
    out = np.full((len(starts), *values.shape[1:]), empty, dtype=values.dtype)
    if filled.any():
        out[filled] = ufunc.reduceat(values, starts[filled], axis=0)
    return out


def _scatter(values: torch.Tensor, offsets: torch.Tensor, how: str, empty: float) -> torch.Tensor:
    """Reductions by row owner: on a GPU several times quicker than torch.segment_reduce."""
    owner = index(offsets)
    values = values[: owner.shape[0]]
    out = values.new_full((offsets.shape[0] - 1, *values.shape[1:]), empty)
    if how == "sum":
        return out.index_add(0, owner, values)
    owner = owner.reshape(-1, *(1,) * (values.ndim - 1)).expand_as(values)
    return out.scatter_reduce(0, owner, values, "amax")


def logsumexp(values: ArrayT, offsets: Offsets) -> ArrayT:
    """Log of the sum of exponentials of every segment; -inf where empty."""
    xp = namespace(values)
    top = max(values, offsets)
    safe = xp.where(xp.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return xp.log(sum(xp.exp(values - spread(safe, offsets)), offsets)) + safe


def softmax(values: ArrayT, offsets: Offsets) -> ArrayT:
    """Softmax within every segment, one value per row."""
    return namespace(values).exp(values - spread(logsumexp(values, offsets), offsets))


def max_of_others(values: ArrayT, offsets: Offsets, alone: float = 0.0) -> ArrayT:
    """For every row the largest value among the *other* rows of its segment.

    A row that is alone in its segment gets ``alone``. Ties are respected: where two rows share
    the maximum, each sees the other's.
    """
    xp = namespace(values)
    top = spread(max(values, offsets), offsets)
    at_top = values == top
    # Each of those that share the maximum sees the other's; one alone sees the next below.
    ties = spread(sum(xp.where(at_top, 1.0, 0.0), offsets), offsets)
    below = spread(max(xp.where(at_top, -xp.inf, values), offsets), offsets)
    others = xp.where(at_top & (ties == 1), below, top)
    return xp.where(xp.isinf(others), alone, others)


def argmax(values: Array, offsets: OffsetsT) -> OffsetsT:
    """Row number of the first maximum of every segment; `ValueError` where there is none.

    An empty segment has no maximum, nor has one that holds NaN.
    """
    at_top = values == spread(max(values, offsets), offsets)
    n_rows, n_segments = values.shape[0], offsets.shape[0] - 1
    first: Ints | torch.Tensor  # [B]
    if is_tensor(at_top):
        rows = at_top.nonzero()[:, 0]
        owner = index(cast("torch.Tensor", offsets))[rows]
        first = owner.new_full((n_segments,), n_rows).scatter_reduce(0, owner, rows, "amin")
    else:
        chosen = np.flatnonzero(at_top)
        first = np.full(n_segments, n_rows, dtype=np.int64)
        # Reversed, so that the first row of a tie is written last.
        first[index(np.asarray(offsets))[chosen][::-1]] = chosen[::-1]
    if bool((first == n_rows).any()):
        i = int((first == n_rows).nonzero()[0][0])
        raise ValueError(f"segment {i} has no maximum: it is empty or holds NaN.")
    return cast(OffsetsT, first)


def take(offsets: ArrayLike, chosen: Codes | Bools | slice) -> tuple[Ints, Ints]:
    """Rows of the chosen segments, in order, and the offsets of the result."""
    offsets = np.asarray(offsets)
    starts = offsets[:-1][chosen]
    sizes = offsets[1:][chosen] - starts
    new = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=new[1:])
    rows = np.arange(new[-1]) + np.repeat(starts - new[:-1], sizes)
    return rows, new
