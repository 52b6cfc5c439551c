from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logit

from bagwise.core import segments
from bagwise.models.calibration.fit import (
    Calibrator,
    Platt,
    compress_beyond,
    correct_optimism,
    fit_instance_platt,
    fit_isotonic,
    fit_platt,
    keep_ranking,
    typical_range,
)
from bagwise.models.calibration.fit import smoothed as targets_of
from bagwise.models.held_out import calibration_folds


def draw(rng, n_bags=3000, size=4):
    """Instance log-odds that are right, their offsets, and bag labels drawn from them."""
    offsets = np.arange(0, size * n_bags + 1, size)
    log_odds = rng.normal(-2, 2, size=size * n_bags)
    positive = rng.random(len(log_odds)) < expit(log_odds)
    return log_odds, offsets, segments.max(positive.astype(float), offsets)


def stretched(rng, n_bags, factor):
    """Scores that are right for the first half of the bags, and stretched for the others."""
    log_odds, _, y = draw(rng, n_bags, 1)
    scores = np.where(np.arange(n_bags) < n_bags // 2, 1.0, factor) * log_odds
    return scores, y, np.arange(n_bags // 2)


def test_correction_takes_back_what_optimism_added(rng):
    """Held-out bags ask for a slope of 1, the others for less."""
    scores, y, held_out = stretched(rng, 8000, 0.6)
    platt = fit_platt(scores, y)
    assert platt.slope > 1.1
    assert correct_optimism(platt, scores, y, held_out).slope == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(("n_bags", "factor"), [(200, 0.5), (160, 0.3)])
def test_correction_is_the_likeliest_factor_on_a_grid(rng, n_bags, factor):
    scores, y, held_out = stretched(rng, n_bags, factor)
    platt = fit_platt(scores, y)
    free = fit_platt(scores, y, count=0.01).slope
    cooled = correct_optimism(platt, scores, y, held_out)

    def bags(slope, intercept):
        return expit(slope * scores + intercept)

    def likelihood(chosen, p, count):
        positive = y[chosen] > 0
        n_pos, n_neg = positive.sum(), (~positive).sum()
        high, low = (n_pos + count) / (n_pos + 2 * count), count / (n_neg + 2 * count)
        t = np.where(positive, high, low)
        return np.sum(t * np.log(p[chosen]) + (1 - t) * np.log(1 - p[chosen]))

    found, everyone = [], np.arange(len(y))
    share = (y.sum() + 1) / (len(y) + 2)
    added = 4 * share * (1 - share)
    for factor in np.linspace(0.4, 1, 61):
        intercepts = platt.intercept + np.linspace(-1, 1, 401)
        values = [likelihood(everyone, bags(factor * free, b), added) for b in intercepts]
        best = intercepts[np.argmax(values)]
        prior = -0.5 * ((np.log(factor) - 0.5 * np.log(0.65) / 0.85) / 0.1) ** 2  # half are learned
        value = likelihood(held_out, bags(factor * free, best), 0.01) + prior
        found.append((value, factor * free, best))
    _, slope, intercept = max(found)
    assert slope < platt.slope  # or there would be nothing to see
    assert cooled.slope == pytest.approx(slope, abs=0.02 * free)
    assert cooled.intercept == pytest.approx(intercept, abs=0.05)


def test_correction_keeps_probabilities_right_on_average(rng):
    scores, y, held_out = stretched(rng, 3000, 0.5)
    platt = fit_platt(scores, y)
    cooled = correct_optimism(platt, scores, y, held_out)
    assert cooled.slope < platt.slope
    assert np.mean(expit(cooled.log_odds(scores))) == pytest.approx(y.mean(), abs=0.02)


def test_correction_never_sharpens_and_asks_for_bags(rng):
    log_odds, _, y = draw(rng, size=1)
    platt = Platt(0.3, -1.0)
    assert correct_optimism(platt, log_odds, y, np.arange(len(y))) == platt
    assert correct_optimism(platt, log_odds, y, np.empty(0, dtype=int)) == platt


def test_few_bags_are_not_corrected_twice():
    """Classes are apart in eight bags: smoothing has said all that can be said."""
    scores, y = np.array([-3.0, -2.0, -2.5, -1.0, 1.0, 2.5, 2.0, 3.0]), np.repeat([0, 1], 4)
    platt = fit_platt(scores, y)
    assert correct_optimism(platt, scores, y, np.array([0, 7])) == platt


def test_correction_survives_certainty():
    """Bags that are surely wrong, and nothing overflows."""
    scores, y = np.array([-800.0, 800.0, -800.0, 800.0]), np.array([1, 0, 0, 1])
    platt = fit_platt(scores, y)
    cooled = correct_optimism(Platt(1.0, 0.0), scores, y, np.array([0, 1]))
    assert 0 <= cooled.slope < 1
    assert np.isfinite(cooled.intercept)
    assert np.isfinite(platt.slope)


def smoothed(y, count=None):
    """Platt's targets, one bag at a time: as if ``count`` more of each class had been seen."""
    n_pos, n_neg = sum(y == 1), sum(y == 0)
    if count is None:
        share = (n_pos + 1) / (n_pos + n_neg + 2)
        count = share * (1 - share) / 0.25
    return np.array(
        [(n_pos + count) / (n_pos + 2 * count) if v else count / (n_neg + 2 * count) for v in y]
    )


def test_targets_are_platts_own_where_the_classes_have_as_many_bags():
    y = np.repeat([0.0, 1.0], 7)
    assert targets_of(y).tolist() == [1 / 9] * 7 + [8 / 9] * 7


def test_targets_of_a_rare_class_are_hardly_smoothed():
    """Eight of 260: Platt's 0.9 would say that one of ten is a mistake."""
    y = np.repeat([0.0, 1.0], [252, 8])
    targets = targets_of(y)
    np.testing.assert_allclose(targets, smoothed(y), rtol=1e-12)
    assert targets[-1] == pytest.approx(0.9839, abs=1e-4)
    np.testing.assert_allclose(targets_of(1 - y), 1 - targets, atol=1e-15)


def test_targets_of_one_class_alone_are_not_certain():
    assert 0 < targets_of(np.zeros(9))[0] < 0.05
    assert 0.95 < targets_of(np.ones(9))[0] < 1


def test_targets_count_a_bag_of_weight_two_twice():
    y, weight = np.array([0.0, 0.0, 1.0, 0.0]), np.array([2.0, 1.0, 2.0, 3.0])
    twice = targets_of(np.repeat(y, weight.astype(int)))
    np.testing.assert_allclose(
        np.repeat(targets_of(y, weight=weight), weight.astype(int)), twice, rtol=1e-14
    )


def test_a_rare_class_is_not_called_timidly(rng):
    """Eight of 260 bags, scores N(0, 1) and N(3, 1): log-odds have a slope of 3 by Bayes' rule."""
    y = np.repeat([0, 1], [252, 8])
    slopes = [fit_platt(rng.normal(3.0 * y), y, shrink=True).slope for _ in range(200)]
    assert 0.8 < np.median(slopes) / 3.0 < 1.2  # with one whole bag added: 0.64


def naive_noisy_or_loss(slope, intercept, scores, offsets, target):
    """Cross-entropy of bags, each the product of its instances, one at a time."""
    loss = 0.0
    for a, b, t in zip(offsets[:-1], offsets[1:], target, strict=True):
        none = np.prod([1 - expit(slope * s + intercept) for s in scores[a:b]])
        loss -= t * np.log(1 - none) + (1 - t) * np.log(none)
    return loss


def minimised(loss, start):
    """The minimum with a slope of at least 0, without gradients."""
    found = minimize(
        loss,
        start,
        method="Nelder-Mead",
        bounds=[(0, None), (None, None)],
        options={"xatol": 1e-8, "fatol": 1e-12, "maxiter": 4000},
    )
    return found.x


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (40.0, -300.0), (0.01, 5.0)])
def test_the_sigmoid_is_the_likeliest(rng, scale, shift):
    """Against a general minimiser on the raw scores, whatever their unit and origin."""
    z = rng.normal(size=60)
    y = (rng.random(60) < expit(1.5 * z - 0.7)).astype(int)
    scores, target = scale * z + shift, smoothed(y)

    def loss(theta):  # in the scores' own unit, so that the minimiser finds its way
        p = expit(theta[0] * (scores - shift) / scale + theta[1])
        return -np.sum(target * np.log(p) + (1 - target) * np.log(1 - p))

    slope, at_shift = minimised(loss, [1.0, 0.0])
    found = fit_platt(scores, y)
    assert found.slope == pytest.approx(slope / scale, rel=1e-5)
    assert found.log_odds(shift) == pytest.approx(at_shift, abs=1e-5)


def test_no_small_change_of_the_sigmoid_is_likelier(rng):
    """Of easy scores, of noise, with an outlier that needs shorter steps, and reversed."""
    y = np.arange(30) % 2
    easy, hard = rng.normal(size=30), 3.0 * y + rng.normal(size=30)
    outlier = np.where(np.arange(30) == 1, -4000.0, hard)
    target = smoothed(y)
    for row in (easy, hard, outlier, -hard):
        found = fit_platt(row, y)

        # At the minimum of a convex loss no small change of either number gains anything.
        def loss(a, b, row=row):
            z = a * row + b
            return np.sum(np.logaddexp(0.0, z) - target * z)

        best, width = loss(*found), 1e-3 / row.std()
        steps = [(0.0, 1e-3), (0.0, -1e-3), (width, -width * row.mean())]
        steps += [(-width, width * row.mean())] if found.slope > width else []
        assert all(loss(found.slope + a, found.intercept + b) >= best - 1e-9 for a, b in steps)


@pytest.mark.parametrize("scores", [np.array([3.0, 2.0, 1.0, 0.0, -1.0]), np.full(5, 7.0)])
def test_scores_that_rank_backwards_or_not_at_all_give_the_base_rate(scores):
    y = np.array([0, 0, 0, 1, 1])
    found = fit_platt(scores, y)
    assert found.slope == pytest.approx(0.0, abs=1e-12)
    rate = smoothed(y).mean()
    np.testing.assert_allclose(found.log_odds(scores), logit(rate), atol=1e-9)


@pytest.mark.parametrize("count", [None, 1.0, 0.01, 3.0])
def test_noisy_or_map_is_the_likeliest(rng, count):
    sizes = np.array([1, 4, 2, 7, 3] * 8)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    z = rng.normal(-1.5, 1.5, size=offsets[-1])
    y = segments.max((rng.random(len(z)) < expit(z)).astype(float), offsets).astype(int)
    scores = 5.0 * z + 20.0
    target = smoothed(y, count)
    slope, intercept = minimised(
        lambda theta: naive_noisy_or_loss(theta[0], theta[1], z, offsets, target), [0.5, 0.0]
    )
    found = fit_platt(scores, y, offsets, count=count)
    in_z = Platt(5.0 * found.slope, found.log_odds(20.0))
    assert in_z.slope == pytest.approx(slope, rel=1e-5)
    assert in_z.intercept == pytest.approx(intercept, abs=1e-5)


def test_noisy_or_map_survives_what_underflows():
    """A positive bag of hopeless instances, and scores without any spread."""
    offsets, y = np.array([0, 2, 4, 6, 8]), np.array([1, 0, 1, 0])
    scores = np.array([-900.0, -900, -900, -800, 700, -900, -900, -900])
    found = fit_platt(scores, y, offsets)
    assert np.isfinite(found).all()
    flat = fit_platt(np.full(8, 2.0), y, offsets)
    p = expit(flat.log_odds(2.0))
    assert 1 - (1 - p) ** 2 == pytest.approx(0.5, abs=1e-4)


def test_correction_stops_at_a_tenth(rng):
    """Held-out bags that rank backwards, and very many of them: a tenth of the slope is left."""
    n = 40_000
    scores = 2.0 * rng.normal(size=n)
    held_out = np.arange(n // 10)
    true = np.where(np.arange(n) < len(held_out), -scores, scores)
    y = (rng.random(n) < expit(true)).astype(float)
    free = fit_platt(scores, y, count=0.01).slope
    cooled = correct_optimism(fit_platt(scores, y), scores, y, held_out)
    assert cooled.slope == pytest.approx(0.1 * free, rel=0.1)


def test_instance_maps_follow_their_rule(rng):
    """Under max the map of the largest scores; under noisy-or that of the product, shrunk alike."""
    scores, offsets, y = draw(rng, 200, 3)
    largest = np.array([max(scores[3 * b : 3 * b + 3]) for b in range(200)])
    assert fit_instance_platt(scores, offsets, y, "max") == fit_platt(largest, y, shrink=True)
    free, target = fit_platt(scores, y, offsets), smoothed(y)

    def best(slope):
        return minimize_scalar(
            lambda level: naive_noisy_or_loss(slope, level, scores, offsets, target),
            bracket=(-1.0, 1.0),
        )

    gain = best(0.0).fun - naive_noisy_or_loss(*free, scores, offsets, target)
    shrunk = fit_instance_platt(scores, offsets, y, "noisy-or")
    assert shrunk.slope == pytest.approx(free.slope * max(0, 1 - 1 / gain), rel=1e-4)
    assert shrunk.intercept == pytest.approx(best(shrunk.slope).x, abs=1e-3)


@pytest.mark.parametrize("std", [4.0, 0.25, 0.0])
def test_a_flat_map_keeps_a_hint_of_the_ranking(std):
    """A thousandth of a log-odd per standard deviation, turned about the mean score."""
    scores = 10.0 + std * np.array([-1.0, 1.0])
    hint = keep_ranking(Platt(0.0, 0.5), scores)
    assert hint.slope == pytest.approx(1e-3 / (std or 1.0))
    assert hint.log_odds(10.0) == pytest.approx(0.5)
    steep = Platt(2.0, -1.0)
    assert keep_ranking(steep, scores) == steep
    between = keep_ranking(Platt(1e-4, 0.5), scores)
    assert between.log_odds(10.0) == pytest.approx(0.501)


@pytest.mark.parametrize("size", [1.0, 4e-16])
def test_what_rounding_leaves_of_equal_scores_is_no_ranking(size):
    """A hint per such standard deviation would be a wall: all bags certain, half of them wrong."""
    scores = np.full(8, size)
    scores[0] *= 1 + 2**-50
    assert np.std(scores) > 0
    assert keep_ranking(Platt(0.0, 0.5), scores).slope == pytest.approx(1e-3)
    map_ = fit_platt(scores, np.arange(8) % 2, shrink=True)
    np.testing.assert_allclose(map_.log_odds(scores), 0.0, atol=1e-6)
    assert abs(map_.log_odds(0.0)) < 1e-2


def test_only_bags_that_were_held_out_correct(rng):
    """Without any the map stays; one says little, so the prior alone takes off what it expects."""
    n = 4000
    scores = rng.normal(size=n)
    y = (rng.random(n) < expit(2 * scores)).astype(float)
    platt = fit_platt(scores, y)
    assert correct_optimism(platt, scores, y, np.empty(0, dtype=int)) == platt
    cooled = correct_optimism(platt, scores, y, np.array([0]))
    assert cooled.slope == pytest.approx(0.65 ** (1 / 0.85) * platt.slope, rel=0.03)


def test_a_slope_must_gain_a_nat_and_a_sure_one_stays():
    y = np.arange(2000) % 2
    scores = np.random.default_rng(0).normal(size=2000)
    assert fit_platt(scores, y, shrink=True).slope == pytest.approx(1e-3, rel=0.05)  # a hint
    scores += 2 * y
    assert fit_platt(scores, y, shrink=True).slope == pytest.approx(
        fit_platt(scores, y).slope, rel=0.005
    )


def test_the_shrunk_map_is_the_likeliest_at_its_slope(rng):
    """Gain, slope and intercept against a grid of intercepts, at every step by hand."""
    y = np.arange(80) % 2
    scores = rng.normal(size=80) + 0.8 * y
    best, shrunk = fit_platt(scores, y), fit_platt(scores, y, shrink=True)
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
        z = fit_platt(scores, y, shrink=True).log_odds(unseen)
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
    full = fit_platt(clear, y, offsets).slope
    shrunk = fit_instance_platt(clear, offsets, y, "noisy-or").slope
    assert 0.9 * full < shrunk < full


def test_scores_beyond_what_was_seen_keep_their_order_and_hardly_grow(rng):
    inside = rng.uniform(-2.0, 3.0, size=50)
    np.testing.assert_array_equal(compress_beyond(inside, -2.0, 3.0), inside)
    far = np.array([-1e6, -50.0, -2.1, -2.0, 3.0, 3.1, 40.0, 1e6])
    pulled = compress_beyond(far, -2.0, 3.0)
    assert (np.diff(pulled) > 0).all()
    # One width of the range more, at most.
    np.testing.assert_allclose(pulled[[0, -1]], [-7.0, 8.0], atol=1e-4)
    # Half of it where they are a width beyond.
    np.testing.assert_allclose(compress_beyond(np.array([-7.0, 8.0]), -2.0, 3.0), [-4.5, 5.5])
    # Just outside the line goes on as it was.
    np.testing.assert_allclose(
        compress_beyond(np.array([3.001, -2.001]), -2.0, 3.0), [3.001, -2.001], atol=1e-6
    )
    np.testing.assert_array_equal(compress_beyond(far, 1.0, 1.0), far)
    np.testing.assert_array_equal(compress_beyond(far, -np.inf, np.inf), far)


def test_the_usual_range_is_that_of_the_quartiles_of_both_classes(rng):
    of_many, of_few = rng.normal(size=4001), rng.normal(3.0, 0.5, size=401)
    scores = np.concatenate([of_many, of_few])
    y = np.repeat([0, 1], [4001, 401])
    expected = np.sort(of_many)[1000], np.sort(of_few)[300]
    np.testing.assert_allclose(typical_range(scores, y), expected)
    np.testing.assert_allclose(typical_range(scores, 1 - y), expected)
    # An outlier does not move it, and one class alone has a range as well.
    outlying = np.where(np.arange(len(y)) == of_many.argmin(), -1e9, scores)
    np.testing.assert_allclose(typical_range(outlying, y), expected)
    np.testing.assert_allclose(typical_range(of_many, y[:4001]), np.sort(of_many)[[1000, 3000]])
    # Where most scores are equal, all of them are the range.
    assert typical_range([0.0] * 9 + [-1.0, 2.0], [0] * 5 + [1] * 6) == (-1.0, 2.0)


@pytest.mark.parametrize(("rarer", "n_folds"), [(2, 10), (19, 10), (20, 5), (500, 5)])
def test_a_class_of_few_bags_is_held_out_in_more_folds(rarer, n_folds):
    for label in (0, 1):
        assert calibration_folds(np.repeat([label, 1 - label], [rarer, 500])) == n_folds


def test_a_calibrator_compresses_the_tails_before_its_function():
    calibrator = Calibrator(Platt(2.0, 1.0), 0.0, 1.0)
    np.testing.assert_allclose(calibrator.log_odds(np.array([0.5, 2.0])), [2.0, 4.0])


def test_isotonic_rises_and_stays_inside(rng):
    scores = rng.normal(size=200)
    y = (rng.random(200) < expit(3 * scores)).astype(int)
    fitted = fit_isotonic(scores, y)
    grid = np.linspace(-10, 10, 400)
    p = expit(fitted.log_odds(grid))
    assert (np.diff(p) >= -1e-12).all()
    assert p.min() == pytest.approx(1 / 202)
    assert p.max() == pytest.approx(1 - 1 / 202)
    assert np.mean((expit(fitted.log_odds(scores)) - y) ** 2) < np.mean((y.mean() - y) ** 2)


def test_isotonic_of_constant_scores_give_the_share_of_positives():
    fitted = fit_isotonic(np.zeros(10), np.arange(10) < 3)
    assert expit(fitted.log_odds(np.array([-1.0, 0.0, 5.0]))) == pytest.approx(0.3)
