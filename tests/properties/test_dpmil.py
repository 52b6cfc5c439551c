"""What must hold of DPMIL for any data."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bagwise import Bags
from bagwise.core import constrained, dirichlet
from bagwise.core.dirichlet import Prior
from tests.checks.raw import DPMIL


@st.composite
def problems(draw):
    """Small bags of two or three classes, with scales, offsets and repeated rows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_classes = draw(st.integers(2, 3))
    n_features = draw(st.integers(1, 4))
    y = np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, draw(st.integers(0, 6)))])
    sizes = rng.integers(1, 5, size=len(y))
    X = rng.normal(size=(sizes.sum(), n_features))
    X = X * 10.0 ** rng.uniform(-3, 3, size=n_features) + rng.normal(scale=100, size=n_features)
    if draw(st.booleans()):
        X[1 + rng.integers(0, len(X) - 1)] = X[0]
    return Bags(X, np.concatenate([[0], np.cumsum(sizes)])), rng.permutation(y)


def fit(bags, y, covariance_type="full", **parameters):
    model = DPMIL(
        n_components=3,
        covariance_type=covariance_type,
        calibrate=False,
        tol=0,
        max_iter=8,
        random_state=0,
    )
    return model.set_params(**parameters).fit(bags, y)


kinds = st.sampled_from(["full", "diag"])


@given(problems(), kinds)
@settings(max_examples=40)
def test_bound_never_falls_and_labels_keep_the_rules(problem, covariance_type):
    bags, y = problem
    model = fit(bags, y, covariance_type)
    slack = 1e-10 * np.abs(model.bounds_).max()
    assert np.all(np.diff(model.bounds_) >= -slack)
    for target, labels in zip(y, bags.split(model.instance_labels_), strict=True):
        assert target in labels
        assert set(labels) <= {0, target}


@given(problems(), kinds)
@settings(max_examples=30)
def test_outputs_are_finite_and_agree(problem, covariance_type):
    bags, y = problem
    with warnings.catch_warnings():  # a single bag of a class is left uncalibrated, with a warning
        warnings.filterwarnings("ignore", "calibration needs 2 bags")
        model = fit(bags, y, covariance_type, calibrate=True)
    p, q = model.predict_proba(bags), model.predict_proba_instances(bags)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    np.testing.assert_allclose(q.sum(axis=1), 1)
    assert np.isfinite(model.decision_function(bags)).all()
    np.testing.assert_array_equal(model.predict(bags), np.argmax(p, axis=1))
    np.testing.assert_allclose(model.weights_.sum(axis=1), 1)
    if len(model.classes_) == 2:
        # A bag is at least as surely positive as its most positive instance.
        for bag, inside in zip(p[:, 1], bags.split(q[:, 1]), strict=True):
            assert bag >= inside.max() - 1e-9


@given(problems(), st.integers(0, 1000))
@settings(max_examples=20)
def test_order_changes_nothing_but_order(problem, seed):
    bags, y = problem
    order = np.random.default_rng(seed).permutation(len(y))
    a, b = fit(bags, y), fit(bags[order], y[order])
    n = min(a.n_iter_, b.n_iter_)  # at the optimum rounding decides when to stop
    np.testing.assert_allclose(a.bounds_[:n], b.bounds_[:n], rtol=1e-7, atol=1e-6)


@given(problems(), st.floats(0.01, 100), st.floats(-100, 100))
@settings(max_examples=20)
def test_units_do_not_matter(problem, scale, shift):
    """Every feature in other units: the same labels, the same odds."""
    bags, y = problem
    moved = bags.map(lambda X: X * scale + shift)
    a, b = fit(bags, y), fit(moved, y)
    np.testing.assert_array_equal(a.instance_labels_, b.instance_labels_)
    np.testing.assert_allclose(
        a.decision_function(bags), b.decision_function(moved), rtol=1e-4, atol=1e-4
    )


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=30)
def test_statistics_are_additive(seed, diagonal):
    rng = np.random.default_rng(seed)
    n, D, K = int(rng.integers(2, 12)), int(rng.integers(1, 4)), 3
    Z, resp = rng.normal(size=(n, D)), rng.dirichlet(np.ones(K), size=n)
    cut = int(rng.integers(0, n))
    whole = dirichlet.accumulate(Z, resp, diagonal)
    parts = dirichlet.add(
        dirichlet.accumulate(Z[:cut], resp[:cut], diagonal),
        dirichlet.accumulate(Z[cut:], resp[cut:], diagonal),
    )
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_divergence_is_zero_at_the_prior_and_positive_elsewhere(seed):
    rng = np.random.default_rng(seed)
    D = int(rng.integers(1, 5))
    prior = Prior(np.zeros(D), np.eye(D), 1.0, D + 1.0, 2.0)
    empty = dirichlet.update(dirichlet.empty_statistics(4, D, False), prior)
    assert abs(dirichlet.kl(empty, prior)) < 1e-10
    Z, resp = rng.normal(size=(9, D)), rng.dirichlet(np.ones(4), size=9)
    assert dirichlet.kl(dirichlet.update(dirichlet.accumulate(Z, resp, False), prior), prior) > 0


@given(st.integers(0, 2**32 - 1))
def test_a_bare_bag_keeps_its_cheapest_instance(seed):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 5, size=5))])
    gain = rng.normal(-3, 1, size=offsets[-1])
    chosen = constrained.choose_labels(gain, offsets, np.full(offsets[-1], -1))
    for a, b in pairwise(offsets):
        if (gain[a:b] <= 0).all():
            assert chosen[a:b].sum() == 1
            assert chosen[a + np.argmax(gain[a:b])]
        else:
            np.testing.assert_array_equal(chosen[a:b], gain[a:b] > 0)
