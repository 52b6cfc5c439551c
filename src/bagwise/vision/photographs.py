"""Objects in photographs from image labels: a class map per image, and boxes that explain it.

This is not the VGPMIL paper's detector and has no Gaussian process; `WeakDetector` is.

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
6. How probable it is that a box holds one object was learned on other photographs
   (`bagwise.vision.box_probability`).

True boxes, where known, keep the cells outside them from being positive, are the regions of their
images, and teach a refinement of the box scores (`bagwise.vision.detection`), which is averaged
with the scores on the maps learned with and without them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.utils._param_validation import StrOptions

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Bools, Floats, Ints, Reals
from bagwise.evaluate.boxes import box_iou
from bagwise.models.calibration.fit import Platt, fit_platt
from bagwise.models.parameters import parameter
from bagwise.vision import box_probability
from bagwise.vision.detection import (
    BoxScores,
    Clues,
    Detector,
    Refinement,
    TrueBoxes,
    learn_refinement,
    log_sizes,
    meets,
    suppress,
)
from bagwise.vision.features import RegionFeatures
from bagwise.vision.images import Image
from bagwise.vision.networks import best_backbone
from bagwise.vision.proposals import Proposals, box_sums
from bagwise.vision.saliency import (
    INSTALL,
    METHODS,
    Components,
    choose,
    find_components,
    saliency_map,
)
from bagwise.vision.wholeness import (
    FRAMES,
    SMALL_FRAME,
    BoxEvidence,
    Maps,
    Photographs,
    box_clues,
    frames,
    judge_boxes,
    salient_box,
)

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
# A reported box is the mean of the proposals that overlap it by this much, weighted by this power
# of their ranking scores: their edges differ by chance, and the best one's are no exception.
_VOTING_OVERLAP, _VOTING_POWER = 0.5, 8
# Scores this near to 0 or 1 have these log-odds.
_SMALLEST_SCORE = 1e-3
# Images whose cells are known by true boxes count so many times in learning the class map.
_BOXED_WEIGHT = 3.0
# Examples that the proposals of a boxed image count as together: cautious, so that an odd draw of
# a few boxed images does no harm.
_EXAMPLES = 0.3
# Held-out AUC of image labels below which boxes cannot be said to show the class.
_LOW_AUC = 0.6
_CHECK_FOLDS = 3


@dataclass(kw_only=True, eq=False, repr=False)
class PhotographDetector(Detector[Photographs]):
    """Detect objects in photographs by how well a box holds one whole object of the class.

    Parameters
    ----------
    proposals : Proposals or None, default=None
        Default: selective search on a small copy of the image, 250 boxes.
    features : RegionFeatures or None, default=None
        Default: EfficientNet-lite2 where it is installed, else oriented gradients and colour
        histograms.
    nms : float, default=0.3
        Of two boxes of a class that overlap more than this, the better one is kept.
    overlap : float, default=0.5
        Where true boxes are known, a proposal shows the class if it overlaps one by at least this.
    n_detections : int, default=100
        At most so many boxes per class and image.
    random_state : int, RandomState or None, default=None
        Of the cells that class maps are learned from.
    verbose : bool, default=False
        Show a progress bar over images.
    saliency : {"auto", "u2netp", "classical"}, default="auto"
        Map that tells objects from their background (see ``bagwise.vision.saliency``). "auto":
        "u2netp" where it is installed, else "classical".
    check : bool, default=True
        Whether `fit` trains three times more on parts of the images to compare its boxes with
        simple ones on the images left out. It then warns where held-out image labels cannot be
        predicted, or where held-out boxes explain them no better than a fixed box does. True boxes
        of images left out calibrate the probabilities of boxes.

    Attributes
    ----------
    classes_ : array of class names
    models_ : list of ClassModel, one per class
    threshold : the least probability of a box to be counted, 0.3
    missing_ : str, what to install for the documented quality, or nothing
    agreement_ : dict by class: how well held-out boxes explain the image label, of the detector and
        of simple boxes (see ``bagwise.vision.photographs.Agreement``)

    See Also
    --------
    WeakDetector : The paper's detector; for marks on a ground, such as cells.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import PhotographDetector, Proposals, RegionFeatures
    >>> images = np.random.default_rng(0).integers(60, 90, (8, 48, 64, 3), dtype=np.uint8)
    >>> images[:4, 12:36, 20:44] = [220, 60, 60]
    >>> detector = PhotographDetector(
    ...     proposals=Proposals(method="edge-boxes", n_boxes=20),
    ...     features=RegionFeatures(backbone="hog"), saliency="classical", check=False,
    ... )
    >>> detector = detector.fit(images, ["red"] * 4 + [None] * 4)
    >>> p = [detections.probabilities[0] for detections in detector.predict(images)]
    >>> bool(min(p[:4]) > max(p[4:]))
    True
    """

    saliency: str = parameter("auto", StrOptions(set(METHODS)))
    check: bool = parameter(True, "boolean")
    # Where boxes are few and right, and objects are found, in equal parts (largest F1) on
    # photographs of other classes.
    threshold = 0.3

    def _describe_image(self, image: Image, key: object) -> Photographs:
        """Cells, saliency and boxes: frames, salient components and proposals."""
        import cv2

        proposals = self.proposals or Proposals(
            n_boxes=250, max_side=224, quality="fast", min_side=0.04, max_area=1.0
        )
        features = self.features or RegionFeatures(backbone=best_backbone())
        height, width = image.shape[:2]
        salient = saliency_map(image, self.saliency)
        components = find_components(salient, height, width)
        boxes = np.concatenate(
            [frames(height, width), components.boxes, proposals.propose(image, key)]
        )
        first = np.unique(boxes.round(), axis=0, return_index=True)[1]
        cells, (rows, columns) = features.extract_cells(image)
        means = cv2.resize(salient, (columns, rows), interpolation=cv2.INTER_AREA)
        of_image = Bags.from_list([cells], ids=[str(key)])
        return Photographs(
            of_image.with_columns(salient=np.asarray(means, dtype=np.float64).ravel()),
            np.array([[rows, columns]]),
            np.array([[height, width]]),
            [boxes[np.sort(first)]],
            [components],
            centred=choose(self.saliency) == "classical",
        )

    def _is_described(self, images: object) -> bool:
        return isinstance(images, Photographs)

    def _fit(
        self, described: Photographs, Y: Ints, boxes: list[TrueBoxes], rng: np.random.RandomState
    ) -> None:
        seed = int(rng.randint(2**31 - 1))
        self.models_, self.agreement_ = [], {}
        self.missing_ = self._missing_networks()
        if self.missing_:
            warnings.warn(self.missing_, stacklevel=3)
        for name, y, true in zip(map(str, self.classes_), Y.T, boxes, strict=True):
            args = (described, y, true, self.overlap)
            model = learn_class(*args, np.random.default_rng(seed))
            if self.check:
                rng_of_check = np.random.default_rng(seed)
                agreement, clues, right = hold_out(*args, self.nms, rng_of_check)
                self.agreement_[name] = agreement
                weights = box_probability.correct_weights(model.weights, clues, right)
                model = model._replace(weights=weights)
                for message in doubts(agreement):
                    warnings.warn(f"class {name!r}: {message}", stacklevel=3)
            self.models_.append(model)

    def _missing_networks(self) -> str:
        """One line on the networks that the defaults would have used."""
        installs = []
        if self.features is None and best_backbone() == "hog":
            installs.append("pip install '.[photographs]'")
        if self.saliency == "auto" and choose("auto") == "classical":
            installs.append(INSTALL)
        if not installs:
            return ""
        return (
            "boxes are about as good as one in the middle of the image, because networks for "
            f"photographs are not installed: {' && '.join(installs)} in a checkout"
        )

    def score_boxes(self, described: Photographs, c: int = 0) -> BoxScores:
        """Ranking score, probability and its std (unknown: NaN) of every box for one class.

        Boxes are ranked by their score, times the geometric mean of the probabilities of image and
        box; second boxes, besides, by the share of their score in that of the best one. The
        probability says that a box holds one object which no better box of the image holds.
        """
        ranking, clues = self.models_[c].rank_boxes(described)
        probability = expit(clues @ self.models_[c].weights)
        return BoxScores(ranking, probability, np.full(len(ranking), np.nan))

    def _edges(self, boxes: Floats, scores: Floats, kept: Ints) -> Floats:
        return vote_boxes(boxes, scores, kept, self.nms)


class LinearScore(NamedTuple):
    """A linear score of raw features."""

    weights: Floats  # [D]
    intercept: float

    def score(self, X: Reals) -> Floats:
        """Log-odds, [n]."""
        return np.asarray(X @ self.weights + self.intercept, dtype=np.float64)


class ClassModel(NamedTuple):
    """What is learned of one class."""

    image: LinearScore  # on the mean of an image's cells
    platt: Platt
    general: LinearScore  # on a cell, learned without true boxes
    cell: LinearScore  # on a cell, learned with them
    region: LinearScore  # on the mean of a box's cells
    region_platt: Platt
    refinement: Refinement | None
    weights: Floats  # of the clues of `box_probability`

    def image_probability(self, photos: Photographs) -> Floats:
        """Calibrated probability that each image shows the class, [B]."""
        return expit(self.image_log_odds(photos))

    def image_log_odds(self, photos: Photographs) -> Floats:
        """Calibrated log-odds that each image shows the class, [B]."""
        return np.asarray(self.platt.log_odds(self.image.score(_mean_cells(photos.cells))))

    def region_log_odds(self, photos: Photographs) -> Floats:
        """Calibrated log-odds that each box shows the class, by its own cells alone, [N]."""
        values = self.region.score(photos.cells.instances)  # the mean of scores is that of the mean
        parts = map(
            region_means, photos.cells.split(values), photos.grids, photos.sizes, photos.boxes
        )
        return np.asarray(self.region_platt.log_odds(np.concatenate(list(parts))))

    def rank_boxes(self, photos: Photographs) -> tuple[Floats, Floats]:
        """What boxes are ranked by [N], and what their probability goes by [N, 6]."""
        offsets = photos.offsets
        image, region = self.image_log_odds(photos), self.region_log_odds(photos)
        seen = expit(segments.spread(image, offsets))
        if not photos.centred:
            seen = np.sqrt(seen * expit(region))
        scores = self.box_scores(photos)
        best = segments.spread(segments.max(scores, offsets), offsets)
        ranking = seen * scores**2 / np.maximum(best, 1e-300)
        parts = np.split(np.column_stack([region, ranking]), offsets[1:-1])
        clues = [
            box_probability.probability_clues(of_image, part[:, 0], part[:, 1], boxes)
            for of_image, part, boxes in zip(image, parts, photos.boxes, strict=True)
        ]
        return np.asarray(ranking), np.concatenate(clues)

    def box_scores(self, photos: Photographs) -> Floats:
        """How well each box holds a whole object of the class if the image has one, 0 to 1, [N]."""
        cells = photos.cells.instances
        judged = judge_photographs(photos, expit(self.general.score(cells)))
        scores = np.concatenate([evidence.wholeness for evidence, _ in judged])
        if self.refinement is None:
            return scores
        parts = []
        judged = judge_photographs(photos, expit(self.cell.score(cells)))
        for i, (evidence, maps) in enumerate(judged):
            refined = expit(self.refinement.refine(photograph_clues(photos, i, evidence, maps)))
            parts.append(evidence.wholeness + refined)
        # A few boxed images are an odd draw, so what was learned without their boxes has a say.
        return np.asarray((scores + np.concatenate(parts)) / 3)


def _mean_cells(cells: Bags) -> Floats:
    """Mean features of each image's cells, [B, D]."""
    return np.stack([cell.mean(axis=0, dtype=np.float64) for cell in cells])


def region_means(values: ArrayLike, grid: ArrayLike, size: ArrayLike, boxes: ArrayLike) -> Floats:
    """Mean of an image's cells in each box; of cells that a box cuts, those with most inside.

    ``values`` has a row per cell, ``grid`` is rows and columns of cells, ``size`` height and width
    of the image. A box has at least one cell.
    """
    values, boxes = np.asarray(values, dtype=np.float64), np.asarray(boxes, dtype=np.float64)
    rows, columns = np.asarray(grid, dtype=np.int64)
    # Summed-area table [rows + 1, columns + 1, ...]: four of its entries give the sum of a box.
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


def judge_photographs(photos: Photographs, of_class: Floats) -> Iterator[tuple[BoxEvidence, Maps]]:
    """For each image the evidence of its boxes and its maps, from the class map's cells [N]."""
    cells = photos.cells
    columns = zip(cells.split(of_class), cells.split(cells.columns["salient"]), strict=True)
    for i, (values, salient) in enumerate(columns):
        class_map, factor = photos.map_of(i, values)
        salient_map, _ = photos.map_of(i, salient)
        components = photos.components[i]
        if photos.centred:
            # Neither its components nor a class map learned from it are objects (cross-validated,
            # they did worse than a box in the middle), so boxes follow this map alone.
            class_map = salient_map
            components = Components(np.empty((0, 4)), np.empty(0, dtype=np.int64))
        maps = Maps(class_map, salient_map, factor)
        yield judge_boxes(photos.boxes[i], components, maps), maps


def photograph_clues(photos: Photographs, i: int, evidence: BoxEvidence, maps: Maps) -> Clues:
    """What a refinement goes by, of one image's boxes."""
    boxes = photos.boxes[i]
    return Clues(
        logit(np.clip(evidence.wholeness, _SMALLEST_SCORE, 1 - _SMALLEST_SCORE)),
        np.empty((len(boxes), 0)),
        box_clues(boxes, evidence, maps),
        log_sizes(boxes, np.broadcast_to(photos.sizes[i], (len(boxes), 2))),
        np.empty((len(boxes), 0)),
    )


def learn_class(
    photos: Photographs, y: Ints, true: TrueBoxes, overlap: float, rng: np.random.Generator
) -> ClassModel:
    """Learn one class from image labels ``y`` [B] and the true boxes of some images."""
    image, platt = _learn_classifier(_mean_cells(photos.cells), y)
    general = learn_cells(photos, y, [None] * len(y), rng)
    boxed = any(boxes is not None for boxes in true)
    cell = learn_cells(photos, y, true, rng) if boxed else general
    weights = box_probability.WITHOUT_NETWORKS if photos.centred else box_probability.WITH_NETWORKS
    model = ClassModel(image, platt, general, cell, image, platt, None, weights)
    if boxed:
        model = model._replace(refinement=_learn_refinement(photos, cell, true, overlap))
    if photos.centred:  # boxes that follow no class map are no regions of the class
        return model
    region, region_platt = _learn_classifier(class_regions(photos, model, true), y)
    return model._replace(region=region, region_platt=region_platt)


def class_regions(photos: Photographs, model: ClassModel, true: TrueBoxes) -> Floats:
    """Mean features of what shows the class in each image: its true boxes, else the best box."""
    scores, offsets = model.box_scores(photos), photos.offsets
    rows = []
    for i, cells in enumerate(photos.cells):
        best = int(scores[offsets[i] : offsets[i + 1]].argmax())
        known = true[i]
        boxes = photos.boxes[i][best : best + 1] if known is None else known
        rows.append(region_means(cells, photos.grids[i], photos.sizes[i], boxes).mean(axis=0))
    return np.stack(rows)


def _learn_classifier(X: Floats, y: Ints) -> tuple[LinearScore, Platt]:
    """A classifier of one row per image, and its calibration on images it was not trained on."""
    n_folds = min(_FOLDS, int(np.bincount(y, minlength=2).min()))
    if n_folds < 2:  # one image of a kind: nothing can be held out
        return fit_logistic(X, y, np.ones(len(y)), _IMAGE_STRENGTHS[0]), Platt(1.0, 0.0)
    folds = list(StratifiedKFold(n_folds).split(X, y))
    scores = np.empty((len(_IMAGE_STRENGTHS), len(y)))  # held out, by strength
    for held_out, strength in zip(scores, _IMAGE_STRENGTHS, strict=True):
        for train, test in folds:
            fitted = fit_logistic(X[train], y[train], np.ones(len(train)), strength)
            held_out[test] = fitted.score(X[test])
    best = int(np.argmin([log_loss(y, expit(held_out)) for held_out in scores]))
    fitted = fit_logistic(X, y, np.ones(len(y)), _IMAGE_STRENGTHS[best])
    return fitted, fit_platt(scores[best], y)


def fit_logistic(X: Reals, target: Reals | Ints, weight: Floats, strength: float) -> LinearScore:
    """Logistic regression on standardised features with targets from 0 to 1."""
    centre, scale = X.mean(axis=0), X.std(axis=0)
    scale = np.where(scale > 1e-9 * (1 + np.abs(centre)), scale, 1.0)
    Z = ((X - centre) / scale).astype(np.float32)
    # A target between is a weighted pair of a positive and a negative row.
    rows = np.concatenate([Z, Z])
    label = np.repeat([1, 0], len(Z))
    weights = np.concatenate([weight * target, weight * (1 - target)])
    used = weights > 0
    fitted = LogisticRegression(C=strength, max_iter=300)
    fitted.fit(rows[used], label[used], sample_weight=weights[used])
    w = fitted.coef_[0] / scale  # of raw features: w . (x - centre) / scale
    return LinearScore(w, float(fitted.intercept_[0] - w @ centre))


def learn_cells(
    photos: Photographs, y: Ints, true: TrueBoxes, rng: np.random.Generator
) -> LinearScore:
    """The cell classifier: saliency tells which cells of an image with the class to start from.

    Where true boxes are known, cells outside them are negative, and the image counts more.
    """
    cells = photos.cells
    # At most `_CELLS` cells of every image, drawn at random, in order.
    rank = np.empty(cells.n_instances, dtype=np.int64)
    order = np.lexsort([rng.random(cells.n_instances), cells.bag_index])
    rank[order] = np.arange(cells.n_instances) - cells.offsets[cells.bag_index[order]]
    rows = np.flatnonzero(rank < _CELLS)
    image = cells.bag_index[rows]
    boxed = np.array([boxes is not None for boxes in true])[image]
    allowed = (y == 1)[image] * cells_inside(photos, true)[rows]
    X, salient = np.asarray(cells.instances[rows]), cells.columns["salient"][rows]
    # The cells of an image are not independent: together they count as one example.
    weight = 1.0 / np.bincount(image, minlength=len(cells))[image]
    weight = np.where(boxed, _BOXED_WEIGHT, 1.0) * weight
    target = salient * allowed
    for remaining in reversed(range(_ROUNDS)):
        fitted = fit_logistic(X, target, weight, _STRENGTH)
        if remaining:
            mixed = ((expit(fitted.score(X)) + salient) / 2) * allowed
            target = np.where(boxed, target, mixed)
    return fitted


def cells_inside(photos: Photographs, true: TrueBoxes) -> Floats:
    """1 for cells whose centre is in a true box of the image, or whose image has none, [N]."""
    parts = []
    for (rows, columns), (height, width), boxes in zip(
        photos.grids, photos.sizes, true, strict=True
    ):
        if boxes is None:
            parts.append(np.ones(rows * columns))
            continue
        x = np.tile((np.arange(columns) + 0.5) * width / columns, rows)[:, None]
        y = np.repeat((np.arange(rows) + 0.5) * height / rows, columns)[:, None]
        left, top, w, h = np.asarray(boxes, dtype=np.float64).T
        within = (x >= left) & (x < left + w) & (y >= top) & (y < top + h)  # [cells, boxes]
        parts.append(within.any(axis=1).astype(np.float64))
    return np.concatenate(parts)


def _learn_refinement(
    photos: Photographs, cell: LinearScore, true: TrueBoxes, overlap: float
) -> Refinement | None:
    """What the proposals of images with true boxes teach about all others."""
    known = [(i, boxes) for i, boxes in enumerate(true) if boxes is not None]
    boxed = photos[[i for i, _ in known]]
    clues, targets, weights = [], [], []
    judged = judge_photographs(boxed, expit(cell.score(boxed.cells.instances)))
    for k, (evidence, maps) in enumerate(judged):
        clues.append(photograph_clues(boxed, k, evidence, maps))
        iou = box_iou(boxed.boxes[k], known[k][1]).max(axis=1)
        targets.append(meets(iou, overlap))
        # The proposals of an image overlap, so they count alike, however many there are.
        weights.append(np.full(len(iou), min(1.0, _EXAMPLES / len(iou))))
    target = np.concatenate(targets)
    if target.max() <= 0:
        return None
    merged = Clues(*(np.concatenate(part) for part in zip(*clues, strict=True)))
    return learn_refinement(merged, target, np.concatenate(weights), len(known))


def vote_boxes(boxes: Floats, scores: Floats, kept: Ints, nms: float = 0.0) -> Floats:
    """The kept boxes with edges averaged over all boxes that overlap them, the best counting most.

    Boxes that ``nms`` lets stand beside each other are different objects and do not vote.
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


def hold_out(
    photos: Photographs,
    y: Ints,
    true: TrueBoxes,
    overlap: float,
    nms: float,
    rng: np.random.Generator,
) -> tuple[Agreement | None, Floats, Bools]:
    """Compare the detector with simple boxes on images left out, and its boxes with true ones.

    Returns the agreement, None where the images are too few; and of the boxes kept in images with
    true boxes the clues [k, 6] and whether they hold an object [k].
    """
    n_folds = min(_CHECK_FOLDS, int(np.bincount(y, minlength=2).min()))
    p, rows, clues, right = np.empty(len(y)), [], [np.empty((0, 6))], [np.empty(0, dtype=bool)]
    if n_folds < 2:
        return None, clues[0], right[0]
    for train, test in StratifiedKFold(n_folds).split(y, y):
        model = learn_class(photos[train], y[train], [true[i] for i in train], overlap, rng)
        p[test] = model.image_probability(photos[test])
        rows.append(_explained_evidence(model, photos[test[y[test] == 1]]))
        boxed = np.array([i for i in test if true[i] is not None], dtype=np.int64)
        kept = kept_boxes(model, photos[boxed], nms)
        for i, (boxes, clues_of_image) in zip(boxed, kept, strict=True):
            clues.append(clues_of_image)
            right.append(box_probability.hits(boxes, np.asarray(true[i]), overlap))
    explained = np.concatenate(rows)  # [n, 1 + simple boxes]
    behind = explained[:, 1:] - explained[:, :1]  # paired by image, [n, simple boxes]
    error = behind.std(axis=0) / np.sqrt(len(behind))
    names = (*FRAMES, "saliency", "centred box of the same size")
    agreement = Agreement(
        float(roc_auc_score(y, p)),
        float(explained[:, 0].mean()),
        dict(zip(names, explained[:, 1:].mean(axis=0).tolist(), strict=True)),
        dict(zip(names, (2 * error).tolist(), strict=True)),
    )
    return agreement, np.concatenate(clues), np.concatenate(right)


def kept_boxes(
    model: ClassModel, photos: Photographs, nms: float
) -> Iterator[tuple[Floats, Floats]]:
    """For each image the boxes that no better one suppresses, best first [k, 4]; and their clues.

    The clues [k, 6] are those of `box_probability`.
    """
    if len(photos) == 0:
        return
    ranking, clues = model.rank_boxes(photos)
    for i, boxes in enumerate(photos.boxes):
        part = slice(*photos.offsets[i : i + 2])
        kept = suppress(boxes, ranking[part], nms)
        yield vote_boxes(boxes, ranking[part], kept, nms), clues[part][kept]


def _explained_evidence(model: ClassModel, photos: Photographs) -> Floats:
    """Share of the evidence minus share of the area: best box and simple boxes, [B, 1 + simple]."""
    import cv2

    scores, offsets = model.box_scores(photos), photos.offsets
    evidence = np.maximum(model.image.score(photos.cells.instances), 0)
    rows = []
    for i, values in enumerate(photos.cells.split(evidence)):
        best = scores[offsets[i] : offsets[i + 1]].argmax()
        size = photos.sizes[i][::-1]
        chosen = photos.boxes[i][best]
        share = np.sqrt(chosen[2:].prod() / size.prod())
        centred = np.concatenate([(1 - share) / 2 * size, share * size])
        boxes = np.vstack([chosen, frames(*photos.sizes[i]), salient_box(photos, i), centred])
        mapped, factor = photos.map_of(i, values)
        inside, area = box_sums(cv2.integral(mapped, sdepth=cv2.CV_64F), boxes * factor)
        rows.append(inside / max(float(mapped.sum()), 1e-12) - area / mapped.size)
    return np.array(rows)


def doubts(agreement: Agreement | None) -> list[str]:
    """What to warn of after training, in whole sentences."""
    if agreement is None:
        return ["there are too few images to hold any out, so nothing is known of its quality."]
    out = []
    if agreement.auc < _LOW_AUC:
        out.append(
            f"held-out image labels are predicted with an AUC of {agreement.auc:.2f} only, so its "
            "boxes show what is salient rather than the class. More images or better features "
            "(pip install '.[photographs]' in a checkout) may help."
        )
    for name, value in agreement.simple.items():
        # A box of 60 % is too small for many objects, yet holds much evidence for its area.
        if name != SMALL_FRAME and agreement.detector < value - agreement.margin[name]:
            out.append(
                f"on held-out images its best boxes explain the label less well "
                f"({agreement.detector:.2f}) than a fixed choice does ({name}: {value:.2f})."
            )
    return out
