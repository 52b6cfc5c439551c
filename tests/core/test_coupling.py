"""Coupled marginals against enumeration, and what the field and the graph promise."""

import itertools

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import ttest_1samp, ttest_ind

from bagwise.core.coupling import (
    chain_graph,
    chain_marginals,
    choose_strength,
    couple,
    evidence_gain,
    neighbour_correlation,
    neighbour_graph,
)


def pairs_of(graph):
    """Each pair of rows once, with its weight."""
    source = np.repeat(np.arange(len(graph.order)), np.diff(graph.starts))
    rows, others = graph.order[source], graph.order[graph.ends]
    once = rows < others
    return list(zip(rows[once], others[once], graph.weights[once], strict=True))


def enumerated(log_odds, graph, strength):
    """Marginal probabilities by the sum over all labellings of the rows."""
    n = len(log_odds)
    Y = np.array(list(itertools.product([0, 1], repeat=n)))
    energy = Y @ log_odds
    for i, j, w in pairs_of(graph):
        energy = energy - strength * w * (Y[:, i] != Y[:, j])
    p = np.exp(energy - energy.max())
    return (p / p.sum()) @ Y


@pytest.mark.parametrize("strength", [0.3, 1.7, 6.0])
def test_chain_marginals_are_exact(strength):
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 10):
        log_odds = 4 * rng.normal(size=n)
        graph = chain_graph(rng.permutation(np.cumsum(rng.uniform(0.5, 4, n))), np.zeros(n, int))
        found = expit(chain_marginals(log_odds, graph, strength))
        np.testing.assert_allclose(found, enumerated(log_odds, graph, strength), atol=1e-10)


def test_chain_marginals_of_extreme_log_odds_stay_finite():
    log_odds = np.array([-800.0, 800.0, 0.0, -800.0])
    graph = chain_graph(np.arange(4), np.zeros(4, int))
    assert np.isfinite(couple(log_odds, graph, 50.0)).all()


@pytest.mark.parametrize("kind", ["chain", "neighbours"])
def test_coupling_is_the_enumerated_one_with_a_field_that_keeps_the_mean(kind):
    """On a graph without cycles messages are exact, whatever passes them."""
    rng = np.random.default_rng(1)
    log_odds = 2 * rng.normal(size=9)
    graph = chain_graph(np.arange(9), np.zeros(9, int))._replace(kind=kind)
    found = couple(log_odds, graph, 1.2)
    assert expit(found).mean() == pytest.approx(expit(log_odds).mean(), abs=1e-9)
    # The field is the one number that makes the enumerated mean right; find it here on a line.
    field = 0.0
    for step in 0.5 ** np.arange(0, 40):
        low = enumerated(log_odds + field, graph, 1.2).mean() < expit(log_odds).mean()
        field += step if low else -step
    np.testing.assert_allclose(
        expit(found),
        enumerated(log_odds + field, graph, 1.2),
        atol=1e-5 if kind != "chain" else 1e-9,
    )


def test_loopy_marginals_are_near_the_enumerated_ones():
    rng = np.random.default_rng(2)
    points = np.stack(np.meshgrid(np.arange(3), np.arange(4)), axis=-1).reshape(-1, 2)
    log_odds = 2 * rng.normal(size=12) - 1
    graph = neighbour_graph(points, np.zeros(12, int), 4)
    found = couple(log_odds, graph, 0.4)
    assert expit(found).mean() == pytest.approx(expit(log_odds).mean(), abs=1e-9)
    exact = enumerated(log_odds, graph, 0.4)
    alone = np.abs(expit(log_odds) - exact).max()
    shift = np.mean(logit(exact) - found)  # the field, which enumeration here leaves out
    assert np.abs(expit(found + shift) - exact).max() < 0.15 * alone


def test_no_strength_is_the_same_array():
    log_odds = np.array([0.3, -0.2])
    assert couple(log_odds, chain_graph([0, 1], [0, 0]), 0.0) is log_odds


@pytest.mark.parametrize("dimensions", [1, 2])
def test_order_of_rows_does_not_matter_and_stretches_stay_apart(dimensions):
    rng = np.random.default_rng(3)
    points, log_odds = rng.normal(size=(40, dimensions)), rng.normal(size=40)
    stretch = np.repeat([0, 1], 20)

    def coupled(rows, names):
        if dimensions == 1:
            graph = chain_graph(points[rows, 0], names)
        else:
            graph = neighbour_graph(points[rows], names, 4)
        return couple(log_odds[rows], graph, 0.8)

    whole = coupled(np.arange(40), stretch)
    order = rng.permutation(40)
    np.testing.assert_allclose(coupled(order, stretch[order]), whole[order], atol=1e-9)
    np.testing.assert_allclose(coupled(np.arange(20), np.zeros(20, int)), whole[:20], atol=1e-9)


def test_weights_fall_beyond_the_usual_distance():
    chain = chain_graph([0, 5, 10, 15, 35], np.zeros(5, int))
    assert sorted({round(float(w), 12) for w in chain.weights}) == [0.25, 1.0]
    plane = neighbour_graph([[0, 0], [0, 1], [0, 2], [0, 6]], np.zeros(4, int), 1)
    assert {round(float(w), 12) for _, _, w in pairs_of(plane)} == {1.0, 1 / 16}
    same_place = chain_graph([2, 2, 2], np.zeros(3, int))
    assert (same_place.weights == 1).all()


def test_a_pair_counts_once_and_knows_its_other_end():
    rng = np.random.default_rng(4)
    graph = neighbour_graph(rng.normal(size=(30, 3)), np.zeros(30, int), 6)
    source = np.repeat(np.arange(30), np.diff(graph.starts))
    np.testing.assert_array_equal(graph.ends[graph.back], source)
    np.testing.assert_array_equal(graph.weights[graph.back], graph.weights)
    pairs = [(i, j) for i, j, _ in pairs_of(graph)]
    assert len(pairs) == len(set(pairs)) == len(graph.ends) // 2


def test_evidence_gain_is_a_leave_one_out_likelihood():
    """Against its definition: the neighbours' probability of each instance, by enumeration."""
    rng = np.random.default_rng(5)
    log_odds = 2 * rng.normal(size=7)
    graph = chain_graph(np.arange(7), np.zeros(7, int))
    coupled = chain_marginals(log_odds, graph, 0.9)
    prior = logit(expit(log_odds).mean())
    expected = np.empty(7)
    for i in range(7):
        without = log_odds.copy()
        without[i] = prior
        c = enumerated(without, graph, 0.9)[i]
        ratio = np.exp(log_odds[i] - prior)
        base = 1 - expit(prior) + expit(prior) * ratio
        expected[i] = np.log((1 - c + c * ratio) / base)
    np.testing.assert_allclose(evidence_gain(log_odds, coupled, graph), expected, atol=1e-9)


def drawn(smooth, seed, noise=0.0):
    """Scores of instances on chains of 30, with runs of positives or scattered ones."""
    rng = np.random.default_rng(seed)
    n_bags, n = 40, 30
    y = np.arange(n_bags) % 2
    truth = np.zeros((n_bags, n), dtype=int)
    for i in np.flatnonzero(y):
        start = rng.integers(n - 6)
        truth[i, start : start + 6] = 1
        if not smooth:
            truth[i] = rng.permutation(truth[i])
    error = rng.normal(size=(n_bags, n))
    error = np.sqrt(1 - noise) * error + np.sqrt(noise) * rng.normal(size=(n_bags, 1)) * np.sign(
        np.sin(np.arange(n) / 3 + rng.uniform(0, 6, (n_bags, 1)))
    )
    scores = (2.0 * error + np.where(truth, 2.0, -2.0) - 1.4).ravel()
    graph = chain_graph(np.tile(np.arange(n), n_bags), np.repeat(np.arange(n_bags), n))
    return scores, graph, np.arange(n_bags + 1) * n, y, truth.ravel()


def test_strength_is_chosen_where_positives_lie_together():
    for seed in range(3):
        scores, graph, offsets, y, _ = drawn(True, seed)
        unknown = np.full(len(scores), -1)
        search = choose_strength(scores, graph, offsets, y, unknown)
        assert search.strength >= 0.5
        assert not search.by_labels
        scores, graph, offsets, y, _ = drawn(False, seed)
        assert choose_strength(scores, graph, offsets, y, unknown).strength == 0


def test_known_labels_decide_where_there_are_enough():
    scores, graph, offsets, y, truth = drawn(True, 0)
    search = choose_strength(scores, graph, offsets, y, truth)
    assert search.by_labels
    assert search.strength > 0
    scores, graph, offsets, y, truth = drawn(False, 0)
    search = choose_strength(scores, graph, offsets, y, truth)
    assert search.by_labels
    assert search.strength == 0
    few = np.where(np.arange(len(truth)) < offsets[4], truth, -1)  # two positive bags
    assert not choose_strength(scores, graph, offsets, y, few).by_labels


def test_errors_that_neighbours_share_reduce_the_strength():
    scores, graph, offsets, y, _ = drawn(True, 0, noise=0.5)
    correlation = neighbour_correlation(scores, graph, offsets, y == 0)
    assert correlation > 0.2
    unknown = np.full(len(scores), -1)
    search = choose_strength(scores, graph, offsets, y, unknown)
    assert search.correlation == correlation
    chosen = naive_choice(scores, graph, offsets, y, search.strengths)
    assert search.strength == pytest.approx(chosen * (1 - correlation))


def naive_choice(scores, graph, offsets, y, strengths, known=None):
    """Raise the strength while each step surely gains, by Welch's statistic; 0 unless all do."""
    gains = []
    for strength in strengths:
        coupled = couple(scores, graph, strength)
        each = evidence_gain(scores, coupled, graph)
        if known is not None:
            each = np.log(np.where(known, expit(coupled), expit(-coupled)))
            each -= np.log(np.where(known, expit(scores), expit(-scores)))
        gains.append(np.array([each[a:b].sum() for a, b in itertools.pairwise(offsets)]))

    def sure(gain):
        if known is not None:
            return ttest_1samp(gain[y == 1], 0.0).statistic >= 1.645
        return ttest_ind(gain[y == 1], gain[y == 0], equal_var=False).statistic >= 1.645

    chosen = 0.0
    for strength, gain, before in zip(strengths, gains, [None, *gains[:-1]], strict=True):
        if before is not None and not sure(gain - before):
            break
        chosen = strength if sure(gain) else chosen
    return chosen


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_the_strength_is_raised_while_each_step_surely_gains(seed, noise):
    scores, graph, offsets, y, truth = drawn(True, seed, noise)
    unknown = np.full(len(scores), -1)
    search = choose_strength(scores, graph, offsets, y, unknown)
    chosen = naive_choice(scores, graph, offsets, y, search.strengths)
    assert search.strength == pytest.approx(chosen * (1 - max(search.correlation, 0.0)))
    search = choose_strength(scores, graph, offsets, y, truth)
    assert search.strength == naive_choice(scores, graph, offsets, y, search.strengths, truth)


def test_a_gain_that_rises_by_chance_does_not_raise_the_strength():
    scores, graph, offsets, y, _ = drawn(True, 0, noise=0.5)
    search = choose_strength(scores, graph, offsets, y, np.full(len(scores), -1))
    chosen = np.searchsorted(search.strengths, search.strength / (1 - search.correlation) - 1e-9)
    assert search.gains[chosen + 1] > search.gains[chosen]
    assert search.z[chosen + 1] > 1.645


def test_the_first_strength_beyond_which_the_gain_falls_is_taken():
    scores, graph, offsets, y, _ = drawn(True, 1)
    unknown = np.full(len(scores), -1)
    search = choose_strength(scores, graph, offsets, y, unknown, [1.0, 0.25, 3.0])
    assert search.gains[2] > search.gains[0] > search.gains[1]
    assert search.strength == pytest.approx(1 - max(search.correlation, 0))


def test_graphs_with_cycles_are_not_coupled_beyond_what_messages_bear():
    grid = np.stack(np.meshgrid(np.arange(12), np.arange(12)), axis=-1).reshape(-1, 2)
    rng = np.random.default_rng(0)
    places, stretch = np.tile(grid, (8, 1)), np.repeat(np.arange(8), 144)
    scores, y = rng.normal(size=8 * 144), np.arange(8) % 2
    offsets, unknown = np.arange(9) * 144, np.full(8 * 144, -1)
    four = choose_strength(scores, neighbour_graph(places, stretch, 4), offsets, y, unknown)
    assert four.strengths.max() == 1.25
    eight = choose_strength(scores, neighbour_graph(places, stretch, 8), offsets, y, unknown)
    assert eight.strengths.max() == 0.75
