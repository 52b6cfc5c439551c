"""`VGPMIL`: the estimator validates, calls the pure functions, stores."""

from __future__ import annotations

import inspect
import warnings
from functools import partial
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar

import numpy as np
from array_api_compat import is_torch_array
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, check_bags
from bagwise.core import inducing as inducing_points
from bagwise.core import segments
from bagwise.core.arrays import host_rows, to_numpy
from bagwise.core.finite import all_finite
from bagwise.core.gaussians import sigmoid_moments
from bagwise.core.kernels import RBF, median_sq_distance
from bagwise.files import read_plainly
from bagwise.models.base import InstanceClassifier, TrainingData, two_columns
from bagwise.models.drivers import CHUNK_SIZE, DEVICE_CHUNK_SIZE, DRIVERS, Driver, make_driver
from bagwise.models.variational import training
from bagwise.models.variational.checkpoint import Checkpoint, fingerprint
from bagwise.models.variational.densities import Density, Sech, check_density
from bagwise.models.variational.likelihoods import BagLikelihood, Labels, Moments, make_likelihood
from bagwise.models.variational.parts import (
    CACHES,
    LeaveOut,
    OverBlocks,
    make_parts,
    materialised,
    parse_bytes,
    plan_cache,
)
from bagwise.models.variational.predict import (
    BagScores,
    LeftOutScores,
    block_scores,
    calibrate,
    recalibrate,
)
from bagwise.models.variational.stochastic import StochasticFit
from bagwise.models.variational.updates import Block, Fit, Part, Posterior, fit_parts, moments

_POSITIVE = Interval(Real, 0, None, closed="neither")
# Instances whose distances make the median length scale.
_MEDIAN_ROWS = 1000
# Kernel learning: this many short fits at most, until no log-parameter moves by more than the tol.
_KERNEL_ROUNDS, _KERNEL_ITERATIONS, _KERNEL_TOL = 10, 10, 0.01


class VGPMIL(StochasticFit, InstanceClassifier):
    """Variational Gaussian process multiple-instance learning.

    A sparse GP scores every instance; the label of a bag says whether the largest of its hidden
    instance labels is positive. Haussmann, Hamprecht and Kandemir, CVPR 2017 (V); PG-VGPMIL of
    Castro-Macías et al., AIJ 2024 (P), has the same updates.

    Parameters
    ----------
    n_inducing : int
        Number of inducing points M; cost grows with M squared. Capped at the distinct rows.
    inducing : {"kmeans", "subset"} or array of shape (M, n_features)
        Class-wise k-means centroids (V section 4.2), a random subset, or given points.
    kernel : kernel object, optional
        From `bagwise.core.kernels`; acts on scaled features. Default: ``RBF(length_scale,
        variance)``.
    length_scale : float, "sqrt_dim", "median", or array of shape (n_features,)
        l of ``variance * exp(-|x - x'|^2 / (2 l^2))``. P's ``kernel_ls`` is l squared.
    variance : float
        Prior variance of the latent function.
    H : float
        Odds that a bag's label agrees with its instances.
    likelihood : {"noisy-max", "or", "witness", "inherited"} or object
        `NoisyMax` (the papers'), `ExactOr`, `SoftWitness`, `Inherited`.
    expectation, schedule : str
        Of `NoisyMax`; see there.
    init : {"half", "label", "random"} or array of shape (n_instances,)
        Instance probabilities in positive bags before the first update: 1/2, 1, or
        uniform draws; instances of negative bags start at 0 (``random`` draws for them too, as P
        does). An array gives them all.
    max_iter, tol : int, float
        Stop after ``max_iter`` iterations, or when q(u)'s mean moves less than ``tol``, relative.
    learn_kernel : bool
        Maximise the collapsed bound over the kernel's parameters as well, P(29).
    scale : {"feature", "global", None}
        Standardise each feature, or divide all by one number; learnt from the training bags.
    bag_rule : {"noisy-or", "max", "joint"}
        A bag's probability: 1 - prod(1 - p) over independent instances, the largest p, or
        noisy-or with the instances correlated through u.
    calibrate : bool
        Platt-scale the instance log-odds on leave-one-bag-out scores, so that the bags they make
        fit the bag labels. One monotone map: instances keep their order, and calibrated
        instances still make their bag by ``bag_rule`` (for ``joint``, an instance counts as a
        bag of one). Where features were learned from the bags' labels, the log-odds are shrunk
        as far as the bags held out from that ask. False gives the papers' uncalibrated
        probabilities.
    patience : int
        With ``validation`` in `fit`: stop after so many iterations without a better bag AUC,
        and go back to the best.
    chunk_size : int, optional
        Instances per chunk of work; default: 1024, which stays in cache, and 2^22 on a GPU.
    dtype : {"float64", "float32"}
        Storage of the projected instances; M x M algebra is always float64.
    n_jobs : int, optional
        Threads over blocks of bags.
    driver : {"serial", "threads", "dask"} or driver object, optional
        Where the work over instances runs. Default: the active Dask client where there is one,
        else threads if ``n_jobs`` asks for them. The result is the same.
    cache : {"auto", "memory", "disk", "none"}
        Keep the projected instances in memory, in a temporary file, or project them anew in
        each iteration. "auto" is memory where they fit ``memory_limit``, else disk.
    memory_limit : int or str, optional
        Bytes, or such as "2GB", that the projected instances may take in memory. Default: half
        of what is free.
    device : str, optional
        "cuda" does the work over instances on a GPU; default: where the instances are (torch
        tensors stay on their device), else plain NumPy. A missing GPU is an error.
    precision : {"tf32"}, optional
        Allow TF32 in float32 products on the GPU.
    checkpoint : path, optional
        Save the state of the fit there every ``checkpoint_every`` iterations; a fit of the same
        problem that finds the file goes on from it. Removed when the fit ends.
    checkpoint_every : int
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
    loo_decision_ : array of shape (n_bags,)
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

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_inducing": [Interval(Integral, 1, None, closed="left")],
        "inducing": [StrOptions({"kmeans", "subset"}), "array-like"],
        "kernel": [None, HasMethods(["diag", "with_theta", "__call__"])],
        "length_scale": [_POSITIVE, StrOptions({"sqrt_dim", "median"}), "array-like"],
        "variance": [_POSITIVE],
        "H": [Interval(Real, 1, None, closed="neither")],
        "likelihood": [
            StrOptions({"noisy-max", "or", "witness", "inherited"}),
            HasMethods(["start", "targets", "weights", "bound"]),
        ],
        "expectation": [StrOptions({"plug-in", "exact"})],
        "schedule": [StrOptions({"damped", "paper", "sequential"})],
        "init": [StrOptions({"label", "half", "random"}), "array-like"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "learn_kernel": ["boolean"],
        "scale": [StrOptions({"feature", "global"}), None],
        "bag_rule": [StrOptions({"noisy-or", "max", "joint"})],
        "calibrate": ["boolean"],
        "patience": [Interval(Integral, 1, None, closed="left")],
        "chunk_size": [Interval(Integral, 1, None, closed="left"), None],
        "dtype": [StrOptions({"float64", "float32"})],
        "n_jobs": [Integral, None],
        "driver": [StrOptions(set(DRIVERS)), HasMethods(["map", "sweep"]), None],
        "cache": [StrOptions(set(CACHES))],
        "memory_limit": [Interval(Real, 0, None, closed="neither"), str, None],
        "device": [str, None],
        "precision": [StrOptions({"tf32"}), None],
        "checkpoint": [str, PathLike, None],
        "checkpoint_every": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "callback": [callable, None],
    }

    def __init__(
        self,
        *,
        n_inducing: int = 100,
        inducing: Any = "kmeans",
        kernel: Any = None,
        length_scale: Any = "sqrt_dim",
        variance: float = 1.0,
        H: float = 100.0,
        likelihood: Any = "noisy-max",
        expectation: str = "plug-in",
        schedule: str = "damped",
        init: Any = "half",
        max_iter: int = 200,
        tol: float = 1e-3,
        learn_kernel: bool = False,
        scale: str | None = "feature",
        bag_rule: str = "noisy-or",
        calibrate: bool = True,
        patience: int = 10,
        chunk_size: int | None = None,
        dtype: str = "float64",
        n_jobs: int | None = None,
        driver: Any = None,
        cache: str = "auto",
        memory_limit: Any = None,
        device: str | None = None,
        precision: str | None = None,
        checkpoint: Any = None,
        checkpoint_every: int = 10,
        random_state: Any = None,
        verbose: bool = False,
        callback: Any = None,
    ) -> None:
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.kernel = kernel
        self.length_scale = length_scale
        self.variance = variance
        self.H = H
        self.likelihood = likelihood
        self.expectation, self.schedule = expectation, schedule
        self.init = init
        self.max_iter, self.tol = max_iter, tol
        self.learn_kernel = learn_kernel
        self.scale = scale
        self.bag_rule = bag_rule
        self.calibrate = calibrate
        self.patience = patience
        self.chunk_size = chunk_size
        self.dtype = dtype
        self.n_jobs, self.driver = n_jobs, driver
        self.cache, self.memory_limit = cache, memory_limit
        self.device, self.precision = device, precision
        self.checkpoint, self.checkpoint_every = checkpoint, checkpoint_every
        self.random_state = random_state
        self.verbose = verbose
        self.callback = callback

    # Parameters that a relative of this model does not take.
    _not_taken: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """scikit-learn's list of parameters: the relatives name only what they add."""
        shared = set(inspect.signature(VGPMIL.__init__).parameters) - {"self"}
        return sorted((shared | set(super()._get_param_names())) - cls._not_taken)

    def _density(self) -> Density:
        return Sech()

    def _likelihood(self) -> BagLikelihood:
        return make_likelihood(
            self.likelihood,
            H=self.H,
            expectation=self.expectation,  # type: ignore[arg-type]
            schedule=self.schedule,  # type: ignore[arg-type]
        )

    def fit(self, bags: Any, y: Any, instance_labels: Any = None, validation: Any = None) -> Any:
        """Fit to labelled bags.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        y : array of shape (n_bags,)
            Two classes; the larger one is positive.
        instance_labels : array of shape (n_instances,), optional
            Class of each instance, or missing: None, NaN, -1.
        validation : (bags, y), optional
            Stop early on these bags' AUC; see ``patience``.
        """
        data = self._validate_fit(bags, y, instance_labels)
        rng = check_random_state(self.random_state)
        labels = Labels(data.bags.offsets, data.y, data.instance_labels)
        projector = self._choose_projector(data, rng)
        pi = training.start(self.init, labels, rng)
        if self.learn_kernel:
            projector, pi = self._learn_kernel(data.bags, labels, projector, pi)
        driver = make_driver(self.n_jobs, self.driver)
        parts, fit = self._train_or_halve(data.bags, labels, projector, pi, driver, validation)
        self._store(projector, fit)
        rule: Any = self.bag_rule
        found: list[Any] = []
        driver.sweep(LeaveOut(fit.posterior, rule), parts, found.append)
        left_out = LeftOutScores(*(np.concatenate(part) for part in zip(*found, strict=True)))
        self.loo_decision_ = left_out.bags
        self.platt_ = None
        if self.calibrate:
            held_out = data.bags.held_out
            self.platt_ = calibrate(left_out, labels.offsets, data.y, rule, held_out)
        return self

    def _check_bags(self, bags: Any, n_features: int | None = None) -> Bags:
        # Pages of a memory map would count as memory of this process.
        bags = read_plainly(bags)
        if not isinstance(bags, Bags) or not hasattr(bags.instances, "select_rows"):
            return super()._check_bags(bags, n_features)
        check_bags(bags, n_features=n_features, estimator=type(self).__name__, finite=False)
        driver = make_driver(self.n_jobs, self.driver)
        finite = all(training.over_rows(all_finite, bags.instances, driver))
        return bags if finite else super()._check_bags(bags, n_features)  # says where

    def _choose_projector(self, data: TrainingData, rng: Any) -> training.Projector:
        X = data.bags.instances
        scaling = training.learn_scaling(X, self.scale, make_driver(self.n_jobs, self.driver))
        if isinstance(self.inducing, str):
            # Known labels sort the instances into the two groups better than their bags do.
            of_bag = segments.spread(data.y == 1, data.bags.offsets)
            known = data.instance_labels
            positive = np.where(known < 0, of_bag, known == 1)
            Z = inducing_points.choose(X, positive, self.n_inducing, self.inducing, rng, scaling)
        else:
            Z = scaling(_check_inducing(self.inducing, data.bags.n_features))
        kernel = self.kernel
        if kernel is None:
            kernel = RBF(self._length_scale(X, scaling, rng), self.variance)
        return self._placed(training.make_projector(kernel, Z, scaling, self.dtype), X)

    def _placed(self, projector: training.Projector, X: Any) -> training.Projector:
        """The projector on the device where the work is to be done."""
        device = training.torch_device(self.device, X)
        return projector if device is None else projector.to(device)

    def _length_scale(self, X: Any, scaling: training.Scaling, rng: Any) -> Any:
        if isinstance(self.length_scale, str):
            if self.length_scale == "sqrt_dim":
                return np.sqrt(X.shape[1])
            rows = np.arange(X.shape[0])
            if len(rows) > _MEDIAN_ROWS:
                rows = np.sort(rng.choice(len(rows), _MEDIAN_ROWS, replace=False))
            return np.sqrt(median_sq_distance(scaling(host_rows(X, rows))))
        if np.ndim(self.length_scale) and np.shape(self.length_scale) != (X.shape[1],):
            raise ValueError(
                f"length_scale must be a number or one per feature ({X.shape[1]}); got shape "
                f"{np.shape(self.length_scale)}."
            )
        return self.length_scale

    def _learn_kernel(self, bags: Bags, labels: Labels, projector: Any, pi: Any) -> Any:
        """Short fits and kernel updates in turn, P(29); the beliefs carry over."""
        from bagwise.models.variational.hyper import learn_kernel

        driver = make_driver(self.n_jobs, self.driver)
        scaling = training.Scaling(*(to_numpy(x) for x in projector.scaling))
        X, Z = scaling(to_numpy(bags.instances[:])), to_numpy(projector.Z)
        for _ in range(_KERNEL_ROUNDS):
            chunk = self._chunk_size(projector)
            parts = self._parts(bags, labels, projector, pi, driver, chunk)
            fit, _ = fit_parts(
                materialised(parts, self.cache_, driver),
                len(projector.Z),
                self._likelihood(),
                check_density(self._density()),
                max_iter=_KERNEL_ITERATIONS,
                tol=self.tol,
                driver=driver,
            )
            old, pi = projector.kernel, fit.pi
            kernel = learn_kernel(old, X, Z, fit.omega, fit.rho, chunk_size=chunk)
            projector = training.make_projector(kernel, Z, scaling, self.dtype)
            projector = self._placed(projector, bags.instances)
            if np.abs(kernel.theta - old.theta).max() < _KERNEL_TOL:
                break
        return projector, pi

    def _parts(
        self, bags: Bags, labels: Labels, projector: Any, pi: Any, driver: Driver, chunk_size: int
    ) -> list[Part]:
        """The bags as parts, and in ``cache_`` how their projections are kept."""
        limit = parse_bytes(self.memory_limit)
        M = len(projector.Z)
        self.cache_ = plan_cache(self.cache, M, bags.n_instances, self.dtype, limit).cache
        return make_parts(bags.instances, labels, projector, pi, chunk_size, driver.n_parts)

    def _train_or_halve(self, bags: Bags, labels: Labels, projector: Any, *rest: Any) -> Any:
        """`_train`; when a device runs out of memory, once more with chunks half as long."""
        chunk = self._chunk_size(projector)
        if not is_torch_array(projector.Z):
            return self._train(bags, labels, projector, *rest, chunk_size=chunk)
        import torch

        with training.device_settings(self.precision):
            try:
                return self._train(bags, labels, projector, *rest, chunk_size=chunk)
            except torch.cuda.OutOfMemoryError:
                chunk = max(1, chunk // 2)
                warnings.warn(
                    f"the device ran out of memory; going on with chunks of {chunk} instances.",
                    stacklevel=3,
                )
            torch.cuda.empty_cache()
            return self._train(bags, labels, projector, *rest, chunk_size=chunk)

    def _train(
        self,
        bags: Bags,
        labels: Labels,
        projector: training.Projector,
        pi: Any,
        driver: Driver,
        validation: Any = None,
        *,
        chunk_size: int,
    ) -> tuple[list[Any], Fit]:
        """Fit q(v); returns the parts as they ended, and the fit."""
        likelihood, density = self._likelihood(), check_density(self._density())
        parts = self._parts(bags, labels, projector, pi, driver, chunk_size)
        state, keeper = None, None
        if self.checkpoint is not None:
            problem = fingerprint(labels, pi, projector, likelihood, density, self.tol)
            keeper = Checkpoint(self.checkpoint, self.checkpoint_every, problem, likelihood)
            state, parts = keeper.resume(parts)
        start = materialised(parts, self.cache_, driver)
        options: dict[str, Any] = {"driver": driver, "tol": self.tol}
        patience = None if validation is None else self._watch(validation, projector)
        monitors = [m for m in (self.callback, patience) if m is not None]
        with training.progress(self.verbose, self.max_iter, type(self).__name__) as bar:
            fit, ended = fit_parts(
                start,
                len(projector.Z),
                likelihood,
                density,
                max_iter=self.max_iter,
                on_iteration=training.all_of([*monitors, *bar]),
                state=state,
                on_state=None if keeper is None else keeper.saver(driver),
                **options,
            )
        if patience is not None and patience.best < fit.n_iter:
            # Updates are deterministic, so fitting again up to the best iteration restores it.
            fit, ended = fit_parts(
                start, len(projector.Z), likelihood, density, max_iter=patience.best, **options
            )
            fit = fit._replace(converged=True)
        if keeper is not None:
            keeper.done()
        return ended, fit

    def _watch(self, validation: Any, projector: training.Projector) -> training.Patience:
        bags = self._check_bags(validation[0], n_features=self.n_features_in_)
        y = self._check_labels(bags, validation[1])
        if set(np.unique(y)) != set(self.classes_):
            raise ValueError(
                f"validation needs bags of both classes {list(self.classes_)}; got labels "
                f"{list(np.unique(y))}."
            )
        codes = (y == self.classes_[1]).astype(int)
        labels = Labels(bags.offsets, codes, np.full(bags.n_instances, -1, dtype=np.int8))
        driver = make_driver(self.n_jobs, self.driver)
        blocks = training.project_bags(bags, labels, projector, self._chunk_size(projector), driver)
        rule: Any = self.bag_rule
        return training.Patience(blocks, codes, rule, self.patience)

    def _store_posterior(self, projector: training.Projector, q: Posterior) -> None:
        self.kernel_ = projector.kernel
        scaling = training.Scaling(*(to_numpy(x) for x in projector.scaling))
        self.feature_center_, self.feature_width_ = scaling
        self.inducing_points_ = scaling.undo(to_numpy(projector.Z))
        self.posterior_mean_, self.posterior_factor_ = q

    def _fitted_projector(self, dtype: str) -> training.Projector:
        scaling = training.Scaling(self.feature_center_, self.feature_width_)
        Z = scaling(self.inducing_points_)
        return training.make_projector(self.kernel_, Z, scaling, dtype)

    def _store(self, projector: training.Projector, fit: Fit) -> None:
        self._store_posterior(projector, fit.posterior)
        self.instance_proba_ = fit.pi
        self.bound_history_ = fit.bound_history
        self.n_iter_ = fit.n_iter
        self.converged_ = bool(fit.converged)
        if not fit.converged and self.tol > 0 and fit.n_iter == self.max_iter:
            warnings.warn(
                f"{type(self).__name__} did not converge in {self.max_iter} iterations. Raise "
                "max_iter or tol; with schedule='paper', which oscillates, use 'damped', or "
                "likelihood='or' or 'witness', whose bound never falls.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _posterior(self) -> Posterior:
        return Posterior(self.posterior_mean_, self.posterior_factor_)

    def _over_blocks(self, bags: Any, function: Any) -> Any:
        """Columns that a function of a block makes of the bags to predict; by the driver."""
        bags = self._validate_predict(bags)
        projector = self._placed(self._fitted_projector("float64"), bags.instances)
        unknown = np.full(bags.n_instances, -1, dtype=np.int8)
        labels = Labels(bags.offsets, np.zeros(len(bags), dtype=int), unknown)
        driver = make_driver(self.n_jobs, self.driver)
        chunk = self._chunk_size(projector)
        parts = make_parts(bags.instances, labels, projector, unknown, chunk, driver.n_parts)
        found = driver.map(OverBlocks(function), parts)
        return tuple(np.concatenate(column) for column in zip(*found, strict=True))

    def _chunk_size(self, projector: training.Projector) -> int:
        """Instances per chunk: one that stays in cache, or one that keeps a device busy."""
        if self.chunk_size is not None:
            return self.chunk_size
        return DEVICE_CHUNK_SIZE if is_torch_array(projector.Z) else CHUNK_SIZE

    def predict_latent(self, bags: Any) -> tuple[Any, Any]:
        """Mean and variance of the latent function at every instance, P(30, 31)."""
        mean, var = self._over_blocks(bags, partial(_latent, q=self._posterior_checked()))
        return mean, var

    def _posterior_checked(self) -> Posterior:
        check_is_fitted(self)
        return self._posterior()

    def _score_bags(self, bags: Any) -> tuple[Any, Any]:
        given = {"q": self._posterior_checked(), "rule": self.bag_rule, "platt": self.platt_}
        log_odds, std = self._over_blocks(bags, partial(_scores, **given))
        return log_odds, std

    def _score_instances(self, bags: Any) -> tuple[Any, Any]:
        p = recalibrate(sigmoid_moments(*self.predict_latent(bags)), self.platt_)
        return p.log_odds, p.std

    def decision_function(self, bags: Any) -> Any:
        """Log-odds of each bag, shape (n_bags,)."""
        return self._score_bags(bags)[0]

    def decision_function_instances(self, bags: Any) -> Any:
        """Log-odds of each instance, aligned with ``bags.instances``."""
        return self._score_instances(bags)[0]

    def predict_proba(self, bags: Any, return_std: bool = False) -> Any:
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
        log_odds, std = self._score_bags(bags)
        return (two_columns(expit(log_odds)), std) if return_std else two_columns(expit(log_odds))

    def predict_proba_instances(self, bags: Any, return_std: bool = False) -> Any:
        """Probability of both classes for each instance; as `predict_proba`. P(32, 33)."""
        log_odds, std = self._score_instances(bags)
        return (two_columns(expit(log_odds)), std) if return_std else two_columns(expit(log_odds))


def _latent(block: Block, q: Posterior) -> Moments:
    return moments(block.A, block.r, q)


def _scores(block: Block, q: Posterior, rule: Any, platt: Any) -> BagScores:
    return block_scores(block.A, block.r, block.labels.offsets, q, rule, platt)


def _check_inducing(Z: Any, n_features: int) -> Any:
    Z = np.array(Z, dtype=np.float64)
    if Z.ndim != 2 or Z.shape[1] != n_features or len(Z) == 0 or not np.isfinite(Z).all():
        raise ValueError(
            f"inducing must be a finite array of shape (n_inducing, {n_features}); got shape "
            f"{Z.shape}."
        )
    return np.unique(Z, axis=0)
