"""Kernels in Triton; `bagwise.core.fused` says what they compute and calls them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def moments_kernel(
    A, m, W, mean, square, n, stride,
    M: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Mean and squared norm of the instances of one tile of columns."""
    columns = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < n
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    norm = tl.zeros((COLUMNS,), dtype=tl.float32)
    for first in tl.static_range(0, M, ROWS):
        rows = first + tl.arange(0, ROWS)
        product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        # W is lower-triangular: what lies right of its diagonal tile is 0.
        for start in range(0, min(first + ROWS, M), STEP):
            steps = start + tl.arange(0, STEP)
            a = tl.load(
                A + steps[:, None] * stride + columns[None, :],
                mask=(steps[:, None] < M) & inside[None, :],
                other=0.0,
            )
            w = tl.load(
                W + rows[:, None] * M + steps[None, :],
                mask=(rows[:, None] < M) & (steps[None, :] < M),
                other=0.0,
            )
            product = tl.dot(w, a, product, input_precision="tf32")
        norm += tl.sum(product * product, axis=0)
    # The mean decides the probabilities: it is summed in full float32.
    for start in range(0, M, STEP):
        steps = start + tl.arange(0, STEP)
        a = tl.load(
            A + steps[:, None] * stride + columns[None, :],
            mask=(steps[:, None] < M) & inside[None, :],
            other=0.0,
        )
        weight = tl.load(m + steps, mask=steps < M, other=0.0)
        total += tl.sum(a * weight[:, None], axis=0)
    tl.store(mean + columns, total, mask=inside)
    tl.store(square + columns, norm, mask=inside)


@triton.jit
def statistics_kernel(
    A, omega, rho, places, grams, linears, n, stride, length,
    M: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One tile of ``A diag(omega) A^T``, and of ``A rho`` on the diagonal, over a stretch."""
    tile = tl.program_id(0)
    stretch = tl.program_id(1)
    upper = tl.load(places + 2 * tile)
    left = tl.load(places + 2 * tile + 1)
    rows = upper * ROWS + tl.arange(0, ROWS)
    others = left * ROWS + tl.arange(0, ROWS)
    begin = stretch.to(tl.int64) * length
    gram = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    linear = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, length, STEP):
        columns = begin + start + tl.arange(0, STEP)
        inside = columns < n
        weight = tl.load(omega + columns, mask=inside, other=0.0)
        a = tl.load(
            A + rows[:, None].to(tl.int64) * stride + columns[None, :],
            mask=(rows[:, None] < M) & inside[None, :],
            other=0.0,
        )
        b = tl.load(
            A + others[:, None].to(tl.int64) * stride + columns[None, :],
            mask=(others[:, None] < M) & inside[None, :],
            other=0.0,
        )
        gram = tl.dot(a * weight[None, :], tl.trans(b), gram, input_precision="tf32")
        if upper == left:
            pull = tl.load(rho + columns, mask=inside, other=0.0)
            linear += tl.sum(a * pull[None, :], axis=1)
    place = tile * tl.num_programs(1) + stretch
    lanes = tl.arange(0, ROWS)
    tl.store(grams + (place * ROWS + lanes[:, None]).to(tl.int64) * ROWS + lanes[None, :], gram)
    if upper == left:
        tl.store(linears + (upper * tl.num_programs(1) + stretch) * ROWS + lanes, linear)
