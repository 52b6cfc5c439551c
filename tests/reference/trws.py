"""Every labelling, one by one."""

import itertools

import numpy as np

from bagwise.core.trws import PairwiseEnergy, block_starts


def pairwise_energy(unary, offsets, edges, blocks):
    """An energy from one block [k_s, k_t] per edge."""
    offsets, edges = np.asarray(offsets), np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    flat = np.concatenate([np.empty(0), *(np.ravel(block) for block in blocks)])
    return PairwiseEnergy(
        np.asarray(unary, float), offsets, edges, block_starts(offsets, edges), flat
    )


def energy(problem, labels):
    sizes = np.diff(problem.offsets)
    total = sum(problem.unary[problem.offsets[s] + x] for s, x in enumerate(labels))
    for e, (s, t) in enumerate(problem.edges):
        block = problem.blocks[problem.starts[e] : problem.starts[e + 1]]
        total += block.reshape(sizes[s], sizes[t])[labels[s], labels[t]]
    return float(total)


def brute_force(problem):
    """The minimum energy and a labelling that has it."""
    states = [range(k) for k in np.diff(problem.offsets)]
    return min((energy(problem, labels), labels) for labels in itertools.product(*states))
