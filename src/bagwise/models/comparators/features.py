"""Kernel methods at landmarks, as linear models in whitened features."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular
from sklearn.metrics.pairwise import rbf_kernel

from bagwise.bags import Bags
from bagwise.core import inducing, segments
from bagwise.core.arrays import Floats, Ints
from bagwise.core.squared import median_sq_distance

# The kernel of a "median" gamma falls to exp(-5) at the median distance.
_NARROWER = 5.0
_JITTER = 1e-8  # relative to the variance, so that close landmarks do no harm


def resolve_gamma(gamma: float | str, X: Floats) -> float:
    """Gamma of ``exp(-gamma d²)``; "median" is five over the median squared distance."""
    if gamma == "median":
        return _NARROWER / median_sq_distance(X, random_state=0)
    return float(gamma)


def place_landmarks(bags: Bags, y: Ints, n: int, rng: np.random.RandomState) -> Floats:
    """At most ``n`` landmarks by k-means, half of them from positive bags, [M, D]."""
    in_positive = segments.spread(y, bags.offsets) == 1
    return inducing.choose(bags.instances, in_positive, n, "kmeans", rng)


class Features:
    """Features whose scalar products are the kernel ``variance * exp(-gamma d²)``.

    Exactly so among the landmarks Z; elsewhere it is the Nyström approximation: with
    ``L L' = K_zz`` the features are ``phi(x) = L^-1 k_zx``, so that ``phi(x)' phi(x')`` is
    ``k_xz K_zz^-1 k_zx'``. Weights that are standard normal make the linear model a Gaussian
    process with that kernel.
    """

    def __init__(self, landmarks: Floats, gamma: float, variance: float = 1.0) -> None:
        self.landmarks = landmarks
        self.gamma = gamma
        self.variance = variance
        K = variance * rbf_kernel(landmarks, gamma=gamma)  # [M, M]
        self.root = np.linalg.cholesky(K + _JITTER * variance * np.eye(len(landmarks)))

    def __call__(self, X: Floats) -> Floats:
        """Features of each row, [N, M]."""
        cross = self.variance * rbf_kernel(self.landmarks, X, gamma=self.gamma)  # [M, N]
        phi: Floats = solve_triangular(self.root, cross, lower=True).T
        return phi
