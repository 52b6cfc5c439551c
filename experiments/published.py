"""Every figure that the five papers print, beside ours."""

from __future__ import annotations

import functools
from pathlib import Path

import pandas as pd

PRINTED = Path(__file__).with_name("published.csv")


@functools.cache
def printed() -> pd.DataFrame:
    """The figures as they are printed: paper, table, row, column, value, spread."""
    return pd.read_csv(PRINTED, dtype={"spread": str})


def figures(paper: str, table: str, row: str) -> dict[str, float]:
    """The printed values of one row of a table, by column."""
    lines = printed()
    lines = lines[(lines["paper"] == paper) & (lines["table"] == table) & (lines["row"] == row)]
    return dict(zip(lines["column"], lines["value"], strict=True))
