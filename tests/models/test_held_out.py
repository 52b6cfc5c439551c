"""Calibration where features were learned from the labels of some of the bags."""

from __future__ import annotations

import numpy as np
import pytest

from bagwise import VGPMIL, AutoVGPMIL, Bags
from bagwise.core.kernels import RBF
from bagwise.models.held_out import calibration_folds, folds, leave_out
from bagwise.models.variational.likelihoods import SoftMax
from bagwise.models.variational.search import N_FOLDS
from tests.checks import make_problem


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


MODELS = {
    "marginal": lambda: VGPMIL(n_inducing=20, random_state=0),
    "max": lambda: VGPMIL(inference="paper", n_inducing=20, random_state=0),
    "noisy-or": lambda: VGPMIL(
        inference="paper", bag_rule="noisy-or", n_inducing=20, random_state=0
    ),
    "auto": lambda: AutoVGPMIL(n_inducing=10, max_iter=20, random_state=0),
}


def slope(model):
    return model.predictor_.lines[0].slope


@pytest.mark.parametrize("name", MODELS)
def test_held_out_bags_make_the_model_less_sure(optimistic, name):
    plain, marked, y = optimistic
    a, b = MODELS[name]().fit(plain, y), MODELS[name]().fit(marked, y)
    assert 0 < slope(b) < 0.95 * slope(a)
    np.testing.assert_array_equal(a.posterior_mean_, b.posterior_mean_)
    for p, q in zip(
        *(plain.split(m.decision_function_instances(plain)) for m in (a, b)), strict=True
    ):
        np.testing.assert_array_equal(np.argsort(p), np.argsort(q))


@pytest.mark.parametrize("name", ["marginal", "max"])
def test_marking_every_bag_changes_little(optimistic, name):
    plain, _, y = optimistic
    everything = plain.with_columns(held_out=np.ones(plain.n_instances, dtype=bool))
    a, b = MODELS[name]().fit(plain, y), MODELS[name]().fit(everything, y)
    assert slope(b) > 0.9 * slope(a)


@pytest.fixture(scope="module")
def problem():
    return make_problem(n_bags=30, shift=1.5)


def line_of(model, z):
    return model.predictor_.lines[0].log_odds(z)


def test_a_held_out_bag_is_read_by_a_marginal_fit_in_which_it_weighs_nothing(problem):
    bags, y, _ = problem
    # Held-out bags choose neither kernel nor likelihood, which weights would change.
    options = {"kernel": RBF(1.5, 9.0), "learn_kernel": False, "n_inducing": 15}
    options["likelihood"] = SoftMax(3.0, float(np.median(bags.sizes)))
    model = VGPMIL(**options, random_state=0, tol=1e-8).fit(bags, y)
    fold = folds(y, N_FOLDS)
    for j in range(N_FOLDS):
        # Weights choose neither scaling nor inducing points.
        rest = VGPMIL(**options, random_state=0, tol=1e-8, calibrate=False)
        rest.fit(bags, y, sample_weight=np.where(fold == j, 1e-12, 1.0))
        found = line_of(model, rest.decision_function(bags)[fold == j])
        np.testing.assert_allclose(model.held_out_decision_[fold == j], found, atol=5e-3)


@pytest.mark.filterwarnings("ignore:VGPMIL did not converge")
def test_a_held_out_bag_is_read_by_a_paper_fit_to_the_others(problem):
    bags, y, _ = problem
    options = {"inference": "paper", "n_inducing": 15, "random_state": 0}
    model = VGPMIL(**options).fit(bags, y)
    fold = folds(y, calibration_folds(y))
    for j in range(fold.max() + 1):
        seen = np.flatnonzero(fold != j)
        rest = VGPMIL(**options, max_iter=model.n_iter_, calibrate=False).fit(bags[seen], y[seen])
        left = np.flatnonzero(fold == j)
        found = line_of(model, rest.decision_function(bags[left]))
        np.testing.assert_allclose(model.held_out_decision_[left], found, atol=1e-8)


def testleave_out_never_empties_a_class():
    mask = leave_out(np.array([0, 0, 0, 1]), 0.9, np.random.RandomState(0))
    assert mask[3] == False  # noqa: E712
    assert mask.sum() == 2
