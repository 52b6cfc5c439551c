"""Labels of patients: one bag per patient, against slides that inherit the patient's label.

Patients are simulated with known truth at three levels. A positive patient has one slide with one
to four positive patches among four to eight slides. The usual way trains on slides as bags, each
with its patient's label, most of them wrong for the slide, and calls a patient by the most probable
slide. Here a patient is one bag of all its patches, and `predict_levels` reads patients, slides and
patches off the same model. Settings were fixed on seeds 10 and 11.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score

from bagwise import VGPMIL, predict_levels
from bagwise.core import segments
from bagwise.datasets import make_patient_bags
from experiments._held_out import main, rows

TITLE = "Patients, slides and patches from labels of patients"
PAPER = "this project"
NEEDS = ("synthetic",)

SETTING: dict[str, Any] = {"n_slides": (4, 8), "n_positive_slides": (1, 1), "n_positive": (1, 4)}


def one_seed(seed: int, n_patients: int) -> list[dict[str, Any]]:
    """AUC of held-out patients, slides and patches, by both ways of training."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    train = make_patient_bags(n_patients, random_state=seed, **SETTING)
    test = make_patient_bags(60, random_state=1000 + seed, **SETTING)
    levels = predict_levels(
        VGPMIL(n_inducing=60, random_state=seed).fit(train.bags, train.y), test.bags
    )
    top = np.zeros(len(test.bags))
    np.maximum.at(top, levels.owner, levels.groups.probability)
    patch = segments.max(levels.instances.probability, levels.group_bags.offsets)
    incoherent = (top > levels.bags.probability).sum() + (patch > levels.groups.probability).sum()

    slides = train.bags.by_group()
    place = {name: i for i, name in enumerate(train.bags.groups)}
    inherited = np.repeat(train.y, train.bags.sizes)[[place[name] for name in slides.ids]]
    usual = VGPMIL(n_inducing=60, random_state=seed).fit(slides, inherited)
    p_slide = usual.predict_proba(levels.group_bags)[:, 1]
    p_patient = np.zeros(len(test.bags))
    np.maximum.at(p_patient, levels.owner, p_slide)
    p_patch = usual.predict_proba_instances(levels.group_bags)[:, 1]

    def aucs(patients: Any, of_slides: Any, patches: Any) -> dict[str, float]:
        return {
            "patient AUC": roc_auc_score(test.y, patients),
            "slide AUC": roc_auc_score(test.slide_labels, of_slides),
            "patch AUC": roc_auc_score(test.instance_labels, patches),
        }

    ours = aucs(levels.bags.probability, levels.groups.probability, levels.instances.probability)
    return [
        {"model": "patients as bags", **ours, "incoherent pairs": float(incoherent)},
        {"model": "slides inherit the label", **aucs(p_patient, p_slide, p_patch)},
    ]


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Five seeds of 60 training and 60 held-out patients; quick: one seed, 24 for training."""
    n_patients, seeds = (24, range(100, 101)) if quick else (60, range(100, 105))
    parts = Parallel(n_jobs)(delayed(one_seed)(seed, n_patients) for seed in seeds)
    frame = pd.DataFrame([row for part in parts for row in part])
    frame.to_csv(out / "seeds.csv", index=False)
    table = []
    for model, group in frame.groupby("model", sort=False):
        per_seed = group.drop(columns="model").dropna(axis=1)
        table += rows(str(model), f"{n_patients} simulated patients", per_seed, {})
    return pd.DataFrame(table)


if __name__ == "__main__":
    main(run)
