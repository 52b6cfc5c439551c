"""A reader of the papers without the data folder: from an empty folder to figures and a report.

Run in an empty folder: ``python -m tests.journeys.reader``. Nothing is downloaded and nothing
outside the folder is read but the package and its experiments. A step that does not give what
the reader wants ends the script with an error.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
from experiments.__main__ import main as experiments
from experiments._runner import list_experiments

from bagwise.cli import main as bagwise


def ask(*words: str) -> Any:
    """The JSON answer of a command that must succeed."""
    answer = io.StringIO()
    with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(io.StringIO()):
        code = bagwise([*words, "--json"])
    assert code == 0, f"bagwise {' '.join(words)} ended with {code}"
    return json.loads(answer.getvalue())


def refused(*words: str) -> str:
    """What a command says that cannot do its work; it must be one line."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = bagwise([*words])
    assert code == 2, f"bagwise {' '.join(words)} ended with {code}"
    (line,) = said.getvalue().strip().splitlines()
    return line


def main() -> dict[str, float]:
    """The journey; returns the figures the reader came for."""
    os.environ["BAGWISE_DATA"] = str(Path("no-data").absolute())

    # 1. Which experiments are there, which paper are they from, and what do they need?
    listing = list_experiments().to_dict("records")
    for row in listing:
        assert row["paper"], f"{row['experiment']} does not say its paper"
        assert row["data"], f"{row['experiment']} does not say what it needs"
        assert row["time"], f"{row['experiment']} does not say how long it takes"
    ready = [row["experiment"] for row in listing if "absent" not in row["data"]]
    assert len(ready) >= 5, f"only {ready} run without the data folder"
    print(f"{len(ready)} of {len(listing)} experiments need no data folder")

    # 2. One of them, from the paper's table to a table of our own.
    experiments(["published_arithmetic", "--quick", "--out", "reproduction"])
    assert "| 0." in (Path("reproduction") / "results.md").read_text(encoding="utf-8")

    # 3. The published data sets that come with the package, by the published protocol.
    known = {row["name"]: row for row in ask("datasets")["datasets"]}
    assert known["musk1"]["bags"] == 92, "Musk1 is not as published"
    words = ["--datasets", "musk1", "--models", "single-instance,statistics", "--cv", "5"]
    ask("compare", *words, "--out", "musk1.csv")
    folds = pd.read_csv("musk1.csv")
    assert set(folds["model"]) == {"single-instance", "statistics"}

    # 4. What needs absent data says so in one line, before it computes anything.
    line = refused("compare", "--datasets", "no-such-set", "--models", "statistics")
    assert "no-such-set" in line

    # 5. The whole path from files to a report, on bundled digits.
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert bagwise(["demo", "--out", "demo", "--bags", "40"]) == 0
    assert "report.html" in said.getvalue()
    names = ["model.bagwise", "new", "new.csv", "results", "train", "train.csv"]
    assert sorted(path.name for path in Path("demo").iterdir()) == names
    page = Path("demo/results/report.html").read_text(encoding="utf-8")
    assert "cross-validat" in page
    top = pd.read_csv("demo/results/top_instances.csv")
    figures = ask(
        "evaluate", "demo/model.bagwise", "--bags", "demo/new", "--labels", "demo/new.csv"
    )
    assert figures["n_trained_on"] == 0
    return {
        "experiments_ready": float(len(ready)),
        "musk1_rows": float(len(folds)),
        "digits_auc": figures["metrics"]["auc"],
        "top_instances": float(len(top)),
    }


if __name__ == "__main__":
    print(main())
