"""The 1-norm support vector machine of equation (2): sparse weights by a linear program."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog
from sklearn.svm import LinearSVC

if TYPE_CHECKING:
    from bagwise.core.arrays import Floats


class Weights(NamedTuple):
    """A linear score z @ w + b."""

    w: Floats  # [N]
    b: float


def solve_lp(Z: Floats, signs: Floats, alpha: float, costs: Floats) -> Weights:
    """The exact minimiser of alpha |w|_1 + sum_i C_i (1 - y_i (w'z_i + b))_+, by HiGHS.

    ``signs`` are +1 and -1. The bias is free and not penalised. With w = u - v the variables
    are u, v >= 0, b, and the hinge losses xi >= 0.
    """
    m, N = Z.shape
    yZ = signs[:, None] * Z  # [m, N]
    A = sp.hstack(
        [sp.csc_array(-yZ), sp.csc_array(yZ), sp.csc_array(-signs[:, None]), -sp.eye_array(m)]
    )
    # -y_i (w'z_i + b) - xi_i <= -1, with the variables in the order u, v, b, xi.
    cost = np.concatenate([np.full(2 * N, alpha), [0.0], costs])
    lower = np.zeros(len(cost))
    lower[2 * N] = -np.inf
    bounds = np.column_stack([lower, np.full(len(cost), np.inf)])
    result = linprog(cost, A_ub=A.tocsc(), b_ub=-np.ones(m), bounds=bounds, method="highs")
    if result.status != 0:
        raise RuntimeError(f"HiGHS did not solve the linear program: {result.message}")
    return Weights(result.x[:N] - result.x[N : 2 * N], float(result.x[2 * N]))


def solve_liblinear(
    Z: Floats, signs: Floats, alpha: float, costs: Floats, tol: float = 1e-4
) -> Weights:
    """The same with squared hinge losses, by liblinear: quicker, and the bias is penalised."""
    svc = LinearSVC(penalty="l1", dual=False, C=1 / alpha, tol=tol, max_iter=10_000, random_state=0)
    svc.fit(Z, signs, sample_weight=costs)
    return Weights(svc.coef_[0], float(svc.intercept_[0]))


def objective(Z: Floats, signs: Floats, alpha: float, costs: Floats, weights: Weights) -> float:
    """Equation (2): penalty plus weighted hinge losses."""
    hinge = np.maximum(0, 1 - signs * (Z @ weights.w + weights.b))
    return float(alpha * np.abs(weights.w).sum() + costs @ hinge)
