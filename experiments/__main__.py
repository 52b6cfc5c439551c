"""Run the experiments: ``python -m experiments [--quick] [--out DIR] [--pages DIR] [NAME ...]``.

``--pages`` writes the results pages of the documentation from the output folder;
``--quick-times`` keeps the times of a quick run in one process, which ``--list`` shows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments._page import write_pages
from experiments._runner import (
    absent_data,
    list_experiments,
    quick_sum,
    reproduce,
    store_quick_seconds,
)
from experiments._tables import to_rich


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("names", nargs="*", help="experiments, words of their names, or all")
    parser.add_argument("--quick", action="store_true", help="fewer seeds and sets")
    parser.add_argument("--out", type=Path, default=Path("reproduction"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="measure again what is complete")
    parser.add_argument("--list", action="store_true", help="only list the experiments")
    parser.add_argument("--quick-times", type=Path, metavar="RUN", help="keep the times of a run")
    parser.add_argument("--pages", type=Path, help="write results pages from --out to this folder")
    arguments = parser.parse_args(argv)
    console = Console()
    if arguments.list:
        console.print(to_rich(list_experiments()))
        for line in (*absent_data(), quick_sum()):
            console.print(line, markup=False)
        return
    if arguments.quick_times:
        store_quick_seconds(arguments.quick_times)
        return
    if arguments.names or not arguments.pages:
        reproduce(
            arguments.names or "all",
            quick=arguments.quick,
            out=arguments.out,
            n_jobs=arguments.jobs,
            fresh=arguments.fresh,
            console=console,
        )
    if arguments.pages:
        write_pages(arguments.out, arguments.pages)


if __name__ == "__main__":
    main()
