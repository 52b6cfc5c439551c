"""Fused passes against the plain ones: on a GPU, or else by Triton's interpreter."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton")

from bagwise.core import fused, linalg  # noqa: E402
from bagwise.core.gaussians import hermite, sigmoid_moments  # noqa: E402
from bagwise.core.kernels import RBF  # noqa: E402
from bagwise.models.scaling import FeatureScaling  # noqa: E402

# The interpreter goes through a tile number by number: small ones are as good there.
MOMENTS = {"tile": None if DEVICE == "cuda" else (32, 16, 128)}
STATISTICS = {"tile": None if DEVICE == "cuda" else (32, 64), "pieces": 3}


@pytest.fixture(params=[(20, 300), (70, 1001), (130, 500)])
def problem(request):
    M, n = request.param
    generator = torch.Generator().manual_seed(M)
    A = torch.randn(M, n, generator=generator) / math.sqrt(M)
    W = torch.tril(torch.randn(M, M, generator=generator))
    m = torch.randn(M, generator=generator)
    omega = torch.rand(n, generator=generator) / 4
    rho = torch.randn(n, generator=generator)
    return tuple(x.to(DEVICE) for x in (A, W, m, omega, rho))


@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_moments(problem, size):
    A, W, m, *_ = problem
    mean, square = fused.moments(m, size * W, A, **MOMENTS)
    exact = (size * W.double() @ A.double()).square().sum(0)
    torch.testing.assert_close(mean.double(), m.double() @ A.double(), rtol=0, atol=1e-5)
    # Half numbers keep three digits, however small W is.
    torch.testing.assert_close(square.double(), exact, rtol=2e-3, atol=0)


def test_statistics(problem):
    A, _, _, omega, rho = problem
    gram, linear = fused.statistics(A, omega, rho, **STATISTICS)
    exact = (A.double() * omega) @ A.double().T
    torch.testing.assert_close(
        torch.tril(gram), torch.tril(exact), rtol=0, atol=1e-6 * float(exact.abs().max())
    )
    torch.testing.assert_close(linear, A.double() @ rho.double(), rtol=0, atol=1e-5)


def test_sums_of_many_are_not_cut_off():
    """Two rows that hardly differ: the difference of their sums survives."""
    rng = np.random.default_rng(0)
    row = rng.normal(size=40_000)
    A = torch.as_tensor(np.stack([row, row + 1e-2 * rng.normal(size=40_000)]), dtype=torch.float32)
    ones = torch.ones(40_000, device=DEVICE)
    gram, _ = fused.statistics(A.to(DEVICE), ones, ones, **STATISTICS)
    exact = A.double() @ A.double().T
    direction = torch.tensor([1.0, -1.0], dtype=torch.float64)

    def along(G):
        G = torch.tril(G.cpu())
        return float(direction @ (G + torch.tril(G, -1).T) @ direction)

    assert along(gram) == pytest.approx(along(exact), rel=0.01)


@pytest.mark.parametrize("M", [3, 32])
def test_what_instances_share_costs_no_digits(M):
    """Rows far from 0 that vary little: what they vary by keeps its digits."""
    rng = np.random.default_rng(M)
    shared = 1 + rng.random((M, 1))
    A = torch.as_tensor(shared + 1e-3 * rng.normal(size=(M, 5000)), dtype=torch.float32)
    omega = torch.as_tensor(rng.random(5000), dtype=torch.float32)
    gram, _ = fused.statistics(A.to(DEVICE), omega.to(DEVICE), omega.to(DEVICE), **STATISTICS)
    exact = (A.double() * omega.double()) @ A.double().T
    # Beside what is shared, in which 1e-9 would be lost unseen.
    beside = torch.eye(M, dtype=torch.float64) - torch.as_tensor(shared @ np.linalg.pinv(shared))
    gram = torch.tril(gram.cpu())
    gram = gram + torch.tril(gram, -1).T
    torch.testing.assert_close(
        beside @ gram @ beside, beside @ exact @ beside, rtol=0, atol=1e-5 * 5000 * 1e-6
    )


@pytest.mark.parametrize("M", [3, 300])
def test_gaussian(M):
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(33, 4)), rng.normal(size=(M, 4))
    x, z = (torch.as_tensor(a, device=DEVICE) for a in (X, Z))
    S = x @ (-2 * z).T
    fused.gaussian(S, (x * x).sum(1), (z * z).sum(1), 0.1, 1.7)
    np.testing.assert_allclose(S.cpu().numpy(), RBF(1.7, 0.1)(X, Z), rtol=1e-12)


@pytest.mark.parametrize("length_scale", [1.7, (1.0, 2.0, 0.5, 3.0)])
def test_the_kernel_that_uses_it(length_scale, monkeypatch):
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(33, 4)), rng.normal(size=(5, 4))
    kernel = RBF(length_scale, 0.1)
    monkeypatch.setattr(linalg, "has_fused", lambda A: True)
    K = kernel(*(torch.as_tensor(a, device=DEVICE) for a in (X, Z)))
    np.testing.assert_allclose(K.cpu().numpy(), kernel(X, Z), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
@pytest.mark.parametrize("D", [3, 300])
def test_scaled_rows(D, dtype, monkeypatch):
    rng = np.random.default_rng(0)
    X = (10 * rng.normal(size=(2 * D, 33))).astype(dtype).T[:, ::2]  # neither order, and a step
    center, width = rng.normal(size=D), rng.uniform(1, 2, size=D)
    here = FeatureScaling(*(torch.as_tensor(a, device=DEVICE) for a in (center, width)))
    monkeypatch.setattr(linalg, "has_fused", lambda A: True)
    found = here(torch.as_tensor(X.copy(), device=DEVICE))
    np.testing.assert_array_equal(found.cpu().numpy(), FeatureScaling(center, width)(X))
    np.testing.assert_array_equal(here(X).cpu().numpy(), FeatureScaling(center, width)(X))


def test_sigmoid_sums():
    rng = np.random.default_rng(0)
    mean = np.concatenate([rng.normal(size=300) * 3, [-800.0, 800.0]])
    var = np.concatenate([rng.uniform(0, 9, size=300), [0.0, 0.0]])
    here = [torch.as_tensor(a, device=DEVICE) for a in (mean, var, *hermite(32))]
    expected = sigmoid_moments(mean, var, n_nodes=32)
    for found, wanted in zip(fused.sigmoid_sums(*here).cpu().numpy(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)
    assert fused.sigmoid_sums(here[0][:0], here[1][:0], *here[2:]).shape == (3, 0)


def test_says_where_nothing_can_be_compiled(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(torch, "ones", torch.ones if DEVICE == "cuda" else fails)
    monkeypatch.setattr(fused, "sigmoid_sums", fails)
    with pytest.warns(UserWarning, match="no C compiler.*plain passes"):
        assert not fused.works()
