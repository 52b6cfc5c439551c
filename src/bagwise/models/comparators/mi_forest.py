"""MIForest: a random forest whose instance labels are annealed.

Leistner, Saffari and Bischof, "MIForests: multiple-instance learning with randomized trees"
(2010). Labels of instances in positive bags are drawn from the forest's own confidence, at a
temperature that falls; every positive bag keeps a positive instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import numpy as np
from scipy.special import expit
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.models.comparators.common import InstanceComparator
from bagwise.models.comparators.trees import forest_log_odds, keep
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, SCALES, parameter
from bagwise.models.scaling import Scale


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
