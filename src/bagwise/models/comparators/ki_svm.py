"""KI-SVM: a convex SVM that looks for the key instance of every positive bag.

Li, Kwok, Tsang and Zhou, "A convex method for locating regions of interest with multi-instance
learning" (2009). The choice of key instances is relaxed to a mixture of choices: each is a
kernel, a cutting plane adds the most violated one, and their weights are learned as in
multiple-kernel learning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.svm import SVC
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.models.comparators.common import InstanceComparator
from bagwise.models.comparators.features import Features, place_landmarks, resolve_gamma
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter

# Instances kept of each negative bag, so that SVMs stay small.
MOST_PER_BAG = 20


def hardest(scores: Floats, offsets: Ints, most: int = MOST_PER_BAG) -> tuple[Ints, Floats]:
    """Rows of the ``most`` highest scores of every bag of n, and the cost 1 / n' of each.

    Rows are in the order of the bags; n' is how many of a bag were kept.
    """
    owner = segments.index(offsets)
    order = np.lexsort((-scores, owner))
    rank = np.arange(len(scores)) - np.repeat(offsets[:-1], np.diff(offsets))
    rows = order[rank < most]
    kept = np.minimum(np.diff(offsets), most)
    return rows, np.repeat(1 / kept, kept)


def mix_kernels(
    kernels: list[Floats], signs: Floats, C: Floats, turns: int = 10
) -> tuple[Floats, Floats]:
    """Weights of the kernels [T] and dual coefficients ``α y`` [n] of the mixed SVM.

    For fixed weights an SVC; for a fixed SVM, weights proportional to the length of each
    kernel's part of w, which is the optimum of the mixed margin. ``C`` is per row.
    """
    mu = np.full(len(kernels), 1 / len(kernels))
    alpha = np.zeros(len(signs))
    for _ in range(turns):
        K = np.tensordot(mu, np.stack(kernels), axes=1)
        svc = SVC(C=1.0, kernel="precomputed").fit(K, signs, sample_weight=C)
        alpha = np.zeros(len(signs))
        alpha[svc.support_] = svc.dual_coef_[0]
        if len(kernels) == 1:
            break
        # The part of kernel t in w has length mu_t sqrt(alpha' K_t alpha).
        lengths = mu * np.sqrt(np.maximum([alpha @ k @ alpha for k in kernels], 0.0))
        if lengths.sum() <= 0:
            break
        previous, mu = mu, lengths / lengths.sum()
        if np.abs(mu - previous).max() < 1e-3:
            break
    return mu, alpha


def best_bias(positives: Floats, negatives: Floats, costs: Floats) -> float:
    """The bias of least hinge loss for scores of positive bags and of negative rows.

    The loss is piecewise linear, so its minimum is where one of its terms begins.
    """
    bias = np.concatenate([1 - positives, -1 - negatives])
    loss = np.maximum(0, 1 - positives[None] - bias[:, None]).sum(axis=1)
    loss += np.maximum(0, 1 + negatives[None] + bias[:, None]) @ costs
    return float(bias[np.argmin(loss)])


@dataclass(kw_only=True, eq=False, repr=False)
class BagKISVM(InstanceComparator, name="bag-ki-svm"):
    """Key-instance SVM with one margin per negative bag.

    Of a positive bag one key instance must pass the margin; a negative bag is represented by
    the mean of its instances. Which instances are keys is a mixture of choices, found by
    cutting planes, and the problem is convex given the planes.

    Parameters
    ----------
    C : float, default=10.0
        Penalty of a margin violation.
    gamma : float or "median", default="median"
        Of the RBF kernel; "median" is five over the median squared distance.
    n_components : int, default=200
        Landmarks of the Nyström features in which the kernel is computed.
    max_iter : int, default=8
        Most cutting planes.
    random_state : int, RandomState or None, default=None
        Of the k-means that places the landmarks.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    n_iter_ : int
    keys_ : array of int
        Training row of the key instance of each positive bag.
    kernel_weights_ : array, weight of each choice of key instances
    coef_, intercept_ : the SVM on the Nyström features
    landmarks_ : array of shape (n_landmarks, n_features)

    See Also
    --------
    InstanceKISVM

    References
    ----------
    [LiKwokTsang2009]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> len(comparators.BagKISVM(cv=3, random_state=0).fit(bags[::2], y[::2]).keys_)
    24
    """

    C: float = parameter(10.0, POSITIVE)
    gamma: float | str = parameter("median", StrOptions({"median"}), POSITIVE)
    n_components: int = parameter(200, AT_LEAST_1)
    max_iter: int = parameter(8, AT_LEAST_1)
    random_state: RandomState = parameter(None, "random_state")

    def _negative_rows(self, phi: Floats, offsets: Ints, w: Floats) -> tuple[Floats, Floats]:
        """Rows that stand for the negative bags under the weights w, and the cost of each."""
        return segments.mean(phi, offsets), np.ones(len(offsets) - 1)

    def _learn(self, bags: Bags, y: Ints) -> None:
        self.gamma_ = resolve_gamma(self.gamma, bags.instances)
        rng = check_random_state(self.random_state)
        self.landmarks_ = place_landmarks(bags, y, self.n_components, rng)
        phi = self._features(bags.instances)  # [N, M]
        in_positive = segments.spread(y, bags.offsets) == 1
        P, Q = phi[in_positive], phi[~in_positive]
        _, p_offsets = segments.take(bags.offsets, np.flatnonzero(y == 1))
        _, n_offsets = segments.take(bags.offsets, np.flatnonzero(y == 0))
        # The first SVM: bags by their means, as MI-SVM starts.
        means = segments.mean(Q, n_offsets)
        mu, w = self._train([segments.mean(P, p_offsets)], means, np.ones(len(means)))
        negatives, costs = self._negative_rows(Q, n_offsets, w)
        choices: list[Ints] = []
        for turn in range(self.max_iter):
            # The cutting plane most violated: the best instance of every positive bag.
            new = segments.argmax(P @ w, p_offsets)
            if any(np.array_equal(new, old) for old in choices):
                break
            choices.append(new)
            mu, w = self._train([P[rows] for rows in choices], negatives, costs)
            self.n_iter_ = turn + 1
        self.coef_, self.kernel_weights_ = w, mu
        self.keys_ = np.flatnonzero(in_positive)[segments.argmax(P @ w, p_offsets)]
        # With a mixture of choices libsvm's bias belongs to no single one of them.
        self.intercept_ = best_bias(segments.max(P @ w, p_offsets), negatives @ w, costs)

    def _train(
        self, planes: list[Floats], negatives: Floats, costs: Floats
    ) -> tuple[Floats, Floats]:
        """Weights of the planes, and the mixed weight vector."""
        rows = [np.concatenate([plane, negatives]) for plane in planes]
        n_pos = len(planes[0])
        signs = np.concatenate([np.ones(n_pos), -np.ones(len(negatives))])
        C = self.C * np.concatenate([np.ones(n_pos), costs])
        mu, alpha = mix_kernels([r @ r.T for r in rows], signs, C)
        return mu, np.sum([m * (alpha @ r) for m, r in zip(mu, rows, strict=True)], axis=0)

    def _features(self, X: Floats) -> Floats:
        return Features(self.landmarks_, self.gamma_)(X)

    def _instance_scores(self, X: Floats) -> Floats:
        return self._features(X) @ self.coef_ + self.intercept_


class InstanceKISVM(BagKISVM, name="ki-svm"):
    """Key-instance SVM with one margin per negative instance.

    As `BagKISVM`, but every instance of a negative bag has its own margin; those of a bag of n
    cost 1 / n each. Of bags with more than 20 instances, the 20 that score highest under a first
    SVM are kept: the others are far from the margin.

    Parameters and attributes are those of `BagKISVM`.

    See Also
    --------
    BagKISVM

    References
    ----------
    [LiKwokTsang2009]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> len(comparators.InstanceKISVM(cv=3, random_state=0).fit(bags[::2], y[::2]).keys_)
    24
    """

    def _negative_rows(self, phi: Floats, offsets: Ints, w: Floats) -> tuple[Floats, Floats]:
        rows, costs = hardest(phi @ w, offsets)
        return phi[rows], costs
