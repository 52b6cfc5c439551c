"""What models check beside the bags: names of features, features that know the label, weights."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import has_fit_parameter

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Floats
from bagwise.core.leaks import determining_features

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


def remember_feature_names(estimator: BaseEstimator, bags: Bags) -> None:
    """Set ``feature_names_in_`` where the bags name their features, as scikit-learn does."""
    if bags.feature_names is not None:
        estimator.feature_names_in_ = np.asarray(bags.feature_names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):  # of an earlier fit
        del estimator.feature_names_in_


def warn_of_leaks(bags: Bags, y: Column) -> None:
    """Warn of features that give the label of every bag away.

    Examples
    --------
    >>> import numpy as np, warnings
    >>> from bagwise import Bags
    >>> from bagwise.models.feature_checks import warn_of_leaks
    >>> y = np.arange(20) % 2
    >>> X = np.column_stack([np.random.default_rng(0).normal(size=60), np.repeat(y, 3)])
    >>> bags = Bags(X, np.arange(0, 61, 3), feature_names=["mass", "label"])
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     warn_of_leaks(bags, y)
    >>> str(caught[0].message).partition(";")[0]
    "feature 1 ('label') alone determines the label of every bag"
    """
    at = determining_features(bags.instances, bags.offsets, y)
    if len(at) == 0:
        return
    names = bags.feature_names
    shown = [f"{j}" if names is None else f"{j} ({names[j]!r})" for j in at[:5]]
    more = f" and {len(at) - 5} more" if len(at) > 5 else ""
    subject, verb = ("feature", "determines") if len(at) == 1 else ("features", "each determine")
    warnings.warn(
        f"{subject} {', '.join(shown)}{more} alone {verb} the label of every bag; is it a copy of "
        "the label? Leave it out, or no figure of this model can be trusted.",
        UserWarning,
        stacklevel=4,
    )


def check_bag_weights(weights: ArrayLike, bags: Bags, estimator: BaseEstimator) -> Floats:
    """Weights of bags as an array, or the reason why a model cannot use them.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from bagwise import Bags
    >>> from bagwise.models.feature_checks import check_bag_weights
    >>> check_bag_weights([1, 2], Bags(np.ones((2, 1)), [0, 1, 2]), KNeighborsClassifier())
    Traceback (most recent call last):
    ValueError: KNeighborsClassifier cannot give bags weights: its fit takes no sample_weight. ...
    """
    if not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(
            f"{type(estimator).__name__} cannot give bags weights: its fit takes no "
            "sample_weight. Leave the weights out, or draw bags in proportion to them, as in "
            "bags[chosen]."
        )
    weights = np.asarray(weights, dtype=np.float64)
    if weights.shape != (len(bags),):
        raise ValueError(
            f"sample_weight needs one weight per bag: got shape {weights.shape} for "
            f"{len(bags)} bags."
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise ValueError(
            f"weights must be finite and not negative; {bags.describe_bag(int(bad[0]))} has "
            f"{weights[bad[0]]:g}."
        )
    if not weights.any():
        raise ValueError("at least one bag needs a weight above 0.")
    return weights
