"""Minutes, memory and accuracy by size of the data, machine and model, from files to a report.

``python -m benchmarks.decide [--sizes small slides ten] [--machines 2 16 cuda] [--models ...]``
prints one table. Every cell is a process of its own: it reads the training files, fits a model with
its default settings, saves it, reads sixty new slides and writes tables and a report of them. Two
and sixteen are cores; models that take longer than ``--minutes`` are ended. The figures of the new
slides are the areas under the ROC curve of bags and instances, and the log-loss of bags.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.stored import store

# Training slides, patches of each, features, and how many times over the files are listed.
SIZES = {
    "tiny": (8, (40, 60), 16, 1),
    "small": (60, (200, 400), 256, 1),
    "slides": (160, (2000, 8000), 768, 1),
    "ten": (160, (2000, 8000), 768, 10),
}
N_NEW = {"tiny": 4}
MODELS = {
    "VGPMIL": "bagwise.models.variational:VGPMIL",
    "AutoVGPMIL": "bagwise.models.variational:AutoVGPMIL",
    "AttentionMIL": "bagwise.deep:AttentionMIL",
}
# What pages quote, by size and model, on a GPU.
QUOTED = {
    ("slides", "VGPMIL"): "GPU VGPMIL fit of 160 slides, seconds",
    ("slides", "AttentionMIL"): "GPU AttentionMIL fit of 160 slides, seconds",
    ("ten", "VGPMIL"): "GPU VGPMIL fit of 1,600 slides, seconds",
}
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def make_data(root: Path, size: str) -> None:
    """Folders ``train`` and ``new`` of slides, and the labels of their patches."""
    from bagwise.datasets import make_slides

    n_slides, patches, n_features, times = SIZES[size]
    n_new = N_NEW.get(size, 60)
    slides = root / "slides"
    truth = make_slides(n_slides + n_new, patches, n_features, to=slides, random_state=0)
    (root / "new").mkdir()
    (root / "train").mkdir()
    files = sorted(slides.glob("*.h5"))
    for file in files[n_slides:]:
        file.rename(root / "new" / file.name)
    lines = ["slide_id,label"]
    for k in range(times):
        for i, file in enumerate(files[:n_slides]):
            os.link(file, root / "train" / f"{file.stem}_{k}.h5")
            lines.append(f"{file.stem}_{k},{truth.y[i]}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    np.savez(root / "truth.npz", y=truth.y[n_slides:], patches=truth.instance_labels)


def one_cell(root: Path, name: str, execution: str | None) -> dict[str, Any]:
    """Fit and report one model; seconds, gigabytes and the figures of the new slides."""
    import importlib

    from sklearn.metrics import log_loss, roc_auc_score

    from bagwise import load, persist, save
    from bagwise.core import segments
    from bagwise.files import read_bags, read_training
    from bagwise.report import predict_tables, write_predictions
    from bagwise.report.html import Report, write_report

    home, _, class_name = MODELS[name].partition(":")
    model = getattr(importlib.import_module(home), class_name)(random_state=0, execution=execution)
    seconds = {}

    def done(what: str) -> None:
        now = time.perf_counter()
        seconds[what] = now - clock[-1]
        clock.append(now)

    clock = [time.perf_counter()]
    data = read_training(root / "train", root / "labels.csv")
    done("read")
    model.fit(data.bags, data.y)
    done("fit")
    path = save(model, root / f"{name}.bagwise", bags=data.bags, y=data.y)
    model, new = load(path), read_bags(root / "new")
    with tempfile.TemporaryDirectory(dir=root) as folder:
        predictions = predict_tables(model, new)
        write_predictions(predictions, folder)
        write_report(Report(predictions, new, persist.about(path)), Path(folder) / "report.html")
    done("report")
    truth = np.load(root / "truth.npz")
    p = predictions.bags["probability"].to_numpy()
    if predictions.instances is not None:
        score = predictions.instances["probability"].to_numpy()
    else:  # attention sums to one in every bag; what a bag is called decides between bags
        attention = model.attention_weights(new)
        relative = attention / segments.spread(segments.max(attention, new.offsets), new.offsets)
        score = relative * segments.spread(p, new.offsets)
    of_instances = roc_auc_score(truth["patches"][-len(score) :], score)
    device = 0.0
    if execution is not None:
        import torch

        device = torch.cuda.max_memory_allocated() / 1e9
    return {
        **seconds,
        "GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "GB on the GPU": device,
        "bag AUC": roc_auc_score(truth["y"], p),
        "log-loss": log_loss(truth["y"], p),
        "instance AUC": of_instances,
    }


def in_process(root: Path, name: str, machine: str, minutes: float) -> dict[str, Any]:
    """`one_cell` in a process that may use so many cores, or a GPU, and so many minutes."""
    cores = len(os.sched_getaffinity(0)) if machine == "cuda" else int(machine)
    environment = {**os.environ, **dict.fromkeys(_THREADS, str(cores))}
    command = [sys.executable, "-m", "benchmarks.decide", "--cell", str(root), name, machine]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60 * minutes,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"said": f"ended after {minutes:g} minutes"}
    if done.returncode:
        return {"said": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decide", description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small", "slides"])
    parser.add_argument("--machines", nargs="+", default=["2"], help="numbers of cores, or cuda")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--minutes", type=float, default=10, help="after which a model is ended")
    parser.add_argument("--csv", type=Path, help="also write the table there")
    parser.add_argument("--store", action="store_true", help="keep figures that pages quote")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        root, name, machine = arguments.cell
        if machine != "cuda" and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(machine)])
        cell = one_cell(Path(root), name, "cuda" if machine == "cuda" else None)
        print(json.dumps(cell))
        return
    rows = []
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory(prefix="bagwise-decide-") as root:
            make_data(Path(root), size)
            gigabytes = sum(f.stat().st_size for f in Path(root, "train").iterdir()) / 1e9
            for machine in arguments.machines:
                for name in arguments.models:
                    cell = in_process(Path(root), name, machine, arguments.minutes)
                    about = {"data": f"{size}, {gigabytes:.2g} GB", "machine": machine}
                    rows.append({**about, "model": name, **cell})
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                    if arguments.store and machine == "cuda" and (size, name) in QUOTED:
                        command = f"python -m benchmarks.decide --sizes {size} --machines cuda"
                        store(
                            {QUOTED[size, name]: cell["fit"]}, command, "one NVIDIA H200, 16 cores"
                        )
                    if arguments.csv:
                        pd.DataFrame(rows).to_csv(arguments.csv, index=False)
    print(pd.DataFrame(rows).round(3).to_string(index=False, na_rep=""))


if __name__ == "__main__":
    main()
