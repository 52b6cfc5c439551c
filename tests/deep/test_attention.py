from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_score

from bagwise import Bags, SingleInstance, make_pipeline
from bagwise.core import segments
from bagwise.datasets import load_digit_bags
from tests.checks import CHECKS, make_problem

torch = pytest.importorskip("torch", reason="the torch extra is missing")
pytest.importorskip("safetensors", reason="the torch extra is missing")

from bagwise.deep import AttentionFeatures, AttentionMIL, network  # noqa: E402


def model():
    return AttentionMIL(
        n_features=8,
        attention_size=8,
        learning_rate=0.02,
        max_epochs=30,
        patience=30,
        validation_fraction=0.0,
        random_state=0,
    )


# float32 arithmetic: sums over a bag depend on the order of its instances to 1e-6.
FLOAT32 = {
    "check_instance_order": "float32 sums depend on order; checked below to 1e-4",
    "check_bag_order": "float32; checked below to 1e-4",
    "check_single_bag_prediction": "float32; checked below to 1e-4",
}


@pytest.mark.parametrize("check", CHECKS)
def test_contract(check):
    if check.__name__ in FLOAT32:
        pytest.skip(FLOAT32[check.__name__])
    check(model)


def test_order_changes_nothing():
    bags, y, _ = make_problem()
    fitted = model().fit(bags, y)
    base = fitted.decision_function(bags)
    order = np.random.default_rng(0).permutation(len(bags))
    np.testing.assert_allclose(fitted.decision_function(bags[order]), base[order], atol=1e-4)
    flipped = Bags.from_list([x[::-1] for x in bags])
    np.testing.assert_allclose(fitted.decision_function(flipped), base, atol=1e-4)
    one = [fitted.decision_function(bags[i : i + 1])[0] for i in range(3)]
    np.testing.assert_allclose(one, base[:3], atol=1e-4)


@pytest.fixture(scope="module")
def digits():
    return load_digit_bags(n_bags=80)


def test_attention_weights_sum_to_one_and_are_no_probabilities(digits):
    fitted = AttentionMIL(image_shape=(8, 8), max_epochs=3, random_state=0).fit(
        digits.bags, digits.y
    )
    weights = fitted.attention_weights(digits.bags)
    np.testing.assert_allclose(segments.sum(weights, digits.bags.offsets), 1, atol=1e-5)
    assert not hasattr(fitted, "predict_proba_instances")


def test_pooling_equals_a_loop(digits):
    fitted = AttentionMIL(image_shape=(8, 8), max_epochs=2, random_state=0).fit(
        digits.bags, digits.y
    )
    net, h = fitted._features(digits.bags)
    with torch.no_grad():
        naive = [
            net.head((torch.softmax(net.attention_logits(x), 0)[:, None] * x).sum(0))[0].item()
            for x in h.split(digits.bags.sizes.tolist())
        ]
    np.testing.assert_allclose(fitted.decision_function(digits.bags), naive, atol=1e-5)


def test_features_feed_any_model_and_cross_validate(digits):
    pipeline = make_pipeline(
        AttentionFeatures(n_features=16, image_shape=(8, 8), max_epochs=12, random_state=0),
        SingleInstance(LogisticRegression()),
    )
    assert cross_val_score(pipeline, digits.bags, digits.y, cv=3, scoring="roc_auc").mean() > 0.7
    fitted = pipeline.fit(digits.bags, digits.y)
    scores = fitted.decision_function_instances(digits.bags)
    assert roc_auc_score(digits.instance_labels, scores) > 0.8
    out = fitted[0].transform(digits.bags)
    assert out.n_features == 16
    np.testing.assert_array_equal(out.instance_labels, digits.instance_labels)


def test_training_features_name_the_bags_that_were_held_out(digits):
    features = AttentionFeatures(image_shape=(8, 8), max_epochs=2, random_state=0)
    inside = features.fit_transform(digits.bags, digits.y)
    np.testing.assert_array_equal(inside.held_out, np.flatnonzero(features.held_out_))
    assert len(inside.held_out) == 12  # 15% of 80
    outside = features.transform(digits.bags)
    np.testing.assert_array_equal(outside.instances, inside.instances)
    assert "held_out" not in outside.columns


def test_bags_of_images_equal_flat_bags(digits):
    flat, y = digits.bags, digits.y
    images = Bags(digits.images, flat.offsets)
    coloured = Bags(digits.images[:, None], flat.offsets)
    make = lambda **kw: AttentionMIL(max_epochs=2, random_state=0, **kw)  # noqa: E731
    a = make(image_shape=(8, 8)).fit(flat, y).decision_function(flat)
    np.testing.assert_array_equal(a, make().fit(images, y).decision_function(images))
    np.testing.assert_allclose(a, make().fit(coloured, y).decision_function(coloured), atol=1e-5)


def test_own_backbone_is_copied_and_trained(digits):
    backbone = torch.nn.Sequential(torch.nn.Linear(64, 20), torch.nn.ReLU())
    before = backbone[0].weight.detach().clone()
    features = AttentionFeatures(backbone=backbone, n_features=4, max_epochs=2, random_state=0)
    assert clone(features).fit_transform(digits.bags, digits.y).n_features == 4
    assert torch.equal(before, backbone[0].weight)


def test_callers_random_stream_is_untouched(digits):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    AttentionMIL(image_shape=(8, 8), max_epochs=1, random_state=0).fit(digits.bags, digits.y)
    assert torch.equal(expected, torch.rand(2))


def test_early_stopping_keeps_the_best_epoch(digits):
    fitted = AttentionMIL(
        image_shape=(8, 8),
        max_epochs=40,
        patience=3,
        random_state=0,
        validation_fraction=0.3,
        learning_rate=0.01,
    ).fit(digits.bags, digits.y)
    assert fitted.n_iter_ < 40
    assert len(fitted.validation_loss_history_) == fitted.n_iter_
    assert np.argmin(fitted.validation_loss_history_) >= fitted.n_iter_ - 4


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"image_shape": (7, 8)}, r"image_shape=\(7, 8\) needs 56 features"),
        ({"backbone": "small-cnn"}, "backbone='small-cnn' needs images"),
        ({"execution": "cuda"}, "sees no GPU"),
        ({"n_features": 0}, "n_features"),
        ({"backbone": "resnet"}, "backbone"),
        ({"backbone": torch.nn.Unflatten(1, (8, 8))}, "must map instances to a matrix"),
    ],
)
def test_bad_parameters(digits, parameters, message):
    if "execution" in parameters and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match=message):
        AttentionMIL(max_epochs=1, **parameters).fit(digits.bags, digits.y)


def test_bad_images():
    small, large = np.zeros((2, 8, 8)), np.zeros((2, 9, 9))
    with pytest.raises(ValueError, match="bag 1 has 9 x 9 features but bag 0 has 8 x 8"):
        AttentionMIL().fit([small, large], [0, 1])
    broken = np.zeros((4, 8, 8))
    broken[3, 1, 2] = np.nan
    with pytest.raises(ValueError, match="bag 1 contains NaN in instance 1, pixel 1, 2"):
        AttentionMIL().fit(Bags(broken, [0, 2, 4]), [0, 1])
    with pytest.raises(ValueError, match="instances must be vectors"):
        AttentionMIL().fit(Bags(np.zeros((4, 2, 2, 2, 2)), [0, 2, 4]), [0, 1])


def test_cnn_takes_any_image_size_and_one_instance():
    for size in (1, 2, 5, 8, 33):
        out = network.small_cnn(2, 7)(torch.zeros(1, 2, size, size))
        assert out.shape == (1, 7)
        assert torch.isfinite(out).all()


def test_cnn_learns_what_few_pixels_tell(rng):
    # Every image has the same bright ring; positive bags hold one image with a faint dot.
    images = np.tile(10.0 * (np.arange(12) % 11 == 0), (120, 12, 1)) + rng.normal(
        size=(120, 12, 12)
    )
    y = np.arange(30) % 2
    images[4 * np.flatnonzero(y), 5:7, 5:7] += 5
    bags = Bags(images, np.arange(0, 121, 4))
    fitted = AttentionMIL(batch_size=4, max_epochs=15, random_state=0).fit(bags, y)
    assert roc_auc_score(y, fitted.decision_function(bags)) > 0.95
    alone = [fitted.decision_function(bags[i : i + 1])[0] for i in range(4)]
    np.testing.assert_allclose(alone, fitted.decision_function(bags)[:4], atol=1e-4)


def test_cnn_trains_on_a_batch_of_one_instance(rng):
    bags = Bags(rng.normal(size=(4, 6, 6)), np.arange(5))
    fitted = AttentionMIL(batch_size=1, max_epochs=1, random_state=0)
    assert np.isfinite(fitted.fit(bags, [0, 1, 0, 1]).decision_function(bags)).all()


def test_no_feature_of_the_cnn_is_dead(digits):
    for seed in range(3):
        features = AttentionFeatures(
            n_features=8, image_shape=(8, 8), max_epochs=3, random_state=seed
        )
        h = features.fit_transform(digits.bags, digits.y).instances
        assert (h.std(axis=0) > 0.1).all()
