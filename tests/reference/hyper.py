"""Eq. 29 of [CastroMacias2024] with dense inverses and numerical integrals, entry by entry."""

import numpy as np
from scipy.integrate import quad
from scipy.stats import norm

from bagwise.core.linalg import JITTER


def printed_objective(kernel, X, Z, mean, S, pi, density):
    """Likelihood and KL divergence at a fixed q(u) = N(mean, S)."""
    Kzz = kernel(Z, Z)
    Kzz = Kzz + JITTER * np.mean(np.diag(Kzz)) * np.eye(len(Z))
    inverse = np.linalg.solve(Kzz, np.eye(len(Z)))
    likelihood = 0.0
    for n in range(len(X)):
        k = kernel(X[n : n + 1], Z)[0] @ inverse  # K_xZ Kzz^-1
        mu = k @ mean
        variance = kernel.diag(X[n : n + 1])[0] + k @ (S - Kzz) @ k
        f = norm(mu, np.sqrt(variance))
        ends = mu - 12 * f.std(), mu + 12 * f.std()
        # log psi of a float through an array, as densities expect.
        integral = quad(
            lambda x, f=f: f.pdf(x) * density.log_psi(np.abs(np.array([x])))[0], *ends, points=[0.0]
        )
        likelihood += (pi[n] - 0.5) * mu + integral[0]
    log_det = np.linalg.slogdet(Kzz)[1] - np.linalg.slogdet(S)[1]
    divergence = 0.5 * (np.trace(inverse @ S) + mean @ inverse @ mean - len(Z) + log_det)
    return likelihood, divergence
