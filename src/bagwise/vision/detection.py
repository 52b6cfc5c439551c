"""Finding objects from image labels alone: section 3.3 of the VGPMIL paper, as a tool.

An image is a bag; its instances are proposed boxes. Image labels train one multiple-instance
classifier per class, whose instance probabilities score the boxes of new images.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.rules import log_odds
from bagwise.evaluate.boxes import box_iou
from bagwise.models.pipeline import positive_proba
from bagwise.vision.features import RegionFeatures
from bagwise.vision.images import read_image
from bagwise.vision.proposals import Proposals, ring_contrast
from bagwise.vision.refinement import Clues, Refinement, learn_refinement, log_sizes

# Instances that the principal components are learned from, at most.
_PCA_ROWS = 20_000
# Cells along the longer side of the map of pixel scores.
_MAP_SIDE = 320
# Rings whose contrast is a clue where true boxes are given.
_RINGS = (1.25, 1.5, 2.0)
# Overlaps as near as this to the limit meet a true box in part.
_BLUR = 0.1
# Log-odds of a probability as near to 1 as a float can be.
_MOST = 36.0


class Detections(NamedTuple):
    """Objects found in one image, best first.

    Examples
    --------
    >>> from bagwise.vision import Detections
    >>> found = Detections([[4, 4, 20, 20]], ["cell"], [0.9], [0.9], [0.05])
    >>> found.classes
    ['cell']
    """

    boxes: Any  # [k, 4] x, y, w, h
    classes: Any  # [k] class names
    scores: Any  # [k] what they are ranked by; with contrast, how far a box stands out
    probabilities: Any  # [k] that the box shows the class
    std: Any  # [k] of the probability, NaN where the classifier gives none


class WeakDetector(BaseEstimator):
    """Detect objects after training on image labels, boxes optional.

    Parameters
    ----------
    proposals : Proposals, optional
        Default: selective search, 200 boxes.
    features : RegionFeatures, optional
        Default: oriented gradients and colour histograms.
    pca : int or None
        Principal components kept of the standardised features.
    classifier : instance classifier, optional
        Trained once per class. Default: ``VGPMIL(n_inducing=50)``.
    nms : float
        Of two boxes of a class that overlap more than this, the better one is kept.
    contrast : float or None
        Rank a box by its mean pixel score minus that of the ring around it, which this factor
        times its size adds (1.5 to 2). A pixel's score is the mean probability of the boxes that
        cover it. A multiple-instance classifier is content with the most telling part of an
        object; contrast prefers the box that holds all of it. Where true boxes were given, the
        box's own probability is added. None ranks by probability.
    overlap : float
        Where true boxes are given, a proposal shows the class if it overlaps one by at least this.
    n_detections : int
        At most so many boxes per class and image.
    random_state : int, RandomState or None
        Of the principal components and, where it has none, the classifier.
    verbose : bool
        Show a progress bar over images.

    Attributes
    ----------
    classes_ : array of class names
    classifiers_ : list, one fitted classifier per class
    refinements_ : list, for each class what true boxes taught, or None without any

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import Proposals, WeakDetector
    >>> rng = np.random.default_rng(0)
    >>> images = rng.integers(0, 60, (12, 64, 64, 3), dtype=np.uint8)
    >>> images[:, 5:15, 40:55] = 160  # grey block in every image
    >>> images[:6, 30:50, 10:30] = [255, 40, 40]  # red one in the first six
    >>> labels = ["red"] * 6 + [None] * 6
    >>> detector = WeakDetector(Proposals("blobs", n_boxes=20), pca=8, random_state=0)
    >>> found = detector.fit(images, labels).predict(images[:1])[0]
    >>> from bagwise.evaluate import box_iou
    >>> bool(box_iou(found.boxes[:1], [[10, 30, 20, 20]])[0, 0] > 0.5)
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "proposals": [HasMethods(["propose"]), None],
        "features": [HasMethods(["extract"]), None],
        "pca": [Interval(Integral, 1, None, closed="left"), None],
        "classifier": [HasMethods(["fit", "predict_proba_instances"]), None],
        "nms": [Interval(Real, 0, 1, closed="both")],
        "contrast": [Interval(Real, 1, None, closed="neither"), None],
        "overlap": [Interval(Real, 0, 1, closed="right")],
        "n_detections": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        proposals: Any = None,
        features: Any = None,
        *,
        pca: int | None = 50,
        classifier: Any = None,
        nms: float = 0.3,
        contrast: float | None = None,
        overlap: float = 0.5,
        n_detections: int = 100,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.proposals = proposals
        self.features = features
        self.pca = pca
        self.classifier = classifier
        self.nms = nms
        self.contrast = contrast
        self.overlap = overlap
        self.n_detections = n_detections
        self.random_state = random_state
        self.verbose = verbose

    def describe(self, images: Any, ids: Any = None) -> Bags:
        """Propose and describe the boxes of images: one bag per image, with a column ``boxes``.

        This is the slow part; `fit` and `predict` take its result in place of images. ``ids``
        name the images in messages, and look up boxes of ``Proposals("given")``.
        """
        self._validate_params()
        proposals = Proposals() if self.proposals is None else self.proposals
        features = RegionFeatures() if self.features is None else self.features
        images = list(images)
        if not images:
            raise ValueError("at least one image is needed; got none.")
        keys = list(range(len(images))) if ids is None else list(ids)
        if len(keys) != len(images):
            raise ValueError(f"ids must name every image: got {len(keys)} for {len(images)}.")
        boxes, rows, sizes = [], [], []
        for key, source in self._watch(list(zip(keys, images, strict=True))):
            try:
                image = read_image(source)
            except ValueError as error:
                raise ValueError(f"image {key!r}: {error}") from error
            boxes.append(proposals.propose(image, key))
            rows.append(features.extract(image, boxes[-1]))
            sizes.append(image.shape[:2])
        offsets = np.concatenate([[0], np.cumsum([len(b) for b in boxes])])
        counts = [len(b) for b in boxes]
        columns = {
            "boxes": np.concatenate(boxes),
            "image_size": np.repeat(np.asarray(sizes), counts, axis=0),  # height, width
        }
        return Bags(np.concatenate(rows), offsets, [str(k) for k in keys], columns=columns)

    def _watch(self, items: list[Any]) -> Any:
        if not self.verbose:
            return items
        from rich.progress import track

        return track(items, description="images")

    def _described(self, images: Any) -> Bags:
        bags = images if isinstance(images, Bags) else self.describe(images)
        if not {"boxes", "image_size"} <= set(bags.columns):
            raise ValueError("bags must come from describe(images): they carry the boxes.")
        return bags

    def fit(self, images: Any, labels: Any, boxes: Any = None, class_names: Any = None) -> Any:
        """Learn each class from image labels.

        Parameters
        ----------
        images : sequence of images, or what `describe` returned
            Paths, bytes or arrays.
        labels : array of shape (n_images, n_classes) of 0/1, or sequence
            One class name per image, a collection of names, or None for none of the classes.
        boxes : sequence, optional
            Mixed supervision: for each image None, or a mapping from class name to its true
            boxes (k, 4). Proposals that meet one become positive instances; then a regression
            learns from the proposals of boxed images how to correct the classifier's log-odds.
            There a proposal that meets no box counts against the class, so box what you can:
            an object without a box is forgiven, but lowers the probabilities.
        class_names : sequence of str, optional
            Names of the columns of ``labels``.
        """
        self._validate_params()
        bags = self._described(images)
        Y, names = label_matrix(labels, class_names, len(bags))
        rng = check_random_state(self.random_state)
        self.classes_ = names
        self.reducer_ = self._fit_reducer(bags, rng)
        self.n_features_in_ = bags.n_features
        reduced = bags.map(self.reducer_.transform)
        seed = int(rng.randint(2**31 - 1))
        self.classifiers_, self.refinements_ = [], []
        for c, name in enumerate(names):
            if Y[:, c].min() == Y[:, c].max():
                raise ValueError(
                    f"class {str(name)!r} is in {'all' if Y[0, c] else 'none'} of the {len(Y)} "
                    "images; images with and without it are needed."
                )
            iou = _overlap_with_given(bags, Y[:, c], name, boxes)
            met = iou >= self.overlap
            # What misses a box may show an object that nobody boxed: unknown to the classifier.
            known = np.where(met, 1, -1) if met.any() else None
            model = self._new_classifier(seed).fit(reduced, Y[:, c], known)
            self.classifiers_.append(model)
            self.refinements_.append(
                self._learn_refinement(bags, reduced, Y[:, c], iou, model) if met.any() else None
            )
        return self

    def _new_classifier(self, seed: int) -> Any:
        if self.classifier is None:
            from bagwise.models.variational import VGPMIL

            return VGPMIL(n_inducing=50, random_state=seed)
        new = clone(self.classifier)
        if new.get_params().get("random_state", 0) is None:
            new.set_params(random_state=seed)
        return new

    def _fit_reducer(self, bags: Bags, rng: Any) -> Any:
        X = bags.instances
        if len(X) > _PCA_ROWS:
            X = X[np.sort(rng.choice(len(X), _PCA_ROWS, replace=False))]
        steps: list[Any] = [StandardScaler()]
        if self.pca is not None:
            n = min(self.pca, *X.shape)
            steps.append(PCA(n, svd_solver="covariance_eigh"))
        return make_pipeline(*steps).fit(X)

    def _learn_refinement(self, bags: Bags, reduced: Bags, y: Any, iou: Any, model: Any) -> Any:
        """What the proposals of boxed images, and of images without the class, teach."""
        n_boxed = int(np.sum(segments.max(iou, bags.offsets) >= 0))
        without = segments.spread(y == 0, bags.offsets)
        # No box is drawn to the pixel: near the limit, a proposal meets it in part.
        blur = min(_BLUR, self.overlap, 1 - self.overlap)
        target = np.interp(iou, [self.overlap - blur, self.overlap + blur], [0.0, 1.0])
        target = np.where(iou < 0, np.where(without, 0, -1), target)
        # Images without the class count by the share of the others that has boxes.
        weight = np.where(without, n_boxed / np.sum(y == 1), 1.0)
        p, _ = positive_proba(model, reduced, "_instances")
        return learn_refinement(_clues(bags, reduced, p), target, weight, n_boxed)

    def predict(self, images: Any) -> list[Detections]:
        """Objects in each image, over all classes, best first."""
        check_is_fitted(self)
        bags = self._described(images)
        if bags.n_features != self.n_features_in_:
            raise ValueError(
                f"the regions have {bags.n_features} features, but the detector was fitted on "
                f"{self.n_features_in_}."
            )
        scored = [self.score_boxes(bags, c) for c in range(len(self.classes_))]
        return [self._detections(bags, i, scored) for i in range(len(bags))]

    def score_boxes(self, bags: Bags, c: int = 0) -> tuple[Any, Any, Any]:
        """Ranking score, probability and its std of every proposal for class number ``c``."""
        reduced = bags.map(self.reducer_.transform)
        model = self.classifiers_[c]
        p, std = positive_proba(model, reduced, "_instances")
        score = model.decision_function_instances(reduced)
        refinement: Refinement | None = self.refinements_[c]
        if refinement is not None:
            score, p, std = _refine(refinement, _clues(bags, reduced, p), p, std)
        if self.contrast is not None:
            score = box_contrast(bags, p, (self.contrast,))[:, 0]
            if refinement is not None:  # taught by boxes, a box's own probability counts too
                score = score + p
        return score, p, std

    def _detections(self, bags: Bags, i: int, scored: list[Any]) -> Detections:
        start, stop = bags.offsets[i], bags.offsets[i + 1]
        boxes = bags.columns["boxes"][start:stop]
        parts = []
        for name, (score, p, std) in zip(self.classes_, scored, strict=True):
            keep = start + suppress(boxes, score[start:stop], self.nms)[: self.n_detections]
            named = np.full(len(keep), name)
            parts.append((boxes[keep - start], named, score[keep], p[keep], std[keep]))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(-columns[2], kind="stable")
        return Detections(*(column[order] for column in columns))


def _overlap_with_given(bags: Bags, y: Any, name: str, boxes: Any) -> Any:
    """Overlap of each proposal with the true box it meets best; -1 in images without boxes, [N]."""
    iou = np.full(bags.n_instances, -1.0)
    if boxes is None:
        return iou
    if len(boxes) != len(bags):
        raise ValueError(f"boxes needs one entry per image: got {len(boxes)} for {len(bags)}.")
    for i, (given, start, stop) in enumerate(
        zip(boxes, bags.offsets[:-1], bags.offsets[1:], strict=True)
    ):
        if given is None or name not in given or len(given[name]) == 0:
            continue
        if not y[i]:
            raise ValueError(
                f"{bags.describe_bag(i)} has boxes of {str(name)!r} but is labelled without it."
            )
        iou[start:stop] = box_iou(bags.columns["boxes"][start:stop], given[name]).max(axis=1)
    return iou


def _clues(bags: Bags, reduced: Bags, p: Any) -> Clues:
    """What a refinement goes by, from the classifier's probabilities."""
    return Clues(
        np.clip(log_odds(p), -_MOST, _MOST),
        box_contrast(bags, p, _RINGS),
        log_sizes(bags.columns["boxes"], bags.columns["image_size"]),
        reduced.instances,
    )


def _refine(refinement: Refinement, clues: Clues, p: Any, std: Any) -> tuple[Any, Any, Any]:
    """Refined log-odds, probabilities and their std, to first order."""
    score = refinement.refine(clues)
    refined = expit(score)
    variance, tiny = refined * (1 - refined), np.finfo(np.float64).tiny
    std = std * abs(refinement.slope) * variance / np.maximum(p * (1 - p), tiny)
    return score, refined, np.minimum(std, np.sqrt(variance))  # no probability varies more


def label_matrix(labels: Any, class_names: Any, n_images: int) -> tuple[Any, Any]:
    """Image labels in any accepted form as 0/1 [N, C], and the names of the classes."""
    if len(labels) != n_images:
        raise ValueError(f"labels needs one entry per image: got {len(labels)} for {n_images}.")
    if isinstance(labels, np.ndarray) and labels.ndim == 2:
        names = range(labels.shape[1]) if class_names is None else class_names
        names = np.asarray([str(name) for name in names])
        if len(names) != labels.shape[1]:
            raise ValueError(f"got {len(names)} class names for {labels.shape[1]} columns.")
        if not np.isin(labels, (0, 1)).all():
            raise ValueError("a label matrix must hold 0 and 1 only.")
        return labels.astype(np.int64), names
    rows = [_label_set(row) for row in labels]
    names = np.asarray(sorted(set().union(*rows)) if class_names is None else list(class_names))
    if len(names) == 0:
        raise ValueError("labels name no class.")
    unknown = set().union(*rows) - set(names.tolist())
    if unknown:
        raise ValueError(f"labels name {sorted(unknown)}, which class_names does not.")
    return np.array([[int(name in row) for name in names] for row in rows]), names


def _label_set(row: Any) -> set[str]:
    if row is None:
        return set()
    if isinstance(row, (str, bytes, int, np.generic)):
        return {str(row)}
    return {str(name) for name in row}


def suppress(boxes: Any, scores: Any, threshold: float) -> Any:
    """Indices of the boxes kept by greedy non-maximum suppression, best first."""
    order = np.argsort(-scores, kind="stable")
    overlap = box_iou(boxes[order], boxes[order]) > threshold
    alive = np.ones(len(order), dtype=bool)
    for i in range(len(order)):
        if alive[i]:
            alive[i + 1 :] &= ~overlap[i, i + 1 :]
    return order[alive]


def pixel_scores(boxes: Any, scores: Any, height: int, width: int) -> tuple[Any, float]:
    """Mean score of the boxes that cover each cell of a map, and cells per pixel.

    Cells that no box covers get the lowest score. Each box adds four corners to a difference
    array, whose double cumulative sum is the coverage.
    """
    factor = min(1.0, _MAP_SIDE / max(height, width))
    rows, columns = max(round(height * factor), 1), max(round(width * factor), 1)
    low = np.floor(boxes[:, :2] * factor).astype(int)
    high = np.ceil((boxes[:, :2] + boxes[:, 2:]) * factor).astype(int)
    left, right = (np.clip(v[:, 0], 0, columns) for v in (low, high))
    top, bottom = (np.clip(v[:, 1], 0, rows) for v in (low, high))
    maps = []
    for value in (scores, np.ones(len(boxes))):
        corners = np.zeros((rows + 1, columns + 1))
        for y, x, sign in (
            (top, left, 1),
            (bottom, right, 1),
            (top, right, -1),
            (bottom, left, -1),
        ):
            np.add.at(corners, (y, x), sign * value)
        maps.append(corners.cumsum(axis=0).cumsum(axis=1)[:-1, :-1])
    total, count = maps
    covered = count > 0.5
    mean = np.full(total.shape, float(scores.min()))
    mean[covered] = total[covered] / count[covered]
    return mean, factor


def box_contrast(bags: Bags, scores: Any, rings: Any) -> Any:
    """Mean pixel score of every box minus that of each ring around it, [N, R]."""
    import cv2

    out = np.empty((len(scores), len(rings)))
    boxes, sizes = bags.columns["boxes"], bags.columns["image_size"]
    for start, stop in zip(bags.offsets[:-1], bags.offsets[1:], strict=True):
        mean, factor = pixel_scores(boxes[start:stop], scores[start:stop], *sizes[start])
        integral = cv2.integral(mean, sdepth=cv2.CV_64F)
        for r, ring in enumerate(rings):
            out[start:stop, r] = ring_contrast(integral, boxes[start:stop] * factor, ring)
    return out


def draw(image: Any, detections: Detections, *, min_probability: float = 0.5) -> Any:
    """The image with boxes, classes and probabilities drawn on it, RGB uint8.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import Detections, draw
    >>> found = Detections([[4, 4, 20, 20]], ["cell"], [0.9], [0.9], [0.05])
    >>> draw(np.zeros((32, 32, 3), dtype=np.uint8), found).shape
    (32, 32, 3)
    """
    import cv2

    out = read_image(image).copy()
    names = sorted({str(name) for name in detections.classes})
    width = max(1, round(max(out.shape[:2]) / 300))
    for box, name, _, p, std in zip(*detections, strict=True):
        if p < min_probability:
            continue
        hue = 179 * names.index(str(name)) // max(len(names), 1)
        colour = cv2.cvtColor(np.array([[[hue, 255, 230]]], dtype=np.uint8), cv2.COLOR_HSV2RGB)[
            0, 0
        ].tolist()
        x, y, w, h = (round(float(v)) for v in box)
        cv2.rectangle(out, (x, y), (x + w, y + h), colour, width)
        text = f"{name} {p:.2f}" + ("" if np.isnan(std) else f" +- {std:.2f}")
        cv2.putText(out, text, (x, max(y - 3, 8)), cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour, 1)
    return out
