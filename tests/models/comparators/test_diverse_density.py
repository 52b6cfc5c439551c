"""Diverse density: losses against loops, gradients against differences, EM that never falls."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from bagwise import Bags
from bagwise.comparators import DDSVM, EMDD, DiverseDensity
from bagwise.core import baseline_passes
from bagwise.models.comparators.diverse_density import (
    Concept,
    NearestLoss,
    draw_starts,
    em,
    most_likely,
    noisy_or_loss,
    select_prototypes,
)
from tests.checks import make_problem


def problem(seed=0):
    rng = np.random.default_rng(seed)
    bags = Bags.from_list([rng.normal(size=(rng.integers(1, 5), 3)) for _ in range(8)])
    return bags, np.arange(8) % 2, rng.normal(size=6)


@pytest.mark.parametrize("seed", range(3))
def test_noisy_or_loss_and_gradient(seed):
    bags, y, theta = problem(seed)
    h, s = theta[:3], theta[3:]
    naive = 0.0
    for x, label in zip(bags, y, strict=True):
        none = np.prod([1 - np.exp(-((s * (row - h)) ** 2).sum()) for row in x])
        naive -= np.log(1 - none if label else none)
    loss, gradient = noisy_or_loss(theta, bags.instances, bags.offsets, y)
    assert loss == pytest.approx(naive)
    numeric = approx_fprime(
        theta, lambda t: noisy_or_loss(t, bags.instances, bags.offsets, y)[0], 1e-7
    )
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_nearest_loss_and_gradient(seed):
    bags, y, theta = problem(seed)
    h, s = theta[:3], theta[3:]
    naive = 0.0
    for x, label in zip(bags, y, strict=True):
        p = max(np.exp(-((s * (row - h)) ** 2).sum()) for row in x)
        naive -= np.log(p if label else 1 - p)
    chosen = bags.instances[most_likely(bags, h, s)]
    loss, gradient = NearestLoss(chosen, y)(theta)
    assert loss == pytest.approx(naive)
    numeric = approx_fprime(theta, lambda t: NearestLoss(chosen, y)(t)[0], 1e-7)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-4)


def test_distances_and_moments_equal_whole_matrices():
    rng = np.random.default_rng(0)
    X, point, scales, g = (rng.normal(size=size) for size in ((40, 7), 7, 7, 40))
    q = ((X - point) ** 2) @ scales**2
    np.testing.assert_allclose(baseline_passes.distances(X, point, scales), q, rtol=1e-12)
    first, second = baseline_passes.moments(g, X)
    np.testing.assert_allclose(first, g @ X, atol=1e-12)
    np.testing.assert_allclose(second, g @ X**2, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_likelihood_of_em_never_falls(seed):
    bags, y, _ = make_problem(seed=seed, shift=1.0)
    concept, losses = em(bags, y, int(bags.offsets[1]), 0.5, 20)
    assert losses == sorted(losses, reverse=True)
    chosen = bags.instances[most_likely(bags, concept.point, concept.scales)]
    theta = np.concatenate([concept.point, concept.scales])
    assert NearestLoss(chosen, y)(theta)[0] == pytest.approx(losses[-1])


def test_starts_take_one_row_of_each_positive_bag_first():
    bags, y, _ = make_problem()
    rows = draw_starts(bags, y, 12, np.random.RandomState(0))
    owners = bags.bag_index[rows]
    assert set(owners) == set(np.flatnonzero(y == 1))
    assert len(draw_starts(bags, y, 10**6, np.random.RandomState(0))) == (y[bags.bag_index]).sum()


@pytest.mark.parametrize("make", [DiverseDensity, lambda: EMDD(random_state=0)])
def test_the_concept_is_found(make):
    """Positive bags hold an instance at 3; the concept lands there and the rest does not matter."""
    bags, y, labels = make_problem(n_bags=60, shift=5.0)
    model = make().set_params(scale=None, calibrate=False).fit(bags, y)
    centre = bags.instances[labels == 1].mean(axis=0)
    relevant = model.scales_ > 0.1 * model.scales_.max()
    np.testing.assert_allclose(model.point_[relevant], centre[relevant], atol=1.5)


def test_prototypes_are_good_and_distinct():
    one, two = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    ones = np.ones(2)
    concepts = [
        Concept(one, ones, 1.0),
        Concept(one + 1e-4, ones, 1.1),
        Concept(two, ones, 2.0),
        Concept(-one, ones, 9.0),
    ]
    kept = select_prototypes(concepts)
    assert [c.loss for c in kept] == [1.0, 2.0]


def test_ddsvm_features_are_smallest_distances():
    bags, y, _ = make_problem()
    model = DDSVM(n_starts=3, random_state=0, scale=None, calibrate=False).fit(bags, y)
    Z = model._distances(bags)
    naive = [
        [
            min(np.sqrt((((row - h) * s) ** 2).sum()) for row in x)
            for h, s in zip(model.points_, model.scales_, strict=True)
        ]
        for x in bags
    ]
    np.testing.assert_allclose(Z, naive, atol=1e-4)


def test_a_bag_far_from_all_others_is_not_called_certain():
    """Scores fall with the square of a distance; labels without meaning say nothing of them."""
    rng = np.random.default_rng(0)
    bags = Bags(rng.normal(size=(120, 2)), np.arange(0, 121, 3))
    model = DiverseDensity().fit(bags, rng.permutation(40) % 2)
    far = Bags(np.array([[0.0, 0.0], [500.0, 500.0]]), np.arange(3))
    near, away = model.predict_proba(far)[:, 1]
    assert away < near  # the order stays
    assert away > 0.2
    model.calibrator_ = model.calibrator_._replace(low=-np.inf, high=np.inf)  # nothing beyond
    assert model.predict_proba(far)[1, 1] < 0.01
