"""Squared Euclidean distances by matrix products, in blocks that stay in cache.

NumPy and torch arrays; what is made from the distances is made in place, block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
from array_api_compat import array_namespace, device

from bagwise.core.arrays import Array, ArrayT, RandomState, is_tensor, to_numpy

# Entries of a kernel block worked on at a time: 1 MB of float64. Smaller ones would make threads
# meet at the interpreter's lock, larger ones leave the cache between product and profile.
_BLOCK = 131_072
_MIN_ROWS = 64


def sq_distances(X: ArrayT, Z: Array, out: Array | None = None) -> ArrayT:
    """Squared Euclidean distances by one matrix product, clipped at 0, [N, M].

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.squared import sq_distances
    >>> sq_distances(np.array([[0.0], [3.0]]), np.array([[1.0]])).tolist()
    [[1.0], [4.0]]
    """
    return cast(ArrayT, in_blocks(*same_features(X, Z), lambda s: None, out))


def median_sq_distance(
    X: Array, *, n_sample: int = 1000, random_state: RandomState = None
) -> float:
    """Median squared distance between distinct rows, on at most ``n_sample`` rows.

    Pairs of equal rows are left out, so repeated rows cannot make it 0; where all rows are
    equal it is 1.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.squared import median_sq_distance
    >>> median_sq_distance(np.array([[0.0], [1.0], [1.0], [3.0]]))
    4.0
    """
    if len(X) > n_sample:
        from sklearn.utils import check_random_state

        rows = check_random_state(random_state).choice(len(X), n_sample, replace=False)
        X = X[np.sort(rows)]
    X = to_numpy(X)
    X = X - X.mean(axis=0)  # far from the origin, squared distances would cancel
    sq = sq_distances(X, X)[np.triu_indices(len(X), k=1)]
    # What is left of equal rows after rounding is not a distance.
    sq = sq[sq > 1e-12 * max(float(sq_norms(X).max()), np.finfo(np.float64).tiny)]
    return float(np.median(sq)) if len(sq) else 1.0


def in_blocks(X: Array, Z: Array, finish: Callable[[Array], Array], out: Array | None) -> Array:
    """Squared distances, finished in place block by block while they are in cache."""
    xp = array_namespace(X)
    x2, z2 = sq_norms(X), sq_norms(Z)
    # The shorter side takes the factor: a power of two changes no digit.
    X, Zt = (X, (-2.0 * Z).T) if len(X) > len(Z) else (-2.0 * X, Z.T)
    if is_tensor(X):
        s = xp.matmul(X, Zt, out=out)
        s += x2[:, None]
        s += z2
        s = s.clamp_(min=0.0)
        finish(s)
        return s
    K = np.empty((X.shape[0], Z.shape[0]), dtype=X.dtype) if out is None else out
    for rows in row_blocks(X.shape[0], Z.shape[0], X):
        s = K[rows]
        np.matmul(X[rows], Zt, out=s)
        s += x2[rows, None]
        s += z2
        np.maximum(s, 0.0, out=s)
        finish(s)
    return K


def row_blocks(n: int, m: int, X: Array) -> list[slice]:
    """Slices of rows whose kernel blocks stay in cache; one slice for torch."""
    step = n if is_tensor(X) else max(_MIN_ROWS, _BLOCK // max(m, 1))
    return [slice(start, min(start + step, n)) for start in range(0, n, max(step, 1))]


def same_features(X: Array, Z: Array) -> tuple[Array, Array]:
    """Both inputs, checked to have the same features, in the dtype of X."""
    if X.ndim != 2 or Z.ndim != 2 or X.shape[1] != Z.shape[1]:
        raise ValueError(
            "a kernel needs two 2-d arrays with the same features; got shapes "
            f"{tuple(X.shape)} and {tuple(Z.shape)}."
        )
    if X.dtype != Z.dtype:
        Z = Z.to(X.dtype) if is_tensor(Z) else Z.astype(X.dtype)
    return X, Z


def scaled(X: Array, Z: Array, scale: float | tuple[float, ...]) -> tuple[Array, Array]:
    """Both inputs divided by the length scale(s)."""
    X, Z = same_features(X, Z)
    if not isinstance(scale, tuple):
        return (X, Z) if scale == 1.0 else (X * (1.0 / scale), Z * (1.0 / scale))
    if len(scale) != X.shape[1]:
        raise ValueError(
            f"length_scale has {len(scale)} entries but the data has {X.shape[1]} features; "
            "give one number, or one per feature."
        )
    xp = array_namespace(X)
    factor = xp.asarray([1.0 / s for s in scale], dtype=X.dtype, device=device(X))
    return X * factor, Z * factor


def weighted_sq_differences(X: Array, Z: Array, W: Array) -> Array:
    """sum_nm W_nm (x_nd - z_md)^2 for every feature d, without an [N, M, D] array."""
    cross = (Z * (W.T @ X)).sum(0)
    return to_numpy(W.sum(1) @ (X * X) + W.sum(0) @ (Z * Z) - 2.0 * cross)


def sq_norms(X: Array) -> Array:
    """Squared norm of every row, [N]."""
    if is_tensor(X):
        return array_namespace(X).linalg.vector_norm(X, axis=1) ** 2  # X * X would be a second X
    return np.einsum("nd,nd->n", X, X)
