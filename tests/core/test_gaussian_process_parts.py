"""Linear algebra, Gaussian expectations, inducing points and calibration, each on its own."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from scipy.special import expit
from threadpoolctl import threadpool_limits

from bagwise.core import gaussians, inducing, linalg, segments
from bagwise.core.kernels import RBF
from bagwise.datasets import load_digit_bags
from bagwise.models.calibration.fit import fit_platt
from bagwise.models.execution import device_settings


def test_cholesky_raises_jitter_only_when_needed_and_says_so():
    L = linalg.cholesky(np.eye(3))
    np.testing.assert_allclose(L, np.eye(3), atol=1e-8)
    indefinite = np.ones((3, 3)) - 1e-6 * np.diag([1.0, 1.0, 0.0])
    with pytest.warns(UserWarning, match="jitter raised"):
        assert np.isfinite(linalg.cholesky(indefinite)).all()
    with pytest.raises(ValueError, match="positive semi-definite"):
        linalg.cholesky(-np.eye(3))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_products_equal_numpy(rng, dtype):
    A = np.asfortranarray(rng.normal(size=(4, 30)), dtype=dtype)
    W = np.asfortranarray(np.tril(rng.normal(size=(4, 4))), dtype=dtype)
    omega = rng.uniform(size=30)
    tol = 1e-10 if dtype == "float64" else 1e-4
    gram, _ = linalg.weighted_sums(A, omega, omega)
    np.testing.assert_allclose(np.tril(gram), np.tril((A * omega) @ A.T), atol=tol)
    np.testing.assert_allclose(linalg.column_squares(A), (A**2).sum(0), rtol=1e-5)
    squares = ((W @ A) ** 2).sum(0)
    np.testing.assert_allclose(linalg.projected_squares(W, A), squares, rtol=1e-4)


def test_torch_gives_the_same(rng):
    torch = pytest.importorskip("torch")
    A = np.asfortranarray(rng.normal(size=(4, 10)))
    B = A @ A.T + np.eye(4)
    T = torch.from_numpy
    L = linalg.cholesky(B)
    np.testing.assert_allclose(linalg.cholesky(T(B)).numpy(), L)
    np.testing.assert_allclose(linalg.solve_lower(T(L), T(A)).numpy(), linalg.solve_lower(L, A))
    np.testing.assert_allclose(
        linalg.inverse_factor(T(B)).numpy(), linalg.inverse_factor(np.asfortranarray(B)), atol=1e-12
    )
    X, Z = rng.normal(size=(6, 2)), rng.normal(size=(3, 2))
    kernel = RBF(1.0, 2.0)
    LZ = linalg.cholesky(kernel(Z, Z))
    for a, b in zip(
        gaussians.project(kernel, X, Z, LZ),
        gaussians.project(kernel, T(X), T(Z), T(LZ), torch.float64),
        strict=True,
    ):
        np.testing.assert_allclose(a, b.numpy(), atol=1e-12)


@pytest.mark.parametrize("n", [10, 256, 700])
@pytest.mark.parametrize("tf32", [True, False])
def test_device_statistics_and_moments_equal_numpy(rng, monkeypatch, n, tf32):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(linalg, "SLAB", 256)
    A = np.asfortranarray(rng.normal(size=(5, n)))
    W, m = np.asfortranarray(np.tril(rng.normal(size=(5, 5)))), rng.normal(size=5)
    omega, rho = rng.uniform(size=n), rng.normal(size=n)
    T = torch.from_numpy
    with device_settings("tf32" if tf32 else None, 10**7):
        gram, linear = linalg.weighted_sums(T(A), T(omega), T(rho))
    expected, expected_linear = linalg.weighted_sums(A, omega, rho)
    np.testing.assert_allclose(np.tril(gram.numpy()), np.tril(expected), atol=1e-10)
    np.testing.assert_allclose(linear.numpy(), expected_linear, atol=1e-10)
    found, exact = (linalg.first_two_moments(m, W, x) for x in (T(A), A))
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_allclose(a.numpy(), b, atol=1e-10)


def test_device_sums_of_both_signs_keep_their_digits(rng):
    T = pytest.importorskip("torch").as_tensor
    n = 200_000
    A = (1 + 1e-3 * rng.normal(size=(3, n))).astype(np.float32)
    rho = np.where(np.arange(n) < n // 2, 0.5, -0.5).astype(np.float32)
    _, linear = linalg.weighted_sums(T(A), T(0 * rho), T(rho))
    exact = A.astype(np.float64) @ rho.astype(np.float64)
    np.testing.assert_allclose(linear.numpy(), exact, rtol=0, atol=1e-8 * n / 2)


def test_inverse_factor_gives_the_covariance(rng):
    A = rng.normal(size=(5, 9))
    B = np.asfortranarray(np.eye(5) + A @ A.T)
    W = linalg.inverse_factor(B)
    np.testing.assert_allclose(W.T @ W @ B, np.eye(5), atol=1e-12)
    with pytest.raises(ValueError, match="not positive definite"):
        linalg.inverse_factor(np.asfortranarray(-B))


@pytest.mark.parametrize("n", [1, 100, 101, 307])
def test_inverse_in_halves_is_that_of_a_triangular_solve(rng, n):
    B = np.asfortranarray(np.eye(n) + np.cov(rng.normal(size=(n, n + 3))))
    L = np.linalg.cholesky(B)
    expected = scipy.linalg.solve_triangular(L, np.eye(n), lower=True)
    np.testing.assert_allclose(linalg.inverse_factor(B), expected, rtol=0, atol=1e-14)


def test_kl_equals_the_textbook(rng):
    m = rng.normal(size=4)
    W = np.tril(rng.normal(size=(4, 4)))
    W[np.diag_indices(4)] = np.abs(W.diagonal()) + 0.5
    S = W.T @ W
    expected = 0.5 * (np.trace(S) + m @ m - 4 - np.linalg.slogdet(S)[1])
    assert gaussians.kl_to_standard(m, W) == pytest.approx(expected)


@pytest.mark.parametrize("std", [0.0, 0.5, 2.0, 4.0, 6.0])
def test_sigmoid_moments_equal_sampling(std):
    z = np.random.default_rng(0).normal(size=1_000_000)
    mean = np.array([-3.0, 0.0, 1.0, 5.0])
    moments = gaussians.sigmoid_moments(mean, np.full(4, std**2))
    coarse = gaussians.sigmoid_moments(mean, np.full(4, min(std, 4.0) ** 2), n_nodes=20)
    for i, mu in enumerate(mean):
        p = expit(mu + std * z)
        assert np.exp(moments.log_positive[i]) == pytest.approx(p.mean(), abs=1.5e-3)
        assert moments.std[i] == pytest.approx(p.std(), abs=1.5e-3)
        if std <= 4:
            assert np.exp(coarse.log_positive[i]) == pytest.approx(p.mean(), abs=2e-3)


def test_sigmoid_moments_keep_the_tails():
    moments = gaussians.sigmoid_moments(np.array([-80.0, 80.0]), np.array([0.01, 0.01]))
    np.testing.assert_allclose(moments.log_odds, [-79.995, 79.995], atol=0.01)
    extreme = gaussians.sigmoid_moments(np.array([-5000.0, 5000.0]), np.array([1.0, 1.0]))
    assert np.isfinite(extreme.log_odds).all()


def test_inducing_points_never_exceed_the_distinct_rows(rng):
    X = np.repeat(rng.normal(size=(5, 2)), 20, axis=0)
    positive = np.arange(100) < 40
    for method in ("kmeans", "subset"):
        Z = inducing.choose(X, positive, 50, method, np.random.RandomState(0))
        assert len(Z) == 5
        Z = inducing.choose(X, positive, 4, method, np.random.RandomState(0))
        assert len(Z) == 4


def test_a_class_with_few_rows_leaves_its_share(rng):
    X = rng.normal(size=(103, 2))
    Z = inducing.choose(X, np.arange(103) < 3, 20, "kmeans", np.random.RandomState(0))
    assert len(Z) == 20


def test_inducing_points_of_many_rows(rng):
    X = rng.normal(size=(60_000, 2))
    positive = np.arange(60_000) % 2 == 0
    Z = inducing.choose(X, positive, 10, "kmeans", np.random.RandomState(0))
    assert Z.shape == (10, 2)


def test_points_keep_their_order_whatever_the_threads_round(rng):
    """Features that are 0 in the training rows are 0 but for the last digit in centroids."""
    rows = np.column_stack([np.zeros(200), rng.integers(0, 5, (200, 6)), 1e6 * rng.random(200)])
    first, second = (
        inducing._in_order((rows + 1e-17 * rng.normal(size=rows.shape))[rng.permutation(200)])
        for _ in range(2)
    )
    np.testing.assert_allclose(first, second, atol=1e-12)
    assert (np.diff(first[:, 1]) > -1e-12).all()
    # Where one feature is huge, the others count still: no point is lost.
    assert len(first) == 200


def test_points_do_not_depend_on_the_number_of_threads():
    """On digits, whose corners are always blank, k-means leaves signed zeros there."""
    bags, y = load_digit_bags(return_X_y=True)
    bags, y = bags[:105], y[:105]
    X, positive = bags.instances.astype(float), np.repeat(y, bags.sizes) == 1
    made = []
    for n_threads in (1, 2, 3):
        with threadpool_limits(n_threads):
            made.append(inducing.choose(X, positive, 100, "kmeans", np.random.RandomState(0)))
    for Z in made[1:]:
        np.testing.assert_allclose(Z, made[0], atol=1e-12)


def test_noisy_or_platt_recovers_the_truth():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 8, 3000)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    scores = rng.normal(size=offsets[-1])
    p = expit(1.7 * scores - 2.0)
    y = segments.max((rng.uniform(size=len(p)) < p).astype(float), offsets)
    platt = fit_platt(scores, y, offsets)
    assert platt.slope == pytest.approx(1.7, abs=0.25)
    assert platt.intercept == pytest.approx(-2.0, abs=0.25)


def test_noisy_or_platt_never_reverses():
    scores = np.array([2.0, 1.0, 3.0, -2.0, -1.0, -3.0])
    platt = fit_platt(scores, np.array([0, 0, 0, 1, 1, 1]), np.arange(7))
    assert platt.slope == 0.0


def test_bags_of_one_make_noisy_or_platt_the_plain_one(rng):
    scores = rng.normal(size=60)
    y = (scores + rng.normal(size=60) > 0).astype(int)
    a, b = fit_platt(scores, y), fit_platt(scores, y, np.arange(61))
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_distinct_rows_are_those_of_unique():
    """Whether the first feature tells all rows apart or not."""
    from bagwise.core.inducing import _distinct

    rng = np.random.default_rng(0)
    apart = rng.normal(size=(50, 3))
    repeated = np.concatenate([apart, apart[:7]])
    for X in (apart, repeated):
        pool = _distinct(X, np.arange(len(X)), 4, np.random.RandomState(0), None)
        rows, counts = np.unique(X, axis=0, return_counts=True)
        np.testing.assert_array_equal(pool.rows, rows)
        np.testing.assert_array_equal(pool.counts, counts)


@pytest.mark.parametrize("n", [300, 30_000])
def test_rows_of_one_side_need_no_list(rng, n):
    """The first n rows are the same, and drawn by the same numbers, as a list of them all."""
    from bagwise.core.inducing import _distinct

    X = rng.normal(size=(n, 3))
    pools = [_distinct(X, rows, 5, np.random.RandomState(0), None) for rows in (n, np.arange(n))]
    np.testing.assert_array_equal(pools[0].rows, pools[1].rows)
    assert len(pools[0].rows) == min(n, 10_000)


def test_both_probabilities_from_log_odds(rng):
    """In pieces, and without a warning where the odds overflow."""
    from bagwise.models.base import two_probabilities

    log_odds = np.concatenate([10 * rng.normal(size=40_000), [-1e4, -800.0, 800.0, 1e4]])
    p = two_probabilities(log_odds)
    np.testing.assert_allclose(p[:, 1], expit(log_odds), rtol=1e-14)
    np.testing.assert_array_equal(p.sum(1), 1.0)
