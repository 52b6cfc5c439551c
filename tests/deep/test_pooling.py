"""Pooling networks and DSMIL: the contract, and pooling against loops."""

import numpy as np
import pytest

from bagwise import Bags
from tests.checks import CHECKS, make_problem

torch = pytest.importorskip("torch", reason="the torch extra is missing")
pytest.importorskip("safetensors", reason="the torch extra is missing")

import bagwise  # noqa: E402
from bagwise.deep import DSMIL, MaxPoolingMIL, MeanPoolingMIL  # noqa: E402

QUICK = {
    "n_features": 8,
    "learning_rate": 0.02,
    "max_epochs": 30,
    "patience": 30,
    "validation_fraction": 0.0,
    "random_state": 0,
}
MODELS = {
    "mean": lambda: MeanPoolingMIL(**QUICK),
    "max": lambda: MaxPoolingMIL(**QUICK),
    "dsmil": lambda: DSMIL(**QUICK, attention_size=8),
}
# float32 arithmetic: sums over a bag depend on the order of its instances to 1e-6.
FLOAT32 = ("check_instance_order", "check_bag_order", "check_single_bag_prediction")


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check.__name__ not in FLOAT32], ids=lambda c: c.__name__
)
def test_contract(check, make):
    check(make)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_order_changes_nothing(make):
    bags, y, _ = make_problem()
    fitted = make().fit(bags, y)
    base = fitted.decision_function(bags)
    order = np.random.default_rng(0).permutation(len(bags))
    np.testing.assert_allclose(fitted.decision_function(bags[order]), base[order], atol=1e-4)
    flipped = Bags.from_list([x[::-1] for x in bags])
    np.testing.assert_allclose(fitted.decision_function(flipped), base, atol=1e-4)
    one = [fitted.decision_function(bags[i : i + 1])[0] for i in range(3)]
    np.testing.assert_allclose(one, base[:3], atol=1e-4)


@pytest.mark.parametrize("name", ["mean", "max"])
def test_pooling_equals_a_loop(name):
    bags, y, _ = make_problem()
    fitted = MODELS[name]().fit(bags, y)
    network, h = fitted._features(bags)
    how = {"mean": lambda x: x.mean(0), "max": lambda x: x.max(0).values}[name]
    with torch.no_grad():
        naive = [
            float(network.head(how(h[a:b])))
            for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)
        ]
    np.testing.assert_allclose(fitted.decision_function(bags), naive, atol=1e-5)


def test_two_streams_equal_a_loop():
    bags, y, _ = make_problem()
    fitted = MODELS["dsmil"]().fit(bags, y)
    network, h = fitted._features(bags)
    naive = []
    with torch.no_grad():
        for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True):
            part = h[a:b]
            scores = network.instance_head(part)[:, 0]
            q = network.query(part)
            weights = torch.softmax(q @ q[int(scores.argmax())] / 8**0.5, dim=0)
            second = network.bag_head((weights[:, None] * network.value(part)).sum(0))
            naive.append(float((scores.max() + second[0]) / 2))
    # Logits of 15 in float32: sums in another order differ in the sixth digit.
    np.testing.assert_allclose(fitted.decision_function(bags), naive, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        instances = network.instance_head(h)[:, 0].numpy()
    np.testing.assert_allclose(fitted.decision_function_instances(bags), instances, atol=1e-5)


def test_only_the_dual_stream_ranks_instances():
    assert not hasattr(MODELS["mean"](), "predict_instances")
    assert not hasattr(MODELS["max"](), "predict_instances")
    assert hasattr(MODELS["dsmil"](), "predict_proba_instances")


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_saved_and_loaded(make, tmp_path):
    bags, y, _ = make_problem()
    model = make().fit(bags, y)
    again = bagwise.load(bagwise.save(model, tmp_path / "m.bagwise"))
    np.testing.assert_allclose(model.decision_function(bags), again.decision_function(bags))
