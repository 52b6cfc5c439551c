"""The figures that guides quote, kept in ``measured.csv`` by the benchmarks themselves.

A row of a benchmark may have ``quoted``: names and values as ``measured.csv`` has them. With
``--store`` a run replaces the lines of those names, and says with which command, on which machine
and from which commit they were measured. The guides take them from there (`experiments.figures`).
"""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

MEASURED = Path(__file__).with_name("measured.csv")
COLUMNS = ("what", "value", "command", "where", "commit")


def store(quoted: Mapping[str, float], command: str, where: str, path: Path = MEASURED) -> None:
    """Replace the lines of these names, in their places; new names come last."""
    lines: dict[str, dict[str, str]] = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as stream:
            lines = {line["what"]: line for line in csv.DictReader(stream)}
    for what, value in quoted.items():
        figures = (what, f"{value:.3g}", command, where, commit() or "")
        lines[what] = dict(zip(COLUMNS, figures, strict=True))
    draft = path.with_suffix(".draft")
    with draft.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines.values())
    draft.replace(path)


def this_machine() -> str:
    """Cores and processor family."""
    return f"{os.cpu_count()} cores, {platform.machine().replace('_', '-')}"


def commit() -> str | None:
    """The commit of this checkout; None without git."""
    try:
        words = ["git", "rev-parse", "--short=10", "HEAD"]
        done = subprocess.run(
            words, cwd=MEASURED.parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
