"""miGraph and MIGraph: kernels between bags whose instances are not independent.

Zhou, Sun and Li, "Multi-instance learning by treating instances as non-i.i.d. samples" (2009).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel
from sklearn.svm import SVC
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.core.distances import set_kernel, set_self_kernel
from bagwise.models.comparators.common import PairwiseComparator
from bagwise.models.comparators.features import resolve_gamma
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter

# Edges whose features are computed at a time.
_EDGES = 100_000


def clique_weights(x: Floats) -> Floats:
    """Weight of each instance of a bag, 1 / number of instances nearer than the average, [n]."""
    d = euclidean_distances(x)
    # W_ij = 1 where d_ij is at most the mean distance; the weight is 1 / sum_j W_ij.
    return 1 / np.maximum((d <= d.mean()).sum(axis=1), 1)


def edges(x: Floats, gamma: float) -> Floats:
    """Edges of a bag's graph, both ways, as (degree, share) of either end, [E, 4].

    Instances nearer than the average are joined. A degree is divided by the number of edges; a
    share is the edge's affinity ``exp(-gamma d²)`` divided by that of all edges at that end.
    """
    d = euclidean_distances(x)
    joined = (d <= d.mean()) & ~np.eye(len(x), dtype=bool)
    if not joined.any():
        return np.empty((0, 4))
    affinity = np.where(joined, np.exp(-gamma * d**2), 0.0)
    total = np.maximum(affinity.sum(axis=1), np.finfo(np.float64).tiny)
    degree = joined.sum(axis=1) / (joined.sum() / 2)
    u, v = np.nonzero(joined)
    return np.column_stack(
        [degree[u], affinity[u, v] / total[u], degree[v], affinity[u, v] / total[v]]
    )


@dataclass(kw_only=True, eq=False, repr=False)
class _GraphMachine(PairwiseComparator):
    """An SVM on a kernel between bags, which a subclass gives as ``_compare``."""

    C: float = parameter(10.0, POSITIVE)
    gamma: float | str = parameter("median", StrOptions({"median"}), POSITIVE)

    def _remember(self, bags: Bags) -> None:
        self.gamma_ = resolve_gamma(self.gamma, bags.instances)
        self.instances_, self.offsets_ = bags.instances, bags.offsets

    def _kernel(self, X: Floats, Z: Floats) -> Floats:
        return rbf_kernel(X, Z, gamma=self.gamma_)

    def _learn_from(self, matrix: Floats, y: Ints) -> SVC:
        return SVC(C=self.C, kernel="precomputed").fit(matrix, y)

    def _score(self, rule: SVC, matrix: Floats) -> Floats:
        return rule.decision_function(matrix)


class MiGraph(_GraphMachine, name="mi-graph"):
    """SVM on bags whose instances share the weight of their clique (miGraph).

    Instances of a bag that are nearer to each other than the average distance in the bag are
    joined; an instance that is one of n in such a group has weight 1 / n. The kernel of two bags is
    the weighted mean of an RBF kernel over all pairs of their instances, so that a bag full of
    near copies does not count them all.

    Parameters
    ----------
    C : float, default=10.0
        Penalty of a margin violation.
    gamma : float or "median", default="median"
        Of the kernel ``exp(-gamma d²)`` between instances; "median" is five over the median
        squared distance.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    instances_, offsets_, weights_ : arrays
        The training bags and the weight of each of their instances.
    gamma_ : float
    rule_ : SVC on the kernel of bags

    See Also
    --------
    MIGraph, bagwise.SetKernelSVM

    References
    ----------
    [Zhou2009]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> comparators.MiGraph().fit(bags[::2], y[::2]).predict(bags[1::2]).shape
    (46,)
    """

    def _remember(self, bags: Bags) -> None:
        super()._remember(bags)
        self.weights_ = _all_weights(bags)

    def _compare(self, bags: Bags) -> Floats:
        return set_kernel(
            bags.instances,
            bags.offsets,
            self.instances_,
            self.offsets_,
            self._kernel,
            (_all_weights(bags), self.weights_),
        )


def _all_weights(bags: Bags) -> Floats:
    """Weights of all instances, summing to one in each bag, [N]."""
    w = np.concatenate([clique_weights(x) for x in bags])
    return w / segments.spread(segments.sum(w, bags.offsets), bags.offsets)


@dataclass(kw_only=True, eq=False, repr=False)
class MIGraph(_GraphMachine, name="mi-graph-edges"):
    """SVM on bags as graphs, comparing their nodes and their edges (MIGraph).

    The kernel is the sum of RBF kernels over all pairs of instances, normalised to length one,
    plus the same over all pairs of edges. An edge joins instances nearer than their average and
    is described by the degree of its ends and the share it has in their affinities. The paper
    normalises after adding; edges are so many more than nodes that the nodes would then
    hardly count.

    Parameters
    ----------
    C, gamma : as in `MiGraph`, default=10.0, "median"
    edge_gamma : float, default=1.0
        Of the RBF kernel between edges, which have four features.
    n_edge_features : int, default=50
        Most landmarks of the Nyström features with which edges are summed; a bag of a thousand
        instances has up to a million edges, whose pairs nobody can afford.
    random_state : int, RandomState or None, default=None
        Draws the landmarks.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    instances_, offsets_, edge_sums_, node_norms_ : arrays
        The training bags, their summed features of edges (length one), and lengths of the nodes.
    edge_features_ : Nystroem, or None where no bag has an edge
    gamma_, rule_ : as in `MiGraph`

    See Also
    --------
    MiGraph

    References
    ----------
    [Zhou2009]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> comparators.MIGraph(random_state=0).fit(bags[::2], y[::2]).predict(bags[1::2]).shape
    (46,)
    """

    edge_gamma: float = parameter(1.0, POSITIVE)
    n_edge_features: int = parameter(50, AT_LEAST_1)
    random_state: RandomState = parameter(None, "random_state")

    def _remember(self, bags: Bags) -> None:
        super()._remember(bags)
        rng = check_random_state(self.random_state)
        # At most a thousand edges of each bag, for the landmarks.
        sample = np.concatenate(
            [
                e if len(e) <= 1000 else e[rng.choice(len(e), 1000)]
                for e in (edges(x, self.gamma_) for x in bags)
            ]
        )
        self.edge_features_ = None
        if len(sample):
            n = min(self.n_edge_features, len(sample))
            nystroem = Nystroem(gamma=self.edge_gamma, n_components=n, random_state=rng)
            self.edge_features_ = nystroem.fit(sample)
        self.edge_sums_ = self._edge_sums(bags)
        self.node_norms_ = self._node_norms(bags)

    def _edge_sums(self, bags: Bags) -> Floats:
        """Sums of the features of each bag's edges, of length one, [B, F]."""
        if self.edge_features_ is None:
            return np.zeros((len(bags), 1))
        sums = np.zeros((len(bags), self.edge_features_.components_.shape[0]))
        for b, x in enumerate(bags):
            e = edges(x, self.gamma_)
            for start in range(0, len(e), _EDGES):
                sums[b] += self.edge_features_.transform(e[start : start + _EDGES]).sum(axis=0)
        # A bag without edges has none in common with any other.
        return sums / np.maximum(np.linalg.norm(sums, axis=1), np.finfo(float).tiny)[:, None]

    def _node_norms(self, bags: Bags) -> Floats:
        return np.sqrt(set_self_kernel(bags.instances, bags.offsets, self._kernel))

    def _compare(self, bags: Bags) -> Floats:
        # sum_ij k(a_i, b_j) / sqrt(K(A, A) K(B, B)) of nodes, and the same of edges.
        nodes = set_kernel(
            bags.instances, bags.offsets, self.instances_, self.offsets_, self._kernel
        )
        nodes /= np.outer(self._node_norms(bags), self.node_norms_)
        return nodes + self._edge_sums(bags) @ self.edge_sums_.T
