"""Dense linear algebra for whitened Gaussians: Cholesky, triangular solves, weighted Grams.

Arrays of instances are ``A`` [M, n] with contiguous columns (Fortran order), which is what
BLAS wants and lets a chunk of instances be a view. NumPy arrays go to BLAS directly; torch
tensors stay where they live.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast, overload

import numpy as np
from scipy.linalg import lapack, solve_triangular

from bagwise.core import blas
from bagwise.core.arrays import Array, ArrayT, Doubles, Floats, Reals, is_tensor, like, to_numpy

if TYPE_CHECKING:
    import torch


# Added to the diagonal before the first attempt, relative to the mean of the diagonal.
JITTER = 1e-8
_LARGEST_JITTER = 1e-2
# Columns worked on at a time on a GPU: enough to fill it, few enough to bound the workspace.
SLAB = 262_144
# Pieces of a slab that float32 sums up before float64 does: longer ones lose digits of q.
_SPLITS = 1024
# Columns that float32 sums up before float64 does on the host.
_SHORT_SUM = 8192
# Rows up to which LAPACK inverts a triangle faster than in halves.
_INVERTED_WHOLE = 100
_SCRATCH = threading.local()


def cholesky(K: ArrayT, jitter: float = JITTER) -> ArrayT:
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
        if is_tensor(K):
            import torch

            L, info = torch.linalg.cholesky_ex(plus_identity(K, amount * scale))
        else:
            shifted = plus_identity(K, amount * scale)
            L, info = lapack.dpotrf(shifted, lower=1, clean=1, overwrite_a=1)
        if not int(info) and bool(np.isfinite(float(L[-1, -1]))):
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


def solve_lower(L: Array, B: ArrayT) -> ArrayT:
    """``L^{-1} B`` for lower-triangular ``L``."""
    if is_tensor(B):
        import torch

        if B.ndim == 1:
            return torch.linalg.solve_triangular(L, B[:, None], upper=False)[:, 0]
        if B.shape[1] <= 4 * B.shape[0]:
            return torch.linalg.solve_triangular(L, B, upper=False)
        # Many right-hand sides: a product with the small inverse runs ten times faster on a GPU. It
        # is kept on the tensor: solving waits for the device, and a fit asks again and again.
        factor = like(L, B)
        if not hasattr(factor, "_bagwise_inverse"):
            inverse = torch.linalg.solve_triangular(factor, identity(factor), upper=False)
            factor._bagwise_inverse = inverse
        return factor._bagwise_inverse @ B
    X = blas.solve_lower(L, np.array(B[:, None] if B.ndim == 1 else B, order="F"))
    return cast("ArrayT", X[:, 0] if B.ndim == 1 else X)


def solve_lower_transposed(L: Array, B: ArrayT) -> ArrayT:
    """``L^{-T} B`` for lower-triangular ``L``."""
    if is_tensor(B):
        import torch

        return torch.linalg.solve_triangular(L.T, B, upper=True)
    return cast("ArrayT", solve_triangular(L, B, lower=True, trans="T"))


def first_two_moments(m: Array, W: Array, A: Array) -> tuple[Array, Array]:
    """``A^T m`` and the squared norms of the columns of ``W A``, both [n]."""
    if is_tensor(A):
        return _device_moments(like(m, A), like(W, A), A)
    m, W = m.astype(A.dtype, copy=False), W.astype(A.dtype, copy=False)
    return (A.T @ m).astype(np.float64, copy=False), projected_squares(W, A)


def _device_moments(
    m: torch.Tensor, W: torch.Tensor, A: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean decides the probabilities: unlike the product, it is never made in TF32."""
    import torch

    M, n = A.shape
    padded = A.new_zeros((_padded(M), M))
    padded[:M] = W
    mean, norm = A.new_empty(n), A.new_empty(n)
    slab = A.new_empty((len(padded), min(SLAB, n)))
    for start in range(0, n, SLAB):
        columns = slice(start, min(start + SLAB, n))
        R = torch.mm(padded, A[:, columns], out=slab[:, : columns.stop - start])
        torch.mv(A[:, columns].T, m, out=mean[columns])
        torch.linalg.vector_norm(R, dim=0, out=norm[columns])
    return mean, norm.square_()


def weighted_sums(A: Array, omega: Array, rho: Array) -> tuple[Array, Array]:
    """``A diag(omega) A^T`` (lower triangle) and ``A rho``, in float64; ``omega`` >= 0."""
    if is_tensor(A):
        return _device_sums(A, omega, rho)
    omega, rho, M = to_numpy(omega), to_numpy(rho), len(A)
    precision, linear = np.zeros((M, M), order="F"), np.zeros(M)
    if A.dtype == np.float64:
        # sqrt(omega) on both sides makes it the product of one matrix with itself.
        work = _workspace(A.shape, A.dtype)
        np.multiply(A.T, np.sqrt(omega)[:, None], out=work.T)
        return blas.add_gram(precision, work), A @ rho
    # What instances share is most of what float32 would round off: a typical one is taken off.
    for start in range(0, A.shape[1], _SHORT_SUM):
        columns = slice(start, start + _SHORT_SUM)
        center, weights = typical(A[:, columns]), np.stack((omega[columns], rho[columns]), 1)
        around = _workspace((len(A), len(weights)), A.dtype)
        np.subtract(A[:, columns].T, center, out=around.T)
        lines = around.astype(np.float64) @ weights  # [M, 2]; terms of both signs
        around.T[:] *= np.sqrt(weights[:, :1]).astype(A.dtype)
        gram = blas.add_gram(np.zeros((len(A), len(A)), A.dtype, order="F"), around)
        found = _uncentred(gram, lines, weights.sum(0), center.astype(np.float64))
        precision, linear = precision + found[0], linear + found[1]
    return precision, linear


def _device_sums(
    A: torch.Tensor, omega: torch.Tensor, rho: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Neither is made in TF32: what it cuts off is more than the small eigenvalues are.

    The small eigenvalues are also more than what float32 rounds off long sums of what instances
    share: a typical instance is taken off first, and put back in float64.
    """
    import torch

    M, n = A.shape
    omega, rho = omega.to(A.dtype), rho.to(A.dtype)
    center = typical(A)
    sums = A.new_zeros((M, _padded(M)), dtype=torch.float64)
    lines = A.new_zeros((M, 2), dtype=torch.float64)
    slabs = A.new_zeros((2, _padded(M), min(SLAB, n)))
    weights = torch.stack((omega, rho), 1).double()
    for start in range(0, n, SLAB):
        columns = slice(start, min(start + SLAB, n))
        left, weighted = slabs[:, :, : columns.stop - start]
        torch.sub(A[:, columns], center[:, None], out=left[:M])
        torch.mul(left[:M], omega[columns], out=weighted[:M])
        with _full_float32():
            _add_outer(sums, left[:M], weighted)
        # Terms of both signs: what float32 loses of them is more than what is left.
        lines += left[:M].double() @ weights[columns]
    return _uncentred(sums[:, :M], lines, weights.sum(0), center.double())


def typical(A: ArrayT) -> ArrayT:
    """The mean of about a thousand columns from all over ``A``, [M]; 0 where it has none."""
    n = A.shape[1]
    return A[:, :: max(n // 1024, 1)].mean(1) if n else A.sum(1)


def _uncentred(
    gram: ArrayT, lines: ArrayT, weights: ArrayT, center: ArrayT
) -> tuple[ArrayT, ArrayT]:
    """``A diag(omega) A^T`` (lower triangle) and ``A rho`` from those of ``A - center``.

    ``lines`` [M, 2] are the sums of the columns of ``A - center`` weighed by omega and by rho,
    ``weights`` [2] those of omega and rho themselves; these and ``center`` in float64.
    """
    around = (lines[:, 0] + 0.5 * weights[0] * center)[:, None] * center
    return gram + around + around.T, lines[:, 1] + weights[1] * center


@contextmanager
def _full_float32() -> Iterator[None]:
    """Products in float32 as it is, also where TF32 was asked for."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _add_outer(sums: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> None:
    """``sums += A B^T`` for long rows.

    The result is small and the sum long, which leaves most of a GPU idle: it is cut into
    products that run side by side. They are bound by arithmetic, so the upper triangle, which
    nobody reads, is left out in two steps.
    """
    import torch

    M, n = A.shape
    if n % _SPLITS:
        sums += A @ B.T
        return
    half = M // 2
    for first, last in ((0, half), (half, M)):
        if first < last:
            left = A[first:last].unflatten(1, (_SPLITS, -1)).transpose(0, 1)  # [splits, m, k]
            right = B[: len(B) if last == M else last].unflatten(1, (_SPLITS, -1)).permute(1, 2, 0)
            sums[first:last, : right.shape[2]] += torch.bmm(left, right).sum(0, dtype=torch.float64)


def _padded(M: int) -> int:
    """The next multiple of 16: what the matrix units want."""
    return -(-M // 16) * 16


def projected_squares(W: Reals, A: Reals) -> Floats:
    """``|W a|^2`` for every column a of ``A`` and lower-triangular ``W``, in float64, [n]."""
    work = _workspace(A.shape, A.dtype)
    np.copyto(work, A)
    return column_squares(blas.multiply_lower(W, work))


def _workspace(shape: tuple[int, int], dtype: np.dtype[np.floating]) -> Reals:
    """A scratch array of this thread, columns contiguous.

    Fresh arrays of this size for every chunk would scatter the small arrays that stay between
    them, and the heap would grow with every iteration.
    """
    kept = getattr(_SCRATCH, "array", None)
    if kept is None or kept.dtype != dtype or kept.size < shape[0] * shape[1]:
        kept = _SCRATCH.array = np.empty(shape[0] * shape[1], dtype=dtype)
    return kept[: shape[0] * shape[1]].reshape(shape, order="F")


@overload
def column_squares(A: Reals) -> Floats: ...
@overload
def column_squares(A: Array) -> Array: ...
def column_squares(A: Array) -> Array:
    """Squared norm of every column, in float64, shape [n]."""
    if is_tensor(A):
        import torch

        return torch.linalg.vector_norm(A, dim=0).square()
    At = A.T
    return np.einsum("nm,nm->n", At, At).astype(np.float64, copy=False)


def inverse_factor(B: ArrayT) -> ArrayT:
    """Lower ``W`` with ``W^T W = B^{-1}``, from the lower triangle of ``B``.

    Meant for ``B = I + A diag(omega) A^T``, whose eigenvalues are at least 1: a product with
    ``W`` is then as accurate as a triangular solve and runs at twice its speed.
    """
    if is_tensor(B):
        import torch

        L, info = torch.linalg.cholesky_ex(B)
    else:
        L, info = lapack.dpotrf(B, lower=1, clean=1)
    if int(info):
        raise ValueError(
            "the precision of the inducing posterior is not positive definite; instance weights "
            "and the density's theta must be non-negative and finite."
        )
    if is_tensor(B):
        return torch.linalg.solve_triangular(L, identity(L), upper=False)
    _invert_lower(L)
    return L


def _invert_lower(L: Floats) -> None:
    """Overwrite a lower-triangular matrix with its inverse.

    ``[[L11, 0], [L21, L22]]^{-1} = [[W11, 0], [-W22 L21 W11, W22]]``: halves inverted first leave
    products, which run at several times the speed of LAPACK's own inverse.
    """
    n = len(L)
    if n <= _INVERTED_WHOLE:
        L[:] = lapack.dtrtri(L, lower=1)[0]
        return
    half = n // 2
    W11, L21, W22 = L[:half, :half], L[half:, :half], L[half:, half:]
    _invert_lower(W11)
    _invert_lower(W22)
    np.negative(blas.multiply_lower(W22, L21) @ W11, out=L21)


def identity(K: torch.Tensor) -> torch.Tensor:
    """The identity beside a square matrix, in its precision."""
    import torch

    return torch.eye(K.shape[0], dtype=K.dtype, device=K.device)


@overload
def plus_identity(K: Reals, amount: float = 1.0) -> Floats: ...
@overload
def plus_identity(K: Array, amount: float = 1.0) -> Doubles: ...
def plus_identity(K: Array, amount: float = 1.0) -> Doubles:
    """``K + amount I``; in NumPy in float64 and Fortran order."""
    if is_tensor(K):
        return K + amount * identity(K)
    shifted = np.array(K, dtype=np.float64, order="F")
    shifted.reshape(-1, order="F")[:: len(shifted) + 1] += amount  # the diagonal
    return shifted
