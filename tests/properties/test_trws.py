"""For any small energy: bound <= minimum <= decoded, and pruning changes nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bagwise.core.trws import complete_graph, icm, trws
from bagwise.models.micrf.distances import Dissimilarities
from bagwise.models.micrf.energy import NONE, infer, prune
from tests.reference import trws as reference
from tests.reference.micrf import brute_force_configuration
from tests.reference.trws import pairwise_energy

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)
scales = st.sampled_from([0.0, 0.1, 1.0, 10.0])
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=500)
@given(sizes=sizes, scale=scales, seed=seeds, density=st.sampled_from([0.3, 0.7, 1.0]))
def test_bound_minimum_decoded(sizes, scale, seed, density):
    rng = np.random.default_rng(seed)
    edges = complete_graph(len(sizes))
    edges = edges[rng.random(len(edges)) < density]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    blocks = [scale * rng.normal(size=(sizes[s], sizes[t])) for s, t in edges]
    problem = pairwise_energy(rng.normal(size=offsets[-1]), offsets, edges, blocks)
    minimum, _ = reference.brute_force(problem)
    found = trws(problem)
    slack = 1e-9 * (1 + abs(minimum))
    assert found.lower_bound <= minimum + slack
    assert found.energy >= minimum - slack
    assert abs(reference.energy(problem, found.labels) - found.energy) <= slack
    assert icm(problem).energy >= minimum - slack
    if len(sizes) <= 2:
        assert found.energy - found.lower_bound <= slack


@settings(max_examples=150)
@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4), seed=seeds, scale=scales)
def test_pruning_never_changes_the_optimum(sizes, seed, scale):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    X = rng.random((offsets[-1], 3))
    inst, non = rng.normal(size=offsets[-1]), rng.normal(size=len(sizes))
    gamma, ones = scale * rng.random(3), np.ones(3)
    minimum, L = brute_force_configuration(inst, non, offsets, X, gamma)
    found = infer(inst, non, offsets, gamma, Dissimilarities(X, ones, 64))
    keep, dropped = prune(inst, non, offsets, 64)
    assert dropped == 0
    assert found.lower_bound <= minimum + 1e-5
    assert found.energy >= minimum - 1e-5  # dissimilarities are kept in float32
    assert all(i == NONE or keep[i] for i in L)
