"""The estimator contract: what every bag classifier validates and promises.

scikit-learn's contract plus one rule: the name of a bag-level method + ``_instances`` is its
instance-level twin. A subclass implements ``fit``, ``decision_function`` and, where it can rank
instances, ``decision_function_instances``; both are signed so that > 0 means positive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from bagwise.bags import (
    Bags,
    BagsLike,
    InstanceLabels,
    check_bags,
    check_feature_names,
    encode_instance_labels,
)
from bagwise.core.arrays import Codes, Column, Floats, Ints, as_array
from bagwise.models.classes import ClassLabels, read_class_labels, read_instance_classes
from bagwise.models.feature_checks import remember_feature_names, warn_of_leaks
from bagwise.models.parameters import HasParameters

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

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


class SeveralClasses(NamedTuple):
    """Validated input of ``fit`` with more than two classes."""

    bags: Bags
    labels: ClassLabels
    known: Ints  # [N, F] about each finding: 1, 0, or -1 where unknown


class BagClassifier(ClassifierMixin, HasParameters):
    """Base of all bag classifiers: validation, labels, and the predict twins."""

    # Sets instance_labels up as scikit-learn metadata.
    __metadata_request__fit: ClassVar[dict[str, Any]] = {"instance_labels": None}
    _parameter_constraints: ClassVar[Constraints] = {}
    _accept_sparse: ClassVar[bool] = False
    _allow_nd: ClassVar[bool] = False
    _multi_class: ClassVar[bool] = False
    _multi_label: ClassVar[bool] = False
    # Whether the model works on rows where they are: on disk in chunks, tensors on their device.
    # For all others the rows become one NumPy array, so that every kind gives the same numbers.
    _keeps_rows: ClassVar[bool] = False

    def _validate_fit(
        self, bags: BagsLike, y: ArrayLike, instance_labels: InstanceLabels = None
    ) -> TrainingData:
        """Check parameters and data, set ``classes_`` and ``n_features_in_``."""
        self._validate_params()
        bags = self._check_bags(bags)
        y = self._check_labels(bags, y)
        classes, codes = np.unique(y, return_inverse=True)
        name = type(self).__name__
        if len(classes) < 2:
            raise ValueError(
                f"{name} needs two classes of bags; got 1 class: all {len(y)} bags are "
                f"labelled {classes[0].item()!r}."
            )
        if len(classes) > 2 and not self._multi_class:
            raise ValueError(
                f"Only binary classification is supported. {name} needs exactly two classes; "
                f"got {len(classes)}: {classes[:5].tolist()}. For more, wrap it: "
                f"OneVsRest({name}()). Unknown label type: multiclass."
            )
        known = encode_instance_labels(instance_labels, bags, classes, codes)
        warn_of_leaks(bags, codes)
        self.classes_ = classes
        self.n_features_in_ = bags.n_features
        remember_feature_names(self, bags)
        return TrainingData(bags, codes, known)

    def _validate_several(
        self, bags: Any, y: Any, instance_labels: Any = None, background: Any = None
    ) -> SeveralClasses:
        """As `_validate_fit`, for more than two classes or an indicator matrix."""
        self._validate_params()
        bags = self._check_bags(bags)
        name = type(self).__name__
        labels = read_class_labels(y, bags, background, name, constant=True)
        known = read_instance_classes(instance_labels, bags, labels)
        for codes in labels.present.T if labels.codes is None else [labels.codes]:
            warn_of_leaks(bags, codes)
        self.classes_ = labels.classes
        self.n_features_in_ = bags.n_features
        remember_feature_names(self, bags)
        return SeveralClasses(bags, labels, known)

    def _validate_stream(
        self,
        bags: BagsLike,
        y: ArrayLike,
        classes: ArrayLike | None,
        instance_labels: InstanceLabels,
        first: bool,
    ) -> tuple[Ints, TrainingData]:
        """Check a batch of ``partial_fit``: its classes and the data; sets nothing."""
        self._validate_params()
        bags = self._check_bags(bags, None if first else self.n_features_in_)
        y = self._check_labels(bags, y)
        classes = _stream_classes(None if first else self.classes_, classes, y)
        unseen = np.setdiff1d(y, classes)
        if len(unseen):
            where = int(np.flatnonzero(y == unseen[0])[0])
            raise ValueError(
                f"{bags.describe_bag(where)} has label {unseen[0].item()!r}, which is not one of "
                f"the classes {classes.tolist()} of this stream."
            )
        codes = np.searchsorted(classes, y)
        known = encode_instance_labels(instance_labels, bags, classes, codes)
        return classes, TrainingData(bags, codes, known)

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

    def _check_labels(self, bags: Bags, labels: ArrayLike | None) -> Column:
        if labels is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        y: Column = column_or_1d(labels, warn=True)
        if len(y) != len(bags):
            raise ValueError(
                f"y needs one label per bag: got {len(y)} labels for {len(bags)} bags."
            )
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            i = int(np.flatnonzero(~np.isfinite(y))[0])
            raise ValueError(
                f"Input y contains NaN or infinity: {bags.describe_bag(i)} is labelled {y[i]}."
            )
        check_classification_targets(y)
        return y

    def _label_names(self, known: Codes) -> Column:
        """Codes of instance labels as classes again, None where unknown, [N]."""
        return np.array([*self.classes_, None], dtype=object)[known]  # code -1 is the last

    def decision_function(self, bags: BagsLike) -> Any:
        """Score of each bag; > 0 means ``classes_[1]``."""
        raise AttributeError(f"{type(self).__name__} has no decision_function")

    def predict(self, bags: BagsLike) -> Column:
        """Label of each bag, shape (n_bags,), or rows of the indicator matrix it was fitted to."""
        return self._classes_of(self.decision_function(bags))

    def _forget_classes(self) -> None:
        """Drop what an earlier fit to several classes left behind."""
        for name in ("class_rule_", "one_vs_rest_"):
            self.__dict__.pop(name, None)

    def _classes_of(self, scores: Floats) -> Column:
        """The classes that scores of shape (n,) or (n, n_classes) speak for."""
        if scores.ndim == 1:
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
        """Score of each instance, aligned with ``bags.instances``; > 0 means positive."""
        raise AttributeError(f"{type(self).__name__} has no decision_function_instances")

    def predict_instances(self, bags: BagsLike) -> Column:
        """Label of each instance, aligned with ``bags.instances``."""
        return self._classes_of(self.decision_function_instances(bags))


def _stream_classes(fitted: Column | None, given: ArrayLike | None, y: Column) -> Column:
    """The two classes of a stream, sorted; later calls may repeat them but not change them."""
    if fitted is None:
        classes = np.unique(y if given is None else given)
        if len(classes) != 2:
            raise ValueError(
                "the first partial_fit needs the two classes of the stream: "
                f"pass classes=[negative, positive]; got {classes.tolist()}."
            )
        return classes
    if given is not None and not np.array_equal(np.unique(given), fitted):
        raise ValueError(
            f"classes must stay those of the first call, {fitted.tolist()}; "
            f"got {np.asarray(given).tolist()}."
        )
    return fitted


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


def two_columns(positive: Floats) -> Floats:
    """Probabilities of both classes from those of the positive one, shape (n, 2)."""
    columns = np.empty((len(positive), 2))
    columns[:, 1] = positive
    np.subtract(1, positive, out=columns[:, 0])
    return columns
