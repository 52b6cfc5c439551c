"""VGPMIL straight from the equations: loops, dense inverses, unwhitened q(u). For tests only.

Nothing here is shared with the package. Notation is the papers': q(u) = N(m, S) with u at the
inducing inputs, KZX, KZZ, pi, theta, c.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

INV = np.linalg.inv  # noqa: TID251 - the naive twin is written as the papers are


def rbf(X, Z, v, length):
    K = np.empty((len(X), len(Z)))
    for i, x in enumerate(X):
        for j, z in enumerate(Z):
            K[i, j] = v * math.exp(-sum((x - z) ** 2) / (2 * length**2))
    return K


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def jaakkola(x):
    """lambda(x) of the Jaakkola bound, V."""
    return 1 / 8 if x == 0 else (sigmoid(x) - 0.5) / (2 * x)


def theta_sech(c):
    return 0.25 if c == 0 else math.tanh(c / 2) / (2 * c)


def polya_gamma_mean(c, terms=200_000):
    """E omega of PG(1, c) from its definition as an infinite sum of Gammas; 1/terms is the tail."""
    k = np.arange(1, terms + 1)
    head = np.sum(1 / ((k - 0.5) ** 2 + c**2 / (4 * np.pi**2)))
    return float((head + 1 / terms) / (2 * np.pi**2))


def theta_gamma(alpha, beta):
    return lambda c: alpha / (beta + c * c / 2)


def log_psi_sech(c):
    return -math.log(2 * math.cosh(c / 2))


def log_psi_gamma(alpha, beta):
    return lambda c: -alpha * math.log((beta + c * c / 2) / beta) - math.log(2)


class Problem:
    """Kernel matrices of a small problem, with the jitter the package adds."""

    def __init__(self, X, Z, v, length, offsets, y, known, jitter=1e-8):
        self.KZZ = rbf(Z, Z, v, length) + jitter * v * np.eye(len(Z))
        self.KXZ = rbf(X, Z, v, length)
        self.P = self.KXZ @ INV(self.KZZ)  # [N, M]
        self.knn = np.full(len(X), float(v))
        self.offsets, self.y, self.known = offsets, y, known
        self.bags = [range(a, b) for a, b in itertools.pairwise(offsets)]

    def moments(self, m, S):
        mean, second = [], []
        for n in range(len(self.knn)):
            p = self.P[n]
            mean.append(p @ m)
            ktilde = self.knn[n] - p @ self.KXZ[n]
            second.append((p @ m) ** 2 + p @ S @ p + ktilde)
        return np.array(mean), np.array(second)

    def update_q(self, omega, rho):
        """S = (KZZ^-1 + P^T diag(omega) P)^-1, m = S P^T rho."""
        S = INV(INV(self.KZZ) + self.P.T @ np.diag(omega) @ self.P)
        return S @ self.P.T @ rho, S

    def kl(self, m, S):
        Ki = INV(self.KZZ)
        M = len(m)
        _, ld_k = np.linalg.slogdet(self.KZZ)
        _, ld_s = np.linalg.slogdet(S)
        return 0.5 * (np.trace(Ki @ S) + m @ Ki @ m - M + ld_k - ld_s)

    def clamp(self, pi):
        return np.array([p if k < 0 else float(k) for p, k in zip(pi, self.known, strict=True)])


def others(pi, bag, n, exact):
    """E_{b\\n}: expected maximum over the other instances."""
    rest = [pi[i] for i in bag if i != n]
    if not rest:
        return 0.0
    if exact:
        return 1 - math.prod(1 - p for p in rest)
    return max(rest)


def update_pi(problem, score, pi, H, exact, schedule):
    old, new = pi.copy(), pi.copy()
    for b, bag in enumerate(problem.bags):
        for n in bag:
            if problem.known[n] >= 0:
                continue
            seen = new if schedule == "sequential" else old
            pull = math.log(H) * (2 * problem.y[b] - 1) * (1 - others(seen, bag, n, exact))
            value = sigmoid(score[n] + pull)
            new[n] = (old[n] + value) / 2 if schedule == "damped" else value
    return new


def entropy(p):
    return -sum(x * math.log(x) for x in (p, 1 - p) if x > 0)


def noisy_max_bound(problem, Ef, logs, pi, H):
    total = 0.0
    for b, bag in enumerate(problem.bags):
        top = 1 - math.prod(1 - pi[n] for n in bag)
        agree = top if problem.y[b] else 1 - top
        total += math.log(H) * agree - math.log(H + 1)
    for n in range(len(pi)):
        total += (pi[n] - 0.5) * Ef[n] + logs[n] + entropy(pi[n])
    return total


def fit_noisy_max(problem, pi, theta, log_psi, *, H, exact, schedule, n_iter):
    """theta, S, m, pi in the papers' order; the first theta sees the prior."""
    pi = problem.clamp(pi)
    M = len(problem.KZZ)
    m, S = np.zeros(M), problem.KZZ.copy()
    history = []
    for _ in range(n_iter):
        _, second = problem.moments(m, S)
        th = np.array([theta(math.sqrt(s)) for s in second])
        m, S = problem.update_q(th, pi - 0.5)
        Ef, second = problem.moments(m, S)
        pi = update_pi(problem, Ef, pi, H, exact, schedule)
        logs = [log_psi(math.sqrt(s)) for s in second]
        history.append(noisy_max_bound(problem, Ef, logs, pi, H) - problem.kl(m, S))
    return m, S, pi, history


def fit_large_margin(problem, pi, *, C, V, H, exact, schedule, n_iter):
    """xi and phi, S and m, tau, pi: section 2 of the supplement of [Haussmann2017], and Eq. 14."""
    pi = problem.clamp(pi)
    N, M = len(pi), len(problem.KZZ)
    tau = np.full(N, 0.9)
    m, S = np.zeros(M), problem.KZZ.copy()
    for _ in range(n_iter):
        Ef, second = problem.moments(m, S)
        s = 2 * pi - 1
        lx = np.array(
            [jaakkola(C * math.sqrt(second[n] - 2 * s[n] * Ef[n] * V + V**2)) for n in range(N)]
        )
        lp = np.array([jaakkola(math.sqrt(tau[n] * second[n])) for n in range(N)])
        omega = 2 * (lx * C**2 + lp * tau)
        rho = C * s * (tau - 0.5) + 2 * C**2 * lx * s * V + tau * (pi - 0.5)
        m, S = problem.update_q(omega, rho)
        Ef, second = problem.moments(m, S)
        for n in range(N):
            tau[n] = sigmoid(C * (s[n] * Ef[n] - V) + Ef[n] * (pi[n] - 0.5) - lp[n] * second[n])
        score = 2 * tau * C * Ef - C * Ef + 4 * lx * C**2 * Ef * V + Ef * tau
        pi = update_pi(problem, score, pi, H, exact, schedule)
    return m, S, pi
