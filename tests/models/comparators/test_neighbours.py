"""Citation-kNN and the graph kernels against brute force."""

import numpy as np
import pytest

from bagwise import Bags
from bagwise.comparators import CitationKNN, MIGraph, MiGraph
from bagwise.models.comparators.mi_graph import clique_weights, edges
from bagwise.models.comparators.neighbours import hausdorff_distances, votes
from bagwise.models.held_out import splits
from tests.checks import make_problem


def random_bags(seed, n_bags=12, n_features=3):
    rng = np.random.default_rng(seed)
    return Bags.from_list(
        [rng.normal(size=(rng.integers(1, 6), n_features)) for _ in range(n_bags)]
    )


def test_hausdorff_distance_is_that_of_the_nearest_pair():
    a, b = random_bags(0, 4), random_bags(1, 5)
    naive = [[min(((x - z) ** 2).sum() for x in p for z in q) for q in b] for p in a]
    np.testing.assert_allclose(hausdorff_distances(a, b), naive, atol=1e-12)


@pytest.mark.parametrize(("n_references", "n_citers"), [(1, 1), (2, 4), (5, 3), (20, 20)])
def test_votes_equal_ranking_by_hand(n_references, n_citers):
    train, new = random_bags(2), random_bags(3, 6)
    among, between = hausdorff_distances(train, train), hausdorff_distances(new, train)
    v = votes(between, among, n_references, n_citers)
    for i in range(len(new)):
        expected = np.zeros(len(train))
        expected[sorted(range(len(train)), key=lambda j: between[i, j])[:n_references]] += 1
        for j in range(len(train)):
            # Rank the new bag among all other training bags, as seen from bag j.
            nearer = sum(among[j, k] < between[i, j] for k in range(len(train)) if k != j)
            expected[j] += nearer < n_citers
        np.testing.assert_array_equal(v[i], expected)


def test_a_tie_of_votes_is_negative():
    # One reference on each side at the same distance, and each cites the bag in the middle.
    bags = Bags.from_list([np.array([[-1.0]]), np.array([[1.0]])])
    model = CitationKNN(n_references=2, n_citers=2, scale=None, calibrate=False).fit(bags, [0, 1])
    middle = Bags.from_list([np.array([[0.0]])])
    assert model.decision_function(middle)[0] == 0
    assert model.predict(middle)[0] == 0


def test_held_out_scores_are_those_of_separate_fits():
    """One matrix for all inner folds gives what a fit per fold gives, where nothing is scaled."""
    bags, y, _ = make_problem()
    model = CitationKNN(scale=None, cv=3).fit(bags, y)
    data = model._validate_fit(bags, y)
    model._training_matrix = model._compare(model._scaled(bags))
    scores = model._held_out_scores(data)
    for train, test in splits(y, model.cv):
        alone = CitationKNN(scale=None, calibrate=False).fit(bags[train], y[train])
        np.testing.assert_allclose(alone.decision_function(bags[test]), scores[test], atol=1e-6)


def test_clique_weights_by_hand():
    # Two copies and a stranger: the copies share one vote.
    x = np.array([[0.0], [0.0], [9.0]])
    np.testing.assert_allclose(clique_weights(x), [0.5, 0.5, 1.0])


def naive_migraph(a, b, gamma):
    def weights(x):
        d = np.array([[np.linalg.norm(p - q) for q in x] for p in x])
        return [1 / sum(d[i, j] <= d.mean() for j in range(len(x))) for i in range(len(x))]

    wa, wb = weights(a), weights(b)
    total = sum(
        wa[i] * wb[j] * np.exp(-gamma * ((a[i] - b[j]) ** 2).sum())
        for i in range(len(a))
        for j in range(len(b))
    )
    return total / (sum(wa) * sum(wb))


def test_migraph_kernel_equals_loops_and_is_positive_semidefinite():
    bags = random_bags(4)
    model = MiGraph(gamma=0.4, scale=None, calibrate=False).fit(bags, np.arange(12) % 2)
    K = model._compare(bags)
    naive = [[naive_migraph(a, b, 0.4) for b in bags] for a in bags]
    np.testing.assert_allclose(K, naive, rtol=1e-9)
    assert np.linalg.eigvalsh(K).min() > -1e-9


def test_edges_by_hand():
    # A path a-b-c: the two short sides are edges, the long one is not.
    x = np.array([[0.0], [1.0], [2.0]])
    found = edges(x, gamma=1.0)
    # d.mean() is 8/9 over all pairs with itself, so no edge; widen by a fourth, far point.
    assert len(found) == 0
    x = np.array([[0.0], [1.0], [2.0], [9.0]])
    found = edges(x, gamma=1.0)
    # a-b, b-c, a-c among the near three: degree 2 of 3 edges each; affinities e^-1 and e^-4.
    assert len(found) == 6
    np.testing.assert_allclose(found[:, [0, 2]], 2 / 3)
    share = np.exp(-1) / (np.exp(-1) + np.exp(-4))
    assert {round(v, 9) for v in found[:, 1]} == {round(v, 9) for v in (share, 1 - share, 0.5)}


def test_explicit_graph_kernel_equals_loops():
    """With as many landmarks as edges the Nyström features are exact."""
    bags = random_bags(5, 6)
    model = MIGraph(gamma=0.4, scale=None, calibrate=False, n_edge_features=500, random_state=0)
    model.fit(bags, np.arange(6) % 2)
    K = model._compare(bags)
    graphs = [edges(x, 0.4) for x in bags]

    def summed(A, B, gamma):
        return sum(np.exp(-gamma * ((a - b) ** 2).sum()) for a in A for b in B)

    def cosine(parts, gamma):
        S = np.array([[summed(a, b, gamma) for b in parts] for a in parts], dtype=float)
        length = np.sqrt(np.where(np.diag(S) > 0, np.diag(S), np.inf))
        return S / np.outer(length, length)

    np.testing.assert_allclose(K, cosine(list(bags), 0.4) + cosine(graphs, 1.0), atol=1e-5)
    assert np.linalg.eigvalsh(K).min() > -1e-9
