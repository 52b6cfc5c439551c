"""Compiled loops over instances against the NumPy they stand in for."""

from __future__ import annotations

import numpy as np
import pytest

from bagwise.core import arrays
from bagwise.models.variational import NoisyMax, Sech
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.likelihoods import Moments


def problem(rng, weighted):
    sizes = np.concatenate([[1, 1], rng.integers(1, 8, size=60)])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    n, b = int(offsets[-1]), len(sizes)
    known = np.where(rng.random(n) < 0.1, rng.integers(0, 2, n), -1).astype(np.int8)
    weight = rng.random(b) if weighted else None
    labels = BagLabels(offsets, rng.integers(0, 2, b), known, weight)
    f = Moments(rng.normal(size=n) * 6, np.concatenate([[0.0, 1e-9], rng.random(n - 2)]))
    # Rounded, so that the largest probability of a bag is often shared; 0 and 1 occur.
    return labels, f._replace(mean=np.concatenate([[0.0, 0.0], f.mean[2:]])), rng.random(n).round(1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("schedule", ["damped", "paper"])
@pytest.mark.parametrize("expectation", ["plug-in", "exact"])
def test_compiled_loops_equal_numpy(rng, monkeypatch, expectation, schedule, weighted):
    labels, f, pi = problem(rng, weighted)
    likelihood = NoisyMax(50.0, expectation, schedule)
    start = likelihood.start(f, labels, pi)

    def values():
        c = f.second**0.5
        log_psi = Sech().log_psi(c)
        targets = likelihood.targets(f, log_psi, labels, start)
        bound = likelihood.bound(f, log_psi, labels, targets)
        return [log_psi, Sech().theta(c), targets.pi, targets.tail, bound]

    plain = values()
    monkeypatch.setattr(arrays, "_COMPILED_FROM", 1)
    for a, b in zip(values(), plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
