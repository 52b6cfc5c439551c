"""Small charts as geometry; the template draws them as inline SVG, readable without sight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import auc, precision_recall_curve, roc_curve

from bagwise.core.arrays import Column, Floats, Reals
from bagwise.evaluate import reliability_curve

if TYPE_CHECKING:
    from bagwise.report.evaluation import Evaluation

WIDTH, HEIGHT = 360, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 40  # margins, for the ticks and names of the axes
# A curve keeps this many points; the eye sees no more.
_MAX_POINTS = 300
# Standard deviations on either side that hold 90 % of a normal distribution.
_NINETY = 1.645


class _Axis(NamedTuple):
    """Name and range of an axis."""

    name: str
    low: float = 0.0
    high: float = 1.0

    def place(self, values: Reals | float, start: float, stop: float) -> Floats:
        """Where values lie between the two ends of the axis on the page."""
        share = (np.asarray(values, dtype=np.float64) - self.low) / (self.high - self.low)
        return start + share * (stop - start)

    @property
    def ticks(self) -> list[float]:
        """Four to six round numbers within the axis."""
        rough = (self.high - self.low) / 4
        power = 10.0 ** np.floor(np.log10(rough))
        round_steps = [m * power for m in (1, 2, 2.5, 5, 10)]
        step = next((s for s in round_steps if s >= rough * 0.999), round_steps[-1])
        first = np.ceil(self.low / step - 1e-9) * step
        count = int((self.high - first) / step + 1e-9) + 1
        return [float(round(first + i * step, 10)) for i in range(count)]


class _Shape(NamedTuple):
    """Lines, dots or bars of one CSS class; ``points`` are x and y, of a bar width and height."""

    style: str
    points: list[list[float]]


class Chart(NamedTuple):
    """A chart; ``alt`` says in words what it shows."""

    title: str
    alt: str
    x: str
    y: str
    x_ticks: list[tuple[float, float]]  # place and value
    y_ticks: list[tuple[float, float]]
    shapes: list[_Shape]


def _x(axis: _Axis, values: Reals | float) -> Floats:
    return axis.place(values, LEFT, WIDTH - RIGHT)


def _y(axis: _Axis, values: Reals | float) -> Floats:
    return axis.place(values, HEIGHT - BOTTOM, TOP)  # pixels count from the top


def _chart(title: str, alt: str, x: _Axis, y: _Axis, shapes: list[_Shape]) -> Chart:
    x_ticks = [(float(_x(x, value)), value) for value in x.ticks]
    y_ticks = [(float(_y(y, value)), value) for value in y.ticks]
    return Chart(title, alt, x.name, y.name, x_ticks, y_ticks, shapes)


def _curve_chart(
    title: str,
    alt: str,
    x: _Axis,
    y: _Axis,
    series: Sequence[tuple[str, Sequence[float] | Column, Sequence[float] | Column]],
) -> Chart:
    """Lines, dots and bands over two axes; a series is a CSS class of those, x and y."""
    shapes = []
    for style, xs, ys in series:
        keep = np.unique(np.linspace(0, len(xs) - 1, min(len(xs), _MAX_POINTS)).astype(int))
        points = np.column_stack([_x(x, np.asarray(xs)[keep]), _y(y, np.asarray(ys)[keep])])
        shapes.append(_Shape(style, points.tolist()))
    return _chart(title, alt, x, y, shapes)


def quality_charts(evaluation: Evaluation, number: int = 0) -> list[Chart]:
    """ROC curve, precision and recall, and reliability of the probabilities of one class."""
    y, p = evaluation.y[:, number], evaluation.probability[:, number]
    false_positive, true_positive, _ = roc_curve(y, p)
    area = auc(false_positive, true_positive)
    precision, recall, _ = precision_recall_curve(y, p)
    prevalence = float(np.mean(y))
    bins = reliability_curve(y, p)
    ends, diagonal = [0, 1], ("guide", [0, 1], [0, 1])
    return [
        _curve_chart(
            "ROC curve",
            f"Area under the curve {area:.3f}; the dashed diagonal is guessing.",
            _Axis("false positive rate"),
            _Axis("true positive rate"),
            [diagonal, ("line", false_positive, true_positive)],
        ),
        _curve_chart(
            "Precision and recall",
            f"Guessing would have a precision of {prevalence:.2f}, the share of positive bags.",
            _Axis("recall"),
            _Axis("precision"),
            [("guide", ends, [prevalence, prevalence]), ("line", recall, precision)],
        ),
        _curve_chart(
            "Are the probabilities calibrated?",
            "Among bags given a probability, the share that is positive. On the dashed line "
            "they agree.",
            _Axis("predicted probability"),
            _Axis("share that is positive"),
            [
                diagonal,
                ("line", bins.predicted, bins.observed),
                ("dots", bins.predicted, bins.observed),
            ],
        ),
    ]


def probability_chart(p: Floats, truth: NDArray[np.int64] | None) -> Chart:
    """Histogram of the probabilities of bags, by their class (0, 1, or -1) where it is known."""
    groups = [("bar", p)]
    if truth is not None:
        styles = [(0, "bar neg"), (1, "bar pos"), (-1, "bar")]
        groups = [(style, p[truth == code]) for code, style in styles]
    edges = np.linspace(0, 1, 21)
    counts = [np.histogram(values, edges)[0] for _, values in groups]
    most = max(1, int(np.sum(counts, axis=0).max()))
    x, y = _Axis("probability of a bag"), _Axis("bags", 0, most)
    left, right = _x(x, edges[:-1]) + 1, _x(x, edges[1:]) - 1
    shapes, below = [], np.zeros(20)  # stacked
    for (style, _), count in zip(groups, counts, strict=True):
        high, low = _y(y, below + count), _y(y, below)
        bars = np.column_stack([left, high, right - left, np.maximum(low - high - 1, 0.5)])
        shapes.append(_Shape(style, bars[count > 0].tolist()))
        below += count
    extreme = int(((p < 0.1) | (p > 0.9)).sum())
    alt = f"{extreme} of {len(p)} bags are below 0.1 or above 0.9."
    return _chart("Probabilities", alt, x, y, shapes)


def history_chart(history: Floats) -> Chart:
    """The evidence bound of a fit, iteration by iteration."""
    low, high = float(np.min(history)), float(np.max(history))
    pad = 0.05 * ((high - low) or 1.0)
    rise = f"from {history[0]:,.2f} to {history[-1]:,.2f} in {len(history)} iterations"
    steps = np.arange(1, len(history) + 1)
    return _curve_chart(
        "Training",
        f"The evidence bound goes {rise}.",
        _Axis("iteration", 1, max(2, len(history))),
        _Axis("evidence bound", low - pad, high + pad),
        [("line", steps, history)],
    )


def slices_chart(name: str, position: Floats, p: Floats, std: Floats) -> Chart:
    """The probability of a class along the slices of a scan, with its interval where known."""
    low, high = float(position.min()), float(position.max())
    extent = 0.5 if high == low else 0.0  # one slice has none of its own
    top = int(p.argmax())
    sentence = f"The highest is {p[top]:.2f}, at {position[top]:g} mm."
    series = [("line", position, p), ("dots", position, p)]
    if np.isfinite(std).all():
        half = _NINETY * std
        around = np.concatenate([position, position[::-1]])
        band = np.clip(np.concatenate([p + half, (p - half)[::-1]]), 0, 1)
        series.insert(0, ("band", around, band))
        sentence += " The band is the 90 % interval, by the standard deviation."
    return _curve_chart(
        f"{name} by slice",
        sentence,
        _Axis("position of the slice in mm", low - extent, high + extent),
        _Axis("probability"),
        series,
    )
