from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from bagwise.core import rules
from bagwise.models.calibration.fit import fit_platt


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=6))
def test_noisy_or_equals_product(odds):
    odds = np.array(odds)
    got = rules.bag_log_odds(odds, np.array([0, len(odds)]), "noisy-or")[0]
    assert expit(got) == pytest.approx(1 - np.prod(1 - expit(odds)), abs=1e-9)


def test_large_bag_is_finite():
    odds = np.full(50_000, -12.0)
    got = rules.bag_log_odds(odds, np.array([0, 50_000]), "noisy-or")
    assert expit(got[0]) == pytest.approx(-np.expm1(50_000 * np.log1p(-expit(-12.0))))
    assert rules.bag_log_odds(odds, np.array([0, 50_000]), "max")[0] == -12.0


def test_noisy_or_of_probabilities_that_underflow_is_their_sum():
    """exp(-1000) is 0 in double precision; the bag beside it needs no such care."""
    odds = np.array([-1000.0, -1000.0, 2.0, -1.0])
    bags = rules.bag_log_odds(odds, np.array([0, 2, 4]), "noisy-or")
    p = 1 - np.prod(1 - expit(odds[2:]))
    np.testing.assert_allclose(bags, [-1000 + np.log(2), np.log(p / (1 - p))])


def test_max_is_the_largest_log_odds_of_each_bag():
    odds = np.array([0.5, -1.0, 2.0, -3.0, -2.5])
    bags = rules.bag_log_odds(odds, np.array([0, 3, 5]), "max")
    np.testing.assert_array_equal(bags, [2.0, -2.5])


@pytest.mark.parametrize("name", list(rules.RULES))
def test_a_bag_of_one_is_its_instance(name):
    odds = np.linspace(-40, 40, 17)
    bags = rules.bag_log_odds(odds, np.arange(18), name)
    np.testing.assert_allclose(bags, rules.RULES[name].alone(odds), atol=1e-9)


@pytest.mark.parametrize(("name", "same"), [("max", True), ("noisy-or", False)])
def test_a_rule_takes_scores_where_a_rising_map_of_them_keeps_the_order_of_bags(name, same):
    odds, offsets = np.array([1.0, 0.0, 0.0]), np.array([0, 1, 3])
    orders = [np.argsort(rules.bag_log_odds(odds + by, offsets, name)) for by in (0, -10)]
    assert np.array_equal(*orders) == same
    assert rules.RULES[name].takes_scores == same


def test_instances_inherit_the_label_of_their_bag_unless_their_own_is_known():
    known = np.array([-1, 0, 1, -1, -1, 1])
    labels = rules.inherited_labels(np.array([1, 0]), known, np.array([0, 4, 6]))
    assert labels.tolist() == [1, 0, 1, 1, 0, 1]


def test_log_odds_inverts_expit_and_is_finite_at_the_ends():
    z = np.linspace(-20, 20, 41)
    np.testing.assert_allclose(rules.log_odds(expit(z)), z, atol=1e-6)
    assert np.isfinite(rules.log_odds(np.array([0.0, 1.0]))).all()


def test_platt_close_to_unpenalised_logistic_regression(rng):
    s = rng.normal(size=4000)
    y = (rng.random(4000) < expit(2 * s - 0.5)).astype(int)
    ours = fit_platt(s, y)
    theirs = LogisticRegression(C=1e6).fit(s[:, None], y)
    assert ours.slope == pytest.approx(theirs.coef_[0, 0], rel=0.02)
    assert ours.intercept == pytest.approx(theirs.intercept_[0], abs=0.02)


def test_many_sigmoids_match_a_general_optimiser(rng):
    y = np.arange(80) % 2
    scores = rng.normal(size=(30, 80)) * rng.uniform(0.1, 100, (30, 1))
    scores += y * rng.uniform(-2, 200, (30, 1))  # reversed, noisy and separable rows
    scores[0] = 10.0 * y
    target = np.where(y > 0, 41 / 42, 1 / 42)
    for row in scores:
        platt, spread = fit_platt(row, y), row.std()

        def loss(theta, row=row, spread=spread):
            z = theta[0] * row / spread + theta[1]
            return np.sum(np.logaddexp(0.0, z) - target * z)

        found = minimize(loss, [1.0, 0.0], method="L-BFGS-B", bounds=[(0, None), (None, None)])
        ours = loss([platt.slope * spread, platt.intercept])
        assert ours <= found.fun * (1 + 1e-9) + 1e-9


def test_platt_never_reverses_a_ranking(rng):
    s = rng.normal(size=100)
    assert fit_platt(s, (s < 0).astype(int)).slope == 0
    constant = fit_platt(np.ones(10), np.arange(10) % 2)
    assert np.isfinite(constant.log_odds(3.0))
