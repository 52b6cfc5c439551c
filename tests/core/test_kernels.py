import pickle  # noqa: TID251 - joblib and Dask pickle kernels

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bagwise.core.kernels import (
    ARD,
    RBF,
    Constant,
    Linear,
    Matern32,
    Matern52,
    MultiScale,
    Product,
    Sum,
    median_sq_distance,
)
from tests.reference import kernels as naive

D = 4
SCALES = (0.7, 1.3, 2.0, 0.9)
LEAVES = [
    (RBF(1.3, 2.0), naive.rbf, (1.3, 2.0)),
    (RBF(SCALES, 0.5), naive.rbf, (SCALES, 0.5)),
    (Matern32(1.3, 2.0), naive.matern32, (1.3, 2.0)),
    (Matern32(SCALES, 2.0), naive.matern32, (SCALES, 2.0)),
    (Matern52(0.8, 3.0), naive.matern52, (0.8, 3.0)),
    (Matern52(SCALES, 3.0), naive.matern52, (SCALES, 3.0)),
    (MultiScale(2.5, 16.0), naive.multi_scale, (2.5, 16.0)),
    (Linear(0.3), naive.linear, (0.3,)),
    (Constant(25.0), naive.constant, (25.0,)),
]
COMPOSED = [
    RBF(1.3, 2.0) + Constant(25.0),
    Constant(2.0) + Matern32(SCALES, 2.0),
    RBF(SCALES, 2.0) * Linear(0.5),
    (MultiScale(3.0) + Linear(0.2)) * Constant(0.5) + Matern52(2.0),
]
ALL = [leaf for leaf, _, _ in LEAVES] + COMPOSED


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(7, D)), rng.normal(size=(5, D))
    Z[0] = X[0]  # a distance of exactly 0
    return X, Z


@pytest.mark.parametrize(("kernel", "function", "parameters"), LEAVES)
def test_values_equal_the_formulas(kernel, function, parameters, data):
    X, Z = data
    expected = naive.matrix(function, X, Z, *parameters)
    np.testing.assert_allclose(kernel(X, Z), expected, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(kernel.diag(X), [function(x, x, *parameters) for x in X], rtol=1e-12)


def test_sums_and_products(data):
    X, Z = data
    a, b = RBF(1.3, 2.0), Linear(0.4)
    np.testing.assert_allclose((a + b)(X, Z), a(X, Z) + b(X, Z))
    np.testing.assert_allclose((a * b)(X, Z), a(X, Z) * b(X, Z))
    np.testing.assert_allclose((a + b).diag(X), a.diag(X) + b.diag(X))
    np.testing.assert_allclose((a * b).diag(X), a.diag(X) * b.diag(X))
    assert a + b == Sum(a, b)
    assert a * b == Product(a, b)


@pytest.mark.parametrize("kernel", ALL, ids=repr)
def test_gradients_meet_finite_differences(kernel, data):
    X, Z = data
    rng = np.random.default_rng(1)
    G, g = rng.normal(size=(7, 5)), rng.normal(size=7)
    expected = naive.finite_differences(
        lambda t: float((G * kernel.with_theta(t)(X, Z)).sum()), kernel.theta
    )
    np.testing.assert_allclose(kernel.vjp(X, Z, G), expected, rtol=1e-5, atol=1e-6)
    expected = naive.finite_differences(
        lambda t: float(g @ kernel.with_theta(t).diag(X)), kernel.theta
    )
    np.testing.assert_allclose(kernel.vjp_diag(X, g), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", ALL, ids=repr)
def test_theta_round_trip_and_pickle(kernel):
    again = kernel.with_theta(kernel.theta)
    np.testing.assert_allclose(again.theta, kernel.theta)
    assert type(again) is type(kernel)
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert hash(kernel) == hash(pickle.loads(pickle.dumps(kernel)))


@pytest.mark.parametrize("kernel", ALL, ids=repr)
def test_float32_stays_float32(kernel, data):
    X, Z = data
    X32 = X.astype(np.float32)
    K = kernel(X32, Z)
    assert K.dtype == np.float32
    assert kernel.diag(X32).dtype == np.float32
    # The root in Matern turns a rounding error e of the squared distance into sqrt(e).
    np.testing.assert_allclose(K, kernel(X, Z), rtol=2e-3)


@pytest.mark.parametrize("kernel", ALL, ids=repr)
def test_torch_equals_numpy(kernel, data):
    torch = pytest.importorskip("torch")
    X, Z = data
    G, g = np.cos(X @ Z.T), np.sin(X[:, 0])
    tX, tZ, tG, tg = (torch.asarray(a) for a in (X, Z, G, g))
    K = kernel(tX, tZ)
    assert isinstance(K, torch.Tensor)
    np.testing.assert_allclose(K.numpy(), kernel(X, Z), rtol=1e-7)
    np.testing.assert_allclose(kernel.diag(tX).numpy(), kernel.diag(X), rtol=1e-12)
    np.testing.assert_allclose(kernel.vjp(tX, tZ, tG), kernel.vjp(X, Z, G), rtol=1e-8)
    np.testing.assert_allclose(kernel.vjp_diag(tX, tg), kernel.vjp_diag(X, g), rtol=1e-10)


@pytest.mark.parametrize("kernel", ALL, ids=repr)
def test_blocks_change_nothing(kernel):
    """150 x 2100 covariances are made in blocks of 64 rows; 50 rows are one block."""
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(150, D)), rng.normal(size=(2100, D))
    G = np.cos(X @ Z.T)
    thirds = [slice(start, start + 50) for start in (0, 50, 100)]
    parts = [kernel(X[rows], Z) for rows in thirds]
    np.testing.assert_allclose(kernel(X, Z), np.concatenate(parts), rtol=1e-7)
    gradient = sum(kernel.vjp(X[rows], Z, G[rows]) for rows in thirds)
    np.testing.assert_allclose(kernel.vjp(X, Z, G), gradient, rtol=1e-8)


@pytest.mark.parametrize("kernel", ALL, ids=repr)
def test_out_is_written(kernel, data):
    torch = pytest.importorskip("torch")
    X, Z = data
    out = np.empty((7, 5))
    assert kernel(X, Z, out) is out
    np.testing.assert_array_equal(out, kernel(X, Z))
    out = torch.empty((7, 5), dtype=torch.float64)
    kernel(torch.asarray(X), torch.asarray(Z), out)
    np.testing.assert_allclose(out.numpy(), kernel(X, Z), rtol=1e-7)


def test_inputs_are_not_written(data):
    X, Z = data
    before = X.copy(), Z.copy()
    for kernel in ALL:
        kernel(X, Z)
        kernel.vjp(X, Z, np.ones((7, 5)))
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(Z, before[1])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(ALL))
def test_covariances_are_positive_semidefinite(seed, kernel):
    X = np.random.default_rng(seed).normal(size=(12, D))
    K = kernel(X, X)
    np.testing.assert_allclose(K, K.T, rtol=1e-6, atol=1e-9)
    # Distances by a matrix product are exact to ~1e-14, their root in Matern to ~1e-7.
    assert np.linalg.eigvalsh(K).min() > -1e-5 * np.trace(K)


def test_far_from_the_origin_and_apart(data):
    X, Z = data
    assert np.isfinite(RBF()(X * 1e150, Z * 1e150)).all()
    assert (MultiScale(1.0)(X, Z + 1e3) >= 0).all()


def test_median_sq_distance(data):
    X = np.repeat([[0.0, 0.0], [3.0, 4.0]], [50, 50], axis=0)
    assert median_sq_distance(X) == pytest.approx(25.0)  # equal rows do not count
    assert median_sq_distance(X + 1e6) == pytest.approx(25.0)
    assert median_sq_distance(np.ones((5, 2))) == 1.0
    assert median_sq_distance(np.ones((1, 2))) == 1.0
    X = np.random.default_rng(0).normal(size=(3000, 5))
    assert median_sq_distance(X, random_state=0) == median_sq_distance(X, random_state=0)
    assert median_sq_distance(X, random_state=0) == pytest.approx(9.3, rel=0.1)


@pytest.mark.parametrize("bad", [-1.0, 0.0, np.nan, np.inf, "wide", None, [1.0, -2.0], [], [[1.0]]])
def test_bad_length_scale(bad):
    with pytest.raises(ValueError, match=r"RBF\.length_scale must be (positive|a positive)"):
        RBF(length_scale=bad)


def test_other_bad_input(data):
    X, Z = data
    with pytest.raises(ValueError, match=r"MultiScale\.median_sq must be positive"):
        MultiScale(0.0)
    with pytest.raises(ValueError, match=r"Constant\.variance must be positive"):
        Constant([1.0, 2.0])
    with pytest.raises(ValueError, match="length_scale has 2 entries but the data has 4"):
        RBF([1.0, 2.0])(X, Z)
    with pytest.raises(ValueError, match="same features"):
        RBF()(X, Z[:, :2])
    with pytest.raises(ValueError, match="combines two kernels"):
        Sum(RBF(), 3.0)
    with pytest.raises(TypeError):
        RBF() + 3.0
    with pytest.raises(ValueError, match="theta needs 2 finite log-parameters"):
        RBF().with_theta([0.0])
    with pytest.raises(ValueError, match="ARD needs one length scale per feature"):
        ARD(2.0)
    assert ARD([1.0, 2.0]) == RBF([1.0, 2.0])


def test_skops_round_trip():
    from skops.io import dumps, get_untrusted_types, loads

    for kernel in ALL:
        blob = dumps(kernel)
        again = loads(blob, trusted=get_untrusted_types(data=blob))
        assert again == kernel
