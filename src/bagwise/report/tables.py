"""Tables of results as Markdown, CSV and coloured terminal output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bagwise.evaluate.comparison import Comparison, format_mean
from bagwise.evaluate.metrics import LOWER_IS_BETTER
from bagwise.files.writing import new_file

# What an experiment returns, in this order.
RESULT_COLUMNS = ("model", "data", "metric", "published", "mean", "spread", "n_seeds", "note")


def to_markdown(frame: Any) -> str:
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

    def line(cells: Any) -> str:
        return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"

    head = [line(frame.columns), "|" + "---|" * len(frame.columns)]
    return "\n".join([*head, *(line(row) for row in frame.itertuples(index=False))])


def to_rich(frame: Any, title: str | None = None) -> Any:
    """A pandas frame as a rich table; repeated leading cells are printed once."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for column in frame.columns:
        table.add_column(str(column), overflow="fold")
    last = None
    for row in frame.itertuples(index=False):
        cells = [str(cell) for cell in row]
        if last is not None and cells[0] == last:
            cells[0] = ""
        else:
            last = cells[0]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def published_table(results: Any) -> Any:
    """What an experiment measured beside what was published.

    Parameters
    ----------
    results : pandas.DataFrame
        With the columns ``model, data, metric, published, mean, spread, n_seeds, note``.

    Returns
    -------
    pandas.DataFrame
        Columns ``data, model, metric, published, ours (mean ± spread, seeds), note``.

    Examples
    --------
    >>> import pandas as pd
    >>> from bagwise.report.tables import RESULT_COLUMNS, published_table
    >>> rows = [("MIO", "musk1", "accuracy", 0.883, 0.874, 0.02, 5, "")]
    >>> published_table(pd.DataFrame(rows, columns=RESULT_COLUMNS)).iloc[0].tolist()[3:5]
    ['0.883', '0.874 ± 0.020 (5)']
    """
    import pandas as pd

    missing = [c for c in RESULT_COLUMNS if c not in results.columns]
    if missing:
        raise ValueError(f"an experiment's table needs the column {missing[0]!r}.")
    rows = []
    for row in results.to_dict("records"):
        rows.append(
            {
                "data": row["data"],
                "model": row["model"],
                "metric": row["metric"],
                "published": _number(row["published"]),
                "ours (mean ± spread, seeds)": _ours(row),
                "note": "" if _is_missing(row["note"]) else str(row["note"]),
            }
        )
    columns = ["data", "model", "metric", "published", "ours (mean ± spread, seeds)", "note"]
    return pd.DataFrame(rows, columns=columns)


def comparison_tables(comparison: Comparison, metrics: Any = None) -> list[Any]:
    """A comparison for the terminal: one rich table per data set, the best of each column bold."""
    metrics = metrics or [
        m for m in ("accuracy", "auc", "log_loss", "ece") if m in comparison.metrics
    ]
    table = comparison.table(metrics)
    means = comparison.summary(metrics).set_index(["data", "metric", "model"])["mean"]
    return [
        _one_data_set(table[table["data"] == data].drop(columns="data"), data, metrics, means)
        for data in comparison.datasets
    ]


def _one_data_set(part: Any, data: str, metrics: Any, means: Any) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=data, title_justify="left")
    for column in part.columns:
        table.add_column(column, justify="left" if column == "model" else "right")
    best = {}
    for metric in metrics:
        values = means.loc[(data, metric)].dropna()
        if len(values):
            best[metric] = values.idxmin() if metric in LOWER_IS_BETTER else values.idxmax()
    for row in part.to_dict("records"):
        cells = [
            Text(str(value), style="bold" if best.get(column) == row["model"] else "")
            for column, value in row.items()
        ]
        table.add_row(*cells)
    return table


def print_comparison(comparison: Comparison, console: Any = None, metrics: Any = None) -> None:
    """Print a comparison: a table per data set, the averaging used, and the fits' warnings.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.evaluate import BagFolds, compare
    >>> from bagwise.report.tables import print_comparison
    >>> data = {"toy": make_gaussian_bags(n_bags=30, random_state=0)}
    >>> made = compare(["statistics"], data, BagFolds(3, seeds=(0,)), progress=False)
    >>> print_comparison(made)  # doctest: +ELLIPSIS
    toy...
    """
    from rich.console import Console

    console = console or Console()
    for table in comparison_tables(comparison, metrics):
        console.print(table)
    console.print(
        "Mean over folds, then mean ± standard deviation over seeds; ece over all bags of a "
        "seed. fit s: mean of a fit; peak MB: most that a fit added to resident memory.",
        style="dim",
    )
    for message, count in comparison.warnings.items():
        console.print(f"{count} fits warned: {message}", style="yellow", markup=False)


def write_table(frame: Any, folder: Any, name: str) -> None:
    """Write ``name.csv`` (as it is) and ``name.md`` (published beside ours), each at once."""
    folder = Path(folder)
    with new_file(folder / f"{name}.csv") as draft:
        frame.to_csv(draft, index=False)
    with new_file(folder / f"{name}.md") as draft:
        draft.write_text(to_markdown(published_table(frame)) + "\n", encoding="utf-8")


def _ours(row: dict[str, Any]) -> str:
    if _is_missing(row["mean"]):
        return "not measured"
    digits = 1 if abs(row["mean"]) >= 20 else 3
    seeds = "" if _is_missing(row["n_seeds"]) else f" ({int(row['n_seeds'])})"
    spread = float("nan") if _is_missing(row["spread"]) else float(row["spread"])
    return format_mean(float(row["mean"]), spread, digits) + seeds


def _number(value: Any) -> str:
    if _is_missing(value):
        return "-"
    return f"{value:.4g}" if isinstance(value, (int, float, np.number)) else str(value)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, (float, np.floating)) and bool(np.isnan(value)))
