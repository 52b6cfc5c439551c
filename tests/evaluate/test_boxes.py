from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bagwise.evaluate import (
    box_iou,
    centre_error,
    corloc,
    detection_ap,
    detection_curve,
    tracking_success,
)
from tests.reference import metrics as naive


def draw(seed, n_images=6, n_detections=25):
    """Boxes on a coarse grid, with many overlaps and many tied scores."""
    rng = np.random.default_rng(seed)
    truth = [
        np.column_stack([rng.integers(0, 6, (k, 2)), rng.integers(2, 5, (k, 2))]).astype(float)
        for k in rng.integers(0, 4, n_images)
    ]
    truth[0] = np.array([[0, 0, 2, 2.0]])
    images = rng.integers(0, n_images, n_detections)
    boxes = np.column_stack(
        [rng.integers(0, 6, (n_detections, 2)), rng.integers(2, 5, (n_detections, 2))]
    ).astype(float)
    return images, boxes, rng.integers(0, 6, n_detections) / 5, truth


@given(st.integers(0, 10_000))
def test_detection_precision_equals_the_definition(seed):
    images, boxes, scores, truth = draw(seed)
    curve = detection_curve(images, boxes, scores, truth)
    points = naive.detection_points(images, boxes, scores, truth)
    np.testing.assert_allclose(np.column_stack([curve.recall, curve.precision]), points)
    for method in ("area", "11-point"):
        ours = detection_ap(images, boxes, scores, truth, method=method)
        assert ours == pytest.approx(
            naive.detection_ap(images, boxes, scores, truth, method=method)
        )


@given(st.integers(0, 10_000))
def test_detection_precision_does_not_depend_on_order(seed):
    images, boxes, scores, truth = draw(seed)
    order = np.random.default_rng(seed + 1).permutation(len(images))
    shuffled = detection_ap(images[order], boxes[order], scores[order], truth)
    assert shuffled == pytest.approx(detection_ap(images, boxes, scores, truth))


@given(st.integers(0, 10_000))
def test_corloc_and_overlap_equal_the_definition(seed):
    _, boxes, _, truth = draw(seed)
    predicted = boxes[: len(truth)]
    assert corloc(predicted, truth) == pytest.approx(naive.corloc(predicted, truth))
    expected = [[naive.iou(a, b) for b in truth[0]] for a in boxes]
    np.testing.assert_allclose(box_iou(boxes, truth[0]), expected)


def test_perfect_and_hopeless_detections():
    truth = [[[0, 0, 2, 2]], [[5, 5, 2, 2]], []]
    boxes = [[0, 0, 2, 2], [5, 5, 2, 2]]
    for method in ("area", "11-point"):
        assert detection_ap([0, 1], boxes, [0.9, 0.1], truth, method=method) == 1
        assert detection_ap([1, 0], boxes, [0.9, 0.1], truth, method=method) == 0
        assert detection_ap([], [], [], truth, method=method) == 0


def test_a_second_box_on_the_same_object_is_wrong():
    truth = [[[0, 0, 4, 4]]]
    curve = detection_curve([0, 0], [[0, 0, 4, 4], [0, 0, 4, 3]], [0.9, 0.8], truth)
    np.testing.assert_allclose(curve.precision, [1, 0.5])


def test_boxes_without_area_overlap_nothing():
    assert box_iou([[1, 1, 0, 0]], [[1, 1, 0, 0]]) == 0


def test_tracks_skip_frames_without_truth():
    truth = [[0, 0, 2, 2], [np.nan] * 4, [10, 0, 2, 2]]
    predicted = [[0, 0, 2, 2], [50, 50, 2, 2], [13, 4, 2, 2]]
    assert centre_error(predicted, truth) == 2.5
    assert tracking_success(predicted, truth) == 0.5
    assert tracking_success(predicted, truth, threshold=None) == 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: box_iou([[1, 2, 3]], [[1, 2, 3, 4]]), r"shape \(n, 4\)"),
        (lambda: corloc([[0, 0, 1, 1]], [[], []]), "one predicted box per image"),
        (lambda: corloc([[0, 0, 1, 1]], [[]]), "undefined"),
        (lambda: detection_ap([0], [[0, 0, 1, 1]], [1], [[]]), "undefined"),
        (lambda: detection_ap([0, 0], [[0, 0, 1, 1]], [1], [[]]), "per detection"),
        (
            lambda: detection_ap([0], [[0, 0, 1, 1]], [1], [[[0, 0, 1, 1]]], method="x"),
            "'area' or '11-point'",
        ),
        (lambda: centre_error([[0, 0, 1, 1]], [[0, 0, 1, 1]] * 2), "a box per frame"),
        (lambda: centre_error([[0, 0, 1, 1]], [[np.nan] * 4]), "no frame has a true box"),
        (lambda: centre_error([[np.nan] * 4], [[0, 0, 1, 1]]), "frame 0 has a true box"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
