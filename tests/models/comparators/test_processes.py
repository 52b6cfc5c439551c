"""GPMIL and the probit process: gradients, exactness at landmarks, the sampler against sums."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import expit, log_ndtr, ndtr

from bagwise import Bags
from bagwise.comparators import GPMIL, ProbitGP
from bagwise.models.comparators.features import Features
from bagwise.models.comparators.gaussian_processes import (
    curvature,
    draw_values,
    first_positive,
    sample_weights,
    softmax_loss,
)
from tests.checks import make_problem


def problem(seed, n_weights=4):
    rng = np.random.default_rng(seed)
    offsets = np.array([0, 2, 5, 6, 9])
    return rng.normal(size=(9, n_weights)), offsets, np.array([0, 1, 1, 0]), rng


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_gpmil_loss_and_gradient(seed, sharpness):
    phi, offsets, y, rng = problem(seed)
    w = rng.normal(size=4)
    naive = 0.5 * (w**2).sum()
    for b in range(4):
        f = phi[offsets[b] : offsets[b + 1]] @ w
        top = np.log(sum(np.exp(sharpness * v) for v in f)) / sharpness
        naive -= np.log(expit(top if y[b] else -top))
    loss, gradient = softmax_loss(w, phi, offsets, y, sharpness)
    assert loss == pytest.approx(naive)
    numeric = approx_fprime(w, lambda v: softmax_loss(v, phi, offsets, y, sharpness)[0], 1e-7)
    np.testing.assert_allclose(gradient, numeric, atol=1e-5)


def test_gpmil_curvature_is_the_hessian_for_bags_of_one():
    """Without a maximum to soften Gauss-Newton is exact: logistic regression."""
    phi, _, _, rng = problem(0)
    offsets, y, w = np.arange(10), rng.integers(0, 2, 9), rng.normal(size=4)
    numeric = np.array(
        [
            approx_fprime(w, lambda v, k=k: softmax_loss(v, phi, offsets, y, 1.0)[1][k], 1e-6)
            for k in range(4)
        ]
    )
    np.testing.assert_allclose(curvature(w, phi, offsets, 1.0), numeric, atol=1e-4)


def test_features_reproduce_the_kernel_at_the_landmarks():
    Z = np.random.default_rng(0).normal(size=(7, 2))
    phi = Features(Z, 0.3, 2.0)(Z)
    K = 2.0 * np.exp(-0.3 * ((Z[:, None] - Z) ** 2).sum(-1))
    np.testing.assert_allclose(phi @ phi.T, K, atol=1e-5)


def test_gpmil_uncertainty_shrinks_scores_far_from_the_data():
    bags, y, _ = make_problem()
    model = GPMIL(scale=None, calibrate=False, random_state=0).fit(bags, y)
    phi = model._features(bags.instances)
    plain = phi @ model.weights_
    assert (np.abs(model._instance_scores(bags.instances)) < np.abs(plain)).all()


def test_first_positive_has_the_right_probabilities():
    q, n = np.array([0.9, 0.2, 0.5]), 20_000
    offsets = 3 * np.arange(n + 1)
    rows = first_positive(np.tile(np.log(q), n), offsets, np.random.default_rng(0))
    first = np.array([0.1, 0.9 * 0.8, 0.9 * 0.2 * 0.5])
    assert first.sum() == pytest.approx(1 - q.prod())
    share = np.bincount(rows - offsets[:-1], minlength=3) / n
    np.testing.assert_allclose(share, first / first.sum(), atol=0.012)


def test_drawn_values_equal_rejection():
    """Draws given the bag label agree with plain draws thrown away where the label fails."""
    f = np.array([-0.5, 0.3, -1.0, 0.4])
    y = np.array([1, 0])
    rng = np.random.default_rng(0)
    n = 8000
    many = np.sort(np.concatenate([4 * np.arange(n + 1), 4 * np.arange(n) + 3]))
    drawn = draw_values(np.tile(f, n), many, np.tile(y, n), rng).reshape(n, 4)
    plain = f + rng.standard_normal((60_000, 4))
    plain = plain[(plain[:, :3].max(axis=1) > 0) & (plain[:, 3] < 0)]
    np.testing.assert_allclose(drawn.mean(axis=0), plain.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(drawn.std(axis=0), plain.std(axis=0), atol=0.05)
    np.testing.assert_allclose((drawn > 0).mean(axis=0), (plain > 0).mean(axis=0), atol=0.03)


def test_gibbs_equals_enumeration_on_tiny_bags():
    """Posterior mean of two weights, by the sampler and by a sum over a fine grid."""
    phi = np.array([[1.0, 0.2], [-0.5, 1.0], [0.3, -1.0], [1.2, 0.8], [-1.0, -0.4]])
    offsets, y = np.array([0, 2, 3, 5]), np.array([1, 0, 1])
    axis = np.linspace(-5, 5, 201)
    W = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    log_none = np.add.reduceat(log_ndtr(-(W @ phi.T)), offsets[:-1], axis=1)
    likelihood = np.where(y == 1, -np.expm1(log_none), np.exp(log_none)).prod(axis=1)
    p = likelihood * np.exp(-0.5 * (W**2).sum(axis=1))
    p /= p.sum()
    mean, second = p @ W, (p[:, None] * W).T @ W
    draws = sample_weights(phi, offsets, y, 6_000, np.random.RandomState(0))[300:]
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.07)
    np.testing.assert_allclose(draws.T @ draws / len(draws), second, atol=0.1)


def test_probit_bag_probability_is_one_less_that_of_none():
    bags, y, _ = make_problem()
    model = ProbitGP(n_samples=30, scale=None, calibrate=False, random_state=0).fit(bags, y)
    naive = []
    for x in bags:
        f = model._latent(x)
        naive.append(np.mean(1 - np.prod(1 - ndtr(f), axis=0)))
    np.testing.assert_allclose(expit(model.decision_function(bags)), naive, atol=1e-9)
    one = Bags(bags.instances, np.arange(bags.n_instances + 1))
    np.testing.assert_allclose(
        model.decision_function(one), model.decision_function_instances(bags), atol=1e-6
    )
