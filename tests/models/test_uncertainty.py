"""What the estimators say about their own uncertainty: calibration, intervals, warnings."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

from bagwise import GVGPMIL, VGPMIL, Bags
from bagwise.datasets import make_gaussian_bags
from bagwise.models.variational import LargeMargin
from tests.checks import make_problem

QUICK = {"n_inducing": 15, "random_state": 0}


@pytest.fixture(scope="module")
def problem():
    return make_problem()


@pytest.fixture(scope="module")
def model(problem):
    bags, y, _ = problem
    return VGPMIL(likelihood="or", posterior="marginal", **QUICK).fit(bags, y)


def test_permuted_labels_give_about_the_base_rate():
    """A coin has 0.693; the two fitted numbers of the map may cost 0.007."""
    n, losses, means = 100, [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        bags = Bags(rng.normal(size=(10 * n, 4)), np.arange(0, 10 * n + 1, 5))
        y = np.concatenate([rng.permutation(n) % 2 for _ in range(2)])
        # On noise the last digits of q wander: looser steps, the same answer.
        model = VGPMIL(n_inducing=15, tol=1e-2, random_state=seed).fit(bags[:n], y[:n])
        p = model.predict_proba(bags[n:])[:, 1]
        losses.append(log_loss(y[n:], p))
        means.append(p.mean() - y[:n].mean())
    assert np.mean(losses) < 0.70
    assert abs(np.mean(means)) < 0.02


def test_one_bag_of_a_class_is_left_uncalibrated_and_says_so(problem):
    bags, y, _ = problem
    chosen = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:1]])
    with pytest.warns(UserWarning, match="calibration needs 2 bags of each class"):
        model = VGPMIL(**QUICK).fit(bags[chosen], y[chosen])
    assert model.calibration_ is None


def test_intervals_hold_the_probability_and_grow_with_the_level(problem, model):
    bags, _, _ = problem
    for predict in (model.predict_proba, model.predict_proba_instances):
        proba, std, wide = predict(bags, return_std=True, return_interval=0.9)
        alone, narrow = predict(bags, return_interval=0.5)
        plain, plain_std = predict(bags, return_std=True)
        np.testing.assert_allclose(proba, plain, atol=1e-12)
        np.testing.assert_allclose(std, plain_std, atol=1e-12)
        np.testing.assert_array_equal(alone, proba)
        assert (wide[:, 0] <= narrow[:, 0]).all() and (narrow[:, 1] <= wide[:, 1]).all()
        assert ((wide[:, 0] <= proba[:, 1]) & (proba[:, 1] <= wide[:, 1])).mean() > 0.95
    with pytest.raises(ValueError, match="level strictly between 0 and 1"):
        model.predict_proba(bags, return_interval=1.5)


def test_positive_fraction_is_the_mean_of_the_instances(problem, model):
    bags, _, _ = problem
    p = model.predict_proba_instances(bags)[:, 1]
    fraction, std, interval = model.predict_positive_fraction(
        bags, return_std=True, return_interval=0.9
    )
    np.testing.assert_allclose(fraction, [part.mean() for part in bags.split(p)], atol=1e-5)
    np.testing.assert_array_equal(model.predict_positive_fraction(bags), fraction)
    # Labels drawn apart from each other spread least.
    least = [np.sqrt((part * (1 - part)).sum()) / len(part) for part in bags.split(p)]
    assert (std > 0.9 * np.array(least)).all()
    assert (interval[:, 0] <= fraction).all() and (interval[:, 0] < interval[:, 1]).all()


def test_the_marginal_posterior_is_wider(problem):
    bags, y, _ = problem
    options = {"likelihood": "or", "calibrate": False, **QUICK}
    narrow = VGPMIL(**options).fit(bags, y).predict_latent(bags)[1]
    wide = VGPMIL(posterior="marginal", **options).fit(bags, y).predict_latent(bags)[1]
    assert wide.mean() > 1.2 * narrow.mean()
    with pytest.raises(ValueError, match="posterior='marginal' has no effect with LargeMargin"):
        VGPMIL(likelihood=LargeMargin(2.0, 2.0), posterior="marginal", **QUICK).fit(bags, y)


def test_gamma_densities_without_a_stable_fit_are_told(problem):
    bags, y, _ = problem
    with pytest.warns(UserWarning, match=r"beta=4 exceeds 2 alpha\^2=2"):
        GVGPMIL(alpha=1.0, beta=4.0, calibrate=False, max_iter=2, tol=0.0, **QUICK).fit(bags, y)


def test_an_escaped_latent_function_is_no_convergence():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-3, 0.1, (200, 1)), rng.normal(3, 0.1, (200, 1))])
    bags, y = Bags(X, np.arange(0, 401, 10)), np.repeat([0, 1], 20)
    model = GVGPMIL(alpha=1.0, beta=4.0, likelihood="inherited", calibrate=False, **QUICK)
    with (
        pytest.warns(ConvergenceWarning, match="Do not trust this fit"),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message=".*exceeds 2 alpha")
        warnings.filterwarnings("ignore", message=".*did not converge")
        warnings.filterwarnings("ignore", message=".*alone determines the label")
        model.fit(bags, y)
    assert model.converged_ is False


def test_kernel_learning_does_not_leave_its_start_for_worse():
    bags, y = make_gaussian_bags(80, 2, separation=2, random_state=2, return_X_y=True)
    options = {"likelihood": "or", "n_inducing": 15, "calibrate": False, "random_state": 0}
    plain = VGPMIL(**options).fit(bags, y)
    learnt = VGPMIL(learn_kernel=True, **options).fit(bags, y)
    assert learnt.bound_history_[-1] >= plain.bound_history_[-1] - 0.1
