"""Learning the weights by constraint generation (eq. 8, 9).

Equation (8) is misprinted in the paper: the constraint that makes sense, used here, is
``E(L) - E(L_hat) >= Delta(L_hat, L) - xi`` with alpha >= 0. Delta counts the bags whose *state*
differs. Features of a configuration do not depend on L_hat, so when the latent configuration
changes, every stored constraint is restated against the new one at no cost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from bagwise.core import segments
from bagwise.core.arrays import Bools, Column, Floats, Ints
from bagwise.models.micrf.energy import (
    NONE,
    EnergyTerms,
    Inference,
    JointDecision,
    features,
    infer,
    keep_lowest,
    prune,
    unaries,
    unpack,
)

# TRW-S while learning: a constraint need not be the very worst, and the labelling settles in
# the first sweeps, long before the bound does.
_SWEEPS = 10
_SWEEP_TOL = 1e-3


class JointProblem(NamedTuple):
    """Training bags as the learner sees them."""

    terms: EnergyTerms
    y: Column  # [B] 0 or 1
    selectable: Bools  # [N] instances a positive bag may select as its latent instance
    dissimilarities: Any
    method: Inference


class LearnedWeights(NamedTuple):
    """The weights and how they were reached."""

    alpha: Floats
    L_hat: Ints  # [B] latent configuration, consistent with y
    n_iter: int
    converged: bool
    violation: float  # of the most violated constraint at the end
    objective: float
    gaps: list[float]  # relative gap between energy and bound of every inference
    n_dropped: int  # states that max_states dropped in the last inference


class ConstraintPool:
    """Configurations found so far; restated against the current latent configuration."""

    def __init__(self) -> None:
        self.L: list[Ints] = []
        self.phi: list[Floats] = []

    def add(self, L: Ints, phi: Floats) -> None:
        """Store a configuration and its features."""
        self.L.append(L)
        self.phi.append(phi)

    def against(self, L_hat: Ints, phi_hat: Floats) -> tuple[Floats, Floats]:
        """Rows ``phi(L) - phi(L_hat)`` and right-hand sides ``Delta(L_hat, L)``."""
        if not self.L:
            return np.empty((0, len(phi_hat))), np.empty(0)
        return np.array(self.phi) - phi_hat, (np.array(self.L) != L_hat).sum(axis=1).astype(float)


def solve_qp(A: Floats, b: Floats, C: float, start: Floats) -> tuple[Floats, float]:
    """Minimise 1/2 |alpha|^2 + C xi  s.t.  A alpha >= b - xi, alpha >= 0, xi >= 0."""
    n = A.shape[1]
    # Rows of one scale: pair sums grow with the square of the number of bags.
    size = np.maximum(np.linalg.norm(A, axis=1), 1.0)
    G = np.column_stack([A, np.ones(len(A))]) / size[:, None]
    h = b / size
    alpha = np.maximum(start, 0.0)
    xi = max(0.0, float(np.max(b - A @ alpha)))
    # Above the stated domain of xi nothing changes the optimum, but SLSQP needs the scale.
    unit = max(1.0, float(b.max()))
    best = minimize(
        lambda v: (0.5 * v[:n] @ v[:n] + C * unit * v[n], np.append(v[:n], C * unit)),
        np.append(alpha, xi / unit),
        jac=True,
        method="SLSQP",
        bounds=[(0, None)] * (n + 1),
        constraints={
            "type": "ineq",
            "fun": lambda v: G[:, :n] @ v[:n] + G[:, n] * unit * v[n] - h,
            "jac": lambda v: np.column_stack([G[:, :n], G[:, n] * unit]),
        },
        options={"maxiter": 200, "ftol": 1e-10},
    )
    alpha = np.maximum(best.x[:n], 0.0)
    return alpha, max(0.0, float(np.max(b - A @ alpha)))


def delta(L_hat: Ints, L: Ints) -> int:
    """Bags whose state differs."""
    return int(np.count_nonzero(L_hat != L))


def initial_configuration(problem: JointProblem) -> Ints:
    """The most positive selectable instance of each positive bag, by the mean classifier."""
    terms = problem.terms
    spread = terms.Upsilon.std(axis=0)
    score = -(terms.Upsilon / np.where(spread > 0, spread, 1.0)).sum(axis=1)
    best = segments.argmax(np.where(problem.selectable, score, -np.inf), terms.offsets)
    return np.where(problem.y == 1, best, NONE)


def loss_augmented(
    problem: JointProblem, alpha: Floats, L_hat: Ints
) -> tuple[Floats, Floats, Floats]:
    """Unaries of (9), where every state but that of L_hat is 1 cheaper, and pairwise weights."""
    w = unpack(alpha, problem.terms.Upsilon.shape[1])
    inst, non = unaries(problem.terms, w)
    inst = inst - 1.0
    inst[L_hat[L_hat != NONE]] += 1.0
    return inst, non - (L_hat != NONE), w.gamma


def quick_search(problem: JointProblem, inst: Floats, non: Floats, gamma: Floats) -> Ints:
    """A low-energy configuration by ICM from the lowest unaries."""
    offsets = problem.terms.offsets
    keep, _ = prune(inst, non, offsets, problem.dissimilarities.max_rows)
    some = segments.max(keep.astype(np.float64), offsets) > 0
    start = np.where(some, segments.argmax(np.where(keep, -inst, -np.inf), offsets), NONE)
    return _descend(problem, inst, non, gamma, keep, np.arange(len(non)), start)


def complete(problem: JointProblem, alpha: Floats, L_hat: Ints) -> tuple[Ints, JointDecision]:
    """A better latent configuration: inference (3), corrected to agree with the labels.

    Positive bags left without an instance get the one that raises the energy least; single
    changes then lower the energy further. Starting from the old configuration as well, the
    result is never worse than it under the new weights.
    """
    terms = problem.terms
    w = unpack(alpha, terms.Upsilon.shape[1])
    inst, non = unaries(terms, w)
    near, method = problem.dissimilarities, problem.method
    found = infer(inst, non, terms.offsets, w.gamma, near, method, _SWEEPS, _SWEEP_TOL)
    fresh = np.where(problem.y == 1, found.L, NONE)
    fresh[(fresh != NONE) & ~problem.selectable[fresh]] = NONE
    candidates = [_fill(problem, inst, w.gamma, L) for L in (fresh, L_hat)]
    energies = [alpha @ features(terms, L) for L in candidates]
    better = energies[0] < energies[1] - 1e-9 * (1 + abs(energies[1]))
    return candidates[0 if better else 1], found


def _fill(problem: JointProblem, inst: Floats, gamma: Floats, L: Ints) -> Ints:
    """The best instance of each positive bag given the others, by coordinate descent."""
    # Bags without an instance come first, so that they are placed near those that have one.
    bags = np.flatnonzero(problem.y == 1)
    bags = bags[np.argsort(L[bags] != NONE, kind="stable")]
    offsets = problem.terms.offsets
    allowed = problem.selectable & (segments.spread(problem.y, offsets) == 1)
    allowed = keep_lowest(inst, allowed, offsets, problem.dissimilarities.max_rows)
    allowed[L[L != NONE]] = True
    must = np.full(len(L), np.inf)
    return _descend(problem, inst, must, gamma, allowed, bags, L)


def _descend(
    problem: JointProblem,
    inst: Floats,
    non: Floats,
    gamma: Floats,
    allowed: Bools,
    bags: Ints,
    L: Ints,
) -> Ints:
    from bagwise.models.micrf.distances import descend

    near, place = problem.dissimilarities.lookup(np.flatnonzero(allowed))
    L = L.copy()
    descend(near, gamma, place, inst, non, allowed, problem.terms.offsets, bags, L)
    return L


def learn(
    problem: JointProblem, C: float, max_iter: int, tol: float, pool: ConstraintPool | None = None
) -> LearnedWeights:
    """Constraint generation in stages: weights for a fixed L_hat, then a better L_hat.

    A stage ends when no constraint is violated by more than ``tol`` per bag. The latent
    configuration then moves to one of lower energy, which can only lower the objective; a move
    that does not (inference is approximate) is undone, and learning ends there, as it does when
    there is none. Without convergence the last weights are returned, and ``converged`` is False.
    A ``pool`` of configurations found for another C saves rounds: constraints do not depend on it.
    """
    terms = problem.terms
    alpha, xi = np.zeros(2 * terms.Upsilon.shape[1] + 1 + len(terms.factors)), 0.0
    L_hat = initial_configuration(problem)
    phi_hat = features(terms, L_hat)
    pool = ConstraintPool() if pool is None else pool
    if pool.L:
        alpha, xi = solve_qp(*pool.against(L_hat, phi_hat), C, alpha)
    gaps: list[float] = []
    done: LearnedWeights | None = None  # the end of the last stage
    limit = tol * len(problem.y)
    n_dropped = 0
    for n_iter in range(1, max_iter + 1):
        augmented = loss_augmented(problem, alpha, L_hat)
        L = quick_search(problem, *augmented)
        phi = features(terms, L)
        violation = float(delta(L_hat, L) - alpha @ (phi - phi_hat) - xi)
        if violation <= limit:  # only TRW-S may say that nothing is violated
            inst, non, gamma = augmented
            near, method = problem.dissimilarities, problem.method
            worst = infer(inst, non, terms.offsets, gamma, near, method, _SWEEPS, _SWEEP_TOL)
            gaps.append(_gap(worst))
            n_dropped = worst.n_dropped
            phi = features(terms, worst.L)
            violation = float(delta(L_hat, worst.L) - alpha @ (phi - phi_hat) - xi)
            L = worst.L
        objective = float(0.5 * alpha @ alpha + C * xi)
        now = LearnedWeights(alpha, L_hat, n_iter, False, violation, objective, gaps, n_dropped)
        if violation > limit:
            pool.add(L, phi)
        else:
            if done is not None and objective > done.objective - 1e-6 * (1 + done.objective):
                return done._replace(n_iter=n_iter)
            done = now._replace(converged=True)
            better, found = complete(problem, alpha, L_hat)
            gaps.append(_gap(found))
            if np.array_equal(better, L_hat):
                return done
            L_hat, phi_hat = better, features(terms, better)
        A, b = pool.against(L_hat, phi_hat)
        alpha, xi = solve_qp(A, b, C, alpha)
    return now


def _gap(found: JointDecision) -> float:
    return max(0.0, found.energy - found.lower_bound) / (1.0 + abs(found.energy))
