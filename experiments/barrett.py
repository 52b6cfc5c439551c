"""Barrett's cancer: patches found by slide labels (VGPMIL paper, Table 2; DPMIL paper, Table 2).

The set is private to its authors. Put ``barrett.npz`` into the data home, with the arrays X
(14353 x 738), bag, bag_label and instance_label, and run this experiment: four folds by bag, five
times, as both papers have it. VGPMIL and LM-VGPMIL have the settings of their paper (50 inducing
points, 25 of each class); DPMIL works on 30 components of a kernel PCA with length scale sqrt(30),
fitted on the training patches; baseline methods have their defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.preprocessing import StandardScaler

from bagwise import MISVM, Bags, InstanceTransformer, comparators, make_pipeline
from bagwise.datasets import data_home
from bagwise.evaluate import BagFolds, cross_validate
from bagwise.models.presets import preset
from experiments._held_out import main, quiet_fits, table_metrics, table_row
from experiments.dpmil_newsgroups import GreedyKernelPCA
from experiments.published import figures

TITLE = "Barrett's cancer (VGPMIL paper, Table 2; DPMIL paper, Table 2)"
PAPER = "VGPMIL, Table 2; DPMIL, Table 2"
NEEDS = ("barrett",)
FILE = "barrett.npz"
COLUMNS = {"instance accuracy": ("accuracy %", 100.0), "instance F1": ("F1", 1.0)}


def models(n_components: int = 30) -> dict[tuple[str, str], Any]:
    """Models by paper and row."""
    reduce = GreedyKernelPCA(n_components, length_scale=float(np.sqrt(n_components)))
    scaled = InstanceTransformer(StandardScaler())
    return {
        ("VGPMIL", "VGPMIL"): make_pipeline(scaled, preset("vgpmil-paper", random_state=0)),
        ("VGPMIL", "LM-VGPMIL"): make_pipeline(scaled, preset("lm-vgpmil-paper", random_state=0)),
        ("DPMIL", "DPMIL"): make_pipeline(
            InstanceTransformer(reduce), preset("dpmil-paper", random_state=0)
        ),
        ("DPMIL", "GPMIL"): comparators.GPMIL(calibrate=False),
        ("DPMIL", "Instance KI-SVM"): comparators.InstanceKISVM(calibrate=False),
        ("DPMIL", "Bag KI-SVM"): comparators.BagKISVM(calibrate=False),
        ("DPMIL", "mi-SVM"): MISVM(variant="mi", calibrate=False),
        ("DPMIL", "MI-SVM"): MISVM(variant="MI", calibrate=False),
    }


def load(path: Path | None = None) -> tuple[Bags, Any]:
    """Bags with instance labels, and the bags' labels."""
    path = data_home() / FILE if path is None else path
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; it is private to the papers' authors.")
    with np.load(path, allow_pickle=False) as stored:
        bags = Bags.from_groups(stored["X"], stored["bag"])
        return bags.with_columns(instance_labels=stored["instance_label"]), stored["bag_label"]


def run(quick: bool, out: Path, n_jobs: int = 1, path: Path | None = None) -> pd.DataFrame:
    """Four folds five times; quick: once."""
    bags, y = load(path)
    table = []
    for (paper, row), model in models().items():
        values: dict[str, list[float]] = {metric: [] for metric in COLUMNS}
        for seed in range(1 if quick else 5):
            with quiet_fits():
                folds = cross_validate(model, bags, y, BagFolds(4, (seed,)), n_jobs=n_jobs)
            means = pd.DataFrame([table_metrics(fold) for fold in folds]).mean()
            for metric in COLUMNS:
                values[metric].append(float(means[metric]))
        for metric, (column, times) in COLUMNS.items():
            published = figures(paper, "Table 2", row)[column] / times
            table.append(
                table_row(row, "Barrett's cancer", metric, values[metric], published=published)
            )
    return pd.DataFrame(table)


if __name__ == "__main__":
    main(run)
