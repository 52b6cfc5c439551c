"""The collapsed bound with dense inverses, entry by entry."""

import numpy as np

from bagwise.core.linalg import JITTER


def collapsed_bound(kernel, X, Z, omega, rho):
    Kzz = kernel(Z, Z)
    Kzz = Kzz + JITTER * np.mean(np.diag(Kzz)) * np.eye(len(Z))
    Kzx = kernel(Z, X)
    A = np.linalg.solve(np.linalg.cholesky(Kzz), Kzx)
    B = np.eye(len(Z))
    b = np.zeros(len(Z))
    residual = 0.0
    for n in range(len(X)):
        a = A[:, n]
        B += omega[n] * np.outer(a, a)
        b += rho[n] * a
        residual += omega[n] * (kernel.diag(X)[n] - a @ a)
    return 0.5 * b @ np.linalg.solve(B, b) - 0.5 * np.linalg.slogdet(B)[1] - 0.5 * residual
