"""Numbers and tables in the README and the guides, written from stored results.

``python -m experiments.figures`` rewrites every marked span; ``--check`` only says which pages are
out of date and exits with 1. The same number is therefore the same on every page. A span in a
sentence names the experiment, the data, the model and the metric as its ``table.csv`` has them::

    <!-- figure: auto; musk1; AutoVGPMIL; auc -->0.942<!-- /figure -->

After the metric may come ``±`` (with the spread), ``%`` (times 100), ``published`` instead of
ours, or a number of digits. The data may be ``mean of a, b, c``, and the model may name its note
in brackets, ``MIO [settings fixed, KFold]``, where rows differ in nothing else. A table stands
between ``<!-- table: NAME -->`` and ``<!-- /table -->``; NAME is made by `experiments.tables`.
Benchmarks are marked by what they measured, as ``benchmarks/measured.csv`` has it::

    <!-- figure: benchmarks; fit from disk, peak memory in GB -->1.03<!-- /figure -->
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bagwise.files.writing import new_file
from experiments import tables
from experiments.stored import UnknownFigureError, figure

ROOT = Path(__file__).parent.parent

_FIGURE = re.compile(r"(<!-- figure: ([^>]*?) -->)(.*?)(<!-- /figure -->)", re.DOTALL)
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)


def pages() -> list[Path]:
    """The README and every page of the documentation that people write."""
    docs = ROOT / "docs"
    generated = {"_build", "auto_examples", "generated", "results"}
    written = [p for p in docs.rglob("*.md") if not generated & set(p.relative_to(docs).parts)]
    return [ROOT / "README.md", *sorted(written)]


def rewrite(text: str) -> str:
    """A page with every marked span as the stored results have it."""

    def table(match: re.Match[str]) -> str:
        make = getattr(tables, match[2].replace("-", "_"), None)
        if make is None:
            raise UnknownFigureError(f"experiments.tables makes no {match[2]!r}.")
        return f"{match[1]}{make()}\n\n{match[4]}"

    text = _FIGURE.sub(lambda m: f"{m[1]}{figure(m[2])}{m[4]}", text)
    return _TABLE.sub(table, text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.figures")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 instead")
    arguments = parser.parse_args(argv)
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        try:
            fresh = rewrite(text)
        except UnknownFigureError as error:
            print(f"{page.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 2
        if fresh == text:
            continue
        stale.append(page)
        if not arguments.check:
            with new_file(page) as draft:
                draft.write_text(fresh, encoding="utf-8")
    verb = "differs from the stored results" if arguments.check else "written"
    for page in stale:
        print(f"{page.relative_to(ROOT)}: {verb}")
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
