"""The engine equals its naive twin, for every model, likelihood and kind of label."""

from __future__ import annotations

import pickle  # noqa: TID251 - what clusters do

import numpy as np
import pytest
from scipy.special import expit

from bagwise.core import linalg
from bagwise.core.arrays import both_tails
from bagwise.core.gaussians import project
from bagwise.core.kernels import RBF
from bagwise.models.variational import Gamma, LargeMargin, NoisyMax, Sech
from bagwise.models.variational.blocks import BagLabels
from tests.reference import vgpmil as naive
from tests.reference.paper import fit_whitened

DENSITIES = {
    "sech": (Sech(), naive.theta_sech, naive.log_psi_sech),
    "gamma": (Gamma(0.7, 2.0), naive.theta_gamma(0.7, 2.0), naive.log_psi_gamma(0.7, 2.0)),
}
KERNELS = [(1.0, 1.5), (2.5, 0.8), (0.5, 3.0)]


def make(v=1.0, length=1.5, mixed=False, seed=0):
    """Five small bags, one of them of a single instance, and five inducing points."""
    rng = np.random.default_rng(seed)
    sizes = [3, 1, 4, 2, 5]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    y = np.array([1, 0, 0, 1, 1])
    X = rng.normal(size=(15, 2))
    Z = rng.normal(size=(5, 2)) * 1.5
    known = np.full(15, -1)
    if mixed:
        known[[0, 4, 8, 10, 11]] = [1, 0, 0, 0, 0]
    pi = rng.uniform(0.05, 0.95, size=15)
    twin = naive.Problem(X, Z, v, length, offsets, y, known)
    kernel = RBF(length, v)
    L = linalg.cholesky(kernel(Z, Z))
    A, r = project(kernel, X, Z, L)
    return twin, A, r, BagLabels(offsets, y, known), pi, L


def assert_same(fit, L, expected, tol=1e-8):
    m, S, pi, *history = expected
    np.testing.assert_allclose(L @ fit.posterior.m, m, atol=tol)
    np.testing.assert_allclose(L @ fit.posterior.S @ L.T, S, atol=tol)
    np.testing.assert_allclose(fit.pi, pi, atol=tol)
    if history:
        np.testing.assert_allclose(fit.bound_history, history[0], atol=tol, rtol=tol)


def run(problem, likelihood, density, n_iter=7, chunk_size=4):
    _, A, r, labels, pi, _ = problem
    return fit_whitened(
        A, r, *labels[:3], pi, likelihood, density, max_iter=n_iter, tol=0.0, chunk_size=chunk_size
    )


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("schedule", ["paper", "damped", "sequential"])
@pytest.mark.parametrize("expectation", ["plug-in", "exact"])
def test_noisy_max_equals_twin(mixed, kernel, density, schedule, expectation):
    problem = make(*kernel, mixed=mixed)
    psi, theta, log_psi = DENSITIES[density]
    H = 1e12 if mixed else 100.0
    fit = run(problem, NoisyMax(H, expectation, schedule), psi)
    options = {"H": H, "exact": expectation == "exact", "schedule": schedule, "n_iter": 7}
    expected = naive.fit_noisy_max(problem[0], problem[4], theta, log_psi, **options)
    assert_same(fit, problem[5], expected)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("margin", [(2.0, 2.0), (1.0, 0.5)])
@pytest.mark.parametrize("schedule", ["paper", "damped", "sequential"])
def test_large_margin_equals_twin(mixed, kernel, margin, schedule):
    problem = make(*kernel, mixed=mixed)
    C, V = margin
    fit = run(problem, LargeMargin(C, V, 100.0, "plug-in", schedule), Sech())
    options = {"C": C, "V": V, "H": 100.0, "exact": False, "schedule": schedule, "n_iter": 7}
    assert_same(fit, problem[5], naive.fit_large_margin(problem[0], problem[4], **options))


def test_jaakkola_and_polya_gamma_agree():
    """Twice Jaakkola's lambda is the mean of a Pólya-Gamma is theta of the secant, P 3.1."""
    for c in (1e-6, 0.3, 1.0, 4.0, 25.0):
        theta = Sech().theta(c)
        assert theta == pytest.approx(2 * naive.jaakkola(c), abs=1e-9)
        assert theta == pytest.approx(naive.polya_gamma_mean(c), abs=1e-9)


@pytest.mark.parametrize("theta", [lambda c: 2 * naive.jaakkola(c), naive.polya_gamma_mean])
def test_both_forms_give_the_same_fit(theta):
    problem = make()
    fit = run(problem, NoisyMax(100.0, "plug-in", "paper"), Sech(), n_iter=3)
    options = {"H": 100.0, "exact": False, "schedule": "paper", "n_iter": 3}
    expected = naive.fit_noisy_max(problem[0], problem[4], theta, naive.log_psi_sech, **options)
    assert_same(fit, problem[5], expected[:3])


@pytest.mark.parametrize("chunk_size", [1, 3, 1000])
@pytest.mark.parametrize(
    "likelihood",
    [NoisyMax(), NoisyMax(schedule="sequential"), LargeMargin()],
)
def test_chunks_change_nothing(likelihood, chunk_size):
    problem = make(mixed=True)
    one = run(problem, likelihood, Sech(), chunk_size=1000)
    cut = run(problem, likelihood, Sech(), chunk_size=chunk_size)
    np.testing.assert_allclose(one.posterior.m, cut.posterior.m, atol=1e-10)
    np.testing.assert_allclose(one.bound_history, cut.bound_history, atol=1e-9)
    np.testing.assert_allclose(one.pi, cut.pi, atol=1e-10)


def test_what_follows_from_labels_is_worked_out_once_and_does_not_travel():
    known = np.array([-1, 1, -1, -1, 0, -1], dtype=np.int8)
    labels = BagLabels(
        np.array([0, 2, 3, 6]), np.array([1, 0, 1]), known, np.array([1.0, 2.0, 3.0])
    )
    assert labels.of_bag.tolist() == [1, 1, 0, 1, 1, 1]
    assert labels.of_bag is labels.of_bag
    assert labels.each.tolist() == [1, 1, 2, 3, 3, 3]
    assert labels.has_positive.tolist() == [True, False, False]
    assert not labels.nothing_known
    assert labels._replace(y=np.array([0, 0, 1])).of_bag.tolist() == [0, 0, 0, 1, 1, 1]
    assert labels._replace(known=np.full(6, -1), weight=None).nothing_known
    travelled = pickle.loads(pickle.dumps(labels))
    assert vars(labels) and not vars(travelled)
    np.testing.assert_array_equal(travelled.of_bag, labels.of_bag)


def test_both_tails_are_the_sigmoid_of_either_sign():
    x = np.array([-800.0, -40.0, -1e-3, 0.0, 0.3, 40.0, 800.0])
    for found, expected in zip(both_tails(x), (expit(x), expit(-x)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-15)
