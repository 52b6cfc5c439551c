"""Deep models on disk: the same to the last bit, and no code in the file."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

import bagwise
from bagwise import VGPMIL, make_pipeline
from bagwise.datasets import load_digit_bags

torch = pytest.importorskip("torch", reason="the torch extra is missing")
safetensors = pytest.importorskip("safetensors.torch", reason="the torch extra is missing")

from bagwise.deep import AttentionFeatures, AttentionMIL  # noqa: E402

OPTIONS = {"n_features": 8, "image_shape": (8, 8), "max_epochs": 2, "random_state": 0}


@pytest.fixture(scope="module")
def digits():
    return load_digit_bags(n_bags=40)


def test_pipeline_round_trip(digits, tmp_path):
    model = make_pipeline(AttentionFeatures(**OPTIONS), VGPMIL(n_inducing=10, random_state=0))
    model.fit(digits.bags, digits.y)
    bagwise.save(model, tmp_path / "m.bagwise", bags=digits.bags, y=digits.y)
    back = bagwise.load(tmp_path / "m.bagwise")
    assert back[0].get_params() == model[0].get_params()
    for method in ("predict_proba", "predict_proba_instances"):
        for a, b in zip(
            getattr(model, method)(digits.bags, return_std=True),
            getattr(back, method)(digits.bags, return_std=True),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)


def test_attention_round_trip(digits, tmp_path):
    model = AttentionMIL(**OPTIONS).fit(digits.bags, np.where(digits.y, "yes", "no"))
    back = bagwise.load(bagwise.save(model, tmp_path / "m.bagwise"))
    assert type(back) is AttentionMIL
    assert back.weights_ == model.weights_
    assert back.n_iter_ == model.n_iter_
    np.testing.assert_array_equal(back.predict(digits.bags), model.predict(digits.bags))
    for method in ("decision_function", "attention_weights"):
        np.testing.assert_array_equal(
            getattr(back, method)(digits.bags), getattr(model, method)(digits.bags)
        )


def test_weights_are_safetensors_and_nothing_is_pickled(digits, tmp_path):
    model = AttentionMIL(**OPTIONS).fit(digits.bags, digits.y)
    path = bagwise.save(model, tmp_path / "m.bagwise")
    inside = zipfile.ZipFile(io.BytesIO(zipfile.ZipFile(path).read("model.zip")))
    stored = {name: inside.read(name) for name in inside.namelist()}
    assert any(content.endswith(model.weights_) for content in stored.values())
    assert "head.weight" in safetensors.load(model.weights_)
    assert not any(content.startswith(b"\x80") for content in stored.values())


@pytest.mark.filterwarnings("ignore:VGPMIL found nothing")  # of features that are hardly trained
@pytest.mark.parametrize("wrap", [False, True])
def test_own_backbone_is_refused_in_words(digits, tmp_path, wrap):
    options = {**OPTIONS, "image_shape": None, "backbone": torch.nn.Linear(64, 8)}
    if wrap:
        model = make_pipeline(AttentionFeatures(**options), VGPMIL(n_inducing=5, calibrate=False))
    else:
        model = AttentionMIL(**options)
    model.fit(digits.bags, digits.y)
    with pytest.raises(ValueError, match=r"backbone is a torch module \(Linear\)"):
        bagwise.save(model, tmp_path / "m.bagwise")
    assert list(tmp_path.iterdir()) == []
