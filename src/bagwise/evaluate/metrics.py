"""What a prediction is worth: bags, instances, calibration. Boxes and tracks are in `boxes`.

scikit-learn's own metrics are used wherever it has them; what it lacks is here. Labels are 0/1
(or any two sorted classes), scores rise with the positive class, tied scores never depend on the
order of the rows. Inside, labels and predictions have a class axis, [n, F]: one column of two
classes, a column each of more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn import metrics as skm

from bagwise.bags import Bags, InstanceLabels
from bagwise.core.arrays import Column, Floats, Ints
from bagwise.models.base import Model
from bagwise.models.labels import known_codes
from bagwise.models.pipeline import last_step


class Reliability(NamedTuple):
    """A reliability curve: one entry per bin that holds any prediction."""

    predicted: Floats  # mean predicted probability
    observed: Floats  # share of positives
    count: Any


def reliability_curve(y: ArrayLike, proba: ArrayLike, *, n_bins: int = 10) -> Reliability:
    """Predicted probability against the share of positives, in bins of equal width.

    Equal probabilities always fall into the same bin, so ties cannot be split by row order.

    Parameters
    ----------
    y : array of 0/1, shape (n,)
    proba : array, shape (n,)
        Probability of the positive class.
    n_bins : int, default=10

    Examples
    --------
    >>> from bagwise.evaluate import reliability_curve
    >>> curve = reliability_curve([0, 0, 1, 1], [0.1, 0.1, 0.9, 0.9])
    >>> curve.predicted.tolist(), curve.observed.tolist(), curve.count.tolist()
    ([0.1, 0.9], [0.0, 1.0], [2, 2])
    """
    y, proba = check_binary(y, proba)
    outside = (proba < 0) | (proba > 1)
    if outside.any():
        raise ValueError(f"probabilities must lie in [0, 1]; got {proba[outside][0]}.")
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1; got {n_bins}.")
    # (edge, next edge], as in scikit-learn; the first bin also holds 0.
    bins = np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], proba, side="left")  # [n]
    count = np.bincount(bins, minlength=n_bins)
    full = count > 0
    predicted = np.bincount(bins, weights=proba, minlength=n_bins)[full] / count[full]
    observed = np.bincount(bins, weights=y, minlength=n_bins)[full] / count[full]
    return Reliability(predicted, observed, count[full])


def expected_calibration_error(y: Column, proba: Floats, *, n_bins: int = 10) -> float:
    """Mean gap between predicted and observed share of positives, weighted by bin count.

    With few predictions the expected value of a perfectly calibrated model is well above 0;
    compare models on the same data.

    Examples
    --------
    >>> from bagwise.evaluate import expected_calibration_error
    >>> round(expected_calibration_error([0, 1, 1, 1], [0.25, 0.75, 0.75, 0.75]), 3)
    0.25
    """
    curve = reliability_curve(y, proba, n_bins=n_bins)
    # sum_b n_b / n |mean probability of b - share of positives in b|
    return float(np.average(np.abs(curve.predicted - curve.observed), weights=curve.count))


def _log_loss(y: Ints, p: Floats) -> float:
    """Log-loss of a row's class where the classes share one probability, else mean over classes."""
    shared = y.shape[1] > 1 and np.allclose(p.sum(axis=1), 1.0, atol=1e-6)
    if shared and (y.sum(axis=1) == 1).all():
        return float(skm.log_loss(y.argmax(axis=1), p, labels=np.arange(y.shape[1])))
    return mean_over_classes(partial(skm.log_loss, labels=[0, 1]))(y, p)


def mean_over_classes(
    function: Callable[[Ints, Any], float], *, both: bool = False
) -> Callable[[Ints, Any], float]:
    """A metric of one column as the mean over all columns.

    Parameters
    ----------
    function : callable
        ``function(y, values)`` of two vectors, such as a metric of scikit-learn.
    both : bool, default=False
        Leave out columns in which only one value occurs; NaN where no column is left.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.metrics import roc_auc_score
    >>> from bagwise.evaluate.metrics import mean_over_classes
    >>> auc = mean_over_classes(roc_auc_score, both=True)
    >>> auc(np.array([[0, 1], [1, 1]]), np.array([[0.2, 0.9], [0.8, 0.4]]))  # of the first column
    1.0
    """

    def mean(y: Ints, values: Any) -> float:
        columns = [c for c in range(y.shape[1]) if not both or len(np.unique(y[:, c])) == 2]
        return float(np.mean([function(y[:, c], values[:, c]) for c in columns] or [np.nan]))

    return mean


class Metric(NamedTuple):
    """A metric of bags or instances, and how tables treat it.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.evaluate.metrics import METRICS
    >>> METRICS["brier"].function(np.array([[0], [1]]), np.array([[0.0], [0.5]]))
    0.125
    """

    title: str
    reads: Literal["label", "score", "proba"]
    function: Callable[[Ints, Any], float]  # of 0/1 labels and of what it reads, both [n, F]
    lower_is_better: bool = False
    pooled: bool = False  # in a comparison: once over the folds of a repetition, not mean over them


class _Metrics(dict[str, Metric]):
    """Metrics by name; another name is an error that lists them."""

    def __missing__(self, name: str) -> Metric:
        raise ValueError(f"there is no metric {name!r}; choose among {tuple(self)}.")


# The one place where metrics are registered.
METRICS: dict[str, Metric] = _Metrics(
    {
        # The share of rows that are right in every column.
        "accuracy": Metric("accuracy", "label", lambda y, x: float((y == x).all(axis=1).mean())),
        "f1": Metric(
            "F1 score", "label", mean_over_classes(lambda y, x: skm.f1_score(y, x, zero_division=0))
        ),
        "auc": Metric(
            "area under the ROC curve", "score", mean_over_classes(skm.roc_auc_score, both=True)
        ),
        "auc_pr": Metric(
            "average precision", "score", mean_over_classes(skm.average_precision_score, both=True)
        ),
        "log_loss": Metric("log-loss", "proba", _log_loss, lower_is_better=True),
        "brier": Metric(
            "Brier score", "proba", mean_over_classes(skm.brier_score_loss), lower_is_better=True
        ),
        # Of one fold of a dozen bags it is mostly binning noise, hence pooled.
        "ece": Metric(
            "calibration error",
            "proba",
            mean_over_classes(expected_calibration_error),
            lower_is_better=True,
            pooled=True,
        ),
    }
)
METRIC_NAMES = tuple(METRICS)
# What tables of results and pages show where nothing else is asked for.
SHOWN_METRICS = ("accuracy", "auc", "log_loss", "brier", "ece")


def score_predictions(
    y: Column,
    *,
    label: Ints | None = None,
    score: Floats | None = None,
    proba: Floats | None = None,
    metrics: Sequence[str] = METRIC_NAMES,
) -> dict[str, float]:
    """Metrics of bags or of instances by name, from whichever predictions exist.

    Parameters
    ----------
    y : array of 0/1, shape (n,) or (n, n_classes)
        With several classes an indicator matrix.
    label, score, proba : arrays, shape (n,) or (n, n_classes) or None, default=None
        Predicted labels, scores, probabilities of the positive class, or of every class. With
        several classes accuracy asks for whole rows, the log-loss is that of the row's class
        where the probabilities of a row sum to one, and all else is the mean over the classes.
    metrics : sequence of str, default=METRIC_NAMES
        Names among ``METRIC_NAMES``. A metric whose prediction is missing, or that is undefined
        because ``y`` has one class only, is NaN.

    Examples
    --------
    >>> from bagwise.evaluate import score_predictions
    >>> score_predictions([0, 1], score=[-1.0, 2.0], metrics=["auc", "log_loss"])
    {'auc': 1.0, 'log_loss': nan}
    """
    y = as_columns(y)
    predictions = {"label": label, "score": score, "proba": proba}
    values = {}
    for name in metrics:
        metric = METRICS[name]
        if predictions[metric.reads] is None:
            values[name] = float("nan")
            continue
        read = as_columns(predictions[metric.reads])
        if read.shape != y.shape:
            raise ValueError(
                f"{metric.reads} must have a row and a column for each of y: got shape "
                f"{read.shape} for {y.shape}; of two classes pass the positive one's column."
            )
        values[name] = metric.function(y, read)
    return values


def as_columns(values: Any) -> Any:
    """Labels or predictions with a class axis, [n, F]; a vector is that of two classes, F = 1."""
    array = np.asarray(values)
    return array[:, None] if array.ndim == 1 else array


def bag_metrics(
    model: Model, bags: Bags, y: Column, metrics: Sequence[str] = METRIC_NAMES
) -> dict[str, float]:
    """Metrics of a fitted model on bags; ``y`` is of the model's classes.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.evaluate import bag_metrics
    >>> from bagwise.models.registry import make_model
    >>> bags, y = make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> bag_metrics(make_model("statistics").fit(bags, y), bags, y, ["auc"])["auc"] > 0.9
    True
    """
    outputs = model_outputs(model, bags, wanted=_reads(metrics))
    return score_predictions(targets(y, model), **outputs, metrics=metrics)


def _reads(metrics: Sequence[str]) -> set[str]:
    return {METRICS[name].reads for name in metrics}


def instance_metrics(
    model: Model, bags: Bags, labels: InstanceLabels = None, metrics: Sequence[str] = METRIC_NAMES
) -> dict[str, float]:
    """Metrics of a fitted model on the instances whose label is known.

    Parameters
    ----------
    model : fitted bag classifier with ``_instances`` methods
    bags : Bags
    labels : array, shape (n_instances,) or None, default=None
        Class of each instance, or missing (None, NaN, -1). Defaults to ``bags.instance_labels``.
    metrics : sequence of str, default=METRIC_NAMES

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.evaluate import instance_metrics
    >>> from bagwise.models.registry import make_model
    >>> data = make_gaussian_bags(n_bags=40, random_state=0)
    >>> model = make_model("single-instance").fit(data.bags, data.y)
    >>> instance_metrics(model, data.bags, metrics=["auc"])["auc"] > 0.8
    True
    """
    truth, known = instance_targets(model, bags, labels)
    outputs = model_outputs(model, bags, "_instances", _reads(metrics))
    outputs = {what: None if v is None else v[known] for what, v in outputs.items()}
    return score_predictions(truth, **outputs, metrics=metrics)


def _score_instances(
    model: Model, bags: Bags, y: ArrayLike | None = None, *, metric: str, sign: int
) -> float:
    """A scikit-learn scorer that reads the labels the bags carry, not the bag labels."""
    return sign * instance_metrics(model, bags, metrics=[metric])[metric]


def make_instance_scorer(metric: str = "auc") -> Callable[..., float]:
    """A scorer of instances for ``cross_validate``, ``GridSearchCV`` and the like.

    It works on bags that carry their instance labels (``bags.instance_labels``), which travel
    with every slice a splitter takes. As scikit-learn's convention asks, losses are negated.

    Parameters
    ----------
    metric : str, default="auc"
        One of ``METRIC_NAMES``: "accuracy", "f1", "auc", "auc_pr", "log_loss", "brier", "ece".

    Examples
    --------
    >>> from sklearn.model_selection import cross_val_score
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.evaluate import make_instance_scorer
    >>> from bagwise.models.registry import make_model
    >>> bags, y = make_gaussian_bags(n_bags=40, random_state=0, return_X_y=True)
    >>> scorer = make_instance_scorer("auc")
    >>> bool(cross_val_score(make_model("single-instance"), bags, y, scoring=scorer).min() > 0.8)
    True
    """
    # Of functions alone, so that it travels to other processes.
    sign = -1 if METRICS[metric].lower_is_better else 1
    return partial(_score_instances, metric=metric, sign=sign)


def model_outputs(
    model: Model,
    bags: Bags,
    suffix: Literal["", "_instances"] = "",
    wanted: Collection[str] = ("label", "score", "proba"),
) -> dict[str, Any]:
    """What metrics read of a fitted model, each [n, F]; None where the model does not give it.

    Parameters
    ----------
    model : fitted bag classifier
    bags : Bags
    suffix : {"", "_instances"}, default=""
        Of the methods: rows are bags or instances.
    wanted : collection of {"label", "score", "proba"}, default=("label", "score", "proba")
    """
    if not hasattr(model, f"predict{suffix}"):
        raise ValueError(
            f"{type(model).__name__} cannot rank instances: it has no predict{suffix}."
        )
    columns = class_columns(model)
    label = score = proba = None  # each becomes [n, F]
    has_proba = hasattr(model, f"predict_proba{suffix}")
    # Of several classes, the probability among all ranks better than a score one-vs-rest.
    by_proba = has_proba and (len(columns) > 1 or not hasattr(model, f"decision_function{suffix}"))
    if has_proba and ("proba" in wanted or by_proba):
        proba = getattr(model, f"predict_proba{suffix}")(bags)[:, columns]
    if "score" in wanted:
        score = proba if by_proba else getattr(model, f"decision_function{suffix}")(bags)
        score = as_columns(score)
    if "label" in wanted:
        label = targets(getattr(model, f"predict{suffix}")(bags), model)
    return {"label": label, "score": score, "proba": proba}


def is_multilabel(model: Any) -> bool:
    """Whether a bag may have several classes of a fitted model, or none."""
    rule = getattr(last_step(model), "class_rule_", None)
    return rule is not None and bool(rule.multilabel)


def class_columns(model: Any) -> Ints:
    """Positions in ``classes_`` that labels and predictions have a column for, [F].

    Of two classes that is the positive one; a class of several, or of an indicator matrix, has a
    column each.
    """
    n_classes = len(model.classes_)
    return np.arange(n_classes) if n_classes > 2 or is_multilabel(model) else np.array([1])


def targets(y: Any, model: Any, class_names: Sequence[object] | None = None) -> Ints:
    """Labels by the columns of a fitted model: 1 where a row has the class, else 0, [n, F].

    ``class_names`` are the names of the model's classes in ``y``, where they differ.
    """
    multilabel = is_multilabel(model)
    if multilabel != (np.ndim(y) == 2):
        wanted = "an indicator matrix" if multilabel else "one class per bag"
        raise ValueError(f"the model was fitted to {wanted}, and is measured on the same.")
    classes = np.asarray(model.classes_ if class_names is None else class_names)
    if not multilabel:
        return (known_codes(y, classes)[:, None] == class_columns(model)).astype(int)
    matrix = np.asarray(y)
    if matrix.shape[1] != len(classes):
        raise ValueError(
            f"labels have {matrix.shape[1]} columns, but the model has {len(classes)} classes."
        )
    return matrix.astype(int)


def call_classes(values: Floats, exclusive: bool, threshold: float = 0.5) -> Ints:
    """Classes that rows are called, 0 or 1, [n, F].

    Parameters
    ----------
    values : array of shape (n, F)
        Probabilities or scores.
    exclusive : bool
        Whether a row has exactly one of the classes: then it is called the one of largest value.
    threshold : float, default=0.5
        Otherwise a row is called every class whose value is above it.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.evaluate.metrics import call_classes
    >>> p = np.array([[0.4, 0.3, 0.3], [0.1, 0.8, 0.6]])
    >>> call_classes(p, exclusive=True).tolist(), call_classes(p, exclusive=False).tolist()
    ([[1, 0, 0], [0, 1, 0]], [[0, 0, 0], [0, 1, 1]])
    """
    if not exclusive:
        return (values > threshold).astype(int)
    return (values.argmax(axis=1)[:, None] == np.arange(values.shape[1])).astype(int)


def instance_targets(model: Any, bags: Bags, labels: Any = None) -> tuple[Ints, Any]:
    """Known instance labels as `targets`, and which instances they are of, [N] bool.

    With several classes, and no background among them, the label of an instance that is of no
    class cannot be told from an unknown one, unless ``labels`` is an indicator matrix.
    """
    labels = getattr(bags, "instance_labels", None) if labels is None else labels
    if labels is None:
        raise ValueError(
            "instance metrics need instance labels, and these bags carry none; add them with "
            "bags.with_columns(instance_labels=...)."
        )
    if np.ndim(labels) == 2:
        matrix = np.asarray(labels, dtype=np.float64)
        known = np.isin(matrix, (0, 1)).all(axis=1)  # [N]
        return targets(matrix[known], model), known
    codes = instance_codes(labels, bags, model.classes_)
    known = codes >= 0
    if not known.any():
        names = np.asarray(model.classes_).tolist()
        raise ValueError(f"no instance label is one of the classes {names}.")
    return (codes[known][:, None] == class_columns(model)).astype(int), known


def instance_codes(labels: Any, bags: Bags, classes: Any) -> Ints:
    """Positions of instance labels among the classes, -1 where unknown or of no class, [N]."""
    labels = np.asarray(labels, dtype=object)
    if len(labels) != bags.n_instances:
        raise ValueError(
            f"instance labels need one entry per instance: got {len(labels)} for "
            f"{bags.n_instances}."
        )
    # Labels are compared as objects: numbers, text and None may stand side by side.
    codes = np.full(len(labels), -1)
    for code, name in enumerate(classes):
        codes[labels == name] = code
    return codes


def check_binary(y: ArrayLike, scores: ArrayLike) -> tuple[Ints, Floats]:
    """Labels of 0 and 1 and finite scores as vectors of one length, or an error."""
    y, scores = np.asarray(y), np.asarray(scores, dtype=np.float64)
    if y.ndim != 1 or y.shape != scores.shape or len(y) == 0:
        raise ValueError(
            "labels and scores must be non-empty and 1-d, of one length; got shapes "
            f"{y.shape} and {scores.shape}."
        )
    if not np.isin(y, (0, 1)).all():
        raise ValueError(f"labels must be 0 or 1; got {np.unique(y)[:5].tolist()}.")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite numbers.")
    return y.astype(np.int64), scores
