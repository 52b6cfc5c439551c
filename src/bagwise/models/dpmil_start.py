"""Where DPMIL starts from: its prior, and clusters of each class by k-means."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.cluster import KMeans

from bagwise.core import dirichlet
from bagwise.core.arrays import Floats, Ints, Reals
from bagwise.core.dirichlet import Prior

# k-means only has to start the mixtures: it sees at most this many instances of a class.
_START_ROWS = 20_000


def checked_shape(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """A parameter of the prior as an array of the shape it must have."""
    value = np.asarray(value, dtype=np.float64)
    if value.shape != shape or not np.isfinite(value).all():
        raise ValueError(
            f"{name} must be finite, of shape {shape} for these bags; got shape {value.shape}."
        )
    return value


def prior_root(covariance: Floats, floor: float) -> Floats:
    """Cholesky factor, or square root, of the prior covariance with its floor."""
    if covariance.ndim == 1:
        if np.any(covariance + floor <= 0):
            j = int(np.flatnonzero(covariance + floor <= 0)[0])
            raise ValueError(
                f"feature {j} has prior variance {covariance[j]:g}; it must be positive. Use a "
                "covariance_floor > 0 where features are constant."
            )
        return np.sqrt(covariance + floor).astype(np.float64, copy=False)
    try:
        root = np.linalg.cholesky(covariance + floor * np.eye(len(covariance)))
        return root.astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        raise ValueError(
            "the prior covariance must be positive definite, and it is not: features are "
            f"constant or linearly dependent. Use a covariance_floor > 0; it adds {floor:g} now."
        ) from None


def start_sizes(n_components: int, n_init: int) -> list[int]:
    """Clusters per class of each start: from all components down to one."""
    if n_init == 1:
        return [n_components]
    return [round(size) for size in np.geomspace(n_components, 1, n_init)]


def cluster(
    instances: Reals, rows: Ints, n_clusters: int, prior: Prior, rng: np.random.RandomState
) -> Ints:
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


def _n_distinct(Z: Floats, place: Floats, enough: int) -> int:
    """Number of distinct rows, or ``enough`` where there are surely that many."""
    steps = np.round((place - place.min()) / (np.ptp(place) or 1.0) * 1e6)
    # Rounding can tear equal rows into two steps, never into more.
    if len(np.unique(steps)) > 2 * enough:
        return enough
    return len(np.unique(Z, axis=0))
