"""The evidence as a function of the kernel: its gradient, and what learning makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bagwise.core.kernels import ARD, RBF, Constant, Linear, Matern32, Matern52
from bagwise.models.drivers import Serial, Threads
from bagwise.models.scaling import learn_scaling
from bagwise.models.variational import evidence
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.evidence import (
    RowPiece,
    WholeBags,
    kernel_gradient,
    learn,
    whole_bags,
)
from bagwise.models.variational.inference import (
    Settings,
    block_sums,
    directions,
    fit,
    latent_draws,
    make_draws,
    posteriors,
    prior,
)
from bagwise.models.variational.likelihoods import Or, SoftMax
from tests.reference.kernels import finite_differences

KERNELS = {
    "rbf": RBF(1.3, 2.0),
    "ard": ARD([0.8, 1.5, 3.0], 2.0),
    "matern32": Matern32(1.3, 2.0),
    "matern52": Matern52(1.3, 2.0) + Constant(0.7),
    "product": RBF(2.0, 1.5) * Linear(0.4) + Constant(4.0),
}


def make_training(seed=0, n_bags=8, n_tasks=1, M=6, D=3):
    """Bags whose first instance says the label, and random labels for further tasks."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 6, n_bags))])
    X = rng.normal(size=(offsets[-1], D))
    y = rng.integers(2, size=(n_bags, n_tasks))
    y[:2] = [[0], [1]]
    X[offsets[:-1], 0] += 3 * y[:, 0]
    labels = BagLabels(offsets, y).dealt()
    Z = X[rng.choice(len(X), M, replace=False)]
    return whole_bags(X, np.arange(len(X)), labels, Z, learn_scaling(X, None), Serial())


def some_posteriors(rng, T, M):
    R = rng.normal(size=(T, M, M))
    return posteriors(rng.normal(size=(T, M)), np.eye(M) + 0.5 * R @ R.transpose(0, 2, 1))


def gradient(data: WholeBags, kernel, *rest):
    return kernel_gradient(data, data.project(kernel), kernel, *rest)


def only_piece(data: WholeBags) -> RowPiece:
    (piece,) = data.pieces
    return piece


def expected_log(data: WholeBags, kernel, likelihood, q, f0, draws):
    """The part of the summed bounds that the kernel changes."""
    value = 0.0
    for part in data.project(kernel):
        for block in part.blocks:
            F = latent_draws(block, directions(q, draws.U), f0, draws.E)
            value += float(block_sums(block, F, likelihood).value.sum())
    return value


@pytest.mark.parametrize("likelihood", [Or(0.5), SoftMax(3.0, 4.0, 0.1)], ids=repr)
@pytest.mark.parametrize("name", KERNELS)
def test_gradient_meets_central_differences(name, likelihood):
    rng, kernel = np.random.default_rng(1), KERNELS[name]
    data = make_training(n_tasks=3)
    q, draws, f0 = some_posteriors(rng, 3, 6), make_draws(6, 6, 0), np.array([0.3, -1.0, 0.0])
    P = len(kernel.theta)

    def value(x):
        return expected_log(data, kernel.with_theta(x[:P]), likelihood, q, x[P:], draws)

    expected = finite_differences(value, np.concatenate([kernel.theta, f0]), 1e-5)
    found = gradient(data, kernel, likelihood, q, f0, draws)
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6)


def test_bags_that_weigh_nothing_have_no_gradient():
    rng, data = np.random.default_rng(2), make_training(n_bags=10)
    X, labels = only_piece(data)
    weight = np.where(np.arange(10) < 6, 0.0, 1.0)[:, None]
    q, draws, f0 = some_posteriors(rng, 1, 6), make_draws(6, 6, 0), np.zeros(1)
    silent = replace(data, pieces=(RowPiece(X, labels._replace(weight=weight)),))
    rows = np.repeat(weight[:, 0] > 0, np.diff(labels.offsets))
    rest = replace(data, pieces=(RowPiece(X[rows], labels.take(np.arange(6, 10))),))
    a, b = (gradient(d, KERNELS["ard"], Or(), q, f0, draws) for d in (silent, rest))
    np.testing.assert_allclose(a, b, atol=1e-10)


def test_projections_go_by_the_arranged_order():
    data = make_training()
    X, labels = only_piece(data)
    assert (np.diff(np.diff(labels.offsets)) >= 0).all()
    ((block,),) = (part.blocks for part in data.project(KERNELS["rbf"]))
    K = KERNELS["rbf"](data.Z, X)
    np.testing.assert_allclose((block.A**2).sum(0) + block.r, KERNELS["rbf"].diag(X), atol=1e-8)
    np.testing.assert_allclose(
        block.A.T @ block.A, K.T @ np.linalg.solve(KERNELS["rbf"](data.Z, data.Z), K), atol=1e-4
    )


@pytest.mark.parametrize("driver", [Serial(), Threads(2)], ids=lambda d: type(d).__name__)
def test_pieces_add_up_to_the_whole(driver, monkeypatch):
    """Cut into pieces, in threads: the fit and the gradient are those of one piece."""
    whole = make_training(4, n_bags=30, n_tasks=2)
    monkeypatch.setattr(evidence, "_PIECE", 12)
    cut = replace(make_training(4, n_bags=30, n_tasks=2), driver=driver)
    assert len(whole.pieces) == 1
    assert len(cut.pieces) > 4
    kernel, likelihood, f0 = KERNELS["ard"], SoftMax(3.0, 4.0), np.array([0.3, -1.0])
    rng, draws = np.random.default_rng(5), make_draws(6, 8, 0)
    q, options = some_posteriors(rng, 2, 6), Settings(n_draws=8, max_iter=20)
    a, b = (gradient(d, kernel, likelihood, q, f0, draws) for d in (whole, cut))
    np.testing.assert_allclose(a, b, rtol=1e-9)
    fits = [fitted(d, kernel, likelihood, prior(2, 6), f0, options) for d in (whole, cut)]
    np.testing.assert_allclose(fits[0].q.m, fits[1].q.m, atol=1e-8)
    np.testing.assert_allclose(fits[0].bound, fits[1].bound, atol=1e-8)


def fitted(data, kernel, likelihood, start, f0, options):
    parts = data.project(kernel)
    return fit(parts, data.n_bags, likelihood, start, f0, data.driver, options)


def test_tensors_have_the_gradient_of_arrays():
    torch = pytest.importorskip("torch")
    host = make_training(6, n_bags=20, n_tasks=2)
    rows = [torch.as_tensor(piece.X) for piece in host.pieces]
    pieces = (
        RowPiece(X, piece.labels.beside(X)) for X, piece in zip(rows, host.pieces, strict=True)
    )
    there = replace(host, pieces=tuple(pieces), device="cpu")
    kernel, likelihood, f0 = KERNELS["product"], SoftMax(3.0, 4.0), np.array([0.3, -1.0])
    q, draws = some_posteriors(np.random.default_rng(7), 2, 6), make_draws(6, 8, 0)
    assert isinstance(there.project(kernel)[0].blocks[0].A, torch.Tensor)
    a, b = (gradient(d, kernel, likelihood, q, f0, draws) for d in (host, there))
    np.testing.assert_allclose(a, b, rtol=1e-8)
    options = Settings(n_draws=8, max_iter=20)
    a, b = (fitted(d, kernel, likelihood, prior(2, 6), f0, options) for d in (host, there))
    np.testing.assert_allclose(a.q.m, b.q.m, atol=1e-8)


@pytest.mark.parametrize("likelihood", [Or(), SoftMax(), SoftMax(3.0, 4.0)], ids=repr)
@pytest.mark.parametrize("seed", range(2))
def test_learning_never_lowers_the_evidence(seed, likelihood):
    data = make_training(seed, n_bags=15, n_tasks=2)
    options, f0 = Settings(n_draws=16, max_iter=60, tol=1e-5), np.zeros(2)
    kernel = RBF(1.0, 4.0) + Constant(1.0)
    before = fitted(data, kernel, likelihood, prior(2, 6), f0, options)
    found = learn(data, kernel, likelihood, prior(2, 6), f0, options)
    assert found.fits.bound.sum() >= before.bound.sum() - 1e-6
    # The same from the prior: what it says of itself is not owed to where it came from.
    again = fitted(data, found.kernel, likelihood, prior(2, 6), found.f0, options)
    assert again.bound.sum() == pytest.approx(found.fits.bound.sum(), abs=0.05)
    assert len(found.f0) == 2


def test_learning_ends_where_no_neighbour_is_better():
    """Evidence less the prior's penalty, every posterior fitted anew."""
    data, likelihood = make_training(3, n_bags=25), SoftMax(3.0, 4.0)
    options, kernel = Settings(n_draws=16, max_iter=100, tol=1e-8), RBF(1.0, 4.0)
    found = learn(data, kernel, likelihood, prior(1, 6), np.zeros(1), options)

    def objective(x):
        trial, away = kernel.with_theta(x[:-1]), x[:-1] - kernel.theta
        bound = fitted(data, trial, likelihood, prior(1, 6), x[-1:], options).bound[0]
        return bound - evidence._PRIOR * away @ away / 2

    end = np.concatenate([found.kernel.theta, found.f0])
    neighbours = [objective(end + 0.1 * d) for d in np.vstack([np.eye(3), -np.eye(3)])]
    assert max(neighbours) < objective(end) + 0.01
    assert objective(end) > objective(np.append(kernel.theta, 0.0)) + 1


def test_a_strong_prior_keeps_the_kernel(monkeypatch):
    data = make_training(n_bags=12)
    options, kernel = Settings(n_draws=8, max_iter=30), RBF(1.0, 4.0)
    moved = []
    for weight in (0.1, 4.0, 1e4):
        monkeypatch.setattr(evidence, "_PRIOR", weight)
        found = learn(data, kernel, Or(), prior(1, 6), np.zeros(1), options)
        moved.append(np.abs(found.kernel.theta - kernel.theta).max())
    assert moved[0] > moved[1] > moved[2]
    assert moved[2] < 1e-3
