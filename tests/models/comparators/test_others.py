"""Boxes, stumps, hulls, keys, votes, groups and trees: each core against a naive twin."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize
from scipy.special import expit

from bagwise import Bags
from bagwise.comparators import (
    APR,
    BLRT,
    GICF,
    MICA,
    PPMM,
    BagKISVM,
    CitationKNNROI,
    InstanceKISVM,
    MIForest,
    MILBoost,
    StatisticsForest,
    VotingFramework,
    VotingWalk,
)
from bagwise.core.baseline_passes import largest_gain
from bagwise.models.comparators import (
    apr,
    forests,
    gicf,
    ki_svm,
    mica,
    milboost,
    neighbours,
)
from bagwise.models.comparators.features import resolve_gamma
from bagwise.models.comparators.forests import Trees, forest_log_odds, keep
from bagwise.models.comparators.ppmm import p_posterior
from bagwise.models.held_out import splits
from tests.checks import make_problem

# --- APR


def test_growth_is_the_growth_of_the_box():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(10, 3))
    low, high = X[:4].min(axis=0), X[:4].max(axis=0)
    for row, growth in zip(X, apr._growth(X, low, high), strict=True):
        assert growth == pytest.approx(apr.box_size(np.r_[X[:4], [row]]) - apr.box_size(X[:4]))


def test_grow_finds_the_smallest_box_of_small_problems():
    """Each positive bag has one instance near the origin and one anywhere."""
    rng = np.random.default_rng(1)
    bags = Bags.from_list(
        [np.r_[0.1 * rng.normal(size=(1, 2)), 3 * rng.normal(size=(2, 2))] for _ in range(5)]
    )
    rows = apr.grow(bags, apr.central(bags))
    best = min(
        product(*(range(bags.offsets[b], bags.offsets[b + 1]) for b in range(5))),
        key=lambda choice: apr.box_size(bags.instances[list(choice)]),
    )
    assert apr.box_size(bags.instances[rows]) == pytest.approx(
        apr.box_size(bags.instances[list(best)])
    )


def test_features_that_tell_negatives_apart():
    low, high, margin = np.zeros(3), np.ones(3), np.ones(3)
    negatives = np.array([[5.0, 0.5, 0.5], [4.0, 0.5, 0.5], [0.5, 0.5, 1.2], [0.5, 0.5, 0.5]])
    # The first two by feature 0, the third best by feature 2, the last by none.
    np.testing.assert_array_equal(apr.discriminating(negatives, low, high, margin), [0, 2])


def test_the_box_holds_a_witness_of_every_positive_bag():
    bags, y, _ = make_problem()
    model = APR(calibrate=False).fit(bags, y)
    assert (model.decision_function(bags)[y == 1] > 0).all()
    assert len(np.unique(bags.bag_index[model.key_instances_])) == (y == 1).sum()
    wider = APR(calibrate=False, width=1.0).fit(bags, y)
    assert (wider.high_ - wider.low_ > model.high_ - model.low_).all()


def test_ten_folds_hold_out_the_bags_of_a_box_that_grows_with_every_bag():
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    bags = Bags(rng.normal(size=(240, 3)) + 2 * np.repeat(y, 3)[:, None], np.arange(0, 241, 3))
    assert len(splits(y, APR().cv)) == 10

    def level(cv):
        """Mean score of positive bags that were left out."""
        scores = []
        for train, test in splits(y, cv):
            box = APR(calibrate=False).fit(bags[train], y[train])
            scores.extend(box.decision_function(bags[test])[y[test] == 1])
        return np.mean(scores)

    assert level(2) < level(10)


# --- MILBoost


@pytest.mark.parametrize("seed", range(4))
def test_best_stump_equals_trying_all(seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, size=(12, 3)).astype(float)  # many ties
    w = rng.normal(size=12)
    stump = milboost.best_stump(milboost.sort_columns(X), w)
    best = max(
        abs(w @ np.where(X[:, d] > t, 1.0, -1.0)) for d in range(3) for t in np.arange(-0.5, 4)
    )
    assert w @ stump(X) == pytest.approx(best)


def naive_grow(bags, start):
    """As `apr.grow`, with every box and every bag worked out anew."""
    X, owner, chosen = bags.instances, bags.bag_index, {}

    def growth(rows, others):
        low, high = X[others].min(axis=0), X[others].max(axis=0)
        return (np.maximum(low - X[rows], 0) + np.maximum(X[rows] - high, 0)).sum(axis=1)

    chosen[owner[start]] = start
    while len(chosen) < len(bags):
        left = np.flatnonzero(~np.isin(owner, list(chosen)))
        row = left[np.argmin(growth(left, list(chosen.values())))]
        chosen[owner[row]] = row
        for b in list(chosen)[1:-1]:
            rows = np.flatnonzero(owner == b)
            others = [r for other, r in chosen.items() if other != b]
            chosen[b] = rows[np.argmin(growth(rows, others))]
    return np.array([chosen[b] for b in range(len(bags))])


@pytest.mark.parametrize("seed", range(5))
def test_boxes_grow_as_in_plain_loops(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, size=12)
    bags = Bags.from_list([rng.integers(0, 5, size=(n, 6)).astype(float) for n in sizes])
    np.testing.assert_array_equal(apr.grow(bags, 3), naive_grow(bags, 3))
    one = bags[:1]
    np.testing.assert_array_equal(apr.grow(one, 0), [0])


@pytest.mark.parametrize("seed", range(3))
def test_best_stump_equals_whole_cumulative_sums(seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 3, size=(40, 6)).astype(float)
    X[:, 4] = X[:, 1]  # equal gains
    w = np.where(rng.random(40) < 0.5, rng.normal(size=40).round(1), 0.0)
    columns = milboost.sort_columns(X)
    below = w.sum() - 2 * np.cumsum(w[columns.order], axis=1)
    below[columns.is_tied] = 0
    best = np.argwhere(np.abs(below) == np.abs(below).max())
    d, k = best[np.lexsort(best.T)[0]]
    assert largest_gain(columns.order, columns.is_tied, w, w.sum()) == (
        d,
        k,
        below[d, k],
    )


def test_boosting_weights_are_the_derivative():
    rng = np.random.default_rng(0)
    offsets, y, f = np.array([0, 2, 5, 6]), np.array([1, 0, 1]), rng.normal(size=6)
    numeric = approx_fprime(f, lambda v: -milboost.bag_loss(v, offsets, y), 1e-7)
    np.testing.assert_allclose(milboost.instance_weights(f, offsets, y), numeric, atol=1e-5)
    p = expit(f)
    none = np.array([np.prod(1 - p[a:b]) for a, b in ((0, 2), (2, 5), (5, 6))])
    naive = -np.log(np.where(y == 1, 1 - none, none)).sum()
    assert milboost.bag_loss(f, offsets, y) == pytest.approx(naive)


def test_boosting_lowers_the_loss_every_round():
    bags, y, _ = make_problem(shift=1.5)
    model = MILBoost(n_estimators=30, calibrate=False).fit(bags, y)
    assert (np.diff(model.losses_) < 0).all()
    again = milboost.bag_loss(model.decision_function_instances(bags), bags.offsets, y)
    assert again == pytest.approx(model.losses_[-1])


# --- MICA


@pytest.mark.parametrize("seed", range(4))
def test_hull_weights_equal_a_general_solver(seed):
    rng = np.random.default_rng(seed)
    f = rng.normal(size=4)
    for target in (-0.5, 0.3, 5.0):
        w = mica.hull_weights(f, target)
        reach = min(target, f.max())
        assert w.sum() == pytest.approx(1)
        assert (w >= 0).all()
        assert w @ f >= reach - 1e-6
        general = minimize(
            lambda v: v @ v,
            np.full(4, 0.25),
            bounds=[(0, 1)] * 4,
            constraints=[
                {"type": "eq", "fun": lambda v: v.sum() - 1},
                {"type": "ineq", "fun": lambda v, r=reach: v @ f - r},
            ],
            options={"maxiter": 500},
        )
        assert w @ w <= general.fun + 1e-4


def test_projection_onto_the_simplex():
    v = np.array([0.9, 0.4, -1.0])
    np.testing.assert_allclose(mica.project_to_simplex(v), [0.75, 0.25, 0.0])


def test_mica_weights_sum_to_one_in_each_positive_bag():
    bags, y, _ = make_problem()
    model = MICA(calibrate=False, random_state=0).fit(bags, y)
    sizes = bags.sizes[y == 1]
    sums = np.add.reduceat(model.hull_weights_, np.r_[0, np.cumsum(sizes)[:-1]])
    np.testing.assert_allclose(sums, 1)


# --- KI-SVM


def test_one_plane_is_a_plain_machine_and_copies_change_nothing():
    from sklearn.svm import SVC

    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3))
    signs = np.where(np.arange(20) % 2, 1.0, -1.0)
    K, C = X @ X.T, np.full(20, 2.0)
    mu, alpha = ki_svm.mix_kernels([K], signs, C)
    svc = SVC(C=2.0, kernel="precomputed").fit(K, signs)
    np.testing.assert_allclose(alpha[svc.support_], svc.dual_coef_[0], atol=1e-3)
    mu, twice = ki_svm.mix_kernels([K, K], signs, C)
    np.testing.assert_allclose(mu, 0.5)
    np.testing.assert_allclose(twice, alpha, atol=1e-3)


def test_mixing_prefers_the_kernel_that_separates():
    rng = np.random.default_rng(0)
    signs = np.where(np.arange(30) % 2, 1.0, -1.0)
    good = signs[:, None] + 0.1 * rng.normal(size=(30, 1))
    bad = rng.normal(size=(30, 1))
    mu, _ = ki_svm.mix_kernels([good @ good.T, bad @ bad.T], signs, np.ones(30))
    assert mu[0] > 0.9


@pytest.mark.parametrize("cls", [BagKISVM, InstanceKISVM])
def test_keys_are_the_true_positives(cls):
    bags, y, labels = make_problem(n_bags=40)
    model = cls(calibrate=False, random_state=0).fit(bags, y)
    assert labels[model.keys_].mean() > 0.9
    np.testing.assert_array_equal(y[bags.bag_index[model.keys_]], 1)


def test_hardest_rows_of_each_bag():
    scores = np.array([3.0, 1.0, 2.0, 5.0, 9.0, 8.0])
    rows, costs = ki_svm.hardest(scores, np.array([0, 3, 4, 6]), 2)
    np.testing.assert_array_equal(rows, [0, 2, 3, 4, 5])
    np.testing.assert_array_equal(costs, [0.5, 0.5, 1, 0.5, 0.5])


# --- voting


def test_citers_by_hand():
    # Three on a line at 0, 1 and 5; each cites its nearest: 0 -> 1, 1 -> 0, 5 -> 1.
    X = np.array([0.0, 1.0, 5.0])
    reach = np.array([1.0, 1.0, 16.0])
    new = np.array([2.0, 100.0])
    links = neighbours.citers((new[:, None] - X) ** 2, reach, 1).toarray()
    # At 2: within 1 of the second and within 16 of the third. At 100: nobody, so the nearest.
    np.testing.assert_allclose(links, [[0, 0.5, 0.5], [0, 0, 1]])


def test_walk_is_the_solution_of_its_equation():
    rng = np.random.default_rng(0)
    A = rng.random((6, 6))
    A /= A.sum(axis=1, keepdims=True)
    labels = np.array([1.0, 1, 1, -1, -1, 1])
    s = VotingWalk(restart=0.3)._standing(labels, A)
    free = labels > 0
    M = np.eye(4) - 0.7 * A[np.ix_(free, free)]
    exact = np.linalg.solve(M, 0.7 * A[np.ix_(free, ~free)] @ -np.ones(2) + 0.3)
    np.testing.assert_allclose(s[free], exact, atol=1e-5)
    np.testing.assert_array_equal(s[~free], -1)


def test_restart_of_one_is_the_bag_label():
    bags, y, _ = make_problem()
    model = VotingWalk(n_neighbors=3, restart=1.0, calibrate=False).fit(bags, y)
    np.testing.assert_array_equal(model.votes_, 2.0 * y[bags.bag_index] - 1)
    plain = VotingFramework(n_neighbors=3, calibrate=False).fit(bags, y)
    assert (plain.votes_[y[bags.bag_index] == 0] == -1).all()
    assert plain.votes_.min() >= -1
    assert plain.votes_.max() <= 1


# --- CkNN-ROI


def test_the_key_instance_carries_the_score_of_its_bag():
    bags, y, _ = make_problem()
    model = CitationKNNROI(cv=2).fit(bags, y)
    best = [s.max() for s in bags.split(model.decision_function_instances(bags))]
    np.testing.assert_allclose(best, model.decision_function(bags), atol=1e-9)


def test_equal_votes_are_told_apart_by_the_nearer_side():
    bags = Bags.from_list([np.array([[-1.0]]), np.array([[1.0]])])
    model = CitationKNNROI(n_references=2, n_citers=2, scale=None, calibrate=False).fit(
        bags, [0, 1]
    )
    scores = model.decision_function_instances(Bags.from_list([np.array([[0.2], [-0.2]])]))
    assert scores[0] > scores[1]


# --- GICF


def test_group_loss_and_gradient():
    rng = np.random.default_rng(0)
    X, offsets, y = rng.normal(size=(7, 2)), np.array([0, 3, 4, 7]), np.array([1, 0, 1])
    graph = gicf.similarity_graph(X, 2)
    W = graph.toarray()
    np.testing.assert_allclose(W, W.T)
    theta = rng.normal(size=3)
    p = expit(X @ theta[:2] + theta[2])
    naive = 0.4 / 7 * sum(W[i, j] * (p[i] - p[j]) ** 2 for i in range(7) for j in range(7))
    naive += np.mean([(p[a:b].mean() - t) ** 2 for a, b, t in ((0, 3, 1), (3, 4, 0), (4, 7, 1))])
    naive += 0.1 * (theta[:2] ** 2).sum()
    arguments = (X, offsets, y, graph, 0.4, 0.1)
    loss, gradient = gicf.group_loss(theta, *arguments)
    assert loss == pytest.approx(naive)
    numeric = approx_fprime(theta, lambda t: gicf.group_loss(t, *arguments)[0], 1e-7)
    np.testing.assert_allclose(gradient, numeric, atol=1e-5)


def test_smoothing_brings_neighbours_together():
    bags, y, _ = make_problem(shift=1.0)

    def roughness(smooth):
        model = GICF(smooth=smooth, calibrate=False).fit(bags, y)
        p = expit(model.decision_function_instances(bags))
        W = gicf.similarity_graph(model._scaled(bags).instances, 10).toarray()
        return (W * (p[:, None] - p) ** 2).sum()

    assert roughness(3.0) < roughness(0.0)


# --- trees and mixtures


def test_drawn_labels_keep_the_assumption():
    rng = np.random.RandomState(0)
    offsets, y = np.array([0, 3, 5, 8]), np.array([1, 0, 1])
    scores = np.array([-9.0, -8.0, -9.0, 5.0, 5.0, 9.0, -9.0, 9.0])
    labels = forests.draw_labels(scores, offsets, y, 0.1, rng)
    np.testing.assert_array_equal(labels, [0, 1, 0, 0, 0, 1, 0, 1])
    hot = np.mean([forests.draw_labels(scores, offsets, y, 1e6, rng) for _ in range(400)], axis=0)
    np.testing.assert_allclose(hot[[0, 2, 6, 7]], 0.5, atol=0.1)


def test_forest_labels_are_firm_at_the_end():
    bags, y, labels = make_problem(n_bags=60)
    model = MIForest(n_estimators=30, random_state=0, calibrate=False).fit(bags, y)
    assert (model.labels_[y[bags.bag_index] == 0] == 0).all()
    assert (model.labels_ == labels).mean() > 0.85


def test_shares_above_equal_counting():
    bags, _, _ = make_problem(n_bags=5)
    thresholds = np.array([[0.0, 1.0, -1.0], [0.5, 0.5, 0.5]])
    naive = [
        [np.mean([r[d] > t[d] for r in x]) for t in thresholds for d in range(3)] for x in bags
    ]
    np.testing.assert_allclose(
        forests.shares_above(bags.instances, bags.offsets, thresholds), naive
    )
    model = BLRT(n_estimators=20, calibrate=False, random_state=0).fit(bags, [0, 1, 0, 1, 0])
    assert (model.thresholds_ >= bags.instances.min(axis=0)).all()
    assert (model.thresholds_ <= bags.instances.max(axis=0)).all()


@pytest.mark.parametrize("p", [1.0, 2.0, 4.0, np.inf])
def test_p_posterior_equals_loops(p):
    rng = np.random.default_rng(0)
    posterior = rng.dirichlet(np.ones(3), size=6)
    offsets = np.array([0, 1, 4, 6])
    found = p_posterior(np.log(posterior), offsets, p)
    for b in range(3):
        part = posterior[offsets[b] : offsets[b + 1]]
        naive = part.max(axis=0) if np.isinf(p) else (part**p).mean(axis=0) ** (1 / p)
        np.testing.assert_allclose(found[b], naive)


def test_ppmm_takes_the_best_power_and_refuses_nonsense():
    bags, y, _ = make_problem(n_bags=40)
    model = PPMM(n_components=20, calibrate=False, random_state=0).fit(bags, y)
    assert model.powers_scores_[model.power_] == max(model.powers_scores_.values())
    np.testing.assert_allclose(np.exp(model._log_posterior(bags.instances)).sum(axis=1), 1)
    with pytest.raises(ValueError, match="powers must be positive"):
        PPMM(powers=(0.0,)).fit(bags, y)


def test_unknown_statistics_are_named():
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match="statistics must be among"):
        StatisticsForest(statistics=("mode",)).fit(bags, y)


@pytest.mark.parametrize("kind", ["forest", "extra", "boosting"])
def test_kept_trees_equal_those_of_scikit_learn(kind):
    from sklearn.ensemble import (
        ExtraTreesClassifier,
        GradientBoostingClassifier,
        RandomForestClassifier,
    )

    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(60, 4)), rng.normal(size=(40, 4))
    y = (X[:, 0] + rng.normal(size=60) > 0).astype(int)
    if kind == "boosting":
        model = GradientBoostingClassifier(n_estimators=10, random_state=0).fit(X, y)
        total = keep(model.estimators_[:, 0]).leaves(new).sum(axis=1)
        share = y.mean()
        np.testing.assert_allclose(
            np.log(share / (1 - share)) + 0.1 * total, model.decision_function(new)
        )
    else:
        cls = RandomForestClassifier if kind == "forest" else ExtraTreesClassifier
        model = cls(10, random_state=0, min_samples_leaf=3).fit(X, y)
        p = keep(model.estimators_).leaves(new).mean(axis=1)
        np.testing.assert_allclose(p, model.predict_proba(new)[:, 1])
        odds = forest_log_odds(keep(model.estimators_), new)
        np.testing.assert_allclose(odds, np.log(p / (1 - p)), atol=1e-9)


def test_a_unanimous_forest_stays_finite():
    one, zero = np.zeros(1, dtype=np.int64), np.zeros(1)
    leaf = Trees(one, one, one, one, zero, np.ones(1))
    assert forest_log_odds(leaf, np.zeros((1, 1)))[0] == pytest.approx(np.log(999))


# --- rules of our own


def test_boosting_starts_undecided():
    bags, y, _ = make_problem()
    model = MILBoost(n_estimators=1, calibrate=False).fit(bags, y)
    p = expit(model.intercept_)
    assert 1 - (1 - p) ** bags.sizes.mean() == pytest.approx(0.5)


def test_the_voting_threshold_is_midway_between_the_classes():
    bags, y, _ = make_problem()
    model = VotingFramework(n_neighbors=3, calibrate=False).fit(bags, y)
    X = model._scaled(bags).instances
    d = ((X[:, None] - X) ** 2).sum(-1)
    np.fill_diagonal(d, np.inf)
    standing = neighbours.citers(d, model.reach_ * (1 + 1e-6), 3) @ model.votes_
    best = np.array([s.max() for s in bags.split(standing)])
    expected = (best[y == 1].mean() + best[y == 0].mean()) / 2
    assert model.threshold_ == pytest.approx(expected)


def test_the_bias_of_key_instances_has_the_least_loss():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=12)
    negatives, costs = rng.normal(size=8), rng.random(8)
    best = np.array([scores[a:b].max() for a, b in ((0, 3), (3, 7), (7, 12))])
    bias = ki_svm.best_bias(best, negatives, costs)

    def loss(b):
        return np.maximum(0, 1 - best - b).sum() + costs @ np.maximum(0, 1 + negatives + b)

    assert loss(bias) <= min(loss(b) for b in np.linspace(-4, 4, 4001)) + 1e-9


def test_median_gamma_is_five_over_the_median_squared_distance():
    X = np.array([[0.0], [1.0], [3.0]])  # squared distances 1, 4 and 9
    assert resolve_gamma("median", X) == pytest.approx(5 / 4)
    assert resolve_gamma(0.7, X) == 0.7


def test_box_is_widened_by_the_tail_of_a_gaussian():
    values = np.array([[0.0], [2.0]])  # spread 1
    low, high = apr.widen(values, 0.01, 0.5)
    np.testing.assert_allclose([low[0], high[0]], [-2.5758 / 2, 2 + 2.5758 / 2], atol=1e-4)


def test_softness_is_in_units_of_the_distance_to_the_nearest_component():
    bags, y, _ = make_problem()
    model = PPMM(n_components=5, softness=3.0, scale=None, calibrate=False, random_state=0).fit(
        bags, y
    )
    d = ((bags.instances[:, None] - model.centres_) ** 2).sum(-1)
    assert model.variance_ == pytest.approx(3.0 * d.min(axis=1).mean())
    counts = np.bincount(d.argmin(axis=1), minlength=5)
    np.testing.assert_allclose(np.exp(model.log_weights_), (counts + 1) / (bags.n_instances + 5))
