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

from bagwise.datasets import NEWSGROUPS, fetch_newsgroups
from bagwise.models.presets import preset
from experiments._held_out import folds, main, measure, table_row
from experiments.published import figures

TITLE = "VGPMIL and LM-VGPMIL on 20 Newsgroups (VGPMIL paper, Table 1 and supplement Table 5)"
PAPER = "VGPMIL, Table 1"
NEEDS = ("newsgroups",)

METRIC = "instance AP, mean of folds"
RANKING = "ranking by |x|"


def models() -> dict[str, Any]:
    """Model makers by name."""
    return {
        "VGPMIL, paper": lambda seed: preset("vgpmil-paper", random_state=seed),
        "VGPMIL, program": lambda seed: preset("vgpmil-program", random_state=seed),
        "LM-VGPMIL, paper": lambda seed: preset("lm-vgpmil-paper", random_state=seed),
        "LM-VGPMIL, program": lambda seed: preset("lm-vgpmil-program", random_state=seed),
    }


def one_set(name: str, make: Any, unit: bool, seeds: Any, n_splits: int) -> list[list[float]]:
    """Instance AP of every test fold of one set, one list per seed."""
    data = fetch_newsgroups(name)
    bags = data.bags.map(normalize) if unit else data.bags
    values: dict[int, list[float]] = {}
    for seed, a, b in folds(data.y, seeds, n_splits):
        if make is None:
            norms = np.linalg.norm(bags[b].instances, axis=1)
            value = average_precision_score(bags[b].instance_labels, norms)
        else:
            value = measure(make(seed), bags[a], data.y[a], bags[b], data.y[b])["instance AP"]
        values.setdefault(seed, []).append(value)
    return list(values.values())


def set_rows(
    model: str, sets: Any, per_fold: Any, published: dict[str, float], suffix: str = "", **more: Any
) -> list[dict[str, Any]]:
    """A row of each set, whose spread is over its folds, and one of their mean, over the seeds."""
    values = np.asarray(per_fold)  # [sets, seeds, folds]
    rows = []
    for name, of_set in zip(sets, values, strict=True):
        row = table_row(model, name + suffix, METRIC, of_set.mean(axis=1), **more)
        row["published"] = published.get(name.replace("_", "."), np.nan)
        # Folds of ten bags differ more than repetitions of all hundred do.
        row["error"] = of_set.mean(axis=0).std(ddof=1) / np.sqrt(of_set.shape[1])
        rows.append(row)
    mean = table_row(model, f"{len(sets)} newsgroups" + suffix, METRIC, values.mean((0, 2)), **more)
    mean["published"] = published.get("Average", np.nan)
    mean["error"] = np.sqrt(np.sum([row["error"] ** 2 for row in rows])) / len(rows)
    return [*rows, mean]


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Ten folds by bag on all sets, two seeds; quick: four sets, five folds, one seed."""
    sets = NEWSGROUPS[::5] if quick else NEWSGROUPS
    seeds, n_splits = (range(1), 5) if quick else (range(2), 10)
    # Model, its maker, and whether rows have length 1; ranking by length is of no use there.
    cases = [(RANKING, None, False)]
    cases += [(name, make, unit) for unit in (False, True) for name, make in models().items()]
    jobs = [(name, make, unit) for _, make, unit in cases for name in sets]
    found = Parallel(n_jobs)(delayed(one_set)(*job, seeds, n_splits) for job in jobs)
    table = []
    for k, (model, make, unit) in enumerate(cases):
        per_fold = found[k * len(sets) : (k + 1) * len(sets)]
        name, _, settings = model.partition(", ")
        is_printed = not unit and settings in ("paper", "program")
        published = figures("VGPMIL", "Supplement Table 5", name) if is_printed else {}
        suffix = ", rows of length 1" if unit else ""
        note = "no training" if make is None else ""
        rows = set_rows(model, sets, per_fold, published, suffix, note=note)
        table += rows if is_printed or make is None else rows[-1:]
    return pd.DataFrame(table)


if __name__ == "__main__":
    main(run)
