from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from bagwise.core import segments
from bagwise.core.platt import Platt


def draw(rng, n_bags=3000, size=4):
    """Instance log-odds that are right, their offsets, and bag labels drawn from them."""
    offsets = np.arange(0, size * n_bags + 1, size)
    log_odds = rng.normal(-2, 2, size=size * n_bags)
    positive = rng.random(len(log_odds)) < expit(log_odds)
    return log_odds, offsets, segments.max(positive.astype(float), offsets)


@pytest.mark.parametrize("size", [1, 4])
def test_cooling_takes_back_what_optimism_added(rng, size):
    log_odds, offsets, y = draw(rng, size=size)
    cooled = Platt(3.0, -2.0).cooled(1.6 * log_odds, offsets, y)
    assert cooled.slope == pytest.approx(3.0 / 1.6, rel=0.1)
    assert cooled.intercept / cooled.slope == pytest.approx(-2.0 / 3.0)


def test_cooling_is_the_likeliest_factor_on_a_grid(rng):
    log_odds, offsets, y = draw(rng, n_bags=60)
    cooled = Platt(1.0, 0.5).cooled(2 * log_odds, offsets, y)
    grid = np.linspace(0.01, 1, 100)
    p = [1 - np.multiply.reduceat(1 - expit(t * 2 * log_odds), offsets[:-1]) for t in grid]
    likelihood = [np.sum(np.log(np.where(y > 0, q, 1 - q))) for q in p]
    assert abs(cooled.slope - grid[np.argmax(likelihood)]) <= 0.01


def test_cooling_never_sharpens_and_asks_for_bags(rng):
    log_odds, offsets, y = draw(rng)
    platt = Platt(2.0, -1.0)
    assert platt.cooled(0.5 * log_odds, offsets, y) == platt
    assert platt.cooled(np.empty(0), np.array([0]), np.empty(0)) == platt


def test_cooling_survives_certainty():
    cooled = Platt(1.0, 0.0).cooled(
        np.array([-800.0, 800.0]), np.array([0, 1, 2]), np.array([1, 0])
    )
    assert 0 < cooled.slope < 0.1
