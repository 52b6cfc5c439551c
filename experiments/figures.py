"""Numbers and tables in the README and the guides, written from stored results.

``python -m experiments.figures`` rewrites every marked span; ``--check`` only says which pages are
out of date and exits with 1. The same number is therefore the same on every page. A span in a
sentence names the experiment, the data, the model and the metric as its ``table.csv`` has them::

    <!-- figure: auto; musk1; AutoVGPMIL; auc -->0.942<!-- /figure -->

After the metric may come ``±`` (with the spread), ``%`` (times 100), ``published`` instead of
ours, or a number of digits. The data may be ``mean of a, b, c``, and the model may name its note
in brackets, ``MIO [settings fixed, KFold]``, where rows differ in nothing else. A table stands
between ``<!-- table: NAME -->`` and ``<!-- /table -->``; NAME is made by `experiments.tables`.
Benchmarks are marked by what they measured, as ``benchmarks/measured.csv`` has it::

    <!-- figure: benchmarks; fit from disk, peak memory in GB -->1.03<!-- /figure -->
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bagwise.files.writing import new_file

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
BENCHMARKS = ROOT / "benchmarks" / "measured.csv"

_FIGURE = re.compile(r"(<!-- figure: ([^>]*?) -->)(.*?)(<!-- /figure -->)", re.DOTALL)
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)


class UnknownFigureError(ValueError):
    """A span names what no stored result has."""


def pages() -> list[Path]:
    """The README and every page of the documentation that people write."""
    docs = ROOT / "docs"
    written = [*docs.glob("*.md"), *docs.glob("guide/*.md"), *docs.glob("tutorials/*.md")]
    return [ROOT / "README.md", *sorted(written)]


@functools.cache
def results(experiment: str) -> pd.DataFrame:
    """The stored table of an experiment."""
    path = RESULTS / experiment / "table.csv"
    if not path.exists():
        raise UnknownFigureError(f"{experiment!r} has no stored results in {RESULTS.name}/.")
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
    several = data.removeprefix("mean of ")
    names = several.split(", ") if several != data else [data]
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


def rewrite(text: str) -> str:
    """A page with every marked span as the stored results have it."""
    from experiments import tables

    def table(match: re.Match[str]) -> str:
        make = getattr(tables, match[2].replace("-", "_"), None)
        if make is None:
            raise UnknownFigureError(f"experiments.tables makes no {match[2]!r}.")
        return f"{match[1]}{make()}\n\n{match[4]}"

    text = _FIGURE.sub(lambda m: f"{m[1]}{figure(m[2])}{m[4]}", text)
    return _TABLE.sub(table, text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.figures")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 instead")
    arguments = parser.parse_args(argv)
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        try:
            fresh = rewrite(text)
        except UnknownFigureError as error:
            print(f"{page.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 2
        if fresh != text:
            stale.append(page)
            if not arguments.check:
                with new_file(page) as draft:
                    draft.write_text(fresh, encoding="utf-8")
    verb = "differs from the stored results" if arguments.check else "written"
    for page in stale:
        print(f"{page.relative_to(ROOT)}: {verb}")
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    # Through the package, so that the tables raise the error that is caught here.
    from experiments import figures

    sys.exit(figures.main())
