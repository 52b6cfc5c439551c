"""The few elementwise functions that NumPy and torch spell differently.

Everything else is written against `namespace`. A torch tensor stays on its device and keeps its
precision; the NumPy path is plain NumPy in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import expit as _expit

if TYPE_CHECKING:
    import torch
    from scipy.sparse import csr_matrix
    from typing_extensions import TypeIs

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
# Floating point in double or single precision.
Reals: TypeAlias = NDArray[np.floating]
# Class codes and the like: integers of any width.
Codes: TypeAlias = NDArray[np.integer]
# Labels, names and other values of any kind, one per bag or instance.
Column: TypeAlias = NDArray[Any]
# A NumPy array or a torch tensor: what is written against `namespace` works on both.
Array: TypeAlias = "Reals | torch.Tensor"
# The same, where NumPy works in double precision.
Doubles: TypeAlias = "Floats | torch.Tensor"
# Class codes, or flags, where the values they belong to live.
Wholes: TypeAlias = "Codes | torch.Tensor"
Flags: TypeAlias = "Bools | torch.Tensor"
ArrayT = TypeVar("ArrayT", bound="Reals | torch.Tensor")
RandomState: TypeAlias = int | np.random.RandomState | None


class _RowsOnDisk(Protocol):
    """Rows that are read when they are sliced."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and the shape of one."""

    @property
    def ndim(self) -> int:
        """Number of axes."""

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """What a number of them is."""

    @property
    def nbytes(self) -> int:
        """Bytes they would take in memory."""

    def __len__(self) -> int:
        """Number of rows."""

    def __getitem__(self, key: RowKey, /) -> Reals:
        """Read some."""


# Instances as rows: an array, a tensor, a CSR matrix, or rows on disk with ``shape`` and slicing.
Rows: TypeAlias = "Reals | torch.Tensor | csr_matrix | _RowsOnDisk"

# Which rows: a run, their numbers, or a mask; and what is done to rows when they are read.
RowKey: TypeAlias = slice | Codes | Bools | Sequence[int]
RowFunction: TypeAlias = Callable[[Reals], Reals]


def is_tensor(x: object) -> TypeIs[torch.Tensor]:
    """Whether x is a torch tensor; never imports torch."""
    if type(x) is np.ndarray:  # the usual answer, asked for dozens of times in an iteration
        return False
    return bool(is_torch_array(x))


def is_sparse(x: object) -> TypeIs[csr_matrix]:
    """Whether x is a sparse matrix; rows are stored as CSR throughout."""
    return bool(issparse(x))


def namespace(x: Array) -> ModuleType:
    """``torch`` for tensors, else ``numpy``."""
    if is_tensor(x):
        import torch

        return torch
    return np


def as_float(x: Array | Wholes | Flags) -> Doubles:
    """Floating point: float64 in NumPy; in torch what is floating already, else float32."""
    if is_tensor(x):
        return x if x.is_floating_point() else x.float()
    return np.asarray(x, dtype=np.float64)


def expit(x: Array) -> Array:
    """Logistic sigmoid."""
    return x.sigmoid() if is_tensor(x) else _expit(x)


def both_tails(x: Array) -> tuple[Array, Array]:
    """Logistic sigmoid of x and of -x, neither of which rounds to 0 or overflows on the way.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.core.arrays import both_tails
    >>> [tail.round(4).tolist() for tail in both_tails(np.array([-800.0, 2.0]))]
    [[0.0, 0.8808], [1.0, 0.1192]]
    """
    if is_tensor(x):
        return x.sigmoid(), (-x).sigmoid()
    # One exponential makes both.
    small = np.exp(-np.abs(x))
    large = 1 / (1 + small)
    small *= large
    positive = x > 0
    return np.where(positive, large, small), np.where(positive, small, large)


def softplus(x: Array) -> Array:
    """``log(1 + exp(x))`` without overflow."""
    if is_tensor(x):
        import torch

        return torch.logaddexp(x, torch.zeros_like(x))
    return np.logaddexp(0.0, x)


def at_least(x: Array, low: float) -> Array:
    """Elementwise maximum with a number."""
    return x.clamp(min=low) if is_tensor(x) else np.maximum(x, low)


def at_most(x: Array, high: float) -> Array:
    """Elementwise minimum with a number."""
    return x.clamp(max=high) if is_tensor(x) else np.minimum(x, high)


def exp_over(x: Array) -> Array:
    """``exp(x)`` written over x."""
    return x.exp_() if is_tensor(x) else np.exp(x, out=x)


def dot(a: Array, b: Array) -> float:
    """``sum(a * b)`` of two matrices; in NumPy the sum is made in float64."""
    if is_tensor(a):
        return float((a * b).sum())
    return float(np.einsum("nm,nm->n", a, b).sum(dtype=np.float64))


def to_numpy(x: Array) -> Floats:
    """A NumPy array in float64 on the host."""
    if is_tensor(x):
        import torch

        x = x.detach()
        if x.is_cuda:
            # Copied into NumPy's memory, which comes in larger pages than torch's does.
            host = torch.from_numpy(np.empty(tuple(x.shape), dtype=str(x.dtype).split(".")[-1]))
            x = host.copy_(x)
        x = x.numpy()
    return np.asarray(x, dtype=np.float64)


def as_array(X: Any) -> Any:
    """Rows, or labels, of any dense kind as one NumPy array of their own type."""
    if is_tensor(X):
        return X.detach().cpu().numpy()
    if type(X) is np.ndarray:
        return X
    return np.array(X[0 : X.shape[0]])


def concatenate(parts: Iterable[ArrayT]) -> ArrayT:
    """Join along the first axis; one part alone is not copied."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    if is_tensor(parts[0]):
        import torch

        return torch.cat(parts)
    return cast("ArrayT", np.concatenate(parts))


def host_rows(X: Rows, rows: Ints) -> Floats:
    """Chosen rows as a NumPy array in float64, from wherever they live."""
    if is_tensor(X):
        import torch

        return to_numpy(X[torch.as_tensor(rows, device=X.device)])
    return to_numpy(X[rows])


def beside(x: Array, other: Array) -> Array:
    """``x`` where ``other``, of floating point, lives; floats take its precision there."""
    if not is_torch_array(other):
        return x
    import torch

    there = torch.as_tensor(x, device=other.device)
    return there.to(other.dtype) if there.is_floating_point() else there


def tensor_of(X: Rows) -> torch.Tensor:
    """Rows as a tensor; torch warns of arrays that refuse to be written, so these are copied."""
    import torch

    if isinstance(X, np.ndarray) and not X.flags.writeable:
        X = X.copy()
    return torch.as_tensor(X)


def like(x: Any, A: Array) -> Any:
    """Numbers or flags in the precision of ``A`` and where it is."""
    if is_tensor(A):
        import torch

        return torch.as_tensor(x, dtype=A.dtype, device=A.device)
    return np.asarray(x).astype(A.dtype, copy=False)
