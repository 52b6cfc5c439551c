"""The full evidence bound, every term and constant.

For any q(v) = N(m, S), any c and any beliefs about the instances,

``log p(T) >= likelihood part - KL(N(m, S) || N(0, I))``,

where the likelihood part (`BagLikelihood.bound`) is written with
``l_n = log psi(c_n) - theta(c_n)/2 (E f_n^2 - c_n^2)``; at the optimum c_n^2 = E f_n^2 the second
term vanishes, which is where a fit evaluates it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bagwise.core import gaussians
from bagwise.models.variational.blocks import Block, InducingPosterior
from bagwise.models.variational.densities import Density
from bagwise.models.variational.noisy_max import BagLikelihood
from bagwise.models.variational.updates import moments

if TYPE_CHECKING:
    from bagwise.core.arrays import Array


def evidence_bound(
    block: Block,
    q: InducingPosterior,
    c: Array,
    targets: Any,
    likelihood: BagLikelihood,
    density: Density,
) -> float:
    """The bound at any q(v), c [n] and beliefs, for bags held in one block.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.variational import NoisyMax, Sech
    >>> from bagwise.models.variational.bound import evidence_bound
    >>> from bagwise.models.variational.blocks import BagLabels
    >>> from bagwise.models.variational.updates import make_blocks, moments, prior
    >>> labels = BagLabels(np.array([0, 1, 2]), np.array([0, 1]), np.array([-1, -1]))
    >>> (block,) = make_blocks(np.zeros((1, 2)), np.zeros(2), labels)
    >>> f = moments(block.A, block.r, prior(1))
    >>> beliefs = NoisyMax().start(f, labels, np.zeros(2))
    >>> round(evidence_bound(block, prior(1), np.zeros(2), beliefs, NoisyMax(), Sech()), 6)
    -6.011365
    """
    f = moments(block.A, block.r, q)
    log_psi = density.log_psi(c) - density.theta(c) / 2 * (f.second - c * c)
    part = likelihood.bound(f, log_psi, block.labels, targets)
    return float(part) - float(gaussians.kl_to_standard(q.m, q.W))
