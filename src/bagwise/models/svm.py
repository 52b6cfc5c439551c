"""Support vector machines for bags: MI-SVM, mi-SVM and the normalised set kernel.

MI-SVM and mi-SVM follow Andrews, Tsochantaridis and Hofmann, "Support vector machines for
multiple-instance learning" (2002); the set kernel follows Gärtner, Flach, Kowalczyk and Smola,
"Multi-instance kernels" (2002). The quadratic programmes are scikit-learn's SVC.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.svm import SVC
from sklearn.utils import compute_class_weight
from sklearn.utils._param_validation import Interval, StrOptions

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import is_sparse
from bagwise.core.blocks import BLOCK_ENTRIES
from bagwise.core.set_kernel import set_kernel, set_self_kernel
from bagwise.core.working_set import solve_on_working_set
from bagwise.models.base import TrainingData
from bagwise.models.calibration.calibrated import BestInstanceClassifier, CalibratedClassifier
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter
from bagwise.models.scaled import ScalesFeatures

if TYPE_CHECKING:
    from bagwise.core.arrays import Bools, Codes, Column, Floats, Ints, Rows
    from bagwise.models.labels import ClassWeight


# Up to this many rows libsvm gets them all; beyond, a working set.
DIRECT_ROWS = 1000

_KERNELS = {"linear", "rbf", "poly", "sigmoid"}


class Alternation(NamedTuple):
    """Where the alternation between labels and machine ended."""

    svc: SVC
    labels: Codes  # [N] int8: 1 and 0 were trained on, -1 was left out
    objectives: list[float]  # of each machine, in order
    converged: bool


def choose_witnesses(scores: Floats, offsets: Ints, y: Column, known: Codes) -> Codes:
    """MI-SVM's labels: the best instance of a positive bag is 1, the rest of it -1.

    Known labels stand. A bag with a known positive needs no witness, and a known negative is
    never one.
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


def _dense(a: Rows) -> Floats:
    return a.toarray() if is_sparse(a) else np.asarray(a)


def _variance(X: Rows) -> float:
    if is_sparse(X):
        return float(X.multiply(X).mean() - X.mean() ** 2)
    return float(np.asarray(X).var(dtype=np.float64))


def _stack(top: Rows, bottom: Rows) -> Rows:
    return sp.vstack([top, bottom], format="csr") if is_sparse(bottom) else np.r_[top, bottom]


@dataclass(kw_only=True, eq=False, repr=False)
class _KernelMachine(CalibratedClassifier):
    """The parameters and the SVC that both kinds of machine share."""

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
        if self.gamma == "scale":
            return 1 / (X.shape[1] * (_variance(X) or 1.0))
        return 1 / X.shape[1] if self.gamma == "auto" else float(self.gamma)

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
class MISVM(ScalesFeatures, _KernelMachine, BestInstanceClassifier):
    """Maximum-margin multiple-instance learning, by bags ("MI") or by instances ("mi").

    A bag scores as its best instance. MI-SVM alternates between a support vector machine and
    the choice of one witness per positive bag; mi-SVM alternates between a machine and labels
    for all instances of positive bags, at least one of them positive. Each turn lowers one
    objective, nothing is random, and a fit ends when the choice repeats itself.

    Parameters
    ----------
    variant : {"MI", "mi"}
        Margin of bags or margin of instances.
    C : float
        Penalty of a margin violation.
    kernel : {"rbf", "linear", "poly", "sigmoid"} or callable
        Kernel between instances.
    gamma : {"scale", "auto"} or float
        Kernel coefficient; "scale" is 1 / (n_features * variance of all training instances).
    degree, coef0 : int, float
        Of the polynomial and sigmoid kernels.
    slack : {"auto", "bag", "instance"}
        What one violation is counted for. "bag": the instances of a bag share one weight, the
        paper's slack per bag in MI-SVM. "instance": each row has its own, as in mi-SVM.
        "auto" is each variant's own.
    class_weight : dict, "balanced" or None
        Weights of the bag classes; "balanced" counts bags.
    scale : {"feature", "global", None}
        Standardise each feature, or divide all by one number; learnt from the training bags.
    max_iter : int
        Most machines to fit; reaching it is a ``ConvergenceWarning``.
    tol, cache_size : float
        Of the SVC; cache in MiB.
    calibrate : bool
        Give ``predict_proba``, calibrated on bags held out by an inner cross-validation.
    calibration : {"platt", "isotonic"}
    cv : int, splitter or None
        The inner cross-validation; an int is that many shuffled stratified folds, None five of
        them, or ten where a class has fewer than twenty bags.

    Attributes
    ----------
    svc_ : the last SVC
    imputed_labels_ : array of shape (n_instances,)
        Codes of the training instances: 1 and 0 were trained on, -1 was left out (MI).
    objectives_ : list of float
        Objective of every machine fitted.
    converged_ : bool
        Whether the choice repeated itself within ``max_iter``.
    n_iter_ : int
        Machines fitted.
    gamma_ : float
    calibrator_ : with ``calibrate=True``, the calibration function from score to log-odds
    classes_ : the two bag classes

    Notes
    -----
    MI-SVM's programme has one slack for a whole negative bag; libsvm has one per row. With
    ``slack="bag"`` each of its n rows weighs C / n, so that a bag of a thousand instances does
    not outvote the others. Known instance labels are rows of weight C; a bag with a known
    positive needs no witness.

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
        self.gamma_ = self._resolve_gamma(data.bags.instances)
        end = self._alternate(data)
        self.svc_ = end.svc
        self.imputed_labels_ = end.labels
        self.objectives_ = end.objectives
        self.converged_ = end.converged
        self.n_iter_ = len(end.objectives)
        if not end.converged:
            warnings.warn(
                f"MISVM did not settle within {self.n_iter_} machines; the last objectives are "
                f"{end.objectives[-3:]}. Raise max_iter or lower C.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _alternate(self, data: TrainingData) -> Alternation:
        (bags, y, known), X, offsets = data, data.bags.instances, data.bags.offsets
        update = choose_witnesses if self.variant == "MI" else impute_labels
        weights = self._row_weights(data)
        positive_bag = segments.spread(y, offsets) == 1
        open_rows = np.flatnonzero(positive_bag & (known < 0))
        scores = np.zeros(bags.n_instances)
        labels: Codes = np.where(known >= 0, known, positive_bag).astype(np.int8)
        svc, active, objective = self._first_machine(data, labels, weights)
        objectives = [objective]
        if self.variant == "MI":
            labels[open_rows] = -1
        seen: set[bytes] = {labels.tobytes()}
        while True:
            if len(open_rows):
                scores[open_rows] = self._svc_scores(svc, X[open_rows])
            previous, labels = labels, update(scores, offsets, y, known)
            if np.array_equal(previous, labels):
                return Alternation(svc, labels, objectives, True)
            # Equal objectives can alternate for ever: a choice seen before ends the search.
            if labels.tobytes() in seen or len(objectives) == self.max_iter:
                return Alternation(svc, previous, objectives, False)
            seen.add(labels.tobytes())
            rows = np.flatnonzero(labels >= 0)
            active[open_rows] = True
            svc, used, objective = self._solve(X[rows], labels[rows], weights[rows], active[rows])
            active[:] = False
            active[rows[used]] = True
            objectives.append(objective)

    def _first_machine(
        self, data: TrainingData, labels: Codes, weights: Floats
    ) -> tuple[SVC, Bools, float]:
        """Start as the paper does: bag means as witnesses (MI), all instances positive (mi).

        Returns the machine, a mask of the rows it rests on, and its objective.
        """
        (bags, y, known), X, offsets = data, data.bags.instances, data.bags.offsets
        active = np.zeros(bags.n_instances, dtype=bool)
        # A start for large sets: all positive rows, and the others thinned evenly.
        active[labels == 1] = True
        active[:: max(1, bags.n_instances // DIRECT_ROWS)] = True
        unsure = (segments.spread(y, offsets) == 1) & (known < 0) & (self.variant == "MI")
        rows = np.flatnonzero(~unsure)
        has_known = segments.max((known == 1).astype(np.float64), offsets) > 0
        chosen = np.flatnonzero((y == 1) & ~has_known) if unsure.any() else np.empty(0, dtype=int)
        A, t, w, start = X[rows], labels[rows], weights[rows], active[rows]
        if len(chosen):
            A = _stack(_means(X, offsets, unsure)[chosen], A)
            t = np.r_[np.ones(len(chosen), dtype=np.int8), t]
            w = np.r_[self._bag_weights(y)[chosen], w]
            start = np.r_[np.ones(len(chosen), dtype=bool), start]
        svc, used, objective = self._solve(A, t, w, start)
        active[:] = False
        active[rows[used[used >= len(chosen)] - len(chosen)]] = True
        return svc, active, objective

    def _solve(self, A: Rows, t: Codes, w: Floats, active: Bools) -> tuple[SVC, Ints, float]:
        """The SVC on rows A, which rows support it, and its objective.

        On many rows libsvm gets a working set, which starts with the ``active`` ones.
        """
        if A.shape[0] <= DIRECT_ROWS or callable(self.kernel):
            active = np.ones(A.shape[0], dtype=bool)
        svc, inside = solve_on_working_set(
            t,
            active,
            lambda rows: self._new_svc().fit(A[rows], t[rows], sample_weight=w[rows]),
            lambda svc, rows: self._svc_scores(svc, A[rows]),
            self.tol,
        )
        used = inside[svc.support_]
        return svc, used, self._objective(svc, A[used])

    def _row_weights(self, data: TrainingData) -> Floats:
        """Weight of each training row: its bag's, shared by a bag's rows where slack says so."""
        bags, y, known = data
        weights = segments.spread(self._bag_weights(y), bags.offsets)  # [N]
        per_bag = self.slack == "bag" or (self.slack == "auto" and self.variant == "MI")
        if per_bag:
            share = 1 / segments.spread(bags.sizes.astype(np.float64), bags.offsets)
            alone = segments.spread(y, bags.offsets) == 1  # a witness has its bag's whole weight
            if self.variant == "mi":
                alone &= known >= 0
            weights = np.where(alone, weights, weights * share)
        return weights

    def _new_svc(self) -> SVC:
        return SVC(
            C=self.C,
            kernel=self.kernel,
            gamma=self.gamma_,
            degree=self.degree,
            coef0=self.coef0,
            tol=self.tol,
            cache_size=self.cache_size,
        )

    def _svc_scores(self, svc: SVC, X: Rows) -> Floats:
        """The decision function by matrix products, a block of rows at a time."""
        if callable(self.kernel):
            return svc.decision_function(X)
        V = svc.support_vectors_  # [S, D]
        a = _dense(svc.dual_coef_).ravel()  # [S]
        rows = max(1, BLOCK_ENTRIES // len(a))
        scores = np.empty(X.shape[0])
        for start in range(0, X.shape[0], rows):
            block = slice(start, start + rows)
            scores[block] = self._instance_kernel(X[block], V) @ a
        return scores + svc.intercept_[0]

    def _objective(self, svc: SVC, support: Rows) -> float:
        """The dual objective, which at the optimum is the primal one."""
        a = _dense(svc.dual_coef_).ravel()
        margin = self._svc_scores(svc, support) - svc.intercept_[0]
        return float(np.abs(a).sum() - 0.5 * a @ margin)

    def _raw_instance_scores(self, bags: Bags) -> Floats:
        return self._svc_scores(self.svc_, bags.instances)


def _means(X: Rows, offsets: Ints, use: Bools) -> Rows:
    """Mean of the used rows of every segment, as one sparse product."""
    count = np.maximum(segments.sum(use.astype(np.float64), offsets), 1.0)
    rows = np.flatnonzero(use).astype(np.int32)  # libsvm's sparse rows have 32-bit indices
    owner = segments.index(offsets)[rows].astype(np.int32)
    average = sp.csr_array((1 / count[owner], (owner, rows)), shape=(len(offsets) - 1, X.shape[0]))
    return average @ X


@dataclass(kw_only=True, eq=False, repr=False)
class SetKernelSVM(ScalesFeatures, _KernelMachine):
    """Support vector machine on whole bags with the normalised set kernel.

    ``K(A, B) = sum of k(a, b)`` over all pairs, divided by ``sqrt(K(A, A) K(B, B))``: a bag is
    the mean direction of its instances in the kernel's feature space. It looks at all of a bag,
    so it suits labels made by the whole; it does not rank instances.

    Parameters
    ----------
    C : float
    kernel : {"rbf", "linear", "poly", "sigmoid"} or callable
        Kernel between instances; a callable maps two arrays of rows to a matrix.
    gamma, degree, coef0 : of the kernel, as in `MISVM`
    normalise : {"length", "mean", None}
        Divide by the lengths in feature space, by the numbers of instances, or not at all.
    class_weight : dict, "balanced" or None
    scale : {"feature", "global", None}
        Standardise each feature, or divide all by one number; learnt from the training bags.
    tol, cache_size : of the SVC
    calibrate, calibration, cv : as in `MISVM`

    Attributes
    ----------
    svc_ : SVC on the precomputed kernel of bags
    support_bags_ : array of int
        Training bags that the machine rests on; only these are kept.
    support_instances_, support_offsets_, support_norms_ : arrays
        Their instances, where each bag starts, and their lengths.
    gamma_ : float
    classes_ : the two bag classes

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
        length = set_self_kernel(bags.instances, bags.offsets, self._instance_kernel)
        # A bag of zero length (the linear kernel at the origin) is similar to nothing.
        return np.sqrt(np.where(length > 0, length, np.inf))

    def _raw_scores(self, bags: Bags) -> Floats:
        K = self._kernel_to(bags, self.support_instances_, self.support_offsets_)
        K = K / np.outer(self._norms(bags), self.support_norms_)  # [B, S]
        return K @ self.svc_.dual_coef_[0] + self.svc_.intercept_[0]
