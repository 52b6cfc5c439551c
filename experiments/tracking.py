"""MIOTracker beside OpenCV's MIL tracker on David, Girl and made clips: centre error and speed."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bagwise.datasets import fetch_tracking
from bagwise.evaluate import centre_error
from bagwise.vision import MIOTracker, track
from experiments._clips import KINDS, make_clip
from experiments._held_out import present

TITLE = "Tracking: mean centre error in pixels (Li, Kwok, Lu 2010, table 2)"
PAPER = "MIO, Table 2"
NEEDS = ("synthetic", "tracking/david", "tracking/girl")
# Published: MIO and MILTrack, five runs each.
PUBLISHED = {("MIO", "david"): 15.0, ("MIL (OpenCV)", "david"): 23.0}
PUBLISHED |= {("MIO", "girl"): 31.0, ("MIL (OpenCV)", "girl"): 32.0}


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Both trackers on the same frames, seed by seed, one after the other."""
    import cv2

    cv2.setNumThreads(1)
    out.mkdir(parents=True, exist_ok=True)
    rows, curves = [], {}
    sequences, absent = present(("david", "girl", *KINDS), lambda name: _sequence(name, 0))
    for name in sequences:
        results: dict[str, list[Any]] = {"MIO": [], "MIL (OpenCV)": []}
        for seed in range(1 if quick else 2 if name in KINDS else 5):
            frames, truth = _sequence(name, seed)
            n = 60 if quick else len(frames)
            frames, truth = frames[:n], truth[:n]
            _warm_up(frames, truth[0])
            results["MIO"].append(_follow(MIOTracker(random_state=seed), frames, truth))
            cv2.setRNGSeed(seed)
            results["MIL (OpenCV)"].append(_follow(cv2.TrackerMIL_create(), frames, truth))
        for model, runs in results.items():
            errors = np.array([r[0] for r in runs])
            speeds = np.array([r[1] for r in runs])
            if name not in KINDS:
                curves[name, model] = np.mean([r[2] for r in runs], axis=0)
            published = PUBLISHED.get((model, name), np.nan)
            rows.append(_row(model, name, "centre error, px", published, errors))
            rows.append(_row(model, name, "frames per second", np.nan, speeds))
        pd.DataFrame(rows).to_csv(
            out / "tracking.csv", index=False
        )  # a long run: keep what is done
    if curves:
        _plot(curves, out)
    return pd.DataFrame([*rows, *absent])


def _sequence(name: str, seed: int) -> tuple[Any, Any]:
    """Frames and true boxes; a made clip is another one for each seed."""
    if name in KINDS:
        return make_clip(name, seed)
    data = fetch_tracking(name)
    return data.frames, data.gt.astype(np.float64)


def _warm_up(frames: Any, truth: Any) -> None:
    """Compile before the clock starts."""
    track(frames[:3], truth, MIOTracker(random_state=0))


def _follow(tracker: Any, frames: Any, truth: Any) -> tuple[float, float, Any]:
    colour = [np.repeat(frame[..., None], 3, axis=2) for frame in frames]
    box = tuple(round(float(v)) for v in truth[0])
    start = time.perf_counter()
    result = track(colour, box, tracker)
    seconds = time.perf_counter() - start
    known = np.isfinite(truth).all(axis=1)
    gap = (result.boxes[:, :2] + result.boxes[:, 2:] / 2) - (truth[:, :2] + truth[:, 2:] / 2)
    distance = np.hypot(gap[known, 0], gap[known, 1])
    return centre_error(result.boxes, truth), len(frames) / seconds, distance


def _row(model: str, data: str, metric: str, published: float, values: Any) -> dict[str, Any]:
    return {
        "model": model,
        "data": data,
        "metric": metric,
        "published": published,
        "mean": values.mean(),
        "spread": values.std(ddof=1) if len(values) > 1 else 0.0,
        "n_seeds": len(values),
        "note": " ".join(f"{v:.1f}" for v in values),
    }


def _plot(curves: dict[tuple[str, str], Any], out: Path) -> None:
    import matplotlib.pyplot as plt

    names = sorted({name for name, _ in curves})
    figure, axes = plt.subplots(1, len(names), figsize=(9, 3), squeeze=False, layout="constrained")
    for axis, name in zip(axes[0], names, strict=True):
        for (sequence, model), distance in curves.items():
            if sequence == name:
                axis.plot(np.linspace(0, 1, len(distance)), distance, label=model)
        axis.set(title=name, xlabel="share of the sequence", ylabel="centre error, pixels")
    axes[0, 0].legend()
    figure.savefig(out / "tracking.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    print(run(options.quick, options.out).to_string())
