"""What people wait for first: importing, saving, a first fit, a folder of files, Ctrl-C.

Ratios of processor time, each in one run; bytes and memory are what the system counts for a command
beyond its libraries, over the size of the files. ``--quick`` takes small data.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

_CPU = """
import time, warnings
warnings.simplefilter("ignore")
def cpu(job):
    start = time.process_time()
    job()
    return time.process_time() - start
"""
_SAVE = """
import os, tempfile
from bagwise import VGPMIL, save
from bagwise.datasets import make_gaussian_bags
bags, y = make_gaussian_bags(n_bags=30, random_state=0, return_X_y=True)
model = VGPMIL(n_inducing=10, random_state=0).fit(bags, y)
path = os.path.join(tempfile.mkdtemp(), "m.bagwise")
seconds = [cpu(lambda: save(model, path)) for _ in range(5)]
print(seconds[0] / min(seconds))
"""
_FIRST_FIT = """
from bagwise import VGPMIL
from bagwise.datasets import make_gaussian_bags
made = dict(n_bags={n_bags}, bag_size=(20, 20), n_features=38, random_state=0, return_X_y=True)
bags, y = make_gaussian_bags(**made)
seconds = [cpu(lambda: VGPMIL(random_state=0).fit(bags, y)) for _ in range(3)]
print(seconds[0] / min(seconds))
"""
# Runs a command and says what it took beyond the import of its libraries.
_COMMAND = """
import json, resource, sys, time
import bagwise.report.html, bagwise.report.predictions, bagwise.report.data, bagwise.persist
from bagwise import VGPMIL, AutoVGPMIL
from bagwise.cli import main
import bagwise.cli.fit, bagwise.cli.predict, matplotlib.figure, pyarrow.parquet, jinja2, h5py
if {no_memory}:
    from bagwise.files import reading
    reading._IN_MEMORY = 0
def read():
    return int(open("/proc/self/io").readline().split()[1])
def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
libraries, before, start = peak_memory(), read(), time.process_time()
code = main(sys.argv[1:])
peak = peak_memory() - libraries
seconds = time.process_time() - start
print(json.dumps({{"code": code, "read": read() - before, "peak": peak, "seconds": seconds}}))
"""
_LONG_FIT = """
import signal
import numpy as np
from bagwise import Bags, {model}
rng = np.random.default_rng(0)
X, y = rng.normal(size=(100_000, 100)), np.tile([0, 1], 100)
X[::500] += y[:, None]
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by jobs in the background
print("fitting", flush=True)
{model}(random_state=0).fit(Bags(X, np.arange(0, 100_001, 500)), y)
"""


def run(quick: bool) -> Iterator[dict[str, Any]]:
    programs = ("import sklearn.svm", "from bagwise import VGPMIL")
    svm, ours = (min(_children_cpu(code) for _ in range(3)) for code in programs)
    yield _row("import: from bagwise import VGPMIL over import sklearn.svm", ours / svm, 1.2)
    yield _row("first save over later ones", _printed(_CPU + _SAVE), 20)
    fits = _CPU + _FIRST_FIT.format(n_bags=40 if quick else 500)
    yield _row("first fit over later ones, 10,000 x 38", _printed(fits), 1.3)
    for model in ("VGPMIL", "AutoVGPMIL", "GVGPMIL"):
        yield _row(f"Ctrl-C in {model}().fit, seconds", _interrupted(model), 1)
    with tempfile.TemporaryDirectory(prefix="bagwise-bench-") as place:
        yield from _folder(Path(place), *((8, 500) if quick else (60, 5000)))


def _folder(root: Path, n_files: int, size: int) -> Iterator[dict[str, Any]]:
    """Commands on a folder of files of 256 features; 60 files of 5,000 rows are 307 MB."""
    bags, labels = root / "bags", root / "labels.csv"
    bags.mkdir()
    rng = np.random.default_rng(0)
    centres, lines = rng.normal(size=(8, 256)), ["slide_id,label"]
    for i in range(n_files):
        X = centres[rng.integers(8, size=size)] + rng.normal(size=(size, 256))
        X[: i % 2 * size // 50] += 0.5 * centres[0] - centres[1]
        with h5py.File(bags / f"s{i:03d}.h5", "w") as file:
            file["features"] = X.astype(np.float32)
        lines.append(f"s{i:03d},{i % 2}")
    labels.write_text("\n".join(lines) + "\n", encoding="utf-8")
    n_bytes = sum(path.stat().st_size for path in bags.iterdir())
    seconds = {}
    for model in ("vgpmil", "auto"):
        words = ["fit", "--model", model, "--bags", bags, "--labels", labels]
        cost = _command([*words, "--out", root / f"{model}.bagwise"])
        seconds[model] = cost["seconds"]
        yield _row(f"fit {model}: peak memory over the data", cost["peak"] / n_bytes, 2.5)
        yield _row(f"fit {model}: bytes read over the data", cost["read"] / n_bytes, 1.2)
    ratio = seconds["auto"] / seconds["vgpmil"]
    yield _row("fit auto over fit vgpmil, processor time", ratio, 6)
    for name, no_memory, limit in (("in memory", False, 1.2), ("from disk", True, 2.1)):
        words = ["predict", root / "vgpmil.bagwise", "--bags", bags, "--out", root / name]
        cost = _command(words, no_memory)
        yield _row(f"predict {name}: bytes read", cost["read"] / n_bytes, limit)


def _command(words: list[Any], no_memory: bool = False) -> dict[str, float]:
    """What a command of bagwise took, in a process of its own."""
    code = _COMMAND.format(no_memory=no_memory)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False
    )
    last = (done.stdout.strip().splitlines() or [""])[-1]
    cost = json.loads(last) if last.startswith("{") else {"code": 1}
    if cost["code"]:
        raise RuntimeError(f"bagwise {words[0]} failed:\n{done.stdout}\n{done.stderr}")
    return dict(cost)


def _printed(code: str) -> float:
    """The number that a program of its own process prints last."""
    words = [sys.executable, "-c", code]
    return float(
        subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1]
    )


def _children_cpu(code: str) -> float:
    """Processor seconds of a program in a process of its own."""
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _interrupted(model: str, after: float = 2.0) -> float:
    """Processor seconds from Ctrl-C, that long into a fit, to the end of the process."""
    code = _LONG_FIT.format(model=model)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    begun = _cpu_of(process.pid)
    while _cpu_of(process.pid) < begun + after and process.poll() is None:
        time.sleep(0.02)
    asked = last = _cpu_of(process.pid)
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        last = max(last, _cpu_of(process.pid))
        time.sleep(0.01)
    if process.returncode in (0, None):
        raise RuntimeError(f"{model}: the fit ended before Ctrl-C was seen")
    return last - asked


def _cpu_of(pid: int) -> float:
    """Processor seconds of a process until now, 0 where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100


def _row(what: str, value: float, limit: float) -> dict[str, Any]:
    return {"what": what, "value": value, "must": f"<= {limit:g}", "ok": value <= limit}


if __name__ == "__main__":
    for row in run(quick="--quick" in sys.argv):
        print(f"{row['what']}: {row['value']:.3g} (must be {row['must']})", flush=True)
