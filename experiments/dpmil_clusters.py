"""Instances of the clusters that DPMIL finds in each class (DPMIL paper, Figures 4 and 5).

The paper shows patches of Barrett's cancer, which is private; here the instances are 8 x 8 digits,
and a bag is positive when it holds a nine. A row of the picture is one cluster, its instances the
nearest to it, one of each bag. The table says how much weight the heaviest clusters of a class have
(Figure 4).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd

from bagwise import DPMIL
from bagwise.datasets import load_digit_bags
from experiments._held_out import main, quiet_fits, table_row

TITLE = "Clusters of DPMIL and their instances (DPMIL paper, Figures 4 and 5)"
PAPER = "DPMIL, Figures 4 and 5"
NEEDS = ("bundled",)
N_SHOWN, N_CLUSTERS = 8, 3


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Three draws of the bags, the first is shown; quick: one draw."""
    weights: dict[tuple[str, int], list[float]] = {}
    for seed in range(1 if quick else 3):
        data = load_digit_bags(random_state=seed)
        with quiet_fits():
            model = DPMIL(random_state=seed).fit(data.bags, data.y)
        clusters = model.nearest_instances(data.bags, N_SHOWN)
        for name, label in (("negative", 0), ("positive", 1)):
            heavy = sorted((c.weight for c in clusters if c.label == label), reverse=True)
            for k in range(N_CLUSTERS):
                weights.setdefault((name, k), []).append(heavy[k] if k < len(heavy) else 0.0)
        if seed == 0:
            plot(clusters, np.asarray(data.bags.instances), out / "clusters.png")
    return pd.DataFrame(
        table_row("DPMIL", f"digits, {name} class", f"weight of cluster {k + 1}", values)
        for (name, k), values in weights.items()
    )


def plot(clusters: Any, instances: Any, path: Path) -> None:
    """The heaviest clusters of both classes, one in a row."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    kept = []
    for label in (0, 1):
        own = [c for c in clusters if c.label == label and len(c.rows)]
        kept += sorted(own, key=lambda c: -c.weight)[:N_CLUSTERS]
    figure, axes = plt.subplots(len(kept), N_SHOWN, figsize=(N_SHOWN, len(kept)), squeeze=False)
    for line, cluster in zip(axes, kept, strict=True):
        for ax in line:
            ax.axis("off")
        for ax, row in zip(line, cluster.rows, strict=False):
            ax.imshow(instances[row].reshape(8, 8), cmap="gray_r")
        name = "positive" if cluster.label == 1 else "negative"
        line[0].set_title(f"{name} class, weight {cluster.weight:.2f}", loc="left", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main(run)
