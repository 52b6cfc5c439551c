"""Dense linear algebra for whitened Gaussians: Cholesky, triangular solves, weighted Grams.

Arrays of instances are ``A`` [M, n] with contiguous columns (Fortran order), which is what
BLAS wants and lets a chunk of instances be a view. NumPy arrays go to BLAS directly; torch
tensors stay where they live.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from array_api_compat import is_torch_array
from scipy.linalg import blas, lapack, solve_triangular

# Added to the diagonal before the first attempt, relative to the mean of the diagonal.
JITTER = 1e-8
_LARGEST_JITTER = 1e-2


def cholesky(K: Any, jitter: float = JITTER) -> Any:
    """Lower Cholesky factor of ``K + jitter * mean(diag K) * I``.

    The jitter grows tenfold only when the factorisation fails, and a warning says so.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.linalg import cholesky
    >>> L = cholesky(np.array([[4.0, 2.0], [2.0, 3.0]]))
    >>> np.round(L @ L.T, 6).tolist()
    [[4.0, 2.0], [2.0, 3.0]]
    """
    scale = float(K.diagonal().mean()) or 1.0
    amount = jitter
    while amount <= _LARGEST_JITTER:
        L = _try_cholesky(K, amount * scale)
        if L is not None:
            if amount > jitter:
                warnings.warn(
                    f"the kernel matrix is nearly singular; jitter raised to {amount * scale:.1e} "
                    "so that its Cholesky factor exists. Inducing points that repeat or a very "
                    "long length scale cause this.",
                    stacklevel=2,
                )
            return L
        amount *= 10
    raise ValueError(
        f"the kernel matrix of the {K.shape[0]} inducing points has no Cholesky factor even with "
        f"jitter {_LARGEST_JITTER * scale:.1e}; a kernel must be symmetric positive semi-definite "
        "and finite."
    )


def _try_cholesky(K: Any, amount: float) -> Any:
    if is_torch_array(K):
        import torch

        eye = torch.eye(K.shape[0], dtype=K.dtype, device=K.device)
        L, info = torch.linalg.cholesky_ex(K + amount * eye)
        return None if int(info) else L
    K = np.array(K, dtype=np.float64, order="F")
    K[np.diag_indices_from(K)] += amount
    L, info = lapack.dpotrf(K, lower=1, clean=1, overwrite_a=1)
    return None if info or not np.isfinite(L[-1, -1]) else L


def solve_lower(L: Any, B: Any) -> Any:
    """``L^{-1} B`` for lower-triangular ``L``."""
    if is_torch_array(B):
        import torch

        flat = B.ndim == 1
        X = torch.linalg.solve_triangular(L, B[:, None] if flat else B, upper=False)
        return X[:, 0] if flat else X
    trsm = blas.strsm if B.dtype == np.float32 else blas.dtrsm
    X = trsm(1.0, L, B[:, None] if B.ndim == 1 else B, lower=1)
    return X[:, 0] if B.ndim == 1 else X


def lower_times(W: Any, A: Any) -> Any:
    """``W A`` for lower-triangular ``W``, at half the work of a full product."""
    if is_torch_array(A):
        return W @ A
    trmm = blas.strmm if A.dtype == np.float32 else blas.dtrmm
    return trmm(1.0, W, A, lower=1)


def weighted_gram(A: Any, omega: Any) -> Any:
    """``A diag(omega) A^T`` in float64, lower triangle; ``omega`` >= 0."""
    if is_torch_array(A):
        return ((A * omega.to(A.dtype)) @ A.T).double()
    scaled = (A.T * np.sqrt(omega).astype(A.dtype, copy=False)[:, None]).T  # [M, n]
    syrk = blas.ssyrk if A.dtype == np.float32 else blas.dsyrk
    return syrk(1.0, scaled, lower=1).astype(np.float64, copy=False)


def column_squares(A: Any) -> Any:
    """Squared norm of every column, in float64, shape [n]."""
    if is_torch_array(A):
        return (A * A).sum(0).double()
    At = A.T
    return np.einsum("nm,nm->n", At, At).astype(np.float64, copy=False)


def inverse_factor(B: Any) -> Any:
    """Lower ``W`` with ``W^T W = B^{-1}``, from the lower triangle of ``B``.

    Meant for ``B = I + A diag(omega) A^T``, whose eigenvalues are at least 1: a product with
    ``W`` is then as accurate as a triangular solve and runs at twice its speed.
    """
    if is_torch_array(B):
        import torch

        eye = torch.eye(B.shape[0], dtype=B.dtype, device=B.device)
        return torch.linalg.solve_triangular(torch.linalg.cholesky(B), eye, upper=False)
    L, info = lapack.dpotrf(B, lower=1, clean=1)
    if info:
        raise ValueError(
            "the precision of the inducing posterior is not positive definite; instance weights "
            "and the density's theta must be non-negative and finite."
        )
    W, _ = lapack.dtrtri(L, lower=1)
    return W


def solve_upper(U: Any, b: Any) -> Any:
    """``U^{-1} b`` for upper-triangular ``U`` and a vector."""
    return solve_triangular(U, b, lower=False)
