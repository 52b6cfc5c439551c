"""Training and predicting from a folder that is larger than the memory it may take.

2,000 bags x 500 instances x 512 features (float32, 2 GB on disk) go through ``bagwise fit`` and
``bagwise predict`` in processes of their own; the peak of their resident memory is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

LIMIT_GB = 1.5
# What the pages quote: the size of the features, and the peak memory of each command.
SIZE = "features on disk, GB"
QUOTED = {name: f"{name} from disk, peak memory in GB" for name in ("fit", "predict")}
# Runs a command and prints the peak resident memory of the process, in bytes.
_CHILD = """
import json, resource, sys
from bagwise.cli import main
code = main(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"code": code, "peak": peak}), file=sys.stderr)
"""


def run(quick: bool) -> list[dict[str, Any]]:
    n_bags, size, width = (40, 50, 64) if quick else (2000, 500, 512)
    rows = []
    with tempfile.TemporaryDirectory(prefix="bagwise-bench-") as place:
        root = Path(place)
        gigabytes = _write(root, n_bags, size, width)
        bags = ["--bags", str(root / "bags")]
        fit = ["fit", *bags, "--labels", str(root / "labels.csv"), "--out", str(root / "m.bagwise")]
        fit += ["--model", "vgpmil", "--set", "n_inducing=100", "--set", "max_iter=20"]
        fit += ["--set", "execution.dtype=float32"]
        predict = ["predict", str(root / "m.bagwise"), *bags, "--out", str(root / "results")]
        for name, command in [("fit", fit), ("predict", predict)]:
            start = time.perf_counter()
            peak = _peak(command) / 1e9
            seconds = time.perf_counter() - start
            rows.append(
                {
                    "what": f"{name}: peak memory (GB) for {gigabytes:.2f} GB of features, "
                    f"{n_bags} bags, {seconds:.0f} s",
                    "value": peak,
                    "must": f"< {LIMIT_GB}",
                    "ok": peak < LIMIT_GB,
                    "quoted": {QUOTED[name]: peak, SIZE: gigabytes},
                }
            )
    return rows


def _write(root: Path, n_bags: int, size: int, width: int) -> float:
    """A folder of .h5 files with a few shifted instances in every second bag."""
    import h5py

    rng = np.random.default_rng(0)
    pool = rng.normal(size=(4 * size, width)).astype(np.float32)
    (root / "bags").mkdir()
    lines = ["slide_id,label"]
    for i in range(n_bags):
        x = pool[rng.integers(len(pool), size=size)] + np.float32(0.1) * pool[i % len(pool)]
        if i % 2:
            x[:20, :64] += 1.5
        with h5py.File(root / "bags" / f"slide_{i:05d}.h5", "w") as file:
            file["features"] = x
            file["coords"] = np.stack([np.arange(size) % 25, np.arange(size) // 25], axis=1) * 256
        lines.append(f"slide_{i:05d},{i % 2}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return n_bags * size * width * 4 / 1e9


def _peak(command: list[str]) -> float:
    made = subprocess.run(
        [sys.executable, "-c", _CHILD, *command], capture_output=True, text=True, check=False
    )
    last = made.stderr.strip().splitlines()[-1] if made.stderr.strip() else ""
    if made.returncode or not last.startswith("{") or json.loads(last)["code"]:
        raise RuntimeError(f"bagwise {command[0]} failed:\n{made.stdout}\n{made.stderr}")
    return float(json.loads(last)["peak"])


if __name__ == "__main__":
    for row in run(quick="--quick" in sys.argv):
        print(f"{row['what']}: {row['value']:.3f} (must be {row['must']})")
