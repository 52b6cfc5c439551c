"""The strategies: closed forms against brute force, batches that spread, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from bagwise import AutoVGPMIL, Bags
from bagwise.label import STRATEGIES, Learner, project, suggest, suggest_for
from bagwise.label import strategies as inside
from bagwise.label.members import ProcessView
from bagwise.label.strategies import InstanceScale, choose, instance_scale


def moments_of(view, scale, bags, rows):
    pool = np.arange(bags.n_instances)
    share = 1.0 / np.repeat(bags.sizes, bags.sizes) / len(bags)
    return inside.moments(view, scale, rows, pool, share)


def test_expected_movement_is_what_the_update_does(model, data):
    """Naively: add the site's linear part for each answer, and average the squared movement."""
    bags = data[0]
    (view,) = project(model, bags)
    rows = np.array([2, 31, 60])
    scale = InstanceScale(1.7, -0.4)
    before = moments_of(view, scale, bags, rows)
    S = view.W.T @ view.W
    A = view.A.astype(np.float64)
    for k, row in enumerate(rows):
        a = A[:, row]
        z = scale.slope * (view.m @ a - scale.center)
        var = scale.slope**2 * (a @ S @ a + view.r[row])
        p = expit(z / np.sqrt(1 + np.pi / 8 * var))
        total = 0.0
        for label, chance in ((1, p), (0, 1 - p)):
            # z is slope times f, so that a label moves v by slope S a (y - p).
            moved = scale.slope * (A.T @ (scale.slope * S @ a)) * (label - p)
            per_bag = [np.mean(part**2) for part in bags.split(moved)]
            total += chance * np.mean(per_bag)
        assert before.expected_movement()[k] == pytest.approx(total, rel=1e-4)


def test_covariances_after_a_choice_are_those_of_an_observation(model, data):
    bags = data[0]
    (view,) = project(model, bags)
    rows = np.arange(0, 60, 5)
    before = moments_of(view, InstanceScale(1.3, 0.0), bags, rows)
    after = before.answered(4)
    cov = before.C.T @ before.C
    expected = cov - np.outer(cov[4], cov[4]) / (cov[4, 4] + 4)
    np.testing.assert_allclose(after.C.T @ after.C, expected, atol=1e-10)
    np.testing.assert_allclose(after.var, before.var - cov[4] ** 2 / (cov[4, 4] + 4), atol=1e-10)
    everything = np.arange(bags.n_instances)
    whole = moments_of(view, InstanceScale(1.3, 0.0), bags, everything)
    shrunk = whole.answered(int(rows[4]))
    share = 1.0 / np.repeat(bags.sizes, bags.sizes) / len(bags)
    np.testing.assert_allclose(after.H, (shrunk.C * share) @ shrunk.C.T, atol=1e-8)


def test_the_scale_lies_between_negatives_and_the_strongest_of_positive_bags():
    rng = np.random.default_rng(0)
    f = np.concatenate([rng.normal(-2, 0.3, 40), rng.normal(-2, 0.3, 40)])
    f[40::8] = rng.normal(0, 0.3, 5)  # positives are near 0, not above
    view = ProcessView(f[None], np.zeros(80), np.ones(1), np.eye(1), 1.0, 1.0, 0.0)
    bags = Bags(np.ones((80, 1)), np.arange(0, 81, 8))
    y = np.repeat([0, 1], 5)
    known = np.full(80, -1)
    scale = instance_scale(view, bags, known, y)
    assert -1.5 < scale.center < -0.5
    # Answers count: the strongest of the first positive bag is not a positive one.
    known[40] = 0
    assert instance_scale(view, bags, known, y).center != scale.center
    # Without labels of bags and answers there is nothing to go by but the model.
    assert instance_scale(view, bags, np.full(80, -1), None) == InstanceScale(1.0, 0.0)


def twins():
    """One bag of forty patches of one spot, and ten bags with a patch elsewhere."""
    rng = np.random.default_rng(1)
    spot = rng.normal(0, 0.01, (40, 5)) + np.array([1.5, 0, 0, 0, 0])
    elsewhere = np.eye(5)[rng.integers(1, 5, 10)] + rng.normal(0, 0.05, (10, 5))
    return np.concatenate([spot, elsewhere])


@pytest.mark.parametrize("strategy", ["information", "uncertainty"])
def test_a_batch_is_diverse(strategy):
    A = twins().T
    bags = Bags(np.ones((50, 1)), np.array([0, 40, *range(41, 51)]))
    view = ProcessView(A, np.full(50, 0.01), np.zeros(5), 2 * np.eye(5), 1.0, 1.0, 0.0)
    known = np.full(50, -1)
    rows = choose([view], bags, 5, strategy, known=known, random_state=0)
    assert np.sum(rows < 40) <= 2


def test_every_tenth_question_explores_the_bags_asked_least(learner, data, monkeypatch):
    bags, y, _ = data
    positive = np.flatnonzero(y == 1)
    rows = np.concatenate([np.arange(bags.offsets[i], bags.offsets[i] + 1) for i in positive[:-1]])
    learner.known[rows[:9]] = 1
    # Nine answers are known, so the next question is the tenth.
    asked = np.bincount(bags.bag_index[rows[:9]], minlength=len(bags))
    for seed in range(5):
        (row,) = suggest_for(learner, 1, random_state=seed)
        assert asked[bags.bag_index[row]] == 0
    found = {int(suggest_for(learner, 1, random_state=seed)[0]) for seed in range(8)}
    assert len(found) > 1


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "disagreement"])
def test_only_open_instances_of_positive_bags(model, data, strategy):
    bags, y, truth = data
    known = np.full(bags.n_instances, -1)
    inside = np.flatnonzero(np.repeat(y, bags.sizes))
    known[inside[::3]] = truth[inside[::3]]
    rows = suggest(model, bags, 10_000, strategy, y=y, instance_labels=known, random_state=0)
    assert sorted(rows) == sorted(set(inside) - set(inside[::3]))
    assert len(set(rows.tolist())) == len(rows)


def test_the_same_seed_asks_the_same(model, data):
    a, b = (suggest(model, data[0], 8, y=data[1], random_state=3) for _ in range(2))
    assert a.tolist() == b.tolist()


def test_disagreement_is_the_divergence_of_the_members(data):
    """Naively, instance by instance: entropy of the mean label less the mean of the entropies."""
    bags, y, _ = data
    auto = AutoVGPMIL(n_inducing=15, random_state=0).fit(bags, y)
    views = project(auto, bags)
    assert len(views) > 1

    def entropy(p):
        return -p * np.log(p) - (1 - p) * np.log(1 - p)

    best, most = -1, -1.0
    for row in np.flatnonzero(np.repeat(y, bags.sizes)):
        p = []
        for view in views:
            a = view.A[:, row].astype(np.float64)
            var = a @ view.W.T @ view.W @ a + view.r[row]
            z, spread = view.slope * (view.m @ a) + view.intercept, view.slope**2 * var
            p.append(expit(z / np.sqrt(1 + np.pi / 8 * spread)))
        weights = np.array([view.weight for view in views])
        weights /= weights.sum()
        value = entropy(weights @ p) - weights @ entropy(np.array(p))
        best, most = (row, value) if value > most else (best, most)
    assert suggest(auto, bags, 1, "disagreement", y=y)[0] == best


def test_refusals(model, data):
    bags, y, _ = data
    with pytest.raises(ValueError, match="strategy must be one of"):
        suggest(model, bags, 3, "best")
    with pytest.raises(ValueError, match="disagreement needs several members"):
        suggest(model, bags, 3, "disagreement")
    with pytest.raises(ValueError, match="n must be at least 1"):
        suggest(model, bags, 0)
    with pytest.raises(ValueError, match="one label per bag: 30"):
        suggest(model, bags, 3, y=y[:-1])


def test_large_pools_are_drawn_from(learner, monkeypatch):
    monkeypatch.setattr(inside, "MAX_CANDIDATES", 20)
    assert len(set(suggest_for(learner, 100, random_state=0).tolist())) == 20


def test_a_learner_and_its_model_suggest_the_same(model, data):
    bags = data[0]
    learner = Learner(model, bags)
    known = np.full(bags.n_instances, -1)
    a = suggest(model, bags, 5, instance_labels=known, random_state=0)
    assert a.tolist() == suggest_for(learner, 5, random_state=0).tolist()
