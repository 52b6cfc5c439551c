"""TRW-S and ICM against every labelling, on trees and cycles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bagwise.core.trws import complete_graph, energy_of, icm, trws
from tests.reference import trws as reference
from tests.reference.trws import pairwise_energy


def random_problem(rng, sizes, edges, scale=1.0):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    blocks = [scale * rng.normal(size=(sizes[s], sizes[t])) for s, t in edges]
    return pairwise_energy(rng.normal(size=offsets[-1]), offsets, edges, blocks)


def test_energy_of_a_labelling(rng):
    problem = random_problem(rng, [2, 3, 1, 4], complete_graph(4))
    for labels in ([0, 0, 0, 0], [1, 2, 0, 3]):
        assert energy_of(problem, labels) == pytest.approx(reference.energy(problem, labels))


@pytest.mark.parametrize("seed", range(20))
def test_trees_are_exact(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    # Every node but the first hangs on an earlier one; some trees are cut into forests.
    edges = sorted((int(rng.integers(t)), t) for t in range(1, n) if rng.random() < 0.9)
    problem = random_problem(rng, rng.integers(1, 4, n), edges, scale=3.0)
    found = trws(problem, tol=1e-12)
    minimum, _ = reference.brute_force(problem)
    assert found.energy == pytest.approx(minimum, abs=1e-10)
    assert found.lower_bound == pytest.approx(minimum, abs=1e-10)


def test_chain_bound_is_tight_in_few_sweeps(rng):
    problem = random_problem(rng, [3, 2, 4, 3], [[0, 1], [1, 2], [2, 3]], scale=2.0)
    found = trws(problem, max_iter=10, tol=1e-9)
    minimum, _ = reference.brute_force(problem)
    assert found.lower_bound == pytest.approx(minimum, abs=1e-9)
    assert found.energy >= minimum - 1e-12
    assert found.n_iter <= 3


def test_frustrated_cycle_keeps_a_valid_bound():
    """Three nodes that all want to differ, with two states: no labelling reaches the bound."""
    disagree = np.eye(2)
    problem = pairwise_energy(np.zeros(6), [0, 2, 4, 6], complete_graph(3), [disagree] * 3)
    found = trws(problem)
    assert found.energy == 1.0
    assert found.lower_bound <= 1.0


def test_more_sweeps_never_lower_the_bound(rng):
    problem = random_problem(rng, [3] * 7, complete_graph(7), scale=2.0)
    bounds = [trws(problem, max_iter=n, tol=1e-12).lower_bound for n in (1, 2, 4, 8, 16)]
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(bounds))


def test_icm_is_a_local_minimum(rng):
    problem = random_problem(rng, [3, 4, 2, 3, 3], complete_graph(5), scale=2.0)
    found = icm(problem)
    assert found.lower_bound == -np.inf
    for s, k in enumerate(np.diff(problem.offsets)):
        for x in range(k):
            other = found.labels.copy()
            other[s] = x
            assert energy_of(problem, other) >= found.energy - 1e-9


def test_icm_from_a_given_start_never_raises_the_energy(rng):
    problem = random_problem(rng, [3, 4, 2, 3], complete_graph(4))
    start = [2, 3, 1, 0]
    assert icm(problem, start).energy <= energy_of(problem, start)


def test_one_node_and_no_edges():
    found = trws(pairwise_energy([2.0, -1.0, 3.0], [0, 3], np.empty((0, 2)), []))
    assert found.labels.tolist() == [1]
    assert found.energy == found.lower_bound == -1.0
