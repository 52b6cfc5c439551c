"""What the estimators say about their own uncertainty: calibration, intervals, warnings."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.metrics import log_loss

from bagwise import GVGPMIL, VGPMIL, Bags
from bagwise.core.kernels import RBF
from bagwise.datasets import make_gaussian_bags
from bagwise.models.variational import Or
from tests.checks import make_problem

QUICK = {"n_inducing": 15, "random_state": 0}


@pytest.fixture(scope="module")
def problem():
    return make_problem()


def test_permuted_labels_give_about_the_base_rate():
    """A coin has 0.693; the two fitted numbers of the map may cost 0.007."""
    n, losses, means = 100, [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        bags = Bags(rng.normal(size=(10 * n, 4)), np.arange(0, 10 * n + 1, 5))
        y = np.concatenate([rng.permutation(n) % 2 for _ in range(2)])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*found nothing in these bags")
            model = VGPMIL(n_inducing=15, random_state=seed).fit(bags[:n], y[:n])
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
    assert model.predictor_.lines is None and not model.predictor_.shares


def test_an_escaped_latent_function_is_no_convergence():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-3, 0.1, (200, 1)), rng.normal(3, 0.1, (200, 1))])
    bags, y = Bags(X, np.arange(0, 401, 10)), np.repeat([0, 1], 20)
    model = GVGPMIL(alpha=1.0, beta=4.0, calibrate=False, **QUICK)
    with (
        pytest.warns(UserWarning, match="Do not trust this fit"),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message=".*did not converge")
        warnings.filterwarnings("ignore", message=".*alone determines the label")
        model.fit(bags, y)
    assert model.converged_ is False


def test_the_posterior_is_wider_than_that_of_the_papers(problem):
    """Their updates take every instance of a positive bag for labelled."""
    bags, y, _ = problem
    options = {"kernel": RBF("median", 4.0), "learn_kernel": False, "calibrate": False, **QUICK}
    narrow = VGPMIL(inference="paper", **options).fit(bags, y).predict_latent(bags)[1]
    wide = VGPMIL(likelihood=Or(), **options).fit(bags, y).predict_latent(bags)[1]
    assert wide.mean() > 1.2 * narrow.mean()


def test_kernel_learning_does_not_leave_its_start_for_worse():
    bags, y = make_gaussian_bags(80, 2, separation=2, random_state=2, return_X_y=True)
    options = {"kernel": RBF("median", 4.0), "likelihood": Or(), "calibrate": False, **QUICK}
    plain = VGPMIL(learn_kernel=False, **options).fit(bags, y)
    learnt = VGPMIL(learn_kernel=True, **options).fit(bags, y)
    assert learnt.bound_history_[-1] >= plain.bound_history_[-1] - 0.1
