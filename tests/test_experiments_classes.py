"""The experiments on several classes and on rare positives run, in quick mode."""

from __future__ import annotations

import pytest
from experiments import imbalance, multiclass
from experiments.stored import results


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_quick_mode_of_several_classes(tmp_path):
    table = multiclass.run(quick=True, out=tmp_path).set_index(["model", "metric"])["mean"]
    ours, theirs = "VGPMIL, all classes", "OneVsRestClassifier(VGPMIL)"
    assert table[ours, "instance macro AUC"] > 0.85
    assert table[ours, "fit-time ratio"] > 0
    assert {theirs, "DPMIL"} < set(table.index.get_level_values("model"))


def test_quick_mode_of_rare_positives(tmp_path):
    table = imbalance.run(quick=True, out=tmp_path).set_index(["model", "metric"])["mean"]
    assert table["VGPMIL", "bag AUC"] > table["VGPMIL, class_weight='balanced'", "bag AUC"] - 0.02
    assert table["VGPMIL", "mean probability"] < 0.15


def test_stored_rare_positives_keep_what_is_promised():
    """Ranking within 0.02 of the balanced fit's, and probabilities neither too sure nor timid."""
    table = results("imbalance").set_index(["model", "data", "metric"])["mean"]
    for data in imbalance.DATA:
        balanced = table["VGPMIL, class_weight='balanced'", data, "bag AUC"]
        assert table["VGPMIL", data, "bag AUC"] > balanced - 0.02
        assert 0.7 < table["VGPMIL", data, "calibration slope"] < 1.4
