"""DPMIL written as the paper prints it (corrected): loops, the data's own coordinates."""

from __future__ import annotations

import numpy as np
from scipy.special import digamma, gammaln
from scipy.stats import beta as beta_distribution
from scipy.stats import multivariate_t, t


class NaiveMixture:
    """One stick-breaking Gaussian-Wishart mixture; diagonal means D mixtures of one feature."""

    def __init__(self, m0, W0_inv, beta0, nu0, alpha, diagonal=False):
        self.m0, self.W0_inv = m0, W0_inv
        self.beta0, self.nu0, self.alpha, self.diagonal = beta0, nu0, alpha, diagonal

    def update(self, X, r):
        n, K = r.shape
        D = X.shape[1]
        self.N = np.array([sum(r[i, k] for i in range(n)) for k in range(K)])
        self.a = np.array([1 + self.N[k] for k in range(K)])
        self.b = np.array([self.alpha + sum(self.N[k + 1 :]) for k in range(K)])
        self.beta = self.beta0 + self.N
        self.nu = self.nu0 + self.N
        self.m = np.zeros((K, D))
        self.W_inv = np.zeros((K, D, D))
        for k in range(K):
            mean = np.zeros(D)
            S = np.zeros((D, D))
            if self.N[k] > 0:
                mean = sum(r[i, k] * X[i] for i in range(n)) / self.N[k]
                S = sum(r[i, k] * np.outer(X[i] - mean, X[i] - mean) for i in range(n))
                S = S / self.N[k]
            self.m[k] = (self.beta0 * self.m0 + self.N[k] * mean) / self.beta[k]
            shift = mean - self.m0
            shrink = self.beta0 * self.N[k] / (self.beta0 + self.N[k])
            self.W_inv[k] = self.W0_inv + self.N[k] * S + shrink * np.outer(shift, shift)
            if self.diagonal:
                self.W_inv[k] = np.diag(np.diag(self.W_inv[k]))
        return self

    def W(self, k):
        return np.linalg.solve(self.W_inv[k], np.eye(len(self.m0)))

    def log_weight(self, k):
        value = digamma(self.a[k]) - digamma(self.a[k] + self.b[k])
        return value + sum(digamma(self.b[j]) - digamma(self.a[j] + self.b[j]) for j in range(k))

    def log_det(self, k):
        """E log |Lambda_k|"""
        D = len(self.m0)
        if self.diagonal:
            value = D * digamma(self.nu[k] / 2)
        else:
            value = sum(digamma((self.nu[k] - d) / 2) for d in range(D))
        return value + D * np.log(2) + np.linalg.slogdet(self.W(k))[1]

    def log_likelihood(self, x, k):
        """E log N(x | mu_k, Lambda_k)"""
        D = len(x)
        d = x - self.m[k]
        quadratic = D / self.beta[k] + self.nu[k] * d @ self.W(k) @ d
        return 0.5 * (self.log_det(k) - D * np.log(2 * np.pi) - quadratic)

    def log_rho(self, X):
        K = len(self.N)
        return np.array(
            [[self.log_weight(k) + self.log_likelihood(x, k) for k in range(K)] for x in X]
        ).reshape(len(X), K)

    def weights(self):
        v = self.a / (self.a + self.b)
        w = np.array([v[k] * np.prod(1 - v[:k]) for k in range(len(v))])
        return w / w.sum()

    def log_predictive(self, X):
        D = X.shape[1]
        total = np.zeros(len(X))
        for k, weight in enumerate(self.weights()):
            scale = (1 + self.beta[k]) / self.beta[k]
            if self.diagonal:
                s = np.sqrt(scale * np.diag(self.W_inv[k]) / self.nu[k])
                density = np.prod(t.pdf(X, self.nu[k], self.m[k], s), axis=1)
            else:
                dof = self.nu[k] + 1 - D
                shape = scale * self.W_inv[k] / dof
                density = np.atleast_1d(multivariate_t.pdf(X, self.m[k], shape, dof))
            total += weight * density
        return np.log(total)

    def bound(self, X, r):
        """Every term of E[log p] - E[log q], for any r (Bishop 10.70 with stick weights)."""
        value = 0.0
        K = r.shape[1]
        for i, x in enumerate(X):
            for k in range(K):
                if r[i, k] > 0:
                    value += r[i, k] * (self.log_likelihood(x, k) + self.log_weight(k))
                    value -= r[i, k] * np.log(r[i, k])
        for k in range(K):
            value += self._expected_log_beta(k, 1.0, self.alpha)
            value += beta_distribution(self.a[k], self.b[k]).entropy()
            value += self._log_gauss_wishart(k, self.m0, self.W0_inv, self.beta0, self.nu0)
            value -= self._log_gauss_wishart(k, self.m[k], self.W_inv[k], self.beta[k], self.nu[k])
        return value

    def _expected_log_beta(self, k, a, b):
        both = digamma(self.a[k] + self.b[k])
        log_norm = gammaln(a + b) - gammaln(a) - gammaln(b)
        stick, rest = digamma(self.a[k]) - both, digamma(self.b[k]) - both
        return log_norm + (a - 1) * stick + (b - 1) * rest

    def _log_gauss_wishart(self, k, m, W_inv, beta, nu):
        """E_q log N(mu | m, (beta Lambda)^-1) W(Lambda | W, nu)"""
        D = len(m)
        W_k, log_det = self.W(k), self.log_det(k)
        d = self.m[k] - m
        quadratic = D * beta / self.beta[k] + beta * self.nu[k] * d @ W_k @ d
        gauss = 0.5 * (D * np.log(beta / (2 * np.pi)) + log_det - quadratic)
        log_B = 0.5 * nu * np.linalg.slogdet(W_inv)[1] - 0.5 * nu * D * np.log(2)
        if self.diagonal:
            log_B -= D * gammaln(nu / 2)
            power = (nu - 2) / 2  # D Gamma densities
        else:
            log_B -= D * (D - 1) / 4 * np.log(np.pi)
            log_B -= sum(gammaln((nu - d) / 2) for d in range(D))
            power = (nu - D - 1) / 2
        trace = self.nu[k] * np.trace(W_inv @ W_k)
        return gauss + log_B + power * log_det - 0.5 * trace


def naive_labels(log_rho, offsets, y, known):
    """Labels by the larger contribution to the bound; a bare bag keeps its cheapest."""
    total = [np.logaddexp.reduce(lr, axis=1) for lr in log_rho]
    labels = np.zeros(offsets[-1], dtype=int)
    for b, c in enumerate(y):
        rows = range(offsets[b], offsets[b + 1])
        if c == 0:
            continue
        for n in rows:
            better = c if total[c][n] > total[0][n] else 0
            labels[n] = known[n] if known[n] >= 0 else better
        if all(labels[n] != c for n in rows):
            free = [n for n in rows if known[n] != 0]
            labels[max(free, key=lambda n: total[c][n] - total[0][n])] = c
    return labels


def naive_dpmil(X, offsets, y, known, labels, resp, make_mixture, n_iter):
    """Labels, mixtures and bounds of n_iter rounds from labels and responsibilities."""
    C = len(np.unique(y))
    mixtures = [make_mixture().update(X[labels == c], resp[labels == c]) for c in range(C)]
    bounds = []
    for _ in range(n_iter):
        log_rho = [mixture.log_rho(X) for mixture in mixtures]
        labels = naive_labels(log_rho, offsets, y, known)
        r = [np.exp(lr - np.logaddexp.reduce(lr, axis=1, keepdims=True)) for lr in log_rho]
        bounds.append(sum(mixtures[c].bound(X[labels == c], r[c][labels == c]) for c in range(C)))
        mixtures = [make_mixture().update(X[labels == c], r[c][labels == c]) for c in range(C)]
    return labels, mixtures, bounds
