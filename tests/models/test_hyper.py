import numpy as np
import pytest

from bagwise.core.kernels import RBF, Constant, Linear, Matern32, Matern52, MultiScale
from bagwise.models.variational.densities import Gamma, Sech
from bagwise.models.variational.hyper import collapsed_bound, learn_kernel, log_normaliser
from tests.reference.hyper import collapsed_bound as naive_bound
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
    learnt = learn_kernel(RBF(2.0), *args, density=density, normaliser=True)
    again = learn_kernel(RBF(2.0), *args, density=density, normaliser=True)
    assert learnt == again  # the draws are seeded
    with pytest.raises(ValueError, match="needs an RBF kernel"):
        learn_kernel(Matern32(), *args, density=density, normaliser=True)
    with pytest.raises(ValueError, match="needs the density"):
        learn_kernel(RBF(), *args, normaliser=True)


def test_parameters_stay_in_a_sane_range(problem):
    """With no evidence at all the variance shrinks, but one call moves it by a bounded factor."""
    X, Z, omega, _ = problem
    learnt = learn_kernel(RBF(1.0, 1.0), X, Z, omega, np.zeros(40))
    assert 0.04 < learnt.variance < 1.0
    assert np.isfinite(learnt.theta).all()
