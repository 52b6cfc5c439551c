"""Evidence from the sizes of true boxes."""

from __future__ import annotations

import numpy as np
from scipy.stats import invwishart, multivariate_normal

from bagwise.vision.sizes import learn_sizes, log_sizes, size_log_odds


def test_log_sizes_are_shares_of_the_image():
    found = log_sizes([[0, 0, 50, 10], [3, 3, 0, 20]], [[20, 100], [40, 10]])
    np.testing.assert_allclose(np.exp(found), [[0.5, 0.5], [0.1, 0.5]])


def test_density_is_the_posterior_predictive():
    rng = np.random.default_rng(0)
    proposed, true = rng.normal(-2, 1, (300, 2)), rng.normal(-1.5, 0.3, (4, 2))
    point = np.array([-1.4, -1.7])
    # By brute force: draw mean and covariance from the posterior, average the normal density.
    mean, cov, centre = proposed.mean(0), np.cov(proposed.T), true.mean(0)
    kappa, nu = 0.5 + 4, 3 + 1 + 4
    psi = cov + (true - centre).T @ (true - centre)
    psi += 0.5 * 4 / kappa * np.outer(centre - mean, centre - mean)
    covs = invwishart.rvs(nu, psi, size=20_000, random_state=1)
    noise = rng.normal(size=(20_000, 2, 1))
    means = (0.5 * mean + 4 * centre) / kappa + (np.linalg.cholesky(covs / kappa) @ noise)[..., 0]
    gap = point - means
    quadratic = np.einsum("ni,nij,nj->n", gap, np.linalg.pinv(covs), gap)
    density = np.mean(np.exp(-0.5 * quadratic) / (2 * np.pi * np.sqrt(np.linalg.det(covs))))
    expected = np.log(density) - multivariate_normal.logpdf(point, mean, cov)
    found = size_log_odds(learn_sizes(true, proposed), point[None])
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_boxes_that_look_like_proposals_say_nothing():
    rng = np.random.default_rng(0)
    proposed = rng.normal(-2, 1, (2000, 2))
    odds = size_log_odds(learn_sizes(proposed[:200], proposed), proposed)
    assert np.abs(odds).mean() < 0.1


def test_one_box_and_equal_proposals_are_finite():
    same = np.full((50, 2), -1.0)
    odds = size_log_odds(learn_sizes(same[:1], same), np.array([[-1.0, -1.0], [-9.0, 0.0]]))
    assert np.isfinite(odds).all()
