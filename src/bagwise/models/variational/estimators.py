"""The VGPMIL family: each estimator validates, calls the pure functions, stores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, check_bags
from bagwise.core.arrays import Array, Floats, Ints, to_numpy
from bagwise.core.finite import all_finite
from bagwise.core.kernels import RBF, Kernel, make_kernel
from bagwise.core.platt import Platt
from bagwise.files import map_rows_of, read_plainly
from bagwise.models.base import (
    BagsLike,
    InstanceClassifier,
    InstanceLabels,
    RandomState,
    TrainingData,
    two_columns,
)
from bagwise.models.drivers import Driver, cut
from bagwise.models.execution import Execution, device_settings, resolve
from bagwise.models.scaling import FeatureScaling, Scale, learn_scaling, over_rows
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.calibration import calibrated, fit_calibration
from bagwise.models.variational.checkpoint import Checkpoint, fingerprint
from bagwise.models.variational.densities import Density, Gamma, Sech, check_density
from bagwise.models.variational.large_margin import LargeMargin
from bagwise.models.variational.likelihoods import BagLikelihood, Inherited, make_likelihood
from bagwise.models.variational.monitors import Monitor, Patience, all_of, iteration_bar
from bagwise.models.variational.parts import Part, make_parts, materialised
from bagwise.models.variational.projection import (
    ProjectionChoices,
    Projector,
    choose_projector,
    make_projector,
)
from bagwise.models.variational.score import (
    BagRule,
    LeaveOut,
    LeftOutScores,
    NotFiniteError,
    Reader,
    Readout,
    ReadRows,
    Scores,
    make_row_parts,
)
from bagwise.models.variational.stochastic import StochasticFit
from bagwise.models.variational.updates import Fit, InducingPosterior, Iteration, fit_parts

_POSITIVE = Interval(Real, 0, None, closed="neither")
_N_INDUCING = 100
# Rows on disk with at most so many numbers, 8 MB, are read into memory at once.
_FEW_NUMBERS = 1_000_000
# Kernel learning: this many short fits at most, until no log-parameter moves by more than the tol.
_KERNEL_ROUNDS, _KERNEL_ITERATIONS, _KERNEL_TOL = 10, 10, 0.01

Init = Literal["half", "label", "random"]
Validation = tuple[BagsLike, ArrayLike]


class Problem(NamedTuple):
    """A fit about to be run: the bags, and every choice made for them."""

    bags: Bags
    labels: BagLabels
    projector: Projector
    start: Floats  # [N] instance probabilities before the first update
    likelihood: BagLikelihood
    density: Density
    execution: Execution
    driver: Driver


class VariationalClassifier(StochasticFit, InstanceClassifier):
    """What the members of the family share; each spells out its own parameters."""

    kernel: Kernel | str
    likelihood: BagLikelihood | str
    n_inducing: int
    inducing: Literal["kmeans", "subset"] | ArrayLike
    scale: Scale
    learn_kernel: bool
    bag_rule: BagRule
    calibrate: bool
    init: Init | ArrayLike
    max_iter: int
    tol: float
    execution: Execution | str | None
    random_state: RandomState
    verbose: bool
    callback: Callable[[Iteration], object] | None
    platt_: Platt | None

    # Storage of the projected instances, unless ``execution`` says otherwise.
    _dtype: ClassVar[str] = "float64"
    _keeps_rows = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        # `make_kernel`, `make_likelihood` and `resolve` say what is wrong with an object.
        "kernel": "no_validation",
        "likelihood": "no_validation",
        "execution": "no_validation",
        "n_inducing": [Interval(Integral, 1, None, closed="left")],
        "inducing": [StrOptions({"kmeans", "subset"}), "array-like"],
        "scale": [StrOptions({"feature", "global"}), None],
        "learn_kernel": ["boolean"],
        "bag_rule": [StrOptions({"noisy-or", "max", "joint"})],
        "calibrate": ["boolean"],
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
    ) -> VariationalClassifier:
        """Fit to labelled bags.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        y : array of shape (n_bags,)
            Two classes; the larger one is positive.
        instance_labels : array of shape (n_instances,), optional
            Class of each instance, or missing: None, NaN, -1.
        validation : (bags, y), optional
            Stop early on these bags' AUC.
        patience : int
            With ``validation``: stop after so many iterations without a better bag AUC, and go
            back to the best.
        """
        data = self._validate_fit(bags, y, instance_labels)
        rng = check_random_state(self.random_state)
        execution = resolve(self.execution)
        driver = execution.make_driver()
        labels = BagLabels(data.bags.offsets, data.y, data.instance_labels)
        problem = Problem(
            data.bags,
            labels,
            self._choose_projector(data, rng, execution, driver),
            self._start(labels, rng),
            self._bag_likelihood(),
            check_density(self._density()),
            execution,
            driver,
        )
        if self.learn_kernel:
            problem = self._learn_kernel(problem)
        watch = None if validation is None else self._watch(validation, patience, problem)
        parts, fit = self._train_or_halve(problem, watch)
        self._store(problem.projector, fit)
        self._warn_unless_converged()
        self._calibrate(problem, parts, fit.posterior)
        return self

    def _calibrate(self, problem: Problem, parts: list[Part], q: InducingPosterior) -> None:
        """Left-out scores of the training bags, and the map fitted to them, where asked for."""
        self.platt_ = None
        if not self.calibrate:
            return
        columns: list[LeftOutScores] = []
        problem.driver.sweep(LeaveOut(q, self.bag_rule), parts, columns.append)
        left_out = LeftOutScores(*(np.concatenate(c) for c in zip(*columns, strict=True)))
        self.loo_decision_ = left_out.bags
        _, y, _ = problem.labels
        self.platt_ = fit_calibration(
            left_out, problem.labels.offsets, y, self.bag_rule, problem.bags.held_out
        )

    def _check_bags(self, bags: BagsLike, n_features: int | None = None) -> Bags:
        # Pages of a memory map would count as memory of this process.
        bags = loaded_if_small(read_plainly(bags))
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
    ) -> Projector:
        choices = ProjectionChoices(
            make_kernel(self.kernel),
            measured_scaling(data.bags, self.scale, driver),
            self._inducing(data.bags.n_features),
            self.n_inducing,
            execution.dtype or self._dtype,
        )
        device = execution.torch_device(data.bags.instances)
        return choose_projector(data, choices, rng).to(device)

    def _inducing(self, n_features: int) -> Literal["kmeans", "subset"] | Floats:
        """The method that chooses the inducing points, or the user's own, checked."""
        if isinstance(self.inducing, str):
            return "kmeans" if self.inducing == "kmeans" else "subset"
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

    def _learn_kernel(self, problem: Problem) -> Problem:
        """Short fits and kernel updates in turn, P(29); the beliefs carry over."""
        from bagwise.models.variational.hyper import learn_kernel

        _, _, projector, pi, likelihood, density, execution, driver = problem
        scaling = FeatureScaling(*(to_numpy(x) for x in projector.scaling))
        X, Z = scaling(to_numpy(problem.bags.instances[:])), to_numpy(projector.Z)
        device = execution.torch_device(problem.bags.instances)
        for _ in range(_KERNEL_ROUNDS):
            chunk = execution.chunk(projector.on_device)
            parts = self._parts(problem._replace(projector=projector, start=pi), chunk)
            fit, _ = fit_parts(
                parts,
                len(projector.Z),
                likelihood,
                density,
                max_iter=_KERNEL_ITERATIONS,
                tol=self.tol,
                driver=driver,
            )
            old, pi = projector.kernel, fit.pi
            kernel = learn_kernel(old, X, Z, fit.omega, fit.rho, chunk_size=chunk)
            projector = make_projector(kernel, Z, scaling, execution.dtype or self._dtype)
            projector = projector.to(device)
            if np.abs(kernel.theta - old.theta).max() < _KERNEL_TOL:
                break
        return problem._replace(projector=projector, start=pi)

    def _parts(self, problem: Problem, chunk_size: int) -> list[Any]:
        """The bags as parts whose projections are kept as ``cache_`` says."""
        parts = self._unprojected(problem, chunk_size)
        return materialised(parts, self.cache_, problem.driver)

    def _unprojected(self, problem: Problem, chunk_size: int) -> list[Part]:
        bags, labels, projector, pi, *_ = problem
        itemsize = np.dtype(problem.execution.dtype or self._dtype).itemsize
        device = str(projector.Z.device) if projector.on_device else None
        n_bytes = len(projector.Z) * bags.n_instances * itemsize
        self.cache_ = problem.execution.plan_cache(n_bytes, device)
        return make_parts(bags.instances, labels, projector, pi, chunk_size, problem.driver.n_parts)

    def _train_or_halve(self, problem: Problem, watch: Patience | None) -> tuple[list[Any], Fit]:
        """`_train`; when a device runs out of memory, once more with chunks half as long."""
        chunk = problem.execution.chunk(problem.projector.on_device)
        if not problem.projector.on_device:
            return self._train(problem, watch, chunk)
        import torch

        with device_settings(problem.execution.precision):
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
        self, problem: Problem, watch: Patience | None, chunk_size: int
    ) -> tuple[list[Any], Fit]:
        """Fit q(v); returns the parts as they ended, and the fit."""
        parts, driver = self._unprojected(problem, chunk_size), problem.driver
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
        ready = materialised(parts, self.cache_, driver)
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
        self, problem: Problem, parts: list[Any], watch: Patience | None = None, **resume: Any
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
                on_iteration=all_of([*watching, *bar]),
                **resume,
            )

    def _watch(self, validation: Validation, patience: int, problem: Problem) -> Patience:
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
        chunk = problem.execution.chunk(problem.projector.on_device)
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

    def project(self, problem: Problem) -> list[Any]:
        """The bags of a problem as projected parts, which several members may fit."""
        return self._parts(problem, problem.execution.chunk(problem.projector.on_device))

    def fit_projected(self, problem: Problem, parts: list[Any]) -> Fit:
        """Fit q(v) to parts that `project` made; the model's own likelihood and density count."""
        own = problem._replace(
            likelihood=self._bag_likelihood(), density=check_density(self._density())
        )
        return self._iterate(own, parts)[0]

    def take(self, projector: Projector, fit: Fit, classes: Array) -> VariationalClassifier:
        """Become the model of a fit that was made elsewhere, uncalibrated."""
        self.classes_, self.n_features_in_ = classes, int(projector.Z.shape[1])
        self._store(projector, fit)
        self.platt_ = None
        return self

    def update(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None
    ) -> VariationalClassifier:
        """Fit again with instance labels that came later, from where the model stands.

        Scaling, inducing points, kernel and calibration stay; q(u) is fitted to the bags and all
        the labels now known, starting from the current beliefs where the bags are those of `fit`.
        """
        check_is_fitted(self)
        _, data = self._validate_stream(bags, y, None, instance_labels, first=False)
        execution = resolve(self.execution)
        device = execution.torch_device(data.bags.instances)
        labels = BagLabels(data.bags.offsets, data.y, data.instance_labels)
        same = len(self.instance_proba_) == data.bags.n_instances
        problem = Problem(
            data.bags,
            labels,
            self._fitted_projector(execution.dtype or self._dtype).to(device),
            self.instance_proba_ if same else start("half", labels, None),
            self._bag_likelihood(),
            check_density(self._density()),
            execution,
            execution.make_driver(),
        )
        _, fit = self._train_or_halve(problem, None)
        self._store(problem.projector, fit)
        return self

    def _posterior(self) -> InducingPosterior:
        return InducingPosterior(self.posterior_mean_, self.posterior_factor_)

    def _read(
        self, bags: BagsLike, finish: Callable[[Sequence[Readout], Ints], tuple[Floats, ...]]
    ) -> tuple[Floats, ...]:
        """Columns made of the readouts of the bags to predict; one pass over their rows."""
        checked = self._validate_predict(bags)
        reader = Reader(0, self._posterior(), self.bag_rule)
        execution = resolve(self.execution)
        return read_bags(
            checked, (self._fitted_projector("float64"),), (reader,), finish, execution
        )

    def predict_latent(self, bags: BagsLike) -> tuple[Floats, Floats]:
        """Mean and variance of the latent function at every instance, P(30, 31)."""
        check_is_fitted(self)
        mean, var = self._read(bags, _latent)
        return mean, var

    def score_bags(self, bags: BagsLike) -> Scores:
        """Everything the model says about bags, from one pass over their rows.

        Every ``predict`` and ``decision_function`` is a view of it.

        Returns
        -------
        Scores
            ``bag`` and ``instance`` are log-odds, of shapes (n_bags,) and (n_instances,);
            ``bag_std`` and ``instance_std`` are standard deviations of the probabilities.
        """
        check_is_fitted(self)
        finish = partial(_calibrated_scores, rule=self.bag_rule, platt=self.platt_)
        return Scores(*self._read(bags, finish))

    def decision_function(self, bags: BagsLike) -> Floats:
        """Log-odds of each bag, shape (n_bags,)."""
        return self.score_bags(bags).bag

    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """Log-odds of each instance, aligned with ``bags.instances``."""
        return self.score_bags(bags).instance

    def predict_proba(
        self, bags: BagsLike, return_std: bool = False
    ) -> Floats | tuple[Floats, Floats]:
        """Probability of both classes for each bag, and its standard deviation on request.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        return_std : bool
            Also return the standard deviation of the positive probability under q(f), P(36).

        Returns
        -------
        proba : array of shape (n_bags, 2)
        std : array of shape (n_bags,), if ``return_std``
        """
        scores = self.score_bags(bags)
        return probabilities(scores.bag, scores.bag_std, return_std)

    def predict_proba_instances(
        self, bags: BagsLike, return_std: bool = False
    ) -> Floats | tuple[Floats, Floats]:
        """Probability of both classes for each instance; as `predict_proba`. P(32, 33)."""
        scores = self.score_bags(bags)
        return probabilities(scores.instance, scores.instance_std, return_std)


class VGPMIL(VariationalClassifier):
    """Variational Gaussian process multiple-instance learning.

    A sparse GP scores every instance; the label of a bag says whether the largest of its hidden
    instance labels is positive. Haussmann, Hamprecht and Kandemir, CVPR 2017 (V); PG-VGPMIL of
    Castro-Macías et al., AIJ 2024 (P), has the same updates.

    Parameters
    ----------
    kernel : kernel object or {"rbf", "matern32", "matern52", "multi-scale", "linear"}
        From `bagwise.kernels`; acts on scaled features. Its scales are its own parameters and
        may be left to the data: ``RBF("median", 16.0)``, ``RBF("sqrt_dim")``, ``MultiScale()``.
    likelihood : {"noisy-max", "or", "witness", "inherited"} or object
        How a bag's label speaks about its instances: `NoisyMax` (the papers'), `ExactOr`,
        `SoftWitness`, `Inherited`.
    n_inducing : int
        Number of inducing points M; cost grows with M squared. Capped at the distinct rows.
    inducing : {"kmeans", "subset"} or array of shape (M, n_features)
        Class-wise k-means centroids (V section 4.2), a random subset, or the points themselves.
    scale : {"feature", "global", None}
        Standardise each feature, or divide all by one number; learnt from the training bags.
    learn_kernel : bool
        Maximise the collapsed bound over the kernel's parameters as well, P(29).
    bag_rule : {"noisy-or", "max", "joint"}
        A bag's probability: 1 - prod(1 - p) over independent instances, the largest p, or
        noisy-or with the instances correlated through u.
    calibrate : bool
        Platt-scale the instance log-odds on leave-one-bag-out scores, so that the bags they make
        fit the bag labels. One monotone map: instances keep their order, and calibrated
        instances still make their bag by ``bag_rule`` (for ``joint``, an instance counts as a
        bag of one). Where features were learned from the bags' labels, the log-odds are shrunk
        by a factor estimated on the bags held out from that. False gives the papers'
        uncalibrated probabilities.
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
    loo_decision_ : array of shape (n_bags,), with ``calibrate``
        Score of every training bag predicted without it, at fixed weights; before calibration.
    bound_history_ : array of shape (n_iter,)
        Evidence bound after every iteration.
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
        kernel: Kernel | str = "rbf",
        likelihood: BagLikelihood | str = "noisy-max",
        n_inducing: int = _N_INDUCING,
        inducing: Literal["kmeans", "subset"] | ArrayLike = "kmeans",
        scale: Scale = "feature",
        learn_kernel: bool = False,
        bag_rule: BagRule = "noisy-or",
        calibrate: bool = True,
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
    kernel, likelihood, n_inducing, inducing, scale, learn_kernel, bag_rule, calibrate, init, \
max_iter, tol, execution, random_state, verbose, callback
        As for `VGPMIL`.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import PsiVGPMIL
    >>> from bagwise.models.variational import Gamma
    >>> X = np.random.default_rng(0).normal(size=(40, 5, 2))
    >>> y = np.arange(40) % 2
    >>> X[y == 1, 0] += 3
    >>> PsiVGPMIL(density=Gamma(1.0, 2.5), random_state=0).fit(X, y).score(X, y) > 0.9
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
        inducing: Literal["kmeans", "subset"] | ArrayLike = "kmeans",
        scale: Scale = "feature",
        learn_kernel: bool = False,
        bag_rule: BagRule = "noisy-or",
        calibrate: bool = True,
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
    kernel, likelihood, n_inducing, inducing, scale, learn_kernel, bag_rule, calibrate, init, \
max_iter, tol, execution, random_state, verbose, callback
        As for `VGPMIL`.

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
        inducing: Literal["kmeans", "subset"] | ArrayLike = "kmeans",
        scale: Scale = "feature",
        learn_kernel: bool = False,
        bag_rule: BagRule = "noisy-or",
        calibrate: bool = True,
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
    >>> LMVGPMIL(random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{
            name: constraint
            for name, constraint in VariationalClassifier._parameter_constraints.items()
            if name != "likelihood"
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
        inducing: Literal["kmeans", "subset"] | ArrayLike = "kmeans",
        scale: Scale = "feature",
        learn_kernel: bool = False,
        bag_rule: BagRule = "noisy-or",
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


def start(init: Init | ArrayLike, labels: BagLabels, rng: np.random.RandomState | None) -> Floats:
    """Instance probabilities before the first update, [N]."""
    n, of_bag = len(labels.known), labels.of_bag
    if isinstance(init, str):
        if init == "random":
            assert rng is not None  # only who draws passes "random"
            return rng.uniform(size=n)
        return of_bag if init == "label" else of_bag / 2
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
    readers: tuple[Reader, ...],
    finish: Callable[[Sequence[Readout], Ints], tuple[Floats, ...]],
    execution: Execution,
) -> tuple[Floats, ...]:
    """Columns made of the readouts of checked bags, by the driver; rows are read once."""
    X = map_rows_of(bags.instances)
    device, driver = execution.torch_device(X), execution.make_driver()
    spans = cut(bags.offsets, execution.chunk(device is not None))
    work = ReadRows(tuple(p.to(device) for p in projectors), readers, finish, on_disk(bags))
    try:
        columns = list(driver.map(work, make_row_parts(X, bags.offsets, spans, driver.n_parts)))
    except NotFiniteError:
        check_bags(bags)  # says where
        raise
    return tuple(np.concatenate(column) for column in zip(*columns, strict=True))


def probabilities(
    log_odds: Floats, std: Floats, return_std: bool
) -> Floats | tuple[Floats, Floats]:
    """Both classes' probabilities, with the standard deviation on request."""
    proba = two_columns(expit(log_odds))
    return (proba, std) if return_std else proba


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


def _latent(readouts: Sequence[Readout], offsets: Ints) -> tuple[Floats, Floats]:
    return readouts[0].latent_mean, readouts[0].latent_var


def _calibrated_scores(
    readouts: Sequence[Readout], offsets: Ints, rule: BagRule, platt: Platt | None
) -> Scores:
    return calibrated(readouts[0], offsets, rule, platt)
