"""Seconds to train DPMIL and the methods beside it on one split of a text set (DPMIL, Table 3).

As in the paper: no search over settings is counted, features are 100 components of a kernel PCA,
whose time is not counted either. DPMIL has the paper's settings, the other methods their defaults
without calibration. Processor time of one core, the mean over three sets; the paper's machine is
not named, so that only the order and the ratios can be compared.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pandas as pd

from bagwise import MISVM, comparators
from bagwise.datasets import fetch_newsgroups
from bagwise.models.presets import preset
from experiments._held_out import folds, main, quiet_fits, table_row
from experiments.dpmil_newsgroups import transform_all
from experiments.published import figures

TITLE = "Training times on one split of 20 Newsgroups (DPMIL paper, Table 3)"
PAPER = "DPMIL, Table 3"
NEEDS = ("newsgroups",)
SETS = ("alt_atheism", "rec_sport_hockey", "sci_med")
MODELS: dict[str, Any] = {
    "DPMIL": lambda: preset("dpmil-paper", random_state=0),
    "Bag KI-SVM": lambda: comparators.BagKISVM(calibrate=False),
    "mi-SVM": lambda: MISVM(variant="mi", calibrate=False),
    "Instance KI-SVM": lambda: comparators.InstanceKISVM(calibrate=False),
    "GPMIL": lambda: comparators.GPMIL(calibrate=False),
    "MI-SVM": lambda: MISVM(variant="MI", calibrate=False),
}


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Three sets; quick: one set, DPMIL and MI-SVM. One process, whatever ``n_jobs`` says."""
    sets = SETS[:1] if quick else SETS
    models = {name: MODELS[name] for name in (("DPMIL", "MI-SVM") if quick else MODELS)}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for name in sets:
        data = fetch_newsgroups(name)
        bags = transform_all(data.bags)
        _, train, _ = folds(data.y, range(1), 10)[0]
        few = [*train[:10], *train[-10:]]  # of both classes
        for model, make in models.items():
            with quiet_fits():
                make().fit(bags[few], data.y[few])  # compiles and imports
                start = time.process_time()
                make().fit(bags[train], data.y[train])
            seconds[model].append(time.process_time() - start)
    return pd.DataFrame(
        table_row(
            model,
            "20 newsgroups, one split",
            "seconds",
            values,
            published=figures("DPMIL", "Table 3", model)["text, seconds"],
            note=f"{len(sets)} sets",
        )
        for model, values in seconds.items()
    )


if __name__ == "__main__":
    main(run)
