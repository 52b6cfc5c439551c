"""MICRF: the contract, the energy against its naive twin, learning, memory, bad input."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

from bagwise import Bags
from bagwise.core.working_set import solve_on_working_set
from bagwise.models.micrf import distances, learning, unaries
from bagwise.models.micrf import energy as crf
from tests.checks import CHECKS, make_problem, sklearn_checks
from tests.checks.raw import MICRF, MISVM, SetKernelSVM
from tests.reference import micrf as reference


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract(check):
    check(MICRF)


@sklearn_checks(MICRF())
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


PROBABILITY_CHECKS = [c for c in CHECKS if c.__name__ in {"check_probabilities", "check_shapes"}]


@pytest.mark.parametrize("check", PROBABILITY_CHECKS, ids=lambda c: c.__name__)
def test_contract_with_probabilities(check):
    check(lambda: MICRF(calibrate=True, cv=3))


@pytest.fixture(scope="module")
def fitted():
    bags, y, labels = make_problem(n_bags=40)
    return MICRF().fit(bags, y), bags, y, labels


@pytest.fixture(scope="module")
def problem(fitted):
    """The learning problem behind the fitted model."""
    model, bags, y, _ = fitted
    scaled = bags.map(model.scaling_.apply)
    terms = crf.make_terms(model._upsilon(scaled), scaled.instances, scaled.offsets, model.factors_)
    near = distances.Dissimilarities(scaled.instances, model.factors_, 2048)
    every = np.ones(bags.n_instances, dtype=bool)
    return learning.JointProblem(terms, y, every, near, "trws")


def test_dissimilarities_match_the_naive_ones(rng):
    X, Y = rng.normal(size=(5, 4)), rng.normal(size=(3, 4))
    X[0], Y[0] = 0.0, 0.0  # 0 / 0 in chi-square is 0
    D = distances.cross(X, Y, np.ones(3))
    for i, x in enumerate(X):
        for j, z in enumerate(Y):
            np.testing.assert_allclose(D[:, i, j], reference.dissimilarities(x, z))
    w = np.array([1.0, 0.5, 2.0])
    np.testing.assert_allclose(distances.to_clamped(X, Y, w), np.tensordot(w, D, 1).sum(axis=1))


def test_dissimilarity_table_grows_and_forgets(rng):
    X = rng.normal(size=(12, 3))
    near = distances.Dissimilarities(X, np.ones(3), max_rows=8)
    for ids in ([0, 3, 5], [3, 4, 9], [1, 2, 6, 7, 8, 10], [0, 11]):
        table, rows = near.table(np.array(ids))
        assert table.shape[1] <= 8
        for i, a in zip(ids, rows, strict=True):
            for j, b in zip(ids, rows, strict=True):
                expected = reference.dissimilarities(X[i], X[j])
                np.testing.assert_allclose(table[:, a, b], expected, rtol=1e-5, atol=1e-6)


def test_a_request_larger_than_the_table_leaves_it_usable(rng):
    """Ten instances outgrow a limit of four; the two asked for next take two of their rows."""
    X = rng.normal(size=(12, 3))
    near = distances.Dissimilarities(X, np.ones(3), max_rows=4)
    for ids in (np.arange(10), np.array([10, 11]), np.array([0, 10])):
        table, rows = near.table(ids)
        assert table.shape[1] == 10
        for i, a in zip(ids, rows, strict=True):
            expected = reference.dissimilarities(X[i], X[ids[0]])
            np.testing.assert_allclose(table[:, a, rows[0]], expected, rtol=1e-5, atol=1e-6)


def test_dissimilarity_table_keeps_the_instances_used_last(rng, monkeypatch):
    added = []
    add = distances.Dissimilarities._add

    def spy(near, new):
        added.append(new.tolist())
        add(near, new)

    monkeypatch.setattr(distances.Dissimilarities, "_add", spy)
    near = distances.Dissimilarities(rng.normal(size=(12, 3)), np.ones(3), max_rows=4)
    for ids in ([0, 1, 2, 3], [2, 3, 4], [1, 4], [0, 2, 3, 4], [2, 3, 4]):
        table, rows = near.table(np.array(ids))
        assert not np.isnan(table[:, rows][:, :, rows]).any()
    # 4 takes the row of 0; 0 then takes that of 1, which was used before 2 and 3 but not now.
    assert added == [[0, 1, 2, 3], [4], [0]]


def test_descending_asks_only_for_what_it_compares(problem):
    terms = problem.terms
    inst, non = terms.Upsilon[:, 0], terms.Omega[:, 0]
    ids, bags = np.arange(len(inst)), np.arange(len(non))
    every = np.ones(len(inst), dtype=bool)
    selected = []
    for gamma in (np.zeros(3), np.full(3, 0.01)):
        lazy = distances.Dissimilarities(terms.X, np.ones(3), len(ids))
        full = distances.Dissimilarities(terms.X, np.ones(3), len(ids))
        full.table(ids)
        ends = []
        for some in (lazy, full):
            near, place = some.lookup(ids)
            L = np.full(len(non), crf.NONE)
            distances.descend(near, gamma, place, inst, non, every, terms.offsets, bags, L)
            ends.append(L)
        np.testing.assert_array_equal(*ends)
        selected.append(np.isnan(lazy.lookup(ids)[0].table).mean())
    assert selected[0] == 1.0  # nothing ties the bags together
    assert 0.3 < selected[1] < 1.0


def sparse_rows(rng, n=40, d=30, share=0.06):
    X = np.where(rng.random((n, d)) < share, rng.normal(size=(n, d)), 0.0)
    X[3] = 0.0
    X[7] = X[5]
    return X


@pytest.mark.parametrize("kernel", ["rbf", "linear", "intersection"])
@pytest.mark.parametrize("share", [0.06, 1.0])
def test_a_machine_on_the_kernel_matrix_is_libsvm_s_own(kernel, share, rng, monkeypatch):
    from sklearn.svm import SVC

    X = sparse_rows(rng, n=200, share=share)
    t = (X[:, :10].sum(axis=1) + 0.1 * rng.normal(size=200) > 0).astype(int)
    K = unaries.gram(kernel, X, 0.5)
    naive = {"rbf": lambda x, z: np.exp(-0.5 * ((x - z) ** 2).sum()), "linear": np.dot}
    between = naive.get(kernel, reference.intersection)
    np.testing.assert_allclose(K[:20], [[between(x, z) for z in X] for x in X[:20]], atol=1e-12)
    if kernel == "intersection":
        return
    scores = unaries.score(unaries.train(kernel, X, t, 1.0, 0.5), X)
    plain = SVC(C=1.0, kernel=kernel, gamma=0.5).fit(X, t)
    np.testing.assert_allclose(scores, plain.decision_function(X), atol=2e-3)
    monkeypatch.setattr(unaries, "_GRAM_ROWS", 0)
    own = unaries.score(unaries.train(kernel, X, t, 1.0, 0.5), X)
    np.testing.assert_allclose(scores, own, atol=2e-3)


def test_intersection_gram_of_sparse_rows_matches_the_naive_kernel(rng):
    X = sparse_rows(rng)
    K = np.array([[reference.intersection(x, z) for z in X] for x in X])
    np.testing.assert_allclose(distances.intersection_gram(X), K, atol=1e-12)


def test_intersection_gram_and_scores_match_the_naive_kernel(rng):
    X = rng.normal(size=(30, 4))
    X[3] = 0.0
    K = np.array([[reference.intersection(x, z) for z in X] for x in X])
    np.testing.assert_allclose(distances.intersection_gram(X), K, atol=1e-12)
    t = (X[:, 0] > 0).astype(int)
    machine = unaries.train("intersection", X, t, 1.0, 1.0)
    expected = SVC(kernel="precomputed").fit(K, t).decision_function(K)
    np.testing.assert_allclose(unaries.score(machine, X), expected, atol=1e-8)


@pytest.mark.parametrize("kernel", ["rbf", "linear", "intersection"])
def test_working_set_reaches_the_same_machine(kernel, rng, monkeypatch):
    X = rng.random((400, 3))
    t = (X.sum(axis=1) + 0.3 * rng.normal(size=400) > 1.5).astype(int)
    whole = unaries.score(unaries.train(kernel, X, t, 1.0, 1.0), X)
    monkeypatch.setattr(unaries, "_DIRECT_ROWS", 60)
    part = unaries.score(unaries.train(kernel, X, t, 1.0, 1.0), X)
    np.testing.assert_allclose(part, whole, atol=0.02)


@pytest.mark.parametrize(("n_right", "n_second"), [(8, 100), (30, 100), (60, 40)])
def test_a_working_set_that_most_rows_violate_takes_all_of_them(n_right, n_second):
    sizes = []
    margins = np.where(np.arange(100) < 100 - n_right, 0.0, 2.0)
    _, inside = solve_on_working_set(
        np.ones(100, dtype=int),
        np.arange(100) < 10,
        lambda rows: sizes.append(len(rows)),
        lambda _, rows: margins[rows],
    )
    assert sizes == [10, n_second]
    assert len(inside) == n_second


def test_features_give_the_energy(problem, fitted, rng):
    model, bags, _, _ = fitted
    inst, non = crf.unaries(problem.terms, crf.unpack(model.alpha_, 3))
    gamma = model.alpha_[-3:] * model.factors_
    for _ in range(5):
        pick = [int(rng.integers(a, b)) for a, b in itertools.pairwise(bags.offsets)]
        L = np.where(rng.random(len(bags)) < 0.5, pick, -1)
        expected = reference.energy(inst, non, problem.terms.X, gamma, L)
        assert model.alpha_ @ crf.features(problem.terms, L) == pytest.approx(expected)


def test_no_constraint_is_violated_at_the_end(problem):
    learned = learning.learn(problem, 1.0, 200, 1e-3)
    assert learned.converged
    assert (learned.alpha >= 0).all()
    assert np.array_equal(learned.L_hat >= 0, problem.y == 1)
    phi_hat = crf.features(problem.terms, learned.L_hat)
    xi = learned.objective - 0.5 * learned.alpha @ learned.alpha
    rng = np.random.default_rng(1)
    offsets = problem.terms.offsets
    for _ in range(200):  # random ones, and near misses of the latent configuration
        L = learned.L_hat.copy()
        for b in rng.choice(len(L), rng.integers(1, 6), replace=False):
            L[b] = rng.choice([-1, *range(offsets[b], offsets[b + 1])])
        margin = learned.alpha @ (crf.features(problem.terms, L) - phi_hat)
        assert margin >= learning.delta(learned.L_hat, L) - xi - 1e-3 * len(L) - 1e-6


def test_stages_never_raise_the_objective(problem):
    pool = learning.ConstraintPool()
    first = learning.learn(problem, 1.0, 200, 1e-3, pool)
    again = learning.learn(problem, 1.0, 200, 1e-3, pool)  # its constraints are all known
    assert again.n_iter <= first.n_iter
    assert again.objective == pytest.approx(first.objective, rel=0.05, abs=0.05)


def test_quadratic_programme_meets_its_optimality_conditions(rng):
    """Against a dense grid of feasible directions: no nearby point is better."""
    A, b = rng.normal(size=(12, 4)), rng.uniform(0, 3, 12)
    alpha, xi = learning.solve_qp(A, b, 2.0, np.zeros(4))

    def value(a):
        return 0.5 * a @ a + 2.0 * max(0.0, np.max(b - A @ a))

    assert (alpha >= 0).all()
    assert xi == pytest.approx(max(0.0, np.max(b - A @ alpha)))
    for _ in range(500):
        other = np.maximum(alpha + rng.normal(scale=0.05, size=4), 0.0)
        assert value(other) >= value(alpha) - 1e-6


def test_rounds_that_do_not_suffice_are_reported():
    bags, y, _ = make_problem()
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        model = MICRF(max_iter=2).fit(bags, y)
    assert not model.converged_
    assert model.violation_ > 0


def test_bag_score_is_that_of_its_best_state(fitted):
    model, bags, _, _ = fitted
    inst, non = model.energies(bags)
    scores = [n - e.min() for n, e in zip(non, bags.split(inst), strict=True)]
    np.testing.assert_allclose(model.decision_function(bags), scores)
    selected = model.select(bags)
    np.testing.assert_array_equal(selected >= 0, model.decision_function(bags) > 0)


def test_energies_are_unaries_plus_pairs_to_the_selected(fitted):
    model, bags, _, _ = fitted
    inst, non = model.unary_energies(bags)
    full, same = model.energies(bags)
    np.testing.assert_allclose(non, same)
    gamma = model.alpha_[-3:] * model.factors_
    X = model.scaling_.apply(bags.instances)
    pairs = [sum(gamma @ reference.dissimilarities(x, z) for z in model.clamped_) for x in X[:6]]
    np.testing.assert_allclose(full[:6] - inst[:6], pairs, atol=1e-10)


def test_selected_instances_are_the_positive_ones(fitted):
    model, _, y, labels = fitted
    chosen = model.selected_instances_[y == 1]
    assert labels[chosen].mean() >= 0.9
    assert (model.selected_instances_[y == 0] == -1).all()


def test_joint_scores_are_differences_of_the_energy_of_all_bags(fitted):
    model, bags, _, _ = fitted
    bags = bags[:8]
    inst, non = model.energies(bags)
    X = bags.map(model.scaling_.apply).instances
    weights = model.alpha_[-3:] * model.factors_
    L = model.select(bags, joint=True)
    scores = model.decision_function(bags, joint=True)
    assert np.array_equal(scores > 0, L >= 0)
    assert np.array_equal(model.predict(bags, joint=True), model.classes_[(L >= 0).astype(int)])
    assert not np.allclose(scores, non - np.minimum.reduceat(inst, bags.offsets[:-1]))

    def energy(bag, row):
        changed = L.copy()
        changed[bag] = row
        return reference.energy(inst, non, X, weights, changed)

    for b, (start, stop) in enumerate(itertools.pairwise(bags.offsets)):
        best = min(energy(b, row) for row in range(start, stop))
        assert scores[b] == pytest.approx(energy(b, -1) - best)


def test_joint_prediction(fitted):
    model, bags, y, _ = fitted
    joint = model.predict(bags, joint=True)
    assert np.mean(joint == y) >= 0.85
    one = model.predict(bags[:1], joint=True)  # nothing to be joint with
    np.testing.assert_array_equal(one, model.predict(bags[:1]))


def test_icm_inference_learns(fitted):
    _, bags, y, _ = fitted
    assert MICRF(inference="icm").fit(bags, y).score(bags, y) >= 0.85


def test_weights_by_name_and_without_pairs(fitted):
    model, bags, y, _ = fitted
    assert list(model.weights_)[:4] == [
        "instance rbf",
        "instance linear",
        "instance intersection",
        "non-instance rbf",
    ]
    plain = MICRF(dissimilarities=()).fit(bags, y)
    assert [plain.weights_[g] for g in ("l1", "l2", "chi2")] == [0, 0, 0]
    assert plain.score(bags, y) >= 0.85


def test_extra_unary_is_fitted_on_scaled_bags_and_used(fitted):
    _, bags, y, _ = fitted
    extra = MISVM(C=10)
    model = MICRF(kernels=("linear",), extra_unaries=[extra]).fit(bags, y)
    assert not hasattr(extra, "svc_")  # cloned, not changed
    assert "instance MISVM" in model.weights_
    scaled = bags.map(model.scaling_.apply)
    alone = MISVM(C=10).fit(scaled, y).decision_function_instances(scaled)
    np.testing.assert_allclose(model._upsilon(scaled)[:, 1], -alone)
    assert model.score(bags, y) >= 0.85


def test_c_by_cross_validation(fitted):
    _, bags, y, _ = fitted
    model = MICRF(C="cv", cv=2).fit(bags[:20], y[:20])
    assert model.C_ in model.cv_accuracy_
    assert model.cv_accuracy_[model.C_] == max(model.cv_accuracy_.values())


def test_probabilities_only_when_asked(fitted):
    model, bags, y, _ = fitted
    assert not hasattr(model, "predict_proba")
    assert not hasattr(model, "predict_proba_instances")
    asked = MICRF(calibrate=True, cv=2).fit(bags, y)
    p = asked.predict_proba(bags)[:, 1]
    best = [q.max() for q in bags.split(asked.predict_proba_instances(bags)[:, 1])]
    np.testing.assert_allclose(p, best)


def test_known_labels_steer_the_selection():
    bags, y, labels = make_problem(shift=1.0)
    model = MICRF().fit(bags, y, instance_labels=labels)
    assert (labels[model.selected_instances_[y == 1]] == 1).all()


@pytest.mark.parametrize("scale", ["standard", None])
def test_other_scalings_learn(scale, fitted):
    _, bags, y, _ = fitted
    assert MICRF(scale=scale).fit(bags, y).score(bags, y) >= 0.85


def test_scaling_is_from_training_bags_only(fitted):
    model, bags, _, _ = fitted
    X = bags.instances
    np.testing.assert_allclose(model.scaling_.apply(X).min(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(model.scaling_.apply(X).max(axis=0), 1)
    alone = unaries.fit_scaling(np.ones((4, 2)), "minmax")  # constant features stay finite
    np.testing.assert_array_equal(alone.apply(np.ones((1, 2))), [[0, 0]])


def test_two_bags_are_enough():
    model = MICRF().fit([np.zeros((2, 2)), np.ones((2, 2))], [0, 1])
    assert model.predict([np.ones((1, 2)), np.zeros((3, 2))]).tolist() == [1, 0]


def test_one_bag_is_refused_by_name():
    with pytest.raises(ValueError, match="two classes"):
        MICRF().fit([np.zeros((3, 2))], [1])


def test_identical_instances_everywhere():
    bags = Bags(np.ones((20, 3)), np.arange(0, 21, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = MICRF().fit(bags, np.arange(10) % 2)
    scores = model.decision_function(bags)
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(scores, scores[0])


def test_a_bag_of_ten_thousand_instances_stays_within_its_bounds():
    rng = np.random.default_rng(0)
    bags, y, _ = make_problem()
    arrays = [*bags, rng.normal(size=(10_000, 3)) + 2, rng.normal(size=(10_000, 3))]
    big, y = Bags.from_list(arrays), np.append(y, [1, 0])
    model = MICRF(max_states=200, max_rows=500, random_state=0).fit(big, y)
    assert max(len(m.support) for m in model.machines_) <= 500
    assert np.isfinite(model.decision_function_instances(big)).all()
    assert model.predict(big[24:], joint=True).shape == (2,)
    again = MICRF(max_states=200, max_rows=500, random_state=0).fit(big, y)
    np.testing.assert_array_equal(again.alpha_, model.alpha_)


def test_thinning_keeps_small_bags_whole(rng):
    offsets = np.array([0, 3, 103, 203, 205])
    rows = unaries.thin(offsets, 45, rng)
    counts = np.diff(np.searchsorted(rows, offsets))
    assert counts.tolist() == [3, 20, 20, 2]
    assert len(np.unique(rows)) == 45
    np.testing.assert_array_equal(unaries.thin(offsets, 1000, rng), np.arange(205))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"extra_unaries": [SetKernelSVM()]}, r"extra_unaries\[0\] must score instances"),
        ({"kernels": ("rbf", "sinc")}, "kernels must be a sequence from"),
        ({"kernels": ()}, "needs an instance classifier"),
        ({"dissimilarities": "l1"}, "'dissimilarities' parameter"),
        ({"C": -1.0}, "'C' parameter"),
        ({"scale": "unit"}, "'scale' parameter"),
        ({"inference": "bp"}, "'inference' parameter"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match=message):
        MICRF(**parameters).fit(bags, y)


def test_musk1_beats_a_single_instance_machine():
    """Five folds of Musk1; the full table is experiments/micrf.py."""
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    from bagwise.datasets import load_musk1

    bags, y = load_musk1(return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    assert cross_val_score(MICRF(), bags, y, cv=folds).mean() >= 0.8
