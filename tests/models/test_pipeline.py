from __future__ import annotations

import numpy as np
import pytest
from sklearn import config_context
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline as sk_make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from bagwise import (
    MISVM,
    BagPipeline,
    Bags,
    BagStatistics,
    InstanceTransformer,
    SingleInstance,
    make_pipeline,
)
from bagwise.models.pipeline import segment_quantile
from tests.checks import CHECKS, make_problem


class LazyRows:
    """Rows that can only be read in slices, as files are."""

    def __init__(self, X):
        self.X, self.shape, self.dtype, self.ndim = X, X.shape, X.dtype, X.ndim

    def __getitem__(self, key):
        return self.X[key]


def model():
    return make_pipeline(
        InstanceTransformer(StandardScaler()), SingleInstance(LogisticRegression())
    )


# Pipeline leaves input checks to its steps; the messages name the first step.
SKIP = {"check_bad_input": "covered step by step below"}


@pytest.mark.parametrize("check", CHECKS)
def test_contract(check):
    if check.__name__ in SKIP:
        pytest.skip(SKIP[check.__name__])
    check(model)


def test_bad_input_is_named():
    bags, y, _ = make_problem()
    X = bags.instances.copy()
    X[0, 0] = np.nan
    with pytest.raises(ValueError, match="bag 0 contains NaN"):
        model().fit(Bags(X, bags.offsets), y)
    fitted = model().fit(bags, y)
    with pytest.raises(ValueError, match="expecting 3 features"):
        fitted.predict(Bags(np.ones((2, 2)), [0, 2]))


def test_twins_of_the_last_step_are_kept():
    bags, y, _ = make_problem()
    pipeline = model().fit(bags, y)
    scaled = pipeline[0].transform(bags)
    last = pipeline[-1]
    for name in ("predict_instances", "predict_proba_instances", "decision_function_instances"):
        np.testing.assert_array_equal(getattr(pipeline, name)(bags), getattr(last, name)(scaled))
    assert not hasattr(pipeline, "predict_latent")
    plain = BagPipeline([("s", BagStatistics()), ("c", LogisticRegression())])
    assert not hasattr(plain, "predict_instances")


def test_transformer_sees_instances_and_keeps_names_and_columns():
    bags, _, labels = make_problem()
    named = Bags(
        bags.instances,
        bags.offsets,
        [f"s{i}" for i in range(len(bags))],
        columns={"instance_labels": labels},
    )
    out = InstanceTransformer(PCA(2, svd_solver="full")).fit_transform(named)
    np.testing.assert_allclose(
        out.instances, PCA(2, svd_solver="full").fit_transform(bags.instances)
    )
    assert list(out.ids) == list(named.ids)
    np.testing.assert_array_equal(out.instance_labels, labels)


def test_supervised_transformer_gets_inherited_labels():
    bags, y, _ = make_problem()
    X = bags.instances.copy()
    X[:, 1:] = np.random.default_rng(0).normal(size=X[:, 1:].shape)
    noisy = Bags(X, bags.offsets)
    chosen = InstanceTransformer(SelectKBest(k=1)).fit(noisy, y).transformer_.get_support()
    assert chosen.tolist() == [True, False, False]


def test_lazy_rows_are_streamed():
    bags, y, _ = make_problem()
    lazy = Bags(LazyRows(bags.instances), bags.offsets)
    for transformer in (StandardScaler(), IncrementalPCA(2), PCA(2)):
        out = InstanceTransformer(transformer).fit(lazy).transform(lazy)
        assert out.instances.shape[0] == bags.n_instances
    a = InstanceTransformer(StandardScaler()).fit(lazy, y).transform(lazy).instances
    b = InstanceTransformer(StandardScaler()).fit(bags, y).transform(bags).instances
    np.testing.assert_allclose(a, b)
    np.testing.assert_allclose(
        BagStatistics().fit(lazy).transform(lazy), BagStatistics().fit(bags).transform(bags)
    )


def test_statistics_equal_naive():
    bags, _, _ = make_problem()
    got = BagStatistics(("mean", "max", "min", "std", 0.25, 1)).fit(bags).transform(bags)
    naive = [
        np.concatenate(
            [x.mean(0), x.max(0), x.min(0), x.std(0), np.quantile(x, 0.25, axis=0), x.max(0)]
        )
        for x in bags
    ]
    np.testing.assert_allclose(got, naive)
    names = BagStatistics(("mean", 0.25)).fit(bags).get_feature_names_out()
    assert list(names) == ["mean_x0", "mean_x1", "mean_x2", "q0.25_x0", "q0.25_x1", "q0.25_x2"]


def test_quantile_of_a_bag_of_one():
    X = np.array([[3.0], [1.0], [2.0]])
    np.testing.assert_allclose(segment_quantile(X, np.array([0, 1, 3]), 0.5), [[3.0], [1.5]])


@pytest.mark.parametrize("statistics", [("median",), (1.5,), (-0.1,)])
def test_unknown_statistics(statistics):
    bags, _, _ = make_problem()
    with pytest.raises(ValueError, match="statistics must be among"):
        BagStatistics(statistics).fit(bags)


def test_any_classifier_on_statistics():
    bags, y, _ = make_problem(n_bags=40)
    test, y_test, _ = make_problem(n_bags=40, seed=1)
    fitted = sk_make_pipeline(BagStatistics(), LogisticRegression()).fit(bags, y)
    assert fitted.score(test, y_test) > 0.8


@pytest.mark.parametrize("make", [make_pipeline, sk_make_pipeline], ids=["bagwise", "sklearn"])
@pytest.mark.parametrize("last", [SVC(), SingleInstance(SVC())], ids=["rows", "bags"])
def test_a_step_for_rows_says_what_to_do(make, last):
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match=r"InstanceTransformer\(StandardScaler\(\)\)"):
        make(StandardScaler(), last).fit(bags, y)


@pytest.mark.parametrize("given", [list, lambda bags: np.zeros((len(bags), 3, 2))])
def test_a_step_for_rows_says_so_to_lists_and_arrays_too(given):
    bags, y, _ = make_problem()
    with pytest.raises(ValueError, match="InstanceTransformer"):
        make_pipeline(StandardScaler(), SingleInstance(SVC())).fit(given(bags), y)


# Frames and scikit-learn: names, missing values, containers, weights.


def named_bags(n_bags=30, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n_bags) % 2
    X = rng.normal(size=(n_bags * 5, 3))
    X[::5] += 3 * y[:, None]
    return Bags(X, np.arange(0, n_bags * 5 + 1, 5), feature_names=["mass", "charge", "size"]), y


def test_feature_names_go_through_a_fit():
    bags, y = named_bags()
    model = SingleInstance(LogisticRegression()).fit(bags, y)
    assert model.feature_names_in_.tolist() == ["mass", "charge", "size"]
    swapped = bags.with_instances(bags.instances, feature_names=["charge", "mass", "size"])
    with pytest.raises(ValueError, match="feature 0 is called 'charge', but SingleInstance was"):
        model.predict(swapped)
    unnamed = bags.with_instances(bags.instances)
    np.testing.assert_array_equal(model.predict(unnamed), model.predict(bags))
    assert not hasattr(model.fit(unnamed, y), "feature_names_in_")


def test_names_of_a_pipeline_follow_the_steps():
    bags, y = named_bags()
    model = make_pipeline(
        InstanceTransformer(ColumnTransformer([("scale", StandardScaler(), ["size", "mass"])])),
        BagStatistics(("max",)),
        LogisticRegression(),
    ).fit(bags, y)
    scaled = model[0].transform(bags)
    assert scaled.feature_names == ("scale__size", "scale__mass")
    expected = (bags.instances - bags.instances.mean(0)) / bags.instances.std(0)
    np.testing.assert_allclose(scaled.instances, expected[:, [2, 0]])
    assert model[1].get_feature_names_out().tolist() == ["max_scale__size", "max_scale__mass"]


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_set_output_names_the_rows_and_leaves_bags(container):
    library = pytest.importorskip(container)
    bags, y = named_bags()
    steps = make_pipeline(InstanceTransformer(StandardScaler()), BagStatistics(("mean", "max")))
    rows = steps.set_output(transform=container).fit_transform(bags, y)
    assert isinstance(rows, library.DataFrame)
    assert list(rows.columns)[:2] == ["mean_mass", "mean_charge"]
    with config_context(transform_output=container):
        made = InstanceTransformer(StandardScaler()).fit_transform(bags)
    assert isinstance(made, Bags)
    assert isinstance(made.instances, np.ndarray)
    assert made.feature_names == bags.feature_names
    with pytest.raises(ValueError, match="'default', 'pandas' or 'polars'"):
        InstanceTransformer(StandardScaler()).set_output(transform="xml")


def test_missing_values_reach_an_imputer_and_nothing_else():
    bags, y = named_bags()
    X = bags.instances.copy()
    X[7, 1] = np.nan
    holes = bags.with_instances(X, bags.feature_names)
    model = make_pipeline(
        InstanceTransformer(SimpleImputer()), SingleInstance(LogisticRegression())
    )
    filled = model.fit(holes, y)[0].transform(holes)
    assert filled.instances[7, 1] == pytest.approx(np.nanmean(X[:, 1]))
    inner = (
        sk_make_pipeline(SimpleImputer(), StandardScaler()),
        ColumnTransformer(
            [("fill", SimpleImputer(), ["charge"]), ("keep", "passthrough", ["mass"])]
        ),
    )
    for transformer in inner:
        assert np.isfinite(InstanceTransformer(transformer).fit_transform(holes).instances).all()
    for transformer in (PCA(2), sk_make_pipeline(PCA(2), StandardScaler())):
        with pytest.raises(ValueError, match="bag 1 contains NaN in instance 2, feature 1"):
            InstanceTransformer(transformer).fit(holes)
    X[7, 1] = np.inf
    with pytest.raises(ValueError, match="bag 1 contains infinity in instance 2, feature 1"):
        InstanceTransformer(SimpleImputer()).fit(bags.with_instances(X))


def test_bag_weights_are_used_or_refused():
    bags, y = named_bags()
    weights = np.where(np.arange(30) < 10, 0.0, 1.0)
    weighed = SingleInstance(LogisticRegression(tol=1e-10), scale=None).fit(
        bags, y, sample_weight=weights
    )
    without = SingleInstance(LogisticRegression(tol=1e-10), scale=None).fit(bags[10:], y[10:])
    np.testing.assert_allclose(
        weighed.decision_function(bags), without.decision_function(bags), rtol=1e-5
    )
    steps = make_pipeline(BagStatistics(("max",)), LogisticRegression(tol=1e-10))
    weighed_rows = steps.fit(bags, y, sample_weight=weights).decision_function(bags)
    rows = steps.fit(bags[10:], y[10:]).decision_function(bags)
    np.testing.assert_allclose(weighed_rows, rows, rtol=1e-5)
    for model in (
        SingleInstance(KNeighborsClassifier()),
        make_pipeline(BagStatistics(), KNeighborsClassifier()),
    ):
        with pytest.raises(ValueError, match="KNeighborsClassifier cannot give bags weights"):
            model.fit(bags, y, sample_weight=weights)
    with pytest.raises(ValueError, match="MISVM cannot give bags weights"):
        make_pipeline(InstanceTransformer(StandardScaler()), MISVM()).fit(
            bags, y, sample_weight=weights
        )
    with pytest.raises(ValueError, match="bag 3 has -1"):
        weights[3] = -1
        SingleInstance(LogisticRegression()).fit(bags, y, sample_weight=weights)


def test_fit_warns_of_a_feature_that_is_the_label():
    bags, y = named_bags()
    X = bags.instances.copy()
    X[:, 2] = np.repeat(y, 5)
    leaking = bags.with_instances(X, bags.feature_names)
    with pytest.warns(UserWarning, match=r"feature 2 \('size'\) alone determines the label"):
        SingleInstance(LogisticRegression()).fit(leaking, y)
