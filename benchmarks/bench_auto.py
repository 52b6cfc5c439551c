"""What choosing costs: AutoVGPMIL on MUSK1 in units of one plain VGPMIL fit."""

from __future__ import annotations

from time import process_time
from typing import Any

from bagwise import VGPMIL, AutoVGPMIL, datasets


def _seconds(model: Any, bags: Any, y: Any) -> float:
    start = process_time()
    model.fit(bags, y)
    return process_time() - start


def run(quick: bool) -> list[dict[str, Any]]:
    bags, y = datasets.load_musk1(return_X_y=True)
    plain, auto = [], []
    _seconds(VGPMIL(random_state=0), bags, y)  # imports and caches
    # Processor time, interleaved, best of: the machine may be busy with other things.
    for _ in range(1 if quick else 3):
        plain += [_seconds(VGPMIL(random_state=0), bags, y) for _ in range(5)]
        auto.append(_seconds(AutoVGPMIL(random_state=0), bags, y))
        plain += [_seconds(VGPMIL(random_state=0), bags, y) for _ in range(5)]
    ratio = min(auto) / min(plain)
    return [
        {
            "what": "AutoVGPMIL on MUSK1 / one VGPMIL fit",
            "value": ratio,
            "must": "< 60",
            "ok": ratio < 60,
        }
    ]
