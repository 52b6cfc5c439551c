"""The exact sampler against quadrature, enumeration and simulation-based calibration."""

import itertools

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import chisquare, norm

from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.likelihoods import Or

gibbs = pytest.importorskip("tests.reference.gibbs", reason="needs the polyagamma package")

ERRORS = [0.0, 0.05]


def bag_evidence(error, p, y, known):
    """p(T, known | p) of one bag and the mean of its y, by enumeration."""
    mass, marginal = 0.0, np.zeros(len(p))
    for labels in itertools.product((0, 1), repeat=len(p)):
        if any(k >= 0 and k != label for k, label in zip(known, labels, strict=True)):
            continue
        weight = np.prod(np.where(np.array(labels) == 1, p, 1 - p))
        weight *= 1 - error if max(labels) == y else error
        mass += weight
        marginal += weight * np.array(labels)
    return mass, marginal / mass


@pytest.mark.parametrize("error", ERRORS)
def test_label_draws_equal_enumeration(error):
    rng = np.random.default_rng(0)
    labels = BagLabels(
        np.array([0, 3, 5, 8, 10]), np.array([1, 0, 1, 1]), np.array([-1] * 5 + [-1, 1, -1, 0, -1])
    )
    f = rng.normal(size=10)
    drawn = np.mean([gibbs.draw_labels(f, labels, error, rng) for _ in range(5000)], 0)
    expected, evidence = [], 0.0
    for b, (s, e) in enumerate(itertools.pairwise(labels.offsets)):
        mass, mean = bag_evidence(error, expit(f[s:e]), labels.y[b], labels.known[s:e])
        expected.append(mean)
        evidence += np.log(mass)
    np.testing.assert_allclose(drawn, np.concatenate(expected), atol=0.03)
    assert_evidence_differs_by_a_constant(error, labels, f, evidence, rng)


def assert_evidence_differs_by_a_constant(error, labels, f, evidence, rng):
    other = f + rng.normal(size=len(f))
    second = sum(
        np.log(bag_evidence(error, expit(other[s:e]), labels.y[b], labels.known[s:e])[0])
        for b, (s, e) in enumerate(itertools.pairwise(labels.offsets))
    )
    steps = [gibbs.log_likelihood(x, labels, error) for x in (f, other)]
    assert steps[0] - steps[1] == pytest.approx(evidence - second, abs=1e-10)


def quadrature(A, r, labels, error):
    """Mean and sd of v, mean of y, for one inducing point: a grid over v, Gauss-Hermite over f."""
    grid = np.linspace(-6, 6, 121)
    x, w = np.polynomial.hermite_e.hermegauss(24)
    w = w / w.sum()
    log_post = norm.logpdf(grid)
    means = []
    for b, (s, e) in enumerate(itertools.pairwise(labels.offsets)):
        evidence, mean = np.empty(len(grid)), np.empty((len(grid), e - s))
        for i, v in enumerate(grid):
            # Given v the instances are independent, so that their expected p suffices.
            f = (A[0, s:e] * v)[:, None] + np.sqrt(r[s:e])[:, None] * x
            evidence[i], mean[i] = bag_evidence(error, expit(f) @ w, labels.y[b], labels.known[s:e])
        log_post += np.log(evidence)
        means.append(mean)
    post = np.exp(log_post - log_post.max())
    post /= post.sum()
    centre = post @ grid
    return centre, np.sqrt(post @ (grid - centre) ** 2), post @ np.hstack(means)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("slices", [0, 1])
def test_posterior_equals_quadrature(error, slices):
    rng = np.random.default_rng(1)
    A, r = 1.5 * rng.normal(size=(1, 6)), rng.uniform(0, 1, 6)
    labels = BagLabels(np.array([0, 2, 4, 6]), np.array([1, 0, 1]), np.array([-1] * 5 + [0]))
    draws = gibbs.sample(A, r, labels, error, rng, 2500, 50, slices)
    mean, sd, y = quadrature(A, r, labels, error)
    assert draws.v.mean() == pytest.approx(mean, abs=0.08)
    assert draws.v.std() == pytest.approx(sd, abs=0.06)
    np.testing.assert_allclose(draws.y, y, atol=0.04)


def test_slice_steps_alone_equal_quadrature():
    rng = np.random.default_rng(2)
    A, r = 1.5 * rng.normal(size=(1, 4)), rng.uniform(0, 1, 4)
    labels = BagLabels(np.array([0, 2, 4]), np.array([1, 0]), np.full(4, -1))
    v, f, kept = np.zeros(1), np.zeros(4), []
    for _ in range(3000):
        v, f = gibbs.elliptical_slice(v, f, A, r, labels, 0.05, rng)
        kept.append(v[0])
    mean, sd, _ = quadrature(A, r, labels, 0.05)
    assert np.mean(kept) == pytest.approx(mean, abs=0.1)
    assert np.std(kept) == pytest.approx(sd, abs=0.07)


def test_ranks_of_the_truth_are_uniform():
    """Simulation-based calibration: the truth is as good as any draw of its posterior."""
    ranks = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        drawn = gibbs.draw_problem(rng, 4.0, np.array([2, 3, 5, 2, 4]), n_inducing=6)
        draws = gibbs.sample(drawn.A, drawn.r, drawn.labels, 0.01, rng, 39, 15, 3)
        ranks.append((draws.f < drawn.f).sum(0)[[0, 5, 12]])
    for column in np.array(ranks).T:
        assert chisquare(np.bincount(column // 8, minlength=5)).pvalue > 1e-3


@pytest.mark.parametrize("variance", [1.0, 4.0, 16.0])
def test_the_posterior_is_close_to_the_exact_one(variance):
    """Three sets; the comparison of many is experiments/posterior_coverage.py."""
    from experiments import posterior_coverage

    sets = [posterior_coverage.one_set(variance, seed, 200) for seed in range(3)]
    mean = {name: np.mean([one[name] for one in sets]) for name in posterior_coverage.METRICS}
    exact = np.mean([one["coverage, exact"] for one in sets])
    assert abs(mean["coverage"] - exact) < 0.06  # of 90 % intervals, on the same true values
    assert 0.85 < mean["sd ratio"] < 1.1
    assert mean["sd correlation"] > 0.75
    assert mean["bags"] < 0.02
    assert mean["mean"] < 0.25


def test_the_sampler_and_the_or_have_one_likelihood():
    rng = np.random.default_rng(5)
    labels = BagLabels(
        np.array([0, 3, 5, 8, 10]), np.array([1, 0, 1, 1]), np.array([-1] * 5 + [-1, 1, -1, 0, -1])
    )
    tasks = labels._replace(y=labels.y[:, None], known=labels.known[:, None])
    for error in ERRORS:
        values = []
        for f in rng.normal(size=(2, 10)):
            ours = Or(error=error).terms(f[:, None, None], tasks).value.sum()
            values.append(gibbs.log_likelihood(f, labels, error) - float(ours))
        assert values[0] == pytest.approx(values[1], abs=1e-10)
