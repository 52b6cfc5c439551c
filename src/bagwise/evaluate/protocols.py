"""How bags are split so that a score can be trusted.

A protocol is a small frozen object: ``splits(bags, y, groups, published_folds)`` yields `Split`s
of bag numbers. Whatever the protocol, `check_model` refuses a pipeline that has already seen
data and `check_split` refuses a bag, or a patient, on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, StratifiedKFold
from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    from bagwise.bags import Bags
    from bagwise.core.arrays import Column, Ints
    from bagwise.models.base import Model


class Split(NamedTuple):
    """One fit: train on some bags, test on others.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.evaluate import BagFolds
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> first = next(iter(BagFolds(n_splits=4, seeds=(0,)).splits(bags, y)))
    >>> first.seed, first.fold, len(first.train), len(first.test)
    (0, 0, 15, 5)
    """

    seed: int
    fold: int
    train: Ints  # bag numbers
    test: Ints


@runtime_checkable
class EvaluationProtocol(Protocol):
    """What `compare` asks of a protocol."""

    def splits(
        self,
        bags: Bags,
        y: Column,
        groups: ArrayLike | None = None,
        published_folds: ArrayLike | None = None,
    ) -> Iterator[Split]:
        """Every split, in a fixed order."""

    def prepare(
        self, name: str, model: Model, seed: int, y: Column, groups: Column | None = None
    ) -> Model:
        """The estimator to fit on the training bags of a split; ``y`` and ``groups`` are theirs."""


class _Plain:
    def prepare(
        self, name: str, model: Model, seed: int, y: Column, groups: Column | None = None
    ) -> Model:
        """The model itself."""
        return model


@dataclass(frozen=True)
class BagFolds(_Plain):
    """Stratified k-fold cross-validation by bag, once per seed.

    One fold seed moves a figure on a hundred bags by several points: use several.

    Parameters
    ----------
    n_splits : int
    seeds : tuple of int
        One repetition each.

    Examples
    --------
    >>> from bagwise.datasets import load_musk1
    >>> from bagwise.evaluate import BagFolds
    >>> bags, y = load_musk1(return_X_y=True)
    >>> len(list(BagFolds(n_splits=5, seeds=(0, 1)).splits(bags, y)))
    10
    """

    n_splits: int = 5
    seeds: tuple[int, ...] = (0, 1, 2)

    def splits(
        self,
        bags: Bags,
        y: Column,
        groups: ArrayLike | None = None,
        published_folds: ArrayLike | None = None,
    ) -> Iterator[Split]:
        """Every split; refuses groups, which need `GroupFolds`."""
        if groups is not None and len(np.unique(groups)) < len(bags):
            raise ValueError(
                "several bags share a group (a patient), and BagFolds would put one group on both "
                "sides; use GroupFolds."
            )
        y = strata(y, self.n_splits)
        _check_folds(y, self.n_splits)
        for seed in self.seeds:
            folds = StratifiedKFold(self.n_splits, shuffle=True, random_state=seed)
            for fold, (train, test) in enumerate(folds.split(np.zeros(len(y)), y)):
                yield Split(seed, fold, train, test)


@dataclass(frozen=True)
class GroupFolds(_Plain):
    """Stratified folds in which the bags of one group (patient, site) stay together.

    Parameters
    ----------
    n_splits : int
    seeds : tuple of int

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.evaluate import GroupFolds
    >>> bags, y = make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> patient = np.arange(40) // 2
    >>> split = next(GroupFolds(n_splits=4).splits(bags, y, groups=patient))
    >>> set(patient[split.train]) & set(patient[split.test])
    set()
    """

    n_splits: int = 5
    seeds: tuple[int, ...] = (0, 1, 2)

    def splits(
        self,
        bags: Bags,
        y: Column,
        groups: ArrayLike | None = None,
        published_folds: ArrayLike | None = None,
    ) -> Iterator[Split]:
        """Every split; needs one group per bag."""
        if groups is None:
            raise ValueError("GroupFolds needs the group (patient) of every bag: pass groups.")
        groups = np.asarray(groups)
        if len(groups) != len(bags):
            raise ValueError(f"groups must name every bag: got {len(groups)} for {len(bags)}.")
        y = strata(y, self.n_splits)
        _check_folds(y, self.n_splits)
        _check_groups(y, groups, self.n_splits)
        for seed in self.seeds:
            folds = StratifiedGroupKFold(self.n_splits, shuffle=True, random_state=seed)
            for fold, (train, test) in enumerate(folds.split(np.zeros(len(y)), y, groups)):
                yield Split(seed, fold, train, test)


@dataclass(frozen=True)
class PublishedFolds(_Plain):
    """The folds shipped with a data set, so that figures compare fold by fold.

    Parameters
    ----------
    repetitions : int, optional
        Use only the first so many repetitions.

    Examples
    --------
    >>> from bagwise.datasets import load_musk1
    >>> from bagwise.evaluate import PublishedFolds
    >>> data = load_musk1()
    >>> folds = PublishedFolds().splits(data.bags, data.y, None, data.published_folds)
    >>> len(list(folds))
    50
    """

    repetitions: int | None = None

    def splits(
        self,
        bags: Bags,
        y: Column,
        groups: ArrayLike | None = None,
        published_folds: ArrayLike | None = None,
    ) -> Iterator[Split]:
        """Every published split."""
        if published_folds is None:
            raise ValueError("this data set ships no published folds; use BagFolds.")
        published_folds = np.atleast_2d(published_folds)
        if published_folds.shape[1] != len(bags):
            raise ValueError(
                f"published folds cover {published_folds.shape[1]} bags; there are {len(bags)}."
            )
        for seed, of_bag in enumerate(published_folds[: self.repetitions]):
            for fold in np.unique(of_bag):
                is_test = of_bag == fold
                yield Split(seed, int(fold), np.flatnonzero(~is_test), np.flatnonzero(is_test))


@dataclass(frozen=True)
class FixedSplits(_Plain):
    """Splits made elsewhere, as they are.

    Parameters
    ----------
    made : tuple of Split

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.evaluate import FixedSplits, Split
    >>> bags, y = make_gaussian_bags(n_bags=4, random_state=0, return_X_y=True)
    >>> protocol = FixedSplits((Split(0, 0, train=[0, 1, 2], test=[3]),))
    >>> next(protocol.splits(bags, y)).test
    [3]
    """

    made: tuple[Split, ...]

    def splits(
        self,
        bags: Bags,
        y: Column,
        groups: ArrayLike | None = None,
        published_folds: ArrayLike | None = None,
    ) -> Iterator[Split]:
        """The splits."""
        return iter(self.made)


@dataclass(frozen=True)
class Nested:
    """Choose hyperparameters by cross-validation inside every training fold.

    The test fold plays no part in the choice.

    Parameters
    ----------
    outer : protocol
        Where scores come from: `BagFolds`, `GroupFolds` or `PublishedFolds`.
    grids : mapping of model name to parameter grid
        As for ``GridSearchCV``; a model without a grid is fitted as it is.
    inner_splits : int
    scoring : str or scorer
        A scikit-learn scorer, also one from `make_instance_scorer`.

    Examples
    --------
    >>> from bagwise.evaluate import BagFolds, Nested
    >>> from bagwise.models.registry import make_model
    >>> protocol = Nested(BagFolds(), {"statistics": {"logisticregression__C": [0.01, 1]}})
    >>> model = make_model("statistics")
    >>> type(protocol.prepare("statistics", model, seed=0, y=[0, 1] * 9)).__name__
    'GridSearchCV'
    """

    outer: BagFolds | GroupFolds = field(default_factory=BagFolds)
    grids: Mapping[str, Any] = field(default_factory=dict)
    inner_splits: int = 3
    scoring: str = "roc_auc"

    def splits(
        self,
        bags: Bags,
        y: Column,
        groups: ArrayLike | None = None,
        published_folds: ArrayLike | None = None,
    ) -> Iterator[Split]:
        """The outer protocol's splits."""
        return self.outer.splits(bags, y, groups, published_folds)

    def prepare(
        self, name: str, model: Model, seed: int, y: Column, groups: Column | None = None
    ) -> Model:
        """The model inside a grid search, where a grid is given."""
        if name not in self.grids:
            return self.outer.prepare(name, model, seed, y, groups)
        folds: Any = StratifiedKFold if groups is None else StratifiedGroupKFold
        # Shuffled: bags come sorted by class in most published sets.
        inner = folds(self.inner_splits, shuffle=True, random_state=seed)
        cv = list(inner.split(np.zeros(len(y)), strata(y, self.inner_splits), groups))
        return GridSearchCV(model, self.grids[name], scoring=self.scoring, cv=cv)


def check_model(model: Model) -> Model:
    """A clean clone of a model, or an error where part of it has already seen data.

    Refused: a fitted model, a fitted step inside a pipeline or wrapper, a frozen step, and steps
    told that they are fitted already (``prefit=True``, ``cv="prefit"``). Each of them would
    carry knowledge of the test bags into the fold.

    Examples
    --------
    >>> from sklearn.preprocessing import StandardScaler
    >>> from bagwise import InstanceTransformer, SingleInstance, make_pipeline
    >>> from bagwise.datasets import load_musk1
    >>> from bagwise.evaluate import check_model
    >>> from sklearn.svm import SVC
    >>> bags, y = load_musk1(return_X_y=True)
    >>> scale = InstanceTransformer(StandardScaler()).fit(bags)
    >>> check_model(make_pipeline(scale, SingleInstance(SVC())))
    Traceback (most recent call last):
        ...
    ValueError: InstanceTransformer is already fitted: ...
    """
    if isinstance(model, type) or not hasattr(model, "fit") or not hasattr(model, "get_params"):
        raise ValueError(
            f"a protocol needs an unfitted scikit-learn estimator; got {model!r}. "
            "Pass the estimator itself, such as SingleInstance(SVC())."
        )
    parts = [model, *model.get_params(deep=True).values()]
    for part in parts:
        if isinstance(part, type) or not hasattr(part, "get_params"):
            continue
        name = type(part).__name__
        settings = part.get_params(deep=False)
        if (
            name == "FrozenEstimator"
            or settings.get("prefit") is True
            or (isinstance(settings.get("cv"), str) and settings["cv"] == "prefit")
        ):
            raise ValueError(
                f"{name} keeps a part that was fitted outside the fold, so it may know the test "
                "bags; pass it unfitted, inside the pipeline."
            )
        if _is_fitted(part):
            raise ValueError(
                f"{name} is already fitted: preprocessing and models are fitted inside each fold, "
                "on its training bags only. Pass it unfitted (sklearn.base.clone)."
            )
    return clone(model)


def _is_fitted(part: object) -> bool:
    # A stateless transformer reports itself fitted from birth, whatever it has seen.
    if not any(key.endswith("_") and not key.startswith("_") for key in vars(part)):
        return False
    try:
        check_is_fitted(part)
    except (NotFittedError, TypeError):
        return False
    return True


def check_split(split: Split, n_bags: int, y: Column, groups: ArrayLike | None = None) -> None:
    """Refuse a split that shares bags or groups, or trains on one class."""
    where = f"seed {split.seed}, fold {split.fold}"
    shared = np.intersect1d(split.train, split.test)
    if len(shared):
        raise ValueError(f"bag {shared[0]} is in both training and test of {where}.")
    used = np.concatenate([split.train, split.test])
    if len(split.train) == 0 or len(split.test) == 0 or used.min() < 0 or used.max() >= n_bags:
        raise ValueError(f"{where} must have training and test bags numbered 0 to {n_bags - 1}.")
    if groups is not None:
        both = np.intersect1d(np.asarray(groups)[split.train], np.asarray(groups)[split.test])
        if len(both):
            raise ValueError(
                f"group {both[:1].tolist()[0]!r} is in both training and test of {where}."
            )
    if len(np.unique(np.asarray(y)[split.train], axis=0)) < 2:
        raise ValueError(f"the training bags of {where} have one class only.")


def strata(y: Any, n_splits: int) -> Any:
    """What folds are balanced by: the class of a bag, or the rarest of its classes.

    With an indicator matrix, what fewer bags have than there are folds goes with what most have.

    Examples
    --------
    >>> from bagwise.evaluate.protocols import strata
    >>> strata([[1, 0], [1, 0], [1, 0], [1, 1], [1, 1], [0, 0]], 2).tolist()
    [1, 1, 1, 2, 2, 1]
    """
    y = np.asarray(y)
    if y.ndim == 1 or y.shape[1] == 1:
        return y
    rarest_first = np.argsort(y.sum(axis=0), kind="stable")
    first = y[:, rarest_first].argmax(axis=1)
    codes = np.where(y.any(axis=1), rarest_first[first] + 1, 0)
    counts = np.bincount(codes)
    return np.where(counts[codes] < n_splits, int(np.argmax(counts)), codes)


def _check_folds(y: Column, n_splits: int) -> None:
    classes, counts = np.unique(y, return_counts=True)
    if not 2 <= n_splits <= counts.min():
        rarest = classes[int(np.argmin(counts))]
        raise ValueError(
            f"{n_splits}-fold cross-validation needs at least 2 folds and {n_splits} bags of each "
            f"class; class {rarest!s} has {counts.min()}."
        )


def _check_groups(y: Ints, groups: ArrayLike | None, n_splits: int) -> None:
    """Every fold needs a group with a bag of each class, or a class goes missing from a test."""
    for label in np.unique(y):
        n_groups = len(np.unique(np.asarray(groups)[np.asarray(y) == label]))
        if n_groups < n_splits:
            raise ValueError(
                f"{n_splits} folds need at least {n_splits} groups (patients) with bags of class "
                f"{label!s}; there are {n_groups}."
            )
