"""Models on the features as they are and without calibration, for tests of the mathematics.

The defaults of the classes scale and calibrate; what stands between a score and its formula
would only blur these tests.
"""

from __future__ import annotations

from functools import partial

import bagwise

_RAW = {"scale": None, "calibrate": False}
MISVM = partial(bagwise.MISVM, C=1.0, **_RAW)
SetKernelSVM = partial(bagwise.SetKernelSVM, **_RAW)
MILES = partial(bagwise.MILES, **_RAW)
MIO = partial(bagwise.MIO, **_RAW)
MICRF = partial(bagwise.MICRF, calibrate=False, cv=5)
DPMIL = partial(bagwise.DPMIL, bag_rule="noisy-or", scale=None, n_dimensions=None)
SingleInstance = partial(bagwise.SingleInstance, scale=None, calibrate=False)
