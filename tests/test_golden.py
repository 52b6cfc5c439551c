"""Rows of one version of the library beside those of another."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from experiments import golden, leaderboard


@pytest.fixture
def path(tmp_path):
    return tmp_path / "golden" / "golden.csv"


def row(version, model, data, fold, auc, seconds):
    made = {"version": version, "model": model, "data": data, "fold": fold, "auc": auc}
    return made | {"log_loss": 0.5, "instance_auc": np.nan, "seconds": seconds}


def test_stored_rows_are_of_the_first_repetition_of_every_set():
    stored = golden.read()
    old = stored[stored["version"] == "0.2.0"]
    assert set(old["model"]) == set(golden.MODELS)
    assert set(old["data"]) == set(leaderboard.SETS)
    assert not stored.duplicated(golden.CELL).any()


def test_a_stopped_run_goes_on_and_fresh_replaces(path, monkeypatch):
    calls = []

    def measure(model, data, fold):
        calls.append((model, data, fold))
        return {
            "model": model,
            "data": data,
            "fold": fold,
            "auc": 1.0,
            "log_loss": 0.1,
            "seconds": 1,
        }

    monkeypatch.setattr(golden, "measure", measure)
    golden.store(pd.DataFrame([row("9", "auto", "fox", 0, 0.5, 3.0)]), path)
    golden.record(("auto",), ("fox",), "9", path=path)
    assert calls == [("auto", "fox", fold) for fold in range(1, 10)]
    golden.record(("auto",), ("fox",), "9", fresh=True, path=path)
    assert len(calls) == 19
    rows = golden.read(path)
    assert len(rows) == 10
    assert (rows["auc"] == 1).all()


def test_differences_are_means_over_sets_of_cells_that_both_have():
    rows = [row("1", "auto", d, f, 0.5, 2.0) for d in ("a", "b", "c") for f in (0, 1)]
    rows += [row("2", "auto", "a", f, 0.6, 1.0) for f in (0, 1)]
    rows += [row("2", "auto", "b", 0, 0.8, 4.0), row("2", "auto", "new", 0, 0.0, 9.0)]
    (made,) = golden.compare(pd.DataFrame(rows), "1", "2").to_dict("records")
    assert made["auc"] == pytest.approx(0.2)
    assert made["auc ±"] == pytest.approx(0.1)
    assert made["auc sets"] == 2
    assert made["instance_auc sets"] == 0
    assert made["time ratio"] == pytest.approx(1.0)  # half and double


def test_a_fit_is_scored_on_its_own_fold():
    made = golden.measure("g-vgpmil", "musk1", 3)
    assert 0.5 < made["auc"] <= 1
    assert "instance_auc" not in made
    assert made["seconds"] > 0
