"""What detectors share: labels of images, detections, suppression, and what true boxes teach.

`WeakDetector` and `PhotographDetector` both learn classes from image labels and rank proposed
boxes by them. Where true boxes are known for some images, both correct the log-odds of boxes by a
logistic regression on the proposals of those images,

    refined log-odds = log-odds + weights . clues,

where the clues are the log-odds themselves, how far a box stands out from the ring around it, its
size, and whatever else is known of it. The weights have a normal prior about zero: without true
boxes nothing changes, and few boxes change little.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.validation import check_is_fitted

from bagwise.bags import Bags
from bagwise.core.arrays import Column, Floats, Ints, RandomState
from bagwise.core.progress import tracked
from bagwise.evaluate.boxes import box_iou
from bagwise.models.parameters import AT_LEAST_1, HasParameters, parameter
from bagwise.vision.features import RegionFeatures
from bagwise.vision.images import Image, ImageSource, read_image
from bagwise.vision.proposals import Proposals

if TYPE_CHECKING:
    from typing import Self

    from bagwise.vision.wholeness import Photographs

# For each image its true boxes [k, 4] of a class, or None where they are not known.
TrueBoxes: TypeAlias = Sequence[Floats | None]
# Classes in an image: a name, names, or None.
Labels: TypeAlias = str | Iterable[str] | None
DescribedT = TypeVar("DescribedT", "Bags", "Photographs")

# Prior precision of a weight of standardised clues: of those that any box has, and of features.
_CLUE_PRECISION, _FEATURE_PRECISION = 0.3, 100.0
# The proposals of an image are not independent: below about so many boxed images, doubt them more.
_ENOUGH_IMAGES = 8
_TOL = 1e-9  # largest gradient of the fitted weights
# Overlaps as near as this to the limit meet a true box in part, for no box is drawn to the pixel.
_BLUR = 0.1


class Detections(NamedTuple):
    """Objects found in one image, best first.

    Examples
    --------
    >>> from bagwise.vision import Detections
    >>> Detections([[4, 4, 20, 20]], ["cell"], [0.9], [0.9], [0.05]).classes
    ['cell']
    """

    boxes: Floats  # [k, 4] x, y, w, h
    classes: Column  # [k] class names
    scores: Floats  # [k] what they are ranked by; with contrast, how far a box stands out
    probabilities: Floats  # [k] that the box shows the class
    std: Floats  # [k] of the probability, NaN where the classifier gives none


class BoxScores(NamedTuple):
    """What a detector says of every proposed box for one class."""

    score: Floats  # [N] what boxes are ranked by
    probability: Floats  # [N] that the box shows the class
    std: Floats  # [N] of the probability; NaN where unknown


@dataclass(kw_only=True, eq=False, repr=False)
class Detector(HasParameters, ABC, Generic[DescribedT]):
    """Describe images, learn each class, suppress boxes that overlap a better one."""

    proposals: Proposals | None = parameter(None, HasMethods(["propose"]), None)
    features: RegionFeatures | None = parameter(None, HasMethods(["extract"]), None)
    nms: float = parameter(0.3, Interval(Real, 0, 1, closed="both"))
    overlap: float = parameter(0.5, Interval(Real, 0, 1, closed="right"))
    n_detections: int = parameter(100, AT_LEAST_1)
    random_state: RandomState = parameter(None, "random_state")
    verbose: bool = parameter(False, "verbose")
    threshold = 0.5  # the least probability of a box to be counted

    @abstractmethod
    def _describe_image(self, image: Image, key: object) -> DescribedT:
        """Boxes and features of one RGB image, as `describe` returns them of many."""

    @abstractmethod
    def _is_described(self, images: object) -> bool:
        """Whether these are what `describe` returned, rather than images."""

    @abstractmethod
    def _fit(
        self, described: DescribedT, Y: Ints, boxes: list[TrueBoxes], rng: np.random.RandomState
    ) -> None:
        """Learn every class from its column of ``Y`` [B, C] and its true boxes."""

    @abstractmethod
    def score_boxes(self, described: DescribedT, c: int = 0) -> BoxScores:
        """Ranking score, probability and its std of every proposal for class number ``c``."""

    def _edges(self, boxes: Floats, scores: Floats, kept: Ints) -> Floats:
        """The edges to report of the boxes that are kept."""
        return boxes[kept]

    def describe(
        self,
        images: Iterable[ImageSource],
        ids: Iterable[object] | None = None,
        *,
        skip_bad: bool = False,
    ) -> DescribedT:
        """Propose and describe the boxes of images.

        This is the slow part; `fit` and `predict` take its result in place of images. ``ids``
        name the images in messages, and look up boxes of ``Proposals(method="given")``. With
        ``skip_bad``, images that cannot be read are left out, with a warning that names each; the
        result's ``ids`` say which are left.

        Returns
        -------
        Bags, one per image, with a column ``boxes``; or ``Photographs``, of a `PhotographDetector`
        """
        self._validate_params()
        images = list(images)
        if not images:
            raise ValueError("at least one image is needed; got none.")
        keys = list(range(len(images))) if ids is None else list(ids)
        if len(keys) != len(images):
            raise ValueError(f"ids must name every image: got {len(keys)} for {len(images)}.")
        pairs: Iterable[tuple[object, ImageSource]] = list(zip(keys, images, strict=True))
        pairs = tracked(pairs, len(images), "images", shown=bool(self.verbose))
        parts: list[DescribedT] = []
        for key, source in pairs:
            try:
                image = read_image(source)
            except ValueError as error:
                if not skip_bad:
                    raise ValueError(f"image {key!r}: {error}") from error
                warnings.warn(f"image {key!r} is left out: {error}", stacklevel=2)
                continue
            parts.append(self._describe_image(image, key))
        if not parts:
            raise ValueError(f"none of the {len(images)} images can be read.")
        return type(parts[0]).concat(parts)

    def _described(self, images: DescribedT | Iterable[ImageSource]) -> DescribedT:
        if not hasattr(images, "offsets"):
            return self.describe(images)
        if not self._is_described(images):
            raise ValueError(
                f"what describe(images) of a {type(self).__name__} returned is needed; got "
                f"{type(images).__name__}."
            )
        return cast("DescribedT", images)

    def fit(
        self,
        images: DescribedT | Iterable[ImageSource],
        labels: Column | Sequence[Labels],
        boxes: Sequence[Mapping[str, Floats] | None] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Learn each class from image labels.

        Parameters
        ----------
        images : sequence of images, or what `describe` returned
            Paths, bytes or arrays.
        labels : array of shape (n_images, n_classes) of 0/1, or sequence
            One class name per image, a collection of names, or None for none of the classes.
        boxes : sequence or None, default=None
            Mixed supervision: for each image None, or a mapping from class name to its true
            boxes (k, 4). A regression learns from the proposals of these images how to correct
            the log-odds of all others. There a proposal that meets no box counts against the
            class, so box what you can: an object without a box lowers the probabilities.
        class_names : sequence of str or None, default=None
            Names of the columns of ``labels``.
        """
        self._validate_params()
        described = self._described(images)
        Y, names = label_matrix(labels, class_names, len(described))
        for name, y in zip(names, Y.T, strict=True):
            if y.min() == y.max():
                raise ValueError(
                    f"class {str(name)!r} is in {'all' if y[0] else 'none'} of the {len(y)} "
                    "images; images with and without it are needed."
                )
        known = [
            true_boxes(boxes, y, name, described.ids) for name, y in zip(names, Y.T, strict=True)
        ]
        rng = check_random_state(self.random_state)
        self.classes_, self.n_features_in_ = names, described.n_features
        self._fit(described, Y, known, rng)
        return self

    def predict(self, images: DescribedT | Iterable[ImageSource]) -> list[Detections]:
        """Objects in each image, over all classes, best first.

        Returns
        -------
        detections : list of n_images `Detections`
        """
        check_is_fitted(self)
        described = self._described(images)
        if described.n_features != self.n_features_in_:
            raise ValueError(
                f"the regions have {described.n_features} features, but the detector was fitted "
                f"on {self.n_features_in_}."
            )
        scored = [self.score_boxes(described, c) for c in range(len(self.classes_))]
        offsets = described.offsets
        return [
            self._detections(boxes, [BoxScores(*(v[start:stop] for v in one)) for one in scored])
            for boxes, start, stop in zip(
                proposed_boxes(described), offsets[:-1], offsets[1:], strict=True
            )
        ]

    def _detections(self, boxes: Floats, scored: list[BoxScores]) -> Detections:
        """The best boxes of each class in one image, from the scores of its proposals."""
        parts = []
        for name, (score, p, std) in zip(self.classes_, scored, strict=True):
            kept = suppress(boxes, score, self.nms)[: self.n_detections]
            edges = self._edges(boxes, score, kept)
            parts.append((edges, np.full(len(kept), name), score[kept], p[kept], std[kept]))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(-columns[2], kind="stable")
        return Detections(*(column[order] for column in columns))


def proposed_boxes(described: Bags | Photographs) -> Sequence[Floats]:
    """The proposals [n, 4] of each described image."""
    if isinstance(described, Bags):
        return described.split(described.columns["boxes"])
    return described.boxes


def label_matrix(
    labels: Column | Sequence[Labels], class_names: Sequence[str] | None, n_images: int
) -> tuple[Ints, Column]:
    """Image labels in any accepted form as 0/1 [N, C], and the names of the classes."""
    if len(labels) != n_images:
        raise ValueError(f"labels needs one entry per image: got {len(labels)} for {n_images}.")
    if isinstance(labels, np.ndarray) and labels.ndim == 2:
        given = range(labels.shape[1]) if class_names is None else class_names
        names = np.asarray([str(name) for name in given])
        if len(names) != labels.shape[1]:
            raise ValueError(f"got {len(names)} class names for {labels.shape[1]} columns.")
        if not np.isin(labels, (0, 1)).all():
            raise ValueError("a label matrix must hold 0 and 1 only.")
        return labels.astype(np.int64), names
    rows = [
        {str(row)} if isinstance(row, (str, bytes, int, np.generic)) else set(map(str, row or ()))
        for row in labels
    ]
    names = np.asarray(sorted(set().union(*rows)) if class_names is None else list(class_names))
    if len(names) == 0:
        raise ValueError("labels name no class.")
    unknown = set().union(*rows) - set(names.tolist())
    if unknown:
        raise ValueError(f"labels name {sorted(unknown)}, which class_names does not.")
    return np.array([[int(name in row) for name in names] for row in rows]), names


def true_boxes(
    boxes: Sequence[Mapping[str, Floats] | None] | None, y: Ints, name: str, ids: Column
) -> TrueBoxes:
    """For each image its true boxes of a class, or None where none are known."""
    if boxes is None:
        return [None] * len(y)
    if len(boxes) != len(y):
        raise ValueError(f"boxes needs one entry per image: got {len(boxes)} for {len(y)}.")
    known = [None if by_class is None else by_class.get(name) for by_class in boxes]
    for i, of_class in enumerate(known):
        if of_class is not None and len(of_class) and not y[i]:
            raise ValueError(
                f"image {i} ({str(ids[i])!r}) has boxes of {str(name)!r} but is labelled "
                "without it."
            )
    return [None if b is None or len(b) == 0 else np.asarray(b, dtype=float) for b in known]


def meets(iou: Floats, overlap: float) -> Floats:
    """How far an overlap with a true box reaches the least one, 0 to 1; linear near the limit."""
    blur = min(_BLUR, overlap, 1 - overlap)
    return np.interp(iou, [overlap - blur, overlap + blur], [0.0, 1.0])


def suppress(boxes: Floats, scores: Floats, threshold: float) -> Ints:
    """Indices of the boxes kept by greedy non-maximum suppression, best first."""
    order = np.argsort(-scores, kind="stable")
    overlap = box_iou(boxes[order], boxes[order]) > threshold
    alive = np.ones(len(order), dtype=bool)
    for i in range(len(order)):
        if alive[i]:
            alive[i + 1 :] &= ~overlap[i, i + 1 :]
    return order[alive]


def shown(detections: Detections, min_probability: float) -> Ints:
    """Numbers of the boxes that are probable enough, or of the best one where none is."""
    probable = np.flatnonzero(np.asarray(detections.probabilities) >= min_probability)
    return probable if len(probable) else np.arange(min(1, len(detections.probabilities)))


def draw(image: ImageSource, detections: Detections, *, min_probability: float = 0.5) -> Image:
    """The image with boxes, classes and probabilities drawn on it, RGB uint8.

    Boxes below ``min_probability`` are left out, except that where none is above it the best box is
    drawn thinly in grey.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.vision import Detections, draw
    >>> detections = Detections([[4, 4, 20, 20]], ["cell"], [0.9], [0.9], [0.05])
    >>> draw(np.zeros((32, 32, 3), dtype=np.uint8), detections).shape
    (32, 32, 3)
    """
    import cv2

    out = read_image(image).copy()
    names = sorted({str(name) for name in detections.classes})
    width = max(1, round(max(out.shape[:2]) / 300))
    for k in reversed(shown(detections, min_probability)):  # the best on top
        box, name, _, p, std = (part[k] for part in detections)
        hue = 179 * names.index(str(name)) // max(len(names), 1)
        colour = cv2.cvtColor(np.array([[[hue, 255, 230]]], dtype=np.uint8), cv2.COLOR_HSV2RGB)[
            0, 0
        ].tolist()
        certain = p >= min_probability
        if not certain:
            colour = [150, 150, 150]
        x, y, w, h = (round(float(v)) for v in box)
        cv2.rectangle(out, (x, y), (x + w, y + h), colour, width if certain else 1)
        text = f"{name} {p:.2f}" + ("" if np.isnan(std) else f" +- {std:.2f}")
        cv2.putText(out, text, (x, max(y - 3, 8)), cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour, 1)
    return out


class Clues(NamedTuple):
    """What is known of proposals before their class is."""

    log_odds: Floats  # [n] of the classifier
    evidence: Floats  # [n, E] log-odds that do not depend on the rest of the image, if it has them
    contrast: Floats  # [n, R] how far they stand out, for several rings
    log_size: Floats  # [n, 2] log width and height as shares of the image
    features: Floats  # [n, D]


class Refinement(NamedTuple):
    """A learned correction of log-odds; see the module."""

    centre: Floats  # [1 + E + R + 2 + D] mean of the clues
    scale: Floats  # [1 + E + R + 2 + D] and their standard deviation
    weights: Floats  # [F] of the columns of `design_matrix`

    def refine(self, clues: Clues) -> Floats:
        """Refined log-odds, [n]."""
        return clues.log_odds + design_matrix(clues, self.centre, self.scale) @ self.weights

    def slope(self, clues: Clues) -> float:
        """By how much refined log-odds rise when all log-odds of the classifier rise by one."""
        n = 1 + clues.evidence.shape[1]
        return float(1 + np.sum(self.weights[:n] / self.scale[:n]))


def log_sizes(boxes: ArrayLike, image_size: ArrayLike) -> Floats:
    """Log width and log height of boxes [n, 4] as shares of their image (height, width) [n, 2]."""
    boxes = np.asarray(boxes, dtype=np.float64)
    return np.log(np.maximum(boxes[:, 2:], 1.0) / np.asarray(image_size, dtype=np.float64)[:, ::-1])


def design_matrix(clues: Clues, centre: Floats, scale: Floats) -> Floats:
    """Standardised clues, with a constant and the products of the sizes, [n, F]; features last.

    The products let a weight say "neither small nor large".
    """
    D = clues.features.shape[1]
    Z = (np.column_stack(clues) - centre) / scale  # [n, 1 + E + R + 2 + D]
    of_box, features = Z[:, : Z.shape[1] - D], Z[:, Z.shape[1] - D :]
    w, h = of_box[:, -2:].T
    return np.column_stack([of_box, w * w, h * h, w * h, np.ones(len(Z)), features])


def learn_refinement(clues: Clues, target: Floats, weight: Floats, n_images: int) -> Refinement:
    """Learn from proposals with a known target, 0 to 1; -1 is unknown.

    ``weight`` [n] says how much each proposal counts, ``n_images`` how many images have boxes.
    """
    columns = np.column_stack(clues)
    centre, scale = columns.mean(axis=0), columns.std(axis=0)
    scale = np.where(scale > 1e-12 * (1 + np.abs(centre)), scale, 1.0)
    known = target >= 0
    X = design_matrix(clues, centre, scale)[known]
    precision = np.full(X.shape[1], _CLUE_PRECISION)
    precision[X.shape[1] - clues.features.shape[1] :] = _FEATURE_PRECISION
    precision *= 1 + (_ENOUGH_IMAGES / n_images) ** 3
    weights = fit_weights(X, clues.log_odds[known], target[known], weight[known], precision)
    return Refinement(centre, scale, weights)


def fit_weights(
    X: Floats, offset: Floats, target: Floats, weight: Floats, precision: Floats
) -> Floats:
    """Most probable weights of a logistic regression with an offset, by Newton's method, [F].

    They minimise sum_i weight_i (log(1 + e^z_i) - target_i z_i) + precision . theta^2 / 2 with
    z = offset + X theta.
    """

    def loss(theta: Floats) -> tuple[float, Floats]:
        z = offset + X @ theta
        value = np.sum(weight * (np.logaddexp(0.0, z) - target * z))
        gradient = X.T @ (weight * (expit(z) - target)) + precision * theta
        return float(value + 0.5 * np.sum(precision * theta**2)), gradient

    def hessian(theta: Floats) -> Floats:
        p = expit(offset + X @ theta)
        return np.asarray((X * (weight * p * (1 - p))[:, None]).T @ X + np.diag(precision))

    start = np.zeros(X.shape[1])
    options = {"gtol": _TOL, "maxiter": 100}
    return minimize(loss, start, jac=True, hess=hessian, method="trust-exact", options=options).x
