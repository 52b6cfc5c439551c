"""The VGPMIL family: each estimator is its parameters; `engine` and `paper` do the work."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, BagsLike, InstanceLabels
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.core.kernels import RBF, Kernel
from bagwise.models.execution import Execution, resolve
from bagwise.models.feature_checks import check_bag_weights
from bagwise.models.labels import ClassWeight, Labels
from bagwise.models.parameters import (
    AT_LEAST_1,
    BAG_RULES,
    NOT_NEGATIVE,
    POSITIVE,
    SCALES,
    parameter,
)
from bagwise.models.scaling import Scale
from bagwise.models.variational import engine
from bagwise.models.variational.engine import Fitted, Problem
from bagwise.models.variational.hyper import KernelStep, ProgramKernelStep, fit_learning
from bagwise.models.variational.inference import Iteration, Settings
from bagwise.models.variational.likelihoods import BagLikelihood
from bagwise.models.variational.paper import (
    Init,
    PaperSettings,
    fit_paper,
    read_paper_folds,
)
from bagwise.models.variational.paper_likelihoods import (
    Density,
    Gamma,
    LargeMargin,
    NoisyMax,
    PaperLikelihood,
    Sech,
    check_density,
)
from bagwise.models.variational.predicting import LatentClassifier, Patience, Validation, watched
from bagwise.models.variational.projection import Inducing
from bagwise.models.variational.readout import Process
from bagwise.models.variational.search import N_FOLDS
from bagwise.models.variational.stochastic import StochasticFit

_N_INDUCING = 100
_INITS = (StrOptions({"label", "half", "random"}), "array-like")


@dataclass(kw_only=True, eq=False, repr=False)
class GaussianProcessClassifier(StochasticFit, LatentClassifier):
    """What the members of the family share; each adds parameters of its own."""

    # `make_kernel`, the likelihoods and `resolve` say what is wrong with an object.
    kernel: Kernel | str = parameter("rbf")
    n_inducing: int = parameter(_N_INDUCING, AT_LEAST_1)
    inducing: Inducing | ArrayLike = parameter(
        "kmeans", StrOptions({"kmeans", "class-kmeans", "subset"}), "array-like"
    )
    scale: Scale = parameter("feature", *SCALES)
    learn_kernel: Any = parameter(False, "boolean", KernelStep, ProgramKernelStep)
    calibrate: bool = parameter(True, "boolean")
    max_iter: int = parameter(200, AT_LEAST_1)
    tol: float = parameter(1e-3, NOT_NEGATIVE)
    execution: Execution | str | None = parameter(None)
    random_state: RandomState = parameter(None, "random_state")
    verbose: bool = parameter(False, "verbose")
    callback: Callable[[Iteration], object] | None = parameter(None, callable, None)

    def _paper(self) -> PaperSettings | None:
        """Settings of the closed-form updates; None where the hidden labels are summed out."""
        return None

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
        monitor: str = "auc",
    ) -> GaussianProcessClassifier:
        """Fit to labelled bags.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        y : array of shape (n_bags,) or (n_bags, n_classes)
            A class per bag; of two, the larger one is positive. Or an indicator matrix,
            scikit-learn's multilabel format: 1 where a bag has a class.
        instance_labels : array of shape (n_instances,) or None, default=None
            Class of each instance, or missing: None, NaN, -1. With an indicator matrix also
            of shape (n_instances, n_classes), 1, 0, or -1 where missing.
        validation : (bags, y) or None, default=None
            Stop early on these bags.
        patience : int, default=10
            With ``validation``: stop after so many iterations in which they are not predicted
            better, and go back to the best.
        background : class or None, default=None
            With more than two classes: the class of bags in which nothing is found. It has no
            posterior of its own; a bag or an instance is of it when no other class is found.
        class_weight : "balanced" or dict from class to weight or None, default=None
            How much the bags of a class count in the fit. Calibration takes the bags as they
            are, so that probabilities keep to the classes' frequencies.
        sample_weight : array of shape (n_bags,) or None, default=None
            How often each bag counts, in the fit and in its calibration: a bag of weight 2 is
            the bag twice. Scaling and inducing points are chosen without weights.
        monitor : {"auc", "log-loss"}, default="auc"
            How ``validation`` is scored; a log-loss counts as better from 0.001 less.
        """
        bags, labels = self._validate_labels(bags, y, instance_labels, background)
        counts = sample_weight
        if counts is not None:
            counts = check_bag_weights(counts, bags, self)
        targets = labels.weighted(class_weight, counts)
        self.__dict__.pop("seen_", None)  # of a stream before
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        paper, name = self._paper(), type(self).__name__
        problem = self._plan(bags, targets, held_out=paper is None)
        usual = engine.PASSES if paper is None else engine.PASSES * (1 + N_FOLDS * self.calibrate)
        engine.warn_if_slow(name, problem, min(self.max_iter, usual), int(paper is None))
        warmup = getattr(self.learn_kernel, "warmup", 0)
        watch = validation and self._watch(validation, patience, monitor, warmup)
        monitors = [self.callback, watch]
        with problem.settings(), watched(monitors, self.verbose, self.max_iter, name) as tell:
            if paper is None:
                fitted = self._fit_marginal(problem, tell)
            else:
                fitted = self._fit_paper(problem, paper, tell, watch)
            if watch is not None:
                fitted = fitted._replace(process=watch.best_process, converged=True)
            self._finish(problem, fitted)
        return self

    def _plan(self, bags: Bags, targets: Labels, held_out: bool) -> Problem:
        return engine.plan(
            bags,
            targets,
            self.scale,
            self._inducing(bags.n_features),
            self.n_inducing,
            resolve(self.execution),
            self._rng(0),
            held_out,
        )

    def _fit_marginal(self, problem: Problem, tell: Callable[[Iteration], bool]) -> Fitted:
        """Search, then the posteriors of all tasks side by side."""
        learns = self.learn_kernel is not False
        own = getattr(self, "likelihood", None)
        likelihoods = engine.default_likelihoods(problem) if own is None else (own,)
        kernels = engine.start_kernels(self.kernel)
        find = partial(engine.choose, problem, kernels, likelihoods, learns)
        settings, asked = Settings(max_iter=self.max_iter, tol=self.tol), (learns, self.tol)
        trial, fitted = engine.search_and_fit(
            problem, kernels, likelihoods, find, settings, tell, *asked
        )
        self.likelihood_ = trial.likelihood
        return fitted

    def _fit_paper(
        self,
        problem: Problem,
        paper: PaperSettings,
        tell: Callable[[Iteration], bool],
        watch: Patience | None,
    ) -> Fitted:
        """Closed-form updates, and the same without each fold where calibration is asked for."""
        fit = fit_paper if paper.learn_kernel is None else fit_learning
        fitted = fit(problem, self.kernel, paper, self._rng(1), tell)
        assert fitted.pi is not None
        self.instance_proba_ = fitted.pi if fitted.pi.shape[1] > 1 else fitted.pi[:, 0]
        if not self.calibrate:
            return fitted
        n_iter = max(fitted.n_iter if watch is None else watch.best, 1)

        def fit_to(seen: Ints) -> Process:
            rows, _ = segments.take(problem.bags.offsets, seen)
            labels = problem.targets.take(seen, problem.bags.offsets)
            part = self._plan(problem.bags[seen], labels, held_out=False)
            alone = replace(part.execution, checkpoint=None, checkpoint_every=None)
            init = paper.init if isinstance(paper.init, str) else np.asarray(paper.init)[rows]
            once = paper._replace(max_iter=n_iter, init=init)
            kernel = fitted.process.projector.kernel
            return fit_paper(part._replace(execution=alone), kernel, once, self._rng(1)).process

        return fitted._replace(held_out=read_paper_folds(problem, fit_to))

    def _rng(self, stream: int) -> np.random.RandomState:
        """One of two streams of draws: for inducing points (0), for where q(y) starts (1)."""
        seeds = check_random_state(self._seed).randint(np.iinfo(np.int32).max, size=2)
        return np.random.RandomState(seeds[stream])

    def _finish(self, problem: Problem, fitted: Fitted) -> None:
        """Calibrate, and keep what was learned."""
        held_out, name = fitted.held_out, type(self).__name__
        if self.calibrate and held_out is None:
            warnings.warn(
                "calibration needs 2 bags of each class, one to hold out and one to learn from; "
                "the probabilities are left uncalibrated. calibrate=False asks for that.",
                stacklevel=3,
            )
        if held_out is not None:
            engine.warn_if_nothing_learned(name, held_out.bag, problem.tasks.y)
        # Held-out bags choose the kernel in any case: the order of bags is the same without a line.
        self._keep(problem, [fitted.process], [1.0], held_out if self.calibrate else None)
        self.bound_history_ = fitted.history
        self.n_iter_, self.converged_, self.cache_ = fitted.n_iter, fitted.converged, fitted.cache
        if not self.converged_ and self.tol > 0 and self.n_iter_ >= self.max_iter:
            message = (
                f"{name} did not converge in {self.max_iter} iterations; raise max_iter or tol."
            )
            if self._paper() is not None:
                message += " NoisyMax(schedule='paper') oscillates: use 'damped'."
            warnings.warn(message, ConvergenceWarning, stacklevel=3)

    def _inducing(self, n_features: int) -> Inducing | Floats:
        """The method that chooses the inducing points, or the user's own, checked."""
        if isinstance(self.inducing, str):
            if self.inducing == "class-kmeans" and self._paper() is None:
                raise ValueError(
                    "inducing='class-kmeans' tells the labels of held-out bags, which choose the "
                    "kernel and calibrate; use 'kmeans', or inference='paper'."
                )
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

    def update(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None
    ) -> GaussianProcessClassifier:
        """Fit again with instance labels that came later, from where the model stands.

        Scaling, inducing points, kernel and calibration stay; q(u) is fitted to the bags and all
        the labels now known.
        """
        check_is_fitted(self)
        bags, targets = self._validate_more(bags, y, self.class_rule_, instance_labels)
        (process,), execution = self.predictor_.processes, resolve(self.execution)
        problem, paper = engine.plan_again(process, bags, targets, execution), self._paper()
        with problem.settings():
            if paper is None:
                settings = Settings(max_iter=self.max_iter, tol=self.tol)
                fitted = engine.fit_marginal(problem, engine.trial_of(process), settings)
            else:
                same = self.instance_proba_.shape == (bags.n_instances,)
                again = paper._replace(init=self.instance_proba_ if same else "half")
                fitted = fit_paper(problem, process.projector.kernel, again, self._rng(1))
        process = fitted.process._replace(projector=fitted.process.projector.on_host())
        self.predictor_ = replace(self.predictor_, processes=(process,))
        self.bound_history_, self.n_iter_ = fitted.history, fitted.n_iter
        return self


@dataclass(kw_only=True, eq=False, repr=False)
class VGPMIL(GaussianProcessClassifier):
    """Sparse Gaussian process for multiple-instance learning.

    A latent function f of the instances has a Gaussian-process prior; a bag likelihood says how
    its values make the label of the bag. By default the hidden instance labels are summed out and
    a Gaussian posterior is fitted to what is left (``inference="marginal"``): held-out bags choose
    where the kernel starts, the evidence learns it and the prior mean.
    ``inference="paper"`` is the closed-form variational inference of Haussmann, Hamprecht and
    Kandemir, "Variational Bayesian multiple instance learning with Gaussian processes", 2017.

    Parameters
    ----------
    inference : {"marginal", "paper"}, default="marginal"
        See above.
    kernel : "rbf", "matern32", "matern52", "linear", or kernel object, default="rbf"
        A name stands for a handful of length scales and variances to start from; an object is
        the start itself, such as ``RBF("median", 16.0) + Constant(4.0)``.
    likelihood : bag likelihood or None, default=None
        ``SoftMax(tau, size)``, ``Or()``, or your own; by default ``SoftMax(1, size)`` or
        ``SoftMax(3, size)``, as held-out bags choose, with the median size of the training bags:
        no instance can lower them, which is the standard assumption.
        With ``inference="paper"``: `NoisyMax` (the default) or `LargeMargin`.
    n_inducing : int, default=100
        Inducing points.
    inducing : {"kmeans", "subset", "class-kmeans"} or array, default="kmeans"
        How they are chosen; ``class-kmeans`` clusters positive and negative bags apart and is for
        ``inference="paper"`` alone.
    scale : {"feature", "global", None}, default="feature"
        Standardise every feature, divide all by one number, or leave them.
    learn_kernel : bool, `KernelStep`, `ProgramKernelStep` or None, default=None
        Whether the kernel's parameters are learned from where they start; by default they are
        with ``inference="marginal"``. With ``inference="paper"`` True is ``KernelStep()``.
    calibrate : bool, default=True
        Fit a slope and an intercept of the bags' log-odds, and the map that tells which
        instances made a bag positive, to bags that were held out.
    bag_rule : {"max", "noisy-or"} or None, default=None
        With ``inference="paper"``: how instances make a bag; "max" by default.
    init : {"half", "label", "random"} or array of shape (n_instances,) or None, default=None
        With ``inference="paper"``: where q(y = 1) starts in positive bags; "half" by default.
    max_iter : int, default=200
        Passes over the data, or iterations, at most.
    tol : float, default=0.001
        Stop when the bound gains less than this per bag twice in a row (marginal), or when the
        posterior mean changes by less, relative to its length (paper).
    execution : Execution, "serial", "threads", "dask", "cpu", "cuda" or None, default=None
        Where the work is done.
    random_state : int, RandomState or None, default=None
        Seed of the inducing points.
    verbose : bool, default=False
        Show a progress bar.
    callback : function of an ``Iteration`` or None, default=None
        Called after every iteration; a true answer stops the fit.

    Attributes
    ----------
    classes_ : array
        The classes, the positive one last.
    kernel_ : kernel object
        As learned.
    likelihood_ : bag likelihood
        The given one, or the default that held-out bags chose.
    inducing_points_ : array of shape (n_inducing, n_features)
    bound_history_ : array
        Evidence bound after every iteration.
    n_iter_, converged_ : int, bool
    held_out_decision_ : array of shape (n_bags,)
        Calibrated log-odds of the training bags, each from a fit that did not see it.

    See Also
    --------
    AutoVGPMIL, PsiVGPMIL, bagwise.models.variational.SoftMax, bagwise.models.variational.Or

    References
    ----------
    [Haussmann2017]_, [CastroMacias2024]_

    Examples
    --------
    >>> from bagwise import VGPMIL, datasets
    >>> bags, y = datasets.make_gaussian_bags(40, separation=4, random_state=0, return_X_y=True)
    >>> model = VGPMIL(random_state=0).fit(bags, y)
    >>> model.score(bags, y) > 0.9
    True
    """

    inference: Literal["marginal", "paper"] = parameter(
        "marginal", StrOptions({"marginal", "paper"})
    )
    likelihood: Any = parameter(None)
    learn_kernel: Any = parameter(None, "boolean", KernelStep, ProgramKernelStep, None)
    bag_rule: str | None = parameter(None, *BAG_RULES, None)
    init: Init | ArrayLike | None = parameter(None, *_INITS, None)

    def _paper(self) -> PaperSettings | None:
        is_paper = self.inference == "paper"
        _check_likelihood(self.likelihood, is_paper)
        if is_paper:
            likelihood, init = self.likelihood or NoisyMax(), self.init
            init = "half" if init is None else init
            return _paper_settings(self, likelihood, Sech(), init, self.bag_rule or "max")
        given = {"bag_rule": self.bag_rule, "init": self.init}
        if not isinstance(self.learn_kernel, bool):
            given["learn_kernel"] = self.learn_kernel
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} has no effect without inference='paper'; drop it.")
        return None


def _check_likelihood(likelihood: Any, is_paper: bool) -> None:
    """An object with the methods that its way of inference calls."""
    kind: Any = PaperLikelihood if is_paper else BagLikelihood
    if likelihood is None or isinstance(likelihood, kind):
        return
    if isinstance(likelihood, BagLikelihood if is_paper else PaperLikelihood):
        other = "marginal" if is_paper else "paper"
        raise ValueError(f"{likelihood!r} is a likelihood of inference={other!r}; use that.")
    examples = "NoisyMax(H=100) or LargeMargin()" if is_paper else "Or() or SoftMax(3.0, size=50)"
    raise ValueError(f"likelihood must be an object such as {examples}; got {likelihood!r}.")


def _paper_settings(
    model: GaussianProcessClassifier,
    likelihood: PaperLikelihood,
    density: Density,
    init: Init | ArrayLike,
    rule: str,
) -> PaperSettings:
    learns = model.learn_kernel
    step = (KernelStep() if learns else None) if isinstance(learns, bool | None) else learns
    name = type(model).__name__
    return PaperSettings(likelihood, density, init, rule, step, model.max_iter, model.tol, name)


@dataclass(kw_only=True, eq=False, repr=False)
class _PaperClassifier(GaussianProcessClassifier):
    """A model of the papers: closed-form updates, whatever its density and likelihood."""

    bag_rule: str = parameter("max", *BAG_RULES)
    init: Init | ArrayLike = parameter("half", *_INITS)

    def _density(self) -> Density:
        return Sech()

    def _bag_likelihood(self) -> PaperLikelihood:
        likelihood = getattr(self, "likelihood", None)
        _check_likelihood(likelihood, is_paper=True)
        return likelihood or NoisyMax()

    def _paper(self) -> PaperSettings:
        likelihood, density = self._bag_likelihood(), check_density(self._density())
        return _paper_settings(self, likelihood, density, self.init, self.bag_rule)


@dataclass(kw_only=True, eq=False, repr=False)
class PsiVGPMIL(_PaperClassifier):
    """psi-VGPMIL: VGPMIL with any Gaussian-scale-mixture density, by closed-form updates.

    Parameters
    ----------
    density : density object or None, default=None
        `Sech` (the default: VGPMIL), `Gamma`, or any object with ``theta(c)`` and ``log_psi(c)``;
        see `bagwise.models.variational.Density`.
    kernel : str or Kernel, default="rbf"
    n_inducing : int, default=100
    inducing : as in `VGPMIL`, default="kmeans"
    scale : as in `VGPMIL`, default="feature"
    learn_kernel, calibrate : bool, default=False, True
    bag_rule, init : as in `VGPMIL`, default="max", "half"
    max_iter, tol : int, float, default=200, 0.001
    likelihood, execution, random_state, callback : as in `VGPMIL`, default=None
    verbose : bool, default=False
        All as in `VGPMIL` with ``inference="paper"``.

    See Also
    --------
    VGPMIL, GVGPMIL, bagwise.models.variational.Gamma

    References
    ----------
    [CastroMacias2024]_

    Examples
    --------
    >>> from bagwise import PsiVGPMIL, datasets
    >>> from bagwise.models.variational import Gamma
    >>> bags, y = datasets.make_gaussian_bags(40, separation=4, random_state=0, return_X_y=True)
    >>> PsiVGPMIL(density=Gamma(1.0, 1.0), random_state=0).fit(bags, y).score(bags, y) > 0.9
    True
    """

    density: Density | None = parameter(None)  # `check_density` says what is missing
    likelihood: PaperLikelihood | None = parameter(None)

    def _density(self) -> Density:
        return Sech() if self.density is None else self.density


@dataclass(kw_only=True, eq=False, repr=False)
class GVGPMIL(_PaperClassifier):
    """G-VGPMIL: VGPMIL with Gamma-mixed Gaussians, by closed-form updates.

    Parameters
    ----------
    alpha, beta : float, default=1.0
        Shape and rate of the Gamma; see `Gamma`.
    kernel : str or Kernel, default="rbf"
    n_inducing : int, default=100
    inducing : as in `VGPMIL`, default="kmeans"
    scale : as in `VGPMIL`, default="feature"
    learn_kernel, calibrate : bool, default=False, True
    bag_rule, init : as in `VGPMIL`, default="max", "half"
    max_iter, tol : int, float, default=200, 0.001
    likelihood, execution, random_state, callback : as in `VGPMIL`, default=None
    verbose : bool, default=False
        All as in `VGPMIL` with ``inference="paper"``.

    See Also
    --------
    VGPMIL, PsiVGPMIL

    References
    ----------
    [CastroMacias2024]_

    Examples
    --------
    >>> from bagwise import GVGPMIL, datasets
    >>> bags, y = datasets.make_gaussian_bags(40, separation=4, random_state=0, return_X_y=True)
    >>> GVGPMIL(alpha=1.0, beta=1.0, random_state=0).fit(bags, y).score(bags, y) > 0.9
    True
    """

    alpha: float = parameter(1.0, POSITIVE)
    beta: float = parameter(1.0, POSITIVE)
    likelihood: PaperLikelihood | None = parameter(None)

    def _density(self) -> Density:
        return Gamma(self.alpha, self.beta)


@dataclass(kw_only=True, eq=False, repr=False)
class LMVGPMIL(_PaperClassifier):
    """LM-VGPMIL: VGPMIL with a large margin.

    Every instance has a gate that opens beyond a margin; only instances whose gate is open pull
    the decision surface. The model is cyclic: its objective may fall, and the fit stops
    on the change of q(u). Prediction is VGPMIL's. For another H, expectation or schedule use
    ``VGPMIL(inference="paper", likelihood=LargeMargin(...))``.

    Parameters
    ----------
    C, V : float, default=2.0
        Steepness of the gates and width of the margin; V sets both to 2.
    kernel : as for `VGPMIL`, default=RBF(length_scale='sqrt_dim', variance=16.0)
        With a variance of 16 by default, so that the latent function can reach beyond the margin:
        with a standard deviation below V the gates close for good.
    init : as for `VGPMIL`, default="label"
        ``label`` by default: at 1/2 an instance has no side, and its gate no margin to ask for.
    n_inducing : int, default=100
    inducing : as in `VGPMIL`, default="kmeans"
    scale : as in `VGPMIL`, default="feature"
    learn_kernel, calibrate : bool, default=False, True
    bag_rule : as in `VGPMIL`, default="max"
    max_iter, tol : int, float, default=200, 0.001
    execution, random_state, callback : as in `VGPMIL`, default=None
    verbose : bool, default=False
        All as in `VGPMIL` with ``inference="paper"``.

    See Also
    --------
    VGPMIL, bagwise.models.variational.LargeMargin

    References
    ----------
    [Haussmann2017]_

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

    C: float = parameter(2.0, POSITIVE)
    V: float = parameter(2.0, POSITIVE)
    kernel: Kernel | str = parameter(RBF("sqrt_dim", 16.0))
    init: Init | ArrayLike = parameter("label", *_INITS)

    def _bag_likelihood(self) -> PaperLikelihood:
        return LargeMargin(self.C, self.V)
