from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics import log_loss
from sklearn.mixture import BayesianGaussianMixture

from bagwise import Bags, Execution, InstanceTransformer, load, make_pipeline, save
from bagwise.core import constrained, dirichlet, rules, segments
from bagwise.core.dirichlet import Prior
from bagwise.datasets import make_gaussian_bags
from bagwise.models import dpmil as module
from bagwise.models import dpmil_start, held_out
from bagwise.models.calibration.fit import fit_instance_platt
from bagwise.models.dpmil_start import cluster
from tests.checks import CHECKS, make_problem, sklearn_checks
from tests.checks.raw import DPMIL
from tests.reference.dpmil import NaiveMixture, naive_dpmil, naive_labels


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("covariance_type", ["full", "diag"])
def test_contract(check, covariance_type):
    check(lambda: DPMIL(n_components=4, covariance_type=covariance_type, random_state=0))


@sklearn_checks(DPMIL(n_components=3, random_state=0))
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def make_prior(X, diagonal=False, alpha=2.0, beta0=1.3):
    covariance = np.cov(X.T) + 1e-3 * np.eye(X.shape[1])
    root = np.sqrt(np.diag(covariance)) if diagonal else np.linalg.cholesky(covariance)
    nu0 = 2.5 if diagonal else X.shape[1] + 1.5
    prior = Prior(X.mean(axis=0), root, beta0, nu0, alpha)
    W0_inv = np.diag(np.diag(covariance)) if diagonal else covariance

    def naive():
        return NaiveMixture(X.mean(axis=0), W0_inv, beta0, nu0, alpha, diagonal)

    return prior, naive


@pytest.fixture
def problem(rng):
    """Correlated, shifted data on unequal scales; the last component is empty."""
    X = rng.normal(size=(30, 4)) @ rng.normal(size=(4, 4)) * [1, 10, 0.1, 3] + [5, -2, 0, 100]
    resp = rng.dirichlet(np.ones(3), size=30)
    return X, np.column_stack([resp, np.zeros(30)])


@pytest.mark.parametrize("diagonal", [False, True])
def test_mixture_equals_naive_twin(problem, diagonal):
    X, resp = problem
    prior, naive = make_prior(X, diagonal)
    twin = naive().update(X, resp)
    Z = dirichlet.whiten(X, prior)
    posterior = dirichlet.update(dirichlet.accumulate(Z, resp, diagonal), prior)
    same = {"rtol": 1e-8, "atol": 1e-8}
    np.testing.assert_array_equal(posterior.filled, [True, True, True, False])
    np.testing.assert_allclose(posterior.sticks, [twin.a, twin.b], **same)
    np.testing.assert_allclose(dirichlet.unwhiten_mean(posterior.m, prior), twin.m, **same)
    W_inv = np.stack([np.diag(W) if diagonal else W for W in twin.W_inv])
    nu = twin.nu.reshape(-1, *[1] * (W_inv.ndim - 1))
    np.testing.assert_allclose(dirichlet.covariances(posterior, prior) * nu, W_inv, **same)
    W = np.stack([np.diag(twin.W(k)) if diagonal else twin.W(k) for k in range(4)])
    np.testing.assert_allclose(dirichlet.precisions(posterior, prior), W * nu, **same)
    np.testing.assert_allclose(dirichlet.expected_weights(posterior), twin.weights(), **same)
    log_rho = dirichlet.log_joint(Z, posterior, prior)
    np.testing.assert_allclose(log_rho, twin.log_rho(X), **same)
    np.testing.assert_allclose(
        dirichlet.log_predictive(Z, posterior, prior), twin.log_predictive(X), **same
    )
    r, total = dirichlet.normalise(log_rho)
    np.testing.assert_allclose(
        total.sum() - dirichlet.kl(posterior, prior), twin.bound(X, r), **same
    )


@pytest.mark.parametrize("case", ["apart", "overlapping", "far rows", "beyond single precision"])
def test_responsibilities_equal_the_plain_ones(case, rng, monkeypatch):
    """Leaving out the pairs that cannot count changes nothing; where they all do, none is."""
    n, D, K = 400, 40, 6
    own = rng.integers(0, K, size=n)
    X = rng.normal(size=(n, D)) + rng.normal(size=(K, D))[own] * (0.05 if case[0] == "o" else 2)
    prior, _ = make_prior(X)
    Z = dirichlet.whiten(X, prior)
    resp = 0.9 * np.eye(K)[own] + 0.1 * rng.dirichlet(np.ones(K), size=n)
    posterior = dirichlet.update(dirichlet.accumulate(Z, resp, False), prior)
    if case == "far rows":
        Z[::7] *= 1e6
    elif case == "beyond single precision":
        Z[1::7] *= 1e25
        Z[2::7] *= 1e50
    rough = []
    original = dirichlet._rough_length
    monkeypatch.setattr(
        dirichlet, "_rough_length", lambda *given: rough.append(1) or original(*given)
    )
    found, total = dirichlet.responsibilities(Z, posterior, prior)
    assert bool(rough) == (case != "overlapping")
    plain, plain_total = dirichlet.normalise(dirichlet.log_joint(Z, posterior, prior))
    np.testing.assert_allclose(found, plain, rtol=1e-12, atol=1e-17)
    np.testing.assert_allclose(total, plain_total, rtol=1e-13)
    assert (np.mean(found == 0) > 0.5) == bool(rough)


def test_error_of_single_precision_is_bounded(rng):
    X = rng.normal(size=(60, 50)) * np.geomspace(1e-3, 1e3, 50)
    prior, _ = make_prior(X)
    Z = dirichlet.whiten(X, prior) * np.geomspace(1, 1e4, 60)[:, None]
    resp = rng.dirichlet(np.ones(3), size=60)
    posterior = dirichlet.update(dirichlet.accumulate(Z, resp, False), prior)
    length, error = dirichlet._rough_length(Z, posterior)
    exact = np.sqrt(dirichlet.mahalanobis(Z, posterior))
    assert (np.abs(length - exact) <= error).all()
    assert np.median(error / exact) < 0.1


@pytest.mark.parametrize("diagonal", [False, True])
def test_each_update_raises_the_bound(problem, diagonal):
    """One update at a time, with the naive bound that holds for any q."""
    X, resp = problem
    _, naive = make_prior(X, diagonal)
    mixture = naive().update(X, resp)
    worst, value = np.inf, mixture.bound(X, resp)
    for _ in range(4):
        log_rho = mixture.log_rho(X)
        resp = np.exp(log_rho - np.logaddexp.reduce(log_rho, axis=1, keepdims=True))
        after_resp = mixture.bound(X, resp)
        mixture = naive().update(X, resp)
        after_mixture = mixture.bound(X, resp)
        worst = min(worst, after_resp - value, after_mixture - after_resp)
        value = after_mixture
    assert worst >= -1e-9


@pytest.mark.parametrize("n_classes", [2, 3])
def test_inference_equals_naive_twin(rng, n_classes):
    bags, _, _ = make_problem(n_bags=9, n_features=2)
    X, offsets = bags.instances, bags.offsets
    y = np.arange(9) % n_classes
    known = np.full(len(X), -1)
    known[offsets[1]] = 0
    known[offsets[2]] = y[2]
    prior, naive = make_prior(X)
    labels = rules.inherited_labels(y, known, offsets)
    clusters = rng.integers(0, 3, size=len(X))
    resp = np.eye(3)[clusters]
    Z = dirichlet.whiten(X, prior)
    start = constrained.sums_of_clusters(Z, labels, clusters, n_classes, 3, False)
    inferred = []

    def run(function):
        own, sums = function(constrained.BagBlock(Z, offsets, y, known))
        inferred.append(own)
        return sums

    state = constrained.infer(run, start, prior, max_iter=4, tol=-1)
    labels, mixtures, bounds = naive_dpmil(X, offsets, y, known, labels, resp, naive, 4)
    np.testing.assert_array_equal(inferred[-1], labels)
    np.testing.assert_allclose(state.bounds, bounds, rtol=1e-8)
    for ours, twin in zip(state.mixtures, mixtures, strict=True):
        np.testing.assert_allclose(
            dirichlet.log_predictive(Z, ours, prior), twin.log_predictive(X), rtol=1e-8
        )


def test_label_choice_equals_naive_twin(rng):
    for _ in range(50):
        sizes = rng.integers(1, 5, size=6)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        gain = rng.normal(-1, 1, size=offsets[-1])
        known = rng.choice([-1, -1, -1, 1, 0], size=offsets[-1])
        known[offsets[:-1]] = rng.choice([-1, 1], size=6)  # every bag can have a positive
        log_rho = [np.zeros((len(gain), 1)), gain[:, None]]
        expected = naive_labels(log_rho, offsets, np.ones(6, dtype=int), known)
        chosen = constrained.choose_labels(gain, offsets, known)
        np.testing.assert_array_equal(chosen, expected == 1)


def scikit_learn_mixture(X, resp, prior, n_iter, covariance_type="full"):
    """Their mixture after n_iter rounds from our responsibilities."""
    W0_inv = prior.root @ prior.root.T
    theirs = BayesianGaussianMixture(
        n_components=resp.shape[1],
        covariance_type=covariance_type,
        reg_covar=0.0,
        weight_concentration_prior_type="dirichlet_process",
        weight_concentration_prior=prior.concentration,
        mean_precision_prior=prior.mean_precision,
        mean_prior=prior.mean,
        degrees_of_freedom_prior=prior.degrees_of_freedom,
        covariance_prior=W0_inv,
        max_iter=n_iter,
        tol=0.0,
    )
    theirs._initialize_parameters = lambda X, random_state, xp=None: theirs._initialize(X, resp)
    with pytest.warns(ConvergenceWarning):
        return theirs.fit(X)


def test_fixed_labels_equal_scikit_learn():
    """With every instance label known, each class is their mixture, to 1e-4."""
    bags, y, truth = make_problem(n_bags=60, n_features=5, shift=2.0)
    model = DPMIL(n_components=6, max_iter=15, tol=0, n_init=1, random_state=3)
    model.fit(bags, y, instance_labels=truth)
    np.testing.assert_array_equal(model.instance_labels_, truth)
    X, prior = bags.instances, model._prior
    rng = np.random.RandomState(3)
    for c in (0, 1):
        rows = np.flatnonzero(truth == c)
        resp = np.eye(6)[dpmil_start.cluster(X, rows, 6, prior, rng)]
        theirs = scikit_learn_mixture(X[rows], resp, prior, model.n_iter_)
        close = {"rtol": 1e-4, "atol": 1e-4}
        np.testing.assert_allclose(model.means_[c], theirs.means_, **close)
        np.testing.assert_allclose(model.weights_[c], theirs.weights_, **close)
        np.testing.assert_allclose(model.precisions_[c], theirs.precisions_, **close)
        np.testing.assert_allclose(model.covariances_[c], theirs.covariances_, **close)
        np.testing.assert_allclose(
            model.degrees_of_freedom_[c], theirs.degrees_of_freedom_, **close
        )


def test_bound_never_falls_and_constraints_hold_every_iteration(monkeypatch):
    bags, y, _ = make_problem(n_bags=60, n_features=4, shift=1.0)
    seen = []
    original = constrained.assign

    def watched(block, *, mixtures, prior):
        result = original(block, mixtures=mixtures, prior=prior)
        seen.append(result[0])
        return result

    monkeypatch.setattr(constrained, "assign", watched)
    model = DPMIL(n_components=6, tol=0, max_iter=60, calibrate=False, random_state=0).fit(bags, y)
    assert np.diff(model.bounds_).min() >= -1e-11 * abs(model.bound_)
    assert len(seen) == model.n_iter_ > 3
    for labels in seen:
        holds = [part.any() for part in bags.split(labels == 1)]
        np.testing.assert_array_equal(holds, y == 1)
    assert (np.concatenate(seen).reshape(len(seen), -1) != np.repeat(y, bags.sizes)).any()


def test_blocks_change_nothing(monkeypatch):
    bags, y, _ = make_problem(n_bags=30)
    whole = DPMIL(n_components=4, random_state=0).fit(bags, y)
    monkeypatch.setattr(module, "_ROWS", 7)
    parts = DPMIL(n_components=4, random_state=0).fit(bags, y)
    np.testing.assert_array_equal(whole.instance_labels_, parts.instance_labels_)
    np.testing.assert_allclose(whole.bounds_, parts.bounds_, rtol=1e-10)
    np.testing.assert_allclose(
        whole.decision_function_instances(bags),
        parts.decision_function_instances(bags),
        rtol=1e-8,
        atol=1e-8,
    )
    np.testing.assert_array_equal(whole.assign(bags), parts.assign(bags))


def test_threads_change_nothing(monkeypatch):
    """Statistics are additive over bags: any runner of blocks gives the same fit."""
    bags, y, _ = make_problem(n_bags=30)
    monkeypatch.setattr(module, "_ROWS", 10)
    serial = DPMIL(n_components=4, random_state=0).fit(bags, y)
    threads = DPMIL(n_components=4, random_state=0, execution=Execution(n_jobs=2)).fit(bags, y)
    np.testing.assert_array_equal(serial.bounds_, threads.bounds_)
    np.testing.assert_array_equal(serial.instance_labels_, threads.instance_labels_)


def test_order_of_training_data_changes_only_the_order():
    bags, y, _ = make_problem(n_bags=30, shift=1.5)
    model = DPMIL(n_components=4, random_state=0).fit(bags, y)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(bags))
    inside = [rng.permutation(n) for n in bags.sizes[order]]
    shuffled = Bags.from_list([bags[int(b)][p] for b, p in zip(order, inside, strict=True)])
    again = DPMIL(n_components=4, random_state=0).fit(shuffled, y[order])
    np.testing.assert_allclose(again.bounds_, model.bounds_, rtol=1e-10)
    labels = bags.split(model.instance_labels_)
    expected = [labels[int(b)][p] for b, p in zip(order, inside, strict=True)]
    np.testing.assert_array_equal(again.instance_labels_, np.concatenate(expected))
    np.testing.assert_allclose(
        again.decision_function(bags), model.decision_function(bags), rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("bag_rule", ["noisy-or", "max"])
def test_calibration_only_rescales(bag_rule):
    bags, y, _ = make_problem(n_bags=30, shift=1.5)
    options = {"n_components": 4, "bag_rule": bag_rule, "random_state": 0}
    model = DPMIL(**options).fit(bags, y)
    plain = DPMIL(**options, calibrate=False).fit(bags, y)
    assert plain.platt_ is None
    np.testing.assert_array_equal(model.means_, plain.means_)
    (platt,) = model.platt_
    assert platt.slope > 0
    raw = plain.decision_function_instances(bags)
    np.testing.assert_allclose(model.decision_function_instances(bags), platt.log_odds(raw))
    # Calibrated instances make their bag, and all three answers agree.
    p, q = model.predict_proba(bags)[:, 1], model.predict_proba_instances(bags)[:, 1]
    made = [1 - np.prod(1 - part) if bag_rule[0] == "n" else part.max() for part in bags.split(q)]
    np.testing.assert_allclose(p, made, atol=1e-12)
    np.testing.assert_array_equal(model.predict(bags), model.decision_function(bags) > 0)
    np.testing.assert_array_equal(model.predict(bags), p > 0.5)


@pytest.mark.parametrize("n_bags", [4, 17])
@pytest.mark.parametrize("rows", [8192, 10])
def test_calibration_is_that_of_densities_inferred_without_their_fold(n_bags, rows, monkeypatch):
    bags, y, _ = make_problem(n_bags=n_bags)
    monkeypatch.setattr(module, "_ROWS", rows)
    starts, folds = [], []

    def watched(*given):
        starts.append((given[1], cluster(*given)))
        return starts[-1][1]

    def dealt(y, n_folds):
        folds.append(held_out.folds(y, n_folds))
        return folds[-1]

    monkeypatch.setattr(module, "cluster", watched)
    monkeypatch.setattr(module, "folds", dealt)
    model = DPMIL(n_components=3, calibrate=True, scale=None, n_dimensions=None, random_state=0)
    model.fit(bags, y)
    prior, clusters = model._prior, np.empty(bags.n_instances, dtype=int)
    for own, of_class in starts:
        clusters[own] = of_class
    # Bags in the order in which they were dealt: by label, then by a projection of their instances.
    place = bags.instances @ np.random.RandomState(0).standard_normal(bags.n_features)
    fold = np.empty(n_bags, dtype=int)
    fold[np.lexsort((segments.max(place, bags.offsets), y))] = folds[0]
    odds = np.empty(bags.n_instances)
    for k in np.unique(fold):
        others = np.flatnonzero(fold != k)
        Z, offsets = dirichlet.whiten(bags[others].instances, prior), bags[others].offsets
        block = constrained.BagBlock(Z, offsets, y[others], np.full(len(Z), -1))
        its_clusters = np.concatenate([bags.split(clusters)[b] for b in others])
        start = constrained.sums_of_clusters(
            Z, np.repeat(y[others], np.diff(offsets)), its_clusters, 2, 3, False
        )
        state = constrained.infer(
            lambda function, block=block: function(block)[1], start, prior, max_iter=100, tol=1e-6
        )
        for b in np.flatnonzero(fold == k):
            Z = dirichlet.whiten(bags[int(b)], prior)
            density = constrained.log_predictive(Z, state.mixtures, prior) + model.class_log_prior_
            odds[bags.offsets[b] : bags.offsets[b + 1]] = density[:, 1] - density[:, 0]
    expected = fit_instance_platt(odds, bags.offsets, y == 1, model.bag_rule)
    np.testing.assert_allclose(model.platt_[0], expected, rtol=1e-6)


def test_folds_deal_out_every_class():
    bags, _, _ = make_problem(n_bags=43)
    y = (np.arange(43) % 7 == 0).astype(int)
    fold = DPMIL(cv=4)._folds(bags, y)
    for target in (0, 1):
        counts = np.bincount(fold[y == target], minlength=4)
        assert counts.max() - counts.min() <= 1


def test_a_single_bag_of_a_class_cannot_be_held_out():
    bags, _, _ = make_problem(n_bags=6)
    with pytest.warns(UserWarning, match="calibration needs 2 bags of each class"):
        model = DPMIL(n_components=2, calibrate=True, random_state=0).fit(bags, [1, 0, 0, 0, 0, 0])
    assert model.platt_ is None


def test_calibrated_probabilities_are_honest():
    """Labels that are noise: the paper's probabilities are sure of themselves, ours are not."""
    train, test = np.arange(60), np.arange(60, 120)
    losses = np.zeros((3, 2))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        bags = Bags(rng.normal(size=(480, 6)), np.arange(121) * 4)
        y = rng.permutation(np.arange(120) % 2)
        for calibrate in (False, True):
            model = DPMIL(n_components=6, calibrate=calibrate, bag_rule="max", random_state=0)
            p = model.fit(bags[train], y[train]).predict_proba(bags[test])
            losses[seed, int(calibrate)] = log_loss(y[test], p)
    assert losses[:, 0].mean() > 0.85
    assert losses[:, 1].mean() < 0.75  # a coin has 0.69


def test_calibration_is_saved(tmp_path):
    bags, y, _ = make_problem()
    model = DPMIL(n_components=3, random_state=0).fit(bags, y)
    again = load(save(model, tmp_path / "model.bagwise"))
    assert again.platt_ == model.platt_
    np.testing.assert_array_equal(again.predict_proba(bags), model.predict_proba(bags))


def test_known_instance_labels_stay():
    bags, y, truth = make_problem(n_bags=30, shift=0.5)
    known = np.where(np.arange(len(truth)) % 3 == 0, truth, -1)
    model = DPMIL(n_components=4, random_state=0).fit(bags, y, instance_labels=known)
    given = known >= 0
    np.testing.assert_array_equal(model.instance_labels_[given], truth[given])


def test_clusters_are_where_the_data_are(rng):
    """Two negative clusters and one positive, recovered with their weights."""
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    arrays, y = [], (np.arange(60) % 4 == 3).astype(int)
    for target in y:
        kinds = np.append(rng.choice(2, size=5, p=[0.75, 0.25]), [2 * target] * 2)
        arrays.append(centres[kinds] + rng.normal(size=(7, 2)))
    model = DPMIL(n_components=8, random_state=0).fit(arrays, y)
    negative, positive = model.means_
    for centre in centres[:2]:
        assert np.linalg.norm(negative - centre, axis=1).min() < 0.5
    np.testing.assert_allclose(positive[np.argmax(model.weights_[1])], centres[2], atol=0.5)
    np.testing.assert_allclose(model.weights_.sum(axis=1), 1)
    assert model.weights_[1].max() > 0.7
    # assign points at the cluster nearest to each instance of its class
    bags = Bags.from_list(arrays)
    c, k = model.predict_instances(bags), model.assign(bags)
    distance = np.linalg.norm(bags.instances - model.means_[c, k], axis=1)
    assert np.quantile(distance, 0.95) < 4


def test_several_classes(rng):
    """The first class is the background; one mixture for each of the others."""
    centres = {"ape": [6.0, 0.0], "bee": [0.0, 6.0]}
    names = np.array(["_none", "ape", "bee"])[np.arange(60) % 3]
    arrays, truth = [], []
    for name in names:
        x = rng.normal(size=(6, 2))
        labels = np.array(["_none"] * 6, dtype=object)
        if name != "_none":
            x[:2] += centres[name]
            labels[:2] = name
        arrays.append(x)
        truth.extend(labels)
    truth = np.array(truth, dtype=str)
    model = DPMIL(n_components=4, random_state=0).fit(arrays[:45], names[:45])
    assert model.score(arrays[45:], names[45:]) >= 0.9
    test = Bags.from_list(arrays[45:])
    assert np.mean(model.predict_instances(test) == truth[-test.n_instances :]) > 0.9
    for p in (model.predict_proba(test), model.predict_proba_instances(test)):
        assert p.shape[1] == 3
        np.testing.assert_allclose(p.sum(axis=1), 1)
    assert model.decision_function(test).shape == (15, 3)
    assert model.weights_.shape == (3, 4)
    assert len(model.platt_) == 2
    inferred = Bags.from_list(arrays[:45]).split(model.instance_labels_)
    for part, name in zip(inferred, names[:45], strict=True):
        assert name in part
        assert set(part) <= {name, "_none"}
    wrong = np.full(45 * 6, None, dtype=object)
    wrong[6] = "bee"  # bag 1 is an ape
    with pytest.raises(
        ValueError, match="bag 1 is labelled 'ape' but instance 0 in it is labelled 'bee'"
    ):
        DPMIL(n_components=2).fit(arrays[:45], names[:45], instance_labels=wrong)
    wrong[6:12] = "_none"
    with pytest.raises(ValueError, match="bag 1 is labelled 'ape' but every instance"):
        DPMIL(n_components=2).fit(arrays[:45], names[:45], instance_labels=wrong)


def assert_finite(model, bags):
    for name in ("decision_function", "predict_proba"):
        assert np.isfinite(getattr(model, name)(bags)).all()
        assert np.isfinite(getattr(model, f"{name}_instances")(bags)).all()
    for value in (model.weights_, model.means_, model.covariances_, model.precisions_):
        assert np.isfinite(value).all()
    assert np.isfinite(model.bounds_).all()


@pytest.mark.parametrize("covariance_type", ["full", "diag"])
@pytest.mark.parametrize(
    "case", ["constant feature", "copied feature", "more features than instances", "one instance"]
)
def test_degenerate_data(case, covariance_type, rng):
    bags, y, _ = make_problem(n_bags=8, n_features=3)
    X = bags.instances
    if case == "constant feature":
        X = np.column_stack([X, np.full(len(X), 7.0)])
    elif case == "copied feature":
        X = np.column_stack([X, X[:, 0] * 1e3])
    elif case == "more features than instances":
        X = np.column_stack([X, rng.normal(size=(len(X), 60))])
    if case == "one instance":  # in each class
        bags, y = Bags(X[:2], [0, 1, 2]), np.array([0, 1])
    else:
        bags = Bags(X, bags.offsets)
    # A single bag of a class cannot be held out.
    calibrate = case != "one instance"
    model = DPMIL(covariance_type=covariance_type, calibrate=calibrate, random_state=0)
    model.fit(bags, y)
    assert_finite(model, bags)
    far = Bags(bags.instances * 1e6, bags.offsets)
    assert_finite(model, far)


def test_clear_errors():
    bags, y, _ = make_problem(n_bags=6)
    same = Bags(np.ones((4, 2)), [0, 2, 4])
    with pytest.raises(ValueError, match="all 4 instances are equal"):
        DPMIL().fit(same, [0, 1])
    flat = bags.map(lambda X: np.column_stack([X, np.ones(len(X))]))
    with pytest.raises(ValueError, match="covariance_floor > 0"):
        DPMIL(covariance_floor=0).fit(flat, y)
    with pytest.raises(ValueError, match="feature 3 has prior variance 0"):
        DPMIL(covariance_floor=0, covariance_type="diag").fit(flat, y)
    with pytest.raises(ValueError, match="larger than 2"):
        DPMIL(degrees_of_freedom_prior=1.5).fit(bags, y)
    with pytest.raises(ValueError, match=r"mean_prior must be finite, of shape \(3,\)"):
        DPMIL(mean_prior=[0.0]).fit(bags, y)
    with pytest.raises(ValueError, match="covariance_prior must be finite"):
        DPMIL(covariance_prior=np.eye(2)).fit(bags, y)
    with pytest.raises(ValueError, match="singular to machine precision"):
        DPMIL(covariance_prior=1e-40, covariance_floor=0).fit(bags, y)


def test_priors_can_be_given():
    bags, y, _ = make_problem()
    given = DPMIL(
        n_components=3,
        mean_prior=bags.instances.mean(axis=0),
        covariance_prior=np.cov(bags.instances.T),
        degrees_of_freedom_prior=4.0,
        random_state=0,
    ).fit(bags, y)
    default = DPMIL(n_components=3, random_state=0).fit(bags, y)
    np.testing.assert_allclose(given.bounds_, default.bounds_, rtol=1e-9)


def test_more_starts_never_lower_the_bound():
    bags, y, _ = make_problem(n_bags=40, shift=1.0)
    bounds = [DPMIL(n_init=n, random_state=0).fit(bags, y).bound_ for n in (1, 4)]
    assert bounds[1] >= bounds[0]


def test_bound_recovers_from_classes_that_changed_places():
    """Bulky positive bags: from the bags' labels the positive class takes the common kind."""
    rng = np.random.default_rng(0)
    y = np.arange(30) % 2
    arrays = [rng.normal(size=(20 if target else 12, 3)) for target in y]
    for x, target in zip(arrays, y, strict=True):
        x[0] += 6 * target * rng.choice([-1, 1], size=3)
    settings = {"covariance_prior": 2000.0, "random_state": 0}
    one = DPMIL(n_init=1, **settings).fit(arrays, y)
    two = DPMIL(n_init=2, **settings).fit(arrays, y)
    assert one.instance_labels_.mean() > 0.5  # the common instances of positive bags
    assert two.instance_labels_.mean() < 0.1
    assert two.bound_ > one.bound_


def test_the_start_from_key_instances_respects_known_labels():
    bags, y, truth = make_problem(n_bags=10)
    known = np.full(len(truth), -1)
    known[bags.offsets[1]] = 0
    known[bags.offsets[3]] = known[bags.offsets[3] + 1] = 1
    prior, _ = make_prior(bags.instances)
    Z = dirichlet.whiten(bags.instances, prior)
    block = constrained.BagBlock(Z, bags.offsets, y, known)
    labels = constrained.key_instance_labels(lambda: iter([block]), prior)
    assert labels[bags.offsets[1]] == 0
    per_bag = [part.sum() for part in bags.split(labels)]
    expected = y.copy()
    expected[3] = 2
    np.testing.assert_array_equal(per_bag, expected)


def test_large_classes_start_from_a_sample(monkeypatch):
    bags, y, _ = make_problem(n_bags=40)
    monkeypatch.setattr(dpmil_start, "_START_ROWS", 30)
    assert DPMIL(n_components=4, random_state=0).fit(bags, y).score(bags, y) > 0.8


def test_kernel_map_in_a_pipeline():
    """Kernel PCA by the Nystroem map, so that no N x N matrix is needed."""
    bags, y, _ = make_problem(n_bags=40)
    model = make_pipeline(
        InstanceTransformer(Nystroem(gamma=0.05, n_components=30, random_state=0)),
        InstanceTransformer(PCA(5, random_state=0)),
        DPMIL(n_components=4, random_state=0),
    )
    model.fit(bags, y)
    assert model.score(bags, y) > 0.8
    assert model.predict_proba_instances(bags).shape == (bags.n_instances, 2)


def test_verbose_shows_the_bound(capsys):
    bags, y, _ = make_problem(n_bags=8)
    DPMIL(n_components=2, verbose=True, random_state=0).fit(bags, y)
    assert "bound" in capsys.readouterr().out


@pytest.mark.parametrize("diagonal", [True, False])
def test_rows_on_a_device_give_the_same_numbers(rng, diagonal):
    torch = pytest.importorskip("torch")
    prior = Prior(np.zeros(3), np.ones(3) if diagonal else np.eye(3), 1.0, 5.0, 1.0)
    Z, resp = rng.normal(size=(40, 3)), rng.random((40, 4))
    resp[:, 3] = 0.0  # a component that stays the prior
    T = torch.from_numpy
    sums = dirichlet.accumulate(Z, resp, diagonal)
    for a, b in zip(dirichlet.accumulate(T(Z), T(resp), diagonal), sums, strict=True):
        np.testing.assert_allclose(np.tril(a) if b.ndim == 3 else a, b, atol=1e-12)
    mixture = dirichlet.update(sums, prior)
    for function in (dirichlet.log_joint, dirichlet.log_predictive):
        np.testing.assert_allclose(
            function(T(Z), mixture, prior), function(Z, mixture, prior), atol=1e-10
        )
    share, total = dirichlet.responsibilities(T(Z), mixture, prior)
    plain = dirichlet.responsibilities(Z, mixture, prior)
    np.testing.assert_allclose(share.numpy(), plain[0], atol=1e-12)
    np.testing.assert_allclose(total, plain[1], atol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"covariance_type": "diag", "n_init": 2}])
def test_a_fit_on_a_device_is_the_fit_on_the_host(monkeypatch, settings):
    """torch on the CPU stands in for a GPU: the same code, the same numbers."""
    torch = pytest.importorskip("torch")
    bags, y = make_gaussian_bags(30, 3, random_state=0, return_X_y=True)
    model = DPMIL(n_components=3, random_state=0, **settings)
    host = model.fit(bags, y)
    expected = host.predict_proba_instances(bags)
    tensors = bags.with_instances(torch.tensor(np.asarray(bags.instances)))
    kinds, assign = set(), constrained.assign

    def watched(block, **settings):
        kinds.add(type(block.Z))
        return assign(block, **settings)

    monkeypatch.setattr(constrained, "assign", watched)
    for most in (10**12, 0):  # held on the device, and moved there block by block
        monkeypatch.setattr(module, "free_memory", lambda _, most=most: most)
        device = clone(model).fit(tensors, y)
        assert kinds == {torch.Tensor}
        for rows in (bags, tensors):
            np.testing.assert_allclose(device.predict_proba_instances(rows), expected, atol=1e-8)
        assert device.bound_ == pytest.approx(host.bound_, rel=1e-10)


def test_tensors_on_a_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    bags, y = make_gaussian_bags(30, 3, random_state=0, return_X_y=True)
    tensors = bags.with_instances(torch.tensor(np.asarray(bags.instances), device="cuda"))
    model = DPMIL(n_components=3, random_state=0)
    expected = model.fit(bags, y).predict_proba_instances(bags)
    device = clone(model).fit(tensors, y)
    for answer in (device.predict_proba_instances(tensors), device.predict_proba_instances(bags)):
        assert isinstance(answer, np.ndarray)
        np.testing.assert_allclose(answer, expected, atol=1e-8)
    np.testing.assert_array_equal(device.predict(tensors), model.predict(bags))
    np.testing.assert_array_equal(device.assign(tensors), model.assign(bags))


def test_a_device_and_a_cluster_do_not_mix(monkeypatch):
    bags, y = make_gaussian_bags(10, 2, random_state=0, return_X_y=True)
    monkeypatch.setattr(Execution, "torch_device", lambda *_: "cpu")
    monkeypatch.setattr(Execution, "make_driver", lambda *_: object())
    with pytest.raises(ValueError, match="one device here"):
        DPMIL().fit(bags, y)


@pytest.mark.parametrize("n_kept", [3, 0.9])
def test_components_where_lapack_does_not_converge(monkeypatch, n_kept):
    X = np.random.default_rng(0).normal(size=(60, 5)) * [5, 4, 3, 1, 0.1] + 2
    expected = module._components(X, n_kept)

    def diverges(*_, **__):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr("sklearn.decomposition._pca.linalg.svd", diverges)
    components = module._components(X, n_kept)
    assert components.n_components_ == 3
    np.testing.assert_allclose(components.transform(X), expected.transform(X), atol=1e-12)
