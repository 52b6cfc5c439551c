"""The experiments on several classes and on rare positives run, in quick mode."""

from __future__ import annotations

import pytest
from experiments import imbalance, multiclass


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_quick_mode_of_several_classes(tmp_path):
    table = multiclass.run(quick=True, out=tmp_path).set_index(["model", "metric"])["mean"]
    ours, theirs = "VGPMIL, all classes", "OneVsRestClassifier(VGPMIL)"
    assert table[ours, "instance macro AUC"] > 0.85
    assert table[ours, "fit-time ratio"] < 1
    assert {theirs, "DPMIL"} < set(table.index.get_level_values("model"))


def test_quick_mode_of_rare_positives(tmp_path):
    table = imbalance.run(quick=True, out=tmp_path).set_index(["model", "metric"])["mean"]
    assert table["VGPMIL", "bag AUC"] > table["VGPMIL, class_weight='balanced'", "bag AUC"] - 0.02
    assert table["VGPMIL", "mean probability"] < 0.15
