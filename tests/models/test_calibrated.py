"""Calibration of models that give scores: which fits the held-out scores come from."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

from bagwise import MISVM, Bags
from bagwise.core.platt import compress_beyond, fit_shrunk_platt, typical_range


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
    np.testing.assert_allclose(model.score_range_, (low, high), rtol=1e-4)
    expected = fit_shrunk_platt(compress_beyond(scores, low, high), y)
    np.testing.assert_allclose(model.calibration_, expected, rtol=1e-3)


def test_one_score_unlike_the_others_does_not_flatten_the_probabilities_of_all():
    """It is thousands of times as large, and of the wrong class; the others keep theirs."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    scores = rng.normal(size=60) + 2 * y
    plain, odd = (MISVM(calibrate=True), MISVM(calibrate=True))
    plain._set_calibration(scores, y)
    odd._set_calibration(np.where(np.arange(60) == 0, 5e3, scores), y)
    assert odd.calibration_.slope > 0.5 * plain.calibration_.slope
    assert fit_shrunk_platt(np.where(np.arange(60) == 0, 5e3, scores), y).slope < 1e-3
    # Within one width of the usual range lies all that a score can say.
    low, high = odd.score_range_
    at_most = odd.calibration_.log_odds(high + (high - low))
    np.testing.assert_allclose(odd._calibrated(np.array([1e12])), at_most)
