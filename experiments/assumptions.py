"""Which models obey the multiple-instance assumption: the algorithmic unit tests.

After Raff and Holt (NeurIPS 2023). Trained on bags with a forbidden cue, tested on clean bags and
on a trap where the cue points the wrong way. A model avoids
the trap when its AUC there is above 0.5.
Every model that claims the standard assumption must obey all four tests and solve (clean AUC at
least 0.95) the single-concept and the false-frequency test; the multi-concept test lies beyond that
assumption, and the concept of the size trap is hard to see. Models
that embed whole bags claim nothing of the kind, and absence is evidence to them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils.parallel import Parallel, delayed

from bagwise.evaluate.assumptions import TESTS, Verdict, check_mil
from bagwise.models.registry import MODELS
from experiments._held_out import main

TITLE = "Do the models obey the multiple-instance assumption?"
PAPER = "Raff and Holt, NeurIPS 2023"
NEEDS = ("synthetic",)


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Three data sets of 100 bags per test; quick: one of 60."""
    size = {"n_bags": 60, "n_repeats": 1} if quick else {"n_bags": 100, "n_repeats": 3}
    made = Parallel(n_jobs=n_jobs)(
        delayed(check_mil)(name, verbose=False, **size) for name in MODELS
    )
    verdicts = dict(zip(MODELS, made, strict=True))
    _plot(verdicts, out)
    rows = []
    for name, of_model in verdicts.items():
        for verdict in of_model:
            for kind, auc in (("clean", verdict.clean_auc), ("trap", verdict.trap_auc)):
                row = {"model": name, "data": verdict.test, "metric": f"AUC, {kind} test bags"}
                note = _note(name, verdict) if kind == "trap" else ""
                row |= {"published": np.nan, "mean": auc, "spread": np.nan}
                rows.append({**row, "n_seeds": size["n_repeats"], "note": note})
    return pd.DataFrame(rows)


def _note(name: str, verdict: Verdict) -> str:
    claim = MODELS[name].assumption == "standard"
    word = "passes" if verdict.passed else "fails"
    return word if claim else f"{word}; claims no such assumption"


def _plot(verdicts: dict[str, list[Verdict]], out: Path) -> None:
    import matplotlib.pyplot as plt

    tests = list(TESTS)
    figure, axes = plt.subplots(1, len(tests), figsize=(12, 6), sharey=True, layout="constrained")
    rows: Any = np.arange(len(verdicts))
    for k, (axis, test) in enumerate(zip(axes, tests, strict=True)):
        axis.axvline(0.5, color="0.7", linewidth=1)
        axis.plot([v[k].clean_auc for v in verdicts.values()], rows, "o", label="clean")
        axis.plot([v[k].trap_auc for v in verdicts.values()], rows, "x", label="trap")
        axis.set(title=test, xlabel="AUC", xlim=(-0.05, 1.05))
        axis.set_yticks(rows, list(verdicts))
    axes[0].invert_yaxis()
    axes[0].legend()
    figure.savefig(out / "assumptions.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main(run)
