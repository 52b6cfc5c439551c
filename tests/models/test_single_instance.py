from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from bagwise import Bags
from tests.checks import CHECKS, make_problem, sklearn_checks
from tests.checks.raw import SingleInstance

FACTORIES = {
    "logistic": lambda: SingleInstance(LogisticRegression()),
    "noisy-or": lambda: SingleInstance(LogisticRegression(C=0.1), bag_rule="noisy-or"),
    "svc": lambda: SingleInstance(SVC()),
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("check", CHECKS)
def test_contract(check, name):
    if name == "noisy-or" and check.__name__ == "check_learns":
        pytest.skip("inherited labels inflate p, so noisy-or calls most bags positive")
    check(FACTORIES[name])


@sklearn_checks(SingleInstance(LogisticRegression()), SingleInstance(SVC()))
def test_sklearn(estimator, check):
    check(estimator)


def test_equals_the_classifier_on_repeated_labels():
    bags, y, _ = make_problem()
    direct = LogisticRegression().fit(bags.instances, np.repeat(y, bags.sizes))
    model = SingleInstance(LogisticRegression()).fit(bags, y)
    np.testing.assert_allclose(
        model.predict_proba_instances(bags), direct.predict_proba(bags.instances)
    )
    p = direct.predict_proba(bags.instances)[:, 1]
    expected = [part.max() for part in bags.split(p)]
    np.testing.assert_allclose(model.predict_proba(bags)[:, 1], expected)


def test_sparse_equals_dense():
    bags, y, _ = make_problem()
    sparse = Bags(sp.csr_matrix(bags.instances), bags.offsets)
    a, b = (SingleInstance(SVC()).fit(x, y).decision_function(x) for x in (bags, sparse))
    np.testing.assert_allclose(a, b)


def test_noisy_or_needs_probabilities():
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match="SVC has no predict_proba"):
        SingleInstance(SVC(), bag_rule="noisy-or").fit(bags, y)
    assert not hasattr(SingleInstance(SVC()), "predict_proba")


def test_parameters_are_checked():
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match="bag_rule"):
        SingleInstance(SVC(), bag_rule="mean").fit(bags, y)
    with pytest.raises(ValueError, match="estimator"):
        SingleInstance("svm").fit(bags, y)


def test_more_than_two_classes_says_what_to_do():
    bags, _, _ = make_problem()
    with pytest.raises(ValueError, match="OneVsRestClassifier"):
        SingleInstance(SVC()).fit(bags, np.arange(len(bags)) % 3)
