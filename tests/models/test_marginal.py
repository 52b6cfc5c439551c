"""Posterior under the marginal likelihood: derivatives, additivity, and the exact posterior."""

import numpy as np
import pytest

from bagwise.models.drivers import total
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.likelihoods import (
    ExactOr,
    Inherited,
    NoisyMax,
    SoftWitness,
)
from bagwise.models.variational.marginal import (
    MarginalStep,
    bag_curvature,
    label_posterior,
    marginal_statistics,
    refine,
)
from bagwise.models.variational.parts import Part
from bagwise.models.variational.updates import (
    InducingPosterior,
    fit_whitened,
    make_blocks,
    prior,
)

gibbs = pytest.importorskip("tests.reference.gibbs", reason="needs the polyagamma package")

LIKELIHOODS = [ExactOr(20.0), NoisyMax(1e12), SoftWitness(), Inherited()]
LABELS = BagLabels(
    np.array([0, 3, 5, 8, 10]), np.array([1, 0, 1, 1]), np.array([-1] * 5 + [-1, 1, -1, 0, -1])
)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_derivatives_meet_finite_differences(likelihood):
    f = np.random.default_rng(0).normal(size=10)
    curvature = bag_curvature(f[:, None], LABELS, likelihood)
    dense = np.diag(curvature.diagonal)
    for b in range(4):
        rows = slice(*LABELS.offsets[b : b + 2])
        u = curvature.direction[rows]
        dense[rows, rows] += curvature.weight[b] * np.outer(u, u)
    e = 1e-4 * np.eye(10)

    def value(x):
        return gibbs.log_likelihood(x, LABELS, likelihood)

    gradient = [(value(f + d) - value(f - d)) / 2e-4 for d in e]
    hessian = [
        [
            (value(f + d + c) - value(f + d - c) - value(f - d + c) + value(f - d - c)) / 4e-8
            for c in e
        ]
        for d in e
    ]
    np.testing.assert_allclose(curvature.gradient, gradient, atol=1e-6)
    np.testing.assert_allclose(dense, -np.array(hessian), atol=1e-5)


def test_dials_of_the_witness_scale_its_terms():
    f = np.random.default_rng(0).normal(size=(10, 3))
    plain = bag_curvature(f, LABELS, SoftWitness())
    strong = bag_curvature(f, LABELS, SoftWitness(strength=1.0))
    shared = bag_curvature(f, LABELS, SoftWitness(redundancy=1.0))
    assert strong.evidence[0] == pytest.approx(3 * plain.evidence[0])
    np.testing.assert_allclose(strong.gradient[:3], 3 * plain.gradient[:3])
    assert shared.evidence[1] == pytest.approx(plain.evidence[1] / 2)
    np.testing.assert_allclose(shared.diagonal[3:5], plain.diagonal[3:5] / 2)


def test_average_over_functions_keeps_the_diagonal():
    """One direction per bag stands for all functions; the diagonal of the Hessian stays exact."""
    f = np.random.default_rng(0).normal(size=(10, 5))
    each = [bag_curvature(f[:, [s]], LABELS, ExactOr(20.0)) for s in range(5)]
    together = bag_curvature(f, LABELS, ExactOr(20.0))

    def diagonal(c):
        return c.diagonal + np.repeat(c.weight, np.diff(LABELS.offsets)) * c.direction**2

    np.testing.assert_allclose(diagonal(together), np.mean([diagonal(c) for c in each], 0))


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(4)
    return gibbs.draw_problem(rng, 4.0, rng.integers(2, 12, size=20), n_inducing=12)


def some_posterior(M):
    rng = np.random.default_rng(0)
    return InducingPosterior(
        rng.normal(size=M), np.tril(0.1 * rng.normal(size=(M, M))) + 0.5 * np.eye(M)
    )


def test_statistics_are_additive(drawn):
    q = some_posterior(12)
    (whole,) = make_blocks(drawn.A, drawn.r, drawn.labels, chunk_size=10_000)
    expected = marginal_statistics(whole, q, ExactOr())
    parts = make_blocks(drawn.A, drawn.r, drawn.labels, chunk_size=2)
    assert len(parts) > 3 and max(len(b.A) for b in parts) > 1
    _, found = MarginalStep(ExactOr(), q)(Part(parts, ()))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_torch_equals_numpy(drawn):
    torch = pytest.importorskip("torch", reason="needs torch")
    q = some_posterior(12)
    (block,) = make_blocks(drawn.A, drawn.r, drawn.labels, chunk_size=10_000)
    labels = block.labels.map(lambda x: torch.as_tensor(np.array(x)))
    tensors = Block((torch.as_tensor(np.array(block.A[0])),), torch.as_tensor(block.r), labels)
    for likelihood in (ExactOr(), SoftWitness(), Inherited()):
        expected = marginal_statistics(block, q, likelihood)
        found = marginal_statistics(tensors, q, likelihood)
        np.testing.assert_allclose(found.precision.numpy(), expected.precision, atol=1e-9)
        np.testing.assert_allclose(found.linear.numpy(), expected.linear, atol=1e-9)
        assert found.bound == pytest.approx(expected.bound)


def refined(problem, likelihood, **options):
    labels = problem.labels
    fit = fit_whitened(
        problem.A, problem.r, *labels[:3], labels.of_bag / 2, likelihood, max_iter=300, tol=1e-5
    )
    blocks = make_blocks(problem.A, problem.r, labels)

    def statistics(q):
        return total([marginal_statistics(block, q, likelihood) for block in blocks])

    return fit, refine(statistics, fit.posterior, **options), blocks


def latent(problem, q):
    return problem.A.T @ q.m, np.sqrt(np.sum((q.W @ problem.A) ** 2, 0) + problem.r)


def test_refined_posterior_is_close_to_the_exact_one():
    """The full comparison is experiments/posterior_coverage.py; here one problem for each v."""
    for variance in (1.0, 4.0, 16.0):
        rng = np.random.default_rng(7)
        problem = gibbs.draw_problem(rng, variance, rng.integers(2, 25, size=20), n_inducing=15)
        fit, better, blocks = refined(problem, ExactOr())
        draws = gibbs.sample(problem.A, problem.r, problem.labels, ExactOr(), rng, 500, 30, 3)
        mean, sd = latent(problem, better.posterior)
        exact_sd = draws.f.std(0)
        assert better.converged and np.all(np.diff(better.bound_history) > -0.01)
        assert 0.85 < np.mean(sd / exact_sd) < 1.2
        assert np.corrcoef(sd, exact_sd)[0, 1] > 0.8
        assert np.mean(latent(problem, fit.posterior)[1] / exact_sd) < 0.6  # what was wrong
        pi = np.concatenate([label_posterior(b, better.posterior, ExactOr()) for b in blocks])
        assert np.mean(np.abs(pi - draws.y)) < 0.04  # 500 draws err by 0.015
        assert np.mean(np.abs(mean - draws.f.mean(0)) / exact_sd) < 0.25


def test_bags_of_one_give_gaussian_process_classification():
    """Every label known: no label is hidden, so that S is nearly that of the updates."""
    rng = np.random.default_rng(3)
    problem = gibbs.draw_problem(rng, 1.0, np.ones(60, dtype=int), n_inducing=10, H=1e12)
    fit, better, _ = refined(problem, ExactOr(1e12))
    before, after = (latent(problem, q)[1] for q in (fit.posterior, better.posterior))
    np.testing.assert_allclose(after, before, rtol=0.08)


def test_mean_stays_where_asked(drawn):
    fit, better, _ = refined(drawn, ExactOr(), move_mean=False)
    np.testing.assert_array_equal(better.posterior.m, fit.posterior.m)
    assert np.trace(better.posterior.S) > 1.5 * np.trace(fit.posterior.S)


def test_no_direction_is_wider_than_four_times_its_prior():
    """A bag sure to be negative but labelled positive would widen q without end."""
    labels = BagLabels(np.array([0, 2]), np.array([1]), np.full(2, -1))
    (block,) = make_blocks(6.0 * np.eye(2), np.zeros(2), labels)
    q = InducingPosterior(np.array([-0.5, 0.5]), 0.05 * np.eye(2))
    steps = refine(lambda q: marginal_statistics(block, q, ExactOr()), q, max_passes=40, tol=0.0)
    assert np.linalg.eigvalsh(steps.posterior.S).max() <= 4 + 1e-9


def test_a_step_too_far_is_taken_back():
    """The bound of an objective that punishes every move: the start is kept."""
    q, asked = prior(2), []

    def statistics(at):
        asked.append(at)
        worse = -1000.0 * float(np.abs(at.m).sum())
        return marginal_statistics(block, q, ExactOr())._replace(bound=worse)

    labels = BagLabels(np.array([0, 2]), np.array([1]), np.full(2, -1))
    (block,) = make_blocks(np.eye(2), np.zeros(2), labels)
    outcome = refine(statistics, q, max_passes=5)
    np.testing.assert_array_equal(outcome.posterior.m, q.m)
    lengths = [np.abs(at.m).sum() for at in asked[1:]]
    np.testing.assert_allclose(np.array(lengths[1:]) / lengths[:-1], 0.5, atol=0.1)


def test_other_likelihoods_are_refused():
    with pytest.raises(ValueError, match="cannot be summed out"):
        bag_curvature(np.zeros((1, 1)), LABELS, object())
