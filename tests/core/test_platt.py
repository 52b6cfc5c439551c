from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from bagwise.core import segments
from bagwise.core.platt import (
    Platt,
    cool,
    fit_instance_platt,
    fit_noisy_or_platt,
    fit_platt,
    fit_shrunk_platt,
    shrinkage,
)


def draw(rng, n_bags=3000, size=4):
    """Instance log-odds that are right, their offsets, and bag labels drawn from them."""
    offsets = np.arange(0, size * n_bags + 1, size)
    log_odds = rng.normal(-2, 2, size=size * n_bags)
    positive = rng.random(len(log_odds)) < expit(log_odds)
    return log_odds, offsets, segments.max(positive.astype(float), offsets)


def stretched(rng, n_bags, size, factor):
    """Scores that are right for the first half of the bags, and stretched for the others."""
    log_odds, offsets, y = draw(rng, n_bags, size)
    scores = np.where(np.arange(len(log_odds)) < n_bags // 2 * size, 1.0, factor) * log_odds
    return scores, offsets, y, np.arange(n_bags // 2)


@pytest.mark.parametrize("size", [1, 4])
def test_cooling_takes_back_what_optimism_added(rng, size):
    """Held-out bags ask for a slope of 1, the others for less; they say how sure they are."""
    scores, offsets, y, held_out = stretched(rng, 8000, size, 0.6)
    platt = fit_noisy_or_platt(scores, offsets, y)
    assert platt.slope > 1.1
    assert cool(platt, scores, offsets, y, held_out).slope == pytest.approx(1.0, rel=0.1)


def test_cooling_is_the_likeliest_factor_on_a_grid(rng):
    scores, offsets, y, held_out = stretched(rng, 200, 4, 0.5)
    platt = fit_noisy_or_platt(scores, offsets, y)
    free = fit_noisy_or_platt(scores, offsets, y, 0.01).slope
    cooled = cool(platt, scores, offsets, y, held_out)

    def bags(slope, intercept):
        p = expit(slope * scores + intercept)
        return 1 - np.multiply.reduceat(1 - p, offsets[:-1])

    def likelihood(chosen, p, count):
        positive = y[chosen] > 0
        n_pos, n_neg = positive.sum(), (~positive).sum()
        high, low = (n_pos + count) / (n_pos + 2 * count), count / (n_neg + 2 * count)
        t = np.where(positive, high, low)
        return np.sum(t * np.log(p[chosen]) + (1 - t) * np.log(1 - p[chosen]))

    found, everyone = [], np.arange(len(y))
    for factor in np.linspace(0.4, 1, 61):
        intercepts = platt.intercept + np.linspace(-1, 1, 101)
        values = [likelihood(everyone, bags(factor * free, b), 1.0) for b in intercepts]
        best = intercepts[np.argmax(values)]
        prior = -0.5 * ((np.log(factor) - 0.5 * np.log(0.65) / 0.85) / 0.1) ** 2  # half are learned
        value = likelihood(held_out, bags(factor * free, best), 0.01) + prior
        found.append((value, factor * free, best))
    _, slope, intercept = max(found)
    assert slope < platt.slope  # or there would be nothing to see
    assert cooled.slope == pytest.approx(slope, abs=0.02 * free)
    assert cooled.intercept == pytest.approx(intercept, abs=0.05)


def test_cooling_keeps_probabilities_right_on_average(rng):
    scores, offsets, y, held_out = stretched(rng, 3000, 4, 0.5)
    platt = fit_noisy_or_platt(scores, offsets, y)
    cooled = cool(platt, scores, offsets, y, held_out)
    rate = segments.sum(np.logaddexp(0.0, cooled.log_odds(scores)), offsets)
    assert cooled.slope < platt.slope
    assert np.mean(-np.expm1(-rate)) == pytest.approx(y.mean(), abs=0.02)


def test_cooling_never_sharpens_and_asks_for_bags(rng):
    log_odds, offsets, y = draw(rng)
    platt = Platt(0.3, -1.0)
    assert cool(platt, log_odds, offsets, y, np.arange(len(y))) == platt
    assert cool(platt, log_odds, offsets, y, np.empty(0, dtype=int)) == platt


def test_few_bags_are_not_cooled_twice():
    """Classes are apart in eight bags: smoothing has said all that can be said."""
    scores, y = np.array([-3.0, -2.0, -2.5, -1.0, 1.0, 2.5, 2.0, 3.0]), np.repeat([0, 1], 4)
    platt = fit_platt(scores, y)
    assert cool(platt, scores, np.arange(9), y, np.array([0, 7])) == platt


def test_cooling_survives_certainty():
    """Bags that are surely wrong, and nothing overflows."""
    scores, y = np.array([-800.0, 800.0, -800.0, 800.0]), np.array([1, 0, 0, 1])
    platt = fit_platt(scores, y)
    cooled = cool(Platt(1.0, 0.0), scores, np.arange(5), y, np.array([0, 1]))
    assert 0 <= cooled.slope < 1
    assert np.isfinite(cooled.intercept)
    assert np.isfinite(platt.slope)


def test_a_slope_must_gain_a_nat_and_a_sure_one_stays():
    assert shrinkage(-1.0) == shrinkage(0.0) == shrinkage(1.0) == 0.0
    assert shrinkage(4.0) == 0.75
    assert shrinkage(1e6) == pytest.approx(1.0, abs=1e-5)


def test_the_shrunk_map_is_the_likeliest_at_its_slope(rng):
    """Gain, slope and intercept against a grid of intercepts, at every step by hand."""
    y = np.arange(80) % 2
    scores = rng.normal(size=80) + 0.8 * y
    best, shrunk = fit_platt(scores, y), fit_shrunk_platt(scores, y)
    target = np.where(y == 1, 41 / 42, 1 / 42)

    def loss(slope, intercept):
        p = expit(slope * scores + intercept)
        return -np.sum(target * np.log(p) + (1 - target) * np.log1p(-p))

    gain = loss(0.0, 0.0) - loss(*best)
    assert gain > 2
    assert shrunk.slope == pytest.approx(best.slope * (1 - 1 / gain), rel=1e-6)
    grid = np.linspace(-2, 2, 4001)
    nearest = grid[np.argmin([loss(shrunk.slope, b) for b in grid])]
    assert shrunk.intercept == pytest.approx(nearest, abs=1.1e-3)


def test_noise_ends_at_the_base_rate_and_keeps_its_ranking(rng):
    y = (np.arange(60) % 3 == 0).astype(int)
    excess = []
    for _ in range(40):
        scores, unseen = rng.normal(size=(2, 60))
        z = fit_shrunk_platt(scores, y).log_odds(unseen)
        assert (np.argsort(z) == np.argsort(unseen)).all()
        excess.append(np.mean(np.logaddexp(0, z) - y * z))
    share = 1 / 3
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert np.mean(excess) < entropy + 0.005  # the unshrunk map is 0.008 above


@pytest.mark.parametrize("rule", ["max", "noisy-or"])
def test_instance_maps_are_shrunk_too(rng, rule):
    y = np.arange(60) % 2
    offsets = np.arange(0, 241, 4)
    noise = rng.normal(size=240)
    assert fit_instance_platt(noise, offsets, y, rule).slope < 0.05
    clear = np.where(np.repeat(y, 4) * (np.arange(240) % 4 == 0), 3.0, 0.0) + noise
    full = fit_noisy_or_platt(clear, offsets, y).slope
    shrunk = fit_instance_platt(clear, offsets, y, "noisy-or").slope
    assert 0.9 * full < shrunk < full
