"""Ctrl-C ends a fit that takes long, whatever compiled code it is in."""

import queue
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from bagwise.core.interrupts import interruptible

# Fits again and again; says how much processor time it has used when one is interrupted.
SCRIPT = """
import signal, sys, time, warnings
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from bagwise import DPMIL, MICRF, MILES, MIO
from bagwise.datasets import make_gaussian_bags
warnings.simplefilter("ignore")
models = {{
    "DPMIL": DPMIL(random_state=0, tol=0.0, max_iter=1000, n_dimensions=None),
    "MICRF": MICRF(),
    "MILES": MILES(),
    "MILES by HiGHS": MILES(),
    "MIO": MIO(passes="refine", n_passes=1000, tol=0.0, random_state=0),
}}
if "{name}" == "MILES by HiGHS":
    from bagwise.core import l1_svm
    l1_svm._SIMPLEX_ENTRIES = 10**9
model = models["{name}"]
model.fit(*make_gaussian_bags(n_bags=20, random_state=0, return_X_y=True))
bags, y = make_gaussian_bags(n_bags=700, n_features=38, random_state=0, return_X_y=True)
y = (y + (bags.offsets[:-1] % 7 == 0)) % 2
print("ready", flush=True)
while True:
    try:
        model.fit(bags, y)
        print("finished", flush=True)
    except KeyboardInterrupt:
        print("interrupted", time.process_time(), flush=True)
"""


def answered(process, lines, within=1.0):
    """Whether the fit says that it was interrupted before it has used so much processor time."""
    process.send_signal(signal.SIGINT)
    end = used(process) + within
    while process.status() != psutil.STATUS_ZOMBIE and used(process) < end:
        try:
            words = lines.get(timeout=0.05).split()
        except queue.Empty:
            continue
        if words[0] == "interrupted":
            return float(words[1]) < end
    return False


def used(process):
    return sum(process.cpu_times()[:2])


@pytest.mark.parametrize("name", ["DPMIL", "MICRF", "MILES", "MILES by HiGHS", "MIO"])
def test_ctrl_c_ends_a_fit(name):
    """Within a second of processor time, which does not depend on what else the machine does."""
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(name=name)], stdout=subprocess.PIPE, text=True
    )
    lines = queue.Queue()
    threading.Thread(target=lambda: [lines.put(x) for x in child.stdout], daemon=True).start()
    try:
        assert lines.get(timeout=120) == "ready\n"
        process, in_time = psutil.Process(child.pid), []
        for wait in (0.5, 2.0):
            start = used(process)
            while used(process) < start + wait:
                time.sleep(0.05)
            in_time.append(answered(process, lines))
        assert all(in_time)
    finally:
        child.kill()
        child.wait()


def test_errors_come_through():
    with pytest.raises(ZeroDivisionError):
        interruptible(divmod, 1, 0)
