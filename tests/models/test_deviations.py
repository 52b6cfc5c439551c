"""Deviations of instances: alike among those that are well covered, wider for those far out."""

import numpy as np
import pytest
from scipy.special import expit

from bagwise import GVGPMIL, VGPMIL, AutoVGPMIL, Bags
from bagwise.datasets import make_gaussian_bags
from bagwise.models.variational import estimators
from bagwise.models.variational.latent_map import (
    Deviations,
    InstanceMap,
    LatentMap,
    bags_to_read,
    usual_deviations,
)

MADE = {"n_features": 5, "bag_size": (20, 20), "n_positive": (10, 10), "separation": 3.0}


def naive_std(deviations, p, latent_std):
    """One instance after the other, as the class says."""
    made = []
    for q, latent in zip(p, latent_std, strict=True):
        v, s = q * (1 - q), deviations.usual
        if latent > deviations.far:
            s *= latent / deviations.far
        made.append(np.sqrt(v * v * s * s / (1 + v * s * s)))
    return np.array(made)


def of_log_odds(std, p):
    """The deviation of the log-odds that makes this standard deviation of the probability."""
    v = p * (1 - p)
    return std / np.sqrt(v * (v - std**2))


def problem(n=300):
    """Probabilities and deviations of f."""
    rng = np.random.default_rng(0)
    return rng.uniform(0.001, 0.999, size=n), rng.gamma(1.0, size=n)


def test_deviations_equal_their_naive_twin():
    p, latent_std = problem()
    deviations = Deviations(0.7, 1.3)
    std = deviations.shared(p * (1 - p), latent_std)
    np.testing.assert_allclose(std, naive_std(deviations, p, latent_std), rtol=1e-9)
    assert np.all(std < np.sqrt(p * (1 - p)))  # a coin's
    huge = Deviations(1e6, 1.3).shared(p * (1 - p), latent_std)
    np.testing.assert_allclose(huge, np.sqrt(p * (1 - p)), rtol=1e-6)


def test_among_usual_instances_the_order_is_that_of_the_probabilities():
    p, _ = problem(1000)
    v, rng = p * (1 - p), np.random.default_rng(1)
    std = Deviations(0.5, 1.0).shared(v, rng.uniform(0, 1, size=1000))
    by_p = np.argsort(-np.abs(p - 0.5), kind="stable")
    np.testing.assert_array_equal(np.argsort(std, kind="stable"), by_p)
    # Beyond, the deviation of f counts in proportion.
    std = Deviations(0.5, 1.0).shared(v, np.full(1000, 3.0))
    np.testing.assert_allclose(of_log_odds(std, p), 1.5, rtol=1e-6)


def test_the_usual_deviation_keeps_the_mean_and_most_have_it():
    rng = np.random.default_rng(0)
    log_odds = 3 * rng.normal(size=4000) - 2
    p = expit(log_odds)
    v, of_own, latent_std = p * (1 - p), *np.exp(rng.normal(size=(2, 4000)))
    stated = v * of_own / np.sqrt(1 + v * of_own**2)
    found = usual_deviations(log_odds, stated, latent_std, far=3.5)
    assert found.far == 3.5
    std = found.shared(v, latent_std)
    assert std.mean() == pytest.approx(stated.mean(), rel=1e-8)
    alike = np.isclose(of_log_odds(std, p), found.usual, rtol=1e-6)
    np.testing.assert_array_equal(alike, latent_std <= found.far)
    assert 0.85 < alike.mean() < 0.95
    assert np.quantile(of_own, 0.1) < found.usual < np.quantile(of_own, 0.9)


def test_without_far_it_is_beyond_all_that_were_read():
    latent_std = np.array([1.0, 3.0, 2.0])
    assert usual_deviations(np.zeros(3), np.full(3, 0.1), latent_std).far == 3.0


def test_gvgpmil_calls_a_multiple_of_the_median_far():
    train = make_gaussian_bags(60, random_state=0, **MADE)
    model = GVGPMIL(random_state=0).fit(train.bags, train.y)
    latent_std = np.sqrt(model.predict_latent(train.bags)[1])  # 1,200 instances: all are read
    expected = 3.5 * np.median(latent_std)
    assert expected < latent_std.max()
    assert model.instance_map_.deviations.far == pytest.approx(expected, rel=1e-6)


def test_far_is_beyond_all_that_were_held_out(monkeypatch):
    held_out_std = []
    level = estimators.level_with_bags

    def keep(instance_map, held_out, *others):
        held_out_std.append(np.sqrt(held_out.var).max())
        return level(instance_map, held_out, *others)

    monkeypatch.setattr(estimators, "level_with_bags", keep)
    train = make_gaussian_bags(60, random_state=0, **MADE)
    model = VGPMIL(random_state=0).fit(train.bags, train.y)
    assert model.instance_map_.deviations.far == pytest.approx(held_out_std[0], rel=1e-12)
    # Those that a model learned from are less in doubt than those that it did not.
    assert np.sqrt(model.predict_latent(train.bags)[1].max()) < held_out_std[0]


def test_a_posterior_without_doubt_and_one_that_knows_nothing():
    sure = usual_deviations(np.array([-1.0, 2.0]), np.zeros(2), np.zeros(2))
    assert sure.shared(np.full(2, 0.2), np.array([0.0, 3.0])).tolist() == [0, 0]
    coin = usual_deviations(np.zeros(1), np.array([0.5]), np.ones(1))
    np.testing.assert_allclose(coin.shared(np.array([0.25]), np.ones(1)), 0.5, rtol=1e-6)


def test_a_map_applies_them_to_the_product_with_the_bag():
    rng = np.random.default_rng(0)
    mean, var, bag = rng.normal(size=6), rng.uniform(0.5, 1, size=6), rng.normal(size=6)
    plain, deviations = InstanceMap(LatentMap(0.7, 0.1), 0.3), Deviations(0.4, 0.9)
    shared = plain._replace(deviations=deviations)
    before, after = (m.probabilities(mean, var, bag, np.full(6, 0.05)) for m in (plain, shared))
    np.testing.assert_array_equal(after.log_odds, before.log_odds)
    expected = naive_std(deviations, expit(after.log_odds), np.sqrt(var))
    np.testing.assert_allclose(after.std, expected, rtol=1e-9)
    assert np.all(np.abs(after.std / before.std - 1) > 1e-3)
    # In other units of the scores the same instances are far out.
    other = 2.0, 0.0
    before, after = (
        m.after(*other).probabilities(mean / 2, var / 4, bag, np.full(6, 0.05))
        for m in (plain, shared)
    )
    expected = naive_std(deviations, expit(after.log_odds), np.sqrt(var))
    np.testing.assert_allclose(after.std, expected, rtol=1e-9)


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
def test_most_unseen_instances_state_one_deviation(model):
    train = make_gaussian_bags(60, random_state=0, **MADE)
    test = make_gaussian_bags(40, random_state=1, **MADE)
    model.fit(train.bags, train.y)
    p, std = model.predict_proba_instances(test.bags, return_std=True)
    own, usual = of_log_odds(std, p[:, 1]), model.instance_map_.deviations.usual
    assert np.isclose(own, usual, rtol=1e-4).mean() > 0.95
    assert np.all(own > usual * (1 - 1e-4))
    # Bags, and the probabilities of instances, are what they are without.
    bag_std = model.predict_proba(test.bags, return_std=True)[1]
    model.instance_map_ = model.instance_map_._replace(deviations=None)
    np.testing.assert_array_equal(bag_std, model.predict_proba(test.bags, return_std=True)[1])
    plain, own_std = model.predict_proba_instances(test.bags, return_std=True)
    np.testing.assert_array_equal(plain, p)
    assert std.mean() == pytest.approx(own_std.mean(), rel=0.15)


def test_an_instance_unlike_all_others_deviates_more():
    train = make_gaussian_bags(60, random_state=0, **MADE)
    model = VGPMIL(random_state=0).fit(train.bags, train.y)
    far = Bags.from_list([np.full((1, 5), 40.0)])
    p, std = model.predict_proba_instances(far, return_std=True)
    deviations = model.instance_map_.deviations
    beyond = np.sqrt(model.predict_latent(far)[1]).item() / deviations.far
    assert beyond > 1.15
    assert of_log_odds(std, p[:, 1]).item() >= beyond * deviations.usual * (1 - 1e-6)
