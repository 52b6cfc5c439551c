"""scikit-learn's own tools work on Bags, unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    train_test_split,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from bagwise import Bags, BagStatistics, InstanceTransformer, SingleInstance
from tests.checks import make_problem


@pytest.fixture(scope="module")
def problem():
    return make_problem(n_bags=40)


def model():
    return SingleInstance(LogisticRegression())


def test_cross_val_score(problem):
    bags, y, _ = problem
    assert cross_val_score(model(), bags, y, cv=4, scoring="roc_auc").mean() > 0.9


def test_cross_val_predict(problem):
    bags, y, _ = problem
    p = cross_val_predict(model(), bags, y, cv=4, method="predict_proba")
    assert p.shape == (40, 2)


def test_grid_search_in_two_processes(problem):
    bags, y, _ = problem
    search = GridSearchCV(model(), {"estimator__C": [0.1, 1.0]}, cv=3, n_jobs=2, scoring="roc_auc")
    search.fit(bags, y)
    assert search.best_score_ > 0.8
    assert search.predict(bags).shape == (40,)


def test_train_test_split(problem):
    bags, y, _ = problem
    a, b, ya, yb = train_test_split(bags, y, test_size=0.25, stratify=y, random_state=0)
    assert isinstance(a, Bags)
    assert (len(a), len(b), len(ya), len(yb)) == (30, 10, 30, 10)
    assert a.n_instances + b.n_instances == bags.n_instances


def test_learning_curve(problem):
    bags, y, _ = problem
    sizes, _, scores = learning_curve(
        model(), bags, y, cv=3, train_sizes=[0.5, 1.0], shuffle=True, random_state=0
    )
    assert scores.shape == (len(sizes), 3)


def test_pipeline(problem):
    bags, y, _ = problem
    pipeline = Pipeline([("scale", InstanceTransformer(StandardScaler())), ("sil", model())])
    scores = pipeline.fit(bags, y).decision_function(bags)
    assert roc_auc_score(y, scores) > 0.9


def test_calibrated_classifier(problem):
    bags, y, _ = problem
    calibrated = CalibratedClassifierCV(model(), cv=3).fit(bags, y)
    np.testing.assert_allclose(calibrated.predict_proba(bags).sum(axis=1), 1)


def test_one_versus_rest(problem):
    bags, _, _ = problem
    y = np.array(["a", "b", "c"])[np.arange(40) % 3]
    many = OneVsRestClassifier(model()).fit(bags, y)
    assert set(many.predict(bags)) <= {"a", "b", "c"}
    assert many.predict_proba(bags).shape == (40, 3)


def test_statistics_in_cross_validation(problem):
    bags, y, _ = problem
    pipeline = Pipeline([("embed", BagStatistics()), ("lr", LogisticRegression())])
    assert cross_validate(pipeline, bags, y, cv=3)["test_score"].mean() > 0.8


def test_instance_labels_are_metadata(problem):
    """One sequence per bag is sliced with the folds."""
    bags, y, labels = problem
    with sklearn.config_context(enable_metadata_routing=True):
        routed = model().set_fit_request(instance_labels=True)
        scores = cross_val_score(
            routed, bags, y, cv=3, params={"instance_labels": bags.split(labels)}
        )
    assert scores.mean() > 0.8
