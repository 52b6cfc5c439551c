"""Deep features from bag labels, then a Gaussian process (psi-VGPMIL paper, section 6.3).

The paper's scans cannot be shipped, so bags of MNIST digits stand in: positive when they hold a 2
or a 9. An attention CNN is trained on bag labels. On its own it scores bags, and its attention
ranks instances; its features handed to VGPMIL and G-VGPMIL do both, with probabilities. All three
share one trained network per seed and size. Test bags are dealt from MNIST's test images, each
image about twice: calibration errors of 0.02 need many bags to be told apart.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from bagwise import GVGPMIL
from bagwise.datasets import fetch_mnist_bags
from bagwise.deep import AttentionFeatures, AttentionMIL
from bagwise.evaluate.metrics import expected_calibration_error
from experiments._held_out import main, paper_vgpmil

TITLE = "Attention CNN alone and with a Gaussian process, MNIST bags (psi-VGPMIL paper, 6.3)"
PAPER = "psi-VGPMIL, section 6.3"
NEEDS = ("mnist",)

SIZES = (8, 32, 128)


def bag_metrics(y: Any, p: Any) -> dict[str, float]:
    return {
        "bag accuracy": accuracy_score(y, p > 0.5),
        "bag AUC": roc_auc_score(y, p),
        "bag log-loss": log_loss(y, np.clip(p, 1e-12, 1 - 1e-12)),
        "bag ECE": expected_calibration_error(y, p),
    }


def instance_metrics(truth: Any, p: Any) -> dict[str, float]:
    return {
        "instance accuracy": accuracy_score(truth, p > 0.5),
        "instance AUC": roc_auc_score(truth, p),
        "instance log-loss": log_loss(truth, np.clip(p, 1e-12, 1 - 1e-12)),
        "instance ECE": expected_calibration_error(truth, p),
    }


def one_seed(seed: int, n_features: int, n_train: int, n_test: int, epochs: int) -> pd.DataFrame:
    """Every model on one drawing of bags and one trained network."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    train = fetch_mnist_bags(n_bags=n_train, subset="train", random_state=seed)
    test = fetch_mnist_bags(n_bags=n_test, subset="test", random_state=100 + seed)
    options = {
        "n_features": n_features,
        "image_shape": (28, 28),
        "max_epochs": epochs,
        "patience": 5,
    }
    start = time.perf_counter()
    features = AttentionFeatures(**options, random_state=seed)
    inside = features.fit_transform(train.bags, train.y)
    seconds = time.perf_counter() - start
    outside = features.transform(test.bags)
    # The same parameters and seed would train the same network again: it is taken over.
    network = AttentionMIL(**options, random_state=seed)
    network.__dict__.update({k: v for k, v in vars(features).items() if k.endswith("_")})
    network.classes_ = np.unique(train.y)
    rows = [
        {
            "model": "AttCNN",
            **bag_metrics(test.y, network.predict_proba(test.bags)[:, 1]),
            "instance AUC": roc_auc_score(
                test.instance_labels, network.attention_weights(test.bags)
            ),
            "fit seconds": seconds,
        }
    ]
    for name, make in {"AttCNN + VGPMIL": paper_vgpmil, "AttCNN + G-VGPMIL": GVGPMIL}.items():
        start = time.perf_counter()
        model = make(n_inducing=100, random_state=seed).fit(inside, train.y)
        gp_seconds = time.perf_counter() - start
        p = model.predict_proba(outside)[:, 1]
        q = model.predict_proba_instances(outside)[:, 1]
        rows.append(
            {
                "model": name,
                **bag_metrics(test.y, p),
                **instance_metrics(test.instance_labels, q),
                "fit seconds": seconds + gp_seconds,
            }
        )
    return pd.DataFrame(rows).assign(seed=seed, n_features=n_features)


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """2000 training bags, five seeds, three sizes; quick: 200 bags, one seed, one size."""
    sizes, seeds = ((32,), range(1)) if quick else (SIZES, range(5))
    n_train, n_test, epochs = (200, 200, 5) if quick else (2000, 2000, 25)
    found = Parallel(n_jobs)(
        delayed(one_seed)(seed, size, n_train, n_test, epochs) for size in sizes for seed in seeds
    )
    long = pd.concat(found).melt(["model", "seed", "n_features"], var_name="metric").dropna()
    grouped = long.groupby(["n_features", "model", "metric"])["value"]
    table = grouped.agg(["mean", "std", "count"]).reset_index()
    return pd.DataFrame(
        {
            "model": table["model"],
            "data": [f"MNIST bags, {d} features" for d in table["n_features"]],
            "metric": table["metric"],
            "published": np.nan,
            "mean": table["mean"],
            "spread": table["std"],
            "n_seeds": table["count"],
            "note": np.where(
                (table["model"] == "AttCNN") & (table["metric"] == "instance AUC"),
                "attention weights used as a score",
                "",
            ),
        }
    )


if __name__ == "__main__":
    main(run)
