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

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints
from bagwise.models.comparators.features import GaussianProcessComparator
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter


def softmax_loss(
    w: Floats, phi: Floats, offsets: Ints, y: Ints, sharpness: float
) -> tuple[float, Floats]:
    """Negative log posterior of the weights and its gradient.

    The bag's latent value is ``log sum exp(sharpness f) / sharpness``, the paper's softened
    maximum for sharpness 1, and the weights are standard normal.
    """
    f = phi @ w  # [N]
    largest = segments.logsumexp(sharpness * f, offsets) / sharpness  # [B]
    sign = np.where(y == 1, 1.0, -1.0)
    # -log p(y_b | F_b) is softplus(-y_b F_b), with F_b the softened maximum.
    loss = np.logaddexp(0.0, -sign * largest).sum() + 0.5 * w @ w
    slope = -sign * expit(-sign * largest)  # of the loss in F_b
    share = segments.softmax(sharpness * f, offsets)  # d F_b / d f_i
    return float(loss), (segments.spread(slope, offsets) * share) @ phi + w


def curvature(w: Floats, phi: Floats, offsets: Ints, sharpness: float) -> Floats:
    """Gauss-Newton part of the Hessian, ``J' diag(p (1 - p)) J + I`` with J = dF / dw, [M, M]."""
    F, J = _softened_maximum(w, phi, offsets, sharpness)
    p = expit(F)
    return (J * (p * (1 - p))[:, None]).T @ J + np.eye(len(w))


def _softened_maximum(
    w: Floats, phi: Floats, offsets: Ints, sharpness: float
) -> tuple[Floats, Floats]:
    """The latent value F of each bag [B], and its gradient in the weights [B, M]."""
    f = sharpness * (phi @ w)
    share = segments.softmax(f, offsets)
    J = segments.sum(share[:, None] * phi, offsets)
    return segments.logsumexp(f, offsets) / sharpness, J


@dataclass(kw_only=True, eq=False, repr=False)
class GPMIL(GaussianProcessComparator, name="gpmil"):
    """Gaussian process with the softened maximum of a bag as its latent value.

    The posterior is approximated by Laplace's method. The process is held by inducing points, as
    a linear model in their whitened features, so that a set of thousands of instances needs no
    N x N matrix; with as many points as instances it is the paper's model.

    Parameters
    ----------
    length_scale : float or "median", default="median"
        Of the kernel ``variance * exp(-d² / (2 length_scale²))``; "median" is half the median
        distance.
    variance : float, default=10.0
        Prior variance of the latent function, and of its bias.
    sharpness : float, default=5.0
        Of the softened maximum; the paper's is 1. Larger is nearer to the maximum, and large
        bags are then not favoured for being large.
    n_inducing : int, default=200
    max_iter : int, default=200
        Most steps of L-BFGS.
    scale : {"feature", "global", None}, default="feature"
    random_state : int, RandomState or None, default=None
        Of the k-means that places inducing points.
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", None
        As in `CitationKNN`. Without calibration the score is the latent value, shrunk by its
        uncertainty.

    Attributes
    ----------
    n_iter_ : int
    weights_ : array, posterior mode of the weights
    precision_ : array, Cholesky factor of the posterior precision
    inducing_ : array of shape (n_points, n_features)
    length_scale_ : float

    See Also
    --------
    bagwise.VGPMIL, ProbitGP

    References
    ----------
    [Kim2010]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> model = comparators.GPMIL(cv=3, random_state=0).fit(bags[::2], y[::2])
    >>> model.predict_proba_instances(bags).shape
    (476, 2)
    """

    sharpness: float = parameter(5.0, POSITIVE)
    max_iter: int = parameter(200, AT_LEAST_1)

    def _learn(self, bags: Bags, y: Ints) -> None:
        phi = self._place(bags, y, check_random_state(self.random_state))
        end = minimize(
            softmax_loss,
            np.zeros(phi.shape[1]),
            args=(phi, bags.offsets, y, self.sharpness),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": self.max_iter},
        )
        self.weights_ = end.x
        self.n_iter_ = max(1, int(end.nit))
        # Laplace: the posterior is N(mode, H^-1).
        H = curvature(end.x, phi, bags.offsets, self.sharpness)
        self.precision_ = cho_factor(H, lower=True)[0]

    def _shrunk(self, mean: Floats, directions: Floats) -> Floats:
        """Log-odds of the sigmoid averaged over the posterior.

        MacKay's approximation of ``E sigmoid(a)`` for a ~ N(m, v): m / sqrt(1 + pi v / 8), where
        v = d' H^-1 d is the variance along a direction d.
        """
        variance = (directions * cho_solve((self.precision_, True), directions.T).T).sum(axis=1)
        return mean / np.sqrt(1 + np.pi / 8 * variance)

    def _instance_scores(self, X: Floats) -> Floats:
        phi = self._features(X)
        return self._shrunk(phi @ self.weights_, phi)

    def _raw_scores(self, bags: Bags) -> Floats:
        phi = self._features(bags.instances)
        return self._shrunk(*_softened_maximum(self.weights_, phi, bags.offsets, self.sharpness))
