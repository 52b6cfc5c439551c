"""DD-SVM: bags described by their distances to several concepts of high diverse density.

Chen and Wang, "Image categorization by learning and reasoning with regions" (2004).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

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
from bagwise.models.parameters import AT_LEAST_1, POSITIVE, parameter


def select_prototypes(concepts: list[Concept]) -> list[Concept]:
    """Concepts better than midway between the best and the worst, none twice."""
    # The paper's threshold on diverse density: the mean of its largest and smallest value.
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


@dataclass(kw_only=True, eq=False, repr=False)
class DDSVM(Comparator, name="dd-svm"):
    """SVM on the distances of a bag to learned instance prototypes.

    Searches for high diverse density end in different local maxima; the good ones are kept as
    prototypes, for the positive class and, with labels exchanged, for the negative one. A bag's
    features are its smallest scaled distances to each. The searches are those of `EMDD`; the
    paper's are plain diverse density from every instance.

    Parameters
    ----------
    n_starts : int, default=20
        Searches per class.
    max_iter : int, default=10
        Most turns of a search.
    C, gamma : float, default=1.0, "scale"
        Of the RBF SVM on standardised distances; see scikit-learn's SVC.
    random_state : int, RandomState or None, default=None
        Draws the starts.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    points_, scales_ : arrays of shape (n_prototypes, n_features)
    distance_scaler_ : StandardScaler of the distances
    svc_ : SVC

    See Also
    --------
    DiverseDensity, EMDD

    References
    ----------
    [Chen2004]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> comparators.DDSVM(n_starts=5, cv=3, random_state=0).fit(bags, y).predict_proba(bags).shape
    (40, 2)
    """

    # Another draw of starting points gives other features.
    _level_drifts = True
    n_starts: int = parameter(20, AT_LEAST_1)
    max_iter: int = parameter(10, AT_LEAST_1)
    C: float = parameter(1.0, POSITIVE)
    gamma: float | str = parameter("scale", StrOptions({"scale", "auto"}), POSITIVE)
    random_state: RandomState = parameter(None, "random_state")

    def _learn(self, bags: Bags, y: Ints) -> None:
        rng = check_random_state(self.random_state)
        scale = first_scale(bags)
        prototypes: list[Concept] = []
        for labels in (y, 1 - y):  # concepts of the positive class, then of the negative one
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
