"""The estimator contract: what every bag classifier validates and promises.

scikit-learn's contract plus one rule: the name of a bag-level method + ``_instances`` is its
instance-level counterpart. A subclass implements ``fit``, ``decision_function`` and, where it can
rank instances, ``decision_function_instances``; both are signed so that > 0 means positive.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import (
    Bags,
    BagsLike,
    InstanceLabels,
    check_bags,
    check_feature_names,
)
from bagwise.core.arrays import Codes, Column, Floats, Ints, as_array
from bagwise.models.classes import TWO_CLASSES, ClassRule
from bagwise.models.feature_checks import remember_feature_names, warn_of_leaks
from bagwise.models.labels import (
    Labels,
    check_column,
    read_classes,
    read_labels,
    warn_of_constant_columns,
)
from bagwise.models.parameters import HasParameters

# What scikit-learn's validation knows of parameters: constraints by name, or "no_validation".
Constraints: TypeAlias = dict[str, list[object] | str]

# Instances whose probabilities are worked out at a time.
_PIECE = 16_384


class Model(Protocol):
    """What evaluation, reports and the command ask of a model before they look for more.

    `BagClassifier`, `BagPipeline` and scikit-learn's searches over them have it. Whether a model
    has probabilities, or methods about instances, is asked for with ``hasattr``.
    """

    @property
    def classes_(self) -> Column:
        """The two classes, the positive one last."""

    @property
    def n_features_in_(self) -> int:
        """Number of features of the training instances."""

    def fit(self, bags: BagsLike, y: ArrayLike, /) -> object:
        """Learn from bags and their labels."""

    def predict(self, bags: BagsLike, /) -> Column:
        """The class of every bag."""

    def predict_proba(self, bags: BagsLike, /) -> Floats:
        """The probability of both classes for every bag; some models lack it."""

    def decision_function(self, bags: BagsLike, /) -> Floats:
        """A score of every bag, above 0 for the positive class."""

    def set_params(self, **params: object) -> Self:
        """Change parameters by name."""

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """The parameters by name."""


class TrainingData(NamedTuple):
    """Validated input of ``fit``."""

    bags: Bags
    y: Ints  # [B] int codes into classes_
    instance_labels: Codes  # [N] int8 codes, -1 where unknown


class BagClassifier(ClassifierMixin, HasParameters):
    """Base of all bag classifiers: validation, labels, and ``predict``."""

    # Sets instance_labels up as scikit-learn metadata.
    __metadata_request__fit: ClassVar[dict[str, Any]] = {"instance_labels": None}
    _parameter_constraints: ClassVar[Constraints] = {}
    _accept_sparse: ClassVar[bool] = False
    _allow_nd: ClassVar[bool] = False
    _multi_class: ClassVar[bool] = False
    _multi_label: ClassVar[bool] = False
    # Whether the first of several classes is the background, whatever is passed to ``fit``.
    _first_is_background: ClassVar[bool] = False
    # Whether the model works on rows where they are: on disk in chunks, tensors on their device.
    # For all others the rows become one NumPy array, so that every kind gives the same numbers.
    _keeps_rows: ClassVar[bool] = False

    def _validate_fit(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None
    ) -> TrainingData:
        """As `_validate_labels`, for models of two classes: their one column."""
        return two_class_data(*self._validate_labels(bags, y, instance_labels))

    def _validate_labels(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels, background: Any = None
    ) -> tuple[Bags, Labels]:
        """Check parameters and data, set ``classes_`` and ``n_features_in_``; the bags prepared."""
        self._validate_params()
        bags, name = self._check_bags(bags), type(self).__name__
        classes, rule = read_classes(y, background, name, bags)
        able = self._multi_label if rule.multilabel else self._multi_class
        if not (rule.binary or able):
            known = "Only binary classification is supported. " if not self._multi_class else ""
            wanted = "one class per bag" if self._multi_class else "exactly two classes"
            kind = "multilabel-indicator" if rule.multilabel else "multiclass"
            raise ValueError(
                f"{known}{name} needs {wanted}; got {len(classes)}: {classes[:5].tolist()}. For "
                f"more, wrap it: OneVsRest({name}()). Unknown label type: {kind}."
            )
        if self._first_is_background and not rule.multilabel:
            rule = rule._replace(background=0)
        labels = read_labels(y, bags, classes, rule, instance_labels)
        if rule.multilabel:
            warn_of_constant_columns(labels)
        # A feature gives the label away if it tells the class, or whether a bag has this one.
        for codes in labels.present.T if rule.multilabel else [labels.codes]:
            warn_of_leaks(bags, codes)
        self.classes_ = classes
        self.n_features_in_ = bags.n_features
        remember_feature_names(self, bags)
        return self._learn_preparation(bags), labels

    def _learn_preparation(self, bags: Bags) -> Bags:
        """Learn what checked bags go through before the model sees them, and apply it."""
        return bags  # nothing, unless a model says so

    def _validate_more(
        self, bags: BagsLike, y: ArrayLike, rule: ClassRule, instance_labels: InstanceLabels
    ) -> tuple[Bags, Labels]:
        """Check bags for a fitted model, whose classes stay."""
        bags = self._check_bags(bags, self.n_features_in_)
        return bags, read_labels(y, bags, self.classes_, rule, instance_labels)

    def _validate_stream(
        self,
        bags: BagsLike,
        y: ArrayLike,
        classes: ArrayLike | None,
        instance_labels: InstanceLabels,
        first: bool,
    ) -> tuple[Column, Bags, Labels]:
        """Check a batch of ``partial_fit``: its classes and the data; sets nothing."""
        self._validate_params()
        bags = self._check_bags(bags, None if first else self.n_features_in_)
        y = check_column(y, bags, type(self).__name__)
        names = np.unique(y if classes is None else classes)
        if not first:
            if classes is not None and not np.array_equal(names, self.classes_):
                raise ValueError(
                    f"classes must stay those of the first call, {self.classes_.tolist()}; "
                    f"got {np.asarray(classes).tolist()}."
                )
            names = self.classes_
        elif len(names) != 2:
            raise ValueError(
                "the first partial_fit needs the two classes of the stream: "
                f"pass classes=[negative, positive]; got {names.tolist()}."
            )
        return names, bags, read_labels(y, bags, names, TWO_CLASSES, instance_labels)

    def _validate_predict(self, bags: BagsLike) -> Bags:
        """Check that the model is fitted and the bags fit it."""
        check_is_fitted(self)
        bags = self._check_bags(bags, n_features=self.n_features_in_)
        check_feature_names(getattr(self, "feature_names_in_", None), bags, type(self).__name__)
        return bags

    def _check_bags(self, bags: BagsLike, n_features: int | None = None) -> Bags:
        checked = check_bags(
            bags,
            n_features=n_features,
            accept_sparse=self._accept_sparse,
            allow_nd=self._allow_nd,
            estimator=type(self).__name__,
        )
        if self._keeps_rows or sp.issparse(checked.instances):
            return checked
        rows = as_array(checked.instances)
        return checked if rows is checked.instances else checked.with_instances(rows)

    def _label_names(self, known: Codes) -> Column:
        """Codes of instance labels as classes again, None where unknown, [N]."""
        return np.array([*self.classes_, None], dtype=object)[known]  # code -1 is the last

    def decision_function(self, bags: BagsLike) -> Any:
        """Score of each bag; > 0 means ``classes_[1]``.

        Returns
        -------
        scores : array of shape (n_bags,), or (n_bags, n_classes)
        """
        raise AttributeError(f"{type(self).__name__} has no decision_function")

    def predict(self, bags: BagsLike) -> Column:
        """Label of each bag, shape (n_bags,), or rows of the indicator matrix it was fitted to.

        Returns
        -------
        labels : array of shape (n_bags,), or (n_bags, n_classes)
        """
        return self._classes_of(self.decision_function(bags))

    def _classes_of(self, scores: Floats) -> Column:
        """The classes of scores of shape (n,) or (n, n_classes)."""
        if scores.ndim == 1:  # the score of the larger of two classes
            return self.classes_[np.asarray(scores > 0, dtype=int)]
        if self.class_rule_.multilabel:
            return (scores > 0).astype(int)
        return self.classes_[np.argmax(scores, axis=1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self._multi_class
        tags.classifier_tags.multi_label = self._multi_label
        tags.input_tags.sparse = self._accept_sparse
        return tags


class InstanceClassifier(BagClassifier):
    """A bag classifier that also ranks the instances."""

    def decision_function_instances(self, bags: BagsLike) -> Any:
        """Score of each instance, aligned with ``bags.instances``; > 0 means positive.

        Returns
        -------
        scores : array of shape (n_instances,), or (n_instances, n_classes)
        """
        raise AttributeError(f"{type(self).__name__} has no decision_function_instances")

    def predict_instances(self, bags: BagsLike) -> Column:
        """Label of each instance, aligned with ``bags.instances``.

        Returns
        -------
        labels : array of shape (n_instances,), or (n_instances, n_classes)
        """
        return self._classes_of(self.decision_function_instances(bags))


def check_scores(scores: Floats, bags: Bags) -> Floats:
    """The scores of bags or instances, [B, ...] or [N, ...]; a score that is NaN names its bag."""
    bad = np.flatnonzero(np.isnan(scores).reshape(len(scores), -1).any(axis=1))
    if len(bad):
        bag = int(bad[0] if len(scores) == len(bags) else bags.bag_index[bad[0]])
        raise ValueError(
            f"the prediction for {bags.describe_bag(bag)} is not a number: the numbers of the "
            "model are damaged, or those of the bag are too large."
        )
    return scores


def two_class_data(bags: Bags, labels: Labels) -> TrainingData:
    """The one column of two classes."""
    return TrainingData(bags, labels.codes, labels.known[:, 0])


def squeezed(columns: Floats) -> Floats:
    """Without the axis of classes, the second, where two classes have one column."""
    return columns[:, 0] if columns.shape[1] == 1 else columns


class Scores(NamedTuple):
    """What a model says about bags and instances: log-odds, and deviations of probabilities."""

    bag: Floats  # [B] or [B, C]
    bag_std: Floats  # NaN where the model gives none
    instance: Floats  # [N] or [N, C]
    instance_std: Floats


def class_probabilities(log_odds: Floats) -> Floats:
    """Probabilities [n, C] from log-odds of the positive class [n], or of every class [n, C]."""
    return two_probabilities(log_odds) if log_odds.ndim == 1 else expit(log_odds)


def two_probabilities(log_odds: Floats) -> Floats:
    """Probabilities of both classes from the log-odds of the positive one, shape (n, 2)."""
    columns = np.empty((len(log_odds), 2))
    # In pieces that stay in cache: millions of instances are bound by memory.
    for start in range(0, len(log_odds), _PIECE):
        rows = slice(start, start + _PIECE)
        with np.errstate(over="ignore"):  # the probability is then 0, as it should be
            odds_against = np.exp(-log_odds[rows])
        np.divide(1.0, 1.0 + odds_against, out=columns[rows, 1])
        np.subtract(1.0, columns[rows, 1], out=columns[rows, 0])
    return columns
