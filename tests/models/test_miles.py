"""MILES: the contract, the embedding, the linear programme, and the grid search."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

from bagwise import Bags
from bagwise.core import distances, l1_svm
from bagwise.core.blocks import whole_segments
from bagwise.datasets import make_two_concept_bags
from bagwise.models.embedded import make_examples, search_grid
from tests.checks import CHECKS, make_problem, sklearn_checks
from tests.checks.raw import MILES
from tests.reference import miles as reference

MODELS = {
    "highs": MILES,
    "liblinear": lambda: MILES(solver="liblinear"),
    "probability": lambda: MILES(calibrate=True, cv=3),
    "isotonic": lambda: MILES(calibrate=True, calibration="isotonic", cv=3),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("check", CHECKS)
def test_contract(check, make):
    check(make)


@sklearn_checks(MILES())
def test_sklearn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("entries", [1, 7, 40, 10_000])
def test_bag_distances_equal_loops_in_any_block(rng, entries):
    bags = Bags.from_list([rng.normal(size=(n, 3)) for n in (1, 5, 2, 9)])
    anchors = rng.normal(size=(6, 3))
    D = distances.bag_distances(bags.instances, bags.offsets, anchors, block_entries=entries)
    np.testing.assert_allclose(
        distances.similarity(D, 1.7), reference.features(bags, anchors, 1.7), rtol=1e-12
    )


def test_whole_segments_cover_each_once():
    offsets = np.array([0, 3, 3, 10, 11, 12])
    runs = list(whole_segments(offsets, 4))
    assert runs[0][0] == 0
    assert runs[-1][1] == 5
    assert all(a[1] == b[0] for a, b in pairwise(runs))
    assert all(b - a == 1 or offsets[b] - offsets[a] <= 4 for a, b in runs)


def test_distance_to_itself_is_zero_not_negative():
    X = 1e4 + np.random.default_rng(0).normal(size=(50, 20))
    D = distances.squared_distances(X, X)
    assert (D >= 0).all()
    assert np.diag(D).max() < 1e-4


@pytest.mark.parametrize("seed", range(8))
def test_linear_programme_equals_independent_ones(seed):
    rng = np.random.default_rng(seed)
    m, N = rng.integers(5, 20), rng.integers(2, 30)
    Z = rng.random((m, N))
    signs = np.where(np.arange(m) % 2, 1.0, -1.0)
    costs = np.where(signs > 0, rng.uniform(0.2, 3), rng.uniform(0.2, 3))
    alpha = rng.uniform(0.05, 2)
    value = l1_svm.objective(Z, signs, alpha, costs, l1_svm.solve_lp(Z, signs, alpha, costs))
    assert value == pytest.approx(
        reference.optimum_by_absolute_values(Z, signs, alpha, costs), abs=1e-8
    )
    assert value == pytest.approx(reference.optimum_by_the_dual(Z, signs, alpha, costs), abs=1e-8)


def _similarities(seed, n_bags=40, noise=0.1):
    """Features of bags of five, some labels wrong, and the other data of the linear program."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n_bags) % 3 > 0)
    X = rng.standard_normal((5 * n_bags, 4))
    X[::5][y] += 2
    D = distances.bag_distances(X, np.arange(n_bags + 1) * 5, X)
    signs = np.where(y ^ (rng.random(n_bags) < noise), 1.0, -1.0)
    costs = np.where(signs > 0, *rng.uniform(0.2, 3, 2))
    return distances.similarity(D, rng.uniform(0.5, 3)), signs, rng.uniform(0.1, 1), costs


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 6, 7, 8])
def test_interior_point_ends_in_the_vertex_of_the_whole_program(seed, monkeypatch):
    program = _similarities(seed)
    simplex = l1_svm.solve_lp(*program)
    monkeypatch.setattr(l1_svm, "_SIMPLEX_ENTRIES", 0)
    monkeypatch.setattr(l1_svm, "_column_generation", None)  # the vertex must do
    weights = l1_svm.solve_lp(*program)
    np.testing.assert_allclose(weights.w, simplex.w, atol=1e-7)
    assert weights.b == pytest.approx(simplex.b, abs=1e-7)
    assert l1_svm.objective(*program, weights) == pytest.approx(
        reference.optimum_by_the_dual(*program), abs=1e-8
    )


@pytest.mark.parametrize("seed", range(4))
def test_column_generation_where_many_optima_are_equal(seed, monkeypatch):
    """Instances that occur twice: no single vertex is optimal, the objective still is."""
    Z, *others = _similarities(seed)
    program = (np.column_stack([Z, Z]), *others)
    monkeypatch.setattr(l1_svm, "_SIMPLEX_ENTRIES", 0)
    vertex, prices = l1_svm._interior_point(l1_svm._Program(*program))
    assert vertex is None
    optimum = reference.optimum_by_the_dual(*program)
    # From too few instances as well: the others are added until none can help.
    for start in (prices, prices * (np.arange(len(prices)) % 7 == 0)):
        weights = l1_svm._column_generation(l1_svm._Program(*program), start)
        assert l1_svm.objective(*program, weights) == pytest.approx(optimum, abs=1e-6)


def test_no_weight_at_all(monkeypatch):
    program = _similarities(5)
    simplex = l1_svm.solve_lp(*program)
    monkeypatch.setattr(l1_svm, "_SIMPLEX_ENTRIES", 0)
    weights = l1_svm.solve_lp(*program)
    assert not weights.w.any() and not simplex.w.any()
    assert l1_svm.objective(*program, weights) == pytest.approx(l1_svm.objective(*program, simplex))


def test_limits_are_errors_before_the_fit(monkeypatch):
    bags, y, _ = make_problem()
    for model in (MILES(), MILES(solver="liblinear")):
        monkeypatch.setattr("bagwise.models.embedded.free_memory", lambda: 1000)
        with pytest.raises(ValueError, match=r"GB of memory; 0\.0 GB are free\. Keep fewer"):
            model.fit(bags, y)
    with pytest.raises(ValueError, match="GB of memory"):
        search_grid(MILES(), bags, y, {"alpha": [1.0]}, cv=2)
    with pytest.raises(ValueError, match=r"10,000 bags and 100,000 instances .* 1\.6 hours"):
        l1_svm.check_size(10_000, 100_000)
    l1_svm.check_size(1000, 10_000)
    monkeypatch.setattr(l1_svm, "_MOST_WORK", 1.0)
    with pytest.raises(ValueError, match="the limit is 1"):
        MILES().fit(bags, y)


def test_fit_is_the_programme_on_the_features():
    bags, y, _ = make_problem(shift=1.5)
    model = MILES(sigma=1.5, alpha=0.3, class_weight={0: 1, 1: 2}).fit(bags, y)
    Z = reference.features(bags, bags.instances, 1.5)
    signs, costs = 2.0 * y - 1, np.where(y == 1, 2.0, 1.0)
    w = l1_svm.Weights(model.coef_.toarray()[0], model.intercept_)
    assert l1_svm.objective(Z, signs, 0.3, costs, w) == pytest.approx(
        reference.optimum_by_the_dual(Z, signs, 0.3, costs), abs=1e-7
    )
    np.testing.assert_allclose(model.decision_function(bags), Z @ w.w + w.b, atol=1e-9)
    np.testing.assert_array_equal(model.selected_instances_, np.flatnonzero(w.w))
    np.testing.assert_array_equal(model.anchors_, bags.instances[model.selected_instances_])


def test_instance_scores_equal_loops_and_sum_to_the_bag():
    bags, y = make_two_concept_bags(60, random_state=0, return_X_y=True)
    bags = Bags.from_list([np.r_[x, x[:1]] for x in bags])  # equal rows share what they make
    model = MILES(sigma=2.0).fit(bags, y)
    scores = model.decision_function_instances(bags)
    naive = reference.contributions(bags, model.anchors_, model.coef_.data, model.intercept_, 2.0)
    np.testing.assert_allclose(scores, naive, atol=1e-9)
    assert all(
        (s > 0).any()
        for s, positive in zip(bags.split(scores), model.predict(bags), strict=True)
        if positive
    )


def test_finds_what_no_single_instance_shows():
    """Positive bags need two of three concepts, which the max rule cannot express."""
    train, y = make_two_concept_bags(300, random_state=0, return_X_y=True)
    test, y_test = make_two_concept_bags(300, random_state=1, return_X_y=True)
    assert MILES(sigma=2.0).fit(train, y).score(test, y_test) > 0.95


def test_larger_alpha_keeps_fewer():
    bags, y = make_two_concept_bags(100, random_state=0, return_X_y=True)
    kept = [len(MILES(sigma=2.0, alpha=a).fit(bags, y).selected_instances_) for a in (0.1, 2, 30)]
    assert kept[0] > kept[1] > kept[2]


def test_scale_is_half_the_total_variance():
    bags, y, _ = make_problem()
    assert MILES().fit(bags, y).sigma_ == pytest.approx(np.sqrt(bags.instances.var(0).sum() / 2))
    constant = Bags(np.ones((40, 2)), np.arange(11) * 4)
    model = MILES().fit(constant, np.arange(10) % 2)
    assert model.sigma_ == 1
    assert np.isfinite(model.decision_function_instances(constant)).all()


def test_a_distance_of_your_own():
    bags, y, _ = make_problem()

    def city_block(X, anchors):
        return np.abs(X[:, None] - anchors[None]).sum(-1)

    model = MILES(sigma=2.0, distance=city_block).fit(bags, y)
    assert model.score(bags, y) > 0.9
    squared = MILES(sigma=2.0, distance=distances.squared_distances).fit(bags, y)
    np.testing.assert_allclose(
        squared.decision_function(bags), MILES(sigma=2.0).fit(bags, y).decision_function(bags)
    )
    with pytest.raises(ValueError, match="give sigma as a number"):
        MILES(distance=city_block).fit(bags, y)


def test_labelled_instances_are_bags_of_one():
    bags, y, truth = make_problem()
    known = np.where(np.arange(len(truth)) % 3 == 0, truth, -1)
    telling = np.flatnonzero((known >= 0) & (y[bags.bag_index] == 1))
    data = MILES()._validate_fit(bags, y, known)
    examples = make_examples(data)
    assert len(examples) == len(bags) + len(telling)
    singles = [examples.rows_of(e)[0] for e in np.flatnonzero(~examples.brings_anchors)]
    np.testing.assert_array_equal(singles, telling)
    np.testing.assert_array_equal(
        examples.signs[~examples.brings_anchors], 2.0 * known[telling] - 1
    )
    for e, b in zip(np.flatnonzero(examples.brings_anchors), range(len(bags)), strict=True):
        np.testing.assert_array_equal(bags.instances[examples.rows_of(e)], bags[b])


def test_the_grid_search_equals_separate_fits():
    bags, y, _ = make_problem(n_bags=30, shift=1.5)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    grid = {"sigma": [0.7, 1.5, "scale"], "alpha": [0.2, 1.0]}
    found = search_grid(MILES(), bags, y, grid, folds)
    for setting, row in zip(found.params, found.accuracy, strict=True):
        each = [
            MILES(**setting).fit(bags[a], y[a]).score(bags[b], y[b]) for a, b in folds.split(y, y)
        ]
        np.testing.assert_allclose(row, each)
    assert found.best_params == found.params[int(np.argmax(found.accuracy.mean(axis=1)))]


@pytest.mark.parametrize(
    ("parameter", "value"), [("sigma", 0), ("sigma", -1.0), ("alpha", 0), ("solver", "simplex")]
)
def test_bad_parameters(parameter, value):
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match=f"'{parameter}' parameter of MILES"):
        MILES().set_params(**{parameter: value}).fit(bags, y)
