"""What each constant of the tracker buys: centre errors without it, on films and clips.

`MIOTracker` runs with one field of `Thresholds` replaced by a value that switches its rule off, or,
where nothing can be switched off, by one far away. Frames and seeds are the same for every
variant, and are not those of `experiments.tracking`. A row is the mean difference of the centre
error, without the rule less with it, over seeds; the spread is that of the differences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bagwise.evaluate import centre_error
from bagwise.vision import start, step
from bagwise.vision.tracker_state import Thresholds
from experiments._clips import KINDS
from experiments._held_out import gather, main, present, table_row
from experiments.tracking import FILMED, _sequence

TITLE = "Tracking: what each constant buys"
PAPER = "none: the rules of this library"
NEEDS = ("synthetic", "tracking/david", "tracking/girl")
VARIANTS: dict[str, dict[str, float]] = {
    "as it is": {},
    "early voters of the first frame": {"early_frames": 1},
    "one pass over the first frame": {"n_passes": 1},
    "motion not followed": {"follows": 2.0},
    "motion alone where it is clear": {"share": 1.0},
    "pictures of the whole box": {"inner": 1.0},
    "pictures may move the place twice as far": {"slip": 0.3},
    "any stretch": {"stretch": 100.0},
    "poor fits count": {"fits": 0.5},
    "no fit counts": {"fits": 2.0},
    "no margin for older pictures": {"margin": 0.0},
    "an unseen size stays": {"relax": 0.0},
    "two pictures": {"n_pictures": 2},
    "no search of the frame": {"n_peaks": 0},
    "doubt at even odds": {"doubt": 0.5},
}
SEEDS = range(200, 204)


def one_run(variant: str, name: str, seed: int, n_frames: int | None) -> dict[str, Any]:
    """Mean centre error of one variant on one sequence."""
    import cv2

    cv2.setNumThreads(1)
    frames, truth = _sequence(name, seed)
    frames, truth = frames[:n_frames], truth[:n_frames]
    state = start(
        frames[0], np.rint(truth[0]), seed=seed, thresholds=Thresholds(**VARIANTS[variant])
    )
    boxes = [np.rint(truth[0])]
    for frame in frames[1:]:
        state, seen = step(state, frame)
        boxes.append(seen.box)
    error = float(centre_error(np.array(boxes), truth))
    return {"variant": variant, "name": name, "seed": seed, "error": error}


def run(quick: bool, out: Path, n_jobs: int = 1) -> pd.DataFrame:
    """Four seeds of both films and every kind of clip; quick: the first frames of one clip."""
    names, absent = present(KINDS[:1] if quick else (*FILMED, *KINDS), lambda name: name)
    seeds, n_frames = (SEEDS[:1], 12) if quick else (SEEDS, None)
    variants = list(VARIANTS)[: 2 if quick else None]
    cells = [(v, name, seed, n_frames) for v in variants for seed in seeds for name in names]
    kept = gather(one_run, cells, out, n_jobs)
    errors = kept.pivot_table(index=["name", "seed"], columns="variant", values="error")
    differences = errors.sub(errors["as it is"], axis=0)
    table = []
    for variant in variants:
        values = errors if variant == "as it is" else differences
        metric = "centre error, px" + ("" if variant == "as it is" else ", difference")
        for name in names:
            table.append(table_row(variant, name, metric, values.loc[name, variant]))
        clips = values[variant].drop(list(FILMED), errors="ignore").groupby("seed").mean()
        table.append(table_row(variant, "all clips", metric, clips))
    return pd.DataFrame([*table, *absent])


if __name__ == "__main__":
    main(run)
