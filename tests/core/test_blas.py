"""BLAS through ctypes: the same numbers as NumPy, refusal of wrong layouts, and a free lock."""

import threading

import numpy as np
import pytest

from bagwise.core import blas


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_same_as_numpy(dtype, n):
    rng = np.random.default_rng(0)
    W = np.tril(rng.normal(size=(3, 3)) + 3 * np.eye(3)).astype(dtype)
    wide = np.asfortranarray(rng.normal(size=(3, n + 4)).astype(dtype))
    A = wide[:, 2 : n + 2]  # a view of some columns
    tol = 1e-12 if dtype == "float64" else 1e-4
    product = blas.multiply_lower(W, A.copy(order="F"))
    np.testing.assert_allclose(product, W @ A, rtol=tol, atol=tol)
    solved = blas.solve_lower(W, A.copy(order="F"))
    np.testing.assert_allclose(W @ solved, A, rtol=tol, atol=tol)
    total = np.asfortranarray(np.ones((3, 3), dtype))
    gram = blas.add_gram(total, A)
    assert gram is total
    np.testing.assert_allclose(np.tril(gram), np.tril(1 + A @ A.T), rtol=tol, atol=tol)
    assert (np.triu(gram, 1) == np.triu(np.ones((3, 3)), 1)).all()


def test_works_in_place_on_columns_of_a_larger_matrix():
    rng = np.random.default_rng(1)
    wide = np.asfortranarray(rng.normal(size=(4, 9)))
    before, W = wide.copy(), np.tril(rng.normal(size=(4, 4)))
    blas.multiply_lower(W, wide[:, 3:7])
    np.testing.assert_allclose(wide[:, 3:7], W @ before[:, 3:7], atol=1e-12)
    np.testing.assert_array_equal(wide[:, [0, 1, 2, 7, 8]], before[:, [0, 1, 2, 7, 8]])


@pytest.mark.parametrize(
    ("W", "B", "message"),
    [
        (np.eye(2), np.ones((2, 3)), "Fortran order"),
        (np.eye(2), np.ones((2, 3), dtype=int, order="F"), "Fortran order"),
        (np.eye(3), np.ones((2, 3), order="F"), "match"),
    ],
)
def test_wrong_layout_is_refused(W, B, message):
    with pytest.raises(ValueError, match=message):
        blas.multiply_lower(W, B)


def test_another_thread_runs_meanwhile():
    A = np.asfortranarray(np.random.default_rng(0).normal(size=(600, 4000)))
    total = np.zeros((600, 600), order="F")
    began, ended = threading.Event(), threading.Event()

    def work():
        began.set()
        for _ in range(3):
            blas.add_gram(total, A)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    began.wait()
    rounds = 0
    while not ended.is_set():
        rounds += 1
    thread.join()
    # Under a held lock the loop would turn at most a few times between two calls.
    assert rounds > 10_000
