"""Run the experiments: ``python -m experiments [--quick] [--out DIR] [--page FILE] [NAME ...]``.

The same as ``bagwise reproduce``, plus ``--page``, which makes the results page of the
documentation from the output folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bagwise.report.reproduce import find_experiments, reproduce, write_page


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("names", nargs="*", help="experiments, words of their names, or all")
    parser.add_argument("--quick", action="store_true", help="fewer seeds and sets")
    parser.add_argument("--out", type=Path, default=Path("reproduction"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="measure again what is complete")
    parser.add_argument("--list", action="store_true", help="only list the experiments")
    parser.add_argument("--page", type=Path, help="write this results page from --out")
    arguments = parser.parse_args()
    folder = Path(__file__).parent
    if arguments.list:
        for experiment in find_experiments(folder).values():
            print(f"{experiment.name:<28} {experiment.title}")
        return
    if arguments.names or not arguments.page:
        reproduce(
            arguments.names or "all",
            quick=arguments.quick,
            out=arguments.out,
            n_jobs=arguments.jobs,
            fresh=arguments.fresh,
            folder=folder,
        )
    if arguments.page:
        write_page(arguments.out, arguments.page)


if __name__ == "__main__":
    main()
