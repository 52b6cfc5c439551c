"""Natural-gradient inference against its naive reference, and what every fit must keep to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bagwise import VGPMIL
from bagwise.core.kernels import RBF
from bagwise.models.drivers import Serial
from bagwise.models.variational import inference
from bagwise.models.variational.blocks import N_NOISE, BagLabels, Block, Part, arranged, take_bags
from bagwise.models.variational.inference import (
    Settings,
    State,
    Sums,
    accept,
    fit,
    latent_draws,
    make_draws,
    positive,
    posteriors,
    prior,
    propose,
)
from bagwise.models.variational.likelihoods import Gaussian, Or, Score, SoftMax
from tests.reference import inference as naive

SCORES = [Score(Gaussian(0.7)), Score(Gaussian(0.7), tau=2.0)]
LIKELIHOODS = [
    Or(),
    Or(0.5),
    Or(error=0.05),
    SoftMax(),
    SoftMax(3.0),
    SoftMax(3.0, size=4.0),
    SoftMax(3.0, size=4.0, error=0.1),
    *SCORES,
]


def make_block(rng, sizes, n_tasks=1, M=5, scale=1.0):
    """Random bags in random coordinates, with labels for several tasks."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    n = int(offsets[-1])
    A = scale * rng.normal(size=(n, M)).T
    y = rng.integers(2, size=(len(sizes), n_tasks))
    y[:2] = [[0], [1]]
    return Block(A, scale**2 * rng.uniform(0.1, 0.5, n), BagLabels(offsets, y).dealt())


def knowing(block, rng):
    """The block with weights, of which some are 0, and a few known instances per task."""
    labels = block.labels
    known = np.full((len(block.r), labels.y.shape[1]), -1, dtype=np.int8)
    for t, b in [(0, 2), (0, 3), (1, 4), (2, 5), (2, 2)]:
        known[labels.offsets[b], t] = labels.y[b, t]  # its first instance
    weight = rng.uniform(0.5, 2.0, labels.y.shape)
    weight[3, 1], weight[0, 2] = 0.0, 0.0
    return block._replace(labels=labels._replace(known=known, weight=weight))


def some_posteriors(rng, T, M):
    R = rng.normal(size=(T, M, M))
    return posteriors(rng.normal(size=(T, M)), np.eye(M) + 0.5 * R @ R.transpose(0, 2, 1))


def sums_of(blocks, likelihood, q, f0, options):
    """The sums of all tasks over blocks, each a part of its own."""
    work = q, f0, np.arange(len(f0)), options
    found = [inference.sums_of(Part((block,)), likelihood, *work)[1] for block in blocks]
    return type(found[0])(*(sum(x) for x in zip(*found, strict=True)))


def test_later_inducing_points_leave_the_posterior_as_it_was():
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(9, 2)), rng.normal(size=(5, 2))
    kernel, q = RBF(1.0, 2.0), some_posteriors(rng, 2, 3)
    moments = []
    for some, of in ((q, Z[:3]), (q.widened(5), Z)):
        L = np.linalg.cholesky(kernel(of, of))
        A = np.linalg.solve(L, kernel(of, X))
        WA = some.W @ A
        rest = kernel.diag(X) - (A * A).sum(0)
        moments.append((some.m @ A, (WA * WA).sum(1) + rest))
        identity = some.P @ some.W.transpose(0, 2, 1) @ some.W
        np.testing.assert_allclose(identity, [np.eye(len(of))] * 2, atol=1e-10)
    for a, b in zip(*moments, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)
    np.testing.assert_allclose(q.kl(), q.widened(5).kl(), atol=1e-10)


@pytest.mark.parametrize(
    ("likelihood", "labels_known"),
    [(x, known) for x in LIKELIHOODS for known in (False, True) if not (known and x in SCORES)],
    ids=repr,
)
def test_sums_and_a_step_equal_the_reference(likelihood, labels_known):
    rng = np.random.default_rng(0)
    block = make_block(rng, [3, 1, 4, 2, 3, 3, 2], n_tasks=3)
    if labels_known:
        block = knowing(block, rng)
    f0, options = np.array([0.3, -1.0, 0.0]), Settings(n_draws=4)
    q, draws = some_posteriors(rng, 3, 5), make_draws(5, 4, 0)
    pieces = [arranged(take_bags(block, np.array(bags))) for bags in ([0, 1, 2, 3], [4, 5, 6])]
    sums = sums_of(pieces, likelihood, q, f0, options)
    rho = np.array([1.0, 0.4, 0.01])
    state = State(q, sums, sums.value, rho, np.zeros(3, np.int64), sums.value[None])
    new, gain = propose(state, np.arange(3))
    for t in range(3):
        expected = naive.task_sums(block, likelihood, q.m[t], q.P[t], f0[t], draws, t)
        assert sums.value[t] == pytest.approx(expected.value, abs=1e-10)
        np.testing.assert_allclose(sums.linear[t], expected.linear, atol=1e-10)
        np.testing.assert_allclose(sums.curvature[t], expected.curvature, atol=1e-10)
        m, P = naive.step(expected, q.m[t], q.P[t], rho[t])
        np.testing.assert_allclose(new.m[t], m, atol=1e-10)
        np.testing.assert_allclose(new.P[t], P, atol=1e-10)
        gap, S = expected.linear - q.m[t], np.linalg.solve(q.P[t], np.eye(5))
        turned = S @ (naive.step(expected, q.m[t], q.P[t], 1.0)[1] - q.P[t])
        assert gain[t] == pytest.approx(gap @ S @ gap + np.trace(turned @ turned) / 2)
        np.testing.assert_allclose(q.kl()[t], naive.kl(q.m[t], q.P[t]), atol=1e-10)


@pytest.mark.parametrize("likelihood", [Or(), SoftMax(), SoftMax(3.0), Score(Gaussian(0.7))])
def test_bags_of_more_instances_than_draws_equal_the_reference(likelihood):
    rng = np.random.default_rng(14)
    block = make_block(rng, [6, 6, 3, 5, 6, 4], n_tasks=3, scale=0.3)
    weight = np.ones((6, 3))
    weight[1, 0], weight[3] = 0.0, 2.0
    if not isinstance(likelihood, Score):
        block = block._replace(labels=block.labels._replace(weight=weight))
    q, f0, draws = some_posteriors(rng, 3, 5), np.array([0.3, -1.0, 0.0]), make_draws(5, 4, 0)
    sums = sums_of([arranged(block)], likelihood, q, f0, Settings(n_draws=4))
    for t in range(3):
        expected = naive.task_sums(block, likelihood, q.m[t], q.P[t], f0[t], draws, t)
        for ours, theirs in zip(sums, expected, strict=True):
            np.testing.assert_allclose(ours[t], theirs, atol=1e-9)


def fitted(block, likelihood, f0, options, n_bags=None, start=None):
    T, M = len(f0), len(block.A)
    parts = [Part((arranged(block),), ())]
    start = prior(T, M) if start is None else start
    n_bags = len(block.labels.y) if n_bags is None else n_bags
    return fit(parts, n_bags, likelihood, start, f0, Serial(), options)


@pytest.mark.parametrize("likelihood", [Or(), SoftMax(3.0, size=4.0)], ids=repr)
def test_bags_that_weigh_nothing_are_not_there(likelihood):
    """A fold that is held out, side by side with the fit to all bags."""
    rng = np.random.default_rng(1)
    block = make_block(rng, rng.integers(1, 6, 30))
    y, held_out = block.labels.y, np.arange(30) % 3 == 0
    weight = np.column_stack([np.ones(30), ~held_out]).astype(float)
    both = block._replace(labels=block.labels._replace(y=np.hstack([y, y]), weight=weight))
    rest = take_bags(block, np.flatnonzero(~held_out))
    options = Settings(n_draws=8, max_iter=12, tol=1e-6)
    together = fitted(both, likelihood, np.zeros(2), options)
    for t, alone in enumerate((block, rest)):
        other = fitted(alone, likelihood, np.zeros(1), options, n_bags=30)
        np.testing.assert_allclose(together.q.m[t], other.q.m[0], atol=1e-8)
        np.testing.assert_allclose(together.q.P[t], other.q.P[0], atol=1e-8)
        assert together.bound[t] == pytest.approx(other.bound[0], abs=1e-8)


def test_a_bag_of_weight_two_is_the_bag_twice():
    """With the same draws, that is: those of a bag go by its number."""
    rng = np.random.default_rng(2)
    block = make_block(rng, rng.integers(1, 6, 20))
    weight = np.where(np.arange(20) % 4 == 0, 2.0, 1.0)
    twice = take_bags(block, np.repeat(np.arange(20), weight.astype(int)))
    heavy = block._replace(labels=block.labels._replace(weight=weight[:, None]))
    options = Settings(n_draws=8, max_iter=15)
    a, b = (fitted(x, Or(), np.zeros(1), options, n_bags=20) for x in (heavy, twice))
    np.testing.assert_allclose(a.q.m, b.q.m, atol=1e-9)
    np.testing.assert_allclose(a.history, b.history, atol=1e-9)


def test_neither_cuts_nor_the_order_of_bags_change_the_sums():
    rng = np.random.default_rng(3)
    block = make_block(rng, rng.integers(1, 7, 25), n_tasks=2)
    q, f0, options = some_posteriors(rng, 2, 5), np.zeros(2), Settings(n_draws=8)
    whole = sums_of([block], SoftMax(3.0), q, f0, options)
    order = rng.permutation(25)
    pieces = [arranged(take_bags(block, order[a:b])) for a, b in ((0, 3), (3, 20), (20, 25))]
    found = sums_of(pieces, SoftMax(3.0), q, f0, options)
    for a, b in zip(found, whole, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


def test_single_precision_sums_are_close_and_double():
    rng = np.random.default_rng(4)
    block = make_block(rng, rng.integers(1, 7, 25))
    q, f0, options = some_posteriors(rng, 1, 5), np.zeros(1), Settings(n_draws=8)
    exact = sums_of([block], Or(), q, f0, options)
    single = block._replace(A=block.A.astype(np.float32))
    found = sums_of([single], Or(), q, f0, options)
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_tensors_equal_arrays():
    torch = pytest.importorskip("torch", reason="needs torch")
    rng = np.random.default_rng(5)
    block = knowing(make_block(rng, [3, 1, 4, 2, 3, 3, 2], n_tasks=3), rng)
    q, f0, options = some_posteriors(rng, 3, 5), np.zeros(3), Settings(n_draws=4)
    there = Block(
        torch.as_tensor(np.array(block.A)),
        torch.as_tensor(block.r),
        block.labels.map(lambda x: torch.as_tensor(np.array(x))),
    )
    for likelihood in (Or(), Or(0.5, 0.1), SoftMax(), SoftMax(3.0, 4.0, 0.1)):
        expected = sums_of([block], likelihood, q, f0, options)
        found = sums_of([there], likelihood, q, f0, options)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b, atol=1e-10)


@given(
    seed=st.integers(0, 10**6),
    likelihood=st.sampled_from(LIKELIHOODS),
    variance=st.sampled_from([1.0, 100.0]),
    n_bags=st.integers(2, 30),
)
@settings(max_examples=60)
def test_the_bound_never_falls(seed, likelihood, variance, n_bags):
    """The history is that of q: of the last step, worked out again from nothing."""
    rng = np.random.default_rng(seed)
    block = make_block(rng, rng.integers(1, 9, n_bags), scale=variance**0.5)
    options = Settings(n_draws=8, max_iter=25, tol=1e-3)
    fits = fitted(block, likelihood, np.zeros(1), options)
    assert np.isfinite(fits.history).all()
    assert (np.diff(fits.history[:, 0]) >= 0).all()
    sums = sums_of([arranged(block)], likelihood, fits.q, np.zeros(1), options)
    at_end = sums.value[0] - naive.kl(fits.q.m[0], fits.q.P[0])
    assert at_end == pytest.approx(fits.history[-1, 0], rel=1e-8, abs=1e-8)
    assert np.linalg.eigvalsh(fits.q.P[0]).min() >= 0.1 - 1e-9


def rare(seed, variance=100.0, n_bags=20, size=200, M=20):
    """One positive instance among 200 of a positive bag, under a prior of variance 100."""
    rng = np.random.default_rng(seed)
    block = make_block(rng, np.full(n_bags, size), M=M, scale=(variance / M) ** 0.5)
    A = np.array(block.A)
    y = np.arange(n_bags) % 2
    A[0] = -abs(A[0])
    A[0, block.labels.offsets[:-1][y == 1]] *= -3
    labels = block.labels._replace(y=y[:, None])
    return Block(np.asfortranarray(A), np.full(A.shape[1], 1e-3), labels)


@pytest.mark.parametrize("likelihood", [Or(), SoftMax(3.0, 200.0), SoftMax(8.0)], ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_hard_problems_end_no_lower_than_they_began(seed, likelihood):
    block, f0 = rare(seed), np.full(1, -3.0)
    fits = fitted(block, likelihood, f0, Settings(n_draws=16, max_iter=100))
    assert np.isfinite(fits.history).all() and (np.diff(fits.history[:, 0]) >= 0).all()
    assert fits.history[-1, 0] > fits.history[0, 0]
    assert np.isfinite(fits.q.m).all()
    # Where a fit says that it converged, another one from there gains next to nothing.
    if fits.converged:
        again = fitted(block, likelihood, f0, Settings(n_draws=16, max_iter=100), start=fits.q)
        assert again.bound[0] - fits.bound[0] < 0.1


def make_state(bound, rho, still):
    """Tasks in two dimensions whose numbers tell them apart."""
    T = len(bound)
    P = np.array([[[2.0, 0.5], [0.5, 1.0]]] * T) + np.eye(2) * np.arange(T)[:, None, None]
    q = posteriors(np.arange(2.0 * T).reshape(T, 2), P)
    sums = Sums(np.arange(T) - 5.0, q.m - 1, P / 2)
    bound, rho = np.array(bound), np.array(rho)
    return State(q, sums, bound, rho, np.array(still), bound[None])


@pytest.mark.parametrize(
    ("gain", "rho", "still", "expected"),
    [
        (2.0, 1.0, 1, (1.0, 0)),  # length and steps in a row that gained little afterwards
        (2.0, 0.5, 0, (0.75, 0)),
        (2.0, 0.75, 0, (1.0, 0)),
        (0.5, 0.5, 1, (0.75, 0)),  # exactly enough
        (0.25, 0.5, 0, (0.75, 1)),
        (0.0, 0.5, 1, (0.75, 2)),  # a bound that does not fall
    ],
)
def test_a_step_that_does_not_lower_the_bound_is_taken(gain, rho, still, expected):
    state, new = make_state([-3.0, -4.0], [1.0, rho], [0, still]), make_state([0.0], [1.0], [0])
    task = np.array([1])
    after = accept(state, task, new.q, new.sums, state.bound[task] + gain, np.ones(1), 0.5)
    assert after.bound.tolist() == [-3.0, -4.0 + gain]
    assert (after.rho[1], after.still[1]) == expected
    for mine, old, theirs in zip(
        (*after.q, *after.sums), (*state.q, *state.sums), (*new.q, *new.sums), strict=True
    ):
        np.testing.assert_array_equal(mine[1], theirs[0])
        np.testing.assert_array_equal(mine[0], old[0])  # the other task is left as it was
    assert (after.rho[0], after.still[0]) == (1.0, 0)
    np.testing.assert_array_equal(after.history, [state.bound, after.bound])


@pytest.mark.parametrize(
    ("rho", "promised", "expected"),
    [
        (1.0, 8.0, (0.5, 1)),  # tried again at half its length
        (0.25, 2.0, (0.125, 1)),  # which may gain exactly enough
        (0.25, 1.9, (0.25, 2)),  # no step would gain enough: converged
        (1e-6, 1e9, (5e-7, 1)),
        (9e-7, 1e9, (9e-7, 2)),
    ],
)
def test_a_step_that_lowers_the_bound_is_halved_or_the_last(rho, promised, expected):
    state, new = make_state([-3.0], [rho], [1]), make_state([-3.1], [1.0], [0])
    after = accept(state, np.arange(1), new.q, new.sums, new.bound, np.array([promised]), 0.5)
    assert (after.rho[0], after.still[0]) == expected
    for mine, old in zip((*after.q, *after.sums), (*state.q, *state.sums), strict=True):
        np.testing.assert_array_equal(mine, old)
    assert after.history.tolist() == [[-3.0], [-3.0]]
    assert after.converged == (expected[1] == 2)


def test_a_fit_without_options_has_those_of_the_estimators():
    options, model = Settings(), VGPMIL()
    assert (options.max_iter, options.tol) == (model.max_iter, model.tol)
    assert options.n_draws % 2 == 0  # in pairs


def test_a_fit_has_converged_when_each_task_gained_little_twice():
    for still, converged in (([2, 2], True), ([2, 1], False), ([0, 0], False)):
        assert make_state([0.0, 0.0], [1.0, 1.0], still).converged == converged


def test_least_eigenvalue_of_a_precision_is_a_tenth():
    Q = np.linalg.qr(np.random.default_rng(8).normal(size=(4, 4)))[0]
    for values in ([3.0, 1.0, 0.15, -2.0], [3.0, 1.0, 0.05, 0.15], [3.0, 1.0, 0.2, 0.11]):
        raised = positive(Q @ np.diag(values) @ Q.T)
        np.testing.assert_allclose(raised, Q @ np.diag(np.maximum(values, 0.1)) @ Q.T, atol=1e-12)
    asymmetric = np.array([[2.0, 0.5], [0.1, 1.0]])
    np.testing.assert_allclose(positive(asymmetric), [[2.0, 0.3], [0.3, 1.0]])


def test_in_a_prediction_all_bags_see_the_same_draws():
    rng = np.random.default_rng(9)
    block, f0 = make_block(rng, [3, 1, 4, 2, 3]), np.array([0.3, -1.0])
    V, E = rng.normal(size=(1, 5, 2, 6)), rng.normal(size=(N_NOISE, 6))
    F = latent_draws(block, V, f0, E)
    expected = np.einsum("mn,mts->nts", block.A, V[0]) + f0[:, None]
    np.testing.assert_allclose(F, expected + (np.sqrt(block.r)[:, None] * E[:13])[:, None])


def test_a_part_of_several_blocks_is_their_sum():
    rng = np.random.default_rng(10)
    block = make_block(rng, rng.integers(1, 6, 12))
    q, f0, options = some_posteriors(rng, 1, 5), np.zeros(1), Settings(n_draws=4)
    pieces = tuple(take_bags(block, np.arange(a, a + 4)) for a in (0, 4, 8))
    _, together = inference.sums_of(Part(pieces), Or(), q, f0, np.arange(1), options)
    for a, b in zip(together, sums_of(pieces, Or(), q, f0, options), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


def test_a_gain_is_little_below_the_tolerance_per_bag():
    """The constant label counts as one more bag."""
    rng = np.random.default_rng(11)
    block = make_block(rng, rng.integers(1, 6, 20))
    free = fitted(block, Or(), np.zeros(1), Settings(n_draws=8, max_iter=2, tol=0.0))
    gain = float(np.diff(free.history[:, 0])[0])
    for factor, still in ((1 - 1e-6, 0), (1 + 1e-6, 1)):
        options = Settings(n_draws=8, max_iter=2, tol=factor * gain / 21)
        assert fitted(block, Or(), np.zeros(1), options).still.tolist() == [still]


def test_a_task_that_has_converged_is_left_alone_while_another_goes_on():
    rng = np.random.default_rng(12)
    block = make_block(rng, rng.integers(1, 6, 20), n_tasks=2)
    parts, f0 = [Part((arranged(block),), ())], np.zeros(2)
    options = Settings(n_draws=8, max_iter=2, tol=0.0)
    first = fit(parts, 20, Or(), prior(2, 5), f0, Serial(), options)
    state, more = first._replace(still=np.array([2, 0])), options._replace(max_iter=5)
    after = fit(parts, 20, Or(), prior(2, 5), f0, Serial(), more, state=state)
    assert after.n_iter == 5
    np.testing.assert_array_equal(after.q.m[0], first.q.m[0])
    assert after.bound[0] == first.bound[0] and after.bound[1] > first.bound[1]
    done = first._replace(still=np.array([2, 2]))
    assert fit(parts, 20, Or(), prior(2, 5), f0, Serial(), more, state=done) is done


def test_a_fit_goes_on_from_where_it_stood():
    rng = np.random.default_rng(6)
    block = make_block(rng, rng.integers(1, 6, 20), n_tasks=2)
    parts, f0 = [Part((arranged(block),), ())], np.zeros(2)
    states: list[State] = []
    options = Settings(n_draws=8, max_iter=12, tol=0.0)

    def run(**more):
        return fit(parts, 20, Or(), prior(2, 5), f0, Serial(), options, **more)

    whole = run(on_state=states.append)
    rest = run(state=states[3])
    np.testing.assert_array_equal(rest.q.m, whole.q.m)
    np.testing.assert_array_equal(rest.history, whole.history)


@pytest.mark.parametrize("scale", [0.2, 3.0])
def test_a_callback_is_told_of_the_first_task(scale):
    """Its change is relative where the mean is longer than 1: both kinds occur."""
    rng = np.random.default_rng(13)
    block, told, states = make_block(rng, rng.integers(1, 6, 20), 2, scale=scale), [], []
    parts, options = [Part((arranged(block),), ())], Settings(n_draws=8, max_iter=5, tol=0.0)
    start = posteriors(np.full((2, 5), 0.05), prior(2, 5).P)
    work = [parts, 20, Or(), start, np.zeros(2), Serial(), options]
    fit(*work, lambda at: told.append(at) or False, on_state=states.append)
    means = [start.m[0], *(state.q.m[0] for state in states)]
    for at, state, old, m in zip(told, states, means[:-1], means[1:], strict=True):
        assert at.change == np.linalg.norm(m - old) / max(1.0, np.linalg.norm(m))
        assert at.bound == state.bound[0] == state.history[-1, 0]
        assert at.posterior is state.q
    longest = max(np.linalg.norm(m) for m in means)
    assert longest > 1.0 if scale < 1 else longest < 1.0


def test_a_callback_is_told_and_can_stop():
    rng = np.random.default_rng(7)
    block, told = make_block(rng, rng.integers(1, 6, 20)), []

    def watch(at):
        told.append(at)
        return at.n_iter == 4

    parts, options = [Part((arranged(block),), ())], Settings(n_draws=8, tol=0.0)
    fits = fit(parts, 20, Or(), prior(1, 5), np.zeros(1), Serial(), options, watch)
    assert [at.n_iter for at in told] == [2, 3, 4] and fits.n_iter == 4
    assert told[-1].bound == fits.bound[0] and not fits.converged


@pytest.mark.parametrize(("M", "n"), [(3, 16), (40, 8)])
def test_draws_are_antithetic_and_their_directions_orthogonal(M, n):
    draws = make_draws(M, n, 0)
    for U in draws.U:
        np.testing.assert_array_equal(U[:, : n // 2], -U[:, n // 2 :])
        first = U[:, : min(M, n // 2)]
        gram = first.T @ first
        np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-10)
    np.testing.assert_array_equal(draws.E[:, : n // 2], -draws.E[:, n // 2 :])
    many = 6_000
    for U in make_draws.__wrapped__(M, many, 0).U:
        np.testing.assert_allclose(U @ U.T / many, np.eye(M), atol=0.06)
    np.testing.assert_array_equal(draws.U, make_draws.__wrapped__(M, n, 0).U)
