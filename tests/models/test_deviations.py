"""Deviations of instances: alike among those that are well covered, wider for those far out."""

import numpy as np
import pytest
from scipy.special import expit

from bagwise import VGPMIL, AutoVGPMIL, Bags
from bagwise.datasets import make_gaussian_bags
from bagwise.models.variational.latent_map import (
    Deviations,
    InstanceMap,
    LatentMap,
    bags_to_read,
    usual_deviations,
)


def naive_std(deviations, p, latent_std):
    """One instance after the other, as the class says."""
    made = []
    for q, own in zip(p, latent_std, strict=True):
        v, s = q * (1 - q), deviations.usual
        if own > deviations.far:
            s *= own / deviations.far
        made.append(np.sqrt(v * v * s * s / (1 + v * s * s)))
    return np.array(made)


def of_log_odds(std, p):
    """The deviation of the log-odds that makes this standard deviation of the probability."""
    v = p * (1 - p)
    return std / np.sqrt(v * (v - std**2))


def test_deviations_equal_their_naive_twin():
    rng = np.random.default_rng(0)
    p, latent_std = rng.uniform(0.001, 0.999, size=300), rng.gamma(1.0, size=300)
    deviations = Deviations(0.7, 1.3)
    std = deviations.std(p * (1 - p), latent_std)
    np.testing.assert_allclose(std, naive_std(deviations, p, latent_std), rtol=1e-12)
    assert np.all(std < np.sqrt(p * (1 - p)))  # a coin's
    huge = Deviations(1e6, 1.3).std(p * (1 - p), latent_std)
    np.testing.assert_allclose(huge, np.sqrt(p * (1 - p)), rtol=1e-6)


def test_among_well_covered_instances_the_order_is_that_of_the_probabilities():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=1000)
    std = Deviations(0.5, 1.0).std(p * (1 - p), rng.uniform(0, 1, size=1000))
    by_p = np.argsort(-np.abs(p - 0.5), kind="stable")
    np.testing.assert_array_equal(np.argsort(std, kind="stable"), by_p)
    # Far out the deviation of f counts, in proportion.
    twice = Deviations(0.5, 1.0).std(p * (1 - p), np.full(1000, 2.0))
    np.testing.assert_allclose(of_log_odds(twice, p), 1.0, rtol=1e-8)


def test_the_usual_deviation_keeps_the_mean_and_nearly_all_have_it():
    rng = np.random.default_rng(0)
    log_odds = 3 * rng.normal(size=2000) - 2
    p = expit(log_odds)
    latent_std = np.exp(0.5 * rng.normal(size=2000))
    stated = p * (1 - p) * latent_std / np.sqrt(1 + p * (1 - p) * latent_std**2)
    found = usual_deviations(log_odds, stated, latent_std)
    std = found.std(p * (1 - p), latent_std)
    assert std.mean() == pytest.approx(stated.mean(), rel=1e-8)
    alike = np.isclose(of_log_odds(std, p), found.usual, rtol=1e-6)
    assert alike.mean() == pytest.approx(0.99, abs=0.001)
    assert latent_std[~alike].min() > latent_std[alike].max()
    assert np.quantile(latent_std, 0.1) < found.usual < np.quantile(latent_std, 0.9)


def test_a_posterior_without_doubt_and_one_that_knows_nothing():
    sure = usual_deviations(np.array([-1.0, 2.0]), np.zeros(2), np.zeros(2))
    assert sure.std(np.full(2, 0.2), np.array([0.0, 3.0])).tolist() == [0.0, 0.0]
    coin = usual_deviations(np.zeros(1), np.array([0.5]), np.ones(1))
    np.testing.assert_allclose(coin.std(np.array([0.25]), np.ones(1)), 0.5, rtol=1e-6)


def test_a_map_applies_them_to_the_product_with_the_bag():
    rng = np.random.default_rng(0)
    mean, var, bag = rng.normal(size=6), rng.uniform(0.5, 1, size=6), rng.normal(size=6)
    plain, deviations = InstanceMap(LatentMap(0.7, 0.1), 0.3), Deviations(0.4, 0.8)
    shared = plain._replace(deviations=deviations)
    before, after = (m.probabilities(mean, var, bag, np.full(6, 0.05)) for m in (plain, shared))
    np.testing.assert_array_equal(after.log_odds, before.log_odds)
    expected = naive_std(deviations, expit(after.log_odds), np.sqrt(var))
    np.testing.assert_allclose(after.std, expected, rtol=1e-9)
    assert np.all(np.abs(after.std / before.std - 1) > 1e-3)
    # In other units of the scores the same instances are far out.
    halved = shared.after(2.0, 0.0).probabilities(mean / 2, var / 4, bag, np.full(6, 0.05))
    expected = naive_std(deviations, expit(halved.log_odds), np.sqrt(var))
    np.testing.assert_allclose(halved.std, expected, rtol=1e-9)


def test_some_thousand_instances_are_read_whatever_the_bags():
    rng = np.random.default_rng(0)
    for sizes in (np.full(2000, 7), rng.integers(1, 900, size=300), np.array([50_000, 60_000])):
        chosen = bags_to_read(sizes)
        assert np.all(np.diff(chosen) > 0)
        read = sizes[chosen].sum()
        assert read >= min(5000, sizes.sum())
        assert read - sizes[chosen].max() < 5000
    np.testing.assert_array_equal(bags_to_read(np.array([3, 4])), [0, 1])


@pytest.mark.parametrize("model", [VGPMIL(random_state=0), AutoVGPMIL(n_inducing=40, cv=3)])
def test_stated_deviations_of_a_fit(model):
    """Unseen instances share one deviation; one far from all bags has a larger one."""
    made = {"n_features": 5, "bag_size": (20, 20), "n_positive": (10, 10), "separation": 3.0}
    train = make_gaussian_bags(60, random_state=0, **made)
    test = make_gaussian_bags(40, random_state=1, **made)
    model.fit(train.bags, train.y)
    p, std = model.predict_proba_instances(test.bags, return_std=True)
    own, usual = of_log_odds(std, p[:, 1]), model.instance_map_.deviations.usual
    assert 0.9 < np.isclose(own, usual, rtol=1e-4).mean() < 1.0
    assert np.all(own > usual * (1 - 1e-4))
    far = Bags.from_list([np.full((1, 5), 40.0)])
    q, far_std = model.predict_proba_instances(far, return_std=True)
    assert of_log_odds(far_std, q[:, 1]).item() > 1.15 * usual
    # Bags, and the probabilities of instances, are what they were.
    bag_std = model.predict_proba(test.bags, return_std=True)[1]
    model.instance_map_ = model.instance_map_._replace(deviations=None)
    np.testing.assert_array_equal(bag_std, model.predict_proba(test.bags, return_std=True)[1])
    plain, own_std = model.predict_proba_instances(test.bags, return_std=True)
    np.testing.assert_array_equal(plain, p)
    assert std.mean() == pytest.approx(own_std.mean(), rel=0.15)
