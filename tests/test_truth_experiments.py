"""Quick modes of the experiments on probabilities and their uncertainty."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from bagwise.report.tables import RESULT_COLUMNS

NAMES = (
    "permuted_labels",
    "probability_levels",
    "instance_probabilities",
    "posterior_choice",
    "bootstrap_std",
    "kernel_learning",
    "gamma_grid",
)


@pytest.mark.parametrize("name", NAMES)
def test_quick_mode_gives_a_table(name, tmp_path):
    table = importlib.import_module(f"experiments.{name}").run(True, tmp_path, 1)
    assert list(table.columns) == list(RESULT_COLUMNS)
    assert np.isfinite(table["mean"]).all()
    assert not table["note"].str.contains("silent nonsense").any()
    assert list(tmp_path.glob("*.csv"))
