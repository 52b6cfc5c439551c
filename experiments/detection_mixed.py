"""Mixed supervision: AP and honesty of box probabilities as more images have true boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss

from bagwise.evaluate import box_iou
from bagwise.vision import WeakDetector
from experiments._held_out import main
from experiments.detection_bccd import SETTINGS, describe, load, measure, row

TITLE = "Mixed supervision on BCCD: test images, by the share of positive images with boxes"
PAPER = "none: boxes for some images"
NEEDS = ("detection/bccd",)
METRICS = ("AP", "log loss of boxes", "Brier score of boxes, %")
SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)


def run(quick: bool, out: Path, n_jobs: int = 1, class_name: str = "Platelets") -> pd.DataFrame:
    """For each seed the boxed images are a growing random subset."""
    data, y, train, test, boxes = load(quick, class_name)
    truth = [boxes[i] for i in test]
    true_train = [boxes[i] for i in train]
    parts = {
        name: [describe(data, setting["min_side"], part) for part in (train, test)]
        for name, setting in SETTINGS.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    rows: list[Any] = []
    curves: dict[str, list[Any]] = {name: [] for name in SETTINGS}
    for share in SHARES:
        for name, setting in SETTINGS.items():
            values = []
            for seed in range(1 if quick else 5):
                order = np.random.default_rng(seed).permutation(np.flatnonzero(y[train]))
                boxed = set(order[: round(share * len(order))].tolist())
                given = [
                    {class_name: b} if i in boxed and len(b) else None
                    for i, b in enumerate(true_train)
                ]
                detector = WeakDetector(
                    pca=setting["pca"],
                    contrast=setting["contrast"],
                    random_state=seed,
                ).fit(parts[name][0], y[train][:, None], given, [class_name])
                held_out = parts[name][1]
                ap = measure(detector.predict(held_out), truth, y[test])[1]
                values.append((ap, *box_honesty(detector, held_out, truth)))
            columns = np.transpose(values)
            curves[name].append(columns[0])
            for metric, column in zip(METRICS, columns, strict=True):
                rows.append(row(f"VGPMIL, {name}", f"boxes for {share:.0%}", metric, column))
        pd.DataFrame(rows).to_csv(out / "detection_mixed.csv", index=False)  # keep what is done
    _plot({name: np.transpose(values) for name, values in curves.items()}, out)
    return pd.DataFrame(rows)


def box_honesty(detector: WeakDetector, bags: Any, truth: Any) -> tuple[float, float]:
    """Log loss and Brier score of the probabilities that proposals overlap a true box by half.

    One test image has a white cell boxed as a platelet: a third of the log loss and more.
    """
    proposed = bags.split(bags.columns["boxes"])
    overlap = [box_iou(p, t).max(axis=1, initial=0) for p, t in zip(proposed, truth, strict=True)]
    shown = np.concatenate(overlap) >= 0.5
    p = detector.score_boxes(bags)[1]
    return float(log_loss(shown, p)), float(100 * np.mean((p - shown) ** 2))


def _plot(curves: dict[str, Any], out: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for name, values in curves.items():
        spread = values.std(axis=0)
        axis.errorbar(SHARES, values.mean(axis=0), spread, marker="o", capsize=3, label=name)
    axis.set(xlabel="share of positive images with boxes", ylabel="AP, test images", ylim=(0, 1))
    axis.legend()
    figure.savefig(out / "detection_mixed.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main(run)
