"""The MICRF estimator: validates, calls the pure functions beside it, and stores."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from bagwise.bags import Bags, BagsLike
from bagwise.core import rules, segments
from bagwise.core.arrays import Column, Floats, Ints, RandomState
from bagwise.models.base import TrainingData
from bagwise.models.calibration.calibrated import BestInstanceClassifier
from bagwise.models.held_out import splits
from bagwise.models.micrf import energy as crf
from bagwise.models.micrf import unaries
from bagwise.models.micrf.learning import ConstraintPool, JointProblem, LearnedWeights, learn
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter

# Trade-offs tried by C="cv".
C_GRID = (0.1, 1.0, 10.0)
_DISSIMILARITIES = ("l1", "l2", "chi2")


class Energies(NamedTuple):
    """Energies of the states of bags; a bag takes the state with the lowest."""

    instances: Any  # [N]
    non_instances: Any  # [B]


@dataclass(kw_only=True, eq=False, repr=False)
class MICRF(BestInstanceClassifier):
    """A conditional random field over bags: each selects one instance, or none.

    Bags are nodes of a fully connected field; the states of a node are its instances and a
    *non-instance*. Selecting an instance costs what instance classifiers say (three SVMs on
    inherited labels, and any other model that scores instances), plus its dissimilarity to the
    instances other bags select: positive instances are alike, every negative is negative in its
    own way. The weights of all terms are learned with a maximum margin, and a test bag is
    positive when an instance beats its non-instance.

    Parameters
    ----------
    C : float or "cv", default=1.0
        Trade-off between margin and training loss of the weights (8). "cv" chooses among
        0.1, 1, 10 by accuracy on bags held out by the inner cross-validation ``cv``.
    scale : {"minmax", "standard"} or None, default="minmax"
        How features are scaled, fitted on the training bags. It matters: the kernels and
        dissimilarities are made for features in [0, 1].
    kernels : sequence of str, default=("rbf", "linear", "intersection")
        Kernels of the instance SVMs; empty to use ``extra_unaries`` alone.
    extra_unaries : sequence of estimators, default=()
        Bag classifiers with ``decision_function_instances``, cloned and fitted on the scaled
        training bags; each adds an instance classifier and its non-instance model.
    dissimilarities : sequence of {"l1", "l2", "chi2"}, default=("l1", "l2", "chi2")
        Pairwise terms; empty for a model without them.
    svm_C, gamma : float, default=1.0, None
        Of the instance SVMs; ``gamma=None`` is 1 / n_features.
    inference : {"trws", "icm"}, default="trws"
        TRW-S gives a lower bound and is close to optimal; ICM is a quick local search.
    max_iter, tol : int, float, default=200, 0.001
        Most rounds of constraint generation, and the violation per bag at which it ends.
    max_states, max_rows : int, default=2048, 10000
        Memory bounds. Most states inference keeps after exact pruning (its memory is quadratic
        in them), and most instances an SVM trains on; large bags are thinned first.
    calibrate : bool, default=True
        Give ``predict_proba``, calibrated on bags held out by an inner cross-validation.
    calibration : {"platt", "isotonic"}, default="platt"
    cv : int, splitter or None, default=None
        The inner cross-validation of ``C="cv"`` and ``calibrate=True``; None is five folds, ten
        where a class has fewer than twenty bags.
    random_state : int, RandomState or None, default=None
        Used only where ``max_rows`` thins the bags.

    Attributes
    ----------
    weights_ : dict
        LearnedWeights weight of each term, all >= 0.
    selected_instances_ : array of shape (n_bags,)
        Row of the instance that each training bag selects, -1 in negative bags.
    converged_ : bool
        Whether constraint generation ended with no constraint violated by more than ``tol`` per
        bag.
    violation_, n_iter_ : float, int
        The largest violation at the end, and the rounds.
    inference_gaps_ : array
        Relative gap between energy and lower bound of every inference while learning.
    n_dropped_states_ : int
        States that ``max_states`` dropped in the last round; 0 means pruning was exact.
    C_ : float
        The trade-off used.
    cv_accuracy_ : dict
        With ``C="cv"``, the accuracy of each trade-off on held-out bags.
    classes_ : the two bag classes

    See Also
    --------
    MISVM, bagwise.report.plot_energies

    References
    ----------
    [Deselaers2010]_

    Notes
    -----
    Deselaers and Ferrari, "A conditional random field for multiple-instance learning" (ICML
    2010). Departures: the latent configuration is updated when no constraint is violated, not
    every round, so that each update lowers the objective; it starts from the best-scored
    instances rather than from random ones. A known instance label replaces the inherited one,
    and a positive bag may select only instances not known to be negative, or its known
    positives where it has any.

    Examples
    --------
    >>> from bagwise import MICRF
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> model = MICRF().fit(bags, y)
    >>> model.converged_, bool(((model.selected_instances_ >= 0) == (y == 1)).all())
    (True, True)
    """

    C: float | str = parameter(1.0, POSITIVE, StrOptions({"cv"}))
    scale: str | None = parameter("minmax", StrOptions({"minmax", "standard"}), None)
    kernels: Sequence[unaries.Kernel] = parameter(unaries.KERNELS, "array-like")
    extra_unaries: Any = parameter((), list, tuple)
    dissimilarities: Any = parameter(_DISSIMILARITIES, "array-like")
    svm_C: float = parameter(1.0, POSITIVE)  # noqa: N815 (C of the SVMs)
    gamma: float | None = parameter(None, POSITIVE, None)
    inference: crf.Inference = parameter("trws", StrOptions({"trws", "icm"}))
    max_iter: int = parameter(200, AT_LEAST_1)
    tol: float = parameter(1e-3, POSITIVE)
    max_states: int = parameter(2048, AT_LEAST_1)
    max_rows: int = parameter(10_000, Interval(Integral, 2, None, closed="left"))
    random_state: RandomState = parameter(None, "random_state")

    # The instances that training bags select, to which others are compared, differ between fits.
    _level_drifts = True

    def _fit(self, data: TrainingData) -> None:
        """Train the instance classifiers, then the weights of the field."""
        for name, allowed in (("kernels", unaries.KERNELS), ("dissimilarities", _DISSIMILARITIES)):
            chosen = getattr(self, name)
            if any(value not in allowed for value in chosen):
                raise ValueError(f"{name} must be a sequence from {list(allowed)}; got {chosen!r}.")
        if not len(self.kernels) and not len(self.extra_unaries):
            raise ValueError("MICRF needs an instance classifier: kernels or extra_unaries.")
        for i, extra in enumerate(self.extra_unaries):
            if not hasattr(extra, "decision_function_instances"):
                raise ValueError(
                    f"extra_unaries[{i}] must score instances (decision_function_instances), "
                    f"but {type(extra).__name__} does not."
                )
        self.C_ = self._choose_C(data) if self.C == "cv" else float(self.C)
        problem = self._fit_terms(data)
        self._store(problem, learn(problem, self.C_, self.max_iter, self.tol))
        if not self.converged_:
            warnings.warn(
                f"MICRF still had a constraint violated by {self.violation_:.3g} after "
                f"{self.n_iter_} rounds; raise max_iter or tol, or lower C.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _fit_terms(self, data: TrainingData) -> JointProblem:
        """Scale, train the instance classifiers, and set up the terms of the energy."""
        from bagwise.models.micrf.distances import Dissimilarities, inverse_means

        self.scaling_ = unaries.fit_scaling(data.bags.instances, self.scale)
        bags, y, known = data.bags.map(self.scaling_.apply), data.y, data.instance_labels
        X, offsets = bags.instances, bags.offsets
        labels = rules.inherited_labels(y, known, offsets)
        rows = unaries.thin(offsets, self.max_rows, check_random_state(self.random_state))
        gamma = 1 / X.shape[1] if self.gamma is None else float(self.gamma)
        self.machines_ = [
            unaries.train(kernel, X[rows], labels[rows], self.svm_C, gamma)
            for kernel in self.kernels
        ]
        names = {"instance_labels": self._label_names(known)} if (known >= 0).any() else {}
        self.extra_unaries_ = [
            clone(extra).fit(bags, self.classes_[y], **names) for extra in self.extra_unaries
        ]
        used = np.isin(_DISSIMILARITIES, list(self.dissimilarities))
        self.factors_ = np.where(used, inverse_means(X, bags.bag_index), 0.0)
        has_known = segments.spread(segments.max((known == 1) * 1.0, offsets) > 0, offsets)
        return JointProblem(
            crf.make_terms(self._upsilon(bags), X, offsets, self.factors_),
            y,
            np.where(has_known, known == 1, known != 0),
            Dissimilarities(X, self.factors_, self.max_states),
            self.inference,
        )

    def _upsilon(self, bags: Bags) -> Floats:
        """Scores of scaled bags by every classifier, negative for positive instances, [N, F]."""
        scores = [unaries.score(machine, bags.instances) for machine in self.machines_]
        scores += [extra.decision_function_instances(bags) for extra in self.extra_unaries_]
        return -np.column_stack(scores)

    def _store(self, problem: JointProblem, learned: LearnedWeights) -> None:
        self.alpha_ = learned.alpha
        self.selected_instances_ = learned.L_hat
        self.clamped_ = problem.terms.X[learned.L_hat[learned.L_hat != crf.NONE]]  # [P, D]
        self.converged_ = learned.converged
        self.violation_ = learned.violation
        self.n_iter_ = learned.n_iter
        self.inference_gaps_ = np.asarray(learned.gaps)
        self.n_dropped_states_ = learned.n_dropped

    def _choose_C(self, data: TrainingData) -> float:
        """The grid value most accurate on held-out bags; of equals the one nearest to 1."""
        bags, y, known = data
        correct = np.zeros(len(C_GRID))
        n_scored = 0
        for train, test in splits(y, self.cv):
            rows, _ = segments.take(bags.offsets, train)
            inner = clone(self)
            inner.classes_ = self.classes_
            problem = inner._fit_terms(TrainingData(bags[train], y[train], known[rows]))
            held_out = bags[test]
            n_scored += len(held_out)
            pool = ConstraintPool()
            for i, C in enumerate(C_GRID):
                inner._store(problem, learn(problem, C, self.max_iter, self.tol, pool))
                correct[i] += np.sum((inner._raw_scores(held_out) > 0) == (y[test] == 1))
        self.cv_accuracy_ = dict(zip(C_GRID, (correct / n_scored).tolist(), strict=True))
        best = np.flatnonzero(correct == correct.max())
        return C_GRID[best[np.argmin(np.abs(np.log(np.array(C_GRID)[best])))]]

    @property
    def weights_(self) -> dict[str, float]:
        """Weight of each term by name."""
        names = [*self.kernels, *(type(e).__name__ for e in self.extra_unaries)]
        terms = [f"instance {name}" for name in names] + [f"non-instance {name}" for name in names]
        terms += ["prior", *_DISSIMILARITIES]
        return dict(zip(terms, self.alpha_.tolist(), strict=True))

    def unary_energies(self, bags: BagsLike) -> Energies:
        """Unary energies (4) of the states of bags, without pairwise terms."""
        return self._unaries(self._scaled(self._validate_predict(bags)))

    def pairwise_energies(self, bags: BagsLike) -> Floats:
        """Pairwise energies (7) between all instances of a few bags, shape (N, N).

        Instances of one bag are never selected together; their entries are 0.
        """
        from bagwise.models.micrf.distances import cross

        bags = self._scaled(self._validate_predict(bags))
        D = cross(bags.instances, bags.instances, self.factors_)  # [3, N, N]
        owner = bags.bag_index
        return np.where(owner[:, None] == owner, 0.0, np.tensordot(self._weights.gamma, D, axes=1))

    def energies(self, bags: BagsLike, joint: bool = False) -> Energies:
        """Energies (10) of the states of bags, given the clamped training bags.

        With ``joint=True`` all bags are first decided together (sec. 4.2), and a state's energy
        includes its dissimilarity to the instances that the other bags select.
        """
        scaled = self._scaled(self._validate_predict(bags))
        return self._joint_energies(scaled) if joint else self._energies(scaled)

    def select(self, bags: BagsLike, joint: bool = False) -> Ints:
        """Row of the instance each bag selects, -1 for none.

        Alone (10), every bag is decided exactly given the training bags. With ``joint=True``
        the bags also see each other (sec. 4.2), by TRW-S.
        """
        bags = self._validate_predict(bags)
        inst, non = self.energies(bags, joint)
        best = segments.argmax(-inst, bags.offsets)
        return np.where(inst[best] < non, best, crf.NONE)

    def decision_function(self, bags: BagsLike, joint: bool = False) -> Floats:
        """Score of each bag, > 0 for positive.

        With ``joint=True`` it is the energy of a bag's non-instance less that of its best
        instance, while the other bags keep what they select together (sec. 4.2). Probabilities
        are calibrated for bags decided alone, so this score has none.

        Returns
        -------
        scores : array of shape (n_bags,), or (n_bags, n_classes)
        """
        if not joint:
            return super().decision_function(bags)
        bags = self._validate_predict(bags)
        inst, non = self.energies(bags, joint=True)
        return non - segments.min(inst, bags.offsets)

    def predict(self, bags: BagsLike, joint: bool = False) -> Column:
        """Label of each bag; ``joint=True`` classifies all of them together (sec. 4.2).

        Returns
        -------
        labels : array of shape (n_bags,), or (n_bags, n_classes)
        """
        if not joint:
            return super().predict(bags)
        return self.classes_[(self.decision_function(bags, joint=True) > 0).astype(int)]

    @property
    def _weights(self) -> crf.TermWeights:
        return crf.unpack(self.alpha_, len(self.machines_) + len(self.extra_unaries_))

    def _scaled(self, bags: Bags) -> Bags:
        return bags.map(self.scaling_.apply)

    def _unaries(self, scaled: Bags) -> Energies:
        Upsilon = self._upsilon(scaled)
        terms = crf.make_terms(Upsilon, scaled.instances, scaled.offsets, self.factors_)
        return Energies(*crf.unaries(terms, self._weights))

    def _energies(self, scaled: Bags) -> Energies:
        from bagwise.models.micrf.distances import to_clamped

        inst, non = self._unaries(scaled)
        weights = self._weights.gamma * self.factors_
        return Energies(inst + to_clamped(scaled.instances, self.clamped_, weights), non)

    def _joint_energies(self, scaled: Bags) -> Energies:
        from bagwise.models.micrf.distances import Dissimilarities, descend, to_clamped

        X, offsets = scaled.instances, scaled.offsets
        inst, non = self._energies(scaled)
        gamma = self._weights.gamma
        near = Dissimilarities(X, self.factors_, self.max_states)
        L = crf.infer(inst, non, offsets, gamma, near, self.inference).L
        # Single changes that lower the energy further make every bag agree with its score.
        allowed, _ = crf.prune(inst, non, offsets, self.max_states)
        table, place = near.lookup(np.flatnonzero(allowed))
        descend(table, gamma, place, inst, non, allowed, offsets, np.arange(len(non)), L)
        weights = gamma * self.factors_
        chosen = L[L != crf.NONE]
        inst = inst + to_clamped(X, X[chosen], weights)
        for row in chosen:  # a bag does not see its own choice
            b = scaled.bag_index[row]
            own = slice(offsets[b], offsets[b + 1])
            inst[own] -= to_clamped(X[own], X[[row]], weights)
        return Energies(inst, non)

    def _raw_instance_scores(self, bags: Bags) -> Floats:
        """Energy of a bag's non-instance less that of the instance."""
        inst, non = self._energies(self._scaled(bags))
        return segments.spread(non, bags.offsets) - inst
