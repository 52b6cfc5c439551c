"""The fits of the maps of bags and instances, each against an independent statement of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from bagwise.core.platt import shrinkage, smoothed
from bagwise.models.variational import latent_map
from bagwise.models.variational.latent_map import HeldOut, MapFit, fit_instance_map, shared_slope


def alone(f):
    """Bags of one instance each, known exactly."""
    return HeldOut(f, np.zeros(len(f)), np.arange(len(f) + 1))


@pytest.fixture(scope="module")
def contrast():
    """Scores of negatives and positives that overlap; one in five of a positive bag is positive."""
    rng = np.random.default_rng(3)
    y = np.repeat([0, 1], 100)
    truth = np.repeat(y, 10) * (rng.random(2000) < 0.2)
    f = 2 * truth - 1 + 0.8 * rng.normal(size=2000)
    held_out = HeldOut(f, np.zeros(2000), np.arange(0, 2001, 10))
    return latent_map._Contrast(held_out, y.astype(float), 2.0, None), held_out, y


def test_the_map_of_scores_that_lie_far_from_zero():
    """Slope and intercept of the simulation come back, also in the units of the scores."""
    rng = np.random.default_rng(0)
    f = 30 + 5 * rng.normal(size=4000)
    y = (rng.random(4000) < expit(0.4 * (f - 30))).astype(int)
    fit = MapFit(alone(f), y, "max")
    assert fit.slope == pytest.approx(0.4, rel=0.1)
    found = fit.shrunk()
    assert found.slope == pytest.approx(0.4, rel=0.1)
    assert found.intercept / found.slope == pytest.approx(-30, abs=1)


def test_known_instances_are_part_of_the_loss():
    """Cross-entropy of the bags with smoothed targets, and of the instances that are known."""
    rng = np.random.default_rng(1)
    f = rng.normal(size=40)
    held_out = HeldOut(f, np.zeros(40), np.arange(0, 41, 2))
    y, known = np.arange(20) % 2, np.full(40, -1)
    known[[2, 3, 10, 11]] = 1, 0, 1, 1
    fit, without = (MapFit(held_out, y, "max", k) for k in (known, None))
    slope, level = 0.7, 0.2
    own = fit._about_centre(slope, level)
    z = own.slope * f + own.intercept
    bags, target = z.reshape(20, 2).max(1), smoothed(y.astype(float))
    of_bags = np.sum(np.logaddexp(0, bags) - target * bags)
    assert without._loss(slope, level) == pytest.approx(of_bags)
    rows = np.flatnonzero(known >= 0)
    expected = np.sum(np.logaddexp(0, z[rows]) - known[rows] * z[rows])
    assert fit._loss(slope, level) - of_bags == pytest.approx(expected, rel=1e-6)


def test_a_prior_as_wide_as_the_bags_are_unsure():
    assert latent_map._slope_std(np.inf) == pytest.approx(0.25)
    for gain in (0.5, 8.0):
        wider = latent_map._slope_std(gain) ** 2 - latent_map._slope_std(np.inf) ** 2
        assert wider == pytest.approx(1 / (2 * gain))


@pytest.mark.parametrize("std", [0.1, 10.0])
def test_the_best_slope_has_the_least_loss_under_its_prior(contrast, std):
    fitted, *_ = contrast

    def penalised(slope):
        return fitted.fitted(slope).loss + 0.5 * (np.log(slope) / std) ** 2

    best, loss = fitted.best_slope(std)
    assert loss == pytest.approx(fitted.fitted(best).loss, abs=1e-3)
    assert penalised(best) <= min(penalised(best * 1.1), penalised(best / 1.1)) + 1e-3
    # Far from 1 a narrow prior holds it back.
    assert (abs(np.log(best)) < 0.2) == (std == 0.1)


def test_instances_are_shrunk_by_what_both_gains_leave_to_chance(contrast):
    fitted, held_out, y = contrast
    for gain in (0.0, 0.5):
        best, loss = fitted.best_slope(latent_map._slope_std(gain))
        own_gain = fitted.fitted(0.0).loss - loss
        found = fit_instance_map(held_out, y, 2.0, gain=gain)
        assert found.own.slope == pytest.approx(2.0 * best * shrinkage(own_gain + gain), rel=1e-3)


def test_classes_that_gain_nothing_share_no_slope():
    rng = np.random.default_rng(0)
    fit = MapFit(
        alone(np.r_[np.linspace(-1, 1, 30), np.linspace(1, -1, 30)]), np.arange(60) % 2, "max"
    )
    fit.gain = -1.0
    assert shared_slope([fit, fit]) == 0.0
    good = MapFit(alone(rng.normal(size=60) + 3 * (np.arange(60) % 2)), np.arange(60) % 2, "max")
    assert shared_slope([fit, good]) == pytest.approx(good.slope * shrinkage(good.gain))
