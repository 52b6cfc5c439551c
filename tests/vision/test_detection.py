"""Weak detection: pure parts against loops, learning from labels, mixed supervision, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from experiments._canvases import make_digit_canvases
from scipy.special import expit
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from bagwise import Bags, SingleInstance, load, save
from bagwise.core.gaussians import sigmoid_moments
from bagwise.evaluate import box_iou, corloc
from bagwise.vision import (
    Detections,
    Proposals,
    WeakDetector,
    draw,
    regions,
)
from bagwise.vision.detection import label_matrix, suppress, true_boxes
from bagwise.vision.regions import best_overlap, box_contrast, pixel_scores
from tests.reference import vision as naive

cv2 = pytest.importorskip("cv2")
PROPOSALS = Proposals(method="blobs", n_boxes=30, min_side=0.08)


def make_scenes(n=24, seed=0):
    """Blocks on noise; red ones in half of the images, and their boxes."""
    rng = np.random.default_rng(seed)
    images = rng.integers(60, 100, (n, 64, 80, 3), dtype=np.uint8)
    labels = np.arange(n) % 2
    boxes = []
    for image, label in zip(images, labels, strict=True):
        x, y = rng.integers(2, 50), rng.integers(35, 45)
        image[y : y + 14, x : x + 20] = [60, 60, 220]
        x, y = (int(v) for v in (rng.integers(2, 55), rng.integers(2, 14)))
        if label:
            image[y : y + 16, x : x + 18] = [220, 60, 60]
        boxes.append(np.array([[x, y, 18, 16]], float) if label else np.empty((0, 4)))
    return images, labels, boxes


@pytest.fixture(scope="module")
def scenes():
    return make_scenes()


@pytest.fixture(scope="module")
def described(scenes):
    return WeakDetector(proposals=PROPOSALS).describe(scenes[0])


@pytest.fixture(scope="module")
def detector(scenes, described):
    names = ["red" if y else None for y in scenes[1]]
    return WeakDetector(proposals=PROPOSALS, pca=10, random_state=0).fit(described, names)


def test_suppression_matches_loops():
    rng = np.random.default_rng(0)
    boxes = np.hstack([rng.uniform(0, 50, (60, 2)), rng.uniform(5, 30, (60, 2))])
    scores = rng.normal(size=60).round(1)  # with ties
    for threshold in (0.0, 0.3, 1.0):
        np.testing.assert_array_equal(
            suppress(boxes, scores, threshold), naive.suppress(boxes, scores, threshold)
        )


def test_pixel_scores_match_loops():
    rng = np.random.default_rng(0)
    boxes = np.hstack([rng.integers(0, 30, (20, 2)), rng.integers(1, 10, (20, 2))]).astype(float)
    scores = rng.normal(size=20)
    mean, factor = pixel_scores(boxes, scores, 45, 50)
    assert factor == 1
    np.testing.assert_allclose(mean, naive.pixel_scores(boxes, scores, 45, 50), atol=1e-10)


def test_contrast_prefers_the_whole_to_its_part(described):
    bags = described[[1]]
    boxes = bags.columns["boxes"]
    scores = np.where(np.arange(len(boxes)) == 3, 2.0, -2.0)
    contrast = box_contrast(bags, scores, (1.5, 2.0))
    mean = naive.pixel_scores(boxes, scores, 64, 80)
    expected = [[naive.ring_contrast(mean, box, r) for r in (1.5, 2.0)] for box in boxes]
    np.testing.assert_allclose(contrast, expected, atol=1e-9)


def test_bags_carry_boxes_and_sizes(described, scenes):
    assert len(described) == len(scenes[0])
    assert described.columns["boxes"].shape == (described.n_instances, 4)
    assert np.all(described.columns["image_size"] == [64, 80])


def test_finds_what_only_image_labels_told(detector):
    images, labels, boxes = make_scenes(seed=1)
    found = detector.predict(images)
    positive = np.flatnonzero(labels)
    best = [found[i].boxes[0] for i in positive]
    assert corloc(best, [boxes[i] for i in positive]) > 0.9
    top = np.array([d.probabilities[0] for d in found])
    assert top[labels == 1].min() > top[labels == 0].max()
    for d in found:
        assert np.all(np.diff(d.scores) <= 0)
        assert np.all((d.probabilities >= 0) & (d.probabilities <= 1))
        assert np.all(d.std >= 0)
        assert set(d.classes) == {"red"}


def test_described_bags_and_images_are_the_same(detector, scenes, described):
    some = detector.predict(described[[0, 1]])
    again = detector.predict(scenes[0][:2])
    for a, b in zip(some, again, strict=True):
        np.testing.assert_allclose(a.scores, b.scores)
        np.testing.assert_array_equal(a.boxes, b.boxes)


@pytest.mark.parametrize(
    ("classifier", "contrast"),
    [(None, 1.25), (None, 1.5), (SingleInstance(LogisticRegression()), None)],
)
def test_contrast_and_other_classifiers(scenes, described, classifier, contrast):
    _, labels, boxes = scenes
    detector = WeakDetector(
        proposals=PROPOSALS, pca=10, classifier=classifier, contrast=contrast, random_state=0
    ).fit(described, labels[:, None], class_names=["red"])
    found = detector.predict(described)
    positive = np.flatnonzero(labels)
    best = [found[i].boxes[0] for i in positive]
    assert corloc(best, [boxes[i] for i in positive]) > 0.9
    assert np.isnan(found[0].std).all() == (classifier is not None)


def test_two_classes_at_once(scenes):
    images, labels, _ = scenes
    images = images.copy()
    images[::3, 10:25, 5:20] = [60, 220, 60]
    names = [
        [n for n, there in (("red", y), ("green", i % 3 == 0)) if there]
        for i, y in enumerate(labels)
    ]
    detector = WeakDetector(proposals=PROPOSALS, pca=10, random_state=0).fit(images, names)
    assert detector.classes_.tolist() == ["green", "red"]
    assert set(detector.predict(images[:1])[0].classes) == {"green", "red"}


def test_same_seed_same_detections(scenes, described):
    labels = scenes[1][:, None]
    runs = [
        WeakDetector(proposals=PROPOSALS, pca=5, random_state=4)
        .fit(described, labels)
        .predict(described[[1]])
        for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0][0].scores, runs[1][0].scores)


def boxes_of(scenes, n):
    """True boxes of the positive ones among the first ``n`` images."""
    return [{"red": b} if i < n and len(b) else None for i, b in enumerate(scenes[2])]


def test_overlap_with_true_boxes(scenes, described):
    _, labels, boxes = scenes
    iou = best_overlap(described, true_boxes(boxes_of(scenes, 6), labels, "red", described.ids))
    rows, proposed = described.split(iou), described.split(described.columns["boxes"])
    for i in (1, 3, 5):
        np.testing.assert_array_equal(rows[i], box_iou(proposed[i], boxes[i])[:, 0])
        assert np.any(rows[i] >= 0.5)
    assert all(np.all(rows[i] == -1) for i in (0, 2, 7, 9))


class Recorder(SingleInstance):
    """Keeps the instance labels that it was given."""

    def fit(self, bags, y, instance_labels=None):
        self.given_ = instance_labels
        return super().fit(bags, y, instance_labels)


def test_boxes_become_instance_labels(scenes, described):
    labels = scenes[1][:, None]
    mixed = WeakDetector(proposals=PROPOSALS, pca=10, classifier=Recorder(LogisticRegression()))
    mixed.fit(described, labels, boxes_of(scenes, 6), ["red"])
    true = true_boxes(boxes_of(scenes, 6), labels[:, 0], "red", described.ids)
    iou = best_overlap(described, true)
    np.testing.assert_array_equal(mixed.classifiers_[0].given_, np.where(iou >= 0.5, 1, -1))


@pytest.mark.parametrize("contrast", [None, 1.25])
def test_boxes_make_a_refinement(scenes, described, contrast, tmp_path):
    _, labels, boxes = scenes
    mixed = WeakDetector(proposals=PROPOSALS, pca=10, contrast=contrast, random_state=0)
    mixed.fit(described, labels[:, None], boxes_of(scenes, 12), ["red"])
    found = mixed.predict(described)
    best = [found[i].boxes[0] for i in np.flatnonzero(labels)]
    assert corloc(best, [boxes[i] for i in np.flatnonzero(labels)]) > 0.9
    for d in found:
        assert np.all((d.probabilities >= 0) & (d.probabilities <= 1))
        assert np.all((d.std >= 0) & (d.std <= 0.5))
    save(mixed, tmp_path / "mixed.bagwise")
    again = load(tmp_path / "mixed.bagwise").predict(described)
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a.scores, b.scores)
        np.testing.assert_array_equal(a.probabilities, b.probabilities)


@pytest.mark.parametrize("taught", [False, True])
def test_contrast_ranks_by_what_stands_out(scenes, described, taught):
    """And by the box's own probability, where true boxes taught it."""
    model = WeakDetector(proposals=PROPOSALS, pca=10, contrast=1.5, random_state=0)
    model.fit(described, scenes[1][:, None], boxes_of(scenes, 12) if taught else None, ["red"])
    score, p, _ = model.score_boxes(described)
    if taught:
        expected = box_contrast(described, p, (1.5,))[:, 0] + p
    else:
        expected = box_contrast(described, expit(evidence_of(model, described)), (1.5,))[:, 0]
    np.testing.assert_allclose(score, expected, atol=1e-9)


def evidence_of(model, bags):
    """What a box says for its image: log-odds that the box alone would show the class."""
    latent = model.classifiers_[0].predict_latent(bags.map(model.reducer_.transform))
    return sigmoid_moments(*latent).log_odds


def test_boxes_are_ranked_by_what_each_alone_says(detector, described):
    """The rest of the image changes the probability of a box and not its rank among all boxes."""
    score, p, _ = detector.score_boxes(described)
    np.testing.assert_allclose(score, evidence_of(detector, described), atol=1e-9)
    bag = described[[1]]  # without the box that tells most
    first = np.arange(described.offsets[1], described.offsets[2])
    rest = np.delete(np.arange(len(first)), np.argmax(score[first]))
    columns = {name: column[rest] for name, column in bag.columns.items()}
    less = Bags(bag.instances[rest], [0, len(rest)], columns=columns)
    alone, lowered, _ = detector.score_boxes(less)
    # Other rows in a batch round differently, and a wide kernel carries that on.
    np.testing.assert_allclose(alone, score[first][rest], atol=1e-6)
    assert np.all(lowered < p[first][rest])


@pytest.mark.parametrize("classifier", [None, SingleInstance(LogisticRegression())])
def test_evidence_is_a_clue_where_the_classifier_has_it(scenes, described, monkeypatch, classifier):
    seen = []
    learn = regions.learn_refinement
    monkeypatch.setattr(
        regions, "learn_refinement", lambda *args: seen.append(args[0]) or learn(*args)
    )
    model = WeakDetector(proposals=PROPOSALS, pca=10, classifier=classifier, random_state=0)
    model.fit(described, scenes[1][:, None], boxes_of(scenes, 12), ["red"])
    if classifier is None:
        np.testing.assert_allclose(seen[0].evidence[:, 0], evidence_of(model, described), atol=1e-9)
        score = model.score_boxes(described)[0]
        np.testing.assert_allclose(score, model.refinements_[0].refine(seen[0]), atol=1e-9)
    else:
        assert seen[0].evidence.shape == (described.n_instances, 0)


def test_std_of_refined_probabilities_is_that_to_first_order(scenes, described):
    model = WeakDetector(proposals=PROPOSALS, pca=10, random_state=0)
    model.fit(described, scenes[1][:, None], boxes_of(scenes, 12), ["red"])
    reduced = described.map(model.reducer_.transform)
    classifier, refinement = model.classifiers_[0], model.refinements_[0]
    p, _ = regions.positive_proba(classifier, reduced, "_instances")
    clues = regions.region_clues(described, reduced, p, regions.log_odds_alone(classifier, reduced))
    small = 1e-6
    std = regions.refined_scores(refinement, clues, p, small * p * (1 - p))[2]  # of log-odds: small
    up = clues._replace(log_odds=clues.log_odds + small, evidence=clues.evidence + small)
    change = np.abs(expit(refinement.refine(up)) - expit(refinement.refine(clues)))
    np.testing.assert_allclose(std, change, rtol=1e-3, atol=1e-12)


def test_boxes_make_probabilities_of_boxes_honest(scenes, described):
    """Held out, probabilities that a box shows the class fit better after boxes than before."""
    images, _, boxes = make_scenes(seed=1)
    bags = WeakDetector(proposals=PROPOSALS).describe(images)
    true = [
        box_iou(b, t).max(axis=1, initial=0)
        for b, t in zip(bags.split(bags.columns["boxes"]), boxes, strict=True)
    ]
    true = np.concatenate(true) >= 0.5
    losses = []
    for given in (None, boxes_of(scenes, 24)):
        model = WeakDetector(proposals=PROPOSALS, pca=10, random_state=0)
        model.fit(described, scenes[1][:, None], given, ["red"])
        losses.append(log_loss(true, model.score_boxes(bags)[1]))
    assert losses[1] < losses[0]


@pytest.mark.parametrize("overlap", [0.05, 1.0])
def test_any_overlap_makes_a_refinement(scenes, described, overlap):
    model = WeakDetector(proposals=PROPOSALS, pca=5, overlap=overlap, random_state=0)
    given = boxes_of(scenes, 12)
    given[1] = {"red": described.columns["boxes"][described.offsets[1]][None]}  # met exactly
    model.fit(described, scenes[1][:, None], given, ["red"])
    assert np.isfinite(model.refinements_[0].weights).all()


def test_no_boxes_change_nothing(scenes, described):
    labels, n = scenes[1][:, None], len(scenes[1])
    scores = []
    for given in (None, [None] * n, [{}] * n, [{"red": np.empty((0, 4))}] * n):
        model = WeakDetector(proposals=PROPOSALS, pca=10, random_state=0)
        model.fit(described, labels, given, ["red"])
        assert model.refinements_ == [None]
        scores.append(model.score_boxes(described))
    for other in scores[1:]:
        np.testing.assert_array_equal(other, scores[0])


def test_order_of_images_does_not_change_a_refinement(scenes, described):
    labels, given = scenes[1], boxes_of(scenes, 12)
    order = np.random.default_rng(0).permutation(len(labels))
    scores = []
    for which in (np.arange(len(labels)), order):
        # Calibration holds bags out by their order.
        classifier = SingleInstance(LogisticRegression(tol=1e-10, max_iter=5000), calibrate=False)
        model = WeakDetector(proposals=PROPOSALS, pca=10, classifier=classifier, random_state=0)
        model.fit(described[which], labels[which, None], [given[i] for i in which], ["red"])
        scores.append(model.score_boxes(described)[0])
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-3)


def test_true_boxes_that_no_proposal_meets_do_not_contradict(scenes, described):
    labels = scenes[1]
    given = [{"red": [[0, 0, 1, 1]]} if i == 1 else None for i in range(len(labels))]
    model = WeakDetector(proposals=PROPOSALS, pca=5, random_state=0)
    assert model.fit(described, labels[:, None], given, ["red"]).refinements_ == [None]


def test_draw(detector, scenes):
    image = scenes[0][1]
    found = detector.predict(image[None])[0]
    drawn = draw(image, found, min_probability=0.2)
    assert drawn.shape == image.shape
    assert np.any(drawn != image)
    # Where nothing is probable enough the best box, and it alone, is drawn thinly in grey.
    doubtful = draw(image, found, min_probability=1.1)
    x, y, _, h = (round(float(v)) for v in found.boxes[0])
    assert np.all(doubtful[y + h // 2, x] == 150)
    best = Detections(*(part[:1] for part in found))
    np.testing.assert_array_equal(doubtful, draw(image, best, min_probability=2.0))
    nothing = Detections(*(part[:0] for part in found))
    np.testing.assert_array_equal(draw(image, nothing), image)


@pytest.mark.parametrize("kind", ["grey", "alpha", "deep", "pixel", "flat"])
def test_odd_images_are_predicted(detector, scenes, kind):
    image = {
        "grey": scenes[0][0][..., 0],
        "alpha": np.dstack([scenes[0][0], np.full((64, 80), 255, np.uint8)]),
        "deep": scenes[0][0].astype(np.uint16) * 257,
        "pixel": np.zeros((1, 1, 3), np.uint8),
        "flat": np.full((30, 40), 9, np.uint8),
    }[kind]
    found = detector.predict([image])[0]
    assert len(found.boxes) >= 1
    if kind in ("pixel", "flat"):
        assert found.boxes.tolist() == [[0, 0, *image.shape[1::-1]]]


def test_bad_input(detector, scenes, described):
    images, labels, _ = scenes
    new = WeakDetector(proposals=PROPOSALS)
    with pytest.raises(ValueError, match="image 1: image is not an image"):
        new.describe([images[0], b"broken"])
    with pytest.raises(ValueError, match="at least one image"):
        new.describe([])
    with pytest.raises(ValueError, match="ids must name"):
        new.describe(images[:2], ids=["a"])
    with pytest.raises(ValueError, match="one entry per image"):
        new.fit(described, labels[:3, None])
    with pytest.raises(ValueError, match="'red' is in all"):
        new.fit(described, ["red"] * len(labels))
    with pytest.raises(ValueError, match="name no class"):
        new.fit(described, [None] * len(labels))
    with pytest.raises(ValueError, match="describe"):
        new.fit(
            described.map(lambda x: x).__class__(described.instances, described.offsets), labels
        )
    with pytest.raises(ValueError, match="labelled without it"):
        given = [{"red": [[1, 1, 9, 9]]}] + [None] * (len(labels) - 1)
        new.fit(described, labels[:, None], given, ["red"])
    with pytest.raises(ValueError, match="boxes needs one entry"):
        new.fit(described, labels[:, None], [None], ["red"])
    with pytest.raises(ValueError, match="features"):
        detector.predict(detector.describe(images[:1]).map(lambda X: X[:, :-2]))
    with pytest.raises(ValueError, match="contrast"):
        WeakDetector(contrast=0.5).describe(images[:1])


def test_labels_in_every_form():
    expected = [[1, 0], [0, 1], [0, 0]]
    for labels in ([["a"], ["b"], []], ["a", "b", None], np.array(expected)):
        Y, names = label_matrix(labels, ["a", "b"], 3)
        assert Y.tolist() == expected
        assert names.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="0 and 1"):
        label_matrix(np.array([[2], [0]]), None, 2)
    with pytest.raises(ValueError, match="class names for"):
        label_matrix(np.eye(2, dtype=int), ["a"], 2)
    with pytest.raises(ValueError, match="does not"):
        label_matrix(["a", "c"], ["a"], 2)


def test_is_cloned_like_any_estimator():
    assert clone(WeakDetector(proposals=PROPOSALS, nms=0.4)).nms == 0.4


def test_canvases_have_true_boxes():
    data = make_digit_canvases(12, digit=3, random_state=0)
    again = make_digit_canvases(12, digit=3, random_state=0)
    np.testing.assert_array_equal(data.images[5], again.images[5])
    assert data.labels[:, 0].tolist() == [len(b) for b in data.boxes_of("3")]
    assert data.labels.sum() == 6
    for image, boxes in zip(data.images, data.boxes_of("3"), strict=True):
        for x, y, w, h in boxes.astype(int):
            inside = image[y : y + h, x : x + w].max(axis=2)
            assert inside.max() > 190
            assert 0 <= x < x + w <= 128
            assert 0 <= y < y + h <= 128
    with pytest.raises(ValueError, match="must hold 7"):
        make_digit_canvases(2, digit=7, digits=np.zeros((2, 8, 8)), labels=[1, 2])


def test_finds_digits_on_clutter():
    train, test = (make_digit_canvases(n, digit=0, random_state=s) for n, s in ((80, 0), (40, 1)))
    detector = WeakDetector(
        proposals=Proposals(method="blobs", n_boxes=60, min_side=0.08), random_state=0
    )
    detector.fit(train.images, train.labels, class_names=train.class_names)
    found = detector.predict([im for im, y in zip(test.images, test.labels, strict=True) if y[0]])
    assert corloc([d.boxes[0] for d in found], [b for b in test.boxes_of("0") if len(b)]) > 0.7
