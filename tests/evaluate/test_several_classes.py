"""Metrics, folds and comparisons of more than two classes."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as skm

from bagwise import VGPMIL, OneVsRest
from bagwise.evaluate import BagFolds, bag_metrics, compare, cross_validate, instance_metrics
from bagwise.evaluate.metrics import score_predictions
from bagwise.evaluate.protocols import strata
from bagwise.models.registry import make_model
from tests.models.test_several_classes import make_classes, make_indicators


def test_metrics_of_classes_are_scikit_learns():
    rng = np.random.default_rng(0)
    codes = np.arange(40) % 4
    p = rng.dirichlet(np.ones(4), size=40)
    y = np.eye(4, dtype=int)[codes]
    label = np.eye(4, dtype=int)[p.argmax(1)]
    found = score_predictions(y, label=label, score=p, proba=p)
    assert found["accuracy"] == pytest.approx(skm.accuracy_score(codes, p.argmax(1)))
    assert found["f1"] == pytest.approx(skm.f1_score(codes, p.argmax(1), average="macro"))
    assert found["auc"] == pytest.approx(skm.roc_auc_score(codes, p, multi_class="ovr"))
    assert found["auc_pr"] == pytest.approx(skm.average_precision_score(y, p))
    assert found["log_loss"] == pytest.approx(skm.log_loss(codes, p))
    each = [skm.brier_score_loss(a, b) for a, b in zip(y.T, p.T, strict=True)]
    assert found["brier"] == pytest.approx(np.mean(each))


def test_metrics_of_free_classes():
    rng = np.random.default_rng(1)
    y, p = rng.integers(2, size=(30, 3)), rng.random((30, 3))
    found = score_predictions(y, label=(p > 0.5).astype(int), score=p, proba=p)
    each = [skm.log_loss(a, b) for a, b in zip(y.T, p.T, strict=True)]
    assert found["log_loss"] == pytest.approx(np.mean(each))
    assert found["auc"] == pytest.approx(skm.roc_auc_score(y, p))
    y[:, 1] = 0  # a class without a bag has no AUC, and is left out
    rest = skm.roc_auc_score(y[:, [0, 2]], p[:, [0, 2]])
    assert score_predictions(y, score=p, metrics=["auc"])["auc"] == pytest.approx(rest)


def test_models_are_measured_on_their_own_kind_of_labels():
    bags, y, truth = make_classes()
    model = OneVsRest(make_model("single-instance")).fit(bags, y, truth, background=0)
    assert bag_metrics(model, bags, y, ["accuracy"])["accuracy"] == model.score(bags, y)
    assert instance_metrics(model, bags, truth)["auc"] > 0.9
    with pytest.raises(ValueError, match="label 7 is not one of the classes"):
        bag_metrics(model, bags, np.full(len(bags), 7))
    with pytest.raises(ValueError, match="was fitted to one class per bag"):
        bag_metrics(model, bags, make_indicators(y))


def test_folds_of_an_indicator_matrix_have_every_class():
    rng = np.random.default_rng(2)
    Y = (rng.random((60, 4)) < [0.1, 0.3, 0.5, 0.9]).astype(int)
    for split in BagFolds(4, (0,)).splits(np.zeros(60), Y):
        assert Y[split.train].any(axis=0).all()
    rarest = int(Y.sum(axis=0).argmin())
    assert (strata(Y, 2)[Y[:, rarest] == 1] == rarest + 1).all()


@pytest.mark.parametrize("free", [False, True])
def test_cross_validation_and_comparison(free):
    bags, y, _ = make_classes(24)
    y = make_indicators(y) if free else y
    given = {} if free else {"background": 0}
    model = VGPMIL(n_inducing=8, calibrate=False)
    folds = cross_validate(model, bags, y, BagFolds(3, (0,)), fit_params=given)
    assert np.mean([fold.bags.metrics(["auc"])["auc"] for fold in folds]) > 0.9
    assert folds[0].bags.proba.shape == (8, 2 if free else 3)
    models = {"gp": model, "svm": make_model("misvm", calibrate=False)}
    made = compare(models, {"toy": (bags, y)}, BagFolds(3, (0,)), fit_params=given, progress=False)
    table = made.summary(["auc", "log_loss"]).set_index(["model", "metric"])["mean"]
    assert table["gp", "auc"] > 0.9 and np.isnan(table["svm", "log_loss"])
