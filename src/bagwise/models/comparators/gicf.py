"""GICF: individual labels from group labels, by similar instances and the average of a group.

Kotzias, Denil, de Freitas and Smyth, "From group to individual labels using deep features"
(2015). The group-instance cost function asks similar instances for similar labels and each group
for an average label equal to its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scipy.special import expit
from sklearn.neighbors import kneighbors_graph

from bagwise.bags import Bags
from bagwise.core import rules, segments
from bagwise.core.arrays import Floats, Ints
from bagwise.models.comparators.common import InstanceComparator, minimised
from bagwise.models.parameters import AT_LEAST_1, NOT_NEGATIVE, parameter

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def similarity_graph(X: Floats, k: int) -> sp.csr_array:
    """Symmetric similarities ``exp(-d² / mean d²)`` of each instance to its k nearest, [N, N]."""
    k = min(k, len(X) - 1)
    if k < 1:
        return sp.csr_array((len(X), len(X)))
    graph = sp.csr_array(kneighbors_graph(X, k, mode="distance"))
    width = float((graph.data**2).mean()) or 1.0
    graph.data = np.exp(-(graph.data**2) / width)
    return ((graph + graph.T) / 2).tocsr()


def group_loss(
    theta: Floats, X: Floats, offsets: Ints, y: Ints, graph: csr_array, smooth: float, decay: float
) -> tuple[float, Floats]:
    """The group-instance cost and its gradient in weights and bias, stacked in theta.

    ``smooth / N`` times the sum of ``W_ij (p_i - p_j)²``, plus the mean of
    ``(average p of a bag - its label)²``, plus ``decay`` times the squared length of the weights.
    """
    N, B = len(X), len(y)
    # J = smooth / N sum_ij W_ij (p_i - p_j)² + 1 / B sum_b (mean_i p_i - y_b)² + decay |w|²; with
    # W symmetric its first sum is 2 p' L p for the Laplacian L = D - W.
    p = expit(X @ theta[:-1] + theta[-1])
    degree = np.asarray(graph.sum(axis=1)).ravel()
    roughness = degree * p - graph @ p  # the Laplacian of the graph, applied to p
    gap = segments.mean(p, offsets) - y
    loss = smooth * 2 * p @ roughness / N + (gap**2).mean() + decay * theta[:-1] @ theta[:-1]
    g = smooth * 4 * roughness / N  # dJ / dp_i
    g = g + segments.spread(2 * gap / (B * np.diff(offsets)), offsets)
    g = g * p * (1 - p)  # in the linear score, [N]
    return float(loss), np.append(g @ X + 2 * decay * theta[:-1], g.sum())


@dataclass(kw_only=True, eq=False, repr=False)
class GICF(InstanceComparator, name="gicf"):
    """Logistic labels of instances from the average label of their bag.

    Instances near each other should have similar probabilities, and those of a bag should
    average to its label. The score of a bag is the log-odds of that average, so this model
    holds that most instances of a positive bag are positive.

    Parameters
    ----------
    smooth : float, default=0.1
        Weight of the similarity term.
    decay : float, default=0.01
        Weight of the squared length of the coefficients.
    n_neighbors : int, default=10
        Neighbours of each instance in the graph of similarities; the paper takes all pairs.
    max_iter : int, default=200
        Most steps of L-BFGS.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    n_iter_ : int
    coef_, intercept_ : of the logistic score
    loss_ : float

    See Also
    --------
    VotingFramework

    References
    ----------
    [Kotzias2015]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> comparators.GICF().fit(bags[::2], y[::2]).predict_proba_instances(bags).shape
    (476, 2)
    """

    assumption = "embedding"
    smooth: float = parameter(0.1, NOT_NEGATIVE)
    decay: float = parameter(0.01, NOT_NEGATIVE)
    n_neighbors: int = parameter(10, AT_LEAST_1)
    max_iter: int = parameter(200, AT_LEAST_1)

    def _learn(self, bags: Bags, y: Ints) -> None:
        graph = similarity_graph(bags.instances, self.n_neighbors)
        given = bags.instances, bags.offsets, y, graph, self.smooth, self.decay
        start = np.zeros(bags.n_features + 1)
        theta, self.loss_, self.n_iter_ = minimised(group_loss, start, self.max_iter, *given)
        self.coef_, self.intercept_ = theta[:-1], float(theta[-1])

    def _instance_scores(self, X: Floats) -> Floats:
        return X @ self.coef_ + self.intercept_

    def _raw_scores(self, bags: Bags) -> Floats:
        p = expit(self._raw_instance_scores(bags))
        odds: Floats = rules.log_odds(segments.mean(p, bags.offsets))
        return odds
