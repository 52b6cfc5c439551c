"""Time and memory of one call, measured in the process that runs it."""

from __future__ import annotations

import ctypes
import sys
import time
from contextlib import suppress
from pathlib import Path


class Measure:
    """Wall-clock seconds and peak memory of a ``with`` block.

    ``peak_mb`` is how far the resident set of this process rose, at its highest, above where it
    stood on entry. On Linux the kernel's high-water mark is reset on entry (``clear_refs``), and
    freed memory is first returned to the system, so the figure belongs to the block alone and
    counts everything: numpy, compiled code, solvers. Elsewhere the mark cannot be reset and the
    figure is its growth, a lower bound.

    Examples
    --------
    >>> import numpy as np
    >>> from bagwise.evaluate.measure import Measure
    >>> with Measure() as cost:
    ...     total = np.ones(4_000_000).sum()
    >>> cost.seconds > 0, cost.peak_mb >= 0
    (True, True)
    """

    seconds: float
    peak_mb: float

    def __enter__(self) -> Measure:
        # Freed memory is given back, and the mark lowered to what is resident, where possible.
        if sys.platform == "linux":
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
            if trim is not None:
                trim(0)
            # With a read-only /proc the mark keeps its old height, a documented lower bound.
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._memory = _resident_kb("VmRSS")
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self.peak_mb = max(0.0, (_resident_kb("VmHWM") - self._memory) / 1024)


def _resident_kb(field: str) -> float:
    """Resident memory now (VmRSS) or at its highest (VmHWM)."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(field):
                return float(line.split()[1])
    # Elsewhere the mark on entry is its height so far, and what is measured is how far it rises.
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        memory = psutil.Process().memory_info()
        return float(getattr(memory, "peak_wset", memory.rss)) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform == "darwin" else float(peak)
