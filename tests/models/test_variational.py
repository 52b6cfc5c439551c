"""The estimators: contract, parameters, fitted attributes, bad input, extremes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score

from bagwise import GVGPMIL, LMVGPMIL, VGPMIL, Bags, Execution, PsiVGPMIL
from bagwise.core.kernels import RBF, Constant, MultiScale
from bagwise.models.variational import (
    ExactOr,
    Gamma,
    Inherited,
    NoisyMax,
    Sech,
    SoftWitness,
)
from tests.checks import CHECKS, make_problem

QUICK = {"n_inducing": 20, "random_state": 0}
FACTORIES = {
    "VGPMIL": lambda: VGPMIL(**QUICK),
    "VGPMIL-or": lambda: VGPMIL(likelihood="or", **QUICK),
    "VGPMIL-witness": lambda: VGPMIL(likelihood="witness", bag_rule="max", **QUICK),
    "VGPMIL-inherited": lambda: VGPMIL(likelihood="inherited", **QUICK),
    "VGPMIL-sequential": lambda: VGPMIL(
        likelihood=NoisyMax(schedule="sequential", expectation="exact"), calibrate=False, **QUICK
    ),
    "VGPMIL-float32": lambda: VGPMIL(
        execution=Execution(dtype="float32", chunk_size=16, n_jobs=2), **QUICK
    ),
    "VGPMIL-joint": lambda: VGPMIL(likelihood="witness", bag_rule="joint", **QUICK),
    "PsiVGPMIL": lambda: PsiVGPMIL(density=Gamma(1.0, 2.0), **QUICK),
    "GVGPMIL": lambda: GVGPMIL(**QUICK),
    # The large margin is cyclic: the last digits of q wander.
    "LMVGPMIL": lambda: LMVGPMIL(tol=1e-2, **QUICK),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FACTORIES)
def test_contract(name, check):
    check(FACTORIES[name])


@pytest.fixture(scope="module")
def problem():
    return make_problem(n_bags=30)


def test_names_and_objects_mean_the_same(problem):
    bags, y, _ = problem
    pairs = [
        ("noisy-max", NoisyMax(100.0, "plug-in", "damped")),
        ("or", ExactOr(100.0)),
        ("witness", SoftWitness()),
        ("inherited", Inherited()),
    ]
    for name, likelihood in pairs:
        a = VGPMIL(likelihood=name, **QUICK).fit(bags, y)
        b = VGPMIL(likelihood=likelihood, **QUICK).fit(bags, y)
        np.testing.assert_array_equal(a.decision_function(bags), b.decision_function(bags))


@pytest.mark.parametrize(
    ("dials", "message"),
    [
        ((-1.0, 0.0), "strength must"),
        ((0.0, 1.5), "redundancy must"),
        ((0.0, np.nan), "redundancy"),
    ],
)
def test_dials_of_the_witness_are_checked(dials, message):
    with pytest.raises(ValueError, match=message):
        SoftWitness(*dials)


def test_family_members_agree_where_they_coincide(problem):
    bags, y, _ = problem
    # The defaults of VGPMIL are its own; those of the others are the papers'.
    base = VGPMIL(kernel="rbf", likelihood="noisy-max", **QUICK).fit(bags, y)
    base = base.decision_function(bags)
    psi = PsiVGPMIL(density=Sech(), **QUICK).fit(bags, y).decision_function(bags)
    np.testing.assert_array_equal(base, psi)
    g = GVGPMIL(alpha=1.2, beta=2.0, **QUICK).fit(bags, y).decision_function(bags)
    psi = PsiVGPMIL(density=Gamma(1.2, 2.0), **QUICK).fit(bags, y).decision_function(bags)
    np.testing.assert_array_equal(g, psi)


def test_a_users_density(problem):
    class Gaussian:
        """psi(c) = exp(-c^2 / 8) / 2: theta is 1/4 everywhere."""

        def theta(self, c):
            return np.full_like(c, 0.25)

        def log_psi(self, c):
            return -(c**2) / 8 - np.log(2)

    bags, y, _ = problem
    model = PsiVGPMIL(density=Gaussian(), likelihood="or", **QUICK).fit(bags, y)
    assert np.diff(model.bound_history_).min() > -1e-9


def test_fitted_attributes(problem):
    bags, y, _ = problem
    model = VGPMIL(kernel="rbf", **QUICK).fit(bags, y)
    assert model.inducing_points_.shape == (20, 3)
    assert model.instance_proba_.shape == (bags.n_instances,)
    assert ((model.instance_proba_ >= 0) & (model.instance_proba_ <= 1)).all()
    assert model.bound_history_.shape == (model.n_iter_,)
    assert model.converged_ is True
    assert np.isfinite(model.held_out_decision_).all()
    assert model.held_out_decision_.shape == (len(bags),)
    assert model.kernel_.length_scale == pytest.approx(np.sqrt(3))
    mean, var = model.predict_latent(bags)
    assert mean.shape == var.shape == (bags.n_instances,)
    assert (var > 0).all()
    assert (var <= 1 + 1e-9).all()


def test_no_convergence_says_what_to_try(problem):
    bags, y, _ = problem
    with pytest.warns(ConvergenceWarning, match="Raise max_iter or tol"):
        model = VGPMIL(max_iter=2, **QUICK).fit(bags, y)
    assert model.converged_ is False
    assert model.n_iter_ == 2


def test_callback_sees_and_stops(problem):
    bags, y, _ = problem
    seen = []

    def callback(told):
        seen.append(told)
        return told.n_iter == 4

    model = VGPMIL(callback=callback, likelihood="or", tol=0.0, **QUICK).fit(bags, y)
    assert model.n_iter_ == 4
    assert [told.n_iter for told in seen] == [1, 2, 3, 4]
    np.testing.assert_array_equal(model.bound_history_, [told.bound for told in seen])
    # Stopping by callback or by max_iter is the same fit.
    capped = VGPMIL(max_iter=4, likelihood="or", tol=0.0, **QUICK).fit(bags, y)
    np.testing.assert_allclose(model.held_out_decision_, capped.held_out_decision_, atol=1e-10)


def test_verbose_shows_the_bound(problem, capsys):
    bags, y, _ = problem
    VGPMIL(verbose=True, **QUICK).fit(bags, y)
    assert "bound" in capsys.readouterr().out


def test_early_stopping_returns_to_the_best(problem):
    bags, y, _ = problem
    held_out, y_held_out, _ = make_problem(n_bags=20, seed=3)
    model = VGPMIL(tol=0.0, **QUICK)
    model.fit(bags, y, validation=(held_out, y_held_out), patience=2)
    aucs = []
    for n in range(1, model.n_iter_ + 3):
        longer = VGPMIL(max_iter=n, tol=0.0, calibrate=False, **QUICK).fit(bags, y)
        aucs.append(roc_auc_score(y_held_out, longer.decision_function(held_out)))
    assert model.n_iter_ == np.argmax(aucs) + 1
    with pytest.raises(ValueError, match="validation needs bags of both classes"):
        model.fit(bags, y, validation=(held_out[:1], y_held_out[:1]))
    with pytest.raises(ValueError, match="patience must be a whole number"):
        model.fit(bags, y, validation=(held_out, y_held_out), patience=0)


def test_mixed_supervision_fixes_what_is_known(problem):
    bags, y, labels = problem
    known = np.where(np.arange(len(labels)) % 3 == 0, labels, -1)
    given = known >= 0
    for name, factory in FACTORIES.items():
        model = factory().fit(bags, y, instance_labels=known)
        np.testing.assert_array_equal(model.instance_proba_[given], labels[given], err_msg=name)


def test_length_scales(problem):
    bags, y, _ = problem
    for length in (2.0, "median", "sqrt_dim", [1.0, 2.0, 3.0]):
        model = VGPMIL(kernel=RBF(length), **QUICK).fit(bags, y)
        assert np.isfinite(model.decision_function(bags)).all()
    assert model.kernel_.length_scale == (1.0, 2.0, 3.0)


def test_a_given_kernel_is_used(problem):
    bags, y, _ = problem
    kernel = MultiScale(3.0, 4.0) + Constant(2.0)
    model = VGPMIL(kernel=kernel, scale="global", **QUICK).fit(bags, y)
    assert model.kernel_ == kernel
    assert model.predict_latent(bags)[1].max() <= 6 + 1e-9


def test_learning_the_kernel_raises_the_bound(problem):
    bags, y, _ = problem
    options = {"likelihood": "or", "max_iter": 1000, **QUICK}
    fixed = VGPMIL(kernel=RBF(20.0), **options).fit(bags, y)
    learnt = VGPMIL(kernel=RBF(20.0), learn_kernel=True, **options).fit(bags, y)
    assert learnt.bound_history_[-1] > fixed.bound_history_[-1] + 1
    assert learnt.kernel_.length_scale != 20.0
    each = VGPMIL(kernel=RBF([20.0] * 3), learn_kernel=True, **options).fit(bags, y)
    assert len(each.kernel_.length_scale) == 3


def test_scaling_makes_units_irrelevant(problem):
    bags, y, _ = problem
    other = bags.map(lambda X: X * [1e3, 1.0, 1e-3] + [5.0, -2.0, 0.0])
    a = VGPMIL(**QUICK).fit(bags, y).decision_function(bags)
    b = VGPMIL(**QUICK).fit(other, y).decision_function(other)
    np.testing.assert_allclose(a, b, atol=1e-6)
    a = VGPMIL(scale="global", **QUICK).fit(bags, y).decision_function(bags)
    scaled = bags.map(lambda X: X * 250)
    b = VGPMIL(scale="global", **QUICK).fit(scaled, y).decision_function(scaled)
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
    label = VGPMIL(init="label", **QUICK).fit(bags, y)
    given = VGPMIL(init=spread, **QUICK).fit(bags, y)
    np.testing.assert_array_equal(label.instance_proba_, given.instance_proba_)
    for init in ("half", "random"):
        assert VGPMIL(init=init, **QUICK).fit(bags, y).score(bags, y) > 0.9
    with pytest.raises(ValueError, match=r"a probability in \[0, 1\] for each of the"):
        VGPMIL(init=[0.5, 0.5], **QUICK).fit(bags, y)


def test_bag_rules_follow_from_the_instances(problem):
    bags, y, _ = problem
    product = VGPMIL(bag_rule="noisy-or", calibrate=False, **QUICK).fit(bags, y)
    p = product.predict_proba_instances(bags)[:, 1]
    expected = [1 - np.prod(1 - part) for part in bags.split(p)]
    np.testing.assert_allclose(product.predict_proba(bags)[:, 1], expected, atol=1e-9)
    top = VGPMIL(bag_rule="max", calibrate=False, **QUICK).fit(bags, y)
    p = top.predict_proba_instances(bags)[:, 1]
    expected = [part.max() for part in bags.split(p)]
    np.testing.assert_allclose(top.predict_proba(bags)[:, 1], expected, atol=1e-9)


def test_calibrated_bags_are_the_mapped_function_by_the_rule(problem):
    bags, y, _ = problem
    for rule in ("noisy-or", "max"):
        model = VGPMIL(bag_rule=rule, **QUICK).fit(bags, y)
        p = np.exp(model.calibration_.read(*model.predict_latent(bags)).probabilities.log_positive)
        parts = bags.split(p)
        expected = [part.max() if rule == "max" else 1 - np.prod(1 - part) for part in parts]
        np.testing.assert_allclose(model.predict_proba(bags)[:, 1], expected, atol=1e-9)


def test_calibrated_instances_are_their_bag_times_their_own_map(problem):
    bags, y, _ = problem
    model = VGPMIL(**QUICK).fit(bags, y)
    own = model.instance_map_.own.read(*model.predict_latent(bags)).probabilities
    of_bag = np.repeat(model.predict_proba(bags)[:, 1], bags.sizes)
    expected = of_bag * np.exp(own.log_positive)
    np.testing.assert_allclose(model.predict_proba_instances(bags)[:, 1], expected, atol=1e-9)
    assert 0 < model.instance_map_.positive_rate < 1


@pytest.mark.parametrize("rule", ["noisy-or", "max", "joint"])
@pytest.mark.parametrize("calibrate", [False, True])
def test_no_instance_is_more_probable_than_its_bag(problem, rule, calibrate):
    bags, y, _ = problem
    model = VGPMIL(bag_rule=rule, calibrate=calibrate, likelihood="or", **QUICK).fit(bags, y)
    p = model.predict_proba_instances(bags)[:, 1]
    top = np.array([part.max() for part in bags.split(p)])
    # The joint rule integrates numerically.
    assert (model.predict_proba(bags)[:, 1] >= top - (1e-2 if rule == "joint" else 1e-12)).all()
    if rule == "max" and not calibrate:
        np.testing.assert_allclose(model.predict_proba(bags)[:, 1], top, atol=1e-12)


def test_calibration_keeps_the_ranking(problem):
    bags, y, _ = problem
    for rule in ("noisy-or", "max"):
        options = {"likelihood": "witness", "bag_rule": rule, **QUICK}
        raw = VGPMIL(calibrate=False, **options).fit(bags, y)
        calibrated = VGPMIL(**options).fit(bags, y)
        assert calibrated.calibration_.slope > 0
        models = (raw, calibrated)
        if rule == "max":
            a, b = (np.argsort(m.decision_function(bags)) for m in models)
            np.testing.assert_array_equal(a, b)
        # Between bags the order of instances follows their bags, too.
        inside = (bags.split(m.decision_function_instances(bags)) for m in models)
        for a, b in zip(*inside, strict=True):
            np.testing.assert_array_equal(np.argsort(a), np.argsort(b))


def test_standard_deviations_equal_sampling(problem):
    bags, y, _ = problem
    bags, y = bags[:10], y[:10]
    model = VGPMIL(bag_rule="noisy-or", calibrate=False, **QUICK).fit(bags, y)
    mean, var = model.predict_latent(bags)
    f = mean[:, None] + np.sqrt(var)[:, None] * np.random.default_rng(0).normal(
        size=(len(mean), 100_000)
    )
    p, std = model.predict_proba_instances(bags, return_std=True)
    np.testing.assert_allclose(p[:, 1], expit(f).mean(axis=1), atol=5e-3)
    np.testing.assert_allclose(std, expit(f).std(axis=1), atol=5e-3)
    p, std = model.predict_proba(bags, return_std=True)
    for i, part in enumerate(bags.split(f)):
        bag = 1 - np.prod(expit(-part), axis=0)
        assert p[i, 1] == pytest.approx(bag.mean(), abs=5e-3)
        assert std[i] == pytest.approx(bag.std(), abs=5e-3)
    again = model.predict_proba(bags, return_std=True)[1]
    np.testing.assert_array_equal(std, again)


def test_calibrated_std_stays_in_range(problem):
    bags, y, _ = problem
    model = VGPMIL(calibrate=True, likelihood="witness", **QUICK).fit(bags, y)
    for method in (model.predict_proba, model.predict_proba_instances):
        _, std = method(bags, return_std=True)
        assert ((std >= 0) & (std <= 0.5)).all()


@pytest.mark.parametrize("n_jobs", [2, -1])
def test_threads_change_nothing(problem, n_jobs):
    bags, y, _ = problem
    one = VGPMIL(execution=Execution(chunk_size=16), **QUICK).fit(bags, y)
    many = VGPMIL(execution=Execution(chunk_size=16, n_jobs=n_jobs), **QUICK).fit(bags, y)
    np.testing.assert_allclose(
        one.decision_function(bags), many.decision_function(bags), atol=1e-10
    )


def test_float32_tells_the_same_story(problem):
    bags, y, _ = problem
    a = VGPMIL(likelihood="or", **QUICK).fit(bags, y)
    b = VGPMIL(likelihood="or", execution=Execution(dtype="float32"), **QUICK).fit(bags, y)
    np.testing.assert_allclose(a.predict_proba(bags), b.predict_proba(bags), atol=1e-3)


def test_bad_parameters(problem):
    bags, y, _ = problem
    cases = [
        ({"n_inducing": 0}, "n_inducing"),
        ({"kernel": RBF([1.0, 1.0])}, r"one per feature \(3\)"),
        ({"kernel": "fourier"}, "kernel must be one of"),
        ({"kernel": RBF}, "kernel must be one of"),
        ({"execution": "gpu"}, "execution must be an Execution or one of"),
        ({"likelihood": "maximum"}, "likelihood"),
        ({"likelihood": object()}, "likelihood"),
        ({"inducing": np.ones((4, 2))}, "inducing must be a finite array"),
        # What would have no effect is an error that says so.
        ({"inducing": np.eye(3)}, "n_inducing=20 has no effect with 3 given"),
        ({"likelihood": "inherited", "init": "label"}, "init has no effect"),
        ({"execution": Execution(precision="tf32")}, "precision='tf32' has no effect"),
        ({"tol": -1.0}, "tol"),
    ]
    for parameters, message in cases:
        with pytest.raises(ValueError, match=message):
            VGPMIL(**{**QUICK, **parameters}).fit(bags, y)
    with pytest.raises(ValueError, match=r"needs the methods theta.* has no theta and no log_psi"):
        PsiVGPMIL(density=object()).fit(bags, y)
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


LIKELIHOODS = ["noisy-max", "or", "witness", "inherited"]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_extremes_stay_finite(likelihood):
    """Duplicate rows, a constant feature, more inducing points than rows, bags of one."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 3))
    X = rows[rng.integers(0, 6, 40)]
    X[:, 1] = 7.1
    bags = Bags(X, np.concatenate([np.arange(21), [30, 40]]))
    y = np.arange(22) % 2
    model = VGPMIL(n_inducing=50, likelihood=likelihood, calibrate=True, random_state=0)
    model.fit(bags, y)
    assert len(model.inducing_points_) <= 6
    assert np.isfinite(model.decision_function(bags)).all()
    assert np.isfinite(model.decision_function_instances(bags)).all()
    assert np.isfinite(model.bound_history_).all()


@pytest.mark.parametrize("likelihood", [*LIKELIHOODS, NoisyMax(1e12, "exact", "sequential")])
def test_a_bag_of_50000(likelihood):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50_160, 2))
    X[[0, 50_100]] += 6
    bags = Bags(X, [0, 50_000, 50_040, 50_100, 50_160])
    model = VGPMIL(n_inducing=10, likelihood=likelihood, random_state=0, tol=0.0, max_iter=3)
    model.fit(bags, [1, 0, 0, 1])
    assert np.isfinite(model.held_out_decision_).all()
    assert np.isfinite(model.decision_function(bags)).all()
    assert np.isfinite(model.predict_proba(bags, return_std=True)[1]).all()


def test_theta_at_the_ends():
    for density in (Sech(), Gamma(1.0, 1.0)):
        theta = density.theta(np.array([0.0, 1e-9, 2000.0]))
        assert np.isfinite(theta).all()
        assert theta[0] == pytest.approx(theta[1])
        assert np.isfinite(density.log_psi(np.array([0.0, 2000.0]))).all()
    assert Sech().theta(0.0) == 0.25
    assert Sech().log_psi(2000.0) == -1000.0
