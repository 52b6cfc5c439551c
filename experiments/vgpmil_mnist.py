"""VGPMIL on bags of MNIST digits (Tables 4 and 5 of the psi-VGPMIL paper), held out.

Bags of ten, positive when they hold a 2 or a 9. PCA is fitted on the training digits only.
The settings are those of `vgpmil_musk`. VGPMIL on PCA with H = 1e12, the others with the printed
H = 100; RAW pixels are standardised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.decomposition import PCA
from sklearn.model_selection import StratifiedKFold

from bagwise import Execution
from bagwise.datasets import fetch_mnist_bags
from bagwise.models.presets import preset
from bagwise.models.variational import Gamma, NoisyMax
from experiments._held_out import main, measure, rows
from experiments.vgpmil_musk import FIXED

TITLE = "VGPMIL on MNIST bags (psi-VGPMIL paper, Tables 4 and 5)"
PAPER = "psi-VGPMIL, Tables 4 and 5"
NEEDS = ("mnist",)

NAMES = (
    "instance accuracy",
    "instance F1",
    "instance AUC",
    "bag accuracy",
    "bag F1",
    "bag AUC",
)
PUBLISHED = {
    ("VGPMIL", "PCA"): (0.957, 0.801, 0.970, 0.915, 0.913, 0.965),
    ("G-VGPMIL", "PCA"): (0.956, 0.796, 0.972, 0.913, 0.911, 0.966),
    ("VGPMIL", "RAW"): (0.905, 0.434, 0.876, 0.749, 0.699, 0.848),
    ("G-VGPMIL", "RAW"): (0.916, 0.576, 0.884, 0.782, 0.779, 0.863),
}


def settings(kind: str, seed: int, M: int) -> dict[str, Any]:
    """Those of `vgpmil_musk`; l^2 is the number of features."""
    return {
        **FIXED,
        "n_inducing": M,
        "scale": None if kind == "PCA" else "feature",
        "likelihood": NoisyMax(1e12 if kind == "PCA" else 100.0, schedule="paper"),
        "execution": Execution(dtype="float32"),
        "random_state": seed,
    }


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Five splits of 7000 bags, M = 200; quick: one split of 1000 bags, M = 50."""
    n_bags, M, n_splits = (1000, 50, 1) if quick else (7000, 200, 5)
    data = fetch_mnist_bags(n_bags=n_bags)
    splits = list(StratifiedKFold(5, shuffle=True, random_state=0).split(data.y, data.y))
    table: list[dict[str, Any]] = []
    for kind in ("PCA", "RAW"):
        found: dict[str, list[Any]] = {"VGPMIL": [], "G-VGPMIL": []}
        for seed, (a, b) in enumerate(splits[:n_splits]):
            train, test = data.bags[a], data.bags[b]
            if kind == "PCA":
                pca = PCA(30, svd_solver="covariance_eigh").fit(train.instances)
                train, test = train.map(pca.transform), test.map(pca.transform)
            options = settings(kind, seed, M)
            milder = {**options, "likelihood": NoisyMax(100.0, schedule="paper")}
            makers = {
                "VGPMIL": preset("psi-vgpmil-program", **options),
                "G-VGPMIL": preset("g-vgpmil-program", density=Gamma(1.0, 1.0), **milder),
            }
            for name, model in makers.items():
                found[name].append(measure(model, train, data.y[a], test, data.y[b]))
        for name, values in found.items():
            published = dict(zip(NAMES, PUBLISHED[name, kind], strict=True))
            table += rows(name, f"MNIST {kind}, M={M}", pd.DataFrame(values), published)
    return pd.DataFrame(table)


if __name__ == "__main__":
    main(run)
