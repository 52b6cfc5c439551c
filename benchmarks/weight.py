"""What the package weighs: ``python -m benchmarks.weight [FOLDER ...]`` (default: src/bagwise).

Per package and in all: lines, lines of code without docstrings, lines with a comment, lines of
docstrings; private functions and methods, and how many of them have a single caller; public
functions and classes that could be private.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bagwise"
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Weight(NamedTuple):
    """Lines of one file."""

    lines: int
    code: int
    comments: int
    docstrings: int


def docstring_lines(tree: ast.AST) -> set[int]:
    """Numbers of the lines that docstrings cover."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _SCOPES) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            found |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def weigh(text: str) -> Weight:
    """Count the lines of a file of Python."""
    docstrings, comments, code = docstring_lines(ast.parse(text)), set(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
    return Weight(len(text.splitlines()), len(code - docstrings), len(comments), len(docstrings))


def private_functions(files: list[Path]) -> tuple[int, list[str]]:
    """How many functions have a leading underscore, and those that are named in one place only.

    A name counts where it is read: called, passed on, or imported and then used. Overrides of one
    name in several classes are one function.
    """
    defined: dict[str, str] = {}
    used: Counter[str] = Counter()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("_") and not node.name.startswith("__"):
                    defined.setdefault(node.name, f"{path}:{node.lineno}")
            elif isinstance(node, ast.Name):
                used[node.id] += 1
            elif isinstance(node, ast.Attribute):
                used[node.attr] += 1
    once = [f"{where} {name}" for name, where in defined.items() if used[name] == 1]
    return len(defined), sorted(once)


def words_of(path: Path) -> set[str]:
    """Names that a file reads, imports or spells out in a short text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.name.rpartition(".")[2] for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(re.findall(r"\w+", node.value)) if len(node.value) < 200 else set()
    return found


def unused_public(files: list[Path]) -> list[str]:
    """Public functions and classes that no other file, no test and no page of the API names."""
    tests = {path: words_of(path) for path in (ROOT / "tests").rglob("*.py")}
    words = {path: words_of(path) for path in files} | tests
    pages = [page.read_text("utf-8") for page in (ROOT / "docs/reference/api").glob("*.rst")]
    api = set(re.findall(r"^   (\w+)$", "\n".join(pages), re.MULTILINE))
    return [
        f"{path}:{node.lineno} {node.name}"
        for path in files
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and node.name not in api
        and not any(node.name in names for other, names in words.items() if other != path)
    ]


def main(folders: list[str]) -> None:
    """Print the table."""
    roots = [Path(folder) for folder in folders] or [SOURCE]
    files = sorted(path for root in roots for path in root.rglob("*.py"))
    total, packages = Weight(0, 0, 0, 0), {}
    for path in files:
        own = weigh(path.read_text(encoding="utf-8"))
        total = Weight(*(a + b for a, b in zip(total, own, strict=True)))
        root = next(root for root in roots if path.is_relative_to(root))
        name = str(path.relative_to(root).parent)
        before = packages.get(name, Weight(0, 0, 0, 0))
        packages[name] = Weight(*(a + b for a, b in zip(before, own, strict=True)))
    print(f"{'package':28}{'lines':>8}{'code':>8}{'comments':>10}{'docstrings':>12}")
    for name, own in [*sorted(packages.items()), ("in all", total)]:
        print(f"{name:28}{own.lines:8}{own.code:8}{own.comments:10}{own.docstrings:12}")
    private, once = private_functions(files)
    print(f"private functions: {private}, with a single caller: {len(once)}")
    public = unused_public(files)
    print(
        f"public functions and classes that only their own file names: {len(public)}",
        *public,
        sep="\n  ",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
