"""A probit Gaussian process under the standard assumption, sampled instead of approximated.

After Wang and Pinar, "The multiple instance learning Gaussian process probit model" (AISTATS
2021): an instance is positive when ``f(x) + noise > 0`` with standard normal noise, a bag
when one of its instances is. Given the noisy values the process is Gaussian; given the process
the noisy values are truncated normals, so a Gibbs sampler needs no approximation.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import log_ndtr, ndtr, ndtri_exp
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from bagwise.bags import Bags
from bagwise.core import rules, segments
from bagwise.core.arrays import Floats, Ints
from bagwise.models.comparators.features import GaussianProcessComparator
from bagwise.models.parameters import AT_LEAST_1, parameter


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
