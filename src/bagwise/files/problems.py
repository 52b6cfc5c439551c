"""What is wrong with files, collected first and said once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Problem:
    """One file that cannot be used, and why.

    Examples
    --------
    >>> from bagwise.files import Problem
    >>> print(Problem("s7.h5", "is empty (0 bytes)"))
    s7.h5: is empty (0 bytes)
    """

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class BadFilesError(ValueError):
    """Files or labels that cannot be used; ``problems`` has all of them.

    Examples
    --------
    >>> from bagwise.files import BadFilesError, Problem
    >>> print(BadFilesError([Problem("a.h5", "is empty (0 bytes)")]))
    a.h5: is empty (0 bytes)
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems]
        if len(lines) > 1:
            lines = [f"{len(lines)} problems:", *(f"  {line}" for line in lines)]
        super().__init__("\n".join(lines))


def bad_file(path: object, what: str) -> BadFilesError:
    """The error about a single file."""
    return BadFilesError([Problem(str(path), what)])


def check_file(path: Path) -> None:
    """Refuse what is absent, a folder or empty."""
    if not path.exists():
        raise bad_file(path, "does not exist")
    if path.is_dir():
        raise bad_file(path, "is a folder, not a file")
    if path.stat().st_size == 0:
        raise bad_file(path, "is empty (0 bytes)")


def one_line(error: BaseException) -> str:
    """A library's message without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
