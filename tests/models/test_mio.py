"""MIO: the contract, the exact step, streams, passes, bounded memory, bad input."""

import copy
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import bagwise
from bagwise import Bags
from bagwise.core import mio
from bagwise.datasets import load_musk1, make_two_concept_bags
from tests.checks import CHECKS, make_problem, sklearn_checks
from tests.checks.raw import MIO
from tests.reference import mio as reference

MODELS = {
    "accumulate": lambda: MIO(random_state=0),
    "refine": lambda: MIO(passes="refine", n_passes=30, random_state=0),
    "one pass, few kept": lambda: MIO(n_passes=5, max_instances=60, random_state=0),
    "probability": lambda: MIO(calibrate=True, cv=3, random_state=0),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("check", CHECKS)
def test_contract(check, make):
    check(make)


@sklearn_checks(MIO(random_state=0))
def test_sklearn(estimator, check):
    check(estimator)


@st.composite
def step_problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 100_000)))
    n = draw(st.integers(1, 60))
    z = rng.random(n) ** draw(st.sampled_from([1, 8]))
    z[rng.random(n) < 0.2] = 0
    z[0] = rng.choice([0.0, 1.0, 10.0])
    pi = rng.normal(size=n) * draw(st.sampled_from([0.0, 0.3, 3.0]))
    alpha = draw(st.sampled_from([0.0, 0.1, 1.0]))
    if rng.random() < 0.3:
        pi[: n // 2] = alpha  # on a breakpoint
    beta = draw(st.sampled_from([0.05, 1.0, 20.0]))
    cost = draw(st.sampled_from([0.3, 1.0, 10.0]))
    return pi, z, float(rng.choice([-1, 1])), alpha, beta, -cost


@given(step_problems())
def test_step_equals_brute_force(problem):
    pi, z, sign, alpha, beta, eta = problem
    theta, at_zero = mio.best_theta(pi, z, sign, alpha, beta, eta)
    assert eta <= theta <= 0
    for brute in (reference.theta_by_sorting, reference.theta_by_bisection):
        other = brute(*problem)
        # Where Q is flat every minimiser is right: compare Q' there, and Q itself everywhere.
        flat = abs(reference.q_slope(theta, *problem[:-1])) < 1e-12 * beta
        assert abs(theta - other) <= 1e-10 or flat
        assert abs(reference.q(theta, *problem[:-1]) - reference.q(other, *problem[:-1])) <= 1e-10
    assert at_zero == pytest.approx(reference.q_slope(0.0, *problem[:-1]), abs=1e-9)


def test_step_minimises_q(rng):
    for _ in range(20):
        pi, z = rng.normal(size=30), rng.random(30)
        theta, _ = mio.best_theta(pi, z, 1.0, 0.2, 1.0, -1.0)
        found = minimize_scalar(
            lambda t, pi=pi, z=z: reference.q(t, pi, z, 1.0, 0.2, 1.0),
            bounds=(-1, 0),
            method="bounded",
            options={"xatol": 1e-12},
        )
        assert reference.q(theta, pi, z, 1.0, 0.2, 1.0) <= found.fun + 1e-12


@pytest.fixture(scope="module")
def stream():
    return make_two_concept_bags(80, random_state=0, return_X_y=True)


def same_model(a, b, bags, tol=1e-10):
    np.testing.assert_allclose(a.coef_.toarray(), b.coef_.toarray(), atol=tol)
    np.testing.assert_allclose(a.decision_function(bags), b.decision_function(bags), atol=tol)
    np.testing.assert_array_equal(a.selected_instances_, b.selected_instances_)
    assert a.cumulative_loss_ == pytest.approx(b.cumulative_loss_, abs=tol)


def test_stream_equals_the_algorithm_by_loops(stream):
    bags, y = stream
    model = MIO(sigma=2.0, bias=3, class_weight={0: 1, 1: 2}).partial_fit(bags, y)
    costs = np.where(y == 1, 2.0, 1.0)
    pi, _, loss = reference.stream(bags, 2.0 * y - 1, 2.0, 0.1, 1.0, 3.0, costs)
    np.testing.assert_allclose(model.state_.pi[: len(pi)], pi, atol=1e-10)
    assert model.cumulative_loss_ == pytest.approx(loss)


def test_bag_by_bag_equals_fit_with_one_pass(stream):
    bags, y = stream
    online = MIO(sigma=2.0, bias=10)
    for i in range(len(bags)):
        online.partial_fit(bags[i : i + 1], y[i : i + 1], classes=[0, 1])
    in_one_call = MIO(sigma=2.0, bias=10).partial_fit(bags, y)
    batch = MIO(sigma=2.0, bias=10, n_passes=1, shuffle=False).fit(bags, y)
    same_model(online, batch, bags)
    same_model(online, in_one_call, bags)
    # The same through the matrix of distances.
    refined = MIO(sigma=2.0, bias=10, n_passes=1, shuffle=False, passes="refine").fit(bags, y)
    same_model(online, refined, bags)


def test_known_horizon_scales_the_net(stream):
    bags, y = stream
    a = MIO(sigma=2.0, alpha=0.1, beta=2, horizon=400).partial_fit(bags, y)
    b = MIO(sigma=2.0, alpha=2.0, beta=40).partial_fit(bags, y)
    same_model(a, b, bags)


def test_fit_forgets_and_partial_fit_goes_on(stream):
    bags, y = stream
    model = MIO(sigma=2.0, random_state=0).fit(bags, y)
    before = model.decision_function(bags)
    np.testing.assert_allclose(model.fit(bags, y).decision_function(bags), before)
    model.partial_fit(bags[:5], y[:5])
    assert model.n_bags_seen_ == len(bags) + 5
    assert model.selected_instances_.max() < bags.n_instances + bags[:5].n_instances


def test_bias_feature_is_needed():
    """Without a constant feature the two-concept set is not learnt."""
    train, y = make_two_concept_bags(400, random_state=0, return_X_y=True)
    test, y_test = make_two_concept_bags(400, random_state=1, return_X_y=True)
    with_bias = MIO(sigma=2.0, bias=10, random_state=0).fit(train, y).score(test, y_test)
    without = MIO(sigma=2.0, bias=0, random_state=0).fit(train, y).score(test, y_test)
    assert with_bias > 0.95
    assert without < with_bias - 0.05


def test_refine_raises_the_dual_and_closes_the_gap(stream):
    bags, y = stream
    gaps = [
        MIO(sigma=2.0, passes="refine", n_passes=n, tol=0, random_state=0).fit(bags, y).duality_gap_
        for n in (1, 5, 20, 80)
    ]
    assert all(b < a for a, b in pairwise(gaps))
    model = MIO(sigma=2.0, passes="refine", n_passes=5000, random_state=0).fit(bags, y)
    assert model.duality_gap_ <= 1e-6
    assert model.n_iter_ < 5000


def test_refine_reaches_the_optimum_on_musk1():
    bags, y = load_musk1(return_X_y=True)
    for sigma2, alpha, beta in ((5e5, 0.1, 1), (2e5, 0.03, 3)):
        model = MIO(sigma=np.sqrt(sigma2), alpha=alpha, beta=beta, passes="refine", n_passes=2000)
        model.set_params(random_state=0).fit(bags, y)
        assert -1e-9 < model.duality_gap_ < 1e-6


def test_refine_does_not_depend_on_the_way_there(stream):
    """The optimum is unique: two orders of later passes agree once the gap is closed."""
    bags, y = stream
    a = MIO(sigma=2.0, passes="refine", n_passes=5000, tol=1e-9, shuffle=False).fit(bags, y)
    b = MIO(sigma=2.0, passes="refine", n_passes=5000, tol=1e-11, shuffle=False).fit(bags, y)
    np.testing.assert_allclose(a.decision_function(bags), b.decision_function(bags), atol=1e-3)


def test_memory_is_bounded_and_drops_are_reported():
    bags, y = make_two_concept_bags(400, random_state=0, return_X_y=True)
    model = MIO(sigma=2.0, bias=10, max_instances=500)
    for i in range(0, len(bags), 10):
        model.partial_fit(bags[i : i + 10], y[i : i + 10], classes=[0, 1])
        assert model.n_kept_ <= 500
    assert model.n_dropped_ == bags.n_instances - 500
    assert model.coef_.shape == (1, 500)
    test, y_test = make_two_concept_bags(200, random_state=1, return_X_y=True)
    assert model.score(test, y_test) > 0.85


def test_dropped_are_those_unused_for_longest():
    net = mio.ElasticNet(alpha=0.5, beta=1.0)
    state = mio.add_anchors(mio.init(1), np.arange(5.0)[:, None], np.arange(5))
    state.pi[1:6] = [2.0, 0.1, -0.2, 0.9, 0.0]
    state.last_used[:5] = [9, 3, 1, 9, 2]
    kept = mio.drop_anchors(copy.deepcopy(state), net, 3)
    np.testing.assert_array_equal(kept.ids[:3], [0, 1, 3])
    np.testing.assert_array_equal(kept.pi[1:4], [2.0, 0.1, 0.9])
    assert (kept.n_anchors, kept.n_dropped) == (3, 2)
    # Only used ones left: the lightest goes.
    np.testing.assert_array_equal(mio.drop_anchors(copy.deepcopy(state), net, 1).ids[:1], [0])


def test_unbounded_memory_drops_nothing(stream):
    bags, y = stream
    a = MIO(sigma=2.0).partial_fit(bags, y)
    b = MIO(sigma=2.0, max_instances=bags.n_instances).partial_fit(bags, y)
    same_model(a, b, bags)
    assert b.n_dropped_ == 0


def test_stream_probabilities_are_calibrated_on_scores_before_learning(stream):
    bags, y = stream
    model = MIO(sigma=2.0, bias=10, calibrate=True)
    for i in range(len(bags)):
        model.partial_fit(bags[i : i + 1], y[i : i + 1], classes=[0, 1])
    _, scores, _ = reference.stream(bags, 2.0 * y - 1, 2.0, 0.1, 1.0, 10.0, np.ones(len(y)))
    np.testing.assert_allclose(model.recent_scores_[:, 0], scores, atol=1e-8)
    p = model.predict_proba(bags)
    assert ((p > 0) & (p < 1)).all()


def test_labelled_instances_in_a_stream(stream):
    bags, y, truth = make_problem(shift=1.5)
    taught = MIO(sigma=1.5, bias=3).partial_fit(bags, y, instance_labels=truth)
    assert taught.n_bags_seen_ == len(bags)
    assert taught.n_kept_ == bags.n_instances
    fitted = MIO(sigma=1.5, bias=3, n_passes=1, shuffle=False).fit(bags, y, instance_labels=truth)
    same_model(taught, fitted, bags)


def spoil(kind, bags, y):
    """A second call to partial_fit that must fail, and what it must say."""
    if kind == "features":
        return (Bags(np.ones((4, 3)), [0, 4]), [0]), {}, "expecting 2 features"
    if kind == "class":
        return (bags[:2], [1, 7]), {}, "bag 1 .*label 7 is not one of the classes"
    if kind == "classes":
        return (bags[:2], y[:2]), {"classes": [0, 1, 2]}, "classes must stay"
    if kind == "empty bag":
        return (Bags(np.ones((4, 2)), [0, 4, 4]), [0, 1]), {}, "bag 1 has 0 instances"
    if kind == "nan":
        return (Bags(np.full((4, 2), np.nan), [0, 4]), [0]), {}, "contains NaN"
    if kind == "lengths":
        return (bags[:2], y[:3]), {}, "got 3 labels for 2 bags"
    return (bags[:2], [0, 0]), {"instance_labels": [1] * bags[:2].n_instances}, "labelled negative"


@pytest.mark.parametrize(
    "kind", ["features", "class", "classes", "empty bag", "nan", "lengths", "instance labels"]
)
def test_bad_input_leaves_the_model_as_it_was(stream, kind):
    bags, y = stream
    model = MIO(sigma=2.0, calibrate=True).partial_fit(bags[:40], y[:40])
    state, recent = copy.deepcopy(model.state_), model.recent_scores_.copy()
    names, loss = set(vars(model)), model.cumulative_loss_
    answers = model.decision_function(bags)
    args, more, message = spoil(kind, bags, y)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(*args, **more)
    for before, after in zip(state, model.state_, strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(recent, model.recent_scores_)
    assert model.cumulative_loss_ == loss
    assert set(vars(model)) == names
    np.testing.assert_array_equal(answers, model.decision_function(bags))


@pytest.mark.parametrize(
    ("parameters", "call", "message"),
    [
        ({"sigma": 0}, {}, "'sigma' parameter of MIO"),
        ({"sigma": -2.0}, {}, "'sigma' parameter of MIO"),
        ({"sigma": "scale"}, {}, "a stream needs sigma as a number"),
        ({"class_weight": "balanced"}, {}, "class_weight as a dict"),
        ({"class_weight": {7: 1.0}}, {}, "not in class_weight"),
        ({"beta": 0}, {}, "'beta' parameter of MIO"),
        ({}, {"classes": [0]}, "two classes of the stream"),
        ({}, {"classes": [0, 2]}, "label 1 is not one of the classes"),
    ],
)
def test_bad_first_call_leaves_the_model_unfitted(stream, parameters, call, message):
    bags, y = stream
    model = MIO(**{"sigma": 2.0, **parameters})
    names = set(vars(model))
    with pytest.raises(ValueError, match=message):
        model.partial_fit(bags, y, **call)
    assert set(vars(model)) == names


def test_one_class_in_the_first_call_needs_classes(stream):
    bags, y = stream
    with pytest.raises(ValueError, match="pass classes="):
        MIO(sigma=2.0).partial_fit(bags[y == 1], y[y == 1])
    model = MIO(sigma=2.0).partial_fit(bags[y == 1], y[y == 1], classes=[0, 1])
    model.partial_fit(bags[y == 0], y[y == 0])
    assert model.n_bags_seen_ == len(bags)


def test_probabilities_are_right_on_average_though_each_fit_has_its_own_level():
    """One bag in four is positive; the bias depends on the bags that were visited last."""
    levels = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        y = (np.arange(160) % 4 == 0).astype(int)
        X = rng.normal(size=(160, 5, 3))
        X[y == 1, 0] += 2
        bags = Bags(X.reshape(-1, 3), np.arange(0, 801, 5))
        model = bagwise.MIO(random_state=seed).fit(bags[:80], y[:80])
        levels.append(model.predict_proba(bags[80:])[:, 1].mean() - 0.25)
    assert np.abs(levels).max() < 0.06
    assert abs(np.mean(levels)) < 0.03
