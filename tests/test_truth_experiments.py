"""Quick modes of the experiments on probabilities and their uncertainty."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiments import instance_probabilities, kernel_learning
from experiments._held_out import gather

from bagwise.report.tables import RESULT_COLUMNS

ROOT = Path(__file__).parents[1]
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


def test_differences_are_taken_on_the_same_split():
    fits = pd.DataFrame(
        {
            "model": 2 * ["GVGPMIL", "GVGPMIL", "VGPMIL", "VGPMIL"],
            "data": 4 * ["a"] + 4 * ["b"],
            "seed": 2 * [0, 1, 1, 0],
            "AUC": [0.5, 0.7, 0.9, 0.6, 0.5, 0.5, 0.5, 0.9],
            "AURC by std": 8 * [0.3],
            "AURC by p": 4 * [0.1, 0.2],
            **dict.fromkeys(("log loss", "constant", "level", "share error"), 0.0),
        }
    )
    made = instance_probabilities.with_differences(fits)
    np.testing.assert_allclose(made["AUC over GVGPMIL"], [0, 0, 0.2, 0.1, 0, 0, 0, 0.4])
    table = instance_probabilities.table(fits).set_index(["model", "data", "metric"])
    assert table.loc[("VGPMIL", "2 sets", "AUC over GVGPMIL"), "mean"] == pytest.approx(0.175)
    # 0.1 and 0.2 have a mean of 0.15 and a standard error of 0.05.
    note = table.loc[("VGPMIL", "a", "AUC over GVGPMIL"), "note"]
    assert note == "+3.0 standard errors"
    assert ("GVGPMIL", "a", "AUC over GVGPMIL") not in table.index


def test_an_experiment_run_by_name_may_use_several_processes(tmp_path):
    """What it caches cannot be sent to them: they import it instead."""
    words = [sys.executable, "-m", "experiments.probability_levels", "--quick", "--jobs", "2"]
    made = subprocess.run(
        [*words, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    assert "musk1, one in ten positive" in made.stdout
