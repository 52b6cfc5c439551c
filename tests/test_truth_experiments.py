"""Quick modes of the experiments on probabilities and their uncertainty."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from experiments import kernel_learning
from experiments._held_out import gather

from bagwise.report.tables import RESULT_COLUMNS

NAMES = (
    "permuted_labels",
    "probability_levels",
    "instance_probabilities",
    "posterior_choice",
    "bootstrap_std",
    "kernel_learning",
    "gamma_grid",
    "all_sets",
)


@pytest.mark.parametrize("name", NAMES)
def test_quick_mode_gives_a_table(name, tmp_path):
    table = importlib.import_module(f"experiments.{name}").run(True, tmp_path, 1)
    assert list(table.columns) == list(RESULT_COLUMNS)
    assert np.isfinite(table["mean"]).all()
    assert not table["note"].str.contains("silent nonsense").any()
    assert list(tmp_path.glob("*.csv"))


def test_learning_a_kernel_does_not_let_a_gamma_density_run_away():
    """Without a limit its variance passes 11.7, the function escapes and the AUC falls by 0.16."""
    row = kernel_learning.one_problem(199)
    assert row["model"] == "GVGPMIL"
    assert row["rise of the bound"] > 0
    assert row["AUC, learned"] > row["AUC, start"] - 0.02


def test_rows_of_a_stopped_run_are_kept(tmp_path, monkeypatch):
    calls = []

    def one(number):
        calls.append(number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {"number": number, "square": np.float64(number**2)}

    with pytest.raises(KeyboardInterrupt):
        gather(one, [(1,), (2,), (3,)], tmp_path, 1)
    table = gather(one, [(1,), (2,), (3,)], tmp_path, 1)
    assert calls == [1, 2, 3, 3]
    assert table["square"].tolist() == [1.0, 4.0, 9.0]
    assert not list(tmp_path.iterdir())
    # Rows that another version of the library made are made again.
    with pytest.raises(KeyboardInterrupt):
        calls.clear()
        gather(one, [(1,), (2,), (3,)], tmp_path, 1)
    monkeypatch.setattr("experiments._held_out.package_digest", lambda: "another")
    gather(one, [(1,), (2,)], tmp_path, 1)
    assert calls == [1, 2, 3, 1, 2]
