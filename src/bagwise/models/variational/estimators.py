"""The VGPMIL family: each estimator validates, calls the pure functions, stores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, NamedTuple, TypeGuard, cast

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, BagsLike, InstanceLabels, check_bags
from bagwise.core import linalg, segments
from bagwise.core.arrays import Array, Bools, Floats, Ints, RandomState, concatenate, to_numpy
from bagwise.core.finite import all_finite
from bagwise.core.kernels import RBF, Kernel, make_kernel
from bagwise.files import map_rows_of, read_plainly
from bagwise.models.base import (
    InstanceClassifier,
    SeveralClasses,
    TrainingData,
    two_probabilities,
)
from bagwise.models.classes import (
    ClassLabels,
    ClassRule,
    ClassWeight,
    bag_weights,
    has_several_classes,
    read_instance_classes,
)
from bagwise.models.drivers import Driver, RunningSum, cut, total
from bagwise.models.execution import Execution, device_settings, resolve
from bagwise.models.feature_checks import check_bag_weights
from bagwise.models.one_vs_rest import check_two_class_background
from bagwise.models.placement import placed
from bagwise.models.scaling import FeatureScaling, Scale, learn_scaling, over_rows
from bagwise.models.variational.blocks import BagLabels, Block
from bagwise.models.variational.checkpoint import Checkpoint, fingerprint
from bagwise.models.variational.densities import Density, Gamma, Sech, check_density
from bagwise.models.variational.large_margin import LargeMargin
from bagwise.models.variational.latent_map import (
    HeldOut,
    InstanceMap,
    LatentMap,
    MapFit,
    bag_folds,
    bags_to_read,
    beta_interval,
    cooled,
    enough_folds,
    fit_instance_map,
    folds_of_large,
    instance_interval,
    level_with_bags,
    rule_log_odds,
    shared_slope,
    usual_deviations,
)
from bagwise.models.variational.likelihoods import (
    BagLikelihood,
    ExactOr,
    Inherited,
    make_likelihood,
)
from bagwise.models.variational.marginal import MarginalStep, has_marginal, refine
from bagwise.models.variational.monitors import Monitor, Patience, all_of, iteration_bar
from bagwise.models.variational.parts import Part, Relabel, Sites, make_parts, materialised
from bagwise.models.variational.projection import (
    Inducing,
    ProjectionChoices,
    Projector,
    choose_projector,
    make_projector,
)
from bagwise.models.variational.refits import Refit, refit_folds
from bagwise.models.variational.score import (
    BagRule,
    NotFiniteError,
    Reader,
    Readout,
    ReadRows,
    ReadsBlocks,
    Scores,
    Wants,
    make_row_parts,
)
from bagwise.models.variational.several import (
    N_FOLDS,
    REFIT_TOL,
    base_rates,
    class_columns,
    class_folds,
    class_fractions,
    class_smoothing,
    combined,
    fitted_rule,
    fraction_stds,
    held_out_classes,
    joint_bound,
    warn_of_rare,
)
from bagwise.models.variational.softmax import Softmax, SoftmaxFit, class_codes, fit_softmax
from bagwise.models.variational.stability import escape, instability
from bagwise.models.variational.stochastic import StochasticFit
from bagwise.models.variational.updates import (
    Fit,
    FitState,
    InducingPosterior,
    Iteration,
    Statistics,
    fit_parts,
    iterate,
    moments,
    statistics,
    update_posterior,
)

_POSITIVE = Interval(Real, 0, None, closed="neither")
_N_INDUCING = 100
# Sets of at most so many numbers, 128 MB, are read into memory at once, and every fold has a
# projection of its own. In larger ones an inducing point stands for so many instances that those
# of a fold do not move it far.
_FEW_NUMBERS = 1 << 24
# Kernel learning: this many short fits at most, until no log-parameter moves by more than the tol.
_KERNEL_ROUNDS, _KERNEL_ITERATIONS, _KERNEL_TOL = 10, 10, 0.01

# Beyond so many instances one held-out fold has plenty to fit two numbers to.
_ONE_FOLD = 200_000

Init = Literal["half", "label", "random"]
Posterior = Literal["factorised", "marginal"]
Validation = tuple[BagsLike, ArrayLike]


class FitProblem(NamedTuple):
    """A fit about to be run: the bags, and every choice made for them."""

    bags: Bags
    labels: BagLabels
    projector: Projector
    start: Floats  # [N] instance probabilities before the first update
    likelihood: BagLikelihood
    density: Density
    execution: Execution
    driver: Driver
    parts: list[Any] | None = None  # projected already, under whatever labels

    @property
    def chunk_size(self) -> int:
        """Instances worked on at a time."""
        on_device, n = self.projector.on_device, self.bags.n_instances
        return self.execution.chunk(on_device, self.driver, n)


class Calibration(NamedTuple):
    """What a model is calibrated on: bags that were held out, and the map fitted to them."""

    map_fit: MapFit
    held_out: HeldOut
    bags: Ints  # numbers of the bags
    n_bags: int  # of the whole
    unlearned: Ints  # positions among them of bags that no feature was learned from
    known: Array  # [n] what is known of their instances, -1 where unknown


class Question(NamedTuple):
    """One class of several: the validation bags that watch its fit, and how it is calibrated."""

    validation: Validation | None = None
    patience: int = 10
    folds: Ints | None = None  # of the bags; None lets the labels of the class decide
    refit_tol: float = 0.0  # least tol of the fits without a fold
    one_of_several: bool = False
    smoothing: float | None = None  # of the targets of its map: `core.platt.smoothed`'s count


class VariationalClassifier(StochasticFit, InstanceClassifier):
    """What the members of the family share; each spells out its own parameters."""

    kernel: Kernel | str
    likelihood: BagLikelihood | str
    n_inducing: int
    inducing: Inducing | ArrayLike
    scale: Scale
    learn_kernel: bool
    bag_rule: BagRule
    calibrate: bool
    posterior: Posterior = "factorised"  # of models without the parameter
    init: Init | ArrayLike
    max_iter: int
    tol: float
    execution: Execution | str | None
    random_state: RandomState
    verbose: bool
    callback: Callable[[Iteration], object] | None
    calibration_: LatentMap | None
    kernel_: Kernel
    inducing_points_: Floats
    bound_history_: Floats
    converged_: bool
    instance_map_: InstanceMap | None = None  # also of models saved before they had it

    # Storage of the projected instances, unless ``execution`` says otherwise.
    _dtype: ClassVar[str] = "float64"
    # Standard deviations of instances also grow where f deviates this many times its median.
    _far_times: ClassVar[float | None] = None
    _keeps_rows = True
    _multi_class = True
    _multi_label = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        # `make_kernel`, `make_likelihood` and `resolve` say what is wrong with an object.
        "kernel": "no_validation",
        "likelihood": "no_validation",
        "execution": "no_validation",
        "n_inducing": [Interval(Integral, 1, None, closed="left")],
        "inducing": [StrOptions({"kmeans", "class-kmeans", "subset"}), "array-like"],
        "scale": [StrOptions({"feature", "global"}), None],
        "learn_kernel": ["boolean"],
        "bag_rule": [StrOptions({"noisy-or", "max", "joint"})],
        "calibrate": ["boolean"],
        "posterior": [StrOptions({"factorised", "marginal"})],
        "init": [StrOptions({"label", "half", "random"}), "array-like"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "callback": [callable, None],
    }

    def _density(self) -> Density:
        return Sech()

    def _bag_likelihood(self) -> BagLikelihood:
        return make_likelihood(self.likelihood)

    def fit(
        self,
        bags: BagsLike,
        y: ArrayLike,
        instance_labels: InstanceLabels = None,
        validation: Validation | None = None,
        patience: int = 10,
        background: Any = None,
        class_weight: ClassWeight | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> VariationalClassifier:
        """Fit to labelled bags.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        y : array of shape (n_bags,) or (n_bags, n_classes)
            A class per bag; of two, the larger one is positive. Or an indicator matrix,
            scikit-learn's multilabel format: 1 where a bag has a class.
        instance_labels : array of shape (n_instances,), optional
            Class of each instance, or missing: None, NaN, -1. With an indicator matrix also
            of shape (n_instances, n_classes), 1, 0, or -1 where missing.
        validation : (bags, y), optional
            Stop early on these bags' AUC.
        patience : int
            With ``validation``: stop after so many iterations without a better bag AUC, and go
            back to the best.
        background : class, optional
            With more than two classes: the class of bags in which nothing is found. It has no
            posterior of its own; a bag or an instance is of it when no other class is found.
        class_weight : "balanced" or dict from class to weight, optional
            How much the bags of a class count in the fit. Balanced: both sides of each class's
            question count the same. By default every bag counts once, unless one side has less
            than a fifth of the bags: then it counts as a fifth (``{}`` makes every bag count once
            there, too). Calibration takes the bags as they are, so that probabilities keep to
            the classes' frequencies.
        sample_weight : array of shape (n_bags,), optional
            How often each bag counts, in the fit and in its calibration: a bag of weight 2 is
            the bag twice. Scaling and inducing points are chosen without weights.
        """
        self._forget_classes()
        if has_several_classes(y):
            several = self._validate_several(bags, y, instance_labels, background)
            if self._softmax is not None and not several.labels.multilabel:
                self._check_softmax(validation)
                return self._fit_softmax(several, self._softmax, class_weight, sample_weight)
            return self._fit_several(several, validation, patience, class_weight, sample_weight)
        data = self._validate_fit(bags, y, instance_labels)
        check_two_class_background(background, self.classes_)
        rng = check_random_state(self.random_state)
        problem = self._begin(data, self._bag_likelihood(), rng, sample_weight)
        counts = problem.labels.weight
        weight = bag_weights(class_weight, counts, data.y, self.classes_)
        problem = problem._replace(
            start=self._start(problem.labels, rng), labels=problem.labels._replace(weight=weight)
        )
        calibration = self._fit_problem(problem, Question(validation, patience), counts)
        if calibration is not None:
            self._take_map(calibration, calibration.map_fit.shrunk())
            self._fit_instance_map(calibration)
            self._fit_deviations(data.bags, calibration.held_out)
        return self

    def _begin(
        self,
        data: TrainingData,
        likelihood: BagLikelihood,
        rng: np.random.RandomState,
        sample_weight: ArrayLike | None,
        several: bool = False,
    ) -> FitProblem:
        """Every fit's first choices: where it runs and its projection; bags weigh their counts."""
        bags, execution = data.bags, resolve(self.execution)
        driver = driver_for(execution, bags, self.n_inducing)
        counts = None if sample_weight is None else check_bag_weights(sample_weight, bags, self)
        return FitProblem(
            bags,
            BagLabels(bags.offsets, data.y, data.instance_labels, counts),
            self._choose_projector(data, rng, execution, driver, several),
            np.zeros(bags.n_instances),
            likelihood,
            check_density(self._density()),
            execution,
            driver,
        )

    def _fit_several(
        self,
        data: SeveralClasses,
        validation: Validation | None,
        patience: int,
        class_weight: ClassWeight | None,
        sample_weight: ArrayLike | None,
    ) -> VariationalClassifier:
        """One two-class model per finding, on a projection that they share."""
        bags, labels, known = data
        rng = check_random_state(self.random_state)
        # Where a bag has several classes its instances are of many: one group serves them all.
        groups = np.zeros(len(bags), dtype=np.int64) if labels.codes is None else labels.codes
        by_class = TrainingData(bags, groups, np.full(bags.n_instances, -1, np.int8))
        shared = self._begin(by_class, self._bag_likelihood(), rng, sample_weight, several=True)
        counts = shared.labels.weight
        seed = int(rng.randint(np.iinfo(np.int32).max))
        self.cache_ = "none"  # a kernel that is learnt projects anew for every class
        if not self.learn_kernel:
            with _settings_of(shared):
                shared = shared._replace(parts=self.project(shared))
        members, calibrations = [], []
        for f in range(labels.present.shape[1]):
            member = clone(self)
            member.classes_, member.n_features_in_ = np.arange(2), bags.n_features
            member.cache_ = self.cache_
            y = labels.present[:, f]
            own = BagLabels(bags.offsets, y, known[:, f])
            problem = shared._replace(
                start=member._start(own, check_random_state(seed)),
                execution=shared.execution.numbered(f),
                labels=own._replace(weight=labels.weights(class_weight, counts, f)),
            )
            watched = None
            if validation is not None:
                unseen = self._check_bags(validation[0], n_features=bags.n_features)
                truth = labels.rule.read_labels(validation[1], unseen, labels.classes)
                watched = unseen, truth.present[:, f]
            question = Question(
                watched, patience, class_folds(labels, f), REFIT_TOL, True, class_smoothing(labels)
            )
            calibrations.append(member._fit_problem(problem, question, counts))
            members.append(member)
        self._calibrate_together(members, calibrations, labels)
        return self._join(members, labels)

    def _calibrate_together(
        self,
        members: Sequence[VariationalClassifier],
        calibrations: Sequence[Calibration | None],
        labels: ClassLabels,
    ) -> None:
        """Calibrate every class, at the slope they share where its own bags say little."""
        slope = shared_slope([c.map_fit for c in calibrations if c is not None])
        for member, calibration in zip(members, calibrations, strict=True):
            if calibration is not None:
                member._take_map(calibration, calibration.map_fit.shrunk(slope))
        if self.calibrate:
            lend_maps(members, labels)

    @property
    def _softmax(self) -> Softmax | None:
        """The softmax that joins the classes, where it is asked for."""
        given = getattr(self, "likelihood", None)
        if isinstance(given, Softmax):
            return given
        return Softmax() if _is(given, "softmax") else None

    def _check_softmax(self, validation: Validation | None) -> None:
        """Say in one line what the joint fit of all classes does not know."""
        execution = resolve(self.execution)
        unknown = {
            f"{type(self).__name__}, whose density is not the hyperbolic secant": not isinstance(
                self._density(), Sech
            ),
            "learn_kernel=True": self.learn_kernel,
            "posterior='marginal'": self._refines,
            "init": not _is(self.init, "half"),
            "validation": validation is not None,
            "callback": self.callback is not None,
            "a checkpoint": execution.checkpoint is not None,
            "a device": execution.torch_device(None) is not None,
        }
        for name, asked in unknown.items():
            if asked:
                raise ValueError(
                    f"likelihood='softmax' fits all classes at once and cannot be used with {name}."
                )

    def _fit_softmax(
        self,
        data: SeveralClasses,
        softmax: Softmax,
        class_weight: ClassWeight | None,
        sample_weight: ArrayLike | None,
    ) -> VariationalClassifier:
        """One posterior per finding, all fitted together; read and calibrated one by one."""
        bags, labels, known = data
        rng = check_random_state(self.random_state)
        codes = class_codes(labels.present)
        classes = np.where((known < 0).any(axis=1), -1, class_codes(known)).astype(np.int8)
        by_class = TrainingData(bags, codes, classes)
        problem = self._begin(by_class, ExactOr(softmax.H), rng, sample_weight, several=True)
        counts = problem.labels.weight
        if class_weight is not None and labels.codes is not None:
            weight = bag_weights(class_weight, counts, labels.codes, labels.classes)
            problem = problem._replace(labels=problem.labels._replace(weight=weight))
        parts = self.project(problem)
        n_findings = labels.present.shape[1]

        def fit(kept: list[Part], tol: float) -> SoftmaxFit:
            return fit_softmax(
                kept,
                len(problem.projector.Z),
                n_findings,
                softmax.H,
                max_iter=self.max_iter,
                tol=tol,
                driver=problem.driver,
            )

        joint = fit(parts, self.tol)
        assert labels.codes is not None  # one class per bag
        shared = None
        if self.calibrate and np.bincount(labels.codes).min() >= 2:
            shared = bag_folds(labels.codes, N_FOLDS)
        folds: list[SoftmaxFit] = []
        members = []
        calibrations: list[Calibration | None] = []
        for f, q in enumerate(joint.posteriors):
            member = clone(self)
            member.n_features_in_ = bags.n_features
            own = Fit(q, joint.r[:, f + 1], joint.bound_history, joint.n_iter, joint.converged)
            members.append(member.take(problem.projector, own, np.arange(2)))
            if shared is None:
                calibrations.append(None)
                continue
            numbers = iter(range(int(shared.max()) + 1))

            def refit(
                kept: list[Part], numbers: Iterator[int] = numbers, f: int = f
            ) -> InducingPosterior:
                number = next(numbers)
                if number == len(folds):  # fitted once for all classes
                    folds.append(fit(kept, max(self.tol, REFIT_TOL)))
                return folds[number].posteriors[f]

            calibrations.append(
                member._read_folds(
                    problem._replace(
                        labels=BagLabels(bags.offsets, labels.present[:, f], known[:, f])
                    ),
                    parts,
                    shared,
                    int(shared.max()) + 1,
                    refit,
                    counts,
                    class_smoothing(labels),
                )
            )
        self._calibrate_together(members, calibrations, labels)
        self._join(members, labels)
        self.bound_history_ = joint.bound_history
        self._warn_unless_converged()
        return self

    def _join(
        self, members: list[VariationalClassifier], labels: ClassLabels
    ) -> VariationalClassifier:
        """Take the fitted models of the findings for this model's own."""
        self.per_class_ = members
        held_out = [getattr(member, "held_out_decision_", None) for member in members]
        rule = fitted_rule(labels, held_out)
        self.class_rule_ = rule
        self.instance_proba_ = class_columns([m.instance_proba_ for m in members], rule)
        if all(column is not None for column in held_out):
            log_odds = np.column_stack([np.asarray(column) for column in held_out])
            self.held_out_decision_ = held_out_classes(rule, log_odds)
        self.bound_history_ = joint_bound([member.bound_history_ for member in members])
        self.n_iter_ = max(member.n_iter_ for member in members)
        self.converged_ = all(member.converged_ for member in members)
        self.kernel_, self.inducing_points_ = members[0].kernel_, members[0].inducing_points_
        return self

    def _fit_problem(
        self, problem: FitProblem, question: Question, counts: Floats | None
    ) -> Calibration | None:
        """Fit the posterior of one question about the bags; returns what calibrates it."""
        fresh = problem.start
        if self.learn_kernel:
            problem = self._learn_kernel(problem)
        self._check_posterior(problem)
        self._warn_of_instability(problem)
        watch = None
        if question.validation is not None:
            watch = self._watch(question.validation, question.patience, problem)
        parts, fit = self._train_or_halve(problem, watch)
        if self._refines:
            with _settings_of(problem):
                fit = fit._replace(posterior=self._refined(problem, parts, fit.posterior))
        self._store(problem.projector, fit)
        self._warn_unless_converged()
        self._check_escape(problem, parts, fit)
        # What stopped a fit early, a callback or validation bags, stops the refits as early.
        max_iter = self.max_iter if fit.converged and watch is None else fit.n_iter
        with _settings_of(problem):
            fresh_problem = problem._replace(start=fresh)
            return self._calibrate(fresh_problem, parts, max_iter, question, counts)

    @property
    def _refines(self) -> bool:
        return self.posterior == "marginal"

    def _check_posterior(self, problem: FitProblem) -> None:
        if self._refines and not has_marginal(problem.likelihood):
            raise ValueError(
                f"posterior='marginal' has no effect with {type(problem.likelihood).__name__}, "
                "whose hidden labels cannot be summed out; use posterior='factorised'."
            )

    def _refined(
        self, problem: FitProblem, parts: list[Any], q: InducingPosterior
    ) -> InducingPosterior:
        """q(v) under the marginal likelihood, from where the updates left it."""

        def statistics(at: InducingPosterior) -> Statistics:
            sums = RunningSum()
            problem.driver.sweep(MarginalStep(problem.likelihood, at), parts, sums)
            return sums.value

        # Another density's mean is not that of a likelihood: only its covariance is refined.
        return refine(statistics, q, move_mean=isinstance(problem.density, Sech)).posterior

    def _warn_of_instability(self, problem: FitProblem) -> None:
        """Say before the fit where a Gamma density has no stable latent function."""
        density = problem.density
        if isinstance(density, Gamma):
            reason = instability(density.alpha, density.beta, _prior_variance(problem.projector))
            if reason is not None:
                warnings.warn(f"{type(self).__name__}: {reason}", stacklevel=3)

    def _check_escape(self, problem: FitProblem, parts: list[Any], fit: Fit) -> None:
        """Mark a fit whose latent function ran away, and say so."""
        if not isinstance(problem.density, Gamma):
            return
        largest: list[float] = []
        problem.driver.sweep(_LargestMean(fit.posterior), parts, largest.append)
        variance = _prior_variance(problem.projector)
        reason = escape(np.array(largest), variance, float(fit.bound_history[-1]))
        if reason is not None:
            self.converged_ = False
            warnings.warn(
                f"{type(self).__name__}: {reason} Do not trust this fit; lower beta or the "
                "kernel's variance, or raise alpha.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _calibrate(
        self,
        problem: FitProblem,
        parts: list[Any],
        max_iter: int,
        question: Question,
        counts: Floats | None,
    ) -> Calibration | None:
        """Latent values of held-out bags, and what a map of them is fitted to, where asked for."""
        self.calibration_, self.instance_map_ = None, None
        y, bags = problem.labels.y, problem.bags
        if not self.calibrate:
            return None
        if np.bincount(y, minlength=2).min() < 2:
            if question.one_of_several:  # which are told of, and calibrated, together
                return None
            warnings.warn(
                "calibration needs 2 bags of each class, one to hold out and one to learn from; "
                "the probabilities are left uncalibrated. calibrate=False asks for that.",
                stacklevel=3,
            )
            return None
        large = bags.n_instances > _ONE_FOLD
        folds = question.folds
        if folds is None:
            folds = folds_of_large(y, bags.sizes) if large else bag_folds(y)
        n_refits = enough_folds(folds, y) if large else int(folds.max()) + 1

        M = len(problem.projector.Z)

        def fit(kept: list[Any], M: int = M) -> InducingPosterior:
            state, ended = iterate(
                kept,
                M,
                problem.likelihood,
                problem.density,
                max_iter=max_iter,
                tol=max(self.tol, question.refit_tol),
                driver=problem.driver,
                only_posterior=True,
            )
            return self._refined(problem, ended, state.q) if self._refines else state.q

        def project(seen: Bools) -> tuple[list[Any], Refit]:
            projector = self._without(problem, seen)
            own = self._parts(problem._replace(projector=projector), problem.chunk_size)
            return own, partial(fit, M=len(projector.Z))

        # Classes that share a projection share it in their folds, too.
        own = problem.parts is None and bags.n_instances * max(bags.n_features, M) <= _FEW_NUMBERS
        return self._read_folds(
            problem,
            parts,
            folds,
            n_refits,
            fit,
            counts,
            question.smoothing,
            # One class of several has no map of the instances' own.
            compress=not question.one_of_several,
            project=project if own else None,
        )

    def _without(self, problem: FitProblem, seen: Bools) -> Projector:
        """The projection that a fit to some of the bags would choose."""
        y, known = problem.labels.y.astype(np.int64), problem.labels.known
        rows, _ = segments.take(problem.bags.offsets, np.flatnonzero(seen))
        return self._choose_projector(
            TrainingData(problem.bags[seen], y[seen], known[rows]),
            check_random_state(self.random_state),
            problem.execution,
            problem.driver,
            kernel=problem.projector.kernel if self.learn_kernel else None,
        )

    def _read_folds(
        self,
        problem: FitProblem,
        parts: list[Part],
        folds: Ints,
        n_refits: int,
        fit: Callable[[list[Part]], InducingPosterior],
        counts: Floats | None,
        smoothing: float | None = None,
        compress: bool = False,
        project: Callable[[Bools], tuple[list[Any], Refit]] | None = None,
    ) -> Calibration:
        """What a map is fitted to: the values of each fold's bags by the fit without them."""
        y, bags = problem.labels.y, problem.bags
        held_out = refit_folds(
            parts,
            problem.start,
            bags.offsets,
            folds,
            n_refits,
            fit,
            problem.driver,
            joint=self.bag_rule == "joint",
            top=self.bag_rule == "max",
            drifting=self._posterior() if isinstance(problem.likelihood, LargeMargin) else None,
            project=project,
        )
        chosen = np.flatnonzero(folds < n_refits)
        rows, _ = segments.take(bags.offsets, chosen)
        known = problem.labels.known[rows]
        map_fit = MapFit(
            held_out,
            y[chosen],
            self.bag_rule,
            known,
            weight=None if counts is None else counts[chosen],
            count=smoothing,
            compress=compress,
        )
        unlearned = np.flatnonzero(np.isin(chosen, bags.held_out))
        return Calibration(map_fit, held_out, chosen, len(bags), unlearned, known)

    def _take_map(self, calibration: Calibration, latent_map: LatentMap) -> None:
        """Calibrate by a map; features learned from the labels make it gentler."""
        y, held_out, chosen = calibration.map_fit.labels, calibration.held_out, calibration.bags
        self.calibration_ = cooled(latent_map, held_out, y, self.bag_rule, calibration.unlearned)
        self.held_out_decision_ = np.full(calibration.n_bags, np.nan)
        self.held_out_decision_[chosen] = rule_log_odds(held_out, self.bag_rule, self.calibration_)

    def _fit_instance_map(self, calibration: Calibration) -> None:
        """A map of the instances' own; with several classes the bag says which they may be."""
        assert self.calibration_ is not None
        map_fit = calibration.map_fit
        # Instances are not compressed. They are as sure as the bags of a line were of its slope
        # before shrinking; what cooled it cools both.
        line = map_fit.without_ends()
        slope = line.slope * self.calibration_.slope / map_fit.shrunk().slope
        held_out, y = calibration.held_out, map_fit.labels
        contrast = fit_instance_map(held_out, y, slope, calibration.known, gain=line.gain)
        of_bags = self.held_out_decision_[calibration.bags]
        self.instance_map_ = level_with_bags(contrast, held_out, y, of_bags)

    def _fit_deviations(self, bags: Bags, held_out: HeldOut) -> None:
        """What the deviations of the instances have in common, from some of the training bags."""
        assert self.instance_map_ is not None
        read = self._read(bags[bags_to_read(bags.sizes)], _instances)
        far = held_out.var.max() ** 0.5
        if self._far_times is not None:
            far = min(far, self._far_times * np.median(read[2]))
        deviations = usual_deviations(*read, far=float(far))
        self.instance_map_ = self.instance_map_._replace(deviations=deviations)

    def _check_bags(self, bags: BagsLike, n_features: int | None = None) -> Bags:
        # Pages of a memory map would count as memory of this process.
        bags = loaded_if_small(read_plainly(bags))
        bags = on_device(bags, resolve(self.execution), n_features, type(self).__name__)
        if not on_disk(bags):
            return super()._check_bags(bags, n_features)
        # Rows on disk are looked at for NaN where they are read anyway.
        return check_bags(bags, n_features=n_features, estimator=type(self).__name__, finite=False)

    def _start(self, labels: BagLabels, rng: np.random.RandomState) -> Floats:
        """Instance probabilities before the first update, [N]."""
        if isinstance(self._bag_likelihood(), Inherited) and not _is(self.init, "half"):
            raise ValueError(
                "init has no effect with likelihood='inherited', whose instances start with "
                "their bag's label; drop it."
            )
        return start(self.init, labels, rng)

    def _choose_projector(
        self,
        data: TrainingData,
        rng: np.random.RandomState,
        execution: Execution,
        driver: Driver,
        several: bool = False,
        kernel: Kernel | None = None,
    ) -> Projector:
        choices = ProjectionChoices(
            make_kernel(self.kernel if kernel is None else kernel),
            measured_scaling(data.bags, self.scale, driver),
            self._inducing(data.bags.n_features),
            self.n_inducing,
            execution.dtype or self._dtype,
        )
        device = execution.torch_device(data.bags.instances)
        return choose_projector(data, choices, rng, several).to(device)

    def _inducing(self, n_features: int) -> Inducing | Floats:
        """The method that chooses the inducing points, or the user's own, checked."""
        if isinstance(self.inducing, str):
            return cast(Inducing, self.inducing)  # validated
        Z = np.array(self.inducing, dtype=np.float64)
        if Z.ndim != 2 or Z.shape[1] != n_features or len(Z) == 0 or not np.isfinite(Z).all():
            raise ValueError(
                f"inducing must be a finite array of shape (n_inducing, {n_features}); got shape "
                f"{Z.shape}."
            )
        if self.n_inducing not in (_N_INDUCING, len(Z)):
            raise ValueError(
                f"n_inducing={self.n_inducing} has no effect with {len(Z)} given inducing "
                "points; drop it."
            )
        return np.unique(Z, axis=0)

    def _learn_kernel(self, problem: FitProblem) -> FitProblem:
        """Short fits and kernel updates in turn, P(29); sites and beliefs carry over."""
        from bagwise.models.variational.hyper import KernelFit, learn

        projector, density, execution = problem.projector, problem.density, problem.execution
        scaling = FeatureScaling(*(to_numpy(x) for x in projector.scaling))
        X, Z = scaling(to_numpy(problem.bags.instances[:])), to_numpy(projector.Z)
        device = execution.torch_device(problem.bags.instances)
        chunk = problem.chunk_size

        def under(kernel: Kernel) -> Projector:
            return make_projector(kernel, Z, scaling, execution.dtype or self._dtype).to(device)

        def advance(kernel: Kernel, last: KernelFit | None) -> KernelFit:
            parts = self._unprojected(problem._replace(projector=under(kernel)), chunk)
            if last is not None:
                parts = [
                    part._replace(beliefs=beliefs, sites=sites)
                    for part, (beliefs, sites) in zip(parts, last.carry, strict=True)
                ]
            ready = materialised(parts, self.cache_, problem.driver)
            state, n_done = None, 0
            if last is not None:
                sums = RunningSum()
                problem.driver.sweep(_site_statistics, ready, sums)
                q = update_posterior(sums.value.precision, sums.value.linear)
                state, n_done = FitState(1, q, [], np.inf, False), 1
            fit, ended = fit_parts(
                ready,
                len(Z),
                problem.likelihood,
                density,
                max_iter=n_done + _KERNEL_ITERATIONS,
                tol=self.tol,
                driver=problem.driver,
                state=state,
            )
            carry: list[Any] = []
            problem.driver.sweep(_read_carry, ended, carry.append)
            return KernelFit(fit.omega, fit.rho, float(fit.bound_history[-1]), carry)

        normaliser = not isinstance(density, Sech)
        if normaliser and not isinstance(projector.kernel, RBF):
            warnings.warn(
                f"log Z of {type(density).__name__} is known for the RBF kernel alone; this kernel "
                "is learnt without it.",
                stacklevel=3,
            )
            normaliser = False

        def is_stable(kernel: Kernel) -> bool:
            """Whether the density has a stable latent function under a kernel."""
            if not isinstance(density, Gamma):
                return True
            variance = float(np.max(to_numpy(kernel.diag(Z))))
            return instability(density.alpha, density.beta, variance) is None

        learnt = learn(
            projector.kernel,
            X,
            Z,
            advance,
            n_rounds=_KERNEL_ROUNDS,
            tol=_KERNEL_TOL,
            density=density,
            normaliser=normaliser,
            chunk_size=chunk,
            # A start without one was warned of, and is the user's own.
            admissible=is_stable if is_stable(projector.kernel) else None,
        )
        pi = np.concatenate([b.pi for beliefs, _ in learnt.fit.carry for b in beliefs])
        return problem._replace(projector=under(learnt.kernel), start=pi)

    def _parts(self, problem: FitProblem, chunk_size: int) -> list[Any]:
        """The bags as parts whose projections are kept as ``cache_`` says."""
        parts = self._unprojected(problem, chunk_size)
        return materialised(parts, self.cache_, problem.driver)

    def _unprojected(self, problem: FitProblem, chunk_size: int) -> list[Part]:
        bags, labels, projector, pi, *_ = problem
        itemsize = np.dtype(problem.execution.dtype or self._dtype).itemsize
        device = str(projector.Z.device) if projector.on_device else None
        n_bytes = len(projector.Z) * bags.n_instances * itemsize
        self.cache_ = problem.execution.plan_cache(n_bytes, device)
        return make_parts(bags.instances, labels, projector, pi, chunk_size, problem.driver.n_parts)

    def _train_or_halve(self, problem: FitProblem, watch: Patience | None) -> tuple[list[Any], Fit]:
        """`_train`; when a device runs out of memory, once more with chunks half as long."""
        chunk = problem.chunk_size
        if not problem.projector.on_device:
            return self._train(problem, watch, chunk)
        import torch

        with _settings_of(problem):
            try:
                return self._train(problem, watch, chunk)
            except torch.cuda.OutOfMemoryError:
                chunk = max(1, chunk // 2)
                warnings.warn(
                    f"the device ran out of memory; going on with chunks of {chunk} instances.",
                    stacklevel=3,
                )
            torch.cuda.empty_cache()
            return self._train(problem, watch, chunk)

    def _train(
        self, problem: FitProblem, watch: Patience | None, chunk_size: int
    ) -> tuple[list[Any], Fit]:
        """Fit q(v); returns the parts as they ended, and the fit."""
        driver = problem.driver
        if problem.parts is None:
            parts: list[Any] = self._unprojected(problem, chunk_size)
        else:
            relabel = Relabel(problem.labels, problem.start)
            parts = driver.sweep(relabel, problem.parts, lambda _: None)
        state, keeper = None, None
        if problem.execution.checkpoint is not None:
            name = fingerprint(
                problem.labels,
                problem.start,
                problem.projector,
                problem.likelihood,
                problem.density,
                self.tol,
            )
            execution = problem.execution
            keeper = Checkpoint(
                execution.checkpoint, execution.saves_every, name, problem.likelihood
            )
            state, parts = keeper.resume(parts)
        ready = parts if problem.parts is not None else materialised(parts, self.cache_, driver)
        on_state = None if keeper is None else keeper.saver(driver)
        fit, ended = self._iterate(problem, ready, watch, state=state, on_state=on_state)
        if watch is not None and watch.best < fit.n_iter:
            # Updates are deterministic, so fitting again up to the best iteration restores it.
            fit, ended = fit_parts(
                ready,
                len(problem.projector.Z),
                problem.likelihood,
                problem.density,
                max_iter=watch.best,
                tol=self.tol,
                driver=driver,
            )
            fit = fit._replace(converged=True)
        if keeper is not None:
            keeper.done()
        return ended, fit

    def _iterate(
        self, problem: FitProblem, parts: list[Any], watch: Patience | None = None, **resume: Any
    ) -> tuple[Fit, list[Any]]:
        """Iterate on projected parts, with every monitor."""
        watching: list[Monitor] = [m for m in (self.callback, watch) if m is not None]
        with iteration_bar(self.verbose, self.max_iter, type(self).__name__) as bar:
            return fit_parts(
                parts,
                len(problem.projector.Z),
                problem.likelihood,
                problem.density,
                max_iter=self.max_iter,
                tol=self.tol,
                driver=problem.driver,
                sites=False,
                on_iteration=all_of([*watching, *bar]),
                **resume,
            )

    def _watch(self, validation: Validation, patience: int, problem: FitProblem) -> Patience:
        if not (isinstance(patience, Integral) and patience >= 1):
            raise ValueError(f"patience must be a whole number of at least 1; got {patience!r}.")
        bags = self._check_bags(validation[0], n_features=self.n_features_in_)
        y = self._check_labels(bags, validation[1])
        if set(np.unique(y)) != set(self.classes_):
            raise ValueError(
                f"validation needs bags of both classes {self.classes_.tolist()}; got labels "
                f"{np.unique(y).tolist()}."
            )
        codes = (y == self.classes_[1]).astype(int)
        unknown = np.full(bags.n_instances, -1, dtype=np.int8)
        labels = BagLabels(bags.offsets, codes, unknown)
        chunk = problem.chunk_size
        parts = make_parts(bags.instances, labels, problem.projector, unknown, chunk, 1)
        blocks = [block for part in parts for block in part.blocks]
        return Patience(blocks, codes, self.bag_rule, patience)

    def _store_posterior(self, projector: Projector, q: InducingPosterior) -> None:
        self.kernel_ = projector.kernel
        scaling = FeatureScaling(*(to_numpy(x) for x in projector.scaling))
        self.feature_center_, self.feature_width_ = scaling
        self.inducing_points_ = scaling.undo(to_numpy(projector.Z))
        self.posterior_mean_, self.posterior_factor_ = q

    def _fitted_projector(self, dtype: str) -> Projector:
        scaling = FeatureScaling(self.feature_center_, self.feature_width_)
        return make_projector(self.kernel_, scaling(self.inducing_points_), scaling, dtype)

    def _store(self, projector: Projector, fit: Fit) -> None:
        self._store_posterior(projector, fit.posterior)
        self.instance_proba_ = fit.pi
        self.bound_history_ = fit.bound_history
        self.n_iter_ = fit.n_iter
        self.converged_ = bool(fit.converged)

    def _warn_unless_converged(self) -> None:
        if not self.converged_ and self.tol > 0 and self.n_iter_ == self.max_iter:
            warnings.warn(
                f"{type(self).__name__} did not converge in {self.max_iter} iterations. Raise "
                "max_iter or tol; NoisyMax(schedule='paper') oscillates, so use 'damped', or "
                "likelihood='or' or 'witness', whose bound never falls.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def project(self, problem: FitProblem) -> list[Any]:
        """The bags of a problem as projected parts, which several members may fit."""
        return self._parts(problem, problem.chunk_size)

    def fit_projected(self, problem: FitProblem, parts: list[Any]) -> Fit:
        """Fit q(v) to parts that `project` made; the model's own likelihood and density count."""
        own = problem._replace(
            likelihood=self._bag_likelihood(), density=check_density(self._density())
        )
        return self._iterate(own, parts)[0]

    def take(self, projector: Projector, fit: Fit, classes: Array) -> VariationalClassifier:
        """Become the model of a fit that was made elsewhere, uncalibrated."""
        self.classes_, self.n_features_in_ = classes, int(projector.Z.shape[1])
        self._store(projector, fit)
        self.calibration_, self.instance_map_ = None, None
        return self

    def update(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None
    ) -> VariationalClassifier:
        """Fit again with instance labels that came later, from where the model stands.

        Scaling, inducing points, kernel and calibration stay; q(u) is fitted to the bags and all
        the labels now known, starting from the current beliefs where the bags are those of `fit`.
        A rare class counts as it does by default in `fit`.
        """
        check_is_fitted(self)
        if self._softmax is not None:
            raise ValueError("likelihood='softmax' fits all classes at once; call fit again.")
        if hasattr(self, "per_class_"):
            return self._update_several(bags, y, instance_labels)
        _, data = self._validate_stream(bags, y, None, instance_labels, first=False)
        execution = resolve(self.execution)
        device = execution.torch_device(data.bags.instances)
        weight = bag_weights(None, None, data.y, self.classes_)
        labels = BagLabels(data.bags.offsets, data.y, data.instance_labels, weight)
        same = len(self.instance_proba_) == data.bags.n_instances
        problem = FitProblem(
            data.bags,
            labels,
            self._fitted_projector(execution.dtype or self._dtype).to(device),
            self.instance_proba_ if same else start("half", labels, None),
            self._bag_likelihood(),
            check_density(self._density()),
            execution,
            driver_for(execution, data.bags, self.n_inducing),
        )
        _, fit = self._train_or_halve(problem, None)
        self._store(problem.projector, fit)
        return self

    def _update_several(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels
    ) -> VariationalClassifier:
        checked = self._check_bags(bags, self.n_features_in_)
        labels = self.class_rule_.read_labels(y, checked, self.classes_)
        known = read_instance_classes(instance_labels, checked, labels)
        for f, member in enumerate(self.per_class_):
            member.update(checked, labels.present[:, f], known[:, f])
        rule = self.class_rule_
        self.instance_proba_ = class_columns([m.instance_proba_ for m in self.per_class_], rule)
        self.bound_history_ = joint_bound([m.bound_history_ for m in self.per_class_])
        self.n_iter_ = max(member.n_iter_ for member in self.per_class_)
        return self

    def _posterior(self) -> InducingPosterior:
        return InducingPosterior(self.posterior_mean_, self.posterior_factor_)

    def _read(
        self,
        bags: BagsLike,
        finish: Callable[[Sequence[Readout], Ints], tuple[Floats, ...]],
        fractions: bool = False,
        wants: Wants = "all",
    ) -> tuple[Floats, ...]:
        """Columns made of the readouts of the bags to predict; one pass over their rows."""
        checked = self._validate_predict(bags)
        members = getattr(self, "per_class_", [self])
        # Each class that learnt its own kernel has its own projection, too.
        own = len(members) if self.learn_kernel else 1
        projectors = tuple(m._fitted_projector("float64") for m in members[:own])
        # With several classes what a bag is settles what its instances are.
        instance_map = self.instance_map_ if len(members) == 1 else None
        readers = tuple(
            Reader(
                min(i, own - 1),
                m._posterior(),
                m.bag_rule,
                m.calibration_,
                fractions,
                wants,
                instance_map,
            )
            for i, m in enumerate(members)
        )
        return read_bags(checked, projectors, readers, finish, resolve(self.execution))

    @property
    def _rule(self) -> ClassRule | None:
        """How several classes go together; None with two."""
        return getattr(self, "class_rule_", None)

    @property
    def _calibrated(self) -> bool:
        """Whether every class is; only then do instances take part in what their bag is."""
        return all(m.calibration_ is not None for m in getattr(self, "per_class_", [self]))

    def predict_latent(self, bags: BagsLike) -> tuple[Floats, Floats]:
        """Mean and variance of the latent function at every instance, P(30, 31).

        Shape (n_instances,); with several classes (n_instances, n_classes), NaN for the background.
        """
        check_is_fitted(self)
        mean, var = self._read(bags, partial(_latent, rule=self._rule))
        return mean, var

    def score_bags(self, bags: BagsLike) -> Scores:
        """Everything the model says about bags, from one pass over their rows.

        Every ``predict`` and ``decision_function`` is a view of it.

        Returns
        -------
        Scores
            ``bag`` and ``instance`` are log-odds, of shapes (n_bags,) and (n_instances,);
            ``bag_std`` and ``instance_std`` are standard deviations of the probabilities.
            With several classes all have a column per class.
        """
        return self._score(bags, "probabilities")

    def _score(self, bags: BagsLike, wants: Wants) -> Scores:
        """The scores; those that nobody wants are left empty."""
        check_is_fitted(self)
        return Scores(
            *self._read(
                bags,
                partial(_scores, rule=self._rule, calibrated=self._calibrated),
                wants=wants,
            )
        )

    def decision_function(self, bags: BagsLike) -> Floats:
        """Log-odds of each bag, shape (n_bags,); (n_bags, n_classes) with several classes."""
        return self._score(bags, "bags").bag

    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """Log-odds of each instance, aligned with ``bags.instances``; shaped as for bags."""
        return self.score_bags(bags).instance

    def predict_proba(
        self, bags: BagsLike, return_std: bool = False, return_interval: float | None = None
    ) -> Floats | tuple[Floats, ...]:
        """Probability of the classes for each bag, and its uncertainty on request.

        The classes of a bag sum to one, unless the model was fitted to an indicator matrix: then
        each column is the probability that the bag has this class, whatever else it has.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        return_std : bool
            Also return the standard deviation of the positive probability under q(f), P(36); with
            several classes, of every class's, to first order.
        return_interval : float in (0, 1), optional
            Also return the central interval that holds the positive probability with this
            probability: that of the Beta distribution with the same mean and standard deviation.

        Returns
        -------
        proba : array of shape (n_bags, n_classes)
        std : array of shape (n_bags,), if ``return_std``
        interval : array of shape (n_bags, 2), if ``return_interval``
            Lower and upper end. With several classes ``std`` and ``interval`` have an axis for
            the classes after that for the bags.
        """
        scores = self._score(bags, "bags")
        return probabilities(scores.bag, scores.bag_std, return_std, return_interval)

    def predict_proba_instances(
        self, bags: BagsLike, return_std: bool = False, return_interval: float | None = None
    ) -> Floats | tuple[Floats, ...]:
        """Probability of the classes for each instance; as `predict_proba`. P(32, 33).

        Calibrated, with two classes, it is the chance that the bag is positive and that the
        instance is one of its positives, which the contrast between positive and negative held-out
        bags tells (``instance_map_``), and its interval is that of a Beta distribution. Most
        instances of one probability have one standard deviation; it is larger where the model is
        less certain than at most training instances (``instance_map_.deviations``). With
        ``calibrate=False`` the ends of an interval are quantiles of sigmoid(f). With several
        classes no instance is more probable than its bag, and without a background a row may sum
        to less than one: what is missing is the chance that the instance is of no class.
        """
        scores = self.score_bags(bags)
        mapped = self.instance_map_ is not None
        if return_interval is None or self._rule is not None or mapped:
            return probabilities(scores.instance, scores.instance_std, return_std, return_interval)
        interval = np.stack(instance_interval(*self.predict_latent(bags), return_interval), axis=1)
        proba = two_probabilities(scores.instance)
        return (proba, scores.instance_std, interval) if return_std else (proba, interval)

    def predict_positive_fraction(
        self, bags: BagsLike, return_std: bool = False, return_interval: float | None = None
    ) -> Floats | tuple[Floats, ...]:
        """Expected share of positive instances in each bag, and its uncertainty on request.

        Its mean is the mean probability of the instances. Its spread has two sources: the latent
        function, which the instances of a bag share, and the labels given the function.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        return_std, return_interval
            As for `predict_proba`.

        Returns
        -------
        fraction : array of shape (n_bags,)
        std : array of shape (n_bags,), if ``return_std``
        interval : array of shape (n_bags, 2), if ``return_interval``
        """
        check_is_fitted(self)
        finish = partial(_fractions, rule=self._rule, calibrated=self._calibrated)
        mean, std = self._read(bags, finish, fractions=True)
        return with_uncertainty(mean, mean, std, return_std, return_interval)


class VGPMIL(VariationalClassifier):
    """Variational Gaussian process multiple-instance learning.

    A sparse GP scores every instance; the label of a bag says whether the largest of its hidden
    instance labels is positive. Haussmann, Hamprecht and Kandemir, CVPR 2017 (V); PG-VGPMIL of
    Castro-Macías et al., AIJ 2024 (P), has the same updates.

    Parameters
    ----------
    kernel : kernel object or {"rbf + bias", "rbf", "matern32", "matern52", "multi-scale", "linear"}
        From `bagwise.kernels`; acts on scaled features. Its scales are its own parameters and
        may be left to the data: ``RBF("median", 16.0)``, ``RBF("sqrt_dim")``, ``MultiScale()``.
    likelihood : {"noisy-max", "or", "witness", "inherited", "softmax"} or object
        How a bag's label speaks about its instances: `NoisyMax` (the papers'), `ExactOr`,
        `SoftWitness`, `Inherited`; for three classes or more also `Softmax`, which fits them
        together.
    n_inducing : int
        Number of inducing points M; cost grows with M squared. Capped at the distinct rows.
    inducing : {"kmeans", "class-kmeans", "subset"} or array of shape (M, n_features)
        Centroids of all instances, of those of either class apart (V section 4.2), a random
        subset, or the points themselves. Centroids by class know the labels, also of the bags
        that are held out for the calibration on the same points: their scores come out a little
        too good, an AUC of .51 to .54 where labels are permuted.
    scale : {"feature", "global", None}
        Standardise each feature, or divide all by one number; learnt from the training bags.
    learn_kernel : bool
        Maximise the collapsed bound over the kernel's parameters as well, P(29). A step that
        would lower the full bound is refused; the log Z of densities other than `Sech` counts.
    bag_rule : {"max", "noisy-or", "joint"}
        A bag's probability: the largest p of its instances, 1 - prod(1 - p) over independent
        instances, or noisy-or with the instances correlated through u. Only the largest p cannot
        be raised by the size of a bag alone.
    calibrate : bool
        Fit again without each of five folds of bags, on the same projection, and map the latent
        function so that the held-out bags it makes by ``bag_rule`` have their labels most
        likely. Probabilities, standard deviations and intervals all are those of the mapped
        function; scores that say nothing about held-out bags give about the base rate. Costs
        about five more fits; with more than 200,000 instances at most a fifth of the bags are
        held out, one more fit, or a few where that would be fewer than 25 bags of a class. Where
        features were learned from the bags' labels, the log-odds are shrunk by a factor estimated
        on the bags held out from that. False gives the papers' uncalibrated probabilities.
    posterior : {"factorised", "marginal"}
        ``factorised`` is the papers' q(v), which treats every instance as labelled to the extent
        it is believed in and is far too narrow. ``marginal`` goes on from there with the hidden
        labels summed out, at the cost of about six more passes with 64 functions each: its
        spread covers. For densities other than `Sech` only the covariance is refined. An error
        for likelihoods whose labels cannot be summed out.
    init : {"half", "label", "random"} or array of shape (n_instances,)
        Instance probabilities in positive bags before the first update: 1/2, 1, or
        uniform draws; instances of negative bags start at 0 (``random`` draws for them too, as P
        does). An array gives them all.
    max_iter, tol : int, float
        Stop after ``max_iter`` iterations, or when q(u)'s mean moves less than ``tol``, relative.
    execution : Execution or {"serial", "threads", "dask", "cpu", "cuda"}, optional
        Where and how the work runs: device, precision, threads, Dask, cache, checkpoints. The
        result does not depend on it.
    random_state : int, RandomState or None
        Of the inducing points, of ``init="random"`` and of the median's subsample.
    verbose : bool
        Show a progress bar with the bound.
    callback : callable, optional
        Called with an `Iteration` after every iteration; return True to stop.

    Attributes
    ----------
    inducing_points_ : array of shape (M, n_features)
    kernel_ : kernel object, on scaled features
    instance_proba_ : array of shape (n_instances,)
        q(y = 1) of the training instances.
    calibration_ : LatentMap or None
        The map of the latent function; None where the probabilities are not calibrated.
    instance_map_ : InstanceMap or None
        The map of the instances, and ``positive_rate``, the share of positives that the training
        labels say a positive bag holds.
    held_out_decision_ : array of shape (n_bags,), with ``calibrate``
        Calibrated log-odds of every training bag from a fit without its fold; NaN for bags that
        were not held out.
    bound_history_ : array of shape (n_iter,)
        Lower bound of log p(labels) after every iteration, for any likelihood but `LargeMargin`,
        whose objective it is. It never falls for "or", "witness" and "inherited"; the papers'
        updates of "noisy-max" may lower it.
    n_iter_, converged_ : int, bool
    cache_ : str
        How the projected instances were kept.
    posterior_mean_, posterior_factor_ : arrays of shape (M,), (M, M)
        q(v) = N(m, W^T W) in whitened coordinates, u = L v.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import VGPMIL, Bags
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 5, 2))
    >>> y = np.arange(40) % 2
    >>> X[y == 1, 0] += 3  # one positive instance in each positive bag
    >>> model = VGPMIL(n_inducing=20, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> p, std = model.predict_proba_instances(X, return_std=True)
    >>> p.shape, std.shape
    ((200, 2), (200,))
    """

    def __init__(
        self,
        *,
        kernel: Kernel | str = "rbf + bias",
        likelihood: BagLikelihood | str = "noisy-max",
        n_inducing: int = _N_INDUCING,
        inducing: Inducing | ArrayLike = "kmeans",
        scale: Scale = "feature",
        learn_kernel: bool = False,
        bag_rule: BagRule = "max",
        calibrate: bool = True,
        posterior: Posterior = "factorised",
        init: Init | ArrayLike = "half",
        max_iter: int = 200,
        tol: float = 1e-3,
        execution: Execution | str | None = None,
        random_state: RandomState = None,
        verbose: bool = False,
        callback: Callable[[Iteration], object] | None = None,
    ) -> None:
        self.kernel = kernel
        self.likelihood = likelihood
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.scale = scale
        self.learn_kernel = learn_kernel
        self.bag_rule = bag_rule
        self.calibrate = calibrate
        self.posterior = posterior
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.execution = execution
        self.random_state = random_state
        self.verbose = verbose
        self.callback = callback


class PsiVGPMIL(VariationalClassifier):
    """psi-VGPMIL: VGPMIL with any differentiable Gaussian-scale-mixture density. P section 3.2.

    Parameters
    ----------
    density : density object, optional
        `Sech` (the default: VGPMIL), `Gamma`, or any object with ``theta(c)`` and ``log_psi(c)``;
        see `bagwise.models.variational.Density`.
    kernel, likelihood, n_inducing, inducing, scale, learn_kernel, bag_rule, calibrate, posterior, \
init, max_iter, tol, execution, random_state, verbose, callback
        As for `VGPMIL`; kernel and likelihood are the paper's by default.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import PsiVGPMIL
    >>> from bagwise.models.variational import Gamma
    >>> X = np.random.default_rng(0).normal(size=(40, 5, 2))
    >>> y = np.arange(40) % 2
    >>> X[y == 1, 0] += 3
    >>> PsiVGPMIL(density=Gamma(1.0, 1.0), random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    # check_density says what is missing, at fit.
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **VariationalClassifier._parameter_constraints,
        "density": "no_validation",
    }

    def __init__(
        self,
        *,
        density: Density | None = None,
        kernel: Kernel | str = "rbf",
        likelihood: BagLikelihood | str = "noisy-max",
        n_inducing: int = _N_INDUCING,
        inducing: Inducing | ArrayLike = "kmeans",
        scale: Scale = "feature",
        learn_kernel: bool = False,
        bag_rule: BagRule = "max",
        calibrate: bool = True,
        posterior: Posterior = "factorised",
        init: Init | ArrayLike = "half",
        max_iter: int = 200,
        tol: float = 1e-3,
        execution: Execution | str | None = None,
        random_state: RandomState = None,
        verbose: bool = False,
        callback: Callable[[Iteration], object] | None = None,
    ) -> None:
        self.density = density
        self.kernel = kernel
        self.likelihood = likelihood
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.scale = scale
        self.learn_kernel = learn_kernel
        self.bag_rule = bag_rule
        self.calibrate = calibrate
        self.posterior = posterior
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.execution = execution
        self.random_state = random_state
        self.verbose = verbose
        self.callback = callback

    def _density(self) -> Density:
        return Sech() if self.density is None else self.density


class GVGPMIL(VariationalClassifier):
    """G-VGPMIL: VGPMIL with Gamma-mixed Gaussians, P(37).

    Parameters
    ----------
    alpha, beta : float
        Shape and rate of the Gamma; see `Gamma`.
    kernel, likelihood, n_inducing, inducing, scale, learn_kernel, bag_rule, calibrate, posterior, \
init, max_iter, tol, execution, random_state, verbose, callback
        As for `VGPMIL`; kernel and likelihood are the paper's by default.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import GVGPMIL
    >>> X = np.random.default_rng(0).normal(size=(40, 5, 2))
    >>> y = np.arange(40) % 2
    >>> X[y == 1, 0] += 3
    >>> GVGPMIL(alpha=1.0, beta=1.0, random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    # On text its probabilities of instances that it knows little of are often wrong, and errors are
    # found earlier by deviations that grow there. Chosen on seeds 100 to 113 of
    # `experiments.instance_probabilities`.
    _far_times: ClassVar[float | None] = 3.5
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **VariationalClassifier._parameter_constraints,
        "alpha": [_POSITIVE],
        "beta": [_POSITIVE],
    }

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        kernel: Kernel | str = "rbf",
        likelihood: BagLikelihood | str = "noisy-max",
        n_inducing: int = _N_INDUCING,
        inducing: Inducing | ArrayLike = "kmeans",
        scale: Scale = "feature",
        learn_kernel: bool = False,
        bag_rule: BagRule = "max",
        calibrate: bool = True,
        posterior: Posterior = "factorised",
        init: Init | ArrayLike = "half",
        max_iter: int = 200,
        tol: float = 1e-3,
        execution: Execution | str | None = None,
        random_state: RandomState = None,
        verbose: bool = False,
        callback: Callable[[Iteration], object] | None = None,
    ) -> None:
        self.alpha = alpha
        self.beta = beta
        self.kernel = kernel
        self.likelihood = likelihood
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.scale = scale
        self.learn_kernel = learn_kernel
        self.bag_rule = bag_rule
        self.calibrate = calibrate
        self.posterior = posterior
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.execution = execution
        self.random_state = random_state
        self.verbose = verbose
        self.callback = callback

    def _density(self) -> Density:
        return Gamma(self.alpha, self.beta)


class LMVGPMIL(VariationalClassifier):
    """LM-VGPMIL: VGPMIL with a large margin. V section 3.3 and supplement 2.

    Every instance has a gate that opens beyond a margin; only instances whose gate is open pull
    the decision surface. The model is cyclic: its objective may fall, and the fit stops
    on the change of q(u). Prediction is VGPMIL's. Its likelihood is ``LargeMargin(C, V)``; for
    another H, expectation or schedule use ``VGPMIL(likelihood=LargeMargin(...))``.

    Parameters
    ----------
    C, V : float
        Steepness of the gates and width of the margin; V sets both to 2.
    kernel : as for `VGPMIL`
        With a variance of 16 by default, so that the latent function can reach beyond the margin:
        with a standard deviation below V the gates close for good.
    init : as for `VGPMIL`
        ``label`` by default: at 1/2 an instance has no side, and its gate no margin to ask for.
    n_inducing, inducing, scale, learn_kernel, bag_rule, calibrate, max_iter, tol, execution, \
random_state, verbose, callback
        As for `VGPMIL`.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import LMVGPMIL
    >>> X = np.random.default_rng(0).normal(size=(40, 5, 2))
    >>> y = np.arange(40) % 2
    >>> X[y == 1, 0] += 3
    >>> LMVGPMIL(random_state=0).fit(X, y).score(X, y) >= 0.9
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{
            name: constraint
            for name, constraint in VariationalClassifier._parameter_constraints.items()
            if name not in ("likelihood", "posterior")
        },
        "C": [_POSITIVE],
        "V": [_POSITIVE],
    }

    def __init__(
        self,
        *,
        C: float = 2.0,
        V: float = 2.0,
        kernel: Kernel | str = RBF("sqrt_dim", 16.0),  # noqa: B008, a frozen value
        n_inducing: int = _N_INDUCING,
        inducing: Inducing | ArrayLike = "kmeans",
        scale: Scale = "feature",
        learn_kernel: bool = False,
        bag_rule: BagRule = "max",
        calibrate: bool = True,
        init: Init | ArrayLike = "label",
        max_iter: int = 200,
        tol: float = 1e-3,
        execution: Execution | str | None = None,
        random_state: RandomState = None,
        verbose: bool = False,
        callback: Callable[[Iteration], object] | None = None,
    ) -> None:
        self.C = C
        self.V = V
        self.kernel = kernel
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.scale = scale
        self.learn_kernel = learn_kernel
        self.bag_rule = bag_rule
        self.calibrate = calibrate
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.execution = execution
        self.random_state = random_state
        self.verbose = verbose
        self.callback = callback

    def _bag_likelihood(self) -> BagLikelihood:
        return LargeMargin(self.C, self.V)


def lend_maps(members: Sequence[VariationalClassifier], labels: ClassLabels) -> None:
    """Calibrate classes of which no bag could be held out like the others, by how rare they are."""
    rare, rates = warn_of_rare(labels), base_rates(labels)
    lent = [
        (member.calibration_.slope, member.calibration_.intercept - rate)
        for member, rate in zip(members, rates, strict=True)
        if member.calibration_ is not None
    ]
    for f in rare if lent else ():
        slope, level = np.mean(lent, axis=0).tolist()
        members[f].calibration_ = LatentMap(slope, level + float(rates[f]))


def start(init: Init | ArrayLike, labels: BagLabels, rng: np.random.RandomState | None) -> Floats:
    """Instance probabilities before the first update, [N]."""
    n = len(labels.known)
    if isinstance(init, str):
        if init == "random":
            assert rng is not None  # only who draws passes "random"
            return rng.uniform(size=n)
        share = 1.0 if init == "label" else 0.5
        return segments.spread(share * np.asarray(labels.y, dtype=np.float64), labels.offsets)
    pi = np.asarray(init, dtype=np.float64)
    if pi.shape != (n,) or not ((pi >= 0) & (pi <= 1)).all():
        raise ValueError(
            f"init must hold a probability in [0, 1] for each of the {n} instances; "
            f"got an array of shape {pi.shape}."
        )
    return pi


def measured_scaling(bags: Bags, scale: Scale, driver: Driver) -> FeatureScaling:
    """The scaling of training bags; rows on disk are looked at for NaN in the same pass."""
    scaling = learn_scaling(bags.instances, scale, driver)
    if on_disk(bags):
        finite = (
            all(over_rows(all_finite, bags.instances, driver))
            if scale is None
            else np.isfinite(scaling.center).all()
        )
        if not finite:
            check_bags(bags)  # says where
    return scaling


def read_bags(
    bags: Bags,
    projectors: tuple[Projector, ...],
    readers: tuple[ReadsBlocks, ...],
    finish: Callable[[Sequence[Readout], Ints], tuple[Floats, ...]],
    execution: Execution,
) -> tuple[Floats, ...]:
    """Columns made of the readouts of checked bags, by the driver; rows are read once."""
    X = map_rows_of(bags.instances)
    device = execution.torch_device(X)
    driver = execution.make_driver(bags.n_instances * len(projectors[0].Z), device)
    chunk = execution.chunk(device is not None, driver, bags.n_instances)
    spans = cut(bags.offsets, chunk)
    work = ReadRows(tuple(p.to(device) for p in projectors), readers, finish, on_disk(bags))
    try:
        columns = list(driver.map(work, make_row_parts(X, bags.offsets, spans, driver.n_parts)))
    except NotFiniteError:
        check_bags(bags)  # says where
        raise
    return tuple(concatenate(column) for column in zip(*columns, strict=True))


def probabilities(
    log_odds: Floats, std: Floats, return_std: bool, return_interval: float | None = None
) -> Floats | tuple[Floats, ...]:
    """The classes' probabilities, with standard deviation and interval on request."""
    if log_odds.ndim == 1:
        value = two_probabilities(log_odds)
        p = value[:, 1]
    else:
        value = p = expit(log_odds)
    return with_uncertainty(value, p, std, return_std, return_interval)


def with_uncertainty(
    value: Floats, p: Floats, std: Floats, return_std: bool, return_interval: float | None
) -> Floats | tuple[Floats, ...]:
    """A value alone, or with the standard deviation and Beta interval of the share ``p``."""
    columns = [value, std] if return_std else [value]
    if return_interval is not None:
        columns.append(np.stack(beta_interval(p, std, return_interval), axis=-1))
    return tuple(columns) if len(columns) > 1 else value


def driver_for(execution: Execution, bags: Bags, n_inducing: int) -> Driver:
    """The driver for the bags' projections, which live on a device or on the host."""
    device = execution.torch_device(bags.instances)
    return execution.make_driver(bags.n_instances * n_inducing, device)


def on_device(
    bags: BagsLike, execution: Execution, n_features: int | None, estimator: str
) -> BagsLike:
    """Bags whose rows moved to the device of the execution, where they fit there."""
    device = execution.torch_device(None)
    if not isinstance(bags, Bags) or device is None:
        return bags
    check_bags(bags, n_features=n_features, estimator=estimator, finite=False)
    return placed(bags, device)


def loaded_if_small(bags: BagsLike) -> BagsLike:
    """Bags whose rows, if they are few numbers on disk, are read now, once and for all."""
    if not on_disk(bags) or bags.n_instances * bags.n_features > _FEW_NUMBERS:
        return bags
    return bags.with_instances(np.array(bags.instances[0 : bags.n_instances]))


def on_disk(bags: BagsLike) -> TypeGuard[Bags]:
    """Whether the rows are read from files when they are asked for."""
    return isinstance(bags, Bags) and hasattr(bags.instances, "select_rows")


def _is(value: object, name: str) -> bool:
    return isinstance(value, str) and value == name


def _instances(readouts: Sequence[Readout], offsets: Ints) -> tuple[Floats, ...]:
    """Log-odds and standard deviations of the instances of a span, and the deviations of f."""
    (readout,) = readouts
    return readout.instance, readout.instance_std, np.sqrt(readout.latent_var)


def _latent(
    readouts: Sequence[Readout], offsets: Ints, rule: ClassRule | None
) -> tuple[Floats, Floats]:
    if rule is None:
        return readouts[0].latent_mean, readouts[0].latent_var
    means, variances = ([r[i] for r in readouts] for i in (4, 5))
    return class_columns(means, rule), class_columns(variances, rule)


def _fractions(
    readouts: Sequence[Readout], offsets: Ints, rule: ClassRule | None, calibrated: bool
) -> tuple[Floats, ...]:
    shares = [readout.fraction for readout in readouts if readout.fraction is not None]
    if rule is None:
        return shares[0].mean, shares[0].std
    bag, _, instance, _ = _scores(readouts, offsets, rule, calibrated)
    stds = [share.std for share in shares]
    if calibrated:
        stds = fraction_stds(shares, [r.bag for r in readouts], bag[:, rule.findings])
    return class_fractions(stds, rule, instance, offsets)


def _scores(
    readouts: Sequence[Readout], offsets: Ints, rule: ClassRule | None, calibrated: bool
) -> tuple[Floats, ...]:
    if rule is None:
        return readouts[0][:4]
    scores = [Scores(*readout[:4]) for readout in readouts]
    return combined(scores, rule, offsets if calibrated else None)


def _read_carry(part: Part) -> tuple[Part, tuple[tuple[Any, ...], tuple[Sites, ...]]]:
    """What a part believes and the sites of its last update, on the host."""
    assert part.beliefs is not None and part.sites is not None
    beliefs = tuple(type(b)(*(to_numpy(x) for x in b)) for b in part.beliefs)
    return part, (beliefs, tuple(Sites(*(to_numpy(x) for x in s)) for s in part.sites))


def _site_statistics(part: Part) -> tuple[Part, Statistics]:
    """The statistics that the sites a part was given make under its projection."""
    assert part.sites is not None
    pairs = zip(part.blocks, part.sites, strict=True)
    return part, total(statistics(block.A, _placed(sites, block), 0.0) for block, sites in pairs)


def _placed(sites: Sites, block: Block) -> Sites:
    """The sites where the block lives."""
    if not is_torch_array(block.A[0]):
        return sites
    return Sites(*(linalg.like(x, block.A[0]) for x in sites))


@dataclass(frozen=True)
class _LargestMean:
    """The largest latent mean of a part, either sign."""

    q: InducingPosterior

    def __call__(self, part: Part) -> tuple[Part, float]:
        means = (moments(block.A, block.r, self.q).mean for block in part.blocks)
        return part, max(float(abs(mean).max()) for mean in means)


def _prior_variance(projector: Projector) -> float:
    """The largest k(z, z) at the inducing points."""
    return float(np.max(to_numpy(projector.kernel.diag(projector.Z))))


def _settings_of(problem: FitProblem) -> AbstractContextManager[None]:
    """The settings of the device that a problem is solved on; nothing on the host."""
    if not problem.projector.on_device:
        return nullcontext()
    return device_settings(problem.execution.precision, problem.bags.n_instances)
