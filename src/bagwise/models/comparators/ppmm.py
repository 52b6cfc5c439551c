"""PPMM kernel: bags as p-norms of their instances' posteriors in a mixture model.

Wang, Yang and Zha, "Adaptive p-posterior mixture-model kernels for multiple instance learning"
(2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp
from sklearn.cluster import KMeans
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC
from sklearn.utils import check_random_state

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.core.squared import sq_distances
from bagwise.models.comparators.common import Comparator
from bagwise.models.held_out import splits
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter


def p_posterior(log_posterior: Floats, offsets: Ints, p: float) -> Floats:
    """p-norm mean of each component's posterior over a bag, [B, K]; p = inf is the maximum."""
    if np.isinf(p):
        return np.exp(segments.max(log_posterior, offsets))
    # (1/n sum_i P_ik^p)^(1/p), in the log domain.
    n = np.log(np.diff(offsets))[:, None]
    return np.exp((segments.logsumexp(p * log_posterior, offsets) - n) / p)


@dataclass(kw_only=True, eq=False, repr=False)
class PPMM(Comparator, name="ppmm"):
    """SVM on the posterior probabilities of mixture components, pooled over the bag.

    A mixture of Gaussians describes all instances. A bag's feature k is the p-norm mean of the
    posteriors of component k over its instances: p = 1 is the average, p = inf the maximum, which
    are the collective and the standard view of a bag. The power is adapted to the data by
    cross-validation on the training bags.

    Parameters
    ----------
    n_components : int, default=100
        Components of the mixture, at most the distinct instances.
    powers : sequence of float, default=(1.0, 2.0, 4.0, inf)
        Values of p to choose from; ``inf`` is allowed.
    softness : float, default=2.0
        Variance of a component in units of the mean squared distance to the nearest one. In
        many dimensions posteriors are otherwise 0 or 1.
    C : float, default=3.0
        Penalty of the SVM with an RBF kernel on standard-scaled posteriors.
    random_state : int, RandomState or None, default=None
        Of the k-means that places the components.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    centres_ : array of shape (n_components, n_features)
    log_weights_ : array of shape (n_components,)
    variance_ : float
    power_ : float, the p that was chosen
    powers_scores_ : dict of p to accuracy on held-out training bags
    feature_scale_ : array, standard deviation of each pooled posterior
    svc_ : SVC

    See Also
    --------
    DDSVM

    References
    ----------
    [Wang2008]_

    Notes
    -----
    The mixture has equal spherical covariances, fitted by k-means: with 166 features and 400
    instances nothing richer can be estimated.

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> model = comparators.PPMM(powers=(1, 2), cv=3, random_state=0).fit(bags[::2], y[::2])
    >>> sorted(model.powers_scores_)
    [1, 2]
    """

    n_components: int = parameter(100, AT_LEAST_1)
    powers: Sequence[float] = parameter((1.0, 2.0, 4.0, np.inf), tuple, list)
    softness: float = parameter(2.0, POSITIVE)
    C: float = parameter(3.0, POSITIVE)
    random_state: RandomState = parameter(None, "random_state")

    def _learn(self, bags: Bags, y: Ints) -> None:
        if not len(self.powers) or not all(p > 0 for p in self.powers):
            raise ValueError(f"powers must be positive numbers; got {self.powers!r}.")
        rng = check_random_state(self.random_state)
        X = bags.instances
        distinct, counts = np.unique(X, axis=0, return_counts=True)
        K = min(self.n_components, len(distinct))
        kmeans = KMeans(K, n_init=1, random_state=rng).fit(distinct, sample_weight=counts)
        self.centres_ = kmeans.cluster_centers_
        nearest = sq_distances(X, self.centres_)
        owners = np.bincount(nearest.argmin(axis=1), minlength=K)
        # Laplace's rule, so that no component has weight 0.
        self.log_weights_ = np.log((owners + 1) / (len(X) + K))
        self.variance_ = self.softness * float(nearest.min(axis=1).mean()) or 1.0
        pooled = {p: p_posterior(self._log_posterior(X), bags.offsets, p) for p in self.powers}
        spread = {p: np.where(Z.std(axis=0) > 0, Z.std(axis=0), 1.0) for p, Z in pooled.items()}
        self.powers_scores_ = dict.fromkeys(self.powers, float("nan"))
        if len(self.powers) > 1 and np.bincount(y).min() > 1:
            folds = splits(y, 5)
            for p, Z in pooled.items():
                accuracy = cross_val_score(SVC(C=self.C), Z / spread[p], y, cv=folds)
                self.powers_scores_[p] = float(accuracy.mean())
        # The first of the best: ties, or a bag too few to compare, go to the power named first.
        self.power_ = max(self.powers, key=lambda p: self.powers_scores_[p])
        self.feature_scale_ = spread[self.power_]
        self.svc_ = SVC(C=self.C).fit(pooled[self.power_] / self.feature_scale_, y)

    def _log_posterior(self, X: Floats) -> Floats:
        """Normalised log [w_k N(x; c_k, v I)], the spherical components, [N, K]."""
        joint = self.log_weights_ - sq_distances(X, self.centres_) / (2 * self.variance_)
        return joint - logsumexp(joint, axis=1, keepdims=True)

    def _raw_scores(self, bags: Bags) -> Floats:
        Z = p_posterior(self._log_posterior(bags.instances), bags.offsets, self.power_)
        return self.svc_.decision_function(Z / self.feature_scale_)
