"""Small charts as inline SVG, drawn in the page's own colours and readable without sight."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from bagwise.core.arrays import Column, Reals


_W, _H = 360, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 40


class Series(NamedTuple):
    """One line of a chart."""

    x: Sequence[float] | Column
    y: Sequence[float] | Column
    style: str  # CSS class: line, guide, dots or steps


class Axis(NamedTuple):
    """Range and name of an axis."""

    name: str
    low: float
    high: float


def line_chart(title: str, alt: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Lines and dots over two axes; ``alt`` says in words what the picture shows.

    Examples
    --------
    >>> from bagwise.report.charts import Axis, Series, line_chart
    >>> svg = line_chart("A line", "It rises.", Axis("x", 0, 1), Axis("y", 0, 1),
    ...                  [Series([0, 1], [0, 1], "line")])
    >>> svg.startswith("<svg") and "It rises." in svg
    True
    """
    return _frame(title, alt, x, y, "".join(_draw(s, x, y) for s in series))


def histogram(title: str, alt: str, x: Axis, groups: Sequence[tuple[Reals, str]]) -> str:
    """Stacked counts of values in twenty bins; a group is values and a CSS class."""
    edges = np.linspace(x.low, x.high, 21)
    counts = [np.histogram(values, edges)[0] for values, _ in groups]
    top = max(1, int(np.sum(counts, axis=0).max()))
    y = Axis("bags", 0, top)
    parts, below = [], np.zeros(20)
    for (_, style), n in zip(groups, counts, strict=True):
        for i in np.flatnonzero(n):
            left, right = _x(edges[i], x) + 1, _x(edges[i + 1], x) - 1
            high, low = _y(below[i] + n[i], y), _y(below[i], y)
            parts.append(
                f'<rect class="{style}" x="{left:.1f}" y="{high:.1f}" '
                f'width="{right - left:.1f}" height="{max(low - high - 1, 0.5):.1f}"/>'
            )
        below += n
    return _frame(title, alt, x, y, "".join(parts))


def _draw(s: Series, x: Axis, y: Axis) -> str:
    points = [(_x(a, x), _y(b, y)) for a, b in zip(s.x, s.y, strict=True)]
    if s.style == "dots":
        return "".join(f'<circle class="dots" cx="{a:.1f}" cy="{b:.1f}" r="4"/>' for a, b in points)
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    return f'<polyline class="{s.style}" points="{path}"/>'


def _frame(title: str, alt: str, x: Axis, y: Axis, inside: str) -> str:
    floor, wall = _H - _BOTTOM, _LEFT
    parts = []
    for value in ticks(x):
        at = _x(value, x)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{floor}"/>')
        label = f"{value:g}"
        parts.append(f'<text x="{at:.1f}" y="{floor + 15}" text-anchor="middle">{label}</text>')
    for value in ticks(y):
        at = _y(value, y)
        line = f'x1="{wall}" x2="{_W - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"'
        parts.append(f'<line class="grid" {line}/>')
        parts.append(f'<text x="{wall - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (_LEFT + _W - _RIGHT) / 2
    half = (_TOP + floor) / 2
    parts.append(
        f'<text class="axis" x="{middle}" y="{_H - 6}" text-anchor="middle">{escape(x.name)}</text>'
    )
    parts.append(
        f'<text class="axis" transform="translate(11 {half}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.name)}</text>"
    )
    return (
        f'<svg class="chart" viewBox="0 0 {_W} {_H}" role="img" '
        f'aria-label="{escape(title)}. {escape(alt)}">{"".join(parts)}{inside}</svg>'
    )


def ticks(axis: Axis) -> list[float]:
    """Four to six round numbers within an axis."""
    span = axis.high - axis.low
    rough = span / 4
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * min((m for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999), default=10)
    first = np.ceil(axis.low / step - 1e-9) * step
    count = int((axis.high - first) / step + 1e-9) + 1
    return [float(round(first + i * step, 10)) for i in range(count)]


def _x(value: float, axis: Axis) -> float:
    return _LEFT + (value - axis.low) / (axis.high - axis.low) * (_W - _LEFT - _RIGHT)


def _y(value: float, axis: Axis) -> float:
    return _H - _BOTTOM - (value - axis.low) / (axis.high - axis.low) * (_H - _TOP - _BOTTOM)
