"""DPMIL: one Dirichlet-process mixture per class, and labels that keep the bag constraints.

Kandemir and Hamprecht, "Instance label prediction by Dirichlet process multiple instance
learning", UAI 2014. The mathematics is in `bagwise.core.dirichlet` (one mixture) and
`bagwise.core.constrained` (labels and coordinate ascent).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from bagwise.bags import Bags, BagsLike, InstanceLabels
from bagwise.core import constrained, dirichlet, rules, segments
from bagwise.core.blocks import whole_segments
from bagwise.core.constrained import Block, State
from bagwise.core.dirichlet import ClusterPosterior, Prior, Statistics
from bagwise.files import read_plainly
from bagwise.models.base import Constraints, InstanceClassifier, TrainingData
from bagwise.models.calibration.fit import fit_instance_platt
from bagwise.models.calibration.functions import Platt
from bagwise.models.dpmil_start import checked_shape, cluster, prior_root, start_sizes
from bagwise.models.drivers import Driver, Serial, Threads
from bagwise.models.execution import Execution, free_memory, resolve
from bagwise.models.labels import Labels
from bagwise.models.one_vs_rest import OneVsRest
from bagwise.models.scaled import ScalesFeatures
from bagwise.models.scaling import Scale

if TYPE_CHECKING:
    from bagwise.core.arrays import Bools, Column, Doubles, Floats, Ints, RandomState, Rows


# Instances worked on at a time; a bag is never split.
_ROWS = 8192
# The same on a device, which wants more at a time.
_DEVICE_ROWS = 262_144


class ClusterExamples(NamedTuple):
    """The instances nearest to one cluster of a class."""

    label: object  # the class
    cluster: int  # a column of ``weights_[c]``
    weight: float
    rows: Ints  # of ``bags.instances``, nearest first, at most one of each bag


def _components(X: Floats, n_kept: float) -> PCA:
    """Principal components; ``n_kept`` is their number, or the share of variance they keep."""
    try:
        return PCA(n_kept, svd_solver="full").fit(X)
    except np.linalg.LinAlgError:
        # LAPACK's divide and conquer does not converge on some sparse rows. The eigenvectors of the
        # covariance are the same components.
        return PCA(n_kept, svd_solver="covariance_eigh").fit(X)


class DPMIL(ScalesFeatures, InstanceClassifier):
    """Dirichlet-process mixtures that name the positive instances and show their clusters.

    Each class is a mixture of Gaussians with a stick-breaking prior on its weights, so that
    only as many clusters as the data ask for carry weight. The labels of instances in positive
    bags are inferred together with the mixtures, under the rules that negative bags hold only
    negative instances and every positive bag keeps at least one positive.

    With more than two classes the first in sorted order is the background: its bags hold
    nothing else, and a bag of any other class holds at least one instance of its class, the
    rest being of its class or background.

    Parameters
    ----------
    n_components : int
        Most clusters a class can have.
    concentration : float
        The stick-breaking parameter; larger values favour more clusters.
    covariance_type : {"full", "diag"}
        "diag" costs D rather than D^2 per instance and cluster.
    covariance_floor : float
        Added to the prior covariance's diagonal, in units of the data's mean variance per
        feature; bring features to like scales first. It keeps directions in which the training
        data hardly vary from deciding.
    mean_precision_prior : float
        Weight of the prior mean, in instances.
    degrees_of_freedom_prior : float, optional
        Of the Wishart prior; default ``n_features + 1`` (2 where diagonal).
    mean_prior : array of shape (n_features,), optional
        Default: the mean of the training instances.
    covariance_prior : float or array, optional
        Inverse of the Wishart prior's scale: (n_features, n_features), or (n_features,) where
        diagonal, or a number times the identity. Default: the covariance of the training
        instances. ``covariance_floor`` is added to it either way.
    bag_rule : {"max", "noisy-or"}
        How the instances' probabilities become that of their bag.
    scale : {"feature", "global", None}
        Standardise each feature, or divide all by one number; learnt from the training bags.
    n_dimensions : int, float or None
        Reduce the scaled features by principal components to so many, or to so large a share of
        their variance: full covariances need few dimensions. None keeps the features.
    calibrate : bool
        Platt-scale the instance log-odds, so that the bags they make by ``bag_rule`` fit the
        labels of bags that were left out. One monotone map per class: instances keep their
        order. False gives the paper's probabilities, which are far too sure.
    cv : int
        Folds of bags left out in turn for the calibration. Labels and mixtures are inferred
        anew without them, so that a fit with ``calibrate`` takes up to ``cv`` times as long.
    max_iter : int
        Most iterations.
    tol : float
        Stop when the bound's relative change is below this.
    n_init : int
        Number of starts; the one with the highest bound is kept. The first takes every
        instance for its bag's class and ``n_components`` k-means clusters per class. Further
        starts take fewer clusters, the last a single one, and every second start takes only one
        instance per positive bag for positive: the one least like the negative bags.
    execution : Execution or {"serial", "threads", "dask", "cuda"}, optional
        Where the work over instances runs; see `Execution`, of which ``n_jobs``, ``driver`` and
        ``device`` count here. The result is the same.
    random_state : int, RandomState or None
        Seed of k-means.
    verbose : bool
        Show a progress bar with the bound.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
    weights_ : array of shape (n_classes, n_components)
        Expected mixture weights of each class.
    means_, covariances_, precisions_ : arrays of shape (n_classes, n_components, ...)
        Clusters of each class; covariances are inverses of the expected precisions.
    degrees_of_freedom_, mean_precision_ : arrays of shape (n_classes, n_components)
        Of the clusters' Gaussian-Wishart posteriors.
    class_log_prior_ : array of shape (n_classes,)
        Log share of each class among the training instances.
    one_vs_rest_ : OneVsRest
        Only after a fit to an indicator matrix, and then in place of all that describes mixtures:
        one two-class DPMIL per column.
    platt_ : tuple of Platt, or None
        With ``calibrate``, the map of each class but the background.
    instance_labels_ : array of shape (n_instances,)
        The class inferred for each training instance.
    components_ : PCA or None
        The reduction of the scaled features; clusters are described after it.
    bound_, bounds_ : float and array
        The lower bound at the end, and after every iteration.
    n_iter_, converged_ : int and bool

    Examples
    --------
    >>> from bagwise import DPMIL
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=60, random_state=0, return_X_y=True)
    >>> model = DPMIL(n_components=5, random_state=0).fit(bags, y)
    >>> model.weights_.shape, model.predict_proba_instances(bags).shape[1]
    ((2, 5), 2)
    """

    _multi_class = True
    _multi_label = True
    _first_is_background = True
    _keeps_rows = True
    platt_: tuple[Platt, ...] | None
    _parameter_constraints: ClassVar[Constraints] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "concentration": [Interval(Real, 0, None, closed="neither")],
        "covariance_type": [StrOptions({"full", "diag"})],
        "covariance_floor": [Interval(Real, 0, None, closed="left")],
        "mean_precision_prior": [Interval(Real, 0, None, closed="neither")],
        "degrees_of_freedom_prior": [None, Interval(Real, 0, None, closed="neither")],
        "mean_prior": [None, "array-like"],
        "covariance_prior": [None, "array-like", Interval(Real, 0, None, closed="neither")],
        "bag_rule": [StrOptions({"noisy-or", "max"})],
        "calibrate": ["boolean"],
        "cv": [Interval(Integral, 2, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "n_dimensions": [
            None,
            Interval(Integral, 1, None, closed="left"),
            Interval(Real, 0, 1, closed="neither"),
        ],
        "execution": "no_validation",  # `resolve` says what is wrong
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_components: int = 20,
        *,
        concentration: float = 2.0,
        covariance_type: str = "full",
        covariance_floor: float = 1.0,
        mean_precision_prior: float = 1.0,
        degrees_of_freedom_prior: float | None = None,
        mean_prior: ArrayLike | None = None,
        covariance_prior: ArrayLike | None = None,
        bag_rule: str = "max",
        scale: Scale = "feature",
        n_dimensions: float | None = 0.9,
        calibrate: bool = True,
        cv: int = 5,
        max_iter: int = 100,
        tol: float = 1e-6,
        n_init: int = 1,
        execution: Execution | str | None = None,
        random_state: RandomState = None,
        verbose: bool = False,
    ) -> None:
        self.n_components = n_components
        self.concentration = concentration
        self.covariance_type = covariance_type
        self.covariance_floor = covariance_floor
        self.mean_precision_prior = mean_precision_prior
        self.degrees_of_freedom_prior = degrees_of_freedom_prior
        self.mean_prior = mean_prior
        self.covariance_prior = covariance_prior
        self.bag_rule = bag_rule
        self.scale = scale
        self.n_dimensions = n_dimensions
        self.calibrate = calibrate
        self.cv = cv
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.execution = execution
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        bags: BagsLike,
        y: ArrayLike,
        instance_labels: InstanceLabels = None,
        background: Any = None,
    ) -> DPMIL:
        """Infer the mixtures and the labels of the training instances.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays or 3-d array
        y : array of shape (n_bags,) or (n_bags, n_classes)
            A class per bag, of which the first in sorted order is the background; or an indicator
            matrix, scikit-learn's multilabel format, for which every class has mixtures of its
            own, against the bags without it.
        instance_labels : array of shape (n_instances,), optional
            Known labels stay as they are; missing ones (None, NaN, -1) are inferred. With an
            indicator matrix also of shape (n_instances, n_classes).
        background : class, optional
            Must be the first class in sorted order, which is the background in any case; to say
            so guards against a name that sorts elsewhere.
        """
        if np.ndim(y) == 2 and np.shape(y)[1] > 1:
            return self._fit_indicators(bags, y, instance_labels)
        bags, targets = self._validate_labels(bags, y, instance_labels)
        data = TrainingData(bags, targets.codes, targets.instance_codes)
        if background is not None and background != self.classes_[0]:
            raise ValueError(
                f"DPMIL takes the first class in sorted order, {self.classes_[0].item()!r}, for "
                f"the background; rename {background!r} so that it sorts first, or use VGPMIL."
            )
        prior = self._make_prior(data.bags)
        rng = check_random_state(self.random_state)
        n_folds = self.cv if self.calibrate else 1
        execution = self._execution()
        work = _Work(execution.make_driver(), data, prior, n_folds, execution.torch_device(None))
        labels = [constrained.start_labels(data.y, data.bags.offsets, data.instance_labels)]
        if self.n_init > 1:
            labels.append(constrained.witness_labels(work.blocks(), prior))
        best: tuple[State, _Start] | None = None
        with _progress(self.verbose, self.n_init * self.max_iter) as report:
            for i, n_clusters in enumerate(start_sizes(self.n_components, self.n_init)):
                clusters = self._clusters(data, labels[i % 2], n_clusters, prior, rng)
                start = _Start(labels[i % 2], clusters)
                state = self._infer(work, start, report=report)
                if best is None or state.bounds[-1] > best[0].bounds[-1]:
                    best = state, start
        assert best is not None
        self._store(best[0], prior)
        self.platt_ = self._calibration(work, best[1]) if self.calibrate else None
        return self

    def _execution(self) -> Execution:
        return resolve(self.execution).restricted(("n_jobs", "driver", "device"), "DPMIL")

    def _fit_indicators(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels
    ) -> DPMIL:
        """One two-class model per column; prediction is theirs."""
        model = OneVsRest(clone(self)).fit(bags, y, instance_labels)
        self.one_vs_rest_, self.class_rule_ = model, model.class_rule_
        self.classes_, self.n_features_in_ = model.classes_, model.n_features_in_
        self.n_iter_ = max(member.n_iter_ for member in model.estimators_)
        return self

    def _validate_labels(
        self,
        bags: BagsLike,
        y: ArrayLike,
        instance_labels: InstanceLabels = None,
        background: Any = None,
    ) -> tuple[Bags, Labels]:
        bags, labels = super()._validate_labels(bags, y, instance_labels, background)
        self.components_ = None
        if self.n_dimensions is not None and bags.n_features > 1:
            n = self.n_dimensions
            limit = min(bags.n_features, bags.n_instances)
            n_kept = n if n < 1 else min(int(n), limit)
            self.components_ = _components(np.asarray(bags.instances[:]), n_kept)
        return self._reduced(bags), labels

    def _validate_predict(self, bags: BagsLike) -> Bags:
        return self._reduced(super()._validate_predict(bags))

    def _reduced(self, bags: Bags) -> Bags:
        return bags if self.components_ is None else bags.map(self.components_.transform)

    def _infer(
        self,
        work: _Work,
        start: _Start,
        without: int | None = None,
        report: Callable[[int, float], None] | None = None,
    ) -> State:
        """Coordinate ascent on all bags, or without those of one fold."""
        blocks = work.blocks(without)
        rows = slice(None) if without is None else work.rows(work.folds != without)
        return constrained.infer(
            blocks,
            self._statistics(blocks(), start.labels[rows], start.clusters[rows], work.prior),
            work.prior,
            max_iter=self.max_iter,
            tol=self.tol,
            report=report,
            run=work.runner(without),
        )

    def _calibration(self, work: _Work, start: _Start) -> tuple[Platt, ...]:
        """The map of each class's log-odds, from its bags and those of the background."""
        y, offsets = work.data.y, work.data.bags.offsets
        odds = self._against_background(self._held_out_densities(work, start))
        maps = []
        for c in range(1, len(self.classes_)):
            chosen = np.flatnonzero((y == 0) | (y == c))
            rows, its_offsets = segments.take(offsets, chosen)
            maps.append(
                fit_instance_platt(odds[rows, c], its_offsets, y[chosen] > 0, self.bag_rule)
            )
        return tuple(maps)

    def _held_out_densities(self, work: _Work, start: _Start) -> Floats:
        """Log predictive densities of each instance, inferred without its fold's bags, [N, C]."""
        out = np.empty((work.data.bags.n_instances, len(self.classes_)))
        for fold in range(int(work.folds.max()) + 1):
            mixtures = self._infer(work, start, without=fold).mixtures
            score = partial(_log_predictive, mixtures=mixtures, prior=work.prior)
            out[work.rows(work.folds == fold)] = work.run_fold(score, np.concatenate, fold)
        return out

    def _make_prior(self, bags: Bags) -> Prior:
        diagonal = self.covariance_type == "diag"
        D = bags.n_features
        mean, covariance = dirichlet.covariance_moments(lambda: _rows(bags), D, diagonal)
        variance = float(np.mean(covariance if diagonal else np.diag(covariance)))
        if not variance > 0:
            raise ValueError(
                f"DPMIL needs instances that differ; all {bags.n_instances} instances are equal."
            )
        if self.mean_prior is not None:
            mean = checked_shape("mean_prior", self.mean_prior, (D,))
        if self.covariance_prior is not None:
            shape = covariance.shape
            given = self.covariance_prior
            if isinstance(given, Real):
                given = float(given) * (np.ones(D) if diagonal else np.eye(D))
            covariance = checked_shape("covariance_prior", given, shape)
        nu0 = self.degrees_of_freedom_prior
        least = 0 if diagonal else D - 1
        if nu0 is None:
            nu0 = 2.0 if diagonal else D + 1.0
        elif nu0 <= least:
            raise ValueError(
                f"degrees_of_freedom_prior must be larger than {least}, the number of features "
                f"less one; got {nu0}."
            )
        root = prior_root(covariance, self.covariance_floor * variance)
        return Prior(mean, root, float(self.mean_precision_prior), float(nu0), self.concentration)

    def _clusters(
        self,
        data: TrainingData,
        labels: Ints,
        n_clusters: int,
        prior: Prior,
        rng: np.random.RandomState,
    ) -> Ints:
        """Cluster of each instance within its class by k-means, the largest being 0. [N]."""
        clusters = np.empty(len(labels), dtype=np.int64)
        for c in range(len(self.classes_)):
            rows = np.flatnonzero(labels == c)
            clusters[rows] = cluster(data.bags.instances, rows, n_clusters, prior, rng)
        return clusters

    def _statistics(
        self, blocks: Iterator[Block], labels: Ints, clusters: Ints, prior: Prior
    ) -> tuple[Statistics, ...]:
        """Statistics of the mixtures that have these clusters for components."""
        C, K, D = len(self.classes_), self.n_components, len(prior.mean)
        total = (dirichlet.empty_statistics(K, D, prior.diagonal),) * C
        first = 0
        for block in blocks:
            rows = slice(first, first + len(block.Z))
            first += len(block.Z)
            part = constrained.statistics_of_clusters(
                block.Z, labels[rows], clusters[rows], C, K, prior.diagonal
            )
            total = tuple(map(dirichlet.add, total, part))
        return total

    def _store(self, state: State, prior: Prior) -> None:
        mixtures = state.mixtures
        self._prior, self._mixtures = prior, mixtures
        self.weights_ = np.stack([dirichlet.expected_weights(q) for q in mixtures])
        self.means_ = np.stack([dirichlet.unwhiten_mean(q.m, prior) for q in mixtures])
        self.covariances_ = np.stack([dirichlet.covariances(q, prior) for q in mixtures])
        self.precisions_ = np.stack([dirichlet.precisions(q, prior) for q in mixtures])
        self.degrees_of_freedom_ = np.stack([q.nu for q in mixtures])
        self.mean_precision_ = np.stack([q.beta for q in mixtures])
        counts = np.bincount(state.labels, minlength=len(mixtures))
        self.class_log_prior_ = np.log(counts / counts.sum())
        self.instance_labels_ = self.classes_[state.labels]
        self.bounds_ = np.asarray(state.bounds)
        self.bound_ = state.bounds[-1]
        self.n_iter_ = len(state.bounds)
        self.converged_ = state.converged

    def log_density_instances(self, bags: BagsLike) -> Any:
        """Log predictive density of each instance under each class, (n_instances, n_classes)."""
        self._check_one_mixture_per_class("log_density_instances")
        return self._log_density(self._validate_predict(bags))

    def _check_one_mixture_per_class(self, method: str) -> None:
        if hasattr(self, "one_vs_rest_"):
            raise ValueError(
                f"{method} needs one mixture per class; after a fit to an indicator matrix ask "
                "the models of its columns, one_vs_rest_.estimators_."
            )

    def _log_density(self, bags: Bags) -> Floats:
        out = np.empty((bags.n_instances, len(self.classes_)))
        device = self._execution().torch_device(None)
        for rows, X in _numbered_rows(bags):
            Z = _whitened(X, self._prior, device)
            out[rows] = constrained.log_predictive(Z, self._mixtures, self._prior)
        return out

    def assign(self, bags: BagsLike) -> Ints:
        """Cluster of each instance within its predicted class, shape (n_instances,).

        Entry n is a column of ``weights_[c]``, ``means_[c]``, where c is the instance's
        predicted class, ``predict_instances(bags)[n]``.
        """
        self._check_one_mixture_per_class("assign")
        _, clusters, _ = self._nearest_clusters(self._validate_predict(bags))
        return clusters

    def nearest_instances(self, bags: BagsLike, n_instances: int = 8) -> list[ClusterExamples]:
        """Examples of every cluster: the instances nearest to it, each of another bag.

        Clusters that no instance of these bags is assigned to are left out. Classes come in the
        order of ``classes_``, and within a class the heaviest cluster first.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays or 3-d array
        n_instances : int
            Most examples of a cluster.
        """
        self._check_one_mixture_per_class("nearest_instances")
        bags = self._validate_predict(bags)
        labels, clusters, distances = self._nearest_clusters(bags)
        examples = []
        for c, name in enumerate(self.classes_):
            for k in np.argsort(-self.weights_[c], kind="stable"):
                members = np.flatnonzero((labels == c) & (clusters == k))
                members = members[np.argsort(distances[members], kind="stable")]
                _, first = np.unique(bags.bag_index[members], return_index=True)
                rows = members[np.sort(first)][:n_instances]
                if len(rows):
                    weight = float(self.weights_[c, k])
                    examples.append(ClusterExamples(name, int(k), weight, rows))
        return examples

    def _nearest_clusters(self, bags: Bags) -> tuple[Ints, Ints, Floats]:
        """Class and cluster of each instance, and its squared distance from the cluster."""
        labels = np.argmax(self._odds(bags), axis=1)
        clusters = np.empty(bags.n_instances, dtype=np.int64)
        distances = np.empty(bags.n_instances)
        for rows, X in _numbered_rows(bags):
            Z = dirichlet.whiten(X, self._prior)
            for c, mixture in enumerate(self._mixtures):
                its = np.flatnonzero(labels[rows] == c)
                log_rho = dirichlet.log_joint(Z[its], mixture, self._prior)
                nearest = np.argmax(log_rho, axis=1)
                squared = dirichlet.mahalanobis(Z[its], mixture) * mixture.nu
                clusters[rows.start + its] = nearest
                distances[rows.start + its] = squared[np.arange(len(its)), nearest]
        return labels, clusters, distances

    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """Log-odds of each instance against the background, calibrated where asked for.

        Shape (n_instances,); with more than two classes (n_instances, n_classes), whose first
        column is 0.
        """
        if hasattr(self, "one_vs_rest_"):
            return self.one_vs_rest_.decision_function_instances(bags)
        odds = self._odds(self._validate_predict(bags))
        return odds[:, 1] if len(self.classes_) == 2 else odds

    def decision_function(self, bags: BagsLike) -> Floats:
        """Log-odds of each bag by the bag rule; shaped like the instances' twin."""
        if hasattr(self, "one_vs_rest_"):
            return self.one_vs_rest_.decision_function(bags)
        bags = self._validate_predict(bags)
        odds = self._bag_odds(bags)
        return odds[:, 1] if len(self.classes_) == 2 else odds

    def predict_proba_instances(self, bags: BagsLike) -> Floats:
        """Class probabilities of each instance, shape (n_instances, n_classes)."""
        if hasattr(self, "one_vs_rest_"):
            return self.one_vs_rest_.predict_proba_instances(bags)
        return softmax(self._odds(self._validate_predict(bags)), axis=1)

    def predict_proba(self, bags: BagsLike) -> Floats:
        """Class probabilities of each bag, shape (n_bags, n_classes)."""
        if hasattr(self, "one_vs_rest_"):
            return self.one_vs_rest_.predict_proba(bags)
        return softmax(self._bag_odds(self._validate_predict(bags)), axis=1)

    def predict_instances(self, bags: BagsLike) -> Column:
        """Label of each instance, aligned with ``bags.instances``."""
        if hasattr(self, "one_vs_rest_"):
            return self.one_vs_rest_.predict_instances(bags)
        odds = self._odds(self._validate_predict(bags))
        return self.classes_[np.argmax(odds, axis=1)]

    def predict(self, bags: BagsLike) -> Column:
        """Label of each bag, shape (n_bags,)."""
        if hasattr(self, "one_vs_rest_"):
            return self.one_vs_rest_.predict(bags)
        odds = self._bag_odds(self._validate_predict(bags))
        return self.classes_[np.argmax(odds, axis=1)]

    def _odds(self, bags: Bags) -> Floats:
        """Log-odds of every class against the background, [N, C]; the first column is 0."""
        odds = self._against_background(self._log_density(bags))
        for c, platt in enumerate(self.platt_ or (), start=1):
            odds[:, c] = platt.log_odds(odds[:, c])
        return odds

    def _against_background(self, log_density: Floats) -> Floats:
        """Log-odds by the densities and the classes' shares, [N, C]."""
        log_posterior = log_density + self.class_log_prior_
        return log_posterior - log_posterior[:, :1]

    def _bag_odds(self, bags: Bags) -> Floats:
        """Log-odds that a bag holds an instance of each class, [B, C]; the first column is 0."""
        odds = self._odds(bags)
        out = np.zeros((len(bags), odds.shape[1]))
        for c in range(1, odds.shape[1]):
            out[:, c] = rules.bag_log_odds(odds[:, c], bags.offsets, self.bag_rule)
        return out


def _whitened(X: Rows, prior: Prior, device: str | None) -> Doubles:
    """Rows in the prior's coordinates, on the device where the work is done."""
    Z = dirichlet.whiten(np.asarray(X), prior)
    if device is None:
        return Z
    import torch

    return torch.as_tensor(Z).to(device)


def _numbered_rows(bags: Bags) -> Iterator[tuple[slice, Any]]:
    for start in range(0, bags.n_instances, _ROWS):
        rows = slice(start, min(start + _ROWS, bags.n_instances))
        yield rows, np.asarray(bags.instances[rows])


def _rows(bags: Bags) -> Iterator[Floats]:
    for _, X in _numbered_rows(bags):
        yield X


def _blocks(
    data: TrainingData, prior: Prior, wanted: Bools | None = None, device: str | None = None
) -> Iterator[Block]:
    """All bags, or those wanted ([B] bool), a block at a time."""
    offsets = data.bags.offsets
    for first, last in whole_segments(offsets, _ROWS if device is None else _DEVICE_ROWS):
        rows = slice(int(offsets[first]), int(offsets[last]))
        X, known = data.bags.instances[rows], data.instance_labels[rows]
        its_offsets, y = offsets[first : last + 1] - offsets[first], data.y[first:last]
        if wanted is not None:
            chosen = np.flatnonzero(wanted[first:last])
            if len(chosen) == 0:
                continue
            inside, its_offsets = segments.take(its_offsets, chosen)
            X, known, y = X[inside], known[inside], y[chosen]
        yield Block(_whitened(X, prior, device), its_offsets, y, known)


def _folds(bags: Bags, y: Column, n_folds: int) -> Ints:
    """Fold of each bag, [B]: every class is dealt out evenly.

    Bags are dealt in an order of their own, by a random projection, so that the order they come
    in changes nothing.
    """
    if n_folds == 1:
        return np.zeros(len(bags), dtype=np.int64)
    direction = np.random.RandomState(0).standard_normal(bags.n_features)
    place = np.concatenate([X @ direction for X in _rows(bags)])
    order = np.lexsort((segments.max(place, bags.offsets), y))
    folds = np.empty(len(bags), dtype=np.int64)
    folds[order] = np.arange(len(bags)) % min(n_folds, len(bags))
    return folds


class _Share(NamedTuple):
    """Bags that stay with whoever works on them."""

    data: TrainingData
    prior: Prior
    folds: Ints  # [b]


@dataclass(frozen=True)
class _OverShare:
    """A function of the blocks of a share, of one fold, or of all others; picklable."""

    function: Callable[[Block], Any]
    merge: Callable[[Any], Any]
    fold: int | None = None
    held_out: bool = False

    def __call__(self, share: _Share) -> tuple[_Share, list[Any]]:
        wanted = None if self.fold is None else (share.folds == self.fold) == self.held_out
        found = list(map(self.function, _blocks(share.data, share.prior, wanted)))
        return share, [self.merge(found)] if found else []


class _Start(NamedTuple):
    """Where inference starts."""

    labels: Column  # [N] class of each instance
    clusters: Ints  # [N] its cluster within the class


class _Work:
    """Runs functions of blocks where the driver says: over blocks here, or shares elsewhere."""

    def __init__(
        self,
        driver: Driver,
        data: TrainingData,
        prior: Prior,
        n_folds: int,
        device: str | None = None,
    ) -> None:
        self.driver, self.data, self.prior, self.device = driver, data, prior, device
        self.folds = _folds(data.bags, data.y, n_folds)
        self.here = isinstance(driver, (Serial, Threads))
        if device is not None and not self.here:
            raise ValueError(
                f"DPMIL works on one device here, not on those of a cluster; device={device!r} "
                "has no effect with a Dask client. Drop one of them."
            )
        self.shares: list[_Share] = [] if self.here else self._make_shares(driver.n_parts)

    def _make_shares(self, n_shares: int) -> list[_Share]:
        """Neighbouring bags, about as many instances in each share."""
        bags = read_plainly(self.data.bags)  # a memory map travels as its file's name
        goals = np.arange(1, n_shares) * (bags.n_instances / n_shares)
        edges = np.unique([0, *np.searchsorted(bags.offsets, goals), len(bags)])
        shares = []
        for first, last in itertools.pairwise(edges.tolist()):
            known = self.data.instance_labels[bags.offsets[first] : bags.offsets[last]]
            data = TrainingData(bags[first:last], self.data.y[first:last], known)
            shares.append(_Share(data, self.prior, self.folds[first:last]))
        return shares

    def rows(self, wanted: Bools) -> Ints:
        """Instances of the bags wanted ([B] bool), in order."""
        return segments.take(self.data.bags.offsets, np.flatnonzero(wanted))[0]

    def blocks(self, without: int | None = None) -> Callable[[], Iterator[Block]]:
        """A fresh pass over the data at every call; what fits one block is prepared only once."""
        wanted = None if without is None else self.folds != without
        bags = self.data.bags
        if self.device is None:
            fits = bags.n_instances <= _ROWS
        else:  # whitened rows stay on the device where they leave half of it to the work
            fits = 8 * bags.n_instances * bags.n_features <= free_memory(self.device) // 2
        if not fits:
            return lambda: _blocks(self.data, self.prior, wanted, self.device)
        held = tuple(_blocks(self.data, self.prior, wanted, self.device))
        return lambda: iter(held)

    def runner(self, without: int | None = None) -> Callable[..., Iterable[Any]]:
        """How `constrained.infer` runs a sweep over all bags, or without those of a fold."""
        if self.here:
            return self.driver.map
        return lambda function, _: self._run_elsewhere(
            _OverShare(function, constrained.merge, without)
        )

    def run_fold(
        self, function: Callable[[Block], Any], merge: Callable[[Any], Any], fold: int
    ) -> Floats:
        """The merged results of a function of the blocks of one fold."""
        if self.here:
            wanted = self.folds == fold
            blocks: Any = _blocks(self.data, self.prior, wanted, self.device)  # lazily
            return merge(list(self.driver.map(function, blocks)))
        return merge(self._run_elsewhere(_OverShare(function, merge, fold, held_out=True)))

    def _run_elsewhere(self, function: _OverShare) -> list[Any]:
        found: list[Any] = []
        self.shares = self.driver.sweep(function, self.shares, found.extend)
        return found


def _log_predictive(block: Block, mixtures: tuple[ClusterPosterior, ...], prior: Prior) -> Floats:
    return constrained.log_predictive(block.Z, mixtures, prior)


@contextmanager
def _progress(verbose: bool, total: int) -> Iterator[Callable[[int, float], None] | None]:
    """A progress bar that shows the bound, or nothing."""
    if not verbose:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with Progress(
        TextColumn("DPMIL"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda _, bound: bar.update(task, advance=1, description=f"bound {bound:.6g}")
