"""Ctrl-C ends a fit that takes long, whatever compiled code it is in."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from bagwise.core.interrupts import interruptible

# Fits again and again; says how much processor time it has used when one is interrupted.
SCRIPT = """
import sys, time, warnings
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


@pytest.mark.parametrize("name", ["DPMIL", "MICRF", "MILES", "MILES by HiGHS", "MIO"])
def test_ctrl_c_ends_a_fit(name):
    """Within a second of processor time, which does not depend on what else the machine does."""
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(name=name)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "ready\n"
        process = psutil.Process(child.pid)
        for wait in (0.5, 2.0):
            start = sum(process.cpu_times()[:2])
            while sum(process.cpu_times()[:2]) < start + wait:
                time.sleep(0.05)
            child.send_signal(signal.SIGINT)
            before = sum(process.cpu_times()[:2])
            answer = child.stdout.readline().split()
            while answer == ["finished"]:
                answer = child.stdout.readline().split()
            assert answer[0] == "interrupted"
            assert float(answer[1]) - before < 1.0
    finally:
        child.kill()
        child.wait()


def test_errors_come_through():
    with pytest.raises(ZeroDivisionError):
        interruptible(divmod, 1, 0)
