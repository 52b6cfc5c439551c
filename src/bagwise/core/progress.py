"""The progress bar of fits, comparisons and commands, with the time that remains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")


@contextmanager
def progress(
    name: str,
    total: int | None = None,
    shown: bool | int = True,
    first: str = "",
    *,
    console: Console | None = None,
    transient: bool = False,
    estimate: str = "at most",
) -> Iterator[Callable[..., None]]:
    """A bar while the block runs, and the function ``report(done, text="")`` that moves it.

    Parameters
    ----------
    name : str
    total : int or None, default=None
        Steps; a bar of unknown length shows the time that has passed.
    shown : bool or int, default=True
        Without it, the function does nothing.
    first : str, default=""
        The text before the first step.
    console : rich.console.Console or None, default=None
    transient : bool, default=False
        Whether the bar is gone afterwards.
    estimate : str, default="at most"
        What the remaining time is: "at most" where the work may end before its last step.

    Examples
    --------
    >>> from bagwise.core.progress import progress
    >>> with progress("fitting", 3, shown=False) as report:
    ...     report(1, "bound -12.3")
    """
    if not shown:
        yield lambda done, text="": None
        return
    from rich import get_console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("passed" if total is None else f"passed, {estimate}"),
        *([] if total is None else [TimeRemainingColumn()]),
    ]
    console = console or get_console()
    # In a file or a pipe a bar that is to go would leave an empty line.
    off = transient and not (console.is_terminal or console.is_jupyter)
    with Progress(*columns, console=console, transient=transient, disable=off) as bar:
        task = bar.add_task(name, total=total, text=first)

        def report(done: int, text: str = "") -> None:
            bar.update(task, completed=done, text=text)

        yield report


def tracked(
    items: Iterable[Item],
    total: int | None,
    name: str,
    *,
    shown: bool = True,
    console: Console | None = None,
    transient: bool = False,
) -> Iterator[Item]:
    """The items, and a bar that counts them.

    Examples
    --------
    >>> from bagwise.core.progress import tracked
    >>> list(tracked("ab", 2, "reading", shown=False))
    ['a', 'b']
    """
    bar = progress(name, total, shown, console=console, transient=transient, estimate="about")
    with bar as report:
        for done, item in enumerate(items, start=1):
            yield item
            report(done, str(done) if total is None else f"{done} of {total}")
