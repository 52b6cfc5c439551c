from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression

from bagwise import SingleInstance
from bagwise.datasets import make_gaussian_bags
from bagwise.evaluate import BagFolds, GroupFolds, compare, cross_validate
from bagwise.report import Evaluation


@pytest.fixture(scope="module")
def data():
    return make_gaussian_bags(n_bags=30, random_state=0)


class Listening(BaseEstimator):
    """Keeps what fit was given, and draws a number of its own."""

    def __init__(self, random_state=None):
        self.random_state = random_state

    def fit(self, bags, y, instance_labels=None):
        LOG.append((bags, y, instance_labels, self.random_state))
        self.classes_ = np.unique(y)
        warnings.warn("not sure", stacklevel=2)
        return self

    def decision_function(self, bags):
        return bags.sizes.astype(float)

    def predict(self, bags):
        return self.classes_[(bags.sizes > 6).astype(int)]


LOG: list = []


def test_equals_a_plain_loop_and_compare(data):
    model, protocol = SingleInstance(LogisticRegression()), BagFolds(3, (4, 5))
    folds = cross_validate(model, data.bags, data.y, protocol)
    assert [(f.split.seed, f.split.fold) for f in folds] == [
        (s, k) for s in (4, 5) for k in range(3)
    ]
    for fold, split in zip(folds, protocol.splits(data.bags, data.y), strict=True):
        fitted = clone(model).fit(data.bags[split.train], data.y[split.train])
        test = data.bags[split.test]
        np.testing.assert_array_equal(fold.bags.y, data.y[split.test])
        np.testing.assert_array_equal(fold.bags.proba, fitted.predict_proba(test)[:, 1])
        np.testing.assert_array_equal(fold.bags.label, fitted.predict(test))
        np.testing.assert_array_equal(
            fold.instances.score, fitted.decision_function_instances(test)
        )
        np.testing.assert_array_equal(fold.instances.y, test.instance_labels)
    made = compare({"m": model}, {"d": data}, protocol, progress=False)
    assert [f.bags.metrics() for f in folds] == [r["bags_metrics"] for r in made.records]
    assert [f.instances.metrics() for f in folds] == [r["instances_metrics"] for r in made.records]


def test_processes_and_progress_change_nothing(data):
    model, protocol = SingleInstance(LogisticRegression()), BagFolds(3, (0,))
    seen = []

    def progress(folds, n):
        for fold in folds:
            seen.append((fold.split.fold, n))
            yield fold

    one = cross_validate(model, data.bags, data.y, protocol, progress=progress)
    two = cross_validate(model, data.bags, data.y, protocol, n_jobs=2)
    assert seen == [(0, 3), (1, 3), (2, 3)]
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a.bags.proba, b.bags.proba)


def test_fit_gets_its_fold_only(data):
    LOG.clear()
    known = np.arange(data.bags.n_instances)
    folds = cross_validate(Listening(), data.bags, data.y, BagFolds(3, (7,)), instance_labels=known)
    for fold, (bags, y, labels, seed) in zip(folds, LOG, strict=True):
        rows = np.isin(data.bags.bag_index, fold.split.train)
        np.testing.assert_array_equal(bags.instances, data.bags.instances[rows])
        np.testing.assert_array_equal(labels, known[rows])
        np.testing.assert_array_equal(y, data.y[fold.split.train])
        assert seed == 7
        assert fold.warnings == ["UserWarning: not sure"]
        assert fold.bags.proba is None
        assert fold.instances is None
        assert np.isnan(fold.bags.metrics()["log_loss"])
    with pytest.raises(ValueError, match="gives no probabilities"):
        Evaluation.from_folds(folds, "folds")


def test_groups_stay_together_and_evaluation_is_in_bag_order(data):
    patients = np.arange(30) // 2
    model, protocol = SingleInstance(LogisticRegression()), GroupFolds(3, (0,))
    folds = cross_validate(model, data.bags, data.y, protocol, groups=patients)
    for fold in folds:
        assert not set(patients[fold.split.train]) & set(patients[fold.split.test])
    made = Evaluation.from_folds(folds, "by patient")
    np.testing.assert_array_equal(made.y[:, 0], data.y)
    for fold in folds:
        np.testing.assert_array_equal(made.probability[fold.split.test, 0], fold.bags.proba)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [0, 1]}, "got 2 labels for 30 bags"),
        ({"groups": [1, 2]}, "got 2 groups for 30 bags"),
        ({"model": SingleInstance}, "needs an unfitted scikit-learn estimator"),
        ({"scheme": BagFolds(40)}, "40 bags of each class; class 0 has 15"),
        ({"scheme": BagFolds(1)}, "at least 2 folds"),
    ],
)
def test_bad_input(change, message, data):
    usual = {
        "model": SingleInstance(LogisticRegression()),
        "bags": data.bags,
        "y": data.y,
        "scheme": BagFolds(3, (0,)),
    }
    with pytest.raises(ValueError, match=message):
        cross_validate(**{**usual, **change})


def test_the_failing_fit_is_named(data):
    class Failing(Listening):
        def fit(self, bags, y):
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut") as caught:
        cross_validate(Failing(), data.bags, data.y, BagFolds(3, (0,)))
    assert "seed 0, fold 0" in "".join(caught.value.__notes__)
