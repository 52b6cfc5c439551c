"""Support vector machines for bags: MI-SVM, mi-SVM and the normalised set kernel.

MI-SVM and mi-SVM follow Andrews, Tsochantaridis and Hofmann, "Support vector machines for
multiple-instance learning" (2002); the set kernel follows Gärtner, Flach, Kowalczyk and Smola,
"Multi-instance kernels" (2002). The quadratic programs are scikit-learn's SVC.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.svm import SVC
from sklearn.utils import compute_class_weight
from sklearn.utils._param_validation import Interval, StrOptions

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Bools, Codes, Column, Floats, Ints, Rows, is_sparse
from bagwise.core.blocks import BLOCK_ENTRIES
from bagwise.core.distances import set_kernel, set_self_kernel
from bagwise.core.working_set import solve_on_working_set
from bagwise.models.base import TrainingData
from bagwise.models.calibration.calibrated import BestInstanceClassifier, CalibratedClassifier
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter
from bagwise.models.scaling import ScalesFeatures

if TYPE_CHECKING:
    from bagwise.models.labels import ClassWeight


# Up to this many rows libsvm gets them all; beyond, a working set.
DIRECT_ROWS = 1000

_KERNELS = {"linear", "rbf", "poly", "sigmoid"}


def choose_key_instances(scores: Floats, offsets: Ints, y: Column, known: Codes) -> Codes:
    """MI-SVM's labels: the best instance of a positive bag is 1, the rest of it -1.

    Known labels stand. A bag with a known positive needs no other, and a known negative is never
    the key instance.
    """
    labels = np.where(segments.spread(y, offsets) == 0, 0, known).astype(np.int8)
    labels[_required_positives(scores, offsets, y, known, labels)] = 1
    return labels


def impute_labels(scores: Floats, offsets: Ints, y: Column, known: Codes) -> Codes:
    """mi-SVM's labels: the sign of the score in positive bags, each with at least one 1."""
    positive = (scores > 0) & (segments.spread(y, offsets) == 1)
    labels = np.where(known >= 0, known, positive).astype(np.int8)
    labels[_required_positives(scores, offsets, y, known, labels)] = 1
    return labels


def _required_positives(
    scores: Floats, offsets: Ints, y: Ints, known: Codes, labels: Codes
) -> Ints:
    """Best allowed row of each positive bag that has no positive label yet."""
    allowed = np.where(known == 0, -np.inf, scores)
    has_one = segments.max((labels == 1).astype(np.float64), offsets) > 0
    return segments.argmax(allowed, offsets)[(y == 1) & ~has_one]


@dataclass(kw_only=True, eq=False, repr=False)
class _KernelSVM(CalibratedClassifier):
    """The parameters that both kinds of SVM share."""

    C: float = parameter(1.0, POSITIVE)
    kernel: str | Callable[[Rows, Rows], Floats] = parameter("rbf", StrOptions(_KERNELS), callable)
    gamma: float | str = parameter("scale", StrOptions({"scale", "auto"}), POSITIVE)
    degree: int = parameter(3, AT_LEAST_1)
    coef0: float = parameter(0.0, Interval(Real, None, None, closed="neither"))
    class_weight: ClassWeight | None = parameter(None, StrOptions({"balanced"}), dict, None)
    tol: float = parameter(1e-3, POSITIVE)
    cache_size: float = parameter(200, POSITIVE)

    def _resolve_gamma(self, X: Rows) -> float:
        """Gamma from all training instances, so that it stays put while labels change."""
        if self.gamma == "auto":
            return 1 / X.shape[1]
        if self.gamma != "scale":
            return float(self.gamma)
        if is_sparse(X):
            variance = X.multiply(X).mean() - X.mean() ** 2
        else:
            variance = np.asarray(X).var(dtype=np.float64)
        return 1 / (X.shape[1] * (float(variance) or 1.0))

    def _bag_weights(self, y: Ints) -> Floats:
        """Weight of each bag by its class; "balanced" counts bags, not instances."""
        if self.class_weight is None:
            return np.ones(len(y))
        names = self.classes_
        return compute_class_weight(self.class_weight, classes=names, y=names[y])[y]

    def _instance_kernel(self, X: Rows, Z: Rows) -> Floats:
        if callable(self.kernel):
            return np.asarray(self.kernel(X, Z))
        return pairwise_kernels(
            X if is_sparse(X) else np.asarray(X),
            Z if is_sparse(Z) else np.asarray(Z),
            metric=self.kernel,
            filter_params=True,
            gamma=self.gamma_,
            degree=self.degree,
            coef0=self.coef0,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class MISVM(ScalesFeatures, _KernelSVM, BestInstanceClassifier):
    """Maximum-margin multiple-instance learning, by bags ("MI") or by instances ("mi").

    A bag scores as its best instance. MI-SVM alternates between a support vector machine and
    the choice of one key instance per positive bag; mi-SVM alternates between an SVM and labels
    for all instances of positive bags, at least one of them positive. Each turn lowers one
    objective, nothing is random, and a fit ends when the choice repeats itself.

    Parameters
    ----------
    variant : {"MI", "mi"}, default="MI"
        Margin of bags or margin of instances.
    C : float, default=10.0
        Penalty of a margin violation.
    kernel : {"rbf", "linear", "poly", "sigmoid"} or callable, default="rbf"
        Kernel between instances.
    gamma : {"scale", "auto"} or float, default="scale"
        Kernel coefficient; "scale" is 1 / (n_features * variance of all training instances).
    degree, coef0 : int, float, default=3, 0.0
        Of the polynomial and sigmoid kernels.
    slack : {"auto", "bag", "instance"}, default="auto"
        What one violation is counted for. "bag": the instances of a bag share one weight, the
        paper's slack per bag in MI-SVM. "instance": each row has its own, as in mi-SVM.
        "auto" is each variant's own.
    class_weight : dict, "balanced" or None, default=None
        Weights of the bag classes; "balanced" counts bags.
    scale : {"feature", "global", None}, default="feature"
        Standardise each feature, or divide all by one number; learned from the training bags.
    max_iter : int, default=50
        Most SVMs to fit; reaching it is a ``ConvergenceWarning``.
    tol, cache_size : float, default=0.001, 200
        Of the SVC; cache in MiB.
    calibrate : bool, default=True
        Give ``predict_proba``, calibrated on bags held out by an inner cross-validation.
    calibration : {"platt", "isotonic"}, default="platt"
    cv : int, splitter or None, default=None
        The inner cross-validation; an int is that many shuffled stratified folds, None five of
        them, or ten where a class has fewer than twenty bags.

    Attributes
    ----------
    svc_ : the last SVC
    imputed_labels_ : array of shape (n_instances,)
        Codes of the training instances: 1 and 0 were trained on, -1 was left out (MI).
    objectives_ : list of float
        Objective of every SVM fitted.
    converged_ : bool
        Whether the choice repeated itself within ``max_iter``.
    n_iter_ : int
        SVMs fitted.
    gamma_ : float
    calibrator_ : with ``calibrate=True``, the calibration function from score to log-odds
    classes_ : the two bag classes

    See Also
    --------
    SetKernelSVM, SingleInstance

    References
    ----------
    [Andrews2002]_

    Notes
    -----
    MI-SVM's program has one slack for a whole negative bag; libsvm has one per row. With
    ``slack="bag"`` each of its n rows has weight C / n, so that a bag of a thousand instances does
    not outvote the others. Known instance labels are rows of weight C; a bag with a known
    positive needs no other key instance.

    Examples
    --------
    >>> from bagwise import MISVM
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> model = MISVM(C=10).fit(bags, y)
    >>> model.converged_, model.predict_instances(bags).shape == (bags.n_instances,)
    (True, True)
    """

    _accept_sparse = True
    variant: str = parameter("MI", StrOptions({"MI", "mi"}))
    C: float = parameter(10.0, POSITIVE)
    slack: str = parameter("auto", StrOptions({"auto", "bag", "instance"}))
    max_iter: int = parameter(50, AT_LEAST_1)

    def _fit(self, data: TrainingData) -> None:
        (bags, y, known), X, offsets = data, data.bags.instances, data.bags.offsets
        self.gamma_ = self._resolve_gamma(X)
        update = choose_key_instances if self.variant == "MI" else impute_labels
        weights = self._row_weights(data)
        positive_bag = segments.spread(y, offsets) == 1
        open_rows = np.flatnonzero(positive_bag & (known < 0))
        scores = np.zeros(bags.n_instances)
        labels: Codes = np.where(known >= 0, known, positive_bag).astype(np.int8)
        self.svc_, active, objective = self._first_svc(data, labels, weights)
        self.objectives_ = [objective]
        if self.variant == "MI":
            labels[open_rows] = -1
        seen: set[bytes] = {labels.tobytes()}
        while True:
            # Given the SVM, the labels.
            if len(open_rows):
                scores[open_rows] = self._svc_scores(self.svc_, X[open_rows])
            previous, labels = labels, update(scores, offsets, y, known)
            self.converged_ = np.array_equal(previous, labels)
            # Equal objectives can alternate for ever: a choice seen before ends the search.
            stuck = labels.tobytes() in seen or len(self.objectives_) == self.max_iter
            if self.converged_ or stuck:
                break
            seen.add(labels.tobytes())
            # Given the labels, the SVM.
            rows = np.flatnonzero(labels >= 0)
            active[open_rows] = True
            self.svc_, used, objective = self._solve(
                X[rows], labels[rows], weights[rows], active[rows]
            )
            active[:] = False
            active[rows[used]] = True
            self.objectives_.append(objective)
        self.imputed_labels_ = previous
        self.n_iter_ = len(self.objectives_)
        if not self.converged_:
            warnings.warn(
                f"MISVM did not converge in {self.n_iter_} iterations; the last objectives are "
                f"{self.objectives_[-3:]}. Raise max_iter or lower C.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _row_weights(self, data: TrainingData) -> Floats:
        """Weight of each training row: its bag's, shared by a bag's rows where slack says so."""
        bags, y, known = data
        weights = segments.spread(self._bag_weights(y), bags.offsets)  # [N]
        if self.slack == "instance" or (self.slack == "auto" and self.variant == "mi"):
            return weights
        share = 1 / segments.spread(bags.sizes.astype(np.float64), bags.offsets)
        alone = segments.spread(y, bags.offsets) == 1  # a key instance has its bag's whole weight
        if self.variant == "mi":
            alone &= known >= 0
        return np.where(alone, weights, weights * share)

    def _first_svc(
        self, data: TrainingData, labels: Codes, weights: Floats
    ) -> tuple[SVC, Bools, float]:
        """Start as the paper does: bag means as key instances (MI), all instances positive (mi).

        Returns the SVC, a mask of the rows that support it, and its objective.
        """
        (bags, y, known), X, offsets = data, data.bags.instances, data.bags.offsets
        active = np.zeros(bags.n_instances, dtype=bool)
        # A start for large sets: all positive rows, and the others thinned evenly.
        active[labels == 1] = True
        active[:: max(1, bags.n_instances // DIRECT_ROWS)] = True
        unsure = (segments.spread(y, offsets) == 1) & (known < 0) & (self.variant == "MI")
        rows = np.flatnonzero(~unsure)
        A, t, w, start = X[rows], labels[rows], weights[rows], active[rows]
        n_means = 0
        if unsure.any():
            has_known = segments.max((known == 1).astype(np.float64), offsets) > 0
            chosen = np.flatnonzero((y == 1) & ~has_known)
            means, n_means = _means(X, offsets, unsure)[chosen], len(chosen)
            A = sp.vstack([means, A], format="csr") if is_sparse(A) else np.r_[means, A]
            t = np.r_[np.ones(n_means, dtype=np.int8), t]
            w = np.r_[self._bag_weights(y)[chosen], w]
            start = np.r_[np.ones(n_means, dtype=bool), start]
        svc, used, objective = self._solve(A, t, w, start)
        active[:] = False
        active[rows[used[used >= n_means] - n_means]] = True
        return svc, active, objective

    def _solve(self, A: Rows, t: Codes, w: Floats, active: Bools) -> tuple[SVC, Ints, float]:
        """The SVC on rows A, which rows support it, and its objective.

        On many rows libsvm gets a working set, which starts with the ``active`` ones.
        """
        if A.shape[0] <= DIRECT_ROWS or callable(self.kernel):
            active = np.ones(A.shape[0], dtype=bool)
        names = ("C", "kernel", "degree", "coef0", "tol", "cache_size")
        unfitted = SVC(gamma=self.gamma_, **{name: getattr(self, name) for name in names})
        svc, inside = solve_on_working_set(
            t,
            active,
            lambda rows: clone(unfitted).fit(A[rows], t[rows], sample_weight=w[rows]),
            lambda svc, rows: self._svc_scores(svc, A[rows]),
            self.tol,
        )
        used = inside[svc.support_]
        # The dual objective, sum_i |a_i| - a' K a / 2, which at the optimum is the primal one.
        a = _dual(svc)
        margin = self._svc_scores(svc, A[used]) - svc.intercept_[0]  # K a
        return svc, used, float(np.abs(a).sum() - 0.5 * a @ margin)

    def _svc_scores(self, svc: SVC, X: Rows) -> Floats:
        """The decision function by matrix products, a block of rows at a time."""
        if callable(self.kernel):
            return svc.decision_function(X)
        a = _dual(svc)  # [S]
        rows = max(1, BLOCK_ENTRIES // len(a))
        scores = np.empty(X.shape[0])
        for start in range(0, X.shape[0], rows):
            block = slice(start, start + rows)
            scores[block] = self._instance_kernel(X[block], svc.support_vectors_) @ a
        return scores + svc.intercept_[0]

    def _raw_instance_scores(self, bags: Bags) -> Floats:
        return self._svc_scores(self.svc_, bags.instances)


def _dual(svc: SVC) -> Floats:
    """Dual coefficients a_i = t_i alpha_i of the support vectors, [S]."""
    a = svc.dual_coef_
    return (a.toarray() if is_sparse(a) else np.asarray(a)).ravel()


def _means(X: Rows, offsets: Ints, use: Bools) -> Rows:
    """Mean of the used rows of every segment, as one sparse product."""
    count = np.maximum(segments.sum(use.astype(np.float64), offsets), 1.0)
    rows = np.flatnonzero(use).astype(np.int32)  # libsvm's sparse rows have 32-bit indices
    owner = segments.index(offsets)[rows].astype(np.int32)
    average = sp.csr_array((1 / count[owner], (owner, rows)), shape=(len(offsets) - 1, X.shape[0]))
    return average @ X


@dataclass(kw_only=True, eq=False, repr=False)
class SetKernelSVM(ScalesFeatures, _KernelSVM):
    """Support vector machine on whole bags with the normalised set kernel.

    ``K(A, B) = sum of k(a, b)`` over all pairs, divided by ``sqrt(K(A, A) K(B, B))``: a bag is
    the mean direction of its instances in the kernel's feature space. It looks at all of a bag,
    so it suits labels made by the whole; it does not rank instances.

    Parameters
    ----------
    C : float, default=1.0
    kernel : {"rbf", "linear", "poly", "sigmoid"} or callable, default="rbf"
        Kernel between instances; a callable maps two arrays of rows to a matrix.
    gamma, degree, coef0 : of the kernel, as in `MISVM`, default="scale", 3, 0.0
    normalise : {"length", "mean", None}, default="length"
        Divide by the lengths in feature space, by the numbers of instances, or not at all.
    class_weight : dict, "balanced" or None, default=None
    scale : {"feature", "global", None}, default="feature"
        Standardise each feature, or divide all by one number; learned from the training bags.
    tol, cache_size : of the SVC, default=0.001, 200
    calibrate, calibration, cv : as in `MISVM`, default=True, "platt", None

    Attributes
    ----------
    svc_ : SVC on the precomputed kernel of bags
    support_bags_ : array of int
        Training bags that support the SVM; only these are kept.
    support_instances_, support_offsets_, support_norms_ : arrays
        Their instances, where each bag starts, and their lengths.
    gamma_ : float
    classes_ : the two bag classes

    See Also
    --------
    MISVM, bagwise.comparators.MiGraph

    References
    ----------
    [Gaertner2002]_

    Notes
    -----
    The kernel costs O(N_train N) instance kernels, a block at a time; memory is one block and
    the B x B kernel of bags. ``instance_labels`` are checked but carry nothing for this model.

    Examples
    --------
    >>> from bagwise import SetKernelSVM
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> SetKernelSVM(C=10).fit(bags, y).decision_function(bags).shape
    (40,)
    """

    normalise: str | None = parameter("length", StrOptions({"length", "mean"}), None)

    def _fit(self, data: TrainingData) -> None:
        bags, y, _ = data
        self.gamma_ = self._resolve_gamma(bags.instances)
        norms = self._norms(bags)
        K = self._kernel_to(bags, bags.instances, bags.offsets) / np.outer(norms, norms)  # [B, B]
        self.svc_ = SVC(C=self.C, kernel="precomputed", tol=self.tol, cache_size=self.cache_size)
        self.svc_.fit(K, y, sample_weight=self._bag_weights(y))
        self.support_bags_ = self.svc_.support_
        support = bags[self.support_bags_]
        self.support_instances_, self.support_offsets_ = support.instances, support.offsets
        self.support_norms_ = norms[self.support_bags_]

    def _kernel_to(self, bags: Bags, Z: Floats, z_offsets: Ints) -> Floats:
        return set_kernel(bags.instances, bags.offsets, Z, z_offsets, self._instance_kernel)

    def _norms(self, bags: Bags) -> Floats:
        if self.normalise is None:
            return np.ones(len(bags))
        if self.normalise == "mean":
            return bags.sizes.astype(np.float64)
        # K(A, A) of every bag, the squared length of its sum in the feature space.
        length = set_self_kernel(bags.instances, bags.offsets, self._instance_kernel)
        # A bag of zero length (the linear kernel at the origin) is similar to nothing.
        return np.sqrt(np.where(length > 0, length, np.inf))

    def _raw_scores(self, bags: Bags) -> Floats:
        K = self._kernel_to(bags, self.support_instances_, self.support_offsets_)
        K = K / np.outer(self._norms(bags), self.support_norms_)  # [B, S]
        return K @ self.svc_.dual_coef_[0] + self.svc_.intercept_[0]
