"""MI-CRF term by term, one pair at a time."""

import itertools

import numpy as np


def dissimilarities(x, y):
    """L1, L2 and chi-square of signed features."""
    l1 = sum(abs(a - b) for a, b in zip(x, y, strict=True))
    l2 = sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) ** 0.5
    chi2 = 0.0
    for a, b in zip(x, y, strict=True):
        if abs(a) + abs(b) > 0:
            chi2 += (a - b) ** 2 / (abs(a) + abs(b))
    return np.array([l1, l2, chi2])


def intersection(x, y):
    """Histogram intersection where signs agree, 0 where they do not."""
    return sum(min(abs(a), abs(b)) for a, b in zip(x, y, strict=True) if a * b > 0)


def energy(inst, non, X, gamma, L):
    """Energy (2) of a configuration; -1 is the non-instance."""
    total = sum(non[b] if i < 0 else inst[i] for b, i in enumerate(L))
    chosen = [i for i in L if i >= 0]
    for i, j in itertools.combinations(chosen, 2):
        total += gamma @ dissimilarities(X[i], X[j])
    return float(total)


def brute_force_configuration(inst, non, offsets, X, gamma):
    """The minimum over all configurations, and one that has it."""
    states = [[*range(a, b), -1] for a, b in itertools.pairwise(offsets)]
    return min((energy(inst, non, X, gamma, L), L) for L in itertools.product(*states))
