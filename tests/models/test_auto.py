"""AutoVGPMIL: what its candidates weigh, and that it predicts as every model of the family does."""

import warnings

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bagwise import AutoVGPMIL, Bags
from bagwise.datasets import make_gaussian_bags
from bagwise.models.execution import Execution
from bagwise.models.variational.auto import CANDIDATES
from tests.checks import CHECKS
from tests.checks.options import gathered

FEW = {"n_inducing": 20, "random_state": 0}


def make(**changes):
    return AutoVGPMIL(**gathered(**{"n_inducing": 15, "random_state": 0, **changes}))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    check(make)


def test_hard_data_is_finite():
    """Repeated rows, a constant feature, bags of one: finite."""
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(40, 3)))
    X[:, 1] = 7.0
    X[20:] = X[:20]
    bags = Bags(X, np.r_[np.arange(20), 30, 40])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isfinite(make().fit(bags, np.arange(21) % 2).decision_function(bags)).all()
        same = Bags(np.ones((8, 2)), np.arange(0, 9, 2))
        assert np.isfinite(make().fit(same, [0, 1, 0, 1]).decision_function(same)).all()


@pytest.fixture(scope="module")
def fitted():
    data = make_gaussian_bags(n_bags=60, random_state=0)
    return AutoVGPMIL(**FEW).fit(data.bags, data.y), data


def test_the_table_says_what_counts(fitted):
    model, _ = fitted
    table = model.search_results_
    assert table["candidate"].tolist() == [c.name for c in CANDIDATES]
    for mean, likelihood in zip(table["whole_bag"], table["likelihood"], strict=True):
        assert ("tau=0.0" in likelihood) == mean
    assert np.argmin(table["log_loss"]) == np.argmax(table["weight"])
    assert table["weight"].sum() == pytest.approx(1.0)
    kept = np.sort(table["weight"][table["weight"] >= 0.01])[::-1]
    np.testing.assert_allclose(model.weights_, kept / kept.sum())
    assert len(model.predictor_.processes) == len(model.weights_)


def test_weights_are_likelihoods_of_held_out_bags(fitted):
    model, data = fitted
    loss, weight = model.search_results_["log_loss"], model.search_results_["weight"]
    expected = np.exp(-len(data.bags) * loss)
    np.testing.assert_allclose(weight, expected / expected.sum())


def test_log_odds_are_the_weighted_sum_of_the_members(fitted):
    """Before calibration; the last digits are those of another order of sums."""
    from dataclasses import replace

    from bagwise.models.variational.readout import read_bags

    model, data = fitted
    parts = [
        read_bags(
            replace(model.predictor_, processes=(p,), weights=(1.0,)), data.bags, Execution(), "raw"
        )
        for p in model.predictor_.processes
    ]
    whole = read_bags(model.predictor_, data.bags, Execution(), "raw")
    for column in (0, 1):
        mean = sum(w * part[column] for w, part in zip(model.weights_, parts, strict=True))
        np.testing.assert_allclose(whole[column], mean, rtol=1e-10)


def test_no_instance_is_more_probable_than_its_bag(fitted):
    model, data = fitted
    bag = model.predict_proba(data.bags)[:, 1]
    share = model.predict_proba_instances(data.bags)[:, 1]
    assert np.all(share <= np.repeat(bag, data.bags.sizes) + 1e-12)


def test_threads_and_chunks_change_nothing(fitted):
    model, data = fitted
    expected = model.decision_function(data.bags)
    for execution in ("threads", Execution(chunk_size=7)):
        other = AutoVGPMIL(**FEW, execution=execution).fit(data.bags, data.y)
        np.testing.assert_allclose(other.decision_function(data.bags), expected, rtol=1e-6)


def test_standard_has_no_means():
    data = make_gaussian_bags(n_bags=40, random_state=1)
    model = AutoVGPMIL(**FEW, assumption="standard").fit(data.bags, data.y)
    assert model.whole_bag_weight_ == 0
    assert all(process.likelihood.standard for process in model.predictor_.processes)


def made_by_the_whole(n_bags, seed):
    """Bags whose label is the sign of their mean: no single instance shows it."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_bags) % 2
    X = 2.0 * rng.normal(size=(n_bags, 20, 3))
    X[:, :, 0] += 1.2 * (y[:, None] - 0.5)
    return Bags.from_list(list(X)), y


def test_means_take_part_where_the_whole_makes_the_label():
    bags, y = made_by_the_whole(80, 0)
    new, truth = made_by_the_whole(100, 1)
    data = AutoVGPMIL(**FEW).fit(bags, y)
    standard = AutoVGPMIL(**FEW, assumption="standard").fit(bags, y)
    assert data.whole_bag_weight_ > 0.5
    assert roc_auc_score(truth, data.decision_function(new)) > roc_auc_score(
        truth, standard.decision_function(new)
    )


def test_too_few_bags_to_hold_any_out():
    X = np.random.default_rng(0).normal(size=(3, 4, 2))
    model = AutoVGPMIL(n_inducing=4, random_state=0).fit(X, [0, 0, 1])
    assert np.isfinite(model.decision_function(X)).all()
    assert model.predictor_.lines is None


@pytest.mark.parametrize(
    "bad", [{"n_inducing": 0}, {"assumption": "any"}, {"max_iter": 0}, {"tol": -1}]
)
def test_bad_parameters(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        AutoVGPMIL(**bad).fit(np.zeros((4, 2, 2)), [0, 1, 0, 1])


def test_several_classes():
    y = np.arange(45) % 3
    X = np.random.default_rng(0).normal(size=(45, 5, 2))
    X[y == 1, 0] += 4
    X[y == 2, 0] -= 4
    model = AutoVGPMIL(**FEW).fit(X, y, background=0)
    assert model.predict_proba(X).shape == (45, 3)
    assert model.score(X, y) > 0.9
