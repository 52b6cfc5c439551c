"""GPMIL: a Gaussian process over instances whose softened maximum makes the bag.

Kim and De la Torre, "Gaussian processes multiple instance learning" (2010). The likelihood of a
bag is ``sigmoid(±log sum_i exp f_i)``; the posterior is Laplace's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from bagwise.bags import Bags
from bagwise.core import inducing, segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.core.squared import median_sq_distance
from bagwise.models.comparators.common import InstanceComparator
from bagwise.models.comparators.features import Features
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter


def softmax_loss(
    w: Floats, phi: Floats, offsets: Ints, y: Ints, sharpness: float
) -> tuple[float, Floats]:
    """Negative log posterior of the weights and its gradient.

    The bag's latent value is ``log sum exp(sharpness f) / sharpness``, the paper's softened
    maximum for sharpness 1, and the weights are standard normal.
    """
    f = phi @ w
    top = segments.logsumexp(sharpness * f, offsets) / sharpness  # [B]
    sign = np.where(y == 1, 1.0, -1.0)
    loss = np.logaddexp(0.0, -sign * top).sum() + 0.5 * w @ w
    slope = -sign * expit(-sign * top)  # of the loss in top
    share = segments.softmax(sharpness * f, offsets)  # of top in f
    return float(loss), (segments.spread(slope, offsets) * share) @ phi + w


def curvature(w: Floats, phi: Floats, offsets: Ints, sharpness: float) -> Floats:
    """Gauss-Newton part of the Hessian, which is positive definite, [M, M]."""
    f = phi @ w
    top = segments.logsumexp(sharpness * f, offsets) / sharpness
    share = segments.softmax(sharpness * f, offsets)
    J = segments.sum(share[:, None] * phi, offsets)  # [B, M]
    p = expit(top)
    return (J * (p * (1 - p))[:, None]).T @ J + np.eye(len(w))


@dataclass(kw_only=True, eq=False, repr=False)
class GPMIL(InstanceComparator):
    """Gaussian process with the softened maximum of a bag as its latent value.

    The posterior is approximated by Laplace's method. The process is held by inducing points, as
    a linear model in their whitened features, so that a set of thousands of instances needs no
    N x N matrix; with as many points as instances it is the paper's model.

    Parameters
    ----------
    length_scale : float or "median"
        Of the kernel ``variance * exp(-d² / (2 length_scale²))``; "median" is half the median
        distance.
    variance : float
        Prior variance of the latent function, and of its bias.
    sharpness : float
        Of the softened maximum; the paper's is 1. Larger is nearer to the maximum, and large
        bags are then not favoured for being large.
    n_inducing : int
    max_iter : int
        Most steps of L-BFGS.
    scale : {"feature", "global", None}
    random_state : int, RandomState or None
        Of the k-means that places inducing points.
    calibrate, calibration, cv
        As in `CitationKNN`. Without calibration the score is the latent value, shrunk by its
        uncertainty.

    Attributes
    ----------
    weights_ : array, posterior mode of the weights
    precision_ : array, Cholesky factor of the posterior precision
    inducing_ : array of shape (n_points, n_features)
    length_scale_ : float
    n_iter_ : int
    classes_ : the two bag classes

    Examples
    --------
    >>> from bagwise.comparators import GPMIL
    >>> from bagwise.datasets import load_musk1
    >>> bags, y = load_musk1(return_X_y=True)
    >>> GPMIL(cv=3, random_state=0).fit(bags[::2], y[::2]).predict_proba_instances(bags).shape
    (476, 2)
    """

    length_scale: float | str = parameter("median", StrOptions({"median"}), POSITIVE)
    variance: float = parameter(10.0, POSITIVE)
    sharpness: float = parameter(5.0, POSITIVE)
    n_inducing: int = parameter(200, AT_LEAST_1)
    max_iter: int = parameter(200, AT_LEAST_1)
    random_state: RandomState = parameter(None, "random_state")

    def _learn(self, bags: Bags, y: Ints) -> None:
        rng = check_random_state(self.random_state)
        X, offsets = bags.instances, bags.offsets
        self.length_scale_ = (
            0.5 * np.sqrt(median_sq_distance(X, random_state=0))
            if self.length_scale == "median"
            else float(self.length_scale)
        )
        in_positive = segments.spread(y, offsets) == 1
        self.inducing_ = inducing.choose(X, in_positive, self.n_inducing, "kmeans", rng)
        phi = self._features().with_bias(X)
        end = minimize(
            softmax_loss,
            np.zeros(phi.shape[1]),
            args=(phi, offsets, y, self.sharpness),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": self.max_iter},
        )
        self.weights_ = end.x
        self.n_iter_ = max(1, int(end.nit))
        H = curvature(end.x, phi, offsets, self.sharpness)
        self.precision_ = cho_factor(H, lower=True)[0]

    def _features(self) -> Features:
        return Features(self.inducing_, 0.5 / self.length_scale_**2, self.variance)

    def _shrunk(self, mean: Floats, directions: Floats) -> Floats:
        """Log-odds of the sigmoid averaged over the posterior (MacKay's approximation)."""
        variance = (directions * cho_solve((self.precision_, True), directions.T).T).sum(axis=1)
        return mean / np.sqrt(1 + np.pi / 8 * variance)

    def _instance_scores(self, X: Floats) -> Floats:
        phi = self._features().with_bias(X)
        return self._shrunk(phi @ self.weights_, phi)

    def _raw_scores(self, bags: Bags) -> Floats:
        phi = self._features().with_bias(bags.instances)
        f = self.sharpness * (phi @ self.weights_)
        top = segments.logsumexp(f, bags.offsets) / self.sharpness
        share = segments.softmax(f, bags.offsets)
        return self._shrunk(top, segments.sum(share[:, None] * phi, bags.offsets))
