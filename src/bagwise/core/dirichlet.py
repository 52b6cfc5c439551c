"""Stick-breaking mixtures of Gaussians by variational Bayes: pure functions over arrays.

The Dirichlet-process mixture of Kandemir and Hamprecht (UAI 2014, Appendix 1): Gaussian-Wishart
components, stick-breaking weights truncated at K. One round is ``accumulate`` (the only code
that sees data; its statistics are additive over rows) and then ``update``; ``log_joint`` gives
the responsibilities and ``kl`` the divergence that the bound subtracts.

Everything runs in the prior's own coordinates ``z = L0^-1 (x - m0)`` with ``W0^-1 = L0 L0^T``
(`whiten`). There the prior has mean 0 and ``W0 = I``: an empty component needs no factor of
its own, no cancellation depends on the data's units, and the updates lose half their terms.

Full covariances keep ``W_k^-1`` as [D, D]. Diagonal ones are D independent Gauss-Gamma models,
``Lambda_d ~ Gamma(nu0 / 2, rate = 1 / (2 W0_d))``: [D] arrays through the same functions.

Rows may be a float64 tensor on a device. What is per row and component stays there then; sums
over rows and what is per row come to the host, where the parameters are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.blas import dsyr, dsyrk, dtrmm, dtrsm, strmm
from scipy.linalg.lapack import dpotrf, dtrtri
from scipy.special import betaln, digamma, gammaln, logsumexp

from bagwise.core.arrays import (
    Bools,
    Doubles,
    Floats,
    Reals,
    beside,
    is_tensor,
    like,
    namespace,
    to_numpy,
)

# A component with less mass than this is empty: it is the prior to within rounding.
EMPTY = 1e-12
# Responsibilities below this do not change a sum of doubles that holds a larger one.
_NEGLIGIBLE = 1e-18
# Rows whose differences to a mean stay in cache while they are multiplied by a factor.
_BLOCK = 1024
# Log odds at which a responsibility is `_NEGLIGIBLE`.
_REACH = -float(np.log(_NEGLIGIBLE))
# Screening is quicker from so many features and components, up to this share of pairs that count.
_SCREEN_FEATURES, _SCREEN_COMPONENTS, _SCREEN_SHARE = 32, 4, 0.3
# Rows looked at to see whether it does.
_PROBE = 64


class Prior(NamedTuple):
    """What every component of every class starts from."""

    mean: Floats  # [D] m0
    root: Floats  # [D, D] lower Cholesky factor of W0^-1, or [D] its square root (diagonal)
    mean_precision: float  # beta0
    degrees_of_freedom: float  # nu0
    concentration: float  # alpha

    @property
    def diagonal(self) -> bool:
        """Whether the components have diagonal covariances."""
        return bool(self.root.ndim == 1)

    @property
    def log_det_root(self) -> float:
        """Log-determinant of ``root``: log p(x) = log p(z) - log_det_root."""
        return float(np.sum(np.log(self.root if self.diagonal else np.diag(self.root))))


class ClusterStatistics(NamedTuple):
    """Sums over instances, in the prior's coordinates; additive over bags."""

    N: Floats  # [K] mass of each component
    first: Floats  # [K, D] sum_n r_nk z_n
    second: Floats  # [K, D, D] lower triangle of sum_n r_nk z_n z_n^T, or [K, D] (diagonal)


class ClusterPosterior(NamedTuple):
    """Variational posterior of one mixture, in the prior's coordinates."""

    sticks: Floats  # [2, K] parameters of the Beta posteriors
    beta: Floats  # [K] precision of the mean, in units of Lambda
    m: Floats  # [K, D] mean
    nu: Floats  # [K] degrees of freedom
    factor: Floats  # [K, D, D] lower T_k with W_k = T_k^T T_k, or [K, D] its diagonal
    filled: Bools  # [K] bool, False where the component is the prior

    @property
    def log_det_W(self) -> Floats:
        """Log-determinant of every W_k, shape [K]."""
        T = self.factor
        diagonal = T if T.ndim == 2 else np.diagonal(T, axis1=1, axis2=2)  # [K, D]
        return 2 * np.sum(np.log(diagonal), axis=1)


def covariance_moments(
    blocks: Callable[[], Iterable[Reals]], n_features: int, diagonal: bool
) -> tuple[Floats, Floats]:
    """Mean and unbiased covariance of rows that arrive in blocks.

    ``blocks`` is a function that starts a fresh pass; two passes keep full precision.
    """
    n, total = 0, np.zeros(n_features)
    for X in blocks():
        n += X.shape[0]
        total += np.sum(X, axis=0, dtype=np.float64)
    mean = total / n
    scatter = np.zeros(n_features if diagonal else (n_features, n_features))
    for X in blocks():
        centred = X - mean
        scatter += np.einsum("nd,nd->d", centred, centred) if diagonal else centred.T @ centred
    return mean, scatter / max(n - 1, 1)


def whiten(X: Reals, prior: Prior) -> Floats:
    """Rows in the prior's coordinates, L0^-1 (x - m0), as C-ordered doubles."""
    Z = np.subtract(X, prior.mean, dtype=np.float64)  # [n, D]
    if prior.diagonal:
        Z /= prior.root
        return Z
    return _solve_lower(prior.root, Z.T).T


def unwhiten_mean(m: Floats, prior: Prior) -> Floats:
    """Means back in the data's coordinates, [..., D]."""
    return prior.mean + (m * prior.root if prior.diagonal else m @ prior.root.T)


def empty_statistics(n_components: int, n_features: int, diagonal: bool) -> ClusterStatistics:
    """The neutral element of `add`."""
    shape = (n_features,) if diagonal else (n_features, n_features)
    return ClusterStatistics(
        np.zeros(n_components),
        np.zeros((n_components, n_features)),
        np.zeros((n_components, *shape)),
    )


def add(a: ClusterStatistics, b: ClusterStatistics) -> ClusterStatistics:
    """ClusterStatistics of two disjoint sets of rows together."""
    return ClusterStatistics(a.N + b.N, a.first + b.first, a.second + b.second)


def accumulate(Z: Doubles, responsibilities: Doubles, diagonal: bool) -> ClusterStatistics:
    """ClusterStatistics of rows Z [n, D] under responsibilities [n, K]."""
    r = beside(responsibilities, Z)
    N, first, n = r.sum(0), r.T @ Z, r.shape[1]
    if diagonal:
        return ClusterStatistics(*map(to_numpy, (N, first, r.T @ (Z * Z))))
    second = like(np.zeros((n, Z.shape[1], Z.shape[1])), Z)
    # Component after component: all at once would hold K copies of the rows.
    for k in range(n):
        if is_tensor(Z):
            second[k] = ((Z * r[:, k, None]).T @ Z).tril()
            continue
        # Most responsibilities vanish, so each component touches only its own rows.
        rows = np.flatnonzero(r[:, k] > _NEGLIGIBLE)
        scaled = Z[rows]
        scaled *= np.sqrt(r[rows, k])[:, None]
        # Upper of the transpose: our lower.
        dsyrk(1.0, scaled.T, lower=0, c=second[k].T, overwrite_c=1)
    return ClusterStatistics(*map(to_numpy, (N, first, second)))


def update(statistics: ClusterStatistics, prior: Prior) -> ClusterPosterior:
    """Posterior of one mixture from its statistics (Appendix 1 of the paper).

    The paper prints ``nu_k = nu0 + N_k + 1``; the conjugate update, used here, has no + 1.
    In the prior's coordinates ``W_k^-1 = I + sum r z z^T - f f^T / (beta0 + N_k)`` with
    ``f = sum r z``, which is the printed sum of scatter and shrinkage written in one step.
    """
    N, first, second = statistics
    beta = prior.mean_precision + N
    m = first / beta[:, None]
    filled = N > EMPTY
    factor = np.zeros_like(second)
    if prior.diagonal:
        factor[:] = 1 / np.sqrt(1 + second - np.square(first) / beta[:, None])
        factor[~filled] = 1.0
    else:
        factor[~filled] = np.eye(first.shape[1])
        for k in np.flatnonzero(filled):
            # Only lower triangles are read: second holds nothing above the diagonal.
            W_inv = dsyr(-1 / beta[k], first[k], lower=0, a=second[k].T).T
            W_inv.flat[:: len(W_inv) + 1] += 1.0
            L, failed = dpotrf(W_inv.T, lower=0)
            if failed:
                raise ValueError(
                    "the covariance of a component is singular to machine precision: the data vary "
                    f"{np.sqrt(np.diag(W_inv).max()):.1e} times as widely as the prior covariance. "
                    "Raise covariance_floor, or give a covariance_prior on the scale of the data."
                )
            factor[k] = _invert_lower(L.T)
    after = np.concatenate([np.cumsum(N[:0:-1])[::-1], [0.0]])  # sum_{j > k} N_j
    return ClusterPosterior(
        sticks=np.stack([1 + N, prior.concentration + after]),
        beta=beta,
        m=np.where(filled[:, None], m, 0.0),
        nu=prior.degrees_of_freedom + N,
        factor=factor,
        filled=filled,
    )


def mahalanobis(Z: Doubles | Reals, posterior: ClusterPosterior) -> Doubles | Reals:
    """(z - m_k)^T W_k (z - m_k) of every row and component, [n, K]."""
    if is_tensor(Z):
        m, factor = (beside(x, Z) for x in (posterior.m, posterior.factor))
        lengths = Z.new_empty((len(Z), len(m)))
        for c in range(len(m)):
            d = Z - m[c]
            d = d * factor[c] if factor.ndim == 2 else d @ factor[c].T
            lengths[:, c] = d.square().sum(1)
        return lengths
    out = np.empty((len(Z), len(posterior.beta)), dtype=Z.dtype)
    out[:, ~posterior.filled] = np.einsum("nd,nd->n", Z, Z)[:, None]  # all of them the prior
    filled = np.flatnonzero(posterior.filled)
    if posterior.factor.ndim == 2:
        W = np.square(posterior.factor)
        for k in filled:
            out[:, k] = np.square(Z - posterior.m[k]) @ W[k]
        return out
    buffer = np.empty((min(len(Z), _BLOCK), Z.shape[1]), dtype=Z.dtype)
    for start in range(0, len(Z), _BLOCK):
        block = Z[start : start + _BLOCK]
        for k in filled:
            difference = np.subtract(block, posterior.m[k], out=buffer[: len(block)])
            out[start : start + _BLOCK, k] = _squared_length(difference, posterior.factor[k])
    return out


def _squared_length(difference: Reals, T: Reals) -> Reals:
    """|T d|^2 of every row d, which it overwrites; as precise as the rows are. [n]."""
    # Half the work of a full product.
    multiply = dtrmm if difference.dtype == np.float64 else strmm
    y = multiply(1.0, T.T, difference.T, trans_a=1, overwrite_b=1)
    return np.einsum("dn,dn->n", y, y)


def log_joint(Z: Doubles, posterior: ClusterPosterior, prior: Prior) -> Floats:
    """E[log pi_k + log N(x_n | mu_k, Lambda_k)], the paper's log rho, [n, K].

    Its logsumexp over k is what an instance adds to the bound when it joins this mixture.
    """
    quadratic = to_numpy(mahalanobis(Z, posterior))
    quadratic *= -0.5 * posterior.nu
    quadratic += _log_joint_at_mean(posterior, prior)
    return quadratic


def responsibilities(
    Z: Doubles, posterior: ClusterPosterior, prior: Prior
) -> tuple[Doubles, Floats]:
    """Responsibilities [n, K], and what each row adds to the bound [n].

    Equal to ``normalise(log_joint(...))``. Where most responsibilities vanish, single precision
    with a bound on its error tells which, and only the others are computed: those left out,
    below 1e-18, are 0.
    """
    if is_tensor(Z):
        at_mean, nu = (beside(x, Z) for x in (_log_joint_at_mean(posterior, prior), posterior.nu))
        on_device: Any = at_mean - 0.5 * nu * mahalanobis(Z, posterior)
        return on_device.softmax(1), to_numpy(on_device.logsumexp(1))
    K, D = posterior.m.shape
    if prior.diagonal or D < _SCREEN_FEATURES or K < _SCREEN_COMPONENTS or len(Z) < 4 * _PROBE:
        return normalise(log_joint(Z, posterior, prior))
    at_mean, half = _log_joint_at_mean(posterior, prior), 0.5 * posterior.nu
    probe = at_mean - half * mahalanobis(Z[:: len(Z) // _PROBE], posterior)
    if np.mean(probe > np.max(probe, axis=1, keepdims=True) - _REACH) > _SCREEN_SHARE:
        return normalise(at_mean - half * mahalanobis(Z, posterior))
    with np.errstate(over="ignore", invalid="ignore"):  # what single precision cannot hold, stays
        length, error = _rough_length(Z, posterior)
        least = at_mean - half * np.square(length + error)
        most = at_mean - half * np.square(np.maximum(length - error, 0.0))
        left_out = most < np.max(least, axis=1, keepdims=True) - _REACH  # [n, K]
    log_rho = np.full(most.shape, -np.inf)
    for k in range(K):
        rows = np.flatnonzero(~left_out[:, k])
        difference = Z[rows]
        difference -= posterior.m[k]
        quadratic = _squared_length(difference, posterior.factor[k])
        log_rho[rows, k] = at_mean[k] - half[k] * quadratic
    return normalise(log_rho)


def _rough_length(Z: Floats, posterior: ClusterPosterior) -> tuple[Floats, Floats]:
    """|T_k (z - m_k)| in single precision, and how far off it can be at most; [n, K] each.

    Each of its D sums has up to D products of rounded factors: at most D + 4 roundings of the
    size of its terms, which |T_k| (|z| + |m_k|) bounds; the square's own sum comes on top.
    """
    D = Z.shape[1]
    single = posterior._replace(
        m=posterior.m.astype(np.float32), factor=posterior.factor.astype(np.float32)
    )
    length = np.sqrt(mahalanobis(Z.astype(np.float32), single), dtype=np.float64)
    error = np.add.outer(_length(Z), _length(posterior.m))
    error *= _length(posterior.factor.reshape(-1, D * D))
    error += length
    error *= (D + 4) * float(np.finfo(np.float32).eps)
    return length, error


def _log_joint_at_mean(posterior: ClusterPosterior, prior: Prior) -> Floats:
    """Log rho where z = m_k, [K]."""
    D = posterior.m.shape[1]
    spread = _expected_log_det(posterior, D) - D * np.log(2 * np.pi) - D / posterior.beta
    return expected_log_weights(posterior) + 0.5 * spread - prior.log_det_root


def normalise(log_rho: Floats) -> tuple[Floats, Floats]:
    """Responsibilities [n, K] and the log normaliser [n] of log rho."""
    top = np.max(log_rho, axis=1)
    resp = log_rho - top[:, None]
    np.exp(resp, out=resp)  # once, for the sum and for the shares
    total = np.sum(resp, axis=1)
    resp /= total[:, None]
    return resp, np.log(total) + top


def expected_log_weights(posterior: ClusterPosterior) -> Floats:
    """E[log pi_k] of the stick-breaking weights, [K]."""
    a, b = posterior.sticks
    both = digamma(a + b)
    log_rest = np.cumsum(digamma(b) - both)
    return digamma(a) - both + np.concatenate([[0.0], log_rest[:-1]])


def expected_weights(posterior: ClusterPosterior) -> Floats:
    """Mixture weights from the expected sticks, scaled to sum to one, [K]."""
    a, b = posterior.sticks
    log_rest = np.cumsum(np.log(b) - np.log(a + b))
    weights = a / (a + b) * np.exp(np.concatenate([[0.0], log_rest[:-1]]))
    return weights / weights.sum()


def kl(posterior: ClusterPosterior, prior: Prior) -> float:
    """KL divergence of the posterior of sticks, means and precisions from their prior."""
    a, b = posterior.sticks
    alpha = prior.concentration
    both = digamma(a + b)
    sticks = betaln(1, alpha) - betaln(a, b)
    sticks = sticks + (a - 1) * (digamma(a) - both) + (b - alpha) * (digamma(b) - both)
    D = posterior.m.shape[1]
    ratio = prior.mean_precision / posterior.beta
    T, m = posterior.factor, posterior.m
    shift = T * m if T.ndim == 2 else np.einsum("kij,kj->ki", T, m)  # T_k m_k, [K, D]
    means = 0.5 * (
        D * (ratio - 1 - np.log(ratio))
        + prior.mean_precision * posterior.nu * np.sum(np.square(shift), axis=1)
    )
    # Of every Wishart W(W_k, nu_k) from W(I, nu0); of D Gammas where diagonal.
    nu, nu0 = posterior.nu, prior.degrees_of_freedom
    trace = np.sum(np.square(T).reshape(len(nu), -1), axis=1)
    log_norm = 0.5 * nu * posterior.log_det_W + _log_gamma(nu, D, prior.diagonal)
    log_norm = log_norm + 0.5 * (nu - nu0) * D * np.log(2) - _log_gamma(nu0, D, prior.diagonal)
    expected = 0.5 * (nu - nu0) * _expected_log_det(posterior, D)
    precisions = expected - log_norm - 0.5 * nu * D + 0.5 * nu * trace
    return float(np.sum(sticks) + np.sum(means) + np.sum(precisions))


def log_predictive(Z: Doubles, posterior: ClusterPosterior, prior: Prior) -> Floats:
    """Log density of new rows: a mixture of Student-t (Appendix 1), [n]."""
    D = Z.shape[1]
    nu, scale = posterior.nu, posterior.beta / (1 + posterior.beta)  # [K], [K]
    if prior.diagonal:
        log_t = gammaln((nu + 1) / 2) - gammaln(nu / 2)
        log_t = D * (log_t + 0.5 * np.log(scale / np.pi)) + 0.5 * posterior.log_det_W
        tail = np.empty((len(Z), len(nu)))
        for k in range(len(nu)):
            m, factor = (beside(x, Z) for x in (posterior.m[k], posterior.factor[k]))
            tail[:, k] = to_numpy(namespace(Z).log1p(scale[k] * ((Z - m) * factor) ** 2).sum(1))
    else:
        log_t = gammaln((nu + 1) / 2) - gammaln((nu + 1 - D) / 2)
        log_t = log_t + 0.5 * (D * np.log(scale / np.pi) + posterior.log_det_W)
        tail = np.log1p(scale * to_numpy(mahalanobis(Z, posterior)))
    log_t = np.log(expected_weights(posterior)) + log_t - 0.5 * (nu + 1) * tail
    return logsumexp(log_t, axis=1) - prior.log_det_root


def covariances(posterior: ClusterPosterior, prior: Prior) -> Floats:
    """Inverse of the expected precisions, (nu_k W_k)^-1, in the data's coordinates."""
    if prior.diagonal:
        return np.square(prior.root / posterior.factor) / posterior.nu[:, None]
    roots = np.stack([prior.root @ _invert_lower(T) for T in posterior.factor])  # [K, D, D]
    return roots @ roots.transpose(0, 2, 1) / posterior.nu[:, None, None]


def precisions(posterior: ClusterPosterior, prior: Prior) -> Floats:
    """Expected precisions nu_k W_k in the data's coordinates."""
    if prior.diagonal:
        return np.square(posterior.factor / prior.root) * posterior.nu[:, None]
    K, D = posterior.m.shape
    # T_k L0^-1 of all components, from L0^T Y = T_k^T
    Y = _solve_lower(prior.root, posterior.factor.reshape(-1, D).T, transpose=True)
    Y = Y.T.reshape(K, D, D)
    return Y.transpose(0, 2, 1) @ Y * posterior.nu[:, None, None]


def _log_gamma(nu: Floats | float, D: int, diagonal: bool) -> Floats:
    """Log Gamma_D(nu / 2) less the power of pi that cancels in the KL."""
    if diagonal:
        return D * gammaln(nu / 2)
    return np.sum(gammaln(0.5 * (np.asarray(nu)[..., None] - np.arange(D))), axis=-1)


def _expected_log_det(posterior: ClusterPosterior, D: int) -> Floats:
    """E[log |Lambda_k|], [K]."""
    nu = posterior.nu
    if posterior.factor.ndim == 2:
        spread = D * digamma(nu / 2)
    else:
        spread = np.sum(digamma(0.5 * (nu[:, None] - np.arange(D))), axis=1)
    return spread + D * np.log(2) + posterior.log_det_W


def _length(rows: Floats) -> Floats:
    return np.sqrt(np.einsum("nd,nd->n", rows, rows))


def _invert_lower(L: Floats) -> Floats:
    """T = L^-1 by substitution on the triangle alone, a third of a solve with the identity."""
    return dtrtri(L.T, lower=0)[0].T


def _solve_lower(L: Floats, B: Floats, transpose: bool = False) -> Floats:
    """L^-1 B, or L^-T B, for a lower-triangular, C-ordered L."""
    return dtrsm(1.0, L.T, B, lower=0, trans_a=int(not transpose))
