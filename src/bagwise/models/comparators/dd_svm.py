"""DD-SVM: bags described by their distances to several concepts of high diverse density.

Chen and Wang, "Image categorization by learning and reasoning with regions" (2004).
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, RandomState
from bagwise.models.comparators.common import Comparator
from bagwise.models.comparators.diverse_density import (
    Concept,
    draw_starts,
    first_scale,
    scaled_distances,
)
from bagwise.models.comparators.em_dd import em
from bagwise.models.scaling import Scale

if TYPE_CHECKING:
    from bagwise.models.base import Constraints
    from bagwise.models.calibrated import CV


def select_prototypes(concepts: list[Concept]) -> list[Concept]:
    """Concepts better than midway between the best and the worst, none twice."""
    losses = np.array([c.loss for c in concepts])
    good = [c for c in concepts if c.loss <= (losses.min() + losses.max()) / 2]
    kept: list[Concept] = []
    for concept in sorted(good, key=lambda c: c.loss):
        if all(not _same(concept, other) for other in kept):
            kept.append(concept)
    return kept


def _same(a: Concept, b: Concept) -> bool:
    """Whether two searches ended at one place, to a hundredth of its extent."""
    gap = np.abs(a.point * a.scales - b.point * b.scales).max()
    return bool(gap < 0.01 * max(1.0, float(np.abs(a.point * a.scales).max())))


class DDSVM(Comparator):
    """SVM on the distances of a bag to learned instance prototypes.

    Searches for high diverse density end in different local maxima; the good ones are kept as
    prototypes, for the positive class and, with labels exchanged, for the negative one. A bag's
    features are its smallest scaled distances to each. The searches are those of `EMDD`; the
    paper's are plain diverse density from every instance.

    Parameters
    ----------
    n_starts : int
        Searches per class.
    max_iter : int
        Most turns of a search.
    C, gamma
        Of the RBF machine on standardised distances; see scikit-learn's SVC.
    scale : {"feature", "global", None}
    random_state : int, RandomState or None
        Draws the starts.
    probability, calibration, cv
        As in `CitationKNN`.

    Attributes
    ----------
    points_, scales_ : arrays of shape (n_prototypes, n_features)
    distance_scaler_ : StandardScaler of the distances
    svc_ : SVC
    classes_ : the two bag classes

    Examples
    --------
    >>> from bagwise.comparators import DDSVM
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> DDSVM(n_starts=5, cv=3, random_state=0).fit(bags, y).predict_proba(bags).shape
    (40, 2)
    """

    # Another draw of starting points gives other features.
    _level_drifts = True
    _parameter_constraints: ClassVar[Constraints] = {
        "n_starts": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "C": [Interval(Real, 0, None, closed="neither")],
        "gamma": [StrOptions({"scale", "auto"}), Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
        **Comparator._common_constraints,
    }

    def __init__(
        self,
        n_starts: int = 20,
        max_iter: int = 10,
        *,
        C: float = 1.0,
        gamma: float | str = "scale",
        scale: Scale = "feature",
        probability: bool = True,
        calibration: str = "platt",
        cv: CV = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_starts = n_starts
        self.max_iter = max_iter
        self.C = C
        self.gamma = gamma
        self.scale = scale
        self.probability = probability
        self.calibration = calibration
        self.cv = cv
        self.random_state = random_state

    def _learn(self, bags: Bags, y: Ints) -> None:
        rng = check_random_state(self.random_state)
        scale = first_scale(bags)
        prototypes: list[Concept] = []
        for labels in (y, 1 - y):
            starts = draw_starts(bags, labels, self.n_starts, rng)
            ends = [em(bags, labels, int(s), scale, self.max_iter)[0] for s in starts]
            prototypes += select_prototypes(ends)
        self.points_ = np.array([p.point for p in prototypes])
        self.scales_ = np.array([p.scales for p in prototypes])
        Z = self._distances(bags)
        self.distance_scaler_ = StandardScaler().fit(Z)
        self.svc_ = SVC(C=self.C, gamma=self.gamma).fit(self.distance_scaler_.transform(Z), y)

    def _distances(self, bags: Bags) -> Floats:
        """Smallest scaled distance of each bag to each prototype, [B, P]."""
        return np.column_stack(
            [
                np.sqrt(segments.min(scaled_distances(bags.instances, h, s), bags.offsets))
                for h, s in zip(self.points_, self.scales_, strict=True)
            ]
        )

    def _raw_scores(self, bags: Bags) -> Floats:
        return self.svc_.decision_function(self.distance_scaler_.transform(self._distances(bags)))
