"""Neighbours at prediction: any model's instance probabilities, smoothed along coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import clone
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, BagsLike, InstanceLabels
from bagwise.core import segments
from bagwise.core.arrays import Floats
from bagwise.models.base import (
    InstanceClassifier,
    Scores,
    two_class_data,
    two_probabilities,
)
from bagwise.models.classes import TWO_CLASSES
from bagwise.models.held_out import fitted_without, folds
from bagwise.models.labels import is_binary, read_labels
from bagwise.models.parameters import AT_LEAST_1, NOT_NEGATIVE, parameter
from bagwise.models.pipeline import positive_proba, read_scores

if TYPE_CHECKING:
    from bagwise.core.coupling import StrengthSearch

# Neighbours an instance asks for by default: those at its sides, in one, two or three dimensions.
_NEIGHBORS = {1: 2, 2: 4, 3: 6}
# Bags of each class that choosing a strength needs: every fold trains on at least two.
LEAST_BAGS = 4


@dataclass(kw_only=True, eq=False, repr=False)
class Coupled(InstanceClassifier):
    """A model whose predictions for an instance depend on its neighbours, too.

    Patches of a slide and slices of a scan have neighbours, and what is looked for rarely ends at
    the border of a patch. Training stays as it is. At prediction the labels of the instances of a
    bag get pair factors ``exp(-J w [y_i != y_j])``: exactly along a chain, by belief propagation in
    a plane or in space. Neighbours move probability about inside a bag and keep its mean; the bag's
    own answer is that of the model.

    How strong the coupling is, is learnt from held-out bags: it is positive where neighbours
    predict each other in positive bags more than in negative ones, and 0 where they do not. With
    strength 0 every answer is bit for bit that of the model.

    Parameters
    ----------
    estimator : estimator or None, default=None
        A model with ``predict_proba_instances``, or a `BagPipeline` that ends in one. Default:
        `AutoVGPMIL`.
    strength : float or "auto", default="auto"
        J. "auto" fits the model once more for each fold and chooses.
    graph : {"auto", "chain", "neighbours"}, default="auto"
        Who is whose neighbour. "auto" takes the chain for an order (``coords`` of one dimension)
        and the nearest neighbours for points. Instances of different ``groups``, such as the slides
        of a patient, are never neighbours.
    n_neighbors : int or None, default=None
        Nearest neighbours that each instance asks for, where the graph is no chain. Default: 4 in
        a plane, 6 in space.
    cv : int, default=3
        Folds that the strength is chosen on.
    random_state : int or None, default=0
        Of the folds.

    Attributes
    ----------
    estimator_ : fitted estimator
    strength_ : float
        J as it is used.
    strength_search_ : StrengthSearch or None
        What every strength gained on held-out bags; None where the strength was given.
    classes_ : array of shape (2,)

    See Also
    --------
    predict_levels, AutoVGPMIL

    Examples
    --------
    >>> from bagwise import Coupled, VGPMIL
    >>> from bagwise.datasets import make_neighbour_bags
    >>> bags, y = make_neighbour_bags(n_bags=20, shape=(30,), random_state=0, return_X_y=True)
    >>> model = Coupled(VGPMIL(n_inducing=20, random_state=0), strength=1.0).fit(bags, y)
    >>> model.predict_proba_instances(bags).shape
    (600, 2)
    """

    estimator: Any = parameter(None, HasMethods(["fit", "predict"]), None, kw_only=False)
    strength: float | Literal["auto"] = parameter("auto", StrOptions({"auto"}), NOT_NEGATIVE)
    graph: str = parameter("auto", StrOptions({"auto", "chain", "neighbours"}))
    n_neighbors: int | None = parameter(None, AT_LEAST_1, None)
    cv: int = parameter(3, Interval(Integral, 2, None, closed="left"))
    random_state: int | None = parameter(0, Integral, None)

    _keeps_rows = True

    def _estimator(self) -> Any:
        if self.estimator is not None:
            return self.estimator
        from bagwise.models.registry import make_model

        return make_model("auto", random_state=self.random_state)

    def fit(self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None) -> Coupled:
        """Fit the model, and choose the strength where it is "auto".

        Parameters
        ----------
        bags : Bags with ``coords``
        y : array of shape (n_bags,)
            Two classes.
        instance_labels : array of shape (n_instances,) or None, default=None
            Class of each instance, or missing: None, NaN, -1. Known labels in at least five
            positive bags decide on the strength.
        """
        self._validate_params()
        for method in ("predict_proba", "predict_proba_instances"):
            if not hasattr(self._estimator(), method):
                raise ValueError(
                    f"Coupled needs a model with {method}; {type(self._estimator()).__name__} has "
                    "none as it is set."
                )
        if not is_binary(y):
            raise ValueError(
                "Coupled knows two classes, and y has more, or is an indicator matrix; wrap it, so "
                "that every class has a strength of its own: OneVsRest(Coupled(...))."
            )
        if self.strength != 0:
            self._coords(bags)
        given = {} if instance_labels is None else {"instance_labels": instance_labels}
        model = clone(self._estimator()).fit(bags, y, **given)
        self.estimator_ = model
        self.classes_ = model.classes_
        self.n_features_in_ = model.n_features_in_
        self.strength_search_: StrengthSearch | None = None
        if self.strength != "auto":
            self.strength_ = float(self.strength)
            return self
        from bagwise.core.coupling import choose_strength

        assert isinstance(bags, Bags)  # `_coords` saw to it
        labels = read_labels(y, bags, self.classes_, TWO_CLASSES, instance_labels)
        rarest = int(np.bincount(labels.codes).min())
        if rarest < LEAST_BAGS:
            raise ValueError(
                f"Coupled chooses its strength on held-out bags and needs at least {LEAST_BAGS} "
                f"of each class; the rarer one has {rarest}. Pass strength=0 or another number."
            )
        data = two_class_data(bags, labels)
        # Every fold trains on at least two bags of each class.
        fold = folds(data.y, min(self.cv, rarest // 2), seed=self.random_state)
        left_out = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in np.unique(fold)]
        held_out = np.empty(bags.n_instances)
        for fitted, _, test in fitted_without(self._estimator(), data, self.classes_, left_out):
            rows, _ = segments.take(bags.offsets, test)
            held_out[rows] = read_scores(fitted, bags[test]).instance
        search = choose_strength(
            held_out, self._graph(bags), bags.offsets, data.y, data.instance_labels
        )
        self.strength_search_, self.strength_ = search, search.strength
        return self

    def _coords(self, bags: BagsLike) -> Floats:
        """Coordinates of the instances, [N] or [N, 2 or 3]."""
        coords = bags.coords if isinstance(bags, Bags) else None
        if coords is None:
            raise ValueError(
                "Coupled needs to know where instances lie: pass Bags(..., coords=...), or "
                "strength=0."
            )
        return np.asarray(coords, dtype=np.float64)

    def _graph(self, bags: Bags) -> Any:
        from bagwise.core.coupling import chain_graph, neighbour_graph

        coords = self._coords(bags)
        points = coords.reshape(len(coords), -1)
        n_axes = points.shape[1]
        stretch = bags.bag_index
        if bags.groups is not None:
            _, codes = np.unique(bags.groups.astype(str), return_inverse=True)
            _, stretch = np.unique(stretch * (codes.max() + 1) + codes, return_inverse=True)
        if self.graph == "chain" and n_axes > 1:
            raise ValueError(
                f"graph='chain' needs an order, one number per instance; coords have {n_axes}."
            )
        if n_axes == 1 and self.graph != "neighbours":
            return chain_graph(points[:, 0], stretch)
        return neighbour_graph(points, stretch, self.n_neighbors or _NEIGHBORS[n_axes])

    def score_bags(self, bags: BagsLike) -> Scores:
        """Log-odds and deviations of bags and of coupled instances, none above its bag.

        Returns
        -------
        scores : tuple of arrays
        """
        from bagwise.core.coupling import couple

        check_is_fitted(self)
        if self.strength_ == 0:
            return read_scores(self.estimator_, bags)
        self._coords(bags)
        scores = read_scores(self.estimator_, bags)
        assert isinstance(bags, Bags)
        coupled = couple(scores.instance, self._graph(bags), self.strength_)
        most = np.maximum(scores.bag, segments.max(scores.instance, bags.offsets))
        coupled = np.minimum(coupled, segments.spread(most, bags.offsets))
        p, q = expit(scores.instance), expit(coupled)
        # A Beta distribution with the new mean and the old concentration.
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.sqrt(q * (1 - q) / (p * (1 - p)))
        std = np.where(p * (1 - p) > 0, scores.instance_std * factor, scores.instance_std)
        return scores._replace(instance=coupled, instance_std=std)

    def decision_function(self, bags: BagsLike) -> Any:
        """Score of each bag, by the model.

        Returns
        -------
        scores : array of shape (n_bags,), or (n_bags, n_classes)
        """
        check_is_fitted(self)
        return self.estimator_.decision_function(bags)

    def predict(self, bags: BagsLike) -> Any:
        """Label of each bag, by the model.

        Returns
        -------
        labels : array of shape (n_bags,), or (n_bags, n_classes)
        """
        check_is_fitted(self)
        return self.estimator_.predict(bags)

    def predict_proba(self, bags: BagsLike, return_std: bool = False, **options: Any) -> Any:
        """Probability of both classes for each bag, by the model.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        return_std : bool, default=False
            Also return the standard deviation of the positive probability, NaN where the model
            gives none.
        **options
            Further options of the model.

        Returns
        -------
        p : array of shape (n_bags, n_classes)
        """
        check_is_fitted(self)
        if not return_std or options:
            more = {"return_std": True} if return_std else {}
            return self.estimator_.predict_proba(bags, **more, **options)
        p, std = positive_proba(self.estimator_, bags)
        return np.column_stack([1 - p, p]), std

    def decision_function_instances(self, bags: BagsLike) -> Any:
        """Log-odds of each instance among its neighbours, aligned with ``bags.instances``.

        Returns
        -------
        scores : array of shape (n_instances,), or (n_instances, n_classes)
        """
        check_is_fitted(self)
        if self.strength_ == 0:
            return self.estimator_.decision_function_instances(bags)
        return self.score_bags(bags).instance

    def predict_instances(self, bags: BagsLike) -> Any:
        """Label of each instance, aligned with ``bags.instances``.

        Returns
        -------
        labels : array of shape (n_instances,), or (n_instances, n_classes)
        """
        check_is_fitted(self)
        if self.strength_ == 0:
            return self.estimator_.predict_instances(bags)
        return super().predict_instances(bags)

    def predict_proba_instances(self, bags: BagsLike, return_std: bool = False) -> Any:
        """Probability of both classes for each instance among its neighbours.

        Parameters
        ----------
        bags : Bags with ``coords``
        return_std : bool, default=False
            Also return the standard deviation of the positive probability: that of a Beta
            distribution with the coupled mean and the concentration that the model gave the
            instance. NaN where the model gives none.

        Returns
        -------
        p : array of shape (n_instances, n_classes)
        """
        check_is_fitted(self)
        if self.strength_ == 0:
            if not return_std:
                return self.estimator_.predict_proba_instances(bags)
            p, std = positive_proba(self.estimator_, bags, "_instances")
            return np.column_stack([1 - p, p]), std
        scores = self.score_bags(bags)
        proba = two_probabilities(scores.instance)
        return (proba, scores.instance_std) if return_std else proba
