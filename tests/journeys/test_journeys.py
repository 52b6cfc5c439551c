"""Journeys of users, each from an empty folder to the result they want."""

from __future__ import annotations

import pytest

from tests.journeys import data_scientist, pathologist


def test_data_scientist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    figures = data_scientist.main()
    assert figures["held_out_auc"] > 0.6
    assert figures["embedded_auc"] > 0.6
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"conformations.parquet", "model.bagwise", "conformations.csv", "held_out.bags"}


def test_pathologist(tmp_path, monkeypatch):
    pytest.importorskip("openpyxl", reason="reads .xlsx files")
    monkeypatch.chdir(tmp_path)
    figures = pathologist.main()
    assert figures["cross_validated_auc"] > 0.8
    assert figures["new_slides_accuracy"] > 0.8
