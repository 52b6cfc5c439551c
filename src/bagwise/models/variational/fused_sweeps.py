"""The update and the bound of the noisy maximum on a GPU, bag by bag in one Triton kernel each.

What `sweeps` compiles for the host; `likelihoods` says the same in calls that reduce over bags one
after the other, which is what these are tested against.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

_TINY = 1.1754943508222875e-38  # the least normal float32
_TILE = 512  # instances of a tile


@triton.jit
def _update(
    score, pi, tail, known, y, offsets, new_pi, new_tail, n_bags, log_odds,
    EXACT: tl.constexpr, DAMPED: tl.constexpr, TINY: tl.constexpr,
    BAGS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    bags = tl.program_id(0) * BAGS + tl.arange(0, BAGS)
    there = bags < n_bags
    start = tl.load(offsets + bags, mask=there, other=0)
    stop = tl.load(offsets + bags + 1, mask=there, other=0)
    longest = tl.max(stop - start, 0)
    lowest = tl.full([BAGS], float("inf"), dtype=tl.float32)
    second = tl.full([BAGS], float("inf"), dtype=tl.float32)
    log_none = tl.zeros([BAGS], dtype=tl.float32)
    for at in range(0, longest, WIDTH):
        rows = start[:, None] + at + tl.arange(0, WIDTH)[None, :]
        t = tl.load(tail + rows, mask=rows < stop[:, None], other=float("inf"))
        if EXACT:
            log_none += tl.sum(tl.where(rows < stop[:, None], tl.log(tl.maximum(t, TINY)), 0.0), 1)
        else:  # the two lowest so far and the two lowest here
            first = tl.min(t, 1)
            ties = tl.sum((t == first[:, None]).to(tl.int32), 1)
            rest = tl.min(tl.where(t == first[:, None], float("inf"), t), 1)
            runner_up = tl.minimum(second, tl.where(ties > 1, first, rest))
            second = tl.minimum(tl.maximum(lowest, first), runner_up)
            lowest = tl.minimum(lowest, first)
    pull = tl.where(tl.load(y + bags, mask=there, other=0) == 1, log_odds, -log_odds)
    alone = (stop - start) == 1
    for at in range(0, longest, WIDTH):
        rows = start[:, None] + at + tl.arange(0, WIDTH)[None, :]
        inside = rows < stop[:, None]
        t = tl.load(tail + rows, mask=inside, other=1.0)
        if EXACT:
            none = tl.exp(log_none[:, None] - tl.log(tl.maximum(t, TINY)))
        else:
            none = tl.where(t == lowest[:, None], second[:, None], lowest[:, None])
            none = tl.where(alone[:, None], 1.0, none)
        z = tl.load(score + rows, mask=inside, other=0.0) + pull[:, None] * none
        new = 1.0 / (1.0 + tl.exp(-z))
        other = 1.0 / (1.0 + tl.exp(z))
        label = tl.load(known + rows, mask=inside, other=-1).to(tl.float32)
        new = tl.where(label < 0, new, label)
        other = tl.where(label < 0, other, 1.0 - label)
        if DAMPED:
            new = (tl.load(pi + rows, mask=inside, other=0.0) + new) / 2
            other = (t + other) / 2
        tl.store(new_pi + rows, new, mask=inside)
        tl.store(new_tail + rows, other, mask=inside)


def noisy_max(
    score: torch.Tensor,
    log_odds: float,
    y: torch.Tensor,
    offsets: torch.Tensor,
    known: torch.Tensor,
    pi: torch.Tensor,
    tail: torch.Tensor,
    exact: bool,
    damped: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """All instances at once, from the beliefs ``pi`` and ``tail``; see `NoisyMax.update`."""
    new_pi, new_tail = torch.empty_like(score), torch.empty_like(score)
    bags, width = _tile(len(y), len(score))
    _update[(triton.cdiv(len(y), bags),)](
        score, pi, tail, known, y, offsets, new_pi, new_tail, len(y), log_odds,
        EXACT=exact, DAMPED=damped, TINY=_TINY, BAGS=bags, WIDTH=width,
    )  # fmt: skip
    return new_pi, new_tail


@triton.jit
def _bound(
    mean, log_psi, pi, tail, y, offsets, terms, n_bags, log_odds,
    TINY: tl.constexpr, BAGS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    bags = tl.program_id(0) * BAGS + tl.arange(0, BAGS)
    there = bags < n_bags
    start = tl.load(offsets + bags, mask=there, other=0)
    stop = tl.load(offsets + bags + 1, mask=there, other=0)
    of_instances = tl.zeros([BAGS], dtype=tl.float32)
    log_none = tl.zeros([BAGS], dtype=tl.float32)
    for at in range(0, tl.max(stop - start, 0), WIDTH):
        rows = start[:, None] + at + tl.arange(0, WIDTH)[None, :]
        inside = rows < stop[:, None]
        p = tl.load(pi + rows, mask=inside, other=0.0)
        t = tl.load(tail + rows, mask=inside, other=1.0)
        log_tail = tl.log(tl.maximum(t, TINY))
        term = (p - 0.5) * tl.load(mean + rows, mask=inside, other=0.0)
        term += tl.load(log_psi + rows, mask=inside, other=0.0)
        term -= p * tl.log(tl.maximum(p, TINY)) + t * log_tail
        of_instances += tl.sum(tl.where(inside, term, 0.0), 1)
        log_none += tl.sum(tl.where(inside, log_tail, 0.0), 1)
    none = tl.exp(log_none)
    agree = tl.where(tl.load(y + bags, mask=there, other=0) == 1, 1.0 - none, none)
    tl.store(terms + bags, log_odds * agree + of_instances, mask=there)


def noisy_max_bound(
    mean: torch.Tensor,
    log_psi: torch.Tensor,
    log_odds: float,
    y: torch.Tensor,
    offsets: torch.Tensor,
    weight: torch.Tensor,
    pi: torch.Tensor,
    tail: torch.Tensor,
) -> torch.Tensor:
    """The bound of `NoisyMax`, bags counted by their weight."""
    terms = mean.new_empty(len(y))
    bags, width = _tile(len(y), len(mean))
    _bound[(triton.cdiv(len(y), bags),)](
        mean, log_psi, pi, tail, y, offsets, terms, len(y), log_odds,
        TINY=_TINY, BAGS=bags, WIDTH=width,
    )  # fmt: skip
    # Over all bags the sum is made in float64.
    return ((terms.double() - math.log1p(math.exp(log_odds))) * weight).sum()


def _tile(n_bags: int, n: int) -> tuple[int, int]:
    """Bags and instances of each that a program sees at once: bags of the mean size fill it."""
    width = min(max(triton.next_power_of_2(-(-n // max(n_bags, 1))), 4), _TILE)
    return _TILE // width, width
