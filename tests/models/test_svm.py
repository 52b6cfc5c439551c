"""MISVM and SetKernelSVM: the contract, the MIL constraint, the labels of each turn."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

from bagwise import Bags
from bagwise.core.distances import set_kernel, set_self_kernel
from bagwise.models.svm import choose_key_instances, impute_labels
from tests.checks import CHECKS, make_problem, sklearn_checks
from tests.checks.raw import MISVM, SetKernelSVM
from tests.reference import svm as reference

MODELS = {
    "MI": lambda: MISVM(variant="MI", C=10),
    "mi": lambda: MISVM(variant="mi", C=10),
    "MI linear, probability": lambda: MISVM(variant="MI", kernel="linear", calibrate=True, cv=3),
    "mi isotonic": lambda: MISVM(variant="mi", C=10, calibrate=True, calibration="isotonic", cv=3),
    "set": lambda: SetKernelSVM(C=10),
    "set, probability": lambda: SetKernelSVM(C=10, calibrate=True, cv=3),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("check", CHECKS)
def test_contract(check, make):
    check(make)


@sklearn_checks(MISVM(), MISVM(variant="mi"), SetKernelSVM())
def test_sklearn(estimator, check):
    check(estimator)


@st.composite
def labelled_scores(draw):
    """Scores with ties, bag labels and known labels that do not contradict them."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    sizes = rng.integers(1, 6, size=draw(st.integers(2, 8)))
    offsets = np.r_[0, np.cumsum(sizes)]
    y = rng.integers(0, 2, size=len(sizes))
    scores = rng.integers(-3, 4, size=offsets[-1]) / 2.0
    known = rng.choice([-1, 0, 1], size=offsets[-1], p=[0.6, 0.25, 0.15])
    for b in range(len(y)):
        rows = slice(offsets[b], offsets[b + 1])
        if y[b] == 0:
            known[rows] = np.minimum(known[rows], 0)
        elif (known[rows] == 0).all():
            known[offsets[b]] = -1
    return scores, offsets, y, known


@given(labelled_scores())
def test_labels_equal_their_naive_twins_and_keep_the_mil_constraint(problem):
    _, offsets, y, known = problem
    for fast, naive in (
        (choose_key_instances, reference.witnesses),
        (impute_labels, reference.imputed),
    ):
        labels = fast(*problem)
        np.testing.assert_array_equal(labels, naive(*problem))
        assert (labels[known >= 0] == known[known >= 0]).all()
        for b, target in enumerate(y):
            assert (labels[offsets[b] : offsets[b + 1]] == 1).any() == target


@pytest.mark.parametrize("variant", ["MI", "mi"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0, 0.3])
def test_fit_never_loses_the_mil_constraint(variant, seed, share):
    bags, y, truth = make_problem(n_bags=30, seed=seed, shift=1.0)
    known = np.where(np.random.default_rng(seed).random(len(truth)) < share, truth, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MISVM(variant=variant, C=1).fit(bags, y, instance_labels=known)
    labels = model.imputed_labels_
    assert (labels[known >= 0] == known[known >= 0]).all()
    for target, bag in zip(y, bags.split(labels), strict=True):
        assert (bag == 1).any() == (target == 1)
        assert target == 1 or (bag == 0).all()
    if variant == "mi":
        assert (labels >= 0).all()


@pytest.mark.parametrize("variant", ["MI", "mi"])
def test_objective_falls_after_the_start(variant):
    """Each turn solves one half of a joint problem, so its objective cannot rise."""
    for seed in range(5):
        bags, y, _ = make_problem(n_bags=40, seed=seed, shift=1.2)
        model = MISVM(variant=variant, C=1, tol=1e-6).fit(bags, y)
        assert model.converged_
        # The first MI machine has bag means in place of witnesses: another problem.
        falling = np.diff(model.objectives_[1 if variant == "MI" else 0 :])
        assert (falling <= 1e-4 * np.abs(model.objectives_[-1])).all()


def test_a_settled_machine_has_its_best_instances_as_witnesses():
    bags, y, _ = make_problem(n_bags=40, shift=2.0)
    model = MISVM(C=10).fit(bags, y)
    assert model.converged_
    scores = model.decision_function_instances(bags)
    for target, labels, s in zip(
        y, bags.split(model.imputed_labels_), bags.split(scores), strict=True
    ):
        if target:
            assert labels[np.argmax(s)] == 1


def test_bag_slack_keeps_a_large_bag_from_outvoting_the_others():
    """Repeating the rows of one negative bag changes nothing: they share one weight."""
    bags, y, _ = make_problem(shift=1.0)
    arrays = list(bags)
    again = Bags.from_list(
        [np.repeat(a, 50, axis=0) if i == 0 else a for i, a in enumerate(arrays)]
    )
    a = MISVM(C=1, gamma=0.3, tol=1e-8).fit(bags, y).decision_function(bags)
    b = MISVM(C=1, gamma=0.3, tol=1e-8).fit(again, y).decision_function(bags)
    np.testing.assert_allclose(a, b, atol=1e-5)
    c = MISVM(C=1, gamma=0.3, tol=1e-8, slack="instance").fit(again, y).decision_function(bags)
    assert np.abs(a - c).max() > 1e-3


def test_max_iter_is_reported():
    bags, y, _ = make_problem(n_bags=40, shift=0.5)
    with pytest.warns(ConvergenceWarning, match="did not converge in 1 iterations"):
        model = MISVM(max_iter=1).fit(bags, y)
    assert not model.converged_
    assert model.n_iter_ == 1


def test_all_labels_known_is_a_plain_svc():
    bags, y, truth = make_problem(shift=1.5)
    model = MISVM(C=2, slack="instance", gamma=0.2).fit(bags, y, instance_labels=truth)
    plain = SVC(C=2, gamma=0.2).fit(bags.instances, truth)
    np.testing.assert_allclose(
        model.decision_function_instances(bags), plain.decision_function(bags.instances), atol=1e-2
    )
    assert model.n_iter_ == 1


@pytest.mark.parametrize("variant", ["MI", "mi"])
def test_working_set_finds_the_same_machine(variant, monkeypatch):
    bags, y, _ = make_problem(n_bags=60, shift=1.2)
    whole = MISVM(variant=variant, tol=1e-7).fit(bags, y)
    monkeypatch.setattr("bagwise.models.svm.DIRECT_ROWS", 20)
    grown = MISVM(variant=variant, tol=1e-7).fit(bags, y)
    np.testing.assert_array_equal(whole.imputed_labels_, grown.imputed_labels_)
    np.testing.assert_allclose(whole.objectives_, grown.objectives_, rtol=1e-5)
    np.testing.assert_allclose(
        whole.decision_function(bags), grown.decision_function(bags), atol=1e-4
    )


def test_a_callable_kernel_is_the_named_one():
    bags, y, _ = make_problem()

    def linear(X, Z):
        return X @ Z.T

    for make in (MISVM, SetKernelSVM):
        a, b = make(kernel="linear").fit(bags, y), make(kernel=linear).fit(bags, y)
        np.testing.assert_allclose(a.decision_function(bags), b.decision_function(bags), atol=1e-6)


def test_class_weights_move_the_boundary():
    bags, y, _ = make_problem(n_bags=40, shift=1.0)
    score = MISVM().fit(bags, y).decision_function(bags).mean()
    assert MISVM(class_weight={1: 5}).fit(bags, y).decision_function(bags).mean() > score
    balanced = MISVM(class_weight="balanced").fit(bags, y).decision_function(bags)
    np.testing.assert_allclose(balanced, MISVM().fit(bags, y).decision_function(bags))


def test_bag_probability_is_that_of_its_best_instance():
    bags, y, _ = make_problem()
    model = MISVM(C=10, calibrate=True).fit(bags, y)
    instances = model.predict_proba_instances(bags)[:, 1]
    best = [p.max() for p in bags.split(instances)]
    np.testing.assert_allclose(model.predict_proba(bags)[:, 1], best, atol=1e-12)


def test_no_probability_without_calibration():
    for model in (MISVM(), SetKernelSVM()):
        assert not hasattr(model, "predict_proba")
        assert not hasattr(model, "predict_proba_instances")


def test_calibration_uses_held_out_bags():
    """Labels of pure noise: an honest probability stays near a half, a sigmoid would not."""
    rng = np.random.default_rng(0)
    bags = Bags(rng.normal(size=(240, 5)), np.arange(61) * 4)
    y = rng.permutation(np.arange(60) % 2)
    p = MISVM(C=100, calibrate=True).fit(bags, y).predict_proba(bags)[:, 1]
    assert p.max() < 0.8
    assert p.min() > 0.2


def test_calibration_needs_two_bags_of_each_class():
    bags, y, _ = make_problem(n_bags=6)
    with pytest.raises(ValueError, match="at least 2 bags of each class"):
        MISVM(calibrate=True).fit(bags, [1, 0, 0, 0, 0, 0])
    from sklearn.model_selection import ShuffleSplit

    with pytest.raises(ValueError, match="every bag into one test fold"):
        MISVM(calibrate=True, cv=ShuffleSplit(1, random_state=0)).fit(bags, y)


def test_sparse_equals_dense():
    bags, y, _ = make_problem()
    sparse = bags.map(sp.csr_array)
    for variant in ("MI", "mi"):
        a = MISVM(variant=variant).fit(bags, y).decision_function(bags)
        np.testing.assert_allclose(
            a, MISVM(variant=variant).fit(sparse, y).decision_function(sparse)
        )


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("C", 0), ("gamma", -1.0), ("variant", "Mi"), ("max_iter", 0), ("slack", "row")],
)
def test_bad_parameters(parameter, value):
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match=f"'{parameter}' parameter of MISVM"):
        clone(MISVM()).set_params(**{parameter: value}).fit(bags, y)


def test_set_kernel_equals_the_double_sum(rng):
    A = [rng.normal(size=(n, 3)) for n in (1, 4, 2)]
    B = [rng.normal(size=(n, 3)) for n in (3, 1)]

    def k(X, Z):
        return np.exp(-((X[:, None] - Z[None]) ** 2).sum(-1))

    a, b = Bags.from_list(A), Bags.from_list(B)
    naive = reference.set_kernel(A, B, lambda x, z: np.exp(-((x - z) ** 2).sum()))
    for entries in (1, 9, 1000):  # blocks that end inside a bag
        K = set_kernel(a.instances, a.offsets, b.instances, b.offsets, k, block_entries=entries)
        np.testing.assert_allclose(K, naive, rtol=1e-12)
    diagonal = set_self_kernel(a.instances, a.offsets, k)
    np.testing.assert_allclose(
        diagonal, np.diag(set_kernel(a.instances, a.offsets, a.instances, a.offsets, k))
    )


def test_mean_set_kernel_of_a_linear_kernel_is_an_svc_on_bag_means():
    bags, y, _ = make_problem(shift=2.0)
    means = np.array([x.mean(axis=0) for x in bags])
    model = SetKernelSVM(kernel="linear", normalise="mean", C=3, tol=1e-8).fit(bags, y)
    plain = SVC(kernel="linear", C=3, tol=1e-8).fit(means, y)
    np.testing.assert_allclose(
        model.decision_function(bags), plain.decision_function(means), atol=1e-6
    )


def test_length_normalisation_ignores_repetition():
    bags, y, _ = make_problem()
    doubled = Bags.from_list([np.repeat(a, 2, axis=0) for a in bags])
    model = SetKernelSVM().fit(bags, y)
    np.testing.assert_allclose(model.decision_function(bags), model.decision_function(doubled))
    assert len(model.support_bags_) <= len(bags)


def test_set_kernel_of_a_zero_bag_is_defined():
    bags, y, _ = make_problem()
    model = SetKernelSVM(kernel="linear").fit(bags, y)
    np.testing.assert_allclose(
        model.decision_function(Bags(np.zeros((2, 3)), [0, 2])), model.svc_.intercept_
    )
