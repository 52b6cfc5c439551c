"""The 1-norm support vector machine of equation (2): sparse weights by a linear program.

With w = u - v the program is, Z~ = diag(y) Z,

    min  alpha 1'(u + v) + C'xi   s.t.  Z~(u - v) + y b + xi - s = 1,  u, v, xi, s >= 0,

and its dual  max 1'l  s.t.  |Z~'l| <= alpha,  y'l = 0,  0 <= l <= C.

Small programs go to HiGHS. The simplex method needs about 3 m pivots for m bags, each through a
dense basis, so larger ones are solved by Mehrotra's predictor-corrector method, whose Newton
systems have m unknowns whatever the number of instances (Nocedal and Wright, *Numerical
optimization*, 2006, section 14.2). The end is exact all the same: the iterate says which weights
and which margins are active, the vertex is the solution of their linear equations, and it is
returned only where the optimality conditions of the whole program hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import linprog
from sklearn.svm import LinearSVC

from bagwise.core.arrays import Floats
from bagwise.core.blocks import BLOCK_ENTRIES
from bagwise.core.interrupts import interruptible

# HiGHS solves programs with so many features of bags within about a second.
_SIMPLEX_ENTRIES = 1 << 18
# Newton steps; 15 to 25 are usual.
_STEPS = 100
# Share of the way to the boundary that a step goes.
_REACH = 0.995
# How far the optimality conditions may be missed, in units of alpha, C and the margin.
_TOLERANCE = 1e-9


# m^2 N of the program that a core solves in about an hour, by 25 Newton steps.
_MOST_WORK = 6.4e12


class Weights(NamedTuple):
    """A linear score z @ w + b."""

    w: Floats  # [N]
    b: float


class _Program(NamedTuple):
    """Equation (2), with all features or with those of some instances."""

    Z: Floats  # [m, N]
    y: Floats  # [m] +1 or -1
    alpha: float
    C: Floats  # [m]


def check_size(m: int, N: int) -> None:
    """Raise an error where the linear program of m bags and N instances would take hours."""
    hours = float(m) ** 2 * N / _MOST_WORK
    if hours > 1:
        raise ValueError(
            f"the linear program of {m:,} bags and {N:,} instances would take a core about "
            f"{hours:.1f} hours; the limit is 1. Keep fewer bags or instances, or use "
            "solver='liblinear', MIO or VGPMIL."
        )


def solve_lp(Z: Floats, signs: Floats, alpha: float, costs: Floats) -> Weights:
    """The exact minimiser of alpha |w|_1 + sum_i C_i (1 - y_i (w'z_i + b))_+.

    ``signs`` are +1 and -1. The bias is free and not penalised.
    """
    program = _Program(Z, signs, alpha, costs)
    if Z.size <= _SIMPLEX_ENTRIES:
        return _simplex(program)[0]
    vertex, prices = _interior_point(program)
    return _column_generation(program, prices) if vertex is None else vertex


def _simplex(program: _Program) -> tuple[Weights, Floats]:
    """The optimum by HiGHS, and the multiplier of each bag."""
    Z, y, alpha, C = program
    m, N = Z.shape
    yZ = y[:, None] * Z  # [m, N]
    A = sp.hstack(
        [sp.csc_array(-yZ), sp.csc_array(yZ), sp.csc_array(-y[:, None]), -sp.eye_array(m)]
    )
    # -y_i (w'z_i + b) - xi_i <= -1, with the variables in the order u, v, b, xi.
    cost = np.concatenate([np.full(2 * N, alpha), [0.0], C])
    lower = np.zeros(len(cost))
    lower[2 * N] = -np.inf
    bounds = np.column_stack([lower, np.full(len(cost), np.inf)])
    result = interruptible(
        linprog, cost, A_ub=A.tocsc(), b_ub=-np.ones(m), bounds=bounds, method="highs"
    )
    if result.status != 0:
        raise RuntimeError(f"HiGHS did not solve the linear program: {result.message}")
    weights = Weights(result.x[:N] - result.x[N : 2 * N], float(result.x[2 * N]))
    return weights, -result.ineqlin.marginals


def _column_generation(program: _Program, prices: Floats) -> Weights:
    """The optimum where it is not a single vertex: HiGHS on the instances that can have a weight.

    Instances are added until none has |Z~'l| > alpha, which is the dual's condition for those
    left out: the optimum of the whole program.
    """
    Z, y, alpha, C = program
    inside = prices >= min(0.99 * alpha, prices.max())
    while True:
        columns = np.flatnonzero(inside)
        weights, multipliers = _simplex(_Program(Z[:, columns], y, alpha, C))
        # HiGHS allows for 1e-7.
        outside = ~inside & (np.abs((multipliers * y) @ Z) > alpha + 1e-7)
        if not outside.any():
            w = np.zeros(Z.shape[1])
            w[columns] = weights.w
            return Weights(w, weights.b)
        inside |= outside


def _interior_point(program: _Program) -> tuple[Weights | None, Floats]:
    """The optimal vertex, or None where the optimum is no single vertex; and |Z~'l|, [N].

    Variables x are u, v, xi, s in this order, z their slacks in the dual.
    """
    Z, y, alpha, C = program
    m, N = Z.shape
    # Inside of both feasible sets: y'l = 0, and u = v.
    positive, negative = C[y > 0].sum(), C[y < 0].sum()
    multipliers = C * np.where(y > 0, min(1, negative / positive), min(1, positive / negative))
    multipliers *= min(0.5, 0.5 * alpha / np.abs((multipliers * y) @ Z).max())
    x, b = np.concatenate([np.full(2 * N, 1 / N), np.full(m, 2.0), np.ones(m)]), 0.0
    for _ in range(_STEPS):
        g = (multipliers * y) @ Z  # Z~'l
        z = np.concatenate([alpha - g, alpha + g, C - multipliers, multipliers])
        gap, vertex = x @ z, _vertex(program, x, z)
        if vertex is not None or min(x.min(), z.min()) <= 0:  # or as near as doubles come
            break
        try:
            solve = _newton(program, x, z, b)
        except np.linalg.LinAlgError:
            break
        # Towards the boundary, then with a correction that keeps to the middle (Mehrotra).
        dx, _, dl, dz = solve(-x * z)
        left = (x + _step(x, dx) * dx) @ (z + _step(z, dz) * dz)
        dx, db, dl, dz = solve((left / gap) ** 3 * gap / len(x) - x * z - dx * dz)
        primal, dual = (min(1.0, _REACH * _step(a, da)) for a, da in ((x, dx), (z, dz)))
        x, b, multipliers = x + primal * dx, b + primal * db, multipliers + dual * dl
    return vertex, np.abs(g)


def _newton(
    program: _Program, x: Floats, z: Floats, b: float
) -> Callable[[Floats], tuple[Floats, float, Floats, Floats]]:
    """A function from changes of ``x * z`` to the Newton step of x, b, the multipliers and z.

    Without x and z the equations are H dl + y db = h and y'dl = -y'l, where
    H = Z~ Theta Z~' + D for diagonal Theta = x / z of the weights and D of xi and s.
    """
    Z, y = program.Z, program.y
    m, N = Z.shape
    theta = x / z
    H = _gram(Z, theta[:N] + theta[N : 2 * N]) * np.outer(y, y)
    H[np.diag_indices(m)] += theta[2 * N : 2 * N + m] + theta[2 * N + m :]
    factor = interruptible(cho_factor, H, lower=True, overwrite_a=True, check_finite=False)
    Hy = cho_solve(factor, y)
    u, v, xi, s = np.split(x, [N, 2 * N, 2 * N + m])
    missing = 1 - (y * (Z @ (u - v)) + y * b + xi - s)

    def solve(change: Floats) -> tuple[Floats, float, Floats, Floats]:
        u, v, xi, s = np.split(change / z, [N, 2 * N, 2 * N + m])
        Hh = cho_solve(factor, missing - y * (Z @ (u - v)) - xi + s)
        db = float((y @ Hh + y @ z[2 * N + m :]) / (y @ Hy))
        dl = Hh - db * Hy
        dg = (dl * y) @ Z
        dz = np.concatenate([-dg, dg, -dl, dl])
        return (change - x * dz) / z, db, dl, dz

    return solve


def _gram(Z: Floats, theta: Floats) -> Floats:
    """Z diag(theta) Z', in blocks of columns."""
    H = np.zeros((len(Z), len(Z)))
    width = max(1, BLOCK_ENTRIES // len(Z))
    for start in range(0, Z.shape[1], width):
        scaled = Z[:, start : start + width] * np.sqrt(theta[start : start + width])
        H += interruptible(np.matmul, scaled, scaled.T)
    return H


def _step(x: Floats, dx: Floats) -> float:
    """Longest step along dx, at most 1, that keeps x from falling below 0."""
    falls = dx < 0
    return min(1.0, float(np.min(-x[falls] / dx[falls], initial=np.inf)))


def _vertex(program: _Program, x: Floats, z: Floats) -> Weights | None:
    """The vertex that an iterate points to, where it is optimal.

    Of each pair x z = 0 the larger one is taken for positive. Weights A and margins E are then
    active, and where there are as many unknowns (w_A, b) as margins, both are the solutions of
    linear equations.
    """
    Z, y, alpha, C = program
    m, N = Z.shape
    u, v, xi, s = np.split(x > z, [N, 2 * N, 2 * N + m])
    A, E = np.flatnonzero(u | v), np.flatnonzero(~xi & ~s)
    if len(E) != len(A) + 1:
        return None
    signs = np.where(u, 1.0, -1.0)[A]
    M = np.column_stack([Z[np.ix_(E, A)], np.ones(len(E))])
    multipliers = np.where(xi, C, 0.0)
    others = np.append(alpha * signs - (multipliers * y) @ Z[:, A], -(multipliers @ y))
    try:
        solution = np.linalg.solve(M, y[E])
        multipliers[E] = y[E] * np.linalg.solve(M.T, others)
    except np.linalg.LinAlgError:
        return None
    w, b = np.zeros(N), float(solution[-1])
    w[A] = solution[:-1]
    hinge = 1 - y * (Z @ w + b)
    conditions = (
        signs * w[A],
        hinge[xi],
        -hinge[s],
        multipliers[E] / C[E],
        1 - multipliers[E] / C[E],
        1 - np.abs((multipliers * y) @ Z) / alpha,
    )
    optimal = all(np.min(values, initial=0.0) >= -_TOLERANCE for values in conditions)
    return Weights(w, b) if optimal else None


def solve_liblinear(
    Z: Floats, signs: Floats, alpha: float, costs: Floats, tol: float = 1e-4
) -> Weights:
    """The same with squared hinge losses, by liblinear: quicker, and the bias is penalised."""
    svc = LinearSVC(penalty="l1", dual=False, C=1 / alpha, tol=tol, max_iter=10_000, random_state=0)
    interruptible(svc.fit, Z, signs, sample_weight=costs)
    return Weights(svc.coef_[0], float(svc.intercept_[0]))


def objective(Z: Floats, signs: Floats, alpha: float, costs: Floats, weights: Weights) -> float:
    """Equation (2): penalty plus weighted hinge losses."""
    hinge = np.maximum(0, 1 - signs * (Z @ weights.w + weights.b))
    return float(alpha * np.abs(weights.w).sum() + costs @ hinge)
