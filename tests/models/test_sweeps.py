"""Compiled loops over instances against the NumPy they stand in for."""

from __future__ import annotations

import numpy as np
import pytest

from bagwise.core import arrays, linalg
from bagwise.models.variational import Gamma, NoisyMax, Sech
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.likelihoods import Moments
from bagwise.models.variational.updates import InducingPosterior, expect


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


def whole_pass(rng, weighted, dtype):
    """A block, the posterior and the beliefs that a pass starts from."""
    labels, f, pi = problem(rng, weighted)
    A = np.asfortranarray(1 + rng.normal(size=(3, len(pi))).astype(dtype))
    W = np.asfortranarray(np.tril(rng.normal(size=(3, 3))).astype(dtype))
    return Block((A,), f.var, labels), InducingPosterior(rng.normal(size=3).astype(dtype), W), pi


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("schedule", ["damped", "paper"])
@pytest.mark.parametrize("expectation", ["plug-in", "exact"])
def test_one_call_is_the_whole_pass(
    rng, monkeypatch, expectation, schedule, bounded, weighted, dtype
):
    block, q, pi = whole_pass(rng, weighted, dtype)
    likelihood = NoisyMax(50.0, expectation, schedule)
    previous = likelihood.start(None, block.labels, pi)
    options = {"q": q, "likelihood": likelihood, "density": Sech(), "bounded": bounded}

    def values():
        found = expect(block, previous, pi, **options)
        precision, linear, bound = found.statistics
        return [*found.targets, *found.sites, np.tril(precision), linear, bound]

    plain = values()
    monkeypatch.setattr(linalg, "_COMPILED_FROM", 1)
    calls, way = [], NoisyMax.at_once
    monkeypatch.setattr(NoisyMax, "at_once", lambda *a: calls.append(way(*a)) or calls[-1])
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == "float64" else {"rtol": 2e-5}
    for a, b in zip(values(), plain, strict=True):
        np.testing.assert_allclose(a, b, **tolerance)
    assert calls[0] is not None


def test_what_one_call_does_not_know_takes_the_plain_way(rng, monkeypatch):
    block, q, pi = whole_pass(rng, False, "float64")

    def knows(likelihood, density, block):
        previous = likelihood.start(None, block.labels, pi)
        return likelihood.at_once(block, q, previous, density, True) is not None

    assert not knows(NoisyMax(), Sech(), block)  # few
    monkeypatch.setattr(linalg, "_COMPILED_FROM", 1)
    assert knows(NoisyMax(), Sech(), block)
    assert not knows(NoisyMax(), Gamma(), block)
    assert not knows(NoisyMax(schedule="sequential"), Sech(), block)
    halves = block.A[0][:, :20], block.A[0][:, 20:]
    assert not knows(NoisyMax(), Sech(), block._replace(A=halves))
