import numpy as np
import pytest

from bagwise.core import gaussians
from bagwise.core.gaussians import project
from bagwise.core.kernels import RBF, Constant, Linear, Matern32, Matern52, MultiScale
from bagwise.core.linalg import cholesky
from bagwise.models.variational import Gamma, NoisyMax, Sech
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.hyper import (
    KernelFit,
    collapsed_bound,
    learn,
    learn_kernel,
    log_normaliser,
)
from bagwise.models.variational.paper import (
    SiteParameters,
    expect,
    statistics,
    update_posterior,
)
from tests.reference.hyper import collapsed_bound as naive_bound
from tests.reference.kernels import finite_differences
from tests.reference.paper import make_blocks

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


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    Z = X[::6] + 0.1 * rng.normal(size=(7, 3))
    return X, Z, rng.uniform(0.05, 0.25, size=40), rng.uniform(-0.5, 0.5, size=40)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_bound_equals_dense_reference(kernel, problem):
    J = collapsed_bound(kernel, *problem)
    assert J.value == pytest.approx(naive_bound(kernel, *problem), rel=1e-8)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_gradient_meets_finite_differences(kernel, problem):
    J = collapsed_bound(kernel, *problem)
    expected = finite_differences(
        lambda t: collapsed_bound(kernel.with_theta(t), *problem).value, kernel.theta, step=1e-5
    )
    np.testing.assert_allclose(J.gradient, expected, rtol=1e-5, atol=1e-5)


def test_chunks_change_nothing(problem):
    kernel = RBF(SCALES, 0.7) + Constant(2.0)
    whole = collapsed_bound(kernel, *problem)
    parts = collapsed_bound(kernel, *problem, chunk_size=7)
    assert parts.value == pytest.approx(whole.value, rel=1e-10)
    np.testing.assert_allclose(parts.gradient, whole.gradient, rtol=1e-8)


@pytest.mark.parametrize("kernel", [RBF(1.3, 2.0), RBF(SCALES, 0.7)], ids=repr)
def test_normaliser_gradient(kernel, problem):
    X = problem[0]
    options = {"n_features": 20, "n_samples": 8, "chunk_size": 9}
    density = Gamma(1.0, 2.0)
    found = log_normaliser(kernel, X, density, **options)
    expected = finite_differences(
        lambda t: log_normaliser(kernel.with_theta(t), X, density, **options).value, kernel.theta
    )
    np.testing.assert_allclose(found.gradient, expected, rtol=1e-5, atol=1e-6)


def test_normaliser_of_one_instance():
    """For one instance Z is a one-dimensional integral."""
    density = Gamma(1.5, 2.0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    f = np.sqrt(0.8) * nodes
    exact = np.log(
        (weights / weights.sum()) @ (2 * np.cosh(f / 2) * np.exp(density.log_psi(np.abs(f))))
    )
    X = np.zeros((1, 2))
    found = log_normaliser(RBF(1.0, 0.8), X, density, n_features=2000, n_samples=4000)
    assert found.value == pytest.approx(exact, abs=0.01)
    assert log_normaliser(RBF(1.0, 0.8), X, Sech()).value == pytest.approx(0.0, abs=1e-12)


def test_learning_raises_the_bound_and_finds_the_scale(problem):
    X = np.linspace(0, 4, 80)[:, None]
    rho = np.where(np.sin(3 * X[:, 0]) > 0, 0.5, -0.5)
    Z, omega = X[::4], np.full(80, 0.2)
    for start in (RBF(0.05), RBF(5.0), Matern32(3.0) + Constant(1.0), MultiScale(10.0)):
        learnt = learn_kernel(start, X, Z, omega, rho)
        assert type(learnt) is type(start)
        before = collapsed_bound(start, X, Z, omega, rho).value
        assert collapsed_bound(learnt, X, Z, omega, rho).value > before
    a = learn_kernel(RBF(0.3), X, Z, omega, rho)
    b = learn_kernel(RBF(3.0), X, Z, omega, rho)
    assert a.length_scale == pytest.approx(b.length_scale, rel=0.05)


def test_relevance_is_found():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(150, 3))
    rho = np.where(X[:, 1] > 0, 0.5, -0.5)  # only feature 1 matters
    learnt = learn_kernel(RBF([2.0, 2.0, 2.0], 4.0), X, X[::5], np.full(150, 0.2), rho)
    assert learnt.length_scale[1] * 3 < min(learnt.length_scale[0], learnt.length_scale[2])


def test_learning_with_the_normaliser():
    X = np.linspace(0, 4, 60)[:, None]
    rho = np.where(np.sin(3 * X[:, 0]) > 0, 0.5, -0.5)
    density = Gamma(1.0, 1.0)
    args = X, X[::4], np.full(60, 0.3), rho
    learnt = learn_kernel(RBF(2.0), *args, density)
    again = learn_kernel(RBF(2.0), *args, density)
    assert learnt == again  # the draws are seeded
    with pytest.raises(ValueError, match="needs an RBF kernel"):
        learn_kernel(Matern32(), *args, density)


def test_parameters_stay_in_a_sane_range(problem):
    """With no evidence at all the variance shrinks, but one call moves it by a bounded factor."""
    X, Z, omega, _ = problem
    learnt = learn_kernel(RBF(1.0, 1.0), X, Z, omega, np.zeros(40))
    assert 0.04 < learnt.variance < 1.0
    assert np.isfinite(learnt.theta).all()


# The bound of a fit under one kernel must not fall either.
MONOTONE = NoisyMax(100.0, "exact", "sequential")


def alternation(seed, kernel, likelihood, density, n_rounds, takes_off=None):
    """A random problem of bags, and the fits that `learn` alternates with, sites carried over."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, size=20)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    X = rng.normal(size=(offsets[-1], 2))
    Z = X[rng.choice(len(X), 8, replace=False)]
    y = (np.maximum.reduceat(X[:, 0] + 0.5 * rng.normal(size=len(X)), offsets[:-1]) > 0.8) * 1
    labels = BagLabels(offsets, y, np.full(len(X), -1))

    def advance(kernel, before):
        A, r = project(kernel, X, Z, cholesky(kernel(Z, Z)))
        (block,) = make_blocks(A, r, labels)
        if before is None:
            beliefs, q = labels.of_bag / 2, None
        else:
            beliefs, sites = before.carry, SiteParameters(before.omega, before.rho)
            q = update_posterior(*statistics(block.A, sites, 0.0)[:2])
        for _ in range(15 if before is None else 5):
            beliefs, sites, _ = expect(block, beliefs, q, likelihood, density)
            q = update_posterior(*statistics(block.A, sites, 0.0)[:2])
        beliefs, sites, bound = expect(block, beliefs, q, likelihood, density)
        return KernelFit(*sites, float(bound) - gaussians.kl_to_standard(q.m, q.W), beliefs)

    return learn(kernel, X, Z, advance, n_rounds=n_rounds, tol=1e-3, density=takes_off), X


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.filterwarnings("ignore:kernel learning ended")
def test_the_full_bound_never_falls(seed):
    rng = np.random.default_rng(100 + seed)
    start = RBF(float(np.exp(rng.normal())), float(np.exp(rng.normal())))
    outcome, _ = alternation(seed, start, MONOTONE, Sech(), n_rounds=3)
    assert len(outcome.bound_history) >= 1
    assert np.all(np.diff(outcome.bound_history) >= 0)
    if seed < 3:
        assert outcome.bound_history[-1] > outcome.bound_history[0]


def test_the_normaliser_is_in_the_bound_that_must_not_fall():
    density = Gamma(2.0, 1.0)
    start = RBF(1.0, 1.0)
    outcome, X = alternation(3, start, MONOTONE, density, n_rounds=2, takes_off=density)
    log_z = log_normaliser(outcome.kernel, X, density).value
    assert outcome.bound_history[-1] == pytest.approx(outcome.fit.bound - log_z)
    assert np.all(np.diff(outcome.bound_history) >= 0)


def test_a_start_that_cannot_be_improved_is_kept(problem):
    X, Z, omega, rho = problem
    asked = []

    def advance(kernel, before):
        asked.append(kernel)
        return KernelFit(omega, rho, 0.0 if before is None else -1.0)

    outcome = learn(RBF(1.3, 2.0), X, Z, advance)
    assert outcome.kernel == RBF(1.3, 2.0) and outcome.bound_history.tolist() == [0.0]
    steps = [np.abs(kernel.theta - asked[0].theta).max() for kernel in asked[1:]]
    np.testing.assert_allclose(steps, steps[0] / 2.0 ** np.arange(5))


def test_a_parameter_at_its_bound_is_named(problem):
    X, Z, _, _ = problem
    count = iter(range(100))

    def advance(kernel, before):
        """Labels with hardly any weight against the size of f: the variance grows without end."""
        return KernelFit(np.full(40, 1e-9), np.full(40, 0.5), float(next(count)))

    with pytest.warns(UserWarning, match=r"parameter 1 = 1e\+06"):
        learn(RBF(1.0, 1.0), X, Z, advance, n_rounds=30, tol=0.0)
