"""Every registered model: probabilities that are right on average, and no constants."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from bagwise import Bags
from bagwise.models.registry import MODELS, make_model

QUICK = {
    "auto": {"n_inducing": 15},
    "dd-svm": {"n_starts": 5},
    "forest": {"n_estimators": 20},
    "boosting": {"n_estimators": 20},
    "mi-forest": {"n_estimators": 20},
}
N_TRAIN = 80


def draw(seed):
    """Bags with one witness among four instances, hard to tell; one bag in four is positive."""
    rng = np.random.default_rng(seed)
    y = (np.arange(4 * N_TRAIN) % 4 == 0).astype(int)
    X = rng.normal(size=(len(y), 4, 3))
    X[y == 1, 0] += 2
    return Bags(X.reshape(-1, 3), np.arange(0, 4 * len(y) + 1, 4)), y


@pytest.mark.parametrize("name", [n for n in MODELS if hasattr(make_model(n), "predict_proba")])
def test_mean_probability_is_the_base_rate_and_scores_are_not_lost(name):
    bags, y = draw(0)
    train, test = slice(0, N_TRAIN), slice(N_TRAIN, None)
    model = make_model(name, random_state=0, **QUICK.get(name, {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of short fits
        model.fit(bags[train], y[train])
    p = model.predict_proba(bags[test])[:, 1]
    # The level of 80 bags, 20 of them positive, is itself known to 0.05.
    assert abs(p.mean() - 0.25) < 0.07
    assert len(np.unique(p)) > 10


@pytest.mark.parametrize("name", ["single-instance", "statistics"])
def test_a_wrapped_score_far_out_is_not_as_far_sure(name):
    """Twice as far beyond the usual scores is less than twice the log-odds; order stays."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    bags = Bags.from_list([rng.normal(size=(4, 3)) + 0.7 * label for label in y])
    model = make_model(name).fit(bags, y)
    (slope, _), low, high = model.calibrator_
    width = high - low
    inside = model._calibrated(np.array([low, high]))
    assert np.diff(inside) == pytest.approx(slope * width)
    beyond = model._calibrated(np.array([high, high + width, high + 2 * width]))
    assert (np.diff(beyond) > 0).all()
    assert beyond[2] - beyond[0] == pytest.approx(slope * width * 2 / 3)
