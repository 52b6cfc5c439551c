"""The reader's journey, from an empty folder, with the data folder out of sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journeys import reader

EXPERIMENTS = Path(__file__).parent.parent.parent / "experiments"


@pytest.mark.skipif(not EXPERIMENTS.is_dir(), reason="the experiments are in a checkout only")
def test_reader_of_the_papers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAGWISE_DATA", str(tmp_path / "nothing"))
    figures = reader.main()
    assert figures["experiments_ready"] >= 5
    assert figures["digits_auc"] > 0.8
    assert not (tmp_path / "no-data").exists()
    assert {p.name for p in tmp_path.iterdir()} == {"demo", "musk1.csv", "reproduction"}
