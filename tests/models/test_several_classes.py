"""More than two classes: the rule, the VGPMIL family against naive twins, weights, and errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import expit, log_softmax, logit
from sklearn.base import clone
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict

import bagwise
from bagwise import DPMIL, GVGPMIL, LMVGPMIL, VGPMIL, AutoVGPMIL, Bags, OneVsRest, PsiVGPMIL
from bagwise.core.gaussians import sigmoid_moments
from bagwise.core.kernels import RBF
from bagwise.models.classes import (
    ClassRule,
    ClassScores,
    fit_temperature,
)
from bagwise.models.labels import rare_weights, read_classes, read_labels
from bagwise.models.registry import MODELS, make_model
from bagwise.models.variational import LargeMargin, NoisyMax, Or, SoftMax
from bagwise.models.variational.blocks import BagLabels
from tests.reference import vgpmil as naive

FAMILY = [VGPMIL, PsiVGPMIL, GVGPMIL, LMVGPMIL]


def make_classes(n_bags=36, seed=0, shift=4.0):
    """Bags of three classes: nothing, something above, something to the right; and the truth."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_bags) % 3
    arrays, labels = [], []
    for c in y:
        n = rng.integers(2, 5)
        x, own = rng.normal(size=(n, 2)), np.zeros(n, dtype=int)
        if c:
            x[0, c - 1] += shift
            own[0] = c
        arrays.append(x)
        labels.append(own)
    return Bags.from_list(arrays), y, np.concatenate(labels)


def make_indicators(y, seed=1):
    """Both findings, with some bags that have both put in place of their class."""
    return np.column_stack([y == 1, y == 2]).astype(int)


@pytest.fixture(scope="module")
def problem():
    return make_classes()


@pytest.fixture(scope="module")
def fitted(problem):
    bags, y, _ = problem
    return VGPMIL(n_inducing=15, random_state=0).fit(bags, y, background=0)


# The rule.


@pytest.mark.parametrize("background", [None, 1])
@pytest.mark.parametrize("level", ["of_bags", "of_instances"])
def test_rule_equals_enumeration(background, level):
    """Independent indicators, of which at most one holds; in a bag without background, one."""
    rng = np.random.default_rng(0)
    rule = ClassRule(4, background)
    n_findings = len(rule.findings)
    z = 2 * rng.normal(size=(5, n_findings))
    p = expit(getattr(rule, level)(z, np.zeros_like(z)).log_odds)
    allowed = (1,) if level == "of_bags" and background is None else (0, 1)
    for row, log_odds in zip(p, z, strict=True):
        weights = {}
        for pattern in itertools.product([0, 1], repeat=n_findings):
            if sum(pattern) in allowed:
                chances = np.where(pattern, expit(log_odds), expit(-log_odds))
                weights[pattern] = np.prod(chances)
        total = sum(weights.values())
        for f, c in enumerate(rule.findings):
            only = tuple(int(g == f) for g in range(n_findings))
            assert row[c] == pytest.approx(weights[only] / total, abs=1e-12)
        if background is not None:
            assert row[background] == pytest.approx(weights[(0,) * n_findings] / total, abs=1e-12)


def test_bags_of_several_classes_keep_their_answers():
    z = np.array([[1.0, -2.0, 0.5], [30.0, -30.0, 2.0]])
    np.testing.assert_array_equal(ClassRule(3, multilabel=True).of_bags(z, 0 * z).log_odds, z)


@pytest.mark.parametrize("background", [None, 2])
def test_instances_inside_bags_equal_the_sum_over_the_classes_of_the_bag(background):
    """p(instance is c) = p(bag is c) p(instance is c | bag is c), for every class of the bag."""
    rng = np.random.default_rng(1)
    rule = ClassRule(4, background, temperature=1.3, shift=0.4 if background is not None else 0.0)
    bag_z = rng.normal(size=(6, len(rule.findings)))
    z = bag_z - rng.uniform(0.0, 3.0, size=bag_z.shape)
    z[0] = bag_z[0]  # an instance that is all its bag is
    bag, inst = (ClassScores(x, np.zeros_like(x)) for x in (bag_z, z))
    classes = rule.of_bags(*bag)
    p = expit(rule.inside_bags(inst, bag, classes).log_odds)
    of_bag, rest = expit(classes.log_odds), np.zeros(6)
    for f, c in enumerate(rule.findings):
        given = expit(z[:, f]) / expit(bag_z[:, f])
        np.testing.assert_allclose(p[:, c], of_bag[:, c] * given, atol=1e-12)
        rest += of_bag[:, c] * (1 - given)
    if background is not None:
        rest += of_bag[:, background]
        np.testing.assert_allclose(p[:, background], rest, atol=1e-12)
        np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    findings = rule.findings
    assert (p[:, findings] <= of_bag[:, findings] + 1e-12).all()


def test_deviations_inside_bags_are_those_of_a_product():
    """Of independent factors, whose means and second moments multiply."""
    rng = np.random.default_rng(2)
    rule = ClassRule(3)
    bag_z, gap = rng.normal(size=(5, 3)), rng.uniform(0.5, 2.0, size=(5, 3))
    given, given_std = expit(-gap), 0.1 * rng.uniform(size=(5, 3))
    p_bag, bag_std = expit(bag_z), 0.1 * rng.uniform(size=(5, 3))
    square = (p_bag**2 + bag_std**2) * (given**2 + given_std**2)
    p = p_bag * given
    inst = ClassScores(logit(p), np.sqrt(square - p**2))
    bag = ClassScores(bag_z, bag_std)
    classes = rule.of_bags(*bag)
    inside = rule.inside_bags(inst, bag, classes)
    P = expit(classes.log_odds)
    square = (P**2 + classes.std**2) * (given**2 + given_std**2)
    np.testing.assert_allclose(inside.std, np.sqrt(square - (P * given) ** 2), rtol=1e-8)
    far = ClassScores(np.full((1, 3), -800.0), np.zeros((1, 3)))  # probabilities that round to 0
    assert np.isfinite(np.stack(rule.inside_bags(far, far, rule.of_bags(*far)))).all()


def test_one_finding_and_a_background_are_two_classes():
    z, std = np.linspace(-4, 4, 9)[:, None], np.full((9, 1), 0.01)
    for rule in (ClassRule(2, 0).of_bags, ClassRule(2, 0).of_instances):
        scores = rule(z, std)
        np.testing.assert_allclose(scores.log_odds, np.column_stack([-z, z]), atol=1e-12)
        np.testing.assert_allclose(scores.std, np.column_stack([std, std]), atol=1e-12)


@pytest.mark.parametrize("background", [None, 0])
@pytest.mark.parametrize("level", ["of_bags", "of_instances"])
def test_standard_deviations_are_those_of_small_changes(background, level):
    rng = np.random.default_rng(1)
    rule = ClassRule(4, background, temperature=1.7)
    n_findings = len(rule.findings)
    z = rng.normal(size=(6, n_findings))
    latent = rng.uniform(0.05, 0.15, size=z.shape)
    apply = getattr(rule, level)
    expected = np.zeros((6, 4))
    for f in range(n_findings):
        step = np.zeros_like(z)
        step[:, f] = 1e-5
        up, down = (expit(apply(z + s, 0 * z).log_odds) for s in (step, -step))
        expected += ((up - down) / 2e-5 * latent[:, [f]]) ** 2
    std = latent * expit(z) * expit(-z)  # of each finding's probability
    np.testing.assert_allclose(apply(z, std).std, np.sqrt(expected), rtol=1e-6)
    wide = apply(z, 100 * std)
    p = expit(wide.log_odds)
    assert (wide.std <= np.sqrt(p * (1 - p)) + 1e-12).all()


def test_temperature_is_the_one_that_held_out_bags_like_best():
    rng = np.random.default_rng(2)
    codes = rng.integers(3, size=400)
    z = 3 * (codes[:, None] == np.arange(3)) - 1.5 + rng.normal(size=(400, 3))
    rule = fit_temperature(ClassRule(3), z, codes)

    def loss(t):
        log_p = log_softmax(t * z, axis=1)
        return -log_p[np.arange(400), codes].sum() + np.log(t) ** 2 / 2

    nearby = rule.temperature * np.exp(np.linspace(-0.05, 0.05, 11))
    assert min(map(loss, nearby)) > loss(rule.temperature) - 1e-4
    with_background = fit_temperature(ClassRule(4, 3), z - 1, np.where(codes == 0, 3, codes))

    def shifted(t, shift):
        none = np.full((400, 1), shift)
        log_p = log_softmax(np.hstack([t * (z - 1), none]), axis=1)
        own = log_p[np.arange(400), np.where(codes == 0, 3, codes)]
        return -own.sum() + np.log(t) ** 2 / 2 + shift**2 / 2

    t, shift = with_background.temperature, with_background.shift
    steps = [(t * a, shift + b) for a in (0.98, 1, 1.02) for b in (-0.02, 0, 0.02)]
    assert min(shifted(*step) for step in steps) > shifted(t, shift) - 1e-4
    assert abs(shift) > 0.01
    # With a single bag the prior holds it near 1.
    assert 0.5 < fit_temperature(ClassRule(3), z[:1], codes[:1]).temperature < 2
    assert fit_temperature(ClassRule(3), np.full((2, 3), np.nan), [0, 1]) == ClassRule(3)


# The family.


def test_classes_equal_a_naive_dense_twin():
    """Posteriors, bound and every probability, from dense matrices and loops."""
    rng = np.random.default_rng(3)
    sizes = [3, 1, 4, 2, 3, 2]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    y = np.array([0, 1, 2, 0, 1, 2])
    X, Z = rng.normal(size=(15, 2)), np.unique(1.5 * rng.normal(size=(5, 2)), axis=0)
    labels = np.full(15, -1)
    labels[[1, 4]] = [0, 2]  # one instance of its bag's class, and one in a bag of class 2
    model = VGPMIL(
        inference="paper",
        kernel=RBF(1.5, 1.0),
        inducing=Z,
        n_inducing=len(Z),
        scale=None,
        calibrate=False,
        max_iter=6,
        tol=0.0,
    ).fit(Bags(X, offsets), y, instance_labels=labels, class_weight={})
    new = rng.normal(size=(4, 2))
    K = naive.rbf(new, Z, 1.0, 1.5)
    log_odds, bounds = [], []
    for c in range(3):
        known = np.where(labels < 0, -1, labels == c)
        twin = naive.Problem(X, Z, 1.0, 1.5, offsets, (y == c).astype(int), known)
        pi = np.where(np.repeat(y, sizes) == c, 0.5, 0.0)
        psi = naive.theta_sech, naive.log_psi_sech
        options = {"H": 100.0, "exact": False, "schedule": "damped", "n_iter": 6}
        m, S, _, history = naive.fit_noisy_max(twin, pi, *psi, **options)
        P = K @ naive.INV(twin.KZZ)
        var = [1.0 - p @ k + p @ S @ p for p, k in zip(P, K, strict=True)]
        log_odds.append(sigmoid_moments(P @ m, np.array(var)).log_odds)
        bounds.append(history)
    np.testing.assert_allclose(model.bound_history_, np.sum(bounds, axis=0), atol=1e-8)
    odds = np.exp(np.array(log_odds)).T  # [4, 3]
    instances = [[o / (1 + row.sum()) for o in row] for row in odds]
    bags = Bags(new, [0, 3, 4])
    np.testing.assert_allclose(model.predict_proba_instances(bags), instances, atol=1e-8)
    expected = []
    for rows in (range(3), range(3, 4)):
        top = [max(odds[n, c] for n in rows) for c in range(3)]
        expected.append([o / sum(top) for o in top])
    np.testing.assert_allclose(model.predict_proba(bags), expected, atol=1e-8)


def test_tasks_of_an_or_are_the_exact_likelihood_of_independent_indicators():
    """Over all 2^(instances x classes) indicators of a bag of three instances."""
    rng = np.random.default_rng(4)
    f, error = rng.normal(size=(3, 3)), 0.02
    present = np.array([0, 1, 0])
    total = 0.0
    for pattern in itertools.product([0, 1], repeat=9):
        indicators = np.array(pattern).reshape(3, 3)
        chance = np.prod(np.where(indicators, expit(f), expit(-f)))
        agree = indicators.max(axis=0) == present
        total += chance * np.prod(np.where(agree, 1 - error, error))
    labels = BagLabels(np.array([0, 3]), present[None])
    value = Or(error=error).terms(f[..., None], labels).value
    assert np.exp(value.sum()) == pytest.approx(total, abs=1e-10)


@pytest.mark.parametrize("likelihood", [None, Or(), SoftMax()], ids=repr)
def test_bound_never_falls(problem, likelihood):
    bags, y, _ = problem
    model = VGPMIL(likelihood=likelihood, n_inducing=12, calibrate=False, random_state=0)
    history = model.fit(bags, y).bound_history_
    assert len(history) >= 2
    assert (np.diff(history) >= 0).all()


@pytest.mark.parametrize("make", [VGPMIL, AutoVGPMIL], ids=lambda c: c.__name__)
def test_permuting_class_names_permutes_the_answer(problem, make):
    bags, y, _ = problem
    model = make(n_inducing=8, random_state=0)
    if make is AutoVGPMIL:
        bags, y = bags[:18], y[:18]
    names, swapped = np.array(["a", "b", "c"]), np.array(["c", "a", "b"])
    p = clone(model).fit(bags, names[y]).predict_proba(bags)
    q = clone(model).fit(bags, swapped[y]).predict_proba(bags)
    # The search rounds to single precision, and sums in the order of the classes.
    np.testing.assert_allclose(q[:, [2, 0, 1]], p, atol=1e-6)


@pytest.mark.parametrize("make", FAMILY, ids=lambda c: c.__name__)
def test_every_model_of_the_family_learns_three_classes(problem, make):
    bags, y, truth = problem
    model = make(n_inducing=15, random_state=0).fit(bags, y, background=0)
    assert model.score(bags, y) > (0.8 if make is LMVGPMIL else 0.9)
    p, std, interval = model.predict_proba(bags, return_std=True, return_interval=0.9)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    assert std.shape == p.shape and interval.shape == (*p.shape, 2)
    assert ((interval[..., 0] <= p) & (p <= interval[..., 1])).all()
    np.testing.assert_array_equal(model.predict(bags), model.decision_function(bags).argmax(1))
    of_instances = model.predict_proba_instances(bags)
    np.testing.assert_allclose(of_instances.sum(axis=1), 1.0, atol=1e-12)
    assert np.mean(model.predict_instances(bags) == truth) > 0.85
    share = model.predict_positive_fraction(bags)
    np.testing.assert_allclose(share.sum(axis=1), 1.0, atol=1e-12)


def test_without_a_background_an_instance_may_be_of_no_class(problem):
    bags, y, truth = problem
    bags, rows = bags[y > 0], np.repeat(y > 0, bags.sizes)
    more = np.concatenate([y[y > 0]])
    more[::4] = 3
    model = VGPMIL(n_inducing=15, random_state=0, calibrate=False).fit(bags, more)
    total = model.predict_proba_instances(bags).sum(axis=1)
    assert (total < 1).all() and truth[rows].shape == total.shape


@pytest.mark.parametrize("background", [None, 0])
def test_no_instance_is_more_probable_than_its_bag(problem, background):
    bags, y, _ = problem
    model = VGPMIL(n_inducing=15, random_state=0).fit(bags, y, background=background)
    p, q = model.predict_proba(bags), model.predict_proba_instances(bags)
    findings = model.class_rule_.findings
    assert (q[:, findings] <= np.repeat(p[:, findings], bags.sizes, axis=0) + 1e-12).all()
    assert (q.sum(axis=1) <= 1 + 1e-12).all()


def test_an_indicator_matrix_leaves_the_classes_free(problem):
    bags, y, _ = problem
    both = Bags.from_list([np.concatenate([bags[i], bags[i + 1]]) for i in range(1, 34, 3)])
    all_bags = Bags.from_list([*bags, *both])
    Y = np.vstack([make_indicators(y), np.ones((len(both), 2), dtype=int)])
    model = VGPMIL(n_inducing=20, random_state=0).fit(all_bags, Y)
    np.testing.assert_array_equal(model.classes_, [0, 1])
    assert np.mean(model.predict(all_bags) == Y) > 0.9
    p = model.predict_proba(all_bags)
    assert p.sum(axis=1).max() > 1.5 and p.sum(axis=1).min() < 0.5
    np.testing.assert_array_equal(model.predict(all_bags), p > 0.5)
    found = cross_val_predict(model, all_bags, Y, cv=3, method="predict_proba")
    assert found.shape == Y.shape and log_loss(Y[:, 0], found[:, 0]) < 0.5


def test_two_classes_take_the_path_of_two(problem):
    bags, y, _ = problem
    two = y[y < 2]
    plain = VGPMIL(n_inducing=10, random_state=0).fit(bags[y < 2], two)
    named = VGPMIL(n_inducing=10, random_state=0).fit(bags[y < 2], two, background=0)
    assert plain.class_rule_.binary and plain.posterior_mean_.ndim == 1
    np.testing.assert_array_equal(plain.predict_proba(bags), named.predict_proba(bags))
    again = plain.fit(bags, y).fit(bags[y < 2], two)  # what three classes left behind is gone
    np.testing.assert_array_equal(again.predict_proba(bags), named.predict_proba(bags))
    with pytest.raises(
        ValueError, match="with two classes the larger one, 1, is the positive class"
    ):
        VGPMIL().fit(bags[y < 2], two, background=1)


def test_instance_labels_of_any_class_are_used(problem):
    bags, y, truth = make_classes(shift=1.5, seed=5)
    weak = VGPMIL(n_inducing=20, random_state=0, calibrate=False).fit(bags, y, background=0)
    strong = clone(weak).fit(bags, y, truth, background=0)
    error = [np.mean(m.predict_instances(bags) != truth) for m in (weak, strong)]
    assert error[1] < error[0]
    updated = weak.update(bags, y, truth)
    assert np.mean(updated.predict_instances(bags) != truth) < error[0]


def test_classes_share_a_learnt_kernel(problem):
    bags, y, _ = problem
    kernel = RBF("median", 0.2)
    model = VGPMIL(n_inducing=8, kernel=kernel, calibrate=False, random_state=0)
    model.fit(bags, y, background=0)
    fixed = clone(model).set_params(learn_kernel=False).fit(bags, y, background=0)
    assert model.kernel_ != fixed.kernel_ and model.score(bags, y) > 0.9
    assert model.bound_history_[-1] > fixed.bound_history_[-1]
    assert model.posterior_mean_.shape == (2, 8)
    paper = VGPMIL(inference="paper", n_inducing=8, learn_kernel=True, calibrate=False)
    with pytest.raises(ValueError, match="learns the kernel of two classes"):
        paper.fit(bags, y)


def test_checkpoints_threads_and_disk_change_nothing(problem, tmp_path):
    bags, y, _ = problem
    plain = VGPMIL(n_inducing=6, random_state=0).fit(bags, y)
    path = tmp_path / "fit"
    for execution in (
        bagwise.Execution(checkpoint=path, checkpoint_every=2),
        bagwise.Execution(n_jobs=2, chunk_size=8),
        bagwise.Execution(cache="disk"),
        bagwise.Execution(cache="none"),
    ):
        other = VGPMIL(n_inducing=6, random_state=0, execution=execution).fit(bags, y)
        np.testing.assert_allclose(other.predict_proba(bags), plain.predict_proba(bags), atol=1e-8)
    assert list(tmp_path.iterdir()) == []


def test_save_and_load(problem, fitted, tmp_path):
    bags, y, _ = problem
    models = [
        fitted,
        OneVsRest(make_model("single-instance")).fit(bags, y, background=0),
        OneVsRest(DPMIL(n_components=3, calibrate=False, random_state=0)).fit(
            bags, make_indicators(y)
        ),
    ]
    for model in models:
        again = bagwise.load(bagwise.save(model, tmp_path / "m.bagwise", bags=bags, y=y))
        np.testing.assert_array_equal(again.predict_proba(bags), model.predict_proba(bags))
        np.testing.assert_array_equal(again.predict_instances(bags), model.predict_instances(bags))


def test_scikit_learn_tools(problem):
    bags, y, _ = problem
    model = VGPMIL(n_inducing=8, calibrate=False, random_state=0)
    found = cross_val_predict(model, bags, y, cv=3, method="predict_proba")
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    search = GridSearchCV(model, {"n_inducing": [4, 12]}, cv=3, scoring="neg_log_loss")
    search.fit(bags, y, background=0)
    assert search.best_estimator_.class_rule_.background == 0


# Every other model.


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("auto", "mio")])
def test_every_model_takes_three_classes_and_indicators(name):
    """By itself, or as one model per class; never by a silent failure."""
    from bagwise.models.one_vs_rest import for_labels

    bags, y, _ = make_classes(24, seed=6)
    model = make_model(name, random_state=0)
    quick = {"n_inducing": 8, "max_iter": 8, "cv": 2, "calibrate": False, "n_components": 2}
    quick |= {"n_estimators": 3, "n_trees": 3}
    model.set_params(**{k: v for k, v in quick.items() if k in model.get_params()})
    three = for_labels(model, y).fit(bags, y)
    assert three.predict(bags).shape == (24,) and set(three.predict(bags)) <= {0, 1, 2}
    assert three.decision_function(bags).shape == (24, 3)
    if hasattr(three, "predict_proba"):
        np.testing.assert_allclose(three.predict_proba(bags).sum(axis=1), 1.0, atol=1e-9)
    inner = getattr(three, "estimators_", [three])[0]
    assert hasattr(three, "predict_instances") == hasattr(inner, "predict_instances")
    if hasattr(three, "predict_instances"):
        assert three.predict_instances(bags).shape == (bags.n_instances,)
    Y = make_indicators(y)
    free = for_labels(clone(model), Y).fit(bags, Y)
    assert free.predict(bags).shape == Y.shape


def test_one_vs_rest_with_two_classes_is_the_model(problem):
    bags, y, _ = problem
    two = (y == 1).astype(int)
    model = make_model("single-instance")
    plain, wrapped = clone(model).fit(bags, two), OneVsRest(model).fit(bags, two)
    for method in ("predict", "predict_proba_instances", "decision_function"):
        np.testing.assert_array_equal(getattr(wrapped, method)(bags), getattr(plain, method)(bags))


def test_one_vs_rest_keeps_instance_labels(problem):
    bags, y, truth = problem
    model = OneVsRest(make_model("single-instance")).fit(bags, y, truth, background=0)
    assert np.mean(model.predict_instances(bags) == truth) > 0.85


def test_auto_with_a_background(problem):
    bags, y, truth = problem
    model = AutoVGPMIL(n_inducing=15, random_state=0)
    model.fit(bags, y, background=0)
    assert model.score(bags, y) > 0.9
    assert np.mean(model.predict_instances(bags) == truth) > 0.85
    assert model.held_out_decision_.shape == (len(bags), 3)
    assert model.predictor_.processes[0].m.shape[0] == 2


# Rare classes.


def make_labels(n_bags=60, seed=3):
    """Five labels, of 40 bags down to one and none; some bags have none at all."""
    rng = np.random.default_rng(seed)
    centres = 5 * rng.normal(size=(5, 6))
    Y = np.zeros((n_bags, 5), dtype=int)
    for c, n in enumerate((40, 12, 3, 1, 0)):
        Y[rng.choice(n_bags - 6, n, replace=False), c] = 1
    arrays = []
    for row in Y:
        x = rng.normal(size=(6, 6))
        for i, c in enumerate(np.flatnonzero(row)):
            x[i] += centres[c]
        arrays.append(x)
    return Bags.from_list(arrays), Y


@pytest.mark.parametrize(
    "model",
    [
        VGPMIL(n_inducing=25, random_state=0),
        AutoVGPMIL(n_inducing=25, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_rare_and_absent_labels_are_no_obstacle(model):
    bags, Y = make_labels()
    with pytest.warns(UserWarning, match="class 4 has no bag"):
        model.fit(bags, Y)
    p = model.predict_proba(bags)
    assert np.isfinite(p).all() and p.shape == Y.shape
    for c in (0, 1, 2, 3):
        assert roc_auc_score(Y[:, c], p[:, c]) > 0.95
    # The class of no bag is as rare as that, and a class of one bag is the rarest but for it.
    assert p[:, 4].mean() < 0.05 and p[:, 3].mean() < p[:, 1].mean()
    assert model.predict_proba_instances(bags).shape == (bags.n_instances, 5)
    assert model.predict(bags)[:, 4].sum() == 0
    with pytest.raises(ValueError, match="class 0 has no bag"):
        model.fit(bags, np.zeros_like(Y))


# Weights.

LIKELIHOODS = [NoisyMax(), LargeMargin()]


def given_points(bags, likelihood=None, **options):
    """The papers' updates, which have no draws, on the same inducing points."""
    Z = np.unique(np.asarray(bags.instances[:6]), axis=0)
    settings = {"calibrate": False, "scale": None, "max_iter": 9, "tol": 0.0, **options}
    settings = {"inference": "paper", "kernel": RBF(1.0, 4.0), "likelihood": likelihood, **settings}
    return VGPMIL(inducing=Z, n_inducing=len(Z), **settings)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda x: type(x).__name__)
def test_a_bag_of_weight_two_is_the_bag_twice(problem, likelihood):
    bags, y, _ = problem
    y = (y > 0).astype(int)
    weight = np.ones(len(bags))
    weight[[2, 7]] = 2.0
    weight[5] = 0.0
    chosen = np.repeat(np.arange(len(bags)), weight.astype(int))
    weighed = given_points(bags, likelihood)
    weighed.fit(bags, y, sample_weight=weight)
    repeated = given_points(bags, likelihood).fit(bags[chosen], y[chosen])
    np.testing.assert_allclose(weighed.posterior_mean_, repeated.posterior_mean_, atol=1e-8)
    np.testing.assert_allclose(weighed.bound_history_, repeated.bound_history_, atol=1e-8)
    plain = given_points(bags, likelihood).fit(bags, y)
    assert np.abs(plain.posterior_mean_ - weighed.posterior_mean_).max() > 1e-3


def test_class_weights_are_weights_of_bags(problem):
    bags, y, _ = problem
    two = (y == 1).astype(int)
    by_class = given_points(bags).fit(bags, two, class_weight={1: 3.0})
    by_bag = given_points(bags).fit(bags, two, sample_weight=np.where(two, 3.0, 1.0))
    np.testing.assert_array_equal(by_class.posterior_mean_, by_bag.posterior_mean_)
    balanced = given_points(bags).fit(bags, two, class_weight="balanced")
    weights = len(two) / 2 / np.bincount(two)[two]
    by_bag = given_points(bags).fit(bags, two, sample_weight=weights)
    np.testing.assert_array_equal(balanced.posterior_mean_, by_bag.posterior_mean_)
    plain = given_points(bags).fit(bags, two)  # a third of the bags: each counts once
    default = given_points(bags).fit(bags, y)
    np.testing.assert_allclose(default.posterior_mean_[1], plain.posterior_mean_, atol=1e-12)
    several = given_points(bags).fit(bags, y, class_weight={2: 3.0})
    one = given_points(bags).fit(
        bags, (y == 1).astype(int), sample_weight=np.where(y == 2, 3.0, 1.0)
    )
    np.testing.assert_allclose(several.posterior_mean_[1], one.posterior_mean_, atol=1e-12)


def test_a_rare_class_counts_as_a_fifth_of_the_bags(problem):
    """In a question about one class of several as with two; and it is what saves the ranking."""
    bags, y, _ = problem
    rare = np.zeros(36, dtype=int)
    rare[[4, 7]] = 1
    by_default = given_points(bags).fit(bags, rare)
    weight = np.where(rare, 34 / 2 / 4, 1.0)  # 2 x 4.25 of 42.5
    by_bag = given_points(bags).fit(bags, rare, class_weight={}, sample_weight=weight)
    np.testing.assert_allclose(by_default.posterior_mean_, by_bag.posterior_mean_, atol=1e-10)
    assert weight[rare == 1].sum() == pytest.approx(0.2 * weight.sum())
    once = given_points(bags).fit(bags, rare, class_weight={})
    assert np.abs(once.posterior_mean_ - by_default.posterior_mean_).max() > 0.1
    several = given_points(bags).fit(bags, np.where(rare, 2, y == 1))
    np.testing.assert_allclose(several.posterior_mean_[2], by_default.posterior_mean_, atol=1e-12)
    # A bag of weight 2 is the bag twice here, too.
    twice = np.concatenate([np.arange(36), [4]])
    repeated = given_points(bags).fit(bags[twice], rare[twice])
    counted = given_points(bags)
    counted.fit(bags, rare, sample_weight=np.where(np.arange(36) == 4, 2.0, 1.0))
    np.testing.assert_allclose(counted.posterior_mean_, repeated.posterior_mean_, atol=1e-8)
    assert rare_weights(np.repeat([0, 1], [3, 7])) is None
    np.testing.assert_allclose(
        rare_weights(np.repeat([1, 0], [36, 4])), np.repeat([1, 2.25], [36, 4])
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_rare_positives_are_still_ranked():
    """Eight bags of 260: where every bag counts once the ranking is turned upside down."""
    from experiments.imbalance import Rare, rare_digits

    bags, y = rare_digits(Rare(8, (2, 3, 4), 520), 104, 520)
    train, test = np.arange(0, 520, 2), np.arange(1, 520, 2)
    auc = [
        roc_auc_score(y[test], model.decision_function(bags[test]))
        for model in (
            VGPMIL(inference="paper", random_state=0, calibrate=False).fit(
                bags[train], y[train], class_weight=given
            )
            for given in (None, {})
        )
    ]
    assert auc[0] > 0.75 > 0.6 > auc[1]


def test_weights_of_bags_count_in_calibration(problem):
    bags, y, _ = problem
    two = (y == 1).astype(int)
    options = {"calibrate": True, "max_iter": 200, "tol": 1e-3}
    plain = given_points(bags, **options).fit(bags, two)
    ones = given_points(bags, **options).fit(bags, two, sample_weight=np.ones(36))
    for a, b in zip(plain.predictor_.lines[0], ones.predictor_.lines[0], strict=True):
        assert a == pytest.approx(b, abs=1e-9)
    # As if positive bags were five times as frequent.
    often = given_points(bags, **options)
    often.fit(bags, two, sample_weight=np.where(two, 5.0, 1.0))
    assert often.predict_proba(bags)[:, 1].mean() > plain.predict_proba(bags)[:, 1].mean() + 0.02


def test_sample_weight_is_routed(problem):
    from sklearn import config_context

    bags, y, _ = problem
    two, weight = (y == 1).astype(int), np.where(y == 1, 4.0, 1.0)
    with config_context(enable_metadata_routing=True):
        model = given_points(bags).set_fit_request(sample_weight=True)
        routed = cross_val_predict(
            model, bags, two, cv=3, params={"sample_weight": weight}, method="predict_proba"
        )
    plain = cross_val_predict(given_points(bags), bags, two, cv=3, method="predict_proba")
    assert np.abs(routed - plain).max() > 1e-3


def test_auto_takes_weights(problem):
    bags, y, _ = problem
    two = (y == 1).astype(int)
    make = AutoVGPMIL(n_inducing=8, random_state=0)
    plain = clone(make).fit(bags, two)
    ones = clone(make).fit(bags, two, sample_weight=np.ones(len(bags)))
    np.testing.assert_allclose(
        ones.decision_function(bags), plain.decision_function(bags), atol=1e-8
    )
    other = clone(make).fit(bags, two, class_weight={1: 8.0})
    assert np.abs(other.decision_function(bags) - plain.decision_function(bags)).max() > 1e-3


# Errors, one line each.


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (lambda y: y[:-1], {}, "got 35 labels for 36 bags"),
        (lambda y: y, {"background": 7}, "background=7 is not one of the classes"),
        (lambda y: np.eye(3)[y] + 1, {}, "indicator matrix of 0 and 1"),
        (lambda y: np.column_stack([y > 4, y > 5]), {}, "class 0 has no bag"),
        (lambda y: np.eye(3)[y], {"background": 0}, "no meaning with an indicator matrix"),
        (lambda y: y, {"class_weight": "even"}, "must be 'balanced' or a dict"),
        (lambda y: y, {"class_weight": {9: 2.0}}, "class_weight names 9"),
        (lambda y: y, {"sample_weight": [1.0]}, "one weight per bag"),
        (
            lambda y: y,
            {"validation": (make_classes()[0], np.full(36, 5))},
            "watches two classes",
        ),
    ],
)
def test_bad_input(problem, y, options, message):
    bags, labels, _ = problem
    with pytest.raises(ValueError, match=message) as caught:
        VGPMIL(n_inducing=5).fit(bags, y(labels), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "model", [VGPMIL(n_inducing=5), OneVsRest(make_model("misvm")), DPMIL(n_components=2)]
)
def test_an_instance_label_that_its_bag_cannot_have(problem, model):
    bags, y, truth = problem
    wrong = truth.copy()
    wrong[bags.offsets[4]] = 2  # bag 4 is of class 1
    options = {} if isinstance(model, DPMIL) else {"background": 0}
    message = r"bag 4 is labelled '?1'? but .*instance.* labelled '?2'?"
    with pytest.raises(ValueError, match=message):
        model.fit(bags, y, wrong, **options)
    nothing = np.where(bags.bag_index == 4, 0, -1)
    with pytest.raises(ValueError, match=r"bag 4 is labelled '?1'? but every instance"):
        model.fit(bags, y, nothing, **options)


def test_labels_of_instances_as_an_indicator_matrix(problem):
    bags, y, truth = problem
    Y = make_indicators(y)
    known = np.column_stack([truth == 1, truth == 2]).astype(float)
    known[::3] = np.nan
    labels = read_labels(Y, bags, *read_classes(Y))
    model = VGPMIL(n_inducing=15, random_state=0, calibrate=False).fit(bags, Y, known)
    assert (
        labels.rule.multilabel
        and np.mean(model.predict_instances(bags)[:, 0] == (truth == 1)) > 0.9
    )
    known[bags.offsets[4], 1] = 1  # bag 4 has class 0 only
    with pytest.raises(ValueError, match="bag 4 is labelled 0 but instance 0 in it is labelled 1"):
        VGPMIL().fit(bags, Y, known)
    with pytest.raises(ValueError, match="one row per instance"):
        VGPMIL().fit(bags, Y, known[:-1])


def test_two_class_models_say_how_to_learn_more(problem):
    bags, y, _ = problem
    with pytest.raises(ValueError, match=r"wrap it: OneVsRest\(MISVM\(\)\)"):
        make_model("misvm").fit(bags, y)
