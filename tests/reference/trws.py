"""Every labelling, one by one."""

import itertools

import numpy as np


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
