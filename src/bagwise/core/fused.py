"""The two products of an iteration on a GPU, each with what follows it, in one kernel.

Moments need ``W A`` only for the norms of its columns, and the update needs ``A diag(omega)`` only
in a product with ``A``. Written as separate steps, both are stored and read again, which costs
more than the arithmetic. Here a tile of either stays in the registers of the GPU. Products are in
TF32, everything that is summed over instances or inducing points is added in float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Rows of inducing points and columns of instances in a tile, and the step of the inner sum.
_ROWS, _COLUMNS, _STEP = 128, 128, 32
# Stretches of instances whose sums are made side by side.
_STRETCHES = 176


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether Triton, which comes with torch for CUDA on Linux, is installed."""
    from importlib.util import find_spec

    return find_spec("triton") is not None


def moments(m: torch.Tensor, W: torch.Tensor, A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``A^T m`` and the squared norms of the columns of ``W A``, for lower-triangular ``W``."""
    from bagwise.core.triton_kernels import moments_kernel

    M, n = A.shape
    mean, square = A.new_empty(n), A.new_empty(n)
    grid = (-(-n // _COLUMNS),)
    with _on(A):
        moments_kernel[grid](
            A, m.contiguous(), W.contiguous(), mean, square, n, A.stride(0),
            M=M, ROWS=_ROWS, COLUMNS=_COLUMNS, STEP=_STEP, num_warps=8, num_stages=3,
        )  # fmt: skip
    return mean, square


def statistics(
    A: torch.Tensor, omega: torch.Tensor, rho: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``A diag(omega) A^T`` (lower triangle) and ``A rho``, in float64."""
    import torch

    from bagwise.core.triton_kernels import statistics_kernel

    M, n = A.shape
    n_rows = -(-M // _ROWS)
    tiles = [(i, j) for i in range(n_rows) for j in range(i + 1)]
    places = torch.tensor(tiles, dtype=torch.int32, device=A.device)
    length = -(-n // (_STRETCHES * _STEP)) * _STEP
    grams = A.new_empty((len(tiles), _STRETCHES, _ROWS, _ROWS))
    linears = A.new_empty((n_rows, _STRETCHES, _ROWS))
    with _on(A):
        statistics_kernel[(len(tiles), _STRETCHES)](
            A, omega.contiguous(), rho.contiguous(), places, grams, linears, n, A.stride(0), length,
            M=M, ROWS=_ROWS, STEP=_STEP, num_warps=8, num_stages=3,
        )  # fmt: skip
    sums = grams.sum(1, dtype=torch.float64)
    gram = sums.new_zeros((n_rows * _ROWS, n_rows * _ROWS))
    for (i, j), tile in zip(tiles, sums, strict=True):
        gram[i * _ROWS : (i + 1) * _ROWS, j * _ROWS : (j + 1) * _ROWS] = tile
    linear = linears.sum(1, dtype=torch.float64).flatten()
    return gram[:M, :M], linear[:M]


def _on(A: torch.Tensor) -> AbstractContextManager[object]:
    """Kernels are started on the current device: make it that of the data."""
    import torch

    return torch.cuda.device(A.device) if A.is_cuda else nullcontext()
