"""Three BLAS routines that let other threads work.

SciPy's Python wrappers of BLAS hold the interpreter lock while they compute, so that threads wait
for each other. SciPy also exports the same routines for Cython; called through ctypes, which
releases the lock, they run side by side. Matrices are in Fortran order, and work is done in place.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_double, c_float, c_int, c_void_p
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

Matrix = NDArray[np.floating]

_LEFT, _LOWER, _PLAIN = c_char(b"L"), c_char(b"L"), c_char(b"N")
_N_ARGUMENTS = {"trmm": 11, "trsm": 11, "syrk": 10}


def multiply_lower(W: Matrix, B: Matrix) -> Matrix:
    """Overwrite ``B`` [M, n] with ``W B``, for lower-triangular ``W``.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.blas import multiply_lower
    >>> multiply_lower(np.array([[2.0, 9.0], [1.0, 1.0]]), np.asfortranarray(np.eye(2))).tolist()
    [[2.0, 0.0], [1.0, 1.0]]
    """
    return _triangular("trmm", W, B)


def solve_lower(L: Matrix, B: Matrix) -> Matrix:
    """Overwrite ``B`` [M, n] with ``L^{-1} B``, for lower-triangular ``L``.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.blas import multiply_lower, solve_lower
    >>> L, B = np.array([[2.0, 9.0], [1.0, 1.0]]), np.eye(2, order="F")
    >>> solve_lower(L, multiply_lower(L, B)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return _triangular("trsm", L, B)


def add_gram(total: Matrix, A: Matrix) -> Matrix:
    """Add ``A A^T`` to ``total`` [M, M], lower triangle only, in place.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.blas import add_gram
    >>> A = np.asfortranarray([[1.0, 2.0], [3.0, 4.0]])
    >>> add_gram(np.zeros((2, 2), order="F"), A).tolist()
    [[5.0, 0.0], [11.0, 25.0]]
    """
    _check(A, total)
    M, n = A.shape
    number = _scalar(A.dtype)
    one = number(1.0)
    _routine("syrk", A.dtype.char)(
        byref(_LOWER), byref(_PLAIN), byref(c_int(M)), byref(c_int(n)),
        byref(one), A.ctypes.data, byref(_stride(A)),
        byref(one), total.ctypes.data, byref(_stride(total)),
    )  # fmt: skip
    return total


def _triangular(name: str, T: Matrix, B: Matrix) -> Matrix:
    T = np.asfortranarray(T, dtype=B.dtype)
    _check(T, B)
    M, n = B.shape
    _routine(name, B.dtype.char)(
        byref(_LEFT), byref(_LOWER), byref(_PLAIN), byref(_PLAIN), byref(c_int(M)),
        byref(c_int(n)), byref(_scalar(B.dtype)(1.0)), T.ctypes.data, byref(_stride(T)),
        B.ctypes.data, byref(_stride(B)),
    )  # fmt: skip
    return B


def _check(first: Matrix, second: Matrix) -> None:
    """BLAS reads addresses: a wrong layout would be read as numbers."""
    for matrix in (first, second):
        columns_lie_together = (
            matrix.size == 0 or matrix.shape[0] <= 1 or matrix.strides[0] == matrix.itemsize
        )
        if matrix.ndim != 2 or not columns_lie_together or matrix.dtype.char not in "df":
            raise ValueError(
                "BLAS needs float matrices in Fortran order; got "
                f"{matrix.dtype} of shape {matrix.shape} with strides {matrix.strides}."
            )
    if first.dtype != second.dtype or first.shape[0] != second.shape[0]:
        raise ValueError(
            f"BLAS needs matrices that match; got {first.dtype} {first.shape} and "
            f"{second.dtype} {second.shape}."
        )


def _scalar(dtype: np.dtype[np.floating]) -> type[c_double] | type[c_float]:
    return c_double if dtype == np.float64 else c_float


def _stride(matrix: Matrix) -> c_int:
    """Numbers from one column to the next."""
    rows = matrix.shape[0]
    return c_int(max(rows, 1) if matrix.shape[1] <= 1 else matrix.strides[1] // matrix.itemsize)


@lru_cache(maxsize=8)
def _routine(name: str, kind: str) -> Callable[..., None]:
    return ctypes.CFUNCTYPE(None, *[c_void_p] * _N_ARGUMENTS[name])(address(name, kind))


@lru_cache(maxsize=8)
def address(name: str, kind: str) -> int:
    """Where a routine in double ("d") or single ("f") precision lies, as SciPy shows it to Cython.

    Examples
    --------
    >>> from bagwise.core.blas import address
    >>> address("syrk", "d") > 0
    True
    """
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__[("d" if kind == "d" else "s") + name]
    signature = ctypes.pythonapi.PyCapsule_GetName
    signature.restype, signature.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, signature(capsule)))
