"""Trees: BLRT, MIForest, and scikit-learn's forests and boosting on the statistics of bags.

BLRT is Komárek and Somol, "Multiple instance learning with bag-level randomized trees" (2018).
MIForest is Leistner, Saffari and Bischof, "MIForests: multiple-instance learning with randomized
trees" (2010): labels of instances in positive bags are drawn from the forest's own confidence, at a
temperature that falls; every positive bag keeps a positive instance.

scikit-learn grows the trees, and they are kept as plain arrays: a model file holds no compiled tree
objects, so that loading one cannot run past its arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, RandomState, Reals
from bagwise.models.comparators.common import Comparator, InstanceComparator
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, SCALES, parameter
from bagwise.models.pipeline import BagStatistics
from bagwise.models.scaling import Scale

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


class Trees(NamedTuple):
    """Nodes of several binary trees in a row; a leaf is its own child."""

    roots: Ints  # [T]
    left: Ints  # [nodes] where x <= threshold
    right: Ints  # [nodes]
    feature: Ints  # [nodes]
    threshold: Floats  # [nodes]
    value: Floats  # [nodes]

    def leaves(self, X: Reals) -> Floats:
        """Value of the leaf that each row reaches in each tree, [N, T]."""
        from bagwise.core.baseline_passes import walk

        x = np.asfortranarray(X, dtype=np.float32)  # as scikit-learn compares
        values = np.empty((len(x), len(self.roots)))
        walk(x, self.roots, self.left, self.right, self.feature, self.threshold, self.value, values)
        return values


def keep(estimators: Sequence[BaseEstimator]) -> Trees:
    """The trees of a fitted ensemble; values are the second class's share, or the prediction."""
    trees = [estimator.tree_ for estimator in estimators]
    roots = np.concatenate([[0], np.cumsum([tree.node_count for tree in trees])])
    left, right, value = [], [], []
    for tree, root in zip(trees, roots, strict=False):
        nodes = np.arange(tree.node_count)  # a leaf is its own child
        is_leaf = tree.children_left < 0
        left.append(root + np.where(is_leaf, nodes, tree.children_left))
        right.append(root + np.where(is_leaf, nodes, tree.children_right))
        out = tree.value[:, 0, :]
        value.append(out[:, 0] if out.shape[1] == 1 else out[:, 1] / out.sum(axis=1))
    return Trees(
        roots[:-1].astype(np.int64),
        np.concatenate(left).astype(np.int64),
        np.concatenate(right).astype(np.int64),
        # A leaf compares any feature, and both ways lead back to it.
        np.concatenate([np.maximum(tree.feature, 0) for tree in trees]).astype(np.int64),
        np.concatenate([tree.threshold for tree in trees]),
        np.concatenate(value),
    )


def forest_log_odds(trees: Trees, X: Reals) -> Floats:
    """Log-odds of the mean share over the trees, [N].

    A forest may be unanimous; its log-odds are held within those of one vote in a thousand.
    """
    p = np.clip(trees.leaves(X).mean(axis=1), 1e-3, 1 - 1e-3)
    odds: Floats = np.log(p) - np.log1p(-p)
    return odds


@dataclass(kw_only=True, eq=False, repr=False)
class _OnStatistics(Comparator):
    """Trees on the statistics of bags."""

    n_estimators: int = parameter(200, AT_LEAST_1)
    statistics: Sequence[str | float] = parameter(("mean", "max", "min", "std"), tuple, list)
    scale: Scale = parameter(None, *SCALES)
    random_state: RandomState = parameter(None, "random_state")

    def _new_trees(self, seed: int) -> Any:
        """An unfitted ensemble of scikit-learn."""
        raise AttributeError(f"{type(self).__name__} has no trees")

    def _learn(self, bags: Bags, y: Ints) -> None:
        self.statistics_ = BagStatistics(tuple(self.statistics)).fit(bags)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        ensemble = self._new_trees(seed).fit(self.statistics_.transform(bags), y)
        self.trees_ = keep(list(np.ravel(ensemble.estimators_)))


class StatisticsForest(_OnStatistics, name="forest"):
    """Random forest on mean, minimum, maximum and deviation of each feature over the bag.

    A strong baseline without instances: where it is as good as a model of instances, these
    need not be found.

    Parameters
    ----------
    n_estimators : int, default=200
        Trees.
    statistics : sequence, default=("mean", "max", "min", "std")
        As in `BagStatistics`.
    random_state : int, RandomState or None, default=None
    scale : as in `CitationKNN`, default=None
        Trees need no scaling.
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", None

    Attributes
    ----------
    trees_ : the trees, as arrays
    statistics_ : BagStatistics

    See Also
    --------
    StatisticsBoosting, bagwise.BagStatistics

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> model = comparators.StatisticsForest(n_estimators=50, cv=3, random_state=0)
    >>> model.fit(bags, y).predict(bags).shape
    (92,)
    """

    def _new_trees(self, seed: int) -> RandomForestClassifier:
        return RandomForestClassifier(self.n_estimators, random_state=seed)

    def _raw_scores(self, bags: Bags) -> Floats:
        return forest_log_odds(self.trees_, self.statistics_.transform(bags))


@dataclass(kw_only=True, eq=False, repr=False)
class StatisticsBoosting(_OnStatistics, name="boosting"):
    """Gradient boosting on mean, minimum, maximum and deviation of each feature over the bag.

    Parameters
    ----------
    n_estimators : int, default=200
        Trees.
    learning_rate : float, default=0.1
    max_depth : int, default=3
        Of each tree.
    statistics : as in `StatisticsForest`, default=("mean", "max", "min", "std")
    random_state : int, RandomState or None, default=None
        Of the features that each split may choose from, and of the bags each tree sees.
    scale : as in `CitationKNN`, default=None
        Trees need no scaling.
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", None

    Attributes
    ----------
    intercept_ : float, log-odds of the classes
    trees_, statistics_ : as in `StatisticsForest`

    See Also
    --------
    StatisticsForest, bagwise.BagStatistics

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> model = comparators.StatisticsBoosting(n_estimators=50, cv=3, random_state=0).fit(bags, y)
    >>> model.predict_proba(bags).shape
    (92, 2)
    """

    learning_rate: float = parameter(0.1, Interval(Real, 0, 1, closed="right"))
    max_depth: int = parameter(3, AT_LEAST_1)

    def _new_trees(self, seed: int) -> GradientBoostingClassifier:
        return GradientBoostingClassifier(
            n_estimators=self.n_estimators,
            learning_rate=self.learning_rate,
            max_depth=self.max_depth,
            subsample=0.7,
            max_features="sqrt",
            random_state=seed,
        )

    def _learn(self, bags: Bags, y: Ints) -> None:
        super()._learn(bags, y)
        # Boosting starts from the log-odds of the classes.
        share = float(y.mean())
        self.intercept_ = float(np.log(share / (1 - share)))

    def _raw_scores(self, bags: Bags) -> Floats:
        total: Floats = self.trees_.leaves(self.statistics_.transform(bags)).sum(axis=1)
        return self.intercept_ + self.learning_rate * total


def shares_above(X: Floats, offsets: Ints, thresholds: Floats) -> Floats:
    """Share of each bag's instances above each feature's thresholds [T, D], shape (B, T * D)."""
    return np.hstack([segments.mean((row < X).astype(np.float64), offsets) for row in thresholds])


@dataclass(kw_only=True, eq=False, repr=False)
class BLRT(Comparator, name="blrt"):
    """Extremely randomised trees on "which share of the bag lies above this value?".

    A split has a feature, a value and a share. Values are drawn uniformly between the smallest
    and the largest of each feature, shares by the trees; the paper draws the values anew in each
    node, here they are drawn once for the forest.

    Parameters
    ----------
    n_estimators : int, default=200
        Trees.
    n_thresholds : int, default=16
        Values drawn per feature.
    random_state : int, RandomState or None, default=None
    scale : as in `CitationKNN`, default=None
        Trees need no scaling.
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", None

    Attributes
    ----------
    thresholds_ : array of shape (n_thresholds, n_features)
    trees_ : the extremely randomised trees, as arrays

    See Also
    --------
    StatisticsForest, MIForest

    References
    ----------
    [Komarek2018]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> comparators.BLRT(n_estimators=50, cv=3, random_state=0).fit(bags, y).predict(bags).shape
    (92,)
    """

    n_estimators: int = parameter(200, AT_LEAST_1)
    n_thresholds: int = parameter(16, AT_LEAST_1)
    scale: Scale = parameter(None, *SCALES)
    random_state: RandomState = parameter(None, "random_state")

    def _learn(self, bags: Bags, y: Ints) -> None:
        rng = check_random_state(self.random_state)
        # A split of the paper is "share of the bag with x_d > v exceeds r": v is drawn here, and
        # r by the trees, whose features are the shares.
        low, high = bags.instances.min(axis=0), bags.instances.max(axis=0)
        draws = rng.uniform(size=(self.n_thresholds, bags.n_features))
        self.thresholds_ = low + draws * (high - low)
        seed = int(rng.randint(2**31 - 1))
        forest = ExtraTreesClassifier(self.n_estimators, random_state=seed)
        shares = shares_above(bags.instances, bags.offsets, self.thresholds_)
        self.trees_ = keep(forest.fit(shares, y).estimators_)

    def _raw_scores(self, bags: Bags) -> Floats:
        shares = shares_above(bags.instances, bags.offsets, self.thresholds_)
        return forest_log_odds(self.trees_, shares)


def draw_labels(
    scores: Floats, offsets: Ints, y: Ints, temperature: float, rng: np.random.RandomState
) -> Ints:
    """Labels of instances: 0 in negative bags; in positive ones drawn, and the best is 1, [N].

    An instance is positive with probability ``sigmoid(log-odds / temperature)``.
    """
    # At a high temperature labels are even odds, at a low one the forest's own answer.
    drawn = rng.uniform(size=len(scores)) < expit(scores / temperature)
    labels = np.where(segments.spread(y, offsets) == 1, drawn, False).astype(np.int64)
    # Every positive bag keeps a positive instance.
    labels[segments.argmax(scores, offsets)[y == 1]] = 1
    return labels


@dataclass(kw_only=True, eq=False, repr=False)
class MIForest(InstanceComparator, name="mi-forest"):
    """Random forest on instances, with labels inferred by deterministic annealing.

    The first trees take all instances of positive bags as positive. Then labels are drawn from
    what the forest believes, flat at a high temperature and firm at a low one, and a new forest
    is grown on them. A bag scores as its best instance.

    Parameters
    ----------
    n_estimators : int, default=50
        Trees of each forest.
    n_steps : int, default=5
        Forests after the first.
    first_temperature, last_temperature : float, default=1.0, 0.2
        The temperature falls geometrically from one to the other.
    min_samples_leaf : int, default=2
        Instances that a leaf needs; with one, a tree only repeats the labels it was grown on.
    random_state : int, RandomState or None, default=None
    scale : as in `CitationKNN`, default=None
        Trees need no scaling.
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", None

    Attributes
    ----------
    trees_ : the last forest, as arrays
    labels_ : array, the labels it was grown on

    See Also
    --------
    MILBoost

    References
    ----------
    [Leistner2010]_

    Notes
    -----
    The trees are extremely randomised ones, which are quicker to grow than the paper's.

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> model = comparators.MIForest(n_estimators=20, cv=3, random_state=0).fit(bags, y)
    >>> len(model.labels_)
    476
    """

    n_estimators: int = parameter(50, AT_LEAST_1)
    n_steps: int = parameter(5, Interval(Integral, 0, None, closed="left"))
    first_temperature: float = parameter(1.0, POSITIVE)
    last_temperature: float = parameter(0.2, POSITIVE)
    min_samples_leaf: int = parameter(2, AT_LEAST_1)
    scale: Scale = parameter(None, *SCALES)
    random_state: RandomState = parameter(None, "random_state")

    def _learn(self, bags: Bags, y: Ints) -> None:
        rng = check_random_state(self.random_state)
        X, offsets = bags.instances, bags.offsets
        # Bags have equal weights, so that a large one does not outvote the others.
        weights = 1 / segments.spread(bags.sizes.astype(np.float64), offsets)
        # Trees compare float32 and read one column at a time.
        columns = np.asfortranarray(X, dtype=np.float32)
        self.labels_ = segments.spread(y, offsets)
        cooling = np.geomspace(self.first_temperature, self.last_temperature, self.n_steps)
        for temperature in [None, *cooling]:  # the first forest believes all inherited labels
            if temperature is not None:
                scores = self._instance_scores(X)
                self.labels_ = draw_labels(scores, offsets, y, float(temperature), rng)
            forest = ExtraTreesClassifier(
                self.n_estimators,
                min_samples_leaf=self.min_samples_leaf,
                random_state=int(rng.randint(2**31 - 1)),
            )
            forest.fit(columns, self.labels_, sample_weight=weights)
            self.trees_ = keep(forest.estimators_)

    def _instance_scores(self, X: Floats) -> Floats:
        return forest_log_odds(self.trees_, X)
