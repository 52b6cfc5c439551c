"""`Coupled`: delegation, coherence, strength chosen inside the fit, and errors in one line."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.preprocessing import StandardScaler

import bagwise
from bagwise import (
    MISVM,
    VGPMIL,
    Bags,
    Coupled,
    InstanceTransformer,
    OneVsRest,
    SingleInstance,
    make_pipeline,
)
from bagwise.core import segments
from bagwise.datasets import make_neighbour_bags
from tests.checks.contract import CHECKS


def base(**settings):
    return VGPMIL(n_inducing=25, random_state=0, **settings)


@pytest.fixture(scope="module")
def chains():
    return [
        make_neighbour_bags(n_bags=40, shape=(25,), separation=2.5, random_state=seed)
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def fitted(chains):
    train, _ = chains
    return Coupled(base()).fit(train.bags, train.y)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    check(lambda: Coupled(SingleInstance(LogisticRegression()), strength=0))


def test_strength_zero_is_the_model_bit_for_bit(chains):
    train, test = chains
    model = Coupled(base(), strength=0).fit(train.bags, train.y)
    alone = base().fit(train.bags, train.y)
    for name in ("decision_function", "predict_proba", "predict"):
        for twin in ("", "_instances"):
            ours, theirs = (getattr(m, name + twin)(test.bags) for m in (model, alone))
            np.testing.assert_array_equal(ours, theirs)
    for twin in ("", "_instances"):
        ours, theirs = (
            getattr(m, f"predict_proba{twin}")(test.bags, return_std=True)[1]
            for m in (model, alone)
        )
        np.testing.assert_array_equal(ours, theirs)


def test_bags_keep_their_answer_and_instances_improve(chains, fitted):
    _, test = chains
    alone = fitted.estimator_
    assert fitted.strength_ > 0
    np.testing.assert_array_equal(fitted.predict_proba(test.bags), alone.predict_proba(test.bags))
    before, after = (m.decision_function_instances(test.bags) for m in (alone, fitted))
    truth = test.instance_labels
    assert roc_auc_score(truth, after) > roc_auc_score(truth, before)
    assert average_precision_score(truth, after) > average_precision_score(truth, before) + 0.01


def test_no_instance_is_more_probable_than_its_bag(chains, fitted):
    _, test = chains
    bag = segments.spread(fitted.decision_function(test.bags), test.bags.offsets)
    coupled = fitted.decision_function_instances(test.bags)
    assert (coupled <= bag + 1e-12).all()
    free = Coupled(base(), strength=3.0)
    free.__dict__.update({k: v for k, v in vars(fitted).items() if k.endswith("_")})
    free.strength_ = 3.0
    strong = free.decision_function_instances(test.bags)
    assert (strong <= bag + 1e-12).all()
    assert (strong == bag).any()  # the cap is at work


def test_std_is_that_of_a_beta_with_the_same_concentration(chains, fitted):
    _, test = chains
    p, std = fitted.estimator_.predict_proba_instances(test.bags, return_std=True)
    q, coupled = fitted.predict_proba_instances(test.bags, return_std=True)
    before = p[:, 1] * p[:, 0] / std**2
    after = q[:, 1] * q[:, 0] / coupled**2
    np.testing.assert_allclose(after, before, rtol=1e-6)
    assert (coupled**2 <= q[:, 1] * q[:, 0] + 1e-15).all()


def test_scattered_positives_are_left_alone():
    data = make_neighbour_bags(n_bags=40, shape=(25,), smooth=False, separation=2.5, random_state=0)
    assert Coupled(base()).fit(data.bags, data.y).strength_ == 0


def test_slides_of_a_patient_are_not_neighbours(chains):
    train, test = chains
    model = Coupled(SingleInstance(), strength=1.0).fit(train.bags, train.y)
    two = test.bags[:2]
    merged = two.merge(["p", "p"])
    together = Bags(two.instances, [0, two.n_instances], coords=two.coords)
    assert np.diff(model._graph(merged).offsets).tolist() == two.sizes.tolist()
    assert len(model._graph(together).offsets) == 2
    # The bag of both has another cap; below it nothing changes.
    apart = model.decision_function_instances(two)
    free = apart < model.decision_function(two).min() - 1e-9
    assert free.sum() > 10
    np.testing.assert_allclose(
        model.decision_function_instances(merged)[free], apart[free], atol=1e-9
    )
    assert not np.allclose(model.decision_function_instances(together)[free], apart[free])


def test_instances_one_bag_at_a_time_are_the_same(chains, fitted):
    _, test = chains
    whole = fitted.decision_function_instances(test.bags)
    parts = [fitted.decision_function_instances(test.bags[i : i + 1]) for i in range(3)]
    np.testing.assert_allclose(np.concatenate(parts), whole[: test.bags.offsets[3]], atol=1e-9)


def test_pipelines_and_models_without_std(chains):
    train, test = chains
    pipe = make_pipeline(InstanceTransformer(StandardScaler()), SingleInstance())
    model = Coupled(pipe, strength=1.0).fit(train.bags, train.y)
    p, std = model.predict_proba_instances(test.bags, return_std=True)
    assert np.isnan(std).all()
    alone = pipe.fit(train.bags, train.y).predict_proba_instances(test.bags)[:, 1]
    before = segments.mean(alone, test.bags.offsets)
    after = segments.mean(p[:, 1], test.bags.offsets)
    assert (after <= before + 1e-9).all()  # the cap may take some away
    last = make_pipeline(InstanceTransformer(StandardScaler()), Coupled(base(), strength=1.0))
    assert last.fit(train.bags, train.y).predict_instances(test.bags).shape == (
        test.bags.n_instances,
    )


def test_saved_and_loaded(chains, fitted, tmp_path):
    _, test = chains
    again = bagwise.load(bagwise.save(fitted, tmp_path / "m.bagwise"))
    np.testing.assert_array_equal(
        again.decision_function_instances(test.bags),
        fitted.decision_function_instances(test.bags),
    )
    assert again.strength_search_.strength == fitted.strength_


def test_rows_on_disk_give_the_same(chains, fitted, tmp_path):
    _, test = chains
    path = test.bags.save(tmp_path / "test.bags")
    lazy = Bags.load(path, lazy=True)
    np.testing.assert_allclose(
        fitted.decision_function_instances(lazy),
        fitted.decision_function_instances(test.bags),
        atol=1e-9,
    )


def test_known_instance_labels_reach_the_folds(chains):
    train, _ = chains
    model = Coupled(base()).fit(train.bags, train.y, instance_labels=train.instance_labels)
    assert model.strength_search_.by_labels
    assert model.strength_ > 0


def test_graph_is_chosen_by_the_coordinates(chains):
    train, _ = chains
    bags = train.bags
    model = Coupled(base(), strength=1.0)
    assert model._graph(bags).kind == "chain"
    assert clone(model).set_params(graph="neighbours")._graph(bags).kind == "neighbours"
    plane = bags.with_columns(coords=np.column_stack([bags.coords, bags.coords]))
    assert model._graph(plane).kind == "neighbours"
    with pytest.raises(ValueError, match="graph='chain' needs an order"):
        clone(model).set_params(graph="chain")._graph(plane)


def test_classes_are_coupled_one_by_one(chains):
    """Coupled itself knows two classes; every class of several gets a strength of its own."""
    train, test = chains
    y = np.where(train.y == 0, 0, 1 + np.arange(len(train.y)) % 2)
    for labels in (y, np.column_stack([train.y, 1 - train.y])):
        with pytest.raises(ValueError, match=r"Coupled knows two classes.*OneVsRest") as caught:
            Coupled(base()).fit(train.bags, labels)
        assert "\n" not in str(caught.value)
    plain = OneVsRest(base(calibrate=False)).fit(train.bags, y, background=0)
    free = OneVsRest(Coupled(base(calibrate=False), strength=0)).fit(train.bags, y, background=0)
    np.testing.assert_array_equal(
        free.predict_proba_instances(test.bags), plain.predict_proba_instances(test.bags)
    )
    model = OneVsRest(Coupled(base(calibrate=False), strength=1.0))
    model.fit(train.bags, y, background=0)
    p = model.predict_proba_instances(test.bags)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    found = [1 - m.predict_proba_instances(test.bags)[:, 0] for m in (plain, model)]
    truth = test.instance_labels == 1
    assert average_precision_score(truth, found[1]) > average_precision_score(truth, found[0])


def test_errors(chains):
    train, _ = chains
    bare = Bags(train.bags.instances, train.bags.offsets)
    with pytest.raises(ValueError, match="Coupled needs to know where instances lie"):
        Coupled(base()).fit(bare, train.y)
    with pytest.raises(ValueError, match="Coupled needs a model with predict_proba; MISVM"):
        Coupled(MISVM(calibrate=False)).fit(train.bags, train.y)
    with pytest.raises(ValueError, match="at least 4 of each class; the rarer one has 3"):
        few = np.concatenate([np.flatnonzero(train.y)[:3], np.flatnonzero(train.y == 0)])
        Coupled(base()).fit(train.bags[few], train.y[few])
    with pytest.raises(ValueError, match="'coords' must have one row per instance: got 3 rows"):
        Bags(train.bags.instances, train.bags.offsets, coords=[1, 2, 3])
    model = Coupled(base(), strength=1.0).fit(train.bags, train.y)
    with pytest.raises(ValueError, match="Coupled needs to know where instances lie"):
        model.predict_instances(bare)


def test_probabilities_are_the_sigmoid_of_the_scores(chains, fitted):
    _, test = chains
    np.testing.assert_allclose(
        fitted.predict_proba_instances(test.bags)[:, 1],
        expit(fitted.decision_function_instances(test.bags)),
    )


def test_experiment(tmp_path):
    pytest.importorskip("pydicom", reason="the vision extra is missing")
    from experiments import coupling as experiment

    table = experiment.run(True, tmp_path).set_index(["data", "model", "metric"])["mean"]
    for data in ("chain of 30, positives together", "chain of 30, positives scattered"):
        alone, coupled = (table[data, model, "instance AP"] for model in ("alone", "coupled"))
        assert coupled >= alone - 0.005
        assert table[data, "alone", "bag AUC"] == table[data, "coupled", "bag AUC"]
    assert (tmp_path / "coupling.png").stat().st_size > 1000
