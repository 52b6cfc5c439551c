"""Run every benchmark and print one table: ``python -m benchmarks [--quick | --store] [NAME ...]``.

A benchmark is a module ``bench_*.py`` with ``run(quick) -> list of dict``; each dict has
``what``, ``value`` (a ratio or a size), ``must`` (what it is held to) and ``ok``, and may have
``quoted``, the figures that guides take from ``measured.csv``; ``--store`` writes them there.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.stored import store, this_machine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run, without the bench_ prefix")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that they run")
    parser.add_argument("--store", action="store_true", help="keep figures that guides quote")
    arguments = parser.parse_args()
    if arguments.quick and arguments.store:
        parser.error("--store keeps what full sizes measure; leave out --quick.")
    found = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    chosen = [f"bench_{name}" for name in arguments.names] or found
    table = Table("benchmark", "what", "measured", "must hold", "")
    failed = 0
    for name in chosen:
        for row in importlib.import_module(f"benchmarks.{name}").run(quick=arguments.quick):
            failed += not row["ok"]
            verdict = "[green]ok" if row["ok"] else "[red]not met"
            table.add_row(name[6:], row["what"], f"{row['value']:.3g}", row["must"], verdict)
            if arguments.store and row.get("quoted"):
                store(row["quoted"], f"python -m benchmarks {name[6:]}", this_machine())
    Console().print(table)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
