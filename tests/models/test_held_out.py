"""Calibration where features were learned from the labels of some of the bags."""

from __future__ import annotations

import numpy as np
import pytest

from bagwise import VGPMIL, AutoVGPMIL, Bags


@pytest.fixture(scope="module")
def optimistic():
    """Bags whose features know the labels, but for the last 40, which show what is true."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    X = rng.normal(size=(120, 4, 3))
    X[y == 1, 0, 0] += 4.0
    wrong = np.arange(120) >= 90
    X[wrong & (y == 1), 0, 0] -= 4.0
    held_out = np.repeat(np.arange(120) >= 80, 4)
    bags = Bags(X.reshape(-1, 3), np.arange(0, 481, 4))
    return bags, bags.with_columns(held_out=held_out), y


def test_bags_know_which_are_held_out(optimistic):
    plain, marked, _ = optimistic
    assert len(plain.held_out) == 0
    np.testing.assert_array_equal(marked.held_out, np.arange(80, 120))
    np.testing.assert_array_equal(marked[[3, 90, 4, 81]].held_out, [1, 3])
    np.testing.assert_array_equal(marked.map(lambda X: X[:, :2]).held_out, np.arange(80, 120))


@pytest.mark.parametrize("rule", ["noisy-or", "max", "joint"])
def test_held_out_bags_make_the_model_less_sure(optimistic, rule):
    plain, marked, y = optimistic
    a = VGPMIL(n_inducing=20, bag_rule=rule, random_state=0).fit(plain, y)
    b = VGPMIL(n_inducing=20, bag_rule=rule, random_state=0).fit(marked, y)
    assert 0 < b.calibration_.slope < 0.95 * a.calibration_.slope
    np.testing.assert_array_equal(a.posterior_mean_, b.posterior_mean_)
    for x, y in zip(
        *(plain.split(m.decision_function_instances(plain)) for m in (a, b)), strict=True
    ):
        np.testing.assert_array_equal(np.argsort(x), np.argsort(y))


def test_marking_every_bag_changes_little(optimistic):
    plain, _, y = optimistic
    everything = plain.with_columns(held_out=np.ones(plain.n_instances, dtype=bool))
    a = VGPMIL(n_inducing=20, random_state=0).fit(plain, y)
    b = VGPMIL(n_inducing=20, random_state=0).fit(everything, y)
    assert b.calibration_.slope > 0.9 * a.calibration_.slope


def test_the_automatic_model_listens_too(optimistic):
    plain, marked, y = optimistic
    options = {"n_inducing": 10, "cv": 2, "max_iter": 10, "random_state": 0}
    a, b = AutoVGPMIL(**options).fit(plain, y), AutoVGPMIL(**options).fit(marked, y)
    assert 0 < b.platt_.slope < a.platt_.slope
