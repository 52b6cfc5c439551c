"""Slides from files: ``python -m experiments.slides [--seeds 0 1] [--slides 80 160] [--jobs N]``.

Folders of made slides, a file of patch features each: half of the slides hold tumour, in 0.5 to 5 %
of their patches. The default settings of `VGPMIL` and `AutoVGPMIL`, fitted to the labels of the
slides; bag AUC, log-loss and patch AUC are of sixty other slides, beside the log-loss of the base
rate. Seconds are those of a fit and of reading its files, by the clock.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score

from bagwise import VGPMIL, AutoVGPMIL
from bagwise.datasets import make_slides
from bagwise.files import read_bags
from experiments._held_out import gather, importable, quiet_fits, rows

TITLE = "Slides from files: probabilities of slides and patches"
PAPER = "none: this library's own models"
NEEDS = ("synthetic",)
MODELS = {"VGPMIL": VGPMIL, "AutoVGPMIL": AutoVGPMIL}
METRICS = ["bag AUC", "log-loss", "log-loss of the base rate", "patch AUC", "fit seconds"]
SEEDS, SIZES, PATCHES, FEATURES, N_NEW = (0, 1, 2), (80, 160), (2000, 8000), 768, 60


def one_run(
    seed: int, n_slides: int, patches: tuple[int, int], n_features: int, model: str
) -> dict[str, Any]:
    """One model on the slides of one seed."""
    with tempfile.TemporaryDirectory() as folder:
        truth = make_slides(n_slides + N_NEW, patches, n_features, to=folder, random_state=seed)
        start = time.perf_counter()
        bags = read_bags(folder)
        fitted = MODELS[model](random_state=0)
        with quiet_fits():
            fitted.fit(bags[:n_slides], truth.y[:n_slides])
        seconds = time.perf_counter() - start
        new, y = bags[n_slides:], truth.y[n_slides:]
        p = fitted.predict_proba(new)[:, 1]
        q = fitted.predict_proba_instances(new)[:, 1]
    base = np.full(len(y), truth.y[:n_slides].mean())
    of_patches = truth.instance_labels[bags.offsets[n_slides] :]
    values = (
        roc_auc_score(y, p),
        log_loss(y, p, labels=[0, 1]),
        log_loss(y, base, labels=[0, 1]),
        roc_auc_score(of_patches, q),
        seconds,
    )
    about = {"model": model, "data": f"{n_slides} slides, {n_features} features", "seed": seed}
    return about | dict(zip(METRICS, values, strict=True))


def run(
    quick: bool,
    out: Path,
    n_jobs: int = 1,
    seeds: tuple[int, ...] = SEEDS,
    sizes: tuple[int, ...] = SIZES,
    patches: tuple[int, int] = PATCHES,
    n_features: int = FEATURES,
) -> pd.DataFrame:
    """Three seeds of 80 and of 160 slides; quick: one seed of few small ones."""
    if quick:
        seeds, sizes, patches, n_features = (0,), (20,), (40, 60), 16
    tasks = [(s, n, patches, n_features, m) for s in seeds for n in sizes for m in MODELS]
    fits = gather(one_run, tasks, out, n_jobs)
    fits.to_csv(out / "fits.csv", index=False)
    table: list[dict[str, Any]] = []
    for (data, model), part in fits.groupby(["data", "model"], sort=False):
        table += rows(str(model), str(data), part[METRICS], {})
    return pd.DataFrame(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("reproduction"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--slides", type=int, nargs="+", default=SIZES, help="training slides")
    parser.add_argument("--patches", type=int, nargs=2, default=PATCHES, help="fewest and most")
    parser.add_argument("--features", type=int, default=FEATURES)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    table = importable(run)(
        given.quick,
        given.out,
        given.jobs,
        tuple(given.seeds),
        tuple(given.slides),
        tuple(given.patches),
        given.features,
    )
    print(table.round(3).to_string(index=False))


if __name__ == "__main__":
    main()
