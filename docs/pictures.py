"""Draw the picture of the README: ``python docs/pictures.py`` writes ``docs/_static/mil.png``.

Left: training bags with the only thing that is labelled, the bag. Right: held-out bags with what
the model, fitted to 105 such bags, says of them and of every digit inside.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyBboxPatch

from bagwise import AutoVGPMIL
from bagwise.datasets import load_digit_bags

OUT = Path(__file__).parent / "_static" / "mil.png"
POSITIVE, NEGATIVE, INK = "#c2410c", "#475569", "#0f172a"
N_TRAIN, ROWS, CELL, GAP = 105, 3, 1.0, 0.62


def draw_bag(axes, bag, left, top, width, color):
    """One bag as a card of digits."""
    card = FancyBboxPatch(
        (left - 0.15, top - CELL - 0.15),
        width * CELL + 0.3,
        CELL + 0.3,
        boxstyle="round,pad=0.02,rounding_size=0.16",
        facecolor="white",
        edgecolor=color,
        linewidth=2,
        zorder=-1,
    )
    axes.add_patch(card)
    for i, digit in enumerate(bag):
        x, inset = left + i * CELL, 0.08
        extent = (x + inset, x + CELL - inset, top - CELL + inset, top - inset)
        axes.imshow(digit.reshape(8, 8), extent=extent, cmap="gray_r", interpolation="bicubic")


def choose(sizes, y, labels, most):
    """Bags of each class that fit the picture, in their order."""
    small = np.flatnonzero((sizes >= most - 1) & (sizes <= most))
    return [int([i for i in small if y[i] == label][k]) for k, label in labels]


def main() -> None:
    """Fit, choose the first bags that fit the picture, and draw."""
    data = load_digit_bags()
    bags, y = data.bags, data.y
    model = AutoVGPMIL(random_state=0).fit(bags[:N_TRAIN], y[:N_TRAIN])
    held_out, y_held_out = bags[N_TRAIN:], y[N_TRAIN:]
    p_bag = model.predict_proba(held_out)[:, 1]
    p = model.predict_proba_instances(held_out)
    width = 7
    figure, axes = plt.subplots(figsize=(15, 5.4))
    step = CELL + GAP + 0.35
    right = width * CELL + 4.4
    for row, i in enumerate(choose(bags.sizes[:N_TRAIN], y, [(1, 1), (0, 0), (2, 1)], width)):
        top = -row * step
        color = POSITIVE if y[i] else NEGATIVE
        draw_bag(axes, bags[i], 0, top, len(bags[i]), color)
        words = "label: holds a nine" if y[i] else "label: holds none"
        axes.text(-0.1, top - CELL - 0.5, words, color=color, fontsize=13, weight="bold")
    order = choose(held_out.sizes, y_held_out, [(0, 1), (0, 0), (1, 1)], width)
    for row, i in enumerate(order):
        top = -row * step
        color = POSITIVE if p_bag[i] > 0.5 else NEGATIVE
        draw_bag(axes, held_out[i], right, top, len(held_out[i]), color)
        words = f"bag: {p_bag[i]:.2f}"
        end = right + len(held_out[i]) * CELL + 0.45
        axes.text(end, top - CELL / 2, words, color=color, fontsize=13, weight="bold", va="center")
        for k in range(len(held_out[i])):
            n = held_out.offsets[i] + k
            strong = p[n, 1] > 0.3
            axes.text(
                right + (k + 0.5) * CELL,
                top - CELL - 0.46,
                f"{p[n, 1]:.2f}",
                ha="center",
                fontsize=12,
                weight="bold" if strong else "normal",
                color=POSITIVE if strong else NEGATIVE,
            )
    heads = {
        "What you have: labelled bags": 0,
        "What you get: a probability for each bag and each instance": right,
    }
    for words, left in heads.items():
        axes.text(left - 0.1, 0.55, words, fontsize=15, weight="bold", color=INK)
    middle = -step * (ROWS - 1) / 2 - CELL / 2
    axes.annotate(
        "",
        (right - 0.7, middle),
        (width * CELL + 0.9, middle),
        arrowprops={"arrowstyle": "-|>", "linewidth": 2.5, "color": INK, "mutation_scale": 24},
    )
    centre = (width * CELL + right + 0.2) / 2
    axes.text(centre, middle + 0.25, "fit(bags, y)", ha="center", fontsize=13, family="monospace")
    limits = {"xlim": (-0.4, right + width * CELL + 2.3), "ylim": (-ROWS * step + 0.5, 1.0)}
    axes.set(**limits, aspect="equal")
    axes.set_axis_off()
    figure.savefig(OUT, dpi=110, bbox_inches="tight", facecolor="white")


if __name__ == "__main__":
    main()
