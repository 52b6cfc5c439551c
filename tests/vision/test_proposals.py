"""Every kind of proposal, and what happens where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from bagwise.evaluate.boxes import box_iou
from bagwise.vision.proposals import Proposals, ring_contrast, sliding_windows
from tests.reference import vision as naive

cv2 = pytest.importorskip("cv2")
OBJECT = [60, 40, 40, 30]


@pytest.fixture(scope="module")
def scene():
    rng = np.random.default_rng(0)
    image = np.full((120, 160, 3), 90, dtype=np.uint8)
    image += rng.integers(0, 8, image.shape, dtype=np.uint8)
    image[40:70, 60:100] = [210, 60, 60]
    image[90:110, 10:40] = [60, 60, 200]
    return image


@pytest.mark.parametrize("method", ["selective-search", "edge-boxes", "blobs", "windows"])
def test_the_object_is_among_the_boxes(scene, method):
    boxes = Proposals(method=method, n_boxes=300).propose(scene)
    assert boxes.ndim == 2
    assert 1 <= len(boxes) <= 300
    assert np.all(boxes[:, 2:] > 0)
    assert np.all(boxes[:, :2] >= 0)
    assert np.all(boxes[:, :2] + boxes[:, 2:] <= [160, 120])
    # Windows and EdgeBoxes step through positions and sizes; the others follow the object.
    least = {"windows": 0.3, "edge-boxes": 0.6}.get(method, 0.7)
    assert box_iou([OBJECT], boxes).max() > least


@pytest.mark.parametrize("method", ["selective-search", "edge-boxes", "blobs", "windows"])
def test_same_seed_same_boxes_in_the_same_order(scene, method):
    rng = np.random.default_rng(1)
    noisy = np.clip(scene + rng.integers(-40, 40, scene.shape), 0, 255).astype(np.uint8)
    first = Proposals(method=method, n_boxes=40).propose(noisy)
    again = Proposals(method=method, n_boxes=40).propose(noisy)
    np.testing.assert_array_equal(first, again)


def test_boxes_come_back_in_the_images_own_pixels(scene):
    large = cv2.resize(scene, (640, 480), interpolation=cv2.INTER_NEAREST)
    boxes = Proposals(method="blobs", max_side=160).propose(large)
    assert box_iou([np.array(OBJECT) * 4], boxes).max() > 0.8


@pytest.mark.parametrize("method", ["selective-search", "edge-boxes", "blobs", "windows"])
@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 40, 3), (2, 2, 3), (30, 3, 3)])
def test_tiny_and_flat_images_give_a_box(method, shape):
    boxes = Proposals(method=method).propose(np.full(shape, 128, dtype=np.uint8))
    assert len(boxes) >= 1
    assert np.all(boxes[:, 2:] > 0)


def test_without_proposals_the_whole_image_is_the_box():
    flat = np.full((30, 50, 3), 10, dtype=np.uint8)
    assert Proposals(method="blobs").propose(flat).tolist() == [[0, 0, 50, 30]]
    assert Proposals(method="edge-boxes").propose(flat).tolist() == [[0, 0, 50, 30]]
    none = Proposals(method="given", boxes={"x": []})
    assert none.propose(flat, "x").tolist() == [[0, 0, 50, 30]]
    outside = Proposals(method="given", boxes=[[[200, 200, 5, 5]]])
    assert outside.propose(flat, 0).tolist() == [[0, 0, 50, 30]]


def test_given_boxes_are_cut_to_the_image_and_must_be_there():
    flat = np.zeros((30, 50, 3), dtype=np.uint8)
    given = Proposals(method="given", boxes=[[[-5, 0, 10, 10]]])
    assert given.propose(flat, 0).tolist() == [[0, 0, 5, 10]]
    with pytest.raises(ValueError, match="image 'z'"):
        Proposals(method="given", boxes={}).propose(flat, "z")
    with pytest.raises(ValueError, match="image 4"):
        given.propose(flat, 4)


def test_small_and_huge_boxes_are_dropped(scene):
    boxes = Proposals(method="blobs", min_side=0.1, max_area=0.5).propose(scene)
    assert boxes[:, 2:].min() >= 12
    assert (boxes[:, 2] * boxes[:, 3]).max() <= 0.5 * 120 * 160


def test_grey_and_deep_images_are_accepted(scene):
    grey = scene[..., 0]
    assert len(Proposals(method="blobs").propose(grey)) >= 1
    assert len(Proposals(method="blobs").propose(grey.astype(np.uint16) * 200)) >= 1


def test_parameters_are_checked_and_cloned(scene):
    with pytest.raises(ValueError, match="method"):
        Proposals(method="magic").propose(scene)
    assert clone(Proposals(method="windows", n_boxes=7)).n_boxes == 7


def test_windows_cover_the_image():
    boxes = sliding_windows(100, 140)
    covered = np.zeros((100, 140), dtype=bool)
    for x, y, w, h in boxes:
        covered[int(y) : int(np.ceil(y + h)), int(x) : int(np.ceil(x + w))] = True
    assert covered.all()


def test_ring_contrast_matches_masks():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(40, 60))
    boxes = np.array([[0, 0, 60, 40], [10, 8, 12, 10], [50, 30, 10, 10], [0, 20, 9, 7]], float)
    fast = ring_contrast(cv2.integral(values), boxes, 1.5)
    slow = [naive.ring_contrast(values, box, 1.5) for box in boxes]
    np.testing.assert_allclose(fast, slow, atol=1e-10)
