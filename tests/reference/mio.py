"""MIO's step by sorting all breakpoints, by bisection, and a learner written as Algorithm 1."""

import numpy as np


def q(theta, pi, z, sign, alpha, beta):
    """Equation (16)."""
    shrunk = np.maximum(np.abs(pi + theta * sign * z) - alpha, 0)
    return 0.5 * np.sum(shrunk**2) + beta * theta


def q_slope(theta, pi, z, sign, alpha, beta):
    """Q' from the breakpoints, never dividing by a."""
    a = sign * z
    lo, hi = -alpha * np.abs(a) - pi * a, alpha * np.abs(a) - pi * a  # a² lo, a² hi
    left, right = a**2 * theta - lo, a**2 * theta - hi
    return beta + np.sum(np.minimum(left, 0)) + np.sum(np.maximum(right, 0))


def theta_by_sorting(pi, z, sign, alpha, beta, eta):
    """The corrected section 3.2: sort, find the change of sign, solve the linear piece."""

    def slope(theta):
        return q_slope(theta, pi, z, sign, alpha, beta)

    if slope(0.0) <= 0:
        return 0.0
    if slope(eta) >= 0:
        return eta
    used = z != 0
    a, p = sign * z[used], pi[used]
    points = np.r_[(-alpha / np.abs(a) - p / a), (alpha / np.abs(a) - p / a)]
    points = np.r_[eta, np.sort(points[(points > eta) & (points < 0)]), 0.0]
    slopes = np.array([slope(t) for t in points])
    i = int(np.flatnonzero(slopes > 0)[0])
    t0, t1, s0, s1 = points[i - 1], points[i], slopes[i - 1], slopes[i]
    return t0 - s0 * (t1 - t0) / (s1 - s0)


def theta_by_bisection(pi, z, sign, alpha, beta, eta):
    lo, hi = eta, 0.0
    if q_slope(hi, pi, z, sign, alpha, beta) <= 0:
        return hi
    if q_slope(lo, pi, z, sign, alpha, beta) >= 0:
        return lo
    for _ in range(200):
        middle = 0.5 * (lo + hi)
        if q_slope(middle, pi, z, sign, alpha, beta) > 0:
            hi = middle
        else:
            lo = middle
    return 0.5 * (lo + hi)


def stream(bags, signs, sigma, alpha, beta, bias, costs):
    """Algorithm 1 with its sign mended: the final pi, scores before learning, cumulative loss."""
    anchors, pi = [], np.zeros(1)
    scores, loss = [], 0.0
    for bag, sign, cost in zip(bags, signs, costs, strict=True):
        anchors += list(bag)
        pi = np.r_[pi, np.zeros(len(bag))]
        z = [bias] + [max(np.exp(-np.sum((a - x) ** 2) / sigma**2) for x in bag) for a in anchors]
        z = np.array(z)
        w = -np.sign(pi) * np.maximum(np.abs(pi) - alpha, 0) / beta
        scores.append(w @ z)
        loss += cost * max(0.0, 1 - sign * scores[-1])
        theta = theta_by_sorting(pi, z, sign, alpha, beta, -cost)
        pi = pi + theta * sign * z
    return pi, np.array(scores), loss
