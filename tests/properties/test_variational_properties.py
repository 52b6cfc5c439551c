"""Whatever the bags: bounds rise, probabilities stay probabilities, order does not matter."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bagwise.models.drivers import cut
from bagwise.models.variational import LargeMargin, NoisyMax, Sech
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.paper_likelihoods import LatentMoments, none_of_others
from tests.reference.paper import fit_whitened

sizes = st.lists(st.integers(1, 9), min_size=2, max_size=12)
odds = st.sampled_from([1.5, 100.0, 1e12])
likelihoods = st.sampled_from(
    [NoisyMax(1e6, "exact", "sequential"), NoisyMax(), NoisyMax(schedule="paper"), LargeMargin()]
)


def problem(bag_sizes, seed):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(bag_sizes)])
    n = int(offsets[-1])
    y = rng.integers(0, 2, len(bag_sizes))
    known = np.full(n, -1)
    # Known labels that never contradict the bag: the first instance tells its bag's label.
    told = rng.uniform(size=len(y)) < 0.3
    known[offsets[:-1][told]] = y[told]
    scale = 10 ** rng.uniform(-2, 2)
    A = np.asfortranarray(scale * rng.normal(size=(4, n)))
    return A, rng.uniform(0, 2, n), BagLabels(offsets, y, known), rng.uniform(size=n)


@settings(max_examples=60)
@given(sizes, st.integers(0, 10_000), odds, st.integers(1, 12))
def test_bound_never_falls_and_beliefs_stay_in_range(bag_sizes, seed, H, chunk):
    A, r, labels, pi = problem(bag_sizes, seed)
    likelihood = NoisyMax(H, "exact", "sequential")
    fit = fit_whitened(A, r, *labels[:3], pi, likelihood, max_iter=15, tol=0.0, chunk_size=chunk)
    steps = np.diff(fit.bound_history)
    assert steps.min() > -1e-8 * max(1.0, np.abs(fit.bound_history).max())
    assert ((fit.pi >= 0) & (fit.pi <= 1)).all()
    given_labels = labels.known >= 0
    np.testing.assert_array_equal(fit.pi[given_labels], labels.known[given_labels])


@settings(max_examples=60)
@given(sizes, st.integers(0, 10_000), likelihoods)
def test_order_of_bags_does_not_matter(bag_sizes, seed, likelihood):
    A, r, labels, pi = problem(bag_sizes, seed)
    order = np.random.default_rng(seed).permutation(len(bag_sizes))
    rows = np.concatenate([np.arange(labels.offsets[b], labels.offsets[b + 1]) for b in order])
    offsets = np.concatenate([[0], np.cumsum(np.array(bag_sizes)[order])])
    one = fit_whitened(A, r, *labels[:3], pi, likelihood, max_iter=4, tol=0.0)
    two = fit_whitened(
        A[:, rows], r[rows], offsets, labels.y[order], labels.known[rows], pi[rows], likelihood,
        max_iter=4, tol=0.0,
    )  # fmt: skip
    np.testing.assert_allclose(one.posterior.m, two.posterior.m, atol=1e-7)
    np.testing.assert_allclose(one.pi[rows], two.pi, atol=1e-7)


@given(sizes, st.integers(1, 20), st.integers(1, 5))
def test_cut_covers_every_row_once_and_splits_no_bag(bag_sizes, chunk, n_chunks):
    offsets = np.concatenate([[0], np.cumsum(bag_sizes)])
    spans = cut(offsets, chunk, n_chunks)
    rows = [row for span in spans for a, b in span.rows for row in range(a, b)]
    assert rows == list(range(offsets[-1]))
    for span in spans:
        assert all(b - a <= chunk for a, b in span.rows)
        assert (span.start, span.stop) == (offsets[span.first_bag], offsets[span.last_bag])
        assert span.stop - span.start <= chunk * n_chunks or span.last_bag == span.first_bag + 1


@given(sizes, st.integers(0, 10_000))
def test_plug_in_is_below_exact(bag_sizes, seed):
    """The largest other pi is at most the probability that any other is positive."""
    offsets = np.concatenate([[0], np.cumsum(bag_sizes)])
    tail = np.random.default_rng(seed).uniform(size=offsets[-1])
    plug_in = none_of_others(tail, offsets, "plug-in")
    exact = none_of_others(tail, offsets, "exact")
    assert (plug_in >= exact - 1e-12).all()
    alone = np.repeat(np.array(bag_sizes) == 1, bag_sizes)
    assert (plug_in[alone] == 1).all()
    np.testing.assert_allclose(exact[alone], 1)


@given(sizes, st.integers(0, 10_000), likelihoods)
def test_weights_are_fit_for_a_gaussian(bag_sizes, seed, likelihood):
    _, r, labels, pi = problem(bag_sizes, seed)
    f = LatentMoments(np.random.default_rng(seed).normal(size=len(r)) * 30, r)
    c = np.sqrt(f.second)
    targets = likelihood.targets(f, Sech().log_psi(c), labels, likelihood.start(f, labels, pi))
    omega, rho = likelihood.weights(f, targets, Sech().theta(c))
    assert np.isfinite(omega).all()
    assert np.isfinite(rho).all()
    assert (omega >= 0).all()
