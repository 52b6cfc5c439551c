"""Every comparator passes the estimator contract, scikit-learn's checks, and scales inside."""

import numpy as np
import pytest

import bagwise
from bagwise import comparators
from tests.checks import CHECKS, make_problem, sklearn_checks

# What makes a fit quick; everything else is the class's default.
QUICK = {
    "n_starts": 3,
    "n_estimators": 15,
    "n_samples": 40,
    "n_burn_in": 20,
    "n_inducing": 40,
    "n_anchors": 40,
    "n_components": 30,
    "n_edge_features": 10,
    "n_steps": 1,
    "random_state": 0,
    "cv": 2,
}
QUICK_TOO = {"MICA": {"max_iter": 2}, "BagKISVM": {"max_iter": 3}, "InstanceKISVM": {"max_iter": 3}}
# What a method cannot do by its nature.
EXEMPT = {
    ("check_learns", "CitationKNN"): "the nearest pair of two bags is mostly background here",
    ("check_learns", "CitationKNNROI"): "as Citation-kNN",
}
# One of each kind of base class: scikit-learn's checks are about the class, not the method.
CHECKED_BY_SKLEARN = ("CitationKNN", "EMDD", "GPMIL", "VotingFramework", "StatisticsForest")


def make(name, **params):
    cls = getattr(comparators, name)
    known = cls._get_param_names()
    quick = {k: v for k, v in QUICK.items() if k in known} | QUICK_TOO.get(name, {})
    return cls(**quick | params)


@pytest.mark.parametrize(
    ("check", "name"),
    [
        (check, name)
        for check in CHECKS
        for name in comparators.__all__
        if (check.__name__, name) not in EXEMPT
    ],
)
def test_contract(check, name):
    check(lambda: make(name))


def test_exemptions_are_needed():
    """A check that passes after all must leave the list."""
    by_name = {check.__name__: check for check in CHECKS}
    for check, name in EXEMPT:
        with pytest.raises(AssertionError):
            by_name[check](lambda name=name: make(name))


@sklearn_checks(*(make(name, calibrate=False) for name in CHECKED_BY_SKLEARN))
def test_sklearn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("name", comparators.__all__)
def test_scaling_is_inside_the_model(name):
    """With scale="feature" the units of the features do not matter."""
    bags, y, _ = make_problem()
    units = np.array([1e-3, 1.0, 1e3])
    plain = make(name, scale="feature", calibrate=False).fit(bags, y)
    other = make(name, scale="feature", calibrate=False).fit(bags.map(lambda X: X * units + 5), y)
    np.testing.assert_allclose(
        plain.decision_function(bags),
        other.decision_function(bags.map(lambda X: X * units + 5)),
        rtol=1e-3,
        atol=1e-3,
    )


@pytest.mark.parametrize("name", comparators.__all__)
@pytest.mark.parametrize(("parameter", "value"), [("scale", "log"), ("cv", 0), ("calibrate", 2)])
def test_bad_parameters(name, parameter, value):
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match=f"'{parameter}' parameter|k-fold"):
        make(name).set_params(**{parameter: value}).fit(bags, y)


@pytest.mark.parametrize("name", comparators.__all__)
def test_constant_features_and_bags_of_one(name):
    """Nothing to learn is no reason to fail: scores are finite."""
    bags = bagwise.Bags(np.ones((12, 2)), np.arange(13))
    model = make(name, calibrate=False).fit(bags, np.arange(12) % 2)
    assert np.isfinite(model.decision_function(bags)).all()
