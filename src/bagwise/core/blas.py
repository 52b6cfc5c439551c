"""Three BLAS routines that let other threads work.

SciPy's Python wrappers of BLAS hold the interpreter lock while they compute, so that threads wait
for each other. SciPy also exports the same routines for Cython; called through ctypes, which
releases the lock, they run side by side. Matrices are in Fortran order, and work is done in place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char, c_double, c_float, c_int, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating]

# Left side, lower triangle, not transposed, and a diagonal that is not one.
_TRIANGULAR = (b"L", b"L", b"N", b"N")


def multiply_lower(W: Matrix, B: Matrix) -> Matrix:
    """Overwrite ``B`` [M, n] with ``W B``, for lower-triangular ``W``.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.blas import multiply_lower
    >>> multiply_lower(np.array([[2.0, 9.0], [1.0, 1.0]]), np.asfortranarray(np.eye(2))).tolist()
    [[2.0, 0.0], [1.0, 1.0]]
    """
    return _run("trmm", np.asfortranarray(W, dtype=B.dtype), B, B.shape[1])


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
    return _run("trsm", np.asfortranarray(L, dtype=B.dtype), B, B.shape[1])


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
    return _run("syrk", A, total, A.shape[1])


def _run(name: str, first: Matrix, second: Matrix, n: int) -> Matrix:
    """Call a routine of two matrices with M rows, for n columns; it writes the second one.

    BLAS reads addresses: a wrong layout would be read as numbers.
    """
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
    M = second.shape[0]
    # Numbers from one column to the next.
    (a, lda), (b, ldb) = (
        (x.ctypes.data, c_int(max(M, 1) if x.shape[1] <= 1 else x.strides[1] // x.itemsize))
        for x in (first, second)
    )
    one = byref((c_double if first.dtype == np.float64 else c_float)(1.0))
    is_product = name == "syrk"  # of lower triangles, which are added to the second
    flags = _TRIANGULAR[1:3] if is_product else _TRIANGULAR
    sizes: list[Any] = [*map(c_char, flags), c_int(M), c_int(n)]
    beta = [one] if is_product else []
    _routine(name, first.dtype.char)(*map(byref, sizes), one, a, byref(lda), *beta, b, byref(ldb))
    return second


@lru_cache(maxsize=8)
def _routine(name: str, kind: str) -> Callable[..., None]:
    """A routine in double ("d") or single ("f") precision, as SciPy shows it to Cython."""
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__[("d" if kind == "d" else "s") + name]
    signature = ctypes.pythonapi.PyCapsule_GetName
    signature.restype, signature.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
    n_arguments = 10 if name == "syrk" else 11
    address = int(pointer(capsule, signature(capsule)))
    return ctypes.CFUNCTYPE(None, *[c_void_p] * n_arguments)(address)
