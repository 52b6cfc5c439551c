"""Gluing scikit-learn to bags: transformers on instances, bag embeddings, and a Pipeline.

`InstanceTransformer` lets any scikit-learn transformer work on instances, `BagStatistics` turns
bags into rows for any scikit-learn classifier, and `BagPipeline` keeps the ``_instances`` methods
that scikit-learn's Pipeline would drop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn import config_context
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.pipeline import Pipeline, _name_estimators
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags, BagsLike, check_bags, check_feature_names
from bagwise.core import segments
from bagwise.core.rules import log_odds
from bagwise.models.base import Scores
from bagwise.models.feature_checks import check_bag_weights, remember_feature_names

if TYPE_CHECKING:
    import pandas as pd

    from bagwise.core.arrays import Column, Floats, Ints, Reals, Rows


# Rows handed to a transformer at a time when the instances are opened lazily.
_CHUNK = 65_536


class InstanceTransformer(  # type: ignore[call-arg]
    TransformerMixin, BaseEstimator, auto_wrap_output_keys=None
):
    """Any scikit-learn transformer, applied to the instances of bags.

    Parameters
    ----------
    transformer : scikit-learn transformer
        Fitted on the instances of the training bags. A supervised transformer sees each
        instance with the label of its bag. An imputer may get missing values; where the bags name
        their features the transformer sees a frame, so that a ``ColumnTransformer`` may choose
        columns by name.

    See Also
    --------
    BagStatistics, make_pipeline

    Examples
    --------
    >>> from sklearn.preprocessing import StandardScaler
    >>> from bagwise import InstanceTransformer
    >>> from bagwise.datasets import load_musk1
    >>> bags, y = load_musk1(return_X_y=True)
    >>> scaled = InstanceTransformer(StandardScaler()).fit_transform(bags)
    >>> scaled
    Bags(92 bags, 476 instances, 166 features)
    """

    def __init__(self, transformer: BaseEstimator) -> None:
        self.transformer = transformer

    def fit(self, bags: BagsLike, y: ArrayLike | None = None) -> InstanceTransformer:
        """Fit the transformer on the instances."""
        transformer = clone(self.transformer)
        bags = self._check(bags, transformer)
        labels = None if y is None else segments.spread(np.asarray(y), bags.offsets)
        if _is_lazy(bags.instances) and hasattr(transformer, "partial_fit"):
            for start in range(0, bags.n_instances, _CHUNK):
                rows = slice(start, start + _CHUNK)
                transformer.partial_fit(
                    bags.instances[rows], None if labels is None else labels[rows]
                )
        else:
            X = bags.instances[:] if _is_lazy(bags.instances) else bags.instances
            transformer.fit(_framed(X, bags.feature_names), labels)
        self.transformer_ = transformer
        self.n_features_in_ = bags.n_features
        remember_feature_names(self, bags)
        return self

    def transform(self, bags: BagsLike) -> Bags:
        """Transform the instances; bags, names and columns stay as they are.

        Where the bags name their features and the transformer can name its own, so does the
        result, as ``feature_names``.

        Returns
        -------
        bags : Bags with instances of shape (n_instances, n_features_out)
        """
        check_is_fitted(self)
        bags = self._check(bags, self.transformer_, self.n_features_in_)
        fitted = getattr(self, "feature_names_in_", None)
        check_feature_names(fitted, bags, "InstanceTransformer")
        # The inner transformer is called as it was fitted: with names or without.
        inner = getattr(self.transformer_, "feature_names_in_", None)
        own = None if inner is None else tuple(inner)
        step = partial(_transformed, transformer=self.transformer_, names=own)
        names = None
        if fitted is not None and hasattr(self.transformer_, "get_feature_names_out"):
            names = tuple(map(str, self.transformer_.get_feature_names_out(fitted)))
        # Rows that can be transformed whenever they are read stay on disk.
        if not _is_lazy(bags.instances) or hasattr(bags.instances, "map_rows"):
            return bags.map(step, names)
        blocks = [
            step(bags.instances[start : start + _CHUNK])
            for start in range(0, bags.n_instances, _CHUNK)
        ]
        return bags.map(lambda _: np.concatenate(blocks), names)

    def _check(
        self, bags: BagsLike, transformer: BaseEstimator, n_features: int | None = None
    ) -> Bags:
        """Missing values pass where the transformer takes them, as an imputer does."""
        return check_bags(
            bags,
            n_features=n_features,
            accept_sparse=True,
            estimator="InstanceTransformer",
            finite="allow-nan" if _takes_missing(transformer) else True,
        )

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> Column:
        """Names of the features that come out, as the transformer gives them."""
        check_is_fitted(self)
        if input_features is None:
            input_features = getattr(self, "feature_names_in_", None)
        return self.transformer_.get_feature_names_out(input_features)

    def set_output(self, *, transform: str | None = None) -> InstanceTransformer:
        """Accept scikit-learn's choice of a container, which bags do not need.

        The result is `Bags` whatever is chosen, because rows alone would forget which bag they
        belong to; names of features travel as ``bags.feature_names``. A step after
        `BagStatistics` returns frames where they are asked for.
        """
        if transform not in (None, "default", "pandas", "polars"):
            raise ValueError(
                f"transform must be 'default', 'pandas' or 'polars'; got {transform!r}."
            )
        return self


def _takes_missing(transformer: BaseEstimator) -> bool:
    """Whether missing values may reach a transformer; of a composite one, its first steps."""
    if isinstance(transformer, Pipeline):
        return _takes_missing(transformer.steps[0][1])
    parts = getattr(transformer, "transformers", getattr(transformer, "transformer_list", None))
    if parts is not None:
        return any(_takes_missing(part[1]) for part in parts)
    return hasattr(transformer, "fit") and bool(get_tags(transformer).input_tags.allow_nan)


def _transformed(X: Floats, transformer: BaseEstimator, names: tuple[str, ...] | None) -> Floats:
    """Rows through a fitted transformer: arrays or sparse matrices in and out."""
    with config_context(transform_output="default"):
        rows = transformer.transform(_framed(X, names))
    return rows.to_numpy() if hasattr(rows, "columns") else rows


def _framed(X: Floats, names: tuple[str, ...] | None) -> Floats | pd.DataFrame:
    """Rows as a frame where their features have names, so that steps may choose by name."""
    if names is None or not isinstance(X, np.ndarray):
        return X
    import pandas as pd

    return pd.DataFrame(X, columns=list(names))


def _is_lazy(instances: Rows) -> bool:
    """Whether rows are read on demand (files), rather than held as an array."""
    return not (
        isinstance(instances, np.ndarray) or issparse(instances) or is_torch_array(instances)
    )


class BagStatistics(TransformerMixin, BaseEstimator):
    """Embed each bag as a row of statistics, so that any scikit-learn classifier works on bags.

    Parameters
    ----------
    statistics : tuple of str or float, default=("mean", "max", "min")
        What to compute of each feature over the bag; a number is a quantile.

    See Also
    --------
    StatisticsClassifier, InstanceTransformer

    References
    ----------
    [Gaertner2002]_

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from bagwise import BagStatistics
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> model = make_pipeline(BagStatistics(("mean", "max", 0.5)), LogisticRegression())
    >>> model.fit(bags, y).predict(bags).shape
    (40,)
    """

    def __init__(self, statistics: Sequence[str | float] = ("mean", "max", "min")) -> None:
        self.statistics = statistics

    def fit(self, bags: BagsLike, y: ArrayLike | None = None) -> BagStatistics:
        """Check the statistics and remember the number of features."""
        bags = check_bags(bags, estimator="BagStatistics")
        for statistic in self.statistics:
            if isinstance(statistic, Real) and 0 <= float(statistic) <= 1:
                continue
            if statistic not in _STATISTICS:
                raise ValueError(
                    f"statistics must be among {sorted(_STATISTICS)} or numbers in [0, 1]; "
                    f"got {statistic!r}."
                )
        self.n_features_in_ = bags.n_features
        remember_feature_names(self, bags)
        return self

    def transform(self, bags: BagsLike) -> Reals:
        """Statistics of each bag, shape (n_bags, n_features * n_statistics).

        Returns
        -------
        statistics : array of shape (n_bags, n_features * n_statistics)
        """
        check_is_fitted(self)
        bags = check_bags(bags, n_features=self.n_features_in_, estimator="BagStatistics")
        check_feature_names(getattr(self, "feature_names_in_", None), bags, "BagStatistics")
        X = bags.instances[:] if _is_lazy(bags.instances) else bags.instances
        return np.hstack(
            [
                _STATISTICS[s](X, bags.offsets)
                if isinstance(s, str)
                else segment_quantile(X, bags.offsets, float(s))
                for s in self.statistics
            ]
        )

    def get_feature_names_out(self, input_features: Iterable[str] | None = None) -> Column:
        """Names such as ``mean_x0``."""
        check_is_fitted(self)
        if input_features is None:
            unnamed = [f"x{j}" for j in range(self.n_features_in_)]
            input_features = getattr(self, "feature_names_in_", unnamed)
        return np.asarray(
            [
                f"{s if isinstance(s, str) else f'q{s:g}'}_{name}"
                for s in self.statistics
                for name in input_features
            ],
            dtype=object,
        )


def _segment_std(X: Reals, offsets: Ints) -> Reals:
    centred = X - segments.spread(segments.mean(X, offsets), offsets)
    return np.sqrt(segments.mean(centred**2, offsets))


_STATISTICS: dict[str, Callable[[Reals, Ints], Reals]] = {
    "mean": segments.mean,
    "max": segments.max,
    "min": segments.min,
    "std": _segment_std,
}


def segment_quantile(X: Floats, offsets: Ints, q: float) -> Floats:
    """Linearly interpolated quantile of each feature within each (non-empty) segment."""
    owner = segments.index(offsets)
    position = offsets[:-1] + q * (np.diff(offsets) - 1)
    low = np.floor(position).astype(np.int64)
    high = np.ceil(position).astype(np.int64)
    share = (position - low)[:, None]
    ordered = np.empty_like(X)
    for j in range(X.shape[1]):
        ordered[:, j] = X[np.lexsort((X[:, j], owner)), j]
    return (1 - share) * ordered[low] + share * ordered[high]


def _final_has(name: str) -> Callable[[Any], bool]:
    def check(pipeline: BagPipeline) -> bool:
        getattr(pipeline._final_estimator, name)  # the step's own error says why not
        return True

    return check


class BagPipeline(Pipeline):
    """scikit-learn's Pipeline that keeps what is special about bags.

    The last step's ``predict_instances``, ``predict_proba_instances``,
    ``decision_function_instances`` and ``predict_latent`` are there when that step has them,
    and ``fit(bags, y, instance_labels=...)`` hands instance labels to the last step.

    Parameters are those of scikit-learn's ``Pipeline``.

    See Also
    --------
    make_pipeline, InstanceTransformer

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import StandardScaler
    >>> from bagwise import BagPipeline, InstanceTransformer, SingleInstance
    >>> from bagwise.datasets import make_gaussian_bags
    >>> bags, y = make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True)
    >>> model = BagPipeline([
    ...     ("scale", InstanceTransformer(StandardScaler())),
    ...     ("classify", SingleInstance(LogisticRegression())),
    ... ])
    >>> model.fit(bags, y).predict_proba_instances(bags).shape[0] == bags.n_instances
    True
    """

    # Not a hyperparameter: names the fit argument that belongs to the last step.
    _last_step_arguments: ClassVar[tuple[str, ...]] = (
        "instance_labels",
        "validation",
        "sample_weight",
    )

    def fit(self, bags: BagsLike, y: ArrayLike | None = None, **params: Any) -> BagPipeline:
        """Fit the steps in turn; ``instance_labels`` and ``sample_weight`` go to the last one.

        ``sample_weight`` holds one weight per bag; a last step without bag weights raises an error.

        A step that takes rows, such as ``StandardScaler()``, is wrapped in an
        `InstanceTransformer`, or comes after `BagStatistics`.
        """
        if not isinstance(bags, Bags):  # so that such a step says so, whatever was given
            bags = check_bags(bags, accept_sparse=True, allow_nd=True, estimator="BagPipeline")
        if params.get("sample_weight", ...) is None:
            del params["sample_weight"]
        if "sample_weight" in params:
            check_bag_weights(params["sample_weight"], bags, self.steps[-1][1])
        last = self.steps[-1][0]
        for name in self._last_step_arguments:
            if name in params:
                params[f"{last}__{name}"] = params.pop(name)
        super().fit(bags, y, **params)
        return self

    def _before_last(self, bags: BagsLike) -> Any:
        check_is_fitted(self)
        for _, _, transform in self._iter(with_final=False):
            bags = transform.transform(bags)
        return bags

    @available_if(_final_has("score_bags"))
    def score_bags(self, bags: BagsLike) -> Scores:
        """Log-odds and deviations of bags and instances, by one pass of the last step.

        Returns
        -------
        scores : tuple of arrays
        """
        return self._final_estimator.score_bags(self._before_last(bags))

    @available_if(_final_has("predict_instances"))
    def predict_instances(self, bags: BagsLike, **params: object) -> Ints:
        """Label of each instance, by the last step.

        Returns
        -------
        labels : array of shape (n_instances,), or (n_instances, n_classes)
        """
        bags = self._before_last(bags)
        return self._final_estimator.predict_instances(bags, **params)

    @available_if(_final_has("predict_proba_instances"))
    def predict_proba_instances(
        self, bags: BagsLike, **params: object
    ) -> Floats | tuple[Floats, ...]:
        """Class probabilities of each instance, by the last step.

        Returns
        -------
        p : array of shape (n_instances, n_classes)
        """
        bags = self._before_last(bags)
        return self._final_estimator.predict_proba_instances(bags, **params)

    @available_if(_final_has("decision_function_instances"))
    def decision_function_instances(self, bags: BagsLike, **params: object) -> Floats:
        """Score of each instance, by the last step.

        Returns
        -------
        scores : array of shape (n_instances,), or (n_instances, n_classes)
        """
        bags = self._before_last(bags)
        return self._final_estimator.decision_function_instances(bags, **params)

    @available_if(_final_has("predict_latent"))
    def predict_latent(self, bags: BagsLike, **params: object) -> tuple[Floats, Floats]:
        """Latent mean and variance of each instance, by the last step.

        Returns
        -------
        mean, var : arrays of shape (n_instances,), or (n_instances, n_classes)
        """
        bags = self._before_last(bags)
        return self._final_estimator.predict_latent(bags, **params)


def last_step(model: Any) -> Any:
    """The model at the end of a pipeline, or the model itself."""
    return model[-1] if hasattr(model, "steps") else model


def positive_proba(model: Any, bags: BagsLike, suffix: str = "") -> tuple[Reals, Floats]:
    """Probability of the positive class and its standard deviation, NaN where there is none.

    Only Gaussian processes have one; a pipeline asks its last step. ``suffix``
    is "" for bags or "_instances".
    """
    name = f"predict_proba{suffix}"
    if "return_std" in inspect.signature(getattr(last_step(model), name)).parameters:
        proba, std = getattr(model, name)(bags, return_std=True)
        return proba[:, 1], std
    p = getattr(model, name)(bags)[:, 1]
    return p, np.full(len(p), np.nan)


def read_scores(model: Any, bags: BagsLike) -> Scores:
    """What a fitted model of two classes says about bags and instances; one pass where it can."""
    if hasattr(model, "score_bags"):
        return model.score_bags(bags)
    (bag, bag_std), (p, std) = (positive_proba(model, bags, end) for end in ("", "_instances"))
    return Scores(log_odds(bag), bag_std, log_odds(p), std)


def make_pipeline(*steps: object, memory: object = None, verbose: bool = False) -> BagPipeline:
    """Build a `BagPipeline`, naming the steps after their types.

    Examples
    --------
    >>> from sklearn.preprocessing import StandardScaler
    >>> from sklearn.svm import SVC
    >>> from bagwise import InstanceTransformer, SingleInstance, make_pipeline
    >>> make_pipeline(InstanceTransformer(StandardScaler()), SingleInstance(SVC())).steps[0][0]
    'instancetransformer'
    """
    return BagPipeline(_name_estimators(steps), memory=memory, verbose=verbose)
