"""The settings of the papers, by name; experiments and guides use these, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bagwise.core.kernels import RBF
from bagwise.models.base import BagClassifier
from bagwise.models.miles import MILES
from bagwise.models.variational import GVGPMIL, LMVGPMIL, VGPMIL, LargeMargin, NoisyMax

# Both released programs: H = 1e12, all instances updated at once, twenty iterations.
_AUTHORS: dict[str, object] = {
    "inducing": "class-kmeans",
    "kernel": RBF("sqrt_dim", 1.0),
    "likelihood": NoisyMax(1e12, schedule="paper"),
    "max_iter": 20,
    "tol": 0.0,
    "bag_rule": "max",
    "calibrate": False,
}
# The newsgroups of the first paper: features of one unit, as they are.
_NEWSGROUPS: dict[str, object] = {
    "inference": "paper",
    "kernel": RBF("sqrt_dim", 1.0),
    "n_inducing": 50,
    "inducing": "class-kmeans",
    "scale": None,
    "max_iter": 20,
    "tol": 0.0,
    "bag_rule": "max",
    "calibrate": False,
}
_PAPER = NoisyMax(100.0, schedule="paper")

# name: (what it reproduces, the class, its settings)
PRESETS: dict[str, tuple[str, Callable[..., BagClassifier], dict[str, Any]]] = {
    "vgpmil-authors": (
        "VGPMIL as the authors' program runs it",
        VGPMIL,
        {**_AUTHORS, "inference": "paper"},
    ),
    "g-vgpmil-authors": ("G-VGPMIL(1, 1) as the authors' program runs it", GVGPMIL, _AUTHORS),
    "vgpmil-newsgroups": (
        "VGPMIL on the newsgroups of Haussmann et al., 2017",
        VGPMIL,
        {**_NEWSGROUPS, "likelihood": _PAPER},
    ),
    "lm-vgpmil-newsgroups": (
        "LM-VGPMIL on the newsgroups of Haussmann et al., 2017",
        VGPMIL,
        {
            **_NEWSGROUPS,
            "likelihood": LargeMargin(2.0, 2.0, 100.0, schedule="paper"),
            "init": "label",
        },
    ),
    "lm-vgpmil": ("LM-VGPMIL with C = V = 2", LMVGPMIL, {"inducing": "class-kmeans"}),
    "miles-musk": (
        "MILES on the raw MUSK features, sigma² = 5e5",
        MILES,
        {"sigma": float(np.sqrt(5e5)), "alpha": 0.45, "scale": None, "calibrate": False},
    ),
}


def preset(name: str, **changes: object) -> BagClassifier:
    """An unfitted model with a paper's settings.

    Parameters
    ----------
    name : str
        One of ``PRESETS``.
    **changes
        Parameters that replace those of the preset, such as ``random_state``.

    Examples
    --------
    >>> from bagwise.models.presets import preset
    >>> preset("vgpmil-authors", random_state=0).max_iter
    20
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; choose one of {list(PRESETS)}.")
    _, make, settings = PRESETS[name]
    return make(**{**settings, **changes})
