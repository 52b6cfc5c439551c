"""Refinement by true boxes: its optimum, its prior, what it ignores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad, minimize

from bagwise.vision.detection import (
    Clues,
    design_matrix,
    fit_weights,
    learn_refinement,
    log_sizes,
)
from tests.reference import vision as naive


def make_clues(n=300, seed=0):
    """Proposals whose class goes by contrast and by a middling size, beside the log-odds."""
    rng = np.random.default_rng(seed)
    clues = Clues(
        rng.normal(-2, 1, n),
        rng.normal(size=(n, 1)),
        rng.normal(size=(n, 3)),
        rng.normal(-2, 1, (n, 2)),
        rng.normal(size=(n, 4)),
    )
    z = clues.log_odds + 2 * clues.contrast[:, 0] - ((clues.log_size + 2) ** 2).sum(axis=1) + 2
    return clues, (rng.random(n) < 1 / (1 + np.exp(-z))).astype(int)


def small_problem(seed=0):
    rng = np.random.default_rng(seed)
    X, offset = rng.normal(size=(40, 3)), rng.normal(-1, 1, 40)
    target, weight = rng.integers(0, 2, 40), rng.uniform(0.1, 2, 40)
    return X, offset, target, weight, np.array([0.3, 1.0, 20.0])


def test_optimum_is_that_of_a_general_minimiser():
    problem = small_problem()
    found = fit_weights(*problem)
    best = minimize(naive.refinement_loss, np.zeros(3), problem, method="BFGS", tol=1e-8)
    np.testing.assert_allclose(found, best.x, atol=1e-5)
    flat = check_grad(lambda t: naive.refinement_loss(t, *problem), lambda t: np.zeros(3), found)
    assert flat < 1e-4


def test_a_far_start_is_descended_from():
    X, offset, target, weight, precision = small_problem()
    found = fit_weights(10 * X, 30 * offset, target, weight, precision)
    problem = (10 * X, 30 * offset, target, weight, precision)
    best = minimize(naive.refinement_loss, np.zeros(3), problem, tol=1e-9)
    np.testing.assert_allclose(found, best.x, atol=1e-4)


def test_weights_count_proposals():
    X, offset, target, _, precision = small_problem()
    counts = np.random.default_rng(1).integers(0, 4, len(X))
    many = fit_weights(
        np.repeat(X, counts, 0),
        np.repeat(offset, counts),
        np.repeat(target, counts),
        np.ones(counts.sum()),
        precision,
    )
    np.testing.assert_allclose(fit_weights(X, offset, target, counts, precision), many, atol=1e-8)


def test_design_has_clues_products_a_constant_and_features_last():
    clues, _ = make_clues(5)
    X = design_matrix(clues, np.zeros(11), np.ones(11))
    w, h = clues.log_size.T
    expected = [
        clues.log_odds,
        *clues.evidence.T,
        *clues.contrast.T,
        w,
        h,
        w * w,
        h * h,
        w * h,
        np.ones(5),
    ]
    np.testing.assert_allclose(X.T, [*expected, *clues.features.T])


def test_learns_what_the_log_odds_do_not_say():
    clues, target = make_clues()
    new, truth = make_clues(seed=1)
    refined = learn_refinement(clues, target, np.ones(300), 30).refine(new)

    def cross_entropy(z):
        return np.mean(np.logaddexp(0, z) - truth * z)

    assert cross_entropy(refined) < 0.7 * cross_entropy(new.log_odds)


def test_unknown_proposals_do_not_count():
    clues, target = make_clues(60)
    some = np.where(np.arange(60) < 40, target, -1)
    one = learn_refinement(clues, some, np.ones(60), 5)
    two = learn_refinement(clues, target, np.where(some < 0, 0.0, 1.0), 5)
    np.testing.assert_allclose(one.weights, two.weights, atol=1e-8)


def test_a_target_between_is_a_weighted_pair():
    X, offset, _, weight, precision = small_problem()
    soft = np.random.default_rng(2).uniform(size=len(X))
    pairs = fit_weights(
        np.vstack([X, X]),
        np.tile(offset, 2),
        np.repeat([1, 0], len(X)),
        np.concatenate([weight * soft, weight * (1 - soft)]),
        precision,
    )
    np.testing.assert_allclose(fit_weights(X, offset, soft, weight, precision), pairs, atol=1e-7)


def test_few_images_change_less():
    clues, target = make_clues()
    change = [
        np.abs(learn_refinement(clues, target, weight, n).refine(clues) - clues.log_odds).mean()
        for n, weight in (
            (1, np.full(300, 0.01)),
            (1, np.ones(300)),
            (4, np.ones(300)),
            (100, np.ones(300)),
        )
    ]
    assert change == sorted(change)
    assert change[0] < 0.1 < 1 < change[-1]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_order_of_proposals_does_not_matter(seed):
    clues, target = make_clues(60, 3)
    rng = np.random.default_rng(seed)
    target = np.where(rng.random(60) < 0.3, -1, target)
    target[0], weight, order = 1, rng.uniform(size=60), rng.permutation(60)
    one = learn_refinement(clues, target, weight, 5)
    permuted = Clues(*(part[order] for part in clues))
    other = learn_refinement(permuted, target[order], weight[order], 5)
    np.testing.assert_allclose(one.refine(clues), other.refine(clues), atol=1e-7)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31 - 1), st.floats(0.01, 100), st.floats(-5, 5))
def test_units_of_features_do_not_matter(seed, unit, shift):
    clues, target = make_clues(60, seed)
    target[0] = 1
    other = clues._replace(features=unit * clues.features + shift, contrast=unit * clues.contrast)
    one = learn_refinement(clues, target, np.ones(60), 5).refine(clues)
    two = learn_refinement(other, target, np.ones(60), 5).refine(other)
    np.testing.assert_allclose(one, two, atol=1e-6)


@pytest.mark.parametrize("n", [1, 50])
def test_equal_proposals_and_certain_classifiers_are_finite(n):
    clues = Clues(
        np.full(n, -36.0),
        np.full((n, 1), -36.0),
        np.zeros((n, 3)),
        np.full((n, 2), -1.0),
        np.zeros((n, 2)),
    )
    refined = learn_refinement(clues, np.ones(n, dtype=int), np.ones(n), 1)
    assert np.isfinite(refined.refine(clues)).all()
    assert np.isfinite(refined.slope(clues))


@pytest.mark.parametrize("n_evidence", [0, 1])
def test_slope_is_the_rise_with_all_log_odds_of_the_classifier(n_evidence):
    clues, target = make_clues()
    clues = clues._replace(evidence=3 * clues.evidence[:, :n_evidence])
    refinement = learn_refinement(clues, target, np.ones(300), 30)
    moved = clues._replace(log_odds=clues.log_odds + 1, evidence=clues.evidence + 1)
    rise = refinement.refine(moved) - refinement.refine(clues)
    np.testing.assert_allclose(rise, refinement.slope(clues), atol=1e-9)


def test_log_sizes_are_shares_of_the_image():
    found = log_sizes([[0, 0, 50, 10], [3, 3, 0, 20]], [[20, 100], [40, 10]])
    np.testing.assert_allclose(np.exp(found), [[0.5, 0.5], [0.1, 0.5]])
