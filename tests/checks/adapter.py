"""Run scikit-learn's own check_estimator on a bag classifier: a row is a bag of one."""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from bagwise import Bags


def rows_as_bags(X):
    return Bags(X, np.arange(X.shape[0] + 1))


def _has(name):
    return lambda self: hasattr(getattr(self, "estimator_", self.estimator), name)


class RowsAsBags(ClassifierMixin, BaseEstimator):
    """Test-only wrapper that speaks rows to scikit-learn and bags to the estimator."""

    def __init__(self, estimator):
        self.estimator = estimator

    def fit(self, X, y):
        from sklearn.base import clone

        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        multilabel = self.estimator.__sklearn_tags__().classifier_tags.multi_label
        matrix = multilabel and np.asarray(y).ndim == 2 and np.asarray(y).shape[1] > 1
        X, y = validate_data(self, X, y, accept_sparse=self._sparse(), multi_output=matrix)
        self.estimator_ = clone(self.estimator).fit(rows_as_bags(X), y)
        self.classes_ = self.estimator_.classes_
        if hasattr(self.estimator_, "n_iter_"):
            self.n_iter_ = self.estimator_.n_iter_
        return self

    def _sparse(self):
        return "csr" if self.estimator.__sklearn_tags__().input_tags.sparse else False

    def _rows(self, X):
        check_is_fitted(self)
        return rows_as_bags(validate_data(self, X, accept_sparse=self._sparse(), reset=False))

    def predict(self, X):
        bags = self._rows(X)
        return self.estimator_.predict(bags)

    @available_if(_has("decision_function"))
    def decision_function(self, X):
        bags = self._rows(X)
        return self.estimator_.decision_function(bags)

    @available_if(_has("predict_proba"))
    def predict_proba(self, X):
        bags = self._rows(X)
        return self.estimator_.predict_proba(bags)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inner = self.estimator.__sklearn_tags__()
        tags.classifier_tags = inner.classifier_tags
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.non_deterministic = inner.non_deterministic
        return tags


def sklearn_checks(*estimators, expected_failed_checks=None):
    """Decorator: parametrise a test(estimator, check) with scikit-learn's checks."""
    wrapped = [RowsAsBags(estimator) for estimator in estimators]
    reasons = expected_failed_checks or {}
    return parametrize_with_checks(wrapped, expected_failed_checks=lambda _: reasons)
