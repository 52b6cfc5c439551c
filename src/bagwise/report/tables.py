"""Tables of results as Markdown, CSV and coloured terminal output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bagwise.evaluate.comparison import USUAL_METRICS, Comparison, format_mean
from bagwise.evaluate.metrics import METRICS
from bagwise.files.writing import new_file

# What an experiment returns, in this order.
RESULT_COLUMNS = ("model", "data", "metric", "published", "mean", "spread", "n_seeds", "note")


def to_markdown(frame: pd.DataFrame) -> str:
    r"""A pandas frame as a Markdown table.

    Examples
    --------
    >>> import pandas as pd
    >>> from bagwise.report.tables import to_markdown
    >>> print(to_markdown(pd.DataFrame({"model": ["a|b"], "auc": [0.9]})))
    | model | auc |
    |---|---|
    | a\|b | 0.9 |
    """

    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"

    head = [line(frame.columns), "|" + "---|" * len(frame.columns)]
    return "\n".join([*head, *(line(row) for row in frame.itertuples(index=False))])


def to_rich(frame: pd.DataFrame, title: str | None = None) -> Table:
    """A pandas frame as a rich table; what stands in the row above is not repeated.

    Leading cells are left empty while they repeat; a repeated last cell (a note) becomes a
    ditto mark.
    """
    table = Table(title=title, title_justify="left")
    for column in frame.columns:
        table.add_column(str(column), overflow="fold")
    above: list[str] = []
    for row in frame.itertuples(index=False):
        cells = [str(cell) for cell in row]
        shown = list(cells)
        for k in range(min(2, len(cells) - 1)):
            if cells[: k + 1] == above[: k + 1]:
                shown[k] = ""
        if above and cells[-1] and cells[-1] == above[-1]:
            shown[-1] = '"'
        above = cells
        table.add_row(*(Text(cell) for cell in shown))
    return table


def published_table(results: Any) -> pd.DataFrame:
    """What an experiment measured beside what was published.

    Parameters
    ----------
    results : pandas.DataFrame
        With the columns ``model, data, metric, published, mean, spread, n_seeds, note``.

    Returns
    -------
    pandas.DataFrame
        Columns ``data, model, metric, published, ours (mean ± spread, seeds), note``.
    """
    missing = [c for c in RESULT_COLUMNS if c not in results.columns]
    if missing:
        raise ValueError(f"an experiment's table needs the column {missing[0]!r}.")
    rows = []
    for row in results.to_dict("records"):
        published = row["published"]
        if pd.isna(published):
            published = "-"
        elif isinstance(published, (int, float, np.number)):
            published = f"{published:.4g}"
        rows.append((row["data"], row["model"], row["metric"], str(published), _ours(row)))
    columns = ["data", "model", "metric", "published", "ours (mean ± spread, seeds)"]
    notes = ["" if pd.isna(note) else str(note) for note in results["note"]]
    return pd.DataFrame(rows, columns=columns).assign(note=notes)


def _ours(row: dict[str, Any]) -> str:
    """Mean and spread over seeds of one row of an experiment's table."""
    if pd.isna(row["mean"]):
        return "not measured"
    if pd.isna(row["n_seeds"]):  # a count, not a mean over seeds
        return f"{row['mean']:.4g}"
    digits = 1 if abs(row["mean"]) >= 20 else 3
    spread = np.nan if pd.isna(row["spread"]) or row["n_seeds"] < 2 else float(row["spread"])
    return f"{format_mean(float(row['mean']), spread, digits)} ({int(row['n_seeds'])})"


def comparison_table(comparison: Comparison, metrics: Sequence[str] | None = None) -> Table:
    """A comparison as one rich table, a section per data set, the best of each column bold."""
    metrics = [m for m in metrics or USUAL_METRICS if m in comparison.metrics]
    frame = comparison.table(metrics)
    frame.insert(0, "data", frame.pop("data"))
    best = {}  # the model with the best mean, by data set and metric
    for (data, metric), part in comparison.summary(metrics).groupby(["data", "metric"], sort=False):
        means = part.set_index("model")["mean"].dropna()
        if len(means):
            lower = METRICS[str(metric)].lower_is_better
            best[data, metric] = means.idxmin() if lower else means.idxmax()
    # Narrow, for the usual metrics of one seed in a terminal of 80 columns.
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in frame.columns:
        if column in ("data", "model"):
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right")
    for data, part in frame.groupby("data", sort=False):
        for row in part.to_dict("records"):
            styles = ["bold" if best.get((data, c)) == row["model"] else "" for c in row]
            texts = [Text(str(v), style=s) for v, s in zip(row.values(), styles, strict=True)]
            table.add_row(*texts)
        table.add_section()
    return table


def print_comparison(
    comparison: Comparison, console: Console | None = None, metrics: Sequence[str] | None = None
) -> None:
    """Print a comparison: the table, the averaging used, and the fits' warnings."""
    console = console or Console()
    console.print(comparison_table(comparison, metrics))
    console.print(
        "Mean over folds, then mean ± standard deviation over seeds; ece over all bags of a "
        "seed. fit s: mean of a fit; peak MB: most that a fit added to resident memory.",
        style="dim",
    )
    for message, count in comparison.warnings.items():
        console.print(f"{count} fits warned: {message}", style="yellow", markup=False)


def write_table(frame: pd.DataFrame, folder: str | Path, name: str) -> None:
    """Write ``name.csv`` (as it is) and ``name.md`` (published beside ours), each at once."""
    folder = Path(folder)
    with new_file(folder / f"{name}.csv") as draft:
        frame.to_csv(draft, index=False)
    with new_file(folder / f"{name}.md") as draft:
        draft.write_text(to_markdown(published_table(frame)) + "\n", encoding="utf-8")
