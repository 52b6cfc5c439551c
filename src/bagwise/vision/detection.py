"""Finding objects from image labels alone: section 3.3 of the VGPMIL paper, as a tool.

An image is a bag. Where objects are marks on a ground (cells, digits), its instances are proposed
boxes: image labels train one multiple-instance classifier per class, whose instance probabilities
score the boxes of new images. In photographs its instances are the cells of a grid, and boxes are
judged by how well they hold one whole object (`bagwise.vision.photographs`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.rules import log_odds
from bagwise.evaluate.boxes import box_iou
from bagwise.models.pipeline import positive_proba
from bagwise.vision import photographs, saliency
from bagwise.vision.described import (
    Photograph,
    Photographs,
    best_backbone,
    describe_photograph,
    join_photographs,
    photograph_proposals,
)
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
# Proposals made for photographs; others are made for marks on a ground, or given.
_PHOTOGRAPHIC = ("selective-search", "edge-boxes")


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
        Default: selective search on a small copy of the image, 250 boxes.
    features : RegionFeatures, optional
        Default: for photographs EfficientNet-lite2 where it is installed, else oriented gradients
        and colour histograms.
    wholeness : {"auto", "u2netp", "classical"} or None
        Judge boxes by how well they hold one whole object: for photographs, with this saliency
        map (see `bagwise.vision.saliency`). None: the classifier alone ranks boxes.
        "auto": None where proposals are blobs, windows or given, or where ``classifier`` or
        ``contrast`` is set; else "u2netp" where it is installed, or "classical".
    pca : int or None
        Principal components kept of the standardised features; without ``wholeness``.
    classifier : instance classifier, optional
        Trained once per class, without ``wholeness``. Default: a `VGPMIL` with 50 inducing points.
    nms : float
        Of two boxes of a class that overlap more than this, the better one is kept.
    contrast : float or None
        Rank a box by its mean pixel score minus that of the ring around it, which this factor
        times its size adds (1.5 to 2). A pixel's score is the mean probability of the boxes that
        cover it. A multiple-instance classifier is content with the most telling part of an
        object; contrast prefers the box that holds all of it. Where true boxes were given, the
        box's own probability is added. None ranks by what each box alone says for its image, or
        by its probability where the classifier does not tell the two apart.
    overlap : float
        Where true boxes are given, a proposal shows the class if it overlaps one by at least this.
    n_detections : int
        At most so many boxes per class and image.
    check : bool
        With wholeness, whether `fit` trains three times more on parts of the images to choose
        ``thresholds_`` and to compare its boxes with simple ones on the images left out.
    random_state : int, RandomState or None
        Of the principal components and, where it has none, the classifier.
    verbose : bool
        Show a progress bar over images.

    Attributes
    ----------
    classes_ : array of class names
    classifiers_ : list, one fitted classifier per class; without wholeness
    refinements_ : list, for each class what true boxes taught, or None; without wholeness
    models_ : list of ClassModel, one per class; with wholeness
    thresholds_ : dict by class: the least probability of a box to be counted. With wholeness it
        is chosen on held-out images: there it tells images with and without the class apart best
    agreement_ : dict by class, with wholeness: how well held-out boxes explain the image label,
        of the detector and of simple boxes (see `bagwise.vision.photographs.held_out_agreement`)

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
        "wholeness": [StrOptions(set(saliency.METHODS)), None],
        "pca": [Interval(Integral, 1, None, closed="left"), None],
        "classifier": [HasMethods(["fit", "predict_proba_instances"]), None],
        "nms": [Interval(Real, 0, 1, closed="both")],
        "contrast": [Interval(Real, 1, None, closed="neither"), None],
        "overlap": [Interval(Real, 0, 1, closed="right")],
        "n_detections": [Interval(Integral, 1, None, closed="left")],
        "check": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        proposals: Any = None,
        features: Any = None,
        *,
        wholeness: str | None = "auto",
        pca: int | None = 50,
        classifier: Any = None,
        nms: float = 0.3,
        contrast: float | None = None,
        overlap: float = 0.5,
        n_detections: int = 100,
        check: bool = True,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.proposals = proposals
        self.features = features
        self.wholeness = wholeness
        self.pca = pca
        self.classifier = classifier
        self.nms = nms
        self.contrast = contrast
        self.overlap = overlap
        self.n_detections = n_detections
        self.check = check
        self.random_state = random_state
        self.verbose = verbose

    @property
    def photographic(self) -> bool:
        """Whether boxes are judged by wholeness, as ``wholeness`` and the other settings say."""
        if self.wholeness != "auto":
            return self.wholeness is not None
        method = _PHOTOGRAPHIC[0] if self.proposals is None else self._method()
        return method in _PHOTOGRAPHIC and self.classifier is None and self.contrast is None

    def _method(self) -> Any:
        return getattr(self.proposals, "method", None)

    def describe(self, images: Any, ids: Any = None, *, skip_bad: bool = False) -> Any:
        """Propose and describe the boxes of images.

        This is the slow part; `fit` and `predict` take its result in place of images. ``ids``
        name the images in messages, and look up boxes of ``Proposals("given")``. With
        ``skip_bad``, images that cannot be read are left out, with a warning that names each; the
        result's ``ids`` say which are left.

        Returns
        -------
        Bags, one per image, with a column ``boxes``; or `Photographs`, with wholeness
        """
        self._validate_params()
        images = list(images)
        if not images:
            raise ValueError("at least one image is needed; got none.")
        keys = list(range(len(images))) if ids is None else list(ids)
        if len(keys) != len(images):
            raise ValueError(f"ids must name every image: got {len(keys)} for {len(images)}.")
        describe_one = self._photograph if self.photographic else self._regions
        kept: list[str] = []
        parts: list[Any] = []
        for key, source in self._watch(list(zip(keys, images, strict=True))):
            try:
                image = read_image(source)
            except ValueError as error:
                if not skip_bad:
                    raise ValueError(f"image {key!r}: {error}") from error
                warnings.warn(f"image {key!r} is left out: {error}", stacklevel=2)
                continue
            kept.append(str(key))
            parts.append(describe_one(image, key))
        if not parts:
            raise ValueError(f"none of the {len(images)} images can be read.")
        if not self.photographic:
            return _join_regions(kept, *zip(*parts, strict=True))
        centred = saliency.choose(str(self.wholeness)) == "classical"
        return join_photographs(kept, parts, centred)

    def _regions(self, image: Any, key: Any) -> tuple[Any, ...]:
        proposals = Proposals() if self.proposals is None else self.proposals
        features = RegionFeatures() if self.features is None else self.features
        boxes = proposals.propose(image, key)
        return boxes, features.extract(image, boxes), image.shape[:2]

    def _photograph(self, image: Any, key: Any) -> Photograph:
        proposals = photograph_proposals() if self.proposals is None else self.proposals
        features = self.features
        if features is None:
            if not hasattr(self, "_features"):  # keeps the network between images
                self._features = RegionFeatures(best_backbone())
            features = self._features
        return describe_photograph(image, key, proposals, features, str(self.wholeness))

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        state.pop("_features", None)  # made again where it is needed
        return state

    def _watch(self, items: list[Any]) -> Any:
        if not self.verbose:
            return items
        from rich.progress import track

        return track(items, description="images")

    def _described(self, images: Any) -> Any:
        if not isinstance(images, (Bags, Photographs)):
            images = self.describe(images)
        if self.photographic != isinstance(images, Photographs) or (
            isinstance(images, Bags) and not {"boxes", "image_size"} <= set(images.columns)
        ):
            raise ValueError(
                "what describe(images) returned is needed, of a detector with the same settings."
            )
        return images

    def fit(self, images: Any, labels: Any, boxes: Any = None, class_names: Any = None) -> Any:
        """Learn each class from image labels.

        Warns where the held-out image labels cannot be predicted, or where the boxes of held-out
        images explain them no better than a fixed box does (with wholeness).

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
        described = self._described(images)
        Y, names = label_matrix(labels, class_names, len(described))
        for c, name in enumerate(names):
            if Y[:, c].min() == Y[:, c].max():
                raise ValueError(
                    f"class {str(name)!r} is in {'all' if Y[0, c] else 'none'} of the {len(Y)} "
                    "images; images with and without it are needed."
                )
        rng = check_random_state(self.random_state)
        self.classes_ = names
        if isinstance(described, Photographs):
            return self._fit_photographs(described, Y, boxes, rng)
        return self._fit_regions(described, Y, boxes, rng)

    def _fit_photographs(self, photos: Photographs, Y: Any, boxes: Any, rng: Any) -> Any:
        seed = int(rng.randint(2**31 - 1))
        self.n_features_in_ = photos.cells.n_features
        self.models_, self.agreement_, self.thresholds_ = [], {}, {}
        for c, name in enumerate(self.classes_):
            given = true_boxes(photos.cells, Y[:, c], name, boxes)
            model = photographs.learn_class(
                photos, Y[:, c], given, self.overlap, np.random.default_rng(seed)
            )
            self.models_.append(model)
            self.thresholds_[str(name)] = 0.5
            if not self.check:
                continue
            agreement = photographs.held_out_agreement(
                photos, Y[:, c], given, self.overlap, np.random.default_rng(seed)
            )
            self.agreement_[str(name)] = agreement
            if agreement is not None:
                self.thresholds_[str(name)] = agreement.threshold
            for message in photographs.doubts(agreement):
                warnings.warn(f"class {str(name)!r}: {message}", stacklevel=3)
        return self

    def _fit_regions(self, bags: Bags, Y: Any, boxes: Any, rng: Any) -> Any:
        self.reducer_ = self._fit_reducer(bags, rng)
        self.n_features_in_ = bags.n_features
        reduced = bags.map(self.reducer_.transform)
        seed = int(rng.randint(2**31 - 1))
        self.classifiers_, self.refinements_ = [], []
        self.thresholds_ = {str(name): 0.5 for name in self.classes_}
        for c, name in enumerate(self.classes_):
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
        clues = _clues(bags, reduced, p, _evidence(model, reduced))
        return learn_refinement(clues, target, weight, n_boxed)

    def predict(self, images: Any) -> list[Detections]:
        """Objects in each image, over all classes, best first."""
        check_is_fitted(self)
        described = self._described(images)
        photos = isinstance(described, Photographs)
        n_features = described.cells.n_features if photos else described.n_features
        if n_features != self.n_features_in_:
            raise ValueError(
                f"the regions have {n_features} features, but the detector was fitted on "
                f"{self.n_features_in_}."
            )
        scored = [self.score_boxes(described, c) for c in range(len(self.classes_))]
        boxes = described.boxes if photos else described.split(described.columns["boxes"])
        return [
            self._detections(boxes[i], [_rows(part, start, stop) for part in scored])
            for i, (start, stop) in enumerate(
                zip(described.offsets[:-1], described.offsets[1:], strict=True)
            )
        ]

    def score_boxes(self, described: Any, c: int = 0) -> tuple[Any, Any, Any]:
        """Ranking score, probability and its std of every proposal for class number ``c``."""
        if isinstance(described, Photographs):
            return photographs.score_boxes(self.models_[c], described)
        return self._score_regions(described, c)

    def _score_regions(self, bags: Bags, c: int) -> tuple[Any, Any, Any]:
        reduced = bags.map(self.reducer_.transform)
        model = self.classifiers_[c]
        p, std = positive_proba(model, reduced, "_instances")
        evidence = _evidence(model, reduced)
        refinement: Refinement | None = self.refinements_[c]
        if refinement is not None:
            score, p, std = _refine(refinement, _clues(bags, reduced, p, evidence), p, std)
        else:
            score = model.decision_function_instances(reduced) if evidence is None else evidence
        if self.contrast is not None:
            shown = p if refinement is not None or evidence is None else expit(evidence)
            score = box_contrast(bags, shown, (self.contrast,))[:, 0]
            if refinement is not None:  # taught by boxes, a box's own probability counts too
                score = score + p
        return score, p, std

    def _detections(self, boxes: Any, scored: list[Any]) -> Detections:
        parts = []
        for name, (score, p, std) in zip(self.classes_, scored, strict=True):
            keep = suppress(boxes, score, self.nms)[: self.n_detections]
            named = np.full(len(keep), name)
            edges = boxes[keep]
            if self.photographic:
                edges = photographs.vote_boxes(boxes, score, keep, self.nms)
            parts.append((edges, named, score[keep], p[keep], std[keep]))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(-columns[2], kind="stable")
        return Detections(*(column[order] for column in columns))


def _evidence(model: Any, bags: Bags) -> Any:
    """Log-odds that an image of each box alone shows the class, [N]; None where a model has none.

    The probability that a box is an object is that of its image times the box's share in it. The
    first factor is as wrong for all boxes of an image as the image is hard to tell, and costs the
    order of boxes of several images.
    """
    predictor = getattr(model, "predictor_", None)
    if predictor is None or predictor.default_question == "alone":
        return None
    p = model.predict_proba_instances(bags, question="alone")
    return np.log(p[:, 1]) - np.log(p[:, 0])


def _rows(scored: tuple[Any, Any, Any], start: int, stop: int) -> tuple[Any, Any, Any]:
    score, p, std = scored
    return score[start:stop], p[start:stop], std[start:stop]


def _join_regions(ids: list[str], boxes: Any, rows: Any, sizes: Any) -> Bags:
    counts = [len(b) for b in boxes]
    columns = {
        "boxes": np.concatenate(boxes),
        "image_size": np.repeat(np.asarray(sizes), counts, axis=0),  # height, width
    }
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Bags(np.concatenate(rows), offsets, ids, columns=columns)


def true_boxes(bags: Bags, y: Any, name: str, boxes: Any) -> list[Any]:
    """For each image its true boxes of a class, or None where none are given."""
    if boxes is None:
        return [None] * len(bags)
    if len(boxes) != len(bags):
        raise ValueError(f"boxes needs one entry per image: got {len(boxes)} for {len(bags)}.")
    out = []
    for i, given in enumerate(boxes):
        some = None if given is None or name not in given else given[name]
        if some is not None and len(some) and not y[i]:
            raise ValueError(
                f"{bags.describe_bag(i)} has boxes of {str(name)!r} but is labelled without it."
            )
        out.append(some if some is not None and len(some) else None)
    return out


def _overlap_with_given(bags: Bags, y: Any, name: str, boxes: Any) -> Any:
    """Overlap of each proposal with the true box it meets best; -1 in images without boxes, [N]."""
    iou = np.full(bags.n_instances, -1.0)
    for given, start, stop in zip(
        true_boxes(bags, y, name, boxes), bags.offsets[:-1], bags.offsets[1:], strict=True
    ):
        if given is not None:
            iou[start:stop] = box_iou(bags.columns["boxes"][start:stop], given).max(axis=1)
    return iou


def _clues(bags: Bags, reduced: Bags, p: Any, evidence: Any) -> Clues:
    """What a refinement goes by, from the classifier's probabilities and evidence."""
    none = np.empty((len(p), 0))
    return Clues(
        np.clip(log_odds(p), -_MOST, _MOST),
        none if evidence is None else np.clip(evidence, -_MOST, _MOST)[:, None],
        box_contrast(bags, p, _RINGS),
        log_sizes(bags.columns["boxes"], bags.columns["image_size"]),
        reduced.instances,
    )


def _refine(refinement: Refinement, clues: Clues, p: Any, std: Any) -> tuple[Any, Any, Any]:
    """Refined log-odds, probabilities and their std, to first order."""
    score = refinement.refine(clues)
    refined = expit(score)
    variance, tiny = refined * (1 - refined), np.finfo(np.float64).tiny
    std = std * abs(refinement.slope(clues)) * variance / np.maximum(p * (1 - p), tiny)
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


def shown(detections: Detections, min_probability: Any) -> Any:
    """Which boxes are probable enough, [k] bool; a mapping gives each class its own limit."""
    p = np.asarray(detections.probabilities, dtype=np.float64)
    if not isinstance(min_probability, Mapping):
        return p >= min_probability
    return p >= [min_probability[str(name)] for name in detections.classes]


def draw(image: Any, detections: Detections, *, min_probability: Any = 0.5) -> Any:
    """The image with boxes, classes and probabilities drawn on it, RGB uint8.

    Boxes below ``min_probability`` (a number, or one by class name) are left out, except that
    where none is above it the best box is drawn thinly in grey.

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
    certain = shown(detections, min_probability)
    drawn = np.flatnonzero(certain) if certain.any() else range(min(1, len(certain)))
    for k in reversed(drawn):  # the best on top
        box, name, _, p, std = (part[k] for part in detections)
        hue = 179 * names.index(str(name)) // max(len(names), 1)
        colour = cv2.cvtColor(np.array([[[hue, 255, 230]]], dtype=np.uint8), cv2.COLOR_HSV2RGB)[
            0, 0
        ].tolist()
        if not certain[k]:
            colour = [150, 150, 150]
        x, y, w, h = (round(float(v)) for v in box)
        cv2.rectangle(out, (x, y), (x + w, y + h), colour, width if certain[k] else 1)
        text = f"{name} {p:.2f}" + ("" if np.isnan(std) else f" +- {std:.2f}")
        cv2.putText(out, text, (x, max(y - 3, 8)), cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour, 1)
    return out
