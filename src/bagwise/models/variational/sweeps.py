"""Loops over the instances of long blocks, compiled at first use, without the interpreter's lock.

`sweep` is the only way to update one instance after the other. The rest says in one loop what
`likelihoods` and `densities` say in many NumPy calls; between these, threads would wait for the
lock longer than they work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bagwise.core.passes import add_around_typical, write_moments

if TYPE_CHECKING:
    from bagwise.core.arrays import Codes, Floats, Ints, Reals

_TINY = float(np.finfo(np.float64).tiny)


@njit(cache=True, nogil=True)
def sweep(
    score: Floats, pull: Floats, offsets: Ints, known: Codes, tail: Floats, exact: bool
) -> tuple[Floats, Floats]:
    r"""Coordinate ascent on q(y) through every bag, in the order of its instances.

    Before instance i is updated, those before it are new and those after it old: a running
    value over the former and a suffix over the latter give ``1 - E_{b\n}`` without cancellation.
    """
    n = score.shape[0]
    pi_new, tail_new = np.empty(n), np.empty(n)
    for b in range(offsets.shape[0] - 1):
        start, stop = offsets[b], offsets[b + 1]
        after = np.ones(stop - start)
        for i in range(stop - 2, start - 1, -1):
            last = after[i + 1 - start]
            after[i - start] = last * tail[i + 1] if exact else min(last, tail[i + 1])
        before = 1.0
        for i in range(start, stop):
            if known[i] < 0:
                rest = after[i - start]
                none = before * rest if exact else min(before, rest)
                z = score[i] + pull[i] * none
                pi_new[i] = 1.0 / (1.0 + np.exp(-z))
                tail_new[i] = 1.0 / (1.0 + np.exp(z))
            else:
                pi_new[i], tail_new[i] = float(known[i]), 1.0 - known[i]
            before = before * tail_new[i] if exact else min(before, tail_new[i])
    return pi_new, tail_new


@njit(cache=True, nogil=True)
def noisy_max(
    score: Floats,
    log_odds: float,
    y: Codes,
    offsets: Ints,
    known: Codes,
    pi: Floats,
    tail: Floats,
    exact: bool,
    damped: bool,
) -> tuple[Floats, Floats]:
    """All instances at once, from the beliefs ``pi`` and ``tail``; see `NoisyMax.update`."""
    n = score.shape[0]
    pi_new, tail_new = np.empty(n), np.empty(n)
    for b in range(offsets.shape[0] - 1):
        start, stop = offsets[b], offsets[b + 1]
        pull = log_odds if y[b] == 1 else -log_odds
        log_none, lowest, second = 0.0, np.inf, np.inf
        for i in range(start, stop):
            if exact:
                log_none += np.log(max(tail[i], _TINY))
            elif tail[i] < lowest:
                lowest, second = tail[i], lowest
            elif tail[i] < second:
                second = tail[i]
        for i in range(start, stop):
            if exact:
                none = np.exp(log_none - np.log(max(tail[i], _TINY)))
            elif stop == start + 1:
                none = 1.0
            else:
                none = second if tail[i] == lowest else lowest
            z = score[i] + pull * none
            new, new_tail = 1.0 / (1.0 + np.exp(-z)), 1.0 / (1.0 + np.exp(z))
            if known[i] >= 0:
                new, new_tail = float(known[i]), 1.0 - known[i]
            pi_new[i] = (pi[i] + new) / 2 if damped else new
            tail_new[i] = (tail[i] + new_tail) / 2 if damped else new_tail
    return pi_new, tail_new


@njit(cache=True, nogil=True)
def noisy_max_bound(
    mean: Floats,
    log_psi: Floats,
    log_odds: float,
    y: Codes,
    offsets: Ints,
    weight: Floats,
    pi: Floats,
    tail: Floats,
) -> float:
    """The bound of `NoisyMax`, bags counted by their weight."""
    total = 0.0
    for b in range(offsets.shape[0] - 1):
        of_instances, log_none = 0.0, 0.0
        for i in range(offsets[b], offsets[b + 1]):
            log_pi, log_tail = np.log(max(pi[i], _TINY)), np.log(max(tail[i], _TINY))
            of_instances += (pi[i] - 0.5) * mean[i] + log_psi[i]
            of_instances -= pi[i] * log_pi + tail[i] * log_tail
            log_none += log_tail
        none = np.exp(log_none)
        agree = 1.0 - none if y[b] == 1 else none
        agreement = log_odds * agree - np.log1p(np.exp(log_odds))
        total += weight[b] * (agreement + of_instances)
    return total


@njit(cache=True, nogil=True)
def sech_theta(c: Floats) -> Floats:
    """See `Sech.theta`."""
    theta = np.empty(c.shape[0])
    for i in range(c.shape[0]):
        small = c[i] < 1e-4
        theta[i] = 0.25 - c[i] * c[i] / 48 if small else np.tanh(c[i] / 2) / (2 * c[i])
    return theta


@njit(cache=True, nogil=True)
def sech_log_psi(c: Floats) -> Floats:
    """See `Sech.log_psi`."""
    log_psi = np.empty(c.shape[0])
    for i in range(c.shape[0]):
        log_psi[i] = -c[i] / 2 - np.log1p(np.exp(-c[i]))
    return log_psi


@njit(cache=True, nogil=True)
def noisy_max_pass(
    blas: tuple[int, int],
    constants: tuple[NDArray[np.uint8], NDArray[np.int32], Reals],
    work: Reals,
    A: Reals,
    r: Floats,
    m: Reals,
    W: Reals,
    log_odds: float,
    y: Codes,
    offsets: Ints,
    known: Codes,
    weight: Floats,
    pi: Floats,
    tail: Floats,
    exact: bool,
    damped: bool,
    bounded: bool,
    precision: Floats,
    linear: Floats,
) -> tuple[Floats, Floats, Floats, Floats, float]:
    """One pass over a chunk of whole bags under `Sech`: pi, tail, omega, rho and the bound.

    ``precision`` and ``linear`` get its statistics. What it stands for are a dozen calls, between
    which sixteen threads would hand the lock on for longer than they work.
    """
    (trmm, syrk), (letters, sizes, one) = blas, constants
    n = A.shape[1]
    mean, var, c = np.empty(n), np.empty(n), np.empty(n)
    write_moments(trmm, letters, sizes, one, m, W, A, work, mean, var)
    for i in range(n):
        c[i] = np.sqrt(mean[i] * mean[i] + var[i] + r[i])
    pi, tail = noisy_max(mean, log_odds, y, offsets, known, pi, tail, exact, damped)
    bound = 0.0
    if bounded:
        log_psi = sech_log_psi(c)
        bound = noisy_max_bound(mean, log_psi, log_odds, y, offsets, weight, pi, tail)
    omega, rho = sech_theta(c), np.empty(n)
    for b in range(offsets.shape[0] - 1):
        for i in range(offsets[b], offsets[b + 1]):
            omega[i] *= weight[b]
            rho[i] = weight[b] * (pi[i] - 0.5)
    add_around_typical(syrk, letters, sizes, one, precision, linear, A, work, omega, rho)
    return pi, tail, omega, rho, bound
