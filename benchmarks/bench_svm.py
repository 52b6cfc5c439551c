"""MISVM on MUSK2, in units of one SVC fitted to the same rows."""

from __future__ import annotations

import time
from typing import Any

from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from bagwise import MISVM
from bagwise.datasets import load_musk1, load_musk2

QUOTED = {
    "bag": "MI-SVM, fits of one SVC on MUSK2",
    "instance": "MI-SVM slack per instance, fits of one SVC on MUSK2",
}


def run(quick: bool) -> list[dict[str, Any]]:
    bags, y = (load_musk1 if quick else load_musk2)(return_X_y=True)
    bags = bags.map(StandardScaler().fit_transform)
    times: dict[str, list[float]] = {"svc": [], "bag": [], "instance": []}
    for _ in range(3):
        models = {
            "bag": MISVM(C=10, scale=None, calibrate=False),
            "instance": MISVM(C=10, slack="instance", scale=None, calibrate=False),
        }
        for name, model in models.items():
            start = time.perf_counter()
            model.fit(bags, y)
            times[name].append(time.perf_counter() - start)
        start = time.perf_counter()
        SVC(C=10).fit(bags.instances, y[bags.bag_index])
        times["svc"].append(time.perf_counter() - start)
    unit = min(times["svc"])
    rows = []
    for slack in ("bag", "instance"):
        ratio = min(times[slack]) / unit
        rows.append(
            {
                "what": f"MI-SVM with slack per {slack} / one SVC, {'MUSK1' if quick else 'MUSK2'}",
                "value": ratio,
                # 72 s of the published package / 50 = 1.44 s, where one SVC takes 0.3 s.
                "must": "<= 4.8 on MUSK2",
                "ok": quick or ratio <= 4.8,
                "quoted": {QUOTED[slack]: ratio},
            }
        )
    return rows
