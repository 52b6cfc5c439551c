"""The experiment's quick mode, its verdicts, and that a stopped run goes on."""

import json

import numpy as np
from experiments import comparators as experiment
from experiments._tables import RESULT_COLUMNS

from bagwise import comparators
from bagwise.comparators import GICF, CitationKNN


def test_quick_run_sets_published_beside_measured(tmp_path, monkeypatch):
    chosen = {"CitationKNN": CitationKNN(calibrate=False), "GICF": GICF(calibrate=False)}
    monkeypatch.setattr(experiment, "models", lambda data: chosen)
    table = experiment.run(quick=True, out=tmp_path)
    assert tuple(table.columns) == RESULT_COLUMNS
    own = table[(table["metric"] == "accuracy") & table["model"].isin(chosen)]
    assert own["model"].tolist() == ["CitationKNN", "GICF"]
    assert own["published"].iloc[0] == 0.924
    assert np.isnan(own["published"].iloc[1])
    assert "two standard errors" in own["note"].iloc[0]
    assert own["note"].iloc[1] == "no published figure"
    # What a search on the test folds is worth stands beside, and says so.
    oracle = table[table["model"].str.endswith(experiment.BY_TEST_FOLDS)]
    assert oracle["model"].str.split(",").str[0].tolist() == list(experiment.SEARCHED)
    assert oracle["note"].str.contains("not a result").all()

    # Without the last three fits the run goes on, and the others are read, not repeated.
    path = tmp_path / "fits_musk1.jsonl"
    lines = path.read_text().splitlines()
    marked = [json.dumps(json.loads(line) | {"fit_seconds": 123.0}) for line in lines[:-3]]
    path.write_text("\n".join(marked) + "\n")
    again = experiment.run(quick=True, out=tmp_path)
    assert again["mean"].tolist() == table["mean"].tolist()
    seconds = [json.loads(line)["fit_seconds"] for line in path.read_text().splitlines()]
    assert seconds.count(123.0) == len(lines) - 3
    assert len(seconds) == len(lines)


def test_verdicts():
    # Of 100 bags at 0.9 the standard error is 0.03.
    assert experiment.verdict(0.9, 0.91, 100) == "within two standard errors"
    assert experiment.verdict(0.9, 0.80, 100).startswith("below")
    assert experiment.verdict(0.6, 0.9, 100) == "better"
    assert experiment.verdict(np.nan, 0.9, 100) == "no published figure"


def test_every_published_figure_has_a_model():
    assert set(experiment.PUBLISHED) <= set(comparators.__all__)
    calibrated = {f"{name}, calibrated" for name in experiment.SEARCHED}
    assert set(experiment.models("musk1")) == set(comparators.__all__) | calibrated
    assert set(experiment.models("musk2")) == set(experiment.PUBLISHED)
