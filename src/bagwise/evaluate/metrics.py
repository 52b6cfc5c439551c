"""What a prediction is worth: bags, instances, calibration. Boxes and tracks are in `boxes`.

scikit-learn's own metrics are used wherever it has them; what it lacks is here. Labels are 0/1
(or any two sorted classes), scores rise with the positive class, tied scores never depend on the
order of the rows. Several classes have a column each: labels are an indicator matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn import metrics as skm

from bagwise.models.classes import known_codes
from bagwise.models.pipeline import last_step

if TYPE_CHECKING:
    from bagwise.bags import Bags, InstanceLabels
    from bagwise.core.arrays import Column, Floats, Ints
    from bagwise.models.base import Model


class Reliability(NamedTuple):
    """A reliability curve: one entry per bin that holds any prediction."""

    predicted: Floats  # mean predicted probability
    observed: Floats  # share of positives
    count: Any


def reliability_curve(
    y: ArrayLike,
    proba: ArrayLike,
    *,
    n_bins: int = 10,
    strategy: Literal["uniform", "quantile"] = "uniform",
) -> Reliability:
    """Predicted probability against the share of positives, bin by bin.

    Equal probabilities always fall into the same bin, so ties cannot be split by row order.

    Parameters
    ----------
    y : array of 0/1, shape (n,)
    proba : array, shape (n,)
        Probability of the positive class.
    n_bins : int
    strategy : {"uniform", "quantile"}
        Bins of equal width, or of (nearly) equal count.

    Examples
    --------
    >>> from bagwise.evaluate import reliability_curve
    >>> curve = reliability_curve([0, 0, 1, 1], [0.1, 0.1, 0.9, 0.9])
    >>> curve.predicted.tolist(), curve.observed.tolist(), curve.count.tolist()
    ([0.1, 0.9], [0.0, 1.0], [2, 2])
    """
    y, proba = _two_vectors(y, proba)
    _check_probabilities(proba)
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1; got {n_bins}.")
    if strategy == "uniform":
        edges = np.linspace(0, 1, n_bins + 1)
    elif strategy == "quantile":
        edges = np.unique(np.quantile(proba, np.linspace(0, 1, n_bins + 1)))
    else:
        raise ValueError(f"strategy must be 'uniform' or 'quantile'; got {strategy!r}.")
    bins = np.searchsorted(edges[1:-1], proba, side="left")
    count = np.bincount(bins, minlength=n_bins)
    full = count > 0
    predicted = np.bincount(bins, weights=proba, minlength=n_bins)[full] / count[full]
    observed = np.bincount(bins, weights=y, minlength=n_bins)[full] / count[full]
    return Reliability(predicted, observed, count[full])


def expected_calibration_error(
    y: Column,
    proba: Floats,
    *,
    n_bins: int = 10,
    strategy: Literal["uniform", "quantile"] = "uniform",
) -> float:
    """Mean gap between predicted and observed share of positives, weighted by bin count.

    With few predictions the expected value of a perfectly calibrated model is well above 0;
    compare models on the same data.

    Examples
    --------
    >>> from bagwise.evaluate import expected_calibration_error
    >>> round(expected_calibration_error([0, 1, 1, 1], [0.25, 0.75, 0.75, 0.75]), 3)
    0.25
    """
    curve = reliability_curve(y, proba, n_bins=n_bins, strategy=strategy)
    return float(np.average(np.abs(curve.predicted - curve.observed), weights=curve.count))


# Every bag or instance metric by name: what it reads ("label", "score", "proba") and the function.
_LEVEL_METRICS: dict[str, tuple[str, Callable[[Ints, Floats], float]]] = {
    "accuracy": ("label", skm.accuracy_score),
    "f1": ("label", lambda y, label: skm.f1_score(y, label, zero_division=0)),
    "auc": ("score", skm.roc_auc_score),
    "auc_pr": ("score", skm.average_precision_score),
    "log_loss": ("proba", lambda y, p: skm.log_loss(y, p, labels=[0, 1])),
    "brier": ("proba", skm.brier_score_loss),
    "ece": ("proba", expected_calibration_error),
}
METRIC_NAMES = tuple(_LEVEL_METRICS)


def _mean_over_classes(function: Callable[[Any, Any], float]) -> Callable[[Any, Any], float]:
    """A metric of two classes as a mean over the columns; those of one value are left out."""

    def macro(y: Any, values: Any) -> float:
        columns = [c for c in range(y.shape[1]) if len(np.unique(y[:, c])) == 2]
        each = [function(y[:, c], values[:, c]) for c in columns]
        return float(np.mean(each)) if each else float("nan")

    return macro


def _class_log_loss(y: Any, p: Any) -> float:
    """Of the class a row has, where its probabilities share one outcome; else of each column."""
    if np.allclose(p.sum(axis=1), 1.0, atol=1e-6) and (y.sum(axis=1) == 1).all():
        return float(skm.log_loss(y.argmax(axis=1), p, labels=np.arange(y.shape[1])))
    return float(
        np.mean([skm.log_loss(a, b, labels=[0, 1]) for a, b in zip(y.T, p.T, strict=True)])
    )


# The same for several classes: rows that are right in every column, and means over the classes.
_CLASS_METRICS: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": lambda y, label: float(np.mean((y == label).all(axis=1))),
    "f1": lambda y, label: skm.f1_score(y, label, average="macro", zero_division=0),
    "auc": _mean_over_classes(skm.roc_auc_score),
    "auc_pr": _mean_over_classes(skm.average_precision_score),
    "log_loss": _class_log_loss,
    "brier": _mean_over_classes(skm.brier_score_loss),
    "ece": _mean_over_classes(expected_calibration_error),
}
# Metrics for which less is better.
LOWER_IS_BETTER = frozenset({"log_loss", "brier", "ece"})


def average_precision(
    y: ArrayLike,
    scores: ArrayLike,
    folds: ArrayLike | None = None,
    *,
    average: Literal["pooled", "fold-mean"] = "pooled",
) -> float:
    """Area under the precision-recall curve over cross-validated predictions.

    Parameters
    ----------
    y, scores : arrays, shape (n,)
    folds : array of int, shape (n,), optional
        Test fold of each row; needed for "fold-mean".
    average : {"pooled", "fold-mean"}
        "pooled" ranks all rows together, which asks that scores be comparable across folds;
        "fold-mean" ranks within each fold and averages. The two may differ a great deal: say
        which one you report. Folds without a positive are left out of the mean.

    Examples
    --------
    >>> from bagwise.evaluate import average_precision
    >>> y, scores, folds = [1, 0, 1, 0], [0.9, 0.1, 0.05, 0.01], [0, 0, 1, 1]
    >>> average_precision(y, scores, folds, average="fold-mean")
    1.0
    >>> round(average_precision(y, scores, average="pooled"), 3)
    0.833
    """
    y, scores = _two_vectors(y, scores)
    if average == "pooled":
        return float(skm.average_precision_score(y, scores))
    if average != "fold-mean":
        raise ValueError(f"average must be 'pooled' or 'fold-mean'; got {average!r}.")
    if folds is None:
        raise ValueError("average='fold-mean' needs the test fold of each row: pass folds.")
    folds = np.asarray(folds)
    each = [
        skm.average_precision_score(y[folds == fold], scores[folds == fold])
        for fold in np.unique(folds)
        if y[folds == fold].any()
    ]
    if not each:
        raise ValueError("no fold holds a positive; average precision is undefined.")
    return float(np.mean(each))


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
    label, score, proba : arrays, shape (n,) or (n, n_classes), optional
        Predicted labels, scores, probabilities of the positive class, or of every class. With
        several classes accuracy asks for whole rows, the log-loss is that of the row's class
        where the probabilities of a row sum to one, and all else is the mean over the classes.
    metrics : sequence of str
        Names among ``METRIC_NAMES``. A metric whose prediction is missing, or that is undefined
        because ``y`` has one class only, is NaN.

    Examples
    --------
    >>> from bagwise.evaluate import score_predictions
    >>> score_predictions([0, 1], score=[-1.0, 2.0], metrics=["auc", "log_loss"])
    {'auc': 1.0, 'log_loss': nan}
    """
    y = np.asarray(y)
    given = {"label": label, "score": score, "proba": proba}
    unknown = [name for name in metrics if name not in _LEVEL_METRICS]
    if unknown:
        raise ValueError(f"there is no metric {unknown[0]!r}; choose among {METRIC_NAMES}.")
    needs_both = {"auc", "auc_pr"}
    one_class = len(np.unique(y)) < 2
    out = {}
    for name in metrics:
        reads, function = _LEVEL_METRICS[name]
        if given[reads] is None or (one_class and name in needs_both):
            out[name] = float("nan")
        elif y.ndim == 2:
            out[name] = float(_CLASS_METRICS[name](y, np.asarray(given[reads])))
        else:
            out[name] = float(function(y, np.asarray(given[reads])))
    return out


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
    truth = class_targets(y, model)
    made = predict_all(model, bags, wanted=_wanted(metrics))
    return score_predictions(truth, **made, metrics=metrics)


def instance_metrics(
    model: Model, bags: Bags, labels: InstanceLabels = None, metrics: Sequence[str] = METRIC_NAMES
) -> dict[str, float]:
    """Metrics of a fitted model on the instances whose label is known.

    Parameters
    ----------
    model : fitted bag classifier with ``_instances`` methods
    bags : Bags
    labels : array, shape (n_instances,), optional
        Class of each instance, or missing (None, NaN, -1). Defaults to ``bags.instance_labels``.
    metrics : sequence of str

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
    made = predict_all(model, bags, "_instances", _wanted(metrics))
    made = {what: None if v is None else np.asarray(v)[known] for what, v in made.items()}
    return score_predictions(truth, **made, metrics=metrics)


class _InstanceScorer:
    """A scikit-learn scorer that reads the labels the bags carry, not the bag labels."""

    def __init__(self, metric: str, sign: int) -> None:
        self.metric = metric
        self.sign = sign

    def __call__(
        self, estimator: Model, bags: Bags, y: ArrayLike | None = None, **_: object
    ) -> float:
        value = instance_metrics(estimator, bags, metrics=[self.metric])[self.metric]
        return float(self.sign * value)

    def __repr__(self) -> str:
        return f"make_instance_scorer({self.metric!r})"


def make_instance_scorer(metric: str = "auc") -> _InstanceScorer:
    """A scorer of instances for ``cross_validate``, ``GridSearchCV`` and the like.

    It works on bags that carry their instance labels (``bags.instance_labels``), which travel
    with every slice a splitter takes. As scikit-learn's convention asks, losses are negated.

    Parameters
    ----------
    metric : str
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
    if metric not in _LEVEL_METRICS:
        raise ValueError(f"there is no metric {metric!r}; choose among {METRIC_NAMES}.")
    return _InstanceScorer(metric, -1 if metric in LOWER_IS_BETTER else 1)


def predict_all(
    model: Model, bags: Bags, twin: str = "", wanted: Collection[str] = ("label", "score", "proba")
) -> dict[str, Column | None]:
    """What metrics read, as far as the model can say it; ``twin`` is "" or "_instances"."""
    if not hasattr(model, f"predict{twin}"):
        raise ValueError(f"{type(model).__name__} cannot rank instances: it has no predict{twin}.")
    made: dict[str, Column | None] = {"label": None, "score": None, "proba": None}
    several = has_several(model)
    if "proba" in wanted and hasattr(model, f"predict_proba{twin}"):
        proba = getattr(model, f"predict_proba{twin}")(bags)
        made["proba"] = proba if several else proba[:, 1]
    if "score" in wanted:
        # A class's score against one other says less than its probability among all.
        use_proba = several and made["proba"] is not None
        made["score"] = made["proba"] if use_proba else np.asarray(_scores(model, bags, twin))
    if "label" in wanted:
        made["label"] = class_targets(getattr(model, f"predict{twin}")(bags), model)
    return made


def class_rule(model: Any) -> Any:
    """How a model puts several classes together; None with two, or where it does not say."""
    return getattr(last_step(model), "class_rule_", None)


def has_several(model: Any) -> bool:
    """Whether a fitted model tells more than two classes apart."""
    return class_rule(model) is not None or len(model.classes_) > 2


def class_targets(y: Any, model: Any) -> Any:
    """Labels as a fitted model has them: 0 and 1, or with several classes an indicator matrix."""
    if not has_several(model):
        return class_codes(y, model.classes_)
    rule = class_rule(model)
    if rule is not None and rule.multilabel != (np.ndim(y) == 2):
        wanted = "an indicator matrix" if rule.multilabel else "one class per bag"
        raise ValueError(f"the model was fitted to {wanted}, and is measured on the same.")
    if np.ndim(y) == 2:
        matrix = np.asarray(y)
        if matrix.shape[1] != len(model.classes_):
            raise ValueError(
                f"labels have {matrix.shape[1]} columns, but the model has {len(model.classes_)} "
                "classes."
            )
        return matrix.astype(int)
    codes = known_codes(y, model.classes_)
    return (codes[:, None] == np.arange(len(model.classes_))).astype(int)


def _wanted(metrics: Sequence[str]) -> set[str]:
    return {_LEVEL_METRICS[name][0] for name in metrics if name in _LEVEL_METRICS}


def _scores(model: Model, bags: Bags, twin: str) -> Floats:
    if hasattr(model, f"decision_function{twin}"):
        return getattr(model, f"decision_function{twin}")(bags)
    return getattr(model, f"predict_proba{twin}")(bags)[:, 1]


def instance_targets(model: Any, bags: Any, labels: Any = None) -> tuple[Any, Any]:
    """Known instance labels as `class_targets`, and which instances they are of, [N] bool.

    With several classes, and no background among them, the label of an instance that is of no
    class cannot be told from an unknown one, unless ``labels`` is an indicator matrix.
    """
    given = getattr(bags, "instance_labels", None) if labels is None else labels
    if given is not None and np.ndim(given) == 2:
        matrix = np.asarray(given, dtype=np.float64)
        known = np.isin(matrix, (0, 1)).all(axis=1)
        return class_targets(matrix[known], model), known
    codes = instance_codes(model, bags, labels)
    known = codes >= 0
    if not has_several(model):
        return codes[known], known
    return (codes[known][:, None] == np.arange(len(model.classes_))).astype(int), known


def instance_codes(model: Model, bags: Bags, labels: InstanceLabels = None) -> Ints:
    """Instance labels as codes into the model's classes, -1 where unknown."""
    if labels is None:
        labels = getattr(bags, "instance_labels", None)
    if labels is None:
        raise ValueError(
            "instance metrics need instance labels, and these bags carry none; add them with "
            "bags.with_columns(instance_labels=...)."
        )
    labels = np.asarray(labels, dtype=object)
    if len(labels) != bags.n_instances:
        raise ValueError(
            f"labels needs one entry per instance: got {len(labels)} for {bags.n_instances}."
        )
    codes = np.full(len(labels), -1)
    for code, name in enumerate(model.classes_):
        codes[labels == name] = code
    if not (codes >= 0).any():
        names = np.asarray(model.classes_).tolist()
        raise ValueError(f"no instance label is one of the classes {names}.")
    return codes


def class_codes(y: Column, classes: Column) -> Ints:
    """Labels as 0 and 1, the position in ``classes``."""
    y = np.asarray(y)
    if len(classes) != 2:
        raise ValueError(f"two classes are needed; the model has {len(classes)}.")
    unknown = np.setdiff1d(y, classes)
    if len(unknown):
        names = np.asarray(classes).tolist()
        raise ValueError(f"label {unknown.tolist()[0]!r} is not one of the classes {names}.")
    return (y == classes[1]).astype(int)


def _two_vectors(y: ArrayLike, values: ArrayLike) -> tuple[Ints, Floats]:
    y, values = np.asarray(y), np.asarray(values, dtype=np.float64)
    if y.ndim != 1 or y.shape != values.shape or len(y) == 0:
        raise ValueError(
            f"labels and predictions must be non-empty and 1-d, of one length; "
            f"got shapes {y.shape} and {values.shape}."
        )
    if not np.isin(y, (0, 1)).all():
        raise ValueError(f"labels must be 0 or 1; got {np.unique(y)[:5].tolist()}.")
    return y, values


def _check_probabilities(proba: Floats) -> None:
    if not ((proba >= 0) & (proba <= 1)).all():
        bad = proba[~((proba >= 0) & (proba <= 1))][0]
        raise ValueError(f"probabilities must lie in [0, 1]; got {bad}.")
