"""Numbers of stored results, by experiment, data, model and metric; see `experiments.figures`."""

from __future__ import annotations

import functools
from pathlib import Path

import pandas as pd

RESULTS = Path(__file__).parent / "results"
BENCHMARKS = Path(__file__).parent.parent / "benchmarks" / "measured.csv"


class UnknownFigureError(ValueError):
    """A span names what no stored result has."""


@functools.cache
def results(experiment: str) -> pd.DataFrame:
    """The stored table of an experiment."""
    path = RESULTS / experiment / "table.csv"
    if not path.exists():
        raise UnknownFigureError(
            f"{experiment!r} has no stored results in {RESULTS.name}/.", experiment
        )
    return pd.read_csv(path)


@functools.cache
def _benchmarks() -> pd.DataFrame:
    return pd.read_csv(BENCHMARKS, dtype=str).set_index("what")


def row(experiment: str, data: str, model: str, metric: str) -> pd.Series:
    """One row of a stored table; exactly one must match."""
    table = results(experiment)
    name, _, note = model.removesuffix("]").partition(" [")
    match = table[(table["data"] == data) & (table["model"] == name) & (table["metric"] == metric)]
    if note:
        match = match[match["note"] == note]
    if len(match) != 1:
        raise UnknownFigureError(
            f"{experiment} has {len(match)} rows for {data!r}, {model!r}, {metric!r}; a figure "
            "needs one."
        )
    return match.iloc[0]


def value(experiment: str, data: str, model: str, metric: str, *options: str) -> str:
    """A number of a stored table, formatted by its options."""
    listed = data.removeprefix("mean of ").split(", ") if data.startswith("mean of ") else [data]
    names = listed if len(listed) > 1 else [data]
    rows = [row(experiment, name, model, metric) for name in names]
    column = "published" if "published" in options else "mean"
    if any(pd.isna(r[column]) for r in rows):
        raise UnknownFigureError(f"{experiment} has no {column} value for {data!r}, {model!r}.")
    factor = 100.0 if "%" in options else 1.0
    digits = next((int(o) for o in options if o.isdigit()), 1 if factor > 1 else 3)
    shown = f"{factor * sum(float(r[column]) for r in rows) / len(rows):.{digits}f}"
    if "±" not in options:
        return shown
    if len(rows) > 1:
        raise UnknownFigureError(f"a mean over sets has no spread: {data!r}.")
    return f"{shown} ± {factor * float(rows[0]['spread']):.{digits}f}"


def figure(words: str) -> str:
    """What a span shows."""
    parts = [part.strip() for part in words.split(";")]
    if parts[0] == "benchmarks" and len(parts) == 2:
        table = _benchmarks()
        if parts[1] not in table.index:
            raise UnknownFigureError(f"{BENCHMARKS.name} has no line {parts[1]!r}.")
        return str(table.loc[parts[1], "value"])
    if len(parts) < 4:
        raise UnknownFigureError(f"a figure needs experiment; data; model; metric: {words!r}.")
    options = " ".join(parts[4:]).split()
    unknown = [o for o in options if o not in ("±", "%", "published") and not o.isdigit()]
    if unknown:
        raise UnknownFigureError(f"a figure has no option {unknown[0]!r}: {words!r}.")
    return value(*parts[:4], *options)
