from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as skm
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_validate

from bagwise import Bags, BagStatistics, SingleInstance, make_pipeline
from bagwise.datasets import make_gaussian_bags
from bagwise.evaluate import (
    METRIC_NAMES,
    bag_metrics,
    expected_calibration_error,
    instance_metrics,
    make_instance_scorer,
    reliability_curve,
    score_predictions,
)
from tests.reference import metrics as naive

# Few distinct values, so that ties are the rule.
pairs = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.5, 0.7, 0.9, 1.0])),
    min_size=2,
    max_size=40,
).filter(lambda rows: 0 < sum(y for y, _ in rows) < len(rows))


@pytest.fixture(scope="module")
def data():
    return make_gaussian_bags(n_bags=40, separation=1.5, random_state=0)


@pytest.fixture(scope="module")
def model(data):
    return SingleInstance(LogisticRegression()).fit(data.bags, data.y)


@given(pairs)
def test_ranking_metrics_equal_scikit_learn_and_the_definition_with_ties(rows):
    y, s = map(np.array, zip(*rows, strict=True))
    made = score_predictions(y, score=s, proba=s, label=(s > 0.5).astype(int))
    assert made["auc"] == pytest.approx(skm.roc_auc_score(y, s))
    assert made["auc_pr"] == pytest.approx(skm.average_precision_score(y, s))
    assert made["auc_pr"] == pytest.approx(naive.average_precision(y.tolist(), s.tolist()))
    assert made["log_loss"] == pytest.approx(skm.log_loss(y, s))
    assert made["brier"] == pytest.approx(skm.brier_score_loss(y, s))
    assert made["f1"] == pytest.approx(skm.f1_score(y, s > 0.5, zero_division=0))
    assert made["accuracy"] == skm.accuracy_score(y, s > 0.5)


@given(pairs, st.integers(1, 12))
def test_calibration_error_equals_the_definition(rows, n_bins):
    y, p = map(np.array, zip(*rows, strict=True))
    ours = expected_calibration_error(y, p, n_bins=n_bins)
    assert ours == pytest.approx(naive.calibration_error(y.tolist(), p.tolist(), n_bins))


@given(pairs)
def test_nothing_depends_on_the_order_of_rows(rows):
    y, s = map(np.array, zip(*rows, strict=True))
    order = np.random.default_rng(0).permutation(len(y))
    a = expected_calibration_error(y, s)
    assert a == pytest.approx(expected_calibration_error(y[order], s[order]))
    a, b = (score_predictions(y[o], score=s[o], proba=s[o]) for o in (slice(None), order))
    assert a == pytest.approx(b, nan_ok=True)


def test_reliability_equals_scikit_learn(rng):
    p = rng.random(500)
    y = (rng.random(500) < p).astype(int)
    curve = reliability_curve(y, p)
    observed, predicted = calibration_curve(y, p, n_bins=10)
    np.testing.assert_allclose(curve.observed, observed)
    np.testing.assert_allclose(curve.predicted, predicted)
    assert curve.count.sum() == 500


def test_calibrated_predictions_have_a_small_error(rng):
    p = rng.random(20_000)
    y = (rng.random(20_000) < p).astype(int)
    assert expected_calibration_error(y, p) < 0.02
    assert expected_calibration_error(y, np.sqrt(p)) > 0.1


def test_missing_predictions_and_single_classes_are_nan():
    made = score_predictions([1, 1], score=[0.2, 0.4], label=[1, 0])
    assert np.isnan(made["auc"])
    assert np.isnan(made["log_loss"])
    assert made["accuracy"] == 0.5


def test_bag_and_instance_metrics(model, data):
    made = bag_metrics(model, data.bags, data.y)
    assert set(made) == set(METRIC_NAMES)
    assert made["accuracy"] == model.score(data.bags, data.y)
    scores = model.decision_function_instances(data.bags)
    inst = instance_metrics(model, data.bags)
    assert inst["auc"] == skm.roc_auc_score(data.bags.instance_labels, scores)
    assert inst["log_loss"] == pytest.approx(
        skm.log_loss(data.bags.instance_labels, model.predict_proba_instances(data.bags))
    )


def test_unknown_instance_labels_are_left_out(model, data):
    labels = data.bags.instance_labels.astype(object)
    hidden = np.arange(len(labels)) % 3 == 0
    some = labels.copy()
    some[hidden] = None
    scores = model.decision_function_instances(data.bags)[~hidden]
    expected = skm.roc_auc_score(labels[~hidden].astype(int), scores)
    for missing in (some, np.where(hidden, np.nan, labels), np.where(hidden, -1, labels)):
        assert instance_metrics(model, data.bags, missing, ["auc"])["auc"] == expected


def test_named_classes(data):
    names = np.array(["healthy", "ill"])
    bags = data.bags.with_columns(instance_labels=names[data.bags.instance_labels])
    model = SingleInstance(LogisticRegression()).fit(bags, names[data.y])
    assert bag_metrics(model, bags, names[data.y])["auc"] > 0.6
    assert instance_metrics(model, bags)["auc"] > 0.6


def test_instance_scorer_in_cross_validation_and_search(data):
    scoring = {m: make_instance_scorer(m) for m in ("auc", "auc_pr", "log_loss")}
    made = cross_validate(
        SingleInstance(LogisticRegression()), data.bags, data.y, scoring=scoring, cv=3
    )
    assert (made["test_auc"] > 0.6).all()
    assert (made["test_log_loss"] < 0).all()  # a loss is negated
    search = GridSearchCV(
        SingleInstance(LogisticRegression()),
        {"estimator__C": [1e-3, 1.0]},
        scoring=make_instance_scorer("auc_pr"),
        cv=3,
    )
    assert search.fit(data.bags, data.y).best_score_ > 0.3


def test_instance_scorer_says_what_is_missing(data, model):
    scorer = make_instance_scorer("auc")
    bare = Bags(data.bags.instances, data.bags.offsets)
    with pytest.raises(ValueError, match="these bags carry none"):
        scorer(model, bare, data.y)
    blind = make_pipeline(BagStatistics(), LogisticRegression()).fit(data.bags, data.y)
    with pytest.raises(ValueError, match="cannot rank instances"):
        scorer(blind, data.bags, data.y)
    with pytest.raises(ValueError, match="no metric 'aoc'"):
        make_instance_scorer("aoc")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reliability_curve([0, 1], [0.2, 1.2]), r"must lie in \[0, 1\]"),
        (lambda: reliability_curve([0, 2], [0.2, 0.2]), "must be 0 or 1"),
        (lambda: reliability_curve([0, 1], [0.2]), "of one length"),
        (lambda: reliability_curve([], []), "non-empty"),
        (lambda: reliability_curve([0, 1], [0.2, 0.2], n_bins=0), "at least 1"),
        (lambda: score_predictions([0, 1], metrics=["x"]), "no metric 'x'"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
