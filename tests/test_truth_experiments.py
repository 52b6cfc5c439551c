"""Quick modes of the experiments on probabilities and their uncertainty."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiments import ablation, instance_probabilities, kernel_learning
from experiments._held_out import gather
from experiments._tables import RESULT_COLUMNS

from bagwise import AutoVGPMIL

ROOT = Path(__file__).parents[1]
NAMES = (
    "permuted_labels",
    "probability_levels",
    "instance_probabilities",
    "kernel_learning",
    "ablation",
    "gamma_grid",
    "slides",
)


@pytest.mark.parametrize("name", NAMES)
def test_quick_mode_gives_a_table(name, tmp_path):
    table = importlib.import_module(f"experiments.{name}").run(True, tmp_path, 1)
    assert list(table.columns) == list(RESULT_COLUMNS)
    assert np.isfinite(table["mean"]).all()
    assert not table["note"].str.contains("silent nonsense").any()
    assert list(tmp_path.glob("*.csv"))


def test_learning_a_kernel_does_not_let_a_gamma_density_run_away():
    """Without a limit its variance grows until the function escapes, and the AUC falls."""
    row = kernel_learning.one_problem(199)
    assert row["model"] == "GVGPMIL"
    assert row["rise of the bound"] > 0
    assert row["AUC, learned"] > row["AUC, start"] - 0.02


@pytest.mark.parametrize("rule", ablation.PATCHES)
def test_a_rule_is_switched_off_and_on_again(rule):
    before = [getattr(place, name) for place, name, _ in ablation.PATCHES[rule]]
    with ablation.switched_off(rule):
        patched = [getattr(place, name) for place, name, _ in ablation.PATCHES[rule]]
    assert any(a is not b for a, b in zip(before, patched, strict=True))
    assert before == [getattr(place, name) for place, name, _ in ablation.PATCHES[rule]]


def test_an_ensemble_without_means_is_that_of_the_standard_assumption():
    case = ablation.load("musk1", 0)
    without = ablation.fit(ablation.NO_MEANS, "musk1", 0)
    standard = AutoVGPMIL(assumption="standard", random_state=0).fit(case.train, case.y_train)
    np.testing.assert_array_equal(
        without.predict_proba(case.test), standard.predict_proba(case.test)
    )


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


def test_every_set_and_all_of_them_have_rows():
    fits = pd.DataFrame({"model": "VGPMIL", "data": ["a", "a", "b", "b"], "seed": 2 * [0, 1]})
    fits["AUC, share"] = [0.5, 0.7, 0.9, 0.7]
    table = instance_probabilities.table(fits).set_index(["data", "metric"])["mean"]
    assert table["a", "AUC, share"] == pytest.approx(0.6)
    assert table["2 sets", "AUC, share"] == pytest.approx(0.7)


def test_auc_inside_positive_bags_needs_both_kinds():
    truth, p = np.array([0, 0, 1, 0]), np.array([0.9, 0.1, 0.8, 0.2])
    inside = np.array([False, False, True, True])
    assert instance_probabilities.auc_inside(truth, p, inside) == 1.0
    assert np.isnan(instance_probabilities.auc_inside(truth, p, ~inside))


def test_an_experiment_run_by_name_may_use_several_processes(tmp_path):
    """What it caches cannot be sent to them: they import it instead."""
    words = [sys.executable, "-m", "experiments.probability_levels", "--quick", "--jobs", "2"]
    made = subprocess.run(
        [*words, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    assert "musk1, one in ten positive" in made.stdout
