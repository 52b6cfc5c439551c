"""DPMIL: one Dirichlet-process mixture per class, and labels that keep the bag constraints.

Kandemir and Hamprecht, "Instance label prediction by Dirichlet process multiple instance
learning", UAI 2014. The mathematics is in `bagwise.core.dirichlet` (one mixture) and
`bagwise.core.constrained` (labels and coordinate ascent).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.decomposition import PCA
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from bagwise.bags import Bags, BagsLike, InstanceLabels
from bagwise.core import constrained, dirichlet, rules, segments
from bagwise.core.arrays import Doubles, Floats, Ints, RandomState, Rows, is_tensor, to_numpy
from bagwise.core.blocks import whole_segments
from bagwise.core.constrained import BagBlock, ClassSums, MixtureState
from bagwise.core.dirichlet import ClusterPosterior, Prior
from bagwise.core.progress import progress
from bagwise.files import read_plainly
from bagwise.models.base import InstanceClassifier, check_scores, squeezed
from bagwise.models.calibration.fit import Platt, fit_instance_platt
from bagwise.models.dpmil_start import checked_shape, cluster, prior_root, start_sizes
from bagwise.models.drivers import RunningSum, Serial, Threads
from bagwise.models.execution import Execution, free_memory, resolve
from bagwise.models.held_out import folds
from bagwise.models.labels import Labels
from bagwise.models.parameters import AT_LEAST_1, BAG_RULES, NOT_NEGATIVE, POSITIVE, parameter
from bagwise.models.scaling import ScalesFeatures

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


@dataclass(kw_only=True, eq=False, repr=False)
class DPMIL(ScalesFeatures, InstanceClassifier):
    """Dirichlet-process mixtures that name the positive instances and show their clusters.

    Each class is a mixture of Gaussians with a stick-breaking prior on its weights, so that
    only as many clusters as the data ask for carry weight. The labels of instances in positive
    bags are inferred together with the mixtures, under the rules that negative bags hold only
    negative instances and every positive bag keeps at least one positive.

    With more than two classes the first in sorted order is the background: its bags hold
    nothing else, and a bag of any other class holds at least one instance of its class, the
    rest being of its class or background. For bags of several classes each see `OneVsRest`.

    Parameters
    ----------
    n_components : int, default=20
        Most clusters a class can have.
    concentration : float, default=2.0
        The stick-breaking parameter; larger values favour more clusters.
    covariance_type : {"full", "diag"}, default="full"
        "diag" costs D rather than D^2 per instance and cluster.
    covariance_floor : float, default=1.0
        Added to the prior covariance's diagonal, in units of the data's mean variance per
        feature; bring features to like scales first. It keeps directions in which the training
        data hardly vary from deciding.
    mean_precision_prior : float, default=1.0
        Weight of the prior mean, in instances.
    degrees_of_freedom_prior : float or None, default=None
        Of the Wishart prior; default ``n_features + 1`` (2 where diagonal).
    mean_prior : array of shape (n_features,) or None, default=None
        Default: the mean of the training instances.
    covariance_prior : float or array or None, default=None
        Inverse of the Wishart prior's scale: (n_features, n_features), or (n_features,) where
        diagonal, or a number times the identity. Default: the covariance of the training
        instances. ``covariance_floor`` is added to it either way.
    bag_rule : {"max", "noisy-or"}, default="max"
        How the instances' probabilities become that of their bag.
    scale : {"feature", "global", None}, default="feature"
        Standardise each feature, or divide all by one number; learnt from the training bags.
    n_dimensions : int, float or None, default=0.9
        Reduce the scaled features by principal components to so many, or to so large a share of
        their variance: full covariances need few dimensions. None keeps the features.
    calibrate : bool, default=True
        Platt-scale the instance log-odds, so that the bags they make by ``bag_rule`` fit the
        labels of bags that were left out. The function of each class is monotone: instances keep
        their order. False gives the paper's probabilities, which are over-confident.
    cv : int, default=5
        Folds of bags left out in turn for the calibration. Labels and mixtures are inferred
        anew without them, so that a fit with ``calibrate`` takes up to ``cv`` times as long.
    max_iter : int, default=100
        Most iterations.
    tol : float, default=1e-06
        Stop when the bound's relative change is below this.
    n_init : int, default=1
        Number of starts; the one with the highest bound is kept. The first takes every
        instance for its bag's class and ``n_components`` k-means clusters per class. Further
        starts take fewer clusters, the last a single one, and every second start takes only one
        instance per positive bag for positive: the one least like the negative bags.
    execution : Execution or {"serial", "threads", "dask", "cuda"} or None, default=None
        Where the work over instances runs; see `Execution`, of which ``n_jobs``, ``driver`` and
        ``device`` count here. The result is the same.
    random_state : int, RandomState or None, default=None
        Seed of k-means.
    verbose : bool, default=False
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
        Log share of each class among the training instances; the paper compares the densities
        alone.
    platt_ : tuple of Platt, or None
        With ``calibrate``, the calibration function of each class but the background.
    instance_labels_ : array of shape (n_instances,)
        The class inferred for each training instance.
    components_ : PCA or None
        The reduction of the scaled features; clusters are described after it.
    bound_, bounds_ : float and array
        The lower bound at the end, and after every iteration.
    n_iter_, converged_ : int and bool

    Notes
    -----
    Departures from [Kandemir2014]_: features are standardised and reduced (``scale``,
    ``n_dimensions``), the prior covariance has a floor (``covariance_floor``), the log share of
    the classes is added to their densities, labels start at those of the bags once and not in
    every iteration, further starts are possible (``n_init``), and probabilities are calibrated.
    ``preset("dpmil-paper")`` has the printed prior, one start and none of the rest but the shares.

    See Also
    --------
    VGPMIL, bagwise.report.plot_mixture_weights, bagwise.report.plot_cluster_examples

    References
    ----------
    [Kandemir2014]_

    Examples
    --------
    >>> from bagwise import DPMIL
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=60, random_state=0, return_X_y=True)
    >>> model = DPMIL(n_components=5, random_state=0).fit(bags, y)
    >>> model.weights_.shape, model.predict_proba_instances(bags).shape[1]
    ((2, 5), 2)
    """

    n_components: int = parameter(20, AT_LEAST_1)
    concentration: float = parameter(2.0, POSITIVE)
    covariance_type: str = parameter("full", StrOptions({"full", "diag"}))
    covariance_floor: float = parameter(1.0, NOT_NEGATIVE)
    mean_precision_prior: float = parameter(1.0, POSITIVE)
    degrees_of_freedom_prior: float | None = parameter(None, None, POSITIVE)
    mean_prior: ArrayLike | None = parameter(None, None, "array-like")
    covariance_prior: ArrayLike | None = parameter(None, None, "array-like", POSITIVE)
    bag_rule: str = parameter("max", *BAG_RULES)
    n_dimensions: float | None = parameter(
        0.9, None, AT_LEAST_1, Interval(Real, 0, 1, closed="neither")
    )
    calibrate: bool = parameter(True, "boolean")
    cv: int = parameter(5, Interval(Integral, 2, None, closed="left"))
    max_iter: int = parameter(100, AT_LEAST_1)
    tol: float = parameter(1e-6, NOT_NEGATIVE)
    n_init: int = parameter(1, AT_LEAST_1)
    execution: Execution | str | None = parameter(None)  # `resolve` says what is wrong
    random_state: RandomState = parameter(None, "random_state")
    verbose: bool = parameter(False, "verbose")

    _multi_class = True
    _first_is_background = True
    _keeps_rows = True

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
        y : array of shape (n_bags,)
            A class per bag, of which the first in sorted order is the background.
        instance_labels : array of shape (n_instances,) or None, default=None
            Known labels stay as they are; missing ones (None, NaN, -1) are inferred.
        background : class or None, default=None
            Must be the first class in sorted order, which is the background in any case; to say
            so guards against a name that sorts elsewhere.
        """
        device = self._device(bags)
        bags, targets = self._validate_labels(bags, y, instance_labels)
        if background is not None and background != self.classes_[0]:
            raise ValueError(
                f"DPMIL takes the first class in sorted order, {self.classes_[0].item()!r}, for "
                f"the background; rename {background!r} so that it sorts first, or use VGPMIL."
            )
        self._prior = prior = self._make_prior(bags)
        rng = check_random_state(self.random_state)
        driver = self._execution().make_driver()
        if device is not None and not isinstance(driver, (Serial, Threads)):
            raise ValueError(
                f"DPMIL works on one device here, not on those of a cluster; device={device!r} "
                "has no effect with a Dask client. Drop one of them."
            )
        codes, known = targets.codes, targets.instance_codes
        starts = [rules.inherited_labels(codes, known, bags.offsets)]
        if self.n_init > 1:
            pieces = _pieces(bags, codes, known, prior, device)
            starts.append(
                constrained.key_instance_labels(
                    lambda: (p.block(prior, device) for p in pieces), prior
                )
            )
        best: tuple[MixtureState, Ints] | None = None
        with progress("DPMIL", self.n_init * self.max_iter, self.verbose) as show:
            for i, n_clusters in enumerate(start_sizes(self.n_components, self.n_init)):
                # Every second start has few positives; the bound tells which is better.
                labels = starts[i % 2]
                clusters = np.empty(len(labels), dtype=np.int64)  # [N] within its class
                for c in range(len(self.classes_)):
                    rows = np.flatnonzero(labels == c)
                    clusters[rows] = cluster(bags.instances, rows, n_clusters, prior, rng)
                report = partial(_report, show, i * self.max_iter)
                found = self._infer(bags, targets, labels, clusters, device, report)
                if best is None or found[0].bounds[-1] > best[0].bounds[-1]:
                    best, start = found, (labels, clusters)
        assert best is not None
        self._store(*best)
        self.class_rule_ = targets.rule
        fold = self._folds(bags, codes) if self.calibrate else None
        self.platt_ = None
        if fold is not None:
            self.platt_ = self._calibration(bags, targets, fold, start, device)
        return self

    def _execution(self) -> Execution:
        return resolve(self.execution).restricted(("n_jobs", "driver", "device"), "DPMIL")

    def _device(self, bags: BagsLike) -> str | None:
        """The torch device to work on: the one asked for, or that of the instances."""
        return self._execution().torch_device(getattr(bags, "instances", None))

    def _check_bags(self, bags: BagsLike, n_features: int | None = None) -> Bags:
        checked = super()._check_bags(bags, n_features)
        # Tensors are scaled and reduced on the host, and go back to their device whitened.
        rows = checked.instances
        return checked.with_instances(to_numpy(rows)) if is_tensor(rows) else checked

    def _learn_preparation(self, bags: Bags) -> Bags:
        bags = super()._learn_preparation(bags)
        self.components_ = None
        if self.n_dimensions is not None and bags.n_features > 1:
            n = self.n_dimensions
            limit = min(bags.n_features, bags.n_instances)
            n_kept = n if n < 1 else min(int(n), limit)
            self.components_ = _components(np.asarray(bags.instances[:]), n_kept)
        return self._reduced(bags)

    def _validate_predict(self, bags: BagsLike) -> Bags:
        return self._reduced(super()._validate_predict(bags))

    def _reduced(self, bags: Bags) -> Bags:
        return bags if self.components_ is None else bags.map(self.components_.transform)

    def _folds(self, bags: Bags, y: Ints) -> Ints | None:
        """Fold of each bag [B], or None where nothing can be held out.

        Bags are dealt in an order of their own, by a random projection, so that the order they
        come in changes nothing.
        """
        if np.bincount(y).min() < 2:
            warnings.warn(
                "calibration needs 2 bags of each class, one to hold out and one to learn from; "
                "the probabilities are left uncalibrated. calibrate=False asks for that.",
                stacklevel=3,
            )
            return None
        direction = np.random.RandomState(0).standard_normal(bags.n_features)
        place = np.concatenate([X @ direction for _, X in _numbered_rows(bags)])
        order = np.lexsort((segments.max(place, bags.offsets), y))
        fold = np.empty(len(bags), dtype=np.int64)
        fold[order] = folds(y[order], self.cv)
        return fold

    def _infer(
        self,
        bags: Bags,
        targets: Labels,
        labels: Ints,
        clusters: Ints,
        device: str | None,
        report: Callable[[int, float], None] | None = None,
    ) -> tuple[MixtureState, Ints]:
        """Coordinate ascent from clusters [N] of classes [N]; also the labels it ends with."""
        prior, driver = self._prior, self._execution().make_driver()
        pieces: list[Any] = _pieces(bags, targets.codes, targets.instance_codes, prior, device)
        start, first = RunningSum(), 0
        for piece in pieces:
            rows = slice(first, first := first + len(piece.known))
            Z = piece.block(prior, device).Z
            sizes = len(self.classes_), self.n_components, prior.diagonal
            start(constrained.sums_of_clusters(Z, labels[rows], clusters[rows], *sizes))

        def run(function: Callable[[BagBlock], tuple[Ints, ClassSums]]) -> ClassSums:
            nonlocal pieces
            sums = RunningSum()
            work = partial(_on_piece, function=function, prior=prior, device=device)
            pieces = driver.sweep(work, pieces, sums)
            return sums.value

        state = constrained.infer(
            run, start.value, prior, max_iter=self.max_iter, tol=self.tol, report=report
        )
        inferred: list[Ints] = []
        driver.sweep(_labels_of, pieces, inferred.append)
        return state, np.concatenate(inferred)

    def _calibration(
        self, bags: Bags, targets: Labels, fold: Ints, start: tuple[Ints, Ints], device: str | None
    ) -> tuple[Platt, ...]:
        """A function of each class's log-odds, from its bags and those of the background.

        The densities of an instance are inferred without the bags of its fold.
        """
        log_density = np.empty((bags.n_instances, len(self.classes_)))
        for k in range(int(fold.max()) + 1):
            others, left_out = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
            # Prior, scaling and start are those of all bags: only the labels are held out.
            rows, _ = segments.take(bags.offsets, others)
            seen, labels, clusters = (
                targets.take(others, bags.offsets),
                start[0][rows],
                start[1][rows],
            )
            state, _ = self._infer(bags[others], seen, labels, clusters, device)
            rows, _ = segments.take(bags.offsets, left_out)
            log_density[rows] = self._log_density(bags[left_out], device, state.mixtures)
        odds, y = self._against_background(log_density), targets.codes
        maps = []
        for c in range(1, len(self.classes_)):
            # Bags of the other classes say nothing about this one against the background.
            chosen = np.flatnonzero((y == 0) | (y == c))
            rows, offsets = segments.take(bags.offsets, chosen)
            maps.append(fit_instance_platt(odds[rows, c], offsets, y[chosen] > 0, self.bag_rule))
        return tuple(maps)

    def _make_prior(self, bags: Bags) -> Prior:
        diagonal = self.covariance_type == "diag"
        D = bags.n_features
        mean, covariance = dirichlet.covariance_moments(
            lambda: (X for _, X in _numbered_rows(bags)), D, diagonal
        )
        variance = float(np.mean(covariance if diagonal else np.diag(covariance)))
        if not variance > 0:
            raise ValueError(
                f"DPMIL needs instances that differ; all {bags.n_instances} instances are equal."
            )
        if self.mean_prior is not None:
            mean = checked_shape("mean_prior", self.mean_prior, (D,))
        given: Any = self.covariance_prior
        if given is not None:
            if isinstance(given, Real):
                given = float(given) * (np.ones(D) if diagonal else np.eye(D))
            covariance = checked_shape("covariance_prior", given, covariance.shape)
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

    def _store(self, state: MixtureState, labels: Ints) -> None:
        prior, mixtures = self._prior, state.mixtures
        self._mixtures = mixtures
        self.weights_ = np.stack([dirichlet.expected_weights(q) for q in mixtures])
        self.means_ = np.stack([dirichlet.unwhiten_mean(q.m, prior) for q in mixtures])
        self.covariances_ = np.stack([dirichlet.covariances(q, prior) for q in mixtures])
        self.precisions_ = np.stack([dirichlet.precisions(q, prior) for q in mixtures])
        self.degrees_of_freedom_ = np.stack([q.nu for q in mixtures])
        self.mean_precision_ = np.stack([q.beta for q in mixtures])
        counts = np.bincount(labels, minlength=len(mixtures))
        self.class_log_prior_ = np.log(counts / counts.sum())
        self.instance_labels_ = self.classes_[labels]
        self.bounds_ = np.asarray(state.bounds)
        self.bound_ = state.bounds[-1]
        self.n_iter_ = len(state.bounds)
        self.converged_ = state.converged

    def _log_density(
        self, bags: Bags, device: str | None, mixtures: tuple[ClusterPosterior, ...]
    ) -> Floats:
        out = np.empty((bags.n_instances, len(mixtures)))
        for rows, X in _numbered_rows(bags):
            Z = _whitened(X, self._prior, device)
            out[rows] = constrained.log_predictive(Z, mixtures, self._prior)
        return out

    def assign(self, bags: BagsLike) -> Ints:
        """Cluster of each instance within its predicted class, shape (n_instances,).

        Entry n is a column of ``weights_[c]``, ``means_[c]``, where c is the instance's
        predicted class, ``predict_instances(bags)[n]``.
        """
        _, _, clusters, _ = self._nearest_clusters(bags)
        return clusters

    def nearest_instances(self, bags: BagsLike, n_instances: int = 8) -> list[ClusterExamples]:
        """Examples of every cluster: the instances nearest to it, each of another bag.

        Clusters that no instance of these bags is assigned to are left out. Classes come in the
        order of ``classes_``, and within a class the heaviest cluster first.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays or 3-d array
        n_instances : int, default=8
            Most examples of a cluster.
        """
        checked, labels, clusters, distances = self._nearest_clusters(bags)
        examples = []
        for c, name in enumerate(self.classes_):
            for k in np.argsort(-self.weights_[c], kind="stable"):
                members = np.flatnonzero((labels == c) & (clusters == k))
                members = members[np.argsort(distances[members], kind="stable")]
                _, first = np.unique(checked.bag_index[members], return_index=True)
                rows = members[np.sort(first)][:n_instances]
                if len(rows):
                    weight = float(self.weights_[c, k])
                    examples.append(ClusterExamples(name, int(k), weight, rows))
        return examples

    def _nearest_clusters(self, bags: BagsLike) -> tuple[Bags, Ints, Ints, Floats]:
        """Class and cluster of each instance, and its squared distance from the cluster."""
        checked, odds = self._odds(bags)
        labels = np.argmax(odds, axis=1)
        clusters = np.empty(len(labels), dtype=np.int64)
        distances = np.empty(len(labels))
        for rows, X in _numbered_rows(checked):
            Z = dirichlet.whiten(X, self._prior)
            for c, mixture in enumerate(self._mixtures):
                its = np.flatnonzero(labels[rows] == c)
                log_rho = dirichlet.log_joint(Z[its], mixture, self._prior)
                nearest = np.argmax(log_rho, axis=1)
                squared = dirichlet.mahalanobis(Z[its], mixture) * mixture.nu
                clusters[rows.start + its] = nearest
                distances[rows.start + its] = squared[np.arange(len(its)), nearest]
        return checked, labels, clusters, distances

    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """Log-odds of each instance against the background, calibrated where asked for.

        Shape (n_instances,); with more than two classes (n_instances, n_classes), whose first
        column is 0.

        Returns
        -------
        scores : array of shape (n_instances,), or (n_instances, n_classes)
        """
        return self._decision(self._odds(bags)[1])

    def decision_function(self, bags: BagsLike) -> Floats:
        """Log-odds of each bag by the bag rule; shaped like those of the instances.

        Returns
        -------
        scores : array of shape (n_bags,), or (n_bags, n_classes)
        """
        return self._decision(self._bag_odds(bags))

    def _decision(self, odds: Floats) -> Floats:
        return squeezed(odds[:, 1:]) if odds.shape[1] == 2 else odds

    def predict_proba_instances(self, bags: BagsLike) -> Floats:
        """Class probabilities of each instance, shape (n_instances, n_classes).

        Returns
        -------
        p : array of shape (n_instances, n_classes)
        """
        return softmax(self._odds(bags)[1], axis=1)

    def predict_proba(self, bags: BagsLike) -> Floats:
        """Class probabilities of each bag, shape (n_bags, n_classes).

        Returns
        -------
        p : array of shape (n_bags, n_classes)
        """
        return softmax(self._bag_odds(bags), axis=1)

    def _odds(self, bags: BagsLike) -> tuple[Bags, Floats]:
        """Log-odds of every class against the background, [N, C]; the first column is 0."""
        checked = self._validate_predict(bags)
        log_density = self._log_density(checked, self._device(bags), self._mixtures)
        odds = self._against_background(log_density)
        for c, platt in enumerate(self.platt_ or (), start=1):
            odds[:, c] = platt.log_odds(odds[:, c])
        # Densities are never zero, so that infinite odds come from damaged numbers too.
        return checked, check_scores(np.where(np.isinf(odds), np.nan, odds), checked)

    def _against_background(self, log_density: Floats) -> Floats:
        """Log-odds by the densities and the classes' shares, [N, C]."""
        log_posterior = log_density + self.class_log_prior_
        return log_posterior - log_posterior[:, :1]

    def _bag_odds(self, bags: BagsLike) -> Floats:
        """Log-odds that a bag holds an instance of each class, [B, C]; the first column is 0."""
        checked, odds = self._odds(bags)
        out = np.zeros((len(checked), odds.shape[1]))
        for c in range(1, odds.shape[1]):
            out[:, c] = rules.bag_log_odds(odds[:, c], checked.offsets, self.bag_rule)
        return out


class PieceOfBags(NamedTuple):
    """Neighbouring bags, which a driver keeps in one place."""

    X: Rows  # [n, D] read where they are worked on; whitened already where it is a tensor
    offsets: Ints  # [b + 1]
    y: Ints  # [b]
    known: Ints  # [n]
    labels: Ints | None = None  # [n] as inferred last

    def block(self, prior: Prior, device: str | None) -> BagBlock:
        """What inference sees of it, on the device where the work is done."""
        Z = self.X if is_tensor(self.X) else _whitened(self.X[:], prior, device)
        return BagBlock(Z, self.offsets, self.y, self.known)


def _on_piece(
    piece: PieceOfBags,
    function: Callable[[BagBlock], tuple[Ints, ClassSums]],
    prior: Prior,
    device: str | None,
) -> tuple[PieceOfBags, ClassSums]:
    """The piece with the new labels of its instances, and the sums over them."""
    labels, sums = function(piece.block(prior, device))
    return piece._replace(labels=labels), sums


def _labels_of(piece: PieceOfBags) -> tuple[PieceOfBags, Any]:
    return piece, piece.labels


def _pieces(
    bags: Bags, y: Ints, known: Ints, prior: Prior, device: str | None
) -> list[PieceOfBags]:
    """The bags cut into pieces; on a device their rows are whitened once, where they fit."""
    X, offsets = read_plainly(bags).instances, bags.offsets  # a memory map travels as its name
    # Half of what is free on a device is left to the work.
    held = device is not None and 8 * X.shape[0] * X.shape[1] <= free_memory(device) // 2
    pieces = []
    for first, last in whole_segments(offsets, _ROWS if device is None else _DEVICE_ROWS):
        run = slice(int(offsets[first]), int(offsets[last]))
        rows = X.select_rows(run) if hasattr(X, "select_rows") else X[run]
        own = offsets[first : last + 1] - offsets[first]
        rows = _whitened(rows[:], prior, device) if held else rows
        pieces.append(PieceOfBags(rows, own, y[first:last], known[run]))
    return pieces


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


def _report(show: Callable[[int, str], None], before: int, n_iter: int, bound: float) -> None:
    show(before + n_iter, f"bound {bound:.6g}")
