"""Which instances made their bag positive: the share map, and weights of Platt's lines."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import expit, logit

from bagwise.models.calibration import fit as module
from bagwise.models.calibration.fit import Platt, fit_platt, fit_share
from tests.reference.kernels import finite_differences


def mixture(rng, n_bags, size, key, gap=4.0):
    """Instances of the background about 0; a share ``key`` of those of positive bags about gap."""
    y = np.arange(n_bags) % 2 == 1
    is_key = (rng.random((n_bags, size)) < key) & y[:, None]
    u = rng.normal(size=(n_bags, size)) + gap * is_key - gap / 2
    return u.ravel(), np.arange(0, n_bags * size + 1, size), y, is_key.ravel()


def naive_loss(x, u, offsets, y, weight):
    """The negative log-likelihood of the labels and the priors, instance by instance."""
    sizes = np.diff(offsets)
    positive, negative = (sum((weight * sizes)[y == label]) for label in (True, False))
    each = np.repeat(weight, np.diff(offsets))
    center = np.average(u, weights=each)
    z = (u - center) / np.sqrt(np.average((u - center) ** 2, weights=each))
    floor, slope, crossing = x[0], math.exp(x[1]), x[2]
    total = (floor - math.log(positive / negative)) ** 2 / 2
    total += ((x[1] - math.log(4)) / 0.5) ** 2 / 2 + (crossing - 2) ** 2 / 2
    for b, (start, stop) in enumerate(itertools.pairwise(offsets)):
        for n in range(start, stop):
            odds = math.exp(floor) * (1 + math.exp(slope * (z[n] - crossing)))
            total += weight[b] * (math.log(1 + odds) - (math.log(odds) if y[b] else 0.0))
    return total


@pytest.mark.parametrize("weighed", [False, True])
def test_likelihood_and_gradient(monkeypatch, weighed):
    rng, asked = np.random.default_rng(0), []
    u, offsets, y, _ = mixture(rng, 12, 4, 0.3)
    weight = rng.uniform(0.5, 2.0, 12) if weighed else None
    minimize = module.minimize

    def watched(loss, start, **options):
        asked.append(loss)
        return minimize(loss, start, **options)

    monkeypatch.setattr(module, "minimize", watched)
    found = fit_share(u, offsets, y, weight)
    (loss,) = asked
    each = np.ones(12) if weight is None else weight
    for x in rng.normal(size=(4, 3)):
        value, gradient = loss(x)
        assert value == pytest.approx(naive_loss(x, u, offsets, y, each), rel=1e-12)
        numeric = finite_differences(lambda z: loss(z)[0], x, 1e-6)
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6)
    assert isinstance(found, Platt) and found.slope > 0


@pytest.mark.parametrize("key", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("gap", [2.0, 4.0])
def test_a_known_mixture_is_found(key, gap):
    """Two normals of unit variance: the log-odds of a key instance are gap u + logit(key)."""
    u, offsets, y, is_key = mixture(np.random.default_rng(1), 1500, 12, key, gap)
    share = fit_share(u, offsets, y)
    truth = expit(gap * u + logit(key))
    inside = np.repeat(y, 12)
    found = expit(share.log_odds(u))
    assert np.abs(found - truth)[inside].mean() < 0.03
    assert found[inside].mean() == pytest.approx(is_key[inside].mean(), abs=0.04)


def test_a_level_that_bags_share_is_no_key():
    """Positive bags no different from negative ones: no instance is told apart by its value."""
    rng = np.random.default_rng(2)
    u, offsets, y, _ = mixture(rng, 400, 10, 0.0)
    p = expit(fit_share(u, offsets, y).log_odds(u))
    assert np.isfinite(p).all()
    assert p.mean() < 0.6 and p.std() < 0.3


def test_of_very_many_instances_some_are_enough():
    u, offsets, y, _ = mixture(np.random.default_rng(3), 800, 60, 0.2)
    assert len(u) > 2 * module._MOST
    grid = np.linspace(-4, 4, 20)
    found = expit(fit_share(u, offsets, y).log_odds(grid))
    np.testing.assert_allclose(found, expit(4 * grid + logit(0.2)), atol=0.1)


@pytest.mark.parametrize(
    ("u", "y"),
    [
        (np.zeros(44), np.arange(11) % 2 == 1),
        (np.full(44, -30.1), np.arange(11) % 2 == 1),
        (np.linspace(-3, 3, 44), np.ones(11, dtype=bool)),
        (np.linspace(-3, 3, 44), np.zeros(11, dtype=bool)),
        (np.linspace(-3e4, 3e4, 44), np.arange(11) % 2 == 1),
    ],
    ids=["constant", "constant, far", "positive alone", "negative alone", "huge"],
)
def test_degenerate_values_leave_a_finite_map(u, y):
    with np.errstate(over="ignore"):
        share = fit_share(u, np.arange(0, 45, 4), y)
    assert np.isfinite(share).all() and share.slope > 0
    assert np.isfinite(share.log_odds(u)).all()
    if np.ptp(u) == 0:  # what rounding leaves of equal values is no spread
        assert share.slope < 100


def test_units_and_origin_of_the_values_do_not_matter():
    u, offsets, y, _ = mixture(np.random.default_rng(8), 60, 8, 0.3)
    share, other = fit_share(u, offsets, y), fit_share(250 * u - 40, offsets, y)
    np.testing.assert_allclose(other.log_odds(250 * u - 40), share.log_odds(u), atol=1e-3)


def test_weights_are_repetitions():
    rng = np.random.default_rng(5)
    u, offsets, y, _ = mixture(rng, 30, 6, 0.3)
    weight = rng.integers(0, 4, 30)
    bags = np.repeat(np.arange(30), weight)
    rows = np.concatenate([np.arange(offsets[b], offsets[b + 1]) for b in bags])
    by_weight = fit_share(u, offsets, y, weight.astype(float))
    repeated = fit_share(u[rows], np.arange(0, len(rows) + 1, 6), y[bags])
    np.testing.assert_allclose(by_weight, repeated, atol=1e-3)


# Weights of the lines of bags.


@pytest.mark.parametrize("shrunk", [False, True])
def test_weights_of_lines_are_repetitions(shrunk):
    rng = np.random.default_rng(6)
    scores, weight = rng.normal(size=80), rng.integers(0, 4, 80)
    y = (rng.random(80) < expit(2 * scores - 1)).astype(int)

    def line(scores, y, weight=None):
        return fit_platt(scores, y, shrink=shrunk, weight=weight)

    by_weight = line(scores, y, weight.astype(float))
    repeated = line(np.repeat(scores, weight), np.repeat(y, weight))
    np.testing.assert_allclose(by_weight, repeated, atol=1e-6)
    np.testing.assert_allclose(line(scores, y, np.ones(80)), line(scores, y), atol=1e-9)
    assert np.abs(np.subtract(by_weight, line(scores, y))).max() > 1e-2


def test_a_line_of_noise_has_the_weighted_base_rate():
    rng = np.random.default_rng(7)
    y, weight = np.arange(40) % 2, np.where(np.arange(40) % 2 == 1, 3.0, 1.0)
    line = fit_platt(np.zeros(40), y, shrink=True, weight=weight)
    assert expit(line.log_odds(0.0)) == pytest.approx(0.75, abs=0.02)
    backwards = fit_platt(-y + 0.1 * rng.normal(size=40), y, shrink=True, weight=weight)
    assert expit(backwards.log_odds(0.0)) == pytest.approx(0.75, abs=0.02)
