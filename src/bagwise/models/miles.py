"""MILES: bags embedded by all training instances, a few of which are selected.

Chen, Bi and Wang, "MILES: Multiple-instance learning via embedded instance selection" (2006),
in the notation of Li, Kwok and Lu (2010), whose equation numbers are cited.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from sklearn.utils._param_validation import StrOptions

from bagwise.core import distances, l1_svm
from bagwise.core.arrays import Floats
from bagwise.models.base import TrainingData
from bagwise.models.embedded import EmbeddedClassifier, Examples, make_examples
from bagwise.models.parameters import POSITIVE, parameter
from bagwise.models.scaling import ScalesFeatures

# Relative size below which a weight of the solver counts as 0.
_ZERO = 1e-9


@dataclass(kw_only=True, eq=False, repr=False)
class MILES(ScalesFeatures, EmbeddedClassifier):
    """Multiple-instance learning by embedded instance selection.

    A bag is described by its similarity to every training instance (1), and a 1-norm support
    vector machine (2) on these features keeps a few. It needs no assumption about how many
    instances make a bag positive, and it can use instances that are evidence *against* a class.

    Parameters
    ----------
    sigma : float or "scale", default="scale"
        Width of the similarity ``exp(-d² / sigma²)``. "scale": sigma² is half the total
        variance of the training instances.
    alpha : float, default=0.45
        Weight of the 1-norm; larger keeps fewer instances.
    class_weight : dict, "balanced" or None, default=None
        C1 and C2: cost of an error on a bag, by class. None is 1 for both.
    solver : {"highs", "liblinear"}, default="highs"
        The linear program of (2), exactly (large ones by an interior point method that ends in a
        vertex); or squared hinge losses by coordinate descent, which penalises the bias too.
    distance : {"sqeuclidean"} or callable, default="sqeuclidean"
        A callable maps rows [n, D] and anchors [K, D] to distances [n, K] >= 0, used in place
        of d².
    scale : {"feature", "global", None}, default="feature"
        Standardise each feature, or divide all by one number; learned from the training bags.
    calibrate : bool, default=True
        Give ``predict_proba``, calibrated on bags held out by an inner cross-validation.
    calibration, cv : as in `MISVM`, default="platt", None

    Attributes
    ----------
    coef_ : sparse array of shape (1, n_instances)
        Weight of every training instance.
    intercept_ : float
    selected_instances_ : array of int
        Rows of the training instances with a weight.
    anchors_ : array of shape (n_selected, n_features)
        Their features: all that prediction needs.
    sigma_ : float
    classes_ : the two bag classes

    See Also
    --------
    MIO

    References
    ----------
    [Chen2006]_

    Notes
    -----
    Memory is n_bags x n_instances, the time of the linear program n_bags² x n_instances: what
    would not fit memory, or would take a core more than an hour, is an error before the fit. A
    search over ``sigma`` or ``alpha`` shares one matrix of distances:
    ``bagwise.models.embedded.search_grid``. A labelled instance of a positive bag is learned from
    as a bag of one.

    Examples
    --------
    >>> from bagwise import MILES
    >>> from bagwise.datasets import make_two_concept_bags
    >>> bags, y = make_two_concept_bags(100, random_state=0, return_X_y=True)
    >>> model = MILES(sigma=2.0, alpha=0.5).fit(bags, y)
    >>> len(model.selected_instances_) < bags.n_instances // 4
    True
    >>> model.score(bags, y) > 0.9
    True
    """

    alpha: float = parameter(0.45, POSITIVE)
    solver: str = parameter("highs", StrOptions({"highs", "liblinear"}))

    def _fit(self, data: TrainingData) -> None:
        self.sigma_ = self._resolve_sigma(data.bags.instances)
        examples = make_examples(data)
        if self.solver == "highs":
            l1_svm.check_size(len(examples), data.bags.n_instances)
        self._learn(data, examples, self._training_distances(data.bags, examples))

    def _learn(self, data: TrainingData, examples: Examples, D: Floats) -> None:
        Z = distances.similarity(D, self.sigma_)  # [E, N]
        solve = l1_svm.solve_lp if self.solver == "highs" else l1_svm.solve_liblinear
        costs = self._costs(examples.signs, data.y, self.classes_)
        w, b = solve(Z, examples.signs, self.alpha, costs)  # equation (2)
        w = np.where(np.abs(w) > _ZERO * np.abs(w).max(initial=0), w, 0.0)
        # Prediction needs the instances with a weight only.
        self.coef_ = sp.csr_array(w[None, :])
        self.intercept_ = b
        self.selected_instances_ = np.flatnonzero(w)
        self.anchors_ = np.asarray(data.bags.instances[self.selected_instances_], dtype=np.float64)

    def _anchors_and_weights(self) -> tuple[Floats, Floats]:
        return self.anchors_, self.coef_.data
