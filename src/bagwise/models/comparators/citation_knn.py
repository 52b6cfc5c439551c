"""Citation-kNN: neighbours that a bag cites, and neighbours that cite it.

Wang and Zucker, "Solving the multiple-instance problem: a lazy learning approach" (2000).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, Reals
from bagwise.core.distances import bag_distances
from bagwise.models.comparators.common import PairwiseComparator
from bagwise.models.parameters import AT_LEAST_1, parameter

# Distances that differ by less than this share of an instance's mean squared length are equal.
_UNIT = 1e-9


def hausdorff_distances(a: Bags, b: Bags) -> Floats:
    """Squared minimal Hausdorff distance: that of the two nearest instances, [A, B]."""
    nearest = bag_distances(a.instances, a.offsets, b.instances)  # [A, N_b]
    return segments.min(nearest.T, b.offsets).T


def votes(between: Floats, among: Floats, n_references: int, n_citers: int) -> Floats:
    """How often each training bag votes for each new bag, 0 to 2, [A, B].

    A training bag is a *reference* when it is among the ``n_references`` bags nearest to the new
    one, and a *citer* when the new bag would be among the ``n_citers`` nearest of that training
    bag. ``between`` holds distances of new to training bags [A, B], ``among`` those of training
    bags [B, B].
    """
    B = between.shape[1]
    order = np.argsort(between, axis=1, kind="stable")[:, :n_references]
    # References: the R nearest training bags of each new bag.
    is_reference = np.zeros(between.shape)
    np.put_along_axis(is_reference, order, 1.0, axis=1)
    others = np.sort(np.where(np.eye(B, dtype=bool), np.inf, among), axis=1)
    # Citers: the new bag comes before as many others as are farther, so the C-th nearest decides.
    limit = others[:, min(n_citers, B) - 1]
    return is_reference + (between <= limit[None, :])


@dataclass(kw_only=True, eq=False, repr=False)
class CitationKNN(PairwiseComparator, name="citation-knn"):
    """Nearest neighbours of bags, counted in both directions.

    The label of a bag is that of the majority among the bags nearest to it (references) and
    the bags to which it is near (citers); a tie is negative. The distance of two bags is that
    of their two nearest instances. Nothing is learned, so a fit costs one matrix of distances.

    Parameters
    ----------
    n_references : int, default=2
        R: nearest bags that vote.
    n_citers : int, default=4
        C: a training bag votes too when the new bag ranks among its C nearest.
    scale : {"feature", "global", None}, default="feature"
        How features are scaled before distances are taken. The musk sets are all of one unit,
        and the paper leaves them as they are.
    calibrate : bool, default=True
        Give ``predict_proba``, calibrated on bags held out by an inner cross-validation.
    calibration : {"platt", "isotonic"}, default="platt"
    cv : int, splitter or None, default=None
        The inner cross-validation; None is five folds, ten where a class has fewer than twenty
        bags.

    Attributes
    ----------
    instances_, offsets_ : arrays
        The training bags, scaled.
    unit_ : float
        Distances that differ by less are equal.

    See Also
    --------
    CitationKNNROI

    References
    ----------
    [Wang2000]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> comparators.CitationKNN().fit(bags[::2], y[::2]).predict_proba(bags[1::2]).shape
    (46, 2)
    """

    n_references: int = parameter(2, AT_LEAST_1)
    n_citers: int = parameter(4, AT_LEAST_1)

    def _remember(self, bags: Bags) -> None:
        self.instances_, self.offsets_ = bags.instances, bags.offsets
        self.unit_ = _UNIT * float((bags.instances**2).sum(axis=1).mean()) or 1.0

    def _compare(self, bags: Bags) -> Floats:
        d = hausdorff_distances(bags, Bags(self.instances_, self.offsets_))
        # Equal distances must tie, though products of other sizes round them differently.
        return np.round(d / self.unit_) * self.unit_

    def _learn_from(self, matrix: Floats, y: Ints) -> dict[str, Reals]:
        return {"among": matrix, "signs": 2.0 * y - 1}

    def _score(self, rule: Any, matrix: Floats) -> Floats:
        """Positive less negative votes, as a share of all."""
        # A tie is negative, since a score of 0 is.
        v = votes(matrix, rule["among"], self.n_references, self.n_citers)
        return v @ rule["signs"] / v.sum(axis=1)
