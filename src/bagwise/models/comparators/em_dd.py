"""EM-DD: diverse density by guessing, in turn, which instance is responsible for each bag.

Zhang and Goldman, "EM-DD: an improved multiple-instance learning technique" (2001).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from sklearn.utils import check_random_state

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.models.comparators.common import InstanceComparator
from bagwise.models.comparators.diverse_density import (
    Concept,
    NearestLoss,
    draw_starts,
    first_scale,
    log_odds,
    scaled_distances,
)
from bagwise.models.parameters import AT_LEAST_1, parameter


def most_likely(bags: Bags, point: Floats, scales: Floats) -> Ints:
    """E-step: the row of each bag that is nearest to the concept, [B]."""
    rows: Ints = segments.argmax(-scaled_distances(bags.instances, point, scales), bags.offsets)
    return rows


def em(bags: Bags, y: Ints, start: int, scale: float, max_iter: int) -> tuple[Concept, list[float]]:
    """Alternate from one instance until the likelihood no longer rises; also all losses."""
    D = bags.n_features
    point, scales = bags.instances[start], np.full(D, scale)
    loss = NearestLoss(bags.instances[most_likely(bags, point, scales)], y)
    losses = [loss(np.concatenate([point, scales]))[0]]
    for _ in range(max_iter):
        # M-step: point and scales by L-BFGS, given these instances.
        end = minimize(
            loss,
            np.concatenate([point, scales]),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 30},
        )
        # E-step: the nearest instance of every bag stands for it.
        loss = NearestLoss(bags.instances[most_likely(bags, end.x[:D], end.x[D:])], y)
        value = loss(end.x)[0]
        # Negative bags may come nearer to the moved concept: a step that costs is not taken.
        if value >= losses[-1] * (1 - 1e-6):
            break
        point, scales = end.x[:D], np.abs(end.x[D:])
        losses.append(value)
    return Concept(point, scales, losses[-1]), losses


@dataclass(kw_only=True, eq=False, repr=False)
class EMDD(InstanceComparator, name="em-dd"):
    """Diverse density with one responsible instance per bag, from several starts.

    Given the concept, the instance of a bag nearest to it is held responsible for the label;
    given these instances, point and scales are improved by L-BFGS. A step that would lower the
    likelihood ends the search. Of all starts the best on the training bags is kept.

    Parameters
    ----------
    n_starts : int, default=10
        Instances of positive bags to start from, spread over the bags.
    max_iter : int, default=20
        Most turns of each start.
    random_state : int, RandomState or None, default=None
        Draws the starts.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    n_iter_ : int
        Turns of the best start.
    point_, scales_ : as in `DiverseDensity`
    losses_ : list of float
        Negative log-likelihood after each turn of the best start; it only falls.

    See Also
    --------
    DiverseDensity

    References
    ----------
    [Zhang2001]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> model = comparators.EMDD(cv=3, random_state=0).fit(bags, y)
    >>> model.losses_ == sorted(model.losses_, reverse=True)
    True
    """

    n_starts: int = parameter(10, AT_LEAST_1)
    max_iter: int = parameter(20, AT_LEAST_1)
    random_state: RandomState = parameter(None, "random_state")

    def _learn(self, bags: Bags, y: Ints) -> None:
        starts = draw_starts(bags, y, self.n_starts, check_random_state(self.random_state))
        scale = first_scale(bags)
        ends = [em(bags, y, int(start), scale, self.max_iter) for start in starts]
        best, self.losses_ = min(ends, key=lambda end: end[0].loss)
        self.point_, self.scales_ = best.point, best.scales
        self.n_iter_ = len(self.losses_)

    def _instance_scores(self, X: Floats) -> Floats:
        return log_odds(scaled_distances(X, self.point_, self.scales_))
