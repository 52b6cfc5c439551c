"""Published figures on data that cannot be redistributed, and how to run them with your own copy.

The data is private, behind a licence, or too large to fetch here: nothing is measured in its
place. Barrett's cancer runs by itself once its file is in the data home; the others name the
commands that take them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bagwise import Bags
from bagwise.datasets import data_home
from bagwise.evaluate import BagFolds, compare
from experiments._held_out import main

TITLE = "Published figures on data that cannot be had"
PAPER = "VGPMIL, psi-VGPMIL"
NEEDS = ()
BARRETT = "barrett.npz"
PLUG_IN = {
    "Barrett's cancer": (
        f"private to its authors. Put {BARRETT} into the data home with the arrays X (14353 x "
        "738), bag, bag_label and instance_label, and run this experiment again"
    ),
    "PASCAL VOC 2007": (
        "licensed images. Read the folder with bagwise.vision's VOC reader, fit "
        "vision.WeakDetector on trainval, score with evaluate.corloc and evaluate.detection_ap"
    ),
    "PASCAL VOC 2012": "licensed images; test boxes are held by the challenge server. As VOC 2007",
    "RSNA 2019 CT": (
        "behind a competition's terms. vision.read_scans(folder) and vision.read_ct_labels, "
        "then make_pipeline(AttentionFeatures(), GVGPMIL()) under evaluate.GroupFolds by patient"
    ),
    "CQ500 CT": (
        "behind a licence. Fit on RSNA as above, then predict on vision.read_scans(folder); "
        "labels by vision.read_ct_labels"
    ),
}
PUBLISHED = [
    # data, model, metric, published figure, source
    ("Barrett's cancer", "VGPMIL", "instance accuracy", 0.751, "VGPMIL paper, Table 2"),
    ("Barrett's cancer", "LM-VGPMIL", "instance accuracy", 0.773, "VGPMIL paper, Table 2"),
    ("Barrett's cancer", "VGPMIL", "instance F1", 0.76, "VGPMIL paper, Table 2"),
    ("Barrett's cancer", "LM-VGPMIL", "instance F1", 0.77, "VGPMIL paper, Table 2"),
    ("Barrett's cancer", "DPMIL", "instance accuracy", 0.718, "VGPMIL paper, Table 2"),
    ("Barrett's cancer", "DPMIL", "instance F1", 0.74, "VGPMIL paper, Table 2"),
    ("PASCAL VOC 2007", "VGPMIL", "mAP", 0.461, "VGPMIL paper, Table 3"),
    ("PASCAL VOC 2007", "LM-VGPMIL", "mAP", 0.431, "VGPMIL paper, Table 3"),
    ("PASCAL VOC 2007", "VGPMIL", "CorLoc", 0.660, "VGPMIL paper, Table 3"),
    ("PASCAL VOC 2007", "LM-VGPMIL", "CorLoc", 0.625, "VGPMIL paper, Table 3"),
    ("PASCAL VOC 2012", "VGPMIL", "mAP", 0.346, "VGPMIL paper, Table 3"),
    ("PASCAL VOC 2012", "LM-VGPMIL", "mAP", 0.378, "VGPMIL paper, Table 3"),
    ("PASCAL VOC 2012", "VGPMIL", "CorLoc", 0.583, "VGPMIL paper, Table 3"),
    ("PASCAL VOC 2012", "LM-VGPMIL", "CorLoc", 0.608, "VGPMIL paper, Table 3"),
    ("RSNA 2019 CT", "VGPMIL", "bag AUC", "0.9644 ± 0.0086", "psi-VGPMIL paper, Table 2"),
    ("RSNA 2019 CT", "G-VGPMIL", "bag AUC", "0.966 ± 0.0065", "psi-VGPMIL paper, Table 2"),
    ("CQ500 CT", "VGPMIL", "bag AUC", "0.9062 ± 0.007", "psi-VGPMIL paper, Table 3"),
    ("CQ500 CT", "G-VGPMIL", "bag AUC", "0.923 ± 0.0066", "psi-VGPMIL paper, Table 3"),
]
_MODELS = {"VGPMIL": "vgpmil", "LM-VGPMIL": "lm-vgpmil", "DPMIL": "dpmil"}
_METRICS = {"instance accuracy": "accuracy", "instance F1": "f1"}


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """List the published figures; measure those whose data has been plugged in."""
    measured = _barrett(quick, out, n_jobs)
    rows = []
    for data, model, metric, published, source in PUBLISHED:
        mean, spread, seeds = measured.get((data, model, metric), (np.nan, np.nan, np.nan))
        note = source if np.isfinite(mean) else f"{source}; {PLUG_IN[data]}"
        row = {"model": model, "data": data, "metric": metric, "published": published}
        rows.append({**row, "mean": mean, "spread": spread, "n_seeds": seeds, "note": note})
    return pd.DataFrame(rows)


def _barrett(quick: bool, out: Path, n_jobs: int) -> dict[tuple[str, str, str], Any]:
    """Four-fold cross-validation repeated five times, as the paper has it."""
    path = Path(data_home()) / BARRETT
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as stored:
        bags = Bags.from_groups(stored["X"], stored["bag"])
        bags = bags.with_columns(instance_labels=stored["instance_label"])
        data = {"barrett": (bags, stored["bag_label"])}
    made = compare(
        list(_MODELS.values()),
        data,
        BagFolds(4, tuple(range(1 if quick else 5))),
        n_jobs,
        results=out / "barrett.jsonl",
        metrics=["accuracy", "f1"],
    )
    found = {}
    for model, name in _MODELS.items():
        for metric, short in _METRICS.items():
            values = made.per_seed(name, "barrett", short, level="instances")
            spread = values.std(ddof=1) if len(values) > 1 else np.nan
            found["Barrett's cancer", model, metric] = (values.mean(), spread, len(values))
    return found


if __name__ == "__main__":
    main(run)
