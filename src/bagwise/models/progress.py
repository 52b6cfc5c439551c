"""The progress bar of a fit with ``verbose``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(
    title: str, total: int, verbose: bool | int, first: str = ""
) -> Iterator[Callable[[int, str], None]]:
    """What to call with the number of steps done and a few words about the last: shows both.

    ``first`` are the words before the first step; without ``verbose`` nothing is shown.
    """
    if not verbose:
        yield lambda done, words: None
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    times = TimeElapsedColumn(), TextColumn("passed, at most"), TimeRemainingColumn()
    words = TextColumn("{task.description}")
    with Progress(TextColumn(title), BarColumn(), words, *times) as bar:
        task = bar.add_task(first, total=None)
        yield lambda done, words: bar.update(task, completed=done, total=total, description=words)
