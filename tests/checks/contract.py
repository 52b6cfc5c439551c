"""The checks themselves. ``make`` builds a fresh, seeded, quick estimator."""

from __future__ import annotations

import pickle  # noqa: TID251 - joblib and Dask pickle estimators

import numpy as np
import pytest
from sklearn.base import clone

from bagwise import Bags

BAG_METHODS = ("predict", "decision_function", "predict_proba")
METHODS = BAG_METHODS + tuple(f"{name}_instances" for name in BAG_METHODS)


def make_problem(n_bags=24, n_features=3, seed=0, shift=3.0):
    """Well-separated bags: positive ones hold one or two shifted instances."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_bags) % 2
    arrays, labels = [], []
    for target in y:
        n = int(rng.integers(2, 6))
        x = rng.normal(size=(n, n_features))
        positive = np.zeros(n, dtype=int)
        if target:
            positive[: rng.integers(1, 3)] = 1
        x[positive == 1] += shift
        arrays.append(x)
        labels.append(positive)
    return Bags.from_list(arrays), y, np.concatenate(labels)


def outputs(model, bags):
    """Everything a fitted model says about bags, by method name."""
    return {name: getattr(model, name)(bags) for name in METHODS if hasattr(model, name)}


def with_instances(model):
    return hasattr(model, "decision_function_instances")


def assert_same(a, b, tol=1e-7):
    assert a.keys() == b.keys()
    for name in a:
        if a[name].dtype.kind == "f":
            np.testing.assert_allclose(a[name], b[name], rtol=tol, atol=tol, err_msg=name)
        else:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def check_shapes(make):
    bags, y, _ = make_problem()
    model = make().fit(bags, y)
    out = outputs(model, bags)
    assert {"predict", "decision_function"} <= out.keys()
    for name, value in out.items():
        rows = bags.n_instances if name.endswith("_instances") else len(bags)
        assert len(value) == rows, name
        assert np.isfinite(value).all(), name
    assert model.n_features_in_ == 3
    np.testing.assert_array_equal(model.classes_, [0, 1])


def check_learns(make):
    bags, y, _ = make_problem(n_bags=40)
    test, y_test, labels = make_problem(n_bags=40, seed=1)
    model = make().fit(bags, y)
    assert model.score(test, y_test) >= 0.8
    if with_instances(model):
        from sklearn.metrics import roc_auc_score

        assert roc_auc_score(labels, model.decision_function_instances(test)) >= 0.8


def check_probabilities(make):
    bags, y, _ = make_problem()
    model = make().fit(bags, y)
    for name in ("predict_proba", "predict_proba_instances"):
        if hasattr(model, name):
            p = getattr(model, name)(bags)
            assert p.shape[1] == 2
            assert ((p >= 0) & (p <= 1)).all()
            np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-9)
    if hasattr(model, "predict_proba"):
        # predict and predict_proba tell one story.
        p = model.predict_proba(bags)[:, 1]
        clear = np.abs(p - 0.5) > 1e-6
        np.testing.assert_array_equal(model.predict(bags)[clear], (p > 0.5)[clear].astype(int))


def check_any_two_classes(make):
    bags, y, _ = make_problem()
    plain = make().fit(bags, y)
    named = make().fit(bags, np.array(["benign", "malignant"])[y])
    assert set(named.predict(bags)) <= {"benign", "malignant"}
    np.testing.assert_allclose(
        plain.decision_function(bags), named.decision_function(bags), rtol=1e-7, atol=1e-9
    )


def check_instance_order(make):
    """Permuting the instances inside test bags permutes the answers and nothing else."""
    bags, y, _ = make_problem()
    model = make().fit(bags, y)
    rng = np.random.default_rng(5)
    starts = bags.offsets[:-1]
    order = np.concatenate(
        [a + rng.permutation(n) for a, n in zip(starts, bags.sizes, strict=True)]
    )
    shuffled = Bags(bags.instances[order], bags.offsets)
    before, after = outputs(model, bags), outputs(model, shuffled)
    for name in before:
        if name.endswith("_instances"):
            before[name] = before[name][order]
    assert_same(before, after)


def check_bag_order(make):
    bags, y, _ = make_problem()
    model = make().fit(bags, y)
    order = np.random.default_rng(6).permutation(len(bags))
    np.testing.assert_allclose(
        model.decision_function(bags)[order], model.decision_function(bags[order]), rtol=1e-7
    )


def check_single_bag_prediction(make):
    """A bag's prediction does not depend on the company it is predicted in."""
    bags, y, _ = make_problem()
    model = make().fit(bags, y)
    one = np.concatenate([model.decision_function(bags[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(one, model.decision_function(bags)[:5], rtol=1e-7, atol=1e-9)


def check_predict_is_pure(make):
    bags, y, _ = make_problem()
    model = make().fit(bags, y)
    before = bags.instances.copy()
    first, second = outputs(model, bags), outputs(model, bags)
    assert_same(first, second, tol=0)
    np.testing.assert_array_equal(before, bags.instances)


def check_clone_and_pickle(make):
    bags, y, _ = make_problem()
    model = make()
    params = clone(model).get_params()
    model.fit(bags, y)
    assert clone(model).get_params().keys() == params.keys()
    again = pickle.loads(pickle.dumps(model))
    assert_same(outputs(model, bags), outputs(again, bags), tol=0)


def check_seeds_reproduce(make):
    bags, y, _ = make_problem()
    assert_same(outputs(make().fit(bags, y), bags), outputs(make().fit(bags, y), bags), tol=0)


def check_fit_leaves_parameters(make):
    bags, y, _ = make_problem()
    model = make()
    before = {k: repr(v) for k, v in model.get_params().items()}
    assert model.fit(bags, y) is model
    assert before == {k: repr(v) for k, v in model.get_params().items()}


def check_input_kinds(make):
    """A list of arrays and equal-sized 3-d input mean the same as Bags."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(16, 4, 3))
    y = np.arange(16) % 2
    X[y == 1, 0] += 3
    as_bags = Bags(X.reshape(-1, 3), np.arange(17) * 4)
    a = make().fit(as_bags, y).decision_function(as_bags)
    np.testing.assert_allclose(a, make().fit(X, y).decision_function(X), rtol=1e-9)
    np.testing.assert_allclose(a, make().fit(list(X), y).decision_function(list(X)), rtol=1e-9)


def check_bad_input(make):
    bags, y, _ = make_problem()

    def broken(row, col, value):
        X = bags.instances.copy()
        X[row, col] = value
        return Bags(X, bags.offsets, ids=[f"s{i}" for i in range(len(bags))])

    row = int(bags.offsets[3])
    cases = [
        (broken(row, 1, np.nan), y, r"bag 3 \('s3'\) contains NaN in instance 0, feature 1"),
        (broken(row, 1, np.inf), y, r"bag 3 \('s3'\) contains infinity"),
        (bags, np.zeros(len(bags)), "two classes"),
        (bags, y[:-1], f"got {len(bags) - 1} labels for {len(bags)} bags"),
        ([], [], "at least one bag"),
        (bags.instances, y, "one 2-d array"),
        (Bags(bags.instances, [0, 0, bags.n_instances]), [0, 1], "bag 0 has 0 instances"),
    ]
    for data, labels, message in cases:
        with pytest.raises(ValueError, match=message):
            make().fit(data, labels)
    model = make().fit(bags, y)
    with pytest.raises(ValueError, match="expecting 3 features"):
        model.predict(Bags(np.ones((4, 2)), [0, 4]))
    with pytest.raises(ValueError, match="bag 1 has 0 instances"):
        model.predict(Bags(np.ones((4, 3)), [0, 4, 4]))


def check_not_fitted(make):
    from sklearn.exceptions import NotFittedError

    bags, _, _ = make_problem()
    model = make()
    for name in METHODS:
        if hasattr(model, name):
            with pytest.raises(NotFittedError):
                getattr(model, name)(bags)


def check_instance_labels(make):
    """Missing means unknown, in every spelling; contradictions name the bag."""
    bags, y, _ = make_problem()
    unknown = np.full(bags.n_instances, np.nan)
    base = make().fit(bags, y).decision_function(bags)
    for missing in (unknown, [None] * bags.n_instances, np.full(bags.n_instances, -1)):
        model = make().fit(bags, y, instance_labels=missing)
        np.testing.assert_allclose(base, model.decision_function(bags), rtol=1e-9)
    clash = unknown.copy()
    clash[bags.offsets[4]] = 1  # bag 4 is negative
    with pytest.raises(ValueError, match="bag 4 is labelled negative"):
        make().fit(bags, y, instance_labels=clash)
    with pytest.raises(ValueError, match="instance_labels needs one entry per instance"):
        make().fit(bags, y, instance_labels=[1, 0])


def check_known_labels_used(make):
    """With every instance label given, instances are at least as well ranked."""
    from sklearn.metrics import roc_auc_score

    bags, y, labels = make_problem(shift=1.5)
    model = make().fit(bags, y, instance_labels=labels)
    if with_instances(model):
        weak = make().fit(bags, y).decision_function_instances(bags)
        strong = model.decision_function_instances(bags)
        assert roc_auc_score(labels, strong) >= roc_auc_score(labels, weak) - 0.02


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
