"""Detection of marks on a ground from image labels: section 3.3 of the VGPMIL paper, as a tool.

An image is a bag and its proposed boxes are the instances. Image labels train one
multiple-instance classifier per class, by default the paper's Gaussian process on region
features, and its instance probabilities score the boxes of new images. Objects should be marks on
a ground (cells, digits); in photographs, see `bagwise.vision.photographs`.

Departures from the paper: boxes are ranked by what each alone says for its image, or by contrast;
true boxes, where some are known, teach a correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils._param_validation import HasMethods, Interval

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Floats, Ints, Reals
from bagwise.core.rules import log_odds
from bagwise.evaluate.boxes import box_iou
from bagwise.models.base import InstanceClassifier
from bagwise.models.parameters import parameter
from bagwise.models.pipeline import positive_proba
from bagwise.vision.detection import (
    BoxScores,
    Clues,
    Detector,
    Refinement,
    TrueBoxes,
    learn_refinement,
    log_sizes,
    meets,
    proposed_boxes,
)
from bagwise.vision.features import RegionFeatures
from bagwise.vision.images import Image
from bagwise.vision.proposals import RINGS, Proposals, ring_contrast

# Instances that the principal components are learned from, at most.
_PCA_ROWS = 20_000
# Cells along the longer side of the map of pixel scores.
_MAP_SIDE = 320
# Log-odds of a probability as near to 1 as a float can be.
_LARGEST_LOG_ODDS = 36.0


@dataclass(kw_only=True, eq=False, repr=False)
class WeakDetector(Detector[Bags]):
    """Detect objects by a multiple-instance classifier of regions, from image labels.

    Parameters
    ----------
    proposals : Proposals or None, default=None
        Default: selective search, 200 boxes. For cells, marks and digits, take
        ``Proposals(method="blobs")``.
    features : RegionFeatures or None, default=None
        Default: oriented gradients and colour histograms.
    nms : float, default=0.3
        Of two boxes of a class that overlap more than this, the better one is kept.
    overlap : float, default=0.5
        Where true boxes are known, a proposal shows the class if it overlaps one by at least this.
    n_detections : int, default=100
        At most so many boxes per class and image.
    random_state : int, RandomState or None, default=None
        Of the principal components and, where it has none, the classifier.
    verbose : bool, default=False
        Show a progress bar over images.
    pca : int or None, default=50
        Principal components kept of the standardised features.
    classifier : instance classifier or None, default=None
        Trained once per class. Default: a `VGPMIL` with 50 inducing points, as in the paper;
        another one makes another detector than the paper's.
    contrast : float or None, default=None
        Rank a box by its mean pixel score minus that of the ring around it, which this factor
        times its size adds (1.5 to 2). A pixel's score is the mean probability of the boxes that
        cover it. A multiple-instance classifier is content with the most telling part of an
        object; contrast prefers the box that holds all of it. Where true boxes were known, the
        box's own probability is added. None ranks by what each box alone says for its image, or
        by its probability where the classifier does not tell the two apart.

    Attributes
    ----------
    classes_ : array of class names
    classifiers_ : list, one fitted classifier per class
    refinements_ : list, for each class what true boxes taught, or None
    threshold : the least probability of a box to be counted, 0.5

    See Also
    --------
    PhotographDetector : For photographs; needs no multiple-instance classifier.

    References
    ----------
    Haussmann, Hamprecht, Kandemir (2017). Variational Bayesian multiple instance learning with
    Gaussian processes. CVPR.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import Proposals, WeakDetector
    >>> rng = np.random.default_rng(0)
    >>> images = rng.integers(0, 60, (12, 64, 64, 3), dtype=np.uint8)
    >>> images[:, 5:15, 40:55] = 160  # grey block in every image
    >>> images[:6, 30:50, 10:30] = [255, 40, 40]  # red one in the first six
    >>> labels = ["red"] * 6 + [None] * 6
    >>> proposals = Proposals(method="blobs", n_boxes=20)
    >>> detector = WeakDetector(proposals=proposals, pca=8, random_state=0)
    >>> best = detector.fit(images, labels).predict(images[:1])[0].boxes[:1]
    >>> from bagwise.evaluate import box_iou
    >>> bool(box_iou(best, [[10, 30, 20, 20]])[0, 0] > 0.5)
    True
    """

    pca: int | None = parameter(50, Interval(Integral, 1, None, closed="left"), None)
    classifier: InstanceClassifier | None = parameter(
        None, HasMethods(["fit", "predict_proba_instances"]), None
    )
    contrast: float | None = parameter(None, Interval(Real, 1, None, closed="neither"), None)

    def _describe_image(self, image: Image, key: object) -> Bags:
        boxes = (self.proposals or Proposals()).propose(image, key)
        features = (self.features or RegionFeatures()).extract(image, boxes)
        columns = {"boxes": boxes, "image_size": np.tile(image.shape[:2], (len(boxes), 1))}
        return Bags(features, [0, len(boxes)], [str(key)], columns=columns)

    def _is_described(self, images: object) -> bool:
        return isinstance(images, Bags) and {"boxes", "image_size"} <= set(images.columns)

    def _fit(
        self, described: Bags, Y: Ints, boxes: list[TrueBoxes], rng: np.random.RandomState
    ) -> None:
        X = described.instances
        if len(X) > _PCA_ROWS:
            X = X[np.sort(rng.choice(len(X), _PCA_ROWS, replace=False))]
        steps: list[Any] = [StandardScaler()]
        if self.pca is not None:
            steps.append(PCA(min(self.pca, *X.shape), svd_solver="covariance_eigh"))
        self.reducer_ = make_pipeline(*steps).fit(X)
        reduced = described.map(self.reducer_.transform)
        classifier, seed = self.classifier, int(rng.randint(2**31 - 1))
        if classifier is None:
            from bagwise.models.variational import VGPMIL

            classifier = VGPMIL(n_inducing=50)
        self.classifiers_, self.refinements_ = [], []
        for y, true in zip(Y.T, boxes, strict=True):
            model = clone(classifier)
            if model.get_params().get("random_state", 0) is None:
                model.set_params(random_state=seed)
            iou = best_overlap(described, true)
            met = iou >= self.overlap
            # What misses a box may show an object that nobody boxed: unknown to the classifier.
            model.fit(reduced, y, np.where(met, 1, -1) if met.any() else None)
            self.classifiers_.append(model)
            self.refinements_.append(
                self._learn_refinement(model, described, reduced, y, iou) if met.any() else None
            )

    def _learn_refinement(
        self, model: InstanceClassifier, bags: Bags, reduced: Bags, y: Ints, iou: Floats
    ) -> Refinement:
        """What the proposals of boxed images, and of images without the class, teach."""
        n_boxed = int(np.sum(segments.max(iou, bags.offsets) >= 0))
        without = segments.spread(y == 0, bags.offsets)  # [N] of an image without the class
        target = np.where(iou < 0, np.where(without, 0, -1), meets(iou, self.overlap))
        # Images without the class count by the share of the others that has boxes.
        weight = np.where(without, n_boxed / np.sum(y == 1), 1.0)
        p, _ = positive_proba(model, reduced, "_instances")
        clues = region_clues(bags, reduced, p, log_odds_alone(model, reduced))
        return learn_refinement(clues, target, weight, n_boxed)

    def score_boxes(self, described: Bags, c: int = 0) -> BoxScores:
        """Ranking score, probability and its std of every proposal for class number ``c``."""
        reduced = described.map(self.reducer_.transform)
        model, refinement = self.classifiers_[c], self.refinements_[c]
        p, std = positive_proba(model, reduced, "_instances")
        alone = log_odds_alone(model, reduced)
        if refinement is not None:
            clues = region_clues(described, reduced, p, alone)
            score, p, std = refined_scores(refinement, clues, p, std)
        else:
            score = model.decision_function_instances(reduced) if alone is None else alone
        if self.contrast is not None:
            on_map = p if refinement is not None or alone is None else expit(alone)
            score = box_contrast(described, on_map, (self.contrast,))[:, 0]
            if refinement is not None:  # taught by boxes, a box's own probability counts too
                score = score + p
        return BoxScores(score, np.asarray(p, dtype=np.float64), std)


def log_odds_alone(model: Any, bags: Bags) -> Floats | None:
    """Log-odds that an image of each box alone shows the class, [N]; None where a model has none.

    The probability that a box is an object is that of its image times the box's share in it. The
    first factor is as wrong for all boxes of an image as the image is hard to tell, and costs the
    order of boxes of several images.
    """
    predictor = getattr(model, "predictor_", None)
    if predictor is None or predictor.default_question == "alone":
        return None
    p = model.predict_proba_instances(bags, question="alone")  # [N, 2]
    return np.log(p[:, 1]) - np.log(p[:, 0])


def best_overlap(bags: Bags, boxes: TrueBoxes) -> Floats:
    """Overlap of each proposal with the true box it meets best; -1 in images without boxes, [N]."""
    return np.concatenate(
        [
            np.full(len(proposed), -1.0) if true is None else box_iou(proposed, true).max(axis=1)
            for true, proposed in zip(boxes, proposed_boxes(bags), strict=True)
        ]
    )


def region_clues(bags: Bags, reduced: Bags, p: Reals, alone: Floats | None) -> Clues:
    """What a refinement goes by, from the classifier's probabilities and log-odds alone."""
    limit = _LARGEST_LOG_ODDS
    return Clues(
        np.clip(log_odds(p), -limit, limit),
        np.empty((len(p), 0)) if alone is None else np.clip(alone, -limit, limit)[:, None],
        box_contrast(bags, p, RINGS),
        log_sizes(bags.columns["boxes"], bags.columns["image_size"]),
        reduced.instances,
    )


def refined_scores(refinement: Refinement, clues: Clues, p: Reals, std: Floats) -> BoxScores:
    """Refined log-odds, probabilities and their std, to first order."""
    score = refinement.refine(clues)
    refined = expit(score)
    variance, tiny = refined * (1 - refined), np.finfo(np.float64).tiny
    # d refined / d p = slope * refined (1 - refined) / (p (1 - p))
    std = std * abs(refinement.slope(clues)) * variance / np.maximum(p * (1 - p), tiny)
    return BoxScores(score, refined, np.minimum(std, np.sqrt(variance)))  # at most Bernoulli's


def pixel_scores(boxes: Floats, scores: Reals, height: int, width: int) -> tuple[Floats, float]:
    """Mean score of the boxes that cover each cell of a map, and cells per pixel.

    Cells that no box covers get the lowest score.
    """
    factor = min(1.0, _MAP_SIDE / max(height, width))
    rows, columns = max(round(height * factor), 1), max(round(width * factor), 1)
    low = np.floor(boxes[:, :2] * factor).astype(int)
    high = np.ceil((boxes[:, :2] + boxes[:, 2:]) * factor).astype(int)
    left, right = (np.clip(v[:, 0], 0, columns) for v in (low, high))
    top, bottom = (np.clip(v[:, 1], 0, rows) for v in (low, high))
    maps = []
    for value in (scores, np.ones(len(boxes))):
        # Four corners per box in a difference array; its double cumulative sum is the coverage.
        corners = np.zeros((rows + 1, columns + 1))
        np.add.at(corners, (top, left), value)
        np.add.at(corners, (bottom, right), value)
        np.add.at(corners, (top, right), -value)
        np.add.at(corners, (bottom, left), -value)
        maps.append(corners.cumsum(axis=0).cumsum(axis=1)[:-1, :-1])
    total, count = maps  # [rows, columns] each
    lowest = np.full(total.shape, float(scores.min()))
    return np.divide(total, count, out=lowest, where=count > 0.5), factor


def box_contrast(bags: Bags, scores: Reals, rings: Sequence[float]) -> Floats:
    """Mean pixel score of every box minus that of each ring around it, [N, R]."""
    import cv2

    rows = []
    sizes = bags.columns["image_size"][bags.offsets[:-1]]
    for boxes, score, size in zip(proposed_boxes(bags), bags.split(scores), sizes, strict=True):
        mean, factor = pixel_scores(boxes, score, *size)
        integral = cv2.integral(mean, sdepth=cv2.CV_64F)
        contrasts = [ring_contrast(integral, boxes * factor, ring) for ring in rings]
        rows.append(np.column_stack(contrasts))
    return np.concatenate(rows)
