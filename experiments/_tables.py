"""Tables of experiments as Markdown, CSV and coloured terminal output."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table
from rich.text import Text

from bagwise.evaluate.comparison import format_mean
from bagwise.files.writing import new_file

# What an experiment returns, in this order.
RESULT_COLUMNS = ("model", "data", "metric", "published", "mean", "spread", "n_seeds", "note")


def to_markdown(frame: pd.DataFrame) -> str:
    r"""A pandas frame as a Markdown table.

    Examples
    --------
    >>> import pandas as pd
    >>> from experiments._tables import to_markdown
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


def write_table(frame: pd.DataFrame, folder: str | Path, name: str) -> None:
    """Write ``name.csv`` (as it is) and ``name.md`` (published beside ours), each at once."""
    folder = Path(folder)
    with new_file(folder / f"{name}.csv") as draft:
        frame.to_csv(draft, index=False)
    with new_file(folder / f"{name}.md") as draft:
        draft.write_text(to_markdown(published_table(frame)) + "\n", encoding="utf-8")
