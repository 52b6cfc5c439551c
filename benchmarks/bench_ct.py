"""CT scans in constant memory: ``bagwise ct fit`` and ``ct predict`` on ten and on forty studies.

The studies have CQ500's layout at full resolution, 512 x 512. Each command runs in a process of its
own, whose peak of resident memory is measured: four times the scans must not need more of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.vision.cq500 import write_cq500

# Runs a command and prints the peak resident memory of the process, in bytes.
_CHILD = """
import json, resource, sys
from bagwise.cli import main
code = main(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"code": code, "peak": peak}), file=sys.stderr)
"""
LIMIT = 1.1


def run(quick: bool) -> list[dict[str, Any]]:
    """Peak memory of each command, and its ratio between many and few studies."""
    few, many, n_slices, size = (4, 8, 3, 32) if quick else (10, 40, 10, 512)
    peaks = {}
    with tempfile.TemporaryDirectory(prefix="bagwise-bench-") as place:
        for n in (few, many):
            root = Path(place) / f"scans{n}"
            truth = write_cq500(root, n_scans=n, n_slices=n_slices, size=size, random_state=0)
            model = str(root.with_suffix(".bagwise"))
            data = ["--scans", str(root), "--labels", str(truth.labels)]
            peaks["fit", n] = _peak(["ct", "fit", *data, "--classes", "ICH", "--out", model])
            results = str(root.with_suffix(".results"))
            peaks["predict", n] = _peak(["ct", "predict", model, *data, "--out", results])
    gigabytes = many * (3 * n_slices + 1) * size**2 * 2 / 1e9
    return [
        {
            "what": f"ct {command}: peak memory of {many} studies ({gigabytes:.2f} GB, "
            f"{peaks[command, many] / 1e6:.0f} MB) against {few}",
            "value": peaks[command, many] / peaks[command, few],
            "must": f"<= {LIMIT}",
            "ok": peaks[command, many] <= LIMIT * peaks[command, few],
            "quoted": {f"CT, forty studies, ct {command}, peak MB": peaks[command, many] / 1e6},
        }
        for command in ("fit", "predict")
    ]


def _peak(command: list[str]) -> int:
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, *command], capture_output=True, text=True, check=False
    )
    last = child.stderr.strip().splitlines()[-1:] or [""]
    try:
        report = json.loads(last[0])
    except json.JSONDecodeError as error:
        raise RuntimeError(f"{' '.join(command)} failed:\n{child.stderr}") from error
    if report["code"] != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{child.stderr}")
    return int(report["peak"])
