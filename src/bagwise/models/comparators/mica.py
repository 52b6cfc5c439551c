"""MICA: a sparse linear SVM and, for each positive bag, a point of its convex hull.

Fung, Dundar, Krishnapuram and Rao, "Multiple instance learning for computer aided diagnosis"
(2006): given the points, a 1-norm SVM; given the SVM, the points; in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from bagwise.bags import Bags
from bagwise.core import l1_svm, segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.models.comparators.common import InstanceComparator
from bagwise.models.comparators.features import place_landmarks, resolve_gamma
from bagwise.models.comparators.ki_svm import hardest
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter


def project_to_simplex(v: Floats) -> Floats:
    """The nearest point with entries >= 0 that sum to one."""
    # Subtract from every entry the one number that leaves a sum of 1, and clip at 0.
    u = np.sort(v)[::-1]
    excess = (np.cumsum(u) - 1) / np.arange(1, len(v) + 1)
    k = int(np.flatnonzero(u > excess)[-1])
    return np.maximum(v - excess[k], 0.0)


def hull_weights(scores: Floats, target: float) -> Floats:
    """The most even convex weights whose mean score reaches ``target``, or comes nearest to it.

    Minimises ``|λ|²`` subject to ``λ @ scores >= min(target, max(scores))``. The solution is
    the projection of ``t * scores`` onto the simplex for the smallest t >= 0 that reaches it.
    """
    target = min(target, float(scores.max()))
    n = len(scores)
    if scores.mean() >= target:
        return np.full(n, 1 / n)
    spread = float(scores.max() - np.sort(scores)[-2]) if n > 1 else 1.0
    low, high = 0.0, 2 / max(spread, 1e-9 * max(1.0, float(np.abs(scores).max())))
    for _ in range(60):
        middle = (low + high) / 2
        if project_to_simplex(middle * scores) @ scores >= target:
            high = middle
        else:
            low = middle
    return project_to_simplex(high * scores)


@dataclass(kw_only=True, eq=False, repr=False)
class MICA(InstanceComparator, name="mica"):
    """Multiple-instance learning by convex hulls.

    A positive bag is represented by one point of the convex hull of its instances, which need
    not be one of them; negative bags by all instances. A 1-norm SVM on these points and the
    weights of the points are improved in turn.

    Parameters
    ----------
    alpha : float, default=0.3
        Weight of the 1-norm; larger keeps fewer features.
    kernel : {"rbf", "linear"}, default="rbf"
        "rbf" describes an instance by its similarity to ``n_anchors`` points, the reduced
        kernel SVM of the authors; "linear" uses the features themselves.
    n_anchors : int, default=100
    gamma : as in `BagKISVM`, default="median"
    max_iter : int, default=5
        Most turns.
    random_state : int, RandomState or None, default=None
        Of the k-means that places the anchors.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    n_iter_ : int
    coef_, intercept_ : of the SVM
    anchors_ : array, or None for the linear kernel
    hull_weights_ : array of shape (n_instances_of_positive_bags,)
        λ, which sums to one in every positive bag.

    See Also
    --------
    bagwise.MISVM

    References
    ----------
    [Fung2006]_

    Notes
    -----
    The SVM has squared hinge losses (liblinear), where the paper solves linear programs;
    each instance of a negative bag of n counts 1 / n, and of large bags the 20 that come nearest
    to the margin of a first SVM are kept. Given the SVM any weights that pass
    the margin are optimal; the most even ones are taken.

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> comparators.MICA(cv=3, random_state=0).fit(bags[::2], y[::2]).predict_instances(bags).shape
    (476,)
    """

    alpha: float = parameter(0.3, POSITIVE)
    kernel: str = parameter("rbf", StrOptions({"rbf", "linear"}))
    n_anchors: int = parameter(100, AT_LEAST_1)
    gamma: float | str = parameter("median", StrOptions({"median"}), POSITIVE)
    max_iter: int = parameter(5, AT_LEAST_1)
    random_state: RandomState = parameter(None, "random_state")

    def _learn(self, bags: Bags, y: Ints) -> None:
        self.anchors_ = None
        if self.kernel == "rbf":
            rng = check_random_state(self.random_state)
            self.anchors_ = place_landmarks(bags, y, self.n_anchors, rng)
            self.gamma_ = resolve_gamma(self.gamma, bags.instances)
        Z = self._embed(bags.instances)
        in_positive = segments.spread(y, bags.offsets) == 1
        P, Q = Z[in_positive], Z[~in_positive]
        _, offsets = segments.take(bags.offsets, np.flatnonzero(y == 1))
        _, n_offsets = segments.take(bags.offsets, np.flatnonzero(y == 0))
        # A first SVM on the means of bags finds the negatives that come near the margin.
        means = segments.mean(Q, n_offsets)
        svm = self._train(segments.mean(P, offsets), means, np.ones(len(means)))
        rows, costs = hardest(Q @ svm.w, n_offsets)
        weights = 1 / segments.spread(np.diff(offsets).astype(np.float64), offsets)
        for turn in range(self.max_iter):
            # Given λ, the SVM on the points sum_i λ_i x_i; given the SVM, λ.
            points = segments.sum(weights[:, None] * P, offsets)
            svm = self._train(points, Q[rows], costs)
            previous, scores = weights, P @ svm.w + svm.b
            parts = np.split(scores, offsets[1:-1])
            weights = np.concatenate([hull_weights(part, 1.0) for part in parts])
            self.n_iter_ = turn + 1
            if np.abs(weights - previous).max() < 1e-3:
                break
        self.coef_, self.intercept_ = svm.w, svm.b
        self.hull_weights_ = weights

    def _train(self, points: Floats, negatives: Floats, costs: Floats) -> l1_svm.Weights:
        rows = np.concatenate([points, negatives])
        signs = np.concatenate([np.ones(len(points)), -np.ones(len(negatives))])
        costs = np.concatenate([np.ones(len(points)), costs])
        return l1_svm.solve_liblinear(rows, signs, self.alpha, costs, tol=1e-2)

    def _embed(self, X: Floats) -> Floats:
        return X if self.anchors_ is None else rbf_kernel(X, self.anchors_, gamma=self.gamma_)

    def _instance_scores(self, X: Floats) -> Floats:
        return self._embed(X) @ self.coef_ + self.intercept_
