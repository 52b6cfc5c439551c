"""The two passes over a long chunk of instances, compiled: no step of them needs the interpreter.

Threads that call NumPy piece by piece meet at the interpreter's lock between the pieces. Here one
call works through a whole chunk, a few columns at a time, which stay in the processor's cache
between copying, BLAS and reduction. BLAS is called at its address, so that compiled code can be
kept on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from bagwise.core.blas import address

if TYPE_CHECKING:
    from bagwise.core.arrays import Floats, Reals

# Bytes of the columns worked on at a time: they share a core's cache with the small matrices.
_CACHED = 1 << 20
# Columns that a typical one is the mean of.
_TYPICAL = 64
# Columns that float32 sums up before float64 does: longer sums lose digits of q.
_SHORT_SUM = 8192
# Columns that a sum of vectors carries in the precision of A.
_CARRIED = 128


def moments(m: Reals, W: Reals, A: Reals) -> tuple[Floats, Floats]:
    """``A^T m`` and the squared norms of the columns of ``W A``; ``W`` lower triangular.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.passes import moments
    >>> A = np.asfortranarray([[1.0, 2.0], [3.0, 4.0]])
    >>> [x.tolist() for x in moments(np.array([1.0, 1.0]), np.eye(2, order="F"), A)]
    [[4.0, 6.0], [10.0, 20.0]]
    """
    n = A.shape[1]
    mean, squares = np.empty(n), np.empty(n)
    trmm = address("trmm", A.dtype.char)
    write_moments(trmm, *constants(A), m, np.asfortranarray(W), A, workspace(A), mean, squares)
    return mean, squares


def add_statistics(
    precision: Floats, linear: Floats, A: Reals, omega: Floats, rho: Floats
) -> tuple[Floats, Floats]:
    """Add ``A diag(omega) A^T`` (lower triangle) and ``A rho``, in place; ``omega`` >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.passes import add_statistics
    >>> A = np.asfortranarray([[1.0, 2.0], [3.0, 4.0]])
    >>> start = np.zeros((2, 2), order="F"), np.zeros(2)
    >>> [x.tolist() for x in add_statistics(*start, A, np.ones(2), np.ones(2))]
    [[[5.0, 0.0], [11.0, 25.0]], [3.0, 7.0]]
    """
    syrk = address("syrk", A.dtype.char)
    add_around_typical(syrk, *constants(A), precision, linear, A, workspace(A), omega, rho)
    return precision, linear


def standardised(X: Reals, center: Floats, width: Floats, out: Floats) -> Floats:
    """``(X - center) / width`` in float64, written to the first rows of ``out``.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.passes import standardised
    >>> X = np.array([[1.0, 4.0]], dtype=np.float32)
    >>> standardised(X, np.array([0.0, 2.0]), np.array([1.0, 4.0]), np.empty((3, 2))).tolist()
    [[1.0, 0.5]]
    """
    _standardise(X, center, width, out)
    return out[: len(X)]


def feature_sums(X: Reals) -> tuple[Floats, Floats]:
    """Mean of every column, and the sum of squares about it, in float64, without a copy.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.passes import feature_sums
    >>> [x.tolist() for x in feature_sums(np.array([[1.0], [3.0]], dtype=np.float32))]
    [[2.0], [2.0]]
    """
    mean, squares = np.zeros((2, X.shape[1]))
    _feature_sums(X, mean, squares)
    return mean, squares


def routines(A: Reals) -> tuple[int, int]:
    """Addresses of the two products."""
    return address("trmm", A.dtype.char), address("syrk", A.dtype.char)


def constants(A: Reals) -> tuple[NDArray[np.uint8], NDArray[np.int32], Reals]:
    """What BLAS reads through addresses, kept alive by the caller: letters, two sizes, and 1."""
    letters = np.frombuffer(b"LN", dtype=np.uint8)
    return letters, np.array([A.shape[0], 0], dtype=np.int32), np.ones(1, dtype=A.dtype)


def workspace(A: Reals) -> Reals:
    """Room for a few columns, which stay in the cache of a core."""
    M = A.shape[0]
    step = max(16, _CACHED // (max(M, 1) * A.itemsize))
    return np.empty((M, min(step, A.shape[1])), dtype=A.dtype, order="F")


@intrinsic
def _call(typing_context: object, routine: types.Type, arguments: types.UniTuple) -> object:
    """Call the routine at an address with addresses, which all arguments of BLAS are."""

    def build(
        context: object, builder: ir.IRBuilder, signature: object, values: Sequence[ir.Value]
    ) -> ir.Value:
        pointer = ir.IntType(8).as_pointer()
        own = [
            builder.inttoptr(builder.extract_value(values[1], i), pointer)
            for i in range(arguments.count)
        ]
        kind = ir.FunctionType(ir.VoidType(), [pointer] * arguments.count)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), own)
        return cgutils.get_null_value(ir.IntType(8).as_pointer())

    return types.voidptr(routine, arguments), build


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def write_moments(
    trmm: int,
    letters: NDArray[np.uint8],
    sizes: NDArray[np.int32],
    one: Reals,
    m: Reals,
    W: Reals,
    A: Reals,
    work: Reals,
    mean: Floats,
    squares: Floats,
) -> None:
    """`moments`, for compiled code to call."""
    M, n = A.shape
    left, plain = letters[:1].ctypes.data, letters[1:].ctypes.data
    rows, columns = sizes[:1].ctypes.data, sizes[1:].ctypes.data
    step = work.shape[1]
    for start in range(0, n, step):
        stop = min(start + step, n)
        sizes[1] = stop - start
        for j in range(start, stop):
            total = 0.0
            for i in range(M):
                work[i, j - start] = A[i, j]
                total += A[i, j] * m[i]
            mean[j] = total
        _call(
            trmm,
            (
                *(left, left, plain, plain, rows, columns, one.ctypes.data),
                *(W.ctypes.data, rows, work.ctypes.data, rows),
            ),
        )
        for j in range(start, stop):
            total = 0.0
            for i in range(M):
                total += work[i, j - start] * work[i, j - start]
            squares[j] = total


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _weigh(
    A: Reals,
    start: int,
    stop: int,
    omega: Floats,
    rho: Floats,
    center: Reals,
    work: Reals,
    linear: Floats,
    shared: Floats,
) -> None:
    """Columns of ``A - center``, times sqrt(omega), fill ``work``.

    ``linear`` and ``shared`` [M] get the sums of ``A - center`` weighed by rho and by omega.
    """
    M = len(A)
    # All in the precision of A: one float64 among the factors would halve the speed of float32.
    factors = np.empty(3, A.dtype)
    pulled, weighed = np.empty(M, A.dtype), np.empty(M, A.dtype)
    for first in range(start, stop, _CARRIED):
        pulled[:] = 0
        weighed[:] = 0
        for j in range(first, min(first + _CARRIED, stop)):
            factors[0], factors[1], factors[2] = np.sqrt(omega[j]), rho[j], omega[j]
            root, pull, weight = factors[0], factors[1], factors[2]
            for i in range(M):
                a = A[i, j] - center[i]
                work[i, j - start] = a * root
                pulled[i] += a * pull
                weighed[i] += a * weight
        for i in range(M):
            linear[i] += pulled[i]
            shared[i] += weighed[i]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def add_around_typical(
    syrk: int,
    letters: NDArray[np.uint8],
    sizes: NDArray[np.int32],
    one: Reals,
    precision: Floats,
    linear: Floats,
    A: Reals,
    work: Reals,
    omega: Floats,
    rho: Floats,
) -> None:
    """Sums of what differs from a typical instance, which is put back in float64.

    What instances share is most of what float32 would round off their sums, which are short.
    `linalg.typical` and `linalg.uncentred` say the same in calls.
    """
    M, n = A.shape
    lower, plain = letters[:1].ctypes.data, letters[1:].ctypes.data
    rows, columns = sizes[:1].ctypes.data, sizes[1:].ctypes.data
    gram = np.zeros((M, M), A.dtype).T
    step = work.shape[1]
    # Columns are named by their place in A: of a slice, compiled code does not know that they are
    # contiguous, and takes them number by number.
    for first in range(0, n, _SHORT_SUM):
        last = min(first + _SHORT_SUM, n)
        center = _typical(A, first, last)
        gram[:] = 0
        line, shared = np.zeros(M), np.zeros(M)
        for start in range(first, last, step):
            stop = min(start + step, last)
            sizes[1] = stop - start
            _weigh(A, start, stop, omega, rho, center, work, line, shared)
            _call(
                syrk,
                (
                    *(lower, plain, rows, columns, one.ctypes.data, work.ctypes.data, rows),
                    *(one.ctypes.data, gram.ctypes.data, rows),
                ),
            )
        weight, pull = omega[first:last].sum(), rho[first:last].sum()
        for j in range(M):
            linear[j] += line[j] + pull * center[j]
            around = shared[j] + weight * center[j]
            for i in range(j, M):
                precision[i, j] += gram[i, j] + shared[i] * center[j] + around * center[i]


@njit(nogil=True, cache=True)
def _typical(A: Reals, first: int, last: int) -> Reals:
    """Mean of a few of the columns."""
    every = max((last - first) // _TYPICAL, 1)
    center = np.zeros(len(A), A.dtype)
    for j in range(first, last, every):
        center += A[:, j]
    center /= (last - first + every - 1) // every
    return center


@njit(nogil=True, cache=True, error_model="numpy")
def _standardise(X: Reals, center: Floats, width: Floats, out: Floats) -> None:
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            out[i, j] = (np.float64(X[i, j]) - center[j]) / width[j]


@njit(nogil=True, cache=True, error_model="numpy")
def _feature_sums(X: Reals, mean: Floats, squares: Floats) -> None:
    n, d = X.shape
    for i in range(n):
        for j in range(d):
            mean[j] += X[i, j]
    for j in range(d):
        mean[j] /= n
    for i in range(n):
        for j in range(d):
            off = np.float64(X[i, j]) - mean[j]
            squares[j] += off * off
