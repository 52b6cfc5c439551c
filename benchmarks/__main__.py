"""Run every benchmark and print one table: ``python -m benchmarks [--quick] [NAME ...]``.

A benchmark is a module ``bench_*.py`` with ``run(quick) -> list of dict``; each dict has
``what``, ``value`` (a ratio or a size), ``must`` (what it is held to) and ``ok``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run, without the bench_ prefix")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that they run")
    arguments = parser.parse_args()
    found = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    chosen = [f"bench_{name}" for name in arguments.names] or found
    table = Table("benchmark", "what", "measured", "must hold", "")
    failed = 0
    for name in chosen:
        for row in importlib.import_module(f"benchmarks.{name}").run(quick=arguments.quick):
            failed += not row["ok"]
            verdict = "[green]ok" if row["ok"] else "[red]not met"
            table.add_row(name[6:], row["what"], f"{row['value']:.3g}", row["must"], verdict)
    Console().print(table)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
