"""From a folder of DICOM slices to scans and slices with probabilities (psi-VGPMIL paper, 6.3).

The scans of [CastroMacias2024] (RSNA, CQ500) cannot be shipped, so synthetic heads with bright
blobs as lesions are written as DICOM, read back, and cut into training and held-out scans that were
drawn apart. The attention CNN learns from scan labels only, and G-VGPMIL and VGPMIL from its
features. Slice labels serve for measuring and for the frames of the figure, which is drawn after
Figure 10 of [CastroMacias2024]. One more set of scans, the same for every seed, shows how far the
latent function moves when all is drawn and trained anew, to compare its standard deviation with.
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

from bagwise import GVGPMIL, BagPipeline, Bags
from bagwise.datasets import make_ct_folder
from bagwise.deep import AttentionFeatures, AttentionMIL
from bagwise.report import BagImagesDisplay
from bagwise.report.predictions import predict_tables
from bagwise.vision import label_slices, read_scans
from experiments._held_out import main, paper_vgpmil, rows
from experiments.deep_mnist import bag_metrics, instance_metrics

TITLE = "Synthetic CT scans, from DICOM folder to slices with uncertainty (psi-VGPMIL paper, 6.3)"
PAPER = "psi-VGPMIL, section 6.3"
NEEDS = ("synthetic",)


class Setting(NamedTuple):
    """How much is drawn and trained."""

    n_train: int
    n_test: int
    n_slices: tuple[int, int]
    size: int  # of a slice on disk; the network sees half of it
    epochs: int


FULL = Setting(60, 40, (6, 9), 64, 20)
QUICK = Setting(40, 20, (4, 7), 32, 20)
# Draws the scans that every fit predicts.
COMMON = 2000


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


def one_seed(
    seed: int, setting: Setting, out: Path
) -> tuple[list[dict[str, Any]], dict[str, tuple[Any, Any]]]:
    """Metrics of the network alone and of both pipelines, and the pipelines' latent functions.

    The first seed draws the figure.
    """
    warnings.simplefilter("ignore", ConvergenceWarning)
    bags, y, _ = read_drawn(setting.n_train, setting, seed)
    test, y_test, slices = read_drawn(setting.n_test, setting, 1000 + seed)
    options = {
        "n_features": 32,
        "batch_size": 4,
        "max_epochs": setting.epochs,
        "patience": 10,
        "random_state": seed,
    }
    start = time.perf_counter()
    features = AttentionFeatures(**options)
    inside = features.fit_transform(bags, y)
    seconds = time.perf_counter() - start
    # The same parameters and seed would train the same network again: it is taken over.
    network = AttentionMIL(**options)
    network.__dict__.update({k: v for k, v in vars(features).items() if k.endswith("_")})
    network.classes_ = np.unique(y)
    alone = network.predict_proba(test)[:, 1]
    by_attention = roc_auc_score(slices, network.attention_weights(test))
    found = [{"model": "AttCNN", **bag_metrics(y_test, alone), "instance AUC": by_attention}]
    again = features.transform(read_drawn(setting.n_test, setting, COMMON)[0])
    latent = {}
    for name, make in {"AttCNN + G-VGPMIL": GVGPMIL, "AttCNN + VGPMIL": paper_vgpmil}.items():
        start = time.perf_counter()
        gp = make(n_inducing=50, random_state=seed).fit(inside, y)
        model = BagPipeline([("features", features), ("gp", gp)])
        took = seconds + time.perf_counter() - start
        made = predict_tables(model, test)
        if seed == 0 and make is GVGPMIL:
            draw(test, made, y_test, slices, out)
        found.append({"model": name, **measured(made, y_test, slices), "fit seconds": took})
        mean, var = gp.predict_latent(again)
        latent[name] = mean, np.sqrt(var)
    return found, latent


def measured(made: Any, y: Any, slices: Any) -> dict[str, float]:
    """Metrics of the predictions of a pipeline for held-out scans."""
    p, q = made.bags["probability"].to_numpy(), made.instances["probability"].to_numpy()
    wrong, std = (q > 0.5) != slices, made.instances["std"].to_numpy()
    return {
        **bag_metrics(y, p),
        **instance_metrics(slices, q),
        "mean std, right slices": std[~wrong].mean(),
        "mean std, wrong slices": std[wrong].mean() if wrong.any() else np.nan,
    }


def spread_over_fits(latent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Predicted latent standard deviation, and that of the mean over fits; per slice, averaged."""
    found = []
    for name in latent[0]:
        mean, std = (np.array([part[name][i] for part in latent]) for i in (0, 1))  # [seeds, N]
        found += [
            {"model": name, "metric": "latent std, predicted", "mean": std.mean()},
            {"model": name, "metric": "latent std, over fits", "mean": mean.std(0, ddof=1).mean()},
        ]
    return found


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
    frame = pd.DataFrame([row for part, _ in found for row in part])
    data = f"{setting.n_train} synthetic CT scans, {setting.size} x {setting.size}"
    table = []
    for name, group in frame.groupby("model", sort=False):
        per_seed = group.drop(columns="model").dropna(axis=1, how="all")
        table += rows(str(name), data, per_seed, {})
    if len(seeds) > 1:
        common = {"data": data, "published": np.nan, "n_seeds": len(seeds), "note": ""}
        table += [{**common, **row} for row in spread_over_fits([latent for _, latent in found])]
    result = pd.DataFrame(table)
    weights = (result["model"] == "AttCNN") & (result["metric"] == "instance AUC")
    result.loc[weights, "note"] = "attention weights used as a score"
    return result


if __name__ == "__main__":
    main(run)
