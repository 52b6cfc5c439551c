from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as skm
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC

from bagwise import Bags, BagStatistics, OneVsRest, SingleInstance, make_pipeline
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
from bagwise.evaluate.metrics import (
    METRICS,
    call_classes,
    instance_targets,
    model_outputs,
    targets,
)
from tests.models.test_several_classes import make_classes, make_indicators
from tests.reference import metrics as naive

LOSSES = {"log_loss", "brier", "ece"}

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


def test_rows_of_one_class_only_have_losses():
    made = score_predictions([1, 1], label=[1, 0], proba=[1.0, 0.5])
    assert made["log_loss"] == pytest.approx(np.log(2) / 2)
    assert made["brier"] == pytest.approx(0.125)
    assert made["ece"] == pytest.approx(0.25)
    assert made["f1"] == pytest.approx(2 / 3)
    assert score_predictions([1, 1], proba=[1.0, 1.0])["log_loss"] == pytest.approx(0, abs=1e-9)
    assert score_predictions([0, 0], label=[0, 0])["f1"] == 0


def test_ten_bins_of_which_each_holds_its_upper_edge():
    assert expected_calibration_error([0, 1], [0.09, 0.1]) == pytest.approx(0.5 - 0.095)
    curve = reliability_curve([0, 1, 1, 1], [0.0, 0.1, 0.1000001, 1.0])
    assert curve.count.tolist() == [2, 1, 1]
    np.testing.assert_allclose(curve.predicted, [0.05, 0.1000001, 1.0])
    assert curve.observed.tolist() == [0.5, 1.0, 1.0]
    assert reliability_curve([0, 1], [0.05, 0.0951]).count.tolist() == [2]


def test_several_classes_share_one_log_loss_where_each_row_has_one_and_probabilities_sum_to_one():
    p = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.3, 0.5, 0.2]])

    def separate(y, p):
        return np.mean(-np.log(np.where(y == 1, p, 1 - p)))

    y = np.eye(3, dtype=int)[[0, 2, 0]]
    shared = -np.log([0.5, 0.8, 0.3]).mean()
    assert score_predictions(y, proba=p)["log_loss"] == pytest.approx(shared)
    assert score_predictions(y, proba=p / 2)["log_loss"] == pytest.approx(separate(y, p / 2))
    y[1] = 1, 0, 1  # a row of two classes
    assert score_predictions(y, proba=p)["log_loss"] == pytest.approx(separate(y, p))


def test_accuracy_of_several_classes_counts_whole_rows():
    y = np.array([[1, 0], [1, 1], [0, 0], [0, 1]])
    label = np.array([[1, 0], [1, 0], [0, 0], [1, 0]])
    made = score_predictions(y, label=label, metrics=["accuracy", "f1"])
    assert made["accuracy"] == 0.5
    assert made["f1"] == pytest.approx(0.4)  # .8 of the first class, 0 of the second


def test_a_class_without_two_values_has_no_part_in_the_area_but_in_the_losses():
    y, p = np.array([[0, 1], [1, 1]]), np.array([[0.2, 0.5], [0.8, 0.5]])
    made = score_predictions(y, score=p, proba=p)
    assert made["auc"] == made["auc_pr"] == 1.0
    assert made["brier"] == pytest.approx((0.04 + 0.25) / 2)


def test_tables_are_told_which_metrics_are_losses_and_which_are_pooled():
    assert {name for name, metric in METRICS.items() if metric.lower_is_better} == LOSSES
    assert [name for name, metric in METRICS.items() if metric.pooled] == ["ece"]


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


@pytest.mark.parametrize("metric", METRIC_NAMES)
def test_a_scorer_is_the_metric_and_the_negative_of_a_loss(metric, data, model):
    value = instance_metrics(model, data.bags)[metric]
    expected = -value if metric in LOSSES else value
    assert make_instance_scorer(metric)(model, data.bags, data.y) == expected


def test_the_score_is_the_decision_function_and_the_probability_only_where_there_is_none(data):
    bags, y = data.bags, data.y
    both = make_pipeline(BagStatistics(), LogisticRegression()).fit(bags, y)
    made = model_outputs(both, bags)
    np.testing.assert_array_equal(made["score"][:, 0], both.decision_function(bags))
    np.testing.assert_array_equal(made["proba"][:, 0], both.predict_proba(bags)[:, 1])
    np.testing.assert_array_equal(made["label"][:, 0], both.predict(bags))
    scores = make_pipeline(BagStatistics(), LinearSVC()).fit(bags, y)
    made = model_outputs(scores, bags)
    assert made["proba"] is None
    np.testing.assert_array_equal(made["score"][:, 0], scores.decision_function(bags))
    assert np.isnan(bag_metrics(scores, bags, y)["brier"])
    proba = make_pipeline(BagStatistics(), GaussianNB()).fit(bags, y)
    made = model_outputs(proba, bags, wanted=["score"])
    np.testing.assert_array_equal(made["score"][:, 0], proba.predict_proba(bags)[:, 1])
    assert made["label"] is None


def test_only_what_is_wanted_is_predicted(data):
    model = make_pipeline(BagStatistics(), LogisticRegression()).fit(data.bags, data.y)
    for wanted in ("label", "score", "proba"):
        made = model_outputs(model, data.bags, wanted=[wanted])
        assert [what for what, values in made.items() if values is not None] == [wanted]


def test_three_classes_are_ranked_by_their_probabilities():
    bags, y, _ = make_classes(24)
    model = make_pipeline(BagStatistics(), LogisticRegression()).fit(bags, y)
    made = model_outputs(model, bags)
    np.testing.assert_array_equal(made["score"], model.predict_proba(bags))
    np.testing.assert_array_equal(made["label"], np.eye(3)[model.predict(bags)])
    names = ["none", "above", "right"]
    np.testing.assert_array_equal(targets(np.take(names, y), model, names), np.eye(3)[y])
    np.testing.assert_array_equal(targets(y, model), np.eye(3)[y])


def test_indicators_of_two_classes_have_a_column_each():
    bags, y, truth = make_classes(24)
    matrix, of_instances = make_indicators(y), make_indicators(truth).astype(float)
    model = OneVsRest(SingleInstance(LogisticRegression())).fit(bags, matrix)
    made = model_outputs(model, bags)
    np.testing.assert_array_equal(made["score"], model.predict_proba(bags))
    assert made["proba"].shape == (24, 2)
    of_instances[0], of_instances[1, 1] = np.nan, -1
    found, known = instance_targets(model, bags, of_instances)
    np.testing.assert_array_equal(np.flatnonzero(~known), [0, 1])
    np.testing.assert_array_equal(found, make_indicators(truth)[2:])
    with pytest.raises(ValueError, match="was fitted to an indicator matrix"):
        targets(y, model)
    with pytest.raises(ValueError, match="labels have 3 columns, but the model has 2 classes"):
        targets(np.eye(3, dtype=int), model)


def test_a_row_is_called_its_most_probable_class_or_all_above_the_threshold():
    p = np.array([[0.5, 0.3, 0.6], [0.7, 0.8, 0.1]])
    assert call_classes(p, exclusive=True).tolist() == [[0, 0, 1], [0, 1, 0]]
    assert call_classes(p, exclusive=False).tolist() == [[0, 0, 1], [1, 1, 0]]
    assert call_classes(p, exclusive=False, threshold=0.7).tolist() == [[0, 0, 0], [0, 1, 0]]


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
    with pytest.raises(ValueError, match="got 3 for"):
        instance_metrics(model, data.bags, [0, 1, 0])
    with pytest.raises(ValueError, match=r"is one of the classes \[0, 1\]"):
        instance_metrics(model, data.bags, np.full(data.bags.n_instances, "ill"))
    blind = make_pipeline(BagStatistics(), LogisticRegression()).fit(data.bags, data.y)
    with pytest.raises(ValueError, match="cannot rank instances"):
        scorer(blind, data.bags, data.y)
    with pytest.raises(ValueError, match="no metric 'aoc'"):
        make_instance_scorer("aoc")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reliability_curve([0, 1], [0.2, 1.2]), r"must lie in \[0, 1\]"),
        (lambda: reliability_curve([0, 1], [-0.1, 0.2]), r"got -0\.1"),
        (lambda: reliability_curve([0, 1], [np.nan, 0.2]), "must be finite"),
        (lambda: reliability_curve([[0, 1]], [[0.2, 0.2]]), "1-d"),
        (lambda: reliability_curve([0, 2], [0.2, 0.2]), "must be 0 or 1"),
        (lambda: reliability_curve([0, 1], [0.2]), "of one length"),
        (lambda: reliability_curve([], []), "non-empty"),
        (lambda: reliability_curve([0, 1], [0.2, 0.2], n_bins=0), "at least 1"),
        (lambda: score_predictions([0, 1], metrics=["x"]), "no metric 'x'"),
        (lambda: score_predictions([0, 1], proba=np.eye(2)), r"got shape \(2, 2\) for \(2, 1\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
