"""Objects in photographs from image labels: a class map per image, and boxes that explain it.

1. Every cell of a photograph has features of a network; the cells of an image are a bag.
2. A whole-image classifier on the mean of the cells gives the calibrated probability that the
   image shows the class.
3. A cell classifier learns the class map: cells of images with the class are positive as far as
   they are salient, all others negative; then once more with its own maps mixed into the targets.
   What is salient but not of the class (a person beside a kangaroo) is thereby told apart.
4. A box scores by how well it holds one whole object on the maps (`bagwise.vision.wholeness`).
5. A region classifier on the mean of the cells in a box, learned from the best box of each image,
   gives the probability that the box shows the class. Boxes are ranked by their score times the
   geometric mean of the probabilities of image and box.

True boxes, where given, keep the cells outside them from being positive, are the regions of their
images, and teach a refinement of the box scores (`bagwise.vision.refinement`), which is averaged
with the scores on the maps learned with and without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.platt import Platt, fit_platt
from bagwise.evaluate.boxes import box_iou
from bagwise.vision.described import FRAMES, SMALL_FRAME, Photographs, frames, salient_box
from bagwise.vision.proposals import box_sums
from bagwise.vision.refinement import Clues, Refinement, learn_refinement, log_sizes
from bagwise.vision.saliency import Components
from bagwise.vision.wholeness import Evidence, box_clues, weigh_boxes

# Cells of an image that the class map is learned from, at most.
_CELLS = 160
# Inverse prior precision of a weight of the class map, where every image counts as one example.
_STRENGTH = 0.08
# Times that the class map is learned; from the second on its own maps are half of the targets.
_ROUNDS = 2
# Inverse prior precisions tried for the classifiers of images and regions, chosen by held-out
# log loss.
_IMAGE_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
_FOLDS = 5
# Power of a box's ranking score, relative to the image's best, that its probability falls by.
_STEEPNESS = 2
# A reported box is the mean of the proposals that overlap it by this much, weighted by this power
# of their ranking scores: their edges differ by chance, and the best one's are no exception.
_VOTING_OVERLAP, _VOTING_POWER = 0.5, 8
# Scores this near to 0 or 1 have these log-odds.
_LEAST = 1e-3
# Images whose cells are known by true boxes count so many times in learning the class map.
_BOXED_WEIGHT = 3.0
# Overlaps as near as this to the limit meet a true box in part.
_BLUR = 0.1
# Examples that the proposals of a boxed image count as together: cautious, so that an odd draw of
# a few boxed images does no harm.
_EXAMPLES = 0.3


# Held-out AUC of image labels below which boxes cannot be said to show the class.
_LEAST_AUC = 0.6


class Linear(NamedTuple):
    """A linear score of raw features."""

    weights: NDArray[np.float64]  # [D]
    intercept: float

    def score(self, X: Any) -> NDArray[np.float64]:
        """Log-odds, [n]."""
        return np.asarray(X @ self.weights + self.intercept, dtype=np.float64)


class ClassModel(NamedTuple):
    """What is learned of one class."""

    image: Linear  # on the mean of an image's cells
    platt: Platt
    general: Linear  # on a cell, learned without true boxes
    cell: Linear  # on a cell, learned with them
    region: Linear  # on the mean of a box's cells
    region_platt: Platt
    refinement: Refinement | None

    def image_probability(self, photos: Photographs) -> NDArray[np.float64]:
        """Calibrated probability that each image shows the class, [B]."""
        return expit(self.platt.log_odds(self.image.score(mean_cells(photos.cells))))

    def region_probability(self, photos: Photographs) -> NDArray[np.float64]:
        """Calibrated probability that each box shows the class, by its own cells alone."""
        values = self.region.score(photos.cells.instances)  # the mean of scores is that of the mean
        parts = [
            region_means(value, photos.grids[i], photos.sizes[i], photos.boxes[i])
            for i, value in enumerate(photos.cells.split(values))
        ]
        return expit(self.region_platt.log_odds(np.concatenate(parts)))

    def class_map(self, photos: Photographs) -> NDArray[np.float64]:
        """Probability that each cell shows the class, [N]."""
        return expit(self.cell.score(photos.cells.instances))

    def box_scores(self, photos: Photographs) -> NDArray[np.float64]:
        """How well each box holds a whole object of the class if the image has one, 0 to 1."""
        general = expit(self.general.score(photos.cells.instances))
        scores = np.concatenate([evidence.wholeness for evidence, _ in weigh(photos, general)])
        if self.refinement is None:
            return scores
        parts = []
        for i, (evidence, maps) in enumerate(weigh(photos, self.class_map(photos))):
            refined = expit(self.refinement.refine(clues_of(photos, i, evidence, *maps)))
            parts.append(evidence.wholeness + refined)
        # A few boxed images are an odd draw, so what was learned without their boxes has a say.
        return np.asarray((scores + np.concatenate(parts)) / 3)


def mean_cells(cells: Bags) -> NDArray[np.float64]:
    """Mean features of each image's cells, [B, D]."""
    return np.stack([cell.mean(axis=0, dtype=np.float64) for cell in cells])


def region_means(
    values: ArrayLike, grid: ArrayLike, size: ArrayLike, boxes: ArrayLike
) -> NDArray[np.float64]:
    """Mean of an image's cells in each box; of cells that a box cuts, those with most inside.

    ``values`` has a row per cell, ``grid`` is rows and columns of cells, ``size`` height and width
    of the image. A box has at least one cell.

    Examples
    --------
    >>> from bagwise.vision.photographs import region_means
    >>> region_means([1.0, 2, 3, 4], (2, 2), (20, 20), [[0.0, 0, 10, 20], [11, 11, 1, 1]]).tolist()
    [2.0, 4.0]
    """
    values, boxes = np.asarray(values, dtype=np.float64), np.asarray(boxes, dtype=np.float64)
    rows, columns = np.asarray(grid, dtype=np.int64)
    table = values.reshape(rows, columns, *values.shape[1:]).cumsum(axis=0).cumsum(axis=1)
    table = np.pad(table, [(1, 0), (1, 0)] + [(0, 0)] * (values.ndim - 1))
    limit = np.array([columns, rows])
    per_pixel = limit / np.asarray(size, dtype=np.float64)[::-1]
    low = boxes[:, :2] * per_pixel
    first = np.clip(np.rint(low), 0, limit - 1).astype(int)
    last = np.clip(np.rint(low + boxes[:, 2:] * per_pixel).astype(int), first + 1, limit)
    (x0, y0), (x1, y1) = first.T, last.T
    sums = table[y1, x1] - table[y0, x1] - table[y1, x0] + table[y0, x0]
    n = ((x1 - x0) * (y1 - y0)).reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(sums / n)


def weigh(photos: Photographs, values: Any) -> Iterator[tuple[Evidence, tuple[Any, Any, float]]]:
    """For each image the evidence of its boxes, and class map, saliency map and their factor."""
    salient = photos.cells.split(photos.cells.columns["salient"])
    for i, (value, saliency) in enumerate(zip(photos.cells.split(values), salient, strict=True)):
        class_map, factor = photos.map_of(i, value)
        saliency_map, _ = photos.map_of(i, saliency)
        components = photos.components[i]
        if photos.centred:
            # Neither its components nor a class map learned from it are objects (cross-validated,
            # they did worse than a box in the middle), so boxes follow this map alone.
            class_map = saliency_map
            components = Components(np.empty((0, 4)), np.empty(0, dtype=np.int64))
        maps = (class_map, saliency_map, factor)
        yield weigh_boxes(photos.boxes[i], components, *maps), maps


def clues_of(
    photos: Photographs, i: int, evidence: Evidence, class_map: Any, saliency: Any, factor: float
) -> Clues:
    """What a refinement goes by, of one image's boxes."""
    boxes = photos.boxes[i]
    return Clues(
        logit(np.clip(evidence.wholeness, _LEAST, 1 - _LEAST)),
        np.empty((len(boxes), 0)),
        box_clues(boxes, evidence, class_map, saliency, factor),
        log_sizes(boxes, np.broadcast_to(photos.sizes[i], (len(boxes), 2))),
        np.empty((len(boxes), 0)),
    )


def learn_class(
    photos: Photographs,
    y: NDArray[np.int64],
    given: Sequence[Any],
    overlap: float,
    rng: np.random.Generator,
) -> ClassModel:
    """Learn one class from image labels ``y`` [B]; ``given`` holds true boxes or None by image."""
    image, platt = _learn_classifier(mean_cells(photos.cells), y)
    general = learn_cells(photos, y, [None] * len(y), rng)
    boxed = any(boxes is not None for boxes in given)
    cell = learn_cells(photos, y, given, rng) if boxed else general
    model = ClassModel(image, platt, general, cell, image, platt, None)
    model = model._replace(refinement=_learn_boxes(photos, model, given, overlap))
    if photos.centred:  # boxes that follow no class map are no regions of the class
        return model
    region, region_platt = _learn_classifier(_regions(photos, model, given), y)
    return model._replace(region=region, region_platt=region_platt)


def _regions(
    photos: Photographs, model: ClassModel, given: Sequence[ArrayLike | None]
) -> NDArray[np.float64]:
    """Mean features of what shows the class in each image: its true boxes, else the best box."""
    scores, offsets = model.box_scores(photos), photos.offsets
    rows = []
    for i, cells in enumerate(photos.cells):
        best = int(scores[offsets[i] : offsets[i + 1]].argmax())
        true = given[i]
        boxes = photos.boxes[i][best : best + 1] if true is None else np.asarray(true)
        if len(boxes) == 0:  # an image that was looked through, with no object in it
            boxes = photos.boxes[i][best : best + 1]
        means = region_means(cells, photos.grids[i], photos.sizes[i], boxes)
        rows.append(means.mean(axis=0))
    return np.stack(rows)


def _learn_classifier(X: NDArray[np.float64], y: NDArray[np.int64]) -> tuple[Linear, Platt]:
    """A classifier of one row per image, and its calibration on images it was not trained on."""
    n_folds = min(_FOLDS, int(np.bincount(y, minlength=2).min()))
    if n_folds < 2:  # one image of a kind: nothing can be held out
        return _logistic(X, y, np.ones(len(y)), _IMAGE_STRENGTHS[0]), Platt(1.0, 0.0)
    folds = list(StratifiedKFold(n_folds).split(X, y))
    losses, scores = [], []
    for strength in _IMAGE_STRENGTHS:
        held_out = np.empty(len(y))
        for train, test in folds:
            fitted = _logistic(X[train], y[train], np.ones(len(train)), strength)
            held_out[test] = fitted.score(X[test])
        scores.append(held_out)
        losses.append(log_loss(y, expit(held_out)))
    best = int(np.argmin(losses))
    fitted = _logistic(X, y, np.ones(len(y)), _IMAGE_STRENGTHS[best])
    return fitted, fit_platt(scores[best], y)


def _logistic(X: Any, target: Any, weight: Any, strength: float) -> Linear:
    """Logistic regression on standardised features with targets from 0 to 1."""
    centre, scale = X.mean(axis=0), X.std(axis=0)
    scale = np.where(scale > 1e-9 * (1 + np.abs(centre)), scale, 1.0)
    Z = ((X - centre) / scale).astype(np.float32)
    rows = np.concatenate([Z, Z])
    label = np.repeat([1, 0], len(Z))
    weights = np.concatenate([weight * target, weight * (1 - target)])
    used = weights > 0
    fitted = LogisticRegression(C=strength, max_iter=300)
    fitted.fit(rows[used], label[used], sample_weight=weights[used])
    w = fitted.coef_[0] / scale
    return Linear(w, float(fitted.intercept_[0] - w @ centre))


def learn_cells(
    photos: Photographs, y: NDArray[np.int64], given: Sequence[Any], rng: np.random.Generator
) -> Linear:
    """The cell classifier: saliency tells which cells of an image with the class to start from.

    Where true boxes are given, cells outside them are negative, and the image counts more.
    """
    cells = photos.cells
    boxed = segments.spread(np.array([boxes is not None for boxes in given]), cells.offsets)
    allowed = segments.spread(y == 1, cells.offsets) * _inside(photos, given)
    salient = cells.columns["salient"]
    rows = _sample(cells, rng)
    X = np.asarray(cells.instances[rows])
    # The cells of an image are no independent witnesses: together they count as one example.
    weight = 1.0 / np.bincount(cells.bag_index[rows], minlength=len(cells))[cells.bag_index[rows]]
    weight = np.where(boxed[rows], _BOXED_WEIGHT, 1.0) * weight
    target = (salient * allowed)[rows]
    for last in np.arange(_ROUNDS) == _ROUNDS - 1:
        fitted = _logistic(X, target, weight, _STRENGTH)
        if not last:
            own = ((expit(fitted.score(X)) + salient[rows]) / 2) * allowed[rows]
            target = np.where(boxed[rows], target, own)
    return fitted


def _sample(cells: Bags, rng: np.random.Generator) -> NDArray[np.int64]:
    """At most `_CELLS` cells of every image, in order."""
    rank = np.empty(cells.n_instances, dtype=np.int64)
    order = np.lexsort([rng.random(cells.n_instances), cells.bag_index])
    rank[order] = np.arange(cells.n_instances) - cells.offsets[cells.bag_index[order]]
    return np.flatnonzero(rank < _CELLS)


def _inside(photos: Photographs, given: Sequence[Any]) -> NDArray[np.float64]:
    """1 for cells whose centre is in a true box of the image, or whose image has none, [N]."""
    parts = []
    for (rows, columns), (height, width), boxes in zip(
        photos.grids, photos.sizes, given, strict=True
    ):
        if boxes is None:
            parts.append(np.ones(rows * columns))
            continue
        x = np.tile((np.arange(columns) + 0.5) * width / columns, rows)[:, None]
        y = np.repeat((np.arange(rows) + 0.5) * height / rows, columns)[:, None]
        left, top, w, h = np.asarray(boxes, dtype=np.float64).T
        meets = (x >= left) & (x < left + w) & (y >= top) & (y < top + h)
        parts.append(meets.any(axis=1).astype(np.float64))
    return np.concatenate(parts)


def _learn_boxes(
    photos: Photographs, model: ClassModel, given: Sequence[Any], overlap: float
) -> Refinement | None:
    """What the proposals of images with true boxes teach about all others."""
    boxed = [i for i, boxes in enumerate(given) if boxes is not None and len(boxes)]
    if not boxed:
        return None
    some = photos[boxed]
    clues, targets, weights = [], [], []
    blur = min(_BLUR, overlap, 1 - overlap)
    for k, (evidence, maps) in enumerate(weigh(some, model.class_map(some))):
        clues.append(clues_of(some, k, evidence, *maps))
        iou = box_iou(some.boxes[k], given[boxed[k]]).max(axis=1)
        targets.append(np.interp(iou, [overlap - blur, overlap + blur], [0.0, 1.0]))
        # The proposals of an image overlap, so they count alike, however many there are.
        weights.append(np.full(len(iou), min(1.0, _EXAMPLES / len(iou))))
    merged = Clues(*(np.concatenate(part) for part in zip(*clues, strict=True)))
    target = np.concatenate(targets)
    if target.max() <= 0:
        return None
    return learn_refinement(merged, target, np.concatenate(weights), len(boxed))


def score_boxes(model: ClassModel, photos: Photographs) -> tuple[Any, Any, Any]:
    """Ranking score, probability and its std (unknown: NaN) of every box.

    Boxes are ranked by their score, times the geometric mean of the probabilities of image and
    box; second boxes, besides, by the share of their score in that of the best one. Without true
    boxes nothing says how probable it is that a box holds the whole object. The best box of an
    image then carries the image's probability, and others less: by the square of their ranking
    score relative to it, so that a second box counts only if it is nearly as good.
    """
    offsets = photos.offsets
    p = segments.spread(model.image_probability(photos), offsets)
    scores = model.box_scores(photos)
    seen = p if photos.centred else np.sqrt(p * model.region_probability(photos))
    ranking = seen * scores * _relative(scores, offsets)
    share = scores if model.refinement is not None else _relative(ranking, offsets) ** _STEEPNESS
    return ranking, p * share, np.full(len(scores), np.nan)


def _relative(values: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Values of boxes relative to the largest of their image."""
    best = segments.spread(segments.max(values, offsets), offsets)
    return np.asarray(values / np.maximum(best, 1e-300))


def vote_boxes(
    boxes: NDArray[np.float64],
    scores: NDArray[np.float64],
    kept: NDArray[np.int64],
    nms: float = 0.0,
) -> NDArray[np.float64]:
    """The kept boxes with edges averaged over all boxes that overlap them, the best counting most.

    Boxes that ``nms`` lets stand beside each other are different objects and do not vote.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision.photographs import vote_boxes
    >>> boxes = np.array([[0.0, 0, 10, 10], [2, 0, 10, 10], [40, 0, 10, 10]])
    >>> vote_boxes(boxes, np.array([0.8, 0.8, 0.9]), np.array([2, 0])).tolist()
    [[40.0, 0.0, 10.0, 10.0], [1.0, 0.0, 10.0, 10.0]]
    """
    near = box_iou(boxes[kept], boxes) >= max(_VOTING_OVERLAP, nms)  # [k, n]
    near[np.arange(len(kept)), kept] = True  # also a box without area
    best = np.where(near, scores, 0.0).max(axis=1, keepdims=True, initial=1e-300)
    weight = near * (np.maximum(scores, 1e-300) / best) ** _VOTING_POWER
    return np.asarray(weight @ boxes / weight.sum(axis=1, keepdims=True))


class Agreement(NamedTuple):
    """How well the best boxes of held-out images explain the image label.

    A box explains it as far as it holds more of the whole-image classifier's evidence than of
    the area: 0 for the whole image or a box put blindly, towards 1 for a small box that holds all
    evidence. The classifier never saw the image nor any saliency map, so detectors and simple
    boxes are compared fairly, though parts are not told from wholes.
    """

    auc: float  # of the held-out image probabilities
    detector: float
    simple: dict[str, float]  # by name of a simple box
    margin: dict[str, float]  # how far the detector may fall below it by chance
    threshold: float  # image probability that tells held-out images apart best


def held_out_agreement(
    photos: Photographs,
    y: NDArray[np.int64],
    given: Sequence[Any],
    overlap: float,
    rng: np.random.Generator,
) -> Agreement | None:
    """Compare the detector with simple boxes on images it was not trained on; None if too few."""
    n_folds = min(3, int(np.bincount(y, minlength=2).min()))
    if n_folds < 2:
        return None
    p, rows = np.empty(len(y)), []
    for train, test in StratifiedKFold(n_folds).split(y, y):
        part = [given[i] for i in train]
        model = learn_class(photos[train], y[train], part, overlap, rng)
        p[test] = model.image_probability(photos[test])
        rows.append(_explained(model, photos[test[y[test] == 1]]))
    explained = np.concatenate(rows)  # [n, 1 + simple boxes]
    behind = explained[:, 1:] - explained[:, :1]
    error = behind.std(axis=0) / np.sqrt(len(behind))
    names = (*FRAMES, "saliency", "centred box of the same size")
    return Agreement(
        float(roc_auc_score(y, p)),
        float(explained[:, 0].mean()),
        dict(zip(names, explained[:, 1:].mean(axis=0).tolist(), strict=True)),
        dict(zip(names, (2 * error).tolist(), strict=True)),
        best_threshold(p, y),
    )


def best_threshold(p: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """The probability, in the middle of a gap, with the highest balanced accuracy.

    Of equally good gaps the one nearest to 1/2 is taken.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision.photographs import best_threshold
    >>> round(best_threshold(np.array([0.1, 0.2, 0.3, 0.7]), np.array([0, 0, 1, 1])), 3)
    0.25
    """
    values = np.unique(np.concatenate([[0.0], p, [1.0]]))
    limits = (values[1:] + values[:-1]) / 2
    above = p[None] >= limits[:, None]  # [limits, B]
    accuracy = above[:, y == 1].mean(axis=1) - above[:, y == 0].mean(axis=1)
    best = np.flatnonzero(accuracy >= accuracy.max() - 1e-12)
    return float(limits[best[np.abs(limits[best] - 0.5).argmin()]])


def _explained(model: ClassModel, photos: Photographs) -> NDArray[np.float64]:
    """Share of the evidence minus share of the area, of the best box and of simple boxes."""
    import cv2

    scores = model.box_scores(photos)
    evidence = np.maximum(model.image.score(photos.cells.instances), 0)
    rows = []
    for i, values in enumerate(photos.cells.split(evidence)):
        best = scores[photos.offsets[i] : photos.offsets[i + 1]].argmax()
        size = photos.sizes[i][::-1]
        chosen = photos.boxes[i][best]
        share = np.sqrt(chosen[2:].prod() / size.prod())
        centred = np.concatenate([(1 - share) / 2 * size, share * size])
        boxes = np.vstack([chosen, frames(*photos.sizes[i]), salient_box(photos, i), centred])
        values, factor = photos.map_of(i, values)
        inside, area = box_sums(cv2.integral(values, sdepth=cv2.CV_64F), boxes * factor)
        rows.append(inside / max(float(values.sum()), 1e-12) - area / values.size)
    return np.array(rows)


def doubts(agreement: Agreement | None) -> list[str]:
    """What to warn of after training, in whole sentences."""
    if agreement is None:
        return ["there are too few images to hold any out, so nothing is known of its quality."]
    out = []
    if agreement.auc < _LEAST_AUC:
        out.append(
            f"held-out image labels are predicted with an AUC of {agreement.auc:.2f} only, so its "
            "boxes show what is salient rather than the class. More images or better features "
            "(pip install 'bagwise[photographs]') may help."
        )
    for name, value in agreement.simple.items():
        # A box of 60 % is too small for many objects, yet holds much evidence for its area.
        if name != SMALL_FRAME and agreement.detector < value - agreement.margin[name]:
            out.append(
                f"on held-out images its best boxes explain the label less well "
                f"({agreement.detector:.2f}) than a fixed choice does ({name}: {value:.2f})."
            )
    return out
