"""A Gaussian process or kernel machine at landmarks, as a linear model in whitened features."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular
from sklearn.metrics.pairwise import rbf_kernel

from bagwise.core.arrays import Floats
from bagwise.core.squared import median_sq_distance

# The kernel of a "median" gamma falls to exp(-5) at the median distance.
_NARROWER = 5.0
_JITTER = 1e-8  # relative to the variance, so that close landmarks do no harm


def resolve_gamma(gamma: float | str, X: Floats) -> float:
    """Gamma of ``exp(-gamma d²)``; "median" is five over the median squared distance."""
    if gamma == "median":
        return _NARROWER / median_sq_distance(X, random_state=0)
    return float(gamma)


class Features:
    """Features whose scalar products are the kernel ``variance * exp(-gamma d²)``.

    Exactly so among the landmarks; elsewhere it is the Nyström approximation. Weights that are
    standard normal make the linear model a Gaussian process with that kernel.
    """

    def __init__(self, landmarks: Floats, gamma: float, variance: float = 1.0) -> None:
        self.landmarks = landmarks
        self.gamma = gamma
        self.variance = variance
        K = variance * rbf_kernel(landmarks, gamma=gamma)
        self.root = np.linalg.cholesky(K + _JITTER * variance * np.eye(len(landmarks)))

    def __call__(self, X: Floats) -> Floats:
        """Features of each row, [N, M]."""
        cross = self.variance * rbf_kernel(self.landmarks, X, gamma=self.gamma)
        phi: Floats = solve_triangular(self.root, cross, lower=True).T
        return phi

    def with_bias(self, X: Floats) -> Floats:
        """The same and a constant, whose weight is a bias of the same variance, [N, M + 1]."""
        return np.column_stack([self(X), np.full(len(X), np.sqrt(self.variance))])
