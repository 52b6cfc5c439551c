"""Sums over long chunks of instances, and scaled rows, against plain products."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bagwise.core import linalg
from bagwise.models.scaling import FeatureScaling, measure


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("M", "n"), [(1, 1), (3, 40), (7, 5000), (300, 600)])
def test_a_pass_equals_its_products(rng, M, n, dtype):
    A = np.asfortranarray(rng.normal(size=(M, n)).astype(dtype))
    W = np.asfortranarray(np.tril(rng.normal(size=(M, M))).astype(dtype))
    m = rng.normal(size=M).astype(dtype)
    omega, rho = rng.random(n), rng.normal(size=n)
    exact = A.astype(np.float64)
    tight = {"rtol": 1e-10, "atol": 1e-10}
    tolerance = tight if dtype == np.float64 else {"rtol": 1e-4, "atol": 2e-3}
    mean, squares = linalg.first_two_moments(m, W, A)
    np.testing.assert_allclose(mean, exact.T @ m, **tolerance)
    np.testing.assert_allclose(squares, ((W.astype(np.float64) @ exact) ** 2).sum(0), **tolerance)
    sums = linalg.weighted_sums(A, omega, rho)
    expected = np.tril((exact * omega) @ exact.T)  # nobody reads the upper triangle
    np.testing.assert_allclose(np.tril(sums[0]), expected, **tolerance)
    np.testing.assert_allclose(sums[1], exact @ rho, **tolerance)


def test_threads_do_not_share_a_workspace(rng):
    A = [np.asfortranarray(rng.normal(size=(20, 3000))) for _ in range(8)]
    W, m = np.asfortranarray(np.tril(rng.normal(size=(20, 20)))), rng.normal(size=20)
    alone = [linalg.first_two_moments(m, W, a)[1] for a in A]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda a: linalg.first_two_moments(m, W, a)[1], A))
    np.testing.assert_array_equal(alone, together)


@pytest.mark.parametrize("M", [3, 40])
def test_what_instances_share_costs_no_digits_in_float32(M, way):
    """Rows far from 0 that vary little: what they vary by keeps its digits."""
    rng = np.random.default_rng(M)
    shared = 1 + rng.random((M, 1))
    A = np.asfortranarray((shared + 1e-3 * rng.normal(size=(M, 5000))).astype(np.float32))
    omega, rho = rng.random(5000), rng.normal(size=5000)
    gram, linear = way(A, omega, rho)
    gram = np.tril(gram) + np.tril(gram, -1).T
    exact = A.astype(np.float64)
    # Beside what is shared, which float32 holds to seven digits.
    beside = np.eye(M) - shared @ np.linalg.pinv(shared)
    for found, expected, scale in (
        (beside @ gram @ beside, beside @ (exact * omega) @ exact.T @ beside, 5000 * 1e-6),
        (beside @ linear, beside @ exact @ rho, 5000**0.5 * 1e-3),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * scale)


def _by_torch(A, omega, rho):
    import torch

    A, omega, rho = (torch.as_tensor(x) for x in (np.ascontiguousarray(A), omega, rho))
    return [x.numpy() for x in linalg.weighted_sums(A, omega, rho)]


@pytest.fixture(params=["host", "torch"])
def way(request):
    """Statistics by BLAS, or by torch."""
    if request.param == "torch":
        pytest.importorskip("torch")
        return _by_torch
    return linalg.weighted_sums


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scaled_and_measured_rows_are_those_of_plain_numpy(rng, dtype):
    n = 70_000  # more than one run of rows
    X = (3 * rng.normal(size=(n, 5)) + 1e3).astype(dtype)
    rows = X.astype(np.float64)
    _, mean, squares = measure(X)
    np.testing.assert_allclose(mean, rows.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(squares, np.square(rows - mean).sum(axis=0), rtol=1e-12)
    out = np.full((n + 10, 5), np.nan)
    found = FeatureScaling(mean, squares)(X, out)
    np.testing.assert_array_equal(found, (rows - mean) / squares)
    assert found.base is out
    assert np.isnan(out[n:]).all()


def test_float32_sums_are_short(rng):
    """A long chunk is summed in pieces of 8,192 columns, each added to float64."""
    A = np.asfortranarray(rng.normal(size=(4, 20_000)).astype(np.float32))
    omega, rho = rng.random(20_000), rng.normal(size=20_000)
    whole, pieces = linalg.weighted_sums(A, omega, rho), [0.0, 0.0]
    for start in range(0, 20_000, 8192):
        own = slice(start, start + 8192)
        found = linalg.weighted_sums(A[:, own], omega[own], rho[own])
        pieces = [a + b for a, b in zip(pieces, found, strict=True)]
    for a, b in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_float32_sum_of_vectors_is_carried_over_few_columns(rng):
    """Terms of one sign: the longer their sum, the more of the next one is rounded off."""
    A = np.asfortranarray(rng.normal(size=(30, 8192)).astype(np.float32))
    linear = [linalg.weighted_sums(A, np.ones(8192), np.sign(a))[1][i] for i, a in enumerate(A)]
    off = np.array(linear) / np.abs(A).sum(axis=1, dtype=np.float64) - 1
    assert np.abs(off).mean() < 2.5e-8
