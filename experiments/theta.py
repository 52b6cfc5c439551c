"""The precision theta that an update gives an instance, by its latent value (psi-VGPMIL, Figure 1).

VGPMIL's theta(x) = tanh(x/2) / (2x) lies below its bounds 1/4, which it has at 0, and 1 / (2|x|).
G-VGPMIL's alpha / (beta + x²/2) begins at alpha / beta and falls faster: instances far from the
decision surface count for less.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd

from bagwise.models.variational import Gamma, Sech
from experiments._held_out import main

TITLE = "Theta of VGPMIL and of G-VGPMIL (psi-VGPMIL paper, Figure 1)"
PAPER = "psi-VGPMIL, Figure 1"
NEEDS = ()
DENSITIES: dict[str, Any] = {
    "VGPMIL": Sech(),
    **{f"G-VGPMIL, alpha = 1, beta = {beta}": Gamma(1.0, float(beta)) for beta in (1, 2, 4, 8)},
}
PLACES = (0.0, 1.0, 2.0, 5.0, 10.0)


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Theta at five latent values; deterministic, so there are no seeds."""
    plot(out / "theta.png")
    empty = {"published": np.nan, "spread": np.nan, "n_seeds": np.nan, "note": ""}
    return pd.DataFrame(
        {"model": name, "data": f"x = {x:g}", "metric": "theta", "mean": float(value), **empty}
        for name, density in DENSITIES.items()
        for x, value in zip(PLACES, density.theta(np.array(PLACES)), strict=True)
    )


def plot(path: Path) -> None:
    """All curves, and the bounds of VGPMIL's."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    x = np.linspace(0, 10, 400)
    figure, ax = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
    for (name, density), colour in zip(
        DENSITIES.items(), ("k", "C0", "C1", "C2", "C4"), strict=True
    ):
        ax.plot(x, density.theta(x), color=colour, label=name)
    ax.axhline(0.25, color="0.6", ls=":", label="1/4")
    ax.plot(x[20:], 1 / (2 * x[20:]), color="0.6", ls="--", label="1 / (2x)")
    ax.set(xlabel="x", ylabel="theta(x)", ylim=(0, 1.05))
    ax.legend(fontsize=7)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main(run)
