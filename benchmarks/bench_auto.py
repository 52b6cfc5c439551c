"""What choosing costs: AutoVGPMIL on MUSK1 in units of one VGPMIL fit."""

from __future__ import annotations

from time import process_time
from typing import Any

from bagwise import VGPMIL, AutoVGPMIL, datasets

QUOTED = {
    "one VGPMIL fit": "AutoVGPMIL, calibrated fits on MUSK1",
    "one VGPMIL fit without calibration": "AutoVGPMIL, plain fits on MUSK1",
}


def _seconds(model: Any, bags: Any, y: Any) -> float:
    start = process_time()
    model.fit(bags, y)
    return process_time() - start


def run(quick: bool) -> list[dict[str, Any]]:
    bags, y = datasets.load_musk1(return_X_y=True)
    models = {
        "one VGPMIL fit": VGPMIL(random_state=0),
        "one VGPMIL fit without calibration": VGPMIL(random_state=0, calibrate=False),
    }
    plain: dict[str, list[float]] = {name: [] for name in models}
    auto = []
    _seconds(VGPMIL(random_state=0), bags, y)  # imports and caches
    # Processor time, interleaved, best of: the machine may be busy with other things.
    for _ in range(1 if quick else 3):
        for name, model in models.items():
            plain[name] += [_seconds(model, bags, y) for _ in range(5)]
        auto.append(_seconds(AutoVGPMIL(random_state=0), bags, y))
    rows = []
    for name, times in plain.items():
        ratio = min(auto) / min(times)
        what = f"AutoVGPMIL on MUSK1 / {name}"
        quoted = {QUOTED[name]: ratio}
        row = {"what": what, "value": ratio, "must": "< 60", "ok": ratio < 60, "quoted": quoted}
        rows.append(row)
    return rows
