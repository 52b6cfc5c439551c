from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier
from sklearn.feature_selection import SelectFromModel, SelectKBest, f_classif
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from bagwise import Bags, BagStatistics, InstanceTransformer, SingleInstance, make_pipeline
from bagwise.datasets import load_musk1, make_gaussian_bags
from bagwise.evaluate import (
    BagFolds,
    FixedSplits,
    GroupFolds,
    Nested,
    PublishedFolds,
    Split,
    check_model,
)
from bagwise.evaluate.protocols import Scheme, checked_splits, strata


@pytest.fixture(scope="module")
def data():
    return make_gaussian_bags(n_bags=40, random_state=0)


def test_bag_folds_are_stratified_and_complete(data):
    splits = checked_splits(BagFolds(n_splits=4, seeds=(3, 5)), data.bags, data.y)
    assert [s.seed for s in splits] == [3] * 4 + [5] * 4
    for seed in (3, 5):
        tested = np.concatenate([s.test for s in splits if s.seed == seed])
        np.testing.assert_array_equal(np.sort(tested), np.arange(40))
    for split in splits:
        assert data.y[split.test].sum() == 5
    assert not np.array_equal(splits[0].test, splits[4].test)


def test_by_default_five_folds_are_repeated_three_times(data):
    splits = list(BagFolds().splits(data.bags, data.y))
    assert [(s.seed, s.fold) for s in splits] == [(r, k) for r in range(3) for k in range(5)]
    assert str(splits[-1]) == "seed 2, fold 4"


def test_groups_of_one_bag_each_are_no_groups(data):
    scheme = BagFolds(4, seeds=(0,))
    without = scheme.splits(data.bags, data.y)
    for a, b in zip(scheme.splits(data.bags, data.y, np.arange(40)), without, strict=True):
        np.testing.assert_array_equal(a.test, b.test)


def test_group_folds_keep_patients_together(data):
    patient = np.array([f"p{i // 3}" for i in range(40)])
    splits = checked_splits(GroupFolds(n_splits=4, seeds=(0, 1)), data.bags, data.y, patient)
    assert len(splits) == 8
    for split in splits:
        assert not set(patient[split.train]) & set(patient[split.test])


def test_published_folds_are_followed_exactly():
    data = load_musk1()
    splits = list(PublishedFolds().splits(data.bags, data.y, None, data.published_folds))
    assert len(splits) == 50
    for split in splits:
        of_bag = data.published_folds[split.seed]
        np.testing.assert_array_equal(np.flatnonzero(of_bag == split.fold), split.test)
    assert len(list(PublishedFolds(2).splits(data.bags, data.y, None, data.published_folds))) == 20


def test_nested_search_respects_groups(data):
    patient = np.arange(40) // 2
    grid = {"m": {"estimator__C": [0.1, 1]}}
    protocol = Nested(GroupFolds(4), grid, inner_splits=3)
    split = next(protocol.splits(data.bags, data.y, patient))
    model = SingleInstance(LogisticRegression())
    search = protocol.prepare("m", model, 0, data.y[split.train], patient[split.train])
    inner = patient[split.train]
    for train, test in search.cv:
        assert not set(inner[train]) & set(inner[test])
    search.fit(data.bags[split.train], data.y[split.train])
    assert search.best_params_["estimator__C"] in (0.1, 1)
    assert protocol.prepare("other", model, 0, data.y) is model


def test_nested_search_has_the_outer_splits_and_three_inner_folds_of_the_training_bags(data):
    scheme = Nested(BagFolds(4, seeds=(1,)), {"m": {"estimator__C": [0.1, 1]}})
    splits = list(scheme.splits(data.bags, data.y))
    for nested, outer in zip(splits, scheme.outer.splits(data.bags, data.y), strict=True):
        np.testing.assert_array_equal(nested.test, outer.test)
    model, y = SingleInstance(LogisticRegression()), data.y[splits[0].train]
    search = scheme.prepare("m", model, 1, y)
    assert (len(search.cv), search.scoring) == (3, "roc_auc")
    np.testing.assert_array_equal(np.sort(np.concatenate([b for _, b in search.cv])), np.arange(30))
    assert [y[test].sum() for _, test in search.cv] == [5, 5, 5]


def test_all_protocols_have_the_interface():
    for protocol in (BagFolds(), GroupFolds(), PublishedFolds(), Nested()):
        assert isinstance(protocol, Scheme)


def fitted_scaler(data):
    return InstanceTransformer(StandardScaler()).fit(data.bags)


def test_parts_fitted_outside_the_fold_are_refused(data):
    end = SingleInstance(LogisticRegression())
    X, labels = data.bags.instances, data.bags.instance_labels
    refused = [
        (SingleInstance(LogisticRegression()).fit(data.bags, data.y), "SingleInstance is already"),
        (make_pipeline(fitted_scaler(data), end), "InstanceTransformer is already fitted"),
        (
            make_pipeline(InstanceTransformer(StandardScaler().fit(X)), end),
            "StandardScaler is already fitted",
        ),
        (
            make_pipeline(FrozenEstimator(fitted_scaler(data)), end),
            "FrozenEstimator keeps a part|already fitted",
        ),
        (
            make_pipeline(
                InstanceTransformer(
                    SelectFromModel(LogisticRegression().fit(X, labels), prefit=True)
                ),
                end,
            ),
            "keeps a part that was fitted outside|already fitted",
        ),
        (SingleInstance(LogisticRegression().fit(X, labels)), "LogisticRegression is already"),
        (SingleInstance, "unfitted scikit-learn estimator"),
        ("misvm", "unfitted scikit-learn estimator"),
    ]
    for model, message in refused:
        with pytest.raises(ValueError, match=message):
            check_model(model)


def test_unfitted_models_pass_and_are_cloned():
    for model in (
        make_pipeline(InstanceTransformer(SelectKBest(f_classif)), BagStatistics()),
        make_pipeline(InstanceTransformer(FunctionTransformer(np.abs)), BagStatistics()),
        CalibratedClassifierCV(SingleInstance(LogisticRegression())),
        make_pipeline(BagStatistics(), SelectFromModel(LogisticRegression()), LogisticRegression()),
        make_pipeline(BagStatistics(), StackingClassifier([("a", LogisticRegression())], cv=3)),
    ):
        assert check_model(model) is not model


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: BagFolds().splits(d.bags, d.y, groups=[0] * 40), "use GroupFolds"),
        (lambda d: BagFolds(n_splits=30).splits(d.bags, d.y), "class 0 has 20"),
        (lambda d: GroupFolds().splits(d.bags, d.y), "pass groups"),
        (lambda d: GroupFolds().splits(d.bags, d.y, [0, 1]), "got 2 for 40"),
        (lambda d: GroupFolds(5).splits(d.bags, d.y, np.arange(40) // 14), "there are 3"),
        (
            lambda d: GroupFolds(4).splits(
                d.bags, d.y, np.where(d.y == 1, np.cumsum(d.y) % 2, np.arange(2, 42))
            ),
            "bags of class 1; there are 2",
        ),
        (lambda d: PublishedFolds().splits(d.bags, d.y), "no published folds"),
        (lambda d: PublishedFolds().splits(d.bags, d.y, None, [[0, 1]]), "cover 2 bags"),
    ],
)
def test_bad_splits(call, message, data):
    with pytest.raises(ValueError, match=message):
        next(call(data))


@pytest.mark.parametrize(
    ("train", "test", "groups", "message"),
    [
        ([0, 1, 2], [2, 3], None, "bag 2 is in both"),
        ([0, 1], [2, 3], ["a", "b", "a", "c"], "group 'a' is in both"),
        ([0, 2], [1, 3], None, "one class only"),
        ([0, 1], [7], None, "numbered 0 to 3"),
        ([0, 1], [4], None, "numbered 0 to 3"),
        ([0, 1], [-1], None, "numbered 0 to 3"),
        ([0, 1], [], None, "must have training and test"),
        ([], [0, 1], None, "must have training and test"),
        ([0], [1], None, "one class only"),
    ],
)
def test_a_leaking_split_is_refused(train, test, groups, message):
    scheme = FixedSplits((Split(0, 0, np.array(train, dtype=int), np.array(test, dtype=int)),))
    bags = Bags(np.ones((4, 1)), np.arange(5))
    with pytest.raises(ValueError, match=message):
        checked_splits(scheme, bags, [0, 1, 0, 1], groups)


def test_a_split_may_leave_out_one_bag_and_leave_some_unused():
    bags = Bags(np.ones((5, 1)), np.arange(6))
    split = Split(0, 0, np.array([0, 1]), np.array([4]))
    groups = ["a", "b", "a", "b", "c"]
    assert checked_splits(FixedSplits((split,)), bags, [0, 1, 0, 1, 0], groups) == [split]


def test_training_bags_with_the_same_row_of_an_indicator_matrix_are_of_one_class():
    bags, y = Bags(np.ones((3, 1)), np.arange(4)), np.array([[1, 0], [1, 0], [1, 1]])
    checked_splits(FixedSplits((Split(0, 0, np.array([0, 2]), np.array([1])),)), bags, y)
    scheme = FixedSplits((Split(0, 0, np.array([0, 1]), np.array([2])),))
    with pytest.raises(ValueError, match="one class only"):
        checked_splits(scheme, bags, y)


def test_as_few_folds_and_groups_as_there_may_be(data):
    assert len(list(BagFolds(n_splits=2, seeds=(0,)).splits(data.bags, data.y))) == 2
    with pytest.raises(ValueError, match="at least 2 folds"):
        list(BagFolds(n_splits=1, seeds=(0,)).splits(data.bags, data.y))
    patient = np.arange(40) % 4  # each with bags of both classes
    assert len(list(GroupFolds(n_splits=4, seeds=(0,)).splits(data.bags, data.y, patient))) == 4


def test_a_part_that_says_it_was_fitted_before_is_refused():
    chosen = SelectFromModel(LogisticRegression(), prefit=True)
    model = make_pipeline(BagStatistics(), chosen, LogisticRegression())
    with pytest.raises(ValueError, match="SelectFromModel keeps a part that was fitted outside"):
        check_model(model)
    stack = StackingClassifier([("a", LogisticRegression())], cv="prefit")
    with pytest.raises(ValueError, match="StackingClassifier keeps a part that was fitted outside"):
        check_model(make_pipeline(BagStatistics(), stack))


def test_an_indicator_matrix_is_balanced_by_the_rarest_class_of_a_bag():
    y = np.zeros((20, 3), dtype=int)
    y[:10, 0], y[6:12, 2], y[0, 1] = 1, 1, 1
    # Class 1 has fewer bags than there are folds: its bag goes with what most bags have, nothing.
    found = strata(y, 2)
    assert len(set(found[1:6])) == len(set(found[6:12])) == len(set(found[12:])) == 1
    assert len(set(found)) == 3
    assert found[0] == found[-1]


def test_strata_of_two_classes_that_a_bag_may_both_have():
    y = np.repeat([[0, 0], [1, 0], [0, 1], [1, 1]], [5, 4, 3, 3], axis=0)
    # The second class is the rarer one, with 6 bags against 7.
    assert strata(y, 4).tolist() == [0] * 5 + [1] * 4 + [2] * 6
    # The 4 bags that have the first class alone are too few for 5 folds: they join the 6.
    assert strata(y, 5).tolist() == [0] * 5 + [2] * 10
    for one_column in (y[:, 0], y[:, :1]):
        np.testing.assert_array_equal(strata(one_column, 5), one_column)
