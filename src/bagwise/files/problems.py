"""What is wrong with files, collected first and said once."""

from __future__ import annotations

import lzma
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bagwise.files.addresses import AnyPath


# What the libraries raise on a damaged or crafted file.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ImportError,
    AssertionError,
    ArithmeticError,
    EOFError,
    OSError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
# How libraries tell that they could load Python objects if they were asked to.
_ADVICE = re.compile("allow_(unsafe_)?pickle|pickle.load|as a pickle|weights_only", re.IGNORECASE)
# Longer lists than this are summarised, with this many examples of each kind.
_LISTED, _EXAMPLES = 20, 3


@dataclass(frozen=True)
class FileProblem:
    """One file that cannot be used, and why.

    Examples
    --------
    >>> from bagwise.files import FileProblem
    >>> print(FileProblem("s7.h5", "is empty (0 bytes)"))
    s7.h5: is empty (0 bytes)
    """

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class BadFilesError(ValueError):
    """Files or labels that cannot be used; ``problems`` has all of them.

    The message lists up to twenty problems and summarises more, kind by kind.

    Examples
    --------
    >>> from bagwise.files import BadFilesError, FileProblem
    >>> print(BadFilesError([FileProblem("a.h5", "is empty (0 bytes)")]))
    a.h5: is empty (0 bytes)
    """

    def __init__(self, problems: Sequence[FileProblem]) -> None:
        self.problems = tuple(problems)
        lines = list_problems(self.problems)
        if len(self.problems) > 1:
            lines = [f"{len(self.problems)} problems:", *(f"  {line}" for line in lines)]
        super().__init__("\n".join(lines))


def list_problems(problems: Sequence[FileProblem]) -> list[str]:
    """A line per problem, or per kind of problem where there are more than twenty.

    Problems are of one kind when their sentences differ only in numbers and quoted names.

    Examples
    --------
    >>> from bagwise.files.problems import FileProblem, list_problems
    >>> list_problems([FileProblem(f"{i}.h5", f"has {i} features") for i in range(600)])
    ['600 like this: 0.h5: has 0 features (also 1.h5, 2.h5, ...)']
    """
    if len(problems) <= _LISTED:
        return [str(problem) for problem in problems]
    kinds: dict[str, list[FileProblem]] = {}
    for problem in problems:
        kinds.setdefault(re.sub(r"\d+|'[^']*'", "#", problem.what), []).append(problem)
    lines = []
    for first, *others in kinds.values():
        # The same file may be named for each bag it lacks; its other sentences tell them apart.
        named = [p.path if p.path != first.path else p.what for p in others[: _EXAMPLES - 1]]
        more = ", ..." if len(others) >= _EXAMPLES else ""
        also = f"{len(others) + 1} like this: {first} (also {', '.join(named)}{more})"
        lines.append(also if others else str(first))
    if len(lines) > _LISTED:
        lines = [*lines[:_LISTED], f"and {len(lines) - _LISTED} other kinds of problems"]
    return lines


def bad_file(path: object, what: str) -> BadFilesError:
    """The error about a single file."""
    return BadFilesError([FileProblem(str(path), what)])


def check_file(path: AnyPath) -> None:
    """Refuse what is absent, a folder or empty."""
    if not path.exists():
        raise bad_file(path, "does not exist")
    if path.is_dir():
        raise bad_file(path, "is a folder, not a file")
    if path.stat().st_size == 0:
        raise bad_file(path, "is empty (0 bytes)")


def one_line(error: BaseException) -> str:
    """A library's message without its line breaks, and without advice to unpickle a file."""
    said = " ".join(str(error).split())
    if _ADVICE.search(said):
        return "holds pickled Python objects, which are never loaded: they can run code"
    return said or type(error).__name__
