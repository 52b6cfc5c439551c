"""Bags embedded by their similarity to single instances: what MILES and MIO share.

Entry k of a bag's features is ``max_j exp(-|x_k - x_bj|² / sigma²)`` over its instances x_bj
(equation 1 of the MIO paper), for every training instance x_k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid, check_cv
from sklearn.utils import compute_class_weight
from sklearn.utils._param_validation import StrOptions

from bagwise.bags import Bags, BagsLike
from bagwise.core import distances, segments
from bagwise.core.arrays import Bools, Column, Floats, Ints, Reals
from bagwise.models.base import InstanceClassifier, TrainingData
from bagwise.models.calibration.calibrated import CalibratedClassifier
from bagwise.models.execution import free_memory
from bagwise.models.held_out import CV
from bagwise.models.parameters import POSITIVE, parameter

if TYPE_CHECKING:
    from bagwise.core.distances import Distance
    from bagwise.models.labels import ClassWeight


class Examples(NamedTuple):
    """Bags to learn from: the given ones, and every labelled instance of a positive bag.

    Under the MIL assumption such an instance is a bag of one. In a negative bag a label adds
    nothing.
    """

    rows: Ints  # [R] row numbers in bags.instances
    offsets: Ints  # [E + 1]
    signs: Floats  # [E] +1.0 or -1.0
    brings_anchors: Bools  # [E] bool: a given bag, whose instances become features

    def __len__(self) -> int:
        return len(self.signs)

    def rows_of(self, e: int) -> Ints:
        """Row numbers of one example."""
        return self.rows[self.offsets[e] : self.offsets[e + 1]]


def make_examples(data: TrainingData) -> Examples:
    """The bags in order, each followed by its labelled instances where it is positive."""
    bags, y, known = data
    n = len(bags)
    labelled = np.flatnonzero((known >= 0) & (segments.spread(y, bags.offsets) == 1))
    if len(labelled) == 0:
        all_rows = np.arange(bags.n_instances)
        return Examples(
            all_rows, bags.offsets, (2.0 * y - 1).astype(np.float64), np.ones(n, dtype=bool)
        )
    # The bags, and bags of one that are sorted behind the bag they come from.
    owner = bags.bag_index[labelled]
    order = np.argsort(np.concatenate([np.arange(n), owner]), kind="stable")
    sizes = np.concatenate([bags.sizes, np.ones(len(labelled), dtype=np.int64)])
    starts = np.concatenate([bags.offsets[:-1], labelled])
    codes = np.concatenate([y, known[labelled]])
    offsets = np.concatenate([[0], np.cumsum(sizes[order])])
    rows = np.arange(offsets[-1]) + np.repeat(starts[order] - offsets[:-1], sizes[order])
    return Examples(rows, offsets, 2.0 * codes[order] - 1, order < n)


@dataclass(kw_only=True, eq=False, repr=False)
class EmbeddedClassifier(CalibratedClassifier, InstanceClassifier):
    """A linear score of a bag's similarities to selected training instances.

    A subclass has the parameters ``sigma``, ``distance`` and ``class_weight``, implements
    ``_learn`` and ``_anchors_and_weights``, and has ``intercept_`` and ``selected_instances_``.
    """

    sigma: float | str = parameter("scale", StrOptions({"scale"}), POSITIVE)
    distance: str | Distance = parameter("sqeuclidean", StrOptions({"sqeuclidean"}), callable)
    class_weight: ClassWeight | None = parameter(None, StrOptions({"balanced"}), dict, None)

    def _learn(self, data: TrainingData, examples: Examples, D: Floats) -> None:
        """Learn from distances of the examples to all instances of the bags, [E, N]."""
        raise AttributeError(f"{type(self).__name__} does not learn from distances")

    def _distances(self, X: Reals, offsets: Ints, anchors: Floats) -> Floats:
        return distances.bag_distances(X, offsets, anchors, self._instance_distance())

    def _training_distances(self, bags: Bags, examples: Examples) -> Floats:
        self._check_memory(len(examples), bags.n_instances)
        X = bags.instances
        rows_are_all = len(examples) == len(bags)
        return self._distances(X if rows_are_all else X[examples.rows], examples.offsets, X)

    def _check_memory(self, n_examples: int, n_instances: int) -> None:
        """Raise an error where distances and similarities, [E, N] each, do not fit memory."""
        needed, free = 2 * 8 * n_examples * n_instances, free_memory()
        if needed > free:
            raise ValueError(
                f"{type(self).__name__} compares {n_examples:,} bags with {n_instances:,} "
                f"instances, which takes {needed / 1e9:.1f} GB of memory; {free / 1e9:.1f} GB are "
                "free. Keep fewer bags or instances, or use MIO with n_passes=1 and "
                "max_instances, or VGPMIL."
            )

    def _instance_distance(self) -> Distance:
        return self.distance if callable(self.distance) else distances.squared_distances

    def _resolve_sigma(self, X: Reals) -> float:
        """Sigma; "scale" makes sigma² half the total variance of the instances."""
        if self.sigma != "scale":
            return float(self.sigma)
        if callable(self.distance):
            raise ValueError(
                "sigma='scale' goes with squared Euclidean distances; give sigma as a number "
                "together with a distance of your own."
            )
        variance = float(np.asarray(X).var(axis=0, dtype=np.float64).sum())
        return float(np.sqrt(0.5 * variance)) or 1.0

    def _costs(self, signs: Floats, y: Ints, classes: Column) -> Floats:
        """C1 and C2 of equation (2) for each example; "balanced" counts bags."""
        if self.class_weight is None:
            return np.ones(len(signs))
        pair = compute_class_weight(self.class_weight, classes=classes, y=classes[y])
        return pair[(signs > 0).astype(int)]

    def _anchors_and_weights(self) -> tuple[Floats, Floats]:
        """Features of the selected instances, and their weights."""
        raise AttributeError(f"{type(self).__name__} selects no instances")

    def _raw_scores(self, bags: Bags) -> Floats:
        anchors, w = self._anchors_and_weights()
        D = self._distances(bags.instances, bags.offsets, anchors)
        return distances.similarity(D, self.sigma_) @ w + self.intercept_

    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """What each instance contributes to its bag's score, through the features it makes.

        The bias is shared by the instances of a bag that make a feature, whose contributions
        add up to the bag's (uncalibrated) score: a positive bag has a positive instance.

        Returns
        -------
        scores : array of shape (n_instances,), or (n_instances, n_classes)
        """
        bags = self._validate_predict(bags)
        anchors, w = self._anchors_and_weights()
        return distances.contributions(
            bags.instances,
            bags.offsets,
            anchors,
            w,
            self.intercept_,
            self.sigma_,
            self._instance_distance(),
        )


class GridScores(NamedTuple):
    """Accuracy of every setting of a grid on held-out bags."""

    best_params: dict[str, object]
    params: list[dict[str, object]]
    accuracy: Floats  # [n_params, n_splits]


def search_grid(
    model: EmbeddedClassifier,
    bags: BagsLike,
    y: Column,
    grid: Mapping[str, Sequence[object]] | Sequence[Mapping[str, Sequence[object]]],
    cv: CV = 5,
) -> GridScores:
    """Cross-validate a grid of settings on one matrix of distances.

    Every fold and every ``sigma`` is a slice of the same bags x instances matrix, so a setting
    costs one ``exp`` and one solve. Ties go to the setting that comes first.

    Parameters
    ----------
    model : MILES or MIO
        Left as it is; its other parameters are used.
    bags, y : as for ``fit``
    grid : dict of lists, or a list of them
    cv : int or splitter, default=5

    Examples
    --------
    >>> from bagwise import MILES, datasets
    >>> from bagwise.models.embedded import search_grid
    >>> bags, y = datasets.make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> scores = search_grid(MILES(), bags, y, {"sigma": [0.5, 2.0], "alpha": [0.5]})
    >>> sorted(scores.best_params), scores.accuracy.shape
    (['alpha', 'sigma'], (2, 5))
    """
    checked = clone(model)
    bags, y, _ = checked._validate_fit(bags, y)
    checked._check_memory(len(bags), bags.n_instances)
    D = checked._distances(bags.instances, bags.offsets, bags.instances)  # [B, N]
    folds = list(check_cv(cv, y, classifier=True).split(y, y))
    params = list(ParameterGrid(grid))
    accuracy = np.empty((len(params), len(folds)))
    for s, (train, test) in enumerate(folds):
        # A fold embeds its bags by the instances of its own training bags only.
        rows, _ = segments.take(bags.offsets, train)
        D_train, D_test = D[np.ix_(train, rows)], D[np.ix_(test, rows)]
        for p, setting in enumerate(params):
            fitted = clone(model).set_params(**setting, calibrate=False)
            data = fitted._validate_fit(bags[train], checked.classes_[y[train]])
            fitted.sigma_ = fitted._resolve_sigma(data.bags.instances)
            fitted._learn(data, make_examples(data), D_train)
            z = distances.similarity(D_test[:, fitted.selected_instances_], fitted.sigma_)
            scores = z @ fitted._anchors_and_weights()[1] + fitted.intercept_
            accuracy[p, s] = np.mean((scores > 0) == y[test])
    best = params[int(np.argmax(accuracy.mean(axis=1)))]
    return GridScores(dict(best), params, accuracy)
