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
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import softmax
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from bagwise.bags import Bags
from bagwise.core import constrained, dirichlet, rules, segments
from bagwise.core.blocks import whole_segments
from bagwise.core.constrained import Block, State
from bagwise.core.dirichlet import Prior, Statistics
from bagwise.files import read_plainly
from bagwise.models.base import InstanceClassifier, TrainingData
from bagwise.models.drivers import DRIVERS, Driver, Serial, Threads, make_driver

# Instances worked on at a time; a bag is never split.
_ROWS = 8192
# k-means only has to start the mixtures: it sees at most this many instances of a class.
_START_ROWS = 20_000


class DPMIL(InstanceClassifier):
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
    bag_rule : {"noisy-or", "max"}
        How the instances' probabilities become that of their bag.
    max_iter : int
        Most iterations.
    tol : float
        Stop when the bound's relative change is below this.
    n_init : int
        Number of starts; the one with the highest bound is kept. The first takes every
        instance for its bag's class and ``n_components`` k-means clusters per class. Further
        starts take fewer clusters, the last a single one, and every second start takes only one
        instance per positive bag for positive: the one least like the negative bags.
    n_jobs : int, optional
        Threads over blocks of bags.
    driver : {"serial", "threads", "dask"} or driver object, optional
        Where the work over instances runs. Default: the active Dask client where there is one,
        else threads if ``n_jobs`` asks for them. The result is the same.
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
    instance_labels_ : array of shape (n_instances,)
        The class inferred for each training instance.
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
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "concentration": [Interval(Real, 0, None, closed="neither")],
        "covariance_type": [StrOptions({"full", "diag"})],
        "covariance_floor": [Interval(Real, 0, None, closed="left")],
        "mean_precision_prior": [Interval(Real, 0, None, closed="neither")],
        "degrees_of_freedom_prior": [None, Interval(Real, 0, None, closed="neither")],
        "mean_prior": [None, "array-like"],
        "covariance_prior": [None, "array-like", Interval(Real, 0, None, closed="neither")],
        "bag_rule": [StrOptions({"noisy-or", "max"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "n_jobs": [None, Integral],
        "driver": [None, StrOptions(set(DRIVERS)), HasMethods(["map", "sweep"])],
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
        mean_prior: Any = None,
        covariance_prior: Any = None,
        bag_rule: str = "noisy-or",
        max_iter: int = 100,
        tol: float = 1e-6,
        n_init: int = 1,
        n_jobs: int | None = None,
        driver: Any = None,
        random_state: Any = None,
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
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.n_jobs = n_jobs
        self.driver = driver
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, bags: Any, y: Any, instance_labels: Any = None) -> DPMIL:
        """Infer the mixtures and the labels of the training instances.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays or 3-d array
        y : array of shape (n_bags,)
        instance_labels : array of shape (n_instances,), optional
            Known labels stay as they are; missing ones (None, NaN, -1) are inferred.
        """
        data = self._validate_fit(bags, y, instance_labels)
        _check_known(data, self.classes_)
        prior = self._make_prior(data.bags)
        rng = check_random_state(self.random_state)
        run = _runner(make_driver(self.n_jobs, self.driver), data, prior)
        blocks = _block_source(data, prior)
        labels = [constrained.start_labels(data.y, data.bags.offsets, data.instance_labels)]
        if self.n_init > 1:
            labels.append(constrained.witness_labels(blocks, prior))
        best: State | None = None
        with _progress(self.verbose, self.n_init * self.max_iter) as report:
            for i, n_clusters in enumerate(_start_sizes(self.n_components, self.n_init)):
                clusters = self._clusters(data, labels[i % 2], n_clusters, prior, rng)
                state = constrained.infer(
                    blocks,
                    self._start(blocks(), labels[i % 2], clusters, prior),
                    prior,
                    max_iter=self.max_iter,
                    tol=self.tol,
                    report=report,
                    run=run,
                )
                if best is None or state.bounds[-1] > best.bounds[-1]:
                    best = state
        assert best is not None
        self._store(best, prior)
        return self

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
            mean = _checked_shape("mean_prior", self.mean_prior, (D,))
        if self.covariance_prior is not None:
            shape = covariance.shape
            given = self.covariance_prior
            if isinstance(given, Real):
                given = float(given) * (np.ones(D) if diagonal else np.eye(D))
            covariance = _checked_shape("covariance_prior", given, shape)
        nu0 = self.degrees_of_freedom_prior
        least = 0 if diagonal else D - 1
        if nu0 is None:
            nu0 = 2.0 if diagonal else D + 1.0
        elif nu0 <= least:
            raise ValueError(
                f"degrees_of_freedom_prior must be larger than {least}, the number of features "
                f"less one; got {nu0}."
            )
        root = _prior_root(covariance, self.covariance_floor * variance)
        return Prior(mean, root, float(self.mean_precision_prior), float(nu0), self.concentration)

    def _clusters(
        self, data: TrainingData, labels: Any, n_clusters: int, prior: Prior, rng: Any
    ) -> Any:
        """Cluster of each instance within its class by k-means, the largest being 0. [N]."""
        clusters = np.empty(len(labels), dtype=np.int64)
        for c in range(len(self.classes_)):
            rows = np.flatnonzero(labels == c)
            clusters[rows] = _cluster(data.bags.instances, rows, n_clusters, prior, rng)
        return clusters

    def _start(
        self, blocks: Iterator[Block], labels: Any, clusters: Any, prior: Prior
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

    def log_density_instances(self, bags: Any) -> Any:
        """Log predictive density of each instance under each class, (n_instances, n_classes)."""
        return self._log_density(self._validate_predict(bags))

    def _log_density(self, bags: Bags) -> Any:
        out = np.empty((bags.n_instances, len(self.classes_)))
        for rows, X in _numbered_rows(bags):
            Z = dirichlet.whiten(X, self._prior)
            for c, mixture in enumerate(self._mixtures):
                out[rows, c] = dirichlet.log_predictive(Z, mixture, self._prior)
        return out

    def assign(self, bags: Any) -> Any:
        """Cluster of each instance within its predicted class, shape (n_instances,).

        Entry n is a column of ``weights_[c]``, ``means_[c]``, where c is the instance's
        predicted class, ``predict_instances(bags)[n]``.
        """
        bags = self._validate_predict(bags)
        labels = np.argmax(self._odds(bags), axis=1)
        out = np.empty(bags.n_instances, dtype=np.int64)
        for rows, X in _numbered_rows(bags):
            Z = dirichlet.whiten(X, self._prior)
            for c, mixture in enumerate(self._mixtures):
                its = np.flatnonzero(labels[rows] == c)
                log_rho = dirichlet.log_joint(Z[its], mixture, self._prior)
                out[rows.start + its] = np.argmax(log_rho, axis=1)
        return out

    def decision_function_instances(self, bags: Any) -> Any:
        """Log-odds of each instance against the background, plus the log prior odds.

        Shape (n_instances,); with more than two classes (n_instances, n_classes), whose first
        column is 0.
        """
        odds = self._odds(self._validate_predict(bags))
        return odds[:, 1] if len(self.classes_) == 2 else odds

    def decision_function(self, bags: Any) -> Any:
        """Log-odds of each bag by the bag rule; shaped like the instances' twin."""
        bags = self._validate_predict(bags)
        odds = self._bag_odds(bags)
        return odds[:, 1] if len(self.classes_) == 2 else odds

    def predict_proba_instances(self, bags: Any) -> Any:
        """Class probabilities of each instance, shape (n_instances, n_classes)."""
        return softmax(self._odds(self._validate_predict(bags)), axis=1)

    def predict_proba(self, bags: Any) -> Any:
        """Class probabilities of each bag, shape (n_bags, n_classes)."""
        return softmax(self._bag_odds(self._validate_predict(bags)), axis=1)

    def predict_instances(self, bags: Any) -> Any:
        """Label of each instance, aligned with ``bags.instances``."""
        odds = self._odds(self._validate_predict(bags))
        return self.classes_[np.argmax(odds, axis=1)]

    def predict(self, bags: Any) -> Any:
        """Label of each bag, shape (n_bags,)."""
        odds = self._bag_odds(self._validate_predict(bags))
        return self.classes_[np.argmax(odds, axis=1)]

    def _odds(self, bags: Bags) -> Any:
        """Log-odds of every class against the background, [N, C]; the first column is 0."""
        log_posterior = self._log_density(bags) + self.class_log_prior_
        return log_posterior - log_posterior[:, :1]

    def _bag_odds(self, bags: Bags) -> Any:
        """Log-odds that a bag holds an instance of each class, [B, C]; the first column is 0."""
        odds = self._odds(bags)
        out = np.zeros((len(bags), odds.shape[1]))
        for c in range(1, odds.shape[1]):
            out[:, c] = rules.bag_log_odds(odds[:, c], bags.offsets, self.bag_rule)
        return out


def _checked_shape(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    value = np.asarray(value, dtype=np.float64)
    if value.shape != shape or not np.isfinite(value).all():
        raise ValueError(
            f"{name} must be finite, of shape {shape} for these bags; got shape {value.shape}."
        )
    return value


def _prior_root(covariance: Any, floor: float) -> Any:
    """Cholesky factor, or square root, of the prior covariance with its floor."""
    if covariance.ndim == 1:
        if np.any(covariance + floor <= 0):
            j = int(np.flatnonzero(covariance + floor <= 0)[0])
            raise ValueError(
                f"feature {j} has prior variance {covariance[j]:g}; it must be positive. Use a "
                "covariance_floor > 0 where features are constant."
            )
        return np.sqrt(covariance + floor)
    try:
        return np.linalg.cholesky(covariance + floor * np.eye(len(covariance)))
    except np.linalg.LinAlgError:
        raise ValueError(
            "the prior covariance must be positive definite, and it is not: features are "
            f"constant or linearly dependent. Use a covariance_floor > 0; it adds {floor:g} now."
        ) from None


def _check_known(data: TrainingData, classes: Any) -> None:
    """With several classes, an instance is of its bag's class or background."""
    known, bags = data.instance_labels, data.bags
    if len(classes) == 2 or np.all(known < 0):
        return  # two classes were checked with the labels
    names = [repr(str(name)) for name in classes]
    own = segments.spread(data.y, bags.offsets)
    clash = np.flatnonzero((known > 0) & (known != own))
    if len(clash):
        b = int(bags.bag_index[clash[0]])
        raise ValueError(
            f"{bags.describe_bag(b)} is labelled {names[data.y[b]]} but has an instance "
            f"labelled {names[known[clash[0]]]}; its instances are of its own class or of "
            f"{names[0]}, the background."
        )
    open_to_own = segments.max((known != 0).astype(np.float64), bags.offsets) > 0
    clash = np.flatnonzero(~open_to_own & (data.y > 0))
    if len(clash):
        b = int(clash[0])
        raise ValueError(
            f"{bags.describe_bag(b)} is labelled {names[data.y[b]]} but every instance in it "
            f"is labelled {names[0]}; it needs at least one instance of its class."
        )


def _start_sizes(n_components: int, n_init: int) -> list[int]:
    """Clusters per class of each start: from all components down to one."""
    if n_init == 1:
        return [n_components]
    return [round(size) for size in np.geomspace(n_components, 1, n_init)]


def _cluster(instances: Any, rows: Any, n_clusters: int, prior: Prior, rng: Any) -> Any:
    """Cluster number of the given rows by k-means, 0 being the largest cluster.

    The rows are put into an order of their own, by a random projection, so that neither the
    order of the bags nor that of the instances changes what k-means sees.
    """
    seed = rng.randint(np.iinfo(np.int32).max)
    own = np.random.RandomState(seed)
    direction = own.standard_normal(len(prior.mean))
    chunks = [rows[i : i + _START_ROWS] for i in range(0, len(rows), _START_ROWS)]
    Z = dirichlet.whiten(np.asarray(instances[chunks[0]]), prior)
    place = [Z @ direction]
    place += [dirichlet.whiten(np.asarray(instances[c]), prior) @ direction for c in chunks[1:]]
    order = np.argsort(np.concatenate(place))
    if len(chunks) > 1:
        order = order[np.sort(own.choice(len(order), _START_ROWS, replace=False))]
        Z = dirichlet.whiten(np.asarray(instances[rows[order]]), prior)
    else:
        Z = Z[order]
    n_found = min(n_clusters, _n_distinct(Z, Z @ direction, n_clusters))
    kmeans = KMeans(n_found, n_init=1, random_state=seed).fit(Z)
    found = np.empty(len(rows), dtype=np.int64)
    found[order] = kmeans.labels_
    if len(chunks) > 1:
        whitened = (dirichlet.whiten(np.asarray(instances[c]), prior) for c in chunks)
        found = np.concatenate([kmeans.predict(Z) for Z in whitened])
    rank = np.empty(n_clusters, dtype=np.int64)
    rank[np.argsort(-np.bincount(found, minlength=n_clusters), kind="stable")] = np.arange(
        n_clusters
    )
    return rank[found]


def _n_distinct(Z: Any, place: Any, enough: int) -> int:
    """Number of distinct rows, or ``enough`` where there are surely that many."""
    steps = np.round((place - place.min()) / (np.ptp(place) or 1.0) * 1e6)
    # Rounding can tear equal rows into two steps, never into more.
    if len(np.unique(steps)) > 2 * enough:
        return enough
    return len(np.unique(Z, axis=0))


def _numbered_rows(bags: Bags) -> Iterator[tuple[slice, Any]]:
    for start in range(0, bags.n_instances, _ROWS):
        rows = slice(start, min(start + _ROWS, bags.n_instances))
        yield rows, np.asarray(bags.instances[rows])


def _rows(bags: Bags) -> Iterator[Any]:
    for _, X in _numbered_rows(bags):
        yield X


def _blocks(data: TrainingData, prior: Prior) -> Iterator[Block]:
    offsets = data.bags.offsets
    for first, last in whole_segments(offsets, _ROWS):
        rows = slice(int(offsets[first]), int(offsets[last]))
        yield Block(
            dirichlet.whiten(np.asarray(data.bags.instances[rows]), prior),
            offsets[first : last + 1] - offsets[first],
            data.y[first:last],
            data.instance_labels[rows],
        )


def _block_source(data: TrainingData, prior: Prior) -> Callable[[], Iterator[Block]]:
    """A fresh pass over the data at every call; what fits one block is prepared only once."""
    if data.bags.n_instances > _ROWS:
        return lambda: _blocks(data, prior)
    held = tuple(_blocks(data, prior))
    return lambda: iter(held)


class _Share(NamedTuple):
    """Bags that stay with whoever works on them."""

    data: TrainingData
    prior: Prior


@dataclass(frozen=True)
class _OverShare:
    """A sweep over the blocks of a share; picklable, for clusters."""

    function: Callable[[Block], constrained.Sweep]

    def __call__(self, share: _Share) -> tuple[_Share, constrained.Sweep]:
        return share, constrained.merge(map(self.function, _blocks(*share)))


def _shares(data: TrainingData, prior: Prior, n_shares: int) -> list[_Share]:
    """Neighbouring bags, about as many instances in each share."""
    bags = read_plainly(data.bags)  # a memory map travels as its file's name
    goals = np.arange(1, n_shares) * (bags.n_instances / n_shares)
    edges = np.unique([0, *np.searchsorted(bags.offsets, goals), len(bags)])
    shares = []
    for first, last in itertools.pairwise(edges.tolist()):
        known = data.instance_labels[bags.offsets[first] : bags.offsets[last]]
        shares.append(_Share(TrainingData(bags[first:last], data.y[first:last], known), prior))
    return shares


def _runner(driver: Driver, data: TrainingData, prior: Prior) -> Callable[..., Iterable[Any]]:
    """How `constrained.infer` runs a sweep: over blocks here, or over shares kept elsewhere."""
    if isinstance(driver, (Serial, Threads)):
        return driver.map
    shares: list[Any] = _shares(data, prior, driver.n_parts)

    def run(function: Callable[[Block], constrained.Sweep], _: Iterable[Block]) -> list[Any]:
        nonlocal shares
        found: list[Any] = []
        shares = driver.sweep(_OverShare(function), shares, found.append)
        return found

    return run


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
