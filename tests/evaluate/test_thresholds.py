"""Thresholds: the naive twin agrees, intervals cover, and choosing does not flatter itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bagwise.evaluate import Goal, choose_threshold, cross_fitted_rates, proportion, rates_at
from tests.reference import thresholds as naive


@pytest.mark.parametrize(("k", "n"), [(0, 5), (3, 10), (9, 10), (10, 10), (47, 120)])
def test_intervals_are_scipys(k, n):
    ours = proportion(k, n)
    theirs = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert ours.value == k / n
    np.testing.assert_allclose([ours.low, ours.high], [theirs.low, theirs.high], atol=1e-12)


def test_nothing_is_known_about_nothing():
    share = proportion(0, 0)
    assert np.isnan(share.value)
    assert (share.low, share.high) == (0, 1)


def test_intervals_cover_about_as_often_as_they_say():
    n, p = 20, 0.85
    weights = stats.binom.pmf(np.arange(n + 1), n, p)
    intervals = [proportion(k, n) for k in range(n + 1)]
    covered = sum(w for w, i in zip(weights, intervals, strict=True) if i.low <= p <= i.high)
    assert covered >= 0.91


problems = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 9)), min_size=2, max_size=25
).filter(lambda rows: len({t for t, _ in rows}) == 2)


@given(problems, st.sampled_from([0.05, 0.5, 0.8, 1.0]), st.sampled_from([(1, 1), (1, 7), (3, 1)]))
def test_the_naive_twin_agrees(rows, share, cost):
    y, scores = [t for t, _ in rows], [s / 7 for _, s in rows]
    n, m = sum(y), len(y) - sum(y)
    at = choose_threshold(y, scores, Goal(sensitivity=share))
    tp, tn = naive.counts(y, scores, at)
    assert tp >= share * n - 1e-9
    assert tn == naive.best_specificity(y, scores, share)
    at = choose_threshold(y, scores, Goal(specificity=share))
    tp, tn = naive.counts(y, scores, at)
    assert tn >= share * m - 1e-9
    assert tp == naive.best_sensitivity(y, scores, share)
    for goal, (miss, alarm) in [(Goal(cost=cost), cost), (Goal(), (m, n))]:
        tp, tn = naive.counts(y, scores, choose_threshold(y, scores, goal))
        found = miss * (n - tp) + alarm * (m - tn)
        assert found == pytest.approx(naive.best_cost(y, scores, miss, alarm))


def test_ties_go_to_the_widest_gap():
    # Both cuts miss one bag; the gap from 0.3 to 0.8 is the wider one.
    y, scores = [0, 1, 0, 1], [0.1, 0.2, 0.3, 0.8]
    assert choose_threshold(y, scores) == pytest.approx(0.55)
    y, scores = [0, 1, 0, 1], [0.1, 0.7, 0.75, 0.8]
    assert choose_threshold(y, scores) == pytest.approx(0.4)


def test_neighbouring_floats_are_told_apart():
    low = 0.3
    high = float(np.nextafter(low, 1))
    at = choose_threshold([0, 1], [low, high])
    assert rates_at([0, 1], [low, high], at)[1:] == (proportion(1, 1), proportion(1, 1))


def test_choosing_on_noise_is_not_flattered(rng):
    gains = {"honest": [], "flattered": []}
    for seed in range(40):
        y = np.arange(30) % 2
        scores = rng.normal(size=30)
        honest = cross_fitted_rates(y, scores, random_state=seed)
        flattered = rates_at(y, scores, honest.threshold)
        for name, rates in [("honest", honest), ("flattered", flattered)]:
            gains[name].append(rates.sensitivity.value + rates.specificity.value - 1)
    assert np.mean(gains["flattered"]) > 0.2
    assert abs(np.mean(gains["honest"])) < 0.1


def test_groups_stay_together(rng):
    # Every patient has a score of its own: across patients the scores say nothing.
    patients = np.repeat(np.arange(12), 5)
    y = (np.arange(12) % 2)[patients]
    gains = {"together": [], "apart": []}
    for _ in range(30):
        scores = rng.normal(size=12)[patients]
        for name, groups in [("together", patients), ("apart", None)]:
            rates = cross_fitted_rates(y, scores, groups=groups)
            gains[name].append(rates.sensitivity.value + rates.specificity.value - 1)
    # Apart, the threshold has seen the scores of every patient it is counted on.
    assert np.mean(gains["apart"]) > np.mean(gains["together"]) + 0.1
    assert abs(np.mean(gains["together"])) < 0.2


def test_the_rates_of_a_goal_are_near_it(rng):
    y = (rng.uniform(size=2000) < 0.4).astype(int)
    scores = y + rng.normal(size=2000)
    rates = cross_fitted_rates(y, scores, Goal(sensitivity=0.9))
    assert rates.sensitivity.value == pytest.approx(0.9, abs=0.02)
    assert rates.sensitivity.low < 0.9 < rates.sensitivity.high


def test_few_bags_and_lonely_groups():
    rates = cross_fitted_rates([0, 1], [0.1, 0.9])
    assert rates.sensitivity.value == 1
    rates = cross_fitted_rates([0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9], groups=["a", "b", "c", "c"])
    assert rates.sensitivity.total == 2


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: choose_threshold([1, 1], [0.1, 0.2]), "both classes"),
        (lambda: choose_threshold([0, 1], [0.1, np.nan]), "finite"),
        (lambda: choose_threshold([0, 2], [0.1, 0.2]), "0 or 1"),
        (lambda: choose_threshold([0, 1], [0.1]), "of one length"),
        (lambda: choose_threshold([0, 1], [0.1, 0.2], Goal(sensitivity=1.2)), "up to 1; got 1.2"),
        (lambda: choose_threshold([0, 1], [0.1, 0.2], Goal(0.5, 0.5)), "got several"),
        (lambda: choose_threshold([0, 1], [0.1, 0.2], Goal(cost=(0, 1))), "positive numbers"),
        (lambda: proportion(3, 2), "got 3 of 2"),
    ],
)
def test_bad_questions(call, says):
    with pytest.raises(ValueError, match=says):
        call()
