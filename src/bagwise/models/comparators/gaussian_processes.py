"""Gaussian processes over instances: GPMIL by Laplace's method, and a probit model by sampling.

GPMIL is Kim and De la Torre, "Gaussian processes multiple instance learning" (2010): the
likelihood of a bag is ``sigmoid(±log sum_i exp f_i)``.

The probit model is after Wang and Pinar, "The multiple instance learning Gaussian process probit
model" (AISTATS 2021): an instance is positive when ``f(x) + noise > 0`` with standard normal
noise, a bag when one of its instances is. Given the noisy values the process is Gaussian; given
the process the noisy values are truncated normals, so a Gibbs sampler needs no approximation.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import expit, log_ndtr, ndtr, ndtri_exp
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from bagwise.bags import Bags
from bagwise.core import rules, segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.core.squared import median_sq_distance
from bagwise.models.comparators.common import InstanceComparator, minimised
from bagwise.models.comparators.features import Features, place_landmarks
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter


@dataclass(kw_only=True, eq=False, repr=False)
class GaussianProcessComparator(InstanceComparator):
    """A baseline method with a latent Gaussian process at inducing points, and a bias."""

    length_scale: float | str = parameter("median", StrOptions({"median"}), POSITIVE)
    variance: float = parameter(10.0, POSITIVE)
    n_inducing: int = parameter(200, AT_LEAST_1)
    random_state: RandomState = parameter(None, "random_state")

    def _place(self, bags: Bags, y: Ints, rng: np.random.RandomState) -> Floats:
        """Choose the length scale and the inducing points; features of the instances."""
        X = bags.instances
        self.length_scale_ = (
            0.5 * np.sqrt(median_sq_distance(X, random_state=0))
            if self.length_scale == "median"
            else float(self.length_scale)
        )
        self.inducing_ = place_landmarks(bags, y, self.n_inducing, rng)
        return self._features(X)

    def _features(self, X: Floats) -> Floats:
        """Whitened features and a constant, whose weight is a bias of that variance, [N, M + 1]."""
        # exp(-d² / (2 length_scale²)) is exp(-gamma d²).
        phi = Features(self.inducing_, 0.5 / self.length_scale_**2, self.variance)(X)
        return np.column_stack([phi, np.full(len(X), np.sqrt(self.variance))])


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
        start, given = np.zeros(phi.shape[1]), (phi, bags.offsets, y, self.sharpness)
        self.weights_, _, self.n_iter_ = minimised(softmax_loss, start, self.max_iter, *given)
        # Laplace: the posterior is N(mode, H^-1).
        H = curvature(self.weights_, phi, bags.offsets, self.sharpness)
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


def first_positive(log_q: Floats, offsets: Ints, rng: np.random.RandomState) -> Ints:
    """Draw, for each bag, the row of its first positive instance, given that there is one, [B].

    Row i is the first with probability ``q_1 ... q_(i-1) (1 - q_i) / (1 - q_1 ... q_n)``, where
    ``q`` is the probability of being negative.
    """
    passed = np.concatenate([[0.0], np.cumsum(log_q)])
    before = passed[:-1] - segments.spread(passed[offsets[:-1]], offsets)  # log prod of earlier q
    with np.errstate(divide="ignore"):
        log_p = before + np.log(-np.expm1(np.minimum(log_q, -1e-300)))
    # The largest of log p + Gumbel noise is a draw in proportion to p.
    rows: Ints = segments.argmax(log_p + rng.gumbel(size=len(log_p)), offsets)
    return rows


def _draw_below(f: Floats, rng: np.random.RandomState) -> Floats:
    """Normal draws of mean f and variance 1, given that they are negative.

    By inversion: f + Phi^-1(u Phi(-f)) for uniform u, in the log domain.
    """
    z: Floats = f + ndtri_exp(log_ndtr(-f) + np.log(rng.uniform(size=len(f))))
    return z


def draw_values(f: Floats, offsets: Ints, y: Ints, rng: np.random.RandomState) -> Floats:
    """Noisy values given f: all negative in a negative bag, not all negative in a positive one."""
    z = _draw_below(f, rng)
    first = first_positive(log_ndtr(-f), offsets, rng)[y == 1]
    # Before the first positive all are negative; after it they are free.
    z[first] = -_draw_below(-f[first], rng)
    row = np.arange(len(f))
    start = np.full(len(y), np.iinfo(np.int64).max)
    start[y == 1] = first
    free = row > segments.spread(start, offsets)
    z[free] = f[free] + rng.standard_normal(int(free.sum()))
    return z


@dataclass(kw_only=True, eq=False, repr=False)
class ProbitGP(GaussianProcessComparator, name="probit-gp"):
    """Probit Gaussian process with Gibbs sampling, exact up to its inducing points.

    Parameters
    ----------
    length_scale, variance, n_inducing : as in `GPMIL`, default="median", 10.0, 150
    n_samples, n_burn_in : int, default=100, 50
        Iterations that are kept, and iterations before them.
    scale : {"feature", "global", None}, default="feature"
    random_state : int, RandomState or None, default=None
        Of the sampler and of the inducing points.
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", None
        As in `CitationKNN`. Without calibration the score is the log-odds of the averaged
        probability.

    Attributes
    ----------
    samples_ : array of shape (n_samples, n_weights)
        Draws of the process's weights.
    inducing_, length_scale_ : as in `GPMIL`

    See Also
    --------
    GPMIL, bagwise.VGPMIL

    References
    ----------
    [WangPinar2021]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> model = comparators.ProbitGP(n_samples=50, cv=3, random_state=0).fit(bags[::2], y[::2])
    >>> model.predict_proba_instances(bags).shape
    (476, 2)
    """

    n_inducing: int = parameter(150, AT_LEAST_1)
    n_samples: int = parameter(100, AT_LEAST_1)
    n_burn_in: int = parameter(50, Interval(Integral, 0, None, closed="left"))

    def _learn(self, bags: Bags, y: Ints) -> None:
        rng = check_random_state(self.random_state)
        phi = self._place(bags, y, rng)
        n = self.n_burn_in + self.n_samples
        self.samples_ = sample_weights(phi, bags.offsets, y, n, rng)[self.n_burn_in :]

    def _latent(self, X: Floats) -> Floats:
        """Draws of f at each row, [N, S]."""
        return self._features(X) @ self.samples_.T

    def _instance_scores(self, X: Floats) -> Floats:
        odds: Floats = rules.log_odds(ndtr(self._latent(X)).mean(axis=1))
        return odds

    def _raw_scores(self, bags: Bags) -> Floats:
        # A bag is negative when all its instances are: log prod_i Phi(-f_i), of every draw.
        log_none = segments.sum(log_ndtr(-self._latent(bags.instances)), bags.offsets)  # [B, S]
        # 1 - p and p apart, so that neither end of the scale is rounded away.
        p_none, p_some = np.exp(log_none).mean(axis=1), -np.expm1(log_none).mean(axis=1)
        tiny = np.finfo(np.float64).tiny
        return np.log(np.maximum(p_some, tiny)) - np.log(np.maximum(p_none, tiny))


def sample_weights(
    phi: Floats, offsets: Ints, y: Ints, n: int, rng: np.random.RandomState
) -> Floats:
    """Gibbs sampler: n draws of standard normal weights given the bag labels, [n, M].

    Given noisy values z = phi w + e the weights are N(P^-1 phi' z, P^-1), P = phi' phi + I.
    """
    M = phi.shape[1]
    root = np.linalg.cholesky(phi.T @ phi + np.eye(M))
    w, draws = np.zeros(M), np.empty((n, M))
    for k in range(n):
        z = draw_values(phi @ w, offsets, y, rng)
        mean = cho_solve((root, True), phi.T @ z)
        # With P = L L' the draw L'^-1 e has covariance P^-1.
        w = mean + solve_triangular(root.T, rng.standard_normal(M), lower=False)
        draws[k] = w
    return draws
