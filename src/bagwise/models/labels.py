"""Labels of bags and instances in the one form that every model is fitted to.

A model is fitted one-vs-rest: for each class, does the bag contain at least one instance of it?
`read_labels` turns whatever ``fit`` is given (two classes, several, an indicator matrix) into
`Labels`, which have a column for every positive class; two classes have one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from bagwise.bags import Bags, encode_instance_labels
from bagwise.core import segments
from bagwise.core.arrays import Codes, Column, Floats, Ints, is_sparse
from bagwise.models.classes import ClassRule

# Weights of the classes: "balanced", or one number each.
ClassWeight: TypeAlias = str | Mapping[Any, float]

# Share of the bags that the rarer of two classes counts for at least, unless set otherwise.
_LEAST_SHARE = 0.2


class Labels(NamedTuple):
    """Validated labels: a column for each of the F positive classes."""

    classes: Column  # [C]
    present: Ints  # [B, F] 0 or 1
    known: Codes  # [N, F] 1, 0, or -1 where unknown
    rule: ClassRule  # how the columns become probabilities of the classes
    codes: Ints  # [B] by which folds are stratified: the class; of an indicator matrix the rarest
    weight: Floats | None = None  # [B, F] in the fit; None where every bag counts once
    counts: Floats | None = None  # [B] how often a bag counts, whatever its class

    def take(self, bags: Ints, offsets: Ints) -> Labels:
        """Those of the bags with these numbers, in this order."""
        rows, _ = segments.take(offsets, bags)
        return self._replace(
            present=self.present[bags],
            known=self.known[rows],
            codes=self.codes[bags],
            weight=None if self.weight is None else self.weight[bags],
            counts=None if self.counts is None else self.counts[bags],
        )

    @property
    def instance_codes(self) -> Ints:
        """Position of each instance's class, the background being class 0; -1 where unknown, [N].

        For labels whose background is the first class, as of two classes it is.
        """
        which = np.where((self.known == 1).any(axis=1), 1 + self.known.argmax(axis=1), 0)
        return np.where((self.known < 0).any(axis=1), -1, which)

    def group(self, offsets: Ints) -> Ints:
        """Code of each instance where points are chosen class by class, [N].

        Known labels of instances sort them better than those of their bags.
        """
        of_bag = segments.spread(self.codes, offsets)
        if self.present.shape[1] > 1:
            return of_bag
        known = self.known[:, 0]
        return of_bag if known.max(initial=-1) < 0 else np.where(known < 0, of_bag, known)

    def weighted(self, class_weight: ClassWeight | None, counts: Floats | None) -> Labels:
        """With the weight of every bag in the fit of every column.

        ``counts`` [B] says how often each bag counts, whatever its class. By default a class
        against all others has the weights of `rare_weights`.
        """
        columns = []
        for f, present in enumerate(self.present.T):
            if class_weight is None:
                weights = rare_weights(present, counts)
            elif isinstance(class_weight, str):  # both sides of one class against all others
                weights = _class_weights(class_weight, present, np.arange(2))
            elif self.rule.multilabel:
                of_class = _class_weights(class_weight, np.arange(len(self.classes)), self.classes)
                weights = np.where(present == 1, of_class[f], 1.0)
            else:
                weights = _class_weights(class_weight, self.codes, self.classes)
            if weights is not None and counts is not None:
                weights = weights * counts
            columns.append(counts if weights is None else weights)
        if all(column is None for column in columns):
            return self._replace(counts=counts)
        once = np.ones(len(self.present))
        weight = np.stack([once if c is None else c for c in columns], axis=1)
        return self._replace(weight=weight, counts=counts)


def read_classes(
    y: ArrayLike,
    background: object = None,
    estimator: str = "the model",
    bags: Bags | None = None,
) -> tuple[Column, ClassRule]:
    """The classes that labels name, sorted, and how they go together.

    Parameters
    ----------
    y : array of shape (n_bags,) or (n_bags, n_classes)
        A class per bag, or scikit-learn's multilabel format: 1 where a bag has a class. The
        columns of a frame name the classes.
    background : class or None, default=None
        The class of bags in which nothing is found; of two, the smaller one in any case.
    estimator : str, default="the model"
        Who asks, for the messages.
    bags : Bags or None, default=None
        Whose labels they are; messages then name the bag.

    Examples
    --------
    >>> from bagwise.models.labels import read_classes
    >>> classes, rule = read_classes(["none", "a", "b"], background="none")
    >>> classes.tolist(), rule.background, read_classes([0, 1])[1].binary
    (['a', 'b', 'none'], 2, True)
    """
    if _is_indicator(y):
        if background is not None:
            raise ValueError(
                f"background={background!r} has no meaning with an indicator matrix, where a row "
                "of zeros says that nothing was found; drop it."
            )
        names = getattr(y, "columns", None)
        classes = np.arange(np.shape(y)[1]) if names is None else np.asarray(names)
        return classes, ClassRule(len(classes), multilabel=True)
    column = check_column(y, bags, estimator)
    classes = np.unique(column)
    if len(classes) < 2:
        raise ValueError(
            f"{estimator} needs two classes of bags; got 1 class: all {len(column)} bags are "
            f"labelled {classes[0].item()!r}."
        )
    position = None
    if background is not None:
        at = np.flatnonzero(classes == background)
        if len(at) == 0:
            raise ValueError(
                f"background={background!r} is not one of the classes {classes.tolist()} of y."
            )
        position = int(at[0])
    if len(classes) == 2:
        if position == 1:
            raise ValueError(
                f"with two classes the larger one, {classes[1].item()!r}, is the positive class, "
                f"so that background={background!r} cannot be; rename the classes."
            )
        position = 0
    return classes, ClassRule(len(classes), position)


def is_binary(y: Any) -> bool:
    """Whether labels are of two classes at most, of which a bag has one.

    Examples
    --------
    >>> from bagwise.models.labels import is_binary
    >>> [is_binary(y) for y in ([0, 1], ["a", "b", "c"], [[0, 1], [1, 1]])]
    [True, False, False]
    """
    return not _is_indicator(y) and (y is None or len(set(np.ravel(y).tolist())) < 3)


def read_labels(
    y: ArrayLike,
    bags: Bags,
    classes: Column,
    rule: ClassRule,
    instance_labels: Any = None,
) -> Labels:
    """Labels of bags of these classes, and of their instances, checked.

    ``instance_labels`` holds a class per instance (None, NaN or -1 where unknown), or, with an
    indicator matrix, a row of 0, 1 and -1 per instance. An instance of one class is of no other;
    with an indicator matrix a single class leaves the others open.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise import Bags
    >>> from bagwise.models.labels import read_classes, read_labels
    >>> bags, y = Bags(np.ones((3, 1)), [0, 1, 2, 3]), ["none", "a", "b"]
    >>> read_labels(y, bags, *read_classes(y, background="none")).present.tolist()
    [[0, 0], [1, 0], [0, 1]]
    """
    if rule.multilabel:
        present = _indicators(y, bags, len(classes))
        codes = _rarest(present)
    else:
        codes = known_codes(check_column(y, bags), classes, bags)
        present = (codes[:, None] == rule.findings).astype(np.int64)
    known = np.full((bags.n_instances, present.shape[1]), -1, dtype=np.int8)
    labels = Labels(classes, present, known, rule, codes)
    if instance_labels is None:
        return labels
    if rule.multilabel and np.ndim(instance_labels) == 2:
        matrix = np.asarray(instance_labels, dtype=np.float64)
        if matrix.shape != known.shape:
            raise ValueError(
                "instance_labels needs one row per instance and one column per class, shape "
                f"{known.shape}; got {matrix.shape}."
            )
        matrix = np.where(np.isnan(matrix), -1, matrix)
        if not np.isin(matrix, (-1, 0, 1)).all():
            raise ValueError(
                "instance_labels must be 0, 1, or missing (NaN or -1) in every column."
            )
        return _possible(labels._replace(known=matrix.astype(np.int8)), bags)
    own = encode_instance_labels(instance_labels, bags, classes, codes if rule.binary else None)
    known[:] = np.where(own[:, None] == rule.findings, 1, -1 if rule.multilabel else 0)
    known[own < 0] = -1
    return labels if rule.binary else _possible(labels, bags)


def warn_of_constant_columns(labels: Labels, error: bool = False) -> None:
    """Warn of classes that every bag or no bag has; an error where no class tells bags apart.

    With ``error`` a single such class is one: a model of its own cannot be fitted to it.
    """
    present = labels.present
    constant = np.flatnonzero((present == present[0]).all(axis=0))
    for c in constant:
        name, share = labels.classes[c].item(), "every" if present[0, c] else "no"
        if error or len(constant) == len(labels.classes):
            raise ValueError(
                f"class {name!r} has {share} bag: a class needs bags with it and bags without it. "
                "Drop its column, or split the bags so that every part has some of both."
            )
        warnings.warn(
            f"class {name!r} has {share} bag: all that can be said of it is how rare it is.",
            stacklevel=4,
        )


def check_column(
    y: ArrayLike | None, bags: Bags | None = None, estimator: str = "the model"
) -> Column:
    """One class per bag, or the reason why these are no labels of the bags."""
    if y is None:
        raise ValueError(f"{estimator} requires y to be passed, but the target y is None.")
    column: Column = column_or_1d(y.toarray() if is_sparse(y) else y, warn=True)
    if bags is not None and len(column) != len(bags):
        raise ValueError(
            f"y needs one label per bag: got {len(column)} labels for {len(bags)} bags."
        )
    if bags is not None and column.dtype.kind == "f" and not np.isfinite(column).all():
        i = int(np.flatnonzero(~np.isfinite(column))[0])
        raise ValueError(
            f"Input y contains NaN or infinity: {bags.describe_bag(i)} is labelled {column[i]}."
        )
    check_classification_targets(column)
    return column


def known_codes(y: ArrayLike, classes: Column, bags: Bags | None = None) -> Ints:
    """Positions of labels among the classes that a model knows; another class is an error.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.labels import known_codes
    >>> known_codes(["b", "a"], np.array(["a", "b", "c"])).tolist()
    [1, 0]
    >>> known_codes(["d"], np.array(["a", "b", "c"]))
    Traceback (most recent call last):
    ValueError: label 'd' is not one of the classes ['a', 'b', 'c'] of the model.
    """
    names, labels = np.asarray(classes).tolist(), np.asarray(y).tolist()
    position = {name: i for i, name in enumerate(names)}
    codes = [position.get(label, -1) for label in labels]
    if -1 in codes:
        at = codes.index(-1)
        where = "" if bags is None else f"{bags.describe_bag(at)}: "
        raise ValueError(
            f"{where}label {labels[at]!r} is not one of the classes {names} of the model."
        )
    return np.array(codes, dtype=np.int64)


def _is_indicator(y: Any) -> bool:
    shape = y.shape if is_sparse(y) else np.shape(y)
    return len(shape) == 2 and shape[1] > 1


def _indicators(y: Any, bags: Bags, n_classes: int) -> Ints:
    matrix = y.toarray() if is_sparse(y) else np.asarray(y)
    if len(matrix) != len(bags):
        raise ValueError(
            f"y needs one label per bag: got {len(matrix)} labels for {len(bags)} bags."
        )
    if matrix.shape[1:] != (n_classes,):
        raise ValueError(
            f"y must be an indicator matrix with the {n_classes} columns of the fit; got shape "
            f"{matrix.shape}."
        )
    if matrix.dtype.kind not in "biuf" or not np.isin(matrix, (0, 1)).all():
        raise ValueError(
            "y has several columns, so that it must be an indicator matrix of 0 and 1, one column "
            "per class; for one class per bag pass a 1-d array."
        )
    return matrix.astype(np.int64)


def _rarest(present: Ints) -> Ints:
    """A code per bag by its rarest class, 0 for none: folds that share out rare classes, [B]."""
    order = np.argsort(present.sum(axis=0), kind="stable")
    has = present[:, order] == 1
    codes = np.where(has.any(axis=1), 1 + has.argmax(axis=1), 0)
    _, codes, counts = np.unique(codes, return_inverse=True, return_counts=True)
    # Codes of a single bag cannot be shared out: they join the others.
    return np.where(counts[codes] < 2, 0, codes)


def _possible(labels: Labels, bags: Bags) -> Labels:
    """The labels, once no instance has a class that its bag has not, and no bag has one in vain."""
    present, known = labels.present, labels.known
    owner, names = bags.bag_index, labels.classes[labels.rule.findings].tolist()
    rows, columns = np.nonzero((known == 1) & (present[owner] == 0))
    if len(rows):
        b = int(owner[rows[0]])
        if labels.rule.multilabel:
            of_bag = ", ".join(repr(n) for n, has in zip(names, present[b], strict=True) if has)
        else:
            of_bag = repr(labels.classes[labels.codes[b]].item())
        raise ValueError(
            f"{bags.describe_bag(b)} is labelled {of_bag or 'with no class'} but instance "
            f"{rows[0] - bags.offsets[b]} in it is labelled {names[columns[0]]!r}, a class this "
            "bag cannot hold."
        )
    possible = segments.max((known != 0).astype(np.float64), bags.offsets) > 0
    at, columns = np.nonzero((present == 1) & ~possible)
    if len(at):
        raise ValueError(
            f"{bags.describe_bag(int(at[0]))} is labelled {names[columns[0]]!r} but every "
            "instance in it is labelled otherwise; it needs at least one instance of its class."
        )
    return labels


def rare_weights(y: Ints, counts: Floats | None = None) -> Floats | None:
    """Weights that make the rarer of two classes count as a fifth of all bags, [B].

    None where it is a fifth already. Positive bags that are rarer are explained away: with the
    latent function far below 0 everywhere, a bag's label is not enough to raise any of its
    instances, and the ranking falls to chance or below. Calibration takes the bags as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.models.labels import rare_weights
    >>> weights = rare_weights(np.array([1] + 12 * [0]))
    >>> weights[:2].tolist(), rare_weights(np.array([1, 0, 0, 0]))
    ([3.0, 1.0], None)
    """
    shares = np.bincount(y, counts, minlength=2)
    if shares.min() <= 0:
        return None
    factor = _LEAST_SHARE / (1 - _LEAST_SHARE) * shares.max() / shares.min()
    return np.where(y == shares.argmin(), factor, 1.0) if factor > 1 else None


def _class_weights(class_weight: ClassWeight, y: Ints, classes: Column) -> Floats:
    """Weight of every bag by its class: "balanced", or a mapping from class to weight, [B].

    ``y`` holds positions in ``classes``. Balanced weights make all classes count the same and
    have mean 1.
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
