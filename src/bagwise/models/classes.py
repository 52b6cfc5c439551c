"""More than two classes: bag labels taken class by class, and the classes put together again.

Every model of this package answers one question about a bag: does it hold something of a kind?
With several classes the question is asked once per class, the bags of the other classes being
negative. `ClassLabels` is the labels in that form, and `ClassRule` turns the answers into the
probabilities of the classes. A background class has no question of its own: it is what a bag, or an
instance, is when nothing else is found in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp
from sklearn.utils.multiclass import check_classification_targets

from bagwise.bags import Bags
from bagwise.core import segments
from bagwise.core.arrays import Array, Floats, Ints, is_sparse

# Weights of the classes: "balanced", or one number each.
ClassWeight: TypeAlias = str | Mapping[Any, float]

# Share of the bags that the rarer of two classes counts for at least, unless told otherwise.
_LEAST_SHARE = 0.2
# Log-odds are uncertain by no more than this; beyond it the probability is 0 or 1 anyway.
_LARGEST_STD = 10.0
# Logarithm of the largest number whose square does not overflow, for ratios to small means.
_LOG_LARGEST = 300.0
# Where the temperature is sought.
_COLDEST, _HOTTEST = 0.1, 10.0
# And the shift of the background.
_FARTHEST = 10.0


class ClassLabels(NamedTuple):
    """Labels of bags, one column per finding: a class that something in a bag shows."""

    classes: Array  # [C]
    present: Ints  # [B, F] 0 or 1
    background: int | None  # position of the background in `classes`
    codes: Ints | None  # [B] position of each bag's class; None where a bag may have several

    @property
    def multilabel(self) -> bool:
        """Whether a bag may have several classes, or none."""
        return self.codes is None

    @property
    def findings(self) -> Ints:
        """Positions of the findings in `classes`, [F]."""
        return finding_positions(len(self.classes), self.background)

    def weights(
        self, class_weight: ClassWeight | None, counts: Floats | None, finding: int
    ) -> Floats | None:
        """Weight of every bag where one finding is asked for, [B]; None where each counts once.

        ``counts`` [B] says how often each bag counts, whatever its class. By default one class
        against all others counts as two classes do (`rare_weights`).
        """
        present = self.present[:, finding]
        if class_weight is None or isinstance(class_weight, str):
            return bag_weights(class_weight, counts, present, np.arange(2))
        if self.codes is not None:
            return bag_weights(class_weight, counts, self.codes, self.classes)
        of_class = class_weights(class_weight, np.arange(len(self.classes)), self.classes)
        weights = np.where(present == 1, of_class[finding], 1.0)
        return weights if counts is None else weights * counts

    @property
    def rule(self) -> ClassRule:
        """How the answers about the findings become class probabilities."""
        return ClassRule(len(self.classes), self.background, self.multilabel)


def finding_positions(n_classes: int, background: int | None) -> Ints:
    """Positions of all classes but the background."""
    positions = np.arange(n_classes)
    return positions if background is None else np.delete(positions, background)


def has_several_classes(y: ArrayLike) -> bool:
    """Whether labels are more than the two classes that every model knows.

    Examples
    --------
    >>> from bagwise.models.classes import has_several_classes
    >>> [has_several_classes(y) for y in ([0, 1], ["a", "b", "c"], [[0, 1], [1, 1]])]
    [False, True, True]
    """
    if y is None:
        return False
    if sp.issparse(y):
        return True
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] > 1:
        return True
    if y.ndim == 1 and y.dtype.kind in "iub" and len(y):
        return not bool(((y == y.min()) | (y == y.max())).all())
    return (y.ndim == 1 and y.dtype.kind != "f" and len(set(y.tolist())) > 2) or _whole(y)


def _whole(y: Array) -> bool:
    """Whether floats are more than two whole numbers; others are no classes, and refused later."""
    return bool(
        y.ndim == 1
        and y.dtype.kind == "f"
        and np.isfinite(y).all()
        and (y == np.round(y)).all()
        and len(np.unique(y)) > 2
    )


def read_class_labels(
    y: ArrayLike,
    bags: Bags,
    background: object = None,
    estimator: str = "the model",
    constant: bool = False,
) -> ClassLabels:
    """Labels of any number of classes, or an indicator matrix, checked.

    Parameters
    ----------
    y : array of shape (n_bags,) or (n_bags, n_classes)
        A class per bag, or scikit-learn's multilabel format: 1 where a bag has a class. The
        columns of a frame name the classes.
    bags : Bags
    background : class, optional
        The class of bags in which nothing is found.
    estimator : str
        Who asks, for the messages.
    constant : bool
        Whether a class of an indicator matrix may have no bag, or every bag: then a warning
        names it, where it is an error otherwise.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.models.classes import read_class_labels
    >>> bags = Bags(np.ones((3, 1)), [0, 1, 2, 3])
    >>> read_class_labels(["none", "a", "b"], bags, background="none").present.tolist()
    [[0, 0], [1, 0], [0, 1]]
    """
    if sp.issparse(y) or np.ndim(y) == 2:
        if background is not None:
            raise ValueError(
                f"background={background!r} has no meaning with an indicator matrix, where a row "
                "of zeros says that nothing was found; drop it."
            )
        return _read_indicators(y, bags, constant)
    labels = np.asarray(y)
    _check_length(len(labels), bags)
    check_classification_targets(labels)
    classes, codes = np.unique(labels, return_inverse=True)
    position = _background_position(background, classes)
    if len(classes) < 3:
        raise ValueError(f"{estimator} was asked for several classes; got {classes.tolist()}.")
    findings = finding_positions(len(classes), position)
    return ClassLabels(classes, (codes[:, None] == findings).astype(np.int64), position, codes)


def _read_indicators(y: ArrayLike, bags: Bags, constant: bool) -> ClassLabels:
    names = getattr(y, "columns", None)
    matrix = y.toarray() if is_sparse(y) else np.asarray(y)
    _check_length(len(matrix), bags)
    if matrix.dtype.kind not in "biuf" or not np.isin(matrix, (0, 1)).all():
        raise ValueError(
            "y has several columns, so that it must be an indicator matrix of 0 and 1, one column "
            "per class; for one class per bag pass a 1-d array."
        )
    present = matrix.astype(np.int64)
    classes = np.arange(present.shape[1]) if names is None else np.asarray(names)
    settled = np.flatnonzero((present == present[0]).all(axis=0))
    for c in settled:
        name, share = classes[c].item(), "every" if present[0, c] else "no"
        if not constant or len(settled) == len(classes):
            raise ValueError(
                f"class {name!r} has {share} bag: a class needs bags with it and bags without it. "
                "Drop its column, or split the bags so that every part has some of both."
            )
        warnings.warn(
            f"class {name!r} has {share} bag: all that can be said of it is how rare it is.",
            stacklevel=4,
        )
    return ClassLabels(classes, present, None, None)


def _check_length(n: int, bags: Bags) -> None:
    if n != len(bags):
        raise ValueError(f"y needs one label per bag: got {n} labels for {len(bags)} bags.")


def _background_position(background: object, classes: Array) -> int | None:
    if background is None:
        return None
    at = np.flatnonzero(classes == background)
    if len(at) == 0:
        raise ValueError(
            f"background={background!r} is not one of the classes {classes.tolist()} of y."
        )
    return int(at[0])


def read_instance_classes(instance_labels: Any, bags: Bags, labels: ClassLabels) -> Ints:
    """What is known of each instance about each finding: 1, 0, or -1 where unknown, [N, F].

    ``instance_labels`` holds a class per instance (None, NaN or -1 where unknown), or, with an
    indicator matrix, a row of 0, 1 and -1 per instance. An instance of one class is of no other;
    with an indicator matrix a single class leaves the others open.
    """
    from bagwise.bags import encode_instance_labels

    n_findings = labels.present.shape[1]
    if instance_labels is None:
        return np.full((bags.n_instances, n_findings), -1, dtype=np.int8)
    if labels.multilabel and np.ndim(instance_labels) == 2:
        known = _read_indicator_rows(instance_labels, bags, n_findings)
    else:
        codes = encode_instance_labels(instance_labels, bags, labels.classes, None)
        other = -1 if labels.multilabel else 0
        known = np.where(codes[:, None] == labels.findings, 1, other).astype(np.int8)
        known[codes < 0] = -1
    _check_possible(known, bags, labels)
    return known


def _read_indicator_rows(instance_labels: ArrayLike, bags: Bags, n_findings: int) -> Ints:
    matrix = np.asarray(instance_labels, dtype=np.float64)
    if matrix.shape != (bags.n_instances, n_findings):
        raise ValueError(
            f"instance_labels needs one row per instance and one column per class, shape "
            f"{(bags.n_instances, n_findings)}; got {matrix.shape}."
        )
    matrix = np.where(np.isnan(matrix), -1, matrix)
    if not np.isin(matrix, (-1, 0, 1)).all():
        raise ValueError("instance_labels must be 0, 1, or missing (NaN or -1) in every column.")
    return matrix.astype(np.int8)


def _check_possible(known: Ints, bags: Bags, labels: ClassLabels) -> None:
    """An instance cannot have a class that its bag has not, nor a bag one that no instance may."""
    owner, names = bags.bag_index, labels.classes[labels.findings].tolist()
    rows, findings = np.nonzero((known == 1) & (labels.present[owner] == 0))
    if len(rows):
        b = int(owner[rows[0]])
        raise ValueError(
            f"{bags.describe_bag(b)} is labelled {_label_of(labels, b)} but instance "
            f"{rows[0] - bags.offsets[b]} in it is labelled {names[findings[0]]!r}, a class this "
            "bag cannot hold."
        )
    possible = segments.max((known != 0).astype(np.float64), bags.offsets) > 0
    at, findings = np.nonzero((labels.present == 1) & ~possible)
    if len(at):
        raise ValueError(
            f"{bags.describe_bag(int(at[0]))} is labelled {names[findings[0]]!r} but every "
            "instance in it is labelled otherwise; it needs at least one instance of its class."
        )


def _label_of(labels: ClassLabels, bag: int) -> str:
    if labels.codes is not None:
        return repr(labels.classes[labels.codes[bag]].item())
    names = labels.classes[labels.present[bag] == 1].tolist()
    return ", ".join(map(repr, names)) or "with no class"


class ClassScores(NamedTuple):
    """Log-odds of every class's probability, and the standard deviation of that probability."""

    log_odds: Floats  # [n, C]
    std: Floats  # [n, C]


class ClassRule(NamedTuple):
    """From the log-odds of the findings, one question each, to the probabilities of the classes.

    Where a bag may have several classes the questions stay apart. Where it has one, the questions
    are independent indicators of which exactly one holds: with o their odds, class c has
    probability ``o_c / sum o``; with a background, which is that none of them holds,
    ``o_c / (1 + sum o)``. The odds are raised to the power ``temperature`` first, and the
    background's 1 is multiplied by ``exp(shift)``; both numbers are fitted to held-out bags (1
    and 0 without any).

    An instance of a bag of class c is of class c or of none. What a calibrated question says of
    it, given that the bag has the class, is multiplied by the probability that the bag has it
    (`inside_bags`). Without calibration nothing is known of the bag, and an instance is shared
    out by its own odds, ``o_c / (1 + sum o)`` (`of_instances`).
    """

    n_classes: int
    background: int | None = None
    multilabel: bool = False
    temperature: float = 1.0
    shift: float = 0.0

    @property
    def findings(self) -> Ints:
        """Positions of the findings among the classes, [F]."""
        return finding_positions(self.n_classes, self.background)

    def read_labels(self, y: ArrayLike, bags: Bags, classes: Array) -> ClassLabels:
        """Labels of other bags, which must be of the classes of the fit."""
        if self.multilabel:
            matrix = y.toarray() if is_sparse(y) else np.asarray(y)
            if matrix.shape != (len(bags), self.n_classes) or not np.isin(matrix, (0, 1)).all():
                raise ValueError(
                    f"y must be an indicator matrix of 0 and 1 with a row per bag and the "
                    f"{self.n_classes} columns of the fit; got shape {matrix.shape}."
                )
            return ClassLabels(classes, matrix.astype(np.int64), None, None)
        codes = known_codes(y, classes)
        _check_length(len(codes), bags)
        present = (codes[:, None] == self.findings).astype(np.int64)
        return ClassLabels(classes, present, self.background, codes)

    def of_bags(self, log_odds: Floats, std: Floats) -> ClassScores:
        """Classes of bags from the log-odds of their findings [B, F]."""
        if self.multilabel:
            return ClassScores(log_odds, std)
        none = None if self.background is None else np.full(len(log_odds), self.shift)
        spread = self.temperature * _latent_std(log_odds, std)
        return self._shared_out(self.temperature * log_odds, none, spread)

    def of_instances(self, log_odds: Floats, std: Floats) -> ClassScores:
        """Classes of instances from the log-odds of each finding [N, F]."""
        if self.multilabel:
            return ClassScores(log_odds, std)
        return self._shared_out(log_odds, np.zeros(len(log_odds)), _latent_std(log_odds, std))

    def inside_bags(
        self, instance: ClassScores, bag: ClassScores, classes: ClassScores
    ) -> ClassScores:
        """Classes of instances from each finding's answers about them and about their bags.

        ``instance`` and ``bag`` [N, F] are what the questions say of an instance and of its bag,
        which is at least as probable; ``classes`` [N, C] is `of_bags` of the latter. The chance
        that the bag has the class replaces what its question alone made of it.
        """
        if self.multilabel:
            return instance
        of_bag = ClassScores(*(column[:, self.findings] for column in classes))
        log_given = log_expit(instance.log_odds) - log_expit(bag.log_odds)
        log_given = np.minimum(log_given, 0.0)  # beyond rounding, no instance exceeds its bag
        log_p = log_expit(of_bag.log_odds) + log_given
        # What is left of a finding's bag, and the bags of no finding: neither rounds to 0.
        with np.errstate(divide="ignore"):
            log_other = log_expit(of_bag.log_odds) + np.log(-np.expm1(log_given))
        rest = logsumexp(log_other, axis=1)
        if self.background is not None:
            rest = np.logaddexp(rest, log_expit(classes.log_odds[:, self.background]))
        # Independent factors: 1 + (std / mean)^2 of a product is the product of the factors'.
        rise = _relative(instance) * _relative(of_bag) / _relative(bag)
        own = np.exp(log_p) * np.sqrt(np.maximum(rise - 1, 0.0))
        return self._with_background(log_p, rest, own, np.sqrt(np.sum(own**2, axis=1)))

    def _with_background(
        self, log_p: Floats, log_rest: Floats, std: Floats, rest_std: Floats
    ) -> ClassScores:
        """Findings [N, F] and the rest [N], which is the background's where there is one."""
        columns = np.column_stack([log_p, log_rest])
        out_log, out_std = np.empty((2, len(log_p), self.n_classes))
        for f, c in enumerate(self.findings):
            others = logsumexp(np.delete(columns, f, axis=1), axis=1)
            out_log[:, c], out_std[:, c] = log_p[:, f] - others, std[:, f]
        if self.background is not None:
            out_log[:, self.background] = log_rest - logsumexp(log_p, axis=1)
            out_std[:, self.background] = rest_std
        # To first order only: no probability spreads more than a coin of the same mean.
        most = np.exp((log_expit(out_log) + log_expit(-out_log)) / 2)
        return ClassScores(out_log, np.minimum(out_std, most))

    def _shared_out(self, score: Floats, none: Floats | None, spread: Floats) -> ClassScores:
        """One unit of probability shared out by ``exp(score)`` [n, F] and ``exp(none)`` [n].

        ``spread`` is the standard deviation of the scores; the probabilities' is that to first
        order: dp_c = p_c (ds_c - sum p ds).
        """
        none = np.full(len(score), -np.inf) if none is None else none
        p = np.exp(score - np.logaddexp(logsumexp(score, axis=1), none)[:, None])
        moved = (p * spread) ** 2
        others = moved.sum(axis=1, keepdims=True) - moved
        std = p * np.sqrt(np.maximum(((1 - p) * spread) ** 2 + others, 0.0))
        p_none = expit(none - logsumexp(score, axis=1))
        return self._with_background(score, none, std, p_none * np.sqrt(moved.sum(axis=1)))


def _relative(scores: ClassScores) -> Floats:
    """``1 + (std / mean)^2`` of probabilities, at most that of a coin: 1 / mean."""
    inverse = np.exp(np.minimum(-log_expit(scores.log_odds), _LOG_LARGEST))
    return np.minimum(1 + np.square(scores.std * inverse), inverse)


def _latent_std(log_odds: Floats, std: Floats) -> Floats:
    """Standard deviation of log-odds from that of a probability: d log-odds = dp / p (1 - p)."""
    log_slope = -log_expit(log_odds) - log_expit(-log_odds)
    return np.minimum(std * np.exp(np.minimum(log_slope, _LOG_LARGEST)), _LARGEST_STD)


def fit_temperature(rule: ClassRule, log_odds: Floats, codes: ArrayLike) -> ClassRule:
    """The rule whose temperature, and shift, make the classes of held-out bags most likely.

    ``log_odds`` [B, F] are those of findings under models that did not see the bag; rows with a
    NaN are left out. Where a bag has one class only, questions asked one by one know too little of
    each other. Standard normal priors on the logarithm of the temperature and on the shift keep
    them near 0 where there are few bags.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.classes import ClassRule, fit_temperature
    >>> codes = np.arange(60) % 3
    >>> timid = 2.0 * (codes[:, None] == np.arange(3)) - 1.0
    >>> fit_temperature(ClassRule(3), timid, codes).temperature > 1
    True
    """
    if rule.multilabel:
        return rule
    held_out = np.isfinite(log_odds).all(axis=1)
    z, codes = log_odds[held_out], np.asarray(codes)[held_out]
    if len(codes) == 0:
        return rule
    no_std = np.zeros_like(z)

    def tried(x: Floats) -> ClassRule:
        return rule._replace(temperature=float(np.exp(x[0])), shift=float(sum(x[1:])))

    def loss(x: Floats) -> float:
        scores = tried(x).of_bags(z, no_std)
        own = np.take_along_axis(scores.log_odds, codes[:, None], axis=1)
        return float(np.logaddexp(0.0, -own).sum() + np.sum(np.square(x)) / 2)

    # Without a background there is nothing to shift. One or two numbers: a simplex is safe.
    start = np.zeros(1 if rule.background is None else 2)
    bounds = [(np.log(_COLDEST), np.log(_HOTTEST)), (-_FARTHEST, _FARTHEST)][: len(start)]
    options = {"xatol": 1e-4, "fatol": 1e-6}
    best = minimize(loss, start, method="Nelder-Mead", bounds=bounds, options=options)
    return tried(best.x)


def known_codes(y: ArrayLike, classes: Array) -> Ints:
    """Positions of labels among the classes that a model knows; another class is an error.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.classes import known_codes
    >>> known_codes(["b", "a"], np.array(["a", "b", "c"])).tolist()
    [1, 0]
    >>> known_codes(["d"], np.array(["a", "b", "c"]))
    Traceback (most recent call last):
    ValueError: label 'd' is not one of the classes ['a', 'b', 'c'] of the model.
    """
    names = np.asarray(classes).tolist()
    position = {name: i for i, name in enumerate(names)}
    codes = [position.get(label, -1) for label in np.asarray(y).tolist()]
    if -1 in codes:
        label = np.asarray(y).tolist()[codes.index(-1)]
        raise ValueError(f"label {label!r} is not one of the classes {names} of the model.")
    return np.array(codes, dtype=np.int64)


def bag_weights(
    class_weight: ClassWeight | None, counts: Floats | None, y: Ints, classes: Array
) -> Floats | None:
    """Weight of every bag in a fit by its class and how often it counts; None where all once."""
    if class_weight is None:
        weights = rare_weights(y, counts)
    else:
        weights = class_weights(class_weight, y, classes)
    if weights is None or counts is None:
        return counts if weights is None else weights
    return weights * counts


def rare_weights(y: Ints, counts: Floats | None = None) -> Floats | None:
    """Weights that make the rarer of two classes count as a fifth of all bags, [B].

    None where it is a fifth already. Positive bags that are rarer are explained away: with the
    latent function far below 0 everywhere, a bag's label is not enough to raise any of its
    instances, and the ranking falls to chance or below. Calibration takes the bags as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.classes import rare_weights
    >>> weights = rare_weights(np.array([1] + 12 * [0]))
    >>> weights[:2].tolist(), rare_weights(np.array([1, 0, 0, 0]))
    ([3.0, 1.0], None)
    """
    shares = np.bincount(y, counts, minlength=2)
    if shares.min() <= 0:
        return None
    factor = _LEAST_SHARE / (1 - _LEAST_SHARE) * shares.max() / shares.min()
    return np.where(y == shares.argmin(), factor, 1.0) if factor > 1 else None


def class_weights(class_weight: ClassWeight, y: Ints, classes: Array) -> Floats:
    """Weight of every bag by its class: "balanced", or a mapping from class to weight, [B].

    ``y`` holds positions in ``classes``. Balanced weights make both sides of a question count the
    same and have mean 1.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.classes import class_weights
    >>> class_weights("balanced", np.array([0, 0, 0, 1]), np.array([0, 1])).tolist()
    [0.6666666666666666, 0.6666666666666666, 0.6666666666666666, 2.0]
    """
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(y, minlength=len(classes))
        return (len(y) / (np.count_nonzero(counts) * np.maximum(counts, 1)))[y]
    if not isinstance(class_weight, dict):
        raise ValueError(
            f"class_weight must be 'balanced' or a dict from class to weight; got {class_weight!r}."
        )
    names = np.asarray(classes).tolist()
    unknown = [name for name in class_weight if name not in names]
    if unknown:
        raise ValueError(f"class_weight names {unknown[0]!r}, which is not one of {names}.")
    return np.array([float(class_weight.get(name, 1.0)) for name in names])[y]
