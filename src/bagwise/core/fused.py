"""Passes over the instances on a GPU, each as one Triton kernel that leaves nothing in between.

The plain path of `linalg`, `gaussians` and `kernels` says the same in several calls, which read and
write the instances once each; it is what these are tested against, and what runs without Triton.

Tensor cores multiply half numbers. The variances bear that (`moments`). The precision of q(v) does
not: where instances resemble each other its small eigenvalues are what is left of large sums, so
`statistics` multiplies each number as a pair, a half and the half of what that leaves, and adds
pieces of the sum in float32, since the cores cut off what they add instead of rounding it. It works
on what is left of an instance without a typical one: what instances share is most of what would be
cut off, and is put back in full.
"""

from __future__ import annotations

import warnings
from subprocess import SubprocessError

import torch
import triton
import triton.language as tl

from bagwise.core import linalg

# A tile of `moments`: rows of W, of A, and columns; of `statistics`: rows of A, and columns.
_MOMENTS_TILE = (128, 32, 128)
_STATISTICS_TILE = (128, 64)
# Pieces of the columns in `statistics`: one for every multiprocessor of a large GPU.
_PIECES = 132
_TINY = 2.2250738585072014e-308
_LANES = 256


def works() -> bool:
    """Whether kernels can be compiled and run here; says once where they cannot."""
    try:
        one = torch.ones(1, dtype=torch.float64, device="cuda")
        sigmoid_sums(one, one, one, one)
    except (RuntimeError, OSError, ImportError, SubprocessError) as error:
        warnings.warn(
            f"Triton cannot compile here ({type(error).__name__}: {error}); the plain passes are "
            "used on the GPU, which take longer. It needs a C compiler.",
            stacklevel=2,
        )
        return False
    return True


@triton.jit
def _moments(
    A, W, m, mean, square, top, M, padded, n, stride,
    ROWS: tl.constexpr, DEEP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < n
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    first = tl.zeros([DEEP, COLUMNS], dtype=tl.float32)
    # W is lower triangular: rows of W need no later rows of A. The last ones see all of A.
    for i in range(0, padded - ROWS, ROWS):
        product = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for k in range(0, i + ROWS, DEEP):
            deep = k + tl.arange(0, DEEP)
            at = tl.minimum(deep, M - 1)[:, None].to(tl.int64) * stride + columns[None, :]
            a = tl.load(A + at, mask=inside[None, :], other=0.0)
            w = tl.load(W + (i + tl.arange(0, ROWS))[:, None] * padded + deep[None, :])
            product = tl.dot(w, a.to(tl.float16), product)
        total += tl.sum(product * product, 0)
    product = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for k in range(0, padded, DEEP):
        deep = k + tl.arange(0, DEEP)
        at = tl.minimum(deep, M - 1)[:, None].to(tl.int64) * stride + columns[None, :]
        a = tl.load(A + at, mask=inside[None, :], other=0.0)
        w = tl.load(W + (padded - ROWS + tl.arange(0, ROWS))[:, None] * padded + deep[None, :])
        product = tl.dot(w, a.to(tl.float16), product)
        first += tl.load(m + deep)[:, None] * a
    total += tl.sum(product * product, 0)
    tl.store(mean + columns, tl.sum(first, 0), mask=inside)
    scale = tl.load(top)
    tl.store(square + columns, total * scale * scale, mask=inside)


def moments(
    m: torch.Tensor, W: torch.Tensor, A: torch.Tensor, tile: tuple[int, int, int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``A^T m`` in float32 and the squared norms of the columns of ``W A`` from half products."""
    rows, deep, columns = tile or _MOMENTS_TILE
    M, n = A.shape
    padded = triton.cdiv(M, rows) * rows
    # Halves end at 6e-8, far above what W may hold after many instances: they hold it over its top.
    top = W.abs().max()  # left on the device: nobody waits for it
    half = W.new_zeros((padded, padded), dtype=torch.float16)
    half[:M, :M] = W / top
    long = m.new_zeros(padded)
    long[:M] = m
    mean, square = A.new_empty(n), A.new_empty(n)
    _moments[(triton.cdiv(n, columns),)](
        A, half, long, mean, square, top, M, padded, n, A.stride(0),
        ROWS=rows, DEEP=deep, COLUMNS=columns, num_warps=4, num_stages=3,
    )  # fmt: skip
    return mean, square


@triton.jit
def _statistics(
    A, omega, rho, keep, add, gram, linear, M, padded, n, stride, span, pairs,
    ROWS: tl.constexpr, DEEP: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    piece = (tl.program_id(0) // pairs).to(tl.int64)
    pair = tl.program_id(0) % pairs
    if DIAGONAL:
        i = pair
        j = pair
    else:  # the pairs below the diagonal, row by row
        i = ((tl.sqrt(8.0 * pair.to(tl.float32) + 1.0) - 1.0) / 2.0 + 1e-4).to(tl.int32) + 1
        j = pair - i * (i - 1) // 2
    below = i * ROWS + tl.arange(0, ROWS)
    beside = j * ROWS + tl.arange(0, ROWS)
    A_below = A + tl.minimum(below, M - 1)[:, None].to(tl.int64) * stride
    A_beside = A + tl.minimum(beside, M - 1)[:, None].to(tl.int64) * stride
    keep_below, add_below = tl.load(keep + below)[:, None], tl.load(add + below)[:, None]
    keep_beside, add_beside = tl.load(keep + beside)[:, None], tl.load(add + beside)[:, None]
    total = tl.zeros([ROWS, ROWS], dtype=tl.float32)
    line = tl.zeros([ROWS, DEEP], dtype=tl.float32)
    stop = tl.minimum((piece + 1) * span, n)
    for start in range(piece * span, stop, DEEP):
        columns = start + tl.arange(0, DEEP)
        inside = columns < stop
        root = tl.sqrt(tl.load(omega + columns, mask=inside, other=0.0))[None, :]
        a = tl.load(A_below + columns[None, :], mask=inside[None, :], other=0.0)
        a = a * keep_below + add_below
        if DIAGONAL:
            line += a * tl.load(rho + columns, mask=inside, other=0.0)[None, :]
        a = a * root
        a_half = a.to(tl.float16)
        a_rest = (a - a_half.to(tl.float32)).to(tl.float16)
        # Small parts first: what is cut off in adding them is small, too.
        if DIAGONAL:  # half of a symmetric block: its transpose is added in the end
            part = tl.dot(a_half, tl.trans(a_rest))
            part = tl.dot(a_half, tl.trans(a_half * 0.5), part)
        else:
            b = tl.load(A_beside + columns[None, :], mask=inside[None, :], other=0.0)
            b = (b * keep_beside + add_beside) * root
            b_half = b.to(tl.float16)
            b_rest = (b - b_half.to(tl.float32)).to(tl.float16)
            part = tl.dot(a_rest, tl.trans(b_half))
            part = tl.dot(a_half, tl.trans(b_rest), part)
            part = tl.dot(a_half, tl.trans(b_half), part)
        total += part
    tl.store(gram + piece * padded * padded + below[:, None] * padded + beside[None, :], total)
    if DIAGONAL:
        tl.store(linear + piece * padded + below, tl.sum(line, 1))


def statistics(
    A: torch.Tensor,
    omega: torch.Tensor,
    rho: torch.Tensor,
    tile: tuple[int, int] | None = None,
    pieces: int = _PIECES,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``A diag(omega) A^T`` (lower triangle) and ``A rho``, summed up in float64."""
    rows, deep = tile or _STATISTICS_TILE
    M, n = A.shape
    blocks = triton.cdiv(M + 1, rows)
    padded = blocks * rows
    # Row M is what an instance has of the typical one, which is 1: its products are sums of omega.
    center = linalg.typical(A)
    add = A.new_zeros(padded)
    torch.neg(center, out=add[:M])
    add[M : M + 1].fill_(1.0)  # assigned, a number would be copied from the host
    keep = torch.ones_like(add)
    keep[M : M + 1].fill_(0.0)
    span = triton.cdiv(triton.cdiv(n, pieces), deep) * deep
    pieces = triton.cdiv(n, span)
    gram, linear = A.new_zeros((pieces, padded, padded)), A.new_empty((pieces, padded))
    # Shorter parts are cut off less. Beside the diagonal they take hardly more time.
    for diagonal, pairs, part, stages in (
        (True, blocks, deep, 3),
        (False, blocks * (blocks - 1) // 2, deep // 2, 5),
    ):
        if pairs:
            _statistics[(pairs * pieces,)](
                A, omega, rho, keep, add, gram, linear, M, padded, n, A.stride(0), span, pairs,
                ROWS=rows, DEEP=part, DIAGONAL=diagonal, num_warps=8, num_stages=stages,
            )  # fmt: skip
    sums = gram.sum(0, dtype=torch.float64)
    sums = sums + sums.T  # blocks above the diagonal are zero, and those on it are halves
    # Columns: the products with the row of ones, and with rho.
    lines = torch.stack((sums[: M + 1, M], linear.sum(0, dtype=torch.float64)[: M + 1]), 1)
    return linalg.uncentred(sums[:M, :M], lines[:M], lines[M], center.double())


@triton.jit
def _gaussian(
    S, x2, z2, variance, factor, n, M, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = S + rows[:, None].to(tl.int64) * stride + columns[None, :]
    inside = (rows < n)[:, None] & (columns < M)[None, :]
    s = tl.load(at, mask=inside, other=0.0)
    s += tl.load(x2 + rows, mask=rows < n, other=0.0)[:, None]
    s += tl.load(z2 + columns, mask=columns < M, other=0.0)[None, :]
    k = tl.exp(tl.maximum(s, 0.0) * tl.load(factor)) * tl.load(variance)
    tl.store(at, k, mask=inside)


def gaussian(
    S: torch.Tensor, x2: torch.Tensor, z2: torch.Tensor, variance: float, length_scale: float = 1.0
) -> None:
    """``v exp(-d^2 / 2 l^2)`` written over ``S = -2 X Z^T`` [n, M], given the squared norms."""
    n, M = S.shape
    columns = min(triton.next_power_of_2(M), 256)
    rows = 1024 // columns
    # Triton passes numbers in float32; made on the device they keep their digits.
    numbers = (S.new_full((1,), number) for number in (variance, -0.5 / length_scale**2))
    _gaussian[(triton.cdiv(n, rows), triton.cdiv(M, columns))](
        S, x2, z2, *numbers, n, M, S.stride(0), ROWS=rows, COLUMNS=columns, num_warps=4
    )


@triton.jit
def _standardised(
    X, center, width, out, n, D, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (columns < D)[None, :]
    start = rows[:, None].to(tl.int64)
    x = tl.load(X + start * stride + columns[None, :], mask=inside, other=0.0).to(tl.float64)
    x -= tl.load(center + columns, mask=columns < D, other=0.0)[None, :]
    x /= tl.load(width + columns, mask=columns < D, other=1.0)[None, :]
    tl.store(out + start * D + columns[None, :], x, mask=inside)


def standardised(X: torch.Tensor, center: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
    """``(X - center) / width`` in float64, from rows of any precision."""
    n, D = X.shape
    X = X if X.stride(1) == 1 else X.contiguous()
    out = torch.empty((n, D), dtype=torch.float64, device=X.device)
    columns = min(triton.next_power_of_2(D), 256)
    rows = 1024 // columns
    _standardised[(triton.cdiv(n, rows), triton.cdiv(D, columns))](
        X, center, width, out, n, D, X.stride(0), ROWS=rows, COLUMNS=columns
    )
    return out


@triton.jit
def _sigmoid_sums(
    mean, var, nodes, weights, sums, n, n_nodes, TINY: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = at < n
    centre = tl.load(mean + at, mask=inside, other=0.0)
    std = tl.sqrt(tl.load(var + at, mask=inside, other=0.0))
    positive = tl.zeros([LANES], dtype=tl.float64)
    negative = tl.zeros([LANES], dtype=tl.float64)
    squared = tl.zeros([LANES], dtype=tl.float64)
    for k in range(n_nodes):
        f = centre + std * tl.load(nodes + k)
        weight = tl.load(weights + k)
        e = tl.exp(-tl.abs(f))
        small = e / (1.0 + e)
        large = 1.0 / (1.0 + e)
        below = tl.where(f > 0, small, large)
        positive += weight * tl.where(f > 0, large, small)
        negative += weight * below
        squared += weight * below * below
    tl.store(sums + at, tl.log(tl.maximum(positive, TINY)), mask=inside)
    tl.store(sums + n + at, tl.log(tl.maximum(negative, TINY)), mask=inside)
    tl.store(sums + 2 * n + at, tl.log(tl.maximum(squared, TINY)), mask=inside)


def sigmoid_sums(
    mean: torch.Tensor, var: torch.Tensor, nodes: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Logarithms of the weighted sums of sigmoid(f), sigmoid(-f) and sigmoid(-f)^2, [3, n]."""
    n = len(mean)
    sums = mean.new_empty((3, n))
    if n:
        _sigmoid_sums[(triton.cdiv(n, _LANES),)](
            mean.contiguous(), var.contiguous(), nodes, weights, sums, n, len(nodes),
            TINY=_TINY, LANES=_LANES,
        )  # fmt: skip
    return sums
