"""The estimators: contract, parameters, fitted attributes, bad input, extremes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score

from bagwise import GVGPMIL, LMVGPMIL, VGPMIL, Bags, Execution, PsiVGPMIL
from bagwise.core.gaussians import sigmoid_moments
from bagwise.core.kernels import RBF, Constant, MultiScale
from bagwise.models.variational import Gamma, LargeMargin, NoisyMax, Or, Sech, SoftMax
from tests.checks import CHECKS, make_problem

QUICK = {"n_inducing": 20, "random_state": 0}
# One of them searches for its kernel.
FIXED = {**QUICK, "kernel": RBF(1.5), "learn_kernel": False}
INFERENCE = ["marginal", "paper"]
Paper = partial(VGPMIL, inference="paper")
# The bound of these updates never falls.
MONOTONE = NoisyMax(100.0, "exact", "sequential")
MARGINAL_MODELS = {
    "VGPMIL": partial(VGPMIL, **QUICK),
    "VGPMIL-or": partial(VGPMIL, likelihood=Or(), **FIXED),
    "VGPMIL-mean": partial(VGPMIL, likelihood=SoftMax(0.0), **FIXED),
    "VGPMIL-float32": partial(
        VGPMIL, execution=Execution(dtype="float32", chunk_size=16, n_jobs=2), **FIXED
    ),
}
PAPER_MODELS = {
    "VGPMIL-paper": partial(Paper, **QUICK),
    "VGPMIL-sequential": partial(Paper, likelihood=MONOTONE, bag_rule="noisy-or", **QUICK),
    "PsiVGPMIL": partial(PsiVGPMIL, density=Gamma(1.0, 2.0), calibrate=False, **QUICK),
    "GVGPMIL": partial(GVGPMIL, **QUICK),
    # The large margin is cyclic: the last digits of q wander.
    "LMVGPMIL": partial(LMVGPMIL, tol=1e-2, **QUICK),
}
MODELS = MARGINAL_MODELS | PAPER_MODELS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_contract(name, check):
    check(MODELS[name])


@pytest.fixture(scope="module")
def problem():
    return make_problem(n_bags=30)


def test_family_members_agree_where_they_coincide(problem):
    bags, y, _ = problem
    base = Paper(**QUICK).fit(bags, y).decision_function(bags)
    psi = PsiVGPMIL(density=Sech(), **QUICK).fit(bags, y).decision_function(bags)
    np.testing.assert_array_equal(base, psi)
    g = GVGPMIL(alpha=1.2, beta=2.0, **QUICK).fit(bags, y).decision_function(bags)
    psi = PsiVGPMIL(density=Gamma(1.2, 2.0), **QUICK).fit(bags, y).decision_function(bags)
    np.testing.assert_array_equal(g, psi)
    margin = LMVGPMIL(C=1.0, V=0.5, **QUICK).fit(bags, y)
    gated = Paper(likelihood=LargeMargin(1.0, 0.5), kernel=margin.kernel, init="label", **QUICK)
    np.testing.assert_array_equal(
        gated.fit(bags, y).decision_function(bags), margin.decision_function(bags)
    )


def test_a_users_density(problem):
    class Gaussian:
        """psi(c) = exp(-c^2 / 8) / 2: theta is 1/4 everywhere."""

        def theta(self, c):
            return np.full_like(c, 0.25)

        def log_psi(self, c):
            return -(c**2) / 8 - np.log(2)

    bags, y, _ = problem
    model = PsiVGPMIL(density=Gaussian(), likelihood=MONOTONE, **QUICK).fit(bags, y)
    assert np.diff(model.bound_history_).min() > -1e-9


@pytest.mark.parametrize("inference", INFERENCE)
def test_fitted_attributes(problem, inference):
    bags, y, _ = problem
    model = VGPMIL(inference=inference, **QUICK).fit(bags, y)
    assert model.inducing_points_.shape == (20, 3)
    assert model.posterior_mean_.shape == (20,)
    assert model.posterior_factor_.shape == (20, 20)
    assert model.bound_history_.shape == (model.n_iter_,)
    assert model.converged_ is True
    assert np.isfinite(model.held_out_decision_).all()
    assert model.held_out_decision_.shape == (len(bags),)
    mean, var = model.predict_latent(bags)
    assert mean.shape == var.shape == (bags.n_instances,)
    assert (var > 0).all()
    assert (var <= model.kernel_.diag(bags.instances) + 1e-9).all()
    assert len(model.predictor_.lines) == len(model.predictor_.shares) == 1
    if inference == "paper":
        assert model.kernel_.length_scale == pytest.approx(np.sqrt(3))
        assert model.instance_proba_.shape == (bags.n_instances,)
        assert ((model.instance_proba_ >= 0) & (model.instance_proba_ <= 1)).all()
    else:
        size = np.median(bags.sizes)
        assert model.likelihood_ in (SoftMax(1.0, size), SoftMax(3.0, size))
        assert not hasattr(model, "instance_proba_")


@pytest.mark.parametrize("inference", INFERENCE)
def test_no_convergence_says_what_to_try(problem, inference):
    bags, y, _ = problem
    with pytest.warns(ConvergenceWarning, match="raise max_iter or tol"):
        model = VGPMIL(inference=inference, max_iter=2, **QUICK).fit(bags, y)
    assert model.converged_ is False
    assert model.n_iter_ == 2


@pytest.mark.parametrize("inference", INFERENCE)
def test_callback_sees_and_stops(problem, inference):
    bags, y, _ = problem
    options = {"inference": inference, "tol": 0.0, **QUICK}
    seen = []

    def callback(told):
        seen.append(told)
        return told.n_iter == 4

    model = VGPMIL(callback=callback, **options).fit(bags, y)
    assert model.n_iter_ == 4
    # The first pass of the marginal fit is over the start.
    first = 2 if inference == "marginal" else 1
    assert [told.n_iter for told in seen] == list(range(first, 5))
    np.testing.assert_array_equal(model.bound_history_[first - 1 :], [told.bound for told in seen])
    # Stopping by callback or by max_iter is the same fit.
    capped = VGPMIL(max_iter=4, **options).fit(bags, y)
    np.testing.assert_allclose(model.held_out_decision_, capped.held_out_decision_, atol=1e-10)


@pytest.mark.parametrize("inference", INFERENCE)
def test_verbose_shows_the_bound(problem, capsys, inference):
    bags, y, _ = problem
    VGPMIL(inference=inference, verbose=True, **QUICK).fit(bags, y)
    assert "bound" in capsys.readouterr().out


@pytest.mark.parametrize("inference", INFERENCE)
def test_early_stopping_returns_to_the_best(problem, inference):
    bags, y, _ = problem
    held_out, y_held_out, _ = make_problem(n_bags=20, seed=3)
    model = VGPMIL(inference=inference, tol=0.0, **QUICK)
    seen = []
    model.set_params(callback=lambda told: seen.append(told) and False)
    model.fit(bags, y, validation=(held_out, y_held_out), patience=2)
    aucs = []
    for told in seen:
        longer = VGPMIL(
            inference=inference, max_iter=told.n_iter, tol=0.0, calibrate=False, **QUICK
        )
        # The folds that calibrate choose the kernel of the marginal fit, too.
        longer.set_params(calibrate=inference == "marginal").fit(bags, y)
        aucs.append(roc_auc_score(y_held_out, longer.decision_function(held_out)))
    best = seen[int(np.argmax(aucs))]
    np.testing.assert_array_equal(model.posterior_mean_, best.posterior.m[0])
    assert len(seen) == 1 + np.argmax(aucs) + 2  # patience
    with pytest.raises(ValueError, match="validation needs bags of both classes"):
        model.fit(bags, y, validation=(held_out[:1], y_held_out[:1]))
    with pytest.raises(ValueError, match="patience must be a whole number"):
        model.fit(bags, y, validation=(held_out, y_held_out), patience=0)


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_mixed_supervision_fixes_what_is_known(problem, name):
    bags, y, labels = problem
    known = np.where(np.arange(len(labels)) % 3 == 0, labels, -1)
    given = known >= 0
    model = PAPER_MODELS[name]().fit(bags, y, instance_labels=known)
    np.testing.assert_array_equal(model.instance_proba_[given], labels[given])


def test_length_scales(problem):
    bags, y, _ = problem
    for length in (2.0, "median", "sqrt_dim", [1.0, 2.0, 3.0]):
        model = VGPMIL(kernel=RBF(length), learn_kernel=False, **QUICK).fit(bags, y)
        assert np.isfinite(model.decision_function(bags)).all()
    assert model.kernel_.length_scale == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("inference", INFERENCE)
def test_a_given_kernel_is_used(problem, inference):
    bags, y, _ = problem
    kernel = MultiScale(3.0, 4.0) + Constant(2.0)
    options = {"inference": inference, "learn_kernel": False, **QUICK}
    model = VGPMIL(kernel=kernel, scale="global", **options).fit(bags, y)
    assert model.kernel_ == kernel
    assert model.predict_latent(bags)[1].max() <= 6 + 1e-9


@pytest.mark.parametrize(
    "options", [{}, {"inference": "paper", "likelihood": MONOTONE, "max_iter": 1000}], ids=INFERENCE
)
def test_learning_the_kernel_raises_the_bound(problem, options):
    bags, y, _ = problem
    options = {**options, **QUICK}
    fixed = VGPMIL(kernel=RBF(20.0), learn_kernel=False, **options).fit(bags, y)
    learnt = VGPMIL(kernel=RBF(20.0), learn_kernel=True, **options).fit(bags, y)
    assert learnt.bound_history_[-1] > fixed.bound_history_[-1] + 1
    assert learnt.kernel_.length_scale != 20.0
    few = {**options, "tol": 0.1}
    each = VGPMIL(kernel=RBF([20.0] * 3), learn_kernel=True, **few).fit(bags, y)
    assert len(each.kernel_.length_scale) == 3


@pytest.mark.parametrize("inference", INFERENCE)
def test_scaling_makes_units_irrelevant(problem, inference):
    bags, y, _ = problem
    options = {"inference": inference, **QUICK}
    other = bags.map(lambda X: X * [1e3, 1.0, 1e-3] + [5.0, -2.0, 0.0])
    a = VGPMIL(**options).fit(bags, y).decision_function(bags)
    b = VGPMIL(**options).fit(other, y).decision_function(other)
    np.testing.assert_allclose(a, b, atol=1e-6)
    a = VGPMIL(scale="global", **options).fit(bags, y).decision_function(bags)
    scaled = bags.map(lambda X: X * 250)
    b = VGPMIL(scale="global", **options).fit(scaled, y).decision_function(scaled)
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_inducing_points_given_or_subset(problem):
    bags, y, _ = problem
    Z = bags.instances[:7]
    model = VGPMIL(inducing=Z, random_state=0).fit(bags, y)
    assert {tuple(z) for z in model.inducing_points_.round(9)} == {tuple(z) for z in Z.round(9)}
    model = VGPMIL(inducing="subset", n_inducing=9, random_state=0).fit(bags, y)
    rows = {tuple(x) for x in bags.instances.round(9)}
    assert {tuple(z) for z in model.inducing_points_.round(9)} <= rows


def test_init_array_and_names(problem):
    bags, y, _ = problem
    spread = np.repeat(y, bags.sizes)
    label = Paper(init="label", **QUICK).fit(bags, y)
    given = Paper(init=spread, **QUICK).fit(bags, y)
    np.testing.assert_array_equal(label.instance_proba_, given.instance_proba_)
    for init in ("half", "random"):
        assert Paper(init=init, **QUICK).fit(bags, y).score(bags, y) > 0.9
    with pytest.raises(ValueError, match=r"a probability in \[0, 1\] for each of the"):
        Paper(init=[0.5, 0.5], **QUICK).fit(bags, y)


def of_bags(rule, bags, p):
    """Probabilities of bags from those of their instances, one bag after the other."""
    parts = bags.split(p)
    return np.array([part.max() if rule == "max" else 1 - np.prod(1 - part) for part in parts])


@pytest.mark.parametrize("rule", ["noisy-or", "max"])
def test_bag_rules_follow_from_the_instances(problem, rule):
    bags, y, _ = problem
    model = Paper(bag_rule=rule, calibrate=False, **QUICK).fit(bags, y)
    p = model.predict_proba_instances(bags)[:, 1]
    np.testing.assert_allclose(model.predict_proba(bags)[:, 1], of_bags(rule, bags, p), atol=1e-9)
    assert (model.predict_proba(bags)[:, 1] >= of_bags("max", bags, p) - 1e-12).all()


@pytest.mark.parametrize("rule", ["noisy-or", "max"])
def test_calibrated_bags_are_a_line_of_the_rule(problem, rule):
    bags, y, _ = problem
    model = Paper(bag_rule=rule, **QUICK).fit(bags, y)
    p = expit(sigmoid_moments(*model.predict_latent(bags)).log_odds)
    p = of_bags(rule, bags, p)
    ((slope, intercept),) = model.predictor_.lines
    assert slope > 0
    expected = expit(slope * np.log(p / (1 - p)) + intercept)
    np.testing.assert_allclose(model.predict_proba(bags)[:, 1], expected, atol=1e-8)


@pytest.mark.parametrize("inference", INFERENCE)
def test_calibrated_instances_are_their_bag_times_their_share(problem, inference):
    bags, y, _ = problem
    model = VGPMIL(inference=inference, **QUICK).fit(bags, y)
    mean, var = model.predict_latent(bags)
    ((slope, intercept),) = model.predictor_.shares
    share = sigmoid_moments(slope * mean + intercept, slope**2 * var).mean
    of_bag = np.repeat(model.predict_proba(bags)[:, 1], bags.sizes)
    found = model.predict_proba_instances(bags)[:, 1]
    np.testing.assert_allclose(found, of_bag * share, atol=1e-9)
    alone = model.predict_proba_instances(bags, question="alone")[:, 1]
    np.testing.assert_allclose(alone, sigmoid_moments(mean, var).mean, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"likelihood": Or()}, {"inference": "paper"}], ids=str)
def test_no_instance_is_more_probable_than_its_bag(problem, options):
    bags, y, _ = problem
    model = VGPMIL(**options, **QUICK).fit(bags, y)
    p = model.predict_proba_instances(bags)[:, 1]
    assert (model.predict_proba(bags)[:, 1] >= of_bags("max", bags, p) - 1e-12).all()


@pytest.mark.parametrize("rule", ["noisy-or", "max"])
def test_calibration_keeps_the_ranking_of_bags(problem, rule):
    bags, y, _ = problem
    raw = Paper(calibrate=False, bag_rule=rule, **QUICK).fit(bags, y)
    calibrated = Paper(bag_rule=rule, **QUICK).fit(bags, y)
    a, b = (np.argsort(m.decision_function(bags)) for m in (raw, calibrated))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("inference", INFERENCE)
def test_standard_deviations_equal_sampling(problem, inference):
    bags, y, _ = problem
    bags, y = bags[:10], y[:10]
    options = {"inference": inference, "learn_kernel": False, "calibrate": False, **QUICK}
    if inference == "paper":
        options["bag_rule"] = "noisy-or"
    else:
        options["likelihood"] = Or()
    model = VGPMIL(**options).fit(bags, y)
    mean, var = model.predict_latent(bags)
    (process,) = model.predictor_.processes
    A, r = process.projector(bags.instances)
    rng = np.random.default_rng(0)
    v = process.m[0][:, None] + process.W[0].T @ rng.normal(size=(len(A), 100_000))
    f = process.f0[0] + A.T @ v + np.sqrt(r)[:, None] * rng.normal(size=(len(r), 100_000))
    np.testing.assert_allclose(f.mean(axis=1), mean, atol=5e-2)
    np.testing.assert_allclose(f.var(axis=1), var, rtol=2e-2, atol=2e-3)
    p, std = model.predict_proba_instances(bags, return_std=True)
    np.testing.assert_allclose(p[:, 1], expit(f).mean(axis=1), atol=5e-3)
    np.testing.assert_allclose(std, expit(f).std(axis=1), atol=5e-3)
    p, std = model.predict_proba(bags, return_std=True)
    for i, part in enumerate(bags.split(f)):
        bag = 1 - np.prod(expit(-part), axis=0)
        if inference == "paper":  # the papers' rule is of independent instances
            assert p[i, 1] == pytest.approx(1 - np.prod(expit(-part).mean(axis=1)), abs=5e-3)
        else:
            assert p[i, 1] == pytest.approx(bag.mean(), abs=0.02)
        assert std[i] == pytest.approx(bag.std(), abs=0.03)  # of 128 draws
    again = model.predict_proba(bags, return_std=True)[1]
    np.testing.assert_array_equal(std, again)


@pytest.mark.parametrize("inference", INFERENCE)
def test_calibrated_std_stays_in_range(problem, inference):
    bags, y, _ = problem
    model = VGPMIL(inference=inference, **QUICK).fit(bags, y)
    for method in (model.predict_proba, model.predict_proba_instances):
        _, std = method(bags, return_std=True)
        assert ((std >= 0) & (std <= 0.5)).all()


@pytest.mark.parametrize("n_jobs", [2, -1])
@pytest.mark.parametrize("inference", INFERENCE)
def test_threads_change_nothing(problem, inference, n_jobs):
    bags, y, _ = problem
    options = {"inference": inference, **QUICK}
    one = VGPMIL(execution=Execution(chunk_size=16), **options).fit(bags, y)
    many = VGPMIL(execution=Execution(chunk_size=16, n_jobs=n_jobs), **options).fit(bags, y)
    np.testing.assert_allclose(
        one.decision_function(bags), many.decision_function(bags), atol=1e-10
    )


@pytest.mark.parametrize("inference", INFERENCE)
def test_float32_tells_the_same_story(problem, inference):
    bags, y, _ = problem
    options = {"inference": inference, **QUICK}
    a = VGPMIL(**options).fit(bags, y)
    b = VGPMIL(execution=Execution(dtype="float32"), **options).fit(bags, y)
    np.testing.assert_allclose(a.predict_proba(bags), b.predict_proba(bags), atol=1e-3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"inference": "exact"}, "inference"),
        ({"n_inducing": 0}, "n_inducing"),
        ({"kernel": RBF([1.0, 1.0])}, r"one per feature \(3\)"),
        ({"kernel": "fourier"}, "kernel must be one of"),
        ({"kernel": RBF}, "kernel must be one of"),
        ({"execution": "gpu"}, "execution must be an Execution or one of"),
        ({"likelihood": "or"}, r"likelihood must be an object such as Or\(\)"),
        ({"likelihood": 3}, "likelihood must be an object"),
        ({"inference": "paper", "likelihood": "or"}, r"an object such as NoisyMax\(H=100\)"),
        ({"likelihood": NoisyMax()}, "a likelihood of inference='paper'; use that"),
        ({"inference": "paper", "likelihood": Or()}, "a likelihood of inference='marginal'"),
        ({"inducing": np.ones((4, 2))}, "inducing must be a finite array"),
        ({"inducing": "class-kmeans"}, "tells the labels of held-out bags"),
        # What would have no effect is an error that says so.
        ({"inducing": np.eye(3)}, "n_inducing=20 has no effect with 3 given"),
        ({"init": "label"}, "init has no effect without inference='paper'"),
        ({"bag_rule": "max"}, "bag_rule has no effect without inference='paper'"),
        ({"execution": Execution(precision="tf32")}, "precision='tf32' has no effect"),
        ({"tol": -1.0}, "tol"),
    ],
    ids=str,
)
def test_bad_parameters(problem, parameters, message):
    bags, y, _ = problem
    with pytest.raises(ValueError, match=message):
        VGPMIL(**{**QUICK, **parameters}).fit(bags, y)


def test_bad_parameters_of_relatives(problem):
    bags, y, _ = problem
    with pytest.raises(ValueError, match=r"needs the methods theta.* has no theta and no log_psi"):
        PsiVGPMIL(density=object()).fit(bags, y)
    with pytest.raises(ValueError, match="a likelihood of inference='marginal'"):
        PsiVGPMIL(likelihood=Or()).fit(bags, y)
    with pytest.raises(ValueError, match="alpha"):
        GVGPMIL(alpha=-1.0).fit(bags, y)
    with pytest.raises(ValueError, match="'C'"):
        LMVGPMIL(C=0.0).fit(bags, y)


def test_a_density_that_breaks_down_is_named(problem):
    class Broken:
        def theta(self, c):
            return 1 / c

        def log_psi(self, c):
            return -c

    bags, y, _ = problem
    with (
        np.errstate(divide="ignore"),
        pytest.raises(ValueError, match=r"finite and >= 0 .* Broken gave"),
    ):
        PsiVGPMIL(density=Broken()).fit(bags, y)


def test_a_latent_function_that_escapes_is_named(problem):
    """Certain labels and a Gamma with alpha well below beta: nothing holds f back."""
    bags, y, labels = problem
    options = {"kernel": RBF("sqrt_dim", 16.0), "calibrate": False, "max_iter": 400, **QUICK}
    with pytest.warns(UserWarning, match=r"GVGPMIL: the latent function escaped .* lower beta"):
        GVGPMIL(alpha=1.0, beta=100.0, **options).fit(bags, y, instance_labels=labels)


LIKELIHOODS = {
    "soft-max": {},
    "or": {"likelihood": Or()},
    "mean": {"likelihood": SoftMax(0.0)},
    "paper": {"inference": "paper"},
    "sequential": {"inference": "paper", "likelihood": NoisyMax(1e12, "exact", "sequential")},
}


@pytest.mark.filterwarnings("ignore:VGPMIL found nothing")
@pytest.mark.parametrize("options", LIKELIHOODS.values(), ids=LIKELIHOODS)
def test_extremes_stay_finite(options):
    """Duplicate rows, a constant feature, more inducing points than rows, bags of one."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 3))
    X = rows[rng.integers(0, 6, 40)]
    X[:, 1] = 7.1
    bags = Bags(X, np.concatenate([np.arange(21), [30, 40]]))
    y = np.arange(22) % 2
    model = VGPMIL(n_inducing=50, random_state=0, **options).fit(bags, y)
    assert len(model.inducing_points_) <= 6
    assert np.isfinite(model.decision_function(bags)).all()
    assert np.isfinite(model.decision_function_instances(bags)).all()
    assert np.isfinite(model.bound_history_).all()


@pytest.mark.filterwarnings("ignore:VGPMIL found nothing")
@pytest.mark.parametrize("options", LIKELIHOODS.values(), ids=LIKELIHOODS)
def test_a_bag_of_50000(options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50_160, 2))
    X[[0, 50_100]] += 6
    bags = Bags(X, [0, 50_000, 50_040, 50_100, 50_160])
    fixed = {"kernel": RBF(), "learn_kernel": False}
    model = VGPMIL(n_inducing=10, random_state=0, tol=0.0, max_iter=3, **fixed, **options)
    model.fit(bags, [1, 0, 0, 1])
    assert np.isfinite(model.held_out_decision_).all()
    assert np.isfinite(model.decision_function(bags)).all()
    assert np.isfinite(model.predict_proba(bags, return_std=True)[1]).all()


@pytest.mark.parametrize("density", [Sech(), Gamma(1.0, 1.0)], ids=repr)
def test_theta_at_the_ends(density):
    theta = density.theta(np.array([0.0, 1e-9, 2000.0]))
    assert np.isfinite(theta).all()
    assert theta[0] == pytest.approx(theta[1])
    assert np.isfinite(density.log_psi(np.array([0.0, 2000.0]))).all()


@pytest.mark.parametrize("density", [Sech(), Gamma(1.0, 1.0)], ids=repr)
def test_densities_of_many_are_those_of_few(density):
    c = np.abs(np.random.default_rng(0).normal(size=20_000)) * 10
    for method in (density.theta, density.log_psi):
        few = np.concatenate([method(part) for part in np.split(c, 20)])
        np.testing.assert_allclose(method(c), few, rtol=1e-12)


def test_values_of_the_hyperbolic_secant():
    assert Sech().theta(0.0) == 0.25
    assert Sech().log_psi(2000.0) == -1000.0
