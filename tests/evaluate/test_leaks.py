"""Random labels must score like a coin under every protocol, supervised preprocessing included."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.utils import Bunch

from bagwise import Bags, BagStatistics, InstanceTransformer, SingleInstance, make_pipeline
from bagwise.evaluate import BagFolds, GroupFolds, Nested, PublishedFolds, compare


def noise(n_bags=120, n_features=200, seed=0):
    """Many useless features: choosing among them outside the fold would look like learning."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n_bags) % 2)
    sizes = rng.integers(2, 5, n_bags)
    bags = Bags(rng.normal(size=(sizes.sum(), n_features)), np.append(0, np.cumsum(sizes)))
    folds = np.empty((2, n_bags), dtype=int)
    for repetition in range(2):
        splitter = StratifiedKFold(10, shuffle=True, random_state=repetition)
        for fold, (_, test) in enumerate(splitter.split(y, y)):
            folds[repetition, test] = fold
    return Bunch(bags=bags, y=y, published_folds=folds)


def supervised():
    """Both kinds of supervised preprocessing: on instances and on bag statistics."""
    # Without calibration, five fits more each, which changes no ranking.
    scores = SingleInstance(LogisticRegression(), calibrate=False)
    return {
        "instances": make_pipeline(InstanceTransformer(SelectKBest(f_classif, k=10)), scores),
        "bags": make_pipeline(BagStatistics(), SelectKBest(f_classif, k=10), LogisticRegression()),
        "plain": SingleInstance(LogisticRegression(C=0.01), calibrate=False),
    }


GRIDS = {
    "instances": {"instancetransformer__transformer__k": [5, 20]},
    "bags": {"selectkbest__k": [5, 20]},
}
PROTOCOLS = {
    "bag folds": BagFolds(5, (0, 1)),
    "group folds": GroupFolds(5, (0, 1)),
    "published folds": PublishedFolds(),
    "nested": Nested(BagFolds(5, (0,)), GRIDS),
    "nested in groups": Nested(GroupFolds(5, (0,)), GRIDS),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_random_labels_score_like_a_coin(name):
    # Four independent sets, so that chance alone stays well inside the tolerance.
    sets = {str(seed): noise(seed=seed) for seed in range(4)}
    if "group" in name:
        for data in sets.values():
            data.groups = np.arange(len(data.y)) // 3
    made = compare(supervised(), sets, PROTOCOLS[name], metrics=["auc"], progress=False)
    auc = made.summary().groupby("model")["mean"].mean()
    assert (np.abs(auc - 0.5) < 0.1).all(), auc.to_dict()


def test_choosing_features_outside_the_fold_would_show():
    """The check has teeth: the mistake it guards against scores far above chance here."""
    data = noise()
    model = supervised()["bags"]
    chosen = model[:-1].fit_transform(data.bags, data.y)
    leaked = cross_val_score(LogisticRegression(), chosen, data.y, scoring="roc_auc")
    assert leaked.mean() > 0.65


def test_same_patient_on_both_sides_would_show():
    """Copies of a patient's bag across folds leak its random label; GroupFolds does not."""
    data = noise(n_bags=60, n_features=20)
    twice = data.bags[np.repeat(np.arange(60), 2)]
    y, patient = np.repeat(data.y, 2), np.repeat(np.arange(60), 2)
    model = {"m": make_pipeline(BagStatistics(), LogisticRegression(C=10, max_iter=2000))}
    folds = GroupFolds(5, (0, 1))
    by_patient = Bunch(bags=twice, y=y, groups=patient)
    honest = compare(model, {"d": by_patient}, folds, metrics=["auc"], progress=False)
    naive = compare(model, {"d": (twice, y)}, BagFolds(5, (0, 1)), metrics=["auc"], progress=False)
    assert naive.summary()["mean"].iloc[0] > 0.8
    assert abs(honest.summary()["mean"].iloc[0] - 0.5) < 0.15
