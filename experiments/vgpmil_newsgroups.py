"""VGPMIL and LM-VGPMIL on 20 Newsgroups: which posts are on topic (VGPMIL paper, Table 1).

Held out, folds by bag; the score is the mean over test folds of the instance average precision,
then over the sets. Posts on topic have larger norms: ranking by |x| with no training does as well
as the published methods, so it stands beside every result, and so does L2-normalised input,
where the task is honest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import normalize

from bagwise import VGPMIL
from bagwise.datasets import NEWSGROUPS, fetch_newsgroups
from bagwise.models.presets import preset
from experiments._held_out import folds, main, measure, table_row

TITLE = "VGPMIL and LM-VGPMIL on 20 Newsgroups (VGPMIL paper, Table 1 and supplement Table 5)"
PAPER = "VGPMIL, Table 1"
NEEDS = ("newsgroups",)

PUBLISHED = {"VGPMIL": 0.652, "LM-VGPMIL": 0.728}


def models() -> dict[str, Any]:
    """Model makers by name."""
    return {
        "VGPMIL": lambda seed: preset("vgpmil-paper", random_state=seed),
        "LM-VGPMIL": lambda seed: preset("lm-vgpmil-paper", random_state=seed),
        "VGPMIL, labels summed out": lambda seed: VGPMIL(scale=None, random_state=seed),
    }


def one_set(name: str, make: Any, unit: bool, seeds: Any, n_splits: int) -> list[float]:
    """Mean instance AP over the test folds of one set, one value per seed."""
    data = fetch_newsgroups(name)
    bags = data.bags.map(normalize) if unit else data.bags
    found: dict[int, list[float]] = {}
    for seed, a, b in folds(data.y, seeds, n_splits):
        if make is None:
            norms = np.linalg.norm(bags[b].instances, axis=1)
            value = average_precision_score(bags[b].instance_labels, norms)
        else:
            value = measure(make(seed), bags[a], data.y[a], bags[b], data.y[b])["instance AP"]
        found.setdefault(seed, []).append(value)
    return [float(np.mean(values)) for values in found.values()]


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Ten folds by bag on all sets, two seeds; quick: four sets, five folds, one seed."""
    sets = NEWSGROUPS[::5] if quick else NEWSGROUPS
    seeds, n_splits = (range(1), 5) if quick else (range(2), 10)
    table = []
    makers = {"ranking by |x|": None, **models()}
    for unit in (False, True):
        for model, make in makers.items():
            if unit and make is None:
                continue
            per_set = Parallel(n_jobs)(
                delayed(one_set)(name, make, unit, seeds, n_splits) for name in sets
            )
            values = np.mean(per_set, axis=0)  # one value per seed
            table.append(
                table_row(
                    model,
                    f"{len(sets)} newsgroups" + (", rows of length 1" if unit else ""),
                    "instance AP, mean of folds",
                    values,
                    published=np.nan if unit else PUBLISHED.get(model, np.nan),
                    note="no training" if make is None else "",
                )
            )
    return pd.DataFrame(table)


if __name__ == "__main__":
    main(run)
