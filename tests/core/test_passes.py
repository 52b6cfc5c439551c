"""Compiled passes over long chunks against plain products."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bagwise.core import linalg, passes


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
    mean, squares = passes.moments(m, W, A)
    np.testing.assert_allclose(mean, exact.T @ m, **tolerance)
    np.testing.assert_allclose(squares, ((W.astype(np.float64) @ exact) ** 2).sum(0), **tolerance)
    start = np.asfortranarray(rng.normal(size=(M, M))), rng.normal(size=M)
    sums = passes.add_statistics(*(x.copy(order="F") for x in start), A, omega, rho)
    expected = np.tril(start[0] + (exact * omega) @ exact.T)
    np.testing.assert_allclose(np.tril(sums[0]), expected, **tolerance)
    np.testing.assert_allclose(sums[1], start[1] + exact @ rho, **tolerance)
    # The upper triangle is nobody's.
    np.testing.assert_array_equal(np.triu(sums[0], 1), np.triu(start[0], 1))


def test_long_chunks_take_the_compiled_way(rng, monkeypatch):
    """Both ways to the same numbers; columns of a larger array are read where they lie."""
    whole = np.asfortranarray(rng.normal(size=(5, linalg._COMPILED_FROM + 50)))
    A = whole[:, 20:-10]
    W, m = np.asfortranarray(np.tril(rng.normal(size=(5, 5)))), rng.normal(size=5)
    omega, rho = rng.random(A.shape[1]), rng.normal(size=A.shape[1])

    def both() -> list[np.ndarray]:
        sums = linalg.add_statistics(*linalg.no_statistics(A), A, omega, rho)
        return [*linalg.first_two_moments(m, W, A), *sums]

    calls = []
    for name in ("moments", "add_statistics"):
        real = getattr(passes, name)
        monkeypatch.setattr(passes, name, lambda *a, real=real: calls.append(1) or real(*a))
    compiled = both()
    assert len(calls) == 2
    monkeypatch.setattr(linalg, "_COMPILED_FROM", A.shape[1] + 1)
    for a, b in zip(compiled, both(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)
    assert len(calls) == 2


def test_threads_do_not_share_a_workspace(rng):
    A = [np.asfortranarray(rng.normal(size=(20, 3000))) for _ in range(8)]
    W, m = np.asfortranarray(np.tril(rng.normal(size=(20, 20)))), rng.normal(size=20)
    alone = [passes.moments(m, W, a)[1] for a in A]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda a: passes.moments(m, W, a)[1], A))
    np.testing.assert_array_equal(alone, together)
