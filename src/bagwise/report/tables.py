"""A comparison of models as a coloured table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bagwise.evaluate.comparison import USUAL_METRICS, Comparison
from bagwise.evaluate.metrics import METRICS


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


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print a comparison: the table, the averaging used, and the fits' warnings."""
    console = console or Console()
    console.print(comparison_table(comparison))
    console.print(
        "Mean over folds, then mean ± standard deviation over seeds; ece over all bags of a "
        "seed. fit s: mean of a fit; peak MB: most that a fit added to resident memory.",
        style="dim",
    )
    for message, count in comparison.warnings.items():
        console.print(f"{count} fits warned: {message}", style="yellow", markup=False)
