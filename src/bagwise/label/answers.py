"""Instance labels as evidence about a fitted process, without a pass over the data.

Of an instance with a known label y the model says ``p(y = 1 | f) = sigmoid(z)``, where z are the
log-odds that a bag of this instance alone is positive,

    z = offset + a^T v + sqrt(r) e,    v ~ N(m0, S0) before the labels.

The posterior ``N(v | m0, S0) prod_i p(y_i | z_i)`` is approximated by the Gaussian q that maximises
``sum_i E_q log p(y_i | z_i) - KL(q || N(m0, S0))``. At the maximum every label has added its *site*
to the natural parameters: ``h = E p (1 - p)`` along ``a a^T`` to the precision, and
``(h a^T m + y - E p) a`` to precision times mean. Taking a label back subtracts its site.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit

from bagwise.core import linalg
from bagwise.core.arrays import Floats, Ints
from bagwise.core.gaussians import N_NODES, hermite
from bagwise.models.variational.inference import (
    Posteriors,
    State,
    Sums,
    accept,
    positive,
    posteriors,
    prior,
    propose,
)

# A step that gains less than this, in nats, is the last.
_TOL = 1e-8


class Answers(NamedTuple):
    """Instances whose labels are known: ``z = offset + A^T v + sqrt(r) e``."""

    A: Floats  # [M, k]
    r: Floats  # [k]
    offset: Floats  # [k]
    y: Ints  # [k] 0 or 1

    def moments(self, q: Posteriors) -> tuple[Floats, Floats]:
        """Mean and variance of ``offset + A^T v``, to which the residual adds r."""
        WA = q.W[0] @ self.A
        return self.offset + self.A.T @ q.m[0], (WA * WA).sum(0)

    def expectations(self, q: Posteriors) -> tuple[Floats, Floats, Floats]:
        """``E log p(y)``, its gradient ``y - E p`` and ``E p (1 - p)``, [k]."""
        mean, var = self.moments(q)
        nodes, weights = hermite(N_NODES)
        z = mean[:, None] + np.sqrt(var + self.r)[:, None] * nodes
        p, y = expit(z), self.y[:, None]
        value = -np.logaddexp(0, (1 - 2 * y) * z) @ weights
        return value, (y - p) @ weights, (p * (1 - p)) @ weights


class _AnswerSites(NamedTuple):
    """What every label added to the natural parameters of q(v)."""

    precision: Floats  # [k] along a a^T
    linear: Floats  # [k] along a


def sites(answers: Answers, q: Posteriors) -> _AnswerSites:
    """The sites that hold q(v) where it is, if it is the posterior given the answers."""
    mean, _ = answers.moments(q)
    _, gradient, h = answers.expectations(q)
    return _AnswerSites(h, h * (mean - answers.offset) + gradient)


def condition(before: Posteriors, answers: Answers) -> Posteriors:
    """q(v) given the answers, ``before`` being the prior.

    With ``v = m0 + W0^T u`` and ``W0 A = Q R`` the labels depend on ``w = Q^T u ~ N(0, I)`` alone,
    which has no more entries than there are answers.
    """
    if not len(answers.y):
        return before
    m, P, W = (x[0] for x in before)
    Q, R = np.linalg.qr(W @ answers.A)  # [M, k], [k, k]
    of_w = answers._replace(A=R, offset=answers.offset + answers.A.T @ m)

    def evaluate(q: Posteriors) -> tuple[Sums, Floats]:
        value, gradient, h = of_w.expectations(q)
        sums = Sums(np.array([value.sum()]), (R @ gradient)[None], ((R * h) @ R.T)[None])
        return sums, sums.value - q.kl()

    # q(w) by the natural-gradient steps of `inference`, on its one task.
    one = np.arange(1)
    start = prior(1, len(R))
    sums, bound = evaluate(start)
    state = State(start, sums, bound, np.ones(1), np.zeros(1, dtype=np.int64), bound[None])
    while not state.still[0]:
        new, promised = propose(state, one)
        state = accept(state, one, new, *evaluate(new), promised, _TOL)
    # Back to v: the prior's precision, and along the columns of B what the labels added.
    B = linalg.solve_lower(W, Q)
    P = P + B @ (state.q.P[0] - np.eye(len(R))) @ B.T
    return posteriors((m + W.T @ (Q @ state.q.m[0]))[None], P[None])


def without(q: Posteriors, answers: Answers) -> Posteriors:
    """q(v) without what the answers added to it."""
    if not len(answers.y):
        return q
    added = sites(answers, q)
    P = positive(q.P[0] - (answers.A * added.precision) @ answers.A.T)
    linear = q.P[0] @ q.m[0] - answers.A @ added.linear
    return posteriors(np.linalg.solve(P, linear)[None], P[None])


def left_out(q: Posteriors, answers: Answers) -> tuple[Floats, Floats]:
    """Mean and variance of z at every answered instance, each without its own site."""
    mean, var = answers.moments(q)
    added = sites(answers, q)
    rest = 1 - added.precision * var  # share of its precision that the others gave
    rest = np.maximum(rest, np.finfo(np.float64).eps)
    explained = mean - answers.offset
    return answers.offset + (explained - var * added.linear) / rest, var / rest + answers.r
