"""From a folder of DICOM slices to scans and slices with probabilities (psi-VGPMIL paper, 6.3).

The paper's scans (RSNA, CQ500) cannot be shipped, so synthetic heads with bright blobs as lesions
are written as DICOM, read back, and cut into training and held-out scans that were drawn apart.
The attention CNN learns from scan labels only, and G-VGPMIL from its features. Slice labels serve
for measuring and for the frames of the figure, which is drawn after the paper's Figure 10.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score

from bagwise import GVGPMIL, Bags, make_pipeline
from bagwise.datasets import make_ct_folder
from bagwise.deep import AttentionFeatures, AttentionMIL
from bagwise.report import BagImagesDisplay
from bagwise.report.predictions import predict_tables
from bagwise.vision import label_slices, read_scans
from experiments._held_out import main, rows
from experiments.deep_mnist import bag_metrics, instance_metrics

TITLE = "Synthetic CT scans, from DICOM folder to slices with uncertainty (psi-VGPMIL paper, 6.3)"


class Setting(NamedTuple):
    """How much is drawn and trained."""

    n_train: int
    n_test: int
    n_slices: tuple[int, int]
    size: int  # of a slice on disk; the network sees half of it
    epochs: int


FULL = Setting(60, 40, (6, 9), 64, 20)
QUICK = Setting(40, 20, (4, 7), 32, 20)


def read_drawn(n_scans: int, setting: Setting, seed: int) -> tuple[Bags, Any, Any]:
    """Bags, scan labels and slice labels of scans written to a folder and read from it."""
    with tempfile.TemporaryDirectory() as root:
        truth = make_ct_folder(
            root,
            n_scans=n_scans,
            n_slices=setting.n_slices,
            size=setting.size,
            random_state=seed,
        )
        bags = read_scans(root, size=(setting.size // 2, setting.size // 2))
    return bags, *label_slices(bags, truth.slice_labels)


def one_seed(seed: int, setting: Setting, out: Path) -> list[dict[str, Any]]:
    """The network alone and the pipeline on one drawing; the first seed draws the figure."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    bags, y, _ = read_drawn(setting.n_train, setting, seed)
    test, y_test, slices = read_drawn(setting.n_test, setting, 1000 + seed)
    options = {
        "backbone": "normed-cnn",
        "n_features": 32,
        "batch_size": 4,
        "max_epochs": setting.epochs,
        "patience": 10,
        "random_state": seed,
    }
    start = time.perf_counter()
    model = make_pipeline(AttentionFeatures(**options), GVGPMIL(n_inducing=50, random_state=seed))
    model.fit(bags, y)
    seconds = time.perf_counter() - start
    # The same parameters and seed would train the same network again: it is taken over.
    network = AttentionMIL(**options)
    network.__dict__.update({k: v for k, v in vars(model[0]).items() if k.endswith("_")})
    network.classes_ = model.classes_
    made = predict_tables(model, test)
    if seed == 0:
        draw(test, made, y_test, slices, out)
    p, q = made.bags["probability"].to_numpy(), made.instances["probability"].to_numpy()
    wrong = (q > 0.5) != slices
    std = made.instances["std"].to_numpy()
    alone = network.predict_proba(test)[:, 1]
    by_attention = roc_auc_score(slices, network.attention_weights(test))
    return [
        {"model": "AttCNN", **bag_metrics(y_test, alone), "instance AUC": by_attention},
        {
            "model": "AttCNN + G-VGPMIL",
            **bag_metrics(y_test, p),
            **instance_metrics(slices, q),
            "mean std, right slices": std[~wrong].mean(),
            "mean std, wrong slices": std[wrong].mean() if wrong.any() else np.nan,
            "fit seconds": seconds,
        },
    ]


def draw(test: Bags, made: Any, y: Any, slices: Any, out: Path) -> None:
    """The positive held-out scan of middling probability: its slices, the true ones framed."""
    p = made.bags["probability"].to_numpy()
    positive = np.flatnonzero(y == 1)
    scan = int(positive[np.argsort(p[positive])[len(positive) // 2]])
    mine = slice(int(test.offsets[scan]), int(test.offsets[scan + 1]))
    std = made.bags["std"].to_numpy()[scan]
    BagImagesDisplay(
        test.instances[mine, 0],  # the brain window
        made.instances["probability"].to_numpy()[mine],
        made.instances["std"].to_numpy()[mine],
        truth=slices[mine],
        name=f"Held-out scan, probability {p[scan]:.2f} ± {std:.2f}; slices with a lesion framed",
    ).plot().figure_.savefig(out / "ct_synthetic.png", dpi=150)


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Sixty training and forty held-out scans of 64 x 64, three seeds; quick: fewer, smaller."""
    setting, seeds = (QUICK, range(1)) if quick else (FULL, range(3))
    found = Parallel(n_jobs)(delayed(one_seed)(seed, setting, out) for seed in seeds)
    frame = pd.DataFrame([row for part in found for row in part])
    data = f"{setting.n_train} synthetic CT scans, {setting.size} x {setting.size}"
    table = []
    for name, group in frame.groupby("model", sort=False):
        measured = group.drop(columns="model").dropna(axis=1, how="all")
        table += rows(str(name), data, measured, {})
    result = pd.DataFrame(table)
    weights = (result["model"] == "AttCNN") & (result["metric"] == "instance AUC")
    result.loc[weights, "note"] = "attention weights used as a score"
    return result


if __name__ == "__main__":
    main(run)
