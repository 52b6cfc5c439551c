"""Every registered model: probabilities that are right on average, and no constants."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from bagwise import Bags
from bagwise.models.registry import MODELS, make_model

QUICK = {
    "auto": {"n_inducing": 15, "cv": 2, "n_finalists": 2, "max_iter": 5},
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
    low, high = model.score_range_
    width, slope = high - low, model.calibration_.slope
    inside = model._calibrated(np.array([low, high]))
    assert np.diff(inside) == pytest.approx(slope * width)
    beyond = model._calibrated(np.array([high, high + width, high + 2 * width]))
    assert (np.diff(beyond) > 0).all()
    assert beyond[2] - beyond[0] == pytest.approx(slope * width * 2 / 3)


@pytest.mark.parametrize("name", ["vgpmil", "lm-vgpmil"])
def test_a_bag_far_out_is_not_as_far_sure(name):
    """Bags inside their usual range follow a line; none leaves it by more than its width."""
    rng = np.random.default_rng(1)
    y = np.arange(60) % 2
    bags = Bags.from_list([rng.normal(size=(4, 3)) + 0.7 * label for label in y])
    model = make_model(name, random_state=0, kernel="linear", max_iter=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(bags, y)
    slope, intercept, low, high, _ = model.calibration_
    raw = (model.held_out_decision_ - intercept) / slope  # compressed
    assert np.isfinite([low, high]).all() and low < high
    # A quarter of either class may lie beyond its end, and no more than a width beyond it.
    ends = [np.quantile(raw[y == label], (0.25, 0.75)) for label in (0, 1)]
    ends = min(e[0] for e in ends), max(e[1] for e in ends)
    np.testing.assert_allclose([low, high], ends, rtol=0.01)  # quantiles of compressed values
    assert (np.abs(raw - (low + high) / 2) < 1.5 * (high - low)).all()
    steps = Bags.from_list([np.full((1, 3), 0.7 * k) for k in (-1000, -10, 0, 10, 1000)])
    z = model.decision_function(steps)
    assert (np.diff(z) > 0).all()
    assert z[-1] <= slope * (high + (high - low)) + intercept
    assert z[0] >= slope * (low - (high - low)) + intercept


def test_an_ensemble_is_not_far_surer_of_a_bag_far_out():
    bags, y = draw(2)
    model = make_model("auto", random_state=0, **QUICK["auto"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(bags[:N_TRAIN], y[:N_TRAIN])
    low, high = model.bag_range_
    decision = model.held_out_decision_
    ends = [np.quantile(decision[y[:N_TRAIN] == label], (0.25, 0.75)) for label in (0, 1)]
    ends = min(e[0] for e in ends), max(e[1] for e in ends)
    np.testing.assert_allclose([low, high], ends, rtol=0.01)  # quantiles of compressed values
    for z in (decision, model.decision_function(bags)):
        assert (np.abs(z - (low + high) / 2) < 1.5 * (high - low)).all()
    # What is compressed at the end is the mean of the members: a model without ends says more.
    inside = model.decision_function(bags)
    model.bag_range_ = (-np.inf, np.inf)
    plain = model.decision_function(bags)
    between = (plain > low) & (plain < high)
    np.testing.assert_allclose(inside[between], plain[between])
    assert (np.abs(inside[~between]) < np.abs(plain[~between])).any()


def test_classes_of_several_have_no_ends():
    """An instance of one of several classes counts as a bag of one, most of which are far below."""
    rng = np.random.default_rng(3)
    y = np.arange(45) % 3
    bags = Bags.from_list([rng.normal(size=(3, 2)) + 2 * label for label in y])
    model = make_model("vgpmil", random_state=0, max_iter=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(bags, y)
    assert [one.calibration_[2:4] for one in model.per_class_] == 3 * [(-np.inf, np.inf)]
