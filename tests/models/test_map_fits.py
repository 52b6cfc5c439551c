"""The fits of the maps of bags and instances, each against an independent statement of it."""

from __future__ import annotations

import itertools

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
        expected = fitted.instance_map(best * shrinkage(own_gain + gain))
        assert found.own.slope == pytest.approx(expected.own.slope, rel=1e-3)
        assert found.positive_rate == pytest.approx(expected.positive_rate, rel=1e-3)


def backgrounds(shift, n=60, size=40):
    """One positive of forty; the negatives of each bag have a level of their own."""
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1], n)
    truth = np.zeros((2 * n, size))
    truth[n:, 0] = 1
    f = 4 * truth + rng.normal(size=truth.shape) + shift * y[:, None] - 3
    f += 0.5 * rng.normal(size=(2 * n, 1))
    return HeldOut(f.ravel(), np.zeros(f.size), np.arange(0, f.size + 1, size)), y


@pytest.mark.parametrize(("shift", "without"), [(0.1, 0.09), (0.2, 0.17)])
def test_a_background_that_differs_is_not_taken_for_positives(shift, without, monkeypatch):
    held_out, y = backgrounds(shift)
    assert fit_instance_map(held_out, y, 2.0, gain=10.0).positive_rate < 0.065  # 0.025 in truth
    monkeypatch.setattr(latent_map, "background_tilt", lambda *_: 0.0)
    assert fit_instance_map(held_out, y, 2.0, gain=10.0).positive_rate > without


def test_the_tilt_that_chance_gives_two_backgrounds():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 30, 24)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    positive = np.arange(24) % 3 == 0
    scores = 5 * rng.normal(size=offsets[-1]) + np.repeat(rng.normal(size=24), sizes)
    low = np.minimum(scores, np.quantile(scores, 0.75))
    means = np.array([low[a:b].mean() for a, b in itertools.pairwise(offsets)])
    squares = sum(((means[k] - means[k].mean()) ** 2).sum() for k in (positive, ~positive))
    difference = np.sqrt(squares / 22 * (1 / 8 + 1 / 16))
    found = latent_map.background_tilt(scores, offsets, positive)
    assert found == pytest.approx(difference / low.var())
    # A tilt that could not be told from positives is not believed.
    held_out = HeldOut(scores, np.zeros(len(scores)), offsets)
    for unit, most in ((1.0, found), (0.2 * found, 0.1)):
        contrast = latent_map._Contrast(held_out, positive.astype(float), unit, None)
        assert contrast.rise == pytest.approx(most)


def test_the_map_is_the_tangent_of_the_odds_at_the_centre():
    held_out, y = backgrounds(0.2)
    contrast = latent_map._Contrast(held_out, y.astype(float), 2.0, None)
    _, level, logit, tilt = contrast.fitted(0.8)
    assert abs(tilt) > 0.5
    middle = contrast._share * expit(logit)
    own = contrast.instance_map(0.8).own

    def log_odds(score):
        above = contrast.rise * tilt * (score - 2.0 * held_out.mean.mean())
        q = expit(np.log(middle / (1 - middle)) + above)
        return 0.8 * (score - contrast._centre) + level - np.log(q)

    for step, tolerance in ((0.0, 1e-9), (1e-3, 1e-6)):
        score = contrast._centre + step
        value = own.slope * score / 2.0 + own.intercept
        assert value == pytest.approx(log_odds(score), abs=tolerance)


def test_the_search_starts_where_the_share_of_positives_puts_it(contrast):
    fitted, *_ = contrast
    assert fitted._shares == (0.1, 0.1, 0.5)  # bags of ten
    for share in (0.1, 0.5):
        level, logit, tilt = fitted._start(1.7, share)
        p = expit(1.7 * fitted._of_positive_bags + level)
        assert np.mean(p > 0.5) == pytest.approx(share, abs=2e-3)
        assert fitted.negative_share(fitted._share * expit(logit)) == pytest.approx(1 - share)
        assert tilt == 0


def test_classes_that_gain_nothing_share_no_slope():
    rng = np.random.default_rng(0)
    fit = MapFit(
        alone(np.r_[np.linspace(-1, 1, 30), np.linspace(1, -1, 30)]), np.arange(60) % 2, "max"
    )
    fit.gain = -1.0
    assert shared_slope([fit, fit]) == 0.0
    good = MapFit(alone(rng.normal(size=60) + 3 * (np.arange(60) % 2)), np.arange(60) % 2, "max")
    assert shared_slope([fit, good]) == pytest.approx(good.slope * shrinkage(good.gain))
