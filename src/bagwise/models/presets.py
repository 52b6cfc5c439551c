"""The settings of the papers and of their released programs, each with the place where it stands.

*paper* is what the text prints, *program* what the authors' released program does; they differ. A
value that stands in neither is one of ours, and its source says so and why. Experiments and guides
that name a paper's settings use these presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from bagwise.core.kernels import RBF
from bagwise.models.base import BagClassifier
from bagwise.models.dpmil import DPMIL
from bagwise.models.micrf import MICRF
from bagwise.models.miles import MILES
from bagwise.models.mio import MIO
from bagwise.models.variational import (
    VGPMIL,
    Gamma,
    KernelStep,
    LargeMargin,
    NoisyMax,
    ProgramKernelStep,
    PsiVGPMIL,
    Sech,
)


class Setting(NamedTuple):
    """A value, and where it stands."""

    value: Any
    source: str


class Preset(NamedTuple):
    """A model with a paper's settings, and when its fit stops."""

    title: str
    model: type[BagClassifier]
    settings: dict[str, Setting]  # by parameter of the model
    stopping: Mapping[str, Setting] = MappingProxyType({})  # of `fit`, beside ``validation``


# Haussmann, Hamprecht and Kandemir, CVPR 2017; its program is github.com/manuelhaussmann/vgpmil.
_NOT_PRINTED = "ours; the paper does not say"
_UNCALIBRATED = Setting(False, "ours: the model's own probabilities, as in the paper")
_TO_THE_END = Setting(0.0, "ours: all iterations are made")
_NOT_STANDARDISED = Setting(
    None, "ours: the 20 Newsgroups have features of one unit; the program standardises"
)
_PAPER: dict[str, Setting] = {
    "inference": Setting("paper", "section 3.1 of [Haussmann2017]"),
    "kernel": Setting(RBF("sqrt_dim", 1.0), "section 2.1 of [Haussmann2017]: l = sqrt(D), v = 1"),
    "n_inducing": Setting(50, "sections 4.2 and 4.3 of [Haussmann2017]"),
    "inducing": Setting("class-kmeans", "section 4.2 of [Haussmann2017]"),
    "scale": _NOT_STANDARDISED,
    "max_iter": Setting(20, "section 4.3 of [Haussmann2017]"),
    "tol": _TO_THE_END,
    "bag_rule": Setting("max", "section 2.1 of [Haussmann2017]: the label of a bag is the maximum"),
    "calibrate": _UNCALIBRATED,
}
_PROGRAM: dict[str, Setting] = {
    "inference": Setting("paper", "vgpmil.py, vgpmil.train"),
    "kernel": Setting(RBF("sqrt_dim", 1.0), "vgpmil.py, vgpmil.initialize: v = 1; l is the user's"),
    "n_inducing": Setting(50, "vgpmil.py and lm_vgpmil.py, default of num_inducing"),
    "inducing": Setting("class-kmeans", "vgpmil.py, vgpmil.initialize"),
    "scale": Setting("feature", "vgpmil.py, default of normalize"),
    "max_iter": Setting(10, "vgpmil.py and lm_vgpmil.py, default of max_iter"),
    "tol": _TO_THE_END,
    "bag_rule": Setting("max", "ours; the program predicts instances"),
    "calibrate": _UNCALIBRATED,
}

# Castro-Macías et al., Artificial Intelligence 2024; github.com/Franblueee/psi-VGPMIL.
_PSI_PAPER: dict[str, Setting] = {
    "kernel": Setting(
        RBF("sqrt_dim", 0.5),
        "sections 6.1 to 6.3 of [CastroMacias2024]: v = 0.5; the printed l = D is l^2",
    ),
    "learn_kernel": Setting(
        KernelStep(),
        "Algorithm 1 of [CastroMacias2024], step 8; the number of gradient steps is not printed",
    ),
    "likelihood": Setting(
        NoisyMax(100.0, schedule="paper"), "sections 6.1 to 6.3 of [CastroMacias2024]: H = 100"
    ),
    "init": Setting("random", "Algorithm 1 of [CastroMacias2024], step 2"),
    "n_inducing": Setting(100, "one of 50, 100 and 200, sections 6.1 to 6.3 of [CastroMacias2024]"),
    "inducing": Setting("class-kmeans", "psiVGPMIL.py, compute_inducing_points; not in the paper"),
    "scale": Setting("feature", "psiVGPMIL.py, initialize; not in the paper"),
    "max_iter": Setting(60, "run_experiment.py, 10 + 50; the paper does not print K"),
    "tol": _TO_THE_END,
    "bag_rule": Setting("noisy-or", "Eq. 34 of [CastroMacias2024]"),
    "calibrate": _UNCALIBRATED,
}
_PSI_PROGRAM: dict[str, Setting] = {
    "kernel": Setting(
        RBF("sqrt_dim", 0.5), "run_experiment.py, kernel_var = 0.5 and kernel_ls = D, which is l^2"
    ),
    "learn_kernel": Setting(
        ProgramKernelStep(warmup=10, n_steps=200, rate=0.01),
        "run_experiment.py, warmup_iters, max_opt_epochs and lr; variational.py",
    ),
    "likelihood": Setting(NoisyMax(1e12, schedule="paper"), "psiVGPMIL.py, lH"),
    "init": Setting("random", "psiVGPMIL.py, initialize, which draws up to 0.1 instead of 1"),
    "n_inducing": Setting(100, "one of 50, 100 and 200, run_musk_experiments.sh"),
    "inducing": Setting("class-kmeans", "psiVGPMIL.py, compute_inducing_points"),
    "scale": Setting("feature", "run_experiment.py, normalize"),
    "max_iter": Setting(60, "run_experiment.py, warmup_iters = 10; run_musk_experiments.sh, 50"),
    "tol": _TO_THE_END,
    "bag_rule": Setting("max", "psiVGPMIL.py, predict_bags"),
    "calibrate": _UNCALIBRATED,
}
_AUC_STOP = {
    "patience": Setting(10, "sections 6.1 to 6.3 of [CastroMacias2024]: ten epochs"),
    "monitor": Setting("auc", "sections 6.1 to 6.3 of [CastroMacias2024]"),
}
_LOSS_STOP = {
    "patience": Setting(10, "run_experiment.py, early_stop_patience"),
    "monitor": Setting("log-loss", "engine.py, Trainer.train"),
}
_LOGISTIC = Setting(Sech(), "section 6 of [CastroMacias2024]: psi = phi")
_GAMMA = Setting(
    Gamma(1.0, 4.0),
    "one of the grid of section 6.1 of [CastroMacias2024], and the default of run_experiment.py",
)

# Kandemir and Hamprecht, UAI 2014.
_DPMIL: dict[str, Setting] = {
    "n_components": Setting(20, "section 4 of [Kandemir2014]: K"),
    "concentration": Setting(2.0, "section 4 of [Kandemir2014]: alpha"),
    "degrees_of_freedom_prior": Setting(None, "section 4 of [Kandemir2014]: nu0 = D + 1"),
    "covariance_prior": Setting(
        None, "section 4 of [Kandemir2014]: W0 is the inverse covariance of the data"
    ),
    "covariance_floor": Setting(
        1e-9,
        "ours: section 4 of [Kandemir2014] adds nothing, but a covariance of kernel PCA can be "
        "singular in double precision, and this makes it positive definite; the released program "
        "adds 0.001 I (dpmil_train.m, initmodel)",
    ),
    "mean_prior": Setting(None, "section 4 of [Kandemir2014]: m0 is the mean of the data"),
    "mean_precision_prior": Setting(1.0, "section 4 of [Kandemir2014]: beta0"),
    "max_iter": Setting(100, "section 4 of [Kandemir2014]"),
    "n_init": Setting(1, "Algorithm 1 of [Kandemir2014]: labels start at those of their bags"),
    "scale": Setting(None, "section 4.1 of [Kandemir2014]: kernel PCA, and nothing after it"),
    "n_dimensions": Setting(None, "section 4.1 of [Kandemir2014]: kernel PCA, nothing after it"),
    "bag_rule": Setting("max", "section 1 of [Kandemir2014]: the rule of bags and instances"),
    "calibrate": _UNCALIBRATED,
}

# Li, Kwok and Lu, CVPR 2010; sigma, alpha, beta and the bias are printed nowhere.
_OF_MUSK = f"{_NOT_PRINTED}; chosen on MUSK1"
_MIO: dict[str, Setting] = {
    "sigma": Setting(float(np.sqrt(5e5)), _OF_MUSK),
    "alpha": Setting(0.1, _OF_MUSK),
    "beta": Setting(1.0, _OF_MUSK),
    "bias": Setting(1.0, "ours; the paper has no bias"),
    "n_passes": Setting(10, "Table 1 of [Li2010]"),
    "passes": Setting("accumulate", "Algorithm 1 of [Li2010]"),
    "class_weight": Setting(None, f"{_NOT_PRINTED}: C1 = C2 = 1"),
    "scale": Setting(None, _NOT_PRINTED),
    "calibrate": Setting(False, "section 4.2 of [Li2010]: accuracy of labels"),
}
_MILES: dict[str, Setting] = {
    "sigma": _MIO["sigma"],
    "alpha": Setting(0.45, _OF_MUSK),
    "solver": Setting("highs", "Eq. 2 of [Li2010]: the 1-norm SVM, a linear program"),
    **{name: _MIO[name] for name in ("class_weight", "scale", "calibrate")},
}

# Deselaers and Ferrari, ICML 2010.
_MICRF: dict[str, Setting] = {
    "C": Setting(1.0, "section 5.2 of [Deselaers2010]"),
    "svm_C": Setting(1.0, "section 5.2 of [Deselaers2010]"),
    "gamma": Setting(None, "section 5.2 of [Deselaers2010]: 1 / D"),
    "kernels": Setting(("rbf", "linear", "intersection"), "section 2.2 of [Deselaers2010]"),
    "dissimilarities": Setting(("l1", "l2", "chi2"), "section 2.3 of [Deselaers2010]"),
    "inference": Setting("trws", "section 3.2 of [Deselaers2010]"),
    "scale": Setting("minmax", _NOT_PRINTED),
    "calibrate": Setting(False, "section 5.2 of [Deselaers2010]: accuracy of labels"),
}

_H_PAPER = Setting(NoisyMax(100.0, schedule="paper"), "section 3 of [Haussmann2017]: H = 100")
_H_PROGRAM = Setting(NoisyMax(1e12, schedule="paper"), "vgpmil.py, vgpmil.__init__: lH")
_LM_PAPER = Setting(
    LargeMargin(2.0, 2.0, 100.0, schedule="paper"),
    "section 4.3 of [Haussmann2017]: C = V = 2 for PASCAL VOC; section 3: H = 100",
)
_LM_PROGRAM = Setting(
    LargeMargin(1.0, 1.0, 1e12, schedule="paper"), "lm_vgpmil.py, lm_vgpmil.__init__"
)
_FROM_LABELS = Setting("label", "ours: at 1/2 no gate has a margin; the program starts at random")

PRESETS: dict[str, Preset] = {
    "vgpmil-paper": Preset("VGPMIL, [Haussmann2017]", VGPMIL, {**_PAPER, "likelihood": _H_PAPER}),
    "vgpmil-program": Preset(
        "VGPMIL, program of [Haussmann2017]", VGPMIL, {**_PROGRAM, "likelihood": _H_PROGRAM}
    ),
    "lm-vgpmil-paper": Preset(
        "LM-VGPMIL, [Haussmann2017]",
        VGPMIL,
        {**_PAPER, "likelihood": _LM_PAPER, "init": _FROM_LABELS},
    ),
    "lm-vgpmil-program": Preset(
        "LM-VGPMIL, program of [Haussmann2017]",
        VGPMIL,
        {**_PROGRAM, "likelihood": _LM_PROGRAM, "init": _FROM_LABELS},
    ),
    "psi-vgpmil-paper": Preset(
        "VGPMIL, [CastroMacias2024]", PsiVGPMIL, {**_PSI_PAPER, "density": _LOGISTIC}, _AUC_STOP
    ),
    "psi-vgpmil-program": Preset(
        "VGPMIL, program of [CastroMacias2024]",
        PsiVGPMIL,
        {**_PSI_PROGRAM, "density": _LOGISTIC},
        _LOSS_STOP,
    ),
    "g-vgpmil-paper": Preset(
        "G-VGPMIL, [CastroMacias2024]", PsiVGPMIL, {**_PSI_PAPER, "density": _GAMMA}, _AUC_STOP
    ),
    "g-vgpmil-program": Preset(
        "G-VGPMIL, program of [CastroMacias2024]",
        PsiVGPMIL,
        {**_PSI_PROGRAM, "density": _GAMMA},
        _LOSS_STOP,
    ),
    "dpmil-paper": Preset("DPMIL, [Kandemir2014]", DPMIL, _DPMIL),
    "mio-paper": Preset("MIO, [Li2010], on MUSK", MIO, _MIO),
    "miles-paper": Preset("MILES as in [Li2010], on MUSK", MILES, _MILES),
    "micrf-paper": Preset("MI-CRF, [Deselaers2010], row (c)", MICRF, _MICRF),
}


def preset(name: str, **changes: object) -> BagClassifier:
    """An unfitted model with the settings of a paper or of its released program.

    Parameters
    ----------
    name : str
        One of ``PRESETS``: "vgpmil-paper", "vgpmil-program", "lm-vgpmil-paper",
        "lm-vgpmil-program", "psi-vgpmil-paper", "psi-vgpmil-program", "g-vgpmil-paper",
        "g-vgpmil-program", "dpmil-paper", "mio-paper", "miles-paper", "micrf-paper".
    **changes
        Parameters that replace those of the preset, such as ``random_state``.

    Returns
    -------
    BagClassifier
        A new model. ``PRESETS[name]`` has the source of each of its settings.

    Examples
    --------
    >>> from bagwise.models.presets import PRESETS, preset
    >>> preset("vgpmil-program", random_state=0).max_iter
    10
    >>> PRESETS["vgpmil-program"].settings["max_iter"].source
    'vgpmil.py and lm_vgpmil.py, default of max_iter'
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; choose one of {list(PRESETS)}.")
    chosen = PRESETS[name]
    settings: dict[str, Any] = {key: setting.value for key, setting in chosen.settings.items()}
    return chosen.model(**{**settings, **changes})
