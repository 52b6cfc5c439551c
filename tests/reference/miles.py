"""MILES by loops, and its linear programme stated in two other ways."""

import numpy as np
from scipy.optimize import linprog


def features(bags, anchors, sigma):
    return np.array(
        [
            [max(np.exp(-np.sum((a - x) ** 2) / sigma**2) for x in bag) for a in anchors]
            for bag in bags
        ]
    )


def contributions(bags, anchors, weights, intercept, sigma):
    out = []
    for bag in bags:
        s = np.array([[np.exp(-np.sum((a - x) ** 2) / sigma**2) for a in anchors] for x in bag])
        score = np.zeros(len(bag))
        makers = set()
        for k, w in enumerate(weights):
            best = [
                j for j in range(len(bag)) if np.isclose(s[j, k], s[:, k].max(), rtol=1e-9, atol=0)
            ]
            for j in best:
                score[j] += w * s[j, k] / len(best)
                makers.add(j)
        out.append(score + intercept / (len(makers) or len(bag)))
    return np.concatenate(out)


def optimum_by_absolute_values(Z, signs, alpha, costs):
    """Free w with |w| bounded by t: variables w, t, b, xi."""
    m, N = Z.shape
    eye, none = np.eye(N), np.zeros((N, m + 1))
    A = np.block(
        [
            [-signs[:, None] * Z, np.zeros((m, N)), -signs[:, None], -np.eye(m)],
            [eye, -eye, none],
            [-eye, -eye, none],
        ]
    )
    b = np.r_[-np.ones(m), np.zeros(2 * N)]
    cost = np.r_[np.zeros(N), np.full(N, alpha), 0, costs]
    bounds = [(None, None)] * N + [(0, None)] * N + [(None, None)] + [(0, None)] * m
    return linprog(cost, A_ub=A, b_ub=b, bounds=bounds, method="highs").fun


def optimum_by_the_dual(Z, signs, alpha, costs):
    """Max sum of multipliers with |sum_i l_i y_i z_i| <= alpha and sum_i l_i y_i = 0."""
    A = (signs[:, None] * Z).T
    return -linprog(
        -np.ones(len(signs)),
        A_ub=np.r_[A, -A],
        b_ub=np.full(2 * len(A), alpha),
        A_eq=signs[None, :],
        b_eq=[0],
        bounds=[(0, c) for c in costs],
        method="highs",
    ).fun
