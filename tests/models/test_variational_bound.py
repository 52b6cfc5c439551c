"""The evidence bound never falls, one update at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bagwise.models.variational import Gamma, NoisyMax, Sech
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.paper import (
    SiteParameters,
    moments,
    statistics,
    update_posterior,
)
from tests.reference.paper import evidence_bound, fit_whitened, make_blocks

MONOTONE = [
    NoisyMax(100.0, "exact", "sequential"),
    NoisyMax(1e12, "exact", "sequential"),
]


def make(seed, mixed=False, n_bags=12, M=6):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, n_bags)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    N = int(offsets[-1])
    y = np.arange(n_bags) % 2
    known = np.full(N, -1)
    if mixed:
        for b in range(n_bags):
            known[offsets[b]] = y[b] if rng.uniform() < 0.5 else -1
    A = np.asfortranarray(rng.normal(size=(M, N)))
    r = rng.uniform(0, 1, N)
    return A, r, BagLabels(offsets, y, known), rng.uniform(size=N)


@pytest.mark.parametrize("density", [Sech(), Gamma(1.0, 1.0)], ids=["sech", "gamma"])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("likelihood", MONOTONE, ids=repr)
def test_every_update_raises_the_bound(likelihood, mixed, density):
    A, r, labels, pi = make(1, mixed)
    (block,) = make_blocks(A, r, labels)
    f = moments(block.A, r, None)
    c = np.sqrt(f.second)
    targets = likelihood.start(f, labels, pi)
    values = []
    for _ in range(30):
        sites = SiteParameters(*likelihood.weights(f, targets, density.theta(c)))
        sums = statistics(block.A, sites, 0.0)
        q = update_posterior(sums.precision, sums.linear)
        values.append(evidence_bound(block, q, c, targets, likelihood, density))
        f = moments(block.A, r, q)
        c = np.sqrt(f.second)
        values.append(evidence_bound(block, q, c, targets, likelihood, density))
        targets = likelihood.targets(f, density.log_psi(c), labels, targets)
        values.append(evidence_bound(block, q, c, targets, likelihood, density))
    assert np.diff(values).min() > -1e-9 * max(1.0, abs(values[-1]))


@pytest.mark.parametrize("likelihood", MONOTONE, ids=repr)
def test_history_never_falls(likelihood):
    for seed in range(5):
        A, r, labels, pi = make(seed, mixed=seed % 2 == 1)
        fit = fit_whitened(A, r, *labels[:3], pi, likelihood, max_iter=200, tol=0.0, chunk_size=8)
        assert np.diff(fit.bound_history).min() > -1e-9
        assert fit.n_iter == 200


def test_history_is_the_full_bound():
    A, r, labels, pi = make(0)
    likelihood = NoisyMax(100.0, "exact", "damped")
    fit = fit_whitened(A, r, *labels[:3], pi, likelihood, max_iter=4, tol=0.0)
    (block,) = make_blocks(A, r, labels)
    f = moments(block.A, r, fit.posterior)
    targets = likelihood.start(f, labels, fit.pi)
    value = evidence_bound(block, fit.posterior, np.sqrt(f.second), targets, likelihood, Sech())
    assert fit.bound_history[-1] == pytest.approx(value, abs=1e-9)


def test_paper_schedule_oscillates_and_damped_settles():
    """Why the default is damped: all pi at once from the old ones is not coordinate ascent."""
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 45, 4)
    y = np.arange(11) % 2
    A = np.asfortranarray(0.3 * rng.normal(size=(3, 44)))
    labels = BagLabels(offsets, y, np.full(44, -1))
    pi = np.repeat(y, 4).astype(float)
    moves = {}
    for schedule in ("paper", "damped"):
        ends = [
            fit_whitened(
                A, np.ones(44), *labels[:3], pi, NoisyMax(1e12, "plug-in", schedule),
                max_iter=n, tol=0.0,
            ).pi
            for n in (60, 61)
        ]  # fmt: skip
        moves[schedule] = np.abs(ends[0] - ends[1]).max()
    assert moves["paper"] > 0.5
    assert moves["damped"] < 0.05


def evidence_by_enumeration(A, labels, H):
    """log p(T) for one inducing point: every labelling of every bag, v by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    total = 0.0
    for v, weight in zip(nodes, weights / weights.sum(), strict=True):
        p, product = 1 / (1 + np.exp(-A[0] * v)), weight
        for b, (start, stop) in enumerate(itertools.pairwise(labels.offsets)):
            own = 0.0
            for y in itertools.product([0, 1], repeat=int(stop - start)):
                agrees = max(y) == labels.y[b]
                chance = np.prod(np.where(y, p[start:stop], 1 - p[start:stop]))
                own += chance * (H if agrees else 1.0) / (H + 1)
            product *= own
        total += product
    return np.log(total)


@pytest.mark.parametrize("expectation", ["plug-in", "exact"])
@pytest.mark.parametrize("schedule", ["damped", "paper"])
def test_no_iteration_exceeds_the_evidence(expectation, schedule):
    """With the plugged-in agreement in its place the history exceeds log p(T) by .1 to .2 here."""
    H = 3.0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        A = np.asfortranarray(0.3 * rng.normal(size=(1, 12)))
        labels = BagLabels(np.arange(0, 13, 4), np.array([0, 0, 1]), np.full(12, -1))
        likelihood = NoisyMax(H, expectation, schedule)
        pi = labels.of_bag / 2
        fit = fit_whitened(A, np.zeros(12), *labels[:3], pi, likelihood, max_iter=15, tol=0.0)
        assert fit.bound_history.max() <= evidence_by_enumeration(A, labels, H) + 1e-9
