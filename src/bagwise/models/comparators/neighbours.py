"""Neighbours that vote: Citation-kNN, CkNN-ROI, and the voting frameworks VF and VFr.

Citation-kNN is Wang and Zucker, "Solving the multiple-instance problem: a lazy learning approach"
(2000); CkNN-ROI, which also names the responsible instance, Zhou, Xue and Jiang, "Locating regions
of interest in CBIR with multi-instance learning techniques" (2005).

VF and VFr follow Liu, Wu and Zhou, "Key instance detection in multi-instance learning" (2012): a
graph in which an instance is linked to its *citers*, those to which it is one of the k nearest. VF
counts the votes of the citers; VFr lets them travel over the graph by a random walk with restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils._param_validation import Interval

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, Reals
from bagwise.core.blocks import BLOCK_ENTRIES
from bagwise.core.distances import bag_distances
from bagwise.core.squared import sq_distances
from bagwise.models.calibration.calibrated import BestInstanceClassifier
from bagwise.models.comparators.common import InstanceComparator, PairwiseComparator
from bagwise.models.parameters import AT_LEAST_1, parameter

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Distances that differ by less than this share of an instance's mean squared length are equal.
_UNIT = 1e-9


def smallest_difference(X: Floats) -> float:
    """What squared distances must differ by, in products of any size, to be told apart."""
    return _UNIT * float((X**2).sum(axis=1).mean()) or 1.0


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
        self.unit_ = smallest_difference(bags.instances)

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


def citers(between: Floats, reach: Floats, k: int) -> sp.csr_array:
    """Who votes on each new instance, as rows that sum to one, [A, N].

    Training instance j votes on a new one that lies within ``reach[j]``, the distance of its own
    k-th neighbour. An instance that nobody cites is judged by its k nearest.
    """
    cites = between <= reach[None, :]
    alone = np.flatnonzero(~cites.any(axis=1))
    if len(alone):
        nearest = np.argsort(between[alone], axis=1, kind="stable")[:, :k]
        cites[alone[:, None], nearest] = True
    cited, citer = np.nonzero(cites)
    return _shares(cited, citer, cites.shape)


def _shares(cited: Ints, citer: Ints, shape: tuple[int, ...]) -> sp.csr_array:
    """Links from instances to their citers, as rows that sum to one."""
    links = sp.csr_array((np.ones(len(cited)), (cited, citer)), shape=shape)
    links.sort_indices()
    links.data /= np.repeat(np.diff(links.indptr), np.diff(links.indptr))
    return links


@dataclass(kw_only=True, eq=False, repr=False)
class VotingFramework(InstanceComparator, name="vf"):
    """Votes of the training instances that cite an instance (VF).

    A training instance cites those nearer than its k-th neighbour. It votes -1 when its bag is
    negative. Otherwise it votes with its own standing: the share of its citers in positive bags
    less the share in negative ones. A bag scores as its best instance.

    Parameters
    ----------
    n_neighbors : int, default=5
        k: how many instances each one cites.
    scale, calibrate, calibration, cv : as in `CitationKNN`, default="feature", True, "platt", None

    Attributes
    ----------
    votes_ : array, what each training instance votes
    reach_ : array, squared distance of its k-th neighbour
    instances_ : the training instances, scaled
    threshold_ : float, midway between the classes' mean best votes
    unit_ : as in `CitationKNN`

    See Also
    --------
    VotingWalk, CitationKNN

    References
    ----------
    [LiuWuZhou2012]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> comparators.VotingFramework().fit(bags[::2], y[::2]).predict_instances(bags).shape
    (476,)
    """

    n_neighbors: int = parameter(5, AT_LEAST_1)

    def _standing(self, labels: Floats, links: csr_array) -> Floats:
        """What each training instance votes, in [-1, 1], from its bag's label -1 or 1, [N]."""
        return np.where(labels > 0, links @ labels, -1.0)

    def _learn(self, bags: Bags, y: Ints) -> None:
        self.instances_ = bags.instances
        self.unit_ = smallest_difference(bags.instances)
        links = self._link(bags.instances)
        labels = segments.spread((2.0 * y - 1).astype(np.float64), bags.offsets)
        self.votes_ = self._standing(labels, links)
        # Votes are mostly negative, so zero is no threshold; midway between the classes is.
        scores = segments.max(links @ self.votes_, bags.offsets)
        self.threshold_ = float((scores[y == 1].mean() + scores[y == 0].mean()) / 2)

    def _link(self, X: Floats) -> sp.csr_array:
        """Set the reach of the training instances; who votes on each of them, but not itself.

        A row of distances gives whom its instance cites, so that one pass is enough for both.
        """
        numbers = np.arange(len(X))
        k = min(self.n_neighbors, len(X) - 1)
        self.reach_ = np.empty(len(X))
        parts = []
        for rows, d in self._distances(X):
            d[numbers[: len(d)], numbers[rows]] = np.inf
            self.reach_[rows] = np.partition(d, k - 1, axis=1)[:, k - 1]
            # A row cites the columns within the distance of its k-th neighbour.
            who, whom = np.nonzero(d <= self.reach_[rows, None])
            parts.append((numbers[rows][who], whom, d[who, whom]))
        citer, cited, gap = (np.concatenate(part) for part in zip(*parts, strict=True))
        # An instance that nobody cites is judged by its k nearest: those first in what it cites.
        alone = np.flatnonzero(np.isin(citer, np.setdiff1d(numbers, cited)))
        alone = alone[np.lexsort((cited[alone], gap[alone], citer[alone]))]
        place = np.arange(len(alone)) - np.searchsorted(citer[alone], citer[alone])
        nearest = alone[place < k]
        return _shares(
            np.concatenate([cited, citer[nearest]]),
            np.concatenate([citer, cited[nearest]]),
            (len(X), len(X)),
        )

    def _distances(self, X: Floats) -> Iterator[tuple[slice, Floats]]:
        """Blocks of rows and their squared distances to the training instances.

        Equal distances must tie, though products of other sizes round them differently: they are
        multiples of a small unit.
        """
        step = max(1, BLOCK_ENTRIES // len(self.instances_))
        for start in range(0, len(X), step):
            rows = slice(start, min(start + step, len(X)))
            d = sq_distances(X[rows], self.instances_) / self.unit_
            yield rows, np.rint(d, out=d) * self.unit_

    def _instance_scores(self, X: Floats) -> Floats:
        blocks = (citers(d, self.reach_, self.n_neighbors) for _, d in self._distances(X))
        return np.concatenate([links @ self.votes_ for links in blocks]) - self.threshold_


@dataclass(kw_only=True, eq=False, repr=False)
class VotingWalk(VotingFramework, name="vfr"):
    """The voting framework with votes that travel over the graph of citers (VFr).

    The standing of an instance of a positive bag is the limit of a random walk with restart:
    each step takes the standing of its citers, with probability ``1 - restart``, or its bag's
    label. Instances of negative bags stay at -1.

    Parameters
    ----------
    restart : float, default=0.3
        Probability of returning to the bag's label.
    n_neighbors : int, default=5
    scale : {"feature", "global", None}, default="feature"
    calibrate, calibration, cv : as in `CitationKNN`, default=True, "platt", None
        As in `VotingFramework`, as are the attributes.

    See Also
    --------
    VotingFramework

    References
    ----------
    [LiuWuZhou2012]_

    Examples
    --------
    >>> from bagwise import comparators, datasets
    >>> bags, y = datasets.load_musk1(return_X_y=True)
    >>> comparators.VotingWalk(restart=0.5).fit(bags[::2], y[::2]).predict_instances(bags).shape
    (476,)
    """

    restart: float = parameter(0.3, Interval(Real, 0, 1, closed="right"))

    def _standing(self, labels: Floats, links: csr_array) -> Floats:
        """The fixed point of ``s = (1 - restart) W s + restart`` with W the rows of links."""
        standing = labels.copy()
        while True:
            walked = (1 - self.restart) * (links @ standing) + self.restart
            new = np.where(labels > 0, walked, -1.0)
            if np.abs(new - standing).max() < 1e-6:
                return new
            standing = new
