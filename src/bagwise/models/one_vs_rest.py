"""Any two-class model on bags of several classes: one fitted model per class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, BagsLike, InstanceLabels, check_bags
from bagwise.core.arrays import Column, Floats
from bagwise.models.base import InstanceClassifier
from bagwise.models.classes import (
    ClassRule,
    has_several_classes,
    read_class_labels,
    read_instance_classes,
)


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
    class_rule_ : ClassRule or None
        How the models' answers become class probabilities; None with two classes.

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
    class_rule_: ClassRule | None

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
        instance_labels : array of shape (n_instances,), optional
            Class of each instance, or missing: None, NaN, -1.
        background : class, optional
            The class of bags in which nothing is found. It gets no model: it is what remains.
        **params
            Passed on to the ``fit`` of every model.
        """
        if not has_several_classes(y):
            return self._fit_two(bags, y, instance_labels, background, params)
        if not isinstance(bags, Bags):
            bags = check_bags(bags, accept_sparse=True, allow_nd=True, estimator="OneVsRest")
        labels = read_class_labels(y, bags, background, "OneVsRest")
        known = read_instance_classes(instance_labels, bags, labels)
        self.estimators_ = []
        for f in range(labels.present.shape[1]):
            given = {} if (known[:, f] < 0).all() else {"instance_labels": known[:, f]}
            member = clone(self.estimator)
            self.estimators_.append(member.fit(bags, labels.present[:, f], **given, **params))
        self.classes_, self.class_rule_ = labels.classes, labels.rule
        self.n_features_in_ = self.estimators_[0].n_features_in_
        return self

    def _fit_two(
        self,
        bags: BagsLike,
        y: ArrayLike,
        instance_labels: InstanceLabels,
        background: object,
        params: dict[str, object],
    ) -> OneVsRest:
        given = {} if instance_labels is None else {"instance_labels": instance_labels}
        member = clone(self.estimator).fit(bags, y, **given, **params)
        check_two_class_background(background, member.classes_)
        self.estimators_, self.classes_, self.class_rule_ = [member], member.classes_, None
        self.n_features_in_ = member.n_features_in_
        return self

    def _columns(self, method: str, bags: BagsLike) -> Floats:
        """What every model says, [n, F]; one column per finding."""
        check_is_fitted(self)
        return np.column_stack([getattr(model, method)(bags) for model in self.estimators_])

    def _scores(self, bags: BagsLike, twin: str) -> Floats:
        """Log-odds of the classes, or raw scores where the models have no probabilities."""
        check_is_fitted(self)
        if self.class_rule_ is None:
            return getattr(self.estimators_[0], f"decision_function{twin}")(bags)
        scores = self._columns(f"decision_function{twin}", bags)
        rule = self.class_rule_
        if not hasattr(self.estimators_[0], f"predict_proba{twin}"):
            # A score above 0 speaks for the class, so that the background stands at 0.
            out = np.zeros((len(scores), rule.n_classes))
            out[:, rule.findings] = scores
            return out
        combine = rule.of_instances if twin else rule.of_bags
        return combine(scores, np.zeros_like(scores)).log_odds

    def decision_function(self, bags: BagsLike) -> Floats:
        """Log-odds of each class for each bag; scores where the models give no probabilities.

        Shape (n_bags, n_classes), or (n_bags,) with two classes.
        """
        return self._scores(bags, "")

    @available_if(_members_have("predict_proba"))
    def predict_proba(self, bags: BagsLike) -> Floats:
        """Probability of each class for each bag, shape (n_bags, n_classes)."""
        return self._proba(bags, "")

    @available_if(_members_have("decision_function_instances"))
    def decision_function_instances(self, bags: BagsLike) -> Floats:
        """As `decision_function`, for each instance."""
        return self._scores(bags, "_instances")

    @available_if(_members_have("predict_proba_instances"))
    def predict_proba_instances(self, bags: BagsLike) -> Floats:
        """Probability of each class for each instance, shape (n_instances, n_classes).

        Without a background class a row may sum to less than one: an instance may be of no class.
        """
        return self._proba(bags, "_instances")

    @available_if(_members_have("decision_function_instances"))
    def predict_instances(self, bags: BagsLike) -> Column:
        """Class of each instance, aligned with ``bags.instances``."""
        return self._classes_of(self.decision_function_instances(bags))

    def _proba(self, bags: BagsLike, twin: str) -> Floats:
        from scipy.special import expit

        check_is_fitted(self)
        if self.class_rule_ is None:
            return getattr(self.estimators_[0], f"predict_proba{twin}")(bags)
        return np.asarray(expit(self._scores(bags, twin)))


def check_two_class_background(background: object, classes: Column) -> None:
    """With two classes the smaller one is the background, and may be named so."""
    if background is not None and background != classes[0]:
        raise ValueError(
            f"with two classes the larger one, {classes[1].item()!r}, is what is looked for, so "
            f"that background={background!r} cannot be; rename the classes."
        )


def for_labels(model: Any, y: ArrayLike) -> Any:
    """The model itself where it can learn ``y``, else one such model per class.

    Examples
    --------
    >>> from bagwise import MISVM, VGPMIL
    >>> from bagwise.models.one_vs_rest import for_labels
    >>> for_labels(MISVM(), [0, 1]), for_labels(VGPMIL(), [0, 1, 2]), for_labels(MISVM(), [0, 1, 2])
    (MISVM(), VGPMIL(), OneVsRest(estimator=MISVM()))
    """
    if not has_several_classes(y):
        return model
    from sklearn.utils import get_tags

    tags = get_tags(model).classifier_tags
    if tags is None:  # a foreign model that does not say; its own fit will
        return model
    able = tags.multi_label if np.ndim(y) == 2 else tags.multi_class
    return model if able else OneVsRest(model)
