"""What the commands print: words for people on one stream, JSON for machines on the other."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from bagwise.core.progress import progress, tracked
from bagwise.files.writing import plain_json


class Printer:
    """Prints for people; with ``--json`` that goes to stderr and the result to stdout."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        # Names from files are text: in tables, "[/x]" and ":smile:" stay what they are.
        self.console = Console(
            stderr=as_json, highlight=False, soft_wrap=True, markup=False, emoji=False
        )

    @property
    def is_watched(self) -> bool:
        """Whether someone looks at stdout, and nobody parses it."""
        return self.console.is_terminal and not self.as_json

    def say(self, text: str) -> None:
        """A line with rich markup; names from files go through `rich.markup.escape` first."""
        self.console.print(text, markup=True)

    def show(self, renderable: RenderableType) -> None:
        """Any rich object."""
        self.console.print(renderable, soft_wrap=False)

    def table(
        self,
        columns: Iterable[str],
        rows: Iterable[Iterable[object]],
        title: str | None = None,
        words: Collection[str] = (),
        **style: Any,
    ) -> None:
        """A table; columns that are not among ``words`` hold numbers, flush right."""
        table = Table(title=title, title_justify="left", **style)
        for name in columns:
            table.add_column(name, justify="left" if name in words else "right")
        for row in rows:
            table.add_row(*map(_cell, row))
        self.show(table)

    def warn(self, *texts: str) -> None:
        """Lines that ask for attention."""
        for text in texts:
            self.say(f"[yellow]warning:[/yellow] {escape(text)}")

    def result(self, content: Mapping[str, object] | None) -> None:
        """The machine-readable result, printed only with ``--json``."""
        if self.as_json and content is not None:
            json.dump(content, sys.stdout, indent=1, default=plain_json)
            sys.stdout.write("\n")

    def working(self, what: str) -> AbstractContextManager[object]:
        """The time that passes while something without known length runs."""
        return progress(what, console=self.console, transient=True)

    def bar(self, what: str) -> Any:
        """A progress bar as a function of files and their number."""
        # Transient: what was read is said in a line of its own, and logs stay short.
        return partial(tracked, name=what, console=self.console, transient=True)


def _cell(value: object) -> str:
    if isinstance(value, float):  # NumPy's, too
        return "–" if math.isnan(value) else f"{value:.3f}"
    return str(value)
