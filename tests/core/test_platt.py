from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from bagwise.core import segments
from bagwise.core.platt import Platt, cool


def draw(rng, n_bags=3000, size=4):
    """Instance log-odds that are right, their offsets, and bag labels drawn from them."""
    offsets = np.arange(0, size * n_bags + 1, size)
    log_odds = rng.normal(-2, 2, size=size * n_bags)
    positive = rng.random(len(log_odds)) < expit(log_odds)
    return log_odds, offsets, segments.max(positive.astype(float), offsets)


@pytest.mark.parametrize("size", [1, 4])
def test_cooling_takes_back_what_optimism_added(rng, size):
    """Half of the bags were learned from, and their scores are stretched."""
    log_odds, offsets, y = draw(rng, n_bags=6000, size=size)
    held_out = np.arange(3000)
    scores = np.where(np.arange(len(log_odds)) < 3000 * size, log_odds, 1.6 * log_odds)
    cooled = cool(Platt(1.6, 0.0), scores, offsets, y, held_out)
    assert cooled.slope == pytest.approx(1.0, rel=0.15)


def test_cooling_is_the_likeliest_factor_on_a_grid(rng):
    log_odds, offsets, y = draw(rng, n_bags=60)
    held_out = np.arange(0, 60, 2)
    cooled = cool(Platt(1.0, 0.0), 2 * log_odds, offsets, y, held_out)
    n_pos = y.sum()
    target = np.where(y > 0, (n_pos + 1) / (n_pos + 2), 1 / (60 - n_pos + 2))
    own_pos, n_own = y[held_out].sum(), len(held_out)
    own = np.where(y[held_out] > 0, (own_pos + 1) / (own_pos + 2), 1 / (n_own - own_pos + 2))

    def bags(slope, intercept):
        p = expit(slope * 2 * log_odds + intercept)
        return 1 - np.multiply.reduceat(1 - p, offsets[:-1])

    def likelihood(p, t):
        return np.sum(t * np.log(p) + (1 - t) * np.log(1 - p))

    grid, found = np.linspace(0.1, 1, 91), []
    for slope in grid:
        intercepts = cooled.intercept + np.linspace(-1, 1, 201)
        best = intercepts[np.argmax([likelihood(bags(slope, b), target) for b in intercepts])]
        found.append((likelihood(bags(slope, best)[held_out], own), slope, best))
    _, slope, intercept = max(found)
    assert abs(cooled.slope - slope) <= 0.02
    assert abs(cooled.intercept - intercept) <= 0.05


def test_cooling_keeps_probabilities_right_on_average(rng):
    log_odds, offsets, y = draw(rng)
    cooled = cool(Platt(1.0, 0.0), 2 * log_odds, offsets, y, np.arange(300))
    rate = segments.sum(np.logaddexp(0.0, cooled.log_odds(2 * log_odds)), offsets)
    assert np.mean(-np.expm1(-rate)) == pytest.approx(y.mean(), abs=0.02)


def test_cooling_never_sharpens_and_asks_for_bags(rng):
    log_odds, offsets, y = draw(rng)
    platt = Platt(0.5, -1.0)
    assert cool(platt, log_odds, offsets, y, np.arange(len(y))) == platt
    assert cool(platt, log_odds, offsets, y, np.empty(0, dtype=int)) == platt


def test_cooling_survives_certainty():
    """Held-out bags that are surely wrong flatten the map, and nothing overflows."""
    scores, y = np.array([-800.0, 800.0]), np.array([1, 0])
    cooled = cool(Platt(1.0, 0.0), scores, np.array([0, 1, 2]), y, np.array([0, 1]))
    assert 0 < cooled.slope < 0.1
    assert abs(cooled.intercept) < 1
