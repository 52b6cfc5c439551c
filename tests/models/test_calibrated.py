"""Calibration of models that give scores: which fits the held-out scores come from."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import ShuffleSplit, StratifiedKFold

from bagwise import MISVM, Bags, SingleInstance, StatisticsClassifier
from bagwise.models.calibration.fit import (
    Isotonic,
    compress_beyond,
    fit_calibrator,
    fit_platt,
    typical_range,
)


def make_bags(n_positive, n_negative=30, seed=0):
    """Bags of three instances, whose features have different units."""
    rng = np.random.default_rng(seed)
    y = np.repeat([1, 0], [n_positive, n_negative])
    X = rng.normal(size=(len(y), 3, 2))
    X[y == 1, 0] += 1.5
    return Bags(X.reshape(-1, 2) * [1.0, 20.0] + 5.0, np.arange(0, 3 * len(y) + 1, 3)), y


@pytest.mark.parametrize(("n_positive", "n_folds"), [(30, 5), (12, 10)])
@pytest.mark.parametrize("scale", ["feature", "global", None])
def test_the_map_is_that_of_fits_that_knew_nothing_of_the_bags(scale, n_positive, n_folds):
    """Not even the scaling of the features has seen the bags of the fold."""
    bags, y = make_bags(n_positive)
    scores = np.empty(len(y))
    for train, test in StratifiedKFold(n_folds, shuffle=True, random_state=0).split(y, y):
        alone = MISVM(scale=scale, calibrate=False).fit(bags[train], y[train])
        scores[test] = alone.decision_function(bags[test])
    model = MISVM(scale=scale, calibrate=True).fit(bags, y)
    low, high = typical_range(scores, y)
    function, *ends = model.calibrator_
    np.testing.assert_allclose(ends, (low, high), rtol=1e-4)
    expected = fit_platt(compress_beyond(scores, low, high), y, shrink=True)
    np.testing.assert_allclose(function, expected, rtol=1e-3)


def test_one_score_unlike_the_others_does_not_flatten_the_probabilities_of_all():
    """It is thousands of times as large, and of the wrong class; the others keep theirs."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    scores = rng.normal(size=60) + 2 * y
    one_odd = np.where(np.arange(60) == 0, 5e3, scores)
    plain, odd = fit_calibrator(scores, y), fit_calibrator(one_odd, y)
    assert odd.function.slope > 0.5 * plain.function.slope
    assert fit_platt(one_odd, y, shrink=True).slope < 1e-3
    # Within one width of the usual range lies all that a score can say.
    at_most = odd.function.log_odds(odd.high + (odd.high - odd.low))
    np.testing.assert_allclose(odd.log_odds(np.array([1e12])), at_most)


@pytest.mark.parametrize("make", [SingleInstance, StatisticsClassifier])
def test_wrapped_classifiers_take_the_same_calibration(make):
    bags, y = make_bags(15)
    model = make(calibration="isotonic", cv=3).fit(bags, y)
    assert isinstance(model.calibrator_.function, Isotonic)
    raw = make(calibrate=False).fit(bags, y).decision_function(bags)
    order = np.argsort(raw)
    assert (np.diff(model.decision_function(bags)[order]) >= 0).all()
    with pytest.raises(ValueError, match="every bag into one test fold"):
        make(cv=ShuffleSplit(1, random_state=0)).fit(bags, y)
