"""Any two-class model on bags of several classes: one fitted model per class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, BagsLike, InstanceLabels, check_bags
from bagwise.core.arrays import Column, Floats
from bagwise.models.base import InstanceClassifier, squeezed
from bagwise.models.classes import ClassRule
from bagwise.models.labels import is_binary, read_classes, read_labels, warn_of_constant_columns


def _members_have(name: str) -> Callable[[OneVsRest], bool]:
    def check(model: OneVsRest) -> bool:
        fitted = getattr(model, "estimators_", None)
        getattr(model.estimator if fitted is None else fitted[0], name)  # its own error says why
        return True

    return check


class OneVsRest(MetaEstimatorMixin, InstanceClassifier):
    """One two-class model per class, against the bags of all others.

    scikit-learn's ``OneVsRestClassifier`` loses the ``_instances`` methods; this one keeps them.
    With two classes it is the model itself. The VGPMIL family needs no wrapper: its classes share
    the inducing points and the calibration, and fit faster.

    Parameters
    ----------
    estimator : bag classifier
        Cloned for each class; sees 1 for the bags of the class and 0 for the others.

    Attributes
    ----------
    estimators_ : list
        The fitted models, one per class in the order of ``classes_``; none for the background.
    classes_ : array of shape (n_classes,)
    class_rule_ : ClassRule
        How the models' answers become class probabilities.

    See Also
    --------
    VGPMIL, DPMIL

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import MISVM, OneVsRest
    >>> X = np.random.default_rng(0).normal(size=(90, 4, 2))
    >>> y = np.arange(90) % 3
    >>> X[y == 1, 0] += 5
    >>> X[y == 2, 0] -= 5
    >>> model = OneVsRest(MISVM()).fit(X, y, background=0)
    >>> model.predict_instances(X).shape, model.score(X, y) > 0.9
    ((360,), True)
    """

    _multi_class = True
    class_rule_: ClassRule

    def __init__(self, estimator: BaseEstimator | None) -> None:
        self.estimator = estimator

    def fit(
        self,
        bags: BagsLike,
        y: ArrayLike,
        instance_labels: InstanceLabels = None,
        background: object = None,
        **params: object,
    ) -> OneVsRest:
        """Fit a model per class.

        Parameters
        ----------
        bags : Bags, list of 2-d arrays, or 3-d array
        y : array of shape (n_bags,) or (n_bags, n_classes)
            A class per bag, or an indicator matrix, scikit-learn's multilabel format.
        instance_labels : array of shape (n_instances,) or None, default=None
            Class of each instance, or missing: None, NaN, -1.
        background : class or None, default=None
            The class of bags in which nothing is found. It gets no model: it is what remains.
        **params
            Passed on to the ``fit`` of every model.
        """
        if not isinstance(bags, Bags):
            bags = check_bags(bags, accept_sparse=True, allow_nd=True, estimator="OneVsRest")
        classes, rule = read_classes(y, background, "OneVsRest", bags)
        labels = read_labels(y, bags, classes, rule, instance_labels)
        if rule.multilabel:
            warn_of_constant_columns(labels, error=True)
        # Two classes keep their names; of several, each model sees 1 and 0.
        names = np.array([*(classes if rule.binary else (0, 1)), None], dtype=object)
        self.estimators_ = []
        for present, known in zip(labels.present.T, labels.known.T, strict=True):
            given = {} if (known < 0).all() else {"instance_labels": names[known]}
            column = classes[present] if rule.binary else present
            self.estimators_.append(clone(self.estimator).fit(bags, column, **given, **params))
        self.classes_, self.class_rule_ = classes, rule
        self.n_features_in_ = self.estimators_[0].n_features_in_
        return self

    def _scores(self, bags: BagsLike, counterpart: str) -> Floats:
        """Log-odds of the classes, or raw scores where the models have no probabilities."""
        check_is_fitted(self)
        columns = [getattr(m, f"decision_function{counterpart}")(bags) for m in self.estimators_]
        scores, rule = np.column_stack(columns), self.class_rule_  # [n, F]
        if rule.binary:
            return squeezed(scores)
        if not hasattr(self.estimators_[0], f"predict_proba{counterpart}"):
            # A score above 0 is for the class, so that the background stands at 0.
            out = np.zeros((len(scores), rule.n_classes))
            out[:, rule.findings] = scores
            return out
        combine = rule.of_instances if counterpart else rule.of_bags
        return combine(scores, np.zeros_like(scores)).log_odds

    def decision_function(self, bags: BagsLike) -> Floats:
        """Log-odds of each class for each bag; scores where the models give no probabilities.

        Shape (n_bags, n_classes), or (n_bags,) with two classes.

        Returns
        -------
        scores : array of shape (n_bags,), or (n_bags, n_classes)
        """
        return self._scores(bags, "")

    @available_if(_members_have("predict_proba"))
    def predict_proba(self, bags: BagsLike) -> Floats:
        """Probability of each class for each bag, shape (n_bags, n_classes).

        Returns
        -------
        p : array of shape (n_bags, n_classes)
        """
        return self._proba(bags, "")

    @available_if(_members_have("decision_function_instances"))
    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """As `decision_function`, for each instance.

        Returns
        -------
        scores : array of shape (n_instances,), or (n_instances, n_classes)
        """
        return self._scores(bags, "_instances")

    @available_if(_members_have("predict_proba_instances"))
    def predict_proba_instances(self, bags: BagsLike) -> Floats:
        """Probability of each class for each instance, shape (n_instances, n_classes).

        Without a background class a row may sum to less than one: an instance may be of no class.

        Returns
        -------
        p : array of shape (n_instances, n_classes)
        """
        return self._proba(bags, "_instances")

    @available_if(_members_have("decision_function_instances"))
    def predict_instances(self, bags: BagsLike) -> Column:
        """Class of each instance, aligned with ``bags.instances``.

        Returns
        -------
        labels : array of shape (n_instances,), or (n_instances, n_classes)
        """
        return self._classes_of(self.decision_function_instances(bags))

    def _proba(self, bags: BagsLike, counterpart: str) -> Floats:
        check_is_fitted(self)
        if self.class_rule_.binary:  # a model's probability need not be that of its score
            return getattr(self.estimators_[0], f"predict_proba{counterpart}")(bags)
        return np.asarray(expit(self._scores(bags, counterpart)))


def for_labels(model: Any, y: ArrayLike) -> Any:
    """The model itself where it can learn ``y``, else one such model per class.

    Examples
    --------
    >>> from bagwise import MISVM, VGPMIL
    >>> from bagwise.models.one_vs_rest import for_labels
    >>> for_labels(MISVM(), [0, 1]), for_labels(VGPMIL(), [0, 1, 2]), for_labels(MISVM(), [0, 1, 2])
    (MISVM(), VGPMIL(), OneVsRest(estimator=MISVM()))
    """
    if is_binary(y):
        return model
    tags = get_tags(model).classifier_tags
    if tags is None:  # a foreign model that does not say; its own fit will
        return model
    able = tags.multi_label if np.ndim(y) == 2 else tags.multi_class
    return model if able else OneVsRest(model)
