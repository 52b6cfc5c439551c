"""CkNN-ROI: Citation-kNN that also names the instance responsible for a bag's label.

Zhou, Xue and Jiang, "Locating regions of interest in CBIR with multi-instance learning
techniques" (2005).
"""

from __future__ import annotations

import numpy as np

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats
from bagwise.models.calibration.calibrated import BestInstanceClassifier
from bagwise.models.comparators.citation_knn import CitationKNN

# Votes come first; among equal votes the nearer side decides.
_TIE_BREAK = 1e-3


class CitationKNNROI(CitationKNN, BestInstanceClassifier, name="cknn-roi"):
    """Citation-kNN for bags, and each instance judged as if it were a bag of one.

    The label of a bag is that of `CitationKNN`. Each of its instances, taken alone, is voted on
    by the training bags in the same way; the one with most positive votes is the key instance
    and carries the score of the bag, the others less by what they lack in votes. Equal votes are
    separated by the nearest positive and the nearest negative bag.

    Parameters and attributes are those of `CitationKNN`. Known instance labels are checked and not
    used: it is bags that vote.

    See Also
    --------
    CitationKNN

    References
    ----------
    [ZhouXueJiang2005]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> model = comparators.CitationKNNROI().fit(bags[::2], y[::2])
    >>> model.decision_function_instances(bags).shape
    (476,)
    """

    def _raw_scores(self, bags: Bags) -> Floats:
        return CitationKNN._raw_scores(self, bags)

    def _raw_instance_scores(self, bags: Bags) -> Floats:
        alone = Bags(bags.instances, np.arange(bags.n_instances + 1))
        distances = self._compare(alone)  # [N, B]
        positive = self.rule_["signs"] > 0
        near, far = distances[:, positive].min(axis=1), distances[:, ~positive].min(axis=1)
        # From -1, at a negative bag, to +1, at a positive one.
        nearer = (far - near) / np.maximum(far + near, self.unit_)
        standing = self._score(self.rule_, distances) + _TIE_BREAK * nearer
        # The best instance gets the score of its bag.
        best = segments.max(standing, bags.offsets)
        return standing + segments.spread(self._raw_scores(bags) - best, bags.offsets)
