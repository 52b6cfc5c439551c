"""What tests of the papers' updates are written with: blocks of arrays, fits of them, the bound."""

from __future__ import annotations

from functools import partial

import numpy as np

from bagwise.core import gaussians
from bagwise.models.drivers import Serial, cut
from bagwise.models.execution import CHUNK_SIZE
from bagwise.models.variational import Sech
from bagwise.models.variational.blocks import BagLabels, Block, Part
from bagwise.models.variational.paper import iterate, moments, read_beliefs


class Fit:
    """Where `fit_whitened` ended."""

    def __init__(self, state, pi):
        self.posterior, self.pi, self.n_iter = state.q, pi, len(state.history)
        self.bound_history, self.converged = np.array(state.history), state.converged


def make_blocks(A, r, labels, chunk_size=CHUNK_SIZE):
    """Blocks as views of a whole ``A`` [M, N]."""
    A, blocks = np.asfortranarray(A), []
    for span in cut(labels.offsets, chunk_size):
        rows = slice(span.start, span.stop)
        blocks.append(Block(A[:, rows], r[rows], labels.slice(span.first_bag, span.last_bag)))
    return blocks


def fit_whitened(A, r, offsets, y, known, pi, likelihood, density=None, *, chunk_size=CHUNK_SIZE,
                 driver=None, **options):  # fmt: skip
    """Iterations on a precomputed ``A`` [M, N] and ``r`` [N], from probabilities ``pi`` [N]."""
    labels = BagLabels(np.asarray(offsets), np.asarray(y), np.asarray(known))
    blocks = make_blocks(A, r, labels._replace(row=np.arange(len(r))), chunk_size)
    pis = tuple(np.asarray(pi, dtype=np.float64)[block.labels.row] for block in blocks)
    driver = driver or Serial()
    run = partial(iterate, likelihood=likelihood, density=density or Sech())
    state, parts = run([Part(tuple(blocks), pis)], driver=driver, **options)
    return Fit(state, read_beliefs(parts, driver)["pi"])


def evidence_bound(block, q, c, targets, likelihood, density):
    """The full bound at any q(v), c [n] and beliefs: at the best c the second term of psi is 0."""
    f = moments(block.A, block.r, q)
    log_psi = density.log_psi(c) - density.theta(c) / 2 * (f.second - c * c)
    part = likelihood.bound(f, log_psi, block.labels, targets)
    return float(part) - float(gaussians.kl_to_standard(q.m, q.W))
