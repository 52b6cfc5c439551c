"""Algorithm 1 of [CastroMacias2024] with its step 8."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from bagwise import GVGPMIL, VGPMIL, Execution, PsiVGPMIL
from bagwise.core.arrays import to_numpy
from bagwise.core.kernels import RBF, Constant, Linear, Matern32, Matern52, MultiScale
from bagwise.core.linalg import cholesky
from bagwise.datasets import load_musk1, make_gaussian_bags
from bagwise.models.variational import (
    Gamma,
    KernelStep,
    LargeMargin,
    NoisyMax,
    ProgramKernelStep,
    Sech,
)
from bagwise.models.variational.blocks import InducingPosterior
from bagwise.models.variational.hyper import (
    InducingMoments,
    KernelProblem,
    Objective,
    log_normaliser,
    printed_objective,
)
from tests.reference.hyper import printed_objective as naive_objective
from tests.reference.kernels import finite_differences

SCALES = (0.8, 1.5, 2.5)
KERNELS = [
    RBF(1.3, 2.0),
    RBF(SCALES, 0.7),
    Matern32(1.1, 3.0),
    Matern52(SCALES, 1.0),
    MultiScale(4.0, 16.0),
    RBF(1.3, 2.0) + Constant(5.0),
    RBF(2.0) * Linear(0.5) + Constant(1.0),
]
DENSITIES = [Sech(), Gamma(1.0, 4.0)]


@pytest.fixture(scope="module")
def problem():
    """Instances, inducing points, q(u) and q(y)."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 3))
    Z = X[::5] + 0.1 * rng.normal(size=(5, 3))
    u = InducingMoments(rng.normal(size=5), np.eye(5) / 2 + 0.1 * rng.normal(size=(5, 5)))
    return X, Z, u, rng.uniform(size=25)


@pytest.mark.parametrize("density", DENSITIES, ids=repr)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_the_objective_equals_the_dense_reference(kernel, density, problem):
    X, Z, u, pi = problem
    J = printed_objective(kernel, *problem, density)
    likelihood, divergence = naive_objective(kernel, X, Z, u.mean, u.root @ u.root.T, pi, density)
    assert J.likelihood == pytest.approx(likelihood, rel=1e-5)
    assert J.divergence == pytest.approx(divergence, rel=1e-6)


@pytest.mark.parametrize("density", DENSITIES, ids=repr)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_gradients_meet_finite_differences(kernel, density, problem):
    J = printed_objective(kernel, *problem, density)
    for term in ("likelihood", "divergence"):
        expected = finite_differences(
            lambda t, term=term: getattr(
                printed_objective(kernel.with_theta(t), *problem, density), term
            ),
            kernel.theta,
            step=1e-5,
        )
        np.testing.assert_allclose(getattr(J, f"d_{term}"), expected, rtol=1e-5, atol=1e-5)


def test_chunks_change_nothing(problem):
    kernel = RBF(SCALES, 0.7) + Constant(2.0)
    whole = printed_objective(kernel, *problem, Sech())
    parts = printed_objective(kernel, *problem, Sech(), chunk_size=7)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_inducing_values_keep_their_distribution_under_another_kernel(problem):
    _, Z, u, _ = problem
    L = cholesky(RBF(1.3, 2.0)(Z, Z))
    q = u.whitened(L)
    assert np.array_equal(q.W, np.tril(q.W)) and (np.diagonal(q.W) > 0).all()
    back = InducingMoments.of(q, L)
    np.testing.assert_allclose(back.mean, u.mean, atol=1e-12)
    np.testing.assert_allclose(back.root @ back.root.T, u.root @ u.root.T, atol=1e-12)


@pytest.mark.parametrize("kernel", [RBF(1.3, 2.0), RBF(SCALES, 0.7)], ids=repr)
def test_normaliser_gradient(kernel, problem):
    X = problem[0]
    options = {"n_features": 20, "n_samples": 8, "chunk_size": 9}
    density = Gamma(1.0, 2.0)
    value = log_normaliser(kernel, X, density, **options)
    expected = finite_differences(
        lambda t: log_normaliser(kernel.with_theta(t), X, density, **options).value, kernel.theta
    )
    np.testing.assert_allclose(value.gradient, expected, rtol=1e-5, atol=1e-6)


def test_normaliser_of_one_instance():
    """For one instance Z is a one-dimensional integral."""
    density = Gamma(1.5, 2.0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    f = np.sqrt(0.8) * nodes
    exact = np.log(
        (weights / weights.sum()) @ (2 * np.cosh(f / 2) * np.exp(density.log_psi(np.abs(f))))
    )
    X = np.zeros((1, 2))
    value = log_normaliser(RBF(1.0, 0.8), X, density, n_features=2000, n_samples=4000).value
    assert value == pytest.approx(exact, abs=0.01)
    assert log_normaliser(RBF(1.0, 0.8), X, Sech()).value == pytest.approx(0.0, abs=1e-12)


def slope_and_bowl(kernel):
    """A likelihood that grows with log v, and a divergence (log l)^2."""
    length, v = kernel.theta
    return Objective(10.0 * v, length**2, np.array([0.0, 10.0]), np.array([2 * length, 0.0]))


def test_a_printed_step_goes_to_the_maximum_but_not_beyond_a_factor_of_20():
    start = KernelProblem(RBF(2.0, 1.0), slope_and_bowl, None, 100, 10)
    reached = KernelStep(n_steps=30)(start)
    assert reached.length_scale == pytest.approx(1.0, abs=1e-3)
    assert reached.variance == pytest.approx(20.0)


def test_a_program_step_descends_at_its_rate():
    """By hand: the losses of three steps are .024, .0195 and .0228, as the weight grows to 2/3."""
    start = KernelProblem(RBF(2.0, 1.0), slope_and_bowl, None, 100, 10)
    reached = ProgramKernelStep(n_steps=3, rate=0.4)(start)
    log_l = np.log(2.0) * (1 - 0.4 / 4 * 0.5 / 10 * 2)
    assert np.log(reached.length_scale) == pytest.approx(log_l)
    assert np.log(reached.variance) == pytest.approx(0.4 * 10 / 100)


def test_first_iterations_equal_those_of_a_fixed_kernel():
    bags, y = make_gaussian_bags(30, 2, random_state=0, return_X_y=True)
    options = {"kernel": RBF(1.5, 0.5), "n_inducing": 10, "tol": 0.0, "random_state": 0}
    options |= {"likelihood": NoisyMax(schedule="paper"), "calibrate": False}
    for n_iter in (1, 4):
        fixed = PsiVGPMIL(max_iter=n_iter, **options).fit(bags, y)
        learned = PsiVGPMIL(max_iter=n_iter, learn_kernel=KernelStep(warmup=4), **options)
        learned.fit(bags, y)
        np.testing.assert_allclose(learned.posterior_mean_, fixed.posterior_mean_, rtol=1e-8)
        np.testing.assert_allclose(learned.instance_proba_, fixed.instance_proba_, rtol=1e-8)
        np.testing.assert_allclose(learned.bound_history_, fixed.bound_history_, rtol=1e-8)


@pytest.mark.parametrize("density", DENSITIES, ids=repr)
def test_a_kernel_step_is_taken_at_the_posterior_of_the_iteration(density):
    """After one iteration: the kernel maximises the objective at that q(u), which it keeps."""
    bags, y = make_gaussian_bags(30, 2, random_state=0, return_X_y=True)
    options = {"kernel": RBF(1.5, 0.5), "n_inducing": 10, "max_iter": 1, "random_state": 0}
    options |= {"tol": 0.0, "calibrate": False, "scale": None, "density": density}
    fixed = PsiVGPMIL(**options).fit(bags, y)
    model = PsiVGPMIL(learn_kernel=KernelStep(n_steps=50), **options).fit(bags, y)
    Z = fixed.inducing_points_
    L = to_numpy(cholesky(fixed.kernel_(Z, Z)))
    u = InducingMoments.of(InducingPosterior(fixed.posterior_mean_, fixed.posterior_factor_), L)
    # q(u) is the same distribution under the learned kernel.
    L = to_numpy(cholesky(model.kernel_(Z, Z)))
    np.testing.assert_allclose(L @ model.posterior_mean_, u.mean, atol=1e-6)
    if isinstance(density, Sech):  # without log Z: no neighbouring kernel is better
        X, pi = bags.instances, fixed.instance_proba_

        def value(theta):
            J = printed_objective(model.kernel_.with_theta(theta), X, Z, u, pi, density)
            return J.likelihood - J.divergence

        here = value(model.kernel_.theta)
        for step in 0.05 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]]):
            assert value(model.kernel_.theta + step) < here


def test_relevance_is_found():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 5, 3))
    y = (X[:, :, 1].max(1) > 1.2).astype(int)  # only feature 1 matters
    model = VGPMIL(
        inference="paper",
        kernel=RBF([2.0] * 3, 4.0),
        learn_kernel=True,
        n_inducing=40,
        max_iter=30,
        tol=0.0,
        calibrate=False,
        scale=None,
        random_state=0,
    ).fit(X, y)
    scale = model.kernel_.length_scale
    assert scale[1] * 2 < min(scale[0], scale[2])


def test_kernels_without_fourier_features_are_learned_without_the_normaliser():
    bags, y = make_gaussian_bags(30, 2, random_state=0, return_X_y=True)
    model = GVGPMIL(kernel=Matern32(1.0), learn_kernel=True, max_iter=2, n_inducing=8, tol=0.0)
    with pytest.warns(UserWarning, match="log Z of Gamma is known for the RBF kernel alone"):
        model.set_params(calibrate=False).fit(bags, y)
    with pytest.raises(ValueError, match="needs an RBF kernel"):
        log_normaliser(Matern32(), bags.instances, Gamma())


def test_what_cannot_be_learned_is_an_error():
    bags, y = make_gaussian_bags(30, 2, random_state=0, return_X_y=True)
    model = VGPMIL(inference="paper", likelihood=LargeMargin(), learn_kernel=True)
    with pytest.raises(ValueError, match="LargeMargin needs learn_kernel=False"):
        model.fit(bags, y)
    with pytest.raises(ValueError, match="learn_kernel has no effect without"):
        VGPMIL(learn_kernel=KernelStep()).fit(bags, y)


def test_a_kernel_that_runs_away_ends_the_fit_with_a_warning():
    """At H = 100 the labels make the latent function of Gamma(1, 4) grow, and the variance."""
    bags, y = load_musk1(return_X_y=True)
    model = GVGPMIL(
        beta=4.0,
        kernel=RBF("sqrt_dim", 0.5),
        learn_kernel=True,
        calibrate=False,
        n_inducing=20,
        max_iter=60,
        random_state=0,
    )
    with pytest.warns(ConvergenceWarning, match=r"[Dd]o not trust this fit"):
        model.fit(bags, y)
    assert not model.converged_


def test_a_stopped_fit_goes_on(tmp_path):
    bags, y = make_gaussian_bags(30, 2, random_state=0, return_X_y=True)
    options = {"kernel": RBF(1.5, 0.5), "n_inducing": 10, "max_iter": 6, "random_state": 0}
    options |= {"tol": 0.0, "calibrate": False, "learn_kernel": True}
    whole = VGPMIL(inference="paper", **options).fit(bags, y)
    execution = Execution(checkpoint=tmp_path / "fit.npz", checkpoint_every=2)
    calls = []

    def stop(at):
        calls.append(at.n_iter)
        if len(calls) == 5:
            raise KeyboardInterrupt

    model = VGPMIL(inference="paper", callback=stop, execution=execution, **options)
    with pytest.raises(KeyboardInterrupt):
        model.fit(bags, y)
    model.fit(bags, y)
    assert calls == [1, 2, 3, 4, 5, 5, 6]
    np.testing.assert_allclose(model.posterior_mean_, whole.posterior_mean_, rtol=1e-10)
    assert model.kernel_ == whole.kernel_


def test_validation_bags_choose_the_iteration_by_log_loss():
    bags, y = load_musk1(return_X_y=True)
    train, held_out = np.arange(92) % 3 > 0, np.arange(92) % 3 == 0
    model = VGPMIL(inference="paper", max_iter=40, tol=0.0, calibrate=False, random_state=0)
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for n_iter in range(1, 14):
            short = VGPMIL(
                inference="paper", max_iter=n_iter, tol=0.0, calibrate=False, random_state=0
            ).fit(bags[train], y[train])
            z = short.decision_function(bags[held_out])
            losses.append(np.logaddexp(0, np.where(y[held_out] == 1, -z, z)).mean())
        validation = bags[held_out], y[held_out]
        model.fit(bags[train], y[train], validation=validation, monitor="log-loss", patience=3)
    z = model.decision_function(bags[held_out])
    loss = np.logaddexp(0, np.where(y[held_out] == 1, -z, z)).mean()
    best, since = np.inf, 0
    for value in losses:
        best, since = (value, 0) if value < best - 1e-3 else (best, since + 1)
        if since == 3:
            break
    assert loss == pytest.approx(best, rel=1e-10)
    with pytest.raises(ValueError, match="monitor must be one of"):
        model.fit(bags[train], y[train], validation=validation, monitor="accuracy")
