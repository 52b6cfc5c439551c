"""Fused kernels against plain products. They need a GPU, or Triton's interpreter on the host."""

import os

import numpy as np
import pytest

from bagwise.core import fused, linalg

torch = pytest.importorskip("torch")
needs_triton = pytest.mark.skipif(
    not fused.available() or not (torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ),
    reason="Triton needs a GPU, or TRITON_INTERPRET=1",
)


def tensors(M, n):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    A = torch.randn(M, n + 3, device=device)[:, :n]  # rows further apart than they are long
    m, W = torch.randn(M, device=device), torch.randn(M, M, device=device).tril()
    return A, m, W, torch.rand(n, device=device), torch.randn(n, device=device)


@needs_triton
@pytest.mark.parametrize(("M", "n"), [(200, 700), (37, 500), (128, 129), (260, 70), (1, 1)])
def test_fused_products_equal_plain_ones(M, n):
    A, m, W, omega, rho = tensors(M, n)
    a, w = A.double(), W.double()
    mean, square = fused.moments(m, W, A)
    np.testing.assert_allclose(mean.cpu(), (a.T @ m.double()).cpu(), atol=1e-4)
    expected = ((w @ a) ** 2).sum(0).cpu()
    np.testing.assert_allclose(square.cpu(), expected, rtol=5e-3, atol=1e-3)
    gram, linear = fused.statistics(A, omega, rho)
    expected = ((a * omega) @ a.T).tril().cpu()
    scale = float(abs(expected).max())
    np.testing.assert_allclose(gram.tril().cpu(), expected, atol=2e-3 * scale)
    np.testing.assert_allclose(linear.cpu(), (a @ rho.double()).cpu(), atol=1e-3)


def test_only_tf32_on_a_gpu_is_fused():
    assert not linalg._is_fused(torch.zeros(2, 3))
    if torch.cuda.is_available():
        assert not linalg._is_fused(torch.zeros(2, 3, device="cuda", dtype=torch.float64))
