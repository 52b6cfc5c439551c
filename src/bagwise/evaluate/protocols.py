"""How bags are split so that a score can be trusted.

A cross-validation scheme is a small frozen object: ``splits(bags, y, groups, published_folds)``
yields `Split`s of bag numbers. Whatever the scheme, `check_model` refuses a pipeline that has
already seen data and `checked_splits` refuses a bag, or a patient, on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Ints
from bagwise.models.base import Model
from bagwise.models.held_out import folds

# Seed of each repetition, and the fold in which it tests every bag, [B].
_Folds: TypeAlias = "Iterator[tuple[int, Ints]]"


class Split(NamedTuple):
    """One fit: train on some bags, test on others.

    Examples
    --------
    >>> from bagwise import datasets
    >>> from bagwise.evaluate import BagFolds
    >>> bags, y = datasets.make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> first = next(iter(BagFolds(n_splits=4, seeds=(0,)).splits(bags, y)))
    >>> first.seed, first.fold, len(first.train), len(first.test)
    (0, 0, 15, 5)
    """

    seed: int
    fold: int
    train: Ints  # bag numbers
    test: Ints

    def __str__(self) -> str:
        return f"seed {self.seed}, fold {self.fold}"


class Scheme:
    """A cross-validation scheme; subclasses have `folds_of_bags` or splits of their own."""

    def splits(
        self,
        bags: Bags,
        y: Column,
        groups: ArrayLike | None = None,
        published_folds: ArrayLike | None = None,
    ) -> Iterator[Split]:
        """Every split, in a fixed order.

        Parameters
        ----------
        bags : Bags
        y : array of shape (n_bags,) or (n_bags, n_classes)
        groups : array of shape (n_bags,) or None, default=None
            Patient or site of every bag.
        published_folds : array of shape (n_repetitions, n_bags) or None, default=None
            Fold of every bag, as shipped with a data set.
        """
        for seed, fold in self.folds_of_bags(len(bags), np.asarray(y), groups, published_folds):
            for k in np.unique(fold):
                yield Split(seed, int(k), np.flatnonzero(fold != k), np.flatnonzero(fold == k))

    def folds_of_bags(self, n_bags: int, y: Column, groups: Any, published: Any) -> _Folds:
        """Seed of each repetition, and the fold in which it tests every bag, [B]."""
        raise NotImplementedError

    def prepare(
        self, name: str, model: Model, seed: int, y: Column, groups: Column | None = None
    ) -> Model:
        """The estimator to fit on the training bags of a split; ``y`` and ``groups`` are theirs."""
        return model


@dataclass(frozen=True)
class BagFolds(Scheme):
    """Stratified k-fold cross-validation by bag, once per seed.

    One fold seed moves a figure on a hundred bags by several points: use several.

    Parameters
    ----------
    n_splits : int, default=5
    seeds : tuple of int, default=(0, 1, 2)
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
    _whole_groups: ClassVar[bool] = False

    def folds_of_bags(self, n_bags: int, y: Column, groups: Any, published: Any) -> _Folds:
        """Stratified folds; groups need, and are needed by, `GroupFolds`."""
        if self._whole_groups:
            if groups is None:
                raise ValueError("GroupFolds needs the group (patient) of every bag: pass groups.")
            groups = np.asarray(groups)
            if len(groups) != n_bags:
                raise ValueError(f"groups must name every bag: got {len(groups)} for {n_bags}.")
        elif groups is not None and len(np.unique(groups)) < n_bags:
            raise ValueError(
                "several bags share a group (a patient), and BagFolds would put one group on both "
                "sides; use GroupFolds."
            )
        else:
            groups = None
        y = strata(y, self.n_splits)
        classes, counts = np.unique(y, return_counts=True)
        if not 2 <= self.n_splits <= counts.min():
            raise ValueError(
                f"{self.n_splits}-fold cross-validation needs at least 2 folds and "
                f"{self.n_splits} bags of each class; class {classes[counts.argmin()]!s} has "
                f"{counts.min()}."
            )
        for label in classes if groups is not None else ():
            # Every fold needs a group with a bag of each class, or a test fold lacks one.
            n_groups = len(np.unique(groups[y == label]))
            if n_groups < self.n_splits:
                raise ValueError(
                    f"{self.n_splits} folds need at least {self.n_splits} groups (patients) with "
                    f"bags of class {label!s}; there are {n_groups}."
                )
        for seed in self.seeds:
            yield seed, folds(y, self.n_splits, groups, seed)


@dataclass(frozen=True)
class GroupFolds(BagFolds):
    """Stratified folds in which the bags of one group (patient, site) stay together.

    Parameters are those of `BagFolds`.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.datasets import load_musk1
    >>> from bagwise.evaluate import GroupFolds
    >>> bags, y = load_musk1(return_X_y=True)
    >>> patient = np.arange(len(y)) // 2
    >>> split = next(GroupFolds(n_splits=4).splits(bags, y, groups=patient))
    >>> set(patient[split.train]) & set(patient[split.test])
    set()
    """

    _whole_groups = True


@dataclass(frozen=True)
class PublishedFolds(Scheme):
    """The folds shipped with a data set, so that figures compare fold by fold.

    Parameters
    ----------
    repetitions : int or None, default=None
        Use only the first so many repetitions.

    Examples
    --------
    >>> from bagwise.datasets import load_musk1
    >>> from bagwise.evaluate import PublishedFolds
    >>> data = load_musk1()
    >>> splits = PublishedFolds().splits(data.bags, data.y, None, data.published_folds)
    >>> len(list(splits))
    50
    """

    repetitions: int | None = None

    def folds_of_bags(self, n_bags: int, y: Column, groups: Any, published: Any) -> _Folds:
        """The published folds, numbered by repetition."""
        if published is None:
            raise ValueError("this data set ships no published folds; use BagFolds.")
        published = np.atleast_2d(published)
        if published.shape[1] != n_bags:
            raise ValueError(
                f"published folds cover {published.shape[1]} bags; there are {n_bags}."
            )
        return enumerate(published[: self.repetitions])


@dataclass(frozen=True)
class FixedSplits(Scheme):
    """Splits from elsewhere, as they are.

    Parameters
    ----------
    fixed : tuple of Split

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.evaluate import FixedSplits, Split
    >>> bags, y = make_gaussian_bags(n_bags=4, random_state=0, return_X_y=True)
    >>> scheme = FixedSplits((Split(0, 0, train=[0, 1, 2], test=[3]),))
    >>> next(scheme.splits(bags, y)).test
    [3]
    """

    fixed: tuple[Split, ...]

    def splits(
        self, bags: Bags, y: Column, groups: Any = None, published_folds: Any = None
    ) -> Iterator[Split]:
        """The splits."""
        return iter(self.fixed)


@dataclass(frozen=True)
class Nested(Scheme):
    """Choose hyperparameters by cross-validation inside every training fold.

    The test fold plays no part in the choice.

    Parameters
    ----------
    outer : scheme, default=BagFolds()
        Where scores come from: `BagFolds`, `GroupFolds` or `PublishedFolds`.
    grids : mapping of model name to parameter grid, default={}
        As for ``GridSearchCV``; a model without a grid is fitted as it is.
    inner_splits : int, default=3
    scoring : str or scorer, default="roc_auc"
        A scikit-learn scorer, also one from `make_instance_scorer`.

    Examples
    --------
    >>> from bagwise.evaluate import BagFolds, Nested
    >>> from bagwise.models.registry import make_model
    >>> scheme = Nested(BagFolds(), {"statistics": {"logisticregression__C": [0.01, 1]}})
    >>> model = make_model("statistics")
    >>> type(scheme.prepare("statistics", model, seed=0, y=[0, 1] * 9)).__name__
    'GridSearchCV'
    """

    outer: Scheme = field(default_factory=BagFolds)
    grids: Mapping[str, Any] = field(default_factory=dict)
    inner_splits: int = 3
    scoring: Any = "roc_auc"

    def folds_of_bags(self, *data: Any) -> _Folds:
        """Those of the outer scheme."""
        return self.outer.folds_of_bags(*data)

    def prepare(
        self, name: str, model: Model, seed: int, y: Column, groups: Column | None = None
    ) -> Model:
        """The model inside a grid search, where a grid is given."""
        if name not in self.grids:
            return self.outer.prepare(name, model, seed, y, groups)
        inner = folds(strata(y, self.inner_splits), self.inner_splits, groups, seed)
        # As pairs: a search that gets groups would need a splitter of groups.
        cv = list(PredefinedSplit(inner).split())
        return GridSearchCV(model, self.grids[name], scoring=self.scoring, cv=cv)


def check_model(model: Model) -> Model:
    """A clean clone of a model, or an error where part of it has already seen data.

    Refused: a fitted model, a fitted step inside a pipeline or wrapper, a frozen step, and steps
    declared to be fitted already (``prefit=True``, ``cv="prefit"``). Each of them would
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
            f"a cross-validation scheme needs an unfitted scikit-learn estimator; got {model!r}. "
            "Pass the estimator itself, such as SingleInstance(SVC())."
        )
    for part in [model, *model.get_params(deep=True).values()]:
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
        try:
            check_is_fitted(part)
        except (NotFittedError, TypeError):
            continue
        # A stateless transformer counts as fitted from the start, without a fitted attribute.
        if any(key.endswith("_") and not key.startswith("_") for key in vars(part)):
            raise ValueError(
                f"{name} is already fitted: preprocessing and models are fitted inside each fold, "
                "on its training bags only. Pass it unfitted (sklearn.base.clone)."
            )
    return clone(model)


def checked_splits(
    scheme: Scheme, bags: Bags, y: Column, groups: Any = None, published_folds: Any = None
) -> list[Split]:
    """Every split of a scheme; refuses one that shares bags or groups, or trains on one class."""
    splits, n_bags = list(scheme.splits(bags, y, groups, published_folds)), len(bags)
    for split in splits:
        train, test = np.asarray(split.train), np.asarray(split.test)
        shared = np.intersect1d(train, test)
        if len(shared):
            raise ValueError(f"bag {shared[0]} is in both training and test of {split}.")
        used = np.concatenate([train, test])
        if len(train) == 0 or len(test) == 0 or used.min() < 0 or used.max() >= n_bags:
            raise ValueError(
                f"{split} must have training and test bags numbered 0 to {n_bags - 1}."
            )
        if groups is not None:
            both = np.intersect1d(np.asarray(groups)[train], np.asarray(groups)[test])
            if len(both):
                raise ValueError(
                    f"group {both.tolist()[0]!r} is in both training and test of {split}."
                )
        if len(np.unique(np.asarray(y)[train], axis=0)) < 2:
            raise ValueError(f"the training bags of {split} have one class only.")
    return splits


def strata(y: Any, n_splits: int) -> Any:
    """What folds are balanced by: the class of a bag, or the rarest of its classes.

    With an indicator matrix, what fewer bags have than there are folds goes with what most have.
    """
    y = np.asarray(y)
    if y.ndim == 1 or y.shape[1] == 1:
        return y
    rarest_first = np.argsort(y.sum(axis=0), kind="stable")
    first = y[:, rarest_first].argmax(axis=1)
    codes = np.where(y.any(axis=1), rarest_first[first] + 1, 0)
    counts = np.bincount(codes)
    return np.where(counts[codes] < n_splits, int(np.argmax(counts)), codes)
